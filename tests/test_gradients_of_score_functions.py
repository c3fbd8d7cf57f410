"""Gradients through score_mod and mask_mod, beside PyTorch in float64: of q, k, v, options and what functions read."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import grilly
import grilly.functional as F
from score_mods import alibi, causal, documents, relative, soft_cap, window

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(0)
RATE = np.float32([0.1, -0.2, 0.3, 0.05])
TABLE = RNG.standard_normal((4, 129)).astype(np.float32)
DOCUMENTS = np.sort(RNG.integers(0, 4, (2, 256)), 1).astype(np.int32)
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
#: Of the largest gradient: weights and dS are rounded once where they multiply, and results once.
ROUNDING = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


# Functions of a namespace, grilly or PyTorch, and of arrays: a score function and a mask function, or None.
def hides_by_scores(xp, **_):
    return lambda s, b, h, q, k: xp.where((q < k) | (s < -0.5), -math.inf, s * s), None


def of_everything(xp, rate, table, documents, **_):
    def score(s, b, h, q, k):
        return xp.where(b == 0, s * (1 + rate[h]), xp.exp(0.25 * s) + 0.125 * q) - table[h, (k + 3 * q) % 129] * s

    return score, lambda b, h, q, k: ((q + k) % 3 != h % 3) & (documents[b, k] != 2)


def constant(xp, **_):
    return lambda s, b, h, q, k: 0.01 * (q - k), lambda b, h, q, k: k != 5


ARRAYS = {"rate": RATE, "table": TABLE, "documents": DOCUMENTS}


def problem(queries, keys, dim, heads=(4, 2), dtype=np.float32, value_dim=None):
    rng = np.random.default_rng([queries, keys, dim])
    shapes = ((2, heads[0], queries, dim), (2, heads[1], keys, dim), (2, heads[1], keys, value_dim or dim))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def exact(q, k, v, score_mod=None, mask_mod=None, scale=None, bias=None, hidden=None, softcap=0.0, sinks=None):
    """Output and log-sum-exp by PyTorch in float64, of functions of its tensors."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    places = torch.meshgrid(*(torch.arange(n) for n in scores.shape), indexing="ij")
    if score_mod is not None:
        scores = score_mod(scores, *places).double()
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    for seen in (None if mask_mod is None else mask_mod(*places), None if hidden is None else ~hidden):
        if seen is not None:
            scores = torch.where(seen, scores, -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:3], 1)], -1)
    empty = torch.isneginf(scores).all(-1, keepdim=True)
    scores = torch.where(empty, 0.0, scores)
    weights = torch.where(empty, 0.0, torch.softmax(scores, -1))[..., : k.shape[2]]
    return weights @ v, torch.where(empty[..., 0], 0.0, torch.logsumexp(scores, -1))


def wide(array, wanted=True):
    """An array as PyTorch's, floating ones in float64 and with gradients."""
    tensor = torch.from_numpy(np.asarray(array).astype(np.float64 if array.dtype.kind not in "iub" else array.dtype))
    return tensor.requires_grad_() if wanted and tensor.is_floating_point() else tensor


def judge(make, arrays, read=ARRAYS, dtype="float32", bias=None, hidden=None, sinks=None, scale=None, softcap=0.0,
          **options):  # fmt: skip
    """Hold the gradients of a call, of q, k, v, a bias, sinks and of all that is read, against PyTorch's."""
    names = [name for name, array in read.items() if array.dtype.kind not in "iub"]
    added = {name: array for name, array in (("attn_bias", bias), ("sinks", sinks)) if array is not None}
    rng = np.random.default_rng(5)
    shape = (*arrays[0].shape[:3], arrays[2].shape[3])
    factors = [rng.standard_normal(shape).astype(np.float32), rng.standard_normal(shape[:3]).astype(np.float32)]
    its = {name: wide(array) for name, array in read.items()}
    given = [wide(array) for array in arrays]
    more = [wide(array) for array in added.values()]
    functions = dict(zip(("score_mod", "mask_mod"), make(torch, **its), strict=True))
    beside = dict(zip(("bias" if name == "attn_bias" else name for name in added), more, strict=True))
    want_hidden = None if hidden is None else torch.from_numpy(hidden)
    out, lse = exact(*given, **functions, **beside, hidden=want_hidden, scale=scale, softcap=softcap)
    loss = (out * torch.from_numpy(factors[0])).sum() + (lse * torch.from_numpy(factors[1])).sum()
    sources = [*given, *more, *(its[name] for name in names)]
    want = torch.autograd.grad(loss, sources, allow_unused=True)

    def own_loss(q, k, v, *rest):
        own = {name: grilly.asarray(array) for name, array in read.items()}
        own |= dict(zip(names, rest[len(added) :], strict=True))
        own_functions = dict(zip(("score_mod", "mask_mod"), make(grilly, **own), strict=True))
        given = dict(zip(added, rest, strict=False))
        out, lse = F.flash_attention2(
            q, k, v, return_lse=True, scale=scale, softcap=softcap, **own_functions, **given, **options
        )
        out, lse = out.astype(grilly.float32), grilly.where(grilly.isinf(lse), 0.0, lse)
        return grilly.sum(out * factors[0]) + grilly.sum(lse * factors[1])

    everything = [*arrays, *added.values(), *(read[name] for name in names)]
    found = grilly.grad(own_loss, tuple(range(len(everything))))(*map(grilly.asarray, everything))
    for number, (one, other) in enumerate(zip(found, want, strict=True)):
        one = one.numpy().astype(np.float64)
        other = np.zeros(one.shape) if other is None else other.numpy()
        error = np.abs(one - other).max()
        assert error <= ROUNDING[dtype] * max(np.abs(other).max(), 1e-2), (number, error, np.abs(other).max())
    return found


def is_late(queries, keys):
    return np.arange(keys) > np.arange(queries)[:, None] + keys - queries


#: Functions, queries, keys, columns, dtype, heads, and what stands beside them: some pairs of these.
CASES = [
    (causal, 37, 53, 64, "float32", (4, 2), ()),
    (window, 53, 37, 33, "float32", (4, 4), ("bias",)),
    (alibi, 1, 67, 16, "float32", (4, 1), ("softcap",)),
    (documents, 67, 67, 128, "float32", (4, 2), ("softcap", "bias")),
    (soft_cap, 41, 17, 7, "float32", (4, 4), ("causal", "mask")),
    (relative, 3, 5, 200, "float32", (4, 2), ("mask",)),
    (hides_by_scores, 37, 53, 33, "float32", (4, 1), ("lengths",)),
    (of_everything, 53, 37, 64, "float32", (4, 2), ("sinks",)),
    (constant, 37, 53, 16, "float32", (4, 2), ("causal",)),
    (of_everything, 37, 53, 64, "float16", (4, 2), ("causal",)),
    (relative, 67, 67, 33, "float16", (4, 4), ("bias",)),
    (alibi, 53, 37, 64, "bfloat16", (4, 1), ("mask",)),
    (documents, 37, 53, 128, "float16", (4, 4), ("sinks", "lengths")),
    (soft_cap, 1, 67, 64, "bfloat16", (4, 2), ("bias",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "queries", "keys", "dim", "dtype", "heads", "beside"), CASES,
    ids=lambda one: getattr(one, "__name__", None),
)  # fmt: skip
def test_pairs_of_options(default, make, queries, keys, dim, dtype, heads, beside):
    rng = np.random.default_rng(2)
    arrays = problem(queries, keys, dim, heads, DTYPES[dtype], value_dim=dim + 8 if dim == 16 else None)
    options, hidden = {}, np.zeros((2, 1, queries, keys), bool)
    if "bias" in beside:
        options["bias"] = rng.standard_normal((4, queries, keys)).astype(np.float32)
    if "softcap" in beside:
        options["softcap"] = 2.0
    if "sinks" in beside:
        options["sinks"] = rng.standard_normal(4).astype(np.float32)
    if "causal" in beside:
        options["causal"], hidden = True, hidden | is_late(queries, keys)
    if "mask" in beside:
        options["mask"] = rng.random((queries, keys)) < 0.7
        hidden = hidden | ~options["mask"]
    if "lengths" in beside:
        lengths = np.int32([keys // 2, keys])
        options["seqlens_k"], hidden = lengths, hidden | (np.arange(keys) >= lengths[:, None, None, None])
    judge(make, arrays, dtype=dtype, hidden=hidden, scale=-0.3 if "mask" in beside else None, **options)


@pytest.mark.parametrize(("make", "dtype"), [(alibi, "float32"), (documents, "float16")])
def test_both_runtimes(by_default, make, dtype):
    judge(make, problem(19, 23, 16, dtype=DTYPES[dtype]), dtype=dtype)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("way", ["mask_mod", "score_mod"])
def test_what_is_hidden_may_be_anything(default, way, bad):
    """Rows that see nothing and keys that nobody sees have gradients of zero, and change no other bit."""
    q, k, v = problem(37, 53, 16)
    grad = np.random.default_rng(1).standard_normal(q.shape).astype(np.float32)

    def seen(b, h, q, k):
        return (k < 40) & (q % 5 != 2)

    options = {"mask_mod": seen}
    if way == "score_mod":
        options = {"score_mod": lambda s, b, h, q, k: grilly.where(seen(b, h, q, k), s * 1.5, -math.inf)}

    def gradients():
        out, lse = F.flash_attention2(q, k, v, return_lse=True, **options)
        return F.flash_attention2_backward(grad, q, k, v, out, lse, **options)

    plain = gradients()
    k[:, :, 40:] = v[:, :, 40:] = bad
    q[:, :, 2::5] = bad
    dq, dk, dv = gradients()
    assert (dq[:, :, 2::5] == 0).all() and (dk[:, :, 40:] == 0).all() and (dv[:, :, 40:] == 0).all()
    for one, other in zip(plain, (dq, dk, dv), strict=True):
        assert (one == other).all()


# What score functions read, by indices of every kind: a function and the shapes of what it reads.
def by_head(s, b, h, q, k, x):
    return s * x[h]


def by_batch_and_head(s, b, h, q, k, x):
    return s + x[b, h] * q


def by_query(s, b, h, q, k, x):
    return s - 0.1 * s * x[q]


def by_key_of_a_batch(s, b, h, q, k, x):
    return s + x[b, k]


def by_head_and_query(s, b, h, q, k, x):
    return s * x[h, q]


def by_query_and_key(s, b, h, q, k, x):
    return s + x[q, k]


def by_all(s, b, h, q, k, x):
    return s + x[b, h, q, k]


def by_distance(s, b, h, q, k, x):
    return s + x[h, q - k + 60] * s


def by_distance_of_batches(s, b, h, q, k, x):
    return s + x[abs(k - q) // 3, b]


def by_distance_twice(s, b, h, q, k, x):
    return s + x[2 * q + 5 - k - q + 60] + x[q - k + 61] * x[3]


def of_one_number(s, b, h, q, k, x):
    return s * x


def by_nothing_known(s, b, h, q, k, x):
    return s + x[h, (k + 3 * q) % 31]


def by_blocks(s, b, h, q, k, x):
    return s + x[q // 16, k // 8]


def from_the_end(s, b, h, q, k, x):
    return s + x[-1, h - 4]


READS = [
    (by_head, (4,)), (by_batch_and_head, (2, 4)), (by_query, (37,)), (by_key_of_a_batch, (2, 53)),
    (by_head_and_query, (4, 37)), (by_query_and_key, (37, 53)), (by_all, (2, 4, 37, 53)), (by_distance, (4, 121)),
    (by_distance_of_batches, (20, 2)), (by_distance_twice, (130,)), (of_one_number, ()), (by_nothing_known, (4, 31)),
    (by_blocks, (3, 7)), (from_the_end, (3, 4)),
]  # fmt: skip


@pytest.mark.parametrize(("score", "shape"), READS, ids=lambda one: getattr(one, "__name__", ""))
def test_what_is_read(default, score, shape):
    x = np.asarray(RNG.standard_normal(shape), np.float32)
    softcap = 4.0 if score is by_head else 0.0

    def make(xp, x):
        return lambda *scalars: score(*scalars, x), lambda b, h, q, k: k <= q + 16

    judge(make, problem(37, 53, 16), {"x": x}, softcap=softcap)


def test_what_is_read_at_places_that_are_read(default):
    """By ids that another tensor has, by the score itself, of 16 bits, and where a mask function reads it too."""
    read = {"x": RNG.standard_normal((4, 6)).astype(np.float32), "ids": DOCUMENTS}

    def by_ids(xp, x, ids):
        return lambda s, b, h, q, k: s + x[h, ids[b, q] - ids[b, k]], lambda b, h, q, k: x[h, ids[b, k]] > -0.5

    judge(by_ids, problem(19, 23, 16), read)

    def by_score(xp, x, ids):
        whole = (lambda s: s.astype(grilly.int32)) if xp is grilly else (lambda s: s.to(torch.int64))
        return lambda s, b, h, q, k: s * x[h, xp.clip(whole(s), 0, 5)], None

    judge(by_score, problem(19, 23, 16), read)
    half = {"x": read["x"].astype(np.float16)}
    judge(lambda xp, x: ((lambda s, b, h, q, k: s + x[h, k % 6]), None), problem(19, 23, 16), half, dtype="float16")


def test_the_same_bits_in_each_run(default):
    q, k, v = map(grilly.asarray, problem(67, 93, 16))
    tables = [grilly.asarray(RNG.standard_normal(shape).astype(np.float32)) for shape in ((4,), (4, 31), (4, 200))]

    def loss(q, k, v, rate, table, distances):
        return grilly.sum(F.flash_attention2(
            q, k, v, score_mod=lambda s, b, h, i, j: s * rate[h] + table[h, (i + 2 * j) % 31] + distances[h, i - j + 99]
        ) ** 2)  # fmt: skip

    gradient = grilly.grad(loss, tuple(range(6)))
    once = [one.numpy() for one in gradient(q, k, v, *tables)]
    for _ in range(3):
        for one, other in zip(once, gradient(q, k, v, *tables), strict=True):
            assert one.tobytes() == other.numpy().tobytes()


def test_beside_options_that_functions_can_say(default):
    """With dropout, ALiBi's slopes and T5's table: the same gradients as those of options alone."""
    q, k, v = map(grilly.asarray, problem(37, 53, 16))
    slopes = grilly.asarray(RATE)
    t5 = grilly.asarray(RNG.standard_normal((8, 4)).astype(np.float32))
    shared = {"dropout_p": 0.3, "dropout_seed": 7, "t5_table": t5}

    def by_function(q, k, v, t5, slopes):
        return grilly.sum(F.flash_attention2(
            q, k, v, score_mod=lambda s, b, h, i, j: s - slopes[h] * abs(j - i - 16),
            mask_mod=lambda b, h, i, j: j <= i + 16, **shared | {"t5_table": t5},
        ) ** 2)  # fmt: skip

    def by_options(q, k, v, t5, slopes):
        return grilly.sum(
            F.flash_attention2(q, k, v, causal=True, alibi_slopes=slopes, **shared | {"t5_table": t5}) ** 2
        )

    def by_both(q, k, v, t5, slopes):
        return grilly.sum(F.flash_attention2(
            q, k, v, mask_mod=lambda b, h, i, j: j <= i + 16, alibi_slopes=slopes, **shared | {"t5_table": t5}
        ) ** 2)  # fmt: skip

    want = [one.numpy() for one in grilly.grad(by_options, (0, 1, 2, 3, 4))(q, k, v, t5, slopes)]
    for made in (by_function, by_both):
        for one, other in zip(grilly.grad(made, (0, 1, 2, 3, 4))(q, k, v, t5, slopes), want, strict=True):
            np.testing.assert_allclose(one.numpy(), other, atol=2e-5 * np.abs(other).max(), rtol=0)


def test_functions_are_those_of_the_call(default):
    """A variable that changes after the call changes no gradient."""
    q, k, v = map(grilly.asarray, problem(19, 23, 16))

    def loss(q):
        total = 0.0
        for factor in (1.0, -2.0, 0.5):
            out = F.flash_attention2(
                q, k, v, score_mod=lambda s, b, h, i, j: s * factor,  # noqa: B023
                mask_mod=lambda b, h, i, j: i - j < 4 * factor,  # noqa: B023
            )  # fmt: skip
            total = total + grilly.sum(out**2)
        return total

    def apart(q, factor):
        return grilly.sum(F.flash_attention2(
            q, k, v, score_mod=lambda s, b, h, i, j: s * factor, mask_mod=lambda b, h, i, j: i - j < 4 * factor
        ) ** 2)  # fmt: skip

    want = sum(grilly.grad(apart)(q, factor).numpy() for factor in (1.0, -2.0, 0.5))
    np.testing.assert_allclose(grilly.grad(loss)(q).numpy(), want, atol=1e-5 * np.abs(want).max())


def test_captured(default):
    rate = grilly.asarray(RATE)
    arrays = problem(19, 23, 16)

    def loss(q, k, v, rate):
        out = F.flash_attention2(q, k, v, score_mod=lambda s, b, h, i, j: s * rate[h] - rate[h] * abs(i - j))
        return grilly.sum(out**2)

    def step(q, k, v):
        return grilly.grad(loss, (0, 1, 2, 3))(q, k, v, rate)

    graph = default.capture(step, *map(grilly.asarray, arrays))
    for slopes in (RATE, 2 * RATE):
        rate[...] = slopes
        for one, other in zip(graph(*map(grilly.asarray, arrays)), step(*map(grilly.asarray, arrays)), strict=True):
            assert one.numpy().tobytes() == other.numpy().tobytes()


def test_block_masks(default):
    """Blocks that are hidden, seen in part and seen as a whole, of sizes that tiles divide, touch two of, or exceed."""
    q, k, v = map(grilly.asarray, problem(150, 203, 16))
    grad = np.random.default_rng(1).standard_normal((2, 4, 150, 16)).astype(np.float32)

    def seen(b, h, i, j):
        return (i >= j) & ((j > 70) | (i - j < 90)) & (j < 130 + 10 * b)

    def gradients(mask):
        out, lse = F.flash_attention2(q, k, v, return_lse=True, mask_mod=mask)
        return [one.numpy() for one in F.flash_attention2_backward(grad, q, k, v, out, lse, mask_mod=mask)]

    want = gradients(seen)
    for size in ((64, 64), (24, 40), (16, 16), (5, 3)):
        blocks = grilly.block_mask(seen, 2, None, 150, 203, block_size=size)
        for one, other in zip(gradients(blocks), want, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6 * np.abs(other).max(), rtol=0)


def test_memory(default):
    """No array of all scores: 128 MB of float32 each here."""
    q, k, v = (grilly.asarray(RNG.standard_normal((2, 4, 2000, 8), dtype=np.float32)) for _ in range(3))
    rate, distances = grilly.asarray(RATE), grilly.asarray(TABLE)

    def loss(q, k, v, rate, distances):
        return grilly.sum(F.flash_attention2(
            q, k, v, mask_mod=lambda b, h, i, j: i >= j,
            score_mod=lambda s, b, h, i, j: s - rate[h] * (i - j) + distances[h, grilly.clip(i - j, 0, 128)],
        ) ** 2)  # fmt: skip

    before = default.memory(reset_peak=True).in_use
    found = grilly.grad(loss, (0, 1, 2, 3, 4))(q, k, v, rate, distances)
    peak = default.memory().peak - before
    assert all(np.isfinite(one.numpy()).all() for one in found)
    assert peak < 16_000_000, peak



def test_one_tensor_as_q_k_and_v(default):
    """Its gradient is the sum of the three."""
    x = np.random.default_rng(2).standard_normal((1, 2, 5, 8)).astype(np.float32)

    def loss(q, k, v):
        return grilly.sum(F.flash_attention2(q, k, v, score_mod=lambda score, b, h, i, j: score * score) ** 2)

    apart = grilly.grad(loss, (0, 1, 2))(x, x, x)
    together = grilly.grad(lambda x: loss(x, x, x))(x)
    np.testing.assert_allclose(together.numpy(), sum(one.numpy() for one in apart), atol=1e-4)
