"""Optimizers: steps in captured functions, and with gradients of functions."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
from graphs import default
from grilly import nn, optim
from optimizers import gradients_of, model_of, near


@pytest.fixture
def backend(vulkan_backend):
    with default(vulkan_backend):
        yield vulkan_backend


@pytest.mark.parametrize(
    "make",
    [
        lambda: optim.AdamW(optim.linear(0.1, 0.0, 50), max_grad_norm=0.5),
        lambda: optim.Adafactor(),
        lambda: optim.SGD(0.1, 0.9, dampening=0.5, loss_scale=optim.LossScale(8.0)),
    ],
)
def test_a_captured_step_is_replayed(backend, make):
    """With other gradients, as calls have it: rates, corrections and steps go on."""
    models, optimizers = [model_of() for _ in range(2)], [make() for _ in range(2)]
    random = np.random.default_rng(1)
    steps = [gradients_of(models[0], random) for _ in range(6)]
    optimizers[1].init(models[1])
    graph = backend.capture(lambda grads: optimizers[1].update(models[1], grads), steps[0])
    for grads in steps:
        optimizers[0].update(models[0], grads)
        graph(grads)
    assert optimizers[0].steps == optimizers[1].steps == len(steps)
    for (name, one), other in zip(models[0].state_dict().items(), models[1].state_dict().values(), strict=True):
        np.testing.assert_array_equal(one, other, err_msg=name)
    for (name, one), other in zip(optimizers[0].state_dict().items(), optimizers[1].state_dict().values(), strict=True):
        np.testing.assert_array_equal(one, other, err_msg=name)


def test_the_rate_of_a_captured_step_is_set(backend):
    model, optimizer = model_of({"a": (5,)}), optim.SGD(1.0)
    optimizer.init(model)
    begin, one = model.state_dict()["a"], {"a": np.ones(5, np.float32)}
    graph = backend.capture(lambda grads: optimizer.update(model, grads), one)
    graph(one)
    optimizer.lr = 0.25
    graph(one)
    near(model.state_dict()["a"], begin - 1.25)


def test_a_capture_needs_what_is_to_stay(backend):
    model, optimizer, grads = model_of({"a": (5,)}), optim.SGD(1.0), {"a": np.ones(5, np.float32)}
    with pytest.raises(grilly.CaptureError, match="init"):
        backend.capture(lambda grads: optimizer.update(model, grads), grads)
    optimizer.init(model)
    model.a.data = np.zeros(5, np.float32)
    with pytest.raises(grilly.CaptureError, match="replaced"):
        backend.capture(lambda grads: optimizer.update(model, grads), grads)


# -- with gradients of functions


def network(seed=3):
    layers = nn.Sequential(nn.Linear(5, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 2))
    random = np.random.default_rng(seed)
    layers.load_state_dict({
        name: np.asarray(0.4 * random.standard_normal(parameter.shape), np.float32)
        for name, parameter in layers.named_parameters()
    })  # fmt: skip
    return layers


def test_a_network_is_trained_in_one_graph(backend):
    """Forward, backward, clipping and update: the numbers of the calls, and a loss that goes down."""
    def step(model, optimizer):
        def loss_of(model, x, y):
            error = model(x) - y
            return grilly.mean(error * error)

        def run(x, y):
            loss, grads = grilly.value_and_grad(loss_of)(model, x, y)
            optimizer.update(model, grads)
            return loss

        return run

    random = np.random.default_rng(1)
    x = backend.tensor(random.standard_normal((64, 5)).astype(np.float32))
    y = backend.tensor(np.stack([x.numpy().sum(axis=1), x.numpy()[:, 0] ** 2], axis=1))
    models = [network(), network()]
    optimizers = [optim.AdamW(optim.warmup_cosine(0.02, 5, 60), max_grad_norm=1.0) for _ in models]
    called = step(models[0], optimizers[0])
    optimizers[1].init(models[1])
    graph = backend.capture(step(models[1], optimizers[1]), x, y)
    losses = [(float(called(x, y)), float(graph(x, y))) for _ in range(60)]
    np.testing.assert_allclose(*zip(*losses, strict=True), rtol=1e-4)
    assert losses[-1][0] < 0.1 * losses[0][0]
    assert [each.steps for each in optimizers] == [60, 60]


def test_frozen_parameters_have_no_state(backend):
    model = network()
    for parameter in model[0].parameters():
        parameter.requires_grad = False
    before, optimizer = model.state_dict(), optim.AdamW(0.1)
    optimizer.init(model)
    _, grads = grilly.value_and_grad(lambda model, x: grilly.sum(model(x)))(model, np.ones((2, 5), np.float32))
    optimizer.update(model, grads)
    assert not any(name.startswith("exp_avg.0") for name in optimizer.state_dict())
    for name, value in model.state_dict().items():
        assert np.array_equal(value, before[name]) == name.startswith("0.")


def test_no_gradient_goes_through_results_in_place(backend):
    double = grilly.elementwise(lambda x: x * 2)

    def function(x):
        double.into([x], x)
        return grilly.sum(x)

    with pytest.raises(grilly.errors.GradientError, match="in place"):
        grilly.grad(function)(backend.tensor(np.ones(4, np.float32)))
