"""Arguments and results: the checks that all operations share, arrays on their way to the device and back."""

from __future__ import annotations

import sys

import numpy as np

from .device import Device
from .dtypes import FLOATS_TEXT, dtype_of, is_float
from .other_arrays import called, is_parameter, is_torch, refuse_hidden
from .tensor import Tensor

FLOAT32 = np.dtype(np.float32)
#: What float32 may be computed from: float32 products, or also products of its 16-bit parts.
PRECISIONS = ("highest", "high")


def check_backend(operation: str, device: Device, *arrays) -> None:
    """Raise ValueError for a tensor of another backend among the arrays, and the pairs of arrays."""
    for array in arrays:
        if isinstance(array, (tuple, list)) and len(array) == 2:
            check_backend(operation, device, *array)
        elif isinstance(array, Tensor) and array._storage.device is not device.home:
            raise ValueError(f"{operation}: a tensor belongs to another backend; move it with backend.tensor(...)")


def no_array(operation: str, name: str, given) -> TypeError:
    """The error for an argument of another type than NumPy arrays and Tensors, with the way to make it one."""
    way = ""
    if is_torch(given):
        # Functions alone have their like there; what else calls this is a layer or a method.
        is_function = operation in getattr(sys.modules.get("grilly.functional"), "__all__", ())
        there = f"functional.{operation}" if is_function else "lift (any operation)"
        if "attention" in operation and not operation.endswith("_backward"):
            there += ", and with gradients grilly.torch.attention and scaled_dot_product_attention"
        way = f"; for PyTorch's tensors there is grilly.torch.{there}; or give {name}.numpy()"
    elif is_parameter(given):
        way = f"; give {name}.on(backend)"
    elif hasattr(given, "__dlpack__"):
        way = f"; give grilly.from_dlpack({name})"
    elif hasattr(given, "__array__"):
        way = f"; give numpy.asarray({name})"
    return TypeError(f"{operation}: {name} is a {called(given)}; expected a numpy.ndarray or a grilly.Tensor{way}")


def check_float(operation: str, **arrays) -> np.dtype:
    """The common dtype of the named arrays, in this machine's byte order, whatever theirs is.

    Raises TypeError unless all are of one floating type of ours.
    """
    first = None
    for name, array in arrays.items():
        if array.__class__ is not Tensor and array.__class__ is not np.ndarray:
            if not isinstance(array, (np.ndarray, Tensor)):
                raise no_array(operation, name, array)
            refuse_hidden(f"{operation}: {name}", array)
        dtype = array.dtype if array.__class__ is Tensor else dtype_of(array.dtype)
        if not is_float(dtype):
            raise TypeError(
                f"{operation}: {name} is {dtype}; expected {FLOATS_TEXT}; cast with {name}.astype(numpy.float32)"
            )
        if first is None:
            first = (name, dtype)
        elif dtype != first[1]:
            raise TypeError(f"{operation}: {name} is {dtype} and {first[0]} is {first[1]}; give both the same dtype")
    return first[1]


def check_precision(operation: str, precision) -> bool:
    """Whether ``precision`` is "high". Raises ValueError unless it is one of PRECISIONS."""
    if precision not in PRECISIONS:
        raise ValueError(f"{operation}: precision is {precision!r}; expected 'highest' or 'high'")
    return precision == "high"


def to_device(device: Device, array) -> Tensor:
    """The array as a tensor of the device with a contiguous last axis, as kernels ask."""
    if not isinstance(array, Tensor):
        if array.shape[-1] > 1 and array.strides[-1] != array.itemsize:
            array = np.ascontiguousarray(array)
        return device.borrow(array)
    return array if array.shape[-1] <= 1 or array._strides[-1] == 1 else array.contiguous()


def four_axes(tensor: Tensor) -> Tensor:
    """A tensor of up to four axes with axes of extent 1 put before them."""
    return tensor[(None,) * (4 - tensor.ndim)] if tensor.ndim < 4 else tensor


def finish(device: Device, result: Tensor, *inputs):
    """The result of an operation: the tensor if any input is one (its work submitted), else a NumPy array."""
    for array in inputs:
        if isinstance(array, Tensor):
            device.runtime.flush()
            return result
    return result.numpy()
