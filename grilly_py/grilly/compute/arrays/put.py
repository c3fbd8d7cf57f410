"""Elements moved between views of any strides, one by one, also by an integer index: shaders/arrays/put.comp."""

from __future__ import annotations

from typing import NamedTuple

from ...errors import UnsupportedError
from ...registry import Registry, Request
from ..device.plan import At, Planner, fits_binding, span
from ..device.tensor import Tensor
from .axes import fewest_axes, longest_axis
from .operations import code

_AXES = 4


class Counted(NamedTuple):
    """The axis that an index counts: stride, in elements, and extent; and whether it is one of what is read."""

    step: int
    extent: int
    reads: bool

    def whole(self, tensor: Tensor, first: int = 0, many: int | None = None) -> Tensor:
        """A view with some of the axis's places, ``many`` (or all) from ``first`` on, as one more axis."""
        many = self.extent if many is None else many
        return tensor._view((*tensor.shape, many), (*tensor._steps, self.step), tensor._offset + first * self.step)


class _Piece(NamedTuple):
    """Views of one shape, and which places of the axis that is counted."""

    x: Tensor
    index: Tensor | None
    y: Tensor
    first: int = 0
    many: int = 1

    def part(self, axis: int, some: slice) -> _Piece:
        if axis == self.y.ndim:
            return self._replace(first=self.first + some.start, many=len(range(self.many)[some]))
        place = (slice(None),) * axis + (some,)
        x, index, y = (None if view is None else view[place] for view in self[:3])
        return self._replace(x=x, index=index, y=y)


def emit_put(
    planner: Planner, registry: Registry, x: Tensor, y: Tensor, index: Tensor | None = None,
    counted: Counted | None = None,
) -> None:  # fmt: skip
    """Dispatches that write x to y, views of one shape and dtype, cut where they are larger than bindings.

    With an index, also of that shape, one more axis of y, or of x, is counted by it. Indices out of bounds write
    nothing, and read the element at the nearest end.
    """
    facts = planner.facts
    choice = registry.resolve(Request("put", "float32"))
    stripe, threads = choice.tile["stripe"], choice.threads
    constants = {"BITS": 8 * y.dtype.itemsize, "INDEX": 0 if index is None else code(index.dtype),
                 "READS": int(counted is not None and counted.reads)}  # fmt: skip
    todo = [_Piece(x, index, y, 0, 1 if counted is None else counted.extent)]
    while todo:
        piece = todo.pop()
        views = [view for view in piece[:3] if view is not None]
        bound: list = list(piece[:3])
        if counted is not None:
            side = 0 if counted.reads else 2
            bound[side] = counted.whole(bound[side], piece.first, piece.many)
        extents, steps = fewest_axes(piece.y.shape, [view._steps for view in views])
        large = [view for view in bound if view is not None and not fits_binding(facts, view)]
        axis, parts = -1, 2
        if large:
            axis = longest_axis(max(large, key=span))
            if axis < 0:
                raise UnsupportedError(f"a {y.dtype} does not fit a binding of {facts.storage_range} bytes")
        elif piece.y.size > threads * stripe * facts.groups[1]:
            axis = piece.y.shape.index(max(piece.y.shape))
        elif len(extents) > _AXES:  # an axis too many: its places one by one
            axis = min((a for a, extent in enumerate(piece.y.shape) if extent > 1), key=piece.y.shape.__getitem__)
            parts = piece.y.shape[axis]
        if axis >= 0:
            extent = piece.many if axis == piece.y.ndim else piece.y.shape[axis]
            cut = -(-extent // parts)
            todo += [piece.part(axis, slice(low, low + cut)) for low in range(0, extent, cut)]
            continue
        extents = [1] * (_AXES - len(extents)) + extents
        steps = [[0] * (_AXES - len(step)) + step for step in steps]
        if index is None:
            steps.insert(1, [0] * _AXES)
        words: dict = {
            "count": piece.y.size, "x_offset": At(bound[0]), "index_offset": At(bound[1]), "y_offset": At(bound[2]),
            "step": 0 if counted is None else counted.step % 2**32, "extent": 0 if counted is None else counted.extent,
            "first": piece.first, "many": piece.many,
        }  # fmt: skip
        words |= {f"e_{axis}": extent for axis, extent in enumerate(extents)}
        for name, step in zip("xiy", steps, strict=True):
            words |= {f"{name}_{axis}": value % 2**32 for axis, value in enumerate(step)}
        count = -(-piece.y.size // threads)
        groups = (min(count, stripe), -(-count // stripe), 1)
        arrays = {"x": bound[0], "index": bound[1], "y": bound[2]}
        planner.dispatch(choice, constants, arrays, words, groups, piece.y.size)
