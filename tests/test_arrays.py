"""Tensors compute as the array API standard and NumPy say: shapes, layouts, operators, indices, products."""

from __future__ import annotations

import operator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grilly
from equal import same
from grilly import array_api as xp

ROOM = Path(__file__).parents[1] / "shaders" / "arrays"
RNG = np.random.default_rng(7)


# -- elementwise -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1023, 1025, 4099])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int64", "bool"])
def test_every_end_of_an_array(vulkan_backend, dtype, size):
    x = (RNG.standard_normal(size + 8) * 9).astype(dtype) if dtype != "uint8" else RNG.integers(0, 99, size + 8, dtype)
    held = vulkan_backend.tensor(x)
    for begin in (0, 1, 4):
        own, part = x[begin : begin + size], held[begin : begin + size]
        same(xp.where(xp.astype(part, xp.bool), part, part), own)
        same(part == part, np.ones(size, bool))


@pytest.mark.parametrize("dtype", ["float16", "uint8", "int64"])
def test_runs_of_rows_and_columns(vulkan_backend, dtype):
    """Elements that are read some at a time: where they begin at fours or eights, and where not; rows of a table."""
    dtype = np.dtype(dtype)
    x = RNG.integers(0, 9, (6, 5, 48)).astype(dtype)
    t = vulkan_backend.tensor(x)
    for part in (np.s_[:], np.s_[:, :, :40], np.s_[1:, :, 4:44], np.s_[:, 1:4, 1:41], np.s_[::2, :, 8:]):
        own, array = t[part], x[part]
        for other in (np.s_[:1], np.s_[:, :, :1], np.s_[:, :1], np.s_[:1, :1, :1]):
            same(own + own[other], array + array[other])
            same(own[other] * own, array[other] * array)
    table = t.reshape(30, 48)
    index = np.array([[29, 0, 3], [7, 7, 1]])
    same(xp.take(table, vulkan_backend.tensor(index), axis=0), x.reshape(30, 48)[index])
    same(xp.take(table[:, 8:40], vulkan_backend.tensor(index), axis=0), x.reshape(30, 48)[:, 8:40][index])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_broadcasting_and_strides(vulkan_backend, data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=7))
    arrays = []
    for _ in range(2):
        own = [extent if data.draw(st.booleans()) else 1 for extent in shape]
        order = data.draw(st.permutations(range(len(own))))
        array = RNG.integers(-50, 50, [own[a] for a in order]).astype(np.int32)
        back = [order.index(a) for a in range(len(own))]
        arrays.append((array.transpose(back), vulkan_backend.tensor(array).transpose(*back)))
    (x, a), (y, b) = arrays
    same(a + b, x + y)
    part = (slice(None, None, data.draw(st.integers(1, 2))),) * data.draw(st.integers(0, len(shape)))
    same(a[part] * 2 - b, x[part] * np.int32(2) - y) if x[part].shape == x.shape else same(a[part] * 2, x[part] * 2)


def test_results_lie_as_their_operands(vulkan_backend):
    """NumPy's order "K"; copies and conversions are in C order."""
    x = RNG.standard_normal((2, 3, 5, 8)).astype(np.float32)
    t, other = vulkan_backend.tensor(x), RNG.standard_normal((1, 8, 1, 1)).astype(np.float32)
    for order in ((0, 3, 1, 2), (3, 2, 1, 0), (1, 0, 3, 2)):
        own, array = t.transpose(order), x.transpose(order)
        for part in (np.s_[:], np.s_[:, :1], np.s_[1:, :, 1:]):
            got, want = -own[part], -array[part]
            same(got, want)
            counted = [axis for axis, extent in enumerate(want.shape) if extent > 1]
            assert [got.strides[a] for a in counted] == [want.strides[a] for a in counted]
    got = xp.where(t.transpose(0, 3, 1, 2) > other, t.transpose(0, 3, 1, 2), other)
    same(got, np.maximum(x.transpose(0, 3, 1, 2), other))
    assert got.strides == (480, 4, 160, 32)
    assert t.T.astype(np.int32).is_contiguous and t.T.contiguous().is_contiguous


# -- operators ---------------------------------------------------------------------------------------------------------


def test_operators(vulkan_backend):
    x = np.arange(-12, 12, dtype=np.float32).reshape(2, 3, 4)
    t = vulkan_backend.tensor(x)
    for op in (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.lt, operator.ne):
        same(op(t, 3), op(x, np.float32(3)))
        same(op(3.0, t), op(np.float32(3), x)) if op not in (operator.floordiv, operator.mod) else None
        same(op(t, x[0] + 20), op(x, x[0] + 20))
        same(op(x[0], t + 20), op(x[0], x + 20))
    assert isinstance(x + t, grilly.Tensor) and (t == None) is False  # noqa: E711
    assert float(t[0, 0, 0]) == -12 and int(t[1, 0, 0]) == 0 and t[0, 0, 1].item() == -11 and bool(t[0, 0, 0])
    assert [row.shape for row in t] == [(3, 4)] * 2 and -12.0 in t and 99 not in t
    assert t.tolist() == x.tolist() and len({t, t}) == 1 and operator.index(vulkan_backend.tensor(np.int32(3))) == 3
    assert t.__array_namespace__() is grilly and t.__array_namespace__(api_version="2024.12") is grilly
    same(t.mT, x.swapaxes(-1, -2))
    mask = vulkan_backend.tensor(x > 0)
    same(~mask, x <= 0)
    same(mask & (t < 5) | (t == -3), (x > 0) & (x < 5) | (x == -3))


def test_astype_copies_unless_told_not_to(vulkan_backend):
    t = vulkan_backend.tensor(np.ones(3, np.float32))
    other = t.astype(np.float32)
    other += 1
    assert t.tolist() == [1, 1, 1] and other.tolist() == [2, 2, 2]
    assert t.astype(np.float32, copy=False) is t


def test_refusals(vulkan_backend):
    t = vulkan_backend.tensor(np.ones((2, 3), np.float32))
    i = vulkan_backend.tensor(np.ones(3, np.int8))
    for call, error, text in [
        (lambda: bool(t), ValueError, "ambiguous"),
        (lambda: t.item(), ValueError, "one element"),
        (lambda: t + np.ones(3), TypeError, "float64"),
        (lambda: t + "a", TypeError, "unsupported operand"),
        (lambda: t + np.ones((2, 2), np.float32), ValueError, "do not broadcast"),
        (lambda: t & t, TypeError, "integers"),
        (lambda: (t > 0) + (t > 0), TypeError, "bool"),
        (lambda: i + 300, OverflowError, "int8"),
        (lambda: operator.iadd(i, 1.5), TypeError, "float32"),
        (lambda: operator.iadd(i, vulkan_backend.tensor(np.ones((2, 3), np.int8))), ValueError, "shape"),
        (lambda: np.exp(t), TypeError, r"numpy.exp: .*give grilly.exp\(...\), which .*or t.numpy\(\)$"),
        (lambda: operator.index(t), TypeError, "index"),
        (lambda: t[5], IndexError, "bounds"),
        (lambda: t[[5]], IndexError, "bounds"),
        (lambda: t[np.ones((3, 3), bool)], IndexError, "mask"),
        (lambda: t[1.5], TypeError, "integer"),
        (lambda: operator.setitem(t, 0, np.ones(4, np.float32)), ValueError, "broadcast"),
        (lambda: xp.max(t[:0]), ValueError, "no elements"),
        (lambda: xp.sum(t, axis=2), ValueError, "axis"),
        (lambda: t @ t, ValueError, "matmul"),
        (lambda: xp.concat([t, i]), ValueError, "concat"),
        (lambda: xp.zeros((2,), dtype=np.float64), TypeError, "float64"),
        (lambda: vulkan_backend.tensor(np.ones(2, np.uint64)), TypeError, "int64"),
        (lambda: t.astype("uint64"), TypeError, "have a sign"),
        (lambda: i.astype(complex), TypeError, "complex"),
    ]:
        with pytest.raises(error, match=text):
            call()
    assert (i == 300).tolist() == [False] * 3, "comparisons take every number"


# -- indices -----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_indices_are_numpys(vulkan_backend, data):
    x = np.arange(4 * 5 * 6, dtype=np.int32).reshape(4, 5, 6)
    index = []
    for extent in x.shape[: data.draw(st.integers(1, 3))]:
        kind = data.draw(st.sampled_from(["slice", "back", "int", "array", "device", "matrix"]))
        if kind == "slice":
            ends = data.draw(st.tuples(st.integers(-6, 6), st.integers(-6, 6)))
            index.append(slice(*ends, data.draw(st.integers(1, 3))))
        elif kind == "back":
            index.append(slice(None, None, -data.draw(st.integers(1, 3))))
        elif kind == "int":
            index.append(data.draw(st.integers(-extent, extent - 1)))
        else:
            shape = (2, 3) if kind == "matrix" else (3,)
            index.append(RNG.integers(-extent, extent, shape))
    own = tuple(vulkan_backend.tensor(one) if isinstance(one, np.ndarray) and data.draw(st.booleans()) else one
                for one in index)  # fmt: skip
    index = tuple(index)
    t = vulkan_backend.tensor(x)
    same(t[own], x[index])
    # Places may be named twice, so all get one number, or values that their places decide.
    t[own] = -1
    want = x.copy()
    want[index] = -1
    same(t, want)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "float16", ml_dtypes.bfloat16, "float32", "int64"])
def test_of_several_values_for_a_place_one_arrives_whole(vulkan_backend, dtype):
    """Also where places share a word of memory with others."""
    values = np.array([1, 2, 4, 8, 16, 32, 64, 3]).astype(dtype)
    t = vulkan_backend.tensor(np.zeros(5, values.dtype))
    t[[3, 1, 3, 3, 1, 3, 3, 1]] = values
    found = t.numpy()
    assert found[3] in values[[0, 2, 3, 5, 6]] and found[1] in values[[1, 4, 7]] and not found[[0, 2, 4]].any()


@pytest.mark.parametrize("size", [50, 5000])
def test_an_index_in_the_memory_that_is_written(vulkan_backend, size):
    """It is read before anything is written, as NumPy's."""
    x = RNG.permutation(size)
    for part in (slice(None), slice(1, None, 3)):
        t, want = vulkan_backend.tensor(x), x.copy()
        t[t[part]] = vulkan_backend.tensor(x[::-1][part].copy())
        want[x[part]] = x[::-1][part]
        same(t, want)


def test_masks_and_assignment(vulkan_backend):
    x = RNG.standard_normal((6, 7)).astype(np.float32)
    t, rows = vulkan_backend.tensor(x), np.array([True, False, True, True, False, False])
    for mask in (x > 0, rows):
        same(t[mask], x[mask])
        same(t[vulkan_backend.tensor(mask)], x[mask])
        values = RNG.standard_normal(x[mask].shape).astype(np.float32)
        t[mask], x[mask] = values, values
        t[vulkan_backend.tensor(mask)] = 3
        x[mask] = 3
        same(t, x)
    t[::-1, [0, 5]], x[::-1, [0, 5]] = (np.arange(12, dtype=np.float32).reshape(6, 2),) * 2
    same(t, x)
    t[[1, 1], [2, 3]], x[[1, 1], [2, 3]] = (np.array([7, 8], np.float32),) * 2
    same(t, x)
    half = vulkan_backend.tensor(x.astype(np.float16))
    own = x.astype(np.float16)
    half.T[1:3, ::2], own.T[1:3, ::2] = 5, 5
    same(half, own)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float16, np.float32, np.int64])
def test_whole_rows_written_anywhere(vulkan_backend, dtype):
    """Where they begin says how many elements are moved at a time."""
    x, own = np.zeros((3, 40), dtype), vulkan_backend.tensor(np.zeros((3, 40), dtype))
    values = np.arange(64).astype(dtype)
    from_device = vulkan_backend.tensor(values)
    for first in range(9):
        for place in range(9):
            x[1, first : first + 16] = values[place : place + 16]
            own[1, first : first + 16] = from_device[place : place + 16]
            np.testing.assert_array_equal(own.numpy(), x)



def test_take(vulkan_backend):
    x = RNG.integers(0, 99, (3, 4, 5)).astype(np.int16)
    t, index = vulkan_backend.tensor(x), np.array([[3, 0], [-1, 2]])
    for axis in range(3):
        same(xp.take(t, index % 3, axis=axis), np.take(x, index % 3, axis))
        same(xp.take(t.transpose(2, 0, 1), vulkan_backend.tensor(index % 3), axis=axis),
             np.take(x.transpose(2, 0, 1), index % 3, axis))  # fmt: skip
        order = np.argsort(x, axis)
        same(xp.take_along_axis(t, vulkan_backend.tensor(order), axis=axis), np.take_along_axis(x, order, axis))
    assert [p.tolist() for p in xp.nonzero(t > 50)] == [p.tolist() for p in np.nonzero(x > 50)]


# -- shapes, creation, products ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64"])
def test_layouts(vulkan_backend, dtype):
    x = RNG.integers(0, 99, (3, 5, 4)).astype(dtype)
    t = vulkan_backend.tensor(x)
    same(xp.concat([t, t[:, :2]], axis=1), np.concatenate([x, x[:, :2]], 1))
    same(xp.concat([t, t], axis=None), np.concatenate([x, x], None))
    same(xp.stack([t, t + t], axis=-1), np.stack([x, x + x], -1))
    same(xp.flip(t, axis=(0, 2)), np.flip(x, (0, 2)))
    same(xp.roll(t, (2, -1), axis=(1, 2)), np.roll(x, (2, -1), (1, 2)))
    same(xp.roll(t, 7), np.roll(x, 7))
    same(xp.repeat(t, 3, axis=1), np.repeat(x, 3, 1))
    same(xp.tile(t, (2, 1, 3)), np.tile(x, (2, 1, 3)))
    same(xp.tril(t, k=1), np.tril(x, 1))
    same(xp.triu(t, k=-1), np.triu(x, -1))
    same(xp.moveaxis(t, 0, 2), np.moveaxis(x, 0, 2))
    same(xp.squeeze(xp.expand_dims(t, axis=1), axis=1), x)
    same(xp.permute_dims(t, (2, 0, 1)), x.transpose(2, 0, 1))
    assert [u.tolist() for u in xp.unstack(t, axis=1)] == [x[:, n].tolist() for n in range(5)]
    same(xp.diff(t, axis=1), np.diff(x, axis=1))


def test_creation(vulkan_backend):
    former = grilly.use(vulkan_backend)
    try:
        same(grilly.zeros((2, 3)), np.zeros((2, 3), np.float32))
        same(grilly.ones(3, dtype=grilly.int64), np.ones(3, np.int64))
        same(grilly.full((2,), 7), np.full(2, 7))
        same(grilly.full((5,), True), np.ones(5, bool))
        same(grilly.arange(3, 10, 2), np.arange(3, 10, 2))
        same(grilly.arange(0, 1, 0.25), np.arange(0, 1, 0.25, np.float32))
        same(grilly.linspace(0, 1, 7), np.linspace(0, 1, 7, dtype=np.float32))
        same(grilly.eye(3, 4, k=1), np.eye(3, 4, 1, np.float32))
        same(grilly.asarray([[1, 2], [3, 4]]), np.array([[1, 2], [3, 4]]))
        same(grilly.asarray(1.5), np.float32(1.5))
        assert grilly.empty((2, 3)).shape == (2, 3) and isinstance(grilly.pinned.empty(3), np.ndarray)
        same(grilly.meshgrid(grilly.arange(2), grilly.arange(3))[0], np.meshgrid(np.arange(2), np.arange(3))[0])
    finally:
        grilly.use(former)


@pytest.mark.parametrize(("left", "right"), [
    ((3, 1, 5, 7), (4, 7, 6)), ((5, 7), (7, 6)), ((7,), (7, 6)), ((3, 5, 7), (7,)), ((7,), (7,)), ((7,), (4, 7, 6)),
    ((2, 0), (0, 3)),
], ids=str)  # fmt: skip
def test_matmul(vulkan_backend, left, right):
    x, y = (RNG.standard_normal(shape).astype(np.float32) for shape in (left, right))
    got, want = (vulkan_backend.tensor(x) @ y).numpy(), x.astype(np.float64) @ y
    assert got.shape == want.shape and np.abs(got - want).max(initial=0) < 1e-5
    whole = [(array * 9).astype(np.int32) for array in (x, y)]
    same(vulkan_backend.tensor(whole[0]) @ vulkan_backend.tensor(whole[1]), np.matmul(*whole))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool"])
@pytest.mark.parametrize("lengths", [(1, 3, 0, 8, 5), (8, 16, 8), (7,)], ids=str)
def test_concat_of_uneven_parts(backend, dtype, lengths):
    """Parts that begin within a word, or within a line, and views."""
    rng = np.random.default_rng(sum(lengths))
    parts = [rng.integers(0, 2, (n, 6)).astype(dtype) for n in lengths]
    sent = [backend.tensor(part) for part in parts]
    same(xp.concat(sent, axis=0), np.concatenate(parts, 0))
    same(xp.concat([t.T for t in sent], axis=1), np.concatenate([part.T for part in parts], 1))
    same(xp.concat([t.T for t in sent], axis=-1).T, np.concatenate(parts, 0))


def test_repeated_calls_send_nothing(vulkan_backend, monkeypatch):
    """What a call needs besides its tensors is a plan's, or a word."""
    x, w = (vulkan_backend.tensor(np.ones(shape, np.float32)) for shape in ((5, 8), (8, 8)))

    def calls():
        yield xp.tril(x, k=1)
        yield xp.zeros((3, 4), device=vulkan_backend)
        yield xp.full((3, 4), 2.5, device=vulkan_backend)
        yield xp.concat([x, x], axis=0)
        yield grilly.functional.linear_backward(x, x, w)[2]

    first = [found.numpy() for found in calls()]
    monkeypatch.setattr(vulkan_backend.runtime, "write", lambda *_: pytest.fail("something was sent"))
    for found, expected in zip(calls(), first, strict=True):
        same(found, expected)


@pytest.mark.parametrize("value", [0, 1, -3, 2.5, 1e60, float("nan"), float("inf"), True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "bool"])
def test_full_of_any_number(backend, dtype, value):
    if dtype == "int32" and not abs(value) < 2**31:
        with pytest.raises((OverflowError, ValueError)):
            xp.full((2, 3), value, dtype=dtype, device=backend)
        return
    with np.errstate(over="ignore"):
        same(xp.full((2, 3), value, dtype=dtype, device=backend), np.full((2, 3), value).astype(dtype))


@pytest.mark.parametrize("shape", [(2**62,), (2**45,), (2**21, 2**21)], ids=str)
def test_full_of_a_shape_that_no_device_holds(vulkan_backend, shape):
    for make in (xp.zeros, xp.ones, lambda shape, **more: xp.full(shape, 3, **more)):
        with pytest.raises(grilly.OutOfDeviceMemoryError):
            make(shape, dtype="int8", device=vulkan_backend)


def test_full_names_itself(vulkan_backend):
    for value, dtype in ((300.0, "int8"), (float("nan"), "int32"), (1e30, "int64"), (300, "uint8")):
        with pytest.raises(OverflowError, match=f"full: .* is out of bounds for {dtype}"):
            xp.full(1, value, dtype=dtype, device=vulkan_backend)


def test_boolean_arrays_beside_other_indices(vulkan_backend):
    """As NumPy's, of the host and of the device: each stands for the places where it is true."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 99, (3, 4, 5))
    first = np.array([True, False, True])
    inner, outer, last = (rng.random(shape) < 0.5 for shape in ((4, 5), (3, 4), 5))
    none = np.zeros(3, bool)
    for index in (
        (first, 0), (first, slice(None), 1), (slice(None), rng.random(4) < 0.5), (..., last), (first, None), (0, inner),
        (outer, 2), (outer, slice(1, 3)), (None, first), (..., inner), (first, ..., np.array([1, 2])), (none, 1),
        (first, slice(None, None, -1)), (slice(None), inner), (outer, ...), (first, [0, 3]),
    ):  # fmt: skip
        sent = (isinstance(one, np.ndarray) and one.dtype == np.bool_ for one in index)
        there = tuple(vulkan_backend.tensor(one) if mask else one for one, mask in zip(index, sent, strict=True))
        for mine in (index, there):
            t, y = vulkan_backend.tensor(x), x.copy()
            same(t[mine], x[index])
            for values in (rng.integers(0, 99, x[index].shape), 7):
                t[mine], y[index] = values, values
                same(t, y)
    t = vulkan_backend.tensor(x)
    with pytest.raises(IndexError, match=r"a boolean index has shape \(4,\), and the tensor \(3,\) there"):
        t[np.ones(4, bool), 0]
    with pytest.raises(IndexError, match="4 indices"):
        t[0, inner, 1]
    with pytest.raises(TypeError, match="single truth value"):
        t[np.array(True), 0]
