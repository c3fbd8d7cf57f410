"""Cross entropy of logits and class indices, and its gradient."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .attention import common_dtype


def cross_entropy(
    input: ArrayLike, target: ArrayLike, weight: ArrayLike | None = None, *, ignore_index: int = -100,
    reduction: str = "mean", label_smoothing: float = 0.0, dtype: DTypeLike | None = None,
) -> np.ndarray:  # fmt: skip
    """``-(1 - s) w[t] log p[t] - s / C * sum_c w[c] log p[c]`` of each row, p its softmax.

    input is ``(C,)``, ``(N, C)`` or ``(N, C, d1, ...)`` and target has its shape without C. The mean divides by the sum
    of ``w[t]``; rows whose target is ignore_index count for nothing.
    """
    rows, shape, logs, w, counts, one = _rows(input, target, weight, ignore_index, dtype)
    own = w[rows] * counts
    losses = -own * np.where(counts, (logs * one).sum(-1), 0)
    if label_smoothing:
        even = -(w * np.where(w == 0, 0, logs)).sum(-1) / len(w) * counts
        losses = (1 - label_smoothing) * losses + label_smoothing * even
    if reduction == "none":
        return losses.reshape(shape)
    with np.errstate(invalid="ignore"):
        return losses.sum() if reduction == "sum" else losses.sum() / own.sum()


def cross_entropy_backward(
    grad_output: ArrayLike, input: ArrayLike, target: ArrayLike, weight: ArrayLike | None = None, *,
    ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0, dtype: DTypeLike | None = None,
) -> np.ndarray:  # fmt: skip
    """The gradient of ``sum(grad_output * cross_entropy(...))`` by its input, of input's shape."""
    rows, _, logs, w, counts, one = _rows(input, target, weight, ignore_index, dtype)
    p = np.exp(logs)
    found = (1 - label_smoothing) * w[rows][:, None] * (p - one)
    found += label_smoothing * (p * w.sum() - w) / len(w)
    grad = np.asarray(grad_output, found.dtype).reshape(-1, 1)
    if reduction == "mean":
        grad = grad / (w[rows] * counts).sum()
    found = np.where(counts[:, None], grad * found, 0)
    shape = np.shape(input)
    if len(shape) == 1:
        return found.reshape(shape)
    return np.moveaxis(found.reshape(shape[0], *shape[2:], shape[1]), -1, 1)


def _rows(input, target, weight, ignore_index, dtype):
    """Targets (0 where they do not count), their shape, log p of each row, the weights, which rows count, and one-hot
    rows."""
    x, target = np.asarray(input), np.asarray(target)
    x = x.astype(common_dtype(x) if dtype is None else dtype, copy=False)
    classes = x.shape[0] if x.ndim == 1 else x.shape[1]
    x = np.moveaxis(x, min(x.ndim - 1, 1), -1).reshape(-1, classes)
    w = np.ones(classes, x.dtype) if weight is None else np.asarray(weight).astype(x.dtype)
    counts = target.reshape(-1) != ignore_index
    rows = np.where(counts, target.reshape(-1), 0).astype(np.int64)
    top = x.max(-1, keepdims=True)
    logs = x - top - np.log(np.exp(x - top).sum(-1, keepdims=True))
    return rows, target.shape, logs, w, counts, np.arange(classes) == rows[:, None]
