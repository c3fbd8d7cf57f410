"""Blocks of 32 numbers with one scale, and in some types one minimum: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.

A number is ``d q``, or ``d q + m`` where blocks have an m. Blocks are structured arrays ``(n,)``, numbers float32
``(n, 32)``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bits import pack, unpack
from .search import Floats, inverse, largest

Blocks = NDArray[Any]
_D, _M, _HIGH, _NIBBLES = ("d", "<f2"), ("m", "<f2"), ("high", "u1", (4,)), ("q", "u1", (16,))
Q4_0, Q4_1 = np.dtype([_D, _NIBBLES]), np.dtype([_D, _M, _NIBBLES])
Q5_0, Q5_1 = np.dtype([_D, _HIGH, _NIBBLES]), np.dtype([_D, _M, _HIGH, _NIBBLES])
Q8_0 = np.dtype([_D, ("q", "i1", (32,))])


def has_high(layout: np.dtype[Any]) -> bool:
    """Whether a fifth bit of each number lies apart."""
    return layout.fields is not None and "high" in layout.fields


def column(field: NDArray[Any]) -> Floats:
    """A field with one number for each block, as float32 ``(n, 1)``."""
    return field.astype(np.float32)[:, None]


def _quanta(blocks: Blocks) -> NDArray[np.uint8]:
    """The whole numbers q of blocks: 4 bits, and a fifth where the type has one."""
    q = unpack(blocks["q"], 4, 16)
    return q | unpack(blocks["high"], 1, 1) << np.uint8(4) if has_high(blocks.dtype) else q


def _filled(layout: np.dtype[Any], q: NDArray[Any], d: Floats, m: Floats | None = None) -> Blocks:
    """Blocks of whole numbers, scales and minima."""
    blocks, q = np.zeros(len(q), layout), q.astype(np.uint8)
    blocks["q"] = pack(q & np.uint8(15), 4, 16)
    if has_high(layout):
        blocks["high"] = pack(q >> np.uint8(4), 1, 1)
    blocks["d"] = d[:, 0]
    if m is not None:
        blocks["m"] = m[:, 0]
    return blocks


def from_signed(blocks: Blocks) -> Floats:
    """The numbers of Q4_0 and Q5_0: q less half of its range, times d."""
    half = 16 if has_high(blocks.dtype) else 8
    return column(blocks["d"]) * (_quanta(blocks).astype(np.float32) - np.float32(half))


def from_unsigned(blocks: Blocks) -> Floats:
    """The numbers of Q4_1 and Q5_1."""
    return column(blocks["d"]) * _quanta(blocks).astype(np.float32) + column(blocks["m"])


def from_bytes(blocks: Blocks) -> Floats:
    """The numbers of Q8_0."""
    return column(blocks["d"]) * blocks["q"].astype(np.float32)


def _signed(layout: np.dtype[Any], half: int, x: Floats) -> Blocks:
    d = largest(x) / np.float32(-half)
    # As double numbers, or the sum would be rounded before it is cut.
    q = np.trunc(x.astype(np.float64) * inverse(d) + (half + 0.5))
    return _filled(layout, np.clip(q, 0, 2 * half - 1), d)


def _unsigned(layout: np.dtype[Any], levels: int, x: Floats) -> Blocks:
    low = x.min(axis=1, keepdims=True)
    d = (x.max(axis=1, keepdims=True) - low) / np.float32(levels)
    q = np.trunc((x - low) * inverse(d) + np.float32(0.5))
    return _filled(layout, np.clip(q, 0, levels), d, low)


def to_q4_0(x: Floats) -> Blocks:
    """Blocks whose scale gives the number furthest from 0 the whole number -8."""
    return _signed(Q4_0, 8, x)


def to_q5_0(x: Floats) -> Blocks:
    """Blocks whose scale gives the number furthest from 0 the whole number -16."""
    return _signed(Q5_0, 16, x)


def to_q4_1(x: Floats) -> Blocks:
    """Blocks from the least number to the largest, in 15 steps."""
    return _unsigned(Q4_1, 15, x)


def to_q5_1(x: Floats) -> Blocks:
    """Blocks from the least number to the largest, in 31 steps."""
    return _unsigned(Q5_1, 31, x)


def to_q8_0(x: Floats) -> Blocks:
    """Blocks whose scale gives the number furthest from 0 the whole number 127 or -127."""
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    blocks, scaled = np.zeros(len(x), Q8_0), x * inverse(d)
    whole = np.trunc(scaled)
    away = np.abs(scaled - whole) >= np.float32(0.5)  # halves go away from 0, unlike np.rint's
    blocks["q"] = np.clip(whole + np.where(away, np.sign(scaled), 0), -127, 127)
    blocks["d"] = d[:, 0]
    return blocks


__all__ = [
    "Blocks", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "column", "from_bytes", "from_signed", "from_unsigned",
    "has_high", "to_q4_0", "to_q4_1", "to_q5_0", "to_q5_1", "to_q8_0",
]  # fmt: skip
