"""Elementwise operations of captured work in the reductions that read them: one dispatch, the bits of the calls."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
from graphs import check, default, random


@pytest.fixture
def backend(vulkan_backend):
    with default(vulkan_backend):
        yield vulkan_backend


def squares(x, axis):
    y = x * 0.5 - 1
    return grilly.sum(y * y, axis=axis)


@pytest.mark.parametrize("shape, axis", [
    ((7, 13), 1), ((7, 13), 0), ((200, 40), 0), ((300, 40), 1), ((3, 5000), 1), ((100_003,), None), ((40, 6000), None),
    ((2, 3, 4, 5), (1, 3)), ((2, 3, 40, 5), (0, 2)), ((6, 64), None), ((1, 9), 1), ((9, 1), 1), ((1,), None),
])  # fmt: skip
def test_sums_have_the_bits_of_the_calls(backend, shape, axis):
    check(backend, lambda x: squares(x, axis), backend.tensor(random(*shape)), dispatches=1)


def test_columns_in_parts_stay_two_dispatches(backend):
    """Their workgroups are counted in groups that the other kernel does not have."""
    check(backend, lambda x: squares(x, 0), backend.tensor(random(300, 40)), dispatches=2)


@pytest.mark.parametrize("how", ["mean", "max", "min", "prod", "any", "all"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8", "int64"])
def test_other_reductions(backend, how, dtype):
    x = backend.tensor((random(50, 30) * 2).astype(np.int32)).astype(dtype)
    rounds = how == "mean" and dtype in ("int32", "uint8", "float16") or how == "prod" and dtype == "float16"
    dispatches = 2 if rounds else 1  # in an order of their own
    check(backend, lambda x: getattr(grilly, how)(x * 2 - x, axis=1), x, dispatches=dispatches)


def test_two_arrays_and_a_broadcast_one(backend):
    x, y, z = backend.tensor(random(20, 30)), backend.tensor(random(20, 30)), backend.tensor(random(30))
    check(backend, lambda x, y, z: grilly.mean(grilly.abs(x - y) * z, axis=1), x, y, z, dispatches=1)
    check(backend, lambda x, y, z: grilly.max(grilly.abs(x - y) * z, axis=0, keepdims=True), x, y, z, dispatches=1)


def test_what_is_read_twice_or_kept_is_stored(backend):
    x = backend.tensor(random(20, 30))

    def both(x):
        y = x * 2
        return grilly.sum(y, axis=1) + grilly.max(y, axis=1)

    check(backend, both, x, dispatches=4)
    graph = backend.capture(lambda x: (y := x * 2, grilly.sum(y, axis=1)), x)
    assert graph.dispatches == 2


def test_what_is_written_in_between(backend):
    """What the chain reads is as it was when the operation was captured."""
    x, kept = backend.tensor(random(20, 30)), backend.tensor(random(20, 30))

    def function(x):
        y = kept * x
        kept[...] = x
        return grilly.sum(y, axis=1)

    before = kept.numpy()
    graph = backend.capture(function, x)
    np.testing.assert_array_equal(graph(x).numpy(), grilly.sum(backend.tensor(before) * x, axis=1).numpy())
    np.testing.assert_array_equal(graph(x).numpy(), grilly.sum(x * x, axis=1).numpy())


def test_transposed_operands(backend):
    x = backend.tensor(random(40, 20, 6))
    check(backend, lambda x: grilly.sum(x.transpose(2, 0, 1) * 1.5 + 1, axis=1), x, dispatches=1)
    check(backend, lambda x: grilly.sum(x.transpose(2, 0, 1) * 1.5 + 1, axis=0), x, dispatches=1)
