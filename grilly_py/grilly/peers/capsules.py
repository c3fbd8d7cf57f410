"""DLPack capsules of memory that NumPy cannot read: made and opened by NumPy, which is told that it is the host's.

NumPy looks at addresses, shapes and strides here, never at elements. What frees a capsule's memory is then NumPy's own
code in C, which other libraries may call at any time, at the end of the interpreter too; a function of Python could not
be.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

_HOST = (1, 0)
_get = ctypes.pythonapi.PyCapsule_GetPointer
_get.restype, _get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
#: Of a DLTensor, in bytes: where the device and the type of the elements stand.
_DEVICE, _DTYPE = 8, 20
#: DLPack's codes of kinds of elements, by NumPy's; bfloat16 is named.
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_BFLOAT16 = 4
_KINDS = {code: kind for kind, code in _CODES.items()}


class Holder:
    """What a capsule keeps alive, shown to NumPy as an array of bytes' words."""

    __slots__ = ("__array_interface__", "kept", "__weakref__")

    def __init__(
        self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, kept: object
    ):
        self.__array_interface__ = {
            "version": 3, "typestr": f"<u{itemsize}", "shape": shape, "strides": strides, "data": (address, False),
        }  # fmt: skip
        self.kept = kept


def make(holder: Holder, dtype: np.dtype, device: tuple[int, int]) -> Any:
    """A capsule of what the holder shows, on another device; the holder lives as long as what is made of it."""
    capsule = np.asarray(holder).__dlpack__()
    tensor = _get(capsule, b"dltensor")
    ctypes.c_int32.from_address(tensor + _DEVICE).value = device[0]
    ctypes.c_int32.from_address(tensor + _DEVICE + 4).value = device[1]
    ctypes.c_uint8.from_address(tensor + _DTYPE).value = _code(dtype)
    return capsule


@functools.cache
def _code(dtype: np.dtype) -> int:
    return _BFLOAT16 if dtype.name == "bfloat16" else _CODES[dtype.kind]


class _Host:
    """A capsule said to be of the host's memory."""

    def __init__(self, capsule: Any):
        self._capsule = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _HOST

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule


def opened(capsule: Any) -> tuple[np.ndarray, str]:
    """An array of words over what a capsule of another device holds, which is not to be read, and its dtype's name.

    Raises BufferError for elements that NumPy has no type for.
    """
    tensor = _get(capsule, b"dltensor")
    code, bits, lanes = (
        ctypes.c_uint8.from_address(tensor + _DTYPE).value,
        ctypes.c_uint8.from_address(tensor + _DTYPE + 1).value,
        ctypes.c_uint16.from_address(tensor + _DTYPE + 2).value,
    )
    kind = _KINDS.get(code)
    if lanes != 1 or bits not in (8, 16, 32, 64) or (kind is None and (code, bits) != (_BFLOAT16, 16)):
        raise BufferError(f"elements of DLPack's type {code} with {bits} bits and {lanes} lanes are not known here")
    name = "bfloat16" if kind is None else np.dtype(f"{kind}{bits // 8}").name
    ctypes.c_uint8.from_address(tensor + _DTYPE).value = _CODES["u"]
    ctypes.c_int32.from_address(tensor + _DEVICE).value = _HOST[0]
    ctypes.c_int32.from_address(tensor + _DEVICE + 4).value = _HOST[1]
    return np.from_dlpack(_Host(capsule)), name


__all__ = ["Holder", "make", "opened"]
