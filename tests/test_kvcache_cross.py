"""Caches that are filled once and attended to many times, and T5's bias over caches that grow."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
from backends import has_sixteen_bits
from cases import assert_as_accurate
from graphs import default, equal, random
from grilly import nn, reference
from test_kvcache import attend

DIM, ROOM = 16, 40


@pytest.fixture
def backend(vulkan_backend):
    with default(vulkan_backend):
        yield vulkan_backend


def states(rows, seed=0, dtype=np.float32):
    return [random(2, rows, 2, width, seed=10 * seed + n, dtype=dtype) for n, width in enumerate((DIM, 8))]


def check(found, q, k, v, lengths):
    for b, length in enumerate(lengths):
        part = q[b], k[b, :length], v[b, :length]
        exact, plain = (attend(part, dtype, {})[0] for dtype in (np.float64, np.float32))
        assert_as_accurate(found.numpy()[b], exact, plain.astype(q.dtype))


@pytest.mark.parametrize("captured", [False, True], ids=["calls", "graph"])
def test_filled_once_attended_many_times(backend, captured):
    """Each token sees everything, also a later prompt's; a graph finds what was filled after its capture."""
    cache = nn.KVCache(2, ROOM, 2, DIM, value_dim=8)
    step = backend.capture(cache.attend, random(2, 1, 4, DIM)) if captured else cache.attend
    for seed, (rows, lengths) in enumerate(((31, None), (40, [40, 17]), (9, [0, 9]))):
        k, v = states(rows, seed)
        cache.fill(backend.tensor(k) if seed else k, v, lengths)
        for token in range(3):
            q = random(2, 1, 4, DIM, seed=token)
            check(step(q), q, k, v, lengths or [rows] * 2)
            assert list(cache.lengths) == (lengths or [rows] * 2)
    q = random(2, 5, 4, DIM)  # any number of rows, each of which sees all
    check(cache.attend(q), q, k, v, lengths)


def test_half_precision(backend):
    if not has_sixteen_bits(backend):
        pytest.skip("the device has no 16-bit storage")
    cache = nn.KVCache(2, ROOM, 2, DIM, value_dim=8, dtype="float16")
    k, v = states(20, dtype=np.float16)
    cache.fill(k, v)
    for held, given in ((cache.k, k), (cache.v, v)):
        np.testing.assert_array_equal(held.numpy()[:, :20], given)
    q = random(2, 1, 4, DIM, dtype=np.float16)
    check(cache.attend(q), q, k, v, [20, 20])


def test_what_does_not_fit_leaves_the_cache_alone(backend):
    cache = nn.KVCache(2, ROOM, 2, DIM, value_dim=8)
    k, v = states(9)
    cache.fill(k, v)
    wrong = [
        (TypeError, "k and v are float16 and the cache float32", (k.astype(np.float16), v.astype(np.float16))),
        (TypeError, "v is float32 and k is float16", (k.astype(np.float16), v)),
        (ValueError, r"v has shape \(2, 8, 2, 8\); expected \(2, S, 2, 8\)", (k, v[:, :8])),
        (ValueError, r"k has shape \(1, 9, 2, 16\)", (k[:1], v)),
        (ValueError, "k has 41 rows; there is room for 40", states(41)),
        (ValueError, "lengths go from 3 to 10; expected 0 to 9", (k, v, [3, 10])),
        (ValueError, "lengths are float64", (k, v, [3.0, 9.0])),
    ]
    for error, said, given in wrong:
        with pytest.raises(error, match=said):
            cache.fill(*given)
    with pytest.raises(grilly.CaptureError, match="KVCache.fill"):
        backend.capture(cache.fill, k, v)
    with pytest.raises(ValueError, match="turn q with rope"):
        cache.attend(k, rotary=nn.RoPE(DIM))
    np.testing.assert_array_equal(cache.k.numpy()[:, :9], k)
    assert list(cache.lengths) == [9, 9]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_step_with_the_bias_of_t5(backend, bidirectional):
    """Token by token, in a graph and outside, against the whole in float64."""
    table, rows = random(8, 4, seed=3), 30
    options = {"t5_table": table, "t5_bidirectional": bidirectional, "t5_max_distance": 20, "scale": 1.0}
    q, k, v = (random(2, rows, heads, DIM, seed=n) / 2 for n, heads in enumerate((4, 2, 2)))
    caches = [nn.KVCache(2, ROOM, 2, DIM) for _ in range(2)]
    step = backend.capture(lambda *one: caches[0].attend(*one, **options), *(a[:, :1] for a in (q, k, v)))
    found = []
    for n in range(rows):
        one = [backend.tensor(a[:, n : n + 1]) for a in (q, k, v)]
        found.append(step(*one))
        equal(found[-1], caches[1].attend(*one, **options))
    heads_first = [a.swapaxes(1, 2) for a in (q, k, v)]
    exact, plain = (
        reference.naive_attention(*(a.astype(dtype) for a in heads_first), causal=True, dtype=dtype, **options)[0]
        for dtype in (np.float64, np.float32)
    )
    assert_as_accurate(np.concatenate([f.numpy() for f in found], 1).swapaxes(1, 2), exact, plain)


def decoder_layers(backend):
    """The attention layers of a T5 decoder of two blocks: with the table, without it, and of the encoder's output."""
    t5 = dict(architecture="t5", head_dim=8, bias=False, bidirectional=False)
    first = nn.MultiheadAttention(32, 4, causal=True, rng=0, **t5)
    second = nn.MultiheadAttention(32, 4, causal=True, relative_attention_bias=False, rng=1, **t5)
    cross = nn.MultiheadAttention(32, 4, kdim=24, vdim=24, relative_attention_bias=False, rng=2, **t5)
    return [layer.to(backend) for layer in (first, second, cross)]


def test_t5_decodes_with_caches(backend):
    """Token by token as in one pass, which test_nn_multihead holds to transformers."""
    first, second, cross = decoder_layers(backend)
    x, memory = random(2, 9, 32), random(2, 11, 24, seed=1)
    wanted = first(x, need_weights=False)[0] + second(x, position_bias=first, need_weights=False)[0]
    wanted = [wanted, cross(x, memory, need_weights=False)[0]]
    caches = [layer.make_cache(2, 12) for layer in (first, second, cross)]
    cross.fill_cache(caches[2], memory)
    found = []
    for begin, end in ((0, 4), *((n, n + 1) for n in range(4, 9))):
        part, how = x[:, begin:end], {"need_weights": False}
        own = first(part, cache=caches[0], **how)[0] + second(part, position_bias=first, cache=caches[1], **how)[0]
        found.append((own, cross(part, cache=caches[2], **how)[0]))
    for one, parts in zip(wanted, zip(*found, strict=True), strict=True):
        np.testing.assert_allclose(np.concatenate(parts, 1), one, rtol=0, atol=2e-5)
    assert [len(cache) for cache in caches] == [9, 9, 11]
    cross.fill_cache(caches[2], memory, lengths=[11, 4])
    shorter = np.concatenate([cross(x[n : n + 1], memory[n : n + 1, :rows])[0] for n, rows in enumerate((11, 4))])
    np.testing.assert_allclose(cross(x, cache=caches[2], need_weights=False)[0], shorter, rtol=0, atol=2e-5)


def test_a_layer_without_a_table_uses_anothers(backend):
    """As with the array of biases; and its gradient is the other's."""
    first, second, _ = decoder_layers(backend)
    x, grad = random(2, 7, 32), random(2, 7, 32, seed=1)
    table = first.relative_attention_bias.weight
    bias = grilly.functional.t5_bias(np.zeros((1, 4, 7, 7), np.float32), table.data, bidirectional=False)
    for weights in (False, True):
        by_layer, by_array = (second(x, position_bias=b, need_weights=weights) for b in (first, bias))
        np.testing.assert_allclose(by_layer[0], by_array[0], rtol=0, atol=1e-5)
        assert (by_layer[1] is None) == (not weights)
    second.train()
    found = []
    for given in (first, bias):
        second.zero_grad()
        second(x, position_bias=given, need_weights=False)
        second.backward(grad)
        found.append([p.grad for p in second.parameters()])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-4)
    buckets = np.asarray(reference.t5_bucket(np.arange(7) - np.arange(7)[:, None], False, len(table.data), 128))
    wanted = np.zeros(table.shape)
    np.add.at(wanted, buckets.reshape(-1), second.position_bias_grad.sum(0).reshape(4, -1).T)
    np.testing.assert_allclose(table.grad, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("architecture", ["generic", "gpt", "t5"])
def test_scores_are_stored_only_where_weights_are_asked_for(backend, architecture, training):
    layer = nn.MultiheadAttention(16, 4, architecture=architecture, rng=0).to(backend).train(training)
    x, scores = backend.tensor(random(1, 1024, 16)), 4 * 4 * 1024 * 1024
    peaks = []
    for need_weights in (False, True):
        layer(x[:, :2], need_weights=need_weights)  # weights go to the device
        before = backend.memory(reset_peak=True).in_use
        layer(x, need_weights=need_weights)
        peaks.append(backend.memory().peak - before)
    assert peaks[0] < scores / 4 and peaks[1] >= scores, peaks


def test_a_cache_that_was_never_filled(backend):
    """Its sum would be of nothing, and zeros the result."""
    cross = nn.MultiheadAttention(8, 2, kdim=4, vdim=4).eval()
    cache, query = cross.make_cache(2, 6), random(2, 1, 8)
    with pytest.raises(ValueError, match=r"never filled.*fill\(k, v\).*fill_cache"):
        cross(query, need_weights=False, cache=cache)
    with pytest.raises(ValueError, match="mask is given beside a cache.*; give fill_cache the lengths="):
        cross(query, need_weights=False, cache=cache, mask=np.ones((2, 1, 1, 6), bool))
    cross.fill_cache(cache, random(2, 6, 4), lengths=[0, 0])  # which is nothing too, and said
    assert not cross(query, need_weights=False, cache=cache)[0].any()


@pytest.mark.parametrize("turned", ["caches", "all"])
def test_caches_with_heads_before_tokens(backend, turned):
    caches = random(1, 2, 7, DIM)
    q = random(1, 1, 2, DIM) if turned == "caches" else random(1, 2, 1, DIM)
    with pytest.raises(ValueError, match=r"k_cache 7 heads; arrays are \(B, S, H, D\) here.*swapaxes\(1, 2\)"):
        grilly.functional.flash_attention_with_kvcache(q, caches, caches)
