"""The choice between variants: every key of a data file has a case here, and device names. Needs no device."""

import dataclasses
import struct

import pytest

from grilly.errors import UnsupportedError
from grilly.registry import ARCHITECTURES, Manifest, Registry, Request, identify, matches
from grilly.runtime.interface import DeviceInfo
from manifests import SPIRV, entry, write_manifest
from threads import in_time

LIMITS = {"shared_bytes": 49152, "invocations": 1024, "push_bytes": 256, "bindings": 16, "subgroups": 32}
GPU = DeviceInfo(
    index=0, name="NVIDIA H200", vendor="nvidia", vendor_id=0x10DE, device_id=0x2335, kind="discrete", driver="NVIDIA",
    driver_version="580", api_version=(1, 4, 0), subgroup_size=32, subgroup_sizes=(32, 32), limits=LIMITS,
    features=frozenset(), memory_bytes=1, unified=False,
)  # fmt: skip
PLAIN = Request("attention", "float32")


@pytest.fixture
def registry(tmp_path):
    def make(*entries, features=(), device=GPU, **changes):
        return Registry(
            dataclasses.replace(device, **changes), frozenset(features), Manifest(write_manifest(tmp_path, entries))
        )

    return make


def chosen(registry, request=PLAIN):
    return registry.resolve(request).variant.name


def reason(registry, name, request=PLAIN):
    return {variant.name: why for variant, why in registry.explain(request)}[name]


def test_highest_rank_wins(registry):
    r = registry(entry("a.x.float32", rank=1), entry("b.x.float32", rank=2), entry("c.x.float32", rank=-1))
    assert chosen(r) == "b.x.float32"


def test_equal_ranks_go_by_family_then_variant_then_place(registry):
    first, second = {"limits": {"d": [1, 9]}}, {"limits": {"d": [1, 5]}}
    r = registry(
        entry("b.a.float32"), entry("a.z.float32"), entry("a.y.zz.float32", **first), entry("a.y.aa.float32", **second)
    )
    assert chosen(r, Request("attention", "float32", problem={"d": 3})) == "a.y.zz.float32"
    assert chosen(r, Request("attention", "float32", problem={"d": 10})) == "a.z.float32"


def test_equals_have_the_rank_of_the_choice(registry):
    r = registry(
        entry("a.x.float32", rank=2), entry("b.x.float32", rank=2), entry("c.x.float32", rank=1),
        entry("d.x.float32", rank=2, requires=["float16-storage"]),
    )  # fmt: skip
    assert [choice.variant.name for choice in r.equals(PLAIN)] == ["a.x.float32", "b.x.float32"]


def test_rank_on_longest_prefix_wins(registry):
    a = entry("a.x.float32", rank=5, rank_on={"nvidia": 1, "nvidia-hopper": 9, "amd": 50})
    b = entry("b.x.float32", rank=6)
    assert chosen(registry(a, b)) == "a.x.float32"
    assert chosen(registry(a, b, name="NVIDIA L4", device_id=0)) == "b.x.float32"
    assert chosen(registry(a, b, name="llvmpipe (LLVM 15.0.6, 256 bits)", vendor_id=0)) == "b.x.float32"


def test_architectures(registry):
    a, b = entry("a.x.float32", architectures=["nvidia", "llvmpipe"], rank=1), entry("b.x.float32")
    assert chosen(registry(a, b)) == "a.x.float32"
    other = registry(a, b, name="Apple M2", vendor_id=0x106B, vendor="apple")
    assert other.architecture == "apple"
    assert chosen(other) == "b.x.float32"
    assert reason(other, "a.x.float32") == "it is for nvidia, llvmpipe"


def test_architectures_that_are_shut_out(registry):
    a, b = entry("a.x.float32", architectures=["!intel", "!apple"], rank=1), entry("b.x.float32")
    assert chosen(registry(a, b)) == "a.x.float32"
    other = registry(a, b, name="Intel(R) Arc(tm) A770 Graphics (DG2)", vendor_id=0x8086, vendor="intel")
    assert (other.architecture, chosen(other)) == ("intel-xe", "b.x.float32")
    assert reason(other, "a.x.float32") == "it is not for intel"
    c = entry("c.x.float32", architectures=["nvidia", "!nvidia-kepler"], rank=2)
    assert chosen(registry(a, b, c)) == "c.x.float32"
    assert reason(registry(a, b, c, architecture="nvidia-kepler"), "c.x.float32") == "it is not for nvidia-kepler"
    assert reason(registry(a, b, c, architecture="amd"), "c.x.float32") == "it is for nvidia"


def test_an_architecture_already_known_is_taken(registry):
    assert registry(entry("a.x.float32"), architecture="amd-rdna3").architecture == "amd-rdna3"


def test_dtype_and_model(registry):
    r = registry(
        entry("a.x.float32", models=["generic", "t5"], rank=9), entry("a.x.float16"), features=["float16-storage"]
    )
    assert chosen(r, Request("attention", "float16")) == "a.x.float16"
    assert chosen(r, Request("attention", "float32", "t5")) == "a.x.float32"
    assert reason(r, "a.x.float32", Request("attention", "float16")) == "it is for float32"
    assert reason(r, "a.x.float32", Request("attention", "float32", "gpt")) == "it is for model generic, t5"


def test_features_are_the_runtimes_not_the_devices(registry):
    a = entry("a.x.float32", requires=["subgroup-shuffle", "timestamps"])
    assert chosen(registry(a, features=["subgroup-shuffle", "timestamps"])) == "a.x.float32"
    able = dataclasses.replace(GPU, features=frozenset(["subgroup-shuffle", "timestamps"]))
    r = registry(a, features=["timestamps"], device=able)
    assert reason(r, "a.x.float32") == "the device lacks subgroup-shuffle"


def test_float16_needs_16_bit_storage_though_the_entry_does_not_say(registry):
    r = registry(entry("a.x.float16"))
    assert reason(r, "a.x.float16", Request("attention", "float16")) == "the device lacks float16-storage"


@pytest.mark.parametrize(
    ("wanted", "sizes", "control", "requested"),
    [
        ([], (8, 64), False, None),
        ([32, 64], (32, 64), True, 32),
        ([64, 32], (32, 64), True, 64),
        ([16, 64], (32, 64), True, 64),
        ([16], (8, 32), True, 16),
        ([8], (8, 8), True, 8),
        ([8], (8, 8), False, None),
        ([64, 8], (8, 8), False, None),
    ],
)
def test_subgroup_size_found(registry, wanted, sizes, control, requested):
    features = ["subgroup-size-control"] if control else []
    r = registry(entry("a.x.float32", subgroup_sizes=wanted), features=features, subgroup_sizes=sizes)
    choice = r.resolve(PLAIN)
    assert choice.subgroup_size == requested
    assert choice.spec().subgroup_size == requested


@pytest.mark.parametrize(
    ("wanted", "sizes", "control", "said"),
    [
        ([8], (32, 64), True, "it needs subgroups of 8, the device has 32 to 64"),
        ([8, 16], (32, 32), False, "it needs subgroups of 8 or 16, the device has 32 only"),
        # The default size is no promise: the driver may choose another for a shader of its liking.
        ([32], (32, 64), False, "it needs subgroups of 32, the device has 32 to 64, and it cannot be requested"),
    ],
)
def test_subgroup_size_not_to_be_had(registry, wanted, sizes, control, said):
    features = ["subgroup-size-control"] if control else []
    r = registry(entry("a.x.float32", subgroup_sizes=wanted), features=features, subgroup_sizes=sizes)
    assert reason(r, "a.x.float32") == said


def test_limits_are_inclusive(registry):
    r = registry(entry("a.x.float32", limits={"head_dim": [33, 64], "value_dim": [1, 64]}))

    def why(head, value):
        return reason(r, "a.x.float32", Request("attention", "float32", problem={"head_dim": head, "value_dim": value}))

    assert why(33, 1) is None
    assert why(64, 64) is None
    assert why(32, 1) == "head_dim is 32, it takes 33 to 64"
    assert why(65, 1) == "head_dim is 65, it takes 33 to 64"
    assert why(33, 65) == "value_dim is 65, it takes 1 to 64"
    assert reason(r, "a.x.float32") == "it needs head_dim, which the request lacks"


@pytest.mark.parametrize(
    ("align", "fact", "fits"), [(4, 4, True), (4, 64, True), (4, 2, False), (1, 1, True), (4, None, False)]
)
def test_align(registry, align, fact, fits):
    r = registry(entry("a.x.float32", align=align))
    facts = {} if fact is None else {"align": fact}
    said = reason(r, "a.x.float32", Request("attention", "float32", problem=facts))
    assert (said is None) is fits
    assert fits or said == "offsets, strides or dimensions are not multiples of 4"


@pytest.mark.parametrize(
    ("key", "limit", "fits", "too_much"),
    [
        ("shared_bytes", "shared_bytes", 49152, 49156),
        ("threads", "invocations", 1024, 1025),
        ("push_bytes", "push_bytes", 256, 260),
        ("bindings", "bindings", [[f"b{i}", "r"] for i in range(16)], [[f"b{i}", "r"] for i in range(17)]),
    ],
)
def test_device_limits(registry, key, limit, fits, too_much):
    relaxed = {**LIMITS, "subgroups": 10**6}
    assert reason(registry(entry("a.x.float32", **{key: fits}), limits=relaxed), "a.x.float32") is None
    said = reason(registry(entry("a.x.float32", **{key: too_much}), limits=relaxed), "a.x.float32")
    assert said.endswith(f"the device has {LIMITS[limit]}")


def test_subgroups_in_a_workgroup(registry):
    small = {"subgroup_sizes": (8, 32), "features": ["subgroup-size-control"], "limits": {**LIMITS, "subgroups": 16}}
    a = entry("a.x.float32", threads=256, subgroup_sizes=[8])
    assert reason(registry(a, **small), "a.x.float32") == "it needs 32 subgroups in a workgroup, the device has 16"
    assert reason(registry({**a, "subgroup_sizes": [16]}, **small), "a.x.float32") is None


def test_prefer_looks_at_one_family_only(registry):
    r = registry(entry("a.x.float32", rank=9), entry("b.x.float32"), entry("b.y.float32", requires=["int8-storage"]))
    assert chosen(r) == "a.x.float32"
    assert chosen(r, PLAIN._replace(prefer="b")) == "b.x.float32"
    with pytest.raises(UnsupportedError, match="^attention: the operation has no family 'c', only a, b"):
        r.resolve(PLAIN._replace(prefer="c"))


def test_a_miss_names_everything(registry):
    r = registry(
        entry("a.x.float32", requires=["cooperative-matrix"]), entry("b.x.float32", limits={"head_dim": [1, 64]}),
        entry("c.x.float16"),
    )  # fmt: skip
    with pytest.raises(UnsupportedError) as caught:
        r.resolve(Request("attention", "float32", problem={"head_dim": 300}))
    text = str(caught.value)
    assert text.startswith(
        "attention: no shader for float32, model generic, head_dim 300 on nvidia-hopper (NVIDIA H200)"
    )
    assert "a.x.float32: the device lacks cooperative-matrix" in text
    assert "b.x.float32: head_dim is 300, it takes 1 to 64" in text
    assert "c.x.float16: it is for float32" not in text and "c.x.float16: it is for float16" in text
    with pytest.raises(UnsupportedError, match="no such operation, only attention"):
        r.resolve(Request("dance", "float32"))
    with pytest.raises(UnsupportedError) as caught:
        r.resolve(PLAIN._replace(prefer="a"))
    assert "b.x" not in str(caught.value)


def test_resolved_requests_are_kept(registry, monkeypatch):
    r = registry(entry("a.x.float32", limits={"d": [1, 4]}), entry("a.y.float32", limits={"d": [5, 9]}))
    low = r.resolve(Request("attention", "float32", problem={"d": 4}))
    assert r.resolve(Request("attention", "float32", problem={"d": 5})).variant.name == "a.y.float32"
    assert r.resolve(Request("attention", "float32", problem=(("d", 4),))) is low, "pairs and mappings are the same"
    monkeypatch.setattr(r, "explain", None)
    assert r.resolve(Request("attention", "float32", problem={"d": 4})) is low


def test_the_cache_does_not_grow_without_end(registry, monkeypatch):
    monkeypatch.setattr("grilly.registry.resolve._CACHE_SIZE", 3)
    r = registry(entry("a.x.float32"))
    for d in range(10):
        r.resolve(Request("attention", "float32", problem={"d": d}))
    assert len(r._choices) == 3


def test_a_signal_handler_may_resolve_in_the_midst_of_it(registry, monkeypatch):
    found = registry(entry("a.x.float32"))

    class Interrupted(dict):
        def setdefault(self, key, value):
            seen.append(found.resolve(PLAIN._replace(problem={"align": 8})).variant.name)
            return super().setdefault(key, value)

    seen, kept = [], Interrupted()
    monkeypatch.setattr(found, "_choices", kept)
    in_time(lambda: seen.append(chosen(found)))
    assert seen == ["a.x.float32"] * 2 and len(kept) == 1


def test_a_choice_hands_the_plan_its_numbers(registry):
    r = registry(entry("a.x.float32", tile={"rows": 64, "keys": 32}, threads=128, keys_per_trip=0.25))
    choice = r.resolve(PLAIN)
    assert (choice.tile, choice.threads, choice.keys_per_trip) == ({"rows": 64, "keys": 32}, 128, 0.25)


def test_spec(registry):
    a = entry("a.x.c.float32", constants={"N": 3, "FLAG": 0, "SCALE": 7}, bindings=[["q", "r"], ["o", "rw"]])
    choice = registry(a).resolve(PLAIN)
    spec = choice.spec({"N": -1, "SCALE": 0.5, "FLAG": True})
    half = struct.unpack("<I", struct.pack("<f", 0.5))[0]
    assert spec.constants == ((0, 1), (3, 0xFFFFFFFF), (7, half))
    assert (spec.name, spec.access, spec.push_bytes) == ("a.x.c.float32", ("r", "rw"), 16)
    assert (spec.spirv, spec.digest[:32]) == (SPIRV, a["sha256"])
    assert choice.spec({"N": -1, "SCALE": 0.5, "FLAG": True}) is spec
    other = choice.spec({"N": -1, "SCALE": 1, "FLAG": True})
    assert choice.spec({"N": -1, "SCALE": 1.0, "FLAG": True}).constants != other.constants, "1.0 is not 1"


@pytest.mark.parametrize(
    ("constants", "said"),
    [
        ({}, r"missing: \['N'\], unknown: \[\]"),
        ({"N": 1, "M": 2}, r"missing: \[\], unknown: \['M'\]"),
        ({"N": 2**32}, "does not fit 32 bits"),
        ({"N": -(2**31) - 1}, "does not fit 32 bits"),
        ({"N": "4"}, "wanted int, float or bool"),
        ({"N": 1e39}, "does not fit a float32"),
    ],
)
def test_spec_takes_exactly_what_is_declared(registry, constants, said):
    choice = registry(entry("a.x.float32", constants={"N": 0})).resolve(PLAIN)
    with pytest.raises(ValueError, match=said):
        choice.spec(constants)


def test_table(registry):
    r = registry(
        entry("a.x.float32", rank=2, limits={"head_dim": [1, 64]}), entry("b.x.float32", rank=1),
        entry("c.x.float32", rank=0), entry("d.x.float32", requires=["int8-storage"], rank=9),
        entry("e.x.float32", operation="rope"),
    )  # fmt: skip
    rows = {row["variant"]: row for row in r.table(sizes=(32, 128))}
    assert rows["a.x"]["chosen"] == (32,)
    assert rows["b.x"]["chosen"] == (128,)
    assert rows["b.x"]["reason"] is None
    assert rows["c.x"]["reason"] == "b.x ranks higher"
    assert rows["d.x"] == {
        "operation": "attention", "model": "generic", "variant": "d.x", "dtype": "float32", "rank": 9, "chosen": (),
        "reason": "the device lacks int8-storage", "unchecked": False,
    }  # fmt: skip
    assert rows["e.x"]["chosen"], "an operation without limits is asked for once"


def test_two_families_may_serve_one_operation_of_their_own(registry):
    r = registry(entry("a.x.float32"), entry("a.x2.float32", operation="rope"))
    assert chosen(r, Request("rope", "float32")) == "a.x2.float32"
    assert [variant.name for variant, _ in r.explain(PLAIN)] == ["a.x.float32"]


# -- device names, as drivers report them, and their architectures ----------------------------------------------------


NVIDIA, AMD, INTEL, APPLE, QUALCOMM, ARM, MESA, GOOGLE = (
    0x10DE, 0x1002, 0x8086, 0x106B, 0x5143, 0x13B5, 0x10005, 0x1AE0,
)  # fmt: skip


def device(name, vendor_id=0, device_id=0, driver="", sizes=(32, 32), vendor=""):
    return DeviceInfo(
        index=0, name=name, vendor=vendor, vendor_id=vendor_id, device_id=device_id, kind="discrete", driver=driver,
        driver_version="", api_version=(1, 3, 0), subgroup_size=sizes[-1], subgroup_sizes=sizes, limits={},
        features=frozenset(), memory_bytes=0, unified=False,
    )  # fmt: skip


# Names without a device id: what the name alone must tell.
NAMES = [
    (NVIDIA, "NVIDIA H200", "nvidia-hopper"),
    (NVIDIA, "NVIDIA H100 80GB HBM3", "nvidia-hopper"),
    (NVIDIA, "NVIDIA H100 PCIe", "nvidia-hopper"),
    (NVIDIA, "NVIDIA H20", "nvidia-hopper"),
    (NVIDIA, "NVIDIA GH200 480GB", "nvidia-hopper"),
    (NVIDIA, "NVIDIA B200", "nvidia-blackwell"),
    (NVIDIA, "NVIDIA GB200", "nvidia-blackwell"),
    (NVIDIA, "NVIDIA GB10", "nvidia-blackwell"),
    (NVIDIA, "NVIDIA GeForce RTX 5090", "nvidia-blackwell"),
    (NVIDIA, "NVIDIA GeForce RTX 5070 Ti Laptop GPU", "nvidia-blackwell"),
    (NVIDIA, "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "nvidia-blackwell"),
    (NVIDIA, "NVIDIA GeForce RTX 4090", "nvidia-ada"),
    (NVIDIA, "NVIDIA GeForce RTX 4060 Laptop GPU", "nvidia-ada"),
    (NVIDIA, "NVIDIA RTX 6000 Ada Generation", "nvidia-ada"),
    (NVIDIA, "NVIDIA RTX 4000 SFF Ada Generation", "nvidia-ada"),
    (NVIDIA, "NVIDIA L40S", "nvidia-ada"),
    (NVIDIA, "NVIDIA L4", "nvidia-ada"),
    (NVIDIA, "NVIDIA A100-SXM4-80GB", "nvidia-ampere"),
    (NVIDIA, "NVIDIA A100 80GB PCIe", "nvidia-ampere"),
    (NVIDIA, "NVIDIA A10G", "nvidia-ampere"),
    (NVIDIA, "NVIDIA RTX A6000", "nvidia-ampere"),
    (NVIDIA, "NVIDIA RTX A500 Laptop GPU", "nvidia-ampere"),
    (NVIDIA, "NVIDIA GeForce RTX 3080 Ti", "nvidia-ampere"),
    (NVIDIA, "NVIDIA GeForce RTX 2050", "nvidia-ampere"),
    (NVIDIA, "NVIDIA Tegra Orin (nvgpu)", "nvidia-ampere"),
    (NVIDIA, "NVIDIA GeForce RTX 3060 (NVK GA106)", "nvidia-ampere"),
    (NVIDIA, "NVIDIA GeForce RTX 4070 (NVK AD104)", "nvidia-ada"),
    (NVIDIA, "Tesla T4", "nvidia-turing"),
    (NVIDIA, "NVIDIA T1000 8GB", "nvidia-turing"),
    (NVIDIA, "NVIDIA GeForce RTX 2080 Ti", "nvidia-turing"),
    (NVIDIA, "NVIDIA GeForce GTX 1660 SUPER", "nvidia-turing"),
    (NVIDIA, "Quadro RTX 6000", "nvidia-turing"),
    (NVIDIA, "Quadro RTX 4000", "nvidia-turing"),
    (NVIDIA, "NVIDIA TITAN RTX", "nvidia-turing"),
    (NVIDIA, "Tesla V100-SXM2-16GB", "nvidia-volta"),
    (NVIDIA, "NVIDIA TITAN V", "nvidia-volta"),
    (NVIDIA, "Tesla P100-PCIE-16GB", "nvidia-pascal"),
    (NVIDIA, "NVIDIA GeForce GTX 1080 Ti", "nvidia-pascal"),
    (NVIDIA, "NVIDIA TITAN Xp", "nvidia-pascal"),
    (NVIDIA, "Quadro P2000", "nvidia-pascal"),
    (NVIDIA, "NVIDIA GeForce GTX 980", "nvidia-maxwell"),
    (NVIDIA, "NVIDIA GeForce GTX TITAN X", "nvidia-maxwell"),
    (NVIDIA, "NVIDIA GeForce GT 710", "nvidia-kepler"),
    (NVIDIA, "NVIDIA something of 2031", "nvidia"),
    (AMD, "AMD Radeon RX 7900 XTX (RADV NAVI31)", "amd-rdna3"),
    (AMD, "AMD Radeon RX 7900 XTX", "amd-rdna3"),
    (AMD, "AMD Radeon RX 7600M XT", "amd-rdna3"),
    (AMD, "AMD Radeon PRO W7900", "amd-rdna3"),
    (AMD, "AMD Radeon 780M (RADV PHOENIX)", "amd-rdna3"),
    (AMD, "AMD Radeon 780M Graphics (RADV GFX1103_R1)", "amd-rdna3"),
    (AMD, "AMD Radeon 780M Graphics", "amd-rdna3"),
    (AMD, "AMD Radeon 890M Graphics (RADV STRIX1)", "amd-rdna3"),
    (AMD, "AMD Radeon Graphics (RADV GFX1151)", "amd-rdna3"),
    (AMD, "AMD Radeon(TM) 8060S Graphics", "amd-rdna3"),
    (AMD, "AMD Radeon RX 9070 XT (RADV GFX1201)", "amd-rdna4"),
    (AMD, "AMD Radeon RX 9070 XT", "amd-rdna4"),
    (AMD, "AMD Radeon AI PRO R9700", "amd-rdna4"),
    (AMD, "AMD Radeon RX 6800 XT", "amd-rdna2"),
    (AMD, "AMD Radeon RX 6800 (RADV NAVI21)", "amd-rdna2"),
    (AMD, "AMD Custom GPU 0405 (RADV VANGOGH)", "amd-rdna2"),
    (AMD, "AMD Radeon 680M (RADV REMBRANDT)", "amd-rdna2"),
    (AMD, "AMD Ryzen 9 7950X 16-Core Processor (RADV RAPHAEL_MENDOCINO)", "amd-rdna2"),
    (AMD, "AMD Radeon RX 5700 XT", "amd-rdna1"),
    (AMD, "AMD Radeon RX 5700 XT (RADV NAVI10)", "amd-rdna1"),
    (AMD, "AMD Radeon Pro 5500M", "amd-rdna1"),
    (AMD, "AMD Radeon RX 580 Series (RADV POLARIS10)", "amd-gcn"),
    (AMD, "Radeon RX 580 Series", "amd-gcn"),
    (AMD, "AMD Radeon VII (RADV VEGA20)", "amd-gcn"),
    (AMD, "Radeon RX Vega", "amd-gcn"),
    (AMD, "AMD Radeon Vega 8 Graphics (RADV RAVEN)", "amd-gcn"),
    (AMD, "AMD Radeon Graphics (RADV RENOIR)", "amd-gcn"),
    (AMD, "AMD Radeon R9 200 Series (RADV HAWAII)", "amd-gcn"),
    (AMD, "AMD Radeon R9 Fury", "amd-gcn"),
    (AMD, "AMD Instinct MI250X (RADV ALDEBARAN)", "amd-cdna"),
    (AMD, "AMD Instinct MI300X", "amd-cdna"),
    (AMD, "AMD Instinct MI100 (RADV ARCTURUS)", "amd-cdna"),
    (AMD, "AMD Radeon Instinct MI50", "amd-gcn"),
    (INTEL, "Intel(R) Arc(tm) A770 Graphics (DG2)", "intel-xe"),
    (INTEL, "Intel(R) Arc(TM) A750 Graphics", "intel-xe"),
    (INTEL, "Intel(R) Arc(tm) Graphics (MTL)", "intel-xe"),
    (INTEL, "Intel(R) UHD Graphics 770 (ADL-S GT1)", "intel-xe"),
    (INTEL, "Intel(R) Iris(R) Xe Graphics (TGL GT2)", "intel-xe"),
    (INTEL, "Intel(R) Iris(R) Xe Graphics", "intel-xe"),
    (INTEL, "Intel(R) Graphics (RPL-P)", "intel-xe"),
    (INTEL, "Intel(R) Arc(TM) 140T GPU", "intel-xe"),
    (INTEL, "Intel(R) Graphics (LNL)", "intel-xe2"),
    (INTEL, "Intel(R) Arc(tm) Graphics (LNL)", "intel-xe2"),
    (INTEL, "Intel(R) Arc(TM) 140V GPU (16GB)", "intel-xe2"),
    (INTEL, "Intel(R) Arc(tm) B580 Graphics (BMG G21)", "intel-xe2"),
    (INTEL, "Intel(R) Arc(TM) B570 Graphics", "intel-xe2"),
    (INTEL, "Intel(R) UHD Graphics 630 (CFL GT2)", "intel-gen"),
    (INTEL, "Intel(R) UHD Graphics 630", "intel-gen"),
    (INTEL, "Intel(R) HD Graphics 620 (KBL GT2)", "intel-gen"),
    (INTEL, "Intel(R) Iris(R) Plus Graphics (ICL GT2)", "intel-gen"),
    (INTEL, "Intel(R) of 2031", "intel"),
    (APPLE, "Apple M2", "apple"),
    (APPLE, "Apple M1 Pro", "apple"),
    (MESA, "Apple M1 (G13G B1)", "apple"),
    (QUALCOMM, "Adreno (TM) 740", "qualcomm-adreno"),
    (QUALCOMM, "Adreno (TM) 630", "qualcomm-adreno6"),
    (QUALCOMM, "Turnip Adreno (TM) 618", "qualcomm-adreno6"),
    (QUALCOMM, "Turnip Adreno (TM) 610", "qualcomm-adreno6"),
    (QUALCOMM, "Turnip Adreno (TM) 620", "qualcomm-adreno6"),
    (QUALCOMM, "Turnip Adreno (TM) 640", "qualcomm-adreno6"),
    (QUALCOMM, "Qualcomm(R) Adreno(TM) 685 GPU", "qualcomm-adreno6"),
    (QUALCOMM, "Adreno (TM) 650", "qualcomm-adreno65"),
    (QUALCOMM, "Turnip Adreno (TM) 621", "qualcomm-adreno65"),
    (QUALCOMM, "Adreno623", "qualcomm-adreno65"),
    (QUALCOMM, "Turnip Adreno (TM) 660", "qualcomm-adreno66"),
    (QUALCOMM, "Adreno (TM) 642L", "qualcomm-adreno66"),
    (QUALCOMM, "Adreno 7c+ Gen 3 Lite", "qualcomm-adreno66"),
    (QUALCOMM, "Qualcomm(R) Adreno(TM) 690 GPU", "qualcomm-adreno66"),
    (QUALCOMM, "Adreno (TM) 540", "qualcomm-adreno"),
    (QUALCOMM, "Adreno X1-85", "qualcomm-adreno"),
    (QUALCOMM, "Turnip Adreno (TM) 750", "qualcomm-adreno"),
    (ARM, "Mali-G78", "arm-mali"),
    (ARM, "Mali-G610 (Panfrost)", "arm-mali"),
    (ARM, "Immortalis-G715", "arm-mali"),
    (MESA, "llvmpipe (LLVM 15.0.6, 256 bits)", "llvmpipe"),
    (GOOGLE, "SwiftShader Device (LLVM 10.0.0)", "generic"),
    (0x1010, "PowerVR B-Series BXM-4-64", "generic"),
]


@pytest.mark.parametrize(("vendor_id", "name", "expected"), NAMES, ids=[name for _, name, _ in NAMES])
def test_names(vendor_id, name, expected):
    assert identify(device(name, vendor_id)) == expected
    assert expected in ARCHITECTURES


# A device id settles what a name leaves open; ids from the PCI ID database.
@pytest.mark.parametrize(
    ("vendor_id", "device_id", "expected"),
    [
        (NVIDIA, 0x2335, "nvidia-hopper"),  # H200 SXM
        (NVIDIA, 0x20B2, "nvidia-ampere"),  # A100 SXM4 80 GB
        (NVIDIA, 0x2684, "nvidia-ada"),  # RTX 4090
        (NVIDIA, 0x2504, "nvidia-ampere"),  # RTX 3060
        (NVIDIA, 0x1EB8, "nvidia-turing"),  # T4
        (NVIDIA, 0x21C4, "nvidia-turing"),  # GTX 1660 SUPER
        (NVIDIA, 0x1DB6, "nvidia-volta"),  # V100
        (NVIDIA, 0x1B06, "nvidia-pascal"),  # GTX 1080 Ti
        (NVIDIA, 0x2B85, "nvidia-blackwell"),  # RTX 5090
        (NVIDIA, 0x2901, "nvidia-blackwell"),  # B200
        (AMD, 0x744C, "amd-rdna3"),  # Navi 31
        (AMD, 0x7480, "amd-rdna3"),  # Navi 33
        (AMD, 0x73BF, "amd-rdna2"),  # Navi 21
        (AMD, 0x731F, "amd-rdna1"),  # Navi 10
        (AMD, 0x7550, "amd-rdna4"),  # Navi 48
        (AMD, 0x67DF, "amd-gcn"),  # Polaris 10
        (AMD, 0x1638, "amd-gcn"),  # Cezanne
        (AMD, 0x164E, "amd-rdna2"),  # Raphael
        (AMD, 0x1586, "amd-rdna3"),  # Strix Halo
        (AMD, 0x74A1, "amd-cdna"),  # MI300X
        (AMD, 0x7408, "amd-cdna"),  # MI250X
    ],
)
def test_device_ids_when_the_name_says_nothing(vendor_id, device_id, expected):
    assert identify(device("Graphics Device", vendor_id, device_id)) == expected


def test_chip_name_of_the_driver_wins_over_the_device_id():
    assert identify(device("NVIDIA Device (NVK GA104)", NVIDIA, 0x2684)) == "nvidia-ampere"
    assert identify(device("AMD Radeon Graphics (RADV NAVI31)", AMD, 0x73BF)) == "amd-rdna3"


def test_vendor_text_serves_where_the_id_is_not_known():
    assert identify(device("NVIDIA H200", vendor="nvidia")) == "nvidia-hopper"
    assert identify(device("AMD Radeon RX 6800 XT", vendor="amd")) == "amd-rdna2"
    assert identify(device("Intel(R) Arc(TM) A750 Graphics", vendor="intel")) == "intel-xe"


def test_the_driver_names_llvmpipe():
    assert identify(device("virtual", driver="llvmpipe")) == "llvmpipe"


def test_waves_of_32_tell_an_unknown_amd_device_is_rdna():
    assert identify(device("AMD Radeon Graphics", AMD, sizes=(32, 64))) == "amd-rdna"
    assert identify(device("AMD Radeon Graphics", AMD, sizes=(64, 64))) == "amd"


@pytest.mark.parametrize(
    ("pattern", "architecture", "expected"),
    [
        ("nvidia", "nvidia-hopper", True),
        ("nvidia-hopper", "nvidia-hopper", True),
        ("amd-rdna", "amd-rdna3", True),
        ("amd", "amd-rdna3", True),
        ("intel-xe", "intel-xe2", True),
        ("amd-rdna3", "amd-rdna", False),
        ("amd-rdna1", "amd-rdna10", False),
        ("nvidia-ad", "nvidia-ada", False),
        ("amd-rdna", "amd-gcn", False),
        ("nv", "nvidia", False),
        ("", "nvidia", False),
    ],
)
def test_matches(pattern, architecture, expected):
    assert matches(pattern, architecture) is expected
