"""What holds for every attention, whatever the numbers: tried on random problems, on every device."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grilly import reference

# Few sizes and one head dimension: most of the time goes into compiling a pipeline for each kind of problem.
SIZES = [(23, 41), (67, 29)]
DIM = 24
FEW = settings(
    max_examples=5,
    deadline=None,  # the first call compiles
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# Sums in another order differ by a few roundings of the largest terms: scores below 20, values below 5.
CLOSE = {"rtol": 2e-5, "atol": 2e-5}


@st.composite
def problems(draw):
    """(rng, q, k, v) in float32 with grouped heads."""
    queries, keys = draw(st.sampled_from(SIZES))
    heads, kv_heads = draw(st.sampled_from([(1, 1), (4, 2)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    q = rng.standard_normal((2, heads, queries, DIM))
    k, v = rng.standard_normal((2, 2, kv_heads, keys, DIM))
    return rng, *(array.astype(np.float32) for array in (q, k, v))


def attend(backend, q, k, v, **options):
    """(output, log-sum-exp) as NumPy arrays."""
    return backend.attention.flash_attention2(q, k, v, return_lse=True, **options)


def full(q, k):
    return (*q.shape[:3], k.shape[2])


def same(got, want, **more):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, **(CLOSE | more))


@FEW
@given(problem=problems(), floating=st.booleans())
def test_permuting_keys_with_their_mask_changes_nothing(backend, problem, floating):
    rng, q, k, v = problem
    shown = rng.random(full(q, k)) < 0.7
    mask = np.where(shown, rng.standard_normal(shown.shape), -np.inf).astype(np.float32) if floating else shown
    order = rng.permutation(k.shape[2])
    got = attend(backend, q, k[:, :, order], v[:, :, order], mask=np.ascontiguousarray(mask[..., order]))
    same(got, attend(backend, q, k, v, mask=mask))


@FEW
@given(problem=problems(), cut=st.floats(0.01, 0.99))
def test_parts_of_the_keys_merge_to_the_whole(backend, problem, cut):
    rng, q, k, v = problem
    at = min(max(1, int(cut * k.shape[2])), k.shape[2] - 1)
    mask = rng.random(full(q, k)) < 0.5
    parts = [
        attend(backend, q, k[:, :, part], v[:, :, part], mask=np.ascontiguousarray(mask[..., part]))
        for part in (slice(0, at), slice(at, None))
    ]
    same(reference.merge(*parts[0], *parts[1]), attend(backend, q, k, v, mask=mask))


@FEW
@given(problem=problems())
def test_equal_keys_average_the_values(backend, problem):
    _, q, k, v = problem
    k = np.repeat(k[:, :, :1], k.shape[2], 2)
    out, lse = attend(backend, q, k, v)
    group = q.shape[1] // k.shape[1]
    mean = np.repeat(v.astype(np.float64).mean(2, keepdims=True), group, 1)
    np.testing.assert_allclose(out, np.broadcast_to(mean, out.shape), **CLOSE)
    scores = (q * np.repeat(k[:, :, :1], group, 1)).sum(-1, dtype=np.float64) * q.shape[-1] ** -0.5
    np.testing.assert_allclose(lse, scores + np.log(k.shape[2]), **CLOSE)


@FEW
@given(problem=problems(), by=st.floats(-50, 50, width=32), causal=st.booleans())
def test_shifting_a_bias_shifts_the_log_sum_exp_alone(backend, problem, by, causal):
    rng, q, k, v = problem
    bias = rng.standard_normal(full(q, k)).astype(np.float32)
    out, lse = attend(backend, q, k, v, attn_bias=bias, causal=causal)
    # a score near 50 has a rounding of 2**-18
    same(attend(backend, q, k, v, attn_bias=bias + np.float32(by), causal=causal), (out, lse + by), atol=1e-4)


@FEW
@given(problem=problems(), causal=st.booleans(), data=st.data())
def test_samples_and_heads_know_nothing_of_each_other(backend, problem, causal, data):
    rng, q, k, v = problem
    b, h = data.draw(st.integers(0, 1)), data.draw(st.integers(0, q.shape[1] - 1))
    group = q.shape[1] // k.shape[1]
    out, lse = attend(backend, q, k, v, causal=causal)
    alone = attend(backend, q[b, h], k[b, h // group], v[b, h // group], causal=causal)
    same(alone, (out[b, h], lse[b, h]))
    others = [np.full_like(array, np.nan) for array in (q, k, v)]
    for other, array, head in zip(others, (q, k, v), (h, h // group, h // group), strict=True):
        other[b, head] = array[b, head]
    out, lse = attend(backend, *others, causal=causal)
    same(alone, (out[b, h], lse[b, h]))


@FEW
@given(problem=problems(), by=st.sampled_from([-2.0, -0.3, 0.25, 1.7, 3.0]), causal=st.booleans())
def test_scaling_the_queries_is_scaling_the_scores(backend, problem, by, causal):
    _, q, k, v = problem
    scale = q.shape[-1] ** -0.5
    got = attend(backend, q * np.float32(by), k, v, scale=scale, causal=causal)
    same(got, attend(backend, q, k, v, scale=scale * by, causal=causal), atol=1e-4)


@FEW
@given(problem=problems(), by=st.sampled_from([-3.0, 0.5, 100.0]))
def test_the_output_is_linear_in_the_values(backend, problem, by):
    rng, q, k, v = problem
    other = rng.standard_normal(v.shape).astype(np.float32)
    (one, lse), (two, _) = attend(backend, q, k, v), attend(backend, q, k, other)
    both, both_lse = attend(backend, q, k, v + np.float32(by) * other)
    np.testing.assert_allclose(both, one + by * two, rtol=2e-5, atol=2e-5 * max(1, abs(by)))
    np.testing.assert_array_equal(both_lse, lse)
