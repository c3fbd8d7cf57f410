"""Float32 results that are the same on every processor.

What ``np.matmul`` makes of float32 depends on the machine's BLAS: it sums in more or fewer parts, with or without fused
instructions, so its error differs several times between processors. NumPy's exponentials differ by a unit or two in the
last place. Who holds another result against plain float32 asks the same of it everywhere inside `portable`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

#: Products that are added one after the other before their sum joins the others'.
BLOCK = 256
_portable: ContextVar[bool] = ContextVar("portable", default=False)


@contextmanager
def portable(on: bool = True) -> Iterator[None]:
    """Inside, in this thread, the reference's float32 results have the same bits on every processor, and take longer.

    Each product of a sum is rounded and added in the order of its index, in blocks of `BLOCK`; the blocks' sums are
    then added in their order. Exponentials, logarithms and hyperbolic tangents are rounded from float64.
    """
    before = _portable.set(on)
    try:
        yield
    finally:
        _portable.reset(before)


def _applies(*arrays: np.ndarray) -> bool:
    return _portable.get() and np.result_type(*arrays) == np.float32


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``np.matmul``; inside `portable` with float32 sums in a fixed order.

    a ``(..., M, K)`` or ``(K,)``, b ``(..., K, N)``. Raises ValueError where K differs.
    """
    if not _applies(a, b):
        return np.matmul(a, b)
    if a.ndim == 1:
        return matmul(a[None], b)[..., 0, :]
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"matmul: a is {a.shape} and b is {b.shape}; a's last dimension must be b's last but one")
    if b.shape[-1] < a.shape[-2]:  # NumPy's inner loop is the last axis, and a product's factors may change places
        return matmul(b.swapaxes(-1, -2), a.swapaxes(-1, -2)).swapaxes(-1, -2)
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    left = np.ascontiguousarray(np.moveaxis(a, -1, 0))[..., None]
    right = np.moveaxis(b, -2, 0)[..., None, :]
    total, part, term = (np.zeros(shape, np.float32) for _ in range(3))
    for first in range(0, a.shape[-1], BLOCK):
        np.multiply(left[first], right[first], out=part)
        for k in range(first + 1, min(first + BLOCK, a.shape[-1])):
            np.multiply(left[k], right[k], out=term)
            part += term
        total += part
    return total


def _rounded(function: np.ufunc, x: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    if not _applies(x):
        return function(x, out=out)
    exact = function(x.astype(np.float64)).astype(np.float32)
    if out is None:
        return exact
    out[...] = exact
    return out


def exp(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """``np.exp``, the same bits everywhere inside `portable`."""
    return _rounded(np.exp, x, out)


def log(x: np.ndarray) -> np.ndarray:
    """``np.log``, the same bits everywhere inside `portable`."""
    return _rounded(np.log, x, None)


def tanh(x: np.ndarray) -> np.ndarray:
    """``np.tanh``, the same bits everywhere inside `portable`."""
    return _rounded(np.tanh, x, None)
