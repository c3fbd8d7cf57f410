"""Arithmetic, comparisons, logic and conversions of each element."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import numpy as np
import onnx

from ... import array_api as xp
from ...compute import Tensor
from ...compute.expressions.records import OPERATIONS
from ...errors import CaptureError
from ..table import Call, integral, is_floating, operator, wide


def _enter_all() -> None:
    """The operators that are functions of the array API, by the names that their records have."""
    for record in OPERATIONS.values():
        function = getattr(xp, record.name, None)
        if record.onnx and function is not None:
            takes_two = len(inspect.signature(function).parameters) == 2
            operator(record.onnx, numbers=takes_two)(lambda call, *operands, function=function: function(*operands))


_enter_all()


@operator("Div", numbers=True)
def divide(call: Call, x: Tensor | float, y: Tensor | float) -> Tensor:
    """The quotient; of integers cut off towards zero."""
    if isinstance(x, float) or isinstance(y, float) or is_floating(x):
        return xp.divide(x, y)
    found = xp.floor_divide(x, y)
    if x.dtype.kind == "u":
        return found
    # Rounded down where the signs differ and something is left.
    low = xp.logical_and(xp.not_equal(xp.remainder(x, y), 0), xp.not_equal(xp.less(x, 0), xp.less(y, 0)))
    return xp.add(found, low.astype(x.dtype, copy=False))


@operator("Mod")
def modulo(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """What division leaves, with the divisor's sign; with ``fmod`` the dividend's."""
    if not call.get("fmod", 0) or x.dtype.kind == "u":
        return xp.remainder(x, y)
    left = xp.remainder(x, y)
    if is_floating(x):
        left = xp.remainder(xp.abs(x), xp.abs(y))
        return xp.where(xp.less(x, 0), xp.negative(left), left)
    # Magnitudes would not do: that of the lowest integer is none of its dtype.
    other = xp.logical_and(xp.not_equal(left, 0), xp.not_equal(xp.less(left, 0), xp.less(x, 0)))
    return xp.where(other, xp.subtract(left, y), left)


@operator("Pow", either=(1,))
def power(call: Call, x: Tensor, y: Tensor | np.ndarray) -> Tensor:
    """The power, in the base's dtype; of integers exact where the exponent is one too, or a constant that is whole."""
    y = call.tensor(integral(x.dtype, y) if isinstance(y, np.ndarray) else y)
    if is_floating(x):
        return xp.pow(wide(x), y.astype(np.float32, copy=False)).astype(x.dtype, copy=False)
    if is_floating(y):
        return xp.pow(x.astype(np.float32, copy=False), wide(y)).astype(x.dtype, copy=False)
    return xp.pow(x, y.astype(x.dtype, copy=False))


@operator("BitShift")
def shift(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """Bits moved to the left or right."""
    return (xp.bitwise_left_shift if call.get("direction") == "LEFT" else xp.bitwise_right_shift)(x, y)


@operator("IsInf")
def is_infinite(call: Call, x: Tensor) -> Tensor:
    """Where elements are infinite, of the signs that count."""
    found = xp.isinf(x)
    if not call.get("detect_positive", 1):
        found = xp.logical_and(found, xp.less(x, 0))
    if not call.get("detect_negative", 1):
        found = xp.logical_and(found, xp.greater(x, 0))
    return found


@operator("Max")
def largest(call: Call, *given: Tensor) -> Tensor:
    """The largest of several arrays' elements."""
    return functools.reduce(xp.maximum, given)


@operator("Min")
def smallest(call: Call, *given: Tensor) -> Tensor:
    """The smallest of several arrays' elements."""
    return functools.reduce(xp.minimum, given)


@operator("Sum")
def total(call: Call, *given: Tensor) -> Tensor:
    """The sum of several arrays, rounded once."""
    return functools.reduce(xp.add, map(wide, given)).astype(given[0].dtype, copy=False)


@operator("Mean")
def mean(call: Call, *given: Tensor) -> Tensor:
    """The mean of several arrays, rounded once."""
    return xp.divide(functools.reduce(xp.add, map(wide, given)), len(given)).astype(given[0].dtype, copy=False)


@operator("Clip", numbers=True)
def clip(call: Call, x: Tensor, low: Tensor | float | None = None, high: Tensor | float | None = None) -> Tensor:
    """Elements kept between two bounds; the upper one where they cross."""
    least = call.get("min") if low is None else low
    most = call.get("max") if high is None else high
    x = x if least is None else xp.maximum(x, least)
    return x if most is None else xp.minimum(x, most)


@operator("Where")
def where(call: Call, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Elements of x where a condition holds, else of y."""
    return xp.where(condition, x, y)


def dtype_of(call: Call, number: int) -> np.dtype[Any]:
    """The dtype that a number of ONNX stands for. Raises UnsupportedError for those that no tensor has."""
    name = onnx.TensorProto.DataType.Name(number).lower()
    known = {"float": "float32", "float16": "float16", "bfloat16": "bfloat16", "bool": "bool"}
    if name not in known and (not name.lstrip("u").startswith("int") or name in ("int4", "uint4", "int2", "uint2",
                                                                                 "uint64")):  # fmt: skip
        raise call.refuse(f"{name} is a dtype that no Tensor has")
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number))


@operator("Cast")
def cast(call: Call, x: Tensor) -> Tensor | np.ndarray:
    """Elements as another dtype; those of uint64, which no Tensor has, on the host."""
    if call.attributes["to"] == onnx.TensorProto.UINT64:
        try:
            found = x.numpy()
        except CaptureError as error:
            raise CaptureError("the host has what is uint64, and the device computes this") from error
        with np.errstate(all="ignore"):
            return found.astype(np.uint64)
    return x.astype(dtype_of(call, call.attributes["to"]), copy=False)


@operator("CastLike")
def cast_like(call: Call, x: Tensor, like: Tensor) -> Tensor:
    """Elements in the dtype of another array."""
    return x.astype(like.dtype, copy=False)


@operator("Identity", either=(0,))
def identity(call: Call, x: Any) -> Any:
    """The same tensor, or sequence."""
    return x
