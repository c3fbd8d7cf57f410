"""Arrays put together and laid out anew: concat, stack, flip, roll, repeat, tile, tril, triu and their relatives."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...registry import Registry
from ..device.call import call
from ..device.device import DeviceFacts
from ..device.numbers import extents, integer
from ..device.plan import ALIGN_MOST, Layout, Plan, Planner
from ..device.tensor import Tensor
from .axes import axis_of
from .elementwise import cast
from .map import emit, gathered, words
from .operations import Spec, spec
from .promotion import INT32, promoted
from .scatter import emit_scatter


def flip(x: Tensor, axes: Sequence[int]) -> Tensor:
    """A copy of x with axes, each from 0 on, in reverse order."""
    axes = tuple(axis for axis in axes if x.shape[axis] > 1)
    if not x.size or not axes:
        return cast(x, x.dtype, copy=True)
    return call(x._storage.device, _flip, (axes,), (x,))[0]


def _flip(given: tuple, layouts: Sequence[Layout], facts: DeviceFacts, registry) -> Plan:
    """The dispatches of ``flip``: a copy of a view whose strides run back."""
    planner = Planner(facts, layouts)
    (x,) = planner.inputs
    result = planner.empty(x.shape, x.dtype)
    strides, begin = list(x._strides), x._offset
    for axis in given[0]:
        begin += (x.shape[axis] - 1) * strides[axis]
        strides[axis] = -strides[axis]
    copied = spec("copy", x.dtype)
    emit(planner, registry, copied, result, [x._view(x.shape, strides, begin)], [1])
    return planner.plan(result)


def concat(arrays: Sequence[Tensor], axis: int | None = 0) -> Tensor:
    """Tensors one after the other along an axis (None: all flat), in the dtype that they promote to.

    Raises
    ------
    ValueError
        For no tensors, shapes that differ beyond the axis, and tensors of different backends.
    """
    arrays = list(arrays)
    if not arrays:
        raise ValueError("concat: there are no arrays")
    if axis is None:
        arrays, axis = [x.reshape(-1) for x in arrays], 0
    first = arrays[0]
    if not first.ndim:
        raise ValueError("concat: arrays without axes; use stack")
    axis = axis_of("concat", axis, first.ndim)
    for x in arrays[1:]:
        if x.ndim != first.ndim:
            raise ValueError(f"concat: shapes {first.shape} and {x.shape} have unlike numbers of axes")
        if x.shape[:axis] != first.shape[:axis] or x.shape[axis + 1 :] != first.shape[axis + 1 :]:
            raise ValueError(f"concat: shapes {first.shape} and {x.shape} differ beyond axis {axis}")
    return _joined(arrays, axis, False)


def _joined(arrays: list[Tensor], axis: int, new: bool) -> Tensor:
    """Arrays one after the other along an axis, or along a new one, in the dtype that they promote to."""

    def of_one_dtype(*tensors: Tensor) -> list[Tensor]:
        dtype = tensors[0].dtype
        for x in tensors[1:]:
            dtype = promoted(dtype, x.dtype)
        return [cast(x, dtype) for x in tensors]

    return call(arrays[0]._storage.device, _concat, (axis, new), arrays, of_one_dtype)[0]


def _concat(given: tuple[int, bool], layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``_joined`` of arrays of one dtype."""
    axis, new = given
    planner = Planner(facts, layouts)
    arrays = [expand_dims(x, axis) for x in planner.inputs] if new else planner.inputs
    return planner.plan(_emit_joined(planner, registry, arrays, [layout.offset for layout in layouts], axis))


def _emit_joined(
    planner: Planner, registry: Registry, arrays: Sequence[Tensor], offsets: Sequence[int], axis: int
) -> Tensor:
    """Dispatches that write arrays of one dtype one after the other along an axis; offsets as ``emit`` takes them."""
    shape = list(arrays[0].shape)
    shape[axis] = sum(x.shape[axis] for x in arrays)
    result, begin = planner.empty(tuple(shape), arrays[0].dtype), 0
    for x, offset in zip(arrays, offsets, strict=True):
        part = result[(slice(None),) * axis + (slice(begin, begin + x.shape[axis]),)]
        begin += x.shape[axis]
        if not x.size:
            continue
        each = max(4 // x.dtype.itemsize, 1)
        if part.is_contiguous and part._offset % 4 == 0 and part.size % each == 0:  # whole words, at memory's speed
            emit(planner, registry, spec("copy", x.dtype), part, [x], [offset], math.gcd(ALIGN_MOST, part._offset))
        else:
            emit_scatter(planner, registry, x, part, offsets=(offset, 0))
    return result


def split(x: Tensor, parts, axis: int = 0) -> list[Tensor]:
    """Views of an axis in so many parts of one extent, or between places."""
    axis = axis_of("split", axis, x.ndim)
    extent = x.shape[axis]
    if isinstance(parts, Tensor):
        parts = parts._read("split")
    if isinstance(parts, (list, tuple)) or isinstance(parts, np.ndarray) and parts.ndim:
        places = [integer("split", "a place", place) for place in parts]
    else:
        count = integer("split", "indices_or_sections", parts)
        if count < 1 or extent % count:
            raise ValueError(f"split: axis {axis} has extent {extent}, which is not {count} times another")
        places = [n * (extent // count) for n in range(1, count)]
    ends = zip([None, *places], [*places, None], strict=True)
    return [x._selected((slice(None),) * axis + (slice(start, stop),)) for start, stop in ends]


def stack(arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors of one shape side by side along a new axis."""
    arrays = list(arrays)
    if not arrays:
        raise ValueError("stack: there are no arrays")
    if any(x.shape != arrays[0].shape for x in arrays):
        raise ValueError(f"stack: shapes {sorted({x.shape for x in arrays})} differ")
    return _joined(arrays, axis_of("stack", axis, arrays[0].ndim + 1), True)


def expand_dims(x: Tensor, axis: int = 0) -> Tensor:
    """x with a new axis of extent 1 at a place; a view. Raises IndexError for a place that there is not."""
    place = integer("expand_dims", "axis", axis)
    if not -x.ndim - 1 <= place <= x.ndim:
        raise IndexError(f"expand_dims: axis {place} is out of bounds for {x.ndim + 1} axes")
    place %= x.ndim + 1
    return x._selected((slice(None),) * place + (None,))


def squeeze(x: Tensor, axis) -> Tensor:
    """x without axes of extent 1; a view. Raises ValueError where an axis has another extent."""
    axes = {axis_of("squeeze", one, x.ndim) for one in (axis if isinstance(axis, tuple) else (axis,))}
    if any(x.shape[a] != 1 for a in axes):
        raise ValueError(f"squeeze: axes {sorted(axes)} of shape {x.shape} are not all of extent 1")
    return x._selected(tuple(0 if a in axes else slice(None) for a in range(x.ndim)))


def roll(x: Tensor, shift, axis=None) -> Tensor:
    """x with its elements moved along axes, those at the end to the beginning; without axes, in C order."""
    if axis is None:
        if isinstance(shift, tuple):
            raise ValueError("roll: several shifts need as many axes")
        return roll(x.reshape(-1), shift, 0).reshape(x.shape) if x.ndim else cast(x, x.dtype, copy=True)
    axes = axis if isinstance(axis, tuple) else (axis,)
    shifts = shift if isinstance(shift, tuple) else (shift,) * len(axes)
    if len(shifts) != len(axes):
        raise ValueError(f"roll: {len(shifts)} shifts for {len(axes)} axes")
    moves = []
    for one, by in zip(axes, shifts, strict=True):
        place = axis_of("roll", one, x.ndim)
        extent, by = x.shape[place], integer("roll", "shift", by)
        if extent and by % extent:
            moves.append((place, -by % extent))
    if not moves:
        return cast(x, x.dtype, copy=True)
    return call(x._storage.device, _rolled, tuple(moves), (x,))[0]


def _rolled(
    given: tuple[tuple[int, int], ...], layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry
) -> Plan:
    """The dispatches of ``roll``; ``given`` are axes, and the place of each that becomes its first."""
    planner = Planner(facts, layouts)
    (x,) = planner.inputs
    offset = layouts[0].offset
    for axis, cut in given:
        lead = (slice(None),) * axis
        parts = [x[(*lead, slice(cut, None))], x[(*lead, slice(0, cut))]]
        x, offset = _emit_joined(planner, registry, parts, [offset, offset], axis), ALIGN_MOST
    return planner.plan(x)


def repeat(x: Tensor, repeats: int, axis: int | None = None) -> Tensor:
    """Each element (or place along an axis) ``repeats`` times. Raises TypeError for other than one integer."""
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = axis_of("repeat", axis, x.ndim)
    times = integer("repeat", "repeats", repeats)
    if times < 0:
        raise ValueError(f"repeat: repeats is {times}; expected no negative number")
    lead, extent, rest = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    return _spread(x, (*lead, extent, 1, *rest), (*lead, extent, times, *rest), (*lead, extent * times, *rest))


def tile(x: Tensor, repetitions: Sequence[int]) -> Tensor:
    """x laid side by side, so many times along each axis."""
    times = extents("tile", repetitions)
    ndim = max(x.ndim, len(times))
    times = (1,) * (ndim - len(times)) + times
    own = (1,) * (ndim - x.ndim) + x.shape
    pairs = list(zip(times, own, strict=True))
    apart = tuple(n for _, extent in pairs for n in (1, extent))
    return _spread(x, apart, tuple(n for pair in pairs for n in pair), tuple(many * extent for many, extent in pairs))


def _spread(x: Tensor, apart: tuple[int, ...], wide: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
    """x with new axes of extent 1, which are then made wider, as an array of another shape."""
    return call(x._storage.device, _tiled, (apart, wide, shape), (x,))[0]


def _tiled(given: tuple, layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``_spread``."""
    apart, wide, shape = given
    planner = Planner(facts, layouts)
    (x,) = planner.inputs
    repeated = x.reshape(apart).broadcast_to(wide)
    if repeated.size:
        return planner.plan(gathered(planner, registry, repeated, layouts[0].offset).reshape(shape))
    return planner.plan(planner.empty(shape, x.dtype))


def diagonal_of(x: Tensor, offset: int) -> Tensor:
    """The diagonals of the last two axes, as a last axis; a view. Raises ValueError for fewer axes."""
    if x.ndim < 2:
        raise ValueError(f"diagonal: x has shape {x.shape}; expected at least two axes")
    rows, columns = x.shape[-2:]
    count = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    below, right = (max(-offset, 0), max(offset, 0)) if count else (0, 0)
    start = x._offset + below * x._strides[-2] + right * x._strides[-1]
    return x._view((*x.shape[:-2], count), (*x._strides[:-2], x._strides[-2] + x._strides[-1]), start)


def triangle(name: str, x: Tensor, k: int) -> Tensor:
    """``tril`` or ``triu`` of the last two axes: zeros above, or below, the diagonal ``k``."""
    if x.ndim < 2:
        raise ValueError(f"{name}: x has {x.ndim} axes; expected at least two")
    rows, columns = x.shape[-2:]
    k = max(-rows, min(integer(name, "k", k), columns))  # beyond, nothing changes any more
    return call(x._storage.device, _triangle, (name, k), (x,), live=words(_kept(x.dtype), 0))[0]


def _kept(dtype: np.dtype) -> Spec:
    """Elements where a condition is true, and else a number."""
    return spec("where", dtype, scalars=(2,))


def _triangle(given: tuple[str, int], layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``triangle``: which elements of a matrix stay, and all matrices with these."""
    name, k = given
    planner = Planner(facts, layouts)
    (x,) = planner.inputs
    result = planner.empty(x.shape, x.dtype)
    if not x.size:
        return planner.plan(result)
    rows, columns = x.shape[-2:]
    row = planner.constant(np.arange(rows, dtype=np.int32)[:, None] + np.int32(k)).broadcast_to((rows, columns))
    column = planner.constant(np.arange(columns, dtype=np.int32)[None, :]).broadcast_to((rows, columns))
    compared = spec("less_equal" if name == "tril" else "greater_equal", INT32)
    stays = planner.empty((rows, columns), compared.gives)
    emit(planner, registry, compared, stays, [column, row], [ALIGN_MOST, ALIGN_MOST])
    operands = [stays.broadcast_to(x.shape), x]
    emit(planner, registry, _kept(x.dtype), result, operands, [ALIGN_MOST, layouts[0].offset])
    return planner.plan(result)
