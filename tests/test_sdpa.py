"""F.scaled_dot_product_attention: PyTorch's signature and rules, against PyTorch and against float64."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import grilly
import grilly.functional as F
from cases import DTYPES, SIXTEEN_BITS, assert_as_accurate, epsilon
from grilly import reference
from kernels import pretend


@pytest.fixture
def attend(backend):
    """The function on the fixture's backend."""
    former = grilly.use(backend)
    yield F.scaled_dot_product_attention
    grilly.use(former)


def draw(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def operands(q, k, v, dtype=np.float32):
    return draw(*q, dtype=dtype, seed=1), draw(*k, dtype=dtype, seed=2), draw(*v, dtype=dtype, seed=3)


def torch_of(array):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def by_torch(arrays, **options):
    """PyTorch's result on the processor, computed in float64 from the same numbers."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    options = {n: torch_of(o) if isinstance(o, np.ndarray) else o for n, o in options.items()}
    if "attn_mask" in options and options["attn_mask"].is_floating_point():
        options["attn_mask"] = options["attn_mask"].double()
    arrays = [torch_of(a).double() for a in arrays]
    return torch.nn.functional.scaled_dot_product_attention(*arrays, **options).numpy()


SHAPES = {
    "2-axes": ((5, 8), (7, 8), (7, 8)),
    "3-axes": ((3, 5, 8), (3, 7, 8), (3, 7, 3)),
    "4-axes": ((2, 3, 31, 33), (2, 3, 37, 33), (2, 3, 37, 65)),
    "5-axes": ((2, 1, 3, 5, 8), (1, 4, 3, 7, 8), (2, 4, 1, 7, 8)),
    "6-axes": ((2, 1, 2, 3, 5, 8), (2, 1, 2, 3, 7, 8), (2, 1, 2, 3, 7, 8)),
    "key-batch": ((4, 2, 5, 8), (1, 2, 7, 8), (1, 2, 7, 8)),
    "query-batch": ((1, 2, 5, 8), (4, 2, 7, 8), (4, 2, 7, 8)),
    "key-head": ((2, 4, 5, 8), (2, 1, 7, 8), (2, 1, 7, 8)),
    "query-head": ((2, 1, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8)),
    "value-head": ((2, 4, 5, 8), (2, 4, 7, 8), (2, 1, 7, 8)),
    "ranks": ((3, 5, 8), (2, 3, 7, 8), (7, 8)),
    "square": ((2, 2, 67, 64), (2, 2, 67, 64), (2, 2, 67, 64)),
    "more-queries": ((1, 2, 131, 40), (1, 2, 61, 40), (1, 2, 61, 40)),
    "more-keys": ((1, 2, 61, 40), (1, 2, 131, 40), (1, 2, 131, 40)),
    "one-query": ((2, 2, 1, 16), (2, 2, 9, 16), (2, 2, 9, 16)),
    "no-keys": ((2, 2, 5, 16), (2, 2, 0, 16), (2, 2, 0, 16)),
    "no-queries": ((2, 2, 0, 16), (2, 2, 5, 16), (2, 2, 5, 16)),
}


WIDE = ("4-axes", "5-axes", "more-queries", "more-keys")


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name, dtype", [
    *(pytest.param(name, np.float32, id=f"{name}-float32") for name in SHAPES),
    *(pytest.param(name, *d.values, id=f"{name}-{d.id}", marks=d.marks) for name in WIDE for d in SIXTEEN_BITS),
])  # fmt: skip
@pytest.mark.parametrize("causal", [False, True])
def test_as_pytorch(attend, name, causal, dtype):
    arrays = operands(*SHAPES[name], dtype)
    exact = by_torch(arrays, is_causal=causal)
    got = attend(*arrays, is_causal=causal)
    assert got.dtype == dtype and got.shape == exact.shape
    # Unit normal values, averaged: within a few roundings of the largest.
    bound = 4 * max(epsilon(dtype), 2e-7) * max(np.abs(arrays[2].astype(np.float64)).max(initial=0), 1)
    assert np.abs(got.astype(np.float64) - exact).max(initial=0) <= bound


@pytest.mark.needs("torch")
@pytest.mark.parametrize("scale", [None, 0.0, -0.3, 1.7])
def test_scale(attend, scale):
    arrays = operands((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8))
    np.testing.assert_allclose(attend(*arrays, scale=scale), by_torch(arrays, scale=scale), rtol=0, atol=2e-6)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("heads, kv_heads", [(6, 2), (5, 1), (3, 3)])
@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_grouped_heads(attend, heads, kv_heads, lead):
    arrays = operands((*lead, heads, 9, 16), (*lead, kv_heads, 11, 16), (*lead, kv_heads, 11, 16))
    for causal in (False, True):
        got = attend(*arrays, is_causal=causal, enable_gqa=True)
        exact = by_torch(arrays, is_causal=causal, enable_gqa=True)
        np.testing.assert_allclose(got, exact, rtol=0, atol=2e-6)


MASKS = [(5, 7), (1, 7), (5, 1), (1, 5, 7), (3, 1, 7), (2, 1, 5, 7), (2, 1, 1, 7), (1, 3, 5, 7)]


@pytest.mark.needs("torch")
@pytest.mark.parametrize("shape", MASKS, ids=str)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks(attend, backend, shape, kind):
    arrays = operands((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8))
    mask = draw(*shape, seed=4)
    mask = mask > -0.5 if kind == "bool" else np.where(mask > 1, np.float32(-np.inf), mask)
    exact = by_torch(arrays, attn_mask=mask)
    np.testing.assert_allclose(attend(*arrays, attn_mask=mask), exact, rtol=0, atol=2e-6)
    out = attend(*map(backend.tensor, arrays), attn_mask=backend.tensor(mask))
    assert isinstance(out, grilly.Tensor)
    np.testing.assert_allclose(out.numpy(), exact, rtol=0, atol=2e-6)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("shape", [(5, 7), (2, 1, 1, 5, 7), (1, 4, 3, 1, 7), (2, 4, 3, 5, 7), (4, 1, 5, 7)], ids=str)
def test_masks_of_many_axes(attend, backend, shape):
    arrays = operands((2, 1, 3, 5, 8), (1, 4, 3, 7, 8), (1, 4, 3, 7, 8))
    mask = draw(*shape, seed=4) > -0.5
    exact = by_torch(arrays, attn_mask=mask)
    np.testing.assert_allclose(attend(*arrays, attn_mask=mask), exact, rtol=0, atol=2e-6)
    np.testing.assert_allclose(attend(*arrays, attn_mask=backend.tensor(mask)), exact, rtol=0, atol=2e-6)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("mask", ["bool", "infinity", "lowest"])
def test_rows_with_nothing_to_attend_to(attend, mask):
    """Zeros; but the lowest finite number is a number to PyTorch: all keys count alike."""
    arrays = operands((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8))
    if mask == "bool":
        given = np.ones((5, 7), bool)
        given[2] = False
    else:
        given = np.zeros((5, 7), np.float32)
        given[2] = -np.inf if mask == "infinity" else np.finfo(np.float32).min
    got = attend(*arrays, attn_mask=given)
    np.testing.assert_allclose(got, by_torch(arrays, attn_mask=given), rtol=0, atol=2e-6)
    want = arrays[2].mean(-2) if mask == "lowest" else np.zeros((2, 3, 8))
    np.testing.assert_allclose(got[:, :, 2], want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries, keys", [(127, 127), (127, 67), (67, 127)])
def test_against_float64(attend, queries, keys, dtype):
    """Judged as the other kernels are; the causal mask is the lower triangle from the top left."""
    q, k, v = operands((2, 3, queries, 64), (2, 3, keys, 64), (2, 3, keys, 64), dtype)
    mask = np.tri(queries, keys, dtype=bool)
    exact, _ = reference.naive_attention(q, k, v, mask=mask, dtype=np.float64)
    plain, _ = reference.naive_attention(*(a.astype(np.float32) for a in (q, k, v)), mask=mask)
    terms, _ = reference.naive_attention(q, k, np.abs(v), mask=mask, dtype=np.float64)
    assert_as_accurate(attend(q, k, v, is_causal=True), exact, plain.astype(dtype), magnitude=terms.max())


@pytest.mark.needs("torch")
def test_tensors_of_any_strides(attend, backend):
    x = draw(2, 19, 3, 4, 16)
    q, k, v = (backend.tensor(x[:, :, i]).transpose(0, 2, 1, 3) for i in range(3))
    out = attend(q, k, v, is_causal=True)
    want = by_torch([np.ascontiguousarray(x[:, :, i].transpose(0, 2, 1, 3)) for i in range(3)], is_causal=True)
    np.testing.assert_allclose(out.numpy(), want, rtol=0, atol=2e-6)


def test_broadcasting_repeats_nothing(attend, backend):
    """A batch of one key array beside sixteen queries is read sixteen times, not copied."""
    q, k = draw(16, 2, 8, 64), draw(1, 2, 4096, 64)
    tensors = [backend.tensor(a) for a in (q, k, k)]
    backend.synchronize()
    before = backend.memory(reset_peak=True).in_use
    out = attend(*tensors)
    assert backend.memory().peak - before < k.nbytes + q.nbytes
    del out


@pytest.mark.needs("torch")
def test_signature_is_pytorchs():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    text = torch.nn.functional.scaled_dot_product_attention.__doc__
    signature = inspect.signature(F.scaled_dot_product_attention)
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]  # which is refused, in words
    words = [f"{p.name}={p.default}" if p.default is not p.empty else p.name for p in parameters]
    assert f"scaled_dot_product_attention({', '.join(words)})" in " ".join(text.split())


# -- dropout ---------------------------------------------------------------------------------------------------------


def test_dropout_drops_what_the_generator_says(attend):
    q, k, v = operands((2, 3, 21, 16), (2, 3, 37, 16), (2, 3, 37, 16))
    grilly.manual_seed(2**40 + 17)
    first, second = attend(q, k, v, dropout_p=0.3), attend(q, k, v, dropout_p=0.3, is_causal=True)
    weights = reference.attention_weights(q.astype(np.float64), k.astype(np.float64))
    kept = reference.dropout_mask((2, 3, 21, 37), 0.3, 2**40 + 17, 0)
    np.testing.assert_allclose(first, weights * kept / 0.7 @ v, rtol=0, atol=3e-6)
    causal = np.tri(21, 37, dtype=bool)
    weights = reference.attention_weights(q.astype(np.float64), k.astype(np.float64), mask=causal)
    kept = reference.dropout_mask((2, 3, 21, 37), 0.3, 2**40 + 17, 1)
    np.testing.assert_allclose(second, weights * kept / 0.7 @ v, rtol=0, atol=3e-6)


def test_dropout_repeats_after_manual_seed(attend):
    x = draw(1, 2, 16, 8)
    grilly.manual_seed(3)
    runs = [attend(x, x, x, dropout_p=0.5) for _ in range(2)]
    assert not np.array_equal(*runs)
    grilly.manual_seed(3)
    for run in runs:
        np.testing.assert_array_equal(attend(x, x, x, dropout_p=0.5), run)
    attend(x, x, x)
    grilly.manual_seed(3)
    attend(x, x, x)  # without dropout, which draws nothing
    np.testing.assert_array_equal(attend(x, x, x, dropout_p=0.5), runs[0])


def test_everything_dropped(attend):
    x = draw(1, 2, 16, 8)
    assert not attend(x, x, x, dropout_p=1.0).any()
    assert not attend(x, x, x, dropout_p=1.0, is_causal=True).any()


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 5, 7), (1, 2, 33, 515), (3, 9, 8), (4, 6)], ids=str)
def test_attention_dropout_is_the_reference_generator(backend, shape):
    weights = draw(*shape)
    got = F.attention_dropout(backend.tensor(weights), dropout_p=0.25, dropout_seed=2**63 + 5, dropout_offset=2**31)
    full = (1,) * (4 - len(shape)) + shape
    kept = reference.dropout_mask(full, 0.25, 2**63 + 5, 2**31).reshape(shape)
    np.testing.assert_allclose(got.numpy(), np.where(kept, weights / 0.75, 0), rtol=3e-7)


def test_attention_dropout_strided_and_cut(backend, monkeypatch):
    """A view of a larger array; and a call that several dispatches do drops what one would."""
    x = draw(3, 4, 40, 24)
    tensor = backend.tensor(x)[:, ::2, 1::3]
    options = {"dropout_p": 0.5, "dropout_seed": 11}
    kept = reference.dropout_mask((3, 2, 13, 24), 0.5, 11)
    want = np.where(kept, x[:, ::2, 1::3] * 2, 0)
    np.testing.assert_array_equal(F.attention_dropout(tensor, **options).numpy(), want)
    pretend(monkeypatch, backend, groups=(1, 2, 2))
    np.testing.assert_array_equal(F.attention_dropout(tensor, **options).numpy(), want)


# -- errors ----------------------------------------------------------------------------------------------------------

X = np.zeros((2, 4, 5, 8), np.float32)
NAME = "scaled_dot_product_attention: "


@pytest.mark.parametrize(
    "arrays, options, error, message",
    [
        ((X, X[:, :2], X[:, :2]), {}, ValueError, "leading axes do not broadcast.*set enable_gqa=True"),
        ((X, X[:, :3], X[:, :3]), {"enable_gqa": True}, ValueError, "key has 3 heads and query has 4"),
        ((X, X[:, :2], X), {"enable_gqa": True}, ValueError, "key has 2 heads and value has 4"),
        ((X[0, 0], X[0, 0], X[0, 0]), {"enable_gqa": True}, ValueError, "at least 3 axes"),
        ((X[0, 0, 0], X, X), {}, ValueError, "query has shape .8,.; expected at least 2 axes"),
        ((X, X[..., :4], X), {}, ValueError, "key has 4 elements in its last axis and query has 8"),
        ((X, X, X[:, :, :3]), {}, ValueError, "key has 5 keys and value has 3"),
        ((X, X, X.astype(np.float16)), {}, TypeError, "value is float16 and query is float32"),
        ((X.astype(np.float64), X, X), {}, TypeError, "query is float64"),
        ((X.tolist(), X, X), {}, TypeError, "query is a list"),
        ((X, X, X), {"attn_mask": np.ones((5, 5), bool), "is_causal": True}, ValueError, "leave one out"),
        ((X, X, X), {"attn_mask": np.ones(5, bool)}, ValueError, "two axes or more"),
        ((X, X, X), {"attn_mask": np.ones((3, 5), bool)}, ValueError, "broadcast to"),
        ((X, X, X), {"attn_mask": np.ones((1, 2, 4, 5, 5), bool)}, ValueError, "broadcast to"),
        ((X, X, X), {"attn_mask": np.ones((5, 5), np.int32)}, TypeError, "attn_mask is int32"),
        ((X, X, X), {"attn_mask": True}, TypeError, "attn_mask is a bool"),
        ((X, X, X), {"dropout_p": 1.5}, ValueError, "dropout_p is 1.5"),
        ((X, X, X), {"dropout_p": float("nan")}, ValueError, "dropout_p is nan"),
        ((X, X, X), {"scale": float("inf")}, ValueError, "scale is inf"),
    ],
)  # fmt: skip
def test_errors(attend, arrays, options, error, message):
    with pytest.raises(error, match=NAME + ".*" + message):
        attend(*arrays, **options)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"dropout_p": 1.0, "dropout_seed": 0}, ValueError, "dropout_p is 1.0"),
        ({"dropout_p": 0.5, "dropout_seed": -1}, ValueError, "dropout_seed is -1"),
        ({"dropout_p": 0.5, "dropout_seed": 0, "dropout_offset": 2**32}, ValueError, "dropout_offset is 4294967296"),
        ({"dropout_p": 0.5, "dropout_seed": 0.5}, TypeError, "integer"),
    ],
)
def test_attention_dropout_errors(backend, options, error, message):
    with pytest.raises(error, match=message):
        F.attention_dropout(backend.tensor(X), **options)


@pytest.mark.parametrize("seed, error", [(-1, ValueError), (2**64, ValueError), (1.5, TypeError)])
def test_manual_seed_errors(seed, error):
    with pytest.raises(error):
        grilly.manual_seed(seed)


@pytest.mark.parametrize("function", [F.flash_attention2, F.flash_attention3], ids=lambda f: f.__name__)
def test_attention_without_a_seed_draws_as_it_does(default, function):
    """Each call drops other weights; the same seed, the same in the same order. Gradients ask for the seed."""
    x = np.random.default_rng(0).standard_normal((1, 2, 9, 8), dtype=np.float32)
    grilly.manual_seed(7)
    first, second = (function(x, x, x, dropout_p=0.5) for _ in range(2))
    assert not np.array_equal(first, second)
    grilly.manual_seed(7)
    np.testing.assert_array_equal(function(x, x, x, dropout_p=0.5), first)
    given = function(x, x, x, dropout_p=0.5, dropout_seed=7, dropout_offset=1)
    np.testing.assert_array_equal(given, second)
    out, lse = function(x, x, x, dropout_p=0.5, return_lse=True)
    with pytest.raises(ValueError, match="flash_attention2_backward: .* no dropout_seed; give that of"):
        F.flash_attention2_backward(x, x, x, x, out, lse, dropout_p=0.5)


def test_packed_sequences_without_a_seed_draw_too(default):
    x, starts = np.random.default_rng(0).standard_normal((9, 2, 8), dtype=np.float32), np.array([0, 4, 9], np.int32)
    grilly.manual_seed(7)
    first, second = (F.flash_attention_varlen(x, x, x, starts, starts, 5, 5, dropout_p=0.5) for _ in range(2))
    assert not np.array_equal(first, second)
    grilly.manual_seed(7)
    np.testing.assert_array_equal(F.flash_attention_varlen(x, x, x, starts, starts, 5, 5, dropout_p=0.5), first)


@pytest.mark.parametrize("causal", ["False", "no", np.ones((9, 9), bool), 0.5])
def test_causal_is_true_or_false(default, causal):
    x = np.ones((1, 2, 9, 8), np.float32)
    for call in (lambda: F.flash_attention2(x, x, x, causal=causal),
                 lambda: F.scaled_dot_product_attention(x, x, x, is_causal=causal)):  # fmt: skip
        with pytest.raises(TypeError, match="causal is a .*; expected True or False"):
            call()
