"""The unfused path, step by step and as a whole, with the device's own kernels and with those for GPUs."""


import numpy as np
import pytest

import grilly
from cases import CASES, DTYPES, assert_as_accurate, expected, make_arrays, output_magnitude
from grilly import reference
from kernels import chosen_as_on, pretend

ARCHITECTURES = [None, "nvidia-hopper"]
SMALL = [c for c in CASES if not c.name.startswith("dim-") or c.dim in (1, 7, 64, 129, 256)]


@pytest.fixture(params=ARCHITECTURES)
def attention(request, backend):
    with chosen_as_on(backend, request.param):
        yield backend.attention


def draw(*shape, dtype=np.float32):
    return np.random.default_rng([*shape]).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_whole_path(attention, backend, case, dtype):
    q, k, v, mask = make_arrays(case, dtype)
    exact, _, plain, _ = expected(case, q, k, v, mask)
    scores = attention.attention_scores(backend.tensor(q), k, scale=case.scale)
    weights = attention.softmax(attention.attention_mask(scores, mask=mask, causal=case.causal))
    out = attention.attention_output(weights, v)
    assert isinstance(out, grilly.Tensor) and out.dtype == dtype and weights.dtype == np.float32
    magnitude = output_magnitude(case, q, k, v, mask)
    assert_as_accurate(out.numpy(), exact, plain, f"{case.name} output", magnitude)
    options = {"scale": case.scale, "mask": mask, "causal": case.causal}
    exact = reference.attention_weights(q.astype(np.float64), k.astype(np.float64), **options)
    plain = reference.attention_weights(q.astype(np.float32), k.astype(np.float32), **options).astype(np.float32)
    # A score's rounding is its weight's relative error.
    largest = np.abs(scores.numpy()).max(initial=1.0)
    assert_as_accurate(weights.numpy(), exact, plain, f"{case.name} weights", largest * exact.max(initial=0))


@pytest.mark.parametrize("rank", [2, 3])
def test_ranks(attention, rank):
    shape = (3,) * (rank - 2)
    q, k, v = draw(*shape, 9, 8), draw(*shape, 11, 8), draw(*shape, 11, 5)
    scores = attention.attention_scores(q, k, scale=1.0)
    np.testing.assert_allclose(scores, q @ k.swapaxes(-1, -2), rtol=0, atol=1e-5)
    weights = attention.softmax(attention.attention_mask(scores, causal=True))
    np.testing.assert_allclose(attention.attention_output(weights, v), weights @ v, rtol=0, atol=1e-5)


def test_large_blocks(attention):
    """More than 2^20 scores and outputs: the kernels with the largest blocks."""
    q, k = draw(1, 1, 1030, 36), draw(1, 1, 1050, 36)
    scores = attention.attention_scores(q, k, scale=1.0)
    np.testing.assert_allclose(scores, q @ k.swapaxes(-1, -2), rtol=0, atol=3e-5)
    weights, v = draw(4, 8, 300, 67), draw(4, 2, 67, 112)
    want = weights.astype(np.float64) @ np.repeat(v, 4, axis=1)
    for architecture in ("generic", "t5"):
        got = attention.attention_output(weights, v, architecture=architecture)
        np.testing.assert_allclose(got, want, rtol=0, atol=5e-5)


# -- softmax ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cols", [1, 2, 7, 8, 64, 127, 128, 129, 511, 512, 513, 2049])
def test_softmax_rows(attention, cols):
    x = draw(2, 3, 5, cols) * 4
    x[0, 0, :2] = -np.inf
    x[1, 1, 2] = np.finfo(np.float32).min
    x[:, 2] += 3e4
    with np.errstate(invalid="ignore"):
        exact = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True).astype(np.float64))
        plain = np.exp(x - x.max(-1, keepdims=True))
        exact, plain = exact / exact.sum(-1, keepdims=True), plain / plain.sum(-1, keepdims=True)
    for place in ((0, 0, slice(2)), (1, 1, 2)):
        exact[place] = plain[place] = 0
    got = attention.softmax(x)
    assert_as_accurate(got, exact, plain, f"{cols} columns")
    assert (got[0, 0, :2] == 0).all() and (got[1, 1, 2] == 0).all()


@pytest.mark.parametrize("cols", [65_600, 300_007])
def test_softmax_past_the_loop_limit(attention, cols):
    x = draw(2, cols)
    exact = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(attention.softmax(x), exact / exact.sum(-1, keepdims=True), rtol=3e-6)


def test_softmax_shows_nan(attention):
    x = draw(4, 33)
    x[1, 20] = np.nan
    got = attention.softmax(x)
    assert np.isnan(got[1]).any() and np.isfinite(got[[0, 2, 3]]).all()


def test_softmax_strided(attention, backend):
    x = draw(3, 4, 5, 6)
    for view in (lambda a: a.transpose(0, 2, 1, 3), lambda a: a[..., 1:4], lambda a: a.transpose(3, 0, 1, 2)):
        own = view(x)
        want = np.exp(own) / np.exp(own).sum(-1, keepdims=True)
        np.testing.assert_allclose(attention.softmax(view(backend.tensor(x))).numpy(), want, rtol=2e-6)
    assert attention.softmax(draw(2, 1, 3, 2, 7)).shape == (2, 1, 3, 2, 7)


# -- output ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("keys", [76, 77])
@pytest.mark.parametrize("architecture", ["generic", "gpt", "t5"])
def test_zero_weights_keep_values_out(attention, poison, keys, architecture):
    weights, v = draw(2, 2, 70, keys), draw(2, 2, keys, 36)
    weights[..., 40:50] = 0
    clean = attention.attention_output(weights, v, architecture=architecture)
    # Each sum is off by at most terms x unit roundoff x sum of magnitudes (Higham, Accuracy and Stability, 3.1).
    bound = 2 * keys * 2.0**-24 * (np.abs(weights).astype(np.float64) @ np.abs(v)) + 1e-30
    v[..., 40:50, ::5] = poison
    dirty = attention.attention_output(weights, v, architecture=architecture)
    # The selecting pass is a loop of its own, where a compiler may fuse other multiply-adds (Mesa 26 does): equal up to
    # the roundings of a sum, where a leak would be NaN, infinity or of the poison's size.
    np.testing.assert_array_less(np.abs(dirty - clean), bound)


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30, None])
@pytest.mark.parametrize("queries, keys", [(70, 70), (33, 129), (129, 64), (1, 40), (200, 203)])
def test_gpt_reads_nothing_after_the_query(attention, poison, queries, keys):
    weights, v = draw(2, 4, queries, keys), draw(2, 2, keys, 24)
    seen = np.arange(keys) <= np.arange(queries)[:, None] + keys - queries
    want = np.where(seen, weights, 0).astype(np.float64) @ np.repeat(v, 2, axis=1)
    if poison is not None:
        weights = np.where(seen, weights, np.float32(poison))
        v[..., keys - 1, :] = poison
        want = want[..., : queries - 1, :]  # the last query may see the last key
    got = attention.attention_output(weights, v, architecture="gpt")[..., : want.shape[-2], :]
    np.testing.assert_allclose(got, want, rtol=0, atol=3e-5)


def test_infinite_values_that_count_show(attention):
    weights, v = np.full((1, 1, 3, 9), 0.5, np.float32), draw(1, 1, 9, 8)
    v[..., 4, 2] = np.inf
    v[..., 5, 3] = np.nan
    got = attention.attention_output(weights, v)
    assert (got[..., 2] == np.inf).all() and np.isnan(got[..., 3]).all() and np.isfinite(got[..., 4:]).all()


def test_t5_heads_lie_side_by_side(attention, backend):
    weights, v = draw(2, 3, 5, 7), draw(2, 3, 7, 4)
    out = attention.attention_output(backend.tensor(weights), v, architecture="t5")
    joined = out.transpose(0, 2, 1, 3)
    assert joined.is_contiguous
    want = (weights @ v).transpose(0, 2, 1, 3).reshape(2, 5, 12)
    np.testing.assert_allclose(joined.reshape(2, 5, 12).numpy(), want, rtol=0, atol=3e-6)


# -- T5's bias -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("buckets, max_distance", [(32, 128), (8, 20), (2, 4), (64, 1000), (32, 17)])
@pytest.mark.parametrize("offset", [0, 5, -3])
def test_t5_bias(attention, bidirectional, buckets, max_distance, offset):
    if bidirectional and buckets == 2:
        buckets = 4
    scores, table = draw(2, 3, 37, 301), draw(buckets, 3)
    options = {"bidirectional": bidirectional, "max_distance": max_distance, "offset": offset}
    got = attention.t5_bias(scores, table, **options)
    assert (got == scores + reference.t5_bias(table, 37, 301, **options)).all()


# -- the plan --------------------------------------------------------------------------------------------------------


def test_cut_to_fit(vulkan_backend, monkeypatch):
    """Limits far below the device's own change nothing but the number of dispatches."""
    backend = vulkan_backend
    q, k, v = draw(2, 6, 90, 16), draw(2, 3, 110, 16), draw(2, 3, 110, 8)
    mask, table = np.random.default_rng(6).random((2, 1, 90, 110)) < 0.7, draw(32, 6)

    def path():
        scores = backend.attention.t5_bias(backend.attention.attention_scores(q, k), table, offset=20)
        weights = backend.attention.softmax(backend.attention.attention_mask(scores, mask=mask, causal=True))
        kinds = ("generic", "gpt", "t5")
        return weights, *(backend.attention.attention_output(weights, v, architecture=a) for a in kinds)

    whole = path()
    pretend(monkeypatch, backend, storage_range=20_000, groups=(65535, 3, 2))
    counted = []
    dispatch = backend.runtime.dispatch
    monkeypatch.setattr(backend.runtime, "dispatch", lambda *a, **k: (counted.append(a), dispatch(*a, **k)))
    for cut, once in zip(path(), whole, strict=True):
        assert (cut == once).all()
    assert len(counted) > 100
    for _, bindings, _, groups, *_ in counted:
        assert all(b is None or b[2] <= 20_000 for b in bindings) and groups[1] <= 3 and groups[2] <= 2


def test_empty(backend):
    a = backend.attention
    empty = np.zeros((1, 2, 0, 4), np.float32)
    assert a.attention_scores(empty, draw(1, 2, 3, 4)).shape == (1, 2, 0, 3)
    assert a.attention_mask(np.zeros((2, 0, 3), np.float32), causal=True).shape == (2, 0, 3)
    assert a.softmax(np.zeros((2, 0), np.float32)).shape == (2, 0)
    out = a.attention_output(np.zeros((1, 2, 3, 0), np.float32), empty)
    assert out.shape == (1, 2, 3, 4) and (out == 0).all()


def z(*shape, dtype="f"):
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    "name, arguments, options, error, text",
    [
        ("attention_scores", (z(2, 4), z(2, 5)), {}, ValueError, "head dimension"),
        ("attention_scores", (z(4), z(4)), {}, ValueError, "expected"),
        ("attention_scores", (z(2, 4), z(1, 2, 4)), {}, ValueError, "3 axes and q has 2"),
        ("attention_scores", (z(2, 1, 2, 4), z(3, 1, 2, 4)), {}, ValueError, "batch 3"),
        ("attention_scores", (z(5, 2, 4), z(2, 2, 4)), {}, ValueError, "2 heads and q has 5"),
        ("attention_scores", (z(2, 4), z(2, 4, dtype="e")), {}, TypeError, "same dtype"),
        ("attention_scores", (z(2, 4), z(2, 4)), {"scale": np.nan}, ValueError, "scale"),
        ("attention_mask", (z(2, 4, dtype="e"),), {}, TypeError, "expected float32"),
        ("attention_mask", (z(4),), {}, ValueError, "shape"),
        ("attention_mask", (z(2, 4),), {"mask": z(3, 4)}, ValueError, "broadcast"),
        ("attention_mask", (z(2, 4),), {"mask": z(2, 4, dtype="i4")}, TypeError, "expected bool"),
        ("softmax", (z(2, dtype="d"),), {}, TypeError, "float64"),
        ("softmax", (z(),), {}, ValueError, "no axes"),
        ("attention_output", (z(2, 4), z(5, 3)), {}, ValueError, "5 keys and weights has 4"),
        ("attention_output", (z(2, 4, dtype="e"), z(4, 3, dtype="e")), {}, TypeError, "expected float32"),
        ("attention_output", (z(2, 4), z(4, 3)), {"architecture": "bert"}, ValueError, "'bert'; expected one of"),
        ("t5_bias", (z(3, 2, 4), z(32, 2)), {}, ValueError, "H = 3"),
        ("t5_bias", (z(3, 2, 4), z(2, 3)), {}, ValueError, "2 rows"),
        ("t5_bias", (z(3, 2, 4), z(5, 3)), {}, ValueError, "5 rows"),
        ("t5_bias", (z(3, 2, 4), z(32, 3)), {"max_distance": 8}, ValueError, "more than 8"),
    ],
)
def test_refused(backend, name, arguments, options, error, text):
    with pytest.raises(error, match=f"{name}: .*{text}"):
        getattr(backend.attention, name)(*arguments, **options)
