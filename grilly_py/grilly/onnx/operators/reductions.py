"""Sums, extremes and their kin over axes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ... import array_api as xp
from ...compute import Tensor
from ...compute.arrays.reductions import norm
from ..table import Call, all_within, is_floating, operator, wide, within

Axes = tuple[int, ...]


def _sum(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    return xp.sum(x, axis=axes, keepdims=keep)


def _mean(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    """The mean; of integers their exact sum, divided and cut off towards zero."""
    if is_floating(x):
        return xp.mean(x, axis=axes, keepdims=keep)
    total, count = _sum(x, axes, keep), math.prod(x.shape[axis] for axis in axes)
    # Division rounds down, and of a negative sum that is away from zero.
    return xp.floor_divide(xp.add(total, xp.where(xp.less(total, 0), count - 1, 0)), count)


def _extreme(x: Tensor, axes: Axes, keep: bool, sign: int) -> Tensor:
    """The largest, or smallest; of no elements the least that the dtype has, or the largest."""
    if x.dtype == np.bool_:
        return (xp.any if sign > 0 else xp.all)(x, axis=axes, keepdims=keep)
    if not x.size:
        shape = [1 if a in axes else e for a, e in enumerate(x.shape) if keep or a not in axes]
        if is_floating(x):
            value = -sign * float("inf")
        else:
            value = int(np.iinfo(x.dtype).min if sign > 0 else np.iinfo(x.dtype).max)
        return xp.full(tuple(shape), value, dtype=x.dtype, device=x.backend)
    return (xp.max if sign > 0 else xp.min)(x, axis=axes, keepdims=keep)


def _log_sum_exp(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    if not x.size:
        return xp.log(_sum(x, axes, keep))
    largest = xp.max(x, axis=axes, keepdims=True)
    largest = xp.where(xp.isinf(largest), 0.0, largest)  # or infinity less infinity were NaN
    found = xp.add(xp.log(_sum(xp.exp(xp.subtract(x, largest)), axes, True)), largest)
    return found if keep else xp.squeeze(found, axes)


def _norm(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    return norm("norm", x if is_floating(x) else x.astype(np.float32), axes, keep)


_REDUCTIONS: dict[str, Callable[[Tensor, Axes, bool], Tensor]] = {
    "ReduceSum": _sum,
    "ReduceMean": _mean,
    "ReduceProd": lambda x, axes, keep: xp.prod(x, axis=axes, keepdims=keep),
    "ReduceMax": lambda x, axes, keep: _extreme(x, axes, keep, 1),
    "ReduceMin": lambda x, axes, keep: _extreme(x, axes, keep, -1),
    "ReduceL1": lambda x, axes, keep: _sum(xp.abs(x), axes, keep),
    "ReduceL2": _norm,
    "ReduceSumSquare": lambda x, axes, keep: _sum(xp.square(x), axes, keep),
    "ReduceLogSum": lambda x, axes, keep: xp.log(_sum(x, axes, keep)),
    "ReduceLogSumExp": _log_sum_exp,
}
#: What an array is for which there is nothing to sum over, because no axes are named.
_ALONE: dict[str, Callable[[Tensor], Tensor]] = {
    "ReduceL1": xp.abs, "ReduceL2": xp.abs, "ReduceSumSquare": xp.square, "ReduceLogSum": xp.log,
}  # fmt: skip


@operator(*_REDUCTIONS, host=(1,))
def reduce(call: Call, x: Tensor, axes: np.ndarray | None = None) -> Tensor:
    """A reduction over axes, all where none is named; in x's dtype, rounded once."""
    named, keep = call.axes(axes), bool(call.get("keepdims", 1))
    if not named and call.get("noop_with_empty_axes", 0):
        return _ALONE[call.name](x) if call.name in _ALONE else x
    over = tuple(sorted(all_within(named, x.ndim))) if named else tuple(range(x.ndim))
    if not over:
        return _ALONE[call.name](x) if call.name in _ALONE else x
    return _REDUCTIONS[call.name](wide(x), over, keep).astype(x.dtype, copy=False)


@operator("ArgMax", "ArgMin")
def argument(call: Call, x: Tensor) -> Tensor:
    """The index of the largest or smallest element; of several the first, or the last where asked."""
    axis, keep = within(int(call.get("axis", 0)), x.ndim), bool(call.get("keepdims", 1))
    find = xp.argmax if call.name == "ArgMax" else xp.argmin
    if not call.get("select_last_index", 0):
        return find(x, axis=axis, keepdims=keep)
    return xp.subtract(x.shape[axis] - 1, find(xp.flip(x, axis=axis), axis=axis, keepdims=keep))


@operator("CumSum", "CumProd", host=(1,))
def cumulative(call: Call, x: Tensor, axis: np.ndarray) -> Tensor:
    """Running sums or products along an axis, from either end, with or without each element itself."""
    place = within(int(axis.item()), x.ndim)
    run = xp.cumulative_sum if call.name == "CumSum" else xp.cumulative_prod
    ahead = xp.flip(x, axis=place) if call.get("reverse", 0) else x
    if call.get("exclusive", 0):
        found = run(ahead, axis=place, include_initial=True)
        found = found[tuple(slice(0, x.shape[a]) for a in range(x.ndim))]
    else:
        found = run(ahead, axis=place)
    found = found.astype(x.dtype, copy=False)
    return xp.flip(found, axis=place) if call.get("reverse", 0) else found
