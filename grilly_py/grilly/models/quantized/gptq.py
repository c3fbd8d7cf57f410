"""GPTQ (Frantar et al. 2022, arXiv:2210.17323), as AutoGPTQ and GPTQModel write it.

``qweight`` ``(K bits / 32, N)`` int32: words along the depth; ``qzeros`` ``(groups, N bits / 32)``: words along the
columns; ``scales`` ``(groups, N)``; ``g_idx`` ``(K,)``, the group of each column of W, which is in no order where
columns were quantized in the order of their importance (``desc_act``). Files of the format "gptq" have zeros less 1,
where 0 becomes the largest number; those of "gptq_v2" have zeros as they are.
"""

from __future__ import annotations

import numpy as np

from ...quantization.groups import GroupedTensor, Grouping, Parts
from ..config import Config
from .stored import SCALES, UNSIGNED, Stored, Tensors, dtype_of_scales, unpacked

#: Formats, and what is added to their zeros.
FORMATS = {"gptq": 1, "gptq_v2": 0}
#: Fields of how weights were found, and of programs that run the model.
_UNUSED = (
    "act_group_aware", "backend", "batch_size", "block_name_to_quantize", "cache_block_outputs", "damp_auto_increment",
    "damp_percent", "dataset", "desc_act", "disable_exllama", "exllama_config", "lm_head", "max_input_length", "meta",
    "model_file_base_name", "model_name_or_path", "model_seqlen", "module_name_preceding_first_block",
    "modules_in_block_to_quantize", "mse", "pad_token_id", "static_groups", "sym", "tokenizer", "true_sequential",
    "use_cuda_fp16", "use_exllama",
)  # fmt: skip


def find(tensors: Tensors, config: Config) -> dict[str, Stored]:
    """The matrices of a folder."""
    bits = config.integer("bits")
    if bits not in (4, 8):
        raise config.error("bits", "4 or 8")
    size = config.integer("group_size", 128, least=-1)
    if size == 0:
        raise config.error("group_size", "a whole number above 0, or -1")
    kind = config.text("format", FORMATS, "gptq")
    kind = config.text("checkpoint_format", FORMATS, kind)
    config.only(dynamic={}, is_marlin_format=False, pack_dtype="int32")
    config.unused(*_UNUSED)
    return dict(_matrix(tensors, stem, bits, size, FORMATS[kind]) for stem in tensors.before(".qweight"))


def _matrix(tensors: Tensors, stem: str, bits: int, size: int, added: int) -> tuple[str, Stored]:
    names = [f"{stem}.{part}" for part in ("qweight", "qzeros", "scales", "g_idx")]
    each = 32 // bits
    found = tensors.take(names[0], ["I32"], (None, None))
    depth, rows = found.shape[0] * each, found.shape[1]
    if rows % each:
        raise tensors.error(names[0], f"a number of columns that {each} divides")
    group = depth if size == -1 else size
    groups = -(-depth // group)
    tensors.take(names[1], ["I32"], (groups, rows // each))
    scale = tensors.take(names[2], SCALES, (groups, rows))
    index = None
    if tensors.has(names[3]):
        tensors.take(names[3], ["I32"], (depth,))
        index = tensors.array(names[3])
        if index.min() < 0 or index.max() >= groups:
            raise tensors.wrong(names[3], f"goes from {index.min()} to {index.max()}; expected 0 to {groups - 1}")
    zeros = np.ascontiguousarray((unpacked(tensors.words(names[1]), bits) + np.uint8(added)).T) & np.uint8(2**bits - 1)
    signed = bool((zeros == 2 ** (bits - 1)).all())

    def read() -> Parts:
        words = np.ascontiguousarray(tensors.words(names[0]).T)
        return Parts(words, tensors.scales(names[2]).T, None if signed else zeros)

    kind = f"INT{bits}" if signed else UNSIGNED.get((bits, scale.kind), "")
    tensor = GroupedTensor((rows, depth), bits, kind, Grouping(group, index), read)
    return f"{stem}.weight", Stored(found.file, f"GPTQ, {bits} bits", (rows, depth), tensors.nbytes(*names),
                                    dtype_of_scales(scale), tensor.type, lambda: tensor, tensor.columns)  # fmt: skip


__all__ = ["find"]
