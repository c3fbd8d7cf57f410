"""Which of the package's own kernels GPUs are given, by what their registers hold. Needs no device."""

import dataclasses
import itertools
from types import SimpleNamespace

import pytest

from grilly.compute.matmul.tile_schedule import choose, tile_schedule
from grilly.errors import SelfCheckWarning
from grilly.registry import Registry, Request, default_manifest
from grilly.registry.names import EXTRAS, FUNCTIONS
from grilly.registry.shared import extras_bits
from test_registry import GPU, LIMITS

AMD = [
    ("AMD Radeon RX 7900 XTX (RADV NAVI31)", "amd-rdna3"),
    ("AMD Radeon 890M Graphics (RADV STRIX1)", "amd-rdna3"),
    ("AMD Radeon RX 9070 XT (RADV GFX1201)", "amd-rdna4"),
]


@pytest.fixture
def amd():
    """The package's own kernels on an AMD device with matrix units."""

    def make(name, prove=None, *without):
        variants = default_manifest().by_operation["attention"]
        features = {need for v in variants if v.variant.startswith("matrix-transposed") for need in v.requires}
        features = {f for f in features if "8x8x8" not in f} | {"subgroup-size-control"}
        changes = {"vendor": "amd", "vendor_id": 0x1002, "device_id": 0, "subgroup_sizes": (32, 64), "name": name}
        changes["limits"] = {**LIMITS, "shared_bytes": 65536}
        return Registry(
            dataclasses.replace(GPU, **changes), frozenset(features) - {*without}, default_manifest(), prove
        )

    return make


def plain_attention(dim, dtype="float16", **facts):
    sizes = {"head_dim": dim, "value_dim": dim, "keys": 1 << 12, "rows": 1 << 16}
    facts = {"align": 8, **sizes, "high": 0, "causal": 0, **facts}
    if "extras" in facts:
        facts["options"] = facts["extras"].bit_count()
    return Request("attention", dtype, problem=facts)


@pytest.mark.parametrize(("name", "architecture"), AMD)
def test_amd_takes_queries_in_columns(amd, name, architecture):
    registry = amd(name)
    assert registry.architecture == architecture
    for dtype in ("float16", "bfloat16"):
        for dim in (8, 64, 96, 128, 192, 256):
            assert registry.resolve(plain_attention(dim, dtype)).variant.variant == "matrix-transposed"
    every = (1 << len(EXTRAS)) - 1
    assert registry.resolve(plain_attention(128, extras=every)).variant.variant == "matrix-transposed-extra"
    for dim in (136, 192, 256):
        assert registry.resolve(plain_attention(dim, extras=every)).variant.variant == "matrix-transposed-extra-wide"
    without = amd(name, None, "matrix-bfloat16-16x16x16")  # RDNA 3 with Mesa 26.2
    assert not without.resolve(plain_attention(64, "bfloat16")).variant.unproven


@pytest.mark.parametrize("compiler", ["nvidia-compiler", None])
def test_nvidia_takes_matrices_for_options_of_wide_heads(compiler):
    features = {need for v in default_manifest().by_operation["attention"] for need in v.requires} - {"nvidia-compiler"}
    r = Registry(GPU, features | ({compiler} if compiler else set()) | {"subgroup-size-control"}, default_manifest())
    gemma, blocks = (extras_bits(names) for names in (("soft-cap", "window"), ("blocks",)))
    packed = gemma | extras_bits(("segments",))
    for dtype in ("float16", "bfloat16"):
        for dim in (136, 192, 256):
            variant = r.resolve(plain_attention(dim, dtype, extras=gemma)).variant
            assert (variant.variant, variant.case) == ("matrix-extra", "d256" if compiler else "d256-few")
            variant = r.resolve(plain_attention(dim, dtype, extras=packed)).variant
            assert (variant.variant, variant.case) == ("matrix-extra", "d256" if compiler else "d256-many")
            assert not r.resolve(plain_attention(dim, dtype, extras=blocks)).variant.unproven  # it would spill
        found = r.resolve(plain_attention(128, dtype, extras=gemma)).variant.case
        assert found == ("d128" if compiler else "d128-lean")
        # Kernels without options go before it.
        plain = r.resolve(plain_attention(256, dtype)).variant.label
        assert plain == ("flash-attention3.matrix.d256" if compiler else "flash-attention3.matrix-any.d256")


def test_nvidia_takes_the_schedule_without_options_for_ends():
    features = {need for v in default_manifest().by_operation["attention"] for need in v.requires}
    r = Registry(GPU, features | {"subgroup-size-control"}, default_manifest())

    def taken(dim, names, dtype="float16", **facts):
        request = plain_attention(dim, dtype, extras=extras_bits(names), ragged=0, tall=1, **facts)
        variant = r.resolve(request).variant
        return f"{variant.variant}.{variant.case}"

    for dtype in ("float16", "bfloat16"):
        for names in (("sinks",), ("lengths",), ("sinks", "lengths")):
            assert taken(128, names, dtype) == "matrix-tall.d128"
            assert taken(128, names, dtype, causal=1) == "matrix.d128"
            for causal in (0, 1):
                found = taken(64, names, dtype, causal=causal)
                plain = "matrix.d64" if causal else "matrix.d64-long"
                assert found == (plain if dtype == "float16" else "matrix-extra.d64")
        assert taken(128, ("sinks", "window"), dtype) == "matrix-extra.d128"
        assert taken(64, ("lengths", "tiles"), dtype) == "matrix-extra.d64"
        assert taken(128, (), dtype) == "matrix-tall.d128"


def test_nvidia_takes_kernels_of_their_own_for_rules():
    features = {need for v in default_manifest().by_operation["attention"] for need in v.requires}
    r = Registry(GPU, features | {"subgroup-size-control"}, default_manifest())

    def taken(dim, names, dtype="float16", **facts):
        request = plain_attention(dim, dtype, extras=extras_bits(names), ragged=0, **facts)
        variant = r.resolve(request).variant
        return f"{variant.variant}.{variant.case}"

    for names in (("soft-cap",), ("alibi",), ("alibi", "sinks", "lengths")):
        for causal in (0, 1):
            assert taken(64, names, causal=causal, keys=4096) == "matrix-computed.d64" + "-causal" * causal
            short = "matrix-extra.d64" if causal else "matrix-computed.d64"
            assert taken(64, names, causal=causal, keys=1024) == short
            assert taken(64, names, "bfloat16", causal=causal) == "matrix-extra.d64"
            found = taken(128, names, causal=causal, tall=1)
            assert found == ("matrix-extra.d128" if causal else "matrix-computed.d128")
        assert taken(128, names, tall=0) == taken(128, names, "bfloat16", tall=1) == "matrix-extra.d128"
    for others in (("soft-cap", "window"), ("alibi", "bias"), ("soft-cap", "tiles"), ("t5",)):
        assert taken(64, others) == "matrix-extra.d64"


def test_where_the_order_is_another_none_is_assumed(amd):
    registry = amd(AMD[0][0], lambda choice, facts: "error 1" if "transposed" in choice.variant.variant else None)
    with pytest.warns(SelfCheckWarning, match="matrix-any"):
        assert registry.resolve(plain_attention(64)).variant.variant == "matrix-any"


def test_queries_in_columns_are_for_amd_only(amd):
    features = amd(AMD[0][0]).features
    others = Registry(dataclasses.replace(GPU, vendor="x", vendor_id=0, name="x"), features, default_manifest())
    assert others.architecture == "generic"
    assert others.resolve(plain_attention(64)).variant.variant == "matrix-any"


#: Name, subgroup sizes, the matrix shape of 16-bit factors, and what attention on matrix units is then called.
INTEL = [
    ("Intel(R) HD Graphics 530 (SKL GT2)", (8, 32), None, None),
    ("Intel(R) UHD Graphics 770 (ADL-S GT1)", (8, 32), None, None),
    ("Intel(R) Arc(tm) A770 Graphics (DG2)", (8, 32), "8x8x16", "eight"),
    ("Intel(R) Graphics (LNL)", (16, 32), "8x16x16", "sixteen"),
    ("Intel(R) Arc(tm) B580 Graphics (BMG G21)", (16, 32), "8x16x16", "sixteen"),
]


@pytest.fixture
def intel():
    """The package's own kernels on an Intel device, as Mesa's driver describes it."""

    def make(name, sizes, shape, prove=None, shared_bytes=65536):
        features = {need for v in default_manifest().variants for need in v.requires}
        features = {f for f in features if "matrix" not in f and f != "nvidia-compiler"} | {"subgroup-size-control"}
        if shape:
            features |= {"cooperative-matrix", f"matrix-float16-{shape}", f"matrix-bfloat16-{shape}"}
        limits = GPU.limits | {"shared_bytes": shared_bytes}
        changes = {
            "vendor": "intel", "vendor_id": 0x8086, "device_id": 0, "name": name, "subgroup_sizes": sizes,
            "limits": limits,
        }  # fmt: skip
        return Registry(dataclasses.replace(GPU, **changes), frozenset(features), default_manifest(), prove)

    return make


@pytest.mark.parametrize(("name", "sizes", "shape", "narrow"), INTEL)
def test_intel_is_given_what_its_registers_hold(intel, name, sizes, shape, narrow):
    r = intel(name, sizes, shape)
    for dtype in ("float16", "bfloat16"):
        for dim in (64, 96, 128, 256):
            choice = r.resolve(plain_attention(dim, dtype))
            if narrow and (narrow, dim, dtype) != ("eight", 256, "bfloat16"):  # which spills
                assert choice.variant.name == f"flash-attention-narrow.{narrow}.d{dim}.{dtype}"
                assert choice.subgroup_size == sizes[0]
            else:
                assert choice.variant.name.startswith("flash-attention2.slim.")
    assert r.resolve(plain_attention(64, "float32")).variant.label == "flash-attention2.slim.v64"
    assert r.resolve(plain_attention(64, "float32", align=1)).variant.label == "flash-attention2.slim-scalar.v64"
    options = {"extras": extras_bits(("window", "soft-cap", "sinks", "lengths", "paged", "tiles", "dropout"))}
    with_options = f"flash-attention-narrow.{narrow}-extra.d128" if narrow else "flash-attention2.slim.v128"
    assert r.resolve(plain_attention(128, **options)).variant.label == with_options
    decode = Request(
        "attention-decode", "float16", problem={"align": 8, "head_dim": 128, "value_dim": 128, "masked": 0}
    )
    choice = r.resolve(decode)
    assert (choice.variant.label, choice.subgroup_size) == ("flash-decode.slim16", sizes[0])
    less = intel(name, sizes, shape, shared_bytes=32768)
    for dim in (64, 96, 128, 256):
        fits = narrow == "eight" or (narrow and dim < 128)
        label = less.resolve(plain_attention(dim, "float16")).variant.label
        assert label == f"flash-attention-narrow.{narrow}-half.d{dim}" if fits else "narrow" not in label
    for row in r.table():
        if row["chosen"]:
            large = ("wide", "tall", "m128", "m128n64", "split16", "split32")
            assert not {*row["variant"].split(".")} & {*large}, row
        if row["variant"].startswith("flash-attention3.wide"):
            assert row["reason"] == "it is not for intel"


def test_a_driver_with_another_order_gets_vector_kernels(intel):
    def prove(choice, facts):
        return "error 3" if choice.variant.unproven else None

    name, sizes, shape, _ = INTEL[-1]
    r = intel(name, sizes, shape, prove)
    with pytest.warns(SelfCheckWarning, match="flash-attention-narrow"):
        assert r.resolve(plain_attention(64)).variant.label == "flash-attention2.slim.v64"


#: By architecture: a device's name, its vendor and its subgroup sizes.
OTHERS = {
    "apple": ("Apple M1 (G13G A0)", 0x106B, (32, 32)),
    "qualcomm-adreno": ("Turnip Adreno (TM) 740", 0x5143, (64, 128)),
    "qualcomm-adreno6": ("Turnip Adreno (TM) 630", 0x5143, (64, 128)),
    "qualcomm-adreno65": ("Turnip Adreno (TM) 650", 0x5143, (64, 128)),
    "qualcomm-adreno66": ("Turnip Adreno (TM) 660", 0x5143, (64, 128)),
    "nvidia": ("NVK", 0x10DE, (32, 32)),
}
AMD_VECTORS = {
    "amd-gcn": ("AMD Radeon RX 580 (RADV POLARIS10)", 0x1002, (64, 64)),
    "amd-rdna1": ("AMD Radeon RX 5700 XT (RADV NAVI10)", 0x1002, (32, 64)),
    "amd-rdna2": ("AMD Radeon RX 6800 (RADV NAVI21)", 0x1002, (32, 64)),
    "amd-rdna3": ("AMD Radeon RX 7900 XTX (RADV NAVI31)", 0x1002, (32, 64)),
}


@pytest.fixture
def other():
    """The package's own kernels on a device of Mesa's other drivers."""

    def make(architecture):
        name, vendor, sizes = (OTHERS | AMD_VECTORS)[architecture]
        features = {need for v in default_manifest().variants for need in v.requires}
        features = {f for f in features if "matrix" not in f and f != "nvidia-compiler"}
        features |= {"subgroup-size-control"} if architecture.startswith(("amd", "qualcomm-adreno")) else set()
        if architecture == "nvidia":
            features |= {"cooperative-matrix", "matrix-float16-16x16x16"}
        changes = {"vendor": "", "vendor_id": vendor, "device_id": 0, "name": name, "subgroup_sizes": sizes}
        limits = LIMITS | {"shared_bytes": 49152 if architecture == "nvidia" else 32768}
        device = dataclasses.replace(GPU, limits=limits, driver="Mesa", **changes)
        r = Registry(device, frozenset(features), default_manifest())
        assert r.architecture == architecture
        return r

    return make


@pytest.mark.parametrize(
    ("dim", "rows", "extras", "apple", "adreno"),
    [
        (32, 1 << 16, (), "flash-attention3.apple-small", "flash-attention3.small.v32"),
        (32, 1 << 16, ("dropout",), "flash-attention2.slim.v32", "flash-attention3.small.v32"),
        (64, 1 << 13, (), "flash-attention3.apple-short", "flash-attention3.short.v64r32"),
        (64, 1 << 13, ("lengths",), "flash-attention2.slim.v64", "flash-attention3.short.v64r32"),
        (64, 1 << 16, (), "flash-attention2.slim.v64", "flash-attention3.small.v64"),
        (128, 1 << 10, (), "flash-attention2.slim.v128", "flash-attention3.short.v128r16"),
        (128, 1 << 16, (), "flash-attention2.slim.v128", "flash-attention2.slim.v128"),
        (256, 1 << 16, (), "flash-attention2.slim-half", "flash-attention2.slim-half"),
    ],
)
def test_apple_and_adreno_are_given_what_their_registers_hold(other, dim, rows, extras, apple, adreno):
    request = plain_attention(dim, "float32", rows=rows, extras=extras_bits(extras))
    assert other("apple").resolve(request).variant.label == apple
    assert other("qualcomm-adreno").resolve(request).variant.label == adreno


@pytest.mark.parametrize(
    ("rows", "extras", "masked", "apple", "adreno"),
    [
        (1, (), 0, "pairs16", "pairs16"),
        (2, ("bias",), 1, "many16", "pairs16"),
        (8, (), 0, "fours16", "plain16"),
        (8, ("window",), 1, "many16", "fours16w4"),
        (8, ("dropout",), 0, "many16", "fours16w4"),
        (2, ("bias", "lengths", "paged"), 1, "many16", "pairs16"),
    ],
)
def test_decoding_on_apple_and_adreno(other, rows, extras, masked, apple, adreno):
    facts = {"align": 8, "head_dim": 128, "value_dim": 128, "rows": rows, "extras": extras_bits(extras)}
    facts["options"] = len(extras)
    request = Request("attention-decode", "float16", problem={**facts, "masked": masked})
    assert other("apple").resolve(request).variant.variant == apple
    assert other("qualcomm-adreno").resolve(request).variant.variant == adreno


def test_gradients_under_nvk(other):
    r = other("nvidia")
    for name, dim, wanted in (
        ("dq", 32, "matrix-lean.d32"), ("dq", 64, "matrix-lean.d64"), ("dq", 128, "matrix-lean.d128"),
        ("dkv", 32, "matrix-lean.d32"), ("dkv", 64, "matrix-lean.d64"), ("dkv", 128, "matrix-lean.d128"),
    ):  # fmt: skip
        request = gradient(name, dim)
        assert r.resolve(request).variant.label == f"flash-backward-{name}.{wanted}"
        own = Registry(r.device, r.features | {"nvidia-compiler"}, r.manifest)
        assert own.resolve(request).variant.label == f"flash-backward-{name}.matrix.d{dim}"
    assert r.resolve(gradient("dq", 128, ("window",))).variant.case == "d128-options"
    assert r.resolve(gradient("dkv", 128, list(EXTRAS)[:7])).variant.variant == "tile"


def gradient(name, dim, extras=(), dtype="float16"):
    facts = {"align": 8, "causal": 0, "extras": extras_bits(extras), "options": len(extras)}
    return Request(f"attention-backward-{name}", dtype, problem={**facts, "head_dim": dim, "value_dim": dim})


@pytest.mark.parametrize("names", [("score-function",), ("mask-function", "tiles"), ("mask-function", "soft-cap")])
def test_functions_on_matrix_units(other, amd, intel, names):
    """Where a device has them, but beside options that these kernels lack; never without functions."""
    asked, more = (extras_bits(own) for own in (names, (*names, "dropout")))
    nvk = other("nvidia")
    devices = {
        "matrix-any-functions": nvk,
        "matrix-functions": Registry(nvk.device, nvk.features | {"nvidia-compiler"}, nvk.manifest),
        "matrix-transposed-functions": amd(AMD[0][0]), "eight-functions": intel(*INTEL[2][:3]),
        "sixteen-functions": intel(*INTEL[3][:3]),
    }  # fmt: skip
    for name, r in devices.items():
        for dim in (64, 128):
            request = plain_attention(dim, ragged=0, tall=0, extras=asked)
            found = r.resolve(request).variant
            assert (found.variant, found.case) == (name, f"d{dim}")
            for extras in (more, extras_bits(("tiles",)), 0):
                found = r.resolve(plain_attention(dim, ragged=0, tall=0, extras=extras)).variant
                assert found.unproven == (extras != more)
                assert "score-function" not in found.offers or extras == more
        wide = r.resolve(plain_attention(256, ragged=0, tall=0, extras=asked)).variant
        assert not wide.unproven and "score-function" in wide.offers


@pytest.mark.parametrize("names", [("score-function",), ("mask-function", "positions", "lengths", "paged")])
def test_functions_of_few_queries(other, amd, intel, names):
    """Every device has a kernel that splits the keys, and never takes it without functions."""
    facts = {"align": 8, "head_dim": 128, "value_dim": 128, "masked": 1, "rows": 4}
    devices = {
        "flash-decode-matrix.quads-bands-functions": other("nvidia"), "flash-decode.split16-functions": amd(AMD[0][0]),
        "flash-decode.slim16-functions": intel(*INTEL[2][:3]), "flash-decode.words16-functions": other("apple"),
    }  # fmt: skip
    for label, r in devices.items():
        extras = extras_bits(names)
        asked = Request("attention-decode", "float16", problem={**facts, "extras": extras, "options": len(names)})
        assert r.resolve(asked).variant.label.removesuffix(".d128") == label
        for without in (0, extras_bits(("dropout",)), extras_bits(set(names) - {*FUNCTIONS})):
            problem = {**facts, "extras": without, "options": without.bit_count()}
            found = r.resolve(Request("attention-decode", "float16", problem=problem)).variant
            assert "score-function" not in found.offers


def test_attention_under_nvk(other):
    r = other("nvidia")
    own = Registry(r.device, r.features | {"nvidia-compiler"}, r.manifest)
    window = extras_bits(("window",))
    for facts, wanted in (({}, "matrix.d64"), ({"extras": window}, "matrix-extra.d64")):
        request = plain_attention(64, ragged=0, tall=0, keys=512, **facts)
        assert own.resolve(request).variant.label == f"flash-attention3.{wanted}"
        assert r.resolve(request).variant.label == f"flash-attention3.{wanted}-lean"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_where_many_options_meet(other, intel, dtype):
    names = list(EXTRAS)
    few, many = extras_bits(names[:1]), extras_bits(names[:8])
    facts = {"ragged": 0, "tall": 0, "rows": 4096}
    apple, old, (name, sizes, shape, _) = other("apple"), other("qualcomm-adreno6"), INTEL[-1]
    intels = intel(name, sizes, shape)
    for dim, usual in ((32, "apple-small"), (64, "short")):
        assert apple.resolve(plain_attention(dim, dtype, extras=many, **facts)).variant.variant == "many"
        assert apple.resolve(plain_attention(dim, dtype, extras=few, **facts)).variant.variant in (usual, "short")
    for dim in (64, 128, 256):
        for count, wanted in ((1, "slim"), (2, "many"), (8, "many")):
            assert intels.resolve(gradient("dkv", dim, names[:count], dtype)).variant.variant == wanted
    if dtype == "float32":
        found = old.resolve(plain_attention(64, dtype, extras=many, **facts | {"rows": 1 << 20})).variant
        assert (found.variant, found.case) == ("many", "v64-adreno6")


@pytest.mark.parametrize("architecture", AMD_VECTORS)
def test_dropout_on_older_amd(other, architecture):
    r, dropout = other(architecture), extras_bits(("dropout",))
    facts = {"ragged": 0, "tall": 0, "rows": 1 << 20}
    assert r.resolve(plain_attention(64, "float32", **facts)).variant.variant in ("older", "wide")
    found = r.resolve(plain_attention(64, "float32", extras=dropout, **facts)).variant.variant
    assert (found == "wide") == (architecture == "amd-rdna3") and found != "older"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("architecture", OTHERS)
def test_there_are_gradients_for_heads_of_every_size(other, architecture, dtype):
    r = other(architecture)
    for name, head, value, align in itertools.product(("dq", "dkv"), (32, 64, 128, 256), (32, 64, 128, 256), (1, 4)):
        facts = {"align": align, "causal": 0, "extras": 0, "head_dim": head, "value_dim": value}
        r.resolve(Request(f"attention-backward-{name}", dtype, problem=facts))


def test_what_an_early_adreno_6_is_given(other):
    r = other("qualcomm-adreno6")
    for rows, wanted in ((1, "one"), (2, "few"), (4, "few"), (5, "some"), (8, "some")):
        facts = {"align": 8, "depth_align": 8, "rows": rows, "outputs": 4096 * rows, "transposed": 0}
        chosen = r.resolve(Request("linear", "float32", problem=facts)).variant
        assert chosen.label == f"linear-rows.words32-adreno6.{wanted}"
    for rows, masked, extras, wanted in (
        (2, 1, (), "pairs32"), (8, 0, ("window",), "plain32"), (8, 0, ("bias",), "fours32"), (8, 1, (), "fours32"),
    ):  # fmt: skip
        facts = {"align": 4, "head_dim": 128, "value_dim": 128, "rows": rows, "extras": extras_bits(extras)}
        request = Request("attention-decode", "float32", problem={**facts, "masked": masked})
        assert r.resolve(request).variant.variant == wanted
    facts = {"align": 4, "causal": 0, "extras": 0, "head_dim": 64, "value_dim": 256}
    assert r.resolve(Request("attention-backward-dkv", "float32", problem=facts)).variant.variant == "slim-half"
    naive = plain_attention(64, "float32")._replace(prefer="attention-naive")
    assert r.resolve(naive).variant.variant == "rolled"


@pytest.mark.parametrize(
    ("architecture", "float32", "float16"),
    [("apple", 8, 8), ("qualcomm-adreno6", 8, 8), ("qualcomm-adreno65", 6, 6), ("qualcomm-adreno66", 8, 6),
     ("qualcomm-adreno", None, None), ("nvidia", None, None)],
)  # fmt: skip
def test_norms_hold_what_fits_the_registers(other, architecture, float32, float16):
    r = other(architecture)
    for (dtype, most), (gradient, columns) in itertools.product(
        (("float32", float32), ("float16", float16)), ((0, 0), (1, 0), (0, 1))
    ):
        choice = r.resolve(Request("norm-rows", dtype, problem={"gradient": gradient, "columns": columns}))
        assert choice.tile["held"] == (8 if most is None else 4 if gradient + columns else most)
        assert ("lean" in choice.variant.variant) == (most is not None)
        assert choice.tile.get("late", 0) == (architecture == "qualcomm-adreno65")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_the_later_adreno_6_are_given(other, dtype):
    """The 740's tiles in subgroups of 64, where Turnip has 192 registers, and smaller ones where those spill."""
    first, later, newest = other("qualcomm-adreno65"), other("qualcomm-adreno66"), other("qualcomm-adreno")
    for r in (first, later):
        for name, dim, wanted in (
            ("dq", 32, "tile"), ("dq", 64, "tile"), ("dq", 128, "tile-64"), ("dq", 256, "tile"),
            ("dkv", 32, "tile"), ("dkv", 64, "tile-64"), ("dkv", 128, "tile-64"),
            ("dkv", 256, "tile-64" if r is later else "slim-half-64"),
        ):  # fmt: skip
            assert r.resolve(gradient("dkv", 256, ("dropout", "window"), dtype)).variant.variant == "slim-half-64"
            chosen = r.resolve(gradient(name, dim, dtype=dtype))
            assert chosen.variant.variant == wanted
            assert chosen.subgroup_size == (64 if "64" in wanted else None)
            if "tile" in wanted:
                assert chosen.tile == newest.resolve(gradient(name, dim, dtype=dtype)).tile
        for cols, wanted in ((64, (64, 64) if dtype == "float32" else (128, 64)), (128, None)):
            for align, wide in ((4, (64, 64) if dtype == "float32" else (128, 64)), (1, (128, 128))):
                facts = {"align": align, "rows": 4096, "cols": cols, "outputs": 1 << 22}
                tile = r.resolve(Request("attention-output", dtype, problem=facts)).tile
                assert (tile["rows"], tile["cols"]) == (wanted or wide)
    wide = plain_attention(256, dtype)
    assert first.resolve(wide).variant.label == "flash-attention2.slim-half-64"
    assert later.resolve(wide).variant.label == newest.resolve(wide).variant.label == "flash-attention2.slim-half"
    for dim, rows in itertools.product((32, 64, 128), (1 << 10, 1 << 13, 1 << 20)):
        request = plain_attention(dim, dtype, rows=rows)
        assert first.resolve(request).variant == later.resolve(request).variant == newest.resolve(request).variant


def test_few_rows_on_an_adreno_650(other):
    r, later, newest = other("qualcomm-adreno65"), other("qualcomm-adreno66"), other("qualcomm-adreno")
    for rows, sixteen, other_case in ((1, "two", "one"), (2, "two", "few"), (4, "few", "few"), (8, "some", "some")):
        facts = {"align": 8, "depth_align": 8, "rows": rows, "outputs": 4096 * rows, "transposed": 0}
        half, single = (Request("linear", dtype, problem=facts) for dtype in ("float16", "float32"))
        assert r.resolve(half).variant.label == f"linear-rows.words16-adreno65.{sixteen}"
        assert r.resolve(single).variant.label == f"linear-rows.words32-adreno6.{other_case}"
        for request in (half, single):
            assert later.resolve(request).variant == newest.resolve(request).variant
    for rows, masked, wanted in (
        (2, 0, "pairs16-adreno65"), (2, 1, "words16-adreno65.pairs"), (8, 0, "words16-adreno65.plain"),
        (8, 1, "words16-adreno65.masked"),
    ):  # fmt: skip
        facts = {"align": 8, "head_dim": 128, "value_dim": 128, "rows": rows, "extras": 0, "masked": masked}
        request = Request("attention-decode", "float16", problem=facts)
        assert r.resolve(request).variant.label == f"flash-decode.{wanted}"
        assert later.resolve(request).variant == newest.resolve(request).variant
    naive = plain_attention(64, "float16")._replace(prefer="attention-naive")
    assert r.resolve(naive).variant.variant == "rolled"
    assert later.resolve(naive).variant.variant == "vector"


def test_norms_of_intel(intel):
    r = intel("Intel(R) Arc(tm) A770 Graphics (DG2)", (8, 32), "8x8x16")
    for gradient, columns in ((0, 0), (1, 0), (0, 1)):
        choice = r.resolve(Request("norm-rows", "float32", problem={"gradient": gradient, "columns": columns}))
        assert choice.tile["held"] == (4 if gradient or columns else 8)


@pytest.mark.parametrize(
    "rows, cols, depth, expected",
    [(4096, 768, 768, "m128n96"), (4096, 768, 3072, "half-m128n192"), (2048, 2048, 2048, "half16-m128"),
     (4096, 2304, 768, "m128n96"), (12608, 3072, 768, "half16-m128"), (4096, 4096, 4096, "half16-m128"),
     (2048, 28672, 4096, "half-m128n192"), (8192, 8192, 8192, "half-m128n192"), (8192, 8192, 8184, "half16-m128"),
     (2048, 4096, 14336, "half16-m128")],
)  # fmt: skip
def test_products_take_the_tiles_that_an_h200_ends_with_first(rows, cols, depth, expected):
    """As measured: docs/benchmarks/h200-linear.md."""
    assert chosen_on_an_h200("float16", rows, cols, depth, 0)[0] == expected


def chosen_on_an_h200(dtype, rows, cols, depth, transposed):
    """The kernel of a product, by its name, and how many workgroups share a tile's depth."""
    features = {need for v in default_manifest().by_operation["linear"] for need in v.requires}
    registry = Registry(GPU, frozenset(features), default_manifest())
    sizes = {"rows": rows, "cols": cols, "outputs": rows * cols, "depth": depth}
    facts = {"align": 8, **sizes, "depth_align": 8, "high": 0, "transposed": transposed}
    device = SimpleNamespace(units=132)
    choice = choose(registry, Request("linear", dtype, problem=facts), device, rows, cols, depth)
    return choice.variant.name.split(".")[1], tile_schedule(choice, device, rows, cols, depth, 2).splits


@pytest.mark.parametrize(
    "rows, cols, depth, expected, splits",
    [(128, 768, 768, "m32n64k128", 1), (256, 1024, 1024, "m32n64k128", 1), (128, 2304, 768, "m64", 1),
     (512, 768, 768, "m64", 1), (128, 768, 3072, "m64", 4), (128, 4096, 4096, "m64", 2)],
)  # fmt: skip
def test_a_depth_is_divided_where_that_spares_more_than_joining_takes(rows, cols, depth, expected, splits):
    """As measured on an H200: docs/benchmarks/h200-linear.md."""
    assert chosen_on_an_h200("float16", rows, cols, depth, 0) == (expected, splits)


@pytest.mark.parametrize(
    "rows, cols, depth, splits",
    [(2304, 768, 16384, 2), (3072, 768, 16384, 5), (768, 768, 16384, 7), (2048, 8192, 4096, 1)],
)
def test_gradients_of_weights_share_the_depth_by_the_time_that_it_takes(rows, cols, depth, splits):
    assert chosen_on_an_h200("bfloat16", rows, cols, depth, 3) == ("brain16-m128", splits)
