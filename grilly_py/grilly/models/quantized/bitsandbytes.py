"""bitsandbytes: NF4 and FP4 (Dettmers et al. 2023, arXiv:2305.14314), and LLM.int8() (2022, arXiv:2208.07339).

Of 4 bits: ``weight``, two numbers in a byte, the first one above; ``weight.absmax``, the largest of each block of the
matrix as one row; ``weight.quant_map``, the number of each level; and as bytes of a JSON object
``weight.quant_state.bitsandbytes__nf4``. Where absmax is quantized in turn, it is uint8, a place in
``weight.nested_quant_map``, with ``weight.nested_absmax`` for each of its blocks, and ``nested_offset``.
Of 8 bits: ``weight`` int8 ``(N, K)`` and ``SCB`` ``(N,)``, the largest of each row, for which 127 stands.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from ...quantization.groups import NF4, GroupedTensor, Grouping, Parts
from ...quantization.packing import Words
from ..checkpoint import DTYPES, FLOATS
from ..config import Config
from .stored import Stored, Tensors, words_of_bytes

STATES = {kind: f".quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4")}
#: Fields that the tensors say themselves, and of how the model is run.
_UNUSED = (
    "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "bnb_4bit_use_double_quant", "llm_int8_enable_fp32_cpu_offload",
    "llm_int8_skip_modules", "llm_int8_threshold",
)  # fmt: skip


def find(tensors: Tensors, config: Config) -> dict[str, Stored]:
    """The matrices of a folder."""
    four, eight = (any([config.flag(f"{before}load_in_{bits}bit", False) for before in ("", "_")]) for bits in (4, 8))
    if four == eight:
        raise config.error("load_in_4bit", "either this or load_in_8bit true")
    config.text("bnb_4bit_quant_type", STATES, "fp4")
    config.only(llm_int8_has_fp16_weight=False)
    config.unused(*_UNUSED)
    if eight:
        return dict(_of_8_bits(tensors, stem) for stem in tensors.before(".SCB"))
    return {
        name: _of_4_bits(tensors, name, kind) for kind, ending in STATES.items() for name in tensors.before(ending)
    }


def _of_8_bits(tensors: Tensors, stem: str) -> tuple[str, Stored]:
    names = [f"{stem}.{part}" for part in ("weight", "SCB", "weight_format")]
    found = tensors.take(names[0], ["I8"], (None, None))
    rows, depth = found.shape
    tensors.take(names[1], ["F32"], (rows,))
    if tensors.has(names[2]):
        tensors.take(names[2], ["U8"], ())
        if tensors.array(names[2]).any():
            raise tensors.wrong(names[2], "is not 0; expected rows in their order")

    def read() -> Parts:
        scales = (tensors.scales(names[1]) / np.float32(127))[:, None]
        return Parts(words_of_bytes(tensors.array(names[0])) ^ np.uint32(0x80808080), scales)

    tensor = GroupedTensor((rows, depth), 8, "INT8", Grouping(depth), read)
    return names[0], Stored(found.file, "bitsandbytes, 8 bits", (rows, depth), tensors.nbytes(*names), "float16",
                            tensor.type, lambda: tensor)  # fmt: skip


def _of_4_bits(tensors: Tensors, name: str, kind: str) -> Stored:
    names = {part: f"{name}.{part}" for part in ("absmax", "quant_map", "nested_absmax", "nested_quant_map")}
    state = _state(tensors, name + STATES[kind], kind)
    shape = _shape(state)
    count, block = math.prod(shape), state.integer("blocksize")
    dtype = state.text("dtype", FLOATS.values())
    nested = names["nested_absmax"] in tensors.checkpoint.entries
    nested_block = state.integer("nested_blocksize", 256) if nested else 256
    offset = state.number("nested_offset") if nested else 0.0
    state.only(nested_dtype="float32")
    state.finish()
    found = tensors.take(name, DTYPES, (None, 1), (1, None))
    if found.nbytes != -(-count // 2):
        raise tensors.error(name, f"{-(-count // 2)} bytes, as {list(shape)} in {name + STATES[kind]} takes them")
    blocks = -(-count // block)
    tensors.take(names["absmax"], ["U8" if nested else "F32"], (blocks,))
    tensors.take(names["quant_map"], ["F32"], (16,))
    if nested:
        tensors.take(names["nested_absmax"], ["F32"], (-(-blocks // nested_block),))
        tensors.take(names["nested_quant_map"], ["F32"], (256,))
    table = tensors.scales(names["quant_map"])

    def absmax() -> np.ndarray[Any, np.dtype[np.float32]]:
        if not nested:
            return tensors.scales(names["absmax"])
        known = tensors.scales(names["nested_quant_map"])[tensors.array(names["absmax"])]
        whole = np.repeat(tensors.scales(names["nested_absmax"]), nested_block)[:blocks]
        return known * whole + np.float32(offset)

    rows = shape if shape[1] % block == 0 else (1, count)  # else blocks go on in the next row

    def read() -> Parts:
        return Parts(_words(tensors.array(name), rows), absmax().reshape(rows[0], -1))

    known = "NF4" if np.array_equal(table, NF4) and rows == shape else ""
    tensor = GroupedTensor(rows, 4, known, Grouping(block), read, table)
    return Stored(found.file, f"bitsandbytes, {kind}", shape, tensors.nbytes(name, *names.values()), dtype, tensor.type,
                  lambda: tensor)  # fmt: skip


def _state(tensors: Tensors, name: str, kind: str) -> Config:
    """The object in a tensor of bytes."""
    found = tensors.take(name, ["U8"], (None,))
    try:
        fields = json.loads(tensors.array(name).tobytes())
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise tensors.wrong(name, "is no JSON object")
    state = Config(f"{found.file}: {name}", fields)
    state.text("quant_type", [kind])
    return state


def _shape(state: Config) -> tuple[int, int]:
    shape = state.list("shape")
    if len(shape) != 2 or not all(type(extent) is int and 0 < extent < 2**31 for extent in shape):
        raise state.error("shape", "two whole numbers above 0")
    return shape[0], shape[1]


def _words(array: np.ndarray[Any, Any], shape: tuple[int, int]) -> Words:
    """Bytes whose first number is above as words along rows."""
    raw = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    turned = raw >> np.uint8(4) | raw << np.uint8(4)
    if shape[1] % 2:  # one row, whose last byte is filled by half
        return words_of_bytes(turned[None])
    return words_of_bytes(turned.reshape(shape[0], -1))


__all__ = ["find"]
