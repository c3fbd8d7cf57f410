"""GGUF files of models and tokenizers that folders hold too, written by the package gguf as llama.cpp's converter does.

What this needs of the converter is stated here once more, apart from grilly's own reading of it.
"""

from __future__ import annotations

import json

import numpy as np

#: Names of tensors that the package does not map.
_OTHER = {"shared.weight": "token_embd.weight"}
#: What transformers calls otherwise than llama.cpp.
ARCHITECTURES = {"gemma3_text": "gemma3", "nomic_bert": "nomic-bert"}


def _permuted(array, heads):
    """The rows of q or k as the converter of Llama writes them."""
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


def _rope(gguf, writer, config):
    """Keys of the rotation; returns tensors of it."""
    rope, divided = config["rope_parameters"], config["hidden_size"] // config["num_attention_heads"]
    dim = config.get("head_dim", divided)
    rotated = int(dim * rope.get("partial_rotary_factor", 1.0))
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(rotated)
    kind = rope["rope_type"]
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "longrope":
        length, trained = config["max_position_embeddings"], rope["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(trained)
        factor = rope.get("factor", length / trained)
        writer.add_rope_scaling_attn_factors((1 + np.log(factor) / np.log(trained)) ** 0.5)
        factors = {name: np.array(rope[f"{name}_factor"], np.float32) for name in ("short", "long")}
        return {f"rope_factors_{name}.weight": array for name, array in factors.items()}
    if kind == "llama3":  # as factors of each frequency
        plain = rope["rope_theta"] ** (-np.arange(0, dim, 2) / dim)
        low, high, trained = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
        smooth = np.clip((trained * plain / (2 * np.pi) - low) / (high - low), 0, 1)
        return {"rope_freqs.weight": (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)}
    return {}


def _decoder_keys(gguf, writer, config):
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    if "num_key_value_heads" in config:
        writer.add_head_count_kv(config["num_key_value_heads"])
    if config["model_type"] in ("bert", "nomic_bert"):
        writer.add_layer_norm_eps(config["layer_norm_eps"])
        writer.add_causal_attention(False)
        writer.add_pooling_type(gguf.PoolingType.CLS)
        if config["model_type"] == "nomic_bert":
            writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
        return {}
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if config["model_type"] == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config.get("sliding_window") and config["model_type"] in ("gemma2", "gemma3_text", "phi3"):
        writer.add_sliding_window(config["sliding_window"])
    if config["model_type"] == "gemma3_text":
        kinds, local = config["layer_types"], config["rope_parameters"]["sliding_attention"]
        writer.add_sliding_window_pattern(kinds.index("full_attention") + 1)
        writer.add_rope_freq_base_swa(local["rope_theta"])
        config = {**config, "rope_parameters": config["rope_parameters"]["full_attention"]}
    return _rope(gguf, writer, config)


def _t5_keys(gguf, writer, config):
    writer.add_context_length(512)
    writer.add_embedding_length(config["d_model"])
    writer.add_feed_forward_length(config["d_ff"])
    writer.add_decoder_block_count(config["num_decoder_layers"])
    writer.add_head_count(config["num_heads"])
    writer.add_key_length(config["d_kv"])
    writer.add_value_length(config["d_kv"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    writer.add_relative_attn_buckets_count(config["relative_attention_num_buckets"])
    writer.add_decoder_start_token_id(config["decoder_start_token_id"])
    return {}


def stored(gguf, config, tensors):
    """The tensors by GGUF's names, as the converter changes them."""
    family = ARCHITECTURES.get(config["model_type"], config["model_type"])
    layers = config.get("num_hidden_layers") or config["num_layers"]
    arch = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}[family]
    names, found = gguf.get_tensor_name_map(arch, layers), {}
    for name, array in tensors.items():
        known = _OTHER.get(name) or names.get_name(name, try_suffixes=(".weight", ".bias"))
        if "pooler" in name or name.endswith("position_ids"):
            continue
        assert known is not None, name
        heads = {"q": config.get("num_attention_heads"), "k": config.get("num_key_value_heads")}
        part = known.split(".")[-2].removeprefix("attn_")
        if family == "llama" and part in heads:
            array = _permuted(array, heads[part])
        if family.startswith("gemma") and known.endswith("norm.weight"):
            array = array + np.float32(1)
        found[known] = array
    return found


def write_gguf(path, config, tensors, types=None, tokenizer=None, more=()):
    """A file of a folder's configuration and tensors.

    ``types``: those of tensors by their names in GGUF, such as "Q8_0"; of others F32. ``tokenizer``: a function that
    adds keys to the writer. ``more``: keys, (name, value, type), besides.
    """
    import gguf

    import grilly

    writer, types = gguf.GGUFWriter(path, ARCHITECTURES.get(config["model_type"], config["model_type"])), types or {}
    writer.add_type("model")
    writer.add_block_count(config.get("num_hidden_layers") or config["num_layers"])
    extra = (_t5_keys if config["model_type"] == "t5" else _decoder_keys)(gguf, writer, config)
    for name, value, kind in more:
        writer.add_key_value(name, value, kind)
    if tokenizer is not None:
        tokenizer(gguf, writer)
    for name, array in {**stored(gguf, config, tensors), **extra}.items():
        kind = types.get(name, "F32")
        data = grilly.quantize(array, kind).data
        number = gguf.GGMLQuantizationType[kind]
        if kind in ("F32", "F16"):
            data = array.astype(kind.lower().replace("f", "float"))
        writer.add_tensor(name, data, raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _marked(token):
    """A token of BERT as the converter writes it: beginnings of words are marked."""
    if token.startswith("[") and token.endswith("]"):
        return token
    return token[2:] if token.startswith("##") else f"▁{token}"


def tokenizer_keys(folder, model, pre=None, scores=None):
    """A function that adds the keys of a folder's tokenizer, as `write_gguf` takes it."""
    data = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = data["model"]["vocab"]
    if isinstance(vocabulary, list):
        tokens, scores = [token for token, _ in vocabulary], [score for _, score in vocabulary]
    else:
        tokens = [token for token, _ in sorted(vocabulary.items(), key=lambda item: item[1])]
    types = [1] * len(tokens)
    for number, token in enumerate(tokens):
        if len(token) == 6 and token.startswith("<0x"):
            types[number] = 6
    for token in data["added_tokens"]:
        if token["id"] == len(tokens):
            tokens, types = [*tokens, token["content"]], [*types, 1]
        types[token["id"]] = 3 if token["special"] else 4
    told = json.loads((folder / "tokenizer_config.json").read_text())
    if model == "bert":
        tokens = [_marked(token) for token in tokens]

    def add(gguf, writer):
        writer.add_tokenizer_model(model)
        if pre is not None:
            writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        if model in ("llama", "t5"):
            writer.add_token_scores(scores)
        if model == "gpt2":
            pairs = data["model"]["merges"]
            writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in pairs])
        for name in ("bos", "eos", "unk", "pad", "sep", "mask"):
            if told.get(f"{name}_token") is not None:
                getattr(writer, f"add_{name}_token_id")(tokens.index(told[f"{name}_token"]))
        for name in ("add_bos_token", "add_eos_token"):
            if name in told:
                getattr(writer, name)(told[name])
        if "add_prefix_space" in told:
            writer.add_add_space_prefix(told["add_prefix_space"])
        if "chat_template" in told:
            writer.add_chat_template(told["chat_template"])

    return add
