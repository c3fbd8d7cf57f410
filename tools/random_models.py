"""Folders of models with random weights in the shapes of known ones, for measurements."""

from __future__ import annotations

import functools
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import grilly
from grilly.models.config import Config
from grilly.models.gguf.mixes import type_of
from grilly.models.gguf.writer import write_file
from grilly.models.loading import class_of
from grilly.models.weights import Weights

#: Bytes of random numbers that are made; files repeat them.
BLOCK = 2**26
#: What files begin their names with, where the bare model of the architecture has no such part.
PREFIXES = {"LlamaForCausalLM": "model.", "GPT2LMHeadModel": "transformer."}


def llama(width: int, layers: int, heads: int, key_heads: int, inner: int, vocabulary: int) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": key_heads, "intermediate_size": inner,
        "vocab_size": vocabulary, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "eos_token_id": None, "bos_token_id": None,
    }  # fmt: skip


def bert(width: int, layers: int, heads: int, inner: int, vocabulary: int = 30522) -> dict:
    return {
        "architectures": ["BertModel"], "model_type": "bert", "hidden_size": width, "num_hidden_layers": layers,
        "num_attention_heads": heads, "intermediate_size": inner, "vocab_size": vocabulary,
        "max_position_embeddings": 512, "type_vocab_size": 2, "hidden_act": "gelu",
    }  # fmt: skip


def vit(width: int, layers: int, heads: int, inner: int, side: int, patch: int) -> dict:
    return {
        "architectures": ["ViTModel"], "model_type": "vit", "hidden_size": width, "num_hidden_layers": layers,
        "num_attention_heads": heads, "intermediate_size": inner, "image_size": side, "patch_size": patch,
        "hidden_act": "gelu",
    }  # fmt: skip


def whisper(width: int, layers: int, heads: int, inner: int, vocabulary: int, bins: int, positions: int) -> dict:
    parts = {
        f"{part}_{what}": value for part in ("encoder", "decoder")
        for what, value in (("layers", layers), ("attention_heads", heads), ("ffn_dim", inner))
    }  # fmt: skip
    return {
        "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "d_model": width,
        "vocab_size": vocabulary, "num_mel_bins": bins, "max_source_positions": positions, "max_target_positions": 448,
        "activation_function": "gelu", "is_encoder_decoder": True, "decoder_start_token_id": 3, "pad_token_id": 0,
        "bos_token_id": None, "eos_token_id": None, **parts,
    }  # fmt: skip


def gpt2(width: int, layers: int, heads: int, vocabulary: int) -> dict:
    return {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": width, "n_layer": layers, "n_head": heads,
        "vocab_size": vocabulary, "n_positions": 1024, "eos_token_id": None, "bos_token_id": None,
    }  # fmt: skip


def t5(width: int, layers: int, heads: int, dim: int, inner: int, vocabulary: int) -> dict:
    return {
        "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": width, "d_kv": dim,
        "d_ff": inner, "num_layers": layers, "num_heads": heads, "vocab_size": vocabulary, "is_encoder_decoder": True,
        "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": None,
    }  # fmt: skip


#: Each model's configuration, as it is and tiny.
MODELS = {
    "llama-8b": (llama(4096, 32, 32, 8, 14336, 128256), llama(64, 2, 4, 2, 128, 256)),
    "llama-1b": (llama(2048, 16, 32, 8, 8192, 128256), llama(64, 2, 8, 2, 96, 256)),
    "bert-base": (bert(768, 12, 12, 3072), bert(64, 2, 4, 128, 99)),
    "vit-b16": (vit(768, 12, 12, 3072, 224, 16), vit(64, 2, 4, 128, 32, 16)),
    "minilm": (bert(384, 6, 12, 1536), bert(48, 2, 4, 96, 99)),
    "whisper-large": (whisper(1280, 32, 20, 5120, 51866, 128, 1500), whisper(64, 2, 4, 128, 200, 16, 30)),
    "gpt2": (gpt2(768, 12, 12, 50257), gpt2(64, 2, 4, 256)),
    "t5-base": (t5(768, 12, 12, 64, 3072, 32128), t5(64, 2, 4, 16, 128, 256)),
}


class _Absent:
    """A checkpoint without tensors, for a model on paper."""

    def __init__(self, prefix: str) -> None:
        self.entries = {prefix: None} if prefix else {}


def shapes(config: dict) -> dict[str, tuple[int, ...]]:
    """The tensors that a model of this configuration asks for."""
    (architecture,) = config["architectures"]
    weights = Weights(_Absent(PREFIXES.get(architecture, "")), np.dtype(np.float16))
    class_of(Path(), config)(Config("config.json", config), weights)
    return weights.asked


def write(folder: Path, config: dict) -> Path:
    """config.json and model.safetensors in float16, where they are not there yet: weights of standard deviation 0.02,
    norms near 1. The numbers repeat every 64 MiB, so that disks and not arithmetic decide how long it takes."""
    text = json.dumps(config)
    file = folder / "model.safetensors"
    if file.is_file() and (folder / "config.json").is_file() and (folder / "config.json").read_text() == text:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    header, places, end = {}, [], 0
    for name, shape in shapes(config).items():
        nbytes = 2 * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [end, end + nbytes]}
        norm = len(shape) == 1 and name.endswith("weight")
        places += [(start + end, min(BLOCK, nbytes - start), norm) for start in range(0, nbytes, BLOCK)]
        end += nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    rng = np.random.default_rng(0)
    block = min(BLOCK, max(count for _, count, _ in places))  # bytes; twice as many numbers serve any offset below it
    numbers = (rng.standard_normal(block, np.float32) * np.float32(0.02)).astype(np.float16)
    weights, norms = memoryview(numbers).cast("B"), memoryview(numbers + np.float16(1)).cast("B")
    first = 8 + len(head)
    partial = file.with_suffix(".part")
    opened = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def put(place: tuple[int, int, bool]) -> None:
        start, count, norm = place
        source = norms if norm else weights
        skip = start * 7919 % block & ~1
        done = 0
        while done < count:
            done += os.pwrite(opened, source[skip + done : skip + count], first + start + done)

    try:
        os.ftruncate(opened, first + end)
        os.pwrite(opened, len(head).to_bytes(8, "little") + head, 0)
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(put, places))
    finally:
        os.close(opened)
    partial.replace(file)
    (folder / "config.json").write_text(text)
    return folder


#: Rows of quantized matrices that are made; others repeat them.
ROWS = 256


def write_gguf(file: Path, config: dict, type: str) -> Path:
    """A GGUF file of a Llama, where it is not there yet; ``type`` as grilly.models.write_gguf takes it."""
    if file.is_file():
        return file
    width, layers, inner = config["hidden_size"], config["num_hidden_layers"], config["intermediate_size"]
    keys_wide = width // config["num_attention_heads"] * config["num_key_value_heads"]
    table = config["vocab_size"], width
    shapes = {"token_embd": table, "output": table, "output_norm": (width,)}
    for layer in range(layers):
        of_layer = {
            "attn_norm": (width,), "attn_q": (width, width), "attn_k": (keys_wide, width), "attn_v": (keys_wide, width),
            "attn_output": (width, width), "ffn_norm": (width,), "ffn_gate": (inner, width), "ffn_up": (inner, width),
            "ffn_down": (width, inner),
        }  # fmt: skip
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in of_layer.items()}
    keys = {
        "general.architecture": "llama", "llama.block_count": layers, "llama.embedding_length": width,
        "llama.context_length": config["max_position_embeddings"], "llama.feed_forward_length": inner,
        "llama.attention.head_count": config["num_attention_heads"], "llama.vocab_size": config["vocab_size"],
        "llama.attention.head_count_kv": config["num_key_value_heads"], "llama.rope.freq_base": config["rope_theta"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
    }  # fmt: skip
    rng = np.random.default_rng(0)

    @functools.cache
    def some(kind: str, depth: int) -> np.ndarray:
        numbers = rng.standard_normal((ROWS, depth), np.float32) * np.float32(0.02)
        return grilly.quantize(numbers, kind).data

    def made(kind: str, shape: tuple[int, ...]) -> grilly.QuantizedTensor:
        if len(shape) == 1:
            return grilly.quantize(np.ones(shape, np.float32), kind)
        data = some(kind, shape[1])
        return grilly.QuantizedTensor(np.tile(data, (math.ceil(shape[0] / ROWS), 1))[: shape[0]], shape, kind)

    planned = {}
    for name, shape in shapes.items():
        kind = type_of(f"{name}.weight", shape, type, layers, False)
        planned[f"{name}.weight"] = shape, kind, functools.partial(made, kind, shape)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, keys, planned)
    return file
