"""New tensors: of one value, of a row of numbers, of what an array holds."""

from __future__ import annotations

import math

import numpy as np

from ...errors import OutOfDeviceMemoryError
from ..device.capsules import on_host
from ..device.device import Device
from ..device.dtypes import dtype_of, is_float, is_storable, refused
from ..device.numbers import extents, integer, number
from ..device.other_arrays import refuse_hidden
from ..device.tensor import Tensor
from .elementwise import cast
from .map import map_into, words
from .operations import spec
from .promotion import BOOL, FLOAT32, INT64, check_range, default_of, kind_of


def full(device: Device, shape, value, dtype=None, name: str = "full") -> Tensor:
    """A tensor of one value; in the value's own dtype where none is named. ``name`` is what errors call the function.

    Raises
    ------
    TypeError
        For a value that is no number, a dtype that no tensor has, and a shape that is not of integers.
    OverflowError
        For a number that an integer dtype does not hold.
    """
    if isinstance(value, Tensor):
        value = value.item()
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        raise TypeError(f"{name}: the value is a {type(value).__name__}; expected a number")
    dtype = default_of(type(value)) if dtype is None else dtype_of(dtype)
    shape = extents(name, shape)
    check_range(name, dtype, value)
    kind_of(dtype)
    found = device.empty(shape, dtype)  # before a plan, which would be long for what no device holds
    fill(device, found, value)
    device.runtime.flush()
    return found


def fill(device: Device, target: Tensor, value: bool | int | float) -> None:
    """Give the elements of what is ``replaceable`` one value, which its dtype holds. Nothing is submitted."""
    if target.size:
        asked = spec("copy", target.dtype, scalars=(0,))
        number = int(value) if target.dtype.kind in "iu" else bool(value) if target.dtype == BOOL else value
        map_into(device, asked, (None,) * 3, target, words(asked, number))  # the value is no part of the plan


def asarray(device: Device, value, dtype=None, copy: bool | None = None) -> Tensor:
    """A tensor of an array, a tensor, a number or nested lists of them.

    Python floats become float32, integers int64. ``copy`` False raises ValueError where a copy would be needed; True
    copies a tensor too.
    """
    asked = None if dtype is None else dtype_of(dtype)
    if isinstance(value, Tensor):
        if copy is False and (asked not in (None, value.dtype) or value._storage.device is not device.home):
            raise ValueError("asarray: another dtype or device needs a copy")
        value = device.tensor(value)
        return cast(value, asked or value.dtype, copy=bool(copy))
    if copy is False:
        raise ValueError("asarray: what is on the host needs a copy to be on the device; grilly.pinned has such memory")
    refuse_hidden("asarray", value)
    if isinstance(value, (np.ndarray, np.generic)) and not isinstance(value, float):
        array = np.asarray(value)
        if asked is not None and array.dtype.kind == "O":
            return device.tensor(host_numbers("asarray", array.tolist(), asked))
        return device.tensor(array if asked is None else _converted(array, asked))
    if not isinstance(value, float) and (hasattr(value, "__dlpack__") or hasattr(value, "__array__")):
        array = _of_another_library(value)
        if not is_storable(array.dtype) and asked is None:  # it keeps its dtype, as NumPy's does
            raise TypeError(refused(array.dtype))
        return device.tensor(array if asked is None else _converted(array, asked))
    return device.tensor(host_numbers("asarray", value, asked))


def _of_another_library(value) -> np.ndarray:
    if hasattr(value, "__array__"):
        try:
            return np.asarray(value)
        except TypeError:  # of a dtype that NumPy lacks, such as bfloat16
            if not hasattr(value, "__dlpack__"):
                raise
    return on_host(value)


def _converted(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if array.dtype.kind not in "biuf" and not is_float(array.dtype):
        raise TypeError(f"asarray: an array of {array.dtype}; expected integers, floats or bool")
    return within("asarray", array, dtype)


def within(name: str, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A copy of a host's array as ``dtype``. Raises OverflowError for floats that an integer dtype does not hold."""
    if (array.dtype.kind == "f" or is_float(array.dtype)) and dtype.kind in "iu" and array.size:
        numbers = array if array.dtype.kind == "f" else array.astype(FLOAT32)
        check_range(name, dtype, float(numbers.min()), float(numbers.max()))  # NaN is both, where there is one
    return array.astype(dtype)


def host_numbers(name: str, value, dtype: np.dtype | None) -> np.ndarray:
    """Python numbers, and nested lists of them, as an array; float32, int64 or bool where no dtype is named.

    Raises
    ------
    TypeError
        For what are no numbers.
    OverflowError
        For numbers that an integer dtype does not hold, infinities and NaN among them.
    """
    if isinstance(value, (list, tuple)):
        value = _plain(value)
    array = np.asarray(value)
    if array.dtype.kind in "fO" and (dtype is None or dtype.kind != "f"):
        whole = np.asarray(value, object)  # integers beyond 64 bits, or with others beyond 63, are not kept by NumPy
        array = whole if all(type(one) is int for one in whole.flat) and whole.size else array
    if array.dtype.kind == "O" and dtype is not None and kind_of(dtype) == "floating":
        array = np.asarray([number(name, "a value", one) for one in array.flat]).reshape(array.shape)
    if array.dtype.kind not in "biuf" and not (array.size and all(type(one) is int for one in array.flat)):
        raise TypeError(f"{name}: {type(value).__name__} of {array.dtype}; expected numbers")
    if dtype is None:
        dtype = FLOAT32 if array.dtype.kind == "f" else BOOL if array.dtype.kind == "b" else INT64
    if array.dtype.kind in "iuO" and array.size:
        check_range(name, dtype, int(array.min()), int(array.max()))
    return within(name, array, dtype)


def _plain(value):
    """Nested lists with tensors of no axes as numbers."""
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value.item() if isinstance(value, Tensor) and not value.ndim else value


def arange(device: Device, start, stop=None, step=1, dtype=None) -> Tensor:
    """Numbers from ``start`` up to but not ``stop``; int64 where all are integers, else float32, or as ``dtype``.

    Raises
    ------
    TypeError
        For what is no number, and a dtype that no tensor has.
    ValueError
        For a step of 0, and what is not finite.
    OverflowError
        For integers that the dtype does not hold.
    OutOfDeviceMemoryError
        For more numbers than the device has room for.
    """
    if stop is None:
        start, stop = 0, start
    start, stop, step = (_number(name, one) for name, one in (("start", start), ("stop", stop), ("step", step)))
    whole = all(isinstance(one, int) for one in (start, stop, step))
    asked = (INT64 if whole else FLOAT32) if dtype is None else dtype_of(dtype)
    if not step or not all(map(math.isfinite, (start, stop, step))):
        raise ValueError(f"arange: from {start} to {stop} by {step}; expected finite numbers, and a step other than 0")
    quotient = -((start - stop) // step) if whole else (stop - start) / step
    if quotient * asked.itemsize > device.most_memory:
        raise OutOfDeviceMemoryError(
            f"arange: from {start} to {stop} by {step} are more numbers than the device has room for"
        )
    count = max(math.ceil(quotient), 0)
    if whole:
        if count:
            check_range("arange", asked, start, start + step * (count - 1))
        if max(abs(start), abs(start + step * count), abs(step)) >= 2**63:  # as Python's, though each of them may fit
            return device.tensor(np.array([start + step * place for place in range(count)], object).astype(asked))
        return device.tensor((start + step * np.arange(count, dtype=np.int64)).astype(asked))
    return device.tensor(within("arange", start + step * np.arange(count, dtype=np.float64), asked))


def _number(name: str, value) -> int | float:
    """A number of Python's: integers of any library's stay integers."""
    try:
        return integer("arange", name, value)
    except TypeError:
        return number("arange", name, value)


def linspace(device: Device, start, stop, num: int, dtype=None, endpoint: bool = True) -> Tensor:
    """``num`` numbers from ``start`` to ``stop``, at equal distances; float32, or as ``dtype``."""
    asked = FLOAT32 if dtype is None else dtype_of(dtype)
    if kind_of(asked) != "floating":
        raise TypeError(f"linspace: dtype {asked.name}; expected a floating one")
    start, stop = number("linspace", "start", start), number("linspace", "stop", stop)
    return device.tensor(np.linspace(start, stop, integer("linspace", "num", num), endpoint=endpoint).astype(asked))


def eye(device: Device, rows: int, columns: int | None = None, k: int = 0, dtype=None) -> Tensor:
    """Ones on a diagonal, zeros elsewhere; float32, or as ``dtype``."""
    asked = FLOAT32 if dtype is None else dtype_of(dtype)
    rows, k = integer("eye", "n_rows", rows), integer("eye", "k", k)
    columns = rows if columns is None else integer("eye", "n_cols", columns)
    return device.tensor(np.eye(rows, columns, k, dtype=np.int8).astype(asked))
