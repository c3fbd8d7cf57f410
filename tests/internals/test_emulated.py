"""Kernels on matrix units where there are none, their own source with matrices made of arrays, against float64 NumPy.

First flash-decode-matrix, in NVIDIA's order of elements, whose subgroups are parts of a workgroup; attention's other
kernels are in test_element_orders.py.

What is tested is what the kernel does with rows, keys, masks, options and pages; not that a driver has the order.
"""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import features
import test_matrix_functions
from cases import Case, assert_as_accurate, expected, lse_magnitude, make_arrays, output_magnitude
from compilers import NO_COMPILER
from features import AXES, Cell
from grilly.compute import selfcheck
from grilly.compute.attention import decode
from grilly.compute.matmul.linear import linear
from grilly.registry import Manifest
from grilly.registry.checkout import Checkout
from kernels import pin, view_of, with_shaders
from shaderbuild.families import tomllib
from test_kvcache import Problem
from test_matrix_extras import PLAIN, judge_cell
from test_score_functions import of_everything, problem

ROOT = Path(__file__).parents[2]
FAMILY = decode.MATRIX_FAMILY
#: What takes the place of what a device needs matrix units for, by file: pattern, replacement, how often it is there.
CHANGES = {
    "quads.glsl": [
        (r"(?m)^#define FACTOR_([AB]) coopmat.*$", r"#define FACTOR_\1 float16_t[8]", 2),
        (r"(?m)^#define SUMS coopmat.*$", '#define SUMS float[8]\n#include "emulated-quads.glsl"', 1),
    ],
    "flash-decode-matrix.comp": [
        (r"\bSUMS\(([^()]*)\)", r"filled_sums(\1)", 2),
        (r"\bFACTOR_A\(([^()]*)\)", r"filled_factor(\1)", 1),
        (r"\bgl_SubgroupInvocationID\b", "(gl_LocalInvocationIndex % 32u)", 1),
        (r"\bgl_SubgroupID\b", "(gl_LocalInvocationIndex / 32u)", None),
        (r"gl_ScopeQueueFamily", "gl_ScopeDevice", 1),
        # All subgroups do every trip, past their last keys too: barriers stand for the subgroup's own order. Trips that
        # all rows see are those of all subgroups.
        (
            r"for \(; first < end; first \+= step\) \{\n        FIND",
            "for (uint all = first - MY_SUBGROUP * uint(KEYS); all < end; all += step, first += step) {\n        FIND",
            1,
        ),
        (
            r"for \(; first \+ uint\(KEYS\) <= clear; first \+= step\)",
            "for (uint all = begin; all + step <= clear; all += step, first += step)",
            1,
        ),
        (r"\[\[unroll\]\]", "[[dont_unroll]]", None),
    ],
}
VARIANT = """
[[variant]]
name = "{name}"
{use}dtypes = ["float16"]
requires = ["float16-arithmetic"]
align = 8
rank = {rank}
optimize = false
threads = 128
shared_bytes = 32768
offers = {offers}
limits = {{ head_dim = [8, 64], value_dim = [8, 64] }}
defines = {{ MATRIX_ELEMENTS = 1, ALIGN = 8, CHUNKS = 1, EXTRAS = 1, DIM = 64, VDIM = 64 }}
tile = {{ rows = 64, fragment = 16, trip = 16, stages = 2, ahead = 2, keys = 128, resident = 1 }}
"""


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    """The shaders, with "quads-bands" and "quads-bands-functions" emulated."""
    if NO_COMPILER:
        pytest.skip(NO_COMPILER)
    root = tmp_path_factory.mktemp("emulated")
    shutil.copytree(ROOT / "shaders", root / "shaders", ignore=shutil.ignore_patterns("flash-decode-matrix.toml"))
    shutil.copy(ROOT / "tests/shaders/emulated-quads.glsl", root / "shaders/include")
    for name, changes in CHANGES.items():
        path = root / "shaders/decode" / name
        text = path.read_text()
        for old, new, count in changes:
            text, found = re.subn(old, new, text)
            assert found == count or (count is None and found), f"{old} is there {found} times"
        path.write_text(text)
    own = ROOT / "shaders/decode/flash-decode-matrix.toml"
    data = tomllib.loads(own.read_text())
    offers = data["sets"]["offered"]["offers"]
    head = own.read_text().split("# NVIDIA's order")[0]
    variants = (("bands", "", 20), ("bands-functions", 'use = ["functions"]\n', 9))
    made = [VARIANT.format(name=name, use=use, rank=rank, offers=offers) for name, use, rank in variants]
    (root / "shaders/decode/flash-decode-matrix.toml").write_text(head + "".join(made))
    return Manifest(Checkout(root))


@pytest.fixture
def emulated(vulkan_backend, manifest, monkeypatch):
    """The device with the kernel."""
    with_shaders(monkeypatch, vulkan_backend, manifest)
    return vulkan_backend


def check(backend, case: Case, arrays=None):
    q, k, v, mask = arrays or make_arrays(case, np.float16)
    exact, exact_lse, plain, plain_lse = expected(case, q, k, v, mask)
    out, lse = backend.attention.flash_attention2(
        *(backend.tensor(a) for a in (q, k, v)), mask=mask, scale=case.scale, causal=case.causal, return_lse=True,
        kernel=FAMILY,
    )  # fmt: skip
    assert_as_accurate(out.numpy(), exact, plain, f"{case.name} output", output_magnitude(case, q, k, v, mask))
    assert_as_accurate(lse.numpy(), exact_lse, plain_lse, f"{case.name} lse", lse_magnitude(case, q, k, plain_lse))


CASES = [  # few, as each takes a compiler for processors a quarter of a minute
    Case("speculative", batch=2, heads=8, kv_heads=2, queries=5, keys=531, causal=True, scale=-0.3),
    Case("33-rows", heads=11, kv_heads=1, queries=3, keys=203, causal=True),
    Case("multi-query", heads=64, kv_heads=1, queries=1, keys=300, dim=40),
    Case("several-passes", heads=8, kv_heads=1, queries=19, keys=115, dim=16, causal=True),
    Case("more-queries-than-keys", heads=4, kv_heads=1, queries=13, keys=7, value_dim=24, causal=True),
    Case("boolean", batch=2, heads=4, kv_heads=2, queries=5, keys=131, mask="bool-dead-rows", causal=True),
    Case("additive", batch=2, heads=4, kv_heads=2, queries=5, keys=131, mask="add-inf-rows"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64(emulated, case):
    check(emulated, case)


@pytest.mark.parametrize("name", ["bands", "bands-functions"])
def test_the_self_check_passes(emulated, manifest, name):
    (variant,) = (v for v in manifest.by_operation["attention-decode"] if (v.family, v.variant) == (FAMILY, name))
    facts = {"align": 8, "head_dim": 64, "value_dim": 40}
    assert selfcheck.prove(emulated.opened, emulated.opened.registry.choice(variant), facts) is None


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_a_row_does_not_see_does_not_reach_it(emulated, poison):
    """Values that are not finite of the last key, which only the last query sees, and past the keys."""
    case = Case("poison", heads=8, kv_heads=2, queries=5, keys=131, causal=True)
    q, k, v, _ = make_arrays(case, np.float16)
    run = emulated.attention.flash_attention2
    want = run(q, k, v, causal=True, kernel=FAMILY)
    k, v = (np.concatenate([a, np.full_like(a[:, :, :9], poison)], 2) for a in (k, v))
    k[:, :, 130], v[:, :, 130] = poison, poison

    def given():
        return [emulated.tensor(a)[:, :, :n] for a, n in ((q, 5), (k, 131), (v, 131))]

    got = run(*given(), causal=True, kernel=FAMILY).numpy()
    np.testing.assert_allclose(got[:, :, :4], want[:, :, :4], rtol=0, atol=2e-3)
    assert not np.isfinite(got[:, :, 4]).any()
    k[:, :, 130] = 0  # scores are finite; the value still counts for the row that sees it, and for that alone
    got = run(*given(), causal=True, kernel=FAMILY).numpy()
    np.testing.assert_allclose(got[:, :, :4], want[:, :, :4], rtol=0, atol=2e-3)
    assert not np.isfinite(got[:, :, 4]).any()


def test_repeats_are_equal_to_the_bit(emulated):
    arrays = make_arrays(Case("repeat", heads=8, kv_heads=2, queries=5, keys=700, causal=True), np.float16)
    tensors = [emulated.tensor(a) for a in arrays[:3]]
    first = emulated.attention.flash_attention2(*tensors, causal=True, kernel=FAMILY).numpy()
    for _ in range(5):
        again = emulated.attention.flash_attention2(*tensors, causal=True, kernel=FAMILY).numpy()
        assert (again == first).all()


#: Options at once, of which none hides what another does; dropout the kernel does not offer.
TOGETHER = (
    ("window", "softcap", "sinks"), ("alibi", "bias"), ("t5", "lengths"), ("segments", "prefix"), ("blocks",),
)  # fmt: skip
assert sorted(sum(TOGETHER, ())) == sorted(set(features.CALLED) - {"dropout"})


@pytest.mark.parametrize("axes", TOGETHER, ids="-".join)
def test_every_option(emulated, axes):
    """With causality, hidden places not finite, and more rows than a subgroup has."""
    changed = {axis: AXES[axis][1] for axis in axes}
    changed |= {"causal": "on", "hidden": "nan", "size": (13, 67), "width": (16, 64), "heads": (5, 1)}
    cell = Cell("float16", tuple(({name: variants[0] for name, variants in AXES.items()} | changed).values()))
    call = features.make(cell)
    wanted = features.expect(call)
    tensors = [emulated.tensor(a) for a in (call.q, call.k, call.v)]
    out, lse = emulated.attention.flash_attention2(*tensors, return_lse=True, kernel=FAMILY, **call.options)
    error = np.abs(out.numpy().astype(np.float64) - wanted.exact).max()
    bound = 2 * np.abs(wanted.rounded.astype(np.float64) - wanted.exact).max() + 2.0**-10 * wanted.magnitude
    assert error <= bound
    assert_as_accurate(
        lse.numpy(), wanted.exact_lse, wanted.plain_lse, f"{cell} lse", features.lse_magnitude(wanted, np.float16, True)
    )


@pytest.mark.parametrize("judge", [
    partial(test_matrix_functions.judge_functions, make=of_everything),
    test_matrix_functions.judge_hidden, test_matrix_functions.judge_numbers, test_matrix_functions.judge_cache,
], ids=["of_everything", "hidden", "numbers", "cache"])  # fmt: skip
def test_functions_of_few_queries(emulated, judge):
    """Of more rows than a subgroup has, over two splits."""
    judge(emulated, FAMILY, "float16", problem(13, 251, 40, (4, 1), np.float16))


@pytest.mark.parametrize("page", [None, 64, 24])
def test_a_cache(emulated, page):
    """Pages of whole trips, and others; a sample without keys."""
    problem = Problem(np.float16, [310, 0, 77], page=page, room=330, heads=8, queries=5, fresh=5, dim=16)
    problem.check(emulated, options={"causal": True, "sinks": np.linspace(-1, 4, 8, dtype=np.float32)}, kernel=FAMILY)


# -- flash-attention-narrow with Intel's matrices, its own source in both shapes --------------------------------------


NARROW = (ROOT / "shaders/attention/flash-attention-narrow.toml").read_text().partition("[sets.")[0]
NARROW_VARIANT = """
[[variant]]
name = "{name}"
{use}dtypes = ["float16"]
requires = ["float16-arithmetic", "subgroup-shuffle", "subgroup-vote", "subgroup-arithmetic"]
subgroup_sizes = {sizes}
align = 8
rank = 1
defines = {{ {defines} }}
tile = {{ rows = {rows}, keys = {keys}, mask_bits = 1 }}
keys_per_trip = 0.02
"""
SHARED = {
    "MATRIX": 1, "MATRIX_ELEMENTS": 1, "ALIGN": 8, "DIM": 32, "VDIM": 32, "KEYS": 32,
    "B_ELEMENTS": 16, "Q_SHARED": 1, "HELD_OPTIONS": 99,
}  # fmt: skip
EIGHT = SHARED | {"SUBGROUP": 8, "A_ELEMENTS": 16, "LOCKSTEP": 1}
SIXTEEN = SHARED | {"SUBGROUP": 16, "A_ELEMENTS": 8}
#: Kernels by name, and whether they are right for the order that they are given.
KERNELS = {
    "eight": (EIGHT | {"TEAMS": 2, "TEAM_SIZE": 2, "SPLITS": 2}, True),
    "eight-shares": (EIGHT | {"TEAMS": 1, "TEAM_SIZE": 4, "SPLITS": 4}, True),
    "eight-twice": (EIGHT | {"TEAMS": 1, "TEAM_SIZE": 4, "SPLITS": 2, "Q_SHARED": 0}, True),
    "eight-in-shared": (EIGHT | {"TEAMS": 2, "TEAM_SIZE": 2, "SPLITS": 2, "HELD_OPTIONS": 0}, True),
    "sixteen": (SIXTEEN | {"TEAMS": 1, "TEAM_SIZE": 1, "SPLITS": 1}, True),
    "sixteen-short": (SIXTEEN | {"TEAMS": 1, "TEAM_SIZE": 1, "SPLITS": 1, "KEYS": 16, "Q_SHARED": 0}, True),
    "eight-functions": (EIGHT | {"TEAMS": 2, "TEAM_SIZE": 2, "SPLITS": 2}, True),
    "eight-functions-in-shared": (EIGHT | {"TEAMS": 1, "TEAM_SIZE": 4, "SPLITS": 4, "HELD_OPTIONS": 0}, True),
    "another-order": (SIXTEEN | {"TEAMS": 1, "TEAM_SIZE": 1, "SPLITS": 1, "OTHER_ORDER": 1}, False),
}
#: Those that are tried with all options, with their words in registers and in shared memory.
WITH_OPTIONS = ("eight-shares", "eight-twice", "eight-in-shared")
WITH_FUNCTIONS = ("eight-functions", "eight-functions-in-shared")
USES = dict.fromkeys(WITH_OPTIONS, 'use = ["options", "classed", "paged"]\n')
USES |= dict.fromkeys(WITH_FUNCTIONS, 'use = ["beside-functions", "functions", "classed"]\n')
#: Options that meet, beside NaN where keys are hidden.
SHAPE = {"hidden": "nan", "size": (53, 41), "width": (32, 24), "heads": (2, 1), "batch": 2}
MEETING = {
    "indices": {
        "softcap": 1.5, "alibi": "heads", "sinks": "heads", "window": (19, 15), "lengths": "both",
        "segments": "documents",
    },
    "arrays": {
        "mask": "bool-full", "bias": "full", "t5": "both-ways", "causal": "on", "prefix": "some", "blocks": (16, 16),
        "dropout": 0.1,
    },
}  # fmt: skip
FACTS = {"align": 8, "head_dim": 32, "value_dim": 24, "rows": 64}


def narrowed(text, count_of):
    """The source with arrays for matrices."""
    for old, new in (
        (r"(?m)^#define FACTOR_([AB]) coopmat.*$", r"#define FACTOR_\1 float16_t[\1_ELEMENTS]"),
        (r"(?m)^#define SUMS coopmat.*$", "#define SUMS float[8]"),
        (r"\bSUMS\(([^()]*)\)", r"filled_sums(\1)"),
        (r"(s_frag\[i\]\[f\]) \*= (\w+);", r"for (uint e = 0u; e < ELEMENTS; ++e) \1[e] *= \2;"),
        (r"(?m)^(uint thread, lane, subgroup,.*)$", r'\1\n#include "narrow-matrices.glsl"'),
        (r"(?m)^    subgroup = gl_SubgroupID;$", "    subgroup = SUBGROUP == 8 ? gl_SubgroupID : 0u;"),
        (r"(?m)^    lane = gl_SubgroupInvocationID;$",
         "    lane = SUBGROUP == 8 ? gl_SubgroupInvocationID : gl_LocalInvocationIndex;"),
    ):  # fmt: skip
        text, times = re.subn(old, new, text)
        count_of[old] = count_of.get(old, 0) + times
    return text.replace("[[unroll]]", "[[dont_unroll]]")


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    if NO_COMPILER:
        pytest.skip(NO_COMPILER)
    root = tmp_path_factory.mktemp("narrow")
    room = root / "shaders/attention"
    families = shutil.ignore_patterns("*.comp", "*.toml")
    rooms = dict.fromkeys(("attention", "masks", "arrays", "elementwise"), families)
    for name, skip in (rooms | {"include": None}).items():
        shutil.copytree(ROOT / "shaders" / name, root / "shaders" / name, ignore=skip)
    found: dict[str, int] = {}
    matrix = room / "matrix"
    for path in (
        ROOT / "shaders/attention/flash-attention-narrow.comp",
        matrix / "factors.glsl",
        matrix / "score-mod.glsl",
    ):
        (room / path.relative_to(path.parents[1 if path.parent.name == "matrix" else 0])).write_text(
            narrowed(path.read_text(), found)
        )
    assert all(found.values()), found
    matrices = (ROOT / "tests/shaders/narrow-matrices.glsl").read_text()
    other = "#ifdef OTHER_ORDER\n#undef A_ROW\n#define A_ROW(e) (lane / 8u * 4u + (e) / 2u)\n#endif\nshared float left"
    assert "shared float left" in matrices
    (root / "shaders/include/narrow-matrices.glsl").write_text(matrices.replace("shared float left", other))
    masks = (f"masks/attention-{name}" for name in ("tiles", "mask-bits", "mask-lanes"))
    of_functions = ("arrays/expressions", "arrays/scatter", "elementwise/copy")
    for name in ("attention/attention-naive", *of_functions, *masks):  # what the check compares with and uses
        for ending in ("comp", "toml"):
            shutil.copy(ROOT / f"shaders/{name}.{ending}", root / f"shaders/{name}.{ending}")
    variants = [
        NARROW_VARIANT.format(
            name=name, rows=defines["TEAMS"] * defines["SUBGROUP"], keys=defines["KEYS"],
            use=USES.get(name, ""),
            sizes=[8] if defines["SUBGROUP"] == 8 else [],
            defines=", ".join(f"{define} = {value}" for define, value in defines.items()),
        )
        for name, (defines, _) in KERNELS.items()
    ]  # fmt: skip
    (room / "flash-attention-narrow.toml").write_text(NARROW + "".join(variants))
    return Manifest(Checkout(root))


def chosen(backend, narrow, kernel, monkeypatch):
    """The kernel's choice, of a registry that the backend has for the test."""
    registry, sizes = with_shaders(monkeypatch, backend, narrow), backend.device.subgroup_sizes
    if KERNELS[kernel][0]["SUBGROUP"] == 8 and (registry.architecture != "llvmpipe" or sizes != (8, 8)):
        pytest.skip("needs subgroups of 8 that run in lockstep")
    (variant,) = (v for v in narrow.variants if v.family == "flash-attention-narrow" and v.variant == kernel)
    return registry.choice(variant)


@pytest.mark.parametrize("options", MEETING)
def test_many_options(vulkan_backend, narrow, options, monkeypatch):
    choice = chosen(vulkan_backend, narrow, "eight-in-shared", monkeypatch)
    cell = Cell("float16", tuple((PLAIN | SHAPE | MEETING[options]).values()))
    judge_cell(pin(view_of(vulkan_backend), choice), cell, choice.variant.family)


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "eight-in-shared"])
def test_the_self_check(vulkan_backend, narrow, kernel, monkeypatch):
    choice = chosen(vulkan_backend, narrow, kernel, monkeypatch)
    found = selfcheck.prove(vulkan_backend.opened, choice, FACTS)
    if KERNELS[kernel][1]:
        assert found is None
    else:
        assert "error" in found


@pytest.mark.parametrize("kernel", WITH_FUNCTIONS)
@pytest.mark.parametrize("judge", [
    partial(test_matrix_functions.judge_functions, make=of_everything),
    test_matrix_functions.judge_hidden, test_matrix_functions.judge_numbers, test_matrix_functions.judge_beside,
    test_matrix_functions.judge_cache,
], ids=["of_everything", "hidden", "numbers", "beside", "cache"])  # fmt: skip
def test_functions(vulkan_backend, narrow, kernel, judge, monkeypatch):
    """Score functions and mask functions."""
    choice = chosen(vulkan_backend, narrow, kernel, monkeypatch)
    view = pin(view_of(vulkan_backend), choice)
    judge(view, choice.variant.family, "float16", problem(53, 71, 32, dtype=np.float16))


# -- linear-rows-matrix in NVIDIA's order of elements -----------------------------------------------------------------


NAME = "linear-rows-matrix"
LINEAR_VARIANT = """
[[variant]]
name = "rows{rows}"
dtypes = ["float16"]
requires = ["float16-arithmetic"]
align = 8
rank = {rank}
limits = {{ rows = [1, {rows}] }}
threads = 32
shared_bytes = {shared}
defines = {{ ORDER = 1, ROWS = {rows}, COLUMNS = {columns}, UNROLL = 2, EMULATED = 3, A_ELEMENTS = 8, B_ELEMENTS = 9 }}
tile = {{ rows = {rows}, cols = {columns}, columns = {columns}, trip = 64, deep = 1, fill = {fill}, splits = 4 }}
keys_per_trip = 1
"""
LINEAR_CHANGES = [
    (r"(?m)^#extension GL_KHR_cooperative_matrix.*\n", "", 1),
    (r"(?m)^#define FACTOR_A coopmat.*$", "#define FACTOR_A float16_t[A_ELEMENTS]", 1),
    (r"(?m)^#define FACTOR_B coopmat.*$", "#define FACTOR_B float16_t[B_ELEMENTS]", 1),
    (r"(?m)^#define SUMS coopmat.*$", "#define SUMS float[8]\n#define MASK_ORDER 0", 1),
    (r"\bSUMS\(0\.0\)", "filled_sums(0.0)", 1),
    (r"\bgl_SubgroupID\b", "0u", None),
    (r"\bgl_SubgroupInvocationID\b", "gl_LocalInvocationIndex", None),
    (
        r"(?m)^(shared float sums\[.*)$",
        r"""\1
shared uvec4 tile[1];
const int ROW_MAJOR = 0;
#include "emulated-matrices.glsl"
void store_sums(SUMS part, uint start, uint stride) {
    for (uint e = 0u; e < 8u; ++e) {
        sums[start + SUM_ROW(gl_LocalInvocationIndex, e) * stride + SUM_COLUMN(gl_LocalInvocationIndex, e)] = part[e];
    }
}""",
        1,
    ),
    (
        r"coopMatStore\(\s*(sum\[i\]\[j\]), sums, (.*),\s*gl_CooperativeMatrixLayoutRowMajor\s*\)",
        r"store_sums(\1, \2)",
        1,
    ),
]


@pytest.fixture(scope="module")
def linear_manifest(tmp_path_factory):
    """The kernel for 16 and 32 rows, which divides the depth among workgroups in one of them."""
    if NO_COMPILER:
        pytest.skip(NO_COMPILER)
    root = tmp_path_factory.mktemp("emulated")
    room = root / "shaders/matmul"
    shutil.copytree(ROOT / "shaders/include", root / "shaders/include")
    shutil.copy(ROOT / "tests/shaders/emulated-matrices.glsl", root / "shaders/include")
    room.mkdir()
    # Without matrices there is no need of Vulkan's memory model, and it has no other scope.
    splits = (ROOT / "shaders/matmul/splits.glsl").read_text()
    (room / "splits.glsl").write_text(splits.replace("gl_ScopeQueueFamily", "gl_ScopeDevice"))
    for name in ("epilogue.glsl", "linear-push.glsl"):
        shutil.copy(ROOT / "shaders/matmul" / name, room)
    text = (ROOT / f"shaders/matmul/{NAME}.comp").read_text()
    for old, new, count in LINEAR_CHANGES:
        text, found = re.subn(old, new, text)
        assert found == count or (count is None and found), f"{old} is there {found} times"
    (room / f"{NAME}.comp").write_text(text.replace("[[unroll]]", "[[dont_unroll]]"))
    head = (ROOT / f"shaders/matmul/{NAME}.toml").read_text().split("# NVIDIA's order")[0]
    kinds = ({"rows": 16, "columns": 32, "fill": 1}, {"rows": 32, "columns": 16, "fill": 64})
    # sums, what emulated matrices pass through, an unused word of 16 bytes, and whether a workgroup was the last.
    other = 4 * 4 * 256 + 4 * 32 + 16 + 4
    made = "".join(
        LINEAR_VARIANT.format(**kind, rank=99 - kind["rows"], shared=64 * kind["columns"] + other) for kind in kinds
    )
    (room / f"{NAME}.toml").write_text(head + made)
    return Manifest(Checkout(root))


@pytest.mark.parametrize("rows", [1, 16, 23])
def test_the_order_of_nvidia(vulkan_backend, linear_manifest, rows, monkeypatch):
    backend = vulkan_backend
    with_shaders(monkeypatch, backend, linear_manifest, subgroup_size=32)
    rng = np.random.default_rng(rows)
    for cols, depth in ((40, 64), (8, 1000)):
        shapes = (rows, depth), (2 * cols, depth), (2 * cols,), (rows, cols)
        x, weight, bias, residual = (rng.integers(-3, 4, shape).astype(np.float16) for shape in shapes)
        exact = x.astype(np.float64) @ weight.astype(np.float64).T + bias
        got = linear(backend.opened, x, weight[:cols], bias[:cols])
        np.testing.assert_array_equal(got, exact[:, :cols].astype(np.float16))
        got = linear(backend.opened, x, weight, bias, activation="relu", gated=True, residual=residual)
        with np.errstate(over="ignore"):
            gated = (np.maximum(exact[:, :cols], 0) * exact[:, cols:] + residual).astype(np.float16)
        np.testing.assert_array_equal(got, gated)


# -- flash-attention-wide and flash-decode-wide, in nobody's order of elements ----------------------------------------


WIDE = ("attention/flash-attention-wide", "decode/flash-decode-wide")
WIDE_CHANGES = {
    "attention/matrix/factors.glsl": [
        (r"(?m)^#extension GL_KHR_cooperative_matrix.*\n", "", 1),
        (r"(?m)^#define FACTOR_A coopmat.*$", "#define FACTOR_A float16_t[256]", 1),
        (r"(?m)^#define FACTOR_B coopmat.*$", "#define FACTOR_B float16_t[257]", 1),
        (r"(?m)^#define SUMS coopmat.*$", "#define SUMS float[8]", 1),
        (r"gl_CooperativeMatrixLayoutRowMajor", "0", 1),
        (r"gl_CooperativeMatrixLayoutColumnMajor", "1", 1),
    ],
    "attention/matrix/wide.glsl": [
        (r"\bSUMS\(([^()]*)\)", r"filled_sums(\1)", 3),
        (r"(?m)^(shared uvec4 tile\[.*)$", r'\1\n#include "emulated-wide.glsl"', 1),
        (r"\bgl_SubgroupInvocationID\b", "(gl_LocalInvocationIndex % 32u)", 1),
        (r"\bgl_SubgroupID\b", "(gl_LocalInvocationIndex / 32u)", 1),
        (r"gl_ScopeQueueFamily", "gl_ScopeDevice", 1),
        (r"\[\[unroll\]\]", "[[dont_unroll]]", None),
    ],
}  # fmt: skip
WIDE_VARIANT = """
[[variant]]
name = "{name}"
use = ["options", "paged"]
dtypes = ["float16"]
requires = ["float16-arithmetic", "subgroup-shuffle"]
align = 8
rank = {rank}
optimize = false
keys_per_trip = 0.8
limits = {{ head_dim = [8, 64], value_dim = [8, {values}] }}
defines = {{ MATRIX_ELEMENTS = 1, ALIGN = 8, MATRIX_M = 16, MATRIX_N = 16, MATRIX_K = 16, SUBGROUP = 32, KEYS = 16, DIM = 64, {defines} }}
tile = {{ rows = {rows}, keys = {keys}, trip = 16, together = 1, stages = 1, resident = 1 }}
"""  # noqa: E501
#: As "two" and "one" of the data files, with fewer parts, and with as few rows as a subgroup has.
WIDE_TILES = {
    "two": {"rank": 2, "values": 32, "rows": 64, "defines": "VDIM = 32, BANDS = 2, PARTS = 2, RF = 2, Q_SHARED = 1"},
    "one": {"rank": 1, "values": 64, "rows": 16, "defines": "VDIM = 64, BANDS = 1, PARTS = 4, RF = 1, Q_SHARED = 0"},
}


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    if NO_COMPILER:
        pytest.skip(NO_COMPILER)
    root = tmp_path_factory.mktemp("wide")
    shutil.copytree(ROOT / "shaders", root / "shaders", ignore=shutil.ignore_patterns("*-wide.toml"))
    shutil.copy(ROOT / "tests/shaders/emulated-wide.glsl", root / "shaders/include")
    for name, changes in WIDE_CHANGES.items():
        path = root / "shaders" / name
        text = path.read_text()
        for old, new, count in changes:
            text, found = re.subn(old, new, text)
            assert found == count or (count is None and found), f"{old} is there {found} times"
        path.write_text(text)
    for family in WIDE:
        head = (ROOT / f"shaders/{family}.toml").read_text().partition("[sets.")[0]
        keys = 64 if family.startswith("decode") else 16
        made = [WIDE_VARIANT.format(name=name, keys=keys, **tile) for name, tile in WIDE_TILES.items()]
        if keys == 64:
            made = [text.replace("keys_per_trip = 0.8\n", "") for text in made]
        (root / f"shaders/{family}.toml").write_text(head + "".join(made))
    return Manifest(Checkout(root))


@pytest.fixture
def of_wide(vulkan_backend, wide, monkeypatch):
    """A function that gives a view of the device with one of the kernels."""
    registry = with_shaders(monkeypatch, vulkan_backend, wide)

    def view(family, name):
        (variant,) = (v for v in wide.variants if (v.family, v.variant) == (family, name))
        return pin(view_of(vulkan_backend), registry.choice(variant))

    return view


@pytest.mark.long("a compiler for processors takes minutes for each")
@pytest.mark.parametrize(("room", "name", "case"), [
    ("flash-attention", "two", Case(
        "ragged", batch=2, heads=6, kv_heads=2, queries=71, keys=147, dim=56, value_dim=24, causal=True, scale=-0.3)),
    ("flash-attention", "one", Case("additive", queries=19, keys=31, dim=64, value_dim=32, mask="add-inf-rows")),
    ("flash-decode", "two", Case("multi-query", heads=40, kv_heads=1, queries=2, keys=300, value_dim=32)),
    ("flash-decode", "one", Case(
        "causal", batch=2, heads=6, kv_heads=2, queries=7, keys=147, dim=56, value_dim=24, causal=True)),
])  # fmt: skip
def test_wide_heads(of_wide, room, name, case):
    family = f"{room}-wide"
    view = of_wide(family, name)
    q, k, v, mask = make_arrays(case, np.float16)
    exact, exact_lse, plain, plain_lse = expected(case, q, k, v, mask)
    out, lse = view.attention.flash_attention2(
        *(view.tensor(a) for a in (q, k, v)), mask=mask, scale=case.scale, causal=case.causal, return_lse=True,
        kernel=family,
    )  # fmt: skip
    assert_as_accurate(out.numpy(), exact, plain, f"{case.name} output", output_magnitude(case, q, k, v, mask))
    assert_as_accurate(lse.numpy(), exact_lse, plain_lse, f"{case.name} lse", lse_magnitude(case, q, k, plain_lse))
