"""Axes of arrays: by the numbers that users give; the fewest that are walked together, and where they are cut."""

from __future__ import annotations

from ..device.numbers import integer
from ..device.tensor import Tensor


def axis_of(name: str, axis, ndim: int) -> int:
    """An axis from 0 on. Raises ValueError where there is none of the number."""
    place = integer(name, "axis", axis)
    if not -ndim <= place < ndim:
        raise ValueError(f"{name}: axis {place} is out of bounds for {ndim} axes")
    return place % ndim


def fewest_axes(shape: tuple[int, ...], strides: list) -> tuple[list[int], list[list[int]]]:
    """Extents, and strides of each operand, with axes joined where all operands allow it."""
    axes: list[tuple[int, tuple[int, ...]]] = []
    for axis, extent in enumerate(shape):
        if extent == 1:
            continue
        own = tuple(stride[axis] for stride in strides)
        if axes and axes[-1][1] == tuple(extent * stride for stride in own):
            axes[-1] = (axes[-1][0] * extent, own)
        else:
            axes.append((extent, own))
    axes = axes or [(1, (0,) * len(strides))]
    return [extent for extent, _ in axes], [list(column) for column in zip(*(own for _, own in axes), strict=True)]


def longest_axis(tensor: Tensor) -> int:
    """The axis along which a view reaches farthest in memory; -1 where it is one element repeated."""
    reach = [abs(stride) * (extent - 1) for extent, stride in zip(tensor.shape, tensor._strides, strict=True)]
    return reach.index(max(reach)) if any(reach) else -1


def two_parts(axis: int, cut: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Indices of what is before a cut of an axis, and of what is behind it."""
    before = (slice(None),) * axis
    return (*before, slice(0, cut)), (*before, slice(cut, None))


def moved(x: Tensor, source: tuple[int, ...], destination: tuple[int, ...]) -> Tensor:
    """x with axes moved from some places to others; a view."""
    order = [a for a in range(x.ndim) if a not in source]
    for place, axis in sorted(zip(destination, source, strict=True)):
        order.insert(place, axis)
    return x.transpose(order) if x.ndim else x
