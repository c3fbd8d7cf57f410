"""Which type each tensor of a file gets."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...quantization import TYPES

#: The names that ``write_gguf`` takes: the type of most tensors, and the number for general.file_type.
MIXES = {
    "F32": ("F32", 0), "F16": ("F16", 1), "BF16": ("BF16", 32), "Q8_0": ("Q8_0", 7), "Q4_0": ("Q4_0", 2),
    "Q4_1": ("Q4_1", 3), "Q5_0": ("Q5_0", 8), "Q5_1": ("Q5_1", 9), "Q2_K": ("Q2_K", 10), "Q3_K": ("Q3_K", 11),
    "Q4_K": ("Q4_K", 14), "Q4_K_M": ("Q4_K", 15), "Q5_K": ("Q5_K", 16), "Q5_K_M": ("Q5_K", 17), "Q6_K": ("Q6_K", 18),
    "IQ4_NL": ("IQ4_NL", 25), "MXFP4": ("MXFP4", 38),
}  # fmt: skip
#: For rows that are no multiple of 256: the type with blocks of 32 and about as many bits.
SMALLER = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
#: Tables that are added to states, or looked up by few numbers: they stay floats.
TABLES = ("position_embd.weight", "token_types.weight")


def type_of(name: str, shape: Sequence[int], mix: str, layers: int, tied: bool) -> str:
    """The type of a tensor, by its name in files: in the main llama.cpp's choice.

    The head, on which every logit depends, gets 6 bits or more. In Q4_K_M and Q5_K_M so do, in half of the layers, the
    matrices of values and the last linear layer. Vectors and small tables stay float32.
    """
    base = MIXES[mix][0]
    if len(shape) < 2 or name in TABLES or "attn_rel_b" in name:
        return "F32"
    if TYPES[base].block == 1:
        return base
    found, layer = base, re.match(r"blk\.(\d+)\.(attn_v|attn_qkv|ffn_down)\.", name)
    if name == ("token_embd.weight" if tied else "output.weight") and base != "Q8_0":
        found = "Q6_K"
    elif mix.endswith("_M") and layer is not None and _has_more(int(layer[1]), layers):
        found = "Q6_K"
    if shape[-1] % TYPES[found].block:
        found = SMALLER.get(found, found)
    return found if shape[-1] % TYPES[found].block == 0 else "F16"


def _has_more(layer: int, layers: int) -> bool:
    """Whether a layer is in the first or last eighth, or one of three between them."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


__all__ = ["MIXES", "type_of"]
