"""NaN and infinities among what is added to scores: every kernel gives NaN where NumPy does, and nowhere else."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import grilly
from grilly import reference

FEW = ["flash-decode", "flash-decode-llvmpipe"]
PROCESSORS = ["flash-attention-llvmpipe", "flash-attention-texels"]
FAMILIES = [None, "attention-naive", "flash-attention2", "flash-attention3", *PROCESSORS, *FEW]
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
BAD = {"nan": np.nan, "minus-nan": np.copysign(np.nan, -1), "inf": np.inf}
ROUNDING = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


def problem(width: int, queries: int = 21, keys: int = 70):
    rng = np.random.default_rng(width)
    q = rng.standard_normal((1, 2, queries, width)).astype(np.float32)
    k, v = rng.standard_normal((2, 1, 1, keys, width)).astype(np.float32)
    added = rng.standard_normal((1, 2, queries, keys)).astype(np.float32)
    added[0, 0, :, 3] = -np.inf
    return q, k, v, added


#: At the first two sizes a bias, a mask and both; at others one of them, as each is a program to compile.
ADDED = [("float32", 64, 70, place) for place in ("attn_bias", "mask", "both")]
ADDED += [("float16", 64, 70, place) for place in ("attn_bias", "mask", "both")]
ADDED += [("float32", 33, 70, "mask"), ("float16", 64, 72, "attn_bias"), ("bfloat16", 33, 72, "both")]


@pytest.mark.parametrize("bad", ["nan", "inf"])
@pytest.mark.parametrize("dtype, width, keys, place", ADDED)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_added(backend, family, dtype, width, keys, place, bad):
    queries = 3 if family in FEW else 21
    q, k, v, added = problem(width, queries, keys)
    q, k, v = (a.astype(DTYPES[dtype]) for a in (q, k, v))
    added[0, 0, 1, 69] = added[0, 1, queries - 1, 0] = BAD[bad]
    # With both, the bad number meets a mask of ordinary ones.
    options = {"mask": np.ones(added.shape[2:], np.float32), "attn_bias": added} if place == "both" else {place: added}
    try:
        out, lse = backend.attention.flash_attention2(q, k, v, return_lse=True, kernel=family, **options)
    except grilly.UnsupportedError as error:
        pytest.skip(str(error).splitlines()[0])
    exact, _, exact_lse = reference.naive_attention(q, k, v, return_lse=True, dtype=np.float64, **options)
    assert np.isnan(exact).any() and not np.isnan(exact).all()
    for one, other in ((out, exact), (lse, exact_lse)):
        one = one.astype(np.float64)
        assert np.array_equal(np.isnan(one), np.isnan(other))
        assert np.nanmax(np.abs(one - other)) < ROUNDING[dtype]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("hidden", ["causal", "segments", "window"])
def test_what_is_added_to_hidden_scores(backend, hidden, bad):
    """A score that is hidden may be anything."""
    q, k, v, added = problem(64, 70, 70)
    options = {
        "causal": {"causal": True},
        "segments": {"segment_ids": np.repeat([[0, 1]], 35, axis=1)},
        "window": {"window_size": (4, 4)},
    }[hidden]
    clean = backend.attention.flash_attention2(q, k, v, attn_bias=added, **options)
    added[..., 0, 60:] = added[..., 20, 40:] = BAD[bad]
    assert np.array_equal(clean, backend.attention.flash_attention2(q, k, v, attn_bias=added, **options))


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("place", ["attn_bias", "mask"])
@pytest.mark.parametrize("width", [64, 33])
def test_gradients(backend, width, place, bad):
    q, k, v, added = problem(width)
    added[0, 0, :, 3] = 0  # a hidden key gets nothing, also from a row that is NaN
    added[0, 0, 1, 69] = BAD[bad]
    out, lse = backend.attention.flash_attention2(q, k, v, return_lse=True, **{place: added})
    grads = backend.attention.flash_attention2_backward(np.ones_like(out), q, k, v, out, lse, **{place: added})
    exact = reference.attention_backward(np.ones_like(out), q, k, v, dtype=np.float64, **{place: added})
    for name, one in zip(("dq", "dk", "dv"), grads, strict=True):
        assert np.isnan(getattr(exact, name)).any()
        assert np.array_equal(np.isnan(one), np.isnan(getattr(exact, name))), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_infinite_value_that_no_row_attends_to_among_many(vulkan_backend, dtype):
    """Rows of which some sum is not finite are computed again, whatever of a loop's trips a driver allows."""
    keys = 17_000
    weights = np.full((1, 1, 9, keys), 2**-14, np.float32)
    weights[..., 0] = 0
    v = np.ones((1, 1, keys, 64), DTYPES[dtype])
    v[0, 0, 0] = np.inf
    out = vulkan_backend.attention.attention_output(weights, v).astype(np.float32)
    assert np.abs(out - (keys - 1) / 2**14).max() < ROUNDING[dtype]
