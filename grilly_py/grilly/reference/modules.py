"""What stands at the beginning of a model and between its layers: embedding and dropout."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .attention import common_dtype
from .philox import words_in_order


def dropout(
    input: ArrayLike, p: float = 0.5, seed: int = 0, offset: int = 0, *, dtype: DTypeLike | None = None
) -> np.ndarray:
    """Elements kept divided by ``1 - p``; the others are 0.

    Element i, in C order, is kept when word ``i % 4`` of `philox` with the counter ``(i // 4, 0, 0, offset)``, 64 bits
    for ``i // 4``, and the key (low half of the seed, high half) is below ``(1 - p) * 2**32``, rounded down. The
    gradient of input is the same function of the result's gradient.
    """
    x = np.asarray(input)
    x = x.astype(common_dtype(x) if dtype is None else dtype, copy=False)
    if p == 1:
        return np.zeros_like(x)
    mask = _kept(x.size, p, seed, offset).reshape(x.shape)
    return np.where(mask, x / (1 - p), 0).astype(x.dtype)


def _kept(count: int, p: float, seed: int, offset: int) -> np.ndarray:
    """Which of so many elements `dropout` keeps."""
    if not 0 <= p < 1:
        raise ValueError(f"dropout: p is {p}; it must be at least 0 and at most 1")
    if p == 0:
        return np.ones(count, bool)
    return words_in_order(count, 0, seed, offset) < min(int((1 - p) * 2**32), 2**32 - 1)


def embedding(input: ArrayLike, weight: ArrayLike) -> np.ndarray:
    """Rows of ``weight`` ``(V, D)`` by ids ``(...)``: ``(..., D)``."""
    return np.asarray(weight)[np.asarray(input)]


def embedding_backward(
    grad_output: ArrayLike, input: ArrayLike, num_embeddings: int, padding_idx: int | None = None, *,
    dtype: DTypeLike | None = None,
) -> np.ndarray:  # fmt: skip
    """The gradient of ``embedding`` by its weight ``(V, D)``: sums of grad_output's rows by id, but of padding_idx."""
    grad_output = np.asarray(grad_output)
    dtype = common_dtype(grad_output) if dtype is None else np.dtype(dtype)
    found = np.zeros((num_embeddings, grad_output.shape[-1]), dtype)
    np.add.at(found, np.asarray(input).reshape(-1), grad_output.reshape(-1, grad_output.shape[-1]).astype(dtype))
    if padding_idx is not None:
        found[padding_idx] = 0
    return found
