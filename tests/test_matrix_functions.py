"""Score functions and mask functions on matrix units: every variant that the device can run, against float64 NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

import grilly
import grilly.functional as F
from kernels import dispatched, pretend
from test_matrix import VARIANTS, dtype_of, pinned
from test_score_functions import ALL, RATE, alibi, both, close, exact, problem, window

FUNCTIONS = [v for v in VARIANTS if "score-function" in v.offers]
EACH = pytest.mark.parametrize("variant", FUNCTIONS, ids=lambda v: v.label + "." + v.dtype)


def attend(view, family, *arrays, **options):
    """(output, log-sum-exp) as NumPy arrays."""
    tensors = map(view.tensor, arrays)
    found = view.attention.flash_attention2(*tensors, return_lse=True, kernel=family, **options)
    return [np.asarray(array.numpy(), np.float64) for array in found]


def made(backend, variant, queries=67, keys=93):
    """A view that runs the variant, the family to name, the dtype's name, and arrays of several tiles."""
    dtype = dtype_of(variant)
    view, dim = pinned(backend, variant)
    return view, variant.family, variant.dtype, problem(queries, keys, dim, dtype=dtype)


def judge_functions(view, family, dtype, arrays, make):
    """Hold a call against float64."""
    mine, its = both(view, make)
    close(attend(view, family, *arrays, **mine), exact(*arrays, **its), dtype)


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
@EACH
def test_functions(backend, variant, make):
    judge_functions(*made(backend, variant), make)


def judge_block_mask(backend, view, family, dtype, arrays, monkeypatch):
    """Tiles that are hidden as a whole are passed over, whatever is in them; beside a score function."""
    q, k, v = arrays
    queries, keys = q.shape[2], k.shape[2]
    score, seen = alibi(np, RATE)[0], window(np)[1]
    want, without = exact(*arrays, score, seen), exact(*arrays, None, seen)
    k[:, :, queries:] = v[:, :, queries:] = np.nan
    previous = grilly.use(backend)
    try:
        blocks = grilly.block_mask(window(grilly)[1], None, None, queries, keys, block_size=(16, 16))
    finally:
        grilly.use(previous)
    assert 0 < blocks.sparsity < 1
    rate = view.tensor(RATE)
    steps = dispatched(monkeypatch)
    close(attend(view, family, q, k, v, score_mod=alibi(grilly, rate)[0], mask_mod=blocks), want, dtype)
    close(attend(view, family, q, k, v, mask_mod=blocks), without, dtype)
    assert steps.count("attention-tiles") == 2


@EACH
def test_block_masks(backend, variant, monkeypatch):
    pretend(monkeypatch, backend, class_work=0.0, class_read=0.0)
    judge_block_mask(backend, *made(backend, variant, 150, 203), monkeypatch)


def judge_hidden(view, family, dtype, arrays):
    """What a mask function or a score of minus infinity hides changes no bit of the result."""
    q, k, v = arrays
    hiding = [
        {"mask_mod": lambda b, h, q, k: k < 40},
        {"score_mod": lambda s, b, h, q, k: grilly.where(k < 40, s, -math.inf)},
    ]
    plain = [attend(view, family, q, k, v, **options) for options in hiding]
    for bad in (np.nan, np.inf, 3e4):
        k[:, :, 40:] = v[:, :, 40:] = bad
        for options, want in zip(hiding, plain, strict=True):
            found = attend(view, family, q, k, v, **options)
            close(found, want, dtype)
            if np.isfinite(bad):
                assert all((one == two).all() for one, two in zip(found, want, strict=True))


@EACH
def test_what_is_hidden_may_be_anything(backend, variant):
    judge_hidden(*made(backend, variant))


@EACH
def test_rows_that_see_nothing(backend, variant):
    view, family, dtype, arrays = made(backend, variant)

    def seen(b, h, q, k):
        return (q % 2 == 0) & (k < q)

    out, lse = attend(view, family, *arrays, mask_mod=seen)
    assert (out[:, :, 1::2] == 0).all() and np.isneginf(lse[:, :, 1::2]).all() and np.isneginf(lse[:, :, 0]).all()
    close((out, lse), exact(*arrays, mask_mod=seen), dtype)


def judge_numbers(view, family, dtype, arrays):
    """NaN stays NaN; the lowest finite number hides nothing: a row of it sees all keys alike."""

    def score(xp):
        lowest = float(np.finfo(np.float32).min)
        return lambda s, b, h, q, k: xp.where((q == 3) & (k == 50), math.nan, xp.where(q == 5, lowest, s))

    out, lse = attend(view, family, *arrays, score_mod=score(grilly))
    want, want_lse = exact(*arrays, score(np))
    assert np.isnan(want[:, :, 3]).all() and np.isfinite(want[:, :, 5]).all()
    lse[:, :, 5] = want_lse[:, :, 5] = 0  # it is as near as float32 has such numbers
    close((out, lse), (want, want_lse), dtype)


@EACH
def test_numbers_at_the_ends(backend, variant):
    judge_numbers(*made(backend, variant))


def judge_cache(view, family, dtype, arrays):
    """Of a cache: queries are positions, of samples that hold as many keys and of others."""
    queries, keys = arrays[0].shape[2], arrays[1].shape[2]
    mine, its = both(view, alibi)
    its["mask_mod"] = mine["mask_mod"] = lambda b, h, q, k: (q >= k) & (k + 2 * q + b) % 3 != 0
    tensors = [view.tensor(array).transpose(0, 2, 1, 3) for array in arrays]
    for lengths in ([keys, keys], [queries - 5, keys - 2]):
        found = F.flash_attention_with_kvcache(
            *tensors, cache_seqlens=np.int32(lengths), return_lse=True, kernel=family, **mine
        )
        out, lse = (array.numpy().astype(np.float64) for array in found)
        for sample, length in enumerate(lengths):
            own = [array[sample : sample + 1, :, :count]
                   for array, count in zip(arrays, (queries, length, length), strict=True)]  # fmt: skip
            at = {
                name: lambda *given, function=function, sample=sample, first=length - queries: function(
                    *given[:-4], given[-4] + sample, given[-3], given[-2] + first, given[-1]
                )
                for name, function in its.items()
            }
            close((out[sample].swapaxes(0, 1)[None], lse[sample][None]), exact(*own, **at), dtype)


@EACH
def test_caches(backend, variant):
    judge_cache(*made(backend, variant))


def judge_beside(view, family, dtype, arrays):
    """Beside the options that these kernels offer."""
    rng = np.random.default_rng(4)
    queries, keys = arrays[0].shape[2], arrays[1].shape[2]
    mine, its = both(view, alibi)
    its["mask_mod"] = mine["mask_mod"] = lambda b, h, q, k: (q + k) % 3 != h % 3
    bias = rng.standard_normal((4, queries, keys)).astype(np.float32)
    shown = rng.random((queries, keys)) < 0.7
    added = np.where(shown, rng.standard_normal((queries, keys)), -np.inf).astype(np.float32)
    row, key = np.ogrid[:queries, :keys]
    late = key > row + keys - queries
    options = {"attn_bias": bias, "softcap": 2.0, "causal": True, "scale": 0.3}
    found = attend(view, family, *arrays, mask=shown, window_size=(40, 0), **options, **mine)
    hidden = ~shown | late | (key < row + keys - queries - 40)
    close(found, exact(*arrays, **its, scale=0.3, hidden=hidden, after=lambda s: 2 * np.tanh(s / 2) + bias), dtype)
    found = attend(view, family, *arrays, mask=added, scale=-0.3, **mine)
    with np.errstate(invalid="ignore"):
        close(found, exact(*arrays, **its, scale=-0.3, after=lambda s: s + added), dtype)
    lengths = np.int32([29, keys])
    found = attend(view, family, *arrays, seqlens_k=lengths, **mine)
    close(found, exact(*arrays, **its, hidden=key >= lengths[:, None, None, None]), dtype)


@EACH
def test_beside_other_options(backend, variant):
    judge_beside(*made(backend, variant))
