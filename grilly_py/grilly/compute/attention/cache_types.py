"""Caches whose keys and values are of 8 or 4 bits: blocks of 32 numbers with one float16 scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from ...errors import UnsupportedError
from ...quantization.packing import UNIT, packing_of
from ...registry import Registry
from ..device.call import executable_for
from ..device.device import Device, DeviceFacts
from ..device.dtypes import FLOATS_TEXT, dtype_of, is_float
from ..device.plan import Layout, Plan, Planner
from ..device.tensor import Tensor
from ..quantized import Rows, emit_floats

CacheType: TypeAlias = Literal["q8_0", "q4_0"]
#: The types by llama.cpp's words, with their names among quantized types.
CACHE_TYPES = {"q8_0": "Q8_0", "q4_0": "Q4_0"}

#: Bytes that kernels read at a time: the size of a cache is a multiple.
_WHOLE = 16


def cache_dtype(owner: str, dtype: DTypeLike) -> np.dtype | str:
    """The dtype of a cache: a name of `CACHE_TYPES`, or a floating dtype.

    Raises ValueError for another name, TypeError for another dtype.
    """
    if isinstance(dtype, str):
        if dtype in CACHE_TYPES:
            return dtype
        try:
            np.dtype(dtype)
        except TypeError:
            if dtype != "bfloat16":
                raise ValueError(
                    f"{owner}: dtype is {dtype!r}; expected {', '.join(CACHE_TYPES)}, {FLOATS_TEXT}"
                ) from None
    found = dtype_of(dtype)
    if not is_float(found):
        raise TypeError(f"{owner}: dtype is {found}; expected {FLOATS_TEXT}, {' or '.join(CACHE_TYPES)}")
    return found


def check_cache_type(owner: str, name: str | None) -> None:
    """Raise ValueError for what is neither None nor a name of `CACHE_TYPES`."""
    if name is not None and (not isinstance(name, str) or name not in CACHE_TYPES):
        raise ValueError(f"{owner}: cache_dtype is {name!r}; expected None, {' or '.join(map(repr, CACHE_TYPES))}")


def check_widths(owner: str, dtype: np.dtype | str, *widths: int) -> None:
    """Raise UnsupportedError for heads that a type's blocks do not divide."""
    if isinstance(dtype, str) and any(width % UNIT for width in widths):
        raise UnsupportedError(
            f"{owner}: heads of {' and '.join(map(str, dict.fromkeys(widths)))} elements are no whole blocks of "
            f"{UNIT}, of which a cache of {dtype} consists; use a cache of floats"
        )


class Row(NamedTuple):
    """What a key takes of a cache, in 32-bit words: levels of all its heads, and their scales."""

    levels: int
    scales: int


def row_of(type: str, heads: int, width: int) -> Row:
    """The row of a key with so many heads of ``width`` elements."""
    numbers = heads * width
    return Row(numbers * packing_of(CACHE_TYPES[type]).low // 32, -(-numbers // UNIT // 2))


def cache_nbytes(dtype: np.dtype | str, batch: int, room: int, heads: int, width: int) -> int:
    """Bytes of the keys, or of the values, of a cache."""
    if isinstance(dtype, str):
        return -(-4 * batch * room * sum(row_of(dtype, heads, width)) // _WHOLE) * _WHOLE
    return batch * room * heads * width * np.dtype(dtype).itemsize


def floats_plan(given: tuple[str], layouts: Sequence[Layout | None], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches that write the numbers of rows to the last input; the others are their levels and their scales."""
    planner = Planner(facts, layouts)
    levels, scales, floats = planner.inputs
    emit_floats(planner, registry, [Rows(*given, levels, None, scales)], floats)
    return planner.plan()


class QuantizedCache:
    """The keys or values of a cache in blocks of 32 numbers along a head's elements.

    Attributes
    ----------
    dtype : str
        "q8_0" or "q4_0".
    shape : tuple of int
        ``(B, S, Hk, D)``, D a multiple of 32.
    data : Tensor
        uint32: the levels of all keys, in the order of ``quantization.packing``, then their scales.
    """

    __slots__ = ("dtype", "shape", "data")

    def __init__(self, data: Tensor, dtype: str, shape: tuple[int, int, int, int]) -> None:
        self.data, self.dtype, self.shape = data, dtype, shape

    def __repr__(self) -> str:
        return f"QuantizedCache(shape={self.shape}, dtype={self.dtype!r}, device={self.backend.device.name!r})"

    def __len__(self) -> int:
        return self.shape[0]

    def __copy__(self) -> QuantizedCache:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantizedCache:
        return QuantizedCache(self.data.__deepcopy__(memo), self.dtype, self.shape)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a QuantizedCache is memory of an open device and cannot be pickled; pickle its dequantize()")

    @property
    def backend(self) -> Any:
        """The ``grilly.Compute`` that has it."""
        return self.data.backend

    @property
    def bits(self) -> int:
        """Of a level."""
        return packing_of(CACHE_TYPES[self.dtype]).low

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.data.nbytes

    def dequantize(self, dtype: DTypeLike = np.float32) -> Tensor:
        """The numbers, a Tensor ``(B, S, Hk, D)``; computed in float32, without waiting.

        Raises TypeError for other dtypes than float32, float16 and bfloat16.
        """
        dtype = dtype_of(dtype)
        if not is_float(dtype):
            raise TypeError(f"QuantizedCache.dequantize: dtype {dtype}; expected {FLOATS_TEXT}")
        device = self.data._storage.device
        device.check_open()
        found = device.empty(self.shape, dtype)
        self.write_floats(device, found)
        device.runtime.flush()
        return found

    def write_floats(self, device: Device, target: Tensor) -> None:
        """Record that the first keys of each sample are written to a contiguous ``target`` ``(B, keys, Hk, D)``.

        One dispatch where these lie side by side: of one sample, or all of a cache.
        """
        batch, keys, heads, width = target.shape
        if not target.size:
            return
        step = batch if keys == self.shape[1] else 1
        for first in range(0, batch, step):
            parts = [part[first : first + step, :keys].reshape(-1, part.shape[2]) for part in self.parts]
            arrays = [*parts, target[first : first + step].reshape(-1, heads * width)]
            executable_for(device, floats_plan, (CACHE_TYPES[self.dtype],), arrays).run(arrays)

    @property
    def parts(self) -> tuple[Tensor, Tensor]:
        """Levels and scales, uint32 ``(B, S, words)``, in the memory of ``data``."""
        batch, room, heads, width = self.shape
        row = row_of(self.dtype, heads, width)
        count = batch * room * row.levels
        end = count + batch * room * row.scales
        return self.data[:count].reshape(batch, room, row.levels), self.data[count:end].reshape(batch, room, row.scales)

    def view(self, keys: int) -> Tensor:
        """What kernels bind: ``(B, Hk, keys, D)``, of which strides are in words and the last axis is not true."""
        batch, room, heads, width = self.shape
        row = row_of(self.dtype, heads, width).levels
        strides = (room * row, row // heads, row, 1)
        return Tensor(self.data._storage, (batch, heads, keys, width), self.data.dtype, strides, self.data._offset)


def array_of(cache):
    """The array that has a cache's memory."""
    return cache.data if isinstance(cache, QuantizedCache) else cache


def parts_of(cache) -> tuple[Tensor, ...]:
    """Arrays ``(B, S, ...)`` with all that a cache holds of each key."""
    return cache.parts if isinstance(cache, QuantizedCache) else (cache,)


def new_cache(backend: Any, shape: tuple[int, int, int, int], dtype: np.dtype | str) -> Tensor | QuantizedCache:
    """Uninitialised memory for keys or values ``(B, S, Hk, D)``; ``dtype`` as of `cache_dtype`."""
    if not isinstance(dtype, str):
        return backend.empty(shape, dtype)
    nbytes, most = cache_nbytes(dtype, *shape), backend.opened.facts.storage_range
    if nbytes > most:
        raise UnsupportedError(
            f"a quantized cache of {nbytes:,} bytes is larger than one binding of the device, {most:,} bytes; take "
            "fewer texts or tokens"
        )
    return QuantizedCache(backend.empty((nbytes // 4,), np.uint32), dtype, shape)


__all__ = [
    "CACHE_TYPES", "CacheType", "QuantizedCache", "array_of", "cache_dtype", "cache_nbytes", "check_cache_type",
    "check_widths", "new_cache", "parts_of", "row_of",
]  # fmt: skip
