"""Activations, their gated forms and their derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .attention import common_dtype


def _normal(x: np.ndarray) -> np.ndarray:
    """The normal distribution up to x, with all digits also far below 0."""
    return np.vectorize(lambda value: math.erfc(-value / math.sqrt(2)) / 2, otypes=[np.float64])(x)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


def _cubic(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What gelu's approximation takes the sigmoid of, and its derivative."""
    twice = 2 * math.sqrt(2 / math.pi)
    return twice * (x + 0.044715 * x**3), twice * (1 + 3 * 0.044715 * x**2)


def _parts(name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The share of x that an activation lets through, and that share's derivative."""
    if name == "gelu":
        return _normal(x), np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    if name == "relu":
        return (x > 0).astype(x.dtype), np.zeros_like(x)
    argument, derivative = {"silu": (x, 1.0), "quick_gelu": (1.702 * x, 1.702)}.get(name) or _cubic(x)
    return _sigmoid(argument), derivative * _sigmoid(argument) * _sigmoid(-argument)


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _far(x: np.ndarray) -> np.ndarray:
    """x within bounds beyond which float64's exponentials are 0."""
    return np.clip(x, -800, 800)


def _tanhshrink(x: np.ndarray) -> np.ndarray:
    """``x - tanh(x)``, near 0 by the series of ``x cosh(x) - sinh(x)``."""
    near, square = np.zeros_like(x), np.minimum(x * x, 4)
    for k in range(20, 0, -1):
        near = near * square + 2 * k / math.factorial(2 * k + 1)
    return np.where(np.abs(x) < 1, x * square * near / np.cosh(np.clip(x, -1, 1)), x - np.tanh(x))


def _mish_derivative(x: np.ndarray) -> np.ndarray:
    share = np.tanh(_softplus(x))
    return share + _far(x) * _sigmoid(x) / np.cosh(np.minimum(_softplus(x), 700)) ** 2


_SELU = {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805}
_Function = Callable[..., np.ndarray]
#: By name: the activation and its derivative, functions of x and of numbers, and the numbers with their defaults.
_OTHERS: dict[str, tuple[_Function, _Function, dict[str, float]]] = {
    "celu": (lambda x, a: np.where(x > 0, x, a * np.expm1(np.minimum(x / a, 700))),
             lambda x, a: np.where(x > 0, 1, np.exp(np.minimum(x / a, 700))), {"alpha": 1.0}),
    "elu": (lambda x, a: np.where(x > 0, x, a * np.expm1(np.minimum(x, 0))),
            lambda x, a: np.where(x > 0, 1, a * np.exp(np.minimum(x, 0))), {"alpha": 1.0}),
    "hardshrink": (lambda x, b: np.where(np.abs(x) <= b, 0, x), lambda x, b: np.where(np.abs(x) <= b, 0, 1),
                   {"lambd": 0.5}),
    "hardsigmoid": (lambda x: np.clip(x + 3, 0, 6) / 6, lambda x: np.where(np.abs(x) < 3, 1 / 6, 0), {}),
    "hardswish": (lambda x: np.where(x <= -3, 0, x * (np.clip(x + 3, 0, 6) / 6)),
                  lambda x: np.where(x <= -3, 0, np.where(x >= 3, 1, x / 3 + 0.5)), {}),
    "hardtanh": (lambda x, low, high: np.clip(x, low, high),
                 lambda x, low, high: np.where((x <= low) | (x >= high), 0, 1), {"min_val": -1.0, "max_val": 1.0}),
    "leaky_relu": (lambda x, slope: np.where(x > 0, x, slope * x), lambda x, slope: np.where(x > 0, 1, slope),
                   {"negative_slope": 0.01}),
    "logsigmoid": (lambda x: -_softplus(-x), lambda x: _sigmoid(-x), {}),
    "mish": (lambda x: np.maximum(x, -800) * np.tanh(_softplus(x)), _mish_derivative, {}),
    "relu6": (lambda x: np.clip(x, 0, 6), lambda x: np.where((x <= 0) | (x >= 6), 0, 1), {}),
    "selu": (lambda x: _SELU["gamma"] * np.where(x > 0, x, _SELU["alpha"] * np.expm1(np.minimum(x, 0))),
             lambda x: _SELU["gamma"] * np.where(x > 0, 1, _SELU["alpha"] * np.exp(np.minimum(x, 0))), {}),
    "sigmoid": (_sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x), {}),
    "softplus": (lambda x, beta, most: np.where(beta * x > most, x, _softplus(beta * x) / beta),
                 lambda x, beta, most: np.where(beta * x > most, 1, _sigmoid(beta * x)),
                 {"beta": 1.0, "threshold": 20.0}),
    "softshrink": (lambda x, b: np.where(np.abs(x) <= b, 0, x - np.copysign(b, x)),
                   lambda x, b: np.where(np.abs(x) <= b, 0, 1), {"lambd": 0.5}),
    "softsign": (lambda x: np.where(np.isinf(x), np.sign(x), x / (1 + np.abs(x))),
                 lambda x: (1 + np.abs(x)) ** -2.0, {}),
    "tanh": (np.tanh, lambda x: 4 * _sigmoid(2 * x) * _sigmoid(-2 * x), {}),
    "tanhshrink": (_tanhshrink, lambda x: np.tanh(x) ** 2, {}),
}  # fmt: skip
#: Names of the activations.
ACTIVATIONS = ("relu", "silu", "quick_gelu", "gelu_tanh", "gelu", *_OTHERS)


def _numbers(name: str, given: dict[str, float]) -> list[float]:
    known = _OTHERS[name][2] if name in _OTHERS else {}
    if given.keys() - known:
        raise TypeError(f"{name} takes {', '.join(known) or 'no numbers'}; {', '.join(given)} given")
    return list({**known, **given}.values())


def activation(name: str, x: ArrayLike, *, dtype: DTypeLike | None = None, **numbers: float) -> np.ndarray:
    """An activation of an array of any shape.

    Parameters
    ----------
    name : str
        That of the function in ``grilly.functional``, or "gelu_tanh". "relu" is ``max(x, 0)``; "silu" ``x sigmoid(x)``;
        "quick_gelu" ``x sigmoid(1.702 x)``; "gelu" x times the normal distribution up to x; "gelu_tanh" its
        approximation ``x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))``, which is ``x / 2 (1 + tanh(...))`` of half of
        that.
    numbers : float
        Those that the function takes, with the same defaults.

    Raises
    ------
    ValueError
        For another name.
    TypeError
        For numbers that the activation does not have.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"activation: {name!r}; expected one of {', '.join(ACTIVATIONS)}")
    own = _numbers(name, numbers)
    x = np.asarray(x)
    given = common_dtype(x) if dtype is None else dtype
    x = x.astype(given, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        if name in _OTHERS:
            found = np.asarray(_OTHERS[name][0](x, *own))
        else:
            share = _parts(name, x)[0]
            found = np.where(np.isneginf(x), 0, x * share)
    return found.astype(given, copy=False)


def activation_backward(
    name: str, grad_output: ArrayLike, x: ArrayLike, *, dtype: DTypeLike | None = None, **numbers: float
) -> np.ndarray:
    """The gradient of ``sum(grad_output * activation(x))`` by x.

    Raises
    ------
    ValueError
        For a name that `activation` does not know.
    TypeError
        For numbers that the activation does not have.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"activation_backward: {name!r}; expected one of {', '.join(ACTIVATIONS)}")
    own = _numbers(name, numbers)
    x, grad = np.asarray(x), np.asarray(grad_output)
    given = common_dtype(x, grad) if dtype is None else dtype
    x, grad = x.astype(given, copy=False), grad.astype(given, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        if name in _OTHERS:
            derivative = _OTHERS[name][1](x, *own)
        else:
            share, slope = _parts(name, x)
            derivative = share + np.where(np.isinf(x), 0, x * slope)
    return np.asarray(grad * derivative).astype(given, copy=False)


def gated(name: str, gate: ArrayLike, up: ArrayLike, *, dtype: DTypeLike | None = None) -> np.ndarray:
    """``activation(gate) * up``: "silu" is SwiGLU, "gelu" and "gelu_tanh" GEGLU, "sigmoid" GLU (Shazeer 2020,
    arXiv:2002.05202)."""
    up = np.asarray(up)
    given = common_dtype(np.asarray(gate), up) if dtype is None else dtype
    return activation(name, gate, dtype=given) * up.astype(given, copy=False)
