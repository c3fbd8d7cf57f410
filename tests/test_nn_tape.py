"""backward() of modules: of what their forward did, and of those that define it themselves."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import grilly
import grilly.functional as F
from grilly import nn

RNG = np.random.default_rng(0)
X, G = (RNG.standard_normal((3, 6)).astype(np.float32) for _ in range(2))


class Gated(nn.Module):
    """A class without a backward: two layers, a function of Tensors and indices."""

    def __init__(self):
        super().__init__()
        self.up, self.gate = nn.Linear(6, 8, rng=1), nn.Linear(6, 8, rng=2)
        self.down = nn.Linear(8, 6, rng=3)
        self.scale = nn.Parameter(np.full(6, 2.0, np.float32))

    def forward(self, x):
        h = self.up(x) * F.sigmoid(self.gate(x))
        return self.down(h)[:, ::-1] * self.scale.on(h.backend)


def by_functions(module, *arrays):
    """Gradients of inputs and parameters of ``sum(G module(arrays))``, by value_and_grad."""

    def loss(module, *given):
        return grilly.sum(module(*given) * grilly.asarray(G))

    return grilly.grad(loss, tuple(range(len(arrays) + 1)))(module, *arrays)


def close(one, other):
    np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_a_class_needs_no_backward(default, kind):
    module = Gated()
    wanted, of_x = by_functions(module, X)
    module.train()
    y = module(X if kind == "array" else default.tensor(X))
    found = module.backward(G if kind == "array" else default.tensor(G))
    assert isinstance(found, np.ndarray if kind == "array" else grilly.Tensor) and type(y) is type(found)
    close(found, of_x)
    for name, parameter in module.named_parameters():
        assert parameter.grad.dtype == np.float32
        close(parameter.grad, wanted[name])
        close(parameter.grad_on(default), wanted[name])


def test_several_inputs_and_results(default):
    class Two(nn.Module):
        def forward(self, x, scale=1.0, *, y):
            return x * y, {"sum": scale * (x + y)}

    module = Two().train()
    product, more = module(X, 2.0, y=3 * X)
    assert isinstance(product, np.ndarray) and isinstance(more["sum"], np.ndarray)
    dx, dy = module.backward((G, G))
    close(dx, G * 3 * X + 2 * G)
    close(dy, G * X + 2 * G)
    module(X, y=X)
    with pytest.raises(ValueError, match="Two.backward: 1 gradients; expected 2"):
        module.backward(G)


def test_a_result_that_does_not_depend_on_an_input(default):
    class First(nn.Module):
        def forward(self, x, y):
            return x * 2

    module = First().train()
    module(X, X)
    dx, dy = module.backward(G)
    close(dx, 2 * G)
    assert dy.shape == X.shape and not dy.any()


class StraightThrough(nn.Module):
    """Rounds; its gradient is the output's, by its own backward."""

    calls = 0

    def forward(self, x):
        return x.round() if isinstance(x, np.ndarray) else grilly.round(x)

    def backward(self, grad_output):
        self.calls += 1
        return grad_output * 3


class OnTheHost(nn.Module):
    """Computes in NumPy, with a weight whose gradient it adds by hand."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(np.full(6, 0.5, np.float32))

    def forward(self, x):
        self.seen = np.asarray(x.numpy() if isinstance(x, grilly.Tensor) else x)
        return self.seen * self.weight.numpy()

    def backward(self, grad_output):
        assert isinstance(grad_output, np.ndarray)
        self.weight.add_grad((grad_output * self.seen).sum(0))
        return grad_output * self.weight.numpy()


def test_a_backward_of_its_own_is_called(default):
    """Inside another module, and its parts by it; at any depth and place."""
    inner = StraightThrough()
    model = nn.Sequential(nn.Linear(6, 6, rng=0), inner, nn.Sequential(OnTheHost(), inner)).train()
    model(X)
    found = model.backward(G)
    assert inner.calls == 2
    w = model[0].weight.numpy()
    close(found, 9 * 0.5 * G @ w)
    close(model[0].weight.grad, (9 * 0.5 * G).T @ X)
    assert model[2][0].weight.grad.shape == (6,) and model[2][0].weight.grad.any()


class ByHand(nn.Module):
    """Calls the backward of its parts."""

    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(6, 5, rng=1), nn.GELU(), nn.Linear(5, 6, rng=2)

    def forward(self, x):
        return self.last(self.act(self.first(x)))

    def backward(self, grad_output):
        return self.first.backward(self.act.backward(self.last.backward(grad_output)))


@pytest.mark.parametrize("kind", ["array", "tensor"])
@pytest.mark.parametrize("twice", [False, True])
def test_parts_keep_for_a_backward_by_hand(default, kind, twice):
    own = ByHand()
    plain = nn.Sequential(copy.deepcopy(own.first), nn.GELU(), copy.deepcopy(own.last)).train()
    plain(X)
    wanted = plain.backward(G)
    module = nn.Sequential(own, own).train() if twice else own.train()
    given = X if kind == "array" else default.tensor(X)
    if twice:  # each place has what its own forward kept
        double = nn.Sequential(plain, plain).train()
        double.zero_grad()
        double(X)
        wanted = double.backward(G)
    module(given)
    found = module.backward(G if kind == "array" else default.tensor(G))
    close(found, wanted)
    close(own.first.weight.grad, plain[0].weight.grad)


class Halved(nn.Linear):
    """A layer with a backward that calls the layer's."""

    def backward(self, grad_output):
        return super().backward(grad_output) * 0.5


class Counted(nn.Sequential):
    def backward(self, grad_output):
        self.count = getattr(self, "count", 0) + 1
        return super().backward(grad_output)


class InTurn(nn.Sequential):
    def backward(self, grad_output):
        for module in reversed(list(self)):
            grad_output = module.backward(grad_output)
        return grad_output


@pytest.mark.parametrize("kind", [Counted, InTurn])
@pytest.mark.parametrize("nested", [False, True])
def test_a_layer_may_be_extended(default, kind, nested):
    inner = kind(Halved(6, 6, rng=0), nn.Tanh())
    model = nn.Sequential(inner).train() if nested else inner.train()
    y = model(X)
    found = model.backward(G)
    w = inner[0].weight.numpy()
    grad = G * (1 - y * y)
    close(found, 0.5 * grad @ w)
    close(inner[0].weight.grad, grad.T @ X)
    assert kind is InTurn or inner.count == 1


def test_frozen_parameters_have_no_gradients(default):
    model = nn.Sequential(nn.Linear(6, 6, rng=0), nn.Tanh(), nn.Linear(6, 6, rng=1)).train()
    assert model[0].requires_grad_(False) is model[0] and not model[0].weight.requires_grad
    model(X)
    model.backward(G)
    assert model[0].weight.grad is None and model[2].weight.grad is not None
    assert set(grilly.grad(lambda m: grilly.sum(m(grilly.asarray(X))))(model)) == {"2.weight", "2.bias"}
    model.requires_grad_()
    model(X)
    model.backward(G)
    assert model[0].weight.grad is not None


def test_a_quantized_weight_stays_without_a_gradient(default):
    layer = nn.Linear(32, 4, rng=0)
    layer.weight.data = default.tensor(grilly.quantize(layer.weight.numpy(), "Q8_0"))
    layer.requires_grad_().train()
    assert not layer.weight.requires_grad and layer.bias.requires_grad
    layer(np.ones((2, 32), np.float32))
    assert layer.backward(np.ones((2, 4), np.float32)).shape == (2, 32)
    assert layer.weight.grad is None and layer.bias.grad is not None


def test_gradients_stay_on_the_device_until_they_are_read(default):
    layer = nn.Linear(6, 6, rng=0).train()
    for _ in range(2):
        layer(default.tensor(X))
        layer.backward(default.tensor(G))
    on_device = layer.weight.grad_on(default)
    close(on_device, 2 * G.T @ X)
    layer.weight.grad[...] *= 0.5  # what is read is an array that may be changed
    close(layer.weight.grad, G.T @ X)
    layer(X)
    layer.backward(G)
    close(layer.weight.grad, 2 * G.T @ X)
    layer.weight.add_grad(default.tensor(np.ones((6, 6), np.float32)))
    close(pickle.loads(pickle.dumps(layer)).weight.grad, 2 * G.T @ X + 1)
    close(copy.deepcopy(layer).weight.grad, 2 * G.T @ X + 1)
    with pytest.raises(ValueError, match=r"a gradient of shape \(6,\); expected the parameter's, \(6, 6\)"):
        layer.weight.add_grad(default.tensor(X[0]))
    layer.zero_grad()
    assert layer.weight.grad is None and layer.weight.grad_on(default) is None


def test_a_tensor_that_is_added_may_change_afterwards(default):
    parameter = nn.Parameter(np.zeros(3, np.float32))
    own = default.tensor(np.ones(3, np.float32))
    parameter.add_grad(own)
    own *= 5
    assert parameter.grad.tolist() == [1, 1, 1]


def test_sixteen_bits(default):
    """The sum of gradients is float32."""
    layer = nn.Linear(6, 6, rng=0).to(dtype=np.float16).train()
    for _ in range(2):
        layer(X.astype(np.float16))
        layer.backward(G.astype(np.float16))
    assert layer.weight.grad.dtype == np.float32
    np.testing.assert_allclose(layer.weight.grad, 2 * G.T @ X, rtol=2e-2, atol=2e-2)


def test_functions_take_gradients_of_modules_in_training(default):
    """Then modules keep nothing, and their own backward is not called."""
    inner = StraightThrough()
    model = nn.Sequential(nn.Linear(6, 6, rng=0), inner).train()
    found = grilly.grad(lambda m: grilly.sum(m(grilly.asarray(X))))(model)
    assert not inner.calls and not found["0.weight"].numpy().any()
    with pytest.raises(RuntimeError, match="no forward"):
        model.backward(G)


def test_writing_in_place_is_refused(default):
    class InPlace(nn.Module):
        def forward(self, x):
            y = x * 2
            z = y * y
            y += 1
            return z

    with pytest.raises(grilly.GradientError, match="written to in place"):
        InPlace().train()(X)
    InPlace()(default.tensor(X))


def test_checkpoints_in_a_module(default):
    class Saving(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.Sequential(nn.Linear(6, 6, rng=0), nn.Dropout(0.5), nn.Tanh())

        def forward(self, x):
            return grilly.checkpoint(self.block)(x)

    module, found = Saving().train(), []
    for each in (module, module.block):
        module.zero_grad()
        grilly.manual_seed(3)
        y = each(X)
        found.append((y, each.backward(G), module.block[0].weight.grad))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_weights_of_attention_that_are_returned(default):
    """They are computed beside; the gradient is the output's."""
    layer = nn.MultiheadAttention(6, 2, rng=0).train()
    x = X[None]
    found = []
    for need_weights in (False, True):
        layer.zero_grad()
        layer(x, need_weights=need_weights)
        found.append((layer.backward(G[None])[0], layer.in_proj_weight.grad))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_positions_that_are_not_aligned_have_gradients(default):
    """As T5's with a position_offset that one kernel does not take."""
    layer = nn.MultiheadAttention(6, 2, architecture="t5", rng=0)
    q, k = X[None], np.concatenate([X, X])[None]
    wanted, dq = by_functions(lambda_of(layer, k), q)
    layer.train()
    layer(q, k, position_offset=1)
    found = layer.backward(G[None])
    close(found[0], dq)
    close(layer.relative_attention_bias.weight.grad, wanted["layer.relative_attention_bias.weight"])


def lambda_of(layer, keys):
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, q):
            return self.layer(q, grilly.asarray(keys), position_offset=1)[0]

    return Around()


def test_the_backend_of_a_part_is_the_modules(default):
    """Where the module has none of its own."""
    with grilly.Compute() as other:
        model = nn.Sequential(nn.Linear(6, 6, rng=0).to(other)).train()
        y = model(X)
        found = model.backward(G)
        assert model[0].weight.grad is not None and isinstance(y, np.ndarray) and found.shape == X.shape
        grads = grilly.grad(lambda m, x: grilly.sum(m(x)))(model, X)
        assert grads["0.weight"].backend is other and grads["0.weight"].numpy().any()
