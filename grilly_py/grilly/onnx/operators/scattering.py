"""Elements written by indices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import array_api as xp
from ...compute import Tensor
from ..table import Call, operator, wide, within
from .indexing import flat_index, from_zero

_REDUCTIONS: dict[str, Callable[[Any, Any], Tensor]] = {
    "add": xp.add, "mul": xp.multiply, "max": xp.maximum, "min": xp.minimum,
}  # fmt: skip


def _reduced(call: Call, x: Tensor, places: Tensor, updates: Tensor) -> Tensor:
    """Rows of x with all rows of updates that name them, by the node's reduction.

    Updates are sorted by their place. A running reduction, which starts anew with each place, doubles its reach in each
    pass; its last row for a place is the whole one. So the result is the same in each run, and sums are rounded as
    those of a tree.
    """
    how = call.get("reduction")
    if how not in _REDUCTIONS:
        raise call.refuse(f"reduction is {how!r}; expected one of none, {', '.join(_REDUCTIONS)}")
    if not places.size:
        return x
    merge, count = _REDUCTIONS[how], places.size
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
    axis = within(int(call.get("axis", 0)), x.ndim)
    places: list[Any] = list(np.indices(indices.shape))
    places[axis] = from_zero(indices, x.shape[axis])
    if call.get("reduction", "none") == "none":
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
    last = indices.shape[-1]
    rows, rest = math.prod(x.shape[:last]), math.prod(x.shape[last:])
    flat = flat_index(x, indices, 0).reshape((-1,))
    updates = updates.reshape((flat.size, rest))
    if call.get("reduction", "none") != "none":
        return _reduced(call, x.reshape((rows, rest)), flat, updates).reshape(x.shape)
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
