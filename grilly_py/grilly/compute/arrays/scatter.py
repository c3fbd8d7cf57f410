"""Elements moved between views of any strides, one by one, also by an integer index: shaders/arrays/scatter.comp."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ...errors import UnsupportedError
from ...registry import Choice, Registry, Request
from ..device.device import DeviceFacts
from ..device.plan import At, Move, Planner, fits_binding, span
from ..device.tensor import Tensor
from .axes import fewest_axes, longest_axis
from .operations import code

_AXES = 4


class Counted(NamedTuple):
    """The axis that an index counts: stride, in elements, and extent; and whether it is one of what is read."""

    stride: int
    extent: int
    reads: bool

    def whole(self, tensor: Tensor, first: int = 0, many: int | None = None) -> Tensor:
        """A view with some of the axis's places, ``many`` (or all) from ``first`` on, as one more axis."""
        many = self.extent if many is None else many
        return tensor._view(
            (*tensor.shape, many), (*tensor._strides, self.stride), tensor._offset + first * self.stride
        )


class _Chunk(NamedTuple):
    """Views of one shape, and which places of the axis that is counted."""

    x: Tensor
    index: Tensor | None
    y: Tensor
    first: int = 0
    many: int = 1

    def part(self, axis: int, some: slice) -> _Chunk:
        if axis == self.y.ndim:
            return self._replace(first=self.first + some.start, many=len(range(self.many)[some]))
        place = (slice(None),) * axis + (some,)
        x, index, y = (None if view is None else view[place] for view in self[:3])
        return self._replace(x=x, index=index, y=y)


def emit_scatter(
    planner: Planner, registry: Registry, x: Tensor, y: Tensor, index: Tensor | None = None,
    counted: Counted | None = None, offsets: Sequence[int] | None = None,
) -> None:  # fmt: skip
    """Dispatches that write x to y, views of one shape and dtype, cut where they are larger than bindings.

    With an index, also of that shape, one more axis of y, or of x, is counted by it. Indices out of bounds write
    nothing, and read the element at the nearest end. ``offsets``: what divides where x and y begin (``Layout.offset``),
    where that is known: then up to 16 bytes are moved at a time.
    """
    choice = registry.resolve(Request("scatter", "float32"))
    todo = [_Chunk(x, index, y, 0, 1 if counted is None else counted.extent)]
    while todo:
        chunk = todo.pop()
        bound: list[Tensor | None] = list(chunk[:3])
        if counted is not None:
            side = 0 if counted.reads else 2
            bound[side] = counted.whole(chunk[side], chunk.first, chunk.many)
        extents, strides = fewest_axes(chunk.y.shape, [view._strides for view in chunk[:3] if view is not None])
        axis, parts = _cut(planner.facts, choice, chunk, bound, len(extents))
        if axis >= 0:
            extent = chunk.many if axis == chunk.y.ndim else chunk.y.shape[axis]
            cut = -(-extent // parts)
            todo += [chunk.part(axis, slice(low, low + cut)) for low in range(0, extent, cut)]
            continue
        each = 1 if index is not None or offsets is None else _together(chunk.x, chunk.y, extents, strides, offsets)
        move = Move((x,), y) if index is None and chunk.y is y else None
        _dispatch(planner, choice, chunk, bound, extents, strides, each, counted, move)


def _cut(
    facts: DeviceFacts, choice: Choice, chunk: _Chunk, bound: Sequence[Tensor | None], axes: int
) -> tuple[int, int]:
    """The axis along which a chunk is to be cut, and in how many parts; -1 where one dispatch takes it."""
    y = chunk.y
    large = [view for view in bound if view is not None and not fits_binding(facts, view)]
    if large:
        axis = longest_axis(max(large, key=span))
        if axis < 0:
            raise UnsupportedError(f"a {y.dtype} does not fit a binding of {facts.storage_range} bytes")
        return axis, 2
    if y.size > choice.threads * choice.tile["stripe"] * facts.groups[1]:
        return y.shape.index(max(y.shape)), 2
    if axes > _AXES:  # an axis too many: its places one by one
        axis = min((a for a, extent in enumerate(y.shape) if extent > 1), key=y.shape.__getitem__)
        return axis, y.shape[axis]
    return -1, 1


def _dispatch(
    planner: Planner, choice: Choice, chunk: _Chunk, bound: Sequence[Tensor | None], extents: Sequence[int],
    strides: Sequence[Sequence[int]], each: int, counted: Counted | None, move: Move | None,
) -> None:  # fmt: skip
    """Plan the dispatch of a chunk, ``each`` elements of the last axis at a time."""
    x, index, y = bound
    spare = [0] * (_AXES - len(extents))
    extents = [*(1 for _ in spare), *extents[:-1], extents[-1] // each]
    strides = [[*spare, *(step // each for step in stride[:-1]), stride[-1]] for stride in strides]
    if index is None:
        strides.insert(1, [0] * _AXES)
    words: dict = {
        "count": chunk.y.size // each, "x_offset": At(x, each), "index_offset": At(index), "y_offset": At(y, each),
        "stride": 0 if counted is None else counted.stride % 2**32, "extent": 0 if counted is None else counted.extent,
        "first": chunk.first, "many": chunk.many,
    }  # fmt: skip
    words |= {f"e_{axis}": extent for axis, extent in enumerate(extents)}
    for name, stride in zip("xiy", strides, strict=True):
        words |= {f"{name}_{axis}": value % 2**32 for axis, value in enumerate(stride)}
    constants = {
        "BITS": 8 * chunk.y.dtype.itemsize * each, "INDEX": 0 if index is None else code(index.dtype),
        "READS": int(counted is not None and counted.reads),
    }  # fmt: skip
    groups = choice.workgroups(chunk.y.size, each * choice.threads)
    arrays = {"x": x, "index": index, "y": y}
    planner.dispatch(choice, constants, arrays, words, groups, chunk.y.size, operation=move)


def _together(
    x: Tensor, y: Tensor, extents: Sequence[int], strides: Sequence[Sequence[int]], offsets: Sequence[int]
) -> int:
    """How many elements of the last axis are moved at a time: those of 16, 8 or 4 bytes."""
    if any(stride[-1] != 1 for stride in strides):
        return 1
    steps = [step for stride in strides for step in stride[:-1]]
    whole = math.gcd(extents[-1], x._offset, y._offset, *offsets, *steps)
    return next((n for n in (size // y.dtype.itemsize for size in (16, 8, 4)) if n and whole % n == 0), 1)
