"""Which dtype an operation on arrays computes in: the standard's type promotion, and what it leaves open.

Pure: it knows dtypes, no arrays. What the standard leaves open and is allowed here: an integer or boolean array with a
floating one has the floating one's dtype, a boolean array with an integer one the integer's, float16 with bfloat16
gives float32, and a Python float with an integer array float32.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from ..device.dtypes import refused

#: Element types as kernels number them (shaders/arrays/words.glsl).
CODES = {
    "bool": 0, "int8": 1, "uint8": 2, "int16": 3, "uint16": 4, "int32": 5, "uint32": 6, "int64": 7,
    "float32": 8, "float16": 9, "bfloat16": 10,
}  # fmt: skip
#: Kinds of numbers that kernels compute with.
FLOATING, INTEGER, LONG = range(3)

BOOL = np.dtype(np.bool_)
INT32 = np.dtype(np.int32)
INT64 = np.dtype(np.int64)
FLOAT32 = np.dtype(np.float32)
_FLOATS = ("float32", "float16", "bfloat16")


@functools.lru_cache(maxsize=64)
def kind_of(dtype: np.dtype) -> str:
    """"bool", "signed", "unsigned" or "floating". Raises TypeError for a dtype that no tensor has."""
    name = dtype.name
    if name not in CODES:
        raise TypeError(refused(dtype))
    if name == "bool":
        return "bool"
    return "floating" if name in _FLOATS else "unsigned" if name[0] == "u" else "signed"


@functools.lru_cache(maxsize=1024)
def promoted(first: np.dtype, second: np.dtype) -> np.dtype:
    """The dtype of an operation on arrays of two dtypes.

    Raises
    ------
    TypeError
        Where no dtype here holds both.
    """
    if first == second:
        kind_of(first)
        return first
    kinds = {kind_of(first), kind_of(second)}
    if "floating" in kinds:
        floats = [dtype for dtype in (first, second) if kind_of(dtype) == "floating"]
        return floats[0] if len(floats) == 1 else FLOAT32
    if "bool" in kinds:
        return second if kind_of(first) == "bool" else first
    return np.promote_types(first, second)


@functools.lru_cache(maxsize=1024)
def with_scalar(dtype: np.dtype, scalar: type) -> np.dtype:
    """The dtype of an operation on an array and a Python bool, int or float.

    Raises
    ------
    TypeError
        For other scalars.
    """
    kind = kind_of(dtype)
    if issubclass(scalar, bool):
        return dtype
    if issubclass(scalar, int):
        return INT64 if kind == "bool" else dtype
    if issubclass(scalar, float):
        return dtype if kind == "floating" else FLOAT32
    raise TypeError(f"a {scalar.__name__} is no operand for a tensor; expected an array or a bool, int or float")


def default_of(scalar: type) -> np.dtype:
    """The dtype that a Python scalar has by itself."""
    return BOOL if issubclass(scalar, bool) else INT64 if issubclass(scalar, int) else FLOAT32


@functools.lru_cache(maxsize=64)
def number_kind(dtype: np.dtype) -> int:
    """The kind of number in which kernels hold all values of a dtype."""
    if kind_of(dtype) == "floating":
        return FLOATING
    return LONG if dtype.name in ("uint32", "int64") else INTEGER


@functools.lru_cache(maxsize=64)
def integer_range(dtype: np.dtype) -> tuple[int, int]:
    """Least and greatest value of an integer dtype; (0, 1) for bool."""
    if dtype == BOOL:
        return 0, 1
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def check_range(name: str, dtype: np.dtype, *values: int | float) -> None:
    """Raise OverflowError for numbers that an integer dtype does not hold, cut to integers: NaN is one of them."""
    if dtype.kind in "iu":
        low, high = integer_range(dtype)
        for value in values:
            whole = math.trunc(value) if isinstance(value, float) and math.isfinite(value) else value
            if not low <= whole <= high:
                raise OverflowError(f"{name}: {value} is out of bounds for {dtype.name}")
