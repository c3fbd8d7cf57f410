"""Elements found by indices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ... import array_api as xp
from ...compute import Tensor
from ..table import Call, operator, within


def from_zero(index: Tensor, extent: int) -> Tensor:
    """Indices that count from the end as ones from the beginning."""
    return index if index.dtype.kind == "u" else xp.where(xp.less(index, 0), xp.add(index, extent), index)


@operator("Gather", either=(1,))
def gather(call: Call, x: Tensor, indices: Tensor | np.ndarray) -> Tensor:
    """Elements along an axis at indices, whose axes take its place."""
    axis = within(int(call.get("axis", 0)), x.ndim)
    if isinstance(indices, np.ndarray) and indices.ndim == 0:
        return x[(slice(None),) * axis + (int(indices),)]
    if isinstance(indices, Tensor):
        indices = from_zero(indices, x.shape[axis])
    return xp.take(x, indices, axis=axis)


@operator("GatherElements")
def gather_elements(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    """For each index the element at it along an axis, and at its own place along the others."""
    axis = within(int(call.get("axis", 0)), x.ndim)
    x = x[tuple(slice(None) if a == axis else slice(0, extent) for a, extent in enumerate(indices.shape))]
    return xp.take_along_axis(x, from_zero(indices, x.shape[axis]), axis=axis)


def flat_index(x: Tensor, indices: Tensor, first: int) -> Tensor:
    """Rows of indices into axes of x from ``first`` on, as indices into these axes as one."""
    found: Any = None
    for place in range(indices.shape[-1]):
        one = from_zero(indices[..., place], x.shape[first + place])
        found = one if found is None else xp.add(xp.multiply(found, x.shape[first + place]), one)
    return found


@operator("GatherND")
def gather_nd(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    """Parts of x at rows of indices."""
    batch, last = int(call.get("batch_dims", 0)), indices.shape[-1]
    count = math.prod(x.shape[:batch])
    extent, rest = math.prod(x.shape[batch : batch + last]), x.shape[batch + last :]
    flat = flat_index(x, indices, batch).reshape((count, -1))
    if batch:
        flat = xp.add(flat, (np.arange(count, dtype=np.int64) * extent)[:, None])
    found = xp.take(x.reshape((count * extent, math.prod(rest))), flat.reshape((-1,)), axis=0)
    return found.reshape((*indices.shape[:-1], *rest))


@operator("OneHot", host=(1,))
def one_hot(call: Call, indices: Tensor, depth: np.ndarray, values: Tensor) -> Tensor:
    """The second value where an index names the place along a new axis, the first elsewhere."""
    count, axis = int(depth.item()), within(int(call.get("axis", -1)), indices.ndim + 1)
    index = indices.astype(np.int64, copy=False)
    index = xp.expand_dims(xp.where(xp.less(index, 0), xp.add(index, count), index), axis=axis)
    shape = [1] * index.ndim
    shape[axis] = count
    return xp.where(xp.equal(index, np.arange(count, dtype=np.int64).reshape(shape)), values[1], values[0])


@operator("TopK", host=(1,))
def top_k(call: Call, x: Tensor, k: np.ndarray | None = None) -> Any:
    """The k largest or smallest elements along an axis, in order, and their indices."""
    count = int(call.attributes["k"] if k is None else k.item())
    return xp.topk(x, count, axis=int(call.get("axis", -1)), largest=bool(call.get("largest", 1)))


@operator("NonZero")
def nonzero(call: Call, x: Tensor) -> Tensor:
    """Indices of elements that are not zero, a row for each axis; waits for their number."""
    if x.ndim == 0:  # no axes, and so no rows; NumPy's function has no answer
        count = xp.nonzero(x.reshape((1,)))[0].shape[0]
        return call.tensor(np.zeros((0, count), np.int64))
    return xp.stack(xp.nonzero(x), axis=0)


@operator("Compress", host=(1,))
def compress(call: Call, x: Tensor, condition: np.ndarray) -> Tensor:
    """Parts along an axis, or single elements, where a condition holds."""
    (places,) = np.nonzero(condition)
    if "axis" in call.attributes:
        return xp.take(x, places, axis=int(call.attributes["axis"]))
    return xp.take(x.reshape((-1,)), places, axis=0)


@operator("ReverseSequence")
def reverse_sequence(call: Call, x: Tensor, lengths: Tensor) -> Tensor:
    """The first elements along an axis in reverse order, as many as each sample has."""
    time, batch = (within(int(call.get(f"{key}_axis", n)), x.ndim) for n, key in enumerate(("time", "batch")))
    lengths = lengths.reshape(tuple(-1 if a == batch else 1 for a in range(x.ndim)))
    steps = xp.arange(x.shape[time], dtype=np.int64, device=call.backend)
    steps = steps.reshape(tuple(-1 if a == time else 1 for a in range(x.ndim)))
    places = xp.where(xp.less(steps, lengths), xp.subtract(xp.subtract(lengths, 1), steps), steps)
    return xp.take_along_axis(x, places.broadcast_to(x.shape), axis=time)


@operator("Unique", host=(0,))
def distinct(call: Call, x: np.ndarray) -> Any:
    """Distinct elements, or parts along an axis, with their first places, where each went, and counts; on the host.

    How many there are decides the shape.
    """
    found, first, where, counts = np.unique(x, True, True, True, axis=call.get("axis"))
    where = where.reshape(-1)
    if not call.get("sorted", 1):  # in the order in which they come
        order = np.argsort(first)
        found, first, counts = np.take(found, order, axis=call.get("axis") or 0), first[order], counts[order]
        where = np.argsort(order)[where]
    return found, *(each.astype(np.int64, copy=False) for each in (first, where, counts))
