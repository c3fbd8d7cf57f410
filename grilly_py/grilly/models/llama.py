"""Llama (Touvron et al. 2023, arXiv:2302.13971), and what differs by its fields: Mistral, Qwen2, Qwen3, Phi-3."""

from __future__ import annotations

from typing import Any

from .. import nn
from ..compute import Tensor
from .cache import ForwardContext, attend
from .config import Config
from .decoder import Decoder
from .layers import ACTIVATIONS, Dropouts, Embedding, GatedMLP, Layers, Linear, RMSNorm, check_dim, heads, joined
from .rotary import Rotary, rotary_of
from .weights import Weights

#: What the families have: biases of q, k and v; norms of the heads of q and k, and what is added to their weights; one
#: tensor for q, k and v, and for gate and up; windows; another eps where config.json does not say.
QKV_BIAS = {"qwen2": True}
HEAD_NORMS = {"qwen3": 0.0, "gemma3_text": 1.0}
JOINED = {"phi3"}
WINDOWED = {"mistral": "all", "phi3": "all", "qwen2": "layers", "qwen3": "layers"}
EPS = {"phi3": 1e-5}
#: Elements of a head where config.json does not say; the others divide the width among the heads.
HEAD_DIM = {"gemma": 256, "gemma2": 256, "gemma3_text": 256, "qwen3": 128}
#: Kinds of attention that layer_types may name.
KINDS = ("full_attention", "sliding_attention")
#: The width of windows where config.json does not say: that of transformers.
WINDOW = 4096


def windows(config: Config, layers: int) -> list[int | None]:
    """For each layer, how many keys a token sees, its own among them; None for all."""
    kind = WINDOWED.get(config.fields.get("model_type", ""))
    if kind is None:
        config.only(sliding_window=None, use_sliding_window=False, layer_types=["full_attention"] * layers)
        config.unused("max_window_layers")
        return [None] * layers
    absent = None if config.fields.get("model_type") == "phi3" else WINDOW
    width = config.integer("sliding_window", config.default("sliding_window", absent=absent, null=None))
    types = config.list("layer_types", None)
    if types is not None:
        if len(types) != layers or not all(one in KINDS for one in types):
            raise config.error("layer_types", f"{layers} of full_attention and sliding_attention")
        if kind == "all" and width is not None and "full_attention" in types:  # transformers does not read it here
            raise config.error("layer_types", f"{layers} of sliding_attention, or sliding_window null")
    elif kind == "all":
        types = ["sliding_attention"] * layers
    else:
        first = config.integer("max_window_layers", 28, least=0)
        types = ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
    config.unused("max_window_layers")
    if kind == "layers" and not config.flag("use_sliding_window", False):
        width = None
    return [width if kind == "sliding_attention" else None for kind in types]


def eps_of(config: Config) -> float:
    """What the norms add to a mean square."""
    return config.eps("rms_norm_eps", EPS.get(config.fields.get("model_type", ""), 1e-6))


class Attention(nn.Module):
    """Causal attention with rotary positions; key heads may serve several query heads."""

    def __init__(self, config: Config, weights: Weights, number: int, rotary: Rotary, window: int | None) -> None:
        super().__init__()
        family, width = config.fields.get("model_type"), config.integer("hidden_size")
        self.number, self.window, self.local = number, window, window is not None and rotary.local is not None
        self.rotary = rotary.local if self.local else rotary
        self.heads, self.key_heads, self.dim = shape_of(config)
        bias = QKV_BIAS.get(str(family), False) or config.flag("attention_bias", False)
        rows = [self.heads * self.dim, self.key_heads * self.dim, self.key_heads * self.dim]
        joined = family in JOINED
        names = ["qkv_proj"] if joined else ["q_proj", "k_proj", "v_proj"]
        self.qkv = Linear(weights, names, width, [sum(rows)] if joined else rows, bias)
        dropout = residual_dropout(config)
        self.output = Linear(weights, "o_proj", rows[0], width, config.flag("attention_bias", False), dropout=dropout)
        self.dropout = config.dropout("attention_dropout", 0.0)
        eps = eps_of(config)
        added = HEAD_NORMS.get(str(family))
        self.q_norm = None if added is None else RMSNorm(weights, "q_norm", self.dim, eps, added)
        self.k_norm = None if added is None else RMSNorm(weights, "k_norm", self.dim, eps, added)

    def forward(self, x: Tensor, call: ForwardContext) -> Tensor:
        """``(B, S, width)``."""
        qkv, first, second = self.qkv(x), self.heads * self.dim, (self.heads + self.key_heads) * self.dim
        q = heads(qkv[..., :first], self.heads)
        k, v = (heads(part, self.key_heads) for part in (qkv[..., first:second], qkv[..., second:]))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return self.output(joined(self.attend(q, k, v, call)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: ForwardContext) -> Tensor:
        """``(B, S, H, D)``."""
        return attend(q, k, v, self.number, call, rotary=self.rotary, window=self.window, **self.options())

    def options(self) -> dict[str, Any]:
        """Others of `attend`."""
        return {"dropout": self.dropout if self.training else 0.0, "local": self.local}


def residual_dropout(config: Config) -> float:
    """Of what layers add, which Phi-3 alone has."""
    return config.dropout("resid_pdrop", 0.0) if config.fields.get("model_type") in JOINED else 0.0


class Layer(nn.Module):
    """Attention and a gated MLP, each on a normalised input and added to it."""

    offset = 0.0  # of the norms' weights

    def __init__(self, config: Config, weights: Weights, number: int, rotary: Rotary, window: int | None) -> None:
        super().__init__()
        width, eps = config.integer("hidden_size"), eps_of(config)
        self.attention_norm = RMSNorm(weights, "input_layernorm", width, eps, self.offset)
        self.attention = Attention(config, weights.at("self_attn"), number, rotary, window)
        self.norm = RMSNorm(weights, "post_attention_layernorm", width, eps, self.offset)
        first = ("gate_up_proj",) if config.fields.get("model_type") in JOINED else ("gate_proj", "up_proj")
        inner, bias = config.integer("intermediate_size"), config.flag("mlp_bias", False)
        self.mlp = GatedMLP(weights.at("mlp"), (*first, "down_proj"), width, inner, self.activation(config), bias,
                            Dropouts(added=residual_dropout(config)))  # fmt: skip

    def activation(self, config: Config) -> str:
        """That of the MLP."""
        found: str = config.text("hidden_act", ACTIVATIONS, "silu")
        return found

    def forward(self, x: Tensor, call: ForwardContext) -> Tensor:
        """``(B, S, width)``."""
        h = x + self.attention(self.attention_norm(x), call)
        return h + self.mlp(self.norm(h))


def shape_of(config: Config) -> tuple[int, int, int]:
    """Query heads, key heads and elements of a head. Raises ModelError where they do not go together."""
    query_heads = config.integer("num_attention_heads")
    key_heads = config.integer("num_key_value_heads", query_heads)
    if query_heads % key_heads:
        raise config.error("num_attention_heads", "a multiple of num_key_value_heads")
    divided = config.integer("hidden_size") // query_heads
    absent = HEAD_DIM.get(config.fields.get("model_type", ""), divided)
    dim = config.integer("head_dim", config.default("head_dim", absent=absent, null=divided))
    if dim % 2:
        raise config.error("head_dim", "an even number")
    check_dim(config, "head_dim" if "head_dim" in config else "hidden_size", dim)
    return query_heads, key_heads, dim


class Llama(Decoder):
    """Llama, Mistral, Qwen2, Qwen3 or Phi-3, without a head."""

    has_head = False
    layer = Layer

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        config.only(pretraining_tp=1, rope_interleaved=False, quantization_config=None, use_mrope=False)
        config.unused("tie_word_embeddings", "original_max_position_embeddings")  # the last: see `rotary_of`
        width, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
        _, key_heads, dim = shape_of(config)
        self.rows, self.cached = config.integer("vocab_size"), (layers, key_heads, dim)
        self.rotary = self.angles(config, dim)
        self.positions = self.rotary.longest
        below = weights.optional("model")
        self.tokens = Embedding(below, "embed_tokens", self.rows, width)
        self.layers = Layers(
            self.layer(config, below.at("layers", i), i, self.rotary, window)
            for i, window in enumerate(self.windows(config, layers))
        )
        self.norm = RMSNorm(below, "norm", width, eps_of(config), self.layer.offset)

    def angles(self, config: Config, dim: int) -> Rotary:
        """How heads of so many elements are rotated."""
        phi = config.fields.get("model_type") in JOINED
        return rotary_of(config, dim, config.integer("max_position_embeddings"), phi, 4096 if phi else None)

    def windows(self, config: Config, layers: int) -> list[int | None]:
        """How many keys a token sees in each layer."""
        return windows(config, layers)

    def embed(self, ids: Tensor) -> Tensor:
        """``(B, S)`` to ``(B, S, width)``."""
        return self.tokens(ids)

    def hidden(self, ids: Tensor, call: ForwardContext) -> Tensor:
        """``(B, S)`` to ``(B, S, width)``."""
        x = self.embed(ids)
        x = self.layers.through(x, call)
        return self.norm(x)


class LlamaLM(Llama):
    """Llama and the like with logits, by a head of their own or the token embeddings."""

    has_head = True

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        width = config.integer("hidden_size")
        if config.flag("tie_word_embeddings", False):
            weights.allow("lm_head.weight", copies=weights.optional("model").name("embed_tokens.weight"))
            self.lm_head = None
        else:
            self.lm_head = Linear(weights, "lm_head", width, self.rows, bias=False)

    def head(self, x: Tensor) -> Tensor:
        """``(..., width)`` to ``(..., vocab)``."""
        return self.tokens.logits(x) if self.lm_head is None else self.lm_head(x)
