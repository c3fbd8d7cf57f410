"""Linear layers: ``x W^T + b``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...registry import Registry
from ..arrays.map import shown
from ..arrays.reductions import emit_sums
from ..device.arguments import check_float, check_precision, finish, four_axes, to_device
from ..device.caches import Kept
from ..device.device import Device, DeviceFacts
from ..device.plan import Layout, Plan, Planner
from ..device.record import Ready, again, run
from ..device.sixteen_bits import widens
from ..device.tensor import Tensor, reshaped
from ..norms.checks import RMS_EPSILON, check_added, check_epsilon, check_shape
from ..norms.checks import given as given_arrays
from .kept import find, keep
from .matmul import ACTIVATIONS, AS_IT_IS, Epilogue, Prologue, product

#: Plans of products, and of their gradients.
PLANS: Kept[tuple, Ready] = Kept("plans of linear", 1024)
GRADIENTS: Kept[tuple, Ready] = Kept("plans of gradients of linear", 256)


@widens("x", "weight", "bias", "residual", "norm_weight")
def linear(
    device: Device, x, weight, bias=None, *, precision="highest", activation=None, gated=False, residual=None,
    norm_weight=None, norm_eps=None, norm_offset=0.0,
):  # fmt: skip
    """``grilly.functional.linear`` on a device; documented there."""
    device.check_open()
    high = check_precision("linear", precision)
    if activation is not None or gated is not False:
        _check_activation(activation, gated)
    norm = ()
    if norm_weight is not None or norm_eps is not None or norm_offset != 0:
        norm = _check_norm(norm_weight, norm_eps, norm_offset)
    given = (high, activation, gated, norm)
    if type(x) is type(weight) is Tensor and all(t is None or type(t) is Tensor for t in (bias, residual, norm_weight)):
        # Like an earlier call, which passed the checks?
        tensors = (x, weight, bias, residual, norm_weight, find(weight) if high else None)
        done = again(device, PLANS, given, tensors)
        if done is not None:
            if len(done) > 1:
                keep(device, weight, done[1])
            device.runtime.flush()
            return done[0]
    arrays = {"input": x, "weight": weight}
    arrays |= given_arrays(bias=bias, residual=residual, norm_weight=norm_weight)
    dtype = check_float("linear", **arrays)
    if len(weight.shape) != 2:
        raise ValueError(f"linear: weight has shape {tuple(weight.shape)}; expected (N, K)")
    cols, depth = weight.shape
    if len(x.shape) < 1 or x.shape[-1] != depth:
        raise ValueError(
            f"linear: input has shape {tuple(x.shape)} and weight {tuple(weight.shape)}; input's last axis must have "
            f"{depth}"
        )
    if bias is not None and tuple(bias.shape) != (cols,):
        raise ValueError(f"linear: bias has shape {tuple(bias.shape)} and weight {tuple(weight.shape)}; "
                         f"expected ({cols},)")  # fmt: skip
    check_shape("linear", "norm_weight", norm_weight, (depth,))
    if gated and cols % 2:
        raise ValueError(f"linear: weight has shape {tuple(weight.shape)}; gated takes an even number of rows")
    shape = (*x.shape[:-1], cols // (1 + gated))
    if residual is not None and tuple(residual.shape) != shape:
        raise ValueError(f"linear: residual has shape {tuple(residual.shape)}; expected the result's, {shape}")
    if 0 in shape:
        return finish(device, device.empty(shape, dtype), *arrays.values())
    a, b = (_there(device, array) for array in (x, weight))
    own = None if bias is None else to_device(device, bias)
    if a.ndim > 4 and _rows(a.shape, a._steps) is None:
        a = a.contiguous()
    added = None if residual is None else to_device(device, residual)
    if added is not None and _rows(a.shape, a._steps) is not None and _rows(added.shape, added._steps) is None:
        added = added.contiguous()
    factors = None if norm_weight is None else to_device(device, norm_weight).contiguous()
    tensors = (a, b, own, added, factors, find(b) if high else None)
    y, *made = run(device, PLANS, plan, given, tensors)
    for parts in made:
        keep(device, b, parts)
    return finish(device, y, *arrays.values())


def _there(device: Device, array) -> Tensor:
    """An array on the device; a tensor as it lies."""
    return array if isinstance(array, Tensor) else to_device(device, array)


def _rows(shape: tuple[int, ...], steps: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides that show x as ``(rows, K)``, or None where there are none."""
    depth = shape[-1]
    return reshaped(shape, steps, (math.prod(shape[:-1]), depth)) if depth else (depth, 1)


def _check_activation(activation, gated) -> None:
    """Raise ValueError for an activation that products cannot end with."""
    names = [name for name in ACTIVATIONS if name != "none"]
    if activation not in names and (activation is not None or gated):
        expected = ", ".join(names if gated else ["None", *names])
        raise ValueError(f"linear: activation is {activation!r}; expected {expected}")
    if gated is not True and gated is not False:
        raise ValueError(f"linear: gated is {gated!r}; expected True or False")


def _check_norm(norm_weight, norm_eps, norm_offset) -> tuple[float, float]:
    """What is added to mean squares and to the weight. Raises TypeError and ValueError for what is no such number."""
    if norm_weight is None:
        name, value = ("norm_eps", norm_eps) if norm_eps is not None else ("norm_offset", norm_offset)
        raise ValueError(f"linear: {name} is {value} and there is no norm_weight")
    norm_eps = RMS_EPSILON if norm_eps is None else check_epsilon("linear", norm_eps, "norm_eps")
    return norm_eps, check_added("linear", norm_offset, "norm_offset")


def plan(given: tuple, layouts: Sequence[Layout | None], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``linear``; an x of more than four axes is contiguous or has rows at equal distances, as the
    residual has where x has, and what is not x or weight has a contiguous last axis.

    The last layout is that of weights that were split before. Where the plan splits them itself, that is its second
    result.
    """
    high, activation, gated, norm = given
    planner = Planner(facts, layouts)
    a, b, own, added, factors, kept = planner.inputs
    wide, depth = b.shape
    cols = wide // (1 + gated)
    y = planner.empty((*a.shape[:-1], cols), a.dtype)
    rows = y.size // cols
    steps, c = _rows(a.shape, a._steps), y.reshape(rows, cols)
    if steps is not None:
        a = a._view((rows, depth), steps)
        if added is not None:
            added = added._view((rows, cols), _rows(added.shape, added._steps))
    else:
        c = y
    a, c = four_axes(a), four_axes(c)
    b = four_axes(b).broadcast_to((a.shape[0], 1, wide, depth))
    offsets = (layouts[0].offset, layouts[1].offset)
    epilogue = Epilogue(activation or "none", gated=gated)
    if added is not None:
        epilogue = epilogue._replace(residual=four_axes(added), offset=layouts[3].offset)
    prologue = AS_IT_IS if factors is None else Prologue(factors, layouts[4].offset, *norm)
    made = product(
        planner, registry, "linear", a, b, c, columns_are_rows=True, bias=own, high=high and depth > 0,
        offsets=offsets, parts_of_b=kept, epilogue=epilogue, prologue=prologue,
    )  # fmt: skip
    return planner.plan(y, made)


@widens("grad_output", "x", "weight", every=True)
def linear_backward(device: Device, grad_output, x, weight, *, precision="highest"):
    """``grilly.functional.linear_backward`` on a device; documented there."""
    name = "linear_backward"
    device.check_open()
    high = check_precision(name, precision)
    if type(grad_output) is type(x) is type(weight) is Tensor:
        # Like an earlier call, which passed the checks?
        done = again(device, GRADIENTS, (high,), (grad_output, x, weight, find(weight.transpose()) if high else None))
        if done is not None:
            return _kept_gradients(device, weight, done)
    dtype = check_float(name, input=x, grad_output=grad_output, weight=weight)
    shape = tuple(x.shape)
    if len(weight.shape) != 2 or not shape or shape[-1] != weight.shape[1]:
        raise ValueError(
            f"{name}: input has shape {shape} and weight {tuple(weight.shape)}; expected (..., K) and (N, K)"
        )
    cols, depth = weight.shape
    if tuple(grad_output.shape) != (*shape[:-1], cols):
        raise ValueError(
            f"{name}: grad_output has shape {tuple(grad_output.shape)}; expected the output's, {(*shape[:-1], cols)}"
        )
    if not math.prod(shape[:-1]):
        results = tuple(device.tensor(np.zeros(size, dtype)) for size in (shape, (cols, depth), (cols,)))
    else:
        g, a, w = (_there(device, array) for array in (grad_output, x, weight))
        tensors = (g, a, w, find(w.transpose()) if high else None)
        results = _kept_gradients(device, w, run(device, GRADIENTS, plan_backward, (high,), tensors))
    return tuple(finish(device, result, grad_output, x, weight) for result in results)


def _kept_gradients(device: Device, weight: Tensor, results: list[Tensor]) -> tuple[Tensor, ...]:
    """The gradients that ``plan_backward`` gave, its split weights kept."""
    for parts in results[3:]:
        keep(device, weight.transpose(), parts)
    device.runtime.flush()
    return tuple(results[:3])


def plan_backward(
    given: tuple[bool], layouts: Sequence[Layout | None], facts: DeviceFacts, registry: Registry
) -> Plan:
    """The dispatches of ``linear_backward``: gradients of x, weight and bias, and split weights as ``plan``'s."""
    (high,) = given
    planner = Planner(facts, layouts)
    g, a, w, kept = planner.inputs
    cols, depth = w.shape
    offsets = [layout.offset for layout in layouts[:3]]
    dx, dw, db = (planner.empty(shape, a.dtype) for shape in (a.shape, w.shape, (cols,)))
    rows = math.prod(a.shape[:-1])
    g, offsets[0] = shown(planner, registry, g, (rows, cols), offsets[0])
    a, offsets[1] = shown(planner, registry, a, (rows, depth), offsets[1])

    def multiply(left, right, result, places, parts=None, deep=True):
        return product(
            planner, registry, "linear", four_axes(left), four_axes(right), four_axes(result), columns_are_rows=True,
            high=high and deep, offsets=places, parts_of_b=parts,
        )  # fmt: skip

    made = multiply(g, w.transpose(), dx.reshape(rows, depth), (offsets[0], offsets[2]), kept, cols > 0)
    multiply(g.transpose(), a.transpose(), dw, offsets[:2])
    if db.size:
        emit_sums(planner, registry, g.transpose(), db, offsets[0])
    return planner.plan(dx, dw, db, made)
