"""Elementwise operations before what a graph writes, or adds up, by an index: one dispatch, the bits of the calls."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import grilly
from graphs import default, equal, random

if importlib.util.find_spec("onnx"):
    from onnx import helper

    import grilly.onnx

DTYPES = ["float32", "float16", pytest.param("bfloat16", marks=pytest.mark.needs("ml_dtypes")), "int8", "uint16",
          "int32", "int64"]  # fmt: skip


@pytest.fixture
def backend(vulkan_backend):
    with default(vulkan_backend):
        yield vulkan_backend


def written(backend, made, target, index, *arrays, dispatches):
    """Hold replays of ``y[index] = made(...)``, where y is a copy of ``target``, against the calls."""

    def call(target, index, *arrays):
        y = target.astype(target.dtype, copy=True)
        y[index] = made(*arrays)
        return y

    graph = backend.capture(call, target, index, *arrays)
    assert graph.dispatches == dispatches + 1  # with the copy
    for _ in range(2):
        equal(graph(target, index, *arrays), call(target, index, *arrays))


def numbers(backend, dtype, *shape, seed=0):
    return backend.tensor((random(*shape, seed=seed) * 4).astype("float32")).astype(dtype)


def places(backend, extent, count, dtype="int64"):
    """Some of an axis's places, each once, every second one counted from the end."""
    found = np.random.default_rng([extent, count]).permutation(extent)[:count]
    found[::2] -= extent
    return backend.tensor(found.astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, count", [((11,), 5), ((13, 7), 6), ((9, 8), 9), ((6, 3, 5), 4), ((3, 1), 2)])
def test_rows(backend, shape, count, dtype):
    y, x, r = (numbers(backend, dtype, *size, seed=1) for size in (shape, (count, *shape[1:]), (count, *shape[1:])))
    index = places(backend, shape[0], count)
    written(backend, lambda x: x * 2 + 1, y, index, x, dispatches=1)
    written(backend, lambda x, r: x * r - x, y, index, x, r, dispatches=1)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "int16"])
def test_types_of_indices_and_of_what_is_read(backend, dtype):
    index = backend.tensor(np.array([3, 0, 5], dtype))
    y, x = numbers(backend, "float32", 7, 4), numbers(backend, "float16", 3, 4)
    mask = x > 0
    written(backend, lambda x: x.astype("float32") * 0.5, y, index, x, dispatches=1)
    written(backend, lambda mask: grilly.where(mask, 2.0, -1.0), y, index, mask, dispatches=1)
    written(backend, lambda x, mask: grilly.where(mask, x.astype("float32"), 0.0), y, index, x, mask, dispatches=1)
    written(backend, lambda x: x > 1.0, mask[[0, 1, 2, 0]], index[1:2], x[:1], dispatches=1)
    written(backend, lambda x: x.astype("int64") * 3, y.astype("int64"), index, x, dispatches=1)
    written(backend, lambda x: x.astype("float32"), y.astype("float16"), index, x, dispatches=1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_axes_and_strides(backend, dtype):
    y, x, row = numbers(backend, dtype, 6, 5, 4), numbers(backend, dtype, 6, 3, 4), numbers(backend, dtype, 4, seed=2)
    index = places(backend, 5, 3)
    written(backend, lambda x, row: x * row, y.transpose(1, 0, 2), index, x.transpose(1, 0, 2), row, dispatches=1)
    written(backend, lambda x: x[:, :4:2, 1:3] * 2.0, y[:2, :, :2].transpose(1, 0, 2), index, x.transpose(1, 0, 2),
            dispatches=1)  # fmt: skip
    pairs = backend.tensor(np.array([[0, 5], [3, 1]])), backend.tensor(np.array([[4], [2]]))
    values = numbers(backend, dtype, 2, 2, 4, seed=3)

    def by_two(y, x, i, j):
        y = y.astype(y.dtype, copy=True)
        y[i, j] = x * 2.0
        y[:, i[0, :1], 1:3] = x[:1, :1, 1:3] - 1.0
        return y

    graph = backend.capture(by_two, y, values, *pairs)
    equal(graph(y, values, *pairs), by_two(y, values, *pairs))


def test_what_is_no_part(backend):
    y, x, r, s = (numbers(backend, "float32", *shape, seed=4) for shape in ((9, 4), (3, 4), (3, 4), (3, 4)))
    index = backend.tensor(np.array([1, 7, 4]))
    written(backend, lambda x, r, s: x * r + s, y, index, x, r, s, dispatches=2)  # three arrays
    written(backend, lambda x: x * 0.1 + 0.2 - x / 0.3, y, index, x, dispatches=1)
    written(backend, lambda x: (x * 0.1 + 0.2 - x / 0.3) * 0.4 + 0.5, y, index, x, dispatches=2)  # five numbers
    written(backend, lambda x: (x * 2.0)[:1], y, index, x, dispatches=2)  # repeated
    written(backend, lambda x: (x * 2.0).T.reshape(3, 4), y, index, x, dispatches=3)  # in another order

    def kept(y, index, x):
        y, h = y.astype(y.dtype, copy=True), x * 2.0
        y[index] = h
        return y, h

    graph = backend.capture(kept, y, index, x)
    assert graph.dispatches == 3
    equal(graph(y, index, x), kept(y, index, x))


def test_behind_a_scatter_all_is_read(backend):
    """What stands behind reads the places too that were not written, and takes a dispatch."""
    y, x, index = numbers(backend, "float32", 9, 4), numbers(backend, "float32", 3, 4), places(backend, 9, 3)

    def call(y, index, x):
        y = y.astype(y.dtype, copy=True)
        y[index] = x * 2.0
        return y + 1.0

    graph = backend.capture(call, y, index, x)
    assert graph.dispatches == 3
    equal(graph(y, index, x), call(y, index, x))


def test_what_reads_what_is_written(backend):
    """Rows are made of the array that is written to: all of it is read before."""
    y, index = numbers(backend, "float32", 9, 4), places(backend, 9, 9)

    def whole(y, index):
        y = y.astype(y.dtype, copy=True)
        y[index] = y * 2.0
        return y

    def some(y, index):
        y = y.astype(y.dtype, copy=True)
        y[index] = y[index] + 1.5
        return y

    for call in (whole, some):
        graph = backend.capture(call, y, index)
        assert graph.dispatches == 3
        equal(graph(y, index), call(y, index))


def test_values_that_are_the_index(backend):
    y, index = backend.tensor(np.zeros(9, np.int64)), places(backend, 4, 4)

    def call(y, index):
        y, places = y.astype(y.dtype, copy=True), index * 2
        y[places] = places
        return y

    graph = backend.capture(call, y, index)
    equal(graph(y, index), call(y, index))


def test_places_out_of_bounds_get_nothing(backend):
    y, x = numbers(backend, "float32", 5, 3), numbers(backend, "float32", 4, 3)
    written(backend, lambda x: x - 0.5, y, backend.tensor(np.array([-6, 4, 5, 0])), x, dispatches=1)


def test_what_is_written_in_between(backend):
    x, kept = numbers(backend, "float32", 3, 4), numbers(backend, "float32", 3, 4, seed=5)
    index, before = places(backend, 9, 3), kept.numpy()

    def call(x, index):
        y, h = grilly.zeros((9, 4)), x * kept
        kept[...] = x
        y[index] = h
        return y

    def wanted(x, kept):
        y = np.zeros((9, 4), np.float32)
        y[index.numpy()] = x.numpy() * kept
        return y

    graph = backend.capture(call, x, index)
    np.testing.assert_array_equal(graph(x, index).numpy(), wanted(x, before))
    np.testing.assert_array_equal(graph(x, index).numpy(), wanted(x, x.numpy()))


# -- sums and extremes by an index ------------------------------------------------------------------------------------


def added(x, index, u, r, how, axis, nodes):
    """A model that puts ``nodes`` of u and r together with x, run captured and not; the graph's dispatches."""
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in (("x", x), ("i", index), ("u", u), ("r", r))
    ]
    last = helper.make_node("ScatterElements", ["x", "i", nodes[-1].output[0]], ["y"], axis=axis, reduction=how)
    shape = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    graph = helper.make_graph([*nodes, last], "g", infos, [shape])
    model = grilly.onnx.Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    feeds = {"x": x, "i": index, "u": u, "r": r}
    found = model.run(feeds)["y"]
    assert model.graph is not None, model.uncaptured
    dispatches = model.graph.dispatches
    np.testing.assert_array_equal(found, model.run(feeds)["y"])
    np.testing.assert_array_equal(found, model.run(feeds, capture=False)["y"])
    return dispatches


@pytest.mark.needs("onnx", "ml_dtypes")
@pytest.mark.usefixtures("default")
@pytest.mark.parametrize(
    "dtype, how",
    [*((dtype, how) for dtype in ("float32", "float16", "int32", "uint8") for how in ("add", "max", "min")),
     ("int64", "add")],
)  # fmt: skip
@pytest.mark.parametrize("shape, axis", [((7, 13), 0), ((5, 9), 1), ((4, 3, 5), 1), ((31,), 0)])
def test_sums_and_extremes_by_an_index(shape, axis, dtype, how):
    """Floats that are added are read in two dispatches, others in one."""
    rng = np.random.default_rng(7)
    x, u, r = ((4 * rng.standard_normal(shape)).astype(dtype) for _ in range(3))
    index = rng.integers(-shape[axis], shape[axis], shape)
    product, total = helper.make_node("Mul", ["u", "r"], ["p"]), helper.make_node("Add", ["p", "u"], ["t"])
    plain = added(x, index, u, r, how, axis, [helper.make_node("Identity", ["u"], ["p"])])
    assert added(x, index, u, r, how, axis, [product]) == plain
    assert added(x, index, u, r, how, axis, [product, total]) == plain
