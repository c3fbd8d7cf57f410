"""Expressions with fewer instructions (expressions/quick.py), on a device, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
from grilly.compute.arrays.map import Work, emit_work
from grilly.compute.device.call import run
from grilly.compute.device.plan import ALIGN_MOST, Planner
from grilly.compute.expressions.elements import by_device
from grilly.compute.expressions.expression import Expression, traced
from grilly.compute.expressions.nodes import in_order, replaced
from grilly.compute.expressions.quick import quick

FLOAT32, INT32 = np.dtype(np.float32), np.dtype(np.int32)
BOUND = 1 << 21


def quickly(function, dtypes):
    """The expression that a function is, with fewer instructions; its int32 arrays are of indices."""
    made = traced(function, dtypes, [], None, FLOAT32)
    bounds = {number: BOUND for number, dtype in enumerate(dtypes) if dtype == INT32}
    return Expression(*quick(replaced([made.output], lambda leaf: leaf, by_device), bounds))


def names(expression):
    return {node.value if node.name == "call" else node.name for node in in_order(expression.outputs)}


def plan(given, layouts, facts, registry):
    planner = Planner(facts, layouts)
    result = planner.empty(planner.inputs[0].shape)
    emit_work(planner, registry, Work(given[0]), result, planner.inputs, [ALIGN_MOST] * len(layouts))
    return planner.plan(result)


def computed(backend, expression, *arrays):
    device = backend.opened
    return run(device, plan, (expression,), [device.tensor(array) for array in arrays])[0].numpy()


def test_tanh(vulkan_backend):
    x = np.concatenate([np.linspace(-12, 12, 4001), [0.0, -0.0, 1e-30, 100, -1e30, np.inf, -np.inf, np.nan, 0.5, -0.5]])
    x = x.astype(np.float32)
    expression = quickly(grilly.tanh, (FLOAT32,))
    assert names(expression) & {"tanh"} == set() and "native_exp2" in names(expression)
    found, want = computed(vulkan_backend, expression, x), np.tanh(x.astype(np.float64))
    assert (np.isnan(found) == np.isnan(want)).all()
    assert (np.abs(found - want) <= 1e-6 * np.abs(want) + 1e-38)[~np.isnan(want)].all()


@pytest.mark.parametrize("by", [3.0, -0.7, 1e-30, 64.0])
def test_quotients_and_roots(vulkan_backend, by):
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(999).astype(np.float32) * 9 for _ in range(2))
    expression = quickly(lambda x, y: x / by + grilly.sqrt(abs(y)) - x / y, (FLOAT32, FLOAT32))
    assert names(expression) & {"divide", "sqrt"} == set()
    parts = np.array([x.astype(np.float64) / by, np.sqrt(np.abs(y.astype(np.float64))), -x.astype(np.float64) / y])
    found = computed(vulkan_backend, expression, x, y)
    assert (np.abs(found - parts.sum(0)) <= 1e-6 * np.abs(parts).sum(0)).all()


def test_indices_become_floats(vulkan_backend):
    """To the bit, at the ends of what is said to be small, and where it is not."""
    ends = np.int32([0, 1, 77, BOUND - 1, BOUND // 2])
    i, j = (a.ravel() for a in np.meshgrid(ends, ends))
    small = {
        "difference": lambda i, j: (i - j).astype("float32"),
        "sum": lambda i, j: (i + j).astype("float32"),
        "distance": lambda i, j: abs(i - j).astype("float32"),
        "chosen": lambda i, j: grilly.where(i > j, i, j - 5).astype("float32"),
    }
    large = {"product": lambda i, j: (i * j).astype("float32"), "fours": lambda i, j: (4 * (i - j)).astype("float32")}
    for name, function in (small | large).items():
        expression = quickly(function, (INT32, INT32))
        assert ("float_of_int" in names(expression)) == (name in large), name
        with np.errstate(over="ignore"):
            pairs = {"difference": i - j, "sum": i + j, "distance": abs(i - j), "chosen": np.where(i > j, i, j - 5),
                     "product": i * j, "fours": 4 * (i - j)}  # fmt: skip
        assert (computed(vulkan_backend, expression, i, j) == pairs[name].astype(np.float32)).all(), name
