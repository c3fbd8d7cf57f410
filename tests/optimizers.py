"""Models, gradients and PyTorch's optimizers, for tests of grilly.optim."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
from grilly import nn, optim

try:
    import torch
except ImportError:  # the tests that compare with it are skipped
    torch = None
SHAPES = {
    "first.weight": (7, 13), "first.bias": (7,), "second": (33,), "third": (3, 5, 2), "scalar": (), "same": (7, 13),
}  # fmt: skip
HALVES = ["float16", pytest.param("bfloat16", marks=pytest.mark.needs("ml_dtypes"))]
MATRICES = {"a": (7, 13), "b": (7, 13), "c": (9, 5), "d": (16, 16)}


class Part(nn.Module):
    """Parameters of the shapes whose names begin with a prefix."""

    def __init__(self, shapes, random, dtype="float32"):
        super().__init__()
        for name, shape in shapes.items():
            if "." not in name:
                setattr(self, name, nn.Parameter(random.standard_normal(shape).astype(dtype)))
        for part in {name.split(".")[0]: None for name in shapes if "." in name}:
            inner = {name.split(".")[1]: shape for name, shape in shapes.items() if name.startswith(f"{part}.")}
            setattr(self, part, Part(inner, random, dtype))


def model_of(shapes=None, seed=0, dtype="float32"):
    return Part(SHAPES if shapes is None else shapes, np.random.default_rng(seed), grilly.empty((), dtype=dtype).dtype)


def gradients_of(model, random, dtype="float32"):
    """Of sizes that differ, by their names."""
    return {
        name: np.asarray(random.standard_normal(parameter.shape) * 10.0 ** random.integers(-3, 1)).astype(dtype)
        for name, parameter in model.named_parameters()
    }


def torch_parameters(model):
    return {name: torch.nn.Parameter(torch.tensor(np.float32(value))) for name, value in model.state_dict().items()}


def near(found, want, **bounds):
    np.testing.assert_allclose(np.float32(found), np.float32(want), **{"rtol": 3e-6, "atol": 3e-6, **bounds})


def compare(backend, ours, theirs, *, steps=100, shapes=None, clip=None, schedule=None, **bounds):
    """Steps on the same gradients. ``theirs(parameters)`` is PyTorch's optimizer of parameters by their names."""
    model = model_of(shapes)
    others = torch_parameters(model)
    other, random = theirs(others), np.random.default_rng(1)
    rates = None if schedule is None else torch.optim.lr_scheduler.LambdaLR(other, schedule)
    for _ in range(steps):
        grads = gradients_of(model, random)
        for name, parameter in others.items():
            parameter.grad = torch.tensor(grads[name])
        if clip:
            torch.nn.utils.clip_grad_norm_(others.values(), clip)
        other.step()
        if rates is not None:
            rates.step()
        ours.update(model, {name: backend.tensor(grad) for name, grad in grads.items()})
    assert ours.steps == steps and ours.skipped == 0
    for name, value in model.state_dict().items():
        near(value, others[name].detach().numpy(), err_msg=name, **bounds)
    return model, others


T = getattr(torch, "optim", None)
CASES = {
    "sgd": (lambda **more: optim.SGD(0.01, **more), lambda p: T.SGD(p, 0.01)),
    "momentum": (lambda **more: optim.SGD(0.01, 0.9, weight_decay=0.1, **more),
                 lambda p: T.SGD(p, 0.01, momentum=0.9, weight_decay=0.1)),
    "dampening": (lambda **more: optim.SGD(0.01, 0.9, dampening=0.3, **more),
                  lambda p: T.SGD(p, 0.01, momentum=0.9, dampening=0.3)),
    "nesterov": (lambda **more: optim.SGD(0.01, 0.9, nesterov=True, **more),
                 lambda p: T.SGD(p, 0.01, momentum=0.9, nesterov=True)),
    "adam": (lambda **more: optim.Adam(1e-3, **more), lambda p: T.Adam(p, 1e-3)),
    "adam-l2": (lambda **more: optim.Adam(1e-2, (0.8, 0.95), eps=1e-4, weight_decay=0.1, **more),
                lambda p: T.Adam(p, 1e-2, (0.8, 0.95), eps=1e-4, weight_decay=0.1)),
    "adam-no-betas": (lambda **more: optim.Adam(1e-3, (0.0, 0.0), **more), lambda p: T.Adam(p, 1e-3, (0.0, 0.0))),
    "adamw": (lambda **more: optim.AdamW(1e-3, weight_decay=0.1, **more), lambda p: T.AdamW(p, 1e-3, weight_decay=0.1)),
    "adafactor": (lambda **more: optim.Adafactor(0.01, **more), lambda p: T.Adafactor(p, 0.01)),
    "adafactor-options": (
        lambda **more: optim.Adafactor(0.05, beta2_decay=-0.6, eps=(1e-6, 0.01), d=1.5, weight_decay=0.1, **more),
        lambda p: T.Adafactor(p, 0.05, beta2_decay=-0.6, eps=(1e-6, 0.01), d=1.5, weight_decay=0.1)),
}  # fmt: skip


def dispatches(backend, call):
    with backend.profile() as profile:
        call()
    return len(profile.timings)
