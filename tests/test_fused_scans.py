"""Elementwise operations before and behind running sums and products of graphs: one dispatch, the bits of the calls."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
from graphs import check, default, random, random_program

HALVES = ["float32", "float16", pytest.param("bfloat16", marks=pytest.mark.needs("ml_dtypes"))]


@pytest.fixture
def backend(vulkan_backend):
    with default(vulkan_backend):
        yield vulkan_backend


SHAPES = [((13,), 0), ((7, 13), 1), ((7, 13), 0), ((3, 8), 1), ((2, 3, 16), 1), ((5, 3, 7), 0), ((3, 2048), 1),
          ((2, 4099), 1), ((1, 9), 0), ((9, 1), 1), ((1,), 0), ((2, 3, 4, 5), 2)]  # fmt: skip


@pytest.mark.parametrize("shape, axis", SHAPES)
@pytest.mark.parametrize("dtype", HALVES)
def test_before_and_behind(backend, shape, axis, dtype):
    x = backend.tensor(random(*shape)).astype(dtype)
    check(backend, lambda x: grilly.cumulative_sum(x * 0.5 - 1.0, axis=axis), x, dispatches=1)
    check(backend, lambda x: grilly.cumulative_sum(x, axis=axis) * 0.5 - 1.0, x, dispatches=1)
    check(backend, lambda x: grilly.cumulative_sum(x * 0.5, axis=axis) + 1.0, x, dispatches=1)
    check(backend, lambda x: grilly.abs(grilly.cumulative_prod(x * x, axis=axis)), x, dispatches=1)


@pytest.mark.parametrize("shape, axis", SHAPES)
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "uint32", "int64"])
def test_integers(backend, shape, axis, dtype):
    x = backend.tensor((random(*shape) * 3).astype(np.int32)).astype(dtype)
    check(backend, lambda x: grilly.cumulative_sum(x > 0, axis=axis) - 1, x, dispatches=1)
    check(backend, lambda x: grilly.cumulative_sum(x, axis=axis, dtype=np.int32), x, dispatches=1)
    check(backend, lambda x: grilly.cumulative_sum(x, axis=axis) > 2, x, dispatches=1)
    check(backend, lambda x: grilly.cumulative_sum(x, axis=axis, dtype=np.float32), x, dispatches=1)
    check(backend, lambda x: grilly.cumulative_prod(x.astype(np.int8), axis=axis, dtype=np.uint8), x, dispatches=1)


@pytest.mark.parametrize("dtype", HALVES)
def test_dtypes_that_change(backend, dtype):
    x, mask = backend.tensor(random(6, 24)).astype(dtype), backend.tensor(random(6, 24, seed=1) > 0)
    check(backend, lambda x: grilly.cumulative_sum(x.astype("float16"), axis=1), x, dispatches=1)
    check(backend, lambda x: grilly.cumulative_sum(x, axis=1, dtype=np.float16) * 2.0, x, dispatches=1)
    check(backend, lambda x, m: grilly.cumulative_sum(grilly.where(m, x, 0.0), axis=1), x, mask, dispatches=1)
    check(backend, lambda x, m: grilly.cumulative_sum(m, axis=1).astype("float32") * x, x, mask, dispatches=1)
    check(backend, lambda x: (grilly.cumulative_sum(x, axis=1) * 100.0).astype(np.int64), x, dispatches=1)


@pytest.mark.parametrize("dtype", HALVES)
def test_operands_that_broadcast_or_have_strides(backend, dtype):
    def tensor(*shape, seed):
        return backend.tensor(random(*shape, seed=seed)).astype(dtype)

    x, row, column, one = tensor(4, 6, 8, seed=1), tensor(8, seed=2), tensor(6, 1, seed=3), tensor(1, seed=4)
    turned = tensor(8, 6, seed=5)
    for axis in (0, 1, 2):

        def summed(x, axis=axis):
            return grilly.cumulative_sum(x, axis=axis)

        check(backend, lambda x, a, c: summed(x * a + c), x, row, column, dispatches=1)
        check(backend, lambda x, a, c: summed(x * a) - c, x, row, one, dispatches=1)
        check(backend, lambda x: summed(x[1:, ::2, 1:6] * 2.0), x, dispatches=1)
        check(backend, lambda x: 1.0 - summed(x[::-1, :, ::-1]), x, dispatches=1)
        check(backend, lambda x: summed(x.transpose(2, 0, 1) * x.transpose(2, 0, 1)), x, dispatches=1)
    check(backend, lambda x, t: grilly.cumulative_sum(x[0] + t.T, axis=1), x, turned, dispatches=1)
    check(backend, lambda x, t: grilly.cumulative_sum(x[0] + t.T, axis=0) * x[1, 0, 0], x, turned, dispatches=1)
    check(backend, lambda x: summed((x * 2.0).reshape(2, 12, 8)).reshape(4, 48) * 0.5, x, dispatches=1)


def test_behind_another_axis_what_lies_otherwise_is_read_as_it_is(backend):
    """The result lies with the axis last; what is made of it and of x has x's order, and reads it across."""
    x = backend.tensor(random(6, 10))
    check(backend, lambda x: grilly.cumulative_sum(x * 2.0, axis=0) * x, x, dispatches=1)

    def both(x):
        y = x * 2.0
        return grilly.cumulative_sum(y, axis=1) * y

    def across(x):
        y = x * 2.0
        return grilly.cumulative_sum(y, axis=0) * y

    check(backend, both, x, dispatches=1)
    check(backend, across, x, dispatches=2)
    square = backend.tensor(random(1, 7))
    check(backend, across, square, dispatches=1)


def test_more_than_a_dispatch_takes(backend):
    arrays = [backend.tensor(random(5, 12, seed=seed)) for seed in range(5)]
    check(backend, lambda a, b, c, d, e: grilly.cumulative_sum(a * b + c, axis=1), *arrays, dispatches=1)
    check(backend, lambda a, b, c, d, e: grilly.cumulative_sum(a * b + c - d, axis=1), *arrays, dispatches=2)
    check(backend, lambda a, b, c, d, e: grilly.cumulative_sum(a * b, axis=1) * c + d, *arrays, dispatches=2)
    check(backend, lambda a, b, c, d, e: grilly.cumulative_sum(a * 0.1 + 0.2, axis=1) * 0.3 + 0.4, arrays[0],
          *arrays[1:], dispatches=1)  # fmt: skip
    check(backend, lambda a, b, c, d, e: (grilly.cumulative_sum(a * 0.1 + 0.2, axis=1) * 0.3 + 0.4) / 0.7, arrays[0],
          *arrays[1:], dispatches=2)  # fmt: skip
    x, c = backend.tensor(random(2, 3, 2, 3, 5)), backend.tensor(random(1, 3, 1, 3, 1))
    check(backend, lambda x, c: grilly.cumulative_sum(x * c, axis=4), x, c, dispatches=2)


def test_numbers_of_the_program_are_arguments(backend):
    """Graphs that differ in a number have one program, and each its number; int64 numbers take two words."""
    x, n = backend.tensor(random(5, 9)), backend.tensor(np.arange(45).reshape(5, 9))
    for number in (0.25, -1.5):
        check(backend, lambda x, number=number: grilly.cumulative_sum(x * number, axis=1) + number, x, dispatches=1)
    check(backend, lambda n: grilly.cumulative_sum(n + 2**40, axis=1) - 2**41, n, dispatches=1)


def test_numbers_at_the_edges(backend):
    edges = np.array([0.0, -0.0, 1e-45, -1e-40, 3e38, 1e30, 1e-30, 2.0**-126, 1.0, -3e38, np.inf, np.nan], np.float32)
    x, y = (backend.tensor(part) for part in np.meshgrid(edges, edges))
    for axis in (0, 1):
        check(backend, lambda x, y, axis=axis: grilly.cumulative_sum(x * y, axis=axis) - y, x, y, dispatches=1)
        check(backend, lambda x, y, axis=axis: grilly.cumulative_prod(-x, axis=axis) * 0.5, x, y, dispatches=1)
    half = backend.tensor(np.arange(65536, dtype=np.uint16).view(np.float16).reshape(256, 256))
    check(backend, lambda x: grilly.cumulative_sum(x * 0.5, axis=1), half, dispatches=1)
    check(backend, lambda x: grilly.cumulative_sum(x[:, :1], axis=1) + x[:, :1], half, dispatches=1)


def test_results_that_somebody_needs_are_stored(backend):
    x, y = backend.tensor(random(6, 24)), backend.tensor(random(6, 24, seed=1))

    def kept(x, y):
        h = x + y
        return h, grilly.cumulative_sum(h, axis=1)

    def summed(x, y):
        s = grilly.cumulative_sum(x * y, axis=1)
        return s, s * 2.0

    check(backend, kept, x, y, dispatches=2)
    check(backend, summed, x, y, dispatches=2)
    check(backend, lambda x, y: grilly.cumulative_sum(grilly.cumulative_sum(x * 2.0, axis=1) * y, axis=1) + 1.0, x, y,
          dispatches=2)  # fmt: skip
    check(backend, lambda x, y: grilly.sum(grilly.cumulative_sum(x * y, axis=1), axis=0), x, y, dispatches=2)


def test_a_first_sum_of_nothing_stays_two_dispatches(backend):
    x = backend.tensor(random(6, 24))
    check(backend, lambda x: grilly.cumulative_sum(x * 2.0, axis=1, include_initial=True), x, dispatches=2)


def test_what_is_written_in_between(backend):
    """What stands before reads its arrays as they were when it was captured."""
    x, kept = backend.tensor(random(20, 30)), backend.tensor(random(20, 30))

    def function(x):
        y = kept * x
        kept[...] = x
        return grilly.cumulative_sum(y, axis=1)

    before = kept.numpy()
    graph = backend.capture(function, x)
    np.testing.assert_array_equal(graph(x).numpy(), grilly.cumulative_sum(backend.tensor(before) * x, axis=1).numpy())
    np.testing.assert_array_equal(graph(x).numpy(), grilly.cumulative_sum(x * x, axis=1).numpy())


UNARY = [grilly.sin, grilly.square, lambda x: x * 0.5, lambda x: x + 1.0, grilly.abs]
BINARY = [grilly.add, grilly.multiply, grilly.maximum, grilly.subtract]


@pytest.mark.parametrize("seed", range(24))
def test_random_programs(backend, seed):
    sums = [lambda x, axis: grilly.cumulative_sum(x, axis=axis)]
    program, arrays = random_program(np.random.default_rng(seed), UNARY, BINARY, sums, 1)
    tensors = [backend.tensor(array) for array in arrays]
    check(backend, program, *tensors)
