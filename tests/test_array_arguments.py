"""What the functions of arrays take: NumPy's arrays as well as tensors, numbers of any size; and what they refuse."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import grilly
import grilly.functional as F
from equal import same
from grilly import array_api as xp
from kernels import of_one_storage

X = np.arange(6, dtype=np.float32).reshape(2, 3)
ROW = X[0]
#: How each function is called with NumPy's arrays alone, where not by one floating array.
CALLS = {
    "arange": None, "asarray": None, "eye": None, "full": None, "linspace": None, "isdtype": None, "finfo": None,
    "iinfo": None, "empty": None, "ones": None, "zeros": None, "from_dlpack": None, "e": None, "empty_like": None,
    "__array_namespace_info__": None, "result_type": None, "can_cast": None,
    "astype": lambda f, x: f(x, grilly.float16), "broadcast_to": lambda f, x: f(x, (4, 2, 3)),
    "broadcast_arrays": lambda f, x: f(x, x[0])[1], "concat": lambda f, x: f([x, x]), "stack": lambda f, x: f([x, x]),
    "clip": lambda f, x: f(x, 1, 2), "split": lambda f, x: f(x, 2)[1], "diff": lambda f, x: f(x, prepend=x[:, :1]),
    "full_like": lambda f, x: f(x, 3), "meshgrid": lambda f, x: f(x[0], x[1])[0],
    "matmul": lambda f, x: f(x, x.T), "moveaxis": lambda f, x: f(x, 0, 1), "nonzero": lambda f, x: f(x)[1],
    "permute_dims": lambda f, x: f(x, (1, 0)), "repeat": lambda f, x: f(x, 2), "reshape": lambda f, x: f(x, (3, 2)),
    "roll": lambda f, x: f(x, 1), "searchsorted": lambda f, x: f(x[0], x), "squeeze": lambda f, x: f(x[:1], 0),
    "take": lambda f, x: f(x, [1], axis=1), "tensordot": lambda f, x: f(x, x.T, axes=1),
    "take_along_axis": lambda f, x: f(x, np.zeros((2, 1), np.int64), axis=1), "tile": lambda f, x: f(x, (2,)),
    "topk": lambda f, x: f(x, 1)[0], "unique_all": lambda f, x: f(x)[0], "unique_counts": lambda f, x: f(x)[1],
    "unique_inverse": lambda f, x: f(x)[1], "unstack": lambda f, x: f(x)[1], "where": lambda f, x: f(x > 1, x, 0),
    "cumulative_sum": lambda f, x: f(x, axis=0), "cumulative_prod": lambda f, x: f(x, axis=0),
}  # fmt: skip
INTEGERS = {"bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "bitwise_invert"}


@pytest.mark.parametrize("name", [n for n in xp.__all__ if callable(getattr(xp, n)) and CALLS.get(n, n) is not None])
def test_every_function_takes_arrays_of_numpy(vulkan_backend, name):
    """They go to the device first, to that of the tensors beside them or to the default one; the rest is refused."""
    function = getattr(xp, name)
    if isinstance(function, np.dtype):
        pytest.skip("a dtype")
    x = X.astype(np.int32) if name in INTEGERS else X
    operands = [p for p in inspect.signature(function).parameters.values() if p.kind == p.POSITIONAL_ONLY]
    call = CALLS.get(name) or (lambda f, x: f(*(x for _ in operands)))
    former = grilly.use(vulkan_backend)
    try:
        found, wanted = call(function, x), call(function, grilly.asarray(x))
        assert isinstance(found, grilly.Tensor)
        same(found, wanted.numpy())
        for odd, words in (([1.0, 2.0], r"list.*grilly\.asarray"), (None, "None")):

            def with_odd(first, *more, odd=odd, **named):
                return function([odd, odd] if isinstance(first, list) else odd, *more, **named)

            with pytest.raises(TypeError, match=words):
                call(with_odd, x)
    finally:
        grilly.use(former)


def test_an_array_goes_to_the_tensor_beside_it(vulkan_backend):
    """And not to the default backend."""
    with grilly.Compute() as other:
        former = grilly.use(other)
        try:
            t = vulkan_backend.tensor(X)
            for found in (
                xp.matmul(t, X.T), xp.matmul(X.T, t), xp.concat([X, t]), xp.isin(t, X), xp.isin(X, t),
                xp.searchsorted(t[0], X), xp.searchsorted(ROW, t), xp.vecdot(X, t), xp.tensordot(t, X.T, axes=1),
                xp.where(X > 1, t, X), xp.diff(t, append=X), xp.broadcast_arrays(X, t)[0],
                grilly.linalg.outer(ROW, t[1]), xp.zeros_like(t),
            ):  # fmt: skip
                assert found.backend is vulkan_backend
        finally:
            grilly.use(former)


def test_what_is_no_backend_is_refused():
    with pytest.raises(TypeError, match="'cpu'; expected a grilly.Compute"):
        grilly.zeros(3, device="cpu")
    with pytest.raises(TypeError, match="list speaks no DLPack; grilly.asarray"):
        grilly.from_dlpack([1.0])


def test_arange_of_any_integers(vulkan_backend):
    for numbers in ((np.int64(5),), (np.int32(2), np.int32(9), np.int32(3)), (vulkan_backend.tensor(np.array(4)),),
                    (2**60, 2**60 + 3), (7, -3, -4), (3, 3), (5, 0)):  # fmt: skip
        same(grilly.arange(*numbers, device=vulkan_backend), np.arange(*(int(n) for n in numbers)))
    # a quotient that floating numbers round
    same(grilly.arange(0, 2**60 + 1, 2**60, device=vulkan_backend), np.array([0, 2**60]))
    for numbers in ((0, 5, 0), (float("nan"),), (0, float("inf"))):
        with pytest.raises(ValueError, match="arange: from"):
            grilly.arange(*numbers, device=vulkan_backend)
    with pytest.raises(TypeError, match="stop is 'a'"):
        grilly.arange("a", device=vulkan_backend)


def test_integers_that_a_dtype_does_not_hold(vulkan_backend):
    t = vulkan_backend.tensor(np.arange(3, dtype=np.uint8))
    for call in (
        lambda: grilly.full((2,), 300, dtype="uint8", device=vulkan_backend),
        lambda: grilly.full((2,), 2**63, device=vulkan_backend), lambda: grilly.full_like(t, -1),
        lambda: grilly.arange(300, dtype="uint8", device=vulkan_backend),
        lambda: t.__setitem__(0, 256), lambda: t.__setitem__(slice(None), [1, 2, -3]), lambda: t + 256,
    ):  # fmt: skip
        with pytest.raises(OverflowError, match="out of bounds for (uint8|int64)"):
            call()
    for odd in (None, "1", 1j):
        with pytest.raises(TypeError, match="expected numbers"):
            t[0] = odd
    same(t, np.arange(3, dtype=np.uint8))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_floats_that_an_integer_dtype_does_not_hold(vulkan_backend, dtype):
    """They have no integer that they could be cut to; those that have one are cut, as NumPy does."""
    t = vulkan_backend.tensor(np.arange(3).astype(dtype))
    for odd in (float("nan"), float("inf"), -1e30, np.float32("nan"), float(np.iinfo(dtype).max + 1)):
        for call in (
            lambda: t.__setitem__(0, odd), lambda: t.__setitem__([1, 2], [0.0, odd]),  # noqa: B023
            lambda: t.__setitem__(0, np.array(odd)), lambda: grilly.full((2,), odd, dtype=dtype),  # noqa: B023
            lambda: grilly.asarray([1.0, odd], dtype=dtype, device=vulkan_backend),  # noqa: B023
            lambda: grilly.asarray(np.array([1.0, odd]), dtype=dtype, device=vulkan_backend),  # noqa: B023
        ):  # fmt: skip
            with pytest.raises(OverflowError, match=f"out of bounds for {dtype}"):
                call()
    same(t, np.arange(3).astype(dtype))
    t[:] = [254.9, -0.5, 3.0]
    same(t, np.array([254, 0, 3], dtype))
    t[1] = np.float64(7.5)
    same(t, np.array([254, 7, 3], dtype))


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32", "bool"])
def test_comparison_with_integers_beyond_64_bits(vulkan_backend, dtype):
    """As NumPy's: they are above or below all elements."""
    x = np.array([0, 1, 2**63 - 1]).astype(dtype) if dtype == "int64" else np.arange(3).astype(dtype)
    t = vulkan_backend.tensor(x)
    for number in (2**63, 2**70, -(2**63) - 1, -(2**200), 10**400):
        for name in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"):
            want = np.full(3, getattr(np, name)(0.0, np.inf if number > 0 else -np.inf))
            same(getattr(xp, name)(t, number), want)
            same(getattr(xp, name)(number, t), np.full(3, getattr(np, name)(np.inf if number > 0 else -np.inf, 0.0)))


def test_an_integer_beyond_float32_is_an_infinity(vulkan_backend):
    t = vulkan_backend.tensor(ROW)
    for number, want in ((2**200, np.inf), (-(10**400), -np.inf), (2**100, 2.0**100)):
        same(t * 0 + number, np.full(3, want, np.float32))


def test_floats_that_a_range_of_integers_passes(vulkan_backend):
    for ends, dtype in (((0, 1e10, 5e9), "int32"), ((-1.5, 2), "uint8"), ((0.0, 1e20, 5e19), "int64")):
        with pytest.raises(OverflowError, match=f"arange: .* is out of bounds for {dtype}"):
            grilly.arange(*ends, dtype=dtype, device=vulkan_backend)
    same(grilly.arange(-0.5, 2, dtype="uint8", device=vulkan_backend), np.array([0, 0, 1], np.uint8))


def test_integers_to_a_negative_power(vulkan_backend):
    t = vulkan_backend.tensor(np.array([2, 3]))
    with pytest.raises(ValueError, match="pow: int64 to the power -1 is no integer"):
        t**-1
    with pytest.raises(ValueError, match="pow: int64 to the power -2 is no integer"):
        t **= -2
    same(t, np.array([2, 3]))
    same(vulkan_backend.tensor(np.array([2.0], np.float32)) ** -1, np.array([0.5], np.float32))


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_masked_arrays_and_matrices_are_refused(vulkan_backend):
    """The first hide elements that would count, the second mean something else by *."""
    ones = np.ones((2, 3), np.float32)
    masked, t = np.ma.masked_array(ones, True), vulkan_backend.tensor(ones)
    for call in (
        lambda: grilly.asarray(masked, device=vulkan_backend), lambda: vulkan_backend.tensor(masked),
        lambda: t + masked,
        lambda: t.__setitem__(0, masked[0]), lambda: F.softmax(masked), lambda: F.linear(t, masked),
        lambda: F.scaled_dot_product_attention(t, t, t, attn_mask=np.ma.masked_array(np.ones((2, 2), bool), True)),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=r"^(?!.*no array for).*a masked array hides .* give array.filled\(value\)"):
            call()
    with pytest.raises(TypeError, match="numpy.matrix, whose .* give numpy.asarray"):
        np.matrix([[1.0, 2.0, 3.0]]) * t


def test_split(vulkan_backend):
    x = np.arange(60).reshape(3, 4, 5)
    t = vulkan_backend.tensor(x)
    for parts, axis in ((2, 1), (5, -1), ([1, 3], 2), ([], 0), ([0, 2, 2], 1), ([-2], 2)):
        found = grilly.split(t, parts, axis=axis)
        for mine, theirs in zip(found, np.split(x, parts, axis), strict=True):
            same(mine, theirs)
            assert of_one_storage(mine, t)
    for places in ([2], [1, 3]):
        for own in (np.array(places), vulkan_backend.tensor(np.array(places))):
            assert [part.shape for part in grilly.split(t, own, axis=1)] == [
                part.shape for part in np.split(x, places, 1)
            ]
    assert len(grilly.split(t, vulkan_backend.tensor(np.array(3)))) == 3
    for parts in (2, 0, -1):
        with pytest.raises(ValueError, match="split: axis 0 has extent 3"):
            grilly.split(t, parts)
    with pytest.raises(TypeError, match="split"):
        grilly.split(t, 1.5)


def test_kinds_of_dtypes():
    """Also of those that no tensor has."""
    kinds = ("bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating", "numeric")
    letters = dict(zip(kinds, ("?", "bhilq", "BHILQ", "bhilqBHILQ", "efd", "FD", "bhilqBHILQefdFD"), strict=True))
    for kind in kinds:
        for dtype in map(np.dtype, "?bhilqBHILQefdFD"):
            assert grilly.isdtype(dtype, kind) == (dtype.char in letters[kind]), (dtype, kind)
        assert grilly.isdtype("bfloat16", kind) == (kind in ("real floating", "numeric"))
    assert grilly.isdtype("float64", ("bool", "real floating")) and grilly.isdtype(np.float64, "float64")
    assert not grilly.isdtype("float32", "float64") and not grilly.isdtype("float64", np.float32)
    for kind in ("floating", "f4", ""):
        with pytest.raises(ValueError, match=f"kind is '{kind}'; expected one of bool, signed integer"):
            grilly.isdtype("float32", kind)


@pytest.mark.parametrize("name", ["zeros_like", "ones_like", "empty_like"])
def test_likes_of_what_is_no_array(name):
    with pytest.raises(TypeError, match=f"^{name}: "):
        getattr(grilly, name)([1, 2])


@pytest.mark.parametrize("shape", [(5,), [2, 5], np.array([2, 5]), 5, np.int64(5), np.array(5)], ids=str)
def test_broadcast_to_any_integers(vulkan_backend, shape):
    x = np.arange(5)
    same(vulkan_backend.tensor(x).broadcast_to(shape), np.broadcast_to(x, shape))


def test_broadcast_to_other_than_integers(vulkan_backend):
    t = vulkan_backend.tensor(np.ones((1, 3), np.float32))
    for shape in ((2.5, 3), (2.0, 3.0), ("2", 3), None, 3.0):
        with pytest.raises(TypeError, match="integer"):
            t.broadcast_to(shape)


def test_bfloat16_by_its_name():
    assert grilly.bfloat16 == grilly.asarray([1.0], dtype="bfloat16").dtype and "bfloat16" not in grilly.__all__


@pytest.mark.parametrize("call, words", [
    (lambda t: grilly.repeat(t, 2.0), "repeat: repeats is 2.0; expected an integer"),
    (lambda t: grilly.tile(t, (1.5,)), "tile: an extent of the shape is 1.5"), (lambda t: t[1.0], "an index is 1.0"),
    (lambda t: t["a"], "an index is 'a'"), (lambda t: grilly.roll(t, 1.5), "roll: shift is 1.5; expected an integer"),
    (lambda t: grilly.sum(t, axis=1.0), "sum: axis is 1.0; expected an integer"),
    (lambda t: grilly.sort(t, axis="x"), "sort: axis is 'x'"), (lambda t: round(t, 2), "round: ndigits is 2"),
    (lambda t: grilly.cumulative_sum(t, axis=0.0), "cumulative_sum: axis is 0.0"),
], ids=range(9))  # fmt: skip
def test_what_is_no_integer_is_said_with_the_function(vulkan_backend, call, words):
    with pytest.raises(TypeError, match=words):
        call(vulkan_backend.tensor(X))


def test_python_s_own_functions_of_numbers(vulkan_backend):
    t, x = vulkan_backend.tensor(X * 0.75 - 2.2), X * np.float32(0.75) - np.float32(2.2)
    same(round(t), np.round(x))
    wanted = (*divmod(x, 2), *divmod(np.float32(7), x - 1))
    for mine, theirs in zip((*divmod(t, 2), *divmod(7, t - 1)), wanted, strict=True):
        same(mine, theirs)
    same(grilly.tile(t, 2), np.tile(x, 2))
    with pytest.raises(ValueError, match="normal: std is -1"):
        grilly.random.normal((2,), std=-1, device=vulkan_backend)


@pytest.mark.parametrize("call, word", [
    (lambda t: grilly.sum(t, dim=0), "'dim'; here give axis"), (lambda t: grilly.mean(t, 0, keepdim=True), "keepdims"),
    (lambda t: grilly.std(t, ddof=1), "correction"), (lambda t: grilly.var(t, unbiased=True), "correction=1"),
    (lambda t: grilly.argmax(t, dim=1), "axis"), (lambda t: grilly.concat([t, t], dim=1), "axis"),
    (lambda t: grilly.stack([t, t], dim=1), "axis"), (lambda t: grilly.topk(t, 1, sorted=True), "nothing"),
    (lambda t: grilly.all(t, out=t), "nothing"), (lambda t: grilly.flip(t, dims=0), "axis"),
])  # fmt: skip
def test_words_of_other_libraries(default, call, word):
    t = grilly.asarray(np.ones((2, 3), np.float32))
    with pytest.raises(TypeError, match=f"unexpected keyword argument .*{word}"):
        call(t)
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'spin'$"):
        grilly.sum(t, spin=1)


def test_axes_by_their_place(default):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    t = grilly.asarray(x)
    for name in ("sum", "mean", "max", "min", "prod", "std", "var", "argmax", "argmin", "all", "any", "flip", "sort"):
        np.testing.assert_allclose(getattr(grilly, name)(t, 0).numpy(), getattr(np, name)(x, 0), rtol=1e-6)
    for name in ("stack", "concat"):
        np.testing.assert_array_equal(getattr(grilly, name)([t, t], 1).numpy(), getattr(np, name)([x, x], 1))
