"""Attention with score functions and mask functions of one's own: score_mod and mask_mod."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import grilly
import grilly.functional as F
from score_mods import alibi, causal, documents, relative, soft_cap, window

KERNELS = [None, "flash-attention2", "flash-attention-llvmpipe"]
ROUNDING = {"float32": 4e-6, "float16": 4e-3, "bfloat16": 3e-2}
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
RNG = np.random.default_rng(0)
RATE = np.float32([0.1, -0.2, 0.3, 0.05])
TABLE = RNG.standard_normal((4, 129)).astype(np.float32)
DOCUMENTS = np.sort(RNG.integers(0, 4, (2, 256)), 1)


def problem(queries=37, keys=53, dim=64, heads=(4, 2), dtype=np.float32, batch=2, seed=1):
    rng = np.random.default_rng(seed)
    shapes = ((batch, heads[0], queries, dim), (batch, heads[1], keys, dim), (batch, heads[1], keys, dim))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def exact(q, k, v, score_mod=None, mask_mod=None, scale=None, hidden=None, after=lambda s: s):
    """Output and log-sum-exp in float64, of functions of arrays."""
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    places = np.ix_(*(np.arange(n) for n in scores.shape))
    if score_mod is not None:
        scores = score_mod(scores, *places)
    scores = after(scores)
    if mask_mod is not None:
        scores = np.where(mask_mod(*places), scores, -np.inf)
    if hidden is not None:
        scores = np.where(hidden, -np.inf, scores)
    top = scores.max(-1, keepdims=True)
    top = np.where(np.isneginf(top), 0, top)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    weights = np.where(total == 0, 0, weights / np.where(total == 0, 1, total))
    v = np.where((weights.max(-2)[..., None] == 0), 0, v)
    with np.errstate(divide="ignore"):
        return weights @ v, (np.log(total) + top)[..., 0]


# Each is made of a namespace (grilly or NumPy) and of arrays: a score function and a mask function, or None.
def hides_by_scores(xp, **_):
    return lambda s, b, h, q, k: xp.where((q < k) | (s < -0.5), -math.inf, s), None


def of_everything(xp, rate, table, documents, **_):
    def score(s, b, h, q, k):
        return xp.where(b == 0, s * (1 + rate[h]), s + 0.125 * q) - table[h, (k + 3 * q) % 129]

    return score, lambda b, h, q, k: ((q + k) % 3 != h % 3) & (documents[b, k] != 2)


ALL = [causal, window, alibi, documents, soft_cap, relative, hides_by_scores, of_everything]
ARRAYS = {"rate": RATE, "table": TABLE, "documents": DOCUMENTS}


def both(backend, make, arrays=ARRAYS):
    """Functions for a device, and the same for NumPy."""
    on_device = {name: backend.tensor(array) for name, array in arrays.items()}
    names = ("score_mod", "mask_mod")
    return dict(zip(names, make(grilly, **on_device), strict=True)), dict(zip(names, make(np, **arrays), strict=True))


def attend(backend, *arrays, **options):
    try:
        return backend.attention.flash_attention2(*arrays, return_lse=True, **options)
    except grilly.UnsupportedError as error:
        pytest.skip(str(error).splitlines()[0])


def close(found, want, dtype="float32"):
    for one, other in zip(found, want, strict=True):
        one = np.asarray(one, np.float64)
        assert one.shape == other.shape
        assert (np.isneginf(one) == np.isneginf(other)).all()
        assert (np.isnan(one) == np.isnan(other)).all()
        finite = np.isfinite(other)
        error = np.abs(one[finite] - other[finite]).max(initial=0)
        assert error <= ROUNDING[dtype] * max(np.abs(other[finite]).max(initial=0), 1), error


#: The kernels for any device and any strides have these alone: each is a program to compile.
CASES = [(None, make) for make in ALL]
CASES += [(kernel, make) for kernel in KERNELS[1:] for make in (documents, hides_by_scores, of_everything)]


@pytest.mark.parametrize(("kernel", "make"), CASES, ids=lambda one: getattr(one, "__name__", str(one)))
def test_functions(backend, kernel, make):
    mine, its = both(backend, make)
    arrays = problem()
    close(attend(backend, *arrays, kernel=kernel, **mine), exact(*arrays, **its))


#: Queries, keys, columns, heads, dtype.
SIZES = [
    (1, 67, 64, (4, 1), "float32"), (3, 5, 33, (4, 4), "float32"), (41, 17, 7, (4, 2), "float32"),
    (37, 53, 33, (4, 2), "float16"), (37, 53, 64, (4, 2), "bfloat16"), (37, 53, 64, (4, 2), "float16"),
    (19, 23, 128, (4, 2), "float32"), (19, 23, 200, (4, 2), "float32"),
]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size[:3])) + size[4])
@pytest.mark.parametrize("kernel", KERNELS)
def test_sizes(vulkan_backend, kernel, size):
    queries, keys, dim, heads, dtype = size
    mine, its = both(vulkan_backend, of_everything)
    arrays = problem(queries, keys, dim, heads, DTYPES[dtype])
    close(attend(vulkan_backend, *arrays, kernel=kernel, **mine), exact(*arrays, **its), dtype)


def test_beside_other_options(vulkan_backend):
    mine, its = both(vulkan_backend, alibi)
    q, k, v = arrays = problem()
    bias = RNG.standard_normal((4, 37, 53)).astype(np.float32)
    mask = RNG.random((37, 53)) < 0.7
    for kernel in KERNELS[:2]:
        given = {"attn_bias": bias, "mask": mask, "softcap": 2.0, "causal": True, "scale": 0.3, "kernel": kernel}
        found = attend(vulkan_backend, *arrays, **given, **mine)
        hidden = ~mask | (np.arange(53) > np.arange(37)[:, None] + 16)
        close(found, exact(*arrays, **its, scale=0.3, hidden=hidden, after=lambda s: 2 * np.tanh(s / 2) + bias))


def test_of_sequences_of_their_own_lengths(vulkan_backend):
    mine, its = both(vulkan_backend, relative)
    arrays = problem()
    lengths = np.int32([29, 53])
    hidden = np.arange(53) >= lengths[:, None, None, None]
    close(attend(vulkan_backend, *arrays, seqlens_k=lengths, **mine), exact(*arrays, **its, hidden=hidden))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "float16",
                                   "bfloat16", "float32"])  # fmt: skip
def test_tensors_of_every_dtype(vulkan_backend, dtype):
    array = RNG.integers(-3 if dtype[0] != "u" else 0, 4, (4, 3, 5)).astype(DTYPES.get(dtype, dtype))
    tensor = vulkan_backend.tensor(array).transpose(0, 2, 1)
    host = array.astype(np.float64).transpose(0, 2, 1)
    arrays = problem(5, 9, 16)

    def score(s, b, h, q, k):
        return s + tensor[h, q % 5, k % 3].astype("float32")

    mine = attend(vulkan_backend, *arrays, score_mod=score)
    close(mine, exact(*arrays, lambda s, b, h, q, k: s + host[h, q % 5, k % 3]))


def test_indices(vulkan_backend):
    table, number = vulkan_backend.tensor(np.float32([1, 2, 4])), vulkan_backend.tensor(np.float32(0.5))
    arrays = problem(5, 9, 16)
    close(
        attend(vulkan_backend, *arrays, score_mod=lambda s, b, h, q, k: s + table[q - 2] * table[-1] + number),
        exact(*arrays, lambda s, b, h, q, k: s + np.float32([2, 4, 1, 2, 4])[q] * 4 + 0.5),
    )
    close(
        attend(vulkan_backend, *arrays, score_mod=lambda s, b, h, q, k: s + table[q - k]),
        exact(*arrays, lambda s, b, h, q, k: s + np.float32([1, 2, 4])[np.clip(q - k + 3 * (q < k), 0, 2)]),
    )


def test_eight_tensors(vulkan_backend):
    arrays = problem(5, 9, 16)
    hosts = [RNG.standard_normal(3 + n).astype(np.float32) for n in range(8)]
    tensors = [vulkan_backend.tensor(host) for host in hosts]

    def add(tables):
        return lambda s, b, h, q, k: s + sum(table[(q + k) % len(table)] for table in tables)

    def hide(tables):
        return lambda b, h, q, k: (tables[6][q % 9] > 0) | (tables[7][k % 10] > 0)

    close(
        attend(vulkan_backend, *arrays, score_mod=add(tensors[:6]), mask_mod=hide(tensors)),
        exact(*arrays, add(hosts[:6]), hide(hosts)),
    )
    ninth = vulkan_backend.tensor(hosts[0])
    with pytest.raises(grilly.ExpressionError, match="more than 8 tensors"):
        F.flash_attention2(*arrays, score_mod=add([*tensors, ninth]))
    with pytest.raises(ValueError, match=r"read 10 tensors of 10 axes together; expected at most 8"):
        F.flash_attention2(*arrays, score_mod=add(tensors), mask_mod=hide(tensors))


@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_that_see_nothing(vulkan_backend, kernel):
    arrays = problem()
    out, lse = attend(vulkan_backend, *arrays, mask_mod=lambda b, h, q, k: (q % 2 == 0) & (k < q), kernel=kernel)
    assert (out[:, :, 1::2] == 0).all() and np.isneginf(lse[:, :, 1::2]).all() and np.isneginf(lse[:, :, 0]).all()
    close((out, lse), exact(*arrays, mask_mod=lambda b, h, q, k: (q % 2 == 0) & (k < q)))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_what_is_hidden_may_be_anything(vulkan_backend, kernel, bad):
    q, k, v = problem()
    plain = attend(vulkan_backend, q, k, v, mask_mod=lambda b, h, q, k: k < 40, kernel=kernel)
    hiding = attend(
        vulkan_backend, q, k, v, score_mod=lambda s, b, h, q, k: grilly.where(k < 40, s, -math.inf), kernel=kernel
    )
    k[:, :, 40:] = v[:, :, 40:] = bad
    other = attend(vulkan_backend, q, k, v, mask_mod=lambda b, h, q, k: k < 40, kernel=kernel)
    assert all((one == two).all() for one, two in zip(plain, other, strict=True))
    other = attend(
        vulkan_backend, q, k, v, score_mod=lambda s, b, h, q, k: grilly.where(k < 40, s, -math.inf), kernel=kernel
    )
    assert all((one == two).all() for one, two in zip(hiding, other, strict=True))


@pytest.mark.parametrize("kernel", KERNELS)
def test_nan(vulkan_backend, kernel):
    arrays = problem()
    mine = attend(
        vulkan_backend, *arrays, kernel=kernel,
        score_mod=lambda s, b, h, q, k: grilly.where((q == 3) & (k == 50) & (h == 1), math.nan, s),
    )  # fmt: skip
    want = exact(*arrays, lambda s, b, h, q, k: np.where((q == 3) & (k == 50) & (h == 1), np.nan, s))
    assert np.isnan(want[0]).any()
    close(mine, want)


def test_captured(vulkan_backend):
    rate = vulkan_backend.tensor(RATE)
    q, k, v = map(vulkan_backend.tensor, problem())

    def score(s, b, h, i, j):
        return s - rate[h] * abs(i - j)

    graph = vulkan_backend.capture(
        lambda q, k, v: vulkan_backend.attention.flash_attention2(q, k, v, score_mod=score), q, k, v
    )
    for slopes in (RATE, 2 * RATE):
        rate[...] = slopes
        mod = alibi(np, slopes)[0]
        np.testing.assert_allclose(graph(q, k, v).numpy(), exact(*problem(), mod)[0], atol=4e-6)


def test_contents_and_variables_change(vulkan_backend):
    arrays = problem(5, 9, 16)
    rate, factor = vulkan_backend.tensor(RATE), 1.0

    def score(s, b, h, q, k):
        return s + factor * rate[h] * k

    for factor in (1.0, -2.0):
        for held in (RATE, 2 * RATE):
            rate[...] = held
            found = attend(vulkan_backend, *arrays, score_mod=score)
            close(found, exact(*arrays, lambda s, b, h, q, k: s + factor * held[h] * k))  # noqa: B023
    rate = vulkan_backend.tensor(-RATE)
    close(attend(vulkan_backend, *arrays, score_mod=score), exact(*arrays, lambda s, b, h, q, k: s + 2 * RATE[h] * k))


SCORES = RNG.standard_normal((2, 3)).astype(np.float32)



def no_function(table):
    return {"score_mod": 3}, TypeError, r"score_mod is a int; expected a function of \(score, batch, head, query, key\)"


def too_few(table):
    return {"score_mod": lambda s, q, k: s}, TypeError, "does not take them: too many positional arguments"


def too_many(table):
    return {"mask_mod": lambda s, b, h, q, k: s}, TypeError, "missing a required argument: 'k'"


def truth_for_a_score(table):
    return {"score_mod": lambda s, b, h, q, k: q >= k}, grilly.ExpressionError, "returns a bool; .*mask_mod"


def number_for_a_mask(table):
    return {"mask_mod": lambda b, h, q, k: q - k}, grilly.ExpressionError, "returns int32; .*gives a bool"


def nothing(table):
    return {"score_mod": lambda s, b, h, q, k: None}, grilly.ExpressionError, r"returns nothing \(None\)"


def two_scores(table):
    return {"score_mod": lambda s, b, h, q, k: (s, s)}, grilly.ExpressionError, "returns several values"


def writes(table):
    def score(s, b, h, q, k):
        table[h, q] = s
        return s

    return {"score_mod": score}, grilly.ExpressionError, "the function writes to a tensor"


def branches(table):
    return {"score_mod": lambda s, b, h, q, k: s if q > k else -s}, grilly.ExpressionError, "grilly.where"


def beyond(table):
    return {"score_mod": lambda s, b, h, q, k: s + table[2, q]}, IndexError, "index 2 is out of bounds for axis 0"


def far_below(table):
    return {"score_mod": lambda s, b, h, q, k: s + table[q, -4]}, IndexError, "index -4 is out of bounds for axis 1"


def one_index(table):
    return {"score_mod": lambda s, b, h, q, k: s + table[q]}, grilly.ExpressionError, "read by 2 indices, not 1"


def float_index(table):
    return {"score_mod": lambda s, b, h, q, k: s + table[s, 0]}, grilly.ExpressionError, "index of a tensor is float32"


def a_slice(table):
    return {"score_mod": lambda s, b, h, q, k: s + table[q, 1:]}, grilly.ExpressionError, "index of a tensor is a slice"


def whole(table):
    return {"score_mod": lambda s, b, h, q, k: s + table}, grilly.ExpressionError, "computes with a tensor of shape"


def of_numpy(table):
    return {"score_mod": lambda s, b, h, q, k: s + SCORES[q, k]}, grilly.ExpressionError, "takes a scalar for a number"


def made_inside(table):
    return {"score_mod": lambda s, b, h, q, k: s + (table * 2)[h, q]}, grilly.ExpressionError, "makes a tensor of shape"


WRONG = [no_function, too_few, too_many, truth_for_a_score, number_for_a_mask, nothing, two_scores, writes, branches,
         beyond, far_below, one_index, float_index, a_slice, whole, of_numpy, made_inside]  # fmt: skip


@pytest.mark.parametrize("make", WRONG, ids=lambda make: make.__name__)
def test_what_is_refused(vulkan_backend, make):
    options, error, said = make(vulkan_backend.tensor(SCORES))
    with pytest.raises(error, match=said):
        vulkan_backend.attention.flash_attention2(*problem(5, 9, 16), **options)


def test_kernels_without_functions_say_so(vulkan_backend):
    options = {"kernel": "attention-naive", "mask_mod": lambda b, h, q, k: k < q}
    with pytest.raises(grilly.UnsupportedError, match=r"it does not offer a mask function \(mask_mod\)"):
        vulkan_backend.attention.flash_attention2(*problem(), **options)


def test_a_table_of_truth_values_behind_another_tensor(vulkan_backend):
    table, first = RNG.random((9, 16)) < 0.5, np.int32([3])
    tensors = vulkan_backend.tensor(first), vulkan_backend.tensor(table)
    arrays = problem(5, 9, 16)

    def seen(first, table):
        return lambda b, h, q, k: (k < first[0]) | table[q, k]

    close(attend(vulkan_backend, *arrays, mask_mod=seen(*tensors)), exact(*arrays, mask_mod=seen(first, table)))


def test_integers_of_64_bits_behind_another_tensor(vulkan_backend):
    rate, lengths = np.float32([0.1, 0.2, 0.3]), np.int64([7])
    own_rate, own_lengths = vulkan_backend.tensor(rate), vulkan_backend.tensor(lengths)
    arrays = problem(5, 9, 16)
    want = exact(*arrays, lambda s, b, h, q, k: s + rate[q % 3] * k, lambda b, h, q, k: k < lengths[0])

    def score(s, b, h, q, k):
        return s + own_rate[q % 3] * k

    def seen(b, h, q, k):
        return (own_rate[q % 3] > 0) & (k < own_lengths[b * 0])

    for mask in (seen, grilly.block_mask(seen, None, None, 5, 9)):
        close(attend(vulkan_backend, *arrays, score_mod=score, mask_mod=mask), want)


def test_no_other_function_reads_by_scalars(vulkan_backend):
    table = vulkan_backend.tensor(RATE)
    with pytest.raises(grilly.ExpressionError, match="which score_mod and mask_mod of attention do"):
        grilly.elementwise(lambda x: table[x])(np.arange(3))
