"""Elementwise operations on tensors, with operands that are tensors, arrays or Python numbers."""

from __future__ import annotations

import functools
import math

import numpy as np

from ..device.call import call
from ..device.device import Device
from ..device.dtypes import dtype_of
from ..device.other_arrays import no_operand, refuse_hidden
from ..device.tensor import Tensor
from ..expressions.records import OPERATIONS
from ..expressions.scalars import Scalar
from .assign import assign
from .map import map_into, mapped, plan, replaceable, words
from .operations import Spec, spec
from .promotion import FLOAT32, INT32, INT64, default_of, kind_of, promoted, with_scalar

_NUMBERS = (int, float, bool)


@functools.lru_cache(maxsize=4096)
def _pair(name: str, first: np.dtype, second: np.dtype) -> Spec:
    return spec(name, promoted(first, second))


@functools.lru_cache(maxsize=4096)
def _scalar_after(name: str, dtype: np.dtype, scalar: type) -> Spec:
    return spec(name, with_scalar(dtype, scalar), scalars=(1,))


@functools.lru_cache(maxsize=4096)
def _scalar_before(name: str, dtype: np.dtype, scalar: type) -> Spec:
    return spec(name, with_scalar(dtype, scalar), scalars=(0,))


@functools.lru_cache(maxsize=4096)
def _alone(name: str, dtype: np.dtype) -> Spec:
    return spec(name, dtype)


def operand(name: str, device: Device, value) -> Tensor | bool | int | float:
    """An operand as the operations take it: a tensor, or a Python number.

    NumPy arrays and scalars go to the device; NumPy's float64 scalars are Python floats.

    Raises
    ------
    TypeError
        For what is neither an array nor a number, and for arrays of a dtype that no tensor has.
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, (np.ndarray, np.generic)):
        if isinstance(value, np.matrix):
            raise TypeError(f"{name}: an operand is a numpy.matrix, whose * and ** are products of matrices; give "
                            "numpy.asarray(matrix)")  # fmt: skip
        refuse_hidden(name, value)
        return device.tensor(np.asarray(value))
    raise no_operand(name, value)


def unary(name: str, x: Tensor) -> Tensor:
    """The operation ``name`` of OPERATIONS on one tensor, or on a scalar of a function."""
    if x.__class__ is Scalar:
        return Scalar.operations[name](x)
    return call(x._storage.device, plan, (_alone(name, x.dtype),), (x,))[0]


def _bound(name: str, x, y) -> tuple[Spec, tuple, tuple]:
    """The operation on two operands, at least one a tensor: what is asked, tensors, and the words of a number."""
    if x.__class__ is Tensor:
        if y.__class__ is Tensor:
            return _pair(name, x.dtype, y.dtype), (x, y, None), ()
        if name == "pow" and y.__class__ is int and y < 0 and kind_of(x.dtype) != "floating":
            raise ValueError(f"pow: {x.dtype.name} to the power {y} is no integer; cast the tensor to a floating dtype")
        asked, operands, value = _scalar_after(name, x.dtype, y.__class__), (x,), y
    else:
        asked, operands, value = _scalar_before(name, y.dtype, x.__class__), (None, y, None), x
    try:
        return asked, operands, words(asked, value)
    except OverflowError:
        if not OPERATIONS[name].is_test:
            raise
        # An integer that int64 does not hold either is above, or below, all that a tensor has: as an infinity is.
        if not -(2**63) <= value < 2**63:
            asked, value = spec(name, FLOAT32, scalars=asked.scalars), math.inf if value > 0 else -math.inf
        else:
            asked = spec(name, INT64, scalars=asked.scalars)
        return asked, operands, words(asked, value)


def binary(name: str, x, y) -> Tensor:
    """The operation ``name`` on two operands, at least one of which is a tensor.

    Raises
    ------
    TypeError
        Where an operand is neither array nor number, and where the operation does not take the dtypes.
    ValueError
        For shapes that do not broadcast, tensors of different backends, and integers to a negative power.
    OverflowError
        For a Python integer that the tensor's dtype does not hold; comparisons take it.
    """
    if x.__class__ is Tensor:
        device = x._storage.device
        if y.__class__ is not Tensor and y.__class__ not in _NUMBERS:
            if y.__class__ is Scalar:
                return Scalar.operations[name](x, y)
            y = operand(name, device, y)
    else:
        if x.__class__ is Scalar or y.__class__ is Scalar:
            return Scalar.operations[name](x, y)
        device = y._storage.device
        if x.__class__ not in _NUMBERS:
            x = operand(name, device, x)
    if x.__class__ is Tensor and y.__class__ is Tensor:
        asked, operands, live = _pair(name, x.dtype, y.dtype), (x, y, None), ()
    else:
        asked, operands, live = _bound(name, x, y)

    def check(*tensors: Tensor | None) -> None:
        check_broadcast(name, *tensors)

    return call(device, plan, (asked,), operands, check, live)[0]


def next_after(x, y) -> Tensor:
    """The number next to x on the way to y; both as for ``binary``."""
    if x.__class__ is Scalar or y.__class__ is Scalar:
        return Scalar.operations["nextafter"](x, y)
    device = (x if isinstance(x, Tensor) else y)._storage.device
    x, y = operand("nextafter", device, x), operand("nextafter", device, y)
    pair = [one.dtype if isinstance(one, Tensor) else one for one in (x, y)]
    tensors = [one for one in pair if isinstance(one, np.dtype)]
    dtype = promoted(*tensors) if len(tensors) == 2 else tensors[0]
    if kind_of(dtype) != "floating" or dtype.itemsize != 2:
        return binary("nextafter", x, y)
    # By the bits: kernels compute in float32, whose next number rounds back to x.
    x, y = (
        cast(one if isinstance(one, Tensor) else device.tensor(np.asarray(one).astype(dtype)), dtype) for one in (x, y)
    )
    bits = cast(_as_bits(x, np.dtype(np.int16)), INT32)
    away = binary("not_equal", binary("less", x, y), binary("less", bits, 0))
    least = where(unary("signbit", y), -0x7FFF, 1)
    moved = where(binary("bitwise_and", bits, 0x7FFF), binary("add", bits, where(away, 1, -1)), least)
    found = _as_bits(cast(moved, np.dtype(np.int16)), dtype)
    found = where(binary("logical_or", unary("isnan", x), unary("isnan", y)), math.nan, found)
    return where(binary("equal", x, y), y, found)


def _as_bits(x: Tensor, dtype: np.dtype) -> Tensor:
    """A view of the elements' bits as another dtype of the same size."""
    return Tensor(x._storage, x.shape, dtype, x._strides, x._offset)


def in_place(name: str, x: Tensor, y) -> Tensor:
    """``x`` with its elements replaced by the result of ``binary``; what views the same memory sees it.

    Raises
    ------
    TypeError
        Where the result would have another dtype, and as ``binary``.
    ValueError
        Where it would have another shape, where x has an element at several places, and as ``binary``.
    """
    device = x._storage.device
    if y.__class__ is not Tensor and y.__class__ not in _NUMBERS:
        y = operand(name, device, y)
    check_writable(name, x)
    asked, operands, live = _bound(name, x, y)
    if asked.gives != x.dtype:
        raise TypeError(f"{name}: the result is {asked.gives.name}, which does not replace a tensor of {x.dtype.name}")
    if y.__class__ is Tensor and check_broadcast(name, *operands) != x.shape:
        raise ValueError(f"{name}: operands of shapes {x.shape} and {y.shape} give no result of shape {x.shape}")
    if replaceable(x, operands):
        map_into(device, asked, operands, x, live)
    else:
        assign(device, x, mapped(device, asked, operands, live))
    device.runtime.flush()
    return x


def check_writable(name: str, x: Tensor) -> None:
    """Raise ValueError for a view that has an element at several places."""
    if x.size and any(step == 0 and extent > 1 for extent, step in zip(x.shape, x._strides, strict=True)):
        raise ValueError(f"{name}: the tensor of shape {x.shape} is a broadcast view, whose elements stand at several "
                         "places; write to a copy")  # fmt: skip


def check_broadcast(name: str, *operands: Tensor | None) -> tuple[int, ...]:
    """The shape to which tensors broadcast. Raises ValueError where there is none, or for several backends."""
    tensors = [t for t in operands if t is not None]
    if len({id(t._storage.device) for t in tensors}) > 1:
        raise ValueError(f"{name}: the tensors belong to different backends; move one with .tensor(...)")
    try:
        return np.broadcast_shapes(*(t.shape for t in tensors))
    except ValueError:
        shapes = " and ".join(str(t.shape) for t in tensors)
        raise ValueError(f"{name}: shapes {shapes} do not broadcast") from None


def _three(name: str, dtype: np.dtype, device: Device, first: Tensor, others: list, gives=None) -> Tensor:
    """An operation on a tensor and two more operands, tensors or numbers or None."""
    scalars = tuple(n for n, value in enumerate(others, 1) if value is not None and not isinstance(value, Tensor))
    asked = spec(name, dtype, gives, scalars)
    live: tuple = ()
    for number in scalars:
        live += words(asked, others[number - 1])
    operands = (first, *(value if isinstance(value, Tensor) else None for value in others))
    check_broadcast(name, *operands)
    return call(device, plan, (asked,), operands, live=live)[0]


def where(condition: Tensor, x, y) -> Tensor:
    """Elements of x where ``condition`` is true, else of y; both may be numbers."""
    if Scalar in (condition.__class__, x.__class__, y.__class__):
        return Scalar.operations["where"](condition, x, y)
    device = condition._storage.device
    if kind_of(condition.dtype) == "floating":  # the kernel asks for bits that are not zero, as those of -0.0
        condition = binary("not_equal", condition, 0)
    x, y = operand("where", device, x), operand("where", device, y)
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        dtype = promoted(x.dtype, y.dtype)
    elif isinstance(x, Tensor):
        dtype = with_scalar(x.dtype, type(y))
    elif isinstance(y, Tensor):
        dtype = with_scalar(y.dtype, type(x))
    else:
        dtype = promoted(default_of(type(x)), default_of(type(y)))
    return _three("where", dtype, device, condition, [x, y])


def clip(x: Tensor, low=None, high=None) -> Tensor:
    """x with elements below ``low`` and above ``high`` replaced by these; of x's dtype."""
    if Scalar in (x.__class__, low.__class__, high.__class__):
        return Scalar.operations["clip"](x, low, high)
    device = x._storage.device
    low, high = (None if value is None else operand("clip", device, value) for value in (low, high))
    bounds = [value for value in (low, high) if value is not None]
    dtype = x.dtype
    for value in bounds:
        if isinstance(value, Tensor):
            dtype = promoted(dtype, value.dtype)
        elif with_scalar(dtype, type(value)) != dtype:
            raise TypeError(f"clip: x is {x.dtype.name} and a bound {value!r}; expected a bound of x's kind")
    if dtype != x.dtype:
        raise TypeError(f"clip: x is {x.dtype.name}, which does not hold a bound of {dtype.name}")
    if not bounds:
        return cast(x, x.dtype, copy=True)
    if low is None:
        return binary("minimum", x, high)
    if high is None:
        return binary("maximum", x, low)
    return _three("clip", dtype, device, x, [low, high])


def cast(x: Tensor, dtype, copy: bool = False) -> Tensor:
    """The elements as another dtype, a new tensor in C order; x itself where it has the dtype, unless ``copy``.

    Floating numbers lose their fraction on the way to integers, and the nearest integer stands for what is too large
    for int64; of larger integers the lower bits stay. To 16 bits rounds to nearest, ties to even.

    Raises
    ------
    TypeError
        For a dtype that no tensor has.
    """
    if x.__class__ is Scalar:
        return x.astype(dtype)
    dtype = dtype_of(dtype)
    if dtype == x.dtype and not copy:
        return x
    return call(x._storage.device, plan, (converts(x.dtype, dtype),), (x,))[0]


@functools.lru_cache(maxsize=256)
def converts(dtype: np.dtype, to: np.dtype) -> Spec:
    """A copy from one dtype to another."""
    kind_of(to)
    return spec("copy", dtype, to)
