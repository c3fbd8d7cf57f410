"""Users' reductions: a function of elements and the reduction of its results, in one dispatch.

The kernel is shaders/arrays/map-reduce.comp. It takes up to three arrays, each within a binding, whose axes can be
merged to two. For other arrays the function's results are stored, and then reduced as any array is.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...registry import Choice, Registry, Request
from ..device.caches import limited
from ..device.device import DeviceFacts
from ..device.plan import ALIGN_MOST, At, Layout, Live, Plan, Planner, Reduce, Walk, fits_binding
from ..device.tensor import Tensor
from ..expressions.elements import loaded, stored, width_of
from ..expressions.expression import Expression, Filling, Hole
from ..expressions.nodes import Node, element
from ..expressions.scalars import Scalar
from .axes import fewest_axes
from .map import WORDS
from .operations import code
from .promotion import BOOL, FLOAT32, FLOATING, INT64, LONG
from .reductions import NUMBERS, ReductionTerms, axes_of, emit_reduced
from .scatter import emit_scatter
from .subexpressions import PLANS, Subexpressions, emit_subexpressions

#: Reductions by the names that users give, with the name of the kernel's operation.
HOWS = {"sum": "sum", "mean": "sum", "prod": "prod", "max": "max", "min": "min", "any": "any", "all": "all"}
_ARRAYS = 3  # of a dispatch
_LETTERS = "abc"
_STATE = 16  # bytes
_TRIPS = 8192  # of an invocation's loop, at most
_LEAST, _GROUPS = 4096, 512  # a row is cut for so many workgroups, but not into parts of fewer elements
_LEAST_OF_COLUMNS, _GROUPS_OF_COLUMNS = 128, 256


class Reduced:
    """A reduction: what is computed of each element, how that is reduced, and what is made of it then.

    Equal ones are one object: a quick key.

    Attributes
    ----------
    name : str
        A value of HOWS.
    elements : Subexpressions
        What is reduced: float32 or int64.
    results : Subexpressions
        The result. Its first array is what the reduction found, its second the number of elements of a row, an int64.
    """

    __slots__ = ("name", "elements", "results", "__weakref__")

    def __init__(self, name: str, elements: Subexpressions, results: Subexpressions):
        self.name, self.elements, self.results = name, elements, results

    @classmethod
    def of(cls, name: str, elements: Subexpressions, results: Subexpressions) -> Reduced:
        """The one object of these."""
        return _reduced.setdefault((name, elements, results), cls(name, elements, results))

    @property
    def holds(self) -> np.dtype:
        """The dtype of what is reduced."""
        return self.elements.subexpressions[-1].gives

    @property
    def gives(self) -> np.dtype:
        """The dtype of the result."""
        return self.results.subexpressions[-1].gives

    @property
    def is_one(self) -> bool:
        """Whether one dispatch may do it, as far as the expressions go."""
        if len(self.elements.subexpressions) > 1 or len(self.results.subexpressions) > 1:
            return False
        return 0 < len(self.elements.subexpressions[0].arrays) <= _ARRAYS


# Subexpressions are compared by identity. A Reduced keeps its own, so that its key lasts as long as it does.
_reduced: weakref.WeakValueDictionary[tuple, Reduced] = weakref.WeakValueDictionary()


@limited(PLANS)
def plan(
    given: tuple[Reduced, Any, bool], layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry
) -> Plan:
    """The dispatches of a reduction over some axes of the shape to which the arrays broadcast."""
    own, axis, keepdims = given
    planner = Planner(facts, layouts)
    shape = np.broadcast_shapes(*(layout.shape for layout in layouts))
    views = [array.broadcast_to(shape) for array in planner.inputs]
    axes = axes_of("reduction", views[0], axis)
    order = [place for place in range(len(shape)) if place not in axes]
    kept = len(order)
    extents = tuple(1 if place in axes else extent for place, extent in enumerate(shape))
    if views[0].ndim:
        views = [view.transpose([*order, *axes]) for view in views]
    result = planner.empty(extents if keepdims else views[0].shape[:kept], own.gives)
    if result.size:
        _emit(planner, registry, own, views, [layout.offset for layout in layouts], kept, result.reshape(-1))
    return planner.plan(result)


def _emit(
    planner: Planner, registry: Registry, own: Reduced, views: Sequence[Tensor], offsets: Sequence[int], kept: int,
    result: Tensor,
) -> None:  # fmt: skip
    """Plan dispatches that reduce the views' axes from ``kept`` on. The result has one element for each row."""
    facts = planner.facts
    axis = next((axis for axis, extent in enumerate(views[0].shape[:kept]) if extent > 1), None)
    work = 8.0 * views[0].size
    if axis is not None and work > facts.work_limit:
        extent, inner = views[0].shape[axis], math.prod(views[0].shape[axis + 1 : kept])
        half = -(-extent // 2)
        for low, high in ((0, half), (half, extent)):
            parts = [view[(slice(None),) * axis + (slice(low, high),)] for view in views]
            _emit(planner, registry, own, parts, offsets, kept, result[low * inner : high * inner])
        return
    if own.is_one:
        elements, results = own.elements.subexpressions[0], own.results.subexpressions[0]
        read = [views[array] for array in elements.arrays]
        kernel = Kernel(own.name, elements.expression, results.expression, own.holds)
        if emit_kernel(planner, registry, kernel, read, kept, result):
            return
    (whole,) = emit_subexpressions(planner, registry, own.elements, views, offsets)
    terms = ReductionTerms(own.name, tuple(range(kept, whole.ndim)), False, own.holds)
    found = emit_reduced(planner, registry, terms, whole, ALIGN_MOST).reshape(-1)
    count = planner.constant(np.int64([math.prod(whole.shape[kept:])])).broadcast_to(found.shape)
    (made,) = emit_subexpressions(planner, registry, own.results, [found, count], [ALIGN_MOST] * 2)
    emit_scatter(planner, registry, made, result)


def _walk(choice: Choice, rows: int, extent: int, outer: list[list[int]], inner: list[list[int]]) -> Walk:
    tile = choice.tile
    along = sum(strides[-1] == 1 for strides in inner)
    columns = rows > 8 and sum(strides[-1] == 1 for strides in outer) > along
    if columns:
        lanes, least, groups = tile["across"], _LEAST_OF_COLUMNS, _GROUPS_OF_COLUMNS
    else:
        some, most = tile["some"], tile["lanes"]
        lanes = 1 if extent <= tile["alone"] else some if extent <= 32 * some else most
        least, groups = _LEAST, _GROUPS
    parts = max(min(-(-groups // _across(choice, rows, lanes)), extent // least), -(-extent // (4 * lanes * _TRIPS)), 1)
    part = max(-(-extent // parts), 1)
    return Walk(columns, lanes, max(-(-extent // part), 1), part)


def _across(choice: Choice, rows: int, lanes: int) -> int:
    """The number of workgroups for all rows, where none is cut."""
    return -(-rows * lanes // choice.threads)


class Kernel(NamedTuple):
    """The operation and the expressions of one dispatch.

    Attributes
    ----------
    name : str
        A value of HOWS.
    elements, results : Expression
        As in ``Reduced``.
    holds : numpy.dtype
        Of what is reduced: float32 or int64.
    """

    name: str
    elements: Expression
    results: Expression
    holds: np.dtype


def emit_kernel(
    planner: Planner, registry: Registry, kernel: Kernel, read: Sequence[Tensor], kept: int, result: Tensor,
    walk: Walk | None = None, memory: Sequence[Tensor] | None = None,
) -> bool:  # fmt: skip
    """Plan one dispatch that reduces the arrays' axes from ``kept`` on; returns False where one cannot do it.

    Parameters
    ----------
    read : sequence of Tensor
        The arrays that the elements' expression reads, of one shape.
    result : Tensor
        One element for each row, contiguous.
    walk : Walk, optional
        How workgroups go through a row, which decides the order of additions; by default what suits the shape.
    memory : sequence of Tensor, optional
        For results of parts of rows, and for the counters of their workgroups; by default the plan's own.
    """
    told = kernel.elements.words
    shape = read[0].shape if read else ()
    rows = fewest_axes(shape[:kept], [view._strides[:kept] for view in read])
    inner = fewest_axes(shape[kept:], [view._strides[kept:] for view in read])
    if not 0 < len(read) <= _ARRAYS or len(told) > WORDS or max(len(rows[0]), len(inner[0])) > 2:
        return False
    extent = math.prod(inner[0])
    if extent >= 2**31 or not all(fits_binding(planner.facts, view) for view in (*read, result)):
        return False
    choice = registry.resolve(Request("map-reduce", "float32"))
    walk = walk or _walk(choice, result.size, extent, rows[1], inner[1])
    across = _across(choice, result.size, walk.lanes)
    push: dict = {
        "rows": result.size, "inner_rows": rows[0][-1], "extent": extent, "inner_length": max(inner[0][-1], 1),
        "part_length": walk.part_length, "parts": walk.parts, "y_offset": At(result),
    }  # fmt: skip
    push |= {f"n_{place}": Live(told[place]) if place < len(told) else 0 for place in range(WORDS)}
    constants = {
        "OPERATION": NUMBERS[kernel.name], "TYPE_X": code(kernel.holds),
        "KIND": FLOATING if kernel.holds == FLOAT32 else LONG, "BITS_Y": width_of(result.dtype), "ARRAYS": len(read),
        "OUTER": len(rows[0]), "AXES": len(inner[0]), "LANES": walk.lanes, "COLUMNS": int(walk.columns),
        "TOGETHER": int(walk.parts > 1), "RUNS": int(walk.runs),
    }  # fmt: skip
    for number, name in enumerate(_LETTERS):
        there = number < len(read)
        push[f"{name}_offset"] = At(read[number] if there else None)
        for label, strides in (("_row", rows[1]), ("", inner[1])):
            found = [0, 0, *strides[number]][-2:] if there else [0, 0]
            push |= {f"{name}{label}_{place}": stride % 2**32 for place, stride in enumerate(found)}
        constants[f"BITS_{name.upper()}"] = width_of(read[number].dtype) if there else 32
    arrays: dict = {**dict(zip(_LETTERS, read, strict=False)), "y": result}
    if walk.parts > 1:
        arrays["parts"], arrays["arrived"] = memory or (
            planner.empty((result.size * walk.parts, _STATE // 4)), planner.constant(np.zeros(across, np.int32))
        )  # fmt: skip
    stripe = choice.tile["stripe"]
    groups = (min(across, stripe), walk.parts, -(-across // stripe))
    filling = Filling(registry, Hole("element", kernel.elements, _ARRAYS), Hole("result", kernel.results, 2))
    planner.dispatch(choice, constants, arrays, push, groups, 8.0 * math.prod(shape), filling=filling)
    return True


def kernel_of(operation: Reduce, dtype: np.dtype, made: Node) -> Kernel:
    """A reduction of an array of a dtype. Its elements are not stored: ``made`` computes their bits."""
    holds = FLOAT32 if operation.floats and operation.name not in ("any", "all") else INT64
    reduced = Scalar(dtype, loaded(dtype, made))
    reduced = (reduced.cast(BOOL) if operation.name in ("any", "all") else reduced).cast(holds)
    found, gives = found_of(holds, operation.mean), operation.result.dtype
    return Kernel(operation.name, Expression(stored(holds, reduced.node)),
                  Expression(stored(gives, found.cast(gives).node)), holds)  # fmt: skip


def found_of(holds: np.dtype, mean: bool) -> Scalar:
    """What the kernel found for a row; with ``mean``, divided by the number of elements."""
    held = Scalar(holds, loaded(holds, element(0)))
    return held / Scalar(INT64, loaded(INT64, element(1))).cast(FLOAT32) if mean else held


__all__ = ["HOWS", "Kernel", "Reduced", "emit_kernel", "found_of", "kernel_of", "plan"]
