"""Attention over caches that grow, against the float64 reference."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
import grilly.functional as F
from backends import has_sixteen_bits
from cases import DTYPES, assert_as_accurate, epsilon
from grilly import nn, reference

ATTEND = F.flash_attention_with_kvcache
DIM = 16


def draw(rng, dtype, *shape):
    return rng.standard_normal(shape).astype(dtype)


def tables(rng, positions, pairs):
    """Cosines and sines of arbitrary angles."""
    angles = rng.uniform(-3, 3, (positions, pairs))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def turn(x, cos, sin, positions, interleaved):
    """Rotary embedding of ``(S, H, D)`` by the tables' rows ``positions``, in x's dtype."""
    pairs = cos.shape[1]
    out = x.copy()
    first, second = (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved else (
        slice(0, pairs), slice(pairs, 2 * pairs))  # fmt: skip
    c, s = (table[positions][:, None].astype(x.dtype) for table in (cos, sin))
    out[..., first] = x[..., first] * c - x[..., second] * s
    out[..., second] = x[..., second] * c + x[..., first] * s
    return out


def attend(part, dtype, options):
    """The reference on one sample: output (S, H, Dv) and lse (H, S)."""
    q, k, v = (x.astype(dtype).swapaxes(0, 1)[None] for x in part)
    out, *_, lse = reference.naive_attention(q, k, v, dtype=dtype, return_lse=True, **options)
    return out[0].swapaxes(0, 1), lse[0]


class Problem:
    """A cache that holds ``lengths`` keys of each sample, everything else NaN; and what a call should do to it."""

    def __init__(self, dtype, lengths, *, queries=1, fresh=1, heads=4, kv_heads=2, room=40, page=None, dim=DIM,
                 value_dim=None, pairs=0, interleaved=True, seed=0):  # fmt: skip
        rng = np.random.default_rng([seed, queries, fresh, room, *(abs(n) for n in lengths)])
        self.lengths = np.array(lengths, np.int32)
        batch, self.fresh, self.interleaved, self.page = len(lengths), fresh, interleaved, page
        value_dim = value_dim or dim
        self.q = draw(rng, dtype, batch, queries, heads, dim)
        self.k, self.v = (draw(rng, dtype, batch, fresh, kv_heads, d) for d in (dim, value_dim))
        self.rotary = tables(rng, room, pairs) if pairs else None
        self.old = [draw(rng, dtype, batch, room, kv_heads, d) for d in (dim, value_dim)]
        for b, length in enumerate(lengths):
            for cache in self.old:
                cache[b, max(length, 0) :] = np.nan
        self.table = None
        if page:
            each = -(-room // page)
            order = rng.permutation(batch * each + 2)
            self.table = order[: batch * each].reshape(batch, each).astype(np.int32)
            self.pages = batch * each + 2

    def stored(self, caches):
        """Caches ``(B, S, ...)`` as the call has them."""
        if self.page is None:
            return [cache.copy() for cache in caches]
        out = []
        for cache in caches:
            paged = np.full((self.pages, self.page, *cache.shape[2:]), np.nan, cache.dtype)
            for b, row in enumerate(self.table):
                for n, page in enumerate(row):
                    keys = cache[b, n * self.page : (n + 1) * self.page]
                    paged[page, : len(keys)] = keys
            out.append(paged)
        return out

    def after(self, dtype):
        """Caches and queries as they are to be when attention begins, in ``dtype``, and the caches' roundings."""
        caches = [cache.astype(dtype) for cache in self.old]
        q, advance = self.q.astype(dtype), self.advance
        for b, length in enumerate(self.lengths):
            k, places = self.k[b].astype(dtype), slice(length, length + self.fresh)
            if self.rotary:
                k = turn(k, *self.rotary, np.arange(length, length + self.fresh), self.interleaved)
                at = length + np.arange(q.shape[1]) * advance
                q[b] = turn(q[b], *self.rotary, at, self.interleaved)
            caches[0][b, places], caches[1][b, places] = k, self.v[b].astype(dtype)
        return q, caches

    def expect(self, **options):
        """(float64 output, lse, the same in the arrays' precision)."""
        self.advance = int(bool(options.get("causal")) or options.get("window_size") is not None)
        results = []
        for dtype in (np.float64, np.float32):
            q, caches = self.after(dtype)
            if dtype == np.float32 and self.rotary:  # what is stored is rounded
                q, caches = q.astype(self.q.dtype), [c.astype(self.q.dtype) for c in caches]
            outs, sums = [], []
            for b, length in enumerate(self.lengths + self.fresh):
                part = [q[b], *(cache[b, :length] for cache in caches)]
                own = {name: x[b] if name == "alibi_slopes" and np.ndim(x) == 2 else x for name, x in options.items()}
                out, lse = attend(part, dtype, own)
                outs.append(out)
                sums.append(lse)
            results += [np.stack(outs), np.stack(sums)]
        return results[0], results[1], results[2].astype(self.q.dtype), results[3]

    def call(self, backend, *, numpy=False, device_lengths=False, options=None, **more):
        """Run it; returns output, lse and the caches after it."""
        caches = self.stored(self.old)
        arrays = [self.q, *caches, *((self.k, self.v) if self.fresh else (None, None))]
        if not numpy:
            arrays = [None if a is None else backend.tensor(a) for a in arrays]
        lengths, table = self.lengths, self.table
        if device_lengths:
            lengths = backend.tensor(lengths)
            table = None if table is None else backend.tensor(table)
        if self.rotary:
            more.update(rotary=self.rotary, rotary_interleaved=self.interleaved)
        out, lse = ATTEND(*arrays, lengths, table, return_lse=True, **(options or {}), **more)
        assert isinstance(out, grilly.Tensor) == (not numpy or device_lengths)
        return tuple(np.asarray(a) for a in (out, lse, arrays[1], arrays[2]))

    def check(self, backend, what="", options=None, **how):
        options = options or {}
        if self.q.itemsize == 2 and not has_sixteen_bits(backend):
            with pytest.raises(grilly.UnsupportedError, match="use float32"):
                self.call(backend, options=options, **how)
            return
        exact, exact_lse, plain, plain_lse = self.expect(**options)
        out, lse, *caches = self.call(backend, options=options, **how)
        assert_as_accurate(out, exact, plain, what)
        # Matrix units may add up the rounded weights: the log of the sum is off by up to half an epsilon of their type.
        rounded = epsilon(self.q.dtype) / 2 / epsilon(np.float32) if self.q.itemsize == 2 else 0
        largest = np.abs(exact_lse[np.isfinite(exact_lse)]).max(initial=0)
        assert_as_accurate(lse, exact_lse, plain_lse, what, rounded + largest)
        _, want = self.after(np.float64)
        for cache, wanted in zip(caches, self.stored(want), strict=True):
            np.testing.assert_array_equal(np.isnan(cache.astype(np.float32)), np.isnan(wanted))
            exactly = self.rotary is None
            eps = 0 if exactly else 4 * {2: 2.0**-8, 4: 2.0**-24}[cache.itemsize]
            np.testing.assert_allclose(cache.astype(np.float64), wanted, rtol=0, atol=4 * eps)


LENGTHS = [0, 1, 6, 7, 39]  # with a page of 7: empty, in it, its last place, the first of the next, the cache's end


@pytest.mark.parametrize("device_lengths", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("page", [None, 7, 16])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_token(backend, dtype, page, device_lengths):
    Problem(dtype, LENGTHS, page=page).check(backend, device_lengths=device_lengths)


@pytest.mark.parametrize("device_lengths", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("interleaved, value_dim", [(False, 24), (True, 24), (True, 8)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_several_tokens_across_pages_with_rotary(backend, dtype, interleaved, value_dim, device_lengths):
    problem = Problem(
        dtype, [0, 3, 11, 34], queries=5, fresh=5, page=3, heads=6, kv_heads=3, dim=24, value_dim=value_dim, pairs=7,
        interleaved=interleaved, room=39,
    )  # fmt: skip
    problem.check(backend, options={"causal": True}, device_lengths=device_lengths)


def test_queries_without_causality_are_all_turned_alike(backend):
    problem = Problem(np.float32, [3, 9], queries=3, fresh=2, pairs=8, interleaved=False)
    problem.check(backend)
    assert problem.advance == 0


@pytest.mark.parametrize("page", [None, 5])
@pytest.mark.parametrize("lengths", [[8, 8], [8, 21]], ids=["alike", "unlike"])
def test_options(backend, lengths, page):
    slopes = np.array([[0.5, 0.25, 0.125, 0.0625]] * 2, np.float32) * np.array([[1], [3]], np.float32)
    options = {"causal": True, "window_size": (6, 0), "softcap": 3.0, "alibi_slopes": slopes, "scale": 0.4,
               "sinks": np.array([0.3, -1, 2, 0], np.float32)}  # fmt: skip
    Problem(np.float32, lengths, queries=3, fresh=3, page=page).check(backend, options=options)


@pytest.mark.parametrize("device_lengths", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("lengths", [[8, 8], [0, 21]], ids=["alike", "unlike"])
def test_a_table_of_distances(backend, lengths, device_lengths):
    table = np.random.default_rng(3).standard_normal((8, 4)).astype(np.float32)
    options = {"causal": True, "t5_table": table, "t5_bidirectional": False, "t5_max_distance": 20, "scale": 1.0}
    for queries in (1, 4):
        problem = Problem(np.float32, lengths, queries=queries, fresh=queries)
        problem.check(backend, options=options, device_lengths=device_lengths)


@pytest.mark.parametrize("page", [None, 7])
def test_without_new_keys(backend, page):
    for lengths in ([13, 13], [0, 5], [40, 40]):
        Problem(np.float32, lengths, fresh=0, page=page, queries=2).check(backend, str(lengths))


@pytest.mark.parametrize("page", [None, 6])
def test_numpy_caches_are_updated(backend, page):
    former = grilly.use(backend)
    try:
        Problem(np.float16, [4, 9], page=page, fresh=2).check(backend, numpy=True)
        Problem(np.float32, [4, 4], page=page, fresh=2).check(backend, numpy=True, device_lengths=True)
    finally:
        grilly.use(former)


def test_caches_inside_one_array_are_written_where_they_lie(backend):
    """Keys and values side by side in each row, in pages that are not next to each other."""
    problem = Problem(np.float32, [2, 9], page=4, fresh=2)
    k, v = problem.stored(problem.old)
    both = backend.tensor(np.stack([k, v], 3))  # (pages, size, Hk, 2, D)
    rest = [backend.tensor(a) for a in (problem.q, problem.k, problem.v)]
    out = ATTEND(rest[0], both[:, :, :, 0], both[:, :, :, 1], *rest[1:], problem.lengths, problem.table)
    exact, _, plain, _ = problem.expect()
    assert_as_accurate(out.numpy(), exact, plain)
    want = np.stack(problem.stored(problem.after(np.float32)[1]), 3)
    np.testing.assert_array_equal(both.numpy(), want)


@pytest.mark.parametrize("page", [None, 64])
def test_many_keys(backend, page):
    """Enough of them that the keys are split over the device, and that one split of a sample has none."""
    for queries in (1, 3):
        problem = Problem(np.float16, [1501, 0, 700], page=page, room=1601, heads=8, queries=queries, dim=64)
        options = {"causal": True, "sinks": np.linspace(-1, 4, 8, dtype=np.float32)}
        problem.check(backend, options=options)
        problem.check(backend, options=options, device_lengths=True)


def test_token_by_token_equals_the_whole(backend):
    """Grouped heads, rotary embedding, chunks of 1 to 5 tokens, pages."""
    rng = np.random.default_rng(5)
    q, k, v = (draw(rng, np.float32, 2, 17, heads, DIM) for heads in (6, 2, 2))
    cos, sin = tables(rng, 20, DIM // 2)
    whole = [np.stack([turn(x[b], cos, sin, np.arange(17), True) for b in range(2)]) for x in (q, k)]
    heads_first = [backend.tensor(a.swapaxes(1, 2)) for a in (*whole, v)]
    want = F.flash_attention2(*heads_first, causal=True).numpy().swapaxes(1, 2)
    caches = [backend.tensor(np.zeros((9, 5, 2, DIM), np.float32)) for _ in range(2)]
    table = rng.permutation(9)[:8].reshape(2, 4)
    parts, at = [], 0
    for count in (1, 1, 4, 1, 5, 2, 3):
        chunk = [backend.tensor(a[:, at : at + count]) for a in (q, k, v)]
        turned = {"rotary": (cos, sin), "rotary_interleaved": True}
        parts.append(ATTEND(chunk[0], *caches, *chunk[1:], at, table, **turned, causal=True).numpy())
        at += count
    np.testing.assert_allclose(np.concatenate(parts, 1), want, rtol=2e-5, atol=2e-6)


def test_lengths_on_the_device_are_bounded(backend):
    """What does not fit is taken as what fits: nothing outside the cache is touched."""
    problem = Problem(np.float32, [-5, 1000], page=7, room=21)
    cache = [backend.tensor(np.zeros((9, 7, 2, DIM), np.float32)) for _ in range(2)]
    table = np.array([[3, 1, 2], [99, -4, 5]], np.int32)
    lengths = backend.tensor(problem.lengths)
    rest = [backend.tensor(a) for a in (problem.q, problem.k, problem.v)]
    ATTEND(rest[0], *cache, *rest[1:], lengths, backend.tensor(table))
    want = np.zeros((9, 7, 2, DIM), np.float32)
    want[3, 0], want[5, 6] = problem.k[0, 0], problem.k[1, 0]
    np.testing.assert_array_equal(cache[0].numpy(), want)


BAD = {
    "k and v": (ValueError, {"v": None}),
    "without cache_seqlens": (ValueError, {"cache_seqlens": None}),
    "expected 0 to 7": (ValueError, {"cache_seqlens": np.array([0, 8])}),
    "goes from -1": (ValueError, {"cache_seqlens": np.array([0, -1])}),
    "expected an integer or": (ValueError, {"cache_seqlens": np.array([0, 1, 2])}),
    "cache_seqlens is float32": (TypeError, {"cache_seqlens": np.zeros(2, np.float32)}),
    "k has shape": (ValueError, {"k": np.zeros((2, 1, 1, 4), np.float32)}),
    "k_cache is float16": (TypeError, {"k_cache": np.zeros((2, 8, 2, 4), np.float16)}),
    "q's must be a multiple": (ValueError, {"q": np.zeros((2, 1, 3, 4), np.float32)}),
    "k_cache has batch 2": (ValueError, {"q": np.zeros((3, 1, 4, 4), np.float32)}),
    "four axes": (ValueError, {"q": np.zeros((2, 1, 4), np.float32)}),
    "has head dimension": (ValueError, {"q": np.zeros((2, 1, 4, 5), np.float32)}),
    "page_table has shape": (ValueError, {"page_table": np.zeros((3, 1), np.int32)}),
    "expected 0 to 1": (ValueError, {"page_table": np.array([[0], [2]])}),
    "page_table is float64": (TypeError, {"page_table": np.zeros((2, 1))}),
    "expected at least 4": (ValueError, {"rotary": (np.ones((3, 2), np.float32),) * 2, "cache_seqlens": 3}),
    "P from 1 to 2": (ValueError, {"rotary": (np.ones((9, 3), np.float32),) * 2}),
    "expected \\(cosines, sines\\)": (TypeError, {"rotary": np.ones((9, 2), np.float32)}),
    "rotary is given without k": (ValueError, {"rotary": (np.ones((9, 2), np.float32),) * 2, "k": None, "v": None}),
    "read-only": (ValueError, {"k_cache": np.broadcast_to(np.float32(0), (2, 8, 2, 4))}),
    "scale is nan": (ValueError, {"scale": float("nan")}),
}


def test_tables_that_end_are_refused_in_repeated_steps_too(backend):
    """A step that was planned for as many keys says nothing of how many positions the tables have."""
    draw = np.random.default_rng(0).standard_normal
    cache = [backend.tensor(draw((1, 256, 2, 16), np.float32)) for _ in range(2)]
    tables = [backend.tensor(draw((100, 8), np.float32)) for _ in range(2)]
    x = backend.tensor(draw((1, 1, 2, 16), np.float32))

    def step(length):
        return F.flash_attention_with_kvcache(x, *cache, x, x, length, rotary=tuple(tables), causal=True)

    step(97)
    before = cache[0].numpy()
    with pytest.raises(ValueError, match="100 positions; expected at least 106"):
        step(105)
    np.testing.assert_array_equal(cache[0].numpy(), before)
    step(99)


def test_a_layers_cache_is_not_filled_by_a_call_that_failed(vulkan_backend):
    cache, x = nn.KVCache(1, 8, 2, 8, backend=vulkan_backend), np.zeros((1, 1, 2, 8), np.float32)
    with pytest.raises(ValueError):
        cache.attend(x, x, x[..., :4])
    with pytest.raises(ValueError, match="never filled"):
        cache.attend(x)


@pytest.mark.parametrize("words", BAD)
def test_bad_arguments_leave_the_caches_alone(vulkan_backend, words):
    error, change = BAD[words]
    arguments = {
        "q": np.zeros((2, 1, 4, 4), np.float32), "k_cache": np.ones((2, 8, 2, 4), np.float32),
        "v_cache": np.ones((2, 8, 2, 4), np.float32), "k": np.zeros((2, 1, 2, 4), np.float32),
        "v": np.zeros((2, 1, 2, 4), np.float32), "cache_seqlens": np.array([0, 7]), **change,
    }  # fmt: skip
    with pytest.raises(error, match="flash_attention_with_kvcache: .*" + words):
        ATTEND(**arguments)
    assert (arguments.get("v_cache", np.ones(1)) == 1).all()


def test_empty(backend):
    """No queries still adds the keys; no samples do nothing."""
    problem = Problem(np.float32, [4, 6], queries=0, fresh=1)
    caches = problem.call(backend)[2:]
    for cache, want in zip(caches, (problem.k, problem.v), strict=True):
        np.testing.assert_array_equal(cache[[0, 1], problem.lengths], want[:, 0])
    assert Problem(np.float32, [], queries=2).call(backend)[0].shape == (0, 2, 4, DIM)


# -- the layer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [(1,) * 9, (4, 1, 1, 3)], ids=["tokens", "chunks"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_with_a_cache_equals_the_whole_pass(backend, dtype, chunks):
    if np.dtype(dtype).itemsize == 2 and not has_sixteen_bits(backend):
        pytest.skip("the device has no 16-bit storage")
    layer = nn.MultiheadAttention(48, 3, architecture="gpt", rng=1).to(backend, dtype)
    tokens = draw(np.random.default_rng(2), dtype, 2, 9, 48)
    want = layer(tokens, need_weights=False)[0].astype(np.float32)
    cache = layer.make_cache(2, 12)
    for _ in range(2):
        parts = [
            layer(tokens[:, at : at + count], need_weights=False, cache=cache)[0]
            for at, count in zip(np.cumsum((0, *chunks)), chunks, strict=False)
        ]
        got = np.concatenate(parts, 1).astype(np.float32)
        tolerance = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 2e-2}[np.dtype(dtype).name]
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
        assert (cache.lengths == 9).all()
        cache.reset()


def test_layer_with_samples_of_their_own_lengths(backend):
    """A sample that is cut back goes on from there; tensors in give tensors out, one sample may lack its axis."""
    layer = nn.MultiheadAttention(48, 3, architecture="gpt", rng=1).to(backend)
    tokens = draw(np.random.default_rng(2), np.float32, 2, 9, 48)
    cache = layer.make_cache(2, 12)
    layer(tokens[:, :6], need_weights=False, cache=cache)
    cache.lengths[1] = 2
    out = layer(backend.tensor(np.stack([tokens[0, 6:], tokens[1, 2:5]])), need_weights=False, cache=cache)[0].numpy()
    want = layer(tokens, need_weights=False)[0]
    np.testing.assert_allclose(out, [want[0, 6:], want[1, 2:5]], rtol=1e-5, atol=1e-6)
    cache.truncate(5)
    assert list(cache.lengths) == [5, 5]
    single = layer.make_cache(1, 12)
    np.testing.assert_allclose(layer(tokens[0], need_weights=False, cache=single)[0], want[0], rtol=1e-5, atol=1e-6)


def test_layer_refuses(vulkan_backend):
    layer = nn.MultiheadAttention(16, 2, architecture="gpt").to(vulkan_backend)
    cache, x = layer.make_cache(1, 4), np.zeros((1, 3, 16), np.float32)
    for words, options in (
        ("give need_weights=False", {"need_weights": True}),
        ("key is given beside a cache", {"key": x}),
        ("mask is given beside a cache", {"mask": np.ones((3, 3), bool)}),
    ):
        with pytest.raises(ValueError, match=words):
            layer(x, **{"need_weights": False, **options}, cache=cache)
    layer(x, need_weights=False, cache=cache)
    with pytest.raises(ValueError, match="expected 0 to 1"):
        layer(x, need_weights=False, cache=cache)
    assert list(cache.lengths) == [3]
    with pytest.raises(ValueError, match="causal is given beside a cache"):
        layer(x, need_weights=False, cache=cache, causal=False)
    with pytest.raises(ValueError, match="fill_cache is for cross-attention"):
        layer.fill_cache(cache, x)
    t5 = nn.MultiheadAttention(16, 2, architecture="t5", causal=True, bidirectional=False).to(vulkan_backend)
    with pytest.raises(ValueError, match="position_bias is an array beside a cache; give the layer that has the table"):
        t5(x, need_weights=False, cache=cache, position_bias=np.zeros((1, 2, 3, 3), np.float32))
    with pytest.raises(ValueError, match="a layer that has no table"):
        t5(x, position_bias=layer)
    cross = nn.MultiheadAttention(16, 2, kdim=8, vdim=8).to(vulkan_backend)
    with pytest.raises(ValueError, match=r"key has shape \(1, 3, 16\); expected \(B, Sk, 8\)"):
        cross.fill_cache(cache, x)
    with pytest.raises(ValueError, match="length is -1"):
        cache.truncate(-1)
    with pytest.raises(ValueError, match="KVCache: batch"):
        nn.KVCache(1, 4, 0, 8)
    assert "max_len=4" in repr(cache) and cache.max_len == 4


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda cache, q, k: cache.attend(q.tolist(), k, k), TypeError, "q is a list"),
        (lambda cache, q, k: cache.attend(q, k.tolist(), k, rotary=nn.RoPE(8)), TypeError, "k is a list"),
        (lambda cache, q, k: cache.attend(q, k[0, 0, 0], k, rotary=nn.RoPE(8)), ValueError, "four axes"),
        (lambda cache, q, k: cache.attend(q, k, k, rotary=5), TypeError, "rotary"),
        (lambda cache, q, k: cache.fill(None, None), TypeError, "k is a NoneType"),
        (lambda cache, q, k: cache.fill(k.astype(np.float16), k.astype(np.float16)), TypeError, "the cache float32"),
        (lambda cache, q, k: cache.truncate(2.5), TypeError, "length is 2.5"),
        (lambda cache, q, k: cache.positions(None), TypeError, "count is None"),
        (lambda cache, q, k: nn.KVCache(2, 5, 2, 8, backend="x"), TypeError, "grilly.Compute"),
        (lambda cache, q, k: nn.KVCache(2, 5, 2, 8, dtype=int), TypeError, "dtype is int64"),
        (lambda cache, q, k: nn.KVCache(2, 5, 2, 520), ValueError, r"\(520, 520\); expected at most \(576, 512\)"),
        (lambda cache, q, k: F.flash_attention_with_kvcache(q, None, cache.v), TypeError, "k_cache is a NoneType"),
        (lambda cache, q, k: F.flash_attention_with_kvcache(cache.k, cache.k, cache.v, cache_seqlens=1, kernel=[]),
         TypeError, "kernel is a list; expected the name"),
    ],
)  # fmt: skip
def test_errors_that_name_the_argument(vulkan_backend, call, error, words):
    """And the cache is as it was."""
    cache = nn.KVCache(2, 5, 2, 8, backend=vulkan_backend)
    q = np.ones((2, 1, 2, 8), np.float32)
    cache.attend(q, q, q)
    with pytest.raises(error, match=words):
        call(cache, q, q)
    assert cache.lengths.tolist() == [1, 1]
