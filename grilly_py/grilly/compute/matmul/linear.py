"""Linear layers: ``x W^T + b``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...quantization import QuantizedTensor
from ...registry import Registry
from ..arrays.map import in_order, shown, with_rows
from ..arrays.reductions import emit_sums
from ..device.arguments import check_float, check_precision, four_axes
from ..device.call import call
from ..device.device import Device, DeviceFacts
from ..device.plan import Layout, Plan, Planner
from ..device.tensor import Tensor, reshaped
from ..norms.checks import RMS_EPSILON, check_added, check_epsilon, check_shape
from ..norms.checks import given as given_arrays
from .call import ACTIVATIONS, Epilogue, LinearCall, Matmul, Prologue
from .finish import Finish
from .matmul import emit_matmul
from .quantized import backward as backward_quantized
from .quantized import linear as linear_quantized
from .split_weights import find, keep


def linear(
    device: Device, x, weight, bias=None, *, precision="highest", activation=None, gated=False, residual=None,
    norm_weight=None, norm_eps=None, norm_offset=0.0,
):  # fmt: skip
    """``grilly.functional.linear`` on a device; documented there."""
    high = check_precision("linear", precision)
    if activation is not None or gated is not False:
        _check_activation(activation, gated)
    norm = ()
    if norm_weight is not None or norm_eps is not None or norm_offset != 0:
        norm = _check_norm(norm_weight, norm_eps, norm_offset)
    if isinstance(weight, QuantizedTensor):
        static = (high, activation, gated, norm)
        return linear_quantized(device, x, weight, bias, residual, norm_weight, static, _check_shapes)

    def check(x, weight, bias, residual, norm_weight, parts) -> None:
        arrays = given_arrays(bias=bias, residual=residual, norm_weight=norm_weight)
        check_float("linear", input=x, weight=weight, **arrays)
        _check_shapes(x, weight, bias, gated, residual, norm_weight)

    parts = find(weight) if high and isinstance(weight, Tensor) else None
    arrays = (x, weight, bias, residual, norm_weight, parts)
    y, *made = call(device, plan, (high, activation, gated, norm), arrays, check, floats=5)
    if made and isinstance(weight, Tensor):
        keep(device, weight, made[0])
    return y


def _check_shapes(x, weight, bias, gated: bool, residual, norm_weight) -> None:
    """Raise ValueError for shapes that do not go together."""
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


def _row_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """The strides of the array reshaped to two axes, ``(rows, K)``; None where that is no view."""
    depth = shape[-1]
    return reshaped(shape, strides, (math.prod(shape[:-1]), depth)) if depth else (depth, 1)


def _check_activation(activation, gated) -> None:
    """Raise ValueError for an activation that products cannot end with."""
    names = [name for name in ACTIVATIONS if name != "none"]
    if activation not in names and (activation is not None or gated):
        expected = ", ".join(names if gated else ["None", *names])
        raise ValueError(f"linear: activation is {activation!r}; expected {expected}")
    if gated is not True and gated is not False:
        raise ValueError(f"linear: gated is {gated!r}; expected True or False")


def _check_norm(norm_weight, norm_eps, norm_offset) -> tuple[float, float]:
    """``norm_eps`` and ``norm_offset`` as floats. Raises TypeError for what is no number, ValueError for one that is
    not finite, for a negative eps, and where there is no ``norm_weight``."""
    if norm_weight is None:
        name, value = ("norm_eps", norm_eps) if norm_eps is not None else ("norm_offset", norm_offset)
        raise ValueError(f"linear: {name} is {value} and there is no norm_weight")
    norm_eps = RMS_EPSILON if norm_eps is None else check_epsilon("linear", norm_eps, "norm_eps")
    return norm_eps, check_added("linear", norm_offset, "norm_offset")


def plan(given: tuple, layouts: Sequence[Layout | None], facts: DeviceFacts, registry: Registry) -> Plan:
    """The plan of ``linear``. Results: y and, where the plan splits the weight, its split.

    Parameters
    ----------
    given : tuple
        ``high``, ``activation``, ``gated`` and, with a norm, ``(epsilon, offset)`` of its weight; otherwise ``()``. In
        captured work a ``Behind`` may follow.
    layouts : sequence of Layout or None
        x, weight, bias, residual, the norm's weight, and the weight's split where one is kept; then the arrays of what
        stands behind.
    """
    high, activation, gated, norm, *behind = given
    planner = Planner(facts, layouts)
    a, b, own, added, factors, kept, *others = planner.inputs
    wide, depth = b.shape
    cols = wide // (1 + gated)
    y = planner.empty((*a.shape[:-1], cols), a.dtype)
    if not y.size:
        return planner.plan(y)
    offsets = [None if layout is None else layout.offset for layout in layouts]
    strides = _row_strides(a.shape, a._strides)
    if strides is None and a.ndim > 4:
        a, offsets[0] = in_order(planner, registry, a, offsets[0])
        strides = _row_strides(a.shape, a._strides)
    if own is not None:
        own, _ = in_order(planner, registry, own, offsets[2])
    if factors is not None:
        factors, offsets[4] = in_order(planner, registry, factors, offsets[4])
    if added is not None:
        added, offsets[3] = with_rows(planner, registry, added, offsets[3])
        if strides is not None and _row_strides(added.shape, added._strides) is None:
            added, offsets[3] = in_order(planner, registry, added, offsets[3])
    c, rows = y, y.size // cols
    if strides is not None:
        a, c = a._view((rows, depth), strides), y.reshape(rows, cols)
        if added is not None:
            added = added._view((rows, cols), _row_strides(added.shape, added._strides))
    a, c = four_axes(a), four_axes(c)
    b = four_axes(b).broadcast_to((a.shape[0], 1, wide, depth))
    epilogue = Epilogue(activation or "none", gated=gated)
    if added is not None:
        epilogue = epilogue._replace(residual=four_axes(added), offset=offsets[3])
    if behind:
        epilogue = epilogue._replace(finish=Finish.of(registry, *behind, others, rows, cols))
    prologue = Prologue() if factors is None else Prologue(factors, offsets[4], *norm)
    matmul = Matmul(
        "linear", a, b, c, bias=own, high=high and depth > 0, offsets=(offsets[0], offsets[1]), split_b=kept,
        epilogue=epilogue, prologue=prologue,
    )  # fmt: skip
    made = emit_matmul(planner, registry, matmul)
    return planner.plan(y, made, operation=LinearCall(plan, given, residual=3, norm=4, finishes=True))


def linear_backward(device: Device, grad_output, x, weight, *, precision="highest"):
    """``grilly.functional.linear_backward`` on a device; documented there."""
    name = "linear_backward"
    high = check_precision(name, precision)
    if isinstance(weight, QuantizedTensor):
        return backward_quantized(device, grad_output, x, weight, high, _check_gradient)

    def check(grad_output, x, weight, parts) -> None:
        check_float(name, input=x, grad_output=grad_output, weight=weight)
        _check_gradient(grad_output, x, weight)

    transposed = weight.transpose() if high and isinstance(weight, Tensor) else None
    arrays = (grad_output, x, weight, None if transposed is None else find(transposed))
    results = call(device, plan_backward, (high,), arrays, check, floats=3, results=3)
    if transposed is not None and len(results) > 3:
        keep(device, transposed, results[3])
    return tuple(results[:3])


def _check_gradient(grad_output, x, weight) -> None:
    """Raise ValueError for shapes that do not go together."""
    name, shape = "linear_backward", tuple(x.shape)
    if len(weight.shape) != 2 or not shape or shape[-1] != weight.shape[1]:
        raise ValueError(
            f"{name}: input has shape {shape} and weight {tuple(weight.shape)}; expected (..., K) and (N, K)"
        )
    expected = (*shape[:-1], weight.shape[0])
    if tuple(grad_output.shape) != expected:
        raise ValueError(f"{name}: grad_output has shape {tuple(grad_output.shape)}; expected the output's, {expected}")


def plan_backward(given: tuple[bool], layouts: Sequence[Layout | None], facts: DeviceFacts, registry: Registry) -> Plan:
    """The plan of ``linear_backward``. Results: the gradients of x, weight and bias and, where the plan splits the
    transposed weight, its split.

    Parameters
    ----------
    given : (bool,)
        ``high``.
    layouts : sequence of Layout or None
        The output's gradient, x, weight, and the split of the transposed weight where one is kept.
    """
    (high,) = given
    planner = Planner(facts, layouts)
    g, a, w, kept = planner.inputs
    cols, depth = w.shape
    offsets = [layout.offset for layout in layouts[:3]]
    rows = math.prod(a.shape[:-1])
    dx, dw, db = (planner.empty(shape, a.dtype, zero=not rows) for shape in (a.shape, w.shape, (cols,)))
    if not rows:
        return planner.plan(dx, dw, db)
    g, offsets[0] = shown(planner, registry, g, (rows, cols), offsets[0])
    a, offsets[1] = shown(planner, registry, a, (rows, depth), offsets[1])

    def multiply(left, right, result, places, parts=None, deep=True):
        factors = (four_axes(t) for t in (left, right, result))
        matmul = Matmul("linear", *factors, high=high and deep, offsets=tuple(places), split_b=parts)
        return emit_matmul(planner, registry, matmul)

    made = multiply(g, w.transpose(), dx.reshape(rows, depth), (offsets[0], offsets[2]), kept, cols > 0)
    multiply(g.transpose(), a.transpose(), dw, offsets[:2])
    if db.size:
        emit_sums(planner, registry, g.transpose(), db, offsets[0])
    return planner.plan(dx, dw, db, made)
