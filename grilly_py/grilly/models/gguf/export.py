"""write_gguf: a GGUF file from a model's folder."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ... import quantization
from ...errors import ModelError
from ...quantization import QuantizedTensor
from ..architectures import class_of
from ..config import Config, place_of, read_json
from ..quantized import checkpoint_of
from ..weights import Weights
from .config import BERT, DECODER, T5
from .mixes import MIXES, type_of
from .names import FAMILIES, Family
from .tokenizer_keys import keys_of_tokenizer
from .writer import Planned, write_file

#: Families by the architecture that they are written from.
BY_ARCHITECTURE = {
    **{each.architecture: each for each in FAMILIES.values()}, "MistralForCausalLM": FAMILIES["llama"],
}  # fmt: skip
#: What names of encoders' tensors begin with beside a head, and those of parts that files do without.
PREFIXES = {"bert": "bert.", "nomic-bert": "nomic_bert."}
UNWRITTEN = ("pooler.", "cls.", "classifier.")


def write_gguf(
    folder: str | Path, file: str | Path, type: str = "Q4_K_M", *,
    progress: Callable[[int, int], None] | None = None,
) -> None:  # fmt: skip
    """Write the model of a folder, with its tokenizer and chat template, as a GGUF file.

    Parameters
    ----------
    folder : str or Path
        As `load` reads it: Llama, Mistral, Qwen 2, Qwen 3, Phi-3, Gemma, Gemma 2, Gemma 3, T5, or BERT or Nomic BERT
        without a head.
    file : str or Path
        Replaced, where it exists, once the new one is complete.
    type : str
        Of most matrices: "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K" to "Q6_K", "IQ4_NL",
        "MXFP4"; or "Q4_K_M" or "Q5_K_M", in which some have 6 bits. Rows that blocks of 256 do not divide get a type
        with blocks of 32, others float16; vectors stay float32.
    progress : callable, optional
        Called with the tensors that were written, and how many there are.

    Raises
    ------
    ModelError
        As `load`, and for other architectures, and what GGUF has no key for: it names the field. Where the file's
        tokenizer would give other tokens.
    ValueError
        For another type.
    OSError
        Where the file cannot be written.

    Warns
    -----
    UserWarning
        Where the folder has no tokenizer.json: the file is without a tokenizer then.
    """
    folder, file = Path(folder), Path(file)
    if type not in MIXES:
        raise ValueError(f"write_gguf: type is {type!r}; expected one of {', '.join(MIXES)}")
    if not folder.is_dir():
        raise ModelError(f"{folder} is no folder")
    fields = read_json(folder / "config.json")
    make, architecture = class_of(folder, fields), fields["architectures"][0]
    if architecture not in BY_ARCHITECTURE:
        known = ", ".join(BY_ARCHITECTURE)
        raise ModelError(f"{place_of(folder)}: architectures is {architecture!r}; {known} can be written")
    weights = Weights(checkpoint_of(folder, fields), np.dtype(np.float32))
    config = Config(place_of(folder), fields)
    model: Any = make(config, weights)
    config.finish()
    weights.check()
    family = BY_ARCHITECTURE[architecture]
    family = dataclasses.replace(family, gated="gated" in fields.get("feed_forward_proj", ""))
    keys, tensors = _keys(config, family, model)
    named = _stored(weights, family)
    keys |= {"general.file_type": MIXES[type][1], "general.quantization_version": 2}
    keys |= keys_of_tokenizer(folder, family.name, named["token_embd.weight"][1][0])
    write_file(file, keys, _planned(weights, family, keys, named, tensors, type, progress))


def _planned(
    weights: Weights, family: Family, keys: dict[str, Any], named: dict[str, tuple[str, tuple[int, ...]]],
    tensors: dict[str, Any], mix: str, progress: Callable[[int, int], None] | None,
) -> dict[str, Planned]:  # fmt: skip
    """The tensors to write: the folder's, and those that belong to the keys."""
    checkpoint, count = weights.checkpoint, len(named) + len(tensors)
    layers, tied = keys[f"{family.name}.block_count"], "output.weight" not in named
    query_heads = keys[f"{family.name}.attention.head_count"]
    heads = {"q": query_heads, "k": keys.get(f"{family.name}.attention.head_count_kv", query_heads)}

    def make(stored: str, kind: str, place: int) -> QuantizedTensor:
        if stored in named:
            array = _changed(checkpoint.floats(named[stored][0]).astype(np.float32), stored, family, heads)
        else:
            array = tensors[stored]
        try:
            found = quantization.quantize(array, kind)
        except ValueError as error:
            raise ModelError(f"{checkpoint.folder}: {stored} cannot be written as {kind}: {error}") from None
        if progress is not None:
            progress(place + 1, count)
        return found

    shapes = {stored: shape for stored, (_, shape) in named.items()}
    shapes |= {stored: array.shape for stored, array in tensors.items()}
    planned: dict[str, Planned] = {}
    for place, (stored, shape) in enumerate(shapes.items()):
        kind = type_of(stored, shape, mix, layers, tied)
        planned[stored] = shape, kind, functools.partial(make, stored, kind, place)
    return planned


def _changed(array: Any, name: str, family: Family, heads: dict[str, int]) -> Any:
    """A tensor as files have it: rows that are rotated together are neighbours, and norms include their offset."""
    if family.is_permuted(name):
        halves = array.reshape(heads[name.split(".")[2].removeprefix("attn_")], 2, -1, *array.shape[1:])
        array = np.swapaxes(halves, 1, 2).reshape(array.shape)
    return array + np.float32(family.offset_of(name))


def _stored(weights: Weights, family: Family) -> dict[str, tuple[str, tuple[int, ...]]]:
    """By name in the file: name in the folder, and shape. Raises ModelError for a tensor without a name there."""
    found = {}
    for name, shape in weights.asked.items():
        plain = name.removeprefix(PREFIXES.get(family.name, ""))
        if family.name in PREFIXES and plain.startswith(UNWRITTEN):
            continue
        stored = family.stored(plain)
        if stored is None:
            raise ModelError(f"{weights.checkpoint.folder}: GGUF has no name for {name}")
        found[stored] = name, shape
    return found


def _keys(config: Config, family: Family, model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys of a configuration, and tensors of its rotation."""
    name, fields = family.name, config.fields
    table = {"bert": BERT, "nomic-bert": BERT, "t5": T5}.get(name, DECODER)
    defaults: dict[str, Any] = {"rms_norm_eps": 1e-5 if name == "phi3" else 1e-6, "layer_norm_eps": 1e-12}
    found: dict[str, Any] = {}
    for field, key in table.items():
        value: Any = fields.get(field, defaults.get(field))
        found[key] = float(value) if field.endswith("_eps") else value
    tensors: dict[str, Any] = {}
    if name in PREFIXES:
        only = {"bert": "gelu", "nomic-bert": "silu"}[name]
        if model.activation != only:
            raise config.error("hidden_act", f"{only!r}, as GGUF has no key for others")
        found |= {"attention.causal": False, "pooling_type": 1}
        if name == "nomic-bert":
            found |= _plain_rope(config, model.rotary)
    elif name == "t5":
        found |= _t5(config)
    else:
        more, tensors = _decoder(config, family, model)
        found |= more
    keys: dict[str, Any] = {"general.architecture": name, "general.type": "model"}
    keys["general.name"] = Path(config.where).parent.resolve().name
    return keys | {f"{name}.{key}": value for key, value in found.items()}, tensors


def _plain_rope(config: Config, rotary: Any) -> dict[str, Any]:
    """The key of rotary embedding without scaling."""
    rope = config.fields.get("rope_scaling") or config.fields.get("rope_parameters") or {}
    base = float(rope.get("rope_theta", config.fields.get("rope_theta", 1000.0)))
    if not _is_plain(rotary, base):
        raise ModelError(f"{config.where}: rotary scaling cannot be written for nomic-bert")
    return {"rope.freq_base": base}


def _is_plain(rotary: Any, base: float) -> bool:
    """Whether rotary embedding is without scaling."""
    count = len(rotary.frequencies)
    return rotary.factor == 1 and np.allclose(rotary.frequencies, base ** (-np.arange(count) / count), rtol=1e-9)


def _gemma3(config: Config, model: Any, windows: set[int], dim: int) -> dict[str, Any]:
    """The further keys of Gemma 3, whose layers with windows have rotary embedding without scaling."""
    fields, layers, local = config.fields, [layer.attention.local for layer in model.layers], model.rotary.local
    turn = next((i + 1 for i, one in enumerate(layers) if not one), len(layers) + 1)
    if layers != [i % turn != turn - 1 for i in range(len(layers))]:
        raise config.error("layer_types", "so many of sliding_attention after one of full_attention, again and again")
    own = (fields.get("rope_parameters") or {}).get("sliding_attention") or {}
    base = float(own.get("rope_theta", fields.get("rope_local_base_freq", 10000.0)))
    if not _is_plain(local, base):
        raise config.error("rope_parameters", "angles without scaling of sliding_attention")
    scalar = fields["hidden_size"] / model.layers[0].attention.heads if len(layers) == 62 else dim
    if not np.isclose(model.layers[0].attention.scale, scalar**-0.5):
        raise config.error("query_pre_attn_scalar", f"{scalar:g}, as GGUF has no key for it")
    more = {"final_logit_softcapping": float(model.softcap)} if model.softcap else {}
    pattern = {} if turn == 6 else {"attention.sliding_window_pattern": turn}
    return {"attention.sliding_window": min(windows, default=0), "rope.freq_base_swa": base, **pattern, **more}


def _t5(config: Config) -> dict[str, Any]:
    fields = config.fields
    config.only(relative_attention_max_distance=128, feed_forward_proj=("relu", "gated-gelu"))
    tied = fields.get("tie_word_embeddings", True)
    if fields.get("scale_decoder_outputs", tied) != tied:
        raise config.error("scale_decoder_outputs", f"{tied}, as GGUF has no key for it")
    eps = float(fields.get("layer_norm_epsilon", 1e-6))
    return {
        "context_length": fields.get("n_positions", 512), "attention.value_length": fields["d_kv"],
        "attention.layer_norm_epsilon": eps, "attention.layer_norm_rms_epsilon": eps,
        "attention.relative_buckets_count": fields.get("relative_attention_num_buckets", 32),
        "decoder_block_count": fields.get("num_decoder_layers", fields["num_layers"]),
        "decoder_start_token_id": fields.get("decoder_start_token_id", 0),
    }  # fmt: skip


def _decoder(config: Config, family: Family, model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of language models."""
    fields, name, rotary = config.fields, family.name, model.rotary
    dim, positions = model.cached[2], fields["max_position_embeddings"]
    config.only(**({"hidden_act": ("silu", "swish")} if not name.startswith("gemma") else {}))
    found = {"attention.head_count_kv": model.cached[1], "attention.key_length": dim, "attention.value_length": dim,
             "rope.dimension_count": 2 * len(rotary.frequencies)}  # fmt: skip
    windows = {layer.attention.window for layer in model.layers} - {None}
    if name == "gemma3":
        found |= _gemma3(config, model, windows, dim)
    elif name in ("gemma2", "phi3") and windows:
        found["attention.sliding_window"] = windows.pop()
    elif any(window < positions for window in windows):
        raise config.error("sliding_window", f"none, or at least {positions}, as files of {name} have no windows")
    if name == "gemma2":
        attention = model.layers[0].attention
        scalar = fields["hidden_size"] / model.layers[0].attention.heads if len(model.layers) == 46 else dim
        if not np.isclose(attention.scale, scalar**-0.5):
            raise config.error("query_pre_attn_scalar", f"{scalar:g}, as GGUF has no key for it")
        found |= {"attn_logit_softcapping": float(attention.softcap),
                  "final_logit_softcapping": float(model.softcap)}  # fmt: skip
    rope = dict(fields.get("rope_scaling") or fields.get("rope_parameters") or {})
    rope = dict(rope.get("full_attention", rope))
    kind = rope.get("rope_type", rope.get("type", "default"))
    base = float(rope.get("rope_theta", fields.get("rope_theta", 1e6 if name == "gemma3" else 10000.0)))
    found["rope.freq_base"] = base
    trained = fields.get("original_max_position_embeddings", rope.get("original_max_position_embeddings", positions))
    plain = base ** (-np.arange(len(rotary.frequencies)) / len(rotary.frequencies))
    if kind == "linear":
        found |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope["factor"])}
    elif kind == "yarn" and not {"mscale", "mscale_all_dim", "truncate"} & rope.keys():
        found |= {"rope.scaling.type": "yarn", "rope.scaling.factor": float(rope["factor"]),
                  "rope.scaling.original_context_length": trained}  # fmt: skip
        for key, field in (("attn_factor", "attention_factor"), ("yarn_beta_fast", "beta_fast"),
                           ("yarn_beta_slow", "beta_slow")):  # fmt: skip
            if field in rope:
                found[f"rope.scaling.{key}"] = float(rope[field])
    elif kind == "longrope" and name == "phi3":
        found |= {"rope.scaling.original_context_length": trained, "rope.scaling.attn_factor": float(rotary.factor)}
        return found, {f"rope_factors_{end}.weight": np.array(rope[f"{end}_factor"], np.float32)
                       for end in ("long", "short")}  # fmt: skip
    elif kind == "llama3" and name == "llama":
        return found, {"rope_freqs.weight": (plain / rotary.frequencies).astype(np.float32)}
    elif kind != "default":
        raise ModelError(f"{config.where}: rotary scaling of type {kind!r} cannot be written for {name}")
    return found, {}


__all__ = ["write_gguf"]
