"""Sorting, the largest elements, search and distinct elements, against NumPy's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import grilly
from equal import same
from grilly import array_api as xp

ROOM = Path(__file__).parents[1] / "shaders" / "arrays"
RNG = np.random.default_rng(11)


def some(dtype, shape):
    """Numbers of which many are equal; among floats NaN, infinities and zeros of both signs."""
    if dtype == "bool":
        return RNG.integers(0, 2, shape).astype(bool)
    if np.dtype(dtype).kind == "f":
        edges = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], dtype)
        numbers = (RNG.standard_normal(shape) * 9).astype(dtype)
        return np.where(RNG.random(shape) < 0.2, edges[RNG.integers(0, 5, shape)], numbers)
    info = np.iinfo(dtype)
    numbers = RNG.integers(info.min, info.max, shape, dtype, endpoint=True)
    return np.where(RNG.random(shape) < 0.5, numbers % np.asarray(5, dtype), numbers)


def descending(x, axis):
    """The places of the elements from the largest on; equal ones in the order in which they stand."""
    turned = np.flip(x, axis)
    order = np.flip(np.argsort(turned, axis, kind="stable"), axis)
    return x.shape[axis] - 1 - order


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint32", "int8", "bool"])
@pytest.mark.parametrize(("shape", "axis"), [((1,), 0), ((7, 13), 1), ((5, 100, 3), 1), ((700, 4), 0), ((3, 5000), -1)],
                         ids=str)  # fmt: skip
def test_sorts(vulkan_backend, dtype, shape, axis):
    x = some(dtype, shape)
    t = vulkan_backend.tensor(x)
    same(xp.argsort(t, axis=axis), np.argsort(x, axis, kind="stable"))
    same(xp.argsort(t, axis=axis, descending=True), descending(x, axis))
    got, want = xp.sort(t, axis=axis), np.sort(x, axis, kind="stable")
    same(got, want)
    if x.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(got.numpy()[want == 0]), np.signbit(want[want == 0]))
    same(xp.sort(t, axis=axis, descending=True), np.take_along_axis(x, descending(x, axis), axis))


def test_views_and_long_rows(vulkan_backend):
    x = RNG.standard_normal(70_001).astype(np.float32)
    same(xp.sort(vulkan_backend.tensor(x)), np.sort(x))
    y = some("float16", (2, 3, 4, 5, 6)).transpose(4, 2, 0, 3, 1)
    t = vulkan_backend.tensor(np.ascontiguousarray(y.transpose(2, 4, 1, 3, 0))).transpose(4, 2, 0, 3, 1)
    same(t, y)
    for axis in (0, 2, 4):
        same(xp.argsort(t[1:], axis=axis), np.argsort(y[1:], axis, kind="stable"))
        same(xp.sort(t[1:], axis=axis), np.sort(y[1:], axis))
    assert xp.sort(t[:, :, :0], axis=2).shape == (6, 4, 0, 5, 3) and xp.argsort(t[:0], axis=-1).shape == (0, 4, 2, 5, 3)


@pytest.mark.parametrize("k", [0, 1, 50, 300, 5000])
@pytest.mark.parametrize("largest", [True, False])
def test_topk(vulkan_backend, k, largest):
    x = some("float32", (3, 5000))
    want = (descending(x, 1) if largest else np.argsort(x, 1, kind="stable"))[:, :k]
    values, places = grilly.topk(vulkan_backend.tensor(x), k, largest=largest)
    same(places, want)
    same(values, np.take_along_axis(x, want, 1))
    values, places = grilly.topk(vulkan_backend.tensor(x).T, k, axis=0, largest=largest)
    same(places, want.T)
    same(values, np.take_along_axis(x, want, 1).T)


@pytest.mark.parametrize(("first", "second"), [("float32", "float16"), ("int64", "uint8"), ("float16", "float16")])
@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted(vulkan_backend, first, second, side):
    x, values = np.sort(RNG.integers(0, 99, 300)).astype(first), RNG.integers(0, 110, (7, 9)).astype(second)
    if first == "float32":
        values[0, 0], x[-1] = np.nan, np.nan
    order = RNG.permutation(300)
    shuffled, back = vulkan_backend.tensor(x[order]), np.argsort(order)
    t, v = vulkan_backend.tensor(x), vulkan_backend.tensor(values)
    same(xp.searchsorted(t, v, side=side), np.searchsorted(x, values, side))
    same(xp.searchsorted(t[::3], v.T, side=side), np.searchsorted(x[::3], values.T, side))
    same(xp.searchsorted(shuffled, v, side=side, sorter=vulkan_backend.tensor(back)), np.searchsorted(x, values, side))
    same(xp.searchsorted(t[:0], v, side=side), np.zeros(values.shape, np.int64))


@pytest.mark.parametrize("dtype", ["int64", "float32", "uint8"])
def test_searchsorted_for_a_part_of_an_array(vulkan_backend, dtype):
    """Values that begin at any place of their memory, where kernels count 64-bit integers in words of 32 bits."""
    x, values = np.sort(RNG.integers(0, 99, 300)).astype(dtype), RNG.integers(0, 110, 40).astype(dtype)
    t, v = vulkan_backend.tensor(x), vulkan_backend.tensor(values)
    for begin in (1, 3, 16, 17):
        same(xp.searchsorted(t, v[begin:]), np.searchsorted(x, values[begin:]))
        same(xp.isin(v[begin:], t[begin:]), np.isin(values[begin:], x[begin:]))


@pytest.mark.parametrize("dtype", ["float32", "int16", "bool"])
def test_distinct_elements(vulkan_backend, dtype):
    x = some(dtype, (40, 31))
    t = vulkan_backend.tensor(x)
    want = np.unique(x, return_index=True, return_inverse=True, return_counts=True, equal_nan=False)
    for got, array in zip(xp.unique_all(t), want, strict=True):
        same(got, array)
    same(xp.unique_values(t), want[0])
    same(xp.unique_counts(t).counts, want[3])
    same(xp.unique_inverse(t).inverse_indices, want[2])
    assert xp.unique_values(t[:0]).shape == (0,) and xp.unique_inverse(t[:0]).inverse_indices.shape == (0, 31)
    some_of_them = x.reshape(-1)[:200]
    for invert in (False, True):
        same(xp.isin(t, vulkan_backend.tensor(some_of_them), invert=invert), np.isin(x, some_of_them, invert=invert))
        same(xp.isin(t, t[:0], invert=invert), np.full(x.shape, invert))


def test_refusals(vulkan_backend):
    t = vulkan_backend.tensor(np.ones((2, 3), np.float32))
    for call, text in [
        (lambda: xp.sort(t, axis=2), "axis"),
        (lambda: grilly.topk(t, 4), "3 elements"),
        (lambda: xp.searchsorted(t, t), "one"),
        (lambda: xp.searchsorted(t[0], t, side="middle"), "side"),
    ]:
        with pytest.raises(ValueError, match=text):
            call()


def test_topk_in_a_graph(vulkan_backend):
    x, y = (some("float16", (2, 3000)) for _ in range(2))
    graph = vulkan_backend.capture(lambda t: grilly.topk(t, 5)[1], vulkan_backend.tensor(x))
    same(graph(vulkan_backend.tensor(y)), descending(y, 1)[:, :5])
