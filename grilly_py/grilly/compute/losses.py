"""Cross entropy of logits and class indices, and its gradient (shaders/losses)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..errors import UnsupportedError
from ..registry import Registry, Request
from .arrays.elementwise import binary, cast, converts
from .arrays.map import emit, gathered, halves, shown
from .arrays.operations import code, spec
from .arrays.promotion import FLOAT32
from .arrays.reductions import emit_sums, reduced
from .device.arguments import check_backend, check_float, finish
from .device.caches import Kept
from .device.cut import check_trips
from .device.device import Device, DeviceFacts
from .device.numbers import integer, number
from .device.plan import ALIGN_MOST, At, Layout, Plan, Planner, fits_binding
from .device.record import Ready, again, run
from .device.tensor import Tensor

NAME = "cross_entropy"
REDUCTIONS = ("mean", "sum", "none")
#: Plans of the rows' losses and what their gradients need.
PLANS: Kept[tuple, Ready] = Kept("plans of cross_entropy by rows", 256)
#: Plans of cross_entropy: of these losses, or their sum or mean.
LOSSES: Kept[tuple, Ready] = Kept("plans of cross_entropy", 256)
#: Plans of its gradient.
GRADIENTS: Kept[tuple, Ready] = Kept("plans of cross_entropy_backward", 256)
_KINDS = 5  # of numbers that the kernel leaves for each row
_MOST = 2**30  # elements of a dispatch


class Terms(NamedTuple):
    """What is asked beside arrays: the target of rows that do not count, and the share of even targets."""

    ignored: int
    smoothing: float


def cross_entropy(device: Device, x, target, weight=None, *, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    """``grilly.functional.cross_entropy`` on a device; documented there."""
    device.check_open()
    terms = _terms(NAME, ignore_index, reduction, label_smoothing)
    if isinstance(x, Tensor) and isinstance(target, Tensor) and (weight is None or isinstance(weight, Tensor)):
        done = again(device, LOSSES, (terms, reduction), (x, target, weight))  # like an earlier call?
        if done is not None:
            device.runtime.flush()
            return done[0]
    target = _checked(NAME, x, target, weight, terms)
    check_backend(NAME, device, x, target, weight)
    shape = tuple(target.shape)
    tensors = _tensors(device, x, target, weight)
    if 0 in shape:
        value = np.nan if reduction == "mean" else 0.0
        found = device.tensor(np.full(shape if reduction == "none" else (), value, np.float32))
        return finish(device, cast(found, tensors[0].dtype), x, target, weight)
    (found,) = run(device, LOSSES, plan_loss, (terms, reduction), tensors)
    return finish(device, found, x, target, weight)


def cross_entropy_backward(
    device: Device, grad_output, x, target, weight=None, *, ignore_index=-100, reduction="mean", label_smoothing=0.0
):
    """``grilly.functional.cross_entropy_backward`` on a device; documented there."""
    name = "cross_entropy_backward"
    device.check_open()
    terms = _terms(name, ignore_index, reduction, label_smoothing)
    target = _checked(name, x, target, weight, terms)
    if isinstance(grad_output, np.generic):  # of a loss, which has no axes
        grad_output = np.asarray(grad_output)
    check_float(name, input=x, grad_output=grad_output)
    check_backend(name, device, grad_output, x, target, weight)
    shape = tuple(target.shape) if reduction == "none" else ()
    if tuple(grad_output.shape) != shape:
        raise ValueError(f"{name}: grad_output has shape {tuple(grad_output.shape)}; expected the loss's, {shape}")
    tensors = _tensors(device, x, target, weight)
    if 0 in target.shape:
        return finish(device, device.empty(x.shape, x.dtype), grad_output, x, target, weight)
    (states,) = run(device, PLANS, plan, (terms,), tensors)
    grad = cast(device.tensor(grad_output), FLOAT32).contiguous().reshape(-1)
    if reduction == "mean":
        grad = binary("divide", grad, reduced("sum", states[1:2], 1, False, FLOAT32))
    (found,) = run(device, GRADIENTS, plan_backward, (terms,), (*tensors, states, grad))
    return finish(device, found, grad_output, x, target, weight)


def _terms(name: str, ignore_index, reduction, label_smoothing) -> Terms:
    """What is asked beside arrays. Raises TypeError and ValueError for what there is not."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"{name}: reduction is {reduction!r}; expected 'mean', 'sum' or 'none'")
    ignored = integer(name, "ignore_index", ignore_index)
    if not -(2**63) <= ignored < 2**63:
        raise ValueError(f"{name}: ignore_index is {ignored}; expected a number of int64")
    smoothing = number(name, "label_smoothing", label_smoothing)
    if not 0.0 <= smoothing <= 1.0:
        raise ValueError(f"{name}: label_smoothing is {smoothing}; expected 0 to 1")
    return Terms(ignored, smoothing)


def _checked(name: str, x, target, weight, terms: Terms):
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


def _tensors(device: Device, x, target, weight) -> tuple[Tensor, Tensor, Tensor | None]:
    return device.borrow(x), device.tensor(target), None if weight is None else device.tensor(weight)


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


def plan(given: tuple[Terms], layouts: Sequence[Layout | None], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches that make a loss for each row of the logits, and what its gradient needs."""
    (terms,) = given
    planner = Planner(facts, layouts)
    x, _, target, weight = _laid_out(planner, registry, layouts)
    return planner.plan(_emit_rows(planner, registry, terms, x, target, weight))


def plan_loss(
    given: tuple[Terms, str], layouts: Sequence[Layout | None], facts: DeviceFacts, registry: Registry
) -> Plan:
    """The dispatches of the rows' losses, or of their sum, or their mean by what rows weigh."""
    terms, reduction = given
    planner = Planner(facts, layouts)
    x, _, target, weight = _laid_out(planner, registry, layouts)
    states = _emit_rows(planner, registry, terms, x, target, weight)
    if reduction == "none":
        whole = states[0]
    else:
        whole = planner.empty((1,))
        if reduction == "sum":
            emit_sums(planner, registry, states[:1], whole)
        else:
            sums = planner.empty((2,))
            emit_sums(planner, registry, states[:2], sums)
            emit(planner, registry, spec("divide", FLOAT32), whole, [sums[:1], sums[1:], None], [16, 16, None])
    if x.dtype != FLOAT32:
        rounded = planner.empty(whole.shape, x.dtype)
        emit(planner, registry, converts(FLOAT32, x.dtype), rounded, [whole, None, None], [ALIGN_MOST, None, None])
        whole = rounded
    return planner.plan(whole.reshape(planner.inputs[1].shape if reduction == "none" else ()))


def _emit_rows(
    planner: Planner, registry: Registry, terms: Terms, x: Tensor, target: Tensor, weight: Tensor | None
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
    constants = {**_types(x, target, weight, terms), "LANES": lanes, "HALVES": halves(registry)}
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
            **_laid(part), "target_offset": At(target), "weight_offset": At(weight), "y_offset": At(states),
            **_words(terms),
        }  # fmt: skip
        groups = -(-count // each)
        sizes = (min(groups, stripe), -(-groups // stripe), 1)
        arrays = {"x": part, "target": target, "weight": weight, "y": states}
        planner.dispatch(choice, constants, arrays, words, sizes, 16.0 * part.size)
    return states


def _types(x: Tensor, target: Tensor, weight: Tensor | None, terms: Terms) -> dict:
    return {"TYPE_X": code(x.dtype), "TYPE_T": code(target.dtype), "WEIGHTED": int(weight is not None),
            "SMOOTHED": int(terms.smoothing > 0)}  # fmt: skip


def _laid(x: Tensor) -> dict:
    return {"x_offset": At(x), **{f"x_{name}": x._steps[axis] for axis, name in enumerate(("batch", "class", "inner"))}}


def _words(terms: Terms) -> dict:
    ignored = terms.ignored & 2**64 - 1
    return {"ignored_low": ignored & 2**32 - 1, "ignored_high": ignored >> 32, "smoothing": terms.smoothing}


def plan_backward(
    given: tuple[Terms], layouts: Sequence[Layout | None], facts: DeviceFacts, registry: Registry
) -> Plan:
    """The dispatches of the gradient, given also the rows' states and the gradient of each loss, or of their sum."""
    (terms,) = given
    planner = Planner(facts, layouts)
    states, grad = planner.inputs[3:]
    x, offset, target, weight = _laid_out(planner, registry, layouts)
    batch, classes, inner = x.shape
    result = planner.empty(x.shape, x.dtype)
    choice = registry.resolve(Request("cross-entropy-backward", "float32"))
    stripe, threads = choice.tile["stripe"], choice.threads
    flat = x.is_contiguous and math.gcd(offset, x._offset) % 4 == 0
    constants = {**_types(x, target, weight, terms), "FLAT": int(flat), "HALVES": halves(registry)}
    most = min(_MOST, 4 * threads * stripe * facts.groups[1])
    unit = 4 // math.gcd(4, classes * inner)  # batches whose elements are whole quads
    step = max(min(batch, most // (classes * inner)) // unit * unit, unit)
    while step > unit and not (fits_binding(facts, x[:step]) and fits_binding(facts, result[:step])):
        step = max(step // 2 // unit * unit, unit)
    for first in range(0, batch, step):
        part, to = x[first : first + step], result[first : first + step]
        if not (fits_binding(facts, part) and fits_binding(facts, to)):
            raise UnsupportedError(f"{NAME}_backward: {unit} batches of {classes} classes do not fit one binding")
        words = {
            "count": part.size, "all_rows": batch * inner, "first_row": first * inner, "inner": inner,
            "classes": classes, **_laid(part), "target_offset": At(target), "weight_offset": At(weight),
            "states_offset": At(states), "grad_offset": At(grad), "grad_step": int(grad.size > 1), "y_offset": At(to),
            **_words(terms),
        }  # fmt: skip
        groups = -(-part.size // (4 * threads))
        sizes = (min(groups, stripe), -(-groups // stripe), 1)
        arrays = {"x": part, "target": target, "weight": weight, "states": states, "grad": grad, "y": to}
        planner.dispatch(choice, constants, arrays, words, sizes, 16.0 * part.size)
    return planner.plan(result.reshape(planner.inputs[0].shape))
