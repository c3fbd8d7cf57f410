"""Tensors in other shapes and orders, joined, taken apart and repeated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from ..compute.arrays import axes as _axes
from ..compute.arrays import elementwise as _elementwise
from ..compute.arrays import reductions as _reductions
from ..compute.arrays import shapes as _shapes
from ..compute.arrays import take as _take
from ..compute.attention import foreign
from ..compute.device.numbers import integer
from ..compute.device.tensor import Tensor
from .operands import KEYWORDS, Axes, tensor_of, tensors_of


def broadcast_to(x: Tensor | np.ndarray, /, shape: tuple[int, ...]) -> Tensor:
    """A view of x repeated to a shape."""
    return tensor_of("broadcast_to", x).broadcast_to(shape)


def broadcast_arrays(*arrays: Tensor | np.ndarray) -> list[Tensor]:
    """Views of tensors repeated to their common shape. Raises ValueError where there is none."""
    arrays = tensors_of("broadcast_arrays", *arrays)
    shape = _elementwise.check_broadcast("broadcast_arrays", *arrays)
    return [x.broadcast_to(shape) for x in arrays]


def concat(arrays: Sequence[Tensor | np.ndarray], /, axis: int | None = 0, **unknown: NoReturn) -> Tensor:
    """Tensors one after the other along an axis; None: all flat."""
    if unknown:
        raise foreign.unknown("concat", unknown, KEYWORDS)
    return _shapes.concat(tensors_of("concat", *arrays), axis)


def stack(arrays: Sequence[Tensor | np.ndarray], /, axis: int = 0, **unknown: NoReturn) -> Tensor:
    """Tensors of one shape side by side along a new axis."""
    if unknown:
        raise foreign.unknown("stack", unknown, KEYWORDS)
    return _shapes.stack(tensors_of("stack", *arrays), axis)


def unstack(x: Tensor | np.ndarray, /, axis: int = 0, **unknown: NoReturn) -> tuple[Tensor, ...]:
    """Views of x at every place of an axis."""
    if unknown:
        raise foreign.unknown("unstack", unknown, KEYWORDS)
    x = tensor_of("unstack", x)
    place = _axes.axis_of("unstack", axis, x.ndim)
    return tuple(x._selected((slice(None),) * place + (n,)) for n in range(x.shape[place]))


def split(
    x: Tensor | np.ndarray,
    indices_or_sections: int | Sequence[int] | Tensor | np.ndarray,
    /,
    axis: int = 0,
    **unknown: NoReturn,
) -> list[Tensor]:
    """Views of parts of an axis that follow each other, as ``numpy.split``; the standard has no such function.

    Parameters
    ----------
    x : Tensor or numpy.ndarray
    indices_or_sections : int or sequence of int
        How many parts of the same extent, or where all but the first begin; a Tensor is waited for.
    axis : int

    Raises
    ------
    ValueError
        For a number of parts that does not divide the extent.
    """
    if unknown:
        raise foreign.unknown("split", unknown, KEYWORDS)
    x = tensor_of("split", x)
    return _shapes.split(x, indices_or_sections, axis)


def expand_dims(x: Tensor | np.ndarray, /, axis: int = 0, **unknown: NoReturn) -> Tensor:
    """x with a new axis of extent 1; a view. Raises IndexError for a place that there is not."""
    if unknown:
        raise foreign.unknown("expand_dims", unknown, KEYWORDS)
    return _shapes.expand_dims(tensor_of("expand_dims", x), axis)


def squeeze(x: Tensor | np.ndarray, /, axis: int | tuple[int, ...]) -> Tensor:
    """x without axes of extent 1; a view. Raises ValueError where one has another extent."""
    return _shapes.squeeze(tensor_of("squeeze", x), axis)


def reshape(x: Tensor | np.ndarray, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Tensor:
    """The same elements under another shape, a view where that is possible, or a copy where ``copy`` is True.

    Raises ValueError for another number of elements, and where ``copy`` is False and a view is not possible.
    """
    x = tensor_of("reshape", x)
    found = x.reshape(shape)
    if copy is False and found._storage is not x._storage:
        raise ValueError(f"reshape: {x.shape} with strides {x.strides} needs a copy to be {tuple(shape)}")
    return found.astype(found.dtype, copy=True) if copy and found._storage is x._storage else found


def permute_dims(x: Tensor | np.ndarray, /, axes: tuple[int, ...]) -> Tensor:
    """x with its axes in another order; a view."""
    x = tensor_of("permute_dims", x)
    axes = tuple(axes) if np.iterable(axes) else (integer("permute_dims", "axes", axes),)
    if len(axes) != x.ndim:
        raise ValueError(f"permute_dims: {len(axes)} axes for a tensor of {x.ndim}")
    return x.transpose(axes) if axes else x


def moveaxis(x: Tensor | np.ndarray, source: int | tuple[int, ...], destination: int | tuple[int, ...], /) -> Tensor:
    """x with axes moved to other places; a view."""
    x = tensor_of("moveaxis", x)
    own = [_reductions.axes_of("moveaxis", x, axes) for axes in (source, destination)]
    if len(own[0]) != len(own[1]):
        raise ValueError(f"moveaxis: {len(own[0])} axes and {len(own[1])} places")
    return _axes.moved(x, *own)


def flip(x: Tensor | np.ndarray, /, axis: Axes = None, **unknown: NoReturn) -> Tensor:
    """A copy of x with axes (None: all) in reverse order."""
    if unknown:
        raise foreign.unknown("flip", unknown, KEYWORDS)
    x = tensor_of("flip", x)
    return _shapes.flip(x, _reductions.axes_of("flip", x, axis))


def roll(x: Tensor | np.ndarray, /, shift: int | tuple[int, ...], axis: Axes = None, **unknown: NoReturn) -> Tensor:
    """x with its elements moved along axes, those at the end to the beginning; without axes, in C order."""
    if unknown:
        raise foreign.unknown("roll", unknown, KEYWORDS)
    return _shapes.roll(tensor_of("roll", x), shift, axis)


def repeat(
    x: Tensor | np.ndarray, repeats: int | Sequence[int] | Tensor | np.ndarray, /, axis: int | None = None,
    **unknown: NoReturn,
) -> Tensor:  # fmt: skip
    """Each element, or place along an axis, ``repeats`` times; a sequence or an array has a number for each, and for
    that of a Tensor the host waits."""
    if unknown:
        raise foreign.unknown("repeat", unknown, KEYWORDS)
    x = tensor_of("repeat", x)
    repeats = np.asarray(repeats) if isinstance(repeats, (list, tuple)) else repeats
    if not isinstance(repeats, (Tensor, np.ndarray)):
        return _shapes.repeat(x, repeats, axis)
    own = x.reshape(-1) if axis is None else x
    place = _axes.axis_of("repeat", 0 if axis is None else axis, own.ndim)
    counts = repeats.numpy() if isinstance(repeats, Tensor) else repeats
    if counts.dtype.kind not in "iu" or counts.size and counts.min() < 0:
        raise ValueError("repeat: repeats are other than integers from 0 on")
    if counts.shape not in ((), (1,), (own.shape[place],)):
        raise ValueError(f"repeat: repeats have shape {counts.shape} for an axis of {own.shape[place]}")
    times = np.broadcast_to(counts, (own.shape[place],))
    return _take.take(own, np.repeat(np.arange(own.shape[place]), times), place)


def tile(x: Tensor | np.ndarray, repetitions: tuple[int, ...], /) -> Tensor:
    """x laid side by side, so many times along each axis."""
    return _shapes.tile(tensor_of("tile", x), repetitions)
