"""Gradients of arrays whose elements were repeated."""

from __future__ import annotations

from ..arrays.reductions import sum_of
from ..device.tensor import Tensor


def repeats(x: Tensor) -> list[int]:
    """The axes along which an array has the same elements again and again."""
    return [axis for axis, (extent, stride) in enumerate(zip(x.shape, x._strides, strict=True))
            if stride == 0 and extent > 1]  # fmt: skip


def once(x: Tensor) -> Tensor:
    """The view of an array that has each of its elements once."""
    axes = repeats(x)
    shape = tuple(1 if axis in axes else extent for axis, extent in enumerate(x.shape))
    return x._view(shape, x._strides, x._offset) if axes else x


def summed_to(gradient: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The sum of a gradient over the axes along which an array of a shape was broadcast."""
    if gradient.shape == shape:
        return gradient
    lead = gradient.ndim - len(shape)
    axes = [*range(lead), *(lead + n for n, extent in enumerate(shape) if extent == 1 != gradient.shape[lead + n])]
    return sum_of("sum", gradient, tuple(axes), None, True).reshape(shape)


__all__ = ["once", "repeats", "summed_to"]
