"""AWQ (Lin et al. 2023, arXiv:2306.00978), as AutoAWQ's layers of version "gemm" have it.

``qweight`` ``(K, N / 8)`` int32: 8 columns of W^T in a word, of which ``ORDER`` says the places; ``qzeros``
``(K / group, N / 8)`` likewise; ``scales`` ``(K / group, N)``.
"""

from __future__ import annotations

import numpy as np

from ...quantization.groups import GroupedTensor, Grouping, Parts
from ...quantization.packing import Words
from ..config import Config
from .stored import SCALES, UNSIGNED, Stored, Tensors, dtype_of_scales

#: Where each of 8 neighbours lies in a word.
ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
#: Fields of programs that run the model.
_UNUSED = ("backend", "do_fuse", "exllama_config", "fuse_max_seq_len", "modules_to_fuse", "modules_to_not_convert")


def find(tensors: Tensors, config: Config) -> dict[str, Stored]:
    """The matrices of a folder."""
    config.only(bits=4, w_bit=4, zero_point=True)
    for name in ("version", "format"):
        config.only(**{name: ("gemm", "GEMM")})
    name = "q_group_size" if "q_group_size" in config else "group_size"
    size = config.integer(name, 128, least=-1)
    if size == 0:
        raise config.error(name, "a whole number above 0, or -1")
    config.unused(*_UNUSED)
    return dict(_matrix(tensors, stem, size) for stem in tensors.before(".qweight"))


def _matrix(tensors: Tensors, stem: str, size: int) -> tuple[str, Stored]:
    names = [f"{stem}.{part}" for part in ("qweight", "qzeros", "scales")]
    found = tensors.take(names[0], ["I32"], (None, None))
    depth, rows = found.shape[0], found.shape[1] * 8
    group = depth if size == -1 else size
    if depth % group or depth % 8:
        raise tensors.error(names[0], f"a number of rows that group_size, {group}, and 8 divide")
    tensors.take(names[1], ["I32"], (depth // group, rows // 8))
    scale = tensors.take(names[2], SCALES, (depth // group, rows))

    def read() -> Parts:
        zeros = np.ascontiguousarray(_columns(tensors.words(names[1])).T)
        return Parts(_words(tensors.words(names[0])), tensors.scales(names[2]).T, zeros)

    tensor = GroupedTensor((rows, depth), 4, UNSIGNED.get((4, scale.kind), ""), Grouping(group), read)
    return f"{stem}.weight", Stored(found.file, "AWQ", (rows, depth), tensors.nbytes(*names), dtype_of_scales(scale),
                                    tensor.type, lambda: tensor)  # fmt: skip


def _columns(words: Words) -> np.ndarray:
    """The columns in words ``(rows, words)``, uint8 ``(rows, 8 words)``."""
    shifts = np.array(ORDER, np.uint32) * np.uint32(4)
    return (words[..., None] >> shifts & np.uint32(15)).astype(np.uint8).reshape(len(words), -1)


def _words(words: Words) -> Words:
    """``qweight`` as words along the depth, ``(N, K / 8)``: squares of 8 x 8 numbers, each with its axes swapped."""
    depth, count = words.shape
    squares = [np.ascontiguousarray(words[k::8].T) for k in range(8)]
    for step, mask in ((4, 0x0000FFFF), (2, 0x00FF00FF), (1, 0x0F0F0F0F)):
        low, shift = np.uint32(mask), np.uint32(4 * step)
        for k in (k for k in range(8) if not k & step):
            first, second = squares[k], squares[k + step]
            squares[k] = first & low | (second & low) << shift
            squares[k + step] = first >> shift & low | second & ~low
    return np.stack([squares[place] for place in ORDER], axis=1).reshape(8 * count, depth // 8)


__all__ = ["find"]
