"""Float32 sums go in blocks: long ones err little more than short ones, by bounds that know nothing of the machine.

A sum of n equal terms, one after the other, may err by n / 2 units of 2**-24 of the result, always to the same side;
random roundings grow with the square root. Sums in blocks of b err as n / b and b terms do.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import grilly.functional as F
from backends import on
from grilly import reference
from kernels import only_or_skip, shipped

sys.path.append(str(Path(__file__).parents[1] / "tools"))
import bench_linear as tool

UNIT = 2.0**-24
#: Products that the reference adds one after the other, where it is portable.
BLOCK = 256
#: One after the other, roundings of 1,000 random terms reached 7.4e-6 on the problem below, and of 4,096 1.0e-5.
LINEAR_BOUND = 3e-6
#: The same of kernels whose registers are full (SPAN = 0 in shaders/include/sets.toml), which add one after the other.
SEQUENTIAL_BOUND = 2e-5


def kernels(operation, families, case=""):
    """The float32 variants of some families on vector units, one case of each where it is named."""
    return [
        pytest.param(variant, id=f"{variant.family}.{variant.label}")
        for variant in shipped(operation, *families)
        if variant.dtype == "float32" and not variant.unproven and case in variant.case
    ]


def pinned(backend, variant):
    """A view that runs the variant; a skip where the device lacks something that it needs."""
    facts = {fact: high for fact, (_, high) in variant.limits.items()} | {"align": variant.align}
    return only_or_skip(backend, variant, **facts)


@pytest.mark.parametrize("shape", [(300, 520, 1000), (64, 96, 4096)], ids=str)
@pytest.mark.parametrize(
    "variant", kernels("linear", ["linear", "linear-lanes", "linear-rows", "linear-rows-transposed"])
)
def test_linear(vulkan_backend, variant, shape):
    view = pinned(vulkan_backend, variant)
    rng = np.random.default_rng(1)
    for rows, cols, depth in [*tool.RAGGED[:-1], shape]:  # the numbers of tools/bench_linear.py
        x, weight, bias = tool.arrays(rng, rows, cols, depth, np.dtype(np.float32))
    exact = reference.linear(x, weight, bias, dtype=np.float64)
    error = np.abs(on(view, F.linear)(x, weight, bias) - exact).max()
    assert error <= (SEQUENTIAL_BOUND if variant.case in ("m128", "m128-adreno66") else LINEAR_BOUND), f"{error:.3g}"


@pytest.mark.parametrize("variant", kernels("attention", ["flash-attention2", "flash-attention3"], "v64"))
def test_attention_over_many_equal_values(vulkan_backend, variant):
    """Every rounding of an output's sum goes to the same side where all values and weights are equal."""
    view = pinned(vulkan_backend, variant)
    rng, keys = np.random.default_rng(0), 60_000
    q, k = (rng.standard_normal((1, 1, n, 64), dtype=np.float32) for n in (8, keys))
    q[:, :, :4] = 0
    v = np.full((1, 1, keys, 64), 0.1, np.float32)
    out, lse = view.attention.flash_attention2(q, k, v, return_lse=True, kernel=variant.family)
    scores = q[0, 0].astype(np.float64) @ k[0, 0].astype(np.float64).T / 8
    # Without BLOCK_SUMS (registers are full) 16,384 keys are added one after the other: 1.5e-4.
    bound = 1e-5 if variant.defines.get("BLOCK_SUMS") else 8192 * UNIT
    assert np.abs(out / np.float64(v[0, 0, 0, 0]) - 1).max() <= bound
    np.testing.assert_allclose(lse[0, 0], np.log(np.exp(scores).sum(1)), rtol=0, atol=2e-6)


@pytest.mark.parametrize("depth", [1, 7, 255, 256, 257, 1000])
def test_portable_products_are_sums_in_a_fixed_order(depth):
    """By another program, one product at a time: the same bits."""
    rng = np.random.default_rng(depth)
    a, b = rng.standard_normal((2, 3, depth), dtype=np.float32), rng.standard_normal((depth, 5), dtype=np.float32)
    want = np.empty((2, 3, 5), np.float32)
    for place in np.ndindex(want.shape):
        total = np.float32(0)
        for first in range(0, depth, BLOCK):
            part = np.float32(0)
            for k in range(first, min(first + BLOCK, depth)):
                part += a[place[:2]][k] * b[k, place[2]]
            total += part
        want[place] = total
    with reference.portable():
        got = reference.matmul(a, b)
        np.testing.assert_array_equal(reference.matmul(b.T, a.swapaxes(-1, -2)), got.swapaxes(-1, -2))
        np.testing.assert_array_equal(reference.matmul(a[0, 0], b), got[0, 0])
    np.testing.assert_array_equal(got, want)


def test_portable_ends_with_its_block_and_leaves_float64_alone():
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((40, 700)), rng.standard_normal((700, 30))
    with reference.portable():
        np.testing.assert_array_equal(reference.matmul(a, b), np.matmul(a, b))
        inside = reference.matmul(a.astype(np.float32), b.astype(np.float32))
        with reference.portable(False):
            single = reference.matmul(a.astype(np.float32), b.astype(np.float32))
    np.testing.assert_array_equal(single, np.matmul(a.astype(np.float32), b.astype(np.float32)))
    bound = 1000 * UNIT * np.matmul(np.abs(a), np.abs(b))  # of any order of 700 products and sums, and of the inputs
    assert (np.abs(inside - a @ b) <= bound).all() and (np.abs(single - a @ b) <= bound).all()


@pytest.mark.parametrize(
    ("queries", "keys", "size"), [(64, 64, 1), (300, 1000, 10), (300, 1000, 60), (64, 20_000, 1), (8000, 64, 1)]
)
def test_gradients(backend, queries, keys, size):
    """Scores of a few to some hundreds, many keys, many rows: errors like those of plain float32 with its own softmax.

    A weight made again from a rounded log-sum-exp of 300 errs by 1e-5, and dv by 5 times as much as plain float32.
    """
    rng = np.random.default_rng(0)
    q = size * rng.standard_normal((1, 1, queries, 64), dtype=np.float32)
    k, v = rng.standard_normal((2, 1, 1, keys, 64), dtype=np.float32)
    g = rng.standard_normal(q.shape, dtype=np.float32)
    exact = reference.attention_backward(*(a.astype(np.float64) for a in (g, q, k, v)), dtype=np.float64)
    with reference.portable():
        plain = reference.attention_backward(g, q, k, v, dtype=np.float32)
    out, lse = backend.attention.flash_attention2(q, k, v, return_lse=True)
    results = backend.attention.flash_attention2_backward(g, q, k, v, out, lse)
    for name, got in zip(("dq", "dk", "dv"), results, strict=True):
        want = getattr(exact, name)
        error, its = np.abs(got - want).max(), np.abs(getattr(plain, name) - want).max()
        assert error <= 3 * its, f"{name}: {error:.3g}, plain float32's {its:.3g}"


def test_gradients_of_a_part_of_the_keys(backend):
    """With the log-sum-exp of all keys, parts of them give gradients that add up: nothing is scaled to a sum of 1."""
    rng = np.random.default_rng(1)
    q, g = rng.standard_normal((2, 1, 2, 50, 32), dtype=np.float32)
    k, v = rng.standard_normal((2, 1, 2, 90, 32), dtype=np.float32)
    out, lse = backend.attention.flash_attention2(q, k, v, return_lse=True)
    back = backend.attention.flash_attention2_backward
    whole = back(g, q, k, v, out, lse)
    parts = [back(g, q, k[:, :, part], v[:, :, part], out, lse) for part in (slice(0, 70), slice(70, 90))]
    np.testing.assert_allclose(parts[0][0] + parts[1][0], whole[0], rtol=0, atol=5e-6)
    for n in (1, 2):
        np.testing.assert_allclose(np.concatenate([p[n] for p in parts], 2), whole[n], rtol=0, atol=5e-6)
