"""Numbers of 4 or 8 bits with a scale for each group along a row, as folders of safetensors hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .bits import pack, unpack
from .packing import GROUPED, UNIT, PackedRows, Words, grouped
from .tables import E4M3
from .tensor import QuantizedTensor

#: Rows so many elements long are computed at once.
_AT_ONCE = 2**22
#: NormalFloat of 4 bits (Dettmers et al. 2023, arXiv:2305.14314).
NF4 = np.array([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
], np.float32)  # fmt: skip
_BYTES = np.arange(256, dtype=np.uint8)
#: E4M3 with its sign; two of its codes stand for no number.
FLOAT8 = np.where(_BYTES & 127 == 127, np.float32(np.nan), E4M3 * np.where(_BYTES & 128, -2, 2).astype(np.float32))


class Parts(NamedTuple):
    """What a tensor of groups is made of.

    Attributes
    ----------
    words : array of uint32
        ``(N, K bits / 32)``, rounded up: levels, whole numbers from 0 on, the first of a row in the lowest bits.
    scales : array of floats
        ``(N, groups)``; of bfloat16 as float32.
    zeros : array of uint8 or None
        ``(N, groups)``, the levels that stand for 0.
    """

    words: Words
    scales: NDArray[Any]
    zeros: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class Grouping:
    """How the columns of a matrix ``(N, K)`` are shared out among groups.

    Attributes
    ----------
    size : int
        Columns of a group.
    index : array of int or None
        ``(K,)``, the group of each column; None where they are in their order.
    """

    size: int
    index: NDArray[np.integer[Any]] | None = None

    def order(self, depth: int) -> NDArray[np.int32] | None:
        """The columns sorted by their groups, int32 ``(K,)``; None where they are sorted."""
        if self.index is None or (self.index == np.arange(depth) // self.size).all():
            return None
        return np.argsort(self.index, kind="stable").astype(np.int32)

    def is_even(self, depth: int) -> bool:
        """Whether sorted columns have ``size`` of each group, but for the last."""
        found = np.arange(depth) if self.index is None else np.sort(self.index)
        return self.index is None or bool((found == np.arange(depth) // self.size).all())

    def of(self, depth: int) -> NDArray[np.integer[Any]]:
        """The group of each column."""
        return np.arange(depth) // self.size if self.index is None else self.index


class GroupedTensor(QuantizedTensor):
    """A matrix of numbers ``scale * (level - zero)``, or of ``scale * table[level]``, on the host.

    Parameters
    ----------
    shape : sequence of int
        ``(N, K)``.
    bits : int
        4 or 8: of a level.
    kind : str
        One of ``packing.GROUPED``, or "" for numbers that kernels do not read.
    grouping : Grouping
    read : callable
        Gives the parts. It is called when the numbers are wanted, so that nothing is kept.
    table : array of float32, optional
        The numbers that levels stand for, less those of ``zeros``. By default the kind's; without a kind the levels.

    Attributes
    ----------
    type : str
        The kind and a group's columns, such as "INT4:128"; "" where kernels do not read it.
    columns : array of int32 or None
        ``(K,)``: the order of columns that a device has.
    """

    def __init__(
        self, shape: Sequence[int], bits: int, kind: str, grouping: Grouping, read: Callable[[], Parts],
        table: NDArray[np.float32] | None = None,
    ) -> None:  # fmt: skip
        self.shape = (int(shape[0]), int(shape[1]))
        self._read, self._grouping, self._bits = read, grouping, bits
        self._table = _levels(kind, bits) if table is None else table
        depth = self.shape[1]
        fits = kind in GROUPED and not (depth % UNIT or grouping.size % UNIT)
        self.type = f"{kind}:{grouping.size}" if fits and grouping.is_even(depth) else ""
        self.columns = grouping.order(depth) if self.type else None

    def __repr__(self) -> str:
        return f"QuantizedTensor(shape={self.shape}, type={self.type!r})"

    @property
    def data(self) -> NoReturn:  # type: ignore[override]
        """Of tensors of blocks only."""
        raise AttributeError("a quantized tensor of groups has no blocks")

    @property
    def nbytes(self) -> int:
        """Bytes that a device needs; of types that kernels do not read those of float32."""
        return 4 * self.shape[0] * sum(grouped(self.type).words(self.shape[1])) if self.type else 4 * self.size

    def dequantize(self, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """The numbers, an array of the same shape, computed in float32."""
        words, scales, zeros = self._read()
        rows, depth = self.shape
        out, index = np.empty(self.shape, dtype), self._grouping.of(depth)
        step = max(_AT_ONCE // max(depth, 1), 1)
        for first in range(0, rows, step):
            some = slice(first, first + step)
            found = self._table[_unpacked(words[some], self._bits)[:, :depth]]
            if zeros is not None:
                found -= zeros[some].astype(np.float32)[:, index]
            with np.errstate(over="ignore", invalid="ignore"):
                out[some] = found * scales[some].astype(np.float32)[:, index]
        return out

    def packed(self) -> PackedRows:
        """The rows as kernels read them, columns in the order of ``columns``."""
        words, scales, zeros = self._read()
        own = grouped(self.type)
        if self.columns is not None:
            words = _packed(_unpacked(words, own.low)[:, self.columns], own.low)
        if own.offset:
            words = words ^ np.uint32(own.offset * ((2**32 - 1) // (2**own.low - 1)))
        return PackedRows(np.ascontiguousarray(words), None, own.scale_words(scales, zeros))


def _levels(kind: str, bits: int) -> NDArray[np.float32]:
    """The number of each level."""
    own = GROUPED.get(kind)
    if own is not None and own.table != "none":
        return {"nf4": NF4, "e4m3": FLOAT8}[own.table]
    return np.arange(2**bits, dtype=np.float32) - np.float32(0 if own is None else own.offset)


def _unpacked(words: Words, bits: int) -> NDArray[np.uint8]:
    """The levels in words."""
    raw = np.ascontiguousarray(words).view(np.uint8)
    return raw if bits == 8 else unpack(raw, bits, 1)


def _packed(levels: NDArray[np.uint8], bits: int) -> Words:
    """The words of levels."""
    found: Words = np.ascontiguousarray(levels if bits == 8 else pack(levels, bits, 1)).view("<u4")
    return found


__all__ = ["FLOAT8", "NF4", "GroupedTensor", "Grouping", "Parts"]
