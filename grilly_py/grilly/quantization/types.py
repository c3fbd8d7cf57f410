"""The types of tensors in GGUF files: one record for each, and here alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import blocks, superblocks, tables
from .blocks import Blocks
from .search import Floats


@dataclass(frozen=True)
class QuantizationType:
    """How the numbers of a tensor are stored.

    Attributes
    ----------
    name : str
    number : int
        Its number in GGUF files.
    block : int
        Elements of a block.
    layout : numpy.dtype
        Of the bytes of a block.
    dequantize : callable or None
        Blocks ``(n,)`` to float32 ``(n, block)``; None where grilly does not read the type.
    quantize : callable or None
        float32 ``(n, block)`` to blocks ``(n,)``; None where grilly does not write the type.
    """

    name: str
    number: int
    block: int
    layout: np.dtype[Any]
    dequantize: Callable[[Blocks], Floats] | None = None
    quantize: Callable[[Floats], Blocks] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of a block."""
        return self.layout.itemsize

    def nbytes_of(self, shape: Sequence[int]) -> int:
        """Bytes of a tensor whose last axis is a multiple of the block."""
        return math.prod(shape) // self.block * self.nbytes


def _from_bfloat16(found: Blocks) -> Floats:
    numbers: NDArray[Any] = (found.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return numbers[:, None]


def _to_bfloat16(x: Floats) -> Blocks:
    bits = x[:, 0].view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype("<u2")


def _plain(name: str, number: int, dtype: str) -> QuantizationType:
    """A floating dtype of NumPy's: a block is one number."""
    layout = np.dtype(dtype)
    return QuantizationType(name, number, 1, layout, lambda found: found.astype(np.float32)[:, None],
                            lambda x: x[:, 0].astype(layout))  # fmt: skip


def _other(name: str, number: int, block: int, nbytes: int) -> QuantizationType:
    """A type that grilly neither reads nor writes: only its size is known."""
    return QuantizationType(name, number, block, np.dtype(f"V{nbytes}"))


_ALL = (
    _plain("F32", 0, "<f4"), _plain("F16", 1, "<f2"), _plain("F64", 28, "<f8"),
    QuantizationType("BF16", 30, 1, np.dtype("<u2"), _from_bfloat16, _to_bfloat16),
    QuantizationType("Q4_0", 2, 32, blocks.Q4_0, blocks.from_signed, blocks.to_q4_0),
    QuantizationType("Q4_1", 3, 32, blocks.Q4_1, blocks.from_unsigned, blocks.to_q4_1),
    QuantizationType("Q5_0", 6, 32, blocks.Q5_0, blocks.from_signed, blocks.to_q5_0),
    QuantizationType("Q5_1", 7, 32, blocks.Q5_1, blocks.from_unsigned, blocks.to_q5_1),
    QuantizationType("Q8_0", 8, 32, blocks.Q8_0, blocks.from_bytes, blocks.to_q8_0),
    QuantizationType("Q2_K", 10, 256, superblocks.Q2_K, superblocks.from_q2_k, superblocks.to_q2_k),
    QuantizationType("Q3_K", 11, 256, superblocks.Q3_K, superblocks.from_q3_k, superblocks.to_q3_k),
    QuantizationType("Q4_K", 12, 256, superblocks.Q4_K, superblocks.from_q45_k, superblocks.to_q4_k),
    QuantizationType("Q5_K", 13, 256, superblocks.Q5_K, superblocks.from_q45_k, superblocks.to_q5_k),
    QuantizationType("Q6_K", 14, 256, superblocks.Q6_K, superblocks.from_q6_k, superblocks.to_q6_k),
    QuantizationType("IQ4_NL", 20, 32, tables.IQ4_NL, tables.from_iq4_nl, tables.to_iq4_nl),
    QuantizationType("IQ4_XS", 23, 256, tables.IQ4_XS, tables.from_iq4_xs),
    QuantizationType("MXFP4", 39, 32, tables.MXFP4, tables.from_mxfp4, tables.to_mxfp4),
    QuantizationType("NVFP4", 40, 64, tables.NVFP4, tables.from_nvfp4),
    # Known by their sizes alone, so that files that have them can be listed.
    _other("Q8_1", 9, 32, 40), _other("Q8_K", 15, 256, 292), _other("IQ2_XXS", 16, 256, 66),
    _other("IQ2_XS", 17, 256, 74), _other("IQ3_XXS", 18, 256, 98), _other("IQ1_S", 19, 256, 50),
    _other("IQ3_S", 21, 256, 110), _other("IQ2_S", 22, 256, 82), _other("I8", 24, 1, 1), _other("I16", 25, 1, 2),
    _other("I32", 26, 1, 4), _other("I64", 27, 1, 8), _other("IQ1_M", 29, 256, 56), _other("TQ1_0", 34, 256, 54),
    _other("TQ2_0", 35, 256, 66), _other("Q1_0", 41, 128, 18),
)  # fmt: skip
#: The types by their names.
TYPES = {each.name: each for each in _ALL}
#: The types by their numbers in files.
BY_NUMBER = {each.number: each for each in _ALL}

__all__ = ["BY_NUMBER", "TYPES", "QuantizationType"]
