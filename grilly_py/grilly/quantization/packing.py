"""Quantized types in the order that kernels read: bits of the numbers in 32-bit words along the depth, scales apart.

A unit is 32 numbers of a row. A row has, as `shaders/include/quantized.glsl` reads them,

- ``low`` ``(K low / 32)`` words: the lower bits of the numbers, the first number in the lowest bits;
- ``high`` ``(K high / 32)`` words: their upper bits likewise, where a type has more than ``low``;
- ``scales``: float16 scales of blocks of 256, where there are any, then 16 bits of scales for each unit, or 32; of
  types whose scales are those of groups, 32 bits for each group of units.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .bits import Bytes, pack, unpack
from .blocks import Blocks, has_high
from .superblocks import scales_and_minima, scales_of_q3_k

Words = NDArray[np.uint32]
Halves = NDArray[np.uint16]
#: Numbers of a unit.
UNIT = 32


class PackedRows(NamedTuple):
    """Rows as kernels read them: uint32 ``(N, words)`` each. ``high`` is None for types without upper bits."""

    low: Words
    high: Words | None
    scales: Words


@dataclass(frozen=True)
class Packing:
    """How kernels read a type.

    Attributes
    ----------
    low, high : int
        How many bits of a number are in ``low`` and in ``high``.
    scales : str
        The layout of scales: a name below ``constants: scales`` in quantized.glsl.
    offset : int
        What is subtracted from the whole numbers.
    table : str
        The table in which the whole numbers are indices: a name below ``constants: tables``; "none" for no table.
    group : int
        Units that share a scale, where scales are those of groups.
    """

    low: int
    high: int
    scales: str
    offset: int = 0
    table: str = "none"
    group: int = 1

    def depth(self, words: int) -> int:
        """The numbers of a row whose ``low`` has so many words."""
        return words * 32 // self.low


@dataclass(frozen=True)
class GroupPacking(Packing):
    """A type whose scales are those of groups."""

    def nbytes(self, rows: int, depth: int) -> int:
        """Bytes of a matrix on a device."""
        return rows * (depth * self.low // 8 + 4 * -(-depth // (self.group * UNIT)))

    def scale_words(self, scales: NDArray[Any], zeros: NDArray[np.uint8] | None) -> Words:
        """Scales ``(N, groups)``, and zeros, as words."""
        if zeros is None:
            return np.ascontiguousarray(scales, "<f4").view("<u4")
        bits = np.ascontiguousarray(scales, "<f2").view("<u2").astype("<u4") if self.scales == "halves_zeros" else (
            np.ascontiguousarray(scales, "<f4").view("<u4") >> np.uint32(16)
        )  # fmt: skip
        found: Words = bits | zeros.astype("<u4") << np.uint32(16)
        return found


def _words(packed: Bytes) -> Words:
    found: Words = np.ascontiguousarray(packed).view("<u4")
    return found


def _even(halves: Halves) -> Halves:
    """16-bit columns, with a column of zeros where their number is odd."""
    return np.pad(halves, ((0, 0), (0, halves.shape[1] % 2)))


def _bits(blocks: Blocks, *names: str) -> Halves:
    """float16 fields as their bits, ``(n, fields)``."""
    return np.stack([np.ascontiguousarray(blocks[name]).view("<u2") for name in names], axis=1)


def _none(blocks: Blocks) -> Halves:
    return np.zeros((len(blocks), 0), np.uint16)


def _pairs(first: NDArray[Any], second: NDArray[Any]) -> Halves:
    """Two bytes as 16 bits, the first one in the lower bits."""
    return first.astype(np.uint8).astype(np.uint16) | second.astype(np.uint8).astype(np.uint16) << np.uint16(8)


def _neighbours(numbers: NDArray[Any]) -> Halves:
    """Bytes ``(n, 2 count)`` as 16 bits ``(n, count)``."""
    return _pairs(numbers[:, ::2], numbers[:, 1::2])


def _nibbles(blocks: Blocks) -> Bytes:
    """The whole numbers of types with blocks of 32: 4 bits, and a fifth where the type has one."""
    q = unpack(blocks["q"], 4, 16)
    return q | unpack(blocks["high"], 1, 1) << np.uint8(4) if has_high(blocks.dtype) else q


def _levels_of_q45_k(blocks: Blocks) -> Bytes:
    q = unpack(blocks["q"], 4, 32)
    return q | unpack(blocks["high"], 1, 32) << np.uint8(4) if has_high(blocks.dtype) else q


def _levels_of_q3_k(blocks: Blocks) -> Bytes:
    return unpack(blocks["q"], 2, 32) | unpack(blocks["high"], 1, 32) << np.uint8(2)


def _levels_of_q6_k(blocks: Blocks) -> Bytes:
    return unpack(blocks["q"], 4, 64) | unpack(blocks["high"], 2, 32) << np.uint8(4)


def _with_minima(blocks: Blocks) -> tuple[Halves, Halves]:
    return _bits(blocks, "d", "dmin"), _pairs(*scales_and_minima(blocks["scales"]))


def _of_iq4_xs(blocks: Blocks) -> tuple[Halves, Halves]:
    scales = unpack(blocks["low"], 4, 1) | unpack(blocks["high"], 2, 1) << np.uint8(4)
    scales = scales.astype(np.int8) - np.int8(32)
    return _bits(blocks, "d"), _pairs(scales, scales)


def _of_nvfp4(blocks: Blocks) -> tuple[Halves, Halves]:
    scales = np.where(blocks["d"] == 127, np.uint8(0), blocks["d"])  # 127 stands for no number
    return _none(blocks), _neighbours(scales & np.uint8(127))


def _one(blocks: Blocks) -> tuple[Halves, Halves]:
    """A scale for each unit."""
    return _none(blocks), _bits(blocks, "d")


def _two(blocks: Blocks) -> tuple[Halves, Halves]:
    return _none(blocks), _bits(blocks, "d", "m")


@dataclass(frozen=True)
class BlockPacking(Packing):
    """A type of blocks, as files of GGUF have it.

    Attributes
    ----------
    levels : callable
        Blocks ``(n,)`` to the whole numbers in them, uint8 ``(n, block)``, from 0 on.
    parts : callable
        Blocks ``(n,)`` to two arrays of uint16: scales of blocks of 256, ``(n, 0 to 2)``, and scales of units,
        ``(n, count)``.
    """

    levels: Callable[[Blocks], Bytes] = _nibbles
    parts: Callable[[Blocks], tuple[Halves, Halves]] = _one

    def packed(self, blocks: Blocks, rows: int) -> PackedRows:
        """The rows of blocks ``(n,)``."""
        levels = self.levels(blocks).reshape(rows, -1)
        if self.offset and not self.high:
            levels = levels ^ np.uint8(self.offset)  # two's complement: a shift to the right extends the sign
        low = _words(pack(levels & np.uint8(2**self.low - 1), self.low, 1) if self.low < 8 else levels)
        high = _words(pack(levels >> np.uint8(self.low), self.high, 1)) if self.high else None
        scales = np.concatenate([_even(part.reshape(rows, -1)) for part in self.parts(blocks)], axis=1)
        return PackedRows(low, high, np.ascontiguousarray(scales).view("<u4"))


#: The types of blocks that kernels read.
PACKINGS = {
    "Q8_0": BlockPacking(8, 0, "halves", 128, levels=lambda b: b["q"].view(np.uint8) ^ np.uint8(128)),
    "Q4_0": BlockPacking(4, 0, "halves", 8),
    "Q5_0": BlockPacking(4, 1, "halves", 16),
    "Q4_1": BlockPacking(4, 0, "halves_minima", parts=_two),
    "Q5_1": BlockPacking(4, 1, "halves_minima", parts=_two),
    "Q2_K": BlockPacking(2, 0, "nibbles_minima", levels=lambda b: unpack(b["q"], 2, 32),
                         parts=lambda b: (_bits(b, "d", "dmin"), _neighbours(b["scales"]))),
    "Q3_K": BlockPacking(2, 1, "bytes", 4, levels=_levels_of_q3_k,
                         parts=lambda b: (_bits(b, "d"), _neighbours(scales_of_q3_k(b["scales"])))),
    "Q4_K": BlockPacking(4, 0, "bytes_minima", levels=_levels_of_q45_k, parts=_with_minima),
    "Q5_K": BlockPacking(4, 1, "bytes_minima", levels=_levels_of_q45_k, parts=_with_minima),
    "Q6_K": BlockPacking(4, 2, "bytes", 32, levels=_levels_of_q6_k,
                         parts=lambda b: (_bits(b, "d"), _neighbours(b["scales"]))),
    "IQ4_NL": BlockPacking(4, 0, "halves", table="non_linear"),
    "IQ4_XS": BlockPacking(4, 0, "bytes", table="non_linear", levels=lambda b: unpack(b["q"], 4, 16), parts=_of_iq4_xs),
    "MXFP4": BlockPacking(4, 0, "e8m0", table="fp4", parts=lambda b: (_none(b), _pairs(b["e"], b["e"])[:, None])),
    "NVFP4": BlockPacking(4, 0, "e4m3", table="fp4", levels=lambda b: unpack(b["q"], 4, 8), parts=_of_nvfp4),
}  # fmt: skip
#: Those whose scales are of groups: signed numbers, unsigned ones with zeros (scales of float16, of bfloat16), floats.
GROUPED = {
    "INT4": GroupPacking(4, 0, "floats", 8),
    "INT8": GroupPacking(8, 0, "floats", 128),
    "UINT4": GroupPacking(4, 0, "halves_zeros"),
    "UINT8": GroupPacking(8, 0, "halves_zeros"),
    "UINT4_BF16": GroupPacking(4, 0, "bfloats_zeros"),
    "UINT8_BF16": GroupPacking(8, 0, "bfloats_zeros"),
    "NF4": GroupPacking(4, 0, "floats", table="nf4"),
    "F8_E4M3": GroupPacking(8, 0, "floats", table="e4m3"),
}  # fmt: skip


@functools.lru_cache(4096)
def grouped(type: str) -> GroupPacking:
    """The record of a type such as "INT4:128": a name of `GROUPED`, and the columns of a group."""
    kind, _, size = type.partition(":")
    return replace(GROUPED[kind], group=int(size) // UNIT)


def packing_of(type: str) -> Packing:
    """The record of any type that kernels read."""
    return PACKINGS[type] if type in PACKINGS else grouped(type)


__all__ = [
    "GROUPED", "PACKINGS", "UNIT", "BlockPacking", "GroupPacking", "PackedRows", "Packing", "grouped", "packing_of",
]  # fmt: skip
