"""Chains of elementwise operations in a graph: one dispatch, the bits of the calls, nothing stored between."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
import grilly.compute.graph
import grilly.functional as F
from graphs import check, default, equal, random
from grilly import array_api as xp
from grilly.compute.arrays import fusion

HALVES = ["float32", "float16", pytest.param("bfloat16", marks=pytest.mark.needs("ml_dtypes"))]


@pytest.fixture
def backend(vulkan_backend):
    with default(vulkan_backend):
        yield vulkan_backend


def gelu(x):
    return 0.5 * x * (1.0 + xp.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def leaky(x):
    return xp.where(x > 0, x, 0.1 * x)


def swish(x):
    return x / (1.0 + xp.exp(-x)) + x


def rectified(x):
    return F.relu(x - 0.5) * x


def clipped(x):
    return xp.clip(xp.sqrt(xp.abs(x)) - 0.5, -0.25, 0.25) == xp.round(x)


def hard_swish(x):
    """As layers have it that scale what comes in and what goes out: seven numbers, one of them 0."""
    y = x * 1.5 + 0.25
    return y * xp.minimum(xp.maximum(y + 3.0, 0.0), 6.0) / 6.0 * 0.75 - 0.125


@pytest.mark.parametrize("dtype", HALVES)
def test_one_dispatch_with_the_bits_of_the_calls(backend, dtype):
    check(backend, gelu, backend.tensor(random(7, 13) * 3).astype(dtype), dispatches=1)


@pytest.mark.parametrize("function, dtype", [(hard_swish, "float32"), (leaky, "float32"), (swish, "float16"),
                                             (rectified, "float32"), (clipped, "float16")])  # fmt: skip
def test_other_functions(backend, function, dtype):
    check(backend, function, backend.tensor(random(7, 13) * 3).astype(dtype), dispatches=1)


@pytest.mark.parametrize("dtype", HALVES[1:])
def test_every_number_of_16_bits(backend, dtype):
    x = backend.tensor(np.arange(65536, dtype=np.uint16).view(backend.empty((), dtype).dtype))
    check(backend, lambda x: xp.maximum(-x, 0.5) * x - 3.0, x, dispatches=1)
    check(backend, lambda x: (x.astype("float32") * 1.25).astype(dtype) + x, x, dispatches=1)


def test_numbers_at_the_edges(backend):
    edges = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-40, 3e38, -3e38, 2.0**-126], np.float32)
    x, y = (backend.tensor(part) for part in np.meshgrid(edges, edges))
    check(backend, lambda x, y: (x * y + x).astype("float16").astype("float32") - y, x, y, dispatches=1)
    check(backend, lambda x, y: xp.where(x < y, x / y, xp.minimum(x, y)) * 0.5, x, y, dispatches=1)
    check(backend, lambda x, y: xp.isnan(x + y) | xp.isinf(x * y), x, y, dispatches=1)


def test_operands_that_broadcast_or_have_strides(backend):
    def tensor(*shape, seed):
        return backend.tensor(random(*shape, seed=seed)).astype("float16")

    x, row, column, one = tensor(4, 6, 8, seed=1), tensor(8, seed=2), tensor(6, 1, seed=3), tensor(1, seed=4)
    check(backend, lambda x, a, b, c: (x * a + b) * c, x, row, column, one, dispatches=1)
    check(backend, lambda x, a: (x * 2.0 + a) * a, x, row, dispatches=1)
    turned = tensor(8, 4, seed=5)
    check(backend, lambda x, t: (x[:, 1] * 2.0 + t.T) * 3.0, x, turned, dispatches=1)
    check(backend, lambda x: (x[:, ::2, 1:6] + 1.0) * x[:, 1::2, 2:7], x, dispatches=1)
    check(backend, lambda x: (x[1:, :, :] * 0.5 + x[:-1, 2:3, :1]) * 2.0, x, dispatches=1)


def test_reversed_operands(backend):
    """Strides below zero, whose axes are split where another operand broadcasts."""
    x, row = backend.tensor(random(4, 6)), backend.tensor(random(6, seed=1))
    check(backend, lambda x, row: x[::-1, ::-1] * row * 2.0, x, row, dispatches=1)
    check(backend, lambda x: xp.flip(x) + grilly.asarray(np.ones(6, np.float32)), x)
    for dtype in ("float32", "float16"):  # whole runs of elements
        check(backend, lambda x: (x[::-1] + 1.0) * x[:1, ::-1], backend.tensor(random(4, 16)).astype(dtype))


@pytest.mark.parametrize("dtype", [*HALVES, "int32", "int8"])
def test_behind_a_gather(backend, dtype):
    """What is made of elements at indices, which may be out of bounds and count from the end."""
    x = backend.tensor(random(9, 24) * 3).astype(dtype)
    few, many = (backend.tensor(i) for i in (np.int32([3, -1, 0, 77, -80, 3]), np.arange(24)[::-1].copy()))
    other = backend.tensor(random(6, 24, seed=1) * 3).astype(dtype)
    each = backend.tensor(np.random.default_rng(2).integers(-9, 9, (9, 5)))
    check(backend, lambda x, i: xp.take(x, i, axis=0) * 3, x, few, dispatches=1)
    check(backend, lambda x, i: xp.abs(xp.take(x, i, axis=1)), x, many, dispatches=1)
    check(backend, lambda x, i, y: xp.take(x, i, axis=0) * 2 + y, x, few, other, dispatches=1)
    check(backend, lambda x, i: xp.take_along_axis(x, i, axis=1) - 1, x, each, dispatches=1)
    check(backend, lambda x, i: xp.take(x[::2, ::3], i, axis=0) + 1, x, few, dispatches=1)
    if dtype in HALVES[:2]:
        check(backend, lambda x, i: F.relu(F.embedding(i, x)) * 4.5, x, few, dispatches=1)


def test_gathers_beside_each_other(backend):
    x, row, i = (backend.tensor(a) for a in (random(24), random(24, seed=1), np.arange(24)[::-1].copy()))

    def two(x, row, i):  # the second one is stored
        return xp.take(x, i) * 2.0 + xp.take(row, i)

    check(backend, two, x, row, i, dispatches=2)
    check(backend, lambda x, i: xp.take(x, i) + x[0], x, i, dispatches=1)
    check(backend, lambda x, i: xp.take(x, i) + x[:1].broadcast_to(x.shape) * 2.0, x, i, dispatches=1)
    check(backend, lambda x, i: xp.take(x, i) * 2.0 + x[::-1], x, i, dispatches=1)
    check(backend, lambda x, i: (((xp.take(x, i) * 2.0 + 3.0) * 5.0 + 7.0) * 11.0 - 13.0) * 17.0, x, i)  # many words
    check(backend, lambda x, i: xp.take(x, i) * i.astype("float32"), x, i, dispatches=1)

    def computed(x, i):  # indices that are read as they are stored
        j = i - 1
        return xp.take(x, j) * (j + 1).astype("float32")

    check(backend, computed, x, i, dispatches=2)
    check(backend, lambda x, i: xp.take(x * 2.0, i) + 1.0, x, i, dispatches=2)
    # Reductions read through what stands behind, not through the gather.
    check(backend, lambda x, i: xp.sum(xp.take(x, i) * 2.0), x, i, dispatches=2)
    table, ids = backend.tensor(random(8, 24)), backend.tensor(np.int32([1, 7, 3]))
    column = backend.tensor(random(3, 1, seed=2))
    check(backend, lambda t, ids, row: F.embedding(ids, t) * row, table, ids, row, dispatches=1)
    check(backend, lambda t, ids, row, c: F.embedding(ids, t) * row + c, table, ids, row, column, dispatches=1)
    check(backend, lambda t, i, row, c: xp.take(t, i, axis=1)[:3] * row + c, table, i, row, column)
    check(backend, lambda t, i, row: xp.take(t, i, axis=1) * row, table, i, row, dispatches=1)


def test_a_gather_of_what_is_written(backend):
    x, i = backend.tensor(random(8)), backend.tensor(np.int32([7, 6, 5, 4, 3, 2, 1, 0]))
    first = x.numpy()

    def step(y):
        found = xp.take(x, i)
        x[...] = y
        return found * 2.0 + y

    def turned(y):
        x[...] = xp.take(x, i) + y
        return x * 1.0

    for program in (step, turned):
        given = [backend.tensor(random(8, seed=seed)) for seed in (1, 2, 3)]
        x[...] = first
        wanted = [program(each).numpy() for each in given]
        x[...] = first
        graph = backend.capture(program, given[0])
        for each, one in zip(given, wanted, strict=True):
            np.testing.assert_array_equal(graph(each).numpy(), one)


def test_one_element_for_all(backend):
    """A result of which another operation reads the first element for each of its own."""
    x, w = backend.tensor(random(8)), backend.tensor(random(6, 8) / 2)

    def first(y):
        return y + y[..., :1].broadcast_to(y.shape)

    check(backend, lambda x: first(x * 2.0), x)
    check(backend, lambda x: first(F.linear(x, w)), x)
    check(backend, lambda x: F.softmax(first(x * 2.0)), x)


def test_random_strides(backend):
    """Against NumPy: axes reversed, skipped, swapped and broadcast."""
    draw = np.random.default_rng(7)
    for _ in range(12):
        shape = tuple(int(n) for n in draw.choice([1, 2, 3, 4, 8], draw.integers(2, 5)))
        arrays, views = [], []
        for _ in range(draw.integers(2, 4)):
            order = tuple(draw.permutation(len(shape)).tolist()) if draw.random() < 0.3 else tuple(range(len(shape)))
            index, own = [], []
            for axis in order:
                step = int(draw.choice([1, 1, -1, -1, 2, -2]))
                own.append(1 if draw.random() < 0.25 else abs(step) * shape[axis])
                index.append(slice(None, None, step if own[-1] > 1 else 1))
            arrays.append(draw.standard_normal(own).astype(np.float32))
            views.append((tuple(index), tuple(np.argsort(order).tolist())))

        def program(*arrays, views=views):
            first, *rest = (a[index].transpose(back) for a, (index, back) in zip(arrays, views, strict=True))
            for each in rest:
                first = (first + each) * 0.5 + first
            return first

        graph = backend.capture(program, *arrays)
        np.testing.assert_array_equal(graph(*arrays).numpy(), program(*arrays))


def test_different_dtypes(backend):
    x, whole = backend.tensor(random(5, 9) * 40), backend.tensor(np.arange(45, dtype=np.int32).reshape(5, 9) - 20)
    small = backend.tensor(np.arange(45, dtype=np.int8).reshape(5, 9))
    check(backend, lambda x: (x.astype("int8") + 1).astype("float16") * 0.5, x, dispatches=1)
    check(backend, lambda n: ((n * 3) & 7).astype("float32") * 0.5, whole, dispatches=1)
    check(backend, lambda n, s: xp.where((n > 3) & (s < 20), n - 1, -n), whole, small, dispatches=1)
    check(backend, lambda x: (x > 0).astype("int32") * 2 - (x < 1).astype("int32"), x, dispatches=1)


def test_what_no_chain_takes_stays_a_call(backend):
    large = backend.tensor(np.arange(12, dtype=np.int64) * 2**33)
    check(backend, lambda n: (n + 1) * 3 // n, large, dispatches=1)
    x = backend.tensor(random(3, 4))
    check(backend, lambda x: xp.sum(x * 2.0 + 1.0, axis=1) * 0.5 + 1.0, x, dispatches=2)
    check(backend, lambda x: (x * 2.0)[:2] + 1.0, x, dispatches=2)  # a part of what was made


def test_results_that_somebody_has_are_stored(backend):
    x = backend.tensor(random(6, 10))

    def middle(x):
        first = x * 2.0 + 1.0
        return first, xp.tanh(first) * x

    check(backend, middle, x, dispatches=2)
    kept = []

    def closure(x):
        kept.append(x * 2.0)
        return kept[-1] + 1.0

    graph = backend.capture(closure, x)
    assert graph.dispatches == 2
    equal(graph(x), x * 2.0 + 1.0)
    equal(kept[-1], x * 2.0)


def test_two_readers(backend):
    x = backend.tensor(random(6, 10))

    def apart(x):
        first = x * 2.0
        return xp.sum(first, axis=1), first + 1.0

    check(backend, apart, x, dispatches=3)
    check(backend, lambda x: (x * 2.0) * xp.exp(x), x, dispatches=1)

    def diamond(x):
        first = x + 1.0
        return (first * 2.0) - (first * first)

    check(backend, diamond, x, dispatches=1)


def test_an_operand_that_is_written_between(backend):
    state = backend.tensor(random(4, 8, seed=1))

    def step(x):
        before = state * 2.0  # of what the last step left
        state[...] = x
        return before + state

    x = [backend.tensor(random(4, 8, seed=seed)) for seed in (2, 3, 4)]
    wanted = [step(each) for each in x]
    state[...] = backend.tensor(random(4, 8, seed=1))
    graph = backend.capture(step, x[0])
    for each, found in zip(x, wanted, strict=True):
        equal(graph(each), found)

    def in_place(x):
        y = x * 2.0
        z = y + 1.0
        y += 5.0
        return z * y

    check(backend, in_place, x[0])


def test_more_than_a_chain_holds(backend):
    x = backend.tensor(random(3, 7))

    def long(x):
        for number in range(12):
            x = x * 1.01 + (x if number % 7 == 0 else 0.25)
        return x

    assert check(backend, long, x, dispatches=2)
    many = [backend.tensor(random(3, 7, seed=seed)) for seed in range(9)]

    def summed(*parts):
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    assert check(backend, summed, *many).dispatches == 3
    check(backend, lambda x: ((((((((x + 1.5) * 2.5) + 3.5) * 4.5) + 5.5) * 6.5) + 7.5) * 8.5), x, dispatches=2)


def test_memory_shrinks(backend, monkeypatch):
    x = backend.tensor(random(512, 256))
    fused = backend.capture(gelu, x)
    monkeypatch.setattr(grilly.compute.graph, "fuse", lambda *_: None)
    calls = backend.capture(gelu, x)
    assert (calls.dispatches, fused.dispatches) == (9, 1)
    assert fused.memory <= 2 * x.nbytes + 4096 < calls.memory - x.nbytes


def test_there_are_no_more_programs_than_the_bound(backend):
    kept = backend.opened.caches[fusion.PROGRAMS]
    limit, kept.limit = kept.limit, len(kept)
    try:
        x = backend.tensor(random(3, 5))
        check(backend, lambda x: xp.floor(xp.log(xp.abs(x) + 0.125)) - xp.sign(x), x, dispatches=6)
    finally:
        kept.limit = limit


UNARY = ["negative", "abs", "square", "sqrt", "exp", "tanh", "log", "floor", "sign", "isnan"]
BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum", "less", "greater_equal", "equal", "not_equal"]
DTYPES = ["float32", "float16", "int32", "int8", "uint8", "bool", "int16"]


def drawn(draw):
    """A random program, and the arrays that it takes."""
    extents = draw.integers(1, 7, draw.integers(1, 4))
    shape = tuple(int(extent) * (4 if draw.random() < 0.5 else 1) for extent in extents)
    arrays = []
    for _ in range(draw.integers(1, 4)):
        own = shape
        if draw.random() < 0.4:
            own = tuple(1 if draw.random() < 0.25 else extent for extent in shape)[draw.integers(0, len(shape)) :]
        arrays.append(((draw.standard_normal(own) * 3).astype(np.float32), DTYPES[draw.integers(len(DTYPES))]))
    steps = [tuple(int(n) for n in draw.integers(0, 100, 5)) for _ in range(draw.integers(4, 15))]

    def program(*arguments):
        values = list(arguments)
        for kind, i, j, k, choice in steps:
            x, y, z = values[-1 - i % min(3, len(values))], values[j % len(values)], values[k % len(values)]
            try:
                if kind < 35:
                    found = getattr(xp, BINARY[choice % 10])(x, y)
                elif kind < 50:
                    found = getattr(xp, BINARY[choice % 6])(x, k / 7 - 6 if "float" in x.dtype.name else k - 40)
                elif kind < 65:
                    found = getattr(xp, UNARY[choice % 10])(x)
                elif kind < 80:
                    found = xp.where(x if x.dtype == bool else x > 0, y, z)
                elif kind < 88 and x.ndim:
                    axis = choice % x.ndim
                    places = (np.arange(x.shape[axis]) * (2 * k + 1) + j) % x.shape[axis]
                    found = xp.take(x, places, axis=axis)
                else:
                    found = x.astype(DTYPES[choice % len(DTYPES)])
            except (TypeError, OverflowError):  # not for these dtypes
                continue
            values.append(found)
        return values[-1]

    return program, arrays


def test_random_programs(backend, monkeypatch):
    plain = fused = 0
    for seed in range(5):
        program, arrays = drawn(np.random.default_rng(seed))
        tensors = [backend.tensor(array).astype(dtype) for array, dtype in arrays]
        fused += check(backend, program, *tensors).dispatches
        with monkeypatch.context() as patch:
            patch.setattr(grilly.compute.graph, "fuse", lambda *_: None)
            plain += backend.capture(program, *tensors).dispatches
    assert fused < plain
