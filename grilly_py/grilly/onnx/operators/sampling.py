"""Elements between those of an image, at places that are given."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ... import array_api as xp
from ...compute import Tensor
from ..table import Call, operator, wide


class Tap(NamedTuple):
    """Neighbours along an axis: their indices (int32, in bounds), what they count, and where they are in the image.

    None stands for 1, and for everywhere.
    """

    index: Tensor
    weight: Tensor | None
    inside: Tensor | None


def sampled(
    x: Tensor, taps: Sequence[Sequence[Tap]], images: Any, merge: Callable[[Any, Any], Tensor] = xp.add
) -> Tensor:
    """Weighted neighbours, merged.

    Parameters
    ----------
    x : Tensor
        ``(N, C, ...)``.
    taps : sequence
        For each axis of an image the neighbours along it. Their arrays broadcast to ``(M, ...)``.
    images : array of int32
        Which image each of the M has; broadcasts too.
    merge : callable
        Sums or extremes of the neighbours.

    Returns
    -------
    Tensor
        ``(M, ..., C)``.
    """
    extents, channels = x.shape[2:], x.shape[1]
    # Channels last: all of them lie at one index.
    table = xp.permute_dims(x, (0, *range(2, x.ndim), 1)).reshape((x.shape[0] * math.prod(extents), channels))
    found: Any = None
    for place in itertools.product(*taps):
        index = images
        for tap, extent in zip(place, extents, strict=True):
            index = xp.add(xp.multiply(index, extent), tap.index)
        value = xp.take(table, index.reshape((-1,)), axis=0).reshape((*index.shape, channels))
        inside = [tap.inside for tap in place if tap.inside is not None]
        if inside:  # chosen and not multiplied, or infinity times 0 were NaN
            value = xp.where(xp.expand_dims(functools.reduce(xp.logical_and, inside), axis=-1), value, 0)
        weights = [tap.weight for tap in place if tap.weight is not None]
        if weights:
            value = xp.multiply(value, xp.expand_dims(functools.reduce(xp.multiply, weights), axis=-1))
        found = value if found is None else merge(found, value)
    return found


def linear_taps(places: Tensor, extent: int, bounded: bool) -> list[Tap]:
    """The two neighbours of places along an axis; zeros beyond the image, unless the places are bounded to it."""
    base = xp.floor(places)
    ratio = xp.subtract(places, base)
    return [
        Tap(_index(at, extent), weight, None if bounded else _inside(at, extent))
        for at, weight in ((base, xp.subtract(1.0, ratio)), (xp.add(base, 1.0), ratio))
    ]


def _index(places: Tensor, extent: int) -> Tensor:
    return xp.minimum(xp.maximum(places, 0.0), extent - 1.0).astype(np.int32, copy=False)


def _inside(places: Tensor, extent: int) -> Tensor:
    return xp.logical_and(xp.greater_equal(places, 0.0), xp.less(places, float(extent)))


def _reflected(places: Tensor, low: float, high: float) -> Tensor:
    """Places between two mirrors."""
    span = high - low
    if span <= 0:
        return xp.zeros_like(places)
    found = xp.remainder(xp.subtract(places, low), 2 * span)
    return xp.add(xp.minimum(found, xp.subtract(2 * span, found)), low)


def _cubic(ratio: Tensor) -> list[Tensor]:
    """What the four neighbours count by Keys' cubic convolution with -0.75."""
    a, found = -0.75, []
    for shift in (1.0, 0.0, -1.0, -2.0):
        far = xp.abs(xp.add(ratio, shift))
        if shift in (0.0, -1.0):
            inner = xp.subtract(xp.multiply(far, a + 2), a + 3)
            found.append(xp.add(xp.multiply(xp.multiply(inner, far), far), 1.0))
        else:
            inner = xp.add(xp.multiply(xp.subtract(far, 5.0), far), 8.0)
            found.append(xp.multiply(xp.subtract(xp.multiply(inner, far), 4.0), a))
    return found


def _taps(places: Tensor, extent: int, mode: str, padding: str, corners: bool) -> list[Tap]:
    low, high = (0.0, extent - 1.0) if corners else (-0.5, extent - 0.5)
    places = xp.round(places) if mode == "nearest" else places
    if padding == "border" and mode != "cubic":  # each of the four neighbours is kept in bounds, and not the place
        beyond = xp.logical_or(xp.less(places, low), xp.greater(places, high))
        places = xp.where(beyond, xp.minimum(xp.maximum(places, 0.0), extent - 1.0), places)
    elif padding == "reflection":
        places = _reflected(places, low, high)
    if mode == "nearest":
        return [Tap(_index(places, extent), None, _inside(places, extent) if padding == "zeros" else None)]
    base = xp.floor(places)
    ratio = xp.subtract(places, base)
    weights = [xp.subtract(1.0, ratio), ratio] if mode == "linear" else _cubic(ratio)
    found = []
    for shift, weight in enumerate(weights, 0 if mode == "linear" else -1):
        at = xp.add(base, float(shift))
        at = _reflected(at, low, high) if padding == "reflection" else at
        found.append(Tap(_index(at, extent), weight, _inside(at, extent) if padding == "zeros" else None))
    return found


@operator("GridSample")
def grid_sample(call: Call, x: Tensor, grid: Tensor) -> Tensor:
    """Images at places of a grid, from -1 to 1 along each axis, the last axis first."""
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(call.get("mode", "linear"), call.get("mode", "linear"))
    padding, corners = call.get("padding_mode", "zeros"), bool(call.get("align_corners", 0))
    if mode not in ("nearest", "linear", "cubic") or padding not in ("zeros", "border", "reflection"):
        raise call.refuse(f"mode is {mode!r} and padding_mode {padding!r}")
    extents, gives = x.shape[2:], (*x.shape[:2], *grid.shape[1:-1])
    if 0 in gives:
        return xp.zeros(gives, dtype=x.dtype, device=call.backend)
    taps, given = [], wide(grid).reshape((grid.shape[0], -1, grid.shape[-1]))
    for axis, extent in enumerate(extents):
        place = xp.add(given[:, :, len(extents) - 1 - axis], 1.0)
        if corners:
            place = xp.multiply(xp.divide(place, 2.0), extent - 1.0)
        else:
            place = xp.divide(xp.subtract(xp.multiply(place, float(extent)), 1.0), 2.0)
        taps.append(_taps(place, extent, mode, padding, corners))
    found = sampled(wide(x), taps, np.arange(x.shape[0], dtype=np.int32)[:, None])
    return xp.permute_dims(found, (0, 2, 1)).reshape(gives).astype(x.dtype, copy=False)


@operator("AffineGrid", host=(1,))
def affine_grid(call: Call, theta: Tensor, size: np.ndarray) -> Tensor:
    """For each place of an image the place that an affine map sends it to, as GridSample takes it."""
    extents = [int(extent) for extent in size[2:]]
    lines = []
    for extent in extents:
        middle = (2 * np.arange(extent) + 1) / max(extent, 1) - 1
        corner = np.linspace(-1, 1, extent) if extent > 1 else np.zeros(extent)
        lines.append(corner if call.get("align_corners", 0) else middle)
    whole = np.stack([*np.meshgrid(*lines, indexing="ij")[::-1], np.ones(extents)], axis=-1).astype(np.float32)
    found = xp.matmul(call.tensor(whole.reshape(-1, len(extents) + 1)), xp.matrix_transpose(wide(theta)))
    return found.reshape((theta.shape[0], *extents, len(extents))).astype(theta.dtype, copy=False)


@operator("DeformConv")
def deformed_convolution(
    call: Call, x: Tensor, weight: Tensor, offset: Tensor, bias: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """A convolution of which each element of each window is moved, and multiplied where there is a mask."""
    if x.ndim != 4:
        raise call.refuse(f"x has {x.ndim - 2} axes beside samples and channels; expected two")
    batch, channels, *extents = x.shape
    outputs, _, *kernel = weight.shape
    count, counts = kernel[0] * kernel[1], offset.shape[2:]
    groups, parts = int(call.get("group", 1)), int(call.get("offset_group", 1))
    strides, dilations = call.get("strides", [1, 1]), call.get("dilations", [1, 1])
    pads = call.get("pads", [0] * 4)
    moved = wide(offset).reshape((batch * parts, *kernel, 2, *counts))
    taps = []
    for axis in (0, 1):
        places = np.arange(counts[axis]) * strides[axis] - pads[axis]
        steps = np.arange(kernel[axis]) * dilations[axis]
        shape = [1] * 5
        shape[1 + axis], shape[3 + axis] = kernel[axis], counts[axis]
        still = np.add.outer(steps, places).astype(np.float32, copy=False).reshape(shape)
        taps.append(linear_taps(xp.add(moved[:, :, :, axis], call.tensor(still)), extents[axis], False))
    images = np.arange(batch * parts, dtype=np.int32).reshape(-1, 1, 1, 1, 1)
    found = sampled(wide(x).reshape((batch * parts, channels // parts, *extents)), taps, images)
    if mask is not None:
        found = xp.multiply(found, xp.expand_dims(wide(mask).reshape((batch * parts, *kernel, *counts)), axis=-1))
    windows = found.reshape((batch, parts, count, math.prod(counts), channels // parts))
    windows = xp.permute_dims(windows, (0, 3, 1, 4, 2)).reshape((batch, math.prod(counts), groups, -1))
    table = wide(weight).reshape((groups, outputs // groups, -1))
    found = xp.matmul(table, xp.permute_dims(windows, (0, 2, 3, 1))).reshape((batch, outputs, *counts))
    if bias is not None:
        found = xp.add(found, wide(bias).reshape((-1, 1, 1)))
    return found.astype(x.dtype, copy=False)
