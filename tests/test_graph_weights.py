"""Graphs and the split weights of ``precision="high"``, with stand-ins for the parts, so that any device will do."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
from graphs import equal, random
from grilly import nn
from grilly.compute.products import kept


@pytest.fixture
def weight(vulkan_backend):
    return vulkan_backend.tensor(random(4, 4))


def test_what_a_capture_splits_is_its_own(vulkan_backend, weight):
    """Its memory holds nothing before the first replay, and what a replay left there after it."""

    def call(x):
        made = weight * 2
        kept.keep(vulkan_backend.opened, weight, made)
        assert kept.find(weight) is made, "for the rest of the capture"
        assert kept.find(weight[1:]) is None
        return x + made

    graph = vulkan_backend.capture(call, random(4, 4))
    assert kept.find(weight) is None
    for factor in (1, 3):
        weight *= factor
        equal(graph(random(4, 4)), vulkan_backend.tensor(random(4, 4)) + weight * 2)


def test_a_graph_says_that_a_split_weight_was_written_to(vulkan_backend, weight):
    kept.keep(vulkan_backend.opened, weight, weight * 2)
    graph = vulkan_backend.capture(lambda x: x + kept.find(weight), random(4, 4))
    equal(graph(random(4, 4)), vulkan_backend.tensor(random(4, 4)) + weight * 2)
    weight[0] = 7
    with pytest.raises(grilly.CaptureError, match="split before the capture was written to since; capture again"):
        graph(random(4, 4))


def test_what_replays_write_to_is_not_kept(vulkan_backend, weight):
    """Nobody counts what they write."""
    kept.keep(vulkan_backend.opened, weight, weight * 2)

    def call(x):
        weight[...] = weight + x
        return x * 2

    graph = vulkan_backend.capture(call, random(4, 4))
    for changed in (weight, graph(random(4, 4), copy=False)):
        assert kept.find(changed) is None
        kept.keep(vulkan_backend.opened, changed, changed * 2)
        assert kept.find(changed) is None
    copied = graph(random(4, 4))
    kept.keep(vulkan_backend.opened, copied, copied * 2)
    assert kept.find(copied) is not None, "a copy is as any tensor"
    np.testing.assert_array_equal(copied.numpy(), 2 * random(4, 4))


@pytest.mark.parametrize("used_before", [False, True])
@pytest.mark.parametrize("held", ["array", "Tensor"])
def test_a_graph_says_that_a_parameter_was_replaced(vulkan_backend, used_before, held):
    """It would go on with the old weights; what is written to a Tensor in place it sees."""
    layer, x = nn.Linear(4, 3).eval(), vulkan_backend.tensor(random(2, 4))
    if held == "Tensor":
        layer.weight.data = vulkan_backend.tensor(layer.weight.numpy())
    if used_before:
        layer(x)
    graph = vulkan_backend.capture(lambda x: layer(x), x)
    equal(graph(x), layer(x))
    if held == "Tensor":
        layer.weight.data[...] = 2.0
        equal(graph(x), layer(x))
    other = nn.Linear(4, 3)
    other.load_state_dict(layer.state_dict())
    equal(graph(x), layer(x))  # others' data are theirs
    layer.load_state_dict({"weight": np.zeros((3, 4), np.float32), "bias": np.zeros(3, np.float32)})
    for _ in range(2):
        with pytest.raises(grilly.CaptureError, match="a parameter of a module has other data .*; capture again"):
            graph(x)
    equal(vulkan_backend.capture(lambda x: layer(x), x)(x), layer(x))


def test_backward_of_a_module_is_not_captured(vulkan_backend):
    """Its gradients would be read before there are any."""
    layer, x, g = nn.Linear(4, 3).train(), vulkan_backend.tensor(random(2, 4)), vulkan_backend.tensor(random(2, 3))

    def step(x):
        layer(x)
        return layer.backward(g)

    with pytest.raises(grilly.CaptureError, match="backward: gradients of parameters are NumPy arrays"):
        vulkan_backend.capture(step, x)
    assert layer.weight.grad is None


@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.GELU(), nn.Sequential(nn.LayerNorm(4), nn.SiLU())], ids=str)
def test_backward_after_a_forward_that_was_captured(vulkan_backend, layer):
    """What it kept lies in the graph's memory, which other steps of a replay write to."""
    x = vulkan_backend.tensor(random(4, 4))
    layer.train()
    graph = vulkan_backend.capture(lambda x: layer(x), x)
    graph(x)
    with pytest.raises(grilly.CaptureError, match="forward.. was captured, and a graph uses the memory"):
        layer.backward(x)
    layer(x)
    layer.backward(x)


def test_backward_in_the_capture_of_its_forward(vulkan_backend):
    layer, x = nn.GELU().train(), vulkan_backend.tensor(random(4, 4))
    graph = vulkan_backend.capture(lambda x: (layer(x), layer.backward(x)), x)
    layer(x)
    equal(graph(x)[1], layer.backward(x))
