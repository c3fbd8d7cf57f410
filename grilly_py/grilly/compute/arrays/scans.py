"""Running sums and products: shaders/arrays/scan.comp.

Sums are float32 with what rounding lost beside them, whatever the elements are, or 64-bit integers. Rows beyond a
binding are taken in chunks; what one has found is rounded before the next goes on from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...registry import Registry, Request
from ..device.call import call
from ..device.device import DeviceFacts
from ..device.plan import ALIGN_MOST, At, Layout, Plan, Planner, fits_binding
from ..device.tensor import Tensor
from ..expressions.expression import halves
from .axes import axis_of, fewest_axes, moved, two_parts
from .elementwise import cast
from .map import emit, gathered
from .operations import code, spec
from .promotion import FLOAT32, FLOATING, INT64, LONG, kind_of
from .reductions import NUMBERS, in_words, lie_apart, sum_dtype

_EACH = 4  # elements of an invocation in a turn, at least


def plan(given: tuple, layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of running sums or products along an axis; ``given`` is (name, axis, dtype, before)."""
    name, axis, gives, before = given
    planner = Planner(facts, layouts)
    (x,) = planner.inputs
    x = moved(x, (axis,), (x.ndim - 1,))
    result = planner.empty((*x.shape[:-1], x.shape[-1] + before), gives)
    back = moved(result, (x.ndim - 1,), (axis,))
    if not result.size:
        return planner.plan(back)
    outer, (strides,) = fewest_axes(x.shape[:-1], [x._strides[:-1]])
    interleaved = math.prod(outer) > 1 and not lie_apart(x, x.ndim - 1)
    offset = layouts[0].offset
    if len(outer) > 3 or interleaved and not fits_binding(facts, x):
        x, outer, strides = gathered(planner, registry, x, offset), [math.prod(x.shape[:-1])], [x.shape[-1]]
        offset = ALIGN_MOST
    floats = kind_of(gives) == "floating"
    found = FLOAT32 if floats else INT64
    rows = x._view((*outer, x.shape[-1]), (*strides, x._strides[-1]))
    each = 4 if x.dtype.itemsize >= 4 else 8
    aligned = (*strides, x.shape[-1], offset, x._offset)
    runs = floats and not before and x._strides[-1] == 1 and not any(n % each for n in aligned)
    runs = runs and x.shape[-1] <= _most(planner.facts, registry)
    runs = runs and all(fits_binding(planner.facts, t) for t in (x, result))
    # Rounded numbers leave a run at a time; else they are float32 or int64 first.
    numbers = result if gives == found or runs and each == 8 else planner.empty(result.shape, found)
    constants = {
        "OPERATION": NUMBERS[name], "TYPE_X": code(x.dtype), "KIND": FLOATING if floats else LONG, "EACH": each,
        "HALVES": halves(registry), "RUNS": int(runs), "TYPE_Y": code(numbers.dtype),
    }  # fmt: skip
    _scan(planner, registry, constants, rows, numbers.reshape((*outer, result.shape[-1])), before)
    if numbers is not result:
        emit(planner, registry, spec("copy", found, gives), result, [numbers], [16])
    return planner.plan(back)


def _most(facts: DeviceFacts, registry: Registry) -> float:
    """The elements of a row that one dispatch takes at most."""
    threads = registry.resolve(Request("scan", "float32")).threads
    # A turn's own loop lengthens its reach up to the invocations; drivers that count trips count those of all loops.
    return facts.loop_trips / (threads.bit_length() + 1) * _EACH * threads


def _scan(planner: Planner, registry: Registry, constants: dict, x: Tensor, y: Tensor, before: int) -> None:
    """Dispatches for rows over at most three axes; those of y have ``before`` (0 or 1) elements more."""
    facts = planner.facts
    choice = registry.resolve(Request("scan", "float32"))
    most = _most(facts, registry)
    if x.shape[-1] <= most and fits_binding(facts, x) and fits_binding(facts, y):
        _dispatch(planner, choice, constants, x, y, before, 0)
        return
    axis = next((axis for axis, extent in enumerate(x.shape[:-1]) if extent > 1), None)
    if axis is not None:
        for index in two_parts(axis, -(-x.shape[axis] // 2)):
            _scan(planner, registry, constants, x[index], y[index], before)
        return
    end, extent = 0, x.shape[-1]
    while end < extent:
        begin, many = end, int(min(extent - end, most))
        first = begin + before - 1 if begin else 0  # of y: the last sum that there is already
        while True:
            end = begin + many
            own, found = x[..., begin:end], y[..., first : end + before]
            if many == 1 or fits_binding(facts, own) and fits_binding(facts, found):
                break
            many = -(-many // 2)
        _dispatch(planner, choice, constants, own, found, 0 if begin else before, int(begin > 0))


def _dispatch(planner: Planner, choice, constants: dict, x: Tensor, y: Tensor, before: int, carried: int) -> None:
    outer, strides = x.shape[:-1], x._strides[:-1]
    outer, strides = (1,) * (3 - len(outer)) + outer, (0,) * (3 - len(strides)) + strides
    rows = math.prod(outer)
    words = {
        "rows": rows, "rows_1": outer[1], "rows_2": outer[2], "x_offset": At(x), "row_0": strides[0],
        "row_1": strides[1],
        "row_2": strides[2], "extent": x.shape[-1], "stride": x._strides[-1],
        "y_offset": At(y) if constants["RUNS"] else in_words(y), "before": before,
        "carried": carried,
    }  # fmt: skip
    planner.dispatch(choice, constants, {"x": x, "y": y}, words, choice.workgroups(rows, 1), 16.0 * x.size)


def running(name: str, x: Tensor, axis: int | None = None, dtype=None, include_initial: bool = False) -> Tensor:
    """Running sums (``name`` "sum") or products ("prod") along an axis, which may be left out where there is one."""
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"cumulative_{name}: x has {x.ndim} axes; name one")
        axis = 0
    axis = axis_of(f"cumulative_{name}", axis, x.ndim)
    gives = sum_dtype(f"cumulative_{name}", x, dtype)
    if kind_of(gives) == "floating" and kind_of(x.dtype) != "floating":
        x = cast(x, FLOAT32)
    return call(x._storage.device, plan, (name, axis, gives, bool(include_initial)), (x,))[0]
