"""Gradients of layer norm, RMS norm and group norm.

One dispatch computes the input's gradient and, where there is a weight, the terms of its gradient. Reductions add the
terms up, in an order that depends on the shape alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...registry import Registry
from ..arrays.elementwise import converts
from ..arrays.map import emit
from ..arrays.reductions import ReductionTerms as Reduction
from ..arrays.reductions import emit_reduced
from ..device.arguments import check_float
from ..device.call import call
from ..device.device import Device, DeviceFacts
from ..device.numbers import integer, number
from ..device.plan import ALIGN_MOST, Layout, Plan, Planner
from ..device.tensor import Tensor
from .checks import RMS_EPSILON, check_added, check_epsilon, check_groups, check_last, check_shape, extents_of, given
from .plan import NormTerms, emit_all


def layer_norm_backward(device: Device, grad_output, input, normalized_shape, weight=None, eps=1e-5):
    """``grilly.functional.layer_norm_backward`` on a device; documented there."""
    name, operation = "layer_norm_backward", "LAYER_NORM_BACKWARD"
    return _of_last_axes(device, name, operation, grad_output, input, normalized_shape, weight, eps, 0.0, True)


def rms_norm_backward(device: Device, grad_output, input, normalized_shape, weight=None, eps=None, weight_offset=0.0):
    """``grilly.functional.rms_norm_backward`` on a device; documented there."""
    name, operation, eps = "rms_norm_backward", "RMS_NORM_BACKWARD", RMS_EPSILON if eps is None else eps
    return _of_last_axes(
        device, name, operation, grad_output, input, normalized_shape, weight, eps, weight_offset, False
    )


def _of_last_axes(
    device: Device, name: str, operation: str, grad_output, input, normalized_shape, weight, eps, added, biased: bool
) -> tuple:
    shape = extents_of(name, normalized_shape)
    eps, added = number(name, "eps", eps), number(name, "weight_offset", added)

    def check(input, weight) -> None:
        check_last(name, input, shape)
        check_shape(name, "weight", weight, shape)

    kept = len(getattr(input, "shape", ())) - len(shape)
    terms = NormTerms(operation, kept, epsilon=eps, added=added, terms=weight is not None)
    return _gradients(device, name, terms, shape, check, grad_output, input, weight, tuple(range(kept)), biased)


def group_norm_backward(device: Device, grad_output, input, num_groups, weight=None, eps=1e-5):
    """``grilly.functional.group_norm_backward`` on a device; documented there."""
    name = "group_norm_backward"
    groups, eps = integer(name, "num_groups", num_groups), number(name, "eps", eps)

    def check(input, weight) -> None:
        check_groups(name, input, groups)
        check_shape(name, "weight", weight, tuple(input.shape[1:2]))

    terms = NormTerms("LAYER_NORM_BACKWARD", 2, groups=groups, epsilon=eps, terms=weight is not None)
    axes = tuple(axis for axis in range(len(getattr(input, "shape", ()))) if axis != 1)
    return _gradients(device, name, terms, (), check, grad_output, input, weight, axes, True)


def _gradients(
    device: Device, name: str, terms: NormTerms, shape: tuple[int, ...], check, grad_output, input, weight,
    axes: tuple[int, ...], biased: bool,
) -> tuple:  # fmt: skip
    """Gradients of the input, of the weight and, if ``biased``, of the bias; of the latter sums over the axes.

    ``check(input, weight)`` checks what is this gradient's alone, such as ``shape``, the normalized one.
    """

    def check_all(input, grad_output, weight, bias) -> None:
        check_float(name, input=input, grad_output=grad_output, **given(weight=weight))
        check_shape(name, "grad_output", grad_output, tuple(input.shape))
        check_epsilon(name, terms.epsilon)
        check_added(name, terms.added)
        check(input, weight)

    tensors = (input, grad_output, weight, None)
    found = call(device, plan_gradients, (terms, axes, biased, shape), tensors, check_all, floats=3, results=3)
    return (*found, *(None,) * (2 + biased - len(found)))


def plan_gradients(given: tuple, layouts: Sequence[Layout | None], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of the input's gradient and, with a weight, of the sums that are the other gradients.

    ``given`` are the terms, the axes that are added up, whether there is a bias, and the normalized shape.
    """
    terms, axes, biased, _ = given
    planner = Planner(facts, layouts)
    dx, _, products = emit_all(planner, registry, terms, layouts)
    if products is None:
        return planner.plan(dx)
    summed = [(products, ALIGN_MOST)]
    if biased:
        summed.append((planner.inputs[1], layouts[1].offset))
    return planner.plan(dx, *(_emit_summed(planner, registry, *each, axes, dx.dtype) for each in summed))


def _emit_summed(
    planner: Planner, registry: Registry, x: Tensor, offset: int, axes: tuple[int, ...], dtype: np.dtype
) -> Tensor:
    """Dispatches of the sum of x over the axes; with none, of a copy."""
    if axes:
        return emit_reduced(planner, registry, Reduction("sum", axes, False, dtype), x, offset)
    result = planner.empty(x.shape, dtype)
    if result.size:
        emit(planner, registry, converts(x.dtype, dtype), result, [x], [offset])
    return result
