"""Graphs that use tensors in another graph's memory, or are given their own arguments back."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import grilly
from conftest import open_or_skip

X = np.arange(1024, dtype=np.float32)


def crowd(backend):
    """Tensors that take what memory has come free."""
    backend.synchronize()
    return [backend.tensor(np.full(n, -7, np.float32)) for n in (1024, 2048, 3072, 4096) * 10]


@pytest.mark.parametrize("how", ["result", "closure"])
def test_a_graph_keeps_the_memory_of_one_that_it_uses(vulkan_backend, how):
    held = []

    def work(t):
        held.append(t * 2)
        return held[0] + 0 if how == "closure" else held[0]

    first = vulkan_backend.capture(work, X)
    result = first(X, copy=False)
    used = [held.pop() if how == "closure" else result]
    second = vulkan_backend.capture(lambda: used[0] + 1)
    np.testing.assert_array_equal(second().numpy(), 2 * X + 1)
    del first, result
    held.clear()
    used.clear()
    gc.collect()
    others = crowd(vulkan_backend)
    np.testing.assert_array_equal(second().numpy(), 2 * X + 1)
    assert all((other.numpy() == -7).all() for other in others)


def test_what_a_graph_writes_in_anothers_memory_is_waited_for(vulkan_backend):
    first = vulkan_backend.capture(lambda t: t * 2, X)
    result = first(X, copy=False)
    slow = vulkan_backend.tensor(np.ones((700, 700), np.float32))

    def work():
        result[...] = result * 3 + 1

    second = vulkan_backend.capture(work)
    for _ in range(3):
        first(X, copy=False)
        vulkan_backend.synchronize()
        slow = slow @ slow * 1e-3
        second()
        np.testing.assert_array_equal(result.numpy(), 6 * X + 1)
    for number in range(3):  # and what the host writes comes after it
        slow = slow @ slow * 1e-3
        second()
        result[...] = np.full_like(X, number)
        assert (result.numpy() == number).all()


def test_arguments_that_a_graph_gave_out_itself(vulkan_backend):
    a, b, c = (vulkan_backend.tensor(np.full(3, n, np.float32)) for n in (1, 2, 3))

    def firsts(tensors):
        return [float(t.numpy()[0]) for t in tensors]

    turn = vulkan_backend.capture(lambda p, q, r: (q, r, p), a, b, c)
    given = turn(a, b, c, copy=False)
    for wanted in ([3, 1, 2], [1, 2, 3], [2, 3, 1]):
        given = turn(*given, copy=False)
        assert firsts(given) == wanted
    leap = vulkan_backend.capture(lambda now, before: (2 * now - before, now), a, b)
    now, before = leap(a, b, copy=False)
    assert firsts((now, before)) == [0, 1]
    now, before = leap(now, before, copy=False)
    assert firsts((now, before)) == [-1, 0]
    same = vulkan_backend.capture(lambda p: p, a)
    assert firsts([same(same(b, copy=False), copy=False)]) == [2]
    part = vulkan_backend.capture(lambda p, q: (p, q, p + q), a, b)
    p, q, _ = part(a, b, copy=False)
    assert firsts(part(q[::-1], p)) == [2, 1, 3]


def test_a_tensor_of_another_runtime_may_be_returned(vulkan_backend):
    with open_or_skip("kompute", lambda: grilly.Compute(runtime="kompute")) as other:
        foreign = other.tensor(X)
        graph = vulkan_backend.capture(lambda x: (x + 1, foreign), X)
        ours, theirs = graph(X)
        assert theirs is foreign
        np.testing.assert_array_equal(ours.numpy(), X + 1)
