"""MXFP4 of the OCP Microscaling Formats, as gpt-oss has it.

``NAME_blocks`` ``(..., K / 32, 16)`` uint8: two numbers in a byte, the first one below; ``NAME_scales``
``(..., K / 32)`` uint8: exponents.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...quantization import QuantizedTensor
from ...quantization.bits import pack, unpack
from ...quantization.tables import MXFP4
from ..config import Config
from .stored import Stored, Tensors


def find(tensors: Tensors, config: Config) -> dict[str, Stored]:
    """The tensors of a folder."""
    config.only(dequantize=False)
    config.unused("modules_to_not_convert")
    found = {}
    for name in tensors.before("_blocks"):
        blocks = f"{name}_blocks"
        shape = tensors.checkpoint.entries[blocks].shape
        if len(shape) < 3 or shape[-1] != 16:
            raise tensors.error(blocks, "[..., rows, blocks, 16] of U8")
        tensors.take(blocks, ["U8"], shape)
        found[name] = stored(tensors, blocks, f"{name}_scales", (*shape[:-2], shape[-2] * 32), "MXFP4")
    return found


def stored(tensors: Tensors, blocks: str, scales: str, shape: tuple[int, ...], kind: str) -> Stored:
    """A tensor of these bytes, which were taken, and of scales ``(..., K / 32)``."""
    tensors.take(scales, ["U8"], (*shape[:-1], shape[-1] // 32))
    file, nbytes = tensors.checkpoint.entries[blocks].file, tensors.nbytes(blocks, scales)

    def tensor() -> QuantizedTensor:
        return QuantizedTensor(_blocks(tensors.array(blocks), tensors.array(scales)), shape, "MXFP4")

    return Stored(file, kind, shape, nbytes, "bfloat16", "MXFP4" if len(shape) == 2 else "", tensor)


def _blocks(bytes_of: NDArray[Any], scales: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of blocks, which have the first half of 32 numbers below, the second above."""
    out = np.empty(scales.size, MXFP4)
    out["e"] = scales.reshape(-1)
    out["q"] = pack(unpack(np.ascontiguousarray(bytes_of).reshape(-1, 16), 4, 1), 4, 16)
    return out.view(np.uint8)


__all__ = ["find", "stored"]
