"""Activations, their gated forms and their gradients: operations of the elementwise kernel on floating arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..device.arguments import check_float, finish
from ..device.call import call
from ..device.device import Device
from ..device.tensor import Tensor
from .axes import axis_of, two_parts
from .map import plan, words
from .operations import spec
from .promotion import FLOAT32
from .shapes import concat

#: In which numbers of activations are told.
_NUMBERS = spec("relu", FLOAT32)
_APPROXIMATIONS = {"none": "gelu", "tanh": "gelu_tanh"}


def gelu_of(operation: str, approximate) -> str:
    """The activation that PyTorch's ``approximate`` names. Raises ValueError but for "none" and "tanh"."""
    if approximate not in _APPROXIMATIONS:
        raise ValueError(f"{operation}: approximate is {approximate!r}; expected 'none' or 'tanh'")
    return _APPROXIMATIONS[approximate]


def apply(device: Device, operation: str, name: str, numbers: Sequence[float] = (), **arrays):
    """The activation, or derivative, ``name`` of arrays of one shape and floating dtype, given by their names.

    Parameters
    ----------
    numbers : sequence of float
        The numbers of the activation's record. They are not rounded to 16 bits.

    Raises
    ------
    TypeError
        For other dtypes, or differing ones.
    ValueError
        For differing shapes, or tensors of different backends.
    """
    given = tuple(arrays.values())
    dtype = given[0].dtype if given[0].__class__ is Tensor else check_float(operation, **arrays)

    def check(*operands) -> None:
        check_float(operation, **arrays)
        first, *others = arrays
        for other in others:
            if tuple(arrays[other].shape) != tuple(given[0].shape):
                raise ValueError(f"{operation}: {other} has shape {tuple(arrays[other].shape)} and {first} "
                                 f"{tuple(given[0].shape)}; expected one shape")  # fmt: skip

    live: tuple = ()
    for value in numbers:
        live += words(_NUMBERS, value)
    asked = spec(name, dtype, None, tuple(range(len(given), len(given) + len(numbers))))
    return call(device, plan, (asked,), given, check, live)[0]


def halves(device: Device, operation: str, input, dim) -> tuple[Tensor, Tensor, int]:
    """The two halves of an array along an axis, as views, and the axis from 0 on. Raises ValueError for odd extents."""
    check_float(operation, input=input)
    axis = axis_of(operation, dim, len(input.shape))
    extent = input.shape[axis]
    if extent % 2:
        raise ValueError(f"{operation}: input has shape {tuple(input.shape)}; axis {axis} must have an even extent")
    whole = device.borrow(input)
    first, second = two_parts(axis, extent // 2)
    return whole[first], whole[second], axis


def glu(device: Device, input, dim):
    """``grilly.functional.glu`` on a device; documented there."""
    value, gate, _ = halves(device, "glu", input, dim)
    return finish(device, apply(device, "glu", "sigmoid", gate=gate, value=value), input)


def glu_backward(device: Device, grad_output, input, dim):
    """``grilly.functional.glu_backward`` on a device; documented there."""
    name = "glu_backward"
    check_float(name, grad_output=grad_output, input=input)
    value, gate, axis = halves(device, name, input, dim)
    if tuple(grad_output.shape) != gate.shape:
        raise ValueError(f"{name}: grad_output has shape {tuple(grad_output.shape)}; expected {gate.shape}")
    grad = device.borrow(grad_output)
    by_value = apply(device, name, "sigmoid", gate=gate, grad_output=grad)
    by_gate = apply(device, name, "sigmoid_derivative", gate=gate, grad_output=grad, value=value)
    return finish(device, concat((by_value, by_gate), axis), grad_output, input)


def gated_backward(device: Device, operation: str, name: str, grad_output, gate, up):
    """The gradients of ``activation(gate) * up`` by gate and up."""
    arrays = {"gate": gate, "grad_output": grad_output}
    by_gate = apply(device, operation, f"{name}_derivative", **arrays, up=up)
    by_up = apply(device, operation, name, **arrays)
    if not isinstance(by_gate, np.ndarray) and isinstance(by_up, np.ndarray):
        by_up = device.tensor(by_up)
    return by_gate, by_up
