"""Elements moved between views of any strides, one by one, also by an integer index: shaders/arrays/scatter.comp."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ...errors import UnsupportedError
from ...registry import Choice, Registry, Request
from ..device.device import DeviceFacts
from ..device.plan import At, Live, Move, Planner, fits_binding, span
from ..device.tensor import Tensor
from ..expressions.cutting import Most
from ..expressions.elements import width_of
from ..expressions.expression import Expression, Filling, Hole
from .axes import fewest_axes, longest_axis
from .operations import code

AXES = 4
_WORDS = 4
_UNCUT = -1, 1
#: What an expression has at most before elements that are written, or added up, by an index.
MOST_BEFORE = Most(2, _WORDS, 300)


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


class Scatter(NamedTuple):
    """Elements of a plan that are written by an index, in one dispatch.

    Attributes
    ----------
    arrays : tuple of Tensor
        What is written, over the plan's slots, and the index: of one shape.
    result : Tensor
        Of that shape too, but for the axis that is counted.
    counted : Counted
    """

    arrays: tuple[Tensor, Tensor]
    result: Tensor
    counted: Counted


class Before(NamedTuple):
    """An expression before what a kernel reads, for its dispatch.

    Attributes
    ----------
    expression : Expression
        Of the elements of one array or two.
    arrays : sequence of Tensor
    """

    expression: Expression
    arrays: Sequence[Tensor]

    def constants(self) -> dict[str, int]:
        """Values of specialization constants by name."""
        widths = [*(width_of(array.dtype) for array in self.arrays), 0]
        return {"BITS_X": widths[0], "BITS_R": widths[1]}

    def push(self) -> dict[str, object]:
        """Push constants by name, but for the second array's strides where there is one."""
        told = self.expression.words
        push: dict = {f"n_{place}": Live(told[place]) if place < len(told) else 0 for place in range(_WORDS)}
        return push | {"r_offset": At(self.bindings()["r"])} | {f"r_{axis}": 0 for axis in range(AXES)}

    def bindings(self) -> dict[str, Tensor | None]:
        """The second array by the name of its binding."""
        return {"r": self.arrays[1] if len(self.arrays) > 1 else None}

    def filling(self, registry: Registry) -> Filling:
        """The code of the hole."""
        return Filling(registry, Hole("element", self.expression, MOST_BEFORE.arrays))


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
        move: Move | Scatter | None = Move((x,), y) if index is None and chunk.y is y else None
        if index is not None and counted is not None and not counted.reads and chunk.y is y:
            move = Scatter((x, index), y, counted)
        _dispatch(planner, choice, chunk, bound, extents, strides, each, counted, move)


def emit_scattered(
    planner: Planner, registry: Registry, before: Before, y: Tensor, index: Tensor, counted: Counted
) -> bool:
    """Plan one dispatch that writes what an expression makes to y by an index; False where one cannot do it.

    All arrays have y's shape; see ``emit_scatter``.
    """
    choice = registry.resolve(Request("scatter-holes", "float32"))
    x, *others = before.arrays
    extents, strides = fewest_axes(y.shape, [view._strides for view in (x, index, y, *others)])
    chunk = _Chunk(x, index, y, 0, counted.extent)
    bound = [*before.arrays, index, counted.whole(y)]
    if _cut(planner.facts, choice, chunk, bound, len(extents)) != _UNCUT:
        return False
    _dispatch(planner, choice, chunk, [x, *bound[-2:]], extents, strides, 1, counted, None, (before, registry))
    return True


def _cut(
    facts: DeviceFacts, choice: Choice, chunk: _Chunk, bound: Sequence[Tensor | None], axes: int
) -> tuple[int, int]:
    """The axis along which a chunk is to be cut, and in how many parts; _UNCUT where one dispatch takes it."""
    y = chunk.y
    large = [view for view in bound if view is not None and not fits_binding(facts, view)]
    if large:
        axis = longest_axis(max(large, key=span))
        if axis < 0:
            raise UnsupportedError(f"a {y.dtype} does not fit a binding of {facts.storage_range} bytes")
        return axis, 2
    if y.size > choice.threads * choice.tile["stripe"] * facts.groups[1]:
        return y.shape.index(max(y.shape)), 2
    if axes > AXES:  # an axis too many: its places one by one
        axis = min((a for a, extent in enumerate(y.shape) if extent > 1), key=y.shape.__getitem__)
        return axis, y.shape[axis]
    return _UNCUT


def _dispatch(
    planner: Planner, choice: Choice, chunk: _Chunk, bound: Sequence[Tensor | None], extents: Sequence[int],
    strides: Sequence[Sequence[int]], each: int, counted: Counted | None, operation: Move | Scatter | None,
    before: tuple[Before, Registry] | None = None,
) -> None:  # fmt: skip
    """Plan the dispatch of a chunk, ``each`` elements of the last axis at a time."""
    x, index, y = bound
    extents = [*extents[:-1], extents[-1] // each]
    strides = [[*(step // each for step in stride[:-1]), stride[-1]] for stride in strides]
    if index is None:
        strides.insert(1, [0] * len(extents))
    words: dict = {
        "count": chunk.y.size // each, "x_offset": At(x, each), "index_offset": At(index), "y_offset": At(y, each),
        "stride": 0 if counted is None else counted.stride % 2**32, "extent": 0 if counted is None else counted.extent,
        "first": chunk.first, "many": chunk.many,
    }  # fmt: skip
    constants = {
        "BITS": 8 * chunk.y.dtype.itemsize * each, "INDEX": 0 if index is None else code(index.dtype),
        "READS": int(counted is not None and counted.reads),
    }  # fmt: skip
    groups = choice.workgroups(chunk.y.size, each * choice.threads)
    arrays = {"x": x, "index": index, "y": y}
    filling = None
    if before is not None:
        own, registry = before
        words, arrays, filling = words | own.push(), arrays | own.bindings(), own.filling(registry)
        constants |= own.constants()
    words |= words_of_axes(extents, strides, "xiyr")
    planner.dispatch(choice, constants, arrays, words, groups, chunk.y.size, filling=filling, operation=operation)


def words_of_axes(extents: Sequence[int], strides: Sequence[Sequence[int]], names: str) -> dict[str, int]:
    """Push constants: the extents of all axes but the outermost, and each array's strides, by their letters."""
    spare = [0] * (AXES - len(extents))
    words = {f"e_{axis}": extent for axis, extent in enumerate([*(1 for _ in spare), *extents]) if axis}
    for name, own in zip(names, strides, strict=False):
        words |= {f"{name}_{axis}": stride % 2**32 for axis, stride in enumerate([*spare, *own])}
    return words


def _together(
    x: Tensor, y: Tensor, extents: Sequence[int], strides: Sequence[Sequence[int]], offsets: Sequence[int]
) -> int:
    """How many elements of the last axis are moved at a time: those of 16, 8 or 4 bytes."""
    if any(stride[-1] != 1 for stride in strides):
        return 1
    steps = [step for stride in strides for step in stride[:-1]]
    whole = math.gcd(extents[-1], x._offset, y._offset, *offsets, *steps)
    return next((n for n in (size // y.dtype.itemsize for size in (16, 8, 4)) if n and whole % n == 0), 1)
