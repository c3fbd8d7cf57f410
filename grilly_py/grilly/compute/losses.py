"""Cross entropy of logits and class indices, and its gradient (shaders/losses)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..errors import UnsupportedError
from ..registry import Registry, Request
from .arrays.elementwise import converts
from .arrays.map import emit, gathered, shown
from .arrays.operations import code, spec
from .arrays.promotion import FLOAT32
from .arrays.reductions import emit_sums
from .device.arguments import check_backend, check_float
from .device.call import call
from .device.cut import check_trips
from .device.device import Device, DeviceFacts
from .device.numbers import integer, number
from .device.plan import ALIGN_MOST, At, Layout, Plan, Planner, fits_binding
from .device.tensor import Tensor
from .expressions.expression import halves

NAME = "cross_entropy"
REDUCTIONS = ("mean", "sum", "none")
_KINDS = 5  # of numbers that the kernel leaves for each row, its states
_MOST = 2**30  # elements of a dispatch


class LossTerms(NamedTuple):
    """What is asked beside arrays: the target of rows that do not count, and the share of even targets."""

    ignored: int
    smoothing: float


def cross_entropy(device: Device, x, target, weight=None, *, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    """``grilly.functional.cross_entropy`` on a device; documented there."""
    terms = _terms(NAME, ignore_index, reduction, label_smoothing)

    def check(x, target, weight) -> tuple:
        target = _checked(NAME, x, target, weight, terms)
        check_backend(NAME, device, x, target, weight)
        return x, target, weight

    return call(device, plan, (terms, reduction), (x, target, weight), check)[0]


def cross_entropy_backward(
    device: Device, grad_output, x, target, weight=None, *, ignore_index=-100, reduction="mean", label_smoothing=0.0,
    states: Tensor | None = None,
):  # fmt: skip
    """``grilly.functional.cross_entropy_backward`` on a device; documented there. ``states``: as ``plan`` gave them."""
    name = "cross_entropy_backward"
    terms = _terms(name, ignore_index, reduction, label_smoothing)
    if isinstance(grad_output, np.generic):  # of a loss, which has no axes
        grad_output = np.asarray(grad_output)

    def check(x, target, weight, grad_output, states) -> tuple:
        target = _checked(name, x, target, weight, terms)
        check_float(name, input=x, grad_output=grad_output)
        check_backend(name, device, grad_output, x, target, weight)
        shape = tuple(target.shape) if reduction == "none" else ()
        if tuple(grad_output.shape) != shape:
            raise ValueError(f"{name}: grad_output has shape {tuple(grad_output.shape)}; expected the loss's, {shape}")
        return x, target, weight, grad_output, states

    return call(device, plan_backward, (terms, reduction), (x, target, weight, grad_output, states), check)[0]


def _terms(name: str, ignore_index, reduction, label_smoothing) -> LossTerms:
    """What is asked beside arrays. Raises TypeError and ValueError for what there is not."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"{name}: reduction is {reduction!r}; expected 'mean', 'sum' or 'none'")
    ignored = integer(name, "ignore_index", ignore_index)
    if not -(2**63) <= ignored < 2**63:
        raise ValueError(f"{name}: ignore_index is {ignored}; expected a number of int64")
    smoothing = number(name, "label_smoothing", label_smoothing)
    if not 0.0 <= smoothing <= 1.0:
        raise ValueError(f"{name}: label_smoothing is {smoothing}; expected 0 to 1")
    return LossTerms(ignored, smoothing)


def _checked(name: str, x, target, weight, terms: LossTerms):
    """The target as an array or tensor of integers. Raises for what does not go together."""
    arrays = {"input": x} if weight is None else {"input": x, "weight": weight}
    check_float(name, **arrays)
    shape = tuple(x.shape)
    if not shape:
        raise ValueError(f"{name}: input has no axes; expected (C,), (N, C) or (N, C, d1, ...)")
    if not isinstance(target, Tensor):
        target = np.asarray(target)
        target = target if target.size else target.astype(np.int64)
    expected = shape[:1] * (len(shape) > 1) + shape[2:]
    classes = shape[0] if len(shape) == 1 else shape[1]
    if not classes:
        raise ValueError(f"{name}: input has shape {shape}, which has no classes")
    if target.dtype.kind not in "iu":
        raise TypeError(f"{name}: target is {target.dtype}; expected class indices (integers): probabilities of the "
                        "classes are not taken")  # fmt: skip
    if tuple(target.shape) != expected:
        raise ValueError(f"{name}: target has shape {tuple(target.shape)} and input {shape}; expected {expected}")
    if weight is not None and tuple(weight.shape) != (classes,):
        raise ValueError(f"{name}: weight has shape {tuple(weight.shape)}; expected ({classes},)")
    if not isinstance(target, Tensor):
        wrong = target[(target != terms.ignored) & ((target < 0) | (target >= classes))]
        if wrong.size:
            raise IndexError(f"{name}: target has the class {wrong[0]}; expected 0 to {classes - 1}, or ignore_index "
                             f"({terms.ignored})")  # fmt: skip
        if target.dtype.name == "uint64":
            target = target.astype(np.int64)
    return target


def _laid_out(
    planner: Planner, registry: Registry, layouts: Sequence[Layout | None]
) -> tuple[Tensor, int, Tensor, Tensor | None]:
    """The logits as (batch, classes, inner), with their ``Layout.offset``; targets and weights in a row each."""
    offsets = [0 if layout is None else layout.offset for layout in layouts]
    x, target, weight = planner.inputs[:3]
    batch, classes = (1, x.shape[0]) if x.ndim == 1 else x.shape[:2]
    logits, offset = shown(planner, registry, x, (batch, classes, math.prod(x.shape[2:])), offsets[0])
    if not target.is_contiguous:
        target = gathered(planner, registry, target, offsets[1])
    if weight is not None and not weight.is_contiguous:
        weight = gathered(planner, registry, weight, offsets[2])
    return logits, offset, target.reshape(-1), weight


def plan(
    given: tuple[LossTerms, str], layouts: Sequence[Layout | None], facts: DeviceFacts, registry: Registry
) -> Plan:
    """The dispatches of the rows' losses, or of their sum, or their mean by what rows weigh.

    A second result is the rows' states, ``(_KINDS, rows)``, which the gradient reads.
    """
    terms, reduction = given
    planner = Planner(facts, layouts)
    x, _, target, weight = _laid_out(planner, registry, layouts)
    empty = not target.size
    states = planner.empty((_KINDS, 0)) if empty else _emit_rows(planner, registry, terms, x, target, weight)
    if reduction == "none" and empty:
        return planner.plan(planner.empty(planner.inputs[1].shape, x.dtype), states)
    if reduction == "none":
        whole = states[0]
    else:
        whole = planner.empty((1,), zero=empty)
        sums = whole if reduction == "sum" else planner.empty((2,), zero=empty)
        if not empty:
            emit_sums(planner, registry, states[: sums.size], sums)
        if reduction == "mean":
            _divide(planner, registry, sums[:1], sums[1:], whole)
    if x.dtype != FLOAT32:
        rounded = planner.empty(whole.shape, x.dtype)
        emit(planner, registry, converts(FLOAT32, x.dtype), rounded, [whole], [ALIGN_MOST])
        whole = rounded
    return planner.plan(whole.reshape(planner.inputs[1].shape if reduction == "none" else ()), states)


def _divide(planner: Planner, registry: Registry, x: Tensor, by: Tensor, result: Tensor) -> None:
    """The dispatch of float32 numbers divided by one."""
    offsets = [ALIGN_MOST, ALIGN_MOST, None]
    emit(planner, registry, spec("divide", FLOAT32), result, [x, by.broadcast_to(x.shape), None], offsets)


def _emit_rows(
    planner: Planner, registry: Registry, terms: LossTerms, x: Tensor, target: Tensor, weight: Tensor | None
) -> Tensor:
    """Dispatches for each row's loss and what its gradient needs, ``(_KINDS, rows)``, of (batch, classes, inner)."""
    facts = planner.facts
    batch, classes, inner = x.shape
    rows = batch * inner
    states = planner.empty((_KINDS, rows))
    choice = registry.resolve(Request("cross-entropy", "float32"))
    tile, threads = choice.tile, choice.threads
    lanes = tile["lanes"] if classes > tile["few"] else tile["some"] if inner == 1 and classes > tile["alone"] else 1
    check_trips(facts, NAME, "classes", classes, choice.keys_per_trip * lanes / tile["lanes"], "use fewer")
    constants = {
        **_types(registry, x, target, weight, terms), "LANES": lanes, "RUNS": int(x._strides[1] == 1),
    }  # fmt: skip
    stripe = tile["stripe"]
    each = threads // lanes
    todo = [(x, 0)]
    while todo:
        part, first = todo.pop()
        count = part.shape[0] * part.shape[2]
        if not fits_binding(facts, part) or count > each * stripe * facts.groups[1]:
            axis = 0 if part.shape[0] > 1 else 2
            half = -(-part.shape[axis] // 2)
            if half == part.shape[axis]:
                raise UnsupportedError(f"{NAME}: one row, a view of {classes} classes, does not fit one binding")
            index = (slice(None),) * axis
            own = first + half * (inner if axis == 0 else 1)
            todo += [(part[(*index, slice(0, half))], first), (part[(*index, slice(half, None))], own)]
            continue
        words = {
            "rows": count, "all_rows": rows, "first_row": first, "inner": part.shape[2], "classes": classes,
            **_layout(part), "target_offset": At(target), "weight_offset": At(weight), "y_offset": At(states),
            **_words(terms),
        }  # fmt: skip
        sizes = choice.workgroups(count, each)
        arrays = {"x": part, "target": target, "weight": weight, "y": states}
        planner.dispatch(choice, constants, arrays, words, sizes, 16.0 * part.size)
    return states


def _types(registry: Registry, x: Tensor, target: Tensor, weight: Tensor | None, terms: LossTerms) -> dict:
    return {"TYPE_X": code(x.dtype), "TYPE_T": code(target.dtype), "WEIGHTED": int(weight is not None),
            "SMOOTHED": int(terms.smoothing > 0), "HALVES": halves(registry), "EACH": _run_of(x)}  # fmt: skip


def _run_of(x: Tensor) -> int:
    """Elements that are read at once: 16 bytes."""
    return 16 // x.dtype.itemsize


def _layout(x: Tensor) -> dict:
    return {
        "x_offset": At(x),
        **{f"x_{name}": x._strides[axis] for axis, name in enumerate(("batch", "class", "inner"))},
    }


def _words(terms: LossTerms) -> dict:
    ignored = terms.ignored & 2**64 - 1
    return {"ignored_low": ignored & 2**32 - 1, "ignored_high": ignored >> 32, "smoothing": terms.smoothing}


def plan_backward(
    given: tuple[LossTerms, str], layouts: Sequence[Layout | None], facts: DeviceFacts, registry: Registry
) -> Plan:
    """The dispatches of the gradient, given also that of each loss, or of their sum or mean, and states or None."""
    terms, reduction = given
    planner = Planner(facts, layouts)
    x, offset, target, weight = _laid_out(planner, registry, layouts)
    if not target.size:
        return planner.plan(planner.empty(planner.inputs[0].shape, x.dtype))
    grad, states = planner.inputs[3:]
    if states is None:
        states = _emit_rows(planner, registry, terms, x, target, weight)
    if grad.dtype != FLOAT32 or not grad.is_contiguous:
        own, grad = grad, planner.empty(grad.shape)
        asked = converts(own.dtype, FLOAT32)
        emit(planner, registry, asked, grad, [own], [layouts[3].offset])
    grad = grad.reshape(-1)
    if reduction == "mean":
        total, own = planner.empty((1,)), grad
        emit_sums(planner, registry, states[1:2], total)
        grad = planner.empty(own.shape)
        _divide(planner, registry, own, total, grad)
    batch, classes, inner = x.shape
    result = planner.empty(x.shape, x.dtype)
    choice = registry.resolve(Request("cross-entropy-backward", "float32"))
    stripe, threads, run = choice.tile["stripe"], choice.threads, _run_of(x)
    flat = x.is_contiguous and math.gcd(offset, x._offset) % run == 0
    rows = int(flat and inner == 1 and classes >= run)
    constants = {**_types(registry, x, target, weight, terms), "FLAT": int(flat), "ROWS": rows}
    most = min(_MOST, run * threads * stripe * facts.groups[1])
    unit = run // math.gcd(run, classes * inner)  # batches whose elements are whole runs
    step = max(min(batch, most // (classes * inner)) // unit * unit, unit)
    while step > unit and not (fits_binding(facts, x[:step]) and fits_binding(facts, result[:step])):
        step = max(step // 2 // unit * unit, unit)
    for first in range(0, batch, step):
        part, to = x[first : first + step], result[first : first + step]
        if not (fits_binding(facts, part) and fits_binding(facts, to)):
            raise UnsupportedError(f"{NAME}_backward: {unit} batches of {classes} classes do not fit one binding")
        words = {
            "count": part.size, "all_rows": batch * inner, "first_row": first * inner, "inner": inner,
            "classes": classes, **_layout(part), "target_offset": At(target), "weight_offset": At(weight),
            "states_offset": At(states), "grad_offset": At(grad), "grad_stride": int(grad.size > 1), "y_offset": At(to),
            **_words(terms),
        }  # fmt: skip
        sizes = choice.workgroups(part.size, run * threads)
        arrays = {"x": part, "target": target, "weight": weight, "states": states, "grad": grad, "y": to}
        planner.dispatch(choice, constants, arrays, words, sizes, 16.0 * part.size)
    return planner.plan(result.reshape(planner.inputs[0].shape))
