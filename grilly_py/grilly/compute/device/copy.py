"""Copies on the device: strided to contiguous, and between float32, float16 and bfloat16."""

from __future__ import annotations

import itertools
import math

from ...errors import UnsupportedError
from ...registry import Request
from .cut import parts
from .plan import At, Planner, fits_binding
from .tensor import Tensor


def emit_copy(planner: Planner, registry, tensor: Tensor, result: Tensor) -> None:
    """Dispatches that copy an array, which is not empty, to one in C order.

    Raises UnsupportedError for arrays that this device cannot copy.
    """
    facts = planner.facts
    from_bfloat16, to_bfloat16 = tensor.dtype.name == "bfloat16", result.dtype.name == "bfloat16"
    asked = (
        ("from_bits", 8 * tensor.dtype.itemsize),
        ("to_bits", 8 * result.dtype.itemsize),
        ("bfloat16", 0 if from_bfloat16 == to_bfloat16 else 1 if from_bfloat16 else 2),
    )
    choice = registry.resolve(Request("copy", "float32", problem=asked))
    run = choice.tile["run"]

    def groups(shape):
        return choice.workgroups(math.prod(shape[:3]) * -(-shape[3] // run))

    def dispatch(source, target, own, new, extents, at):
        words = {"from_offset": At(source), "to_offset": At(target)}
        for name, values in (("from", own), ("to", new), ("extent", extents)):
            words |= {f"{name}_{axis}": value for axis, value in enumerate(values)}
        planner.dispatch(choice, {}, {"source": source, "destination": target}, words, at)

    if "whole" in choice.tile:
        # One dispatch, by a kernel that takes four axes of the source and writes a whole array in C order.
        shape, own, _ = _fewest_axes(tensor.shape, tensor._strides, tensor._strides)
        if len(shape) > 4 or not (fits_binding(facts, tensor) and fits_binding(facts, result)):
            raise UnsupportedError(
                f"a copy of shape {tensor.shape} with 16-bit elements: without 16-bit storage, as on this device, a "
                "copy takes four axes and arrays of one binding; cast before the array goes to the device, with "
                ".astype(numpy.float32)"
            )
        dispatch(tensor._view(shape, own), result, own, (0,) * 4, shape, groups((1, 1, 1, result.size)))
        return
    shape, own, new = _fewest_axes(tensor.shape, tensor._strides, result._strides)
    outer = len(shape) - 4
    for place in itertools.product(*(range(extent) for extent in shape[:outer])):
        source = tensor._view(shape[outer:], own[outer:], tensor._offset + _dot(place, own))
        target = result._view(shape[outer:], new[outer:], result._offset + _dot(place, new))
        for (to, of), _ in parts(facts, (target, source), groups, ((), (0, 1, 2), ())):
            dispatch(of, to, of._strides, to._strides, to.shape, groups(to.shape))


def _dot(place, strides) -> int:
    return sum(i * s for i, s in zip(place, strides, strict=False))


def _fewest_axes(shape, own, new) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Shape and both strides, with axes joined where they are contiguous in both arrays; at least four axes."""
    axes: list[tuple[int, int, int]] = []
    for extent, a, b in zip(shape, own, new, strict=True):
        if extent == 1:
            continue
        if axes and axes[-1][1] == extent * a and axes[-1][2] == extent * b:
            axes[-1] = (axes[-1][0] * extent, a, b)
        else:
            axes.append((extent, a, b))
    axes = [(1, 0, 0)] * (4 - len(axes)) + axes
    return tuple(tuple(column) for column in zip(*axes, strict=True))
