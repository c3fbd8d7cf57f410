"""Adjoints: the gradients of memory, in the places where its elements lie.

A tensor and its views share memory. A gradient of each is kept with the layout that it is of, and they are put together
when the gradient of a tensor is asked for. So a view needs no gradient of its own, and a slice costs its own size.
"""

from __future__ import annotations

from typing import NamedTuple

from ..arrays.assign import assign
from ..arrays.axes import fewest_axes
from ..arrays.creation import full
from ..arrays.elementwise import binary, cast, in_place
from ..arrays.reductions import sum_of
from ..device.plan import reach
from ..device.tape import OPEN
from ..device.tensor import Outline, Tensor, contiguous_strides
from .placed import placed
from .repeated import repeats


class _Part(NamedTuple):
    """The gradient of a view.

    Attributes
    ----------
    strides : tuple of int
        Of the view, in elements; none is 0 where the extent is more than 1.
    offset : int
    gradient : Tensor
        Of the view's shape.
    """

    strides: tuple[int, ...]
    offset: int
    gradient: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.gradient.shape

    def bounds(self) -> tuple[int, int]:
        """The first place in memory, and the one behind the last."""
        return reach(self.shape, self.strides, self.offset)

    def order(self) -> list[int] | None:
        """The axes in the order in which a block of memory has them; None where the view is no block."""
        order = sorted(range(len(self.shape)), key=lambda axis: (-self.strides[axis], self.shape[axis]))
        shape = tuple(self.shape[axis] for axis in order)
        dense = contiguous_strides(shape)
        same = all(self.strides[axis] == stride or self.shape[axis] == 1
                   for axis, stride in zip(order, dense, strict=True))  # fmt: skip
        return order if same else None


class Adjoints:
    """Gradients of some memory, added up."""

    def __init__(self) -> None:
        self._parts: dict[Outline, list[_Part]] = {}

    def add(self, tensor: Tensor, gradient: Tensor) -> None:
        """Add the gradient of a tensor; of its shape, and cast to its dtype."""
        if not tensor.size:
            return
        repeated = repeats(tensor)
        if repeated:
            gradient = sum_of("sum", gradient, tuple(repeated), None, True)
        part = _Part(tensor._strides, tensor._offset, cast(gradient, tensor.dtype))
        parts = self._parts.setdefault(Outline.of(tensor._storage), [])
        for number, known in enumerate(parts):
            total = _sum(known, part)
            if total is not None:
                parts[number] = total
                return
        parts.append(part)

    def of(self, tensor: Tensor) -> Tensor | None:
        """The gradient of a tensor; None where there is none."""
        parts = self._parts.get(Outline.of(tensor._storage))
        if parts is None or not tensor.size:
            return None
        wanted = _Part(tensor._strides, tensor._offset, tensor)
        low, high = wanted.bounds()
        near = [part for part in parts if part.bounds()[0] < high and low < part.bounds()[1]]
        if not near:
            return None
        if len(near) == 1:
            found = _seen_as(near[0], wanted)
            if found is not None:
                return found
        return _merged(near, wanted)

    def forget(self, tensor: Tensor) -> None:
        """Let go what is known of the tensor's memory."""
        self._parts.pop(Outline.of(tensor._storage), None)


def _sum(one: _Part, other: _Part) -> _Part | None:
    """Both gradients added, where they are of the same places; else None."""
    if one.shape == other.shape and one.strides == other.strides and one.offset == other.offset:
        return one._replace(gradient=binary("add", one.gradient, other.gradient))
    seen = _seen_as(other, one)
    return None if seen is None else one._replace(gradient=binary("add", one.gradient, seen))


def _seen_as(part: _Part, wanted: _Part) -> Tensor | None:
    """The gradient of a view as that of another that has the same elements; None where it has others."""
    if part.shape == wanted.shape and part.offset == wanted.offset and all(
        one == other or extent == 1
        for one, other, extent in zip(part.strides, wanted.strides, part.shape, strict=True)
    ):
        return part.gradient
    if part.bounds() != wanted.bounds():
        return None
    own, asked = part.order(), wanted.order()
    if own is None or asked is None:
        return None
    flat = part.gradient.transpose(own).reshape(-1)
    shaped = flat.reshape([wanted.shape[axis] for axis in asked])
    return shaped.transpose([asked.index(axis) for axis in range(len(asked))])


def _merged(parts: list[_Part], wanted: _Part) -> Tensor:
    """The gradient of a view, put together from those of views that share memory with it."""
    bounds = [part.bounds() for part in (*parts, wanted)]
    low, high = min(first for first, _ in bounds), max(last for _, last in bounds)
    tiled, whole = _tile(parts, low, high), None
    covered: list[tuple[int, int]] = []
    for part, (first, last) in zip(parts, bounds, strict=False):
        fresh = all(last <= begin or end <= first for begin, end in covered)
        covered.append((first, last))
        if OPEN.tapes:  # memory that these write to must not change
            own = placed(part.gradient, high - low, part.strides, part.offset - low)
            whole = own if whole is None else binary("add", whole, own)
            continue
        if whole is None:
            device, dtype = part.gradient._storage.device, part.gradient.dtype
            whole = device.empty(high - low, dtype) if tiled else full(device, (high - low,), 0.0, dtype)
        target = whole._view(part.shape, part.strides, whole._offset + part.offset - low)
        if fresh or tiled:
            assign(whole._storage.device, target, part.gradient)
        else:
            in_place("add", target, part.gradient)
    assert whole is not None
    return whole._view(wanted.shape, wanted.strides, whole._offset + wanted.offset - low)


def _tile(parts: list[_Part], low: int, high: int) -> bool:
    """Whether each place of memory is in one of the views: runs, side by side, or such in each of equal rows."""
    runs, rows = [], set()
    for part in parts:
        order = sorted(range(len(part.shape)), key=lambda axis: -part.strides[axis])
        shape = tuple(part.shape[axis] for axis in order)
        extents, (strides,) = fewest_axes(shape, [[part.strides[axis] for axis in order]])
        run = extents.pop() if strides[-1] == 1 else 1
        runs.append((part.offset - low, part.offset - low + run))
        rows.add((*extents, *strides[: len(extents)]))
    if len(rows) > 1:
        return False
    count, width = next((row for row in rows if len(row) == 2), (1, high - low))
    runs.sort()
    ends = [0, *(end for _, end in runs)]
    return len(min(rows)) in (0, 2) and count * width == high - low == count * ends[-1] and all(
        begin == end for (begin, _), end in zip(runs, ends, strict=False)
    )


__all__ = ["Adjoints"]
