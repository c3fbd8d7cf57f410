"""Gradients of elements at indices, of sorts and of elements added at indices."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...errors import GradientError
from ..arrays import accumulate, sorting, take
from ..arrays.axes import moved
from ..arrays.creation import arange
from ..arrays.elementwise import binary, cast, clip, where
from ..arrays.promotion import INT64
from ..arrays.sorting import SortTerms, argsort, topk
from ..arrays.take import index_array, take_along_axis
from ..device.tape import Entry
from ..device.tensor import Tensor
from ..embedding import embedding_backward
from .records import gradient_of
from .repeated import summed_to


@gradient_of(take.picked, reads=(1,))
def _picked(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (x, index), (axis,), (gradient,) = entry.arrays, entry.static, gradients
    return (_rows_added(x, _within(index, x.shape[axis]), gradient, axis),)


def _within(index: Tensor, extent: int) -> Tensor:
    """Indices from 0 on, the nearest where they are out of bounds, as kernels read them."""
    wide = cast(index, INT64)
    return clip(where(binary("less", wide, 0), binary("add", wide, extent), wide), 0, max(extent - 1, 0))


def _rows_added(x: Tensor, index: Tensor, gradient: Tensor, axis: int) -> Tensor:
    """An array of x's shape, zeros to which parts of a gradient are added by an index along an axis."""
    lead, tail = x.shape[:axis], x.shape[axis + 1 :]
    rows = moved(gradient, (axis,), (0,)).reshape((index.size, math.prod(lead) * math.prod(tail)))
    found = embedding_backward(x._storage.device, rows, index, x.shape[axis])
    return moved(found.reshape((x.shape[axis], *lead, *tail)), (0,), (axis,))


@gradient_of(take._along, reads=(1,))
def _along(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (x, indices), (axis,), (gradient,) = entry.arrays, entry.static, gradients
    places = index_array(x, indices, x.shape[axis], axis)
    return (added_along(x, places.broadcast_to(gradient.shape), gradient, axis),)


def added_along(x: Tensor, places: Tensor, gradient: Tensor, axis: int) -> Tensor:
    """An array like x, zeros to which each element of a gradient is added at its place along an axis.

    The other axes of x may be of extent 1 where the gradient's are longer.
    """
    shape = [*gradient.shape]
    shape[axis] = x.shape[axis]
    lead, extent, tail = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    device = x._storage.device
    outer = arange(device, lead)._selected((slice(None), None, None))
    inner = arange(device, tail)._selected((None, None, slice(None)))
    own = _within(places, extent).reshape((lead, gradient.shape[axis], tail))
    flat = binary("add", binary("multiply", binary("add", binary("multiply", outer, extent), own), tail), inner)
    found = embedding_backward(device, gradient.reshape((gradient.size, 1)), flat.reshape(-1), lead * extent * tail)
    return summed_to(found.reshape(shape), x.shape)


@gradient_of(accumulate.plan, reads=(1,))
def _accumulated(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (_, index, terms), (how, axis), (gradient,) = entry.arrays, entry.static, gradients
    if how != "add":
        raise GradientError(f"there is no gradient of elements put into extremes by an index ({how})")
    cut = tuple(slice(0, extent) if n != axis else slice(None) for n, extent in enumerate(terms.shape))
    return gradient, None, take_along_axis(gradient._selected(cut), index, axis)


@gradient_of(sorting.plan)
def _sorted(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (x,), (terms, axis) = entry.arrays, entry.static
    if gradients[0] is None:
        return (None,)
    return (added_along(x, _places(x, terms, axis), gradients[0], axis),)


def _places(x: Tensor, terms: SortTerms, axis: int) -> Tensor:
    if terms.keep == x.shape[axis]:
        return argsort(x, axis, terms.descending)
    return topk(x, terms.keep, axis, terms.descending)[1]


__all__ = ["added_along"]
