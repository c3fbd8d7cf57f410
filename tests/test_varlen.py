"""Packed sequences of many lengths, and the mask of dropout, against the float64 reference."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import grilly
import grilly.functional as F
from cases import BFLOAT16, assert_as_accurate, needs_bfloat16
from gradients import recomputed
from grilly import reference
from kernels import pretend

H, HK, DIM = 4, 2, 16
#: Queries and keys of each sequence: one empty of each, one of both, more queries than keys, and more than one tile.
LENGTHS = ([70, 0, 1, 37, 5, 0, 13], [53, 9, 7, 11, 0, 0, 101])


def starts(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


class Problem:
    """Packed arrays of a dtype, with ``rest`` rows that no sequence covers and that hold NaN."""

    def __init__(self, dtype=np.float32, lengths=LENGTHS, rest=0, dim=DIM, value_dim=None):
        rng = np.random.default_rng(len(lengths[0]) + dim)
        self.cu = tuple(starts(n) for n in lengths)
        self.longest = tuple(int(max(n)) for n in lengths)
        shapes = ((self.cu[0][-1], H, dim), (self.cu[1][-1], HK, dim), (self.cu[1][-1], HK, value_dim or dim))
        self.covered = [rng.standard_normal(shape).astype(np.float32).astype(dtype) for shape in shapes]
        tail = [np.full((rest, *shape[1:]), np.nan, dtype) for shape in shapes]
        self.arrays = [np.concatenate(pair) for pair in zip(self.covered, tail, strict=True)]

    def call(self, attend=F.flash_attention_varlen, **options):
        return attend(*self.arrays, *self.cu, *self.longest, **options)

    def check(self, result, **options):
        out, lse = result
        total = self.cu[0][-1]
        dtype = self.arrays[0].dtype
        exact, plain = (
            reference.attention_varlen(*self.covered, *self.cu, return_lse=True, dtype=d, **options)
            for d in (np.float64, dtype)
        )
        assert out.shape == (len(self.arrays[0]), H, self.arrays[2].shape[2]) and lse.shape == (H, len(self.arrays[0]))
        assert_as_accurate(out[:total], exact[0], plain[0].astype(dtype), "output")
        assert_as_accurate(lse[:, :total], exact[1], plain[1].astype(np.float32), "lse")
        assert (out[total:] == 0).all() and np.isneginf(lse[:, total:]).all()


SLOPES = np.linspace(0.05, 0.4, 7 * H).reshape(7, H).astype(np.float32)
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window_size": (9, 3)},
    "all": {
        "causal": True, "window_size": (40, -1), "softcap": 2.0, "alibi_slopes": SLOPES, "scale": 0.4,
        "sinks": np.array([0.5, -1, 2, 0], np.float32),
        "dropout_p": 0.3, "dropout_seed": 2**40 + 3, "dropout_offset": 5,
    },
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kernel", [None, "flash-attention2"])
def test_sequences_against_the_reference(default, kernel, options):
    problem = Problem()
    problem.check(problem.call(return_lse=True, kernel=kernel, **OPTIONS[options]), **OPTIONS[options])


@pytest.mark.parametrize("dtype", [np.float16, pytest.param(BFLOAT16, marks=needs_bfloat16)])
def test_sixteen_bits_tensors_and_rows_that_no_sequence_covers(backend, dtype):
    problem = Problem(dtype, rest=3, dim=24, value_dim=9)
    arrays = [backend.tensor(array) for array in problem.arrays]
    cu = [backend.tensor(array) for array in problem.cu]
    out, lse = F.flash_attention_varlen(*arrays, *cu, *problem.longest, causal=True, return_lse=True)
    assert isinstance(out, grilly.Tensor) and isinstance(lse, grilly.Tensor)
    problem.check((out.numpy(), lse.numpy()), causal=True)


def test_views_of_one_packed_array(default):
    """q, k and v as flash-attn's packed layout has them, (total, 3, H, D)."""
    lengths = [31, 0, 66]
    problem = Problem(lengths=(lengths, lengths))
    rng = np.random.default_rng(2)
    packed = rng.standard_normal((sum(lengths), 3, H, DIM)).astype(np.float32)
    problem.covered = problem.arrays = [packed[:, n] for n in range(3)]
    problem.check(problem.call(return_lse=True, causal=True), causal=True)
    tensor = default.tensor(packed)
    out = F.flash_attention_varlen(*(tensor[:, n] for n in range(3)), *problem.cu, *problem.longest, causal=True)
    np.testing.assert_array_equal(out.numpy(), problem.call(attend=F.flash_attention_varlen, causal=True))


@pytest.mark.parametrize("lengths", [([], []), ([0, 0], [0, 3]), ([4, 3], [0, 0])], ids=str)
def test_nothing_to_attend_to(default, lengths):
    rows, keys = sum(lengths[0]) + 2, sum(lengths[1])
    q, k = np.ones((rows, H, DIM), np.float32), np.ones((keys, HK, DIM), np.float32)
    longest = (max(n, default=0) for n in lengths)
    out, lse = F.flash_attention_varlen(q, k, k, *map(starts, lengths), *longest, return_lse=True)
    assert out.shape == q.shape and not out.any() and np.isneginf(lse).all()


GOOD = starts([3, 2])
BAD = [
    (dict(cu_seqlens_q=GOOD.astype(np.float32)), TypeError, "cu_seqlens_q is float32"),
    (dict(cu_seqlens_k=GOOD[None]), ValueError, r"cu_seqlens_k has shape \(1, 3\)"),
    (dict(cu_seqlens_q=GOOD + 1), ValueError, "begin with 0"),
    (dict(cu_seqlens_q=np.array([0, 4, 2])), ValueError, "falls"),
    (dict(cu_seqlens_k=np.array([0, 3, 6])), ValueError, "at most 5"),
    (dict(cu_seqlens_k=np.array([0, 3])), ValueError, "both B"),
    (dict(max_seqlen_q=2), ValueError, "the longest sequence has 3"),
    (dict(q=np.zeros((1, 5, H, DIM), np.float32)), ValueError, "three axes"),
    (dict(v=np.zeros((4, HK, DIM), np.float32)), ValueError, "must agree"),
    (dict(k=np.zeros((5, 3, DIM), np.float32), v=np.zeros((5, 3, DIM), np.float32)), ValueError, "multiple of k's"),
    (dict(k=np.zeros((5, HK, 8), np.float32)), ValueError, "head dimension 8"),
    (dict(v=np.zeros((5, HK, DIM), np.float16)), TypeError, "same dtype"),
    (dict(dropout_p=1.0), ValueError, "dropout_p is 1.0"),
    (dict(kernel=5), TypeError, "flash_attention_varlen: kernel is a int; expected the name"),
]


@pytest.mark.parametrize("changed, error, text", BAD, ids=lambda x: x if isinstance(x, str) else "")
def test_bad_arguments(default, changed, error, text):
    q, k = np.zeros((5, H, DIM), np.float32), np.zeros((5, HK, DIM), np.float32)
    given = dict(q=q, k=k, v=k, cu_seqlens_q=GOOD, cu_seqlens_k=GOOD, max_seqlen_q=3, max_seqlen_k=3)
    with pytest.raises(error, match=text):
        F.flash_attention_varlen(**{**given, **changed})


def test_arrays_beyond_a_binding_are_refused(default, monkeypatch):
    problem = Problem()
    pretend(monkeypatch, default, storage_range=problem.arrays[0].nbytes - 4)
    with pytest.raises(grilly.UnsupportedError, match="q lies in .* fewer sequences"):
        problem.call()


def test_the_signature_names_the_options():
    assert "window_size" in inspect.signature(F.flash_attention_varlen).parameters


# -- gradients -------------------------------------------------------------------------------------------------------


def check_gradients(problem, layout=lambda a: a, **options):
    """The device's gradients, of arrays that ``layout`` makes, against float64."""
    q, k, v = problem.covered
    dtype, total, rest = q.dtype, len(q), len(problem.arrays[0]) - len(q)
    rng = np.random.default_rng(8)
    grad = rng.standard_normal((total, H, v.shape[2])).astype(np.float32).astype(dtype)
    out, lse = reference.attention_varlen(q, k, v, *problem.cu, return_lse=True, dtype=np.float64, **options)
    given = [np.concatenate([a, np.full((rest, *a.shape[1:]), np.nan, dtype)]) for a in (grad, out.astype(dtype))]
    sums = np.concatenate([lse, np.full((H, rest), -np.inf)], axis=1).astype(np.float32)
    sinks = options.get("sinks") is not None
    arrays = [layout(a) for a in (given[0], *problem.arrays, given[1], sums)]
    found = F.flash_attention_varlen_backward(
        *arrays, *problem.cu, *problem.longest, return_dsinks=sinks, **options
    )
    exact = reference.attention_varlen_backward(grad, q, k, v, *problem.cu, dtype=np.float64, **options)
    # The formulas of the kernels, sequence by sequence, in the precision of the kernels.
    plain = [np.zeros(a.shape, np.float32) for a in (q, k, v)] + [np.zeros(H, np.float32)]
    most = [0.0] * 4
    for b in range(len(problem.cu[0]) - 1):
        rows, keys = (slice(*cu[b : b + 2]) for cu in problem.cu)
        if rows.start == rows.stop or keys.start == keys.stop:
            continue
        own = {n: x[b : b + 1] if n == "alibi_slopes" else x for n, x in options.items()}
        parts = recomputed(
            *(a.swapaxes(0, 1)[None] for a in (grad[rows], q[rows], k[keys], v[keys], out[rows].astype(dtype))),
            lse[None, :, rows].astype(np.float32), own,
        )  # fmt: skip
        for n, (name, where) in enumerate((("dq", rows), ("dk", keys), ("dv", keys))):
            its, terms = parts[name]
            plain[n][where] = its.reshape(-1, *its.shape[-2:]).swapaxes(0, 1)
            most[n] = max(most[n], float(terms.max(initial=0)))
        if sinks:
            plain[3] += parts["dsinks"][0]
            most[3] += float(parts["dsinks"][1].max())
    for n, name in enumerate(("dq", "dk", "dv", "dsinks")[: len(found)]):
        result, want = np.asarray(found[n]), getattr(exact, name)
        assert_as_accurate(result[: len(want)], want, plain[n].astype(result.dtype), name, most[n])
        assert not result[len(want) :].any(), f"{name}: rows that no sequence covers are not zeros"


GRADIENTS = OPTIONS | {"all": {n: x for n, x in OPTIONS["all"].items() if n[:7] != "dropout"}}


@pytest.mark.parametrize("options", GRADIENTS)
@pytest.mark.parametrize("rest", [0, 3])
def test_gradients(default, options, rest):
    check_gradients(Problem(rest=rest), **GRADIENTS[options])


@pytest.mark.parametrize("dtype", [np.float16, pytest.param(BFLOAT16, marks=needs_bfloat16)])
def test_gradients_of_sixteen_bits_in_tensors(backend, dtype):
    former = grilly.use(backend)
    check_gradients(Problem(dtype, rest=2, dim=24, value_dim=8), layout=backend.tensor, causal=True)
    check_gradients(Problem(dtype, dim=16), layout=backend.tensor, window_size=(20, 0))
    grilly.use(former)


def test_gradients_with_dropout_are_the_references(default):
    """The mask is drawn by sequence, row and key: the same in forward and backward, and in the reference."""
    problem, options = Problem(), OPTIONS["all"]
    out, lse = problem.call(return_lse=True, **options)
    grad = np.random.default_rng(3).standard_normal(out.shape).astype(np.float32)
    found = F.flash_attention_varlen_backward(
        grad, *problem.arrays, out, lse, *problem.cu, *problem.longest, return_dsinks=True, **options
    )
    exact = reference.attention_varlen_backward(grad, *problem.covered, *problem.cu, dtype=np.float64, **options)
    for name, result in zip(("dq", "dk", "dv", "dsinks"), found, strict=True):
        np.testing.assert_allclose(result, getattr(exact, name), atol=3e-6 * np.abs(getattr(exact, name)).max())


@pytest.mark.parametrize("lengths", [([], []), ([0, 0], [0, 3]), ([4, 3], [0, 0])], ids=str)
def test_gradients_of_nothing(default, lengths):
    rows, keys = sum(lengths[0]) + 2, sum(lengths[1])
    q, k = np.ones((rows, H, DIM), np.float32), np.ones((keys, HK, DIM), np.float32)
    longest = (max(n, default=0) for n in lengths)
    lse = np.full((H, rows), -np.inf, np.float32)
    found = F.flash_attention_varlen_backward(
        q, q, k, k, q, lse, *map(starts, lengths), *longest, sinks=np.ones(H, np.float32), return_dsinks=True
    )
    assert [a.shape for a in found] == [q.shape, k.shape, k.shape, (H,)] and not any(a.any() for a in found)


@pytest.mark.parametrize("changed, error, text", [
    ({"grad_out": np.zeros((5, H, 8), np.float32)}, ValueError, "grad_out has shape"),
    ({"out": np.zeros((5, H, DIM), np.float16)}, TypeError, "same dtype"),
    ({"lse": np.zeros((5, H), np.float32)}, ValueError, "lse has shape"),
    ({"lse": np.zeros((H, 5))}, TypeError, "lse is float64"),
    ({"return_dsinks": True}, ValueError, "give sinks"),
    ({"max_seqlen_k": 2}, ValueError, "varlen_backward: max_seqlen_k is 2"),
], ids=lambda x: x if isinstance(x, str) else "")  # fmt: skip
def test_bad_arguments_of_gradients(default, changed, error, text):
    q, k = np.zeros((5, H, DIM), np.float32), np.zeros((5, HK, DIM), np.float32)
    given = dict(grad_out=q, q=q, k=k, v=k, out=q, lse=np.zeros((H, 5), np.float32))
    given |= dict(cu_seqlens_q=GOOD, cu_seqlens_k=GOOD, max_seqlen_q=3, max_seqlen_k=3)
    with pytest.raises(error, match=text):
        F.flash_attention_varlen_backward(**{**given, **changed})


# -- the mask of dropout ---------------------------------------------------------------------------------------------


def test_dropout_mask_is_the_references(backend):
    former = grilly.use(backend)
    shape, seed, offset = (2, 3, 5, 11), 2**63 + 5, 2**32 - 1
    mask = F.dropout_mask(shape, 0.3, seed, offset)
    assert mask.dtype == np.bool_
    np.testing.assert_array_equal(mask, reference.dropout_mask(shape, 0.3, seed, offset))
    assert F.dropout_mask(shape, 0.0, seed).all() and F.dropout_mask((2, 0, 1, 1), 0.5, 1).shape == (2, 0, 1, 1)
    grilly.use(former)


@pytest.mark.parametrize("arguments, text", [
    (((2, 3, 4), 0.5, 0), "shape is"), (((1, 1, 1, -1), 0.5, 0), "shape is"), (((1, 1, 1, 1), 1.0, 0), "dropout_p"),
    (((1, 1, 1, 1), 0.5, -1), "dropout_seed"), (((1, 1, 1, 1), 0.5, 0, 2**32), "dropout_offset"),
])  # fmt: skip
def test_dropout_mask_checks_its_arguments(default, arguments, text):
    with pytest.raises(ValueError, match=text):
        F.dropout_mask(*arguments)


def test_gradients_of_the_log_sum_exp(backend):
    """As those of the sequences one by one."""
    rng = np.random.default_rng(4)
    lengths, starts = (5, 9), np.array([0, 5, 14], np.int32)
    q, k, v, grad = (rng.standard_normal((14, 2, 16)).astype(np.float32) for _ in range(4))
    sums = rng.standard_normal((2, 14)).astype(np.float32)
    tensors = [backend.tensor(a) for a in (grad, q, k, v)]
    out, lse = F.flash_attention_varlen(*tensors[1:], starts, starts, 9, 9, causal=True, return_lse=True)
    given = (*tensors, out, lse, starts, starts, 9, 9)
    found = F.flash_attention_varlen_backward(*given, causal=True, grad_lse=backend.tensor(sums))
    plain = F.flash_attention_varlen_backward(*given, causal=True)
    assert np.abs(found[0].numpy() - plain[0].numpy()).max() > 0.1
    for first, length in zip(starts, lengths, strict=False):
        rows = slice(first, first + length)
        g, a, b, c = (x[rows].swapaxes(0, 1) for x in (grad, q, k, v))
        exact = reference.attention_backward(g, a, b, c, causal=True, dtype=np.float64, grad_lse=sums[:, rows])
        for array, other in zip(found, exact[:3], strict=True):
            np.testing.assert_allclose(array.numpy()[rows].swapaxes(0, 1), other, rtol=0, atol=3e-6)
    with pytest.raises(ValueError, match="grad_lse has shape"):
        F.flash_attention_varlen_backward(*given, causal=True, grad_lse=sums[:, :5])
