"""Gradients of packed sequences with score_mod and mask_mod, beside PyTorch in float64, sequence by sequence."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import grilly
import grilly.functional as F
from score_mods import alibi, causal, documents, relative, soft_cap, window
from test_gradients_of_score_functions import (
    DTYPES,
    ROUNDING,
    by_all,
    by_batch_and_head,
    by_blocks,
    by_distance,
    by_distance_of_batches,
    by_distance_twice,
    by_head,
    by_head_and_query,
    by_key_of_a_batch,
    by_nothing_known,
    by_query,
    by_query_and_key,
    exact,
    from_the_end,
    hides_by_scores,
    of_everything,
    of_one_number,
    wide,
)

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(0)
#: Queries and keys of each sequence: none of one or of both, more queries than keys, and more than one tile.
LENGTHS = ([70, 0, 1, 37, 5, 0, 13], [53, 9, 7, 11, 0, 0, 101])
ARRAYS = {
    "rate": np.float32([0.1, -0.2, 0.3, 0.05]),
    "table": RNG.standard_normal((4, 129)).astype(np.float32),
    "documents": np.sort(RNG.integers(0, 4, (7, 101)), 1).astype(np.int32),
}


def places(lengths=LENGTHS):
    """The arguments that say where sequences are."""
    starts = (np.concatenate([[0], np.cumsum(own)]).astype(np.int32) for own in lengths)
    return (*starts, *map(max, lengths))


def problem(dim=16, heads=(4, 2), dtype=np.float32, value_dim=None, lengths=LENGTHS, rest=0):
    """q, k and v, with ``rest`` rows of NaN that no sequence covers."""
    rng = np.random.default_rng([dim, *heads])
    shapes = ((0, heads[0], dim), (1, heads[1], dim), (1, heads[1], value_dim or dim))
    covered = [rng.standard_normal((sum(lengths[side]), *own)).astype(dtype) for side, *own in shapes]
    return [np.concatenate([own, np.full((rest, *own.shape[1:]), np.nan, dtype)]) for own in covered]


def hidden_pairs(queries, keys, causal=False, window_size=None):
    """Which keys causality and a window hide from the queries of a sequence."""
    apart = np.arange(keys) - np.arange(queries)[:, None] - (keys - queries)
    left, right = window_size or (math.inf, math.inf)
    return torch.from_numpy((apart > (0 if causal else right)) | (apart < -left))


def exact_packed(q, k, v, score_mod, mask_mod, lengths, causal=False, window_size=None, **more):
    """Output and log-sum-exp by PyTorch in float64, each sequence as a call of its own; 0 for minus infinity."""
    first, begin, _, _ = places(lengths)
    out, lse = torch.zeros((*q.shape[:2], v.shape[2]), dtype=q.dtype), torch.zeros(q.shape[1::-1], dtype=q.dtype)
    for number, (queries, keys) in enumerate(zip(*lengths, strict=True)):
        rows, columns = slice(first[number], first[number + 1]), slice(begin[number], begin[number + 1])
        own = [x[part].swapaxes(0, 1)[None] for x, part in ((q, rows), (k, columns), (v, columns))]
        functions = {
            name: function and (lambda *given, f=function, b=number: f(*given[:-4], given[-4] + b, *given[-3:]))
            for name, function in (("score_mod", score_mod), ("mask_mod", mask_mod))
        }
        found, sums = exact(*own, **functions, hidden=hidden_pairs(queries, keys, causal, window_size), **more)
        out[rows], lse[:, rows] = found[0].swapaxes(0, 1), sums[0]
    return out, lse


def judge(make, arrays, read=ARRAYS, dtype="float32", lengths=LENGTHS, sinks=None, **options):
    """Hold the gradients of a call, of q, k, v, sinks and of all that is read, against PyTorch's."""
    names = [name for name, array in read.items() if array.dtype.kind not in "iub"]
    covered = sum(lengths[0]), sum(lengths[1])
    shape = (*arrays[0].shape[:2], arrays[2].shape[2])
    rng = np.random.default_rng(5)
    factors = [rng.standard_normal(shape).astype(np.float32), rng.standard_normal(shape[1::-1]).astype(np.float32)]
    its = {name: wide(array) for name, array in read.items()}
    given = [wide(array) for array in arrays]
    added = {} if sinks is None else {"sinks": wide(sinks)}
    out, lse = exact_packed(*given, *make(torch, **its), lengths, **options, **added)
    loss = (out * torch.from_numpy(factors[0])).sum() + (lse * torch.from_numpy(factors[1])).sum()
    want = torch.autograd.grad(loss, [*given, *added.values(), *(its[name] for name in names)], allow_unused=True)

    def own_loss(q, k, v, *rest):
        own = {name: grilly.asarray(array) for name, array in read.items()}
        own |= dict(zip(names, rest[len(added) :], strict=True))
        functions = dict(zip(("score_mod", "mask_mod"), make(grilly, **own), strict=True))
        beside = dict(zip(added, rest, strict=False))
        given = {**functions, **beside, **options}
        out, lse = F.flash_attention_varlen(q, k, v, *places(lengths), return_lse=True, **given)
        lse = grilly.where(grilly.isinf(lse), 0.0, lse)
        return grilly.sum(out.astype(grilly.float32) * factors[0]) + grilly.sum(lse * factors[1])

    everything = [*arrays, *([] if sinks is None else [sinks]), *(read[name] for name in names)]
    found = grilly.grad(own_loss, tuple(range(len(everything))))(*map(grilly.asarray, everything))
    for number, (one, other) in enumerate(zip(found, want, strict=True)):
        assert one.shape == everything[number].shape and one.dtype == everything[number].dtype
        one = one.numpy().astype(np.float64)
        other = np.zeros(one.shape) if other is None else other.numpy()
        if number < 3:  # rows past the last sequence
            assert (one[covered[number > 0] :] == 0).all()
            one, other = (array[: covered[number > 0]] for array in (one, other))
        error = np.abs(one - other).max()
        assert error <= ROUNDING[dtype] * max(np.abs(other).max(), 1e-2), (number, error, np.abs(other).max())
    return found


#: Functions, columns, dtype, heads, and what stands beside them.
CASES = [
    (causal, 64, "float32", (4, 2), {}),
    (window, 33, "float32", (4, 4), {"softcap": 2.0}),
    (alibi, 16, "float32", (4, 1), {"causal": True}),
    (documents, 128, "float32", (4, 2), {"window_size": (9, 4)}),
    (soft_cap, 7, "float32", (4, 4), {"causal": True, "window_size": (30, None)}),
    (relative, 200, "float32", (4, 2), {"scale": -0.3}),
    (hides_by_scores, 33, "float32", (4, 1), {"sinks": np.float32([0.5, -1, 2, 0])}),
    (of_everything, 16, "float32", (4, 2), {"softcap": 4.0, "causal": True, "sinks": np.float32([0.5, -1, 2, 0])}),
    (of_everything, 64, "float16", (4, 2), {"causal": True}),
    (relative, 33, "float16", (4, 4), {"softcap": 3.0}),
    (alibi, 64, "bfloat16", (4, 1), {"window_size": (20, 20)}),
    (documents, 128, "bfloat16", (4, 2), {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "dim", "dtype", "heads", "beside"), CASES, ids=lambda one: getattr(one, "__name__", None)
)
def test_functions_beside_options(default, make, dim, dtype, heads, beside):
    arrays = problem(dim, heads, DTYPES[dtype], dim + 8 if dim == 16 else None)
    judge(make, arrays, dtype=dtype, **beside)


@pytest.mark.parametrize(("make", "dtype"), [(relative, "float32"), (of_everything, "float16")])
def test_both_runtimes(by_default, make, dtype):
    lengths = ([19, 0, 3, 8], [23, 4, 0, 5])
    judge(make, problem(8, dtype=DTYPES[dtype], lengths=lengths), dtype=dtype, lengths=lengths)


READS = [
    (by_head, (4,)), (by_batch_and_head, (7, 4)), (by_query, (70,)), (by_key_of_a_batch, (7, 101)),
    (by_head_and_query, (4, 70)), (by_query_and_key, (70, 101)), (by_all, (7, 4, 70, 101)), (by_distance, (4, 131)),
    (by_distance_of_batches, (34, 7)), (by_distance_twice, (140,)), (of_one_number, ()), (by_nothing_known, (4, 31)),
    (by_blocks, (5, 13)), (from_the_end, (3, 4)),
]  # fmt: skip


@pytest.mark.parametrize(("score", "shape"), READS, ids=lambda one: getattr(one, "__name__", ""))
def test_what_is_read(default, score, shape):
    x = np.asarray(RNG.standard_normal(shape), np.float32)

    def make(xp, x):
        return lambda *scalars: score(*scalars, x), lambda b, h, q, k: k <= q + 16

    judge(make, problem(8, rest=3), {"x": x}, softcap=4.0 if score is by_head else 0.0)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_tensors_of_16_bits(default, dtype):
    """Beside ids, where a mask function reads it too, and by a place that another read gives."""
    read = {"x": RNG.standard_normal((4, 6)).astype(dtype), "ids": ARRAYS["documents"]}

    def make(xp, x, ids):
        return lambda s, b, h, q, k: s + x[h, ids[b, q] - ids[b, k]], lambda b, h, q, k: x[h, ids[b, k]] > -0.5

    judge(make, problem(8), read, dtype=np.dtype(dtype).name)


def test_differences_of_what_is_read(default):
    """Of the loss itself, by a step of each element of a table."""
    q, k, v = map(grilly.asarray, problem(8))
    table = RNG.standard_normal((4, 3)).astype(np.float32)

    def loss(table):
        out = F.flash_attention_varlen(q, k, v, *places(), causal=True, score_mod=lambda s, b, h, i, j: (
            s * table[h, 0] + grilly.tanh(table[h, 1] * (i - j) / 16) + table[h, 2 - b % 2]))  # fmt: skip
        return grilly.sum(out * out)

    found = grilly.grad(loss)(grilly.asarray(table)).numpy()
    for place in np.ndindex(table.shape):
        ends = []
        for step in (0.01, -0.01):
            moved = table.copy()
            moved[place] += step
            ends.append(float(loss(grilly.asarray(moved)).numpy()))
        np.testing.assert_allclose(found[place], (ends[0] - ends[1]) / 0.02, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("size", [(64, 64), (24, 40), (5, 3)], ids=str)
def test_block_masks(default, size):
    blocks = []

    def make(xp, rate, **_):
        def seen(b, h, q, k):
            return (q + 40 >= k) & ((k > 30) | (q - k < 20)) & (k < 50 + 9 * b)

        if xp is torch:
            return (lambda s, b, h, q, k: s * (1 + rate[h])), seen
        blocks.append(grilly.block_mask(seen, 7, None, *places()[2:], block_size=size))
        return (lambda s, b, h, q, k: s * (1 + rate[h])), blocks[-1]

    judge(make, problem(16))
    assert (blocks[-1].classes.numpy() == 0).any()


@pytest.mark.parametrize("lengths", [([3, 5], [0, 0]), ([0, 0], [3, 5]), ([], []), ([4], [6])], ids=str)
def test_few_or_no_sequences(default, lengths):
    counts = [sum(own) for own in lengths]
    q, k, v = (grilly.asarray(RNG.standard_normal((n, 2, 8), dtype=np.float32)) for n in (counts[0], *counts[1:] * 2))
    at = (*(np.cumsum([0, *own]).astype(np.int32) for own in lengths), *(max(own, default=0) for own in lengths))

    def loss(q, k, v, rate):
        return grilly.sum(F.flash_attention_varlen(q, k, v, *at, score_mod=lambda s, b, h, i, j: s * rate[h]) ** 2)

    given = (q, k, v, grilly.asarray(np.float32([0.5, 2])))
    for one, other in zip(grilly.grad(loss, (0, 1, 2, 3))(*given), given, strict=True):
        assert one.shape == other.shape and (one.numpy() != 0).any() == bool(counts[0] * counts[1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_what_is_hidden_may_be_anything(default, bad):
    """Rows that see nothing and keys that nobody sees have gradients of zero, and change no other bit."""
    q, k, v = problem()
    first, begin, _, _ = places()
    rows, keys = first[3] + np.arange(2, 37, 5), slice(begin[6] + 40, begin[7])
    grad = np.random.default_rng(1).standard_normal(q.shape).astype(np.float32)
    rate = grilly.asarray(ARRAYS["rate"])

    def gradients():
        given = tuple(map(grilly.asarray, (q, k, v)))
        _, pull = grilly.vjp(
            lambda q, k, v, rate: F.flash_attention_varlen(
                q, k, v, *places(), score_mod=lambda s, b, h, i, j: s * rate[h] + rate[j % 4],
                mask_mod=lambda b, h, i, j: ((b != 6) | (j < 40)) & ((b != 3) | (i % 5 != 2)),
            ), *given, rate,
        )  # fmt: skip
        return [one.numpy() for one in pull(grilly.asarray(grad))]

    plain = gradients()
    k[keys] = v[keys] = bad
    q[rows] = bad
    found = gradients()
    assert (found[0][rows] == 0).all() and (found[1][keys] == 0).all() and (found[2][keys] == 0).all()
    for one, other in zip(plain, found, strict=True):
        assert (one == other).all()


def test_backward_takes_functions(default):
    """The same bits as by the tape, and what is refused."""
    q, k, v = map(grilly.asarray, problem())
    grad = grilly.asarray(RNG.standard_normal(q.shape, dtype=np.float32))
    mine = dict(zip(("score_mod", "mask_mod"), of_everything(grilly, **{
        name: grilly.asarray(array) for name, array in ARRAYS.items()}), strict=True))  # fmt: skip
    out, lse = F.flash_attention_varlen(q, k, v, *places(), return_lse=True, **mine)
    found = F.flash_attention_varlen_backward(grad, q, k, v, out, lse, *places(), **mine)
    _, pull = grilly.vjp(lambda *given: F.flash_attention_varlen(*given, *places(), **mine), q, k, v)
    for one, other in zip(found, pull(grad), strict=True):
        assert one.numpy().any() and one.numpy().tobytes() == other.numpy().tobytes()
    blocks = grilly.block_mask(causal(grilly)[1], None, None, 5, 5)
    with pytest.raises(ValueError, match="varlen_backward: mask_mod is a block mask of shape"):
        F.flash_attention_varlen_backward(grad, q, k, v, out, lse, *places(), mask_mod=blocks)
    with pytest.raises(TypeError, match="varlen_backward.*reads"):
        F.flash_attention_varlen_backward(grad, q, k, v, out, lse, *places(), reads=())


def test_functions_are_those_of_the_call(default):
    """A variable that changes after the call changes no gradient."""
    q, k, v = map(grilly.asarray, problem())

    def loss(q):
        total = 0.0
        for factor in (1.0, -2.0, 0.5):
            out = F.flash_attention_varlen(
                q, k, v, *places(), score_mod=lambda s, b, h, i, j: s * factor,  # noqa: B023
                mask_mod=lambda b, h, i, j: i - j < 4 * factor,  # noqa: B023
            )  # fmt: skip
            total = total + grilly.sum(out**2)
        return total

    def apart(q, factor):
        return grilly.sum(F.flash_attention_varlen(
            q, k, v, *places(), score_mod=lambda s, b, h, i, j: s * factor,
            mask_mod=lambda b, h, i, j: i - j < 4 * factor,
        ) ** 2)  # fmt: skip

    want = sum(grilly.grad(apart)(q, factor).numpy() for factor in (1.0, -2.0, 0.5))
    np.testing.assert_allclose(grilly.grad(loss)(q).numpy(), want, atol=1e-5 * np.abs(want).max())


def test_the_same_bits_in_each_run(default):
    q, k, v = map(grilly.asarray, problem())
    rate, table = (grilly.asarray(ARRAYS[name]) for name in ("rate", "table"))

    def loss(q, k, v, rate, table):
        return grilly.sum(F.flash_attention_varlen(
            q, k, v, *places(), score_mod=lambda s, b, h, i, j: s * rate[h] + table[h, (i + 2 * j) % 31]
        ) ** 2)  # fmt: skip

    gradient = grilly.grad(loss, tuple(range(5)))
    once = [one.numpy() for one in gradient(q, k, v, rate, table)]
    for _ in range(3):
        for one, other in zip(once, gradient(q, k, v, rate, table), strict=True):
            assert one.tobytes() == other.numpy().tobytes()


def test_captured(default):
    rate = grilly.asarray(ARRAYS["rate"])
    arrays = problem()

    def loss(q, k, v, rate):
        return grilly.sum(F.flash_attention_varlen(
            q, k, v, *places(), score_mod=lambda s, b, h, i, j: s * rate[h] - rate[h] * abs(i - j)
        ) ** 2)  # fmt: skip

    def step(q, k, v):
        return grilly.grad(loss, (0, 1, 2, 3))(q, k, v, rate)

    graph = default.capture(step, *map(grilly.asarray, arrays))
    for slopes in (ARRAYS["rate"], 2 * ARRAYS["rate"]):
        rate[...] = slopes
        for one, other in zip(graph(*map(grilly.asarray, arrays)), step(*map(grilly.asarray, arrays)), strict=True):
            assert one.numpy().tobytes() == other.numpy().tobytes()


def test_memory(default):
    """One long sequence among short ones: sums are over the queries that there are. Over padding they took 39 MB."""
    lengths = [1024] + [8] * 63
    at = places((lengths, lengths))
    q, k, v = (grilly.asarray(RNG.standard_normal((sum(lengths), 4, 8), dtype=np.float32)) for _ in range(3))
    rate, distances = grilly.asarray(ARRAYS["rate"]), grilly.asarray(ARRAYS["table"])

    def loss(q, k, v, rate, distances):
        return grilly.sum(F.flash_attention_varlen(
            q, k, v, *at, mask_mod=lambda b, h, i, j: i >= j,
            score_mod=lambda s, b, h, i, j: s - rate[h] * (i - j) + distances[h, grilly.clip(i - j, 0, 128)],
        ) ** 2)  # fmt: skip

    before = default.memory(reset_peak=True).in_use
    found = grilly.grad(loss, (0, 1, 2, 3, 4))(q, k, v, rate, distances)
    peak = default.memory().peak - before
    assert all(np.isfinite(one.numpy()).all() for one in found)
    assert peak < 5_000_000, peak


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_arrays(default, dtype):
    """q, k and v are heads of one array, every second column of a wider one: the gradients of arrays of their own."""
    lengths = ([19, 0, 37, 3],) * 2
    q, k, v = problem(8, dtype=DTYPES[dtype], lengths=lengths)
    rate, table = (grilly.asarray(ARRAYS[name]) for name in ("rate", "table"))

    def loss(q, k, v, rate, table):
        out = F.flash_attention_varlen(
            q, k, v, *places(lengths), causal=True, score_mod=lambda s, b, h, i, j: s * rate[h] + table[h, i - j + 64]
        )
        return grilly.sum(out.astype(grilly.float32) ** 2)

    def of_one(x, rate, table):
        return loss(x[:, :4, ::2], x[:, 4:6, ::2], x[:, 6:, ::2], rate, table)

    want = grilly.grad(loss, tuple(range(5)))(*map(grilly.asarray, (q, k, v)), rate, table)
    wide = np.full((len(q), 8, 16), np.nan, DTYPES[dtype])
    wide[..., ::2] = np.concatenate([q, k, v], 1)
    found = grilly.grad(of_one, (0, 1, 2))(grilly.asarray(wide), rate, table)
    x = found[0].numpy()[..., ::2]
    for one, other in zip((x[:, :4], x[:, 4:6], x[:, 6:], *found[1:]), want, strict=True):
        one, other = (np.asarray(array).astype(np.float32) for array in (one, other))
        np.testing.assert_allclose(one, other, rtol=0, atol=ROUNDING[dtype] * np.abs(other).max())
