"""Weights as E4M3 of OCP's 8-bit floating point, with scales: of the matrix, of each row, or of blocks.

``weight`` ``(N, K)``, and ``weight_scale_inv`` or ``weight_scale``, by which it is multiplied for all its name.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...quantization.groups import GroupedTensor, Grouping, Parts
from ..config import Config
from .stored import SCALES, Stored, Tensors, dtype_of_scales, words_of_bytes

#: Fields of activations, which are not rounded here, and of modules, which the tensors' dtypes say.
_UNUSED = ("activation_scheme", "ignored_layers", "modules_to_convert", "modules_to_not_convert")
#: Scales of activations.
_DROPPED = ("input_scale", "activation_scale", "output_scale")


def find(tensors: Tensors, config: Config) -> dict[str, Stored]:
    """The matrices of a folder."""
    config.only(fmt="e4m3", scale_fmt="float", dequantize=False, expert_dtype="fp8")
    blocks = config.list("weight_block_size", None)
    if blocks is not None and (len(blocks) != 2 or not all(type(one) is int and one > 0 for one in blocks)):
        raise config.error("weight_block_size", "two whole numbers above 0, or null")
    config.unused(*_UNUSED)
    return {f"{stem}.weight": matrix(tensors, stem, blocks) for stem in matrices(tensors)}


def matrices(tensors: Tensors) -> list[str]:
    """The layers whose weights are of 8 bits."""
    entries = tensors.checkpoint.entries
    return [stem for stem in tensors.before(".weight") if entries[f"{stem}.weight"].kind == "F8_E4M3"]


def matrix(tensors: Tensors, stem: str, blocks: Sequence[int] | None, kind: str = "fp8") -> Stored:
    """The weight of a layer; ``blocks``: rows and columns that share a scale, None for all or for each row."""
    name = f"{stem}.weight"
    found = tensors.take(name, ["F8_E4M3"], (None, None))
    rows, depth = found.shape
    high, wide = blocks or (rows, depth)
    scale = f"{name}_scale_inv" if tensors.has(f"{name}_scale_inv") else f"{name}_scale"
    shapes = [(-(-rows // high), -(-depth // wide))] if blocks else [(), (1,), (1, 1), (rows,), (rows, 1)]
    own = tensors.take(scale, SCALES, *shapes)
    tensors.drop(*(f"{stem}.{part}" for part in _DROPPED))

    def read() -> Parts:
        raw = tensors.array(name)
        if (raw & np.uint8(127) == 127).any():
            raise tensors.wrong(name, "has numbers that are none")
        scales = tensors.scales(scale)
        if blocks:
            scales = np.repeat(scales, high, axis=0)[:rows]
        return Parts(words_of_bytes(raw), np.broadcast_to(scales.reshape(-1, scales.shape[1] if blocks else 1),
                                                          (rows, scales.shape[1] if blocks else 1)))  # fmt: skip

    tensor = GroupedTensor((rows, depth), 8, "F8_E4M3", Grouping(wide), read)
    return Stored(found.file, kind, (rows, depth), tensors.nbytes(name, scale), dtype_of_scales(own), tensor.type,
                  lambda: tensor)  # fmt: skip


__all__ = ["find", "matrices", "matrix"]
