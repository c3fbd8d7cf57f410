"""The attention cases that tests and benchmarks share, and how errors are judged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from grilly import reference

try:
    from ml_dtypes import bfloat16 as BFLOAT16
except ModuleNotFoundError:
    BFLOAT16 = None
needs_bfloat16 = pytest.mark.skipif(BFLOAT16 is None, reason="ml_dtypes is not installed")
#: Parameters of tests over element types.
SIXTEEN_BITS = [
    pytest.param(np.float16, id="float16"),
    pytest.param(BFLOAT16, id="bfloat16", marks=needs_bfloat16),
]
DTYPES = [pytest.param(np.float32, id="float32"), *SIXTEEN_BITS]


def epsilon(dtype) -> float:
    """The distance from 1 to the next number of a dtype."""
    dtype = np.dtype(dtype)
    return 2.0**-7 if dtype.name == "bfloat16" else float(np.finfo(dtype).eps)


@dataclass(frozen=True)
class Case:
    """One attention problem; ``mask`` names a pattern of ``make_mask``."""

    name: str
    batch: int = 1
    heads: int = 2
    kv_heads: int | None = None
    queries: int = 64
    keys: int = 64
    dim: int = 64
    value_dim: int | None = None
    mask: str | None = None
    causal: bool = False
    scale: float | None = None

    def __str__(self) -> str:
        return self.name


def _dims() -> list[Case]:
    dims = [1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 40, 48, 63, 64, 65, 72, 80, 96, 100, 112, 127, 128, 129]
    return [Case(f"dim-{d}", queries=37, keys=53, dim=d, heads=2) for d in [*dims, 160, 192, 200, 255, 256]]


CASES = [
    *_dims(),
    Case("one-query-one-key", queries=1, keys=1, heads=1),
    Case("one-query", batch=4, heads=8, queries=1, keys=257),
    Case("one-key", queries=131, keys=1),
    Case("prime", batch=2, heads=3, queries=127, keys=131, dim=64),
    Case("prime-odd-dim", batch=2, heads=3, queries=101, keys=67, dim=37),
    Case("long-keys", heads=1, queries=5, keys=1031, dim=32),
    Case("value-wider", queries=29, keys=43, dim=32, value_dim=80),
    Case("value-narrower", queries=29, keys=43, dim=96, value_dim=17),
    Case("value-one", queries=29, keys=43, dim=64, value_dim=1),
    Case("dim-one-value-256", queries=29, keys=43, dim=1, value_dim=256),
    Case("grouped", batch=2, heads=6, kv_heads=2, queries=33, keys=65),
    Case("multi-query", heads=5, kv_heads=1, queries=33, keys=65, dim=40),
    Case("causal", queries=77, keys=77, causal=True),
    Case("causal-more-keys", queries=33, keys=100, causal=True, dim=48),
    Case("causal-more-queries", queries=100, keys=33, causal=True),
    Case("causal-grouped-odd", heads=4, kv_heads=2, queries=65, keys=63, dim=31, causal=True),
    Case("bool-full", batch=2, heads=3, queries=31, keys=45, mask="bool-full"),
    Case("bool-keys", batch=2, queries=31, keys=45, mask="bool-keys"),
    Case("bool-2d", queries=31, keys=45, mask="bool-2d"),
    Case("bool-head", heads=3, queries=31, keys=47, mask="bool-head"),
    Case("bool-causal", queries=41, keys=57, mask="bool-2d", causal=True, dim=24),
    Case("bool-dead-rows", queries=41, keys=57, mask="bool-dead-rows"),
    Case("bool-all-false", queries=41, keys=57, mask="bool-all-false"),
    Case("add-full", batch=2, heads=3, queries=31, keys=45, mask="add-full"),
    Case("add-rows", queries=31, keys=45, mask="add-rows", dim=30),
    Case("add-big-negative", queries=31, keys=45, mask="add-big-negative"),
    Case("add-inf-rows", queries=31, keys=45, mask="add-inf-rows"),
    Case("add-lowest-rows", queries=31, keys=45, mask="add-lowest-rows"),
    Case("add-causal", queries=64, keys=64, mask="add-full", causal=True),
    Case("scale", queries=31, keys=45, scale=0.7),
    Case("scale-negative", queries=31, keys=45, scale=-0.3),
    Case("scale-zero", queries=31, keys=45, scale=0.0),
]


#: For kernels with large tiles: what happens at their edges and in their loops, whatever the head dimension.
TILED_CASES = [
    Case("one-query-one-key", queries=1, keys=1, heads=1),
    Case("whole-tiles", queries=256, keys=128),
    Case("prime", batch=2, heads=3, queries=127, keys=131),
    Case("grouped", batch=2, heads=6, kv_heads=2, queries=33, keys=65),
    Case("causal", queries=277, keys=277, causal=True),
    Case("causal-more-keys", queries=33, keys=200, causal=True),
    Case("causal-more-queries", queries=200, keys=33, causal=True),
    Case("bool-dead-rows", queries=41, keys=157, mask="bool-dead-rows"),
    Case("bool-head-causal", heads=3, queries=131, keys=147, mask="bool-head", causal=True),
    Case("bool-all-false", queries=41, keys=57, mask="bool-all-false"),
    Case("add-full", batch=2, heads=3, queries=31, keys=145, mask="add-full"),
    Case("add-inf-rows", queries=131, keys=145, mask="add-inf-rows"),
    Case("add-big-negative", queries=31, keys=45, mask="add-big-negative"),
    Case("scale-negative", queries=31, keys=145, scale=-0.3),
    Case("scale-zero", queries=31, keys=145, scale=0.0),
]


def make_mask(case: Case, rng: np.random.Generator) -> np.ndarray | None:
    """The mask a case names."""
    full = (case.batch, case.heads, case.queries, case.keys)
    if case.mask is None:
        return None
    if case.mask == "bool-full":
        return rng.random(full) < 0.6
    if case.mask == "bool-keys":
        return rng.random((case.batch, 1, 1, case.keys)) < 0.6
    if case.mask == "bool-2d":
        return rng.random(full[2:]) < 0.5
    if case.mask == "bool-head":
        return rng.random((case.heads, 1, case.keys)) < 0.5
    if case.mask == "bool-dead-rows":
        mask = rng.random(full[2:]) < 0.5
        mask[::3] = False
        return mask
    if case.mask == "bool-all-false":
        return np.zeros(full[2:], bool)
    if case.mask == "add-full":
        return rng.standard_normal(full).astype(np.float32)
    if case.mask == "add-rows":
        return rng.standard_normal((case.queries, 1)).astype(np.float32)
    additive = rng.standard_normal(full[2:]).astype(np.float32)
    value = {"add-big-negative": -1e9, "add-inf-rows": -np.inf, "add-lowest-rows": np.finfo(np.float32).min}[case.mask]
    additive[rng.random(full[2:]) < 0.4] = value
    if case.mask != "add-big-negative":
        additive[::4] = value
    return additive


def make_arrays(case: Case, dtype=np.float32, seed: int = 0):
    """Random q, k, v and the case's mask."""
    rng = np.random.default_rng([seed, *case.name.encode()])
    kv_heads = case.kv_heads or case.heads
    value_dim = case.dim if case.value_dim is None else case.value_dim
    q = rng.standard_normal((case.batch, case.heads, case.queries, case.dim)).astype(dtype)
    k = rng.standard_normal((case.batch, kv_heads, case.keys, case.dim)).astype(dtype)
    v = rng.standard_normal((case.batch, kv_heads, case.keys, value_dim)).astype(dtype)
    return q, k, v, make_mask(case, rng)


def assert_as_accurate(result, exact, plain, what: str = "", magnitude: float | None = None) -> None:
    """``result`` errs from the float64 ``exact`` at most twice as much as ``plain``, NumPy in the same precision.

    The session's fixture has the reference sum float32 in one order on every processor (`reference.portable`).

    Both the largest and the root-mean-square error count. One rounding of ``magnitude``, the largest sum of absolute
    terms behind an output (by default the largest output), is always allowed: plain's error is a random number too,
    and where it happens to be nothing (one key, say) so would be twice that.
    """
    result, plain = np.asarray(result), np.asarray(plain)
    assert result.shape == exact.shape, f"{what}: shape {result.shape}, expected {exact.shape}"
    assert result.dtype == plain.dtype, f"{what}: dtype {result.dtype}, expected {plain.dtype}"
    rounding = epsilon(plain.dtype)
    infinite = np.isneginf(exact)
    assert (np.isneginf(result) == infinite).all(), f"{what}: minus infinity in the wrong places"
    if exact.size == 0:
        return
    finite = ~infinite
    exact, result, plain = exact[finite], result[finite].astype(np.float64), plain[finite].astype(np.float64)
    if exact.size == 0:
        return
    assert np.isfinite(result).all(), f"{what}: {np.count_nonzero(~np.isfinite(result))} values are not finite"
    floor = rounding * (np.abs(exact).max() if magnitude is None else magnitude)
    mine, its = np.abs(result - exact), np.abs(plain - exact)
    worst = f"largest error {mine.max():.3g}, plain float32's {its.max():.3g}"
    assert mine.max() <= 2 * its.max() + floor, f"{what}: {worst}"
    if mine.size < 64:
        return  # too few for a mean to say more than the largest error does
    mine, its = np.sqrt(np.mean(mine**2)), np.sqrt(np.mean(its**2))
    assert mine <= 2 * its + floor / 4, f"{what}: RMS error {mine:.3g}, plain float32's {its:.3g}"


def expected(case: Case, q, k, v, mask):
    """(float64 output, float64 lse, same-precision output, same-precision lse) of the reference."""
    options = {"scale": case.scale, "mask": mask, "causal": case.causal, "return_lse": True}
    exact = reference.naive_attention(q, k, v, dtype=np.float64, **options)
    plain = reference.naive_attention(q.astype(np.float32), k.astype(np.float32), v.astype(np.float32), **options)
    return exact[0], exact[-1], plain[0].astype(q.dtype), plain[-1]


def exp(x: np.ndarray) -> np.ndarray:
    """In float32, rounded from float64: the same on every processor."""
    return np.exp(x.astype(np.float64)).astype(np.float32)


def rounded_weights(case: Case, q, k, v, mask):
    """The reference in float32 with the unnormalised weights rounded to the arrays' type, as matrix units take them."""
    kv_heads, heads = k.shape[1], q.shape[1]
    k, v = (np.repeat(a.astype(np.float32), heads // kv_heads, 1) for a in (k, v))
    scale = np.float32(q.shape[-1] ** -0.5 if case.scale is None else case.scale)
    scores = reference.matmul(q.astype(np.float32), k.swapaxes(-1, -2)) * scale
    if mask is not None:
        never = np.float32(-np.inf)
        scores = np.where(mask, scores, never) if mask.dtype == bool else scores + np.where(mask < -3e38, never, mask)
    if case.causal:
        queries, keys = scores.shape[-2:]
        scores = np.where(np.arange(keys) <= np.arange(queries)[:, None] + keys - queries, scores, np.float32(-np.inf))
    top = scores.max(-1, keepdims=True, initial=-3e38)
    weights = exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    out = reference.matmul(weights.astype(q.dtype).astype(np.float32), v)
    return np.where(total > 0, out / np.where(total > 0, total, 1), 0).astype(q.dtype)


def lse_magnitude(case: Case, q, k, plain_lse) -> float:
    """What one float32 rounding of a log-sum-exp from matrix units is relative to.

    Matrix units may add the products of a score with few guard bits, so the terms' magnitude counts; and the sum of
    weights may be that of the rounded ones, off by up to half an epsilon of the 16-bit type.
    """
    top = [np.abs(a.astype(np.float64)).max() for a in (q, k)]
    terms = top[0] * top[1] * q.shape[-1] * abs(q.shape[-1] ** -0.5 if case.scale is None else case.scale)
    finite = np.abs(plain_lse[np.isfinite(plain_lse)]).max(initial=1)
    return max(terms, finite) + epsilon(q.dtype) / 2 / epsilon(np.float32)


def output_magnitude(case: Case, q, k, v, mask) -> float:
    """The largest sum of weight times absolute value behind an element of the output."""
    out = reference.naive_attention(q, k, np.abs(v), case.scale, mask, case.causal, dtype=np.float64)[0]
    return float(out.max(initial=0))


def check_bfloat16(backend, case: Case, family: str) -> None:
    """Hold attention in bfloat16, by one family of kernels, to float64 and plain float32."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v, mask = make_arrays(case, ml_dtypes.bfloat16)
    exact, exact_lse, plain, plain_lse = expected(case, q, k, v, mask)
    out, lse = backend.attention.flash_attention2(
        *(backend.tensor(a) for a in (q, k, v)), mask=mask, causal=case.causal, scale=case.scale, return_lse=True,
        kernel=family,
    )  # fmt: skip
    mine = np.abs(out.numpy().astype(np.float64) - exact).max()
    its = np.abs(plain.astype(np.float64) - exact).max()
    assert mine <= 2 * its + 2**-8 * output_magnitude(case, *(a.astype(np.float32) for a in (q, k, v)), mask)
    assert_as_accurate(lse.numpy(), exact_lse, plain_lse, f"{case.name} lse")
