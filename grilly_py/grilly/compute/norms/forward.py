"""Layer norm, RMS norm and group norm."""

from __future__ import annotations

from ..device.arguments import check_float
from ..device.call import call
from ..device.device import Device
from ..device.numbers import integer, number
from .checks import RMS_EPSILON, check_added, check_epsilon, check_groups, check_last, check_shape, extents_of, given
from .plan import NormTerms, plan


def layer_norm(device: Device, input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """``grilly.functional.layer_norm`` on a device; documented there."""
    return _normed(device, "layer_norm", "LAYER_NORM", input, None, normalized_shape, weight, bias, eps, 0.0)


def rms_norm(device: Device, input, normalized_shape, weight=None, eps=None, weight_offset=0.0):
    """``grilly.functional.rms_norm`` on a device; documented there."""
    eps = RMS_EPSILON if eps is None else eps
    return _normed(device, "rms_norm", "RMS_NORM", input, None, normalized_shape, weight, None, eps, weight_offset)


def add_layer_norm(device: Device, input, residual, normalized_shape, weight=None, bias=None, eps=1e-5):
    """``grilly.functional.add_layer_norm`` on a device; documented there."""
    name = "add_layer_norm"
    return _normed(device, name, "LAYER_NORM", input, residual, normalized_shape, weight, bias, eps, 0.0)


def add_rms_norm(device: Device, input, residual, normalized_shape, weight=None, eps=None, weight_offset=0.0):
    """``grilly.functional.add_rms_norm`` on a device; documented there."""
    name, eps = "add_rms_norm", RMS_EPSILON if eps is None else eps
    return _normed(device, name, "RMS_NORM", input, residual, normalized_shape, weight, None, eps, weight_offset)


def _normed(device: Device, name, operation, input, residual, normalized_shape, weight, bias, eps, added):
    adds = name.startswith("add_")
    shape = extents_of(name, normalized_shape)
    eps = eps if eps.__class__ is float else number(name, "eps", eps)
    added = added if added.__class__ is float else number(name, "weight_offset", added)

    def check(input, residual, weight, bias) -> None:
        arrays = {"input": input, **({"residual": residual} if adds else {})}
        check_float(name, **arrays, **given(weight=weight, bias=bias))
        check_epsilon(name, eps)
        check_added(name, added)
        check_last(name, input, shape)
        if adds:
            check_shape(name, "residual", residual, tuple(input.shape))
        check_shape(name, "weight", weight, shape)
        check_shape(name, "bias", bias, shape)

    terms = NormTerms(operation, len(getattr(input, "shape", ())) - len(shape), epsilon=eps, added=added)
    tensors = (input, residual, weight, bias)
    found = call(device, plan, (terms, shape, adds), tensors, check, floats=4, results=1 + adds)
    return tuple(found) if adds else found[0]


def group_norm(device: Device, input, num_groups, weight=None, bias=None, eps=1e-5):
    """``grilly.functional.group_norm`` on a device; documented there."""
    name = "group_norm"
    groups = integer(name, "num_groups", num_groups)
    eps = eps if eps.__class__ is float else number(name, "eps", eps)

    def check(input, residual, weight, bias) -> None:
        check_float(name, input=input, **given(weight=weight, bias=bias))
        check_groups(name, input, groups)
        check_epsilon(name, eps)
        check_shape(name, "weight", weight, tuple(input.shape[1:2]))
        check_shape(name, "bias", bias, tuple(input.shape[1:2]))

    terms = NormTerms("LAYER_NORM", 2, groups=groups, epsilon=eps)
    return call(device, plan, (terms,), (input, None, weight, bias), check, floats=4)[0]
