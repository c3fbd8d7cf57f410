"""Reductions: sums, products, extremes, their places, any and all; means and variances.

The kernels are shaders/arrays/reduce.comp and reduce-columns.comp. Sums are float32 with what rounding lost beside
them, whatever the elements are, or 64-bit integers; the order of the additions depends on the shape alone, but for rows
beyond a binding, which are taken in chunks. What workgroups have found of parts of rows is put together by the last
of them to finish, or, of chunks and of very many parts, by a dispatch of its own. Variances need one pass: Chan, Golub
and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances". Squares beyond float32's
range are scaled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...errors import UnsupportedError
from ...registry import Choice, Registry, Request
from ..device.call import call
from ..device.device import DeviceFacts
from ..device.dtypes import dtype_of
from ..device.numbers import integer
from ..device.plan import ALIGN_MOST, At, Layout, Plan, Planner, Reduce, Walk, fits_binding
from ..device.tensor import Tensor
from ..expressions.expression import halves
from .axes import axis_of, fewest_axes
from .elementwise import binary, cast
from .map import gathered
from .operations import code
from .promotion import BOOL, FLOAT32, FLOATING, INT64, LONG, kind_of

#: Reductions as kernels number them (shaders/arrays/states.glsl).
NUMBERS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "any": 4, "all": 5, "argmax": 6, "argmin": 7, "moments": 8,
           "squares": 9}  # fmt: skip
#: A type of elements: what another dispatch has found.
STATES = 11
_STATE = 16  # bytes
_LEAST = 4096  # elements of a part of a row, or more
_LEAST_OF_COLUMNS = 128
# Workgroups, at least, where rows, or columns, can be parted; no device's own numbers, so that sums are the same.
_GROUPS, _GROUPS_OF_COLUMNS = 512, 256
_INVOCATIONS = 131072  # that are enough for any device
_TRIPS = 8192  # of an invocation at most


class ReductionTerms(NamedTuple):
    """What is asked of a reduction.

    Attributes
    ----------
    name : str
        A name of NUMBERS, or "mean", "var", "std", "norm" (the root of the sum of squares) or "rms" (that of the mean).
    axes : tuple of int
        Those that are reduced, from 0 on.
    keepdims : bool
        Whether they stay, with extent 1.
    gives : numpy.dtype
    correction : float
        What a variance's divisor is less than the number of elements.
    """

    name: str
    axes: tuple[int, ...]
    keepdims: bool
    gives: np.dtype
    correction: float = 0.0


def plan(given: tuple[ReductionTerms], layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of a reduction of some axes of an array."""
    planner = Planner(facts, layouts)
    return planner.plan(emit_reduced(planner, registry, given[0], planner.inputs[0], layouts[0].offset))


def emit_reduced(planner: Planner, registry: Registry, terms: ReductionTerms, x: Tensor, offset: int) -> Tensor:
    """Dispatches of a reduction of some axes of an array, to memory of the plan's; ``offset`` as Layout.offset."""
    order = [axis for axis in range(x.ndim) if axis not in terms.axes]
    kept = len(order)
    extents = [1 if axis in terms.axes else extent for axis, extent in enumerate(x.shape)]
    x = x.transpose([*order, *terms.axes]) if x.ndim else x
    shape = x.shape[:kept]
    count = math.prod(x.shape[kept:])
    rows = math.prod(shape)
    result = planner.empty(tuple(extents) if terms.keepdims else shape, terms.gives)
    if not rows:
        return result
    x, offset = _with_layout(planner, registry, x, offset, kept)
    divisor = -1.0
    floats = kind_of(x.dtype) == "floating" or terms.name in ("mean", "var", "std")
    name, root = terms.name, terms.name in ("std", "norm", "rms")
    if name in ("mean", "var", "std"):
        divisor, name = float(count), "sum"
    if terms.name in ("var", "std"):
        divisor, name = max(count - terms.correction, 0.0), "moments"
    if terms.name in ("norm", "rms"):
        divisor, name = float(count) if terms.name == "rms" else -1.0, "squares"
    kind = FLOATING if floats else LONG
    _reduce(planner, registry, name, kind, x, kept, offset, result.reshape(rows), divisor, root)
    return result


def emit_sums(planner: Planner, registry: Registry, x: Tensor, result: Tensor, offset: int = ALIGN_MOST) -> None:
    """Dispatches for the sums of the rows of ``(rows, extent)``, floating; ``offset`` as Layout.offset."""
    x, offset = _with_layout(planner, registry, x, offset, 1)
    _reduce(planner, registry, "sum", FLOATING, x, 1, offset, result, -1.0)


def _with_layout(planner: Planner, registry: Registry, x: Tensor, offset: int, kept: int) -> tuple[Tensor, int]:
    """The array, copied where its axes are more than the kernel takes."""
    outer, _ = fewest_axes(x.shape[:kept], [x._strides[:kept]])
    inner, _ = fewest_axes(x.shape[kept:], [x._strides[kept:]])
    if len(outer) <= 2 and len(inner) <= 2:
        return x, offset
    return gathered(planner, registry, x, offset), ALIGN_MOST


def _reduce(
    planner: Planner, registry: Registry, name: str, kind: int, x: Tensor, kept: int, offset: int, result: Tensor,
    divisor: float, root: bool = False,
) -> None:  # fmt: skip
    """Dispatches that reduce the axes of ``x`` from ``kept`` on to ``result``, one number a row."""
    facts = planner.facts
    fits = fits_binding(facts, x)
    cut = not fits_binding(facts, result) or not fits and lie_apart(x, kept)
    if not cut:
        chunks = [(x, 0)] if fits else _chunks(facts, x, kept, name)
        passes = [_first_pass(registry, name, kind, chunk, kept, offset, first) for chunk, first in chunks]
        rows, parts = result.size, sum(each.parts for each in passes)
        cut = parts > 1 and rows > 1 and rows * parts * _STATE > facts.storage_range
    if cut:
        _reduce_halves(planner, registry, name, kind, x, kept, offset, result, divisor, root)
        return
    numbers = {"TYPE_Y": code(result.dtype), "ROOT": int(root)}
    operation = None
    if len(passes) == 1 and not root:
        operation = _as_operation(name, kind, x, kept, result, divisor, passes[0])
    if parts > 1 and len(passes) == 1 and parts <= passes[0].together:
        _reduce_together(planner, passes[0], x, result, divisor, numbers, operation)
        return
    states = planner.empty((rows * parts, _STATE // 4)) if parts > 1 else None
    start = 0
    for each, (chunk, _) in zip(passes, chunks, strict=True):
        each.words.update(
            parts=parts, y_offset=At(result if states is None else states[start:]),
            divisor=divisor if states is None else -1.0,
        )  # fmt: skip
        each.constants.update(numbers, LAST=int(states is None), TOGETHER=0)
        arrays = {"x": chunk, "y": result if states is None else states}
        planner.dispatch(each.choice, each.constants, arrays, each.words, each.groups(each.parts), 8.0 * chunk.size,
                         operation=operation if states is None else None)  # fmt: skip
        start += each.parts
    if states is None:
        return
    choice = registry.resolve(Request("reduce", "float32"))
    lanes = _lanes(choice, rows, parts, alone=4)  # one alone would wait for one read after another
    last = passes[-1]._replace(choice=choice, across=-(-rows * lanes // choice.threads))
    words = last.words | {
        "inner_rows": rows, "x_offset": At(states, _STATE // 4), "row_0": 0, "row_1": parts, "extent": parts,
        "first": 0, "part_length": -(-parts // 8) * 8, "parts": 1, "inner_length": parts, "stride_0": 0, "stride_1": 1,
        "y_offset": At(result), "divisor": divisor,
    }  # fmt: skip
    constants = last.constants | {
        "TYPE_X": STATES, "EACH": 4, "RUNS": 0, "LAST": 1, "AXES": 1, "LANES": lanes
    }  # fmt: skip
    planner.dispatch(choice, constants, {"x": states, "y": result}, words, last.groups(1), 8.0 * rows * parts)


def _as_operation(
    name: str, kind: int, x: Tensor, kept: int, result: Tensor, divisor: float, each: _Pass
) -> Reduce | None:
    """The reduction as captured work may put what makes x into it; None where its sums would not be the same."""
    columns = "LANES" not in each.constants
    exact = kind != FLOATING or name in ("max", "min", "any", "all")
    if name not in ("sum", "prod", "max", "min", "any", "all") or not exact and x.dtype.itemsize < 4:
        return None
    if columns and each.parts > 1:  # whose workgroups have more rows
        return None
    lanes = each.choice.threads // each.choice.tile["near"] if columns else each.constants["LANES"]
    runs = not columns and not exact and bool(each.constants["RUNS"])
    walk = Walk(columns, lanes, each.parts, each.words["part_length"], runs)
    return Reduce(name, (x,), result, kept, kind == FLOATING, divisor >= 0, walk)


def _reduce_together(
    planner: Planner, each: _Pass, x: Tensor, result: Tensor, divisor: float, numbers: dict, operation: Reduce | None
) -> None:
    """One dispatch for rows in parts: the last workgroup of a row's makes the number."""
    words = each.words | {"parts": each.parts, "y_offset": At(result), "divisor": divisor}
    arrays = {
        "x": x, "y": result, "parts": planner.empty((result.size * each.parts, _STATE // 4)),
        "arrived": planner.constant(np.zeros(each.across, np.int32)),
    }  # fmt: skip
    constants = each.constants | numbers | {"LAST": 1, "TOGETHER": 1}
    planner.dispatch(each.choice, constants, arrays, words, each.groups(each.parts), 8.0 * x.size, operation=operation)


def _reduce_halves(
    planner: Planner, registry: Registry, name: str, kind: int, x: Tensor, kept: int, offset: int, result: Tensor,
    divisor: float, root: bool,
) -> None:  # fmt: skip
    """The same in two halves of the rows."""
    axis = next(axis for axis, extent in enumerate(x.shape[:kept]) if extent > 1)
    half = -(-x.shape[axis] // 2)
    inner = math.prod(x.shape[axis + 1 : kept])
    for low, high in ((0, half), (half, x.shape[axis])):
        some = slice(low * inner, high * inner)
        part = x[(slice(None),) * axis + (slice(low, high),)]
        _reduce(planner, registry, name, kind, part, kept, offset, result[some], divisor, root)


def lie_apart(x: Tensor, kept: int) -> bool:
    """Whether some of the rows lie in less memory than all of them."""
    outer = [stride for stride, extent in zip(x._strides[:kept], x.shape, strict=False) if extent > 1]
    inner = [stride for stride, extent in zip(x._strides[kept:], x.shape[kept:], strict=True) if extent > 1]
    return bool(outer) and max(map(abs, outer)) > max(map(abs, inner), default=0)


def _chunks(facts: DeviceFacts, x: Tensor, kept: int, name: str, first: int = 0) -> list[tuple[Tensor, int]]:
    """Parts of all rows that fit a binding, and where in their rows they begin."""
    if fits_binding(facts, x):
        return [(x, first)]
    extents, (strides,) = fewest_axes(x.shape[kept:], [x._strides[kept:]])
    if extents[0] == 1:
        raise UnsupportedError(f"{name}: rows of one element, a view of {x.nbytes:,} bytes, do not fit one binding")
    if first + math.prod(extents) > 2**32 and name in ("argmax", "argmin"):
        raise UnsupportedError(f"{name}: a row of {math.prod(extents):,} elements; places are counted to 2**32")
    x = Tensor(x._storage, (*x.shape[:kept], *extents), x.dtype, (*x._strides[:kept], *strides), x._offset)
    half = -(-extents[0] // 2)
    half = half if half < 8 else -(-half // 8) * 8
    found = []
    for some in (slice(0, half), slice(half, None)):
        part = x[(slice(None),) * kept + (some,)]
        found += _chunks(facts, part, kept, name, first + some.start * math.prod(extents[1:]))
    return found


class _Pass(NamedTuple):
    """A dispatch that reduces parts of rows.

    Attributes
    ----------
    choice : Choice
    constants, words : dict
        But for what depends on where the results go.
    parts : int
        Of each row.
    across : int
        Workgroups for all rows.
    together : int
        Parts of a row, at most, that its last workgroup puts together.
    """

    choice: Choice
    constants: dict
    words: dict
    parts: int
    across: int
    together: int

    def groups(self, parts: int) -> tuple[int, int, int]:
        stripe = self.choice.tile["stripe"]
        return min(self.across, stripe), parts, -(-self.across // stripe)


def _first_pass(registry: Registry, name: str, kind: int, x: Tensor, kept: int, offset: int, first: int) -> _Pass:
    """How the elements themselves are reduced; ``first`` is where in their rows they begin."""
    outer, (outer_strides,) = fewest_axes(x.shape[:kept], [x._strides[:kept]])
    inner, (inner_strides,) = fewest_axes(x.shape[kept:], [x._strides[kept:]])
    rows, extent = math.prod(outer), math.prod(inner)
    if extent >= 2**31:  # only a broadcast row has so many in one binding
        raise UnsupportedError(f"{name}: a row of {extent:,} elements; expected fewer than 2**31 in {x.nbytes:,} bytes")
    columns = outer[-1] > 8 and outer_strides[-1] == 1 and inner_strides[-1] != 1
    choice = registry.resolve(Request("reduce-columns" if columns else "reduce", "float32"))
    threads = choice.threads
    # Of variances by columns, which may leave float32's range, eight take more registers than there are.
    wide = x.dtype.itemsize >= 4 or columns and name == "moments" and x.dtype.kind == "V"
    each = 4 if wide else 8
    # Whether a run of `each` elements, along the rows or along a row, begins at a multiple of as many.
    aligned = [
        stride for stride, many in zip(outer_strides, outer, strict=True) if many > 1 and (stride != 1 or not columns)
    ]
    if columns:
        aligned += [outer[-1], *(stride for stride, many in zip(inner_strides, inner, strict=True) if many > 1)]
    # Bytes are read from anywhere; but no run of neighbouring rows goes on in the next ones.
    runs = x.dtype.itemsize == 1 or not any(n % each for n in (*aligned, math.gcd(offset, x._offset)))
    runs &= outer[-1] % each == 0 if columns else len(inner) == 1 and inner_strides[0] == 1
    if columns:
        each = each if runs else 1
        lanes, across = threads // choice.tile["near"], -(-rows // (choice.tile["near"] * each))
        trip, least, groups = choice.tile["few"] * lanes, _LEAST_OF_COLUMNS, _GROUPS_OF_COLUMNS
    else:
        lanes = _lanes(choice, rows, extent)
        across, trip, least, groups = -(-rows * lanes // threads), each * lanes, _LEAST, _GROUPS
    parts = max(min(-(-groups // across), extent // least), -(-extent // (trip * _TRIPS)), 1)
    part = -(-extent // parts // 8) * 8
    parts = max(-(-extent // part), 1) if part else 1
    words = {
        "rows": rows, "inner_rows": outer[-1], "x_offset": At(x),
        "row_0": outer_strides[0] if len(outer) > 1 else 0, "row_1": outer_strides[-1],
        "extent": extent, "first": first, "part_length": part, "inner_length": max(inner[-1], 1),
        "stride_0": inner_strides[0] if len(inner) > 1 else 0, "stride_1": inner_strides[-1],
    }  # fmt: skip
    constants = {
        "OPERATION": NUMBERS[name], "TYPE_X": code(x.dtype), "KIND": kind, "EACH": each, "HALVES": halves(registry),
        "RUNS": int(runs), "AXES": len(inner),
    } | ({} if columns else {"LANES": lanes})  # fmt: skip
    return _Pass(choice, constants, words, parts, across, choice.tile["together"])


def _lanes(choice: Choice, rows: int, extent: int, alone: int | None = None) -> int:
    """How many invocations a row gets: one of three numbers, as each is a pipeline of its own.

    Rows of up to ``alone`` elements get one; by default as the tile says.
    """
    if extent <= (choice.tile["alone"] if alone is None else alone):
        return 1
    some, most = choice.tile["some"], choice.tile["lanes"]
    return some if extent <= 32 * some or extent <= 512 * some and rows * some >= _INVOCATIONS else most


def in_words(tensor: Tensor) -> At:
    """Where a tensor of the plan's own begins, in 32-bit words; inputs move by elements."""
    if tensor.dtype.itemsize == 4:
        return At(tensor)
    return At(Tensor(tensor._storage, tensor.shape, np.dtype(np.uint32), tensor._strides, 2 * tensor._offset))


def axes_of(name: str, x: Tensor, axis) -> tuple[int, ...]:
    """An axis, several or None for all, as numbers from 0 on. Raises ValueError for what x has not, or has twice."""
    if axis is None:
        return tuple(range(x.ndim))
    asked = axis if isinstance(axis, tuple) else (axis,)
    found = tuple(axis_of(name, one, x.ndim) for one in asked)
    if len(set(found)) < len(found):
        raise ValueError(f"{name}: axis {asked} names one twice")
    return found


def reduced(name: str, x: Tensor, axis, keepdims: bool, gives: np.dtype, correction: float = 0.0) -> Tensor:
    """The reduction ``name`` (see Terms) of the axes, as a new tensor."""
    if axis is None:
        axes = tuple(range(x.ndim))
    elif axis.__class__ is int:
        axes = (axis + x.ndim if axis < 0 else axis,)
    else:
        axes = axes_of(name, x, axis)

    def check(x: Tensor) -> None:
        axes_of(name, x, axis)
        if name in ("max", "min", "argmax", "argmin") and not all(x.shape[a] for a in axes):
            raise ValueError(f"{name}: of no elements (shape {x.shape}) there is none")

    return call(x._storage.device, plan, (ReductionTerms(name, axes, bool(keepdims), gives, correction),), (x,), check)[
        0
    ]


def sum_dtype(name: str, x: Tensor, dtype) -> np.dtype:
    """The dtype of a sum or product: as asked, else x's where that is floating, else int64. Raises TypeError."""
    if dtype is not None:
        found = dtype_of(dtype)
        if kind_of(x.dtype) == "floating" and kind_of(found) != "floating":
            raise TypeError(f"{name}: x is {x.dtype.name} and dtype {found.name}; cast x first")
        return found
    return x.dtype if kind_of(x.dtype) == "floating" else INT64


def sum_of(name: str, x: Tensor, axis=None, dtype=None, keepdims: bool = False) -> Tensor:
    """``name``, "sum" or "prod", of x over axes: in x's dtype where that is floating, else int64, or as ``dtype``."""
    gives = sum_dtype(name, x, dtype)
    if kind_of(gives) == "floating" and kind_of(x.dtype) != "floating":
        x = cast(x, FLOAT32)
    return reduced(name, x, axis, keepdims, gives)


def moment(name: str, x: Tensor, axis=None, keepdims: bool = False, correction: float = 0.0) -> Tensor:
    """``name``, "mean", "var" or "std", of x over axes, in x's dtype where that is floating, else float32."""
    if kind_of(x.dtype) == "floating":
        return reduced(name, x, axis, keepdims, x.dtype, float(correction))
    if x.dtype.itemsize >= 4 and x.size:  # float32 does not hold all of these
        axes = axes_of(name, x, axis)
        if name != "mean":  # which what is taken from all does not change
            first = x._selected(tuple(slice(0, 1) if n in axes else slice(None) for n in range(x.ndim)))
            x = _apart(x, first) if x.dtype == INT64 else binary("subtract", cast(x, INT64), cast(first, INT64))
        elif x.dtype != INT64:  # whose sums int64 may not hold
            count = math.prod(x.shape[n] for n in axes)
            return binary("divide", sum_of("sum", x, axis, None, keepdims), count)
    return reduced(name, x, axis, keepdims, FLOAT32, float(correction))


def _apart(x: Tensor, first: Tensor) -> Tensor:
    """How far int64 elements are from others, float32: halves and last bits apart, as int64 may not hold the whole."""
    halves, bits = (
        binary("subtract", binary(name, x, 1), binary(name, first, 1))
        for name in ("bitwise_right_shift", "bitwise_and")
    )
    return binary("add", binary("multiply", cast(halves, FLOAT32), 2.0), cast(bits, FLOAT32))


def norm(name: str, x: Tensor, axis=None, keepdims: bool = False) -> Tensor:
    """``name``, "norm" or "rms": the root of the sum or the mean of squares over axes, of floating x, in its dtype."""
    return reduced(name, x, axis, keepdims, x.dtype)


def extreme(name: str, x: Tensor, axis=None, keepdims: bool = False) -> Tensor:
    """``name``, "max" or "min", of x over axes; NaN where there is one. Raises ValueError for no elements."""
    return reduced(name, x, axis, keepdims, x.dtype)


def truth(name: str, x: Tensor, axis=None, keepdims: bool = False) -> Tensor:
    """``name``, "any" or "all", of x over axes, bool."""
    return reduced(name, x, axis, keepdims, BOOL)


def place(name: str, x: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """``name``, "argmax" or "argmin": the first place of the extreme, or of NaN, along an axis or in C order; int64."""
    if axis is None:
        found = reduced(name, x.reshape(-1), 0, False, INT64)
        return found.reshape((1,) * x.ndim) if keepdims else found
    return reduced(name, x, integer(name, "axis", axis), keepdims, INT64)
