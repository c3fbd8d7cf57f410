"""Normalisations and softmax of rows, with their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .attention import common_dtype
from .sums import exp, log

Gradient = tuple[np.ndarray, "np.ndarray | None", "np.ndarray | None"]


def _arrays(dtype: DTypeLike | None, *arrays: ArrayLike | None) -> list[np.ndarray | None]:
    """The arrays in the dtype to compute in; None stays."""
    given = [None if array is None else np.asarray(array) for array in arrays]
    wanted = common_dtype(*(array for array in given if array is not None)) if dtype is None else np.dtype(dtype)
    return [None if array is None else array.astype(wanted, copy=False) for array in given]


def _axes(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    return tuple(range(-len(np.atleast_1d(normalized_shape)), 0))


def _normed(x: np.ndarray, axes: tuple[int, ...], eps: float, centred: bool) -> tuple[np.ndarray, np.ndarray]:
    """``x / s`` and ``1 / s`` for ``s = sqrt(mean(x^2) + eps)``, of x less its mean if ``centred``.

    Rows are multiplied by powers of two, so that squares stay within the dtype's range.
    """
    power = np.frexp(np.abs(x).max(axis=axes, keepdims=True, initial=0))[1]
    power = np.maximum(power, math.frexp(math.sqrt(eps))[1]) if eps else power
    x = np.ldexp(x, -power)
    apart = x - x.mean(axis=axes, keepdims=True) if centred else x
    added = np.ldexp(np.float64(eps), -2 * power).astype(x.dtype)
    scale = 1 / np.sqrt(np.square(apart).mean(axis=axes, keepdims=True) + added)
    return apart * scale, np.ldexp(scale, -power)


def layer_norm(
    input: ArrayLike, normalized_shape: int | Sequence[int], weight: ArrayLike | None = None,
    bias: ArrayLike | None = None, eps: float = 1e-5, *, dtype: DTypeLike | None = None,
) -> np.ndarray:  # fmt: skip
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last axes, of extents ``normalized_shape``."""
    x, weight, bias = _arrays(dtype, input, weight, bias)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        y, _ = _normed(x, _axes(normalized_shape), eps, True)
        y = y if weight is None else y * weight
        return y if bias is None else y + bias


def rms_norm(
    input: ArrayLike, normalized_shape: int | Sequence[int], weight: ArrayLike | None = None,
    eps: float | None = None, weight_offset: float = 0.0, *, dtype: DTypeLike | None = None,
) -> np.ndarray:  # fmt: skip
    """``x / sqrt(mean(x^2) + eps) * (weight + weight_offset)`` over the last axes; eps 2^-23 where it is None."""
    x, weight = _arrays(dtype, input, weight)
    eps = 2.0**-23 if eps is None else eps
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        y, _ = _normed(x, _axes(normalized_shape), eps, False)
        return y if weight is None else y * (weight + x.dtype.type(weight_offset))


def _grouped(x: np.ndarray, groups: int) -> np.ndarray:
    return x.reshape(x.shape[0], groups, math.prod(x.shape[1:]) // groups)


def _by_channel(values: np.ndarray, x: np.ndarray) -> np.ndarray:
    return values.reshape(-1, *(1,) * (x.ndim - 2))


def group_norm(
    input: ArrayLike, num_groups: int, weight: ArrayLike | None = None, bias: ArrayLike | None = None,
    eps: float = 1e-5, *, dtype: DTypeLike | None = None,
) -> np.ndarray:  # fmt: skip
    """Layer norm of groups of neighbouring channels of ``(N, C, ...)``; weight and bias are ``(C,)``."""
    x, weight, bias = _arrays(dtype, input, weight, bias)
    y = layer_norm(_grouped(x, num_groups), math.prod(x.shape[1:]) // num_groups, eps=eps).reshape(x.shape)
    y = y if weight is None else y * _by_channel(weight, x)
    return y if bias is None else y + _by_channel(bias, x)


def softmax(input: ArrayLike, dim: int = -1, *, dtype: DTypeLike | None = None) -> np.ndarray:
    """``exp(x) / sum(exp(x))`` along an axis; a row of nothing but minus infinity is NaN."""
    (x,) = _arrays(dtype, input)
    with np.errstate(invalid="ignore"):
        weights = exp(x - x.max(axis=dim, keepdims=True, initial=-np.inf))
        return weights / weights.sum(axis=dim, keepdims=True)


def log_softmax(input: ArrayLike, dim: int = -1, *, dtype: DTypeLike | None = None) -> np.ndarray:
    """``x - log(sum(exp(x)))`` along an axis; a row of nothing but minus infinity is NaN."""
    (x,) = _arrays(dtype, input)
    with np.errstate(invalid="ignore"):
        less = x - x.max(axis=dim, keepdims=True, initial=-np.inf)
        return less - log(exp(less).sum(axis=dim, keepdims=True))


def layer_norm_backward(
    grad_output: ArrayLike, input: ArrayLike, normalized_shape: int | Sequence[int],
    weight: ArrayLike | None = None, eps: float = 1e-5, *, dtype: DTypeLike | None = None,
) -> Gradient:  # fmt: skip
    """The gradients of ``sum(grad_output * layer_norm(...))`` by input, weight and bias; the last two may be None."""
    grad, x, weight = _arrays(dtype, grad_output, input, weight)
    axes = _axes(normalized_shape)
    y, scale = _normed(x, axes, eps, True)
    weighted = grad if weight is None else grad * weight
    found = weighted - weighted.mean(axis=axes, keepdims=True) - y * (weighted * y).mean(axis=axes, keepdims=True)
    if weight is None:
        return found * scale, None, None
    rows = tuple(range(x.ndim - len(axes)))
    return found * scale, (grad * y).sum(axis=rows), grad.sum(axis=rows)


def rms_norm_backward(
    grad_output: ArrayLike, input: ArrayLike, normalized_shape: int | Sequence[int],
    weight: ArrayLike | None = None, eps: float | None = None, weight_offset: float = 0.0, *,
    dtype: DTypeLike | None = None,
) -> tuple[np.ndarray, np.ndarray | None]:  # fmt: skip
    """The gradients of ``sum(grad_output * rms_norm(...))`` by input and weight; the second may be None."""
    grad, x, weight = _arrays(dtype, grad_output, input, weight)
    axes = _axes(normalized_shape)
    eps = 2.0**-23 if eps is None else eps
    y, scale = _normed(x, axes, eps, False)
    weighted = grad if weight is None else grad * (weight + x.dtype.type(weight_offset))
    found = (weighted - y * (weighted * y).mean(axis=axes, keepdims=True)) * scale
    return found, None if weight is None else (grad * y).sum(axis=tuple(range(x.ndim - len(axes))))


def group_norm_backward(
    grad_output: ArrayLike, input: ArrayLike, num_groups: int, weight: ArrayLike | None = None, eps: float = 1e-5, *,
    dtype: DTypeLike | None = None,
) -> Gradient:  # fmt: skip
    """The gradients of ``sum(grad_output * group_norm(...))`` by input, weight and bias; the last two may be None."""
    grad, x, weight = _arrays(dtype, grad_output, input, weight)
    weighted = grad if weight is None else grad * _by_channel(weight, x)
    rows, width = _grouped(x, num_groups), math.prod(x.shape[1:]) // num_groups
    found = layer_norm_backward(_grouped(weighted, num_groups), rows, width, eps=eps)[0].reshape(x.shape)
    if weight is None:
        return found, None, None
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    y = _normed(rows, (-1,), eps, True)[0].reshape(x.shape)
    return found, (grad * y).sum(axis=axes), grad.sum(axis=axes)


def softmax_backward(
    grad_output: ArrayLike, output: ArrayLike, dim: int = -1, *, dtype: DTypeLike | None = None
) -> np.ndarray:
    """The gradient of ``sum(grad_output * softmax(x))`` by x, from softmax's output."""
    grad, y = _arrays(dtype, grad_output, output)
    return y * (grad - (grad * y).sum(axis=dim, keepdims=True))


def log_softmax_backward(
    grad_output: ArrayLike, output: ArrayLike, dim: int = -1, *, dtype: DTypeLike | None = None
) -> np.ndarray:
    """The gradient of ``sum(grad_output * log_softmax(x))`` by x, from log_softmax's output."""
    grad, y = _arrays(dtype, grad_output, output)
    return grad - exp(y) * grad.sum(axis=dim, keepdims=True)
