"""Transposed convolutions, planned as the gradients of convolutions by their inputs."""

from __future__ import annotations

import numpy as np

from ..device.call import run
from ..device.device import Device
from ..device.tensor import Tensor
from .backward import plan_inputs
from .checks import Asked, Window
from .forward import four, room


def transposed(
    device: Device, axes: int, x: Tensor, weight: Tensor, stride: tuple[int, ...], padding: tuple[int, ...],
    dilation: tuple[int, ...], groups: int,
) -> Tensor:  # fmt: skip
    """A transposed convolution of one or two axes: each element of x, times the kernel, is added to the result.

    Parameters
    ----------
    x : Tensor
        float32, ``(N, I, H, W)`` or ``(N, I, L)``; its channels are divided by ``groups``.
    weight : Tensor
        float32, ``(I, O / groups, kh, kw)`` or ``(I, O / groups, k)``.
    stride, padding, dilation : tuple of int
        One for each axis. ``padding`` is cut off on both sides.

    Returns
    -------
    Tensor
        float32, ``(N, O, ...)`` with ``s (H - 1) + d (kh - 1) + 1 - 2 p`` rows, and columns alike.

    Raises
    ------
    UnsupportedError
        Where the windows of one channel are larger than a binding of the device.
    """
    g, kernel = four(x, axes), tuple(weight.shape[2:])
    inputs, own = weight.shape[:2]
    extents = tuple(
        s * (e - 1) + d * (k - 1) + 1 - 2 * p
        for s, e, d, k, p in zip(stride, x.shape[2:], dilation, kernel, padding, strict=True)
    )
    one, zero = (1,) * (2 - axes), (0,) * (2 - axes)
    window = Window(one + kernel, one + stride, zero + padding, one + dilation, g.shape[2:])
    shape = (x.shape[0], own * groups, *one, *extents)
    if 0 in (*shape, *x.shape):
        return device.tensor(np.zeros((*shape[:2], *extents), np.float32))
    rows = g.transpose(0, 2, 3, 1).contiguous().reshape(-1, inputs)
    depth = own * window.places
    table = weight.reshape(groups, inputs // groups, depth).transpose(0, 2, 1).contiguous()
    (found,) = run(device, plan_inputs, (Asked(window, groups, False), room(device), shape), (rows, table))
    return found.reshape(*shape[:2], *extents)
