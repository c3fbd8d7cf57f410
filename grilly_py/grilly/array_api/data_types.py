"""The dtypes, and functions of them."""

from __future__ import annotations

import builtins
import functools
from typing import Any, NamedTuple

import numpy as np

from ..compute.arrays.promotion import kind_of, promoted, with_scalar
from ..compute.backend import Compute
from ..compute.device.dtypes import dtype_of, is_float
from ..compute.device.tensor import Tensor
from .operands import tensor_of

# The standard's `bool` is below the functions, whose annotations mean Python's.
int8 = np.dtype(np.int8)
int16 = np.dtype(np.int16)
int32 = np.dtype(np.int32)
int64 = np.dtype(np.int64)
uint8 = np.dtype(np.uint8)
uint16 = np.dtype(np.uint16)
uint32 = np.dtype(np.uint32)
float16 = np.dtype(np.float16)
float32 = np.dtype(np.float32)

#: The standard's kinds, by the letters that NumPy has for them.
_KINDS = {
    "bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu", "real floating": "f",
    "complex floating": "c", "numeric": "iufc",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """bfloat16, where the package that has it is installed."""
    if name == "bfloat16":
        try:
            return dtype_of(name)
        except ImportError as error:
            raise AttributeError(str(error)) from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def astype(
    x: Tensor | np.ndarray, dtype: Any, /, *, copy: builtins.bool = True, device: Compute | None = None
) -> Tensor:
    """The elements as another dtype, as ``Tensor.astype``; a new tensor unless ``copy`` is False and x has it."""
    x = tensor_of("astype", x)
    found = x if device is None else x.to_device(device)
    return found if copy and found is not x and found.dtype == dtype_of(dtype) else found.astype(dtype, copy=copy)


def _dtype(given: Any) -> np.dtype:
    """A dtype, or that of an array or a number of NumPy's."""
    return dtype_of(given.dtype if isinstance(given, (Tensor, np.ndarray, np.generic)) else given)


@functools.lru_cache(maxsize=256)
def _casts(source: np.dtype, to: np.dtype) -> builtins.bool:
    return promoted(source, to) == to and (kind_of(source) == kind_of(to) or {kind_of(source), kind_of(to)} <= {
        "signed", "unsigned"
    })  # fmt: skip


def can_cast(from_: Any, to: Any, /) -> builtins.bool:
    """Whether the standard's promotion, which mixes no kinds, leads from a dtype, or a tensor's, to another."""
    return _casts(_dtype(from_), dtype_of(to))


def result_type(*arrays_and_dtypes: Any) -> np.dtype:
    """The dtype to which arrays, dtypes and Python numbers promote. Raises TypeError where there is none."""
    if not arrays_and_dtypes:
        raise ValueError("result_type: nothing was given")
    numbers = [one for one in arrays_and_dtypes if isinstance(one, (builtins.bool, int, float))]
    found: np.dtype | None = None
    for one in arrays_and_dtypes:
        if not isinstance(one, (builtins.bool, int, float)):
            dtype = _dtype(one)
            found = dtype if found is None else promoted(found, dtype)
    if found is None:
        raise ValueError("result_type: expected an array or a dtype beside numbers")
    for number in numbers:
        found = with_scalar(found, type(number))  # type: ignore[arg-type]
    return found


def isdtype(dtype: Any, kind: Any) -> builtins.bool:
    """Whether a dtype is another, of a kind ("bool", "signed integer", "unsigned integer", "integral", "real floating",
    "complex floating", "numeric"), or one of a tuple of these. Raises ValueError for an unknown kind."""
    if isinstance(kind, tuple):
        return builtins.any(isdtype(dtype, one) for one in kind)
    dtype = dtype_of(dtype)
    if not isinstance(kind, str):
        return dtype == dtype_of(kind)
    if kind in _KINDS:  # bfloat16 is not NumPy's own, and its letter no number's
        return ("f" if is_float(dtype) else dtype.kind) in _KINDS[kind]
    try:
        named = dtype_of(kind)
    except TypeError:
        named = None
    if named is None or named.name != kind:
        raise ValueError(f"isdtype: kind is {kind!r}; expected one of {', '.join(_KINDS)}, or a dtype")
    return dtype == named


class FloatInfo(NamedTuple):
    """The limits of a floating dtype, as ``finfo`` gives them."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: np.dtype


def finfo(type: Any, /) -> FloatInfo:
    """The limits of a floating dtype."""
    dtype = _dtype(type)
    if dtype.name == "bfloat16":
        import ml_dtypes

        info = ml_dtypes.finfo(dtype)
    else:
        info = np.finfo(dtype)
    numbers = (float(one) for one in (info.eps, info.max, info.min, info.smallest_normal))
    return FloatInfo(int(info.bits), *numbers, dtype)


def iinfo(type: Any, /) -> np.iinfo:
    """The limits of an integer dtype: ``bits``, ``max``, ``min``, ``dtype``."""
    return np.iinfo(_dtype(type))


bool = np.dtype(np.bool_)
