"""Copies in C order of arrays whose neighbours in memory are not neighbours along the last axis: by tiles."""

from __future__ import annotations

import math
from typing import NamedTuple

from ...registry import Registry, Request
from ..device.device import DeviceFacts
from ..device.plan import At, Planner, fits_binding
from ..device.tensor import Tensor

#: Architectures whose caches have lines of many columns at a time, so that tiles cost more than they save.
CACHED = ("llvmpipe",)
_LEAST = 16  # elements along both axes, below which tiles are mostly empty


class Axes(NamedTuple):
    """The axes of an array as transpose.comp has them: extents, strides in memory and of the copy, which are rows."""

    extents: tuple[int, ...]
    strides: tuple[int, ...]
    new: tuple[int, ...]
    rows: int


def axes_of(facts: DeviceFacts, tensor: Tensor, offset: int) -> Axes | None:
    """The axes of a tensor that is to be copied by tiles; None for one that is not.

    ``offset`` is a power of two that divides where its memory begins, in elements.
    """
    each = 4 // tensor.dtype.itemsize
    if each not in (1, 2) or facts.architecture in CACHED:
        return None
    extents: list[int] = []
    strides: list[int] = []
    for extent, stride in zip(tensor.shape, tensor._strides, strict=True):
        if extent == 1:
            continue
        if extents and strides[-1] == extent * stride:
            extents[-1], strides[-1] = extents[-1] * extent, stride
        else:
            extents.append(extent)
            strides.append(stride)
    if not 2 <= len(extents) <= 4 or 1 not in strides[:-1] or min(strides) < 1:
        return None
    rows = strides.index(1)
    new = [math.prod(extents[axis + 1 :]) for axis in range(len(extents))]
    whole = (
        extents[-1],
        extents[rows],
        *(stride for stride in strides if stride != 1),
        math.gcd(offset, tensor._offset),
    )
    others = math.prod(extents) // extents[rows] // extents[-1]
    if (
        min(extents[-1], extents[rows]) < _LEAST
        or strides.count(1) > 1
        or any(n % each for n in whole)
        or others > 65535
    ):
        return None
    return Axes(tuple(extents), tuple(strides), tuple(new), rows)


def emit_transposed(planner: Planner, registry: Registry, x: Tensor, offset: int, result: Tensor) -> bool:
    """The dispatch that copies x to ``result``, a whole array in C order, by tiles; False where x is not copied so."""
    axes = axes_of(planner.facts, x, offset)
    if axes is None or not (fits_binding(planner.facts, x) and fits_binding(planner.facts, result)):
        return False
    each = 4 // x.dtype.itemsize
    last, rows = len(axes.extents) - 1, axes.rows
    others = [axis for axis in range(last) if axis != rows]
    outer, inner = ([None, None] + others)[-2:]

    def word(strides: tuple[int, ...], axis: int | None) -> int:
        return 0 if axis is None else strides[axis] // each

    choice = registry.resolve(Request("transpose", "float32"))
    words = {
        "rows": axes.extents[rows], "columns": axes.extents[last], "inner": 1 if inner is None else axes.extents[inner],
        "x_offset": At(x, each), "x_outer": word(axes.strides, outer), "x_inner": word(axes.strides, inner),
        "x_column": word(axes.strides, last), "y_offset": At(result, each), "y_outer": word(axes.new, outer),
        "y_inner": word(axes.new, inner), "y_row": word(axes.new, rows),
    }  # fmt: skip
    tile = choice.tile["words"] * each
    sizes = (-(-axes.extents[last] // tile), -(-axes.extents[rows] // tile),
             x.size // axes.extents[last] // axes.extents[rows])  # fmt: skip
    if any(size > most for size, most in zip(sizes, planner.facts.groups, strict=True)):
        return False
    planner.dispatch(choice, {"BITS": 8 * x.dtype.itemsize}, {"x": x, "y": result}, words, sizes, x.size)
    return True
