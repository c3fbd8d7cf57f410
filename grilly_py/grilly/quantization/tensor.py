"""QuantizedTensor, and quantize, which makes one."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .bits import Bytes
from .types import TYPES, QuantizationType

#: So many elements are computed at once, for which the host needs some hundred bytes each.
_AT_ONCE = 2**17
#: More than any type with scales in float16 holds. The squares of such numbers are still in float32's range.
_BEYOND = 1e9


def _type_of(name: str, type: Any) -> QuantizationType:
    if not isinstance(type, str):
        raise TypeError(f"{name}: type is {type!r}; expected the name of one, such as 'Q4_K'")
    if type not in TYPES:
        raise ValueError(f"{name}: type is {type!r}; expected one of {', '.join(TYPES)}")
    return TYPES[type]


class QuantizedTensor:
    """Numbers of few bits, in blocks along the last axis.

    It is on the host. ``backend.tensor(it)`` copies it to a device: a quantized tensor of the same shape and type,
    whose ``dequantize`` gives a Tensor, and which has no ``data``.

    Parameters
    ----------
    data : array of uint8
        The bytes of the blocks, one after the other, rows one after the other. They are not copied.
    shape : sequence of int
        Of the numbers. The last one is a multiple of the type's block.
    type : str
        The type's name, one of ``grilly.quantization.TYPES``.

    Attributes
    ----------
    shape : tuple of int
    type : str
    data : numpy.ndarray
        uint8 ``(..., bytes of a row)``.

    Raises
    ------
    TypeError
        For data of another dtype, a shape that is no sequence of whole numbers, and a type that is no text.
    ValueError
        For an unknown type, a last axis that is no multiple of the block, and another number of bytes.
    """

    def __init__(self, data: Bytes, shape: Sequence[int], type: str) -> None:
        found, name = _type_of("QuantizedTensor", type), "QuantizedTensor"
        data = np.asarray(data)
        if data.dtype != np.uint8:
            raise TypeError(f"{name}: data is of {data.dtype}; expected uint8, the bytes of blocks")
        try:
            shape = tuple(operator.index(extent) for extent in shape)
        except TypeError:
            raise TypeError(f"{name}: shape is {shape!r}; expected whole numbers") from None
        if min(shape, default=1) < 0 or (shape[-1] if shape else 1) % found.block:
            raise ValueError(f"{name}: shape is {shape}; expected a last axis that is a multiple of {found.block}, the "
                             f"block of {type}")  # fmt: skip
        whole = found.nbytes_of(shape)
        if data.size != whole:
            raise ValueError(f"{name}: data has {data.size} bytes; {shape} of {type} takes {whole}")
        self.shape, self.type = shape, type
        self.data = data.reshape(*shape[:-1], found.nbytes_of(shape[-1:]))

    def __repr__(self) -> str:
        return f"QuantizedTensor(shape={self.shape}, type={self.type!r})"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a QuantizedTensor without axes")
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return self.data.size

    def dequantize(self, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """The numbers, an array of the same shape.

        Parameters
        ----------
        dtype : dtype_like
            float32, float16, float64, or ml_dtypes' bfloat16. They are computed in float32.

        Raises
        ------
        ValueError
            For a type of which only the size is known.
        """
        found = TYPES[self.type]
        if found.dequantize is None:
            readable = ", ".join(name for name, one in TYPES.items() if one.dequantize is not None)
            raise ValueError(f"QuantizedTensor.dequantize: {self.type} cannot be read; {readable} can")
        out = np.empty((self.size // found.block, found.block), dtype)
        raw, step = np.ascontiguousarray(self.data).reshape(-1), max(_AT_ONCE // found.block, 1)
        for first in range(0, len(out), step):
            part = raw[first * found.nbytes : (first + step) * found.nbytes]
            with np.errstate(over="ignore", invalid="ignore"):
                out[first : first + step] = found.dequantize(part.view(found.layout))
        return out.reshape(self.shape)


def _scales(found: QuantizationType, blocks: NDArray[Any]) -> list[NDArray[Any]]:
    """The scales of blocks, which become infinite where numbers are too large for the type."""
    layout = found.layout.fields
    if layout is None:
        return [blocks if blocks.dtype.kind == "f" else found.dequantize(blocks)] if found.dequantize else []
    return [blocks[name] for name, (part, *_) in layout.items() if part.kind == "f"]


def quantize(array: Any, type: str) -> QuantizedTensor:
    """The numbers of an array in a type of few bits.

    Scales are chosen for small errors, where errors of larger numbers weigh more, as llama.cpp does without an
    importance matrix.

    Parameters
    ----------
    array : array_like
        Finite floats. The last axis is a multiple of the type's block: 32, or 256 for types with K.
    type : str
        The type's name, one of ``grilly.quantization.TYPES``.

    Raises
    ------
    TypeError
        For other arrays than floats, masked ones, and a type that is no text.
    ValueError
        For an unknown type or one that is only read, a last axis that is no multiple of the block, NaN, infinities, and
        numbers too large for the type's scales.
    """
    found = _type_of("quantize", type)
    if found.quantize is None:
        written = ", ".join(name for name, one in TYPES.items() if one.quantize is not None)
        raise ValueError(f"quantize: {type} is not written; {written} are")
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("quantize: a masked array hides elements, which blocks cannot; give array.filled(value)")
    array = np.asarray(array)
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        raise TypeError(f"quantize: the array is of {array.dtype}; expected floats")
    if not array.ndim or array.shape[-1] % found.block:
        raise ValueError(f"quantize: the array has shape {array.shape}; expected a last axis that is a multiple of "
                         f"{found.block}, the block of {type}")  # fmt: skip
    rows = array.reshape(-1, found.block)
    out = np.empty(len(rows), found.layout)
    most = _BEYOND if found.layout.fields and _scales(found, out) else np.inf
    beyond = f"quantize: the array has numbers beyond what {type} holds"
    step = max(_AT_ONCE // found.block, 1)
    for first in range(0, len(rows), step):
        with np.errstate(over="ignore"):
            part = np.ascontiguousarray(rows[first : first + step], np.float32)
        if not np.isfinite(part).all():
            raise ValueError("quantize: the array has numbers that are infinite or none in float32")
        if np.abs(part).max(initial=0) > most:
            raise ValueError(beyond)
        with np.errstate(over="ignore", invalid="ignore"):
            out[first : first + step] = found.quantize(part)
    if not all(np.isfinite(part).all() for part in _scales(found, out)):
        raise ValueError(beyond)
    return QuantizedTensor(out.view(np.uint8).reshape(-1), array.shape, type)


__all__ = ["QuantizedTensor", "quantize"]
