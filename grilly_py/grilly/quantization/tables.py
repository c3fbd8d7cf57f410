"""Blocks of 4-bit indices into a table of 16 numbers: IQ4_NL, IQ4_XS, MXFP4, NVFP4.

Blocks are structured arrays ``(n,)``, numbers float32 ``(n, 32)``; of IQ4_XS ``(n, 256)``, of NVFP4 ``(n, 64)``.
"""

from __future__ import annotations

import numpy as np

from .bits import Bytes, pack, unpack
from .blocks import Blocks, column
from .search import Floats, inverse, largest

IQ4_NL = np.dtype([("d", "<f2"), ("q", "u1", (16,))])
IQ4_XS = np.dtype([("d", "<f2"), ("high", "u1", (2,)), ("low", "u1", (4,)), ("q", "u1", (128,))])
MXFP4 = np.dtype([("e", "u1"), ("q", "u1", (16,))])
NVFP4 = np.dtype([("d", "u1", (4,)), ("q", "u1", (32,))])
#: Numbers that lie closer together around 0.
NON_LINEAR = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
#: The index of the nearest of these for each interval of 0.5 from -127 on; midpoints between two are at halves.
_PLACES = np.searchsorted((NON_LINEAR[1:] + NON_LINEAR[:-1]) / 2, np.arange(-254, 228) / 2 + 0.25).astype(np.uint8)
#: E2M1 of the OCP Microscaling Formats, doubled: a sign, two bits of exponent, one of fraction. There is no minus zero.
FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
#: E8M0 of the same, powers of two, halved.
E8M0 = np.ldexp(1.0, np.arange(256) - 128).astype(np.float32)


def _e4m3() -> Floats:
    """E4M3 of OCP's 8-bit floating point, without its sign: the highest bit has no effect."""
    code = np.arange(256)
    exponent, fraction = code >> 3 & 15, (code & 7) / 8
    found = np.where(exponent == 0, np.ldexp(fraction, -6), np.ldexp(1 + fraction, exponent - 7))
    found[0x7F] = 0  # in place of NaN
    return found.astype(np.float32)


#: Halved, as `FP4` is doubled.
E4M3 = _e4m3() / np.float32(2)


def from_iq4_nl(blocks: Blocks) -> Floats:
    """The numbers of IQ4_NL."""
    return column(blocks["d"]) * NON_LINEAR[unpack(blocks["q"], 4, 16)]


def from_iq4_xs(blocks: Blocks) -> Floats:
    """The numbers of IQ4_XS: 8 parts, scales of 6 bits."""
    scales = unpack(blocks["low"], 4, 1) | unpack(blocks["high"], 2, 1) << np.uint8(4)
    scaled = column(blocks["d"]) * (scales.astype(np.float32) - np.float32(32))
    numbers = NON_LINEAR[unpack(blocks["q"], 4, 16)].reshape(-1, 8, 32)
    found: Floats = (scaled[..., None] * numbers).reshape(-1, 256)
    return found


def from_mxfp4(blocks: Blocks) -> Floats:
    """The numbers of MXFP4: one exponent for 32 numbers."""
    scaled: Floats = E8M0[blocks["e"]][:, None] * FP4[unpack(blocks["q"], 4, 16)]
    return scaled


def from_nvfp4(blocks: Blocks) -> Floats:
    """The numbers of NVFP4: one scale for 16 numbers."""
    numbers = FP4[unpack(blocks["q"], 4, 8)].reshape(-1, 4, 16)
    found: Floats = (E4M3[blocks["d"]][..., None] * numbers).reshape(-1, 64)
    return found


def _places(x: Floats) -> Bytes:
    """The indices in `NON_LINEAR` of the nearest numbers."""
    found: Bytes = _PLACES[np.clip(np.floor(2 * x), -254, 227).astype(np.int16) + 254]
    return found


def to_iq4_nl(x: Floats) -> Blocks:
    """Blocks with the best of 16 scales, each improved by least squares; errors of large numbers count more."""
    weight, top = x * x, inverse(largest(x))
    best, scale = np.zeros(len(x), np.float32), np.zeros(len(x), np.float32)
    for end in (*range(-134, -119), 127):  # what the number furthest from 0 becomes
        t = NON_LINEAR[_places(x * (top * np.float32(end)))]
        both, square = (weight * x * t).sum(axis=1), (weight * t * t).sum(axis=1)
        gained = both * both * inverse(square)
        better = gained > best
        best, scale = np.where(better, gained, best), np.where(better, both * inverse(square), scale)
    blocks = np.zeros(len(x), IQ4_NL)
    blocks["d"] = scale
    blocks["q"] = pack(_places(x * inverse(column(blocks["d"]))), 4, 16)
    return blocks


def to_mxfp4(x: Floats) -> Blocks:
    """Blocks whose exponent makes the magnitude of the number furthest from 0 at least 4 and below 8."""
    blocks, top = np.zeros(len(x), MXFP4), np.abs(x).max(axis=1)
    exponent = np.frexp(top)[1] - 1 - 2 + 127
    blocks["e"] = np.where(top > 0, np.maximum(exponent, 0), 0)
    lost = np.abs(E8M0[blocks["e"]][:, None, None] * FP4 - x[..., None])
    blocks["q"] = pack(lost.argmin(axis=2), 4, 16)
    return blocks


__all__ = [
    "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4", "from_iq4_nl", "from_iq4_xs", "from_mxfp4", "from_nvfp4", "to_iq4_nl",
    "to_mxfp4",
]  # fmt: skip
