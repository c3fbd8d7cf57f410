"""GGUF files byte by byte, so that each of them may be wrong; and those of the package gguf."""

from __future__ import annotations

import struct

import numpy as np

U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, I64, F64 = range(13)
_CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def text(value: str | bytes) -> bytes:
    """A text with its length before it."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(kind: int, given) -> bytes:
    """A value without its type; of an array (type, values)."""
    if kind == TEXT:
        return text(given)
    if kind == ARRAY:
        inner, values = given
        return struct.pack("<IQ", inner, len(values)) + b"".join(value(inner, one) for one in values)
    return struct.pack(f"<{_CODES[kind]}", given)


def key(name: str | bytes, kind: int, given) -> bytes:
    """A key with its value."""
    return text(name) + struct.pack("<I", kind) + value(kind, given)


def info(name: str | bytes, shape, kind: int, offset: int) -> bytes:
    """Where a tensor lies; its shape is in the file's order."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def file(keys=(), infos=(), data=b"", *, alignment=32, magic=b"GGUF", version=3, counts=(None, None)) -> bytes:
    """A file of the parts; ``counts`` of tensors and keys may lie."""
    tensors, count = (len(part) if said is None else said for part, said in zip((infos, keys), counts, strict=True))
    header = magic + struct.pack("<IQQ", version, tensors, count) + b"".join(keys) + b"".join(infos)
    return header + bytes(-len(header) % alignment) + data


def small() -> bytes:
    """A file with a key of each type and three tensors."""
    keys = [
        key("general.architecture", TEXT, "llama"), key("a.u8", U8, 200), key("a.i8", I8, -5), key("a.u16", U16, 60000),
        key("a.i16", I16, -7), key("a.u32", U32, 2**31), key("a.i32", I32, -9), key("a.f32", F32, 0.5),
        key("a.yes", BOOL, 1), key("a.u64", U64, 2**40), key("a.i64", I64, -(2**40)), key("a.f64", F64, 0.1),
        key("a.texts", ARRAY, (TEXT, ["é", "", "two words"])), key("a.numbers", ARRAY, (I32, [1, -2, 3])),
        key("a.flags", ARRAY, (BOOL, [1, 0])), key("a.none", ARRAY, (F32, [])),
    ]  # fmt: skip
    numbers, one = np.arange(12, dtype="<f4").tobytes(), b"\x00\x3c"
    infos = [info("first", (4, 3), 0, 0), info("second", (32, 2), 8, 64), info("third", (), 1, 160)]
    return file(keys, infos, numbers.ljust(64, b"\0") + bytes(range(68)).ljust(96, b"\0") + one.ljust(32, b"\0"))
