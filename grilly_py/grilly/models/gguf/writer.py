"""GGUF files of version 3, written."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...quantization import TYPES, QuantizedTensor
from .file import ARRAY, MAGIC, NUMBERS, TEXT, VERSION

#: The bytes of each tensor begin at a multiple of this.
ALIGNMENT = 32
#: A tensor that is to be written: its shape, the name of its type, and what makes it.
Planned = tuple[Sequence[int], str, Callable[[], QuantizedTensor]]


def write_file(path: Path, keys: Mapping[str, Any], tensors: Mapping[str, Planned]) -> None:
    """Write a file under a temporary name, and rename it once it is complete. Tensors are made one after the other.

    Keys are bool, int, float, str, list of str, or arrays of numbers. Integers are written as uint32 where that holds
    them, else as int64; floats as float32.

    Raises
    ------
    OSError
        Where the file cannot be written. What was there stays.
    """
    offset, infos = 0, []
    for name, (shape, kind, _) in tensors.items():
        one, extents = TYPES[kind], tuple(shape)[::-1]
        infos.append(_text(name) + struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, one.number, offset))
        offset += -(-one.nbytes_of(shape) // ALIGNMENT) * ALIGNMENT
    begin = struct.pack("<4sIQQ", MAGIC, VERSION, len(tensors), len(keys))
    header = begin + b"".join(_text(name) + _value(value) for name, value in keys.items()) + b"".join(infos)
    handle, part = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".part", dir=path.parent)
    try:
        with open(handle, "wb") as opened:
            opened.write(header + bytes(-len(header) % ALIGNMENT))
            for _, _, make in tensors.values():
                data = make().data
                opened.write(np.ascontiguousarray(data).data)
                opened.write(bytes(-data.size % ALIGNMENT))
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(part, 0o666 & ~mask)  # as of other files: a temporary one is its owner's alone
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    """A value with its type before it."""
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value) if 0 <= value < 2**32 else struct.pack("<Iq", 11, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", TEXT) + _text(value)
    if isinstance(value, list):
        return struct.pack("<IIQ", ARRAY, TEXT, len(value)) + b"".join(map(_text, value))
    number = next(number for number, dtype in NUMBERS.items() if dtype == value.dtype)
    data: bytes = value.tobytes()
    return struct.pack("<IIQ", ARRAY, number, len(value)) + data


__all__ = ["write_file"]
