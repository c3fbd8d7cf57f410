"""Activations, their gated forms and their derivatives."""

from __future__ import annotations

import math

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
    argument, slope = {"silu": (x, 1.0), "quick_gelu": (1.702 * x, 1.702)}.get(name) or _cubic(x)
    return _sigmoid(argument), slope * _sigmoid(argument) * _sigmoid(-argument)


#: Names of the activations.
ACTIVATIONS = ("relu", "sigmoid", "tanh", "silu", "quick_gelu", "gelu_tanh", "gelu")


def activation(name: str, x: ArrayLike, *, dtype: DTypeLike | None = None) -> np.ndarray:
    """An activation of an array of any shape.

    Parameters
    ----------
    name : str
        "relu", ``max(x, 0)``; "sigmoid", ``1 / (1 + exp(-x))``; "tanh"; "silu", ``x sigmoid(x)``; "quick_gelu",
        ``x sigmoid(1.702 x)``; "gelu", x times the normal distribution up to x; "gelu_tanh", its approximation
        ``x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))``, which is ``x / 2 (1 + tanh(...))`` of half of that.

    Raises
    ------
    ValueError
        For another name.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"activation: {name!r}; expected one of {', '.join(ACTIVATIONS)}")
    x = np.asarray(x)
    given = common_dtype(x) if dtype is None else dtype
    x = x.astype(given, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        if name == "sigmoid":
            found = _sigmoid(x)
        elif name == "tanh":
            found = np.tanh(x)
        else:
            share = _parts(name, x)[0]
            found = np.where(np.isneginf(x), 0, x * share)
    return found.astype(given, copy=False)


def activation_backward(
    name: str, grad_output: ArrayLike, x: ArrayLike, *, dtype: DTypeLike | None = None
) -> np.ndarray:
    """The gradient of ``sum(grad_output * activation(x))`` by x.

    Raises
    ------
    ValueError
        For a name that `activation` does not know.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"activation_backward: {name!r}; expected one of {', '.join(ACTIVATIONS)}")
    x, grad = np.asarray(x), np.asarray(grad_output)
    given = common_dtype(x, grad) if dtype is None else dtype
    x, grad = x.astype(given, copy=False), grad.astype(given, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        if name == "sigmoid":
            slope = _sigmoid(x) * _sigmoid(-x)
        elif name == "tanh":
            slope = 4 * _sigmoid(2 * x) * _sigmoid(-2 * x)
        else:
            share, own = _parts(name, x)
            slope = share + np.where(np.isinf(x), 0, x * own)
    return (grad * slope).astype(given, copy=False)


def gated(name: str, gate: ArrayLike, up: ArrayLike, *, dtype: DTypeLike | None = None) -> np.ndarray:
    """``activation(gate) * up``: "silu" is SwiGLU, "gelu" and "gelu_tanh" GEGLU, "sigmoid" GLU (Shazeer 2020,
    arXiv:2002.05202)."""
    up = np.asarray(up)
    given = common_dtype(np.asarray(gate), up) if dtype is None else dtype
    return activation(name, gate, dtype=given) * up.astype(given, copy=False)
