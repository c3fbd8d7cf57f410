"""Gradients of arrays whose elements were repeated."""

from __future__ import annotations

from ..arrays.reductions import sum_of
from ..device.tensor import Tensor


def summed_to(gradient: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The sum of a gradient over the axes along which an array of a shape was broadcast."""
    if gradient.shape == shape:
        return gradient
    lead = gradient.ndim - len(shape)
    axes = [*range(lead), *(lead + n for n, extent in enumerate(shape) if extent == 1 != gradient.shape[lead + n])]
    return sum_of("sum", gradient, tuple(axes), None, True).reshape(shape)


__all__ = ["summed_to"]
