"""Running sums and products: shaders/arrays/scan.comp.

Sums are float32 with what rounding lost beside them, whatever the elements are, or 64-bit integers. Rows beyond a
binding are taken in chunks; what one has found is rounded before the next goes on from it.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from ...errors import UnsupportedError
from ...registry import Registry, Request
from ...registry.shared import names_of
from ..device.call import call
from ..device.device import DeviceFacts
from ..device.plan import ALIGN_MOST, At, Layout, Live, Plan, Planner, fits_binding
from ..device.tensor import Tensor
from ..expressions.elements import width_of
from ..expressions.expression import Expression, Filling, Hole, halves
from .axes import axis_of, fewest_axes, moved, two_parts
from .elementwise import cast
from .map import emit, gathered
from .operations import code, spec
from .promotion import FLOAT32, FLOATING, INT64, LONG, kind_of
from .reductions import NUMBERS, in_words, lie_apart, sum_dtype

_EACH = 4  # elements of an invocation in a turn, at least
_OUTER_AXES = 3
_OPERANDS = "xrp"  # of expressions (shaders/arrays/scan-holes.glsl)
_TOLD = tuple(range(4))


class Scan(NamedTuple):
    """A scan of a plan, in one dispatch.

    Attributes
    ----------
    name : str
        "sum" or "prod".
    arrays : tuple of Tensor
        The one that is scanned, over the plan's slots: the rows' axes, and that of their elements.
    result : Tensor
        Contiguous, of the same shape.
    constants : dict
        Those that decide the order of additions.
    """

    name: str
    arrays: tuple[Tensor]
    result: Tensor
    constants: dict[str, int]


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
    operation = None if before else Scan(name, (x,), numbers, constants)
    _scan(planner, registry, constants, rows, numbers.reshape((*outer, result.shape[-1])), before, operation)
    if numbers is not result:
        emit(planner, registry, spec("copy", found, gives), result, [numbers], [16])
    return planner.plan(back)


def _most(facts: DeviceFacts, registry: Registry) -> float:
    """The elements of a row that one dispatch takes at most."""
    threads = registry.resolve(Request("scan", "float32")).threads
    # A turn's own loop lengthens its reach up to the invocations; drivers that count trips count those of all loops.
    return facts.loop_trips / (threads.bit_length() + 1) * _EACH * threads


def _scan(
    planner: Planner, registry: Registry, constants: dict, x: Tensor, y: Tensor, before: int,
    operation: Scan | None = None,
) -> None:  # fmt: skip
    """Dispatches for rows over at most three axes; those of y have ``before`` (0 or 1) elements more.

    One alone is the operation.
    """
    facts = planner.facts
    choice = registry.resolve(Request("scan", "float32"))
    most = _most(facts, registry)
    if x.shape[-1] <= most and fits_binding(facts, x) and fits_binding(facts, y):
        _dispatch(planner, choice, constants, x, y, before, 0, operation)
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


def _dispatch(
    planner: Planner, choice, constants: dict, x: Tensor, y: Tensor, before: int, carried: int,
    operation: Scan | None = None,
) -> None:  # fmt: skip
    outer, strides = x.shape[:-1], x._strides[:-1]
    outer, strides = (1,) * (_OUTER_AXES - len(outer)) + outer, (0,) * (_OUTER_AXES - len(strides)) + strides
    rows = math.prod(outer)
    words = {
        "rows": rows, "rows_1": outer[1], "rows_2": outer[2], "x_offset": At(x), "row_0": strides[0],
        "row_1": strides[1],
        "row_2": strides[2], "extent": x.shape[-1], "stride": x._strides[-1],
        "y_offset": At(y) if constants["RUNS"] else in_words(y), "before": before,
        "carried": carried,
    }  # fmt: skip
    planner.dispatch(choice, constants, {"x": x, "y": y}, words, choice.workgroups(rows, 1), 16.0 * x.size,
                     operation=operation)  # fmt: skip


def emit_between(
    planner: Planner, registry: Registry, scan: Scan, arrays: Mapping[str, Tensor], aligned: Container[str],
    before: Expression, behind: Expression,
) -> None:  # fmt: skip
    """Plan one dispatch of a scan between two expressions, whose sums are added up in the order of the scan alone.

    Parameters
    ----------
    scan : Scan
        As it was planned.
    arrays : mapping
        Of the scan's shape: "x", "r" and "p", as far as there are so many, which the expressions read; and "y".
    aligned : container of str
        Those whose offset is a multiple of eight elements.
    before, behind : Expression
        What is scanned, of the elements of x, r and p; what is written, of the scan's result and these elements. Both
        have the same words.

    Raises
    ------
    UnsupportedError
        Where the kernel does not take the arrays.
    """
    y, read = arrays["y"], [arrays.get(name) for name in _OPERANDS]
    views = [array for array in read if array is not None]
    extents, strides = fewest_axes(y.shape[:-1], [view._strides[:-1] for view in views])
    if len(extents) > _OUTER_AXES or not all(fits_binding(planner.facts, view) for view in (*views, y)):
        raise UnsupportedError("arrays that the kernel does not take")
    spare, length, each = [0] * (_OUTER_AXES - len(extents)), y.shape[-1], scan.constants["EACH"]
    shown = iter(strides)
    outer = {name: [0] * _OUTER_AXES if array is None else [*spare, *next(shown)]
             for name, array in zip(_OPERANDS, read, strict=True)}  # fmt: skip
    rows = [*(1 for _ in spare), *extents]
    told = {*before.words, *behind.words}
    push: dict = {"rows": math.prod(rows), "rows_1": rows[1], "rows_2": rows[2], "extent": length, "before": 0,
                  "carried": 0, "y_offset": At(y)}  # fmt: skip
    push |= {f"n_{number}": Live(number) if number in told else 0 for number in _TOLD}
    constants = {name: value for name, value in scan.constants.items() if name != "RUNS"}
    constants |= {"BITS_Y": width_of(y.dtype), "WHOLE": int(_in_runs(y, each, "y" in aligned, [length]))}
    forms = names_of("forms")
    for name, array in zip(_OPERANDS, read, strict=True):
        push[f"{name}_offset"] = At(array)
        push |= {f"{'row' if name == 'x' else name}_{axis}": step % 2**32 for axis, step in enumerate(outer[name])}
        push["stride" if name == "x" else f"{name}_stride"] = 0 if array is None else array._strides[-1] % 2**32
        runs = array is not None and _in_runs(array, each, name in aligned, [length, *outer[name]])
        form = "absent" if array is None else "runs" if runs else "strided"
        constants |= {f"FORM_{name.upper()}": forms[form],
                      f"BITS_{name.upper()}": 32 if array is None else width_of(array.dtype)}  # fmt: skip
    choice = registry.resolve(Request("scan-holes", "float32"))
    filling = Filling(registry, Hole("before", before, 3, _TOLD), Hole("behind", behind, 4, _TOLD))
    planner.dispatch(choice, constants, dict(arrays), push, choice.workgroups(push["rows"], 1), 16.0 * y.size,
                     filling=filling)  # fmt: skip


def _in_runs(array: Tensor, each: int, aligned: bool, steps: Sequence[int]) -> bool:
    """Whether rows are read, or written, in runs of so many elements, which begin at multiples of as many."""
    there = array._strides[-1] == 1 and aligned and (array.dtype.itemsize < 8 or each == _EACH)
    return there and not any(step % each for step in (array._offset, *steps))


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
