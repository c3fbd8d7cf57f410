"""Elements at integer indices along an axis: take and its relatives.

Integers on the host are checked; those on the device are not, because that would wait for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...registry import Registry
from ..device.call import call
from ..device.device import DeviceFacts
from ..device.plan import Layout, Plan, Planner
from ..device.tape import OPEN, as_one
from ..device.tensor import Tensor
from .axes import axis_of
from .map import Gather, emit, plan, shown
from .operations import spec
from .promotion import kind_of


def take(x: Tensor, indices, axis: int | None = None) -> Tensor:
    """Elements of x along an axis at integer indices; negative ones count from the end.

    The axis becomes the axes of ``indices``. It may be left out where x has one.
    """
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"take: x has {x.ndim} axes; name one")
        axis = 0
    axis = axis_of("take", axis, x.ndim)
    indices = index_array(x, indices, x.shape[axis], axis)
    found = picked(x, indices.reshape(indices.size), axis)
    return found.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def take_along_axis(x: Tensor, indices, axis: int = -1) -> Tensor:
    """For each element of ``indices``, of x's number of axes, that element of x along the axis; others broadcast."""
    axis = axis_of("take_along_axis", axis, x.ndim)

    def check(x: Tensor, indices) -> tuple[Tensor, Tensor]:
        indices = index_array(x, indices, x.shape[axis], axis)
        if indices.ndim != x.ndim:
            raise ValueError(f"take_along_axis: indices have {indices.ndim} axes and x {x.ndim}")
        return x, indices

    return call(x._storage.device, _along, (axis,), (x, indices), check)[0]


def _along(given: tuple[int], layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``take_along_axis``."""
    (axis,) = given
    planner = Planner(facts, layouts)
    pair = planner.inputs
    extents = [x.shape[axis] for x in pair]
    others = np.broadcast_shapes(*((*x.shape[:axis], 1, *x.shape[axis + 1 :]) for x in pair))
    outer, inner = math.prod(others[:axis]), math.prod(others[axis + 1 :])
    views = []
    for x, extent, layout in zip(pair, extents, layouts, strict=True):
        wide = x.broadcast_to((*others[:axis], extent, *others[axis + 1 :]))
        views.append(shown(planner, registry, wide, (outer, extent, inner), layout.offset))
    (data, offset), (places, own) = views
    result = planner.empty(places.shape, data.dtype)
    if result.size:
        if not extents[0]:
            raise IndexError(f"take_along_axis: axis {axis} has no elements to take")
        asked = Gather(spec("copy", data.dtype), data._strides[1], extents[0])
        data = data._view(places.shape, (data._strides[0], 0, data._strides[2]))
        emit(planner, registry, asked, result, [data, places], [offset, own])
    return planner.plan(result.reshape((*others[:axis], extents[1], *others[axis + 1 :])))


def picked(x: Tensor, index: Tensor, axis: int = 0) -> Tensor:
    """Elements of x at an index of one axis, along an axis."""
    if OPEN.tapes:
        found: Tensor = as_one(picked, (axis,), (x, index), lambda: picked(x, index, axis))
        return found
    lead, extent, tail = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    shape = (*lead, index.size, *tail)
    if math.prod(shape) and not extent:
        raise IndexError(f"axis {axis} has no elements to take")
    if len(shape) > 4:
        x = x.contiguous()
    data = x._view(shape, (*x._strides[:axis], 0, *x._strides[axis + 1 :]))
    places = index._view(shape, (*(0,) * len(lead), index._strides[0], *(0,) * len(tail)))
    asked = Gather(spec("copy", x.dtype), x._strides[axis], extent)
    return call(x._storage.device, plan, (asked,), (data, places, None))[0]


def within_bounds(array: np.ndarray, extent: int, axis: int) -> np.ndarray:
    """Indices from 0 on. Raises IndexError for what is out of bounds."""
    array = array.astype(np.int64)
    if array.size and not (-extent <= array.min() and array.max() < extent):
        wrong = array.min() if array.min() < -extent else array.max()
        raise IndexError(f"index {wrong} is out of bounds for axis {axis} with size {extent}")
    return np.where(array < 0, array + extent, array)


def index_array(x: Tensor, indices, extent: int, axis: int) -> Tensor:
    """Indices as a tensor of integers on x's device; those of the host are checked."""
    if not isinstance(indices, Tensor):
        indices = np.asarray(indices)
        if not indices.size:
            indices = indices.astype(np.int64)
        if indices.dtype.kind not in "iu":
            raise TypeError(f"indices are {indices.dtype}; expected integers")
        return x._storage.device.tensor(within_bounds(indices, extent, axis))
    if kind_of(indices.dtype) not in ("signed", "unsigned"):
        raise TypeError(f"indices are {indices.dtype}; expected integers")
    return indices
