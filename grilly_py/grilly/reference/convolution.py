"""Convolutions of one and two axes, and their gradients, place by place of the kernel."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .attention import common_dtype


def conv2d(
    input: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | str = 0, dilation: int | tuple[int, ...] = 1, groups: int = 1, *,
    dtype: DTypeLike | None = None,
) -> np.ndarray:  # fmt: skip
    """``y[n, o, i, j] = b[o] + sum_{c, a, b} x[n, c, i s - p + a d, j s - p + b d] W[o, c, a, b]``.

    input is ``(N, C, H, W)`` or ``(C, H, W)``, weight ``(O, C / groups, kh, kw)``, bias ``(O,)``. padding is numbers,
    "valid" or "same": of an odd number of zeros one more comes at the end.
    """
    x, w, dtype = _arrays(input, weight, dtype)
    windows, _, _ = _windows(x if x.ndim == 4 else x[None], w, stride, padding, dilation)
    out = np.einsum("ngcijab,gocab->ngoij", _grouped(windows, 1, groups), _grouped(w, 0, groups))
    out = out.reshape(out.shape[0], -1, *out.shape[3:])
    if bias is not None:
        out = out + np.asarray(bias).astype(dtype)[:, None, None]
    return out if x.ndim == 4 else out[0]


def conv2d_backward(
    grad_output: ArrayLike, input: ArrayLike, weight: ArrayLike, stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | str = 0, dilation: int | tuple[int, ...] = 1, groups: int = 1, *,
    dtype: DTypeLike | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """The gradients of ``sum(grad_output * conv2d(...))`` by input, weight and bias."""
    x, w, dtype = _arrays(input, weight, dtype)
    four = x if x.ndim == 4 else x[None]
    windows, before, padded = _windows(four, w, stride, padding, dilation)
    g = np.asarray(grad_output).astype(dtype).reshape(four.shape[0], w.shape[0], *windows.shape[2:4])
    by_group = _grouped(g, 1, groups)
    dw = np.einsum("ngcijab,ngoij->gocab", _grouped(windows, 1, groups), by_group).reshape(w.shape)
    dwindows = np.einsum("ngoij,gocab->ngcijab", by_group, _grouped(w, 0, groups)).reshape(windows.shape)
    dx = np.zeros(padded, dtype)
    (sh, sw), (dh, dw_) = _both(stride), _both(dilation)
    for a in range(w.shape[2]):
        for b in range(w.shape[3]):
            rows, columns = (slice(o, o + s * (n - 1) + 1, s) for o, s, n in (
                (a * dh, sh, windows.shape[2]), (b * dw_, sw, windows.shape[3])))  # fmt: skip
            dx[:, :, rows, columns] += dwindows[..., a, b]
    dx = dx[:, :, before[0] : before[0] + four.shape[2], before[1] : before[1] + four.shape[3]]
    return dx.reshape(x.shape), dw, g.sum((0, 2, 3))


def conv1d(
    input: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, stride: int = 1, padding: int | str = 0,
    dilation: int = 1, groups: int = 1, *, dtype: DTypeLike | None = None,
) -> np.ndarray:  # fmt: skip
    """`conv2d` of ``(N, C, L)`` or ``(C, L)`` with a height of 1; weight is ``(O, C / groups, k)``."""
    x, w = np.asarray(input)[..., None, :], np.asarray(weight)[..., None, :]
    padding = padding if isinstance(padding, str) else (0, padding)
    return conv2d(x, w, bias, (1, stride), padding, (1, dilation), groups, dtype=dtype)[..., 0, :]


def conv1d_backward(
    grad_output: ArrayLike, input: ArrayLike, weight: ArrayLike, stride: int = 1, padding: int | str = 0,
    dilation: int = 1, groups: int = 1, *, dtype: DTypeLike | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """The gradients of ``sum(grad_output * conv1d(...))`` by input, weight and bias."""
    g, x, w = (np.asarray(array)[..., None, :] for array in (grad_output, input, weight))
    padding = padding if isinstance(padding, str) else (0, padding)
    dx, dw, db = conv2d_backward(g, x, w, (1, stride), padding, (1, dilation), groups, dtype=dtype)
    return dx[..., 0, :], dw[..., 0, :], db


def _arrays(input, weight, dtype):
    x, w = np.asarray(input), np.asarray(weight)
    dtype = common_dtype(x, w) if dtype is None else np.dtype(dtype)
    return x.astype(dtype, copy=False), w.astype(dtype, copy=False), dtype


def _both(value) -> tuple[int, ...]:
    return (value, value) if np.ndim(value) == 0 else tuple(value)


def _grouped(x: np.ndarray, axis: int, groups: int) -> np.ndarray:
    return x.reshape(*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])


def _windows(x, w, stride, padding, dilation):
    """``(N, C, Ho, Wo, kh, kw)``, the zeros before each axis, and the shape of the padded x."""
    (sh, sw), (dh, dw) = _both(stride), _both(dilation)
    reach = dh * (w.shape[2] - 1), dw * (w.shape[3] - 1)
    if padding == "same":
        pads = [(r // 2, r - r // 2) for r in reach]
    else:
        pads = [(p, p) for p in _both(0 if padding == "valid" else padding)]
    x = np.pad(x, ((0, 0), (0, 0), *pads))
    found = np.lib.stride_tricks.sliding_window_view(x, (reach[0] + 1, reach[1] + 1), (2, 3))
    return found[:, :, ::sh, ::sw, ::dh, ::dw], [p[0] for p in pads], x.shape
