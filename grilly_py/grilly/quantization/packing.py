"""Quantized types in the order that kernels read: bits of the numbers in 32-bit words along the depth, scales apart.

A unit is 32 numbers of a row. A row has, as `shaders/include/quantized.glsl` reads them,

- ``low`` ``(K low / 32)`` words: the lower bits of the numbers, the first number in the lowest bits;
- ``high`` ``(K high / 32)`` words: their upper bits likewise, where a type has more than ``low``;
- ``scales``: float16 scales of blocks of 256, where there are any, then 16 bits of scales for each unit, or 32; of
  types whose scales are those of groups, 32 bits for each group of units.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
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

    def words(self, depth: int) -> tuple[int, int, int]:
        """The words of a row of so many numbers: of ``low``, ``high`` and ``scales``."""
        return depth * self.low // 32, 0, -(-depth // (self.group * UNIT))

    def scale_words(self, scales: NDArray[Any], zeros: NDArray[np.uint8] | None) -> Words:
        """Scales ``(N, groups)``, and zeros, as words."""
        if zeros is None:
            return np.ascontiguousarray(scales, "<f4").view("<u4")
        bits = np.ascontiguousarray(scales, "<f2").view("<u2").astype("<u4") if self.scales == "halves_zeros" else (
            np.ascontiguousarray(scales, "<f4").view("<u4") >> np.uint32(16)
        )  # fmt: skip
        found: Words = bits | zeros.astype("<u4") << np.uint32(16)
        return found


@dataclass(frozen=True)
class BlockPacking(Packing):
    """A type of blocks, as files of GGUF have it. `shaders/elementwise/pack-blocks.comp` packs them.

    Attributes
    ----------
    low_run, high_run : int
        Numbers whose lower bits lie in a byte each, before those with the next higher bits of the same bytes; and of
        upper bits.
    stored : str
        How blocks hold the scales of their parts: a name below ``constants: stored``; "none" where a block is a unit.
    parts : str
        The field of these scales.
    """

    low_run: int = 16
    high_run: int = 1
    stored: str = "none"
    parts: str = "scales"

    def words(self, depth: int) -> tuple[int, int, int]:
        """The words of a row of so many numbers: of ``low``, ``high`` and ``scales``."""
        units = depth // UNIT
        blocks = units // 8  # of 256 numbers
        before = {"bytes": -(-blocks // 2), "bytes_minima": blocks, "nibbles_minima": blocks}.get(self.scales, 0)
        own = units if self.scales == "halves_minima" else -(-units // 2)
        return units * self.low, units * self.high, before + own


#: The types of blocks that kernels read.
PACKINGS = {
    "Q8_0": BlockPacking(8, 0, "halves", 128, low_run=32),
    "Q4_0": BlockPacking(4, 0, "halves", 8),
    "Q5_0": BlockPacking(4, 1, "halves", 16),
    "Q4_1": BlockPacking(4, 0, "halves_minima"),
    "Q5_1": BlockPacking(4, 1, "halves_minima"),
    "Q2_K": BlockPacking(2, 0, "nibbles_minima", low_run=32, stored="bytes"),
    "Q3_K": BlockPacking(2, 1, "bytes", 4, low_run=32, high_run=32, stored="threes"),
    "Q4_K": BlockPacking(4, 0, "bytes_minima", low_run=32, stored="sixes"),
    "Q5_K": BlockPacking(4, 1, "bytes_minima", low_run=32, high_run=32, stored="sixes"),
    "Q6_K": BlockPacking(4, 2, "bytes", 32, low_run=64, high_run=32, stored="bytes"),
    "IQ4_NL": BlockPacking(4, 0, "halves", table="non_linear"),
    "IQ4_XS": BlockPacking(4, 0, "bytes", table="non_linear", stored="non_linear", parts="high"),
    "MXFP4": BlockPacking(4, 0, "e8m0", table="fp4", stored="exponent", parts="e"),
    "NVFP4": BlockPacking(4, 0, "e4m3", table="fp4", low_run=8, stored="floats", parts="d"),
}
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


def packing_of(type: str) -> BlockPacking | GroupPacking:
    """The record of any type that kernels read."""
    return PACKINGS[type] if type in PACKINGS else grouped(type)


__all__ = [
    "GROUPED", "PACKINGS", "UNIT", "BlockPacking", "GroupPacking", "PackedRows", "Packing", "grouped", "packing_of",
]  # fmt: skip
