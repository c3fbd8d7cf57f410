"""Optimizers: PyTorch's numbers over a hundred steps, whatever the options, and what stays between steps."""

from __future__ import annotations

import copy
import functools
import math

import numpy as np
import pytest

import grilly
from conftest import open_or_skip
from graphs import default
from grilly import nn, optim
from optimizers import (
    CASES,
    HALVES,
    MATRICES,
    SHAPES,
    T,
    compare,
    dispatches,
    gradients_of,
    model_of,
    near,
    torch,
    torch_parameters,
)  # fmt: skip


@pytest.fixture
def backend(vulkan_backend):
    with default(vulkan_backend):
        yield vulkan_backend


@pytest.mark.needs("torch")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_as_pytorch_has_it(backend, case, clip):
    ours, theirs = CASES[case]
    compare(backend, ours(max_grad_norm=clip), lambda p: theirs(list(p.values())), clip=clip)


def iterated(gradient, coefficients, steps, eps):
    """PyTorch's iteration of Newton and Schulz in float32."""
    a, b, c = coefficients
    tall = gradient.size(0) > gradient.size(1)
    x = gradient.T if tall else gradient
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x




@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    "options", [{}, {"nesterov": False, "weight_decay": 0.0, "adjust_lr": "match_rms_adamw"},
                {"ns_steps": 3, "adjust_lr": "spectral_unclamped", "momentum": 0.5}],
)  # fmt: skip
def test_muon_as_pytorch_has_it(backend, monkeypatch, options):
    monkeypatch.setattr(torch.optim._muon, "_zeropower_via_newtonschulz", iterated)
    named = {"adjust_lr_fn" if name == "adjust_lr" else name: value for name, value in options.items()}
    compare(backend, optim.Muon(0.01, ns_dtype="float32", **options), lambda p: T.Muon(list(p.values()), 0.01, **named),
            shapes=MATRICES, steps=30, rtol=1e-5, atol=1e-5)  # fmt: skip


def test_muon_of_16_bits_is_near(backend):
    found = [model_of(MATRICES) for _ in range(2)]
    for model, dtype in zip(found, ("float32", "float16"), strict=True):
        optimizer, random = optim.Muon(0.01, ns_dtype=dtype), np.random.default_rng(1)
        for _ in range(10):
            optimizer.update(model, gradients_of(model, random))
    one, other = (model.state_dict() for model in found)
    for name, value in one.items():
        near(value, other[name], rtol=0.0, atol=2e-4)


@pytest.mark.needs("torch")
def test_muon_and_what_it_does_not_take(backend, monkeypatch):
    monkeypatch.setattr(torch.optim._muon, "_zeropower_via_newtonschulz", iterated)

    class Two:
        def __init__(self, params):
            own = {"first.weight"}
            self._parts = (T.Muon([p for n, p in params.items() if n in own], 0.01),
                           T.AdamW([p for n, p in params.items() if n not in own], 1e-3))  # fmt: skip

        def step(self):
            for part in self._parts:
                part.step()

    ours = optim.Muon(0.01, ns_dtype="float32", params="first.*", other=optim.AdamW(1e-3), max_grad_norm=0.5)
    compare(backend, ours, Two, steps=30, clip=0.5, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"second of shape \(33,\)"):
        optim.Muon(0.01).init(model_of())


def lion(weight, mean, gradient, rate, betas, decay):
    """https://arxiv.org/abs/2302.06675, algorithm 2; in float32, where a sign depends on the rounding."""
    first, second, gain, gains, rate, decay = np.float32([*betas, *(1 - np.float64(betas)), rate, decay])
    step = np.sign(first * mean + gain * gradient)
    return weight * (1 - rate * decay) - rate * step, second * mean + gains * gradient


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lion(backend, decay):
    model, random = model_of(), np.random.default_rng(1)
    weights = {name: np.array(value) for name, value in model.state_dict().items()}
    means = {name: np.zeros_like(value) for name, value in weights.items()}
    optimizer = optim.Lion(1e-3, (0.9, 0.98), weight_decay=decay)
    for _ in range(100):
        grads = gradients_of(model, random)
        optimizer.update(model, grads)
        for name, gradient in grads.items():
            weights[name], means[name] = lion(weights[name], means[name], gradient, 1e-3, (0.9, 0.98), decay)
    for name, value in model.state_dict().items():
        near(value, weights[name])


# -- 16 bits


@pytest.mark.needs("torch")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", ["momentum", "adamw", "adafactor"])
def test_parameters_of_16_bits_have_masters(backend, case, dtype):
    model = model_of(dtype=dtype)
    others = torch_parameters(model)
    ours, theirs = CASES[case]
    optimizer, other, random = ours(), theirs(list(others.values())), np.random.default_rng(1)
    dtype = backend.empty((), dtype).dtype
    for _ in range(30):
        grads = gradients_of(model, random, dtype)
        for name, parameter in others.items():
            parameter.grad = torch.tensor(np.float32(grads[name]))
        other.step()
        optimizer.update(model, grads)
    state, weights = optimizer.state_dict(), model.state_dict()
    for name, parameter in others.items():
        near(state[f"master.{name}"], parameter.detach().numpy(), err_msg=name)
        assert weights[name].dtype == dtype
        np.testing.assert_array_equal(weights[name], state[f"master.{name}"].astype(dtype))


@pytest.mark.needs("torch")
def test_parameters_and_gradients_of_several_dtypes(backend):
    """Gradients of float32 for parameters of float16, and the other way round."""
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 7).to(dtype="float16"))
    others = torch_parameters(model)
    optimizer, random = optim.AdamW(1e-2), np.random.default_rng(1)
    other = T.AdamW(others.values(), 1e-2, weight_decay=0.01)
    for _ in range(10):
        grads = gradients_of(model, random)
        grads = {name: grad.astype("float16" if name.startswith("0.") else "float32") for name, grad in grads.items()}
        for name, parameter in others.items():
            parameter.grad = torch.tensor(np.float32(grads[name]))
        other.step()
        optimizer.update(model, grads)
    state, weights = optimizer.state_dict(), model.state_dict()
    assert [name for name in state if name.startswith("master")] == ["master.1.bias", "master.1.weight"]
    for name, parameter in others.items():
        near(state.get(f"master.{name}", weights[name]), parameter.detach().numpy())


# -- groups and schedules


@pytest.mark.needs("torch")
def test_groups(backend):
    groups = [{"params": ["*.bias", "scalar"], "weight_decay": 0.0}, {"params": lambda n: n == "third", "lr": 0.1}]
    ours = optim.AdamW(1e-2, weight_decay=0.1, groups=groups)

    def theirs(params):
        own = {"first.bias": 0, "scalar": 0, "third": 1}
        parts = [[parameter for name, parameter in params.items() if own.get(name, 2) == number] for number in range(3)]
        options = {"weight_decay": 0.0}, {"lr": 0.1}, {}
        given = [{"params": part, **own} for part, own in zip(parts, options, strict=True)]
        return T.AdamW(given, 1e-2, weight_decay=0.1)

    compare(backend, ours, theirs)
    np.testing.assert_allclose(ours.lr, [1e-2, 0.1, 1e-2], rtol=1e-6)


SCHEDULES = {
    "constant": (optim.constant(0.5), lambda step: 0.5),
    "linear": (optim.linear(0.0, 2.0, 50), lambda step: 2.0 * min(step, 50) / 50),
    "cosine": (optim.cosine(1.0, 70, 0.1), lambda step: 0.1 + 0.45 * (1 + math.cos(math.pi * min(step, 70) / 70))),
    "step": (optim.step_decay(1.0, 30, 0.3), lambda step: 0.3 ** (step // 30)),
    "warm-up": (optim.warmup_cosine(1.0, 10, 90, 0.2),
                lambda step: step / 10 if step < 10 else 0.2 + 0.4 * (1 + math.cos(math.pi * min(step - 10, 80) / 80))),
    "joined": (optim.joined([optim.linear(0, 1, 5), optim.constant(0.7), optim.step_decay(0.5, 10)], [5, 40]),
               lambda step: step / 5 if step < 5 else 0.7 if step < 40 else 0.5 * 0.1 ** ((step - 40) // 10)),
    "own": (lambda step: grilly.where(step < 20, 0.1, 1 / (1 + step)) if isinstance(step, grilly.Scalar) else 0.0,
            lambda step: 0.1 if step < 20 else 1 / (1 + step)),
}  # fmt: skip


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(backend, name):
    ours, theirs = SCHEDULES[name]
    if name != "own":
        found, want = ([function(step) for step in range(120)] for function in (ours, theirs))
        np.testing.assert_allclose(found, want, rtol=1e-12)
    compare(backend, optim.SGD(ours, 0.9), lambda p: T.SGD(p.values(), 1.0, momentum=0.9), schedule=theirs,
            shapes={"a": (5,)}, rtol=2e-5, atol=2e-5)  # fmt: skip


def test_a_schedule_that_branches_is_refused(backend):
    model = model_of({"a": (5,)})
    before = model.state_dict()
    with pytest.raises(grilly.ExpressionError, match="SGD: lr is a schedule.*grilly.where"):
        optim.SGD(lambda step: 0.1 if step < 5 else 0.2).update(model, {"a": np.ones(5, np.float32)})
    np.testing.assert_array_equal(model.state_dict()["a"], before["a"])


def test_the_learning_rate_is_set(backend):
    model = model_of({"a": (5,)})
    optimizer, one = optim.SGD(0.5), {"a": np.ones(5, np.float32)}
    begin = model.state_dict()["a"]
    optimizer.lr = 0.25
    optimizer.update(model, one)
    optimizer.lr = 2
    optimizer.update(model, one)
    near(model.state_dict()["a"], begin - 2.25)
    assert optimizer.lr == 2.0
    with pytest.raises(TypeError, match="schedule"):
        optim.SGD(optim.constant(1.0)).lr = 0.1
    with pytest.raises(ValueError, match="lr is -1"):
        optimizer.lr = -1


# -- arrays by names


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", ["sgd", "adamw", "adafactor"])
def test_arrays_by_names(backend, case, dtype):
    """Given arrays stay as they are; what is returned has the numbers that a module gets."""
    models = [model_of(dtype=dtype) for _ in range(2)]
    ours, _ = CASES[case]
    one, other, random = ours(), ours(), np.random.default_rng(1)
    params = {name: backend.tensor(value) for name, value in models[0].state_dict().items()}
    for number in range(8):
        grads = gradients_of(models[0], random, dtype)
        one.update(models[0], grads)
        before, held = {name: value.numpy() for name, value in params.items()}, params
        params = other.update(params, grads)
        for name, value in held.items():
            np.testing.assert_array_equal(value.numpy(), before[name])
        if number == 5:  # values from elsewhere are taken
            models[0].load_state_dict({name: np.full(shape, 0.5, dtype) for name, shape in SHAPES.items()})
            params = {name: backend.tensor(np.full(shape, 0.5, dtype)) for name, shape in SHAPES.items()}
    for name, value in models[0].state_dict().items():
        np.testing.assert_array_equal(params[name].numpy(), value)


def test_parameters_that_are_replaced(backend):
    model, grads = model_of(), gradients_of(model_of(), np.random.default_rng(1))
    optimizer = optim.SGD(0.5)
    optimizer.update(model, grads)
    model.second.data = np.zeros(33, np.float32)
    optimizer.update(model, grads)
    near(model.state_dict()["second"], -0.5 * grads["second"])
    model.load_state_dict(model_of(seed=4).state_dict())
    optimizer.update(model, grads)
    for name, value in model_of(seed=4).state_dict().items():
        near(model.state_dict()[name], value - np.float32(0.5) * grads[name])


def test_parameters_of_another_dtype_need_another_optimizer(backend):
    model, grads = model_of(), gradients_of(model_of(), np.random.default_rng(1))
    optimizer = optim.AdamW(1e-3)
    optimizer.update(model, grads)
    model.to(dtype="float16")
    with pytest.raises(ValueError, match=r"scalar is float16 of shape \(\), and was float32"):
        optimizer.update(model, grads)
    assert optimizer.steps == 1
    optim.AdamW(1e-3).update(model, grads)


def test_a_copy_of_a_module_is_its_own(backend):
    model, grads = model_of(), gradients_of(model_of(), np.random.default_rng(1))
    optim.SGD(0.1).init(model)
    other = copy.deepcopy(model)
    optim.SGD(0.1).update(model, grads)
    for (name, value), before in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        near(value, before - np.float32(0.1) * grads[name])


def test_some_parameters_alone(backend):
    model = model_of()
    before, grads = model.state_dict(), gradients_of(model, np.random.default_rng(1))
    optimizer = optim.AdamW(0.1)
    optimizer.update(model, {"second": grads["second"]})
    after = model.state_dict()
    for name, value in before.items():
        assert np.array_equal(value, after[name]) == (name != "second")
    assert not any("first" in name for name in optimizer.state_dict())


# -- how it is done


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


# -- bad input


@pytest.mark.parametrize(
    "make, error, match",
    [
        (lambda: optim.AdamW(-1.0), ValueError, "lr is -1"),
        (lambda: optim.AdamW("fast"), TypeError, "lr is a str"),
        (lambda: optim.AdamW(1e-3, (0.9, 1.0)), ValueError, "betas is 1.0"),
        (lambda: optim.AdamW(1e-3, 0.9), TypeError, "betas"),
        (lambda: optim.Adam(eps=math.nan), ValueError, "eps is nan"),
        (lambda: optim.SGD(0.1, -0.5), ValueError, "momentum"),
        (lambda: optim.SGD(0.1, nesterov=True), ValueError, "nesterov"),
        (lambda: optim.SGD(0.1, weight_decay=True), TypeError, "bool"),
        (lambda: optim.Lion(1e-3, max_grad_norm=0), ValueError, "max_grad_norm"),
        (lambda: optim.Adam(loss_scale=1024.0), TypeError, "LossScale"),
        (lambda: optim.LossScale(0), ValueError, "initial"),
        (lambda: optim.LossScale(growth=0.5), ValueError, "growth"),
        (lambda: optim.Adafactor(beta2_decay=0.5), ValueError, "up to 0"),
        (lambda: optim.Adafactor(eps=1e-3), TypeError, "eps"),
        (lambda: optim.Muon(ns_steps=0), ValueError, "ns_steps"),
        (lambda: optim.Muon(adjust_lr="none"), ValueError, "original"),
        (lambda: optim.Muon(other=3), TypeError, "other is a int"),
        (lambda: optim.Muon(ns_dtype="int8"), TypeError, "int8"),
        (lambda: optim.AdamW(groups=[{"weight_decay": 0.0}]), TypeError, "params"),
        (lambda: optim.AdamW(groups=[{"params": "*", "momentum": 0.0}]), TypeError, "momentum"),
        (lambda: optim.linear(0.0, 1.0, 0), ValueError, "steps is 0"),
        (lambda: optim.cosine(0.1, 1.5), TypeError, "integer"),
        (lambda: optim.joined([optim.constant(1.0)], [3]), ValueError, "one boundary fewer"),
        (lambda: optim.joined([optim.constant(1.0)] * 3, [3, 3]), ValueError, "increase"),
        (lambda: optim.joined([1.0], []), TypeError, "function"),
        (lambda: optim.warmup_cosine(1.0, 9, 9), ValueError, "9 steps"),
        (lambda: optim.step_decay(1.0, 5, 0.0), ValueError, "factor"),
        (lambda: optim.constant(math.inf), ValueError, "inf"),
        (lambda: optim.EMA({"a": np.zeros(2, np.float32)}, 1.0), ValueError, "decay"),
        (lambda: optim.EMA({}), ValueError, "no parameters"),
        (lambda: optim.clip_grad_norm({}, 1.0), ValueError, "gradients"),
        (lambda: optim.clip_grad_norm({"a": np.arange(3)}, 1.0), TypeError, "int64"),
    ],
)
def test_bad_options(make, error, match):
    with pytest.raises(error, match=match):
        make()


def test_bad_gradients(backend):
    model, optimizer = model_of({"a": (5,), "b": (2, 3)}), optim.AdamW(1e-3)
    a, b = np.ones(5, np.float32), np.ones((2, 3), np.float32)
    before = model.state_dict()
    bad = [
        ({"a": a, "c": b}, ValueError, "no parameter 'c'"), ({"a": a[:4], "b": b}, ValueError, r"a has shape \(4,\)"),
        ({"a": a, "b": np.ones((2, 3), np.int32)}, TypeError, "b is int32"),
        ({"a": a, "b": np.ones((2, 3))}, TypeError, "float64"), ({"a": a, "b": [1.0]}, TypeError, "a list"),
        ([a, b], TypeError, "grads is a list"), ({}, ValueError, "no parameters"),
    ]  # fmt: skip
    for grads, error, match in bad:
        with pytest.raises(error, match=match):
            optimizer.update(model, grads)
    optimizer.init(model)
    for grads, error, match in [*bad[:6], ({"a": a}, ValueError, r"missing: \['b'\]")]:
        with pytest.raises(error, match="|".join((match, "unexpected"))):
            optimizer.update(model, grads)
    with pytest.raises(TypeError, match="begun with a module"):
        optimizer.update({"a": a, "b": b}, {"a": a, "b": b})
    with pytest.raises(TypeError, match="Module"):
        optimizer.update(3, {"a": a, "b": b})
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    assert optimizer.steps == 0


def test_shared_parameters_have_one_name(backend):
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    one = np.ones((3, 3), np.float32)
    with pytest.raises(ValueError, match="another name"):
        optim.SGD(0.1).update(model, {"0.weight": one, "1.weight": one})
    before = model.state_dict()["1.weight"]
    optim.SGD(0.5).update(model, {"0.weight": one})
    near(model.state_dict()["1.weight"], before - 0.5)


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


def strided(backend, grad, number):
    """A gradient as programs have them: a NumPy array, in C order, transposed, with gaps, or from any element on."""
    if number % 5 == 0:
        return grad
    if number % 5 == 1:
        return backend.tensor(np.array(grad.T, order="C")).T
    if number % 5 == 2:
        wide = np.zeros((*grad.shape, 2), grad.dtype)
        wide[..., 1] = grad
        return backend.tensor(wide)[..., 1]
    if number % 5 == 3:
        return backend.tensor(np.concatenate([np.zeros(number, grad.dtype), grad.ravel()]))[number:].reshape(grad.shape)
    return backend.tensor(grad)


#: Many parameters, of one element, of odd and of whole numbers of them.
_SHAPES = [(), (1,), (3,), (16,), (7, 5), (31,), (16, 24), (5, 3, 2), (129,)]
MANY = {f"p{number}": _SHAPES[number % 9] for number in range(61)}


@pytest.mark.needs("torch")
@pytest.mark.parametrize("case", ["adamw", "momentum", "sgd"])
def test_many_gradients_of_any_strides(backend, case):
    """As PyTorch has it, captured to the same bits, and in few dispatches where they lie in C order."""
    ours, theirs = CASES[case]
    models = [model_of(MANY) for _ in range(2)]
    optimizers, random = [ours() for _ in models], np.random.default_rng(1)
    others = torch_parameters(models[0])
    other = theirs(list(others.values()))
    for optimizer, model in zip(optimizers, models, strict=True):
        optimizer.init(model)
    tensors = {name: backend.tensor(grad) for name, grad in gradients_of(models[0], random).items()}
    graph = backend.capture(functools.partial(optimizers[1].update, models[1], tensors))
    for _ in range(5):
        grads = gradients_of(models[0], random)
        for name, parameter in others.items():
            parameter.grad = torch.tensor(grads[name])
        other.step()
        given = {name: strided(backend, grad, number) for number, (name, grad) in enumerate(grads.items())}
        optimizers[0].update(models[0], given)
        for name, tensor in tensors.items():
            tensor[...] = grads[name]
        graph()
    for name, value in models[0].state_dict().items():
        near(value, others[name].detach().numpy(), err_msg=name)
        np.testing.assert_array_equal(value, models[1].state_dict()[name], err_msg=name)
    assert dispatches(backend, lambda: optimizers[0].update(models[0], tensors)) <= 3 + 61 // 8 + 1


@pytest.mark.parametrize("dtype", HALVES)
def test_many_parameters_of_two_dtypes(backend, dtype):
    """Of 16 bits and of 32, with gradients of the other: as float32 alone, and captured to the same bits."""
    shapes = {f"a.{name}": shape for name, shape in MANY.items()} | {f"b.{name}": shape for name, shape in MANY.items()}

    def made():
        model = model_of(shapes)
        model.a.to(dtype=dtype)
        return model

    def grads_of(random):
        return {name: np.asarray(random.standard_normal(shape), np.float32) for name, shape in shapes.items()}

    found = []
    for captured in (False, True):
        model, optimizer, random = made(), optim.AdamW(1e-2), np.random.default_rng(3)
        optimizer.init(model)
        held = {name: backend.tensor(grad) for name, grad in grads_of(random).items()}
        step = functools.partial(optimizer.update, model, held)
        step = backend.capture(step) if captured else step
        for _ in range(4):
            for name, grad in grads_of(random).items():
                held[name][...] = grad
            step()
        found.append({name: np.array(value) for name, value in model.state_dict().items()})
    for name, value in found[0].items():
        assert value.tobytes() == found[1][name].tobytes(), name
    want = model_of(shapes)  # the same in float32: parameters of 16 bits are what its masters would be, rounded
    for name, parameter in want.named_parameters():
        if name.startswith("a."):
            parameter.data = np.float32(dict(made().named_parameters())[name].numpy())
    optimizer, random = optim.AdamW(1e-2), np.random.default_rng(3)
    grads_of(random)
    for _ in range(4):
        optimizer.update(want, grads_of(random))
    for name, value in want.state_dict().items():
        rounded = np.asarray(value).astype(found[0][name].dtype)
        np.testing.assert_array_equal(np.float32(found[0][name]), np.float32(rounded), err_msg=name)


@pytest.mark.parametrize("case", ["adamw", "momentum"])
def test_both_runtimes_give_the_same_bits(case):
    found = []
    for runtime in ("vulkan", "kompute"):
        opener = functools.partial(grilly.Compute, runtime=runtime)
        with open_or_skip(runtime, opener) as backend, default(backend):
            model, optimizer, random = model_of(MANY), CASES[case][0](), np.random.default_rng(1)
            for _ in range(3):
                grads = gradients_of(model, random)
                optimizer.update(model, {name: backend.tensor(grad) for name, grad in grads.items()})
            found.append({name: np.array(value) for name, value in model.state_dict().items()})
    for name, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][name], err_msg=name)
