"""Decoding on matrix units where there are none: the source of flash-decode-matrix, in NVIDIA's order of elements, with
matrices made of arrays and subgroups made of parts of a workgroup. Against float64 NumPy.

What is tested is what the kernel does with rows, keys, masks, options and pages; not that a driver has the order.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import features
from cases import Case, assert_as_accurate, expected, lse_magnitude, make_arrays, output_magnitude
from compilers import NO_COMPILER
from features import AXES, Cell
from grilly.compute import selfcheck
from grilly.compute.attention import decode
from grilly.registry import Manifest, Registry
from grilly.registry.checkout import Checkout
from kernels import pretend
from shaderbuild.families import tomllib
from test_kvcache import Problem

ROOT = Path(__file__).parents[1]
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
        (r"for \(; first < end; first \+= step\) \{\n        FIND",
         "for (uint all = first - MY_SHARE * uint(KEYS); all < end; all += step, first += step) {\n        FIND", 1),
        (r"for \(; first \+ uint\(KEYS\) <= clear; first \+= step\)",
         "for (uint all = begin; all + step <= clear; all += step, first += step)", 1),
        (r"\[\[unroll\]\]", "[[dont_unroll]]", None),
    ],
}
VARIANT = """
[[variant]]
name = "bands"
dtypes = ["float16"]
requires = ["float16-arithmetic"]
align = 8
rank = 20
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
    """The shaders, with "quads-bands" emulated."""
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
    (root / "shaders/decode/flash-decode-matrix.toml").write_text(head + VARIANT.format(offers=offers))
    return Manifest(Checkout(root))


@pytest.fixture
def emulated(vulkan_backend, manifest, monkeypatch):
    """The device with the kernel."""
    backend = vulkan_backend
    if not {"float16-storage", "float16-arithmetic"} <= backend.runtime.features:
        pytest.skip("the device has no 16-bit numbers")
    monkeypatch.setattr(backend.opened, "registry", Registry(backend.device, backend.runtime.features, manifest))
    pretend(monkeypatch, backend)
    return backend


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


def test_the_self_check_passes(emulated, manifest):
    (variant,) = (v for v in manifest.by_operation["attention-decode"] if v.family == FAMILY)
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


@pytest.mark.parametrize("page", [None, 64, 24])
def test_a_cache(emulated, page):
    """Pages of whole trips, and others; a sample without keys."""
    problem = Problem(np.float16, [310, 0, 77], page=page, room=330, heads=8, queries=5, fresh=5, dim=16)
    problem.check(emulated, options={"causal": True, "sinks": np.linspace(-1, 4, 8, dtype=np.float32)}, kernel=FAMILY)
