"""DLPack capsules that NumPy cannot make or open by itself: of another device's memory, and of bfloat16.

They are made and opened by NumPy all the same, which is told that the memory is the host's, and bfloat16 words of 16
bits. It looks at addresses, shapes and strides here, never at elements. What frees a capsule's memory is then NumPy's
own code in C, which other libraries may call at any time, at the end of the interpreter too; a function of Python could
not be.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from .dtypes import dtype_of

_HOST = (1, 0)
#: DLPack's kinds of memory that the host may read, as NumPy has them: its own, and what CUDA and ROCm share with it.
_READABLE = (1, 3, 11, 13)
_get = ctypes.pythonapi.PyCapsule_GetPointer
_get.restype, _get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_named = ctypes.pythonapi.PyCapsule_GetName
_named.restype, _named.argtypes = ctypes.c_char_p, (ctypes.py_object,)
#: Of a DLTensor, in bytes: where the device and the type of the elements stand.
_DEVICE, _DTYPE = 8, 20
#: Where the DLTensor begins, by the capsule's name: from version 1 on, 32 bytes of version, owner and flags go first.
_BEGINS = {b"dltensor": 0, b"dltensor_versioned": 32}
#: DLPack's codes of kinds of elements, by NumPy's; bfloat16 is named.
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_BFLOAT16 = 4
_KINDS = {code: kind for kind, code in _CODES.items()}
#: Whether NumPy's capsules come in versions.
_VERSIONED = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


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


def _tensor(capsule: Any) -> int:
    """The address of a capsule's DLTensor."""
    name = _named(capsule)
    return _get(capsule, name) + _BEGINS[name]


def make(holder: Holder, dtype: np.dtype, device: tuple[int, int]) -> Any:
    """A capsule of what the holder shows, on another device; the holder lives as long as what is made of it."""
    capsule = np.asarray(holder).__dlpack__()
    tensor = _tensor(capsule)
    ctypes.c_int32.from_address(tensor + _DEVICE).value = device[0]
    ctypes.c_int32.from_address(tensor + _DEVICE + 4).value = device[1]
    ctypes.c_uint8.from_address(tensor + _DTYPE).value = _code(dtype)
    return capsule


@functools.cache
def _code(dtype: np.dtype) -> int:
    return _BFLOAT16 if dtype.name == "bfloat16" else _CODES[dtype.kind]


def of_host(array: np.ndarray, max_version: tuple[int, int] | None) -> Any:
    """A capsule of an array of NumPy's, or of one of bfloat16, in the newest version that both sides know."""
    sixteen = array.dtype.name == "bfloat16"
    words = array.view(np.uint16) if sixteen else array
    capsule = words.__dlpack__(max_version=max_version) if _VERSIONED and max_version else words.__dlpack__()
    if sixteen:
        ctypes.c_uint8.from_address(_tensor(capsule) + _DTYPE).value = _BFLOAT16
    return capsule


def on_host(given: Any) -> np.ndarray:
    """An array of NumPy's, or of bfloat16, over what another library's array holds in the host's memory.

    Raises
    ------
    BufferError
        For what has no capsule, for memory that the host cannot read, and for elements that neither NumPy nor bfloat16
        are.
    """
    try:
        return np.from_dlpack(given)
    except (BufferError, RuntimeError) as error:
        # What NumPy says of bfloat16 differs between its versions, so the capsule itself is looked at.
        try:
            capsule = given.__dlpack__()
            if ctypes.c_int32.from_address(_tensor(capsule) + _DEVICE).value not in _READABLE:
                raise error
            words, name = opened(capsule)
        except Exception:
            raise error from None
        if name != "bfloat16":
            raise
        return words.view(dtype_of(name))


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
    tensor = _tensor(capsule)
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


__all__ = ["Holder", "make", "of_host", "on_host", "opened"]
