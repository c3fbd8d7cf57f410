"""Layer norm, RMS norm and group norm."""

from __future__ import annotations

from ..device.arguments import check_float, finish
from ..device.device import Device
from ..device.record import again, run
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


@widens("input", "weight", "bias")
def layer_norm(device: Device, input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """``grilly.functional.layer_norm`` on a device; documented there."""
    return _normed(device, "layer_norm", "LAYER_NORM", input, None, normalized_shape, weight, bias, eps, 0.0)


@widens("input", "weight")
def rms_norm(device: Device, input, normalized_shape, weight=None, eps=None, weight_offset=0.0):
    """``grilly.functional.rms_norm`` on a device; documented there."""
    eps = RMS_EPSILON if eps is None else eps
    return _normed(device, "rms_norm", "RMS_NORM", input, None, normalized_shape, weight, None, eps, weight_offset)


@widens("input", "residual", "weight", "bias", every=True)
def add_layer_norm(device: Device, input, residual, normalized_shape, weight=None, bias=None, eps=1e-5):
    """``grilly.functional.add_layer_norm`` on a device; documented there."""
    name = "add_layer_norm"
    return _normed(device, name, "LAYER_NORM", input, residual, normalized_shape, weight, bias, eps, 0.0)


@widens("input", "residual", "weight", every=True)
def add_rms_norm(device: Device, input, residual, normalized_shape, weight=None, eps=None, weight_offset=0.0):
    """``grilly.functional.add_rms_norm`` on a device; documented there."""
    name, eps = "add_rms_norm", RMS_EPSILON if eps is None else eps
    return _normed(device, name, "RMS_NORM", input, residual, normalized_shape, weight, None, eps, weight_offset)


def _normed(device: Device, name, operation, input, residual, normalized_shape, weight, bias, eps, added):
    device.check_open()
    adds = name.startswith("add_")
    shape = extents_of(name, normalized_shape)
    tensors = (input, residual, weight, bias)
    if type(eps) is type(added) is float and all(a is None or type(a) is Tensor for a in tensors):
        if type(input) is Tensor and (residual is not None) == adds:
            # Like an earlier call, which passed the checks?
            terms = Terms(operation, len(input.shape) - len(shape), epsilon=eps, added=added)
            if input.shape[-len(shape) :] == shape:
                done = again(device, PLANS, (terms,), tensors)
                if done is not None:
                    device.runtime.flush()
                    return tuple(done) if adds else done[0]
    arrays = {"input": input, **({"residual": residual} if adds else {})}
    dtype = check_float(name, **arrays, **given(weight=weight, bias=bias))
    eps, added = check_epsilon(name, eps), check_added(name, added)
    check_last(name, input, shape)
    if adds:
        check_shape(name, "residual", residual, tuple(input.shape))
    check_shape(name, "weight", weight, shape)
    check_shape(name, "bias", bias, shape)
    if 0 in input.shape:
        results = [device.empty(input.shape, dtype) for _ in range(1 + adds)]
    else:
        terms = Terms(operation, len(input.shape) - len(shape), epsilon=eps, added=added)
        sent_all = (sent(device, input), sent(device, residual), sent_whole(device, weight), sent_whole(device, bias))
        results = run(device, PLANS, plan, (terms,), sent_all)
    found = tuple(finish(device, result, *(a for a in tensors if a is not None)) for result in results)
    return found if adds else found[0]


@widens("input", "weight", "bias")
def group_norm(device: Device, input, num_groups, weight=None, bias=None, eps=1e-5):
    """``grilly.functional.group_norm`` on a device; documented there."""
    name = "group_norm"
    device.check_open()
    tensors = (input, None, weight, bias)
    if type(input) is Tensor and type(num_groups) is int and type(eps) is float:
        if all(a is None or type(a) is Tensor for a in tensors):
            # Like an earlier call, which passed the checks?
            done = again(device, PLANS, (Terms("LAYER_NORM", 2, groups=num_groups, epsilon=eps),), tensors)
            if done is not None:
                device.runtime.flush()
                return done[0]
    arrays = {"input": input, **given(weight=weight, bias=bias)}
    dtype = check_float(name, **arrays)
    groups, eps = check_groups(name, input, num_groups), check_epsilon(name, eps)
    check_shape(name, "weight", weight, tuple(input.shape[1:2]))
    check_shape(name, "bias", bias, tuple(input.shape[1:2]))
    if 0 in input.shape:
        result = device.empty(input.shape, dtype)
    else:
        terms = Terms("LAYER_NORM", 2, groups=groups, epsilon=eps)
        sent_all = (sent(device, input), None, sent_whole(device, weight), sent_whole(device, bias))
        (result,) = run(device, PLANS, plan, (terms,), sent_all)
    return finish(device, result, *arrays.values())
