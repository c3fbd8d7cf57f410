"""The element types of arrays and tensors. bfloat16 is that of the ml_dtypes package, which is optional."""

from __future__ import annotations

import functools

import numpy as np

from ...registry.names import DTYPES as FLOAT_NAMES
from ...registry.names import SIXTEEN_BITS
from .other_arrays import is_torch

#: For messages: "float32, float16 or bfloat16".
FLOATS_TEXT = f"{', '.join(FLOAT_NAMES[:-1])} or {FLOAT_NAMES[-1]}"
_OTHERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")


# NumPy puts a dtype's name together anew at each look, which takes longer than the rest of a small call's checks.
@functools.lru_cache(maxsize=64)
def is_float(dtype) -> bool:
    """Whether operations compute with arrays of a dtype."""
    return getattr(dtype, "name", None) in FLOAT_NAMES  # another library's dtype may have no name


@functools.lru_cache(maxsize=64)
def is_sixteen_bits(dtype) -> bool:
    """Whether kernels need 16-bit storage for arrays of a dtype."""
    return dtype.name in SIXTEEN_BITS


@functools.lru_cache(maxsize=64)
def is_storable(dtype: np.dtype) -> bool:
    """Whether a tensor may have a dtype."""
    return dtype.name in FLOAT_NAMES or dtype.name in _OTHERS


def refused(dtype: np.dtype) -> str:
    """For messages: that no tensor has a dtype, why, and what to cast it to."""
    why = ""
    if dtype.name == "uint64":
        why = ", where integers of 64 bits have a sign; cast it with .astype(numpy.int64)"
    elif dtype.kind in "fiu":
        why = "; cast it with .astype(numpy.float32)"
    return f"dtype {dtype} cannot live on the device{why}"


def dtype_of(dtype) -> np.dtype:
    """``numpy.dtype(dtype)`` that also knows "bfloat16" and PyTorch's dtypes; in the byte order of this machine, which
    tensors have.

    Raises
    ------
    ImportError
        For bfloat16 where ml_dtypes is not installed.
    TypeError
        As ``numpy.dtype``.
    """
    if isinstance(dtype, str) and dtype == "bfloat16":
        try:
            import ml_dtypes
        except ModuleNotFoundError as error:
            raise ImportError("bfloat16 needs ml_dtypes; run: pip install 'grilly-vulkan[bfloat16]'") from error
        return np.dtype(ml_dtypes.bfloat16)
    try:
        found = np.dtype(dtype)
    except TypeError:
        if not is_torch(dtype):
            raise
        return dtype_of(str(dtype).removeprefix("torch."))
    return found if found.isnative else found.newbyteorder("=")


def epsilon(dtype: np.dtype) -> float:
    """The distance from 1 to the next number of a floating dtype."""
    return 2.0**-7 if dtype.name == "bfloat16" else float(np.finfo(dtype).eps)


def plain(array: np.ndarray) -> np.ndarray:
    """The array, or a view of its bits where the elements are no type of NumPy's own and so offer no buffer."""
    # 2 is a type from outside NumPy; NumPy's own have 1, or 0 once they were pickled or turned to this byte order.
    return array.view(np.uint16) if array.dtype.isbuiltin == 2 else array
