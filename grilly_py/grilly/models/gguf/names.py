"""Families of models in GGUF files, and transformers' names of their tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

#: Names in a layer of language models.
_DECODER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_GEMMA2 = {
    **_DECODER, "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
_DECODER_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BERT = {
    "attn_q": "attention.self.query", "attn_k": "attention.self.key", "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense", "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense", "ffn_down": "output.dense", "layer_output_norm": "output.LayerNorm",
}  # fmt: skip
_BERT_TOP = {
    "token_embd": "embeddings.word_embeddings", "position_embd": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings", "token_embd_norm": "embeddings.LayerNorm",
}  # fmt: skip
_NOMIC = {
    "attn_qkv": "attn.Wqkv", "attn_output": "attn.out_proj", "attn_output_norm": "norm1", "ffn_gate": "mlp.fc12",
    "ffn_up": "mlp.fc11", "ffn_down": "mlp.fc2", "layer_output_norm": "norm2",
}  # fmt: skip
_NOMIC_TOP = {
    "token_embd": "embeddings.word_embeddings", "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "emb_ln",
}  # fmt: skip
_T5_TOP = {"token_embd": "shared", "output": "lm_head", "enc.output_norm": "encoder.final_layer_norm",
           "dec.output_norm": "decoder.final_layer_norm"}  # fmt: skip
_T5_SELF = {
    "attn_norm": "0.layer_norm", "attn_q": "0.SelfAttention.q", "attn_k": "0.SelfAttention.k",
    "attn_v": "0.SelfAttention.v", "attn_o": "0.SelfAttention.o",
    "attn_rel_b": "0.SelfAttention.relative_attention_bias", "cross_attn_norm": "1.layer_norm",
    "cross_attn_q": "1.EncDecAttention.q", "cross_attn_k": "1.EncDecAttention.k", "cross_attn_v": "1.EncDecAttention.v",
    "cross_attn_o": "1.EncDecAttention.o", "cross_attn_rel_b": "1.EncDecAttention.relative_attention_bias",
}  # fmt: skip
_SIDES = {"enc": "encoder", "dec": "decoder"}
#: Tensors that are read with the keys.
WITH_KEYS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")


@dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes
    ----------
    name : str
        In general.architecture.
    architecture, model_type : str
        Those of transformers.
    top, layer : mapping of str to str
        Names of tensors outside of layers and in them, without "weight" and "bias", to those of transformers.
    layers : str
        The prefix of transformers' names of tensors in layers, before the layer's number.
    permuted : bool
        Whether rows of q and k are in another order: the two that are rotated together are neighbours.
    offset : float
        A number that files have added to the weights of norms.
    gated : bool
        Whether T5's linear layers are gated.
    """

    name: str
    architecture: str
    model_type: str
    top: Mapping[str, str] = field(default_factory=lambda: _DECODER_TOP)
    layer: Mapping[str, str] = field(default_factory=lambda: _DECODER)
    layers: str = "model.layers"
    permuted: bool = False
    offset: float = 0.0
    gated: bool = False

    def renamed(self, name: str) -> str:
        """Transformers' name of a tensor; its own name where it has none."""
        stem, _, part = name.rpartition(".")
        found = re.fullmatch(r"(?:(enc|dec)\.)?blk\.(\d+)\.(\w+)", stem)
        if found is None:
            return f"{self.top[stem]}.{part}" if stem in self.top else name
        side, number, inner = found.groups()
        if self.name == "t5":
            return self._of_t5(side, number, inner, part) or name
        if side is not None or inner not in self.layer:
            return name
        return f"{self.layers}.{number}.{self.layer[inner]}.{part}"

    def is_permuted(self, name: str) -> bool:
        """Whether the file has a tensor's rows in another order than transformers."""
        return self.permuted and re.fullmatch(r"blk\.\d+\.attn_[qk]\.(weight|bias)", name) is not None

    def offset_of(self, name: str) -> float:
        """The number that the file has added to a tensor."""
        return self.offset if name.endswith("_norm.weight") else 0.0

    def _of_t5(self, side: str | None, number: str, inner: str, part: str) -> str | None:
        known = {} if side is None else self._t5_layer(side)
        return f"{_SIDES[str(side)]}.block.{number}.layer.{known[inner]}.{part}" if inner in known else None

    def _t5_layer(self, side: str) -> dict[str, str]:
        """Names in a layer of one side."""
        last = 2 if side == "dec" else 1
        dense = f"{last}.DenseReluDense"
        gated = {"ffn_gate": f"{dense}.wi_0", "ffn_up": f"{dense}.wi_1"} if self.gated else {"ffn_up": f"{dense}.wi"}
        return {**_T5_SELF, "ffn_norm": f"{last}.layer_norm", "ffn_down": f"{dense}.wo", **gated}

    def stored(self, name: str) -> str | None:
        """The name in files of a tensor with this name in transformers; None where files have none."""
        stem, _, part = name.rpartition(".")
        top = {known: own for own, known in self.top.items()}
        if stem in top:
            return f"{top[stem]}.{part}"
        for side, begin in _SIDES.items() if self.name == "t5" else [(None, self.layers)]:
            middle = r"\.block\.(\d+)\.layer" if side else r"\.(\d+)"
            found = re.fullmatch(rf"{re.escape(begin)}{middle}\.(.+)", stem)
            inner = {known: own for own, known in (self._t5_layer(side) if side else self.layer).items()}
            if found is not None and found[2] in inner:
                return f"{side + '.' if side else ''}blk.{found[1]}.{inner[found[2]]}.{part}"
        return None


#: The families by their names.
FAMILIES = {
    each.name: each for each in (
        Family("llama", "LlamaForCausalLM", "llama", permuted=True),
        Family("qwen2", "Qwen2ForCausalLM", "qwen2"),
        Family("qwen3", "Qwen3ForCausalLM", "qwen3"),
        Family("phi3", "Phi3ForCausalLM", "phi3", layer={**_DECODER, "ffn_up": "mlp.gate_up_proj"}),
        Family("gemma", "GemmaForCausalLM", "gemma", offset=1.0),
        Family("gemma2", "Gemma2ForCausalLM", "gemma2", layer=_GEMMA2, offset=1.0),
        Family("gemma3", "Gemma3ForCausalLM", "gemma3_text", layer=_GEMMA2, offset=1.0),
        Family("nomic-bert", "NomicBertModel", "nomic_bert", _NOMIC_TOP, _NOMIC, "encoder.layers"),
        Family("bert", "BertModel", "bert", _BERT_TOP, _BERT, "encoder.layer"),
        Family("t5", "T5ForConditionalGeneration", "t5", _T5_TOP),
    )
}  # fmt: skip

__all__ = ["FAMILIES", "WITH_KEYS", "Family"]
