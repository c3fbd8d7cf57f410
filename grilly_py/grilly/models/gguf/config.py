"""The fields of config.json, made of the keys of a GGUF file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import ModelError
from ..config import Config
from .file import GGUF
from .names import FAMILIES, Family

#: Fields of config.json, and the keys of the same, of language models, of BERT and of T5.
DECODER = {
    "hidden_size": "embedding_length", "num_hidden_layers": "block_count", "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count", "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}  # fmt: skip
BERT = {
    "hidden_size": "embedding_length", "num_hidden_layers": "block_count", "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count", "max_position_embeddings": "context_length",
    "layer_norm_eps": "attention.layer_norm_epsilon",
}  # fmt: skip
T5 = {
    "d_model": "embedding_length", "num_layers": "block_count", "d_ff": "feed_forward_length",
    "num_heads": "attention.head_count", "d_kv": "attention.key_length",
}  # fmt: skip
#: Fields of tokens, and the keys that name them. A text ends with any of the tokens of several keys.
TOKENS = {
    "bos_token_id": ("bos_token_id",), "eos_token_id": ("eos_token_id", "eot_token_id", "eom_token_id"),
    "pad_token_id": ("padding_token_id",),
}  # fmt: skip
#: The numbers of kinds of pooling.
POOLING = {1: "mean", 2: "cls"}
#: What ends a message in chats. Older files do not name it by a key of its own.
ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")
#: The type of tokens that are no text.
CONTROL = 3


def keys_of(gguf: GGUF, ignored: Iterable[str] = ()) -> Config:
    """The keys of the file's family, without the prefix that names it."""
    name = family_of(gguf).name
    fields = {key.removeprefix(f"{name}."): value for key, value in gguf.keys.items() if key.startswith(f"{name}.")}
    return Config(f"{gguf.path}: {name}", fields, ignored)


def family_of(gguf: GGUF) -> Family:
    """The family that a file names. Raises ModelError for one that is not supported."""
    name = gguf.keys.get("general.architecture")
    if not isinstance(name, str) or name not in FAMILIES:
        raise ModelError(f"{gguf.path}: general.architecture is {name!r:.100}; expected one of {', '.join(FAMILIES)}")
    return dataclasses.replace(FAMILIES[name], gated="enc.blk.0.ffn_gate.weight" in gguf.tensors)


def fields_of(gguf: GGUF, ignored: Iterable[str] = ()) -> dict[str, Any]:
    """The fields of config.json.

    Raises
    ------
    ModelError
        For a family that is not supported, and for keys that are missing, unknown, or with unsupported values.
    """
    family = family_of(gguf)
    if gguf.keys.get("general.type", "model") != "model":
        raise ModelError(f"{gguf.path}: general.type is {gguf.keys['general.type']!r:.100}; expected 'model'")
    keys = keys_of(gguf, ignored)
    for name in ("block_count", "decoder_block_count"):  # before a model of millions of layers is made
        if keys.integer(name, 0, least=0) > len(gguf.tensors):
            raise keys.error(name, f"at most {len(gguf.tensors)}, as there are so many tensors")
    fields = {"bert": _bert, "nomic-bert": _nomic, "t5": _t5}.get(family.name, _decoder)(gguf, keys)
    keys.only(expert_count=0, expert_used_count=0)
    keys.finish()
    return {"architectures": [family.architecture], "model_type": family.model_type, **fields, **tokens_of(gguf)}


def _read(keys: Config, table: Mapping[str, str]) -> dict[str, Any]:
    """The fields of these keys, all of which must be there."""
    return {field: (keys.number if field.endswith("_eps") else keys.integer)(key) for field, key in table.items()}


def _rows(gguf: GGUF, keys: Config, name: str = "token_embd.weight") -> int:
    """The rows of a table."""
    if name not in gguf.tensors or not gguf.tensors[name].shape:
        raise ModelError(f"{gguf.path}: the tensor {name} is missing")
    keys.unused("vocab_size")
    return gguf.tensors[name].shape[0]


def _decoder(gguf: GGUF, keys: Config) -> dict[str, Any]:
    """The fields of language models."""
    name, fields = gguf.keys["general.architecture"], _read(keys, DECODER)
    width, layers, query_heads = (fields[f] for f in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    if width < query_heads:
        raise keys.error("attention.head_count", f"at most {width}, as embedding_length says")
    dim = keys.integer("attention.key_length", width // query_heads)
    keys.only(**{"attention.value_length": dim, "attention.causal": True})
    rotated = keys.integer("rope.dimension_count", dim)
    fields |= {
        "vocab_size": _rows(gguf, keys), "head_dim": dim,
        "num_key_value_heads": keys.integer("attention.head_count_kv", query_heads),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        **_rope(gguf, keys, fields["max_position_embeddings"]),
    }  # fmt: skip
    bias = any(f"blk.0.attn_{part}.bias" in gguf.tensors for part in ("q", "output"))
    if name == "llama":
        fields |= {"attention_bias": bias, "mlp_bias": "blk.0.ffn_down.bias" in gguf.tensors}
    window = keys.integer("attention.sliding_window", None, least=0)
    if name == "phi3":
        fields |= {"partial_rotary_factor": rotated / dim, "sliding_window": window or None}
    elif rotated != dim:
        raise keys.error("rope.dimension_count", f"{dim}, all elements of a head")
    elif name == "gemma2":
        fields |= {
            "sliding_window": window or 4096, "hidden_activation": "gelu_pytorch_tanh",
            "attn_logit_softcapping": keys.number("attn_logit_softcapping", 50.0),
            "final_logit_softcapping": keys.number("final_logit_softcapping", 30.0),
            # Which no key says: the largest of the three, known by its layers, has another one.
            "query_pre_attn_scalar": width / query_heads if layers == 46 else dim,
        }
    elif name == "gemma3":
        fields |= _gemma3(keys, window, layers, dim, width / query_heads)
    elif name == "gemma":
        fields["hidden_act"] = "gelu_pytorch_tanh"
    elif window:
        raise keys.error("attention.sliding_window", "0: no window")
    return fields


def _gemma3(keys: Config, window: int | None, layers: int, dim: int, divided: float) -> dict[str, Any]:
    """The further fields of Gemma 3."""
    turn = keys.integer("attention.sliding_window_pattern", 6)
    kinds = ["full_attention" if i % turn == turn - 1 else "sliding_attention" for i in range(layers)]
    return {
        "layer_types": kinds if window else ["full_attention"] * layers, "sliding_window": window or 4096,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_local_base_freq": keys.number("rope.freq_base_swa", 10000.0, above=0),
        "final_logit_softcapping": keys.number("final_logit_softcapping", None, least=0),
        # Which no key says: the largest of them, known by its layers, has another one.
        "query_pre_attn_scalar": divided if layers == 62 else dim,
    }  # fmt: skip


def _rope(gguf: GGUF, keys: Config, positions: int) -> dict[str, Any]:
    """The fields of rotary embedding."""
    keys.unused("rope.scaling.finetuned")
    fields: dict[str, Any] = {"rope_theta": keys.number("rope.freq_base", 10000.0, above=0)}
    kind = keys.text("rope.scaling.type", ("none", "linear", "yarn", "longrope"), "none")
    factor = keys.number("rope.scaling.factor", None, least=0)
    trained = keys.integer("rope.scaling.original_context_length", None)
    scale = keys.number("rope.scaling.attn_factor", None, above=0)
    keys.only(**{"rope.scaling.yarn_ext_factor": 1.0, "rope.scaling.yarn_attn_factor": 1.0})
    fast, slow = (keys.number(f"rope.scaling.yarn_beta_{end}", None, above=0) for end in ("fast", "slow"))
    scaling: dict[str, Any] = {}
    short, long = (_factors(gguf, f"rope_factors_{name}.weight") for name in ("short", "long"))
    factors = _factors(gguf, "rope_freqs.weight")
    if short is not None and long is not None:
        scaling = {"rope_type": "longrope", "short_factor": short, "long_factor": long,
                   "original_max_position_embeddings": trained or positions, "attention_factor": scale}  # fmt: skip
    elif factors is not None:  # one for each frequency, as scaling of type "llama3" computes them
        scaling = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "attention_factor": 1.0,
                   "original_max_position_embeddings": positions}  # fmt: skip
    elif kind == "longrope":
        raise keys.error("rope.scaling.type", "the tensors rope_factors_short.weight and rope_factors_long.weight")
    elif kind == "linear" and factor not in (None, 0.0, 1.0):
        scaling = {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": trained,
                   "attention_factor": scale, "beta_fast": fast, "beta_slow": slow}  # fmt: skip
    elif scale not in (None, 1.0):
        raise keys.error("rope.scaling.attn_factor", "1")
    if scaling:
        fields["rope_scaling"] = {name: value for name, value in scaling.items() if value is not None}
    if trained is not None and kind != "yarn":
        fields["original_max_position_embeddings"] = trained
    return fields


def _factors(gguf: GGUF, name: str) -> list[float] | None:
    """The numbers by which frequencies are divided."""
    return [float(each) for each in gguf.tensor(name).dequantize().ravel()] if name in gguf.tensors else None


def _bert(gguf: GGUF, keys: Config) -> dict[str, Any]:
    keys.only(**{"attention.causal": False})
    keys.unused("pooling_type")  # of sentences
    fields = _read(keys, BERT)
    positions = min(fields["max_position_embeddings"], _rows(gguf, keys, "position_embd.weight"))
    return {**fields, "vocab_size": _rows(gguf, keys), "hidden_act": "gelu", "max_position_embeddings": positions,
            "type_vocab_size": _rows(gguf, keys, "token_types.weight")}  # fmt: skip


def _nomic(gguf: GGUF, keys: Config) -> dict[str, Any]:
    keys.only(**{"attention.causal": False})
    keys.unused("pooling_type")  # of sentences
    return {**_read(keys, BERT), "vocab_size": _rows(gguf, keys), "hidden_act": "silu",
            "type_vocab_size": _rows(gguf, keys, "token_types.weight"),
            "rope_theta": keys.number("rope.freq_base", 1000.0, above=0)}  # fmt: skip


def pooling_of(gguf: GGUF) -> str:
    """How one vector is made of a text's tokens: "mean" where the file does not say. Raises ModelError for others."""
    keys = keys_of(gguf)
    number = keys.integer("pooling_type", None, least=0)
    if number is not None and number not in POOLING:
        raise keys.error("pooling_type", " or ".join(f"{one} ({name})" for one, name in POOLING.items()))
    return POOLING[1 if number is None else number]


def _t5(gguf: GGUF, keys: Config) -> dict[str, Any]:
    fields = _read(keys, T5)
    eps = keys.number("attention.layer_norm_epsilon", None, least=0)
    eps = keys.number("attention.layer_norm_rms_epsilon", 1e-6 if eps is None else eps, least=0)
    keys.only(**{"attention.value_length": fields["d_kv"]})
    keys.unused("context_length", "attention.head_count_kv")
    return {
        **fields, "vocab_size": _rows(gguf, keys), "layer_norm_epsilon": eps, "is_encoder_decoder": True,
        "num_decoder_layers": keys.integer("decoder_block_count", fields["num_layers"]),
        "relative_attention_num_buckets": keys.integer("attention.relative_buckets_count", 32),
        "feed_forward_proj": "gated-gelu" if "enc.blk.0.ffn_gate.weight" in gguf.tensors else "relu",
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "decoder_start_token_id": keys.integer("decoder_start_token_id", 0, least=0),
    }  # fmt: skip


def tokens_of(gguf: GGUF) -> dict[str, Any]:
    """The fields of special tokens. Several tokens may end a text."""
    found: dict[str, Any] = {}
    for field, names in TOKENS.items():
        values = [gguf.keys[key] for name in names if (key := f"tokenizer.ggml.{name}") in gguf.keys]
        if field == "eos_token_id":
            values += _ends(gguf)
        if not all(type(value) is int for value in values):
            raise ModelError(f"{gguf.path}: tokenizer.ggml.{names[0]} is {values!r:.100}; expected a token's number")
        several = list(dict.fromkeys(values))
        if several:
            found[field] = several if len(several) > 1 else several[0]
    return found


def _ends(gguf: GGUF) -> list[int]:
    """The tokens that end a message."""
    tokens, types = gguf.keys.get("tokenizer.ggml.tokens"), gguf.keys.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, list) or types is None or len(types) != len(tokens):
        return []
    control = [number for number, kind in enumerate(types) if kind == CONTROL]
    return [number for number in control if tokens[number] in ENDS]


__all__ = ["family_of", "fields_of", "keys_of", "pooling_of"]
