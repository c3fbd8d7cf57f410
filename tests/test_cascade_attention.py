"""Attention over a prefix that samples share and keys of their own, and merged results, against float64."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
import grilly.functional as F
from grilly import nn
from test_score_functions import DTYPES, close, exact

RNG = np.random.default_rng(5)


def problem(batch=3, queries=5, shared=67, keys=23, heads=(4, 2), dims=(16, 24), dtype=np.float32):
    """q, k_shared, v_shared, k and v."""
    shapes = (
        (batch, heads[0], queries, dims[0]), (heads[1], shared, dims[0]), (heads[1], shared, dims[1]),
        (batch, heads[1], keys, dims[0]), (batch, heads[1], keys, dims[1]),
    )  # fmt: skip
    return [RNG.standard_normal(shape).astype(dtype) for shape in shapes]


def expected(q, k_shared, v_shared, k, v, lengths=None, causal=False, **more):
    """The same with the prefix before each sample's keys, and a mask."""
    batch, shared, own = len(q), k_shared.shape[-2], k.shape[2]
    pairs = ((k_shared, k), (v_shared, v))
    whole = [np.concatenate([np.broadcast_to(a, (batch, *a.shape[-3:])), b], 2) for a, b in pairs]
    held = np.full(batch, own) if lengths is None else np.asarray(lengths)
    held = held[:, None, None, None]
    key, query = np.arange(shared + own) - shared, np.arange(q.shape[2])[:, None]
    seen = (key < held) & ((key < 0) | (not causal) | (key <= query + held - q.shape[2]))
    return exact(q, *whole, hidden=~seen, **more)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [None, [23, 0, 7]])
@pytest.mark.parametrize("dtype", DTYPES)
def test_against_float64(backend, dtype, lengths, causal):
    """A sample without keys of its own, and one with few: causality hides none of the prefix."""
    arrays = problem(dtype=DTYPES[dtype])
    try:
        tensors = [backend.tensor(array) for array in arrays]
    except grilly.UnsupportedError as error:
        pytest.skip(str(error).splitlines()[0])
    found = F.cascade_attention(*tensors, causal=causal, seqlens_k=lengths, return_lse=True)
    assert all(isinstance(one, grilly.Tensor) for one in found) and found[0].dtype == DTYPES[dtype]
    close([one.numpy() for one in found], expected(*arrays, lengths, causal), dtype)


#: Batch, queries, shared keys, keys, heads.
SIZES = [(1, 1, 1, 1, (1, 1)), (7, 1, 1031, 3, (8, 2)), (2, 31, 5, 130, (3, 3)), (5, 16, 0, 9, (4, 1)),
         (3, 4, 9, 0, (4, 2)), (2, 3, 0, 0, (2, 2)), (0, 3, 5, 5, (2, 2))]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes(default, size):
    """Without a prefix, without keys of their own, and without either: zeros."""
    arrays = problem(*size)
    found = F.cascade_attention(*arrays, return_lse=True)
    assert all(isinstance(one, np.ndarray) for one in found)
    if not size[2] + size[3] or not size[0]:
        assert found[0].shape == (*arrays[0].shape[:3], 24) and not found[0].any() and np.isneginf(found[1]).all()
    else:
        close(found, expected(*arrays))


def test_options_and_strided_arrays(default):
    arrays = problem()
    q, k_shared, v_shared, k, v = (default.tensor(np.concatenate([array, array + 1], -2)) for array in arrays)
    halves = [q[:, :, :5], k_shared[None, :, :67], v_shared[None, :, :67], k[:, :, :23], v[:, :, :23]]
    found = F.cascade_attention(*halves, scale=0.4, softcap=2.0, kernel="flash-attention2")
    want, _ = expected(*arrays, scale=0.4, after=lambda s: 2 * np.tanh(s / 2))
    np.testing.assert_allclose(found.numpy(), want, atol=4e-6)


def test_merged_with_a_cache(default):
    """The prefix by one call, each sample's own keys out of a growing cache."""
    q, k_shared, v_shared, k, v = problem(dims=(16, 16))
    cache = nn.KVCache(3, 23, 2, 16, backend=default)
    own, own_lse = cache.attend(*(array.swapaxes(1, 2) for array in (q, k[:, :, :5], v[:, :, :5])), return_lse=True)
    rows = default.tensor(q.transpose(1, 0, 2, 3).reshape(1, 4, 15, 16))
    of_all, lse = F.flash_attention2(rows, k_shared[None], v_shared[None], return_lse=True)
    of_all, lse = of_all.reshape(4, 3, 5, 16).transpose(1, 2, 0, 3), lse.reshape(4, 3, 5).transpose(1, 2, 0)
    found = F.merge_attention(own, own_lse.transpose(0, 2, 1), of_all, lse)
    want, want_lse = expected(q, k_shared, v_shared, k[:, :, :5], v[:, :, :5], causal=True)
    close([one.numpy() for one in found], (want.swapaxes(1, 2), want_lse.swapaxes(1, 2)))


def test_merged_ends(default):
    """Rows that one or both saw nothing of, whatever is in them, rows far apart, and NaN."""
    out = np.float32([[1, 2], [3, 4], [np.nan, np.inf], [5, 6], [7, np.nan]])
    other = np.float32([[8, 9], [np.inf, np.nan], [0, 0], [1, 1], [2, 2]])
    lse, other_lse = np.float32([0, 1, -np.inf, 200, 0]), np.float32([0, -np.inf, -np.inf, -200, 0])
    found, sums = F.merge_attention(out, lse, other, other_lse)
    np.testing.assert_array_equal(found, np.float32([[4.5, 5.5], [3, 4], [0, 0], [5, 6], [4.5, np.nan]]))
    np.testing.assert_allclose(sums, [np.log(2), 1, -np.inf, 200, np.log(2)], rtol=1e-6)


def test_gradients(default):
    """Against one call with the prefix before each sample's keys."""
    arrays = [default.tensor(array) for array in problem(dims=(16, 16))]
    factors = [default.tensor(RNG.standard_normal(shape).astype(np.float32)) for shape in ((3, 4, 5, 16), (3, 4, 5))]

    def by_cascade(*given):
        out, lse = F.cascade_attention(*given, causal=True, return_lse=True)
        return grilly.sum(out * factors[0]) + grilly.sum(lse * factors[1])

    def as_one(q, k_shared, v_shared, k, v):
        whole = [grilly.concat([grilly.broadcast_to(a[None], (3, *a.shape)), b], axis=2)
                 for a, b in ((k_shared, k), (v_shared, v))]  # fmt: skip
        out, lse = F.flash_attention2(q, *whole, causal=True, return_lse=True)
        return grilly.sum(out * factors[0]) + grilly.sum(lse * factors[1])

    every = tuple(range(5))
    for one, two in zip(grilly.grad(by_cascade, every)(*arrays), grilly.grad(as_one, every)(*arrays), strict=True):
        np.testing.assert_allclose(one.numpy(), two.numpy(), atol=2e-5 * max(np.abs(two.numpy()).max(), 1))


def test_captured(default):
    arrays = [default.tensor(array) for array in problem()]
    graph = default.capture(lambda *given: F.cascade_attention(*given, causal=True), *arrays)
    np.testing.assert_array_equal(graph(*arrays).numpy(), F.cascade_attention(*arrays, causal=True).numpy())


WRONG = [
    ({"q": np.zeros((5, 16), np.float32)}, ValueError, r"q has shape \(5, 16\); expected \(B, H, N_q, D\)"),
    ({"k_shared": np.zeros((3, 2, 67, 16), np.float32)}, ValueError, "k_shared has shape .* without samples"),
    ({"k_shared": np.zeros((2, 66, 16), np.float32)}, ValueError, "heads and keys must agree"),
    ({"k_shared": np.zeros((3, 67, 16), np.float32), "v_shared": np.zeros((3, 67, 24), np.float32)}, ValueError,
     "k_shared has 3 heads and q has 4"),
    ({"k_shared": np.zeros((2, 67, 8), np.float32)}, ValueError, "k_shared has head dimension 8 and q has 16"),
    ({"v_shared": np.zeros((2, 67, 8), np.float32)}, ValueError, "v_shared has head dimension 8 and v has 24"),
    ({"v_shared": np.zeros((2, 67, 24), np.float16)}, TypeError, "v_shared is float16 and q is float32"),
    ({"k": np.zeros((2, 2, 23, 16), np.float32)}, ValueError, "k has batch 2 and q has 3"),
    ({"seqlens_k": [1, 2]}, ValueError, "seqlens_k"),
    ({"seqlens_k": [1, 2, 24]}, ValueError, "seqlens_k"),
    ({"softcap": -1.0}, ValueError, "softcap is -1.0"),
    ({"scale": np.inf}, ValueError, "scale is inf"),
    ({"sm_scale": 1.0}, TypeError, "cascade_attention: .*'sm_scale'; here give scale"),
    ({"shared_k": 1.0}, TypeError, "cascade_attention: .*'shared_k'; here give k_shared"),
    ({"mask_mod": None}, TypeError, "cascade_attention: .*'mask_mod'; here give F.merge_attention"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "error", "said"), WRONG, ids=lambda one: str(one)[:40])
def test_what_is_refused(default, changed, error, said):
    names = ("q", "k_shared", "v_shared", "k", "v")
    with pytest.raises(error, match=said):
        F.cascade_attention(**dict(zip(names, problem(), strict=True)) | changed)


def test_what_merging_refuses(default):
    out, lse = np.zeros((3, 5, 8), np.float32), np.zeros((3, 5), np.float32)
    with pytest.raises(ValueError, match=r"other has shape \(3, 5, 7\)"):
        F.merge_attention(out, lse, out[..., :7], lse)
    with pytest.raises(ValueError, match=r"lse has shape \(5, 3\).*expected \(3, 5\)"):
        F.merge_attention(out, lse.T, out, lse)
    with pytest.raises(TypeError, match="lse and other_lse are float16"):
        F.merge_attention(out, lse.astype(np.float16), out, lse.astype(np.float16))
    with pytest.raises(TypeError, match="merge_attention: .*'s_a'; here give lse"):
        F.merge_attention(out, s_a=lse, other=out, other_lse=lse)
