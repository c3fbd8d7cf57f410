"""Graphs and the split weights of ``precision="high"``, with stand-ins for the parts, so that any device will do."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest

import grilly
from graphs import equal, random
from grilly import nn


@pytest.fixture
def weight(vulkan_backend):
    return vulkan_backend.tensor(random(4, 4))


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


def test_backward_of_a_module_is_captured(vulkan_backend):
    """Gradients of parameters are results of the graph, where the function returns them."""
    layer, x, g = nn.Linear(4, 3).train(), vulkan_backend.tensor(random(2, 4)), vulkan_backend.tensor(random(2, 3))

    def step(x, g):
        layer(x)
        layer.zero_grad()
        return layer.backward(g), layer.weight.grad_on(vulkan_backend), layer.bias.grad_on(vulkan_backend)

    graph = vulkan_backend.capture(step, x, g)
    for given in ((x, g), (2 * x, g + 1)):
        for one, other in zip(graph(*given), step(*given), strict=True):
            equal(one, other)


def test_a_gradient_that_was_found_in_a_captured_function(vulkan_backend):
    """It is the graph's: neither read nor added to outside, and one from outside is not added to in the function."""
    layer, x, g = nn.Linear(4, 3).train(), vulkan_backend.tensor(random(2, 4)), vulkan_backend.tensor(random(2, 3))
    vulkan_backend.capture(lambda x: (layer(x), layer.backward(g))[1], x)
    for use in (lambda: layer.weight.grad, lambda: layer.weight.grad_on(vulkan_backend),
                lambda: (layer(x), layer.backward(g))):  # fmt: skip
        with pytest.raises(grilly.CaptureError, match="grad: it was found in a captured function"):
            use()
    layer.zero_grad()
    layer(x)
    layer.backward(g)
    with pytest.raises(grilly.CaptureError, match="a captured function would add to the grad that was there before"):
        vulkan_backend.capture(lambda x: (layer(x), layer.backward(g))[1], x)
    assert layer.weight.grad.shape == (3, 4)


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


def _linear():
    return nn.Linear(4, 4).eval()


class Looped(nn.Module):
    """Of parts that no container calls."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([_linear()])

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x


def _biasless():
    return nn.Linear(4, 4, bias=False).eval()


def _stack():
    return nn.Sequential(nn.Sequential(_linear()), nn.ReLU()).eval()


def _encoder():
    return nn.TransformerEncoderLayer(4, 2, 8).eval()


@pytest.mark.parametrize(
    "make, change",
    [
        (_linear, lambda m: setattr(m, "weight", nn.Parameter(random(4, 4)))),
        (_linear, lambda m: setattr(m, "bias", None)),
        (_biasless, lambda m: setattr(m, "bias", nn.Parameter(random(4)))),
        (_stack, lambda m: m.__setitem__(1, nn.SiLU())),
        (_stack, lambda m: m[0].__setitem__(0, _linear())),
        (_stack, lambda m: setattr(m[0][0], "weight", nn.Parameter(random(4, 4)))),
        (_stack, lambda m: m.append(nn.ReLU())),
        (_stack, lambda m: m[0].append(nn.ReLU())),
        (_stack, lambda m: m.insert(0, _linear())),
        (_stack, lambda m: m.pop()),
        (_stack, lambda m: m.__delitem__(0)),
        (Looped, lambda m: m.parts.append(_linear())),
        (Looped, lambda m: setattr(m, "parts", nn.ModuleList([]))),
        (_encoder, lambda m: setattr(m.linear1, "bias", None)),
        (_encoder, lambda m: setattr(m, "norm1", nn.LayerNorm(4))),
        (_encoder, lambda m: setattr(m.self_attn.out_proj, "weight", nn.Parameter(random(4, 4)))),
    ],
)
def test_a_graph_says_that_a_part_was_replaced(vulkan_backend, make, change):
    """It would go on with the weights and modules before."""
    module, other, x = make(), make(), vulkan_backend.tensor(random(2, 4))
    graph = vulkan_backend.capture(lambda x: module(x), x)
    change(other)
    equal(graph(x), module(x))
    change(module)
    for _ in range(2):
        with pytest.raises(grilly.CaptureError, match="a parameter or module in a module was replaced, .*; capture ag"):
            graph(x)
    module(x)
    equal(vulkan_backend.capture(lambda x: module(x), x)(x), module(x))


def test_a_graph_of_what_is_called_as_forward(vulkan_backend):
    module, x = _biasless(), vulkan_backend.tensor(random(2, 4))
    graph = vulkan_backend.capture(module.forward, x)
    module.bias = nn.Parameter(random(4))
    with pytest.raises(grilly.CaptureError, match="replaced, added or taken out"):
        graph(x)


def test_a_graph_says_that_a_part_was_deleted(vulkan_backend):
    module, x = _linear(), vulkan_backend.tensor(random(2, 4))
    graph = vulkan_backend.capture(lambda x: module(x), x)
    del module.bias
    with pytest.raises(grilly.CaptureError, match="replaced, added or taken out"):
        graph(x)


def test_what_replaces_nothing_leaves_graphs_alone(vulkan_backend):
    module, x = nn.Sequential(_linear(), nn.Dropout()).eval(), vulkan_backend.tensor(random(2, 4))
    graph = vulkan_backend.capture(lambda x: module(x), x)
    module[0].weight = module[0].weight
    module[0] = module[0]
    module[0].label = module.label = "settings"
    nn.Sequential(module[0], nn.ReLU())
    module.train().eval()
    equal(graph(x), module(x))


def test_modules_that_a_graph_used_are_copied_and_pickled(vulkan_backend):
    """Copies are no parts of it."""
    module, x = _linear(), vulkan_backend.tensor(random(2, 4))
    graph = vulkan_backend.capture(lambda x: module(x), x)
    for way in (copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))):
        twin = way(module)
        assert vars(twin).keys() == vars(module).keys()
        twin.label = nn.Identity()
    equal(graph(x), module(x))


def test_a_captures_threads_neighbours_are_not_noted(vulkan_backend):
    """Another thread may run modules meanwhile, which are none of the graph's."""
    mine, theirs, x = _linear(), _linear(), random(2, 4)

    def call(x):
        thread = threading.Thread(target=lambda: theirs.to(vulkan_backend)(random(2, 4)))
        thread.start()
        thread.join()
        return mine(x)

    graph = vulkan_backend.capture(call, x)
    theirs.bias = None
    equal(graph(x), mine(vulkan_backend.tensor(x)))
    mine.bias = None
    with pytest.raises(grilly.CaptureError, match="replaced, added or taken out"):
        graph(x)


@pytest.mark.parametrize(
    "make",
    [_linear, nn.GELU, lambda: nn.Sequential(nn.LayerNorm(4), nn.SiLU()), nn.Dropout,
     lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), lambda: nn.Sequential(relu := nn.ReLU(), relu)],
)  # fmt: skip
def test_a_capture_leaves_what_was_kept_before(vulkan_backend, make):
    """backward() is then of the forward() that the user called."""
    layer, x, other = make().train(), vulkan_backend.tensor(random(4, 4)), vulkan_backend.tensor(3 - random(4, 4))
    if isinstance(layer, nn.Dropout):
        layer.p = 0.0
    layer(x)
    wanted = layer.backward(x)
    layer(x)
    for _ in range(2):
        graph = vulkan_backend.capture(lambda x: layer(x), other)
        graph(other)
    equal(layer.backward(x), wanted)
    with pytest.raises(RuntimeError, match="no forward"):
        layer.backward(x)


def test_a_captured_backward_leaves_what_was_kept_before(vulkan_backend):
    layer, x, other = nn.GELU().train(), vulkan_backend.tensor(random(4, 4)), vulkan_backend.tensor(3 - random(4, 4))
    layer(x)
    wanted = layer.backward(x)
    layer(x)
    graph = vulkan_backend.capture(lambda x: (layer(x), layer.backward(x))[1], other)
    equal(layer.backward(x), wanted)
    layer(other)
    equal(graph(other), layer.backward(other))
