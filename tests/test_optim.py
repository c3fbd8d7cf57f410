"""Optimizers: PyTorch's numbers over a hundred steps, whatever the options; schedules, and options that are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

import grilly
from graphs import default
from grilly import nn, optim
from optimizers import (
    CASES,
    HALVES,
    MATRICES,
    T,
    compare,
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
