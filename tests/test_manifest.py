"""Loading manifest.json: what is refused, and with which words. Needs no device and no compiler."""

import hashlib
import json

import pytest

from grilly.errors import ShaderError
from grilly.registry import Manifest, manifest
from manifests import SPIRV, entry, write_manifest


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
    with pytest.raises(ShaderError, match=r"manifest\.json is missing; reinstall grilly"):
        Manifest(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "schema None"),
        ('{"schema": 99, "variants": []}', "schema 99"),
        ('{"schema": 2, "variants": []}', "lists no variants"),
        ('{"schema": 2, "variants": [3]}', "entry 1"),
        ('{"schema": 2, "variants": [{"family": "a"}]}', "lacks 'variant'"),
    ],
)
def test_damage_is_named(tmp_path, text, said):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ShaderError, match=said) as caught:
        Manifest(tmp_path)
    assert str(tmp_path / "manifest.json") in str(caught.value)


def test_a_manifest_that_is_no_text_is_named(tmp_path):
    (tmp_path / "manifest.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ShaderError, match="cannot be read"):
        Manifest(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": "float8"}, "float8"),
        ({"requires": ["wings"]}, "wings"),
        ({"file": "../x.spv"}, "bare file name"),
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
    for key in whole.keys() - {"key"}:  # the build tool's own; nothing at run time reads it
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


def test_a_binary_is_checked_when_it_is_read(tmp_path):
    loaded = Manifest(write_manifest(tmp_path, [entry("a.b.float32")]))
    (variant,) = loaded.variants
    path = tmp_path / variant.file
    path.write_bytes(SPIRV + b"\0\0\0\0")
    with pytest.raises(ShaderError, match=r"a\.b\.float32\.spv is damaged: its SHA-256"):
        loaded.binary(variant)
    path.unlink()
    with pytest.raises(ShaderError, match=r"a\.b\.float32\.spv cannot be read"):
        loaded.binary(variant)
    path.write_bytes(SPIRV)
    assert loaded.binary(variant) == SPIRV
    path.unlink()
    assert loaded.binary(variant) == SPIRV, "read once and kept"


def test_the_default_manifest_is_loaded_once(tmp_path, monkeypatch):
    write_manifest(tmp_path / "spirv", [entry("a.b.float32")])
    monkeypatch.setattr(manifest, "_PACKAGE", tmp_path)
    monkeypatch.setattr(manifest, "_default", None)
    monkeypatch.delenv(manifest.COMPILE_VARIABLE, raising=False)
    first = manifest.default_manifest()
    assert first.variants[0].name == "a.b.float32"
    (tmp_path / "spirv/manifest.json").unlink()
    assert manifest.default_manifest() is first


def test_compiling_at_load_needs_a_checkout(tmp_path):
    package = tmp_path / "lib/grilly"
    package.mkdir(parents=True)
    with pytest.raises(ShaderError, match="GRILLY_COMPILE_SHADERS is set, but .* is not in a source checkout"):
        manifest.compile_checkout(package)


def test_compiling_at_load_runs_the_tool_and_passes_its_words_on(tmp_path, monkeypatch):
    package = tmp_path / "grilly_py/grilly"
    (tmp_path / "tools").mkdir()
    (tmp_path / "shaders").mkdir()
    ran = tmp_path / "ran"
    tool = tmp_path / "tools/compile_shaders.py"
    write_manifest(package / "spirv", [entry("a.b.float32")])
    monkeypatch.setattr(manifest, "_default", None)
    monkeypatch.setattr(manifest, "_PACKAGE", package)
    monkeypatch.setattr(manifest.compile_checkout, "__defaults__", (package,))
    tool.write_text(f"open({str(ran)!r}, 'w').close()")
    monkeypatch.setenv(manifest.COMPILE_VARIABLE, "0")
    manifest.default_manifest()
    assert not ran.exists(), "0 means off"
    monkeypatch.setattr(manifest, "_default", None)
    monkeypatch.setenv(manifest.COMPILE_VARIABLE, "1")
    manifest.default_manifest()
    assert ran.exists()
    tool.write_text("import sys; sys.exit('shaders/a.comp:3: no such thing')")
    with pytest.raises(ShaderError, match=r"shaders/a\.comp:3: no such thing"):
        manifest.compile_checkout(package)


def test_the_packages_own_manifest_and_binaries():
    own = Manifest()
    for variant in own.variants:
        assert own.binary(variant)[:4] == bytes.fromhex("03022307")
    files = {path.name for path in own.folder.glob("*.spv")}
    assert files == {variant.file for variant in own.variants}
    text = own.path.read_text()
    assert [json.loads(line.rstrip(",")) for line in text.splitlines()[1:-1]] == json.loads(text)["variants"]


def test_the_helper_writes_what_the_digest_says(tmp_path):
    made = entry("a.b.float32")
    assert made["sha256"] == hashlib.sha256(SPIRV).hexdigest()
