"""Arrays larger than a binding: whatever their strides, they are moved, indexed, ordered and added up in chunks."""

from __future__ import annotations

import math

import numpy as np
import pytest

import grilly
from equal import same
from grilly import array_api as xp
from grilly.errors import UnsupportedError
from kernels import pretend

RNG = np.random.default_rng(15)
RANGE = 4096  # bytes of a binding, as the plans are told
#: No axis has a number of elements that runs of eight divide, in one shape alone.
SHAPES = [(5, 801), (801, 5), (4003,), (3, 7, 16, 13)]


@pytest.fixture(params=SHAPES, ids=str)
def shape(request, vulkan_backend, monkeypatch):
    pretend(monkeypatch, vulkan_backend, storage_range=RANGE)
    return request.param


def some(dtype, shape):
    if dtype == "float32":
        return RNG.standard_normal(shape, dtype=np.float32)
    return RNG.integers(0 if dtype[0] == "u" else -90, 90, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_layouts(vulkan_backend, shape, dtype):
    x = some(dtype, shape)
    t = vulkan_backend.tensor(x)
    assert t.nbytes > RANGE or dtype == "int8"
    for axis in (None, *range(x.ndim)):
        same(xp.flip(t, axis=axis), np.flip(x, axis))
        same(xp.roll(t, -11, axis=axis), np.roll(x, -11, axis))
    same(t[..., ::-2], x[..., ::-2])
    same(xp.repeat(t, 3, axis=-1), np.repeat(x, 3, -1))
    same(xp.concat([t, t], axis=-1), np.concatenate([x, x], -1))
    same(t.T.contiguous(), x.T)
    if x.ndim > 1:
        same(xp.tril(t, k=-1), np.tril(x, -1))


def test_operations_on_views(vulkan_backend, shape):
    x, y = some("float32", shape), some("int8", shape)
    t, u = vulkan_backend.tensor(x), vulkan_backend.tensor(y)
    same(t + t[..., ::-1], x + x[..., ::-1])
    same(t.T + u.T, x.T + y.T)
    same(t * t[:1], x * x[:1])
    same(xp.where(u > 0, t, t[..., :1]), np.where(y > 0, x, x[..., :1]))
    same(t.T.astype("float16"), x.T.astype(np.float16))
    t[..., ::-1] = t
    same(t, x[..., ::-1])
    t.T[...] += 1
    same(t, x[..., ::-1] + np.float32(1))


@grilly.elementwise
def two(x, y, z):
    return x + y, (x - z).astype("float16")


def test_several_results(vulkan_backend, shape):
    x, y, z = (some(dtype, shape) for dtype in ("float32", "int8", "float32"))
    t, u, v = (vulkan_backend.tensor(one) for one in (x, y, z))

    def wanted(x, y, z):
        return x + y, (x - z).astype(np.float16)

    for given, arrays in [((t, u, v), (x, y, z)), ((t, u[..., :1], v[..., ::-1]), (x, y[..., :1], z[..., ::-1])),
                          ((t.T, u.T[:1], v.T), (x.T, y.T[:1], z.T))]:  # fmt: skip
        for found, want in zip(two(*given), wanted(*arrays), strict=True):
            same(found, want)
    if t.size % 4 == 0:
        (small,) = two.into((t, None), t, u, v)
        for found, want in zip((t, small), wanted(x, y, z), strict=True):
            same(found, want)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_indices(vulkan_backend, shape, dtype):
    """Also by int8, and out of bounds, where the nearest end is read and nothing written."""
    x = some(dtype, shape)
    t = vulkan_backend.tensor(x)
    for axis, extent in enumerate(shape):
        for kind in ("int64", "int8"):
            places = RNG.integers(-min(extent, 120), min(extent, 120), (2, 9)).astype(kind)
            same(xp.take(t, vulkan_backend.tensor(places), axis=axis), np.take(x, places.astype(int), axis))
        along = RNG.integers(-extent, extent, (*shape[:axis], 6, *shape[axis + 1 :]))
        found = xp.take_along_axis(t, vulkan_backend.tensor(along), axis=axis)
        same(found, np.take_along_axis(x, along, axis))
    beyond = np.array([shape[0], 0, -1, -shape[0] - 1, 2**40])
    same(t[vulkan_backend.tensor(beyond)], x[[-1, 0, -1, 0, -1]])
    t[vulkan_backend.tensor(beyond)] = 7
    x[[0, -1]] = 7
    same(t, x)
    ends = tuple(RNG.integers(0, extent, 30) for extent in shape)
    same(t[tuple(map(vulkan_backend.tensor, ends))], x[ends])
    t[tuple(map(vulkan_backend.tensor, ends))], x[ends] = 9, 9
    same(t, x)
    mask = x > 0
    same(t[vulkan_backend.tensor(mask)], x[mask])


def test_an_index_out_of_bounds_along_one_of_two_axes_writes_nothing(vulkan_backend):
    x = np.arange(12, dtype=np.int32).reshape(3, 4)
    t = vulkan_backend.tensor(x)
    rows, columns = np.array([0, 3, 1, -4, 2]), np.array([1, 1, 4, 0, -5])
    t[vulkan_backend.tensor(rows), vulkan_backend.tensor(columns)] = -1
    x[0, 1] = -1
    same(t, x)


def test_one_index_on_the_device_takes_one_dispatch(vulkan_backend, monkeypatch):
    t, places = vulkan_backend.tensor(some("float32", (40, 6))), vulkan_backend.tensor(np.arange(-3, 5, dtype=np.int32))
    dispatches, runtime = [], vulkan_backend.runtime
    own = runtime.dispatch
    monkeypatch.setattr(runtime, "dispatch", lambda *given: (dispatches.append(given), own(*given))[1])
    found = t[places], xp.take(t, places, axis=1)
    assert len(dispatches) == 2
    monkeypatch.undo()
    same(found[0], t.numpy()[np.arange(-3, 5)])
    same(found[1], t.numpy()[:, np.arange(-3, 5)])


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_running_sums(vulkan_backend, shape, dtype):
    x = some(dtype, shape)
    t, wide = vulkan_backend.tensor(x), x.astype(np.float64)
    for axis in range(x.ndim):
        found = xp.cumulative_sum(t, axis=axis, include_initial=True)
        want = np.cumsum(wide, axis)
        want = np.concatenate([np.zeros_like(np.take(want, [0], axis)), want], axis)
        if dtype == "int8":
            same(found, want.astype(np.int64))
            continue
        # Each chunk rounds what it begins with, and each sum is rounded.
        size = np.abs(wide).sum(axis, keepdims=True)
        assert (np.abs(found.numpy() - want) <= 2.0**-24 * (math.ceil(4 * x.size / RANGE) + 3) * size).all()
    if dtype == "int8" and x.ndim == 1:
        signs = np.where(x > 80, -1, 1).astype(np.int8)
        same(xp.cumulative_prod(vulkan_backend.tensor(signs)), np.cumprod(signs, dtype=np.int64))


def test_order(vulkan_backend, shape):
    x = some("int16" if len(shape) == 2 else "float32", shape)
    t = vulkan_backend.tensor(x)
    for axis, extent in enumerate(shape):
        for largest in (True, False):
            keys = -x.astype(np.float64) if largest else x
            want = np.take(np.argsort(keys, axis, kind="stable"), np.arange(min(5, extent)), axis)
            values, places = grilly.topk(t, min(5, extent), axis=axis, largest=largest)
            same(places, want)
            same(values, np.take_along_axis(x, want, axis))
        if extent < 400:  # a row's places in a binding
            same(xp.sort(t, axis=axis), np.sort(x, axis))
            same(xp.argsort(t, axis=axis), np.argsort(x, axis, kind="stable"))
        elif extent > 4000:
            with pytest.raises(UnsupportedError, match="a row of 4,003 elements"):
                xp.sort(t, axis=axis)
    flat = np.sort(x.reshape(-1))
    for side in ("left", "right"):
        found = xp.searchsorted(vulkan_backend.tensor(flat), t, side=side)
        same(found, np.searchsorted(flat, x, side))


def test_captured(vulkan_backend, monkeypatch):
    pretend(monkeypatch, vulkan_backend, storage_range=RANGE)
    x, y = some("float32", (5, 801)), some("float32", (5, 801))
    places = vulkan_backend.tensor(RNG.integers(0, 801, 40))
    graph = vulkan_backend.capture(lambda t: xp.take(t.T[::-1] + t.T, places, axis=0), vulkan_backend.tensor(x))
    want = (y.T[::-1] + y.T)[places.numpy()]
    for _ in range(2):
        same(graph(vulkan_backend.tensor(y)), want)


def test_beyond_a_real_binding(vulkan_backend):
    limit = vulkan_backend.device.limits["storage_range"]
    if limit > 1 << 27:
        pytest.skip(f"bindings take {limit:,} bytes here")
    rows = limit // 24 + 5
    x = RNG.integers(-90, 90, (rows, 3))
    t = vulkan_backend.tensor(x)
    places = np.array([0, -1, rows // 2, rows - 2])
    same(t[vulkan_backend.tensor(places)], x[places])
    same(xp.flip(t)[:: rows // 7], x[::-1, ::-1][:: rows // 7])
    t[vulkan_backend.tensor(places)] = 500
    assert t[places].tolist() == [[500] * 3] * 4 and t[1].tolist() == x[1].tolist()


def test_long_running_sums(vulkan_backend):
    """Longer than a driver lets a loop run."""
    x = np.ones(4_000_000, np.int8)
    same(xp.cumulative_sum(vulkan_backend.tensor(x)), np.arange(1, x.size + 1))
