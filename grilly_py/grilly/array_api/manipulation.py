"""Tensors in other shapes and orders, joined, taken apart and repeated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..compute.arrays import elementwise as _elementwise
from ..compute.arrays import indexing as _indexing
from ..compute.arrays import reductions as _reductions
from ..compute.arrays import shapes as _shapes
from ..compute.device.tensor import Tensor
from .operands import Axes


def broadcast_to(x: Tensor, /, shape: tuple[int, ...]) -> Tensor:
    """A view of x repeated to a shape."""
    return x.broadcast_to(shape)


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """Views of tensors repeated to their common shape. Raises ValueError where there is none."""
    shape = _elementwise.check_broadcast("broadcast_arrays", *arrays)
    return [x.broadcast_to(shape) for x in arrays]


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """Tensors one after the other along an axis; None: all flat."""
    return _shapes.concat(arrays, axis)


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Tensors of one shape side by side along a new axis."""
    return _shapes.stack(arrays, axis)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Views of x at every place of an axis."""
    place = _shapes.axis_of("unstack", axis, x.ndim)
    return tuple(x.view((slice(None),) * place + (n,)) for n in range(x.shape[place]))


def expand_dims(x: Tensor, /, *, axis: int = 0) -> Tensor:
    """x with a new axis of extent 1; a view. Raises IndexError for a place that there is not."""
    return _shapes.expand_dims(x, axis)


def squeeze(x: Tensor, /, axis: int | tuple[int, ...]) -> Tensor:
    """x without axes of extent 1; a view. Raises ValueError where one has another extent."""
    return _shapes.squeeze(x, axis)


def reshape(x: Tensor, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Tensor:
    """The same elements under another shape, a view where that is possible, or a copy where ``copy`` is True.

    Raises ValueError for another number of elements, and where ``copy`` is False and a view is not possible.
    """
    found = x.reshape(shape)
    if copy is False and found._storage is not x._storage:
        raise ValueError(f"reshape: {x.shape} with strides {x.strides} needs a copy to be {tuple(shape)}")
    return found.astype(found.dtype, copy=True) if copy and found._storage is x._storage else found


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    """x with its axes in another order; a view."""
    if len(axes) != x.ndim:
        raise ValueError(f"permute_dims: {len(axes)} axes for a tensor of {x.ndim}")
    return x.transpose(axes) if axes else x


def moveaxis(x: Tensor, source: int | tuple[int, ...], destination: int | tuple[int, ...], /) -> Tensor:
    """x with axes moved to other places; a view."""
    own = [_reductions.axes_of("moveaxis", x, axes) for axes in (source, destination)]
    if len(own[0]) != len(own[1]):
        raise ValueError(f"moveaxis: {len(own[0])} axes and {len(own[1])} places")
    return _indexing.moved(x, *own)


def flip(x: Tensor, /, *, axis: Axes = None) -> Tensor:
    """A copy of x with axes (None: all) in reverse order."""
    return _shapes.flip(x, _reductions.axes_of("flip", x, axis))


def roll(x: Tensor, /, shift: int | tuple[int, ...], *, axis: Axes = None) -> Tensor:
    """x with its elements moved along axes, those at the end to the beginning; without axes, in C order."""
    return _shapes.roll(x, shift, axis)


def repeat(x: Tensor, repeats: int | Tensor, /, *, axis: int | None = None) -> Tensor:
    """Each element, or place along an axis, ``repeats`` times; an array has a number for each, which the host waits
    for."""
    if not isinstance(repeats, Tensor):
        return _shapes.repeat(x, repeats, axis)
    own = x.reshape(-1) if axis is None else x
    place = _shapes.axis_of("repeat", 0 if axis is None else axis, own.ndim)
    times = np.broadcast_to(repeats.numpy(), (own.shape[place],))
    return _indexing.take(own, np.repeat(np.arange(own.shape[place]), times), place)


def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """x laid side by side, so many times along each axis."""
    return _shapes.tile(x, repetitions)
