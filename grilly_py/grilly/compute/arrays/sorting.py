"""Sorted arrays, the order of elements, the largest few, and where numbers would go: shaders/arrays/sort.comp."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...errors import UnsupportedError
from ...registry import Registry, Request
from ..device.call import call, run
from ..device.device import DeviceFacts
from ..device.numbers import integer
from ..device.plan import ALIGN_MOST, At, Layout, Plan, Planner, fits_binding
from ..device.tensor import Tensor
from .axes import axis_of, fewest_axes, moved, two_parts
from .elementwise import binary, cast
from .map import Gather, emit, gathered
from .operations import code, spec
from .promotion import FLOAT32, FLOATING, INT32, INT64, LONG, kind_of, promoted
from .reductions import NUMBERS, STATES, in_words
from .shapes import concat
from .take import take, take_along_axis

#: What a dispatch does, and what it writes, as the kernel numbers them.
BLOCKS, MERGED, SEARCH = range(3)
RECORDS, INT32_PLACES, INT64_PLACES = range(3)
_SIZES = (16, 128)  # blocks of short rows, of which a workgroup has several
_FEW = 256  # elements that are to be kept, up to which blocks of what was kept are sorted anew, not merged


class SortTerms(NamedTuple):
    """What is asked of a sort: the largest first, how many of a row, and whether values and places are wanted."""

    descending: bool
    keep: int
    values: bool
    places: bool


def plan(given: tuple[SortTerms, int], layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of a sort along an axis: values, places or both, with ``keep`` elements there."""
    terms, axis = given
    planner = Planner(facts, layouts)
    (x,) = planner.inputs
    x = moved(x, (axis,), (x.ndim - 1,))
    shape = (*x.shape[:-1], terms.keep)
    places = planner.empty(shape, INT64 if terms.places else INT32)
    values = planner.empty(shape, x.dtype) if terms.values else None
    if places.size:
        offset = layouts[0].offset
        interleaved = x._strides[-1] != 1 and not fits_binding(facts, x)
        if interleaved or len(fewest_axes(x.shape[:-1], [x._strides[:-1]])[0]) > 3:
            x, offset = gathered(planner, registry, x, offset), ALIGN_MOST
        _order(planner, registry, terms, x, places)
        if values is not None:
            chosen = Gather(spec("copy", x.dtype), x._strides[-1], x.shape[-1])
            rows = x._view(shape, (*x._strides[:-1], 0))
            emit(planner, registry, chosen, values, [rows, places], [offset, 16])
    found = (one for one in (values, places if terms.places else None) if one is not None)
    return planner.plan(*(moved(one, (x.ndim - 1,), (axis,)) for one in found))


def _order(planner: Planner, registry: Registry, terms: SortTerms, x: Tensor, places: Tensor) -> None:
    """Dispatches that write the places of the elements of rows in their order."""
    facts = planner.facts
    choice = registry.resolve(Request("sort", "float32"))
    block = choice.tile["block"]
    shape, extent = x.shape[:-1], x.shape[-1]
    rows = math.prod(shape)
    kind = FLOATING if kind_of(x.dtype) == "floating" else LONG
    words = 2 if kind == FLOATING else 3
    keep = terms.keep
    # Records of a row in memory; blocks of which only a few are kept leave no others.
    many = 0 if extent <= block else -(-extent // block) * keep if keep <= _FEW else extent
    fits = rows * many * words * 4 <= facts.storage_range and rows * max(extent, many * words) < 2**31
    if not (fits and fits_binding(facts, x) and fits_binding(facts, places)):
        axis = next((axis for axis, many in enumerate(shape) if many > 1), None)
        if axis is None:
            raise UnsupportedError(
                f"sort: a row of {extent:,} elements, of each {4 * words} bytes or those of an int64 place, does not "
                f"fit bindings of {facts.storage_range:,} bytes"
            )
        for index in two_parts(axis, -(-shape[axis] // 2)):
            _order(planner, registry, terms, x[index], places[index])
        return
    outer, (strides,) = fewest_axes(shape, [x._strides[:-1]])
    outer, strides = [1] * (3 - len(outer)) + outer, [0] * (3 - len(strides)) + strides
    spare = []  # two arrays of records, which take turns

    def dispatch(mode, source, many, size, blocks, keep, kept, last):
        if last:
            target, puts = places, INT64_PLACES if terms.places else INT32_PLACES
        else:
            if len(spare) < 2:
                target = planner.empty((rows * kept * words,), FLOAT32)
            else:
                target = spare.pop(0)
            spare.append(target)
            puts = RECORDS
        push = {
            "rows": rows, "rows_1": outer[1], "rows_2": outer[2], "x_offset": At(source), "row_0": strides[0],
            "row_1": strides[1], "row_2": strides[2], "extent": many, "stride": x._strides[-1], "blocks": blocks,
            "keep": keep,
            "kept": kept, "values_offset": 0, "y_offset": in_words(target),
        }  # fmt: skip
        constants = {
            "OPERATION": NUMBERS["argmax"], "TYPE_X": code(x.dtype) if source is x else STATES, "KIND": kind,
            "MODE": mode, "LENGTH": size, "DESCENDING": int(terms.descending), "PUTS": puts,
        }  # fmt: skip
        if mode == BLOCKS:
            groups = choice.workgroups(rows * blocks * size, block)
        else:
            groups = choice.workgroups(rows * many)
        planner.dispatch(choice, constants, {"x": source, "y": target}, push, groups, 32.0 * rows * many)
        return target

    if extent <= block:
        size = next((size for size in _SIZES if size >= extent), block)
        dispatch(BLOCKS, x, extent, size, 1, keep, keep, True)
    elif keep <= _FEW:
        source, many = x, extent
        while many > block:
            blocks = -(-many // block)
            kept = (blocks - 1) * keep + min(keep, many - (blocks - 1) * block)
            source, many = dispatch(BLOCKS, source, many, block, blocks, keep, kept, False), kept
        dispatch(BLOCKS, source, many, block, 1, keep, keep, True)
    else:
        source, length = dispatch(BLOCKS, x, extent, block, -(-extent // block), block, extent, False), block
        while length < extent:
            last = 2 * length >= extent
            most = keep if last else extent
            source, length = dispatch(MERGED, source, extent, block, length, most, most, last), 2 * length


def _sorted(x: Tensor, axis: int, terms: SortTerms) -> list[Tensor]:
    return call(x._storage.device, plan, (terms, axis), (x,))


def sort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """The elements in order along an axis; NaN is larger than all numbers. Raises ValueError for x without the axis."""
    axis = axis_of("sort", axis, x.ndim)
    return _sorted(x, axis, SortTerms(bool(descending), x.shape[axis], True, False))[0]


def argsort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """The places, int64, of the elements in order along an axis; equal ones in the order in which they stand."""
    axis = axis_of("argsort", axis, x.ndim)
    return _sorted(x, axis, SortTerms(bool(descending), x.shape[axis], False, True))[0]


def topk(x: Tensor, k: int, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The ``k`` largest (or smallest) elements along an axis in order, and their places, int64.

    Raises ValueError where the axis has fewer.
    """
    axis = axis_of("topk", axis, x.ndim)
    k = integer("topk", "k", k)
    if not 0 <= k <= x.shape[axis]:
        raise ValueError(f"topk: k is {k}; axis {axis} has {x.shape[axis]} elements")
    terms = SortTerms(bool(largest), k, True, True)
    facts, row = x._storage.device.facts, x._view((x.shape[axis],), (1,))
    if k > _FEW or fits_binding(facts, row):
        values, places = _sorted(x, axis, terms)
        return values, places
    # A row beyond a binding: the largest of the largest of its chunks, which stand in the order of the chunks.
    rows, found = moved(x, (axis,), (x.ndim - 1,)), []
    for begin, end in _fitting(facts, row):
        values, places = topk(rows._selected((..., slice(begin, end))), min(k, end - begin), -1, largest)
        found.append((values, binary("add", places, begin)))
    values, which = topk(concat([values for values, _ in found], -1), k, -1, largest)
    places = take_along_axis(concat([places for _, places in found], -1), which, -1)
    return tuple(moved(one, (x.ndim - 1,), (axis,)) for one in (values, places))


def searchsorted(x: Tensor, values: Tensor, side: str = "left", sorter: Tensor | None = None) -> Tensor:
    """How many elements of a sorted array are below each value (``side`` "left"), or not above it ("right"); int64.

    Parameters
    ----------
    x : Tensor
        One axis, in ascending order, or so by ``sorter``.
    values : Tensor
    sorter : Tensor, optional
        Places, as ``argsort`` gives them.

    Raises
    ------
    ValueError
        For x of other than one axis, another side, and tensors of different backends.
    """
    if x.ndim != 1:
        raise ValueError(f"searchsorted: x1 has {x.ndim} axes; expected one")
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side is {side!r}; expected 'left' or 'right'")
    if x._storage.device is not values._storage.device:
        raise ValueError("searchsorted: the tensors belong to different backends; move one with .tensor(...)")
    dtype = promoted(x.dtype, values.dtype)
    if sorter is not None:
        x = take(x, sorter)
    wide = FLOAT32 if kind_of(dtype) == "floating" else INT64
    device = x._storage.device
    own, sought = cast(x, dtype), cast(cast(values, dtype), wide).contiguous()
    found = None
    for begin, end in _fitting(device.facts, own):  # how many of all are below is how many of each chunk are
        (some,) = run(device, _search, (side == "right",), (own._selected(slice(begin, end)), sought))
        found = some if found is None else binary("add", found, some)
    device.runtime.flush()
    return found


def _fitting(facts: DeviceFacts, x: Tensor, parts: int = 1) -> list[tuple[int, int]]:
    """Ranges of the last axis whose views fit a binding, of equal lengths but for the last."""
    many = max(-(-x.shape[-1] // parts), 1)
    if many > 1 and not fits_binding(facts, x._selected((..., slice(0, many)))):
        return _fitting(facts, x, 2 * parts)
    return [(begin, min(begin + many, x.shape[-1])) for begin in range(0, max(x.shape[-1], 1), many)]


def _search(given: tuple[bool], layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``searchsorted`` in a row that fits a binding."""
    planner = Planner(facts, layouts)
    x, sought = planner.inputs
    found = planner.empty(sought.shape, INT64)
    choice = registry.resolve(Request("sort", "float32"))
    for begin, end in _fitting(facts, found.reshape(found.size)) if found.size else ():
        values, result = sought.reshape(found.size)[begin:end], found.reshape(found.size)[begin:end]
        push = {
            "rows": values.size, "rows_1": 1, "rows_2": 1, "x_offset": At(x), "row_0": 0, "row_1": 0, "row_2": 0,
            "extent": x.size, "stride": x._strides[0], "blocks": 1, "keep": 1, "kept": 1,
            "values_offset": At(values), "y_offset": in_words(result),
        }  # fmt: skip
        constants = {
            "OPERATION": NUMBERS["argmax"], "TYPE_X": code(x.dtype),
            "KIND": FLOATING if values.dtype == np.float32 else LONG, "MODE": SEARCH, "LENGTH": choice.tile["block"],
            "DESCENDING": int(given[0]), "PUTS": INT64_PLACES,
        }  # fmt: skip
        groups = choice.workgroups(values.size)
        planner.dispatch(choice, constants, {"x": x, "values": values, "y": result}, push, groups, 32.0 * values.size)
    return planner.plan(found)
