"""Softmax and its logarithm along any axis, with their gradients."""

from __future__ import annotations

from ..device.arguments import check_float, finish
from ..device.device import Device
from ..device.record import again, run
from ..device.sixteen_bits import widens
from ..device.tensor import Tensor
from .checks import check_axis, check_shape, sent
from .plan import PLANS, Terms, plan


@widens("input")
def softmax(device: Device, input, dim=-1):
    """``grilly.functional.softmax`` on a device; documented there."""
    return along(device, "softmax", "SOFTMAX", input, None, dim, "input")


@widens("input")
def log_softmax(device: Device, input, dim=-1):
    """``grilly.functional.log_softmax`` on a device; documented there."""
    return along(device, "log_softmax", "LOG_SOFTMAX", input, None, dim, "input")


@widens("grad_output", "output")
def softmax_backward(device: Device, grad_output, output, dim=-1):
    """``grilly.functional.softmax_backward`` on a device; documented there."""
    return along(device, "softmax_backward", "SOFTMAX_BACKWARD", output, grad_output, dim, "output")


@widens("grad_output", "output")
def log_softmax_backward(device: Device, grad_output, output, dim=-1):
    """``grilly.functional.log_softmax_backward`` on a device; documented there."""
    return along(device, "log_softmax_backward", "LOG_SOFTMAX_BACKWARD", output, grad_output, dim, "output")


def along(device: Device, name: str, operation: str, input, gradient, dim, label: str):
    """``operation`` (the shaders' name) of the rows along an axis of ``input``, which errors call ``label``.

    ``gradient`` is None, but for gradients.
    """
    device.check_open()
    backward = operation.endswith("_BACKWARD")
    tensors = (input, gradient, None, None)
    if type(input) is Tensor and (type(gradient) is Tensor) == backward and type(dim) is int:
        # Like an earlier call, which passed the checks?
        axis = dim + len(input.shape) if dim < 0 else dim
        done = again(device, PLANS, (Terms(operation, -1, axis),), tensors) if axis >= 0 else None
        if done is not None:
            device.runtime.flush()
            return done[0]
    dtype = check_float(name, **{label: input}, **({"grad_output": gradient} if backward else {}))
    if not input.shape:
        raise ValueError(f"{name}: {label} has no axes; expected at least one")
    axis = check_axis(name, len(input.shape), dim, label)
    if backward:
        check_shape(name, "grad_output", gradient, tuple(input.shape))
    if 0 in input.shape:
        result = device.empty(input.shape, dtype)
    else:
        sent_all = (sent(device, input), sent(device, gradient), None, None)
        (result,) = run(device, PLANS, plan, (Terms(operation, -1, axis),), sent_all)
    return finish(device, result, *(a for a in tensors if a is not None))
