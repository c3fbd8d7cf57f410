"""Softmax and its logarithm along any axis, with their gradients."""

from __future__ import annotations

from ..device.arguments import check_float
from ..device.call import call
from ..device.device import Device
from ..device.numbers import integer
from .checks import check_axis, check_shape
from .plan import NormTerms, plan


def softmax(device: Device, input, dim=-1):
    """``grilly.functional.softmax`` on a device; documented there."""
    return along(device, "softmax", "SOFTMAX", input, None, dim, "input")


def log_softmax(device: Device, input, dim=-1):
    """``grilly.functional.log_softmax`` on a device; documented there."""
    return along(device, "log_softmax", "LOG_SOFTMAX", input, None, dim, "input")


def softmax_backward(device: Device, grad_output, output, dim=-1):
    """``grilly.functional.softmax_backward`` on a device; documented there."""
    return along(device, "softmax_backward", "SOFTMAX_BACKWARD", output, grad_output, dim, "output")


def log_softmax_backward(device: Device, grad_output, output, dim=-1):
    """``grilly.functional.log_softmax_backward`` on a device; documented there."""
    return along(device, "log_softmax_backward", "LOG_SOFTMAX_BACKWARD", output, grad_output, dim, "output")


def along(device: Device, name: str, operation: str, input, gradient, dim, label: str):
    """Apply a softmax, or its gradient, along axis ``dim`` of ``input``.

    Parameters
    ----------
    name : str
        The public function's, for errors.
    operation : str
        A name of the shaders' table "norms".
    gradient
        The output's gradient, for operations that end with "_BACKWARD"; otherwise None.
    label : str
        What errors call ``input``.
    """
    backward = operation.endswith("_BACKWARD")
    dim = dim if dim.__class__ is int else integer(name, "dim", dim)
    axis = dim + len(getattr(input, "shape", ())) if dim < 0 else dim

    def check(input, gradient, *others) -> None:
        check_float(name, **{label: input}, **({"grad_output": gradient} if backward else {}))
        if not input.shape:
            raise ValueError(f"{name}: {label} has no axes; expected at least one")
        check_axis(name, len(input.shape), dim, label)
        if backward:
            check_shape(name, "grad_output", gradient, tuple(input.shape))

    terms = NormTerms(operation, -1, axis)
    return call(device, plan, (terms,), (input, gradient, None, None), check, floats=1 + backward)[0]
