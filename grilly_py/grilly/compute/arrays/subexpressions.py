"""Users' functions as dispatches: one, or several where that would be too large for a kernel or a driver's compiler."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

import numpy as np

from ...registry import Registry
from ..device.caches import limited
from ..device.device import DeviceFacts
from ..device.plan import ALIGN_MOST, Layout, Plan, Planner
from ..device.tensor import Tensor
from ..expressions.cutting import Most, Subexpression, Together, cut, together
from ..expressions.elements import stored
from ..expressions.scalars import Scalar
from . import map, map_several
from .map import Work, emit_work, memory_order
from .map_several import emit_several
from .operations import spec

#: What one dispatch does at most.
MOST = Most(map_several.OPERANDS, map_several.WORDS, 600, map_several.RESULTS)
#: Plans of functions that a device keeps, with their programs. A processor's driver takes 0.8 MB for each of these.
PLANS = 256


class Subexpressions:
    """What is computed of arrays, in subexpressions. Equal ones are one object: a quick key.

    Attributes
    ----------
    subexpressions : tuple of Subexpression
    results : tuple of int
        The numbers of those that make the results.
    dispatches : tuple of Together
        What makes them.
    """

    __slots__ = ("subexpressions", "results", "dispatches", "__weakref__")

    def __init__(
        self, subexpressions: tuple[Subexpression, ...], results: tuple[int, ...], dispatches: tuple[Together, ...]
    ):
        self.subexpressions, self.results, self.dispatches = subexpressions, results, dispatches

    @classmethod
    def of(cls, outputs: Sequence[Scalar], arrays: int) -> Subexpressions:
        """The subexpressions that make some scalars, of a function of so many arrays."""
        found, results = cut([(stored(one.dtype, one.node), one.dtype) for one in outputs], arrays, MOST)
        key = (*((one.expression.key, one.arrays, one.gives.str, one.gives.name) for one in found), *results)
        own = _known.get(key)
        if own is None:
            dispatches = tuple(together(found, arrays, MOST))
            own = _known.setdefault(key, cls(tuple(found), tuple(results), dispatches))
        return own

    def words(self) -> set[int]:
        """The numbers of the words that they need."""
        return {number for one in self.subexpressions for number in one.expression.words}


_known: weakref.WeakValueDictionary[tuple, Subexpressions] = weakref.WeakValueDictionary()


@limited(PLANS)
def plan(
    given: tuple[Subexpressions] | tuple[Subexpressions, tuple[bool, ...]], layouts: Sequence[Layout],
    facts: DeviceFacts, registry: Registry,
) -> Plan:  # fmt: skip
    """The dispatches of a function on arrays that broadcast.

    ``given`` has what is computed; and, of each result, whether it replaces the elements of an array that is given: the
    last arrays, contiguous and of the results' shape.
    """
    own, *rest = given
    planner = Planner(facts, layouts)
    (into,) = rest or ((),)
    read = len(layouts) - sum(into)
    shape = np.broadcast_shapes(*(layout.shape for layout in layouts))
    views = [array.broadcast_to(shape) for array in planner.inputs[:read]]
    offsets = [layout.offset for layout in layouts[:read]]
    if into:
        last = zip(planner.inputs[read:], (layout.offset for layout in layouts[read:]), strict=True)
        targets = [next(last) if is_given else None for is_given in into]
        results = emit_subexpressions(planner, registry, own, views, offsets, targets)
        return planner.plan(*(result for result, is_given in zip(results, into, strict=True) if not is_given))
    order = memory_order(planner.inputs, shape)
    if order is not None:
        views = [view.transpose(order) for view in views]
    results = emit_subexpressions(planner, registry, own, views, offsets)
    if order is not None:
        back = [order.index(axis) for axis in range(len(order))]
        results = [result.transpose(back) for result in results]
    return planner.plan(*results)


def emit_subexpressions(
    planner: Planner, registry: Registry, own: Subexpressions, views: Sequence[Tensor], offsets: Sequence[int],
    targets: Sequence[tuple[Tensor, int] | None] = (),
) -> list[Tensor]:  # fmt: skip
    """Dispatches of subexpressions of views of one shape; ``offsets`` as of ``map.emit``. Returns the results.

    ``targets`` are results that are there already, and their offsets; None for a new one. What they hold is read before
    it is replaced.
    """
    shape = views[0].shape
    values = dict(enumerate(zip(views, offsets, strict=True)))
    last = {array: at for at, one in enumerate(own.dispatches) for array in one.arrays}
    free: list[Tensor] = []
    one_dispatch = len(own.dispatches) == 1 and len(set(own.results)) == len(own.results)
    given = dict(zip(own.results, targets, strict=False)) if one_dispatch else {}
    for at, one in enumerate(own.dispatches):
        made = []
        for number in one.numbers:
            target, gives = given.get(number), own.subexpressions[number].gives
            if target is None:
                target = _memory(planner, shape, gives, free if number not in own.results else []), ALIGN_MOST
            made.append(target)
            values[len(views) + number] = target
        if math.prod(shape):
            read = [values[array] for array in one.arrays]
            _emit(planner, registry, one, made, [view for view, _ in read], [offset for _, offset in read])
        for array in one.arrays:
            if last[array] == at and array >= len(views) and array - len(views) not in own.results:
                free.append(values[array][0])
    results = [values[len(views) + number][0] for number in own.results]
    if not one_dispatch:
        for result, target in zip(results, targets, strict=False):
            if target is not None and result.size:
                copy = spec("copy", result.dtype).expression((result.dtype,), result.dtype)
                emit_work(planner, registry, Work(copy), target[0], [result], [ALIGN_MOST], target[1])
    return results


def _memory(planner: Planner, shape: tuple[int, ...], dtype: np.dtype, free: list[Tensor]) -> Tensor:
    """An array, in memory of one that nobody reads any more if there is such."""
    fitting = (place for place, held in enumerate(free) if held.dtype.itemsize == dtype.itemsize)
    place = next(fitting, None)
    return planner.empty(shape, dtype) if place is None else Tensor(free.pop(place)._storage, shape, dtype)


def _emit(
    planner: Planner, registry: Registry, one: Together, results: Sequence[tuple[Tensor, int]],
    operands: Sequence[Tensor], offsets: Sequence[int],
) -> None:  # fmt: skip
    """The dispatches that make subexpressions together."""
    if len(results) == 1 and len(operands) <= map.OPERANDS and len(one.expression.words) <= map.WORDS:
        result, offset = results[0]
        emit_work(planner, registry, Work(one.expression), result, operands, offsets, offset)
    else:
        emit_several(planner, registry, one.expression, [result for result, _ in results], operands, offsets)


__all__ = ["PLANS", "Subexpressions", "emit_subexpressions", "plan"]
