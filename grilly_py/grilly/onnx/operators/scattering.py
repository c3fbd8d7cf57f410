"""Elements written by indices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import array_api as xp
from ...compute import Tensor
from ...compute.arrays.accumulate import accumulated, accumulates
from ..table import Call, operator, wide, within
from .indexing import flat_index, from_zero

_REDUCTIONS: dict[str, Callable[[Any, Any], Tensor]] = {
    "add": xp.add, "mul": xp.multiply, "max": xp.maximum, "min": xp.minimum,
}  # fmt: skip


def _reduction(call: Call) -> str:
    """The node's reduction. Raises UnsupportedError for one that ONNX does not have."""
    how = str(call.get("reduction", "none"))
    if how != "none" and how not in _REDUCTIONS:
        raise call.refuse(f"reduction is {how!r}; expected one of none, {', '.join(_REDUCTIONS)}")
    return how


def _reduced(call: Call, x: Tensor, places: Tensor, updates: Tensor) -> Tensor:
    """Rows of x with all rows of updates that name them, by the node's reduction, where ``accumulates`` is False.

    Updates are sorted by their place. A running reduction, which starts anew with each place, doubles its reach in each
    pass; its last row for a place is the whole one. So the result is the same in each run, and sums are rounded as
    those of a tree.
    """
    if not places.size:
        return x
    merge, count = _REDUCTIONS[_reduction(call)], places.size
    order = xp.argsort(places)
    places, found = xp.take(places, order, axis=0), xp.take(wide(updates), order, axis=0)
    reach = 1
    while reach < count:
        alike = xp.equal(places[reach:], places[:-reach])[:, None]
        more = xp.where(alike, merge(found[reach:], found[:-reach]), found[reach:])
        found = xp.concat([found[:reach], more], axis=0)
        reach *= 2
    last = xp.subtract(xp.searchsorted(places, places, side="right"), 1)
    result = x.astype(x.dtype, copy=True)
    # Rows of one place all write the same.
    whole = merge(wide(xp.take(x, places, axis=0)), xp.take(found, last, axis=0))
    result[(places,)] = whole.astype(x.dtype, copy=False)
    return result


@operator("ScatterElements", "Scatter")
def scatter_elements(call: Call, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """A copy of x with elements replaced at indices along an axis, or added to and the like."""
    axis, how = within(int(call.get("axis", 0)), x.ndim), _reduction(call)
    if how != "none" and updates.size and accumulates(how, x, indices, updates, axis):
        return accumulated(how, x, indices, updates, axis)
    places: list[Any] = list(np.indices(indices.shape))
    places[axis] = from_zero(indices, x.shape[axis])
    if how == "none":
        found = x.astype(x.dtype, copy=True)
        found[tuple(places)] = updates
        return found
    strides = [math.prod(x.shape[a + 1 :]) for a in range(x.ndim)]
    others = sum(place * stride for a, (place, stride) in enumerate(zip(places, strides, strict=True)) if a != axis)
    flat = xp.add(xp.multiply(places[axis].astype(np.int64, copy=False), strides[axis]), np.asarray(others, np.int64))
    return _reduced(call, x.reshape((-1, 1)), flat.reshape((-1,)), updates.reshape((-1, 1))).reshape(x.shape)


@operator("ScatterND")
def scatter_nd(call: Call, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """A copy of x with parts replaced at rows of indices, or added to and the like."""
    last, how = indices.shape[-1], _reduction(call)
    rows, rest = math.prod(x.shape[:last]), math.prod(x.shape[last:])
    flat = flat_index(x, indices, 0).reshape((-1,))
    updates = updates.reshape((flat.size, rest))
    if how != "none":
        whole, named = x.reshape((rows, rest)), flat[:, None]
        named = xp.broadcast_to(named, updates.shape)
        if updates.size and accumulates(how, whole, named, updates, 0):
            return accumulated(how, whole, named, updates, 0).reshape(x.shape)
        return _reduced(call, whole, flat, updates).reshape(x.shape)
    found = x.astype(x.dtype, copy=True).reshape((rows, rest))
    found[(flat,)] = updates
    return found.reshape(x.shape)


@operator("TensorScatter")
def tensor_scatter(call: Call, cache: Tensor, update: Tensor, begin: Tensor | None = None) -> Tensor:
    """A copy of a cache with new elements along an axis, for each sample from an index of its own on."""
    axis = within(int(call.get("axis", -2)), cache.ndim)
    count, batch = update.shape[axis], cache.shape[0]
    rows: Any = np.arange(count, dtype=np.int64)[None].repeat(batch, 0)
    if begin is not None:
        rows = xp.add(begin.astype(np.int64, copy=False).reshape((batch, 1)), rows)
        if call.get("mode", "linear") == "circular":
            rows = xp.remainder(rows, cache.shape[axis])
    found = cache.astype(cache.dtype, copy=True)
    order = (0, axis, *(a for a in range(cache.ndim) if a not in (0, axis)))
    samples = np.arange(batch, dtype=np.int64)[:, None].repeat(count, 1)
    xp.permute_dims(found, order)[samples, rows] = xp.permute_dims(update, order)
    return found
