"""Blocks of 256 numbers in parts, each with a scale and perhaps a minimum of few bits: Q2_K to Q6_K.

The scales of the parts are whole numbers times a d of the block, minima times a second one. A number is
``d scale q``, or ``d scale q - dmin minimum``. Blocks are structured arrays ``(n,)``, numbers float32 ``(n, 256)``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bits import Bytes, pack, unpack
from .blocks import Blocks, column, has_high
from .search import Floats, inverse, largest, nearest, scale_and_minimum, scale_of, scale_one_by_one

_TWO = [("d", "<f2"), ("dmin", "<f2")]
Q2_K = np.dtype([("scales", "u1", (16,)), ("q", "u1", (64,)), *_TWO])
Q3_K = np.dtype([("high", "u1", (32,)), ("q", "u1", (64,)), ("scales", "u1", (12,)), ("d", "<f2")])
Q4_K = np.dtype([*_TWO, ("scales", "u1", (12,)), ("q", "u1", (128,))])
Q5_K = np.dtype([*_TWO, ("scales", "u1", (12,)), ("high", "u1", (32,)), ("q", "u1", (128,))])
Q6_K = np.dtype([("q", "u1", (128,)), ("high", "u1", (64,)), ("scales", "i1", (16,)), ("d", "<f2")])


def _parts(q: NDArray[Any], count: int) -> Floats:
    """Whole numbers ``(n, 256)`` as floats, by part: ``(n, parts, 256 / parts)``."""
    return q.astype(np.float32).reshape(len(q), count, -1)


def _scaled(blocks: Blocks, scales: NDArray[Any], d: str = "d") -> Floats:
    """The scales of parts, ``(n, parts, 1)``."""
    return (column(blocks[d]) * scales.astype(np.float32))[..., None]


# -- numbers of blocks ------------------------------------------------------------------------------------------------


def from_q2_k(blocks: Blocks) -> Floats:
    """16 parts, scales and minima of 4 bits, numbers of 2."""
    scales, minima = blocks["scales"] & np.uint8(15), blocks["scales"] >> np.uint8(4)
    q = _parts(unpack(blocks["q"], 2, 32), 16)
    return (_scaled(blocks, scales) * q - _scaled(blocks, minima, "dmin")).reshape(-1, 256)


def _scales_of_q3_k(packed: Bytes) -> NDArray[np.int8]:
    """The 16 scales of 6 bits in 12 bytes, from -32 to 31."""
    scales = unpack(packed[:, :8], 4, 8) | unpack(packed[:, 8:], 2, 4) << np.uint8(4)
    return scales.astype(np.int8) - np.int8(32)


def from_q3_k(blocks: Blocks) -> Floats:
    """16 parts, scales of 6 bits, numbers of 3."""
    q = unpack(blocks["q"], 2, 32) | unpack(blocks["high"], 1, 32) << np.uint8(2)
    return (_scaled(blocks, _scales_of_q3_k(blocks["scales"])) * (_parts(q, 16) - np.float32(4))).reshape(-1, 256)


def _scales_and_minima(packed: Bytes) -> tuple[Bytes, Bytes]:
    """The 8 scales and the 8 minima of 6 bits in 12 bytes."""
    low, high = np.uint8(15), np.uint8(48)
    first, second, last = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = first & np.uint8(63), last & low | first >> np.uint8(2) & high
    minima = second & np.uint8(63), last >> np.uint8(4) | second >> np.uint8(2) & high
    return np.concatenate(scales, axis=1), np.concatenate(minima, axis=1)


def from_q45_k(blocks: Blocks) -> Floats:
    """Q4_K and Q5_K: 8 parts, scales and minima of 6 bits."""
    scales, minima = _scales_and_minima(blocks["scales"])
    q = unpack(blocks["q"], 4, 32)
    if has_high(blocks.dtype):
        q = q | unpack(blocks["high"], 1, 32) << np.uint8(4)
    return (_scaled(blocks, scales) * _parts(q, 8) - _scaled(blocks, minima, "dmin")).reshape(-1, 256)


def from_q6_k(blocks: Blocks) -> Floats:
    """16 parts, scales of 8 bits, numbers of 6."""
    q = unpack(blocks["q"], 4, 64) | unpack(blocks["high"], 2, 32) << np.uint8(4)
    return (_scaled(blocks, blocks["scales"]) * (_parts(q, 16) - np.float32(32))).reshape(-1, 256)


# -- blocks of numbers ------------------------------------------------------------------------------------------------


def _with_minima(
    layout: np.dtype[Any], x: Floats, most: int, scales: Floats, minima: Floats
) -> tuple[Blocks, Bytes, Bytes, Bytes]:
    """Blocks with d and dmin; scales and minima ``(n, parts)``, whole numbers up to ``most``; and the numbers q."""
    blocks, count = np.zeros(len(x), layout), scales.shape[1]
    whole = []
    for name, found in (("d", scales), ("dmin", minima)):
        top = found.max(axis=1, keepdims=True)
        whole.append(nearest(found * (inverse(top) * np.float32(most)), 0, most).astype(np.uint8))
        blocks[name] = (top / np.float32(most))[:, 0]
    scale, minimum = _scaled(blocks, whole[0]), _scaled(blocks, whole[1], "dmin")
    levels = {Q2_K: 3, Q4_K: 15, Q5_K: 31}[layout]
    q = nearest((x.reshape(len(x), count, -1) + minimum) * inverse(scale), 0, levels)
    return blocks, whole[0], whole[1], q.reshape(len(x), 256).astype(np.uint8)


def to_q2_k(x: Floats) -> Blocks:
    """As `from_q2_k` reads it."""
    rows = x.reshape(-1, 16)
    found = scale_and_minimum(rows, np.abs(rows), 3, -0.5, 15, absolute=True)
    blocks, scales, minima, q = _with_minima(Q2_K, x, 15, *(part.reshape(-1, 16) for part in found))
    blocks["scales"], blocks["q"] = scales | minima << np.uint8(4), pack(q, 2, 32)
    return blocks


def _to_q45_k(layout: np.dtype[Any], x: Floats, levels: int, first: float, steps: int) -> Blocks:
    rows = x.reshape(-1, 32)
    weight = np.sqrt((rows * rows).mean(axis=1, keepdims=True)) + np.abs(rows)
    found = scale_and_minimum(rows, weight, levels, first, steps)
    blocks, scales, minima, q = _with_minima(layout, x, 63, *(part.reshape(-1, 8) for part in found))
    top, low = np.uint8(48), np.uint8(15)
    blocks["scales"][:, :4] = scales[:, :4] | (scales[:, 4:] & top) << np.uint8(2)
    blocks["scales"][:, 4:8] = minima[:, :4] | (minima[:, 4:] & top) << np.uint8(2)
    blocks["scales"][:, 8:] = scales[:, 4:] & low | minima[:, 4:] << np.uint8(4)
    blocks["q"] = pack(q & low, 4, 32)
    if layout is Q5_K:
        blocks["high"] = pack(q >> np.uint8(4), 1, 32)
    return blocks


def to_q4_k(x: Floats) -> Blocks:
    """As `from_q45_k` reads it."""
    return _to_q45_k(Q4_K, x, 15, -1.0, 20)


def to_q5_k(x: Floats) -> Blocks:
    """As `from_q45_k` reads it."""
    return _to_q45_k(Q5_K, x, 31, -0.5, 15)


def _without_minima(
    layout: np.dtype[Any], x: Floats, most: int, levels: int
) -> tuple[Blocks, NDArray[np.int8], Bytes]:  # fmt: skip
    """Blocks with d; scales ``(n, 16)``, whole numbers from ``-most`` to ``most - 1``; and the numbers q, from 0."""
    search, blocks = scale_one_by_one if layout is Q3_K else scale_of, np.zeros(len(x), layout)
    scales = search(x.reshape(-1, 16), levels).reshape(-1, 16)
    d = largest(scales) / np.float32(-most)
    whole = nearest(scales * inverse(d), -most, most - 1).astype(np.int8)
    blocks["d"] = d[:, 0]
    q = nearest(x.reshape(-1, 16, 16) * inverse(_scaled(blocks, whole)), -levels, levels - 1) + levels
    return blocks, whole, q.reshape(len(x), 256).astype(np.uint8)


def to_q3_k(x: Floats) -> Blocks:
    """As `from_q3_k` reads it."""
    blocks, scales, q = _without_minima(Q3_K, x, 32, 4)
    scales = (scales + 32).astype(np.uint8)
    blocks["scales"][:, :8] = pack(scales & np.uint8(15), 4, 8)
    blocks["scales"][:, 8:] = pack(scales >> np.uint8(4), 2, 4)
    blocks["q"], blocks["high"] = pack(q & np.uint8(3), 2, 32), pack(q >> np.uint8(2), 1, 32)
    return blocks


def to_q6_k(x: Floats) -> Blocks:
    """As `from_q6_k` reads it."""
    blocks, scales, q = _without_minima(Q6_K, x, 128, 32)
    blocks["scales"] = scales
    blocks["q"], blocks["high"] = pack(q & np.uint8(15), 4, 64), pack(q >> np.uint8(4), 2, 32)
    return blocks


__all__ = [
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "from_q2_k", "from_q3_k", "from_q45_k", "from_q6_k",
    "to_q2_k", "to_q3_k", "to_q4_k", "to_q5_k", "to_q6_k",
]  # fmt: skip
