"""Gradients of layer norm, RMS norm and group norm.

One dispatch makes the input's gradient and, where there is a weight, what its gradient is the sum of; reductions, which
add up in an order that depends on the shape alone, make the sums.
"""

from __future__ import annotations

import numpy as np

from ..arrays.reductions import reduced
from ..device.arguments import check_float, finish
from ..device.device import Device
from ..device.record import run
from ..device.sixteen_bits import widens
from ..device.tensor import Tensor
from .checks import (
    RMS_EPSILON,
    check_added,
    check_epsilon,
    check_groups,
    check_last,
    check_shape,
    extents_of,
    given,
    sent,
    sent_whole,
)
from .plan import PLANS, Terms, plan


@widens("grad_output", "input", "weight", every=True)
def layer_norm_backward(device: Device, grad_output, input, normalized_shape, weight=None, eps=1e-5):
    """``grilly.functional.layer_norm_backward`` on a device; documented there."""
    name = "layer_norm_backward"
    shape = extents_of(name, normalized_shape)
    dtype = _checked(device, name, grad_output, input, weight)
    check_last(name, input, shape)
    check_shape(name, "weight", weight, shape)
    kept = len(input.shape) - len(shape)
    terms = Terms("LAYER_NORM_BACKWARD", kept, epsilon=check_epsilon(name, eps), terms=weight is not None)
    return _gradients(device, terms, grad_output, input, weight, dtype, tuple(range(kept)), True)


@widens("grad_output", "input", "weight", every=True)
def rms_norm_backward(
    device: Device, grad_output, input, normalized_shape, weight=None, eps=None, weight_offset=0.0
):
    """``grilly.functional.rms_norm_backward`` on a device; documented there."""
    name = "rms_norm_backward"
    shape = extents_of(name, normalized_shape)
    dtype = _checked(device, name, grad_output, input, weight)
    check_last(name, input, shape)
    check_shape(name, "weight", weight, shape)
    kept = len(input.shape) - len(shape)
    eps = RMS_EPSILON if eps is None else check_epsilon(name, eps)
    added = check_added(name, weight_offset)
    terms = Terms("RMS_NORM_BACKWARD", kept, epsilon=eps, added=added, terms=weight is not None)
    return _gradients(device, terms, grad_output, input, weight, dtype, tuple(range(kept)), False)


@widens("grad_output", "input", "weight", every=True)
def group_norm_backward(device: Device, grad_output, input, num_groups, weight=None, eps=1e-5):
    """``grilly.functional.group_norm_backward`` on a device; documented there."""
    name = "group_norm_backward"
    dtype = _checked(device, name, grad_output, input, weight)
    groups = check_groups(name, input, num_groups)
    check_shape(name, "weight", weight, tuple(input.shape[1:2]))
    eps = check_epsilon(name, eps)
    terms = Terms("LAYER_NORM_BACKWARD", 2, groups=groups, epsilon=eps, terms=weight is not None)
    axes = tuple(axis for axis in range(len(input.shape)) if axis != 1)
    return _gradients(device, terms, grad_output, input, weight, dtype, axes, True)


def _checked(device: Device, name: str, grad_output, input, weight) -> np.dtype:
    device.check_open()
    dtype = check_float(name, input=input, grad_output=grad_output, **given(weight=weight))
    check_shape(name, "grad_output", grad_output, tuple(input.shape))
    return dtype


def _gradients(
    device: Device, terms: Terms, grad_output, input, weight, dtype: np.dtype, axes: tuple[int, ...], biased: bool
) -> tuple:
    """Gradients of the input, of the weight and, if ``biased``, of the bias; of the latter sums over the axes."""
    tensors = tuple(sent(device, array) for array in (input, grad_output))
    found: list[Tensor | None]
    if 0 in input.shape:
        found = [device.empty(input.shape, dtype)]
        products = device.empty(input.shape) if terms.terms else None
    else:
        done = run(device, PLANS, plan, (terms,), (*tensors, sent_whole(device, weight), None))
        found, products = [done[0]], done[1] if terms.terms else None
    found.append(None if products is None else _summed(products, axes, dtype))
    if biased:
        found.append(None if products is None else _summed(tensors[1], axes, dtype))
    arrays = tuple(given(input=input, grad_output=grad_output, weight=weight).values())
    return tuple(None if result is None else finish(device, result, *arrays) for result in found)


def _summed(tensor: Tensor, axes: tuple[int, ...], dtype: np.dtype) -> Tensor:
    # With nothing to add up a copy: what was given is the caller's.
    return reduced("sum", tensor, axes, False, dtype) if axes else tensor.astype(dtype)
