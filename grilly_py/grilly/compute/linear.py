"""Linear layers: ``x W^T + b``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .flash import to_device
from .launch import check_float, finish
from .matmul import product
from .parts import four_axes
from .tensor import _reshaped

if TYPE_CHECKING:
    from .backend import Compute


def linear(backend: Compute, x, weight, bias=None):
    """``y = x W^T + b``, accumulated in float32.

    Parameters
    ----------
    x : numpy.ndarray or grilly.Tensor
        ``(..., K)``, float32 or float16.
    weight : numpy.ndarray or grilly.Tensor
        W, ``(N, K)``, of x's dtype (PyTorch's layout).
    bias : numpy.ndarray or grilly.Tensor, optional
        b, ``(N,)``, of x's dtype.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        ``(..., N)``, of x's dtype; a Tensor when an input was one, and then without waiting.

    Raises
    ------
    TypeError
        For dtypes other than float32 and float16, or differing ones.
    ValueError
        For shapes that do not go together.
    """
    backend.check_open()
    arrays = {"x": x, "weight": weight} if bias is None else {"x": x, "weight": weight, "bias": bias}
    dtype = check_float("linear", **arrays)
    if len(weight.shape) != 2:
        raise ValueError(f"linear: weight has shape {tuple(weight.shape)}; expected (N, K)")
    cols, depth = weight.shape
    if len(x.shape) < 1 or x.shape[-1] != depth:
        raise ValueError(
            f"linear: x has shape {tuple(x.shape)} and weight {tuple(weight.shape)}; x's last axis must have {depth}"
        )
    if bias is not None and tuple(bias.shape) != (cols,):
        raise ValueError(f"linear: bias has shape {tuple(bias.shape)} and weight {tuple(weight.shape)}; "
                         f"expected ({cols},)")  # fmt: skip
    shape = (*x.shape[:-1], cols)
    y = backend.empty(shape, dtype)
    if y.size:
        rows = y.size // cols
        a, b = to_device(backend, x), to_device(backend, weight)
        own = None if bias is None else to_device(backend, bias)
        steps = _reshaped(a.shape, a._steps, (rows, depth)) if a.size else (depth, 1)
        c = y.reshape(rows, cols)
        if steps is not None:
            a = a._view((rows, depth), steps)
        elif a.ndim <= 4:
            c = y
        else:
            a = a.contiguous().reshape(rows, depth)
        a, c = four_axes(a), four_axes(c)
        b = four_axes(b).broadcast_to((a.shape[0], 1, cols, depth))
        product(backend, "linear", a, b, c, columns_are_rows=True, bias=own)
    return finish(backend, y, *arrays.values())
