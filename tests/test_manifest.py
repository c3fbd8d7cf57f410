"""Loading a manifest: what is refused, and with which words. Needs no device and no compiler."""

import hashlib
import lzma

import pytest

from grilly.errors import ShaderError
from grilly.registry import Manifest, manifest
from grilly.registry.checkout import checkout_of
from grilly.registry.names import MANIFEST
from grilly.registry.packed import Packed
from manifests import BLOCK, SPIRV, entry, put_manifest, write_manifest


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
        ('{"schema": 6, "families": {}, "variants": []}', "lacks facts"),
        ('{"schema": 6, "families": {}, "facts": {"header": {"LEFT": "5"}}, "variants": []}', "lacks facts"),
        ('{"schema": 6, "families": {}, "facts": {}, "variants": []}', "lists no variants"),
        ('{"schema": 6, "families": {}, "facts": {}, "variants": [3]}', "entry 1"),
        ('{"schema": 6, "families": {}, "facts": {}, "variants": [{"family": "a"}]}', "lacks 'key'"),
        ('{"schema": 6, "families": {}, "facts": {"header": {"LEFT": 6}}, "variants": []}',
         "LEFT among the shared header is 6 in the shaders and 5 in the package"),
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
    path.write_bytes(lzma.compress(SPIRV[:-1] + b"x"))
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
