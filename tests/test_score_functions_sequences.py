"""score_mod and mask_mod of packed sequences, of caches, and of few queries over many keys, against float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

import grilly
import grilly.functional as F
from grilly import nn
from test_score_functions import (
    DTYPES,
    alibi,
    attend,
    both,
    causal,
    close,
    documents,
    exact,
    hides_by_scores,
    of_everything,
    problem,
    relative,
    window,
)

RNG = np.random.default_rng(7)
#: Of more batches and keys than those of test_score_functions.
ARRAYS = {
    "rate": np.float32([0.1, -0.2, 0.3, 0.05]),
    "table": RNG.standard_normal((4, 129)).astype(np.float32),
    "documents": np.sort(RNG.integers(0, 4, (7, 1400)), 1),
}

# -- packed sequences

#: Queries and keys of each sequence: none of one or of both, more queries than keys, and more than one tile.
LENGTHS = ([70, 0, 1, 37, 5, 0, 13], [53, 9, 7, 11, 0, 0, 101])


def starts(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def packed(dtype=np.float32, dim=16, rest=0):
    """q, k and v, with ``rest`` rows of NaN that no sequence covers."""
    rng = np.random.default_rng(dim)
    arrays = []
    for lengths, heads in zip((LENGTHS[0], LENGTHS[1], LENGTHS[1]), (4, 2, 2), strict=True):
        own = rng.standard_normal((sum(lengths), heads, dim)).astype(dtype)
        arrays.append(np.concatenate([own, np.full((rest, heads, dim), np.nan, dtype)]))
    return arrays


def of_sample(number, functions):
    """Functions of NumPy's for an array that is sample ``number`` alone."""
    return {
        name: function and (lambda *given, function=function: function(*given[:-4], given[-4] + number, *given[-3:]))
        for name, function in functions.items()
    }


def expected_packed(arrays, functions, **more):
    """Output and log-sum-exp of each sequence as a call of its own, side by side."""
    q, k, v = arrays
    out, sums = np.zeros((*q.shape[:2], v.shape[2])), np.full(q.shape[1::-1], -np.inf)
    places = [starts(lengths) for lengths in LENGTHS]
    for number in range(len(LENGTHS[0])):
        rows, keys = (slice(*place[number : number + 2]) for place in places)
        if rows.start == rows.stop or keys.start == keys.stop:
            continue
        own = [array[part].swapaxes(0, 1)[None] for array, part in ((q, rows), (k, keys), (v, keys))]
        found, lse = exact(*own, **of_sample(number, functions), **more)
        out[rows], sums[:, rows] = found[0].swapaxes(0, 1), lse[0]
    return out, sums


def attend_packed(backend, arrays, **options):
    places = [starts(lengths) for lengths in LENGTHS]
    longest = [max(lengths) for lengths in LENGTHS]
    tensors = map(backend.tensor, arrays)
    found = F.flash_attention_varlen(*tensors, *places, *longest, return_lse=True, **options)
    return [array.numpy() for array in found]


PACKED = [causal, window, alibi, documents, relative, hides_by_scores, of_everything]


@pytest.mark.parametrize("make", PACKED, ids=lambda make: make.__name__)
def test_packed_sequences(backend, make):
    mine, its = both(backend, make, ARRAYS)
    arrays = packed()
    close(attend_packed(backend, arrays, **mine), expected_packed(arrays, its))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", ["flash-attention2", "flash-attention-llvmpipe"])
def test_packed_sequences_by_each_kernel(vulkan_backend, kernel, dtype):
    """Odd heads, and rows that no sequence covers, which are zeros."""
    mine, its = both(vulkan_backend, of_everything, ARRAYS)
    arrays = packed(DTYPES[dtype], 33, rest=3)
    try:
        found = attend_packed(vulkan_backend, arrays, kernel=kernel, **mine)
    except grilly.UnsupportedError as error:
        pytest.skip(str(error).splitlines()[0])
    close(found, expected_packed(arrays, its), dtype)


def test_packed_sequences_beside_other_options(vulkan_backend):
    mine, its = both(vulkan_backend, alibi, ARRAYS)
    arrays = packed()
    found = attend_packed(vulkan_backend, arrays, **mine, softcap=2.0, scale=0.3)
    close(found, expected_packed(arrays, its, scale=0.3, after=lambda s: 2 * np.tanh(s / 2)))


def test_packed_sequences_take_a_block_mask(default):
    blocks = grilly.block_mask(window(grilly)[1], None, None, max(LENGTHS[0]), max(LENGTHS[1]), block_size=(16, 16))
    arrays = packed()
    close(attend_packed(default, arrays, mask_mod=blocks), expected_packed(arrays, {"mask_mod": window(np)[1]}))


# -- caches


def cache_of(dtype=np.float32, batch=3, room=45, dim=16, queries=4, heads=(4, 2), seed=3):
    """q and caches, (B, S, H, D)."""
    rng = np.random.default_rng(seed)
    shapes = ((batch, queries, heads[0], dim), (batch, room, heads[1], dim), (batch, room, heads[1], dim))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def at_positions(number, first, functions):
    """Functions of NumPy's for an array that is sample ``number`` alone, whose query 0 stands at ``first``."""

    def moved(function):
        return lambda *given: function(*given[:-4], given[-4] + number, given[-3], given[-2] + first, given[-1])

    return {name: function and moved(function) for name, function in functions.items()}


def expected_cached(q, caches, lengths, functions, **more):
    """Output (B, Sq, H, D) and log-sum-exp (B, H, Sq) of samples that hold so many keys."""
    outs, sums = [], []
    for number, length in enumerate(lengths):
        own = [array[number, :count].swapaxes(0, 1)[None]
               for array, count in ((q, None), *((cache, length) for cache in caches))]  # fmt: skip
        if length == 0:
            outs.append(np.zeros_like(q[number], np.float64))
            sums.append(np.full(q.shape[2:0:-1], -np.inf))
            continue
        out, lse = exact(*own, **at_positions(number, int(length) - q.shape[1], functions), **more)
        outs.append(out[0].swapaxes(0, 1))
        sums.append(lse[0])
    return np.stack(outs), np.stack(sums)


CACHED = [causal, window, alibi, relative, hides_by_scores, of_everything]


@pytest.mark.parametrize("lengths", [[41, 41, 41], [0, 3, 45]], ids=["alike", "unlike"])
@pytest.mark.parametrize("make", CACHED, ids=lambda make: make.__name__)
def test_caches(backend, make, lengths):
    """Among samples one with fewer keys than queries, whose first queries stand before all keys."""
    mine, its = both(backend, make, ARRAYS)
    q, *caches = cache_of()
    for cache in caches:
        for number, length in enumerate(lengths):
            cache[number, length:] = np.nan
    tensors = [backend.tensor(array) for array in (q, *caches)]
    found = F.flash_attention_with_kvcache(
        *tensors, cache_seqlens=np.int32(lengths), return_lse=True, **mine
    )
    close([array.numpy() for array in found], expected_cached(q, caches, lengths, its))


@pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("page", [None, 7])
@pytest.mark.parametrize("dtype", DTYPES)
def test_new_keys_and_pages(vulkan_backend, dtype, page, on_device):
    """New keys are written first; causality, sinks and a soft-cap beside the functions."""
    mine, its = both(vulkan_backend, alibi, ARRAYS)
    mine["mask_mod"], its["mask_mod"] = (lambda b, h, q, k: (q - k) % 3 != 1,) * 2
    sinks = np.float32([0.5, -1, 2, 0])
    q, *caches = cache_of(DTYPES[dtype], room=42)
    lengths, fresh = np.int32([2, 38, 17]), [cache[:, :4].copy() + cache[:, 4:8] for cache in caches]
    given, table = [cache.copy() for cache in caches], None
    for cache, new in zip(caches, fresh, strict=True):
        for number, length in enumerate(lengths):
            cache[number, length : length + 4] = new[number]
    if page:
        table = np.random.default_rng(0).permutation(18).astype(np.int32).reshape(3, 6)
        for place, cache in enumerate(given):
            given[place] = np.empty((18, page, *cache.shape[2:]), cache.dtype)
            given[place][table.reshape(-1)] = cache.reshape(18, page, *cache.shape[2:])
    send = vulkan_backend.tensor if on_device else (lambda array: array)
    found = F.flash_attention_with_kvcache(
        *map(vulkan_backend.tensor, (q, *given, *fresh)), send(lengths), None if table is None else send(table),
        causal=True, sinks=sinks, softcap=4.0, return_lse=True, **mine,
    )  # fmt: skip
    hidden = {"mask_mod": lambda b, h, q, k: (k <= q) & ((q - k) % 3 != 1), "score_mod": its["score_mod"]}
    out, lse = expected_cached(q, caches, lengths + 4, hidden, after=lambda s: 4 * np.tanh(s / 4))
    with_sinks = np.logaddexp(lse, sinks[:, None])
    close([array.numpy() for array in found], (out * np.exp(lse - with_sinks).swapaxes(1, 2)[..., None], with_sinks),
          dtype)  # fmt: skip


def test_strided_caches(vulkan_backend):
    """Every second row of a larger array, and queries that are a part of one."""
    mine, its = both(vulkan_backend, of_everything, ARRAYS)
    q, *caches = cache_of(room=90)
    wide = vulkan_backend.tensor(np.concatenate([q, q], 3))
    tensors = [vulkan_backend.tensor(cache)[:, ::2] for cache in caches]
    found = F.flash_attention_with_kvcache(
        wide[..., 16:], *tensors, cache_seqlens=np.int32([45, 7, 30]), return_lse=True, **mine
    )
    want = expected_cached(q, [cache[:, ::2] for cache in caches], [45, 7, 30], its)
    close([array.numpy() for array in found], want)


@pytest.mark.parametrize("kind", ["float32", "q8_0"])
def test_a_growing_cache_in_a_graph(vulkan_backend, kind):
    """Positions grow from replay to replay."""
    rate = vulkan_backend.tensor(ARRAYS["rate"])
    cache = nn.KVCache(2, 20, 2, 32, dtype=kind, backend=vulkan_backend)
    mod = alibi(grilly, rate)[0]
    steps = [cache_of(batch=2, room=1, dim=32, queries=1, seed=n) for n in range(6)]
    held = [np.concatenate([step[place] for step in steps], 1) for place in (1, 2)]

    def seen(b, h, q, k):
        return (q - k) % 4 != 1

    def step(q, k, v):
        return cache.attend(q, k, v, score_mod=mod, mask_mod=seen, return_lse=True)

    for number in range(2):
        step(*map(vulkan_backend.tensor, steps[number]))
    graph = vulkan_backend.capture(step, *map(vulkan_backend.tensor, steps[2]))
    for number in range(2, 6):
        found = graph(*map(vulkan_backend.tensor, steps[number]))
        own = [array[:, : number + 1] for array in held]
        if kind != "float32":
            own = [part.dequantize(np.float32).numpy()[:, : number + 1] for part in (cache.k, cache.v)]
        its = {"score_mod": alibi(np, ARRAYS["rate"])[0], "mask_mod": seen}
        close([array.numpy() for array in found], expected_cached(steps[number][0], own, [number + 1] * 2, its))


#: Those that read a quantized cache as it is.
LEVELS = ["flash-decode-quantized", "flash-decode-quantized-llvmpipe"]


@pytest.mark.parametrize(("dtype", "dim", "heads", "queries"), [
    ("float32", 32, (4, 2), 4), ("float32", 96, (4, 1), 1), ("float32", 256, (4, 4), 7), ("float16", 64, (4, 2), 3),
    ("bfloat16", 128, (4, 1), 2),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("kernel", [None, *LEVELS])
@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_quantized_caches(vulkan_backend, kind, kernel, dtype, dim, heads, queries):
    """Levels are read inside the kernel; of a sample with keys for several splits, and of one with few."""
    mine, its = both(vulkan_backend, of_everything, ARRAYS)
    q, k, v = cache_of(DTYPES[dtype], 2, 650, dim, queries, heads)
    cache = nn.KVCache(2, 650, heads[1], dim, dtype=kind, backend=vulkan_backend)
    cache.fill(k, v, lengths=[650, 9])
    with vulkan_backend.profile() as profile:
        found = cache.attend(q, return_lse=True, kernel=kernel, **mine)
    families = [timing.label.split(".")[0] for timing in profile.timings]
    assert families[-1] in LEVELS and "dequantize" not in families
    held = [part.dequantize(np.float32).numpy() for part in (cache.k, cache.v)]
    close([array.numpy() for array in found], expected_cached(q.astype(np.float32), held, [650, 9], its), dtype)


@pytest.mark.parametrize("make", [window, alibi, hides_by_scores], ids=lambda make: make.__name__)
@pytest.mark.parametrize("kernel", [None, LEVELS[0]])
@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_quantized_caches_beside_options(backend, kind, kernel, make):
    """Functions of one kind; what lies past a sample's keys may be anything, as the keys that no query sees."""
    mine, its = both(backend, make, ARRAYS)
    sinks = np.float32([0.5, -1, 2, 0])
    q, k, v = cache_of(dim=32, batch=2, room=70)
    k[1, 60:] = v[1, 60:] = np.nan
    cache = nn.KVCache(2, 70, 2, 32, dtype=kind, backend=backend)
    cache.fill(k, v, lengths=[70, 60])
    found = cache.attend(q, return_lse=True, kernel=kernel, softcap=4.0, sinks=sinks, causal=True, **mine)
    held = [part.dequantize(np.float32).numpy() for part in (cache.k, cache.v)]
    own = its["mask_mod"] or (lambda b, h, q, k: True)
    hidden = {"mask_mod": lambda b, h, q, k: (k <= q) & own(b, h, q, k), "score_mod": its["score_mod"]}
    out, lse = expected_cached(
        q, held, [70, 60], hidden, after=lambda s: np.where(np.isneginf(s), s, 4 * np.tanh(s / 4))
    )
    with_sinks = np.logaddexp(lse, sinks[:, None])
    close([array.numpy() for array in found], (out * np.exp(lse - with_sinks).swapaxes(1, 2)[..., None], with_sinks))


def test_long_prompts_over_quantized_caches(vulkan_backend):
    """More queries than the kernels for levels have: the cache is written as floats."""
    mine, its = both(vulkan_backend, of_everything, ARRAYS)
    q, k, v = cache_of(dim=32, batch=2, room=45, queries=21)
    cache = nn.KVCache(2, 45, 2, 32, dtype="q8_0", backend=vulkan_backend)
    cache.fill(k, v, lengths=[45, 9])
    found = cache.attend(q, return_lse=True, **mine)
    held = [part.dequantize(np.float32).numpy() for part in (cache.k, cache.v)]
    close([array.numpy() for array in found], expected_cached(q, held, [45, 9], its))


def test_what_caches_refuse(default):
    q, *caches = cache_of()
    blocks = grilly.block_mask(causal(grilly)[1], None, None, 4, 45)
    with pytest.raises(ValueError, match="mask_mod is a block mask, and caches take functions"):
        F.flash_attention_with_kvcache(q, *caches, mask_mod=blocks)
    with pytest.raises(grilly.ExpressionError, match="returns a bool"):
        F.flash_attention_with_kvcache(q, *caches, score_mod=lambda s, b, h, q, k: q >= k)
    rate, tensors = default.tensor(ARRAYS["rate"]), [default.tensor(array) for array in (q, *caches)]
    with pytest.raises(grilly.GradientError, match="flash_attention_with_kvcache has no gradient"):
        grilly.grad(lambda rate: grilly.sum(
            F.flash_attention_with_kvcache(*tensors, score_mod=alibi(grilly, rate)[0])))(rate)  # fmt: skip


# -- few queries over many keys

DECODE = ["flash-decode", "flash-decode-llvmpipe"]
#: Queries, keys, columns, query and key heads: in several splits, in a part of one, and of many rows.
FEW = [(1, 1300, 64, (4, 1)), (3, 517, 24, (4, 2)), (16, 67, 32, (4, 4)), (7, 1031, 40, (4, 2))]


@pytest.mark.parametrize("size", FEW, ids=lambda size: "x".join(map(str, size[:3])))
@pytest.mark.parametrize("kernel", DECODE)
def test_few_queries(backend, kernel, size):
    queries, keys, dim, heads = size
    mine, its = both(backend, of_everything, ARRAYS)
    arrays = problem(queries, keys, dim, heads)
    tensors = map(backend.tensor, arrays)
    found = attend(backend, *tensors, kernel=kernel, **mine)
    close([array.numpy() for array in found], exact(*arrays, **its))


@pytest.mark.parametrize("make", [causal, window, documents, relative, hides_by_scores], ids=lambda make: make.__name__)
@pytest.mark.parametrize("kernel", DECODE)
def test_few_queries_with_one_function(vulkan_backend, kernel, make):
    mine, its = both(vulkan_backend, make, ARRAYS)
    arrays = problem(5, 601, 32)
    close(attend(vulkan_backend, *arrays, kernel=kernel, **mine), exact(*arrays, **its))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kernel", DECODE)
def test_few_queries_of_16_bits(vulkan_backend, kernel, dtype):
    mine, its = both(vulkan_backend, of_everything, ARRAYS)
    arrays = problem(3, 601, 48, dtype=DTYPES[dtype])
    close(attend(vulkan_backend, *arrays, kernel=kernel, **mine), exact(*arrays, **its), dtype)


@pytest.mark.parametrize("kernel", DECODE)
def test_few_queries_at_the_ends(vulkan_backend, kernel):
    """Rows that see nothing, NaN, and hidden keys that may be anything; beside a bias, a mask and a soft-cap."""
    arrays = problem(4, 601, 32)

    def seen(b, h, q, k):
        return (q != 2) & (k < 500)

    out, lse = attend(vulkan_backend, *arrays, mask_mod=seen, kernel=kernel)
    assert (out[:, :, 2] == 0).all() and np.isneginf(lse[:, :, 2]).all()
    close((out, lse), exact(*arrays, mask_mod=seen))
    hiding = [{"mask_mod": seen}, {"score_mod": lambda s, b, h, q, k: grilly.where(k < 500, s, -math.inf)}]
    plain = [attend(vulkan_backend, *arrays, kernel=kernel, **options) for options in hiding]
    q, k, v = (array.copy() for array in arrays)
    for bad in (np.nan, np.inf, 1e30):
        k[:, :, 500:] = v[:, :, 500:] = bad
        for options, want in zip(hiding, plain, strict=True):
            found = attend(vulkan_backend, q, k, v, kernel=kernel, **options)
            assert all((one == two).all() for one, two in zip(found, want, strict=True))
    makes_nan = [lambda s, b, h, q, k, xp=xp: xp.where((q == 3) & (k == 550), math.nan, s) for xp in (grilly, np)]
    found = attend(vulkan_backend, *arrays, score_mod=makes_nan[0], kernel=kernel)
    close(found, exact(*arrays, makes_nan[1]))
    bias, mask = RNG.standard_normal((4, 4, 601)).astype(np.float32), RNG.random((4, 601)) < 0.7
    mine, its = both(vulkan_backend, alibi, ARRAYS)
    given = {"attn_bias": bias, "mask": mask, "softcap": 2.0, "causal": True, "scale": 0.3, "kernel": kernel}
    found = attend(vulkan_backend, *arrays, **given, **mine)
    hidden = ~mask | (np.arange(601) > np.arange(4)[:, None] + 597)
    close(found, exact(*arrays, **its, scale=0.3, hidden=hidden, after=lambda s: 2 * np.tanh(s / 2) + bias))


def test_few_queries_take_kernels_for_few_queries(vulkan_backend):
    """Steps over a cache, with and without functions."""
    q, *caches = map(vulkan_backend.tensor, cache_of(queries=1, room=1024, dim=64))
    labels = []
    for options in ({}, {"mask_mod": lambda b, h, q, k: (q - k) % 3 != 1}):
        with vulkan_backend.profile() as profile:
            F.flash_attention_with_kvcache(q, *caches, **options)
        labels.append({timing.label.split(".")[0] for timing in profile.timings})
    assert labels[0] == labels[1] and "decode" in str(labels[0])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_trees_of_drafts_over_a_long_cache(vulkan_backend, dtype):
    """64 nodes of a tree in each of two samples, which hold texts of their own lengths; then the accepted ones stay."""
    nodes, texts, rng = 64, [2000, 1131], np.random.default_rng(11)
    seen = np.stack([np.eye(nodes, dtype=bool)] * 2)
    for sample in range(2):
        for node in range(1, nodes):
            seen[sample, node] |= seen[sample, rng.integers(0, node)]
    q, k, v = (rng.standard_normal((2, nodes, heads, 16)).astype(DTYPES[dtype]) for heads in (4, 2, 2))
    held = [rng.standard_normal((2, max(texts), 2, 16)).astype(DTYPES[dtype]) for _ in range(2)]
    cache = nn.KVCache(2, 2100, 2, 16, dtype=DTYPES[dtype], backend=vulkan_backend)
    cache.fill(*held, lengths=texts)
    sees, start = vulkan_backend.tensor(seen), cache.positions()

    def tree(batch, head, query, key):
        first = start[batch, 0]
        return (key < first) | sees[batch, query - first, key - first]

    found = cache.attend(*map(vulkan_backend.tensor, (q, k, v)), mask_mod=tree, return_lse=True)
    for sample, text in enumerate(texts):
        own = [np.concatenate([one[sample, :text], new[sample]]).swapaxes(0, 1)[None]
               for one, new in zip(held, (k, v), strict=True)]  # fmt: skip
        hidden = ~np.concatenate([np.ones((nodes, text), bool), seen[sample]], 1)
        want = exact(q[sample].swapaxes(0, 1)[None], *own, hidden=hidden)
        close([found[0].numpy()[sample].swapaxes(0, 1)[None], found[1].numpy()[sample][None]], want, dtype)
