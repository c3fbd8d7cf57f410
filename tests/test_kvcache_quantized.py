"""Caches of 8 and 4 bits: what is stored against llama.cpp, attention against float64 over what is stored."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import grilly
import grilly.functional as F
from backends import has_sixteen_bits
from cases import DTYPES, assert_as_accurate
from graphs import default, equal, random
from grilly import nn
from test_kvcache import attend, tables, turn

TYPES = ("q8_0", "q4_0")
KERNELS = (None, "flash-decode-quantized")


def cache_of(backend, kind, batch, room, heads, dim, **options):
    """A cache that holds NaN: every scale is one."""
    made = nn.KVCache(batch, room, heads, dim, dtype=kind, backend=backend, **options)
    for held in (made.k, made.v):
        held.data[:] = np.uint32(0xFFFFFFFF)
    return made


def quantized(x, kind):
    """Levels and scales of ``(..., D)`` as ggml's quantize_row_q8_0_ref and quantize_row_q4_0_ref have them."""
    x = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, 32)
    most = np.take_along_axis(x, np.abs(x).argmax(-1, keepdims=True), -1)
    d = np.abs(most) / np.float32(127) if kind == "q8_0" else most / np.float32(-8)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(d == 0, np.float32(0), np.float32(1) / d)
    scaled = x * inverse
    if kind == "q8_0":
        levels = np.trunc(scaled) + np.sign(scaled) * (np.abs(scaled - np.trunc(scaled)) >= 0.5)
    else:
        levels = np.minimum(np.trunc(scaled + np.float32(8.5)), 15) - 8
    return levels, d.astype(np.float16)


def numbers(x, kind):
    """What a cache makes of ``(..., D)``."""
    levels, d = quantized(x, kind)
    return (levels * d.astype(np.float32)).reshape(x.shape)


def expected(q, cache, lengths, dtype=np.float64, stored=np.float32, **options):
    """Attention of each sample over what the cache holds of it."""
    k, v = (np.asarray(held.dequantize(stored)) for held in (cache.k, cache.v))
    outs = []
    for b, length in enumerate(lengths):
        own = {name: x[b] if name == "alibi_slopes" and np.ndim(x) == 2 else x for name, x in options.items()}
        outs.append(attend([q[b], k[b, :length], v[b, :length]], dtype, own)[0])
    return np.stack(outs)


def check(found, q, cache, lengths, stored=np.float32, **options):
    exact = expected(q, cache, lengths, stored=stored, **options)
    plain = expected(q, cache, lengths, np.float32, stored, **options).astype(q.dtype)
    assert_as_accurate(np.asarray(found), exact, plain)


def needs(backend, dtype):
    if np.dtype(dtype).itemsize == 2 and not has_sixteen_bits(backend):
        pytest.skip("the device has no 16-bit storage")


# -- what is stored ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads, dim", [(1, 32), (3, 64), (1, 96), (5, 96), (2, 128), (1, 256)])
@pytest.mark.parametrize("kind", TYPES)
def test_numbers_are_rounded_as_by_llama_cpp(backend, kind, heads, dim, dtype):
    """Of every sample from its own length on; halves, zeros and numbers that float16 scales barely hold among them."""
    needs(backend, dtype)
    cache = cache_of(backend, kind, 2, 21, heads, dim, value_dim=64)
    cache.lengths = lengths = [0, 4]
    k, v = (random(2, 13, heads, width, seed=width, dtype=dtype) for width in (dim, 64))
    k[0, 0], k[0, 1, :, :32], v[1, 2] = 0, dtype(3e-4) * np.arange(32, dtype=dtype), dtype(6e4)
    k[1, 0, 0, :3] = [127, 0.5, -1.5]  # halves go away from zero
    cache.attend(random(2, 13, heads, dim, dtype=dtype), k, v)
    for held, given in ((cache.k, k), (cache.v, v)):
        found = np.asarray(held.dequantize())
        for b, length in enumerate(lengths):
            np.testing.assert_array_equal(found[b, length : length + 13], numbers(given[b], kind))
            assert np.isnan(found[b, :length]).all() and np.isnan(found[b, length + 13 :]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", TYPES)
def test_a_block_with_a_number_that_is_not_finite_is_nan(backend, kind, bad):
    cache = cache_of(backend, kind, 1, 4, 2, 64)
    k, v = (random(1, 3, 2, 64, seed=n) for n in range(2))
    k[0, 1, 1, 40] = bad
    cache.fill(k, v)
    found = np.asarray(cache.k.dequantize())
    assert np.isnan(found[0, 1, 1, 32:]).all()
    found[0, 1, 1, 32:] = k[0, 1, 1, 32:] = 0
    np.testing.assert_array_equal(found[:, :3], numbers(k, kind))


@pytest.mark.parametrize("pairs", [16, 32])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("kind", TYPES)
def test_keys_are_quantized_after_the_rotary_embedding(backend, kind, interleaved, pairs):
    """A level may be the next one where rounding of the rotation decides."""
    cache, rotary = cache_of(backend, kind, 2, 30, 2, 64), tables(np.random.default_rng(0), 30, pairs)
    cache.lengths = lengths = [3, 17]
    for held in (cache.k, cache.v):
        held.data[:] = np.uint32(0)
    q, k, v = (random(2, 5, heads, 64, seed=n) for n, heads in enumerate((4, 2, 2)))
    found = cache.attend(q, k, v, rotary=rotary, rotary_interleaved=interleaved)
    held, turned = np.asarray(cache.k.dequantize()), []
    for b, length in enumerate(lengths):
        places = np.arange(length, length + 5)
        wanted = turn(k[b].astype(np.float64), *rotary, places, interleaved)
        levels, d = quantized(wanted, kind)
        got = held[b, places].reshape(levels.shape) / d.astype(np.float32)
        differ = np.abs(got - levels)
        assert differ.max() < 1.01 and (differ > 0.01).mean() < 0.01
        turned.append(turn(q[b], *rotary, places, interleaved))
    exact, plain = (expected(np.stack(turned), cache, np.add(lengths, 5), dtype, causal=True)
                    for dtype in (np.float64, np.float32))  # fmt: skip
    assert_as_accurate(np.asarray(found), exact, plain)


# -- attention --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim, value_dim, heads, key_heads", [(64, 64, 4, 2), (96, 32, 6, 1), (128, 128, 3, 3),
                                                              (256, 128, 8, 1)])  # fmt: skip
@pytest.mark.parametrize("kind", TYPES)
def test_steps_over_odd_lengths(backend, kind, dim, value_dim, heads, key_heads, dtype, kernel):
    needs(backend, dtype)
    cache = cache_of(backend, kind, 2, 80, key_heads, dim, value_dim=value_dim)
    lengths = np.array([0, 0])
    for seed, (count, more) in enumerate(((1, 0), (3, 6), (1, [0, 41]), (2, 0), (1, 0))):
        if np.any(more):
            new = [random(2, 60, key_heads, width, seed=width, dtype=dtype) for width in (dim, value_dim)]
            cache.fill(*new, lengths + more)
        lengths = lengths + more
        q, k, v = (random(2, count, h, width, seed=3 * seed + n, dtype=dtype) for n, (h, width) in
                   enumerate(((heads, dim), (key_heads, dim), (key_heads, value_dim))))  # fmt: skip
        found = cache.attend(q, k, v, kernel=kernel)
        lengths = lengths + count
        assert list(cache.lengths) == list(lengths)
        check(found, q, cache, lengths, causal=True)


@pytest.mark.parametrize("kernel", [*KERNELS, "flash-attention2"])  # the last reads floats
@pytest.mark.parametrize("lengths", [[50, 50], [0, 50]], ids=["alike", "unlike"])
@pytest.mark.parametrize("kind", TYPES)
def test_options(backend, kind, lengths, kernel):
    slopes = np.array([[0.5, 0.25, 0.125, 0.0625]] * 2, np.float32) * np.array([[1], [3]], np.float32)
    options = {"window_size": (20, 0), "softcap": 3.0, "alibi_slopes": slopes, "scale": 0.4,
               "sinks": np.array([0.3, -1, 2, 0], np.float32)}  # fmt: skip
    cache = cache_of(backend, kind, 2, 70, 2, 64)
    cache.fill(*(random(2, 50, 2, 64, seed=n) for n in range(2)), lengths)
    q, k, v = (random(2, 3, h, 64, seed=n) for n, h in enumerate((4, 2, 2)))
    found, lse = cache.attend(q, k, v, return_lse=True, kernel=kernel, **options)
    check(found, q, cache, np.add(lengths, 3), causal=True, **options)
    assert lse.shape == (2, 4, 3)


@pytest.mark.parametrize("kind", TYPES)
def test_a_table_of_distances(backend, kind):
    options = {"t5_table": random(8, 4), "t5_bidirectional": False, "t5_max_distance": 20, "scale": 1.0}
    cache = cache_of(backend, kind, 2, 40, 2, 32)
    cache.fill(*(random(2, 20, 2, 32, seed=n) for n in range(2)), [7, 20])
    q, k, v = (random(2, 1, h, 32, seed=n) for n, h in enumerate((4, 2, 2)))
    check(cache.attend(q, k, v, **options), q, cache, [8, 21], causal=True, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", TYPES)
def test_prompts(backend, kind, batch, dtype):
    """More queries than a decoding kernel takes: the cache is read as numbers of the queries' type."""
    needs(backend, dtype)
    cache, lengths = cache_of(backend, kind, batch, 90, 2, 64), np.array([11, 0, 30][:batch])
    cache.fill(*(random(batch, 30, 2, 64, seed=n, dtype=dtype) for n in range(2)), lengths)
    for seed, count in enumerate((37, 1, 17)):
        q, k, v = (random(batch, count, h, 64, seed=3 * seed + n, dtype=dtype) for n, h in enumerate((6, 2, 2)))
        found, lengths = cache.attend(q, k, v, window_size=(25, 0)), lengths + count
        stored = dtype if count > 16 else np.float32
        check(found, q, cache, lengths, stored, causal=True, window_size=(25, 0))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", TYPES)
def test_many_keys(backend, kind, kernel):
    """Enough that they are split over the device, of samples of which one has few."""
    cache = cache_of(backend, kind, 2, 1601, 2, 64)
    cache.fill(*(random(2, 1501, 2, 64, seed=n) for n in range(2)), [1501, 3])
    for count in (1, 4):
        q, k, v = (random(2, count, h, 64, seed=n) for n, h in enumerate((8, 2, 2)))
        check(cache.attend(q, k, v, kernel=kernel), q, cache, cache.lengths, causal=True)


@pytest.mark.parametrize("room", [1, 40])
@pytest.mark.parametrize("kind", TYPES)
def test_parts_of_one_array(backend, kind, room):
    """Queries, keys and values side by side, as a layer's one product gives them."""
    cache, count = cache_of(backend, kind, 2, room, 2, 64), min(room, 3)
    whole = random(2, count, 8, 64)
    parts = [backend.tensor(whole)[:, :, first:last] for first, last in ((0, 4), (4, 6), (6, 8))]
    found = cache.attend(*parts, rotary=tables(np.random.default_rng(0), room, 32))
    np.testing.assert_array_equal(np.asarray(cache.v.dequantize())[:, :count], numbers(whole[:, :, 6:], kind))
    turned = [turn(q, *tables(np.random.default_rng(0), room, 32), np.arange(count), False) for q in whole[:, :, :4]]
    check(found, np.stack(turned), cache, [count, count], causal=True)


@pytest.mark.parametrize("kind", TYPES)
def test_cross_attention_sees_all(backend, kind):
    cache = cache_of(backend, kind, 2, 40, 2, 64)
    cache.fill(*(backend.tensor(random(2, 31, 2, 64, seed=n)) for n in range(2)), [31, 17])
    for rows in (1, 20):
        q = random(2, rows, 4, 64)
        check(cache.attend(q), q, cache, [31, 17])


@pytest.mark.parametrize("kind", TYPES)
def test_replays_have_the_bits_of_the_calls(vulkan_backend, kind):
    with default(vulkan_backend):
        mine, other = (cache_of(vulkan_backend, kind, 2, 600, 2, 64) for _ in range(2))
        rotary = tuple(vulkan_backend.tensor(t) for t in tables(np.random.default_rng(0), 600, 32))

        def tokens(count, seed):
            return [random(2, count, h, 64, seed=3 * seed + n) for n, h in enumerate((4, 2, 2))]

        step = vulkan_backend.capture(lambda q, k, v: mine.attend(q, k, v, rotary=rotary), *tokens(1, 0))
        for ahead in (5, 250, 270):
            chunk = tokens(ahead, ahead)
            equal(mine.attend(*chunk, rotary=rotary), other.attend(*chunk, rotary=rotary))
            for seed in range(6):
                one = [vulkan_backend.tensor(a) for a in tokens(1, seed)]
                equal(step(*one), other.attend(*one, rotary=rotary))
        assert len(mine) == len(other) == 543
        for a, b in ((mine.k, other.k), (mine.v, other.v)):
            equal(a.dequantize()[:, :543], b.dequantize()[:, :543])
        mine.lengths[:] = [20, 400]
        q, k, v = tokens(1, 9)
        found = step(q, k, v)
        turned = np.stack([turn(q[b], *map(np.asarray, rotary), [n], False) for b, n in enumerate((20, 400))])
        check(found, turned, mine, [21, 401], causal=True)


@pytest.mark.parametrize("kind, most", [("q8_0", 0.009), ("q4_0", 0.14)])
def test_attention_is_as_near_as_the_documentation_says(backend, kind, most):
    """Over normal numbers, against float64 attention over the numbers themselves: docs/models.md."""
    cache = nn.KVCache(1, 512, 8, 128, dtype=kind, backend=backend)
    k, v, q = (np.random.default_rng(n).standard_normal((1, count, h, 128)).astype(np.float32)
               for n, (count, h) in enumerate(((512, 8), (512, 8), (1, 8))))  # fmt: skip
    cache.fill(k, v)
    found, exact = np.asarray(cache.attend(q)), attend([q[0], k[0], v[0]], np.float64, {})[0]
    error = np.linalg.norm(found[0] - exact) / np.linalg.norm(exact)
    assert most / 2 < error < most


# -- the cache --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, bits", [("q8_0", 8.5), ("q4_0", 4.5)])
def test_bytes(backend, kind, bits):
    for heads, dim in ((8, 128), (2, 64), (4, 96)):
        cache = nn.KVCache(3, 40, heads, dim, dtype=kind, backend=backend)
        assert cache.nbytes == cache.k.nbytes + cache.v.nbytes == 2 * 3 * 40 * heads * dim * bits / 8
        assert cache.k.shape == (3, 40, heads, dim) and cache.k.dtype == kind and kind in repr(cache)
        assert kind in repr(cache.k) and cache.max_len == 40
    odd = nn.KVCache(1, 40, 1, 96, dtype=kind, backend=backend)  # a word of scales is half empty
    assert odd.nbytes == 2 * 40 * (96 * (bits - 0.5) / 8 + 8)


@pytest.mark.parametrize("kind", TYPES)
def test_copies_orders_and_cuts(backend, kind):
    cache = cache_of(backend, kind, 3, 20, 2, 32)
    cache.fill(*(random(3, 9, 2, 32, seed=n) for n in range(2)))
    before = [np.asarray(held.dequantize()) for held in (cache.k, cache.v)]
    other = copy.deepcopy(cache)
    cache.reorder([2, 2, 0])
    for held, was in zip((cache.k, cache.v), before, strict=True):
        np.testing.assert_array_equal(np.asarray(held.dequantize())[:, :9], was[[2, 2, 0], :9])
    for held, was in zip((other.k, other.v), before, strict=True):
        np.testing.assert_array_equal(np.asarray(held.dequantize()), was)
    other.truncate(4)
    q, k, v = (random(3, 1, h, 32, seed=n) for n, h in enumerate((2, 2, 2)))
    check(other.attend(q, k, v), q, other, [5, 5, 5], causal=True)
    assert len(cache) == 9
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(cache.k)
    if has_sixteen_bits(backend):
        half = cache.k.dequantize("float16")
        assert half.dtype == np.float16
    with pytest.raises(TypeError, match="dtype int32"):
        cache.k.dequantize("int32")


def test_what_is_refused(backend):
    with pytest.raises(ValueError, match="KVCache: dtype is 'q5_0'; expected q8_0, q4_0, float32, float16 or bfloat16"):
        nn.KVCache(1, 8, 2, 64, dtype="q5_0", backend=backend)
    with pytest.raises(grilly.UnsupportedError, match="heads of 80 elements are no whole blocks of 32"):
        nn.KVCache(1, 8, 2, 80, dtype="q8_0", backend=backend)
    with pytest.raises(grilly.UnsupportedError, match="heads of 64 and 16 elements"):
        nn.KVCache(1, 8, 2, 64, value_dim=16, dtype="q4_0", backend=backend)
    with pytest.raises(grilly.UnsupportedError, match="larger than one binding"):  # which has at most 4 GiB
        nn.KVCache(1, 2**26, 1, 64, dtype="q8_0", backend=backend)
    cache, other = (nn.KVCache(1, 8, 2, 64, dtype=kind, backend=backend) for kind in TYPES)
    q = backend.tensor(random(1, 1, 2, 64))
    with pytest.raises(TypeError, match="one of k_cache and v_cache is quantized"):
        F.flash_attention_with_kvcache(q, cache.k, other.v, q, q, 0)
    with pytest.raises(grilly.UnsupportedError, match="caches of q8_0 have no pages"):
        F.flash_attention_with_kvcache(q, cache.k, cache.v, q, q, 0, np.zeros((1, 1), np.int32))
    with pytest.raises(ValueError, match="k has shape"):
        cache.attend(q, q[..., :32], q)
    with pytest.raises(ValueError, match="do not fit|goes from"):
        cache.attend(*[random(1, 9, 2, 64)] * 3)
    assert len(cache) == 0
