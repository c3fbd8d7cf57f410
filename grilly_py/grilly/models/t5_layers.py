"""Layers of T5, the encoder's and the decoder's."""

from __future__ import annotations

from typing import Any

from .. import functional as F
from .. import nn
from ..compute import Tensor
from ..compute.attention.options import MOST_REACH
from .cache import ForwardContext
from .config import Config
from .encoder_decoder import Source
from .layers import ACTIVATIONS, MLP, Dropouts, GatedMLP, Layers, Linear, RMSNorm, check_dim, heads, joined
from .weights import Weights


def activation_of(config: Config) -> tuple[str, bool]:
    """The activation and whether the linear layers are gated. Raises ModelError for a word that says neither."""
    word = config.text("feed_forward_proj", [*ACTIVATIONS, *(f"gated-{name}" for name in ACTIVATIONS)], "relu")
    gated, name = word.startswith("gated-"), "gelu_new" if word == "gated-gelu" else word.removeprefix("gated-")
    config.only(is_gated_act=gated, dense_act_fn=name)
    return name, gated


class Attention(nn.Module):
    """Attention without scaling: of a sequence to itself, or to the encoder's states."""

    def __init__(self, config: Config, weights: Weights, cross: bool) -> None:
        super().__init__()
        width, self.heads, dim = config.integer("d_model"), config.integer("num_heads"), config.integer("d_kv")
        check_dim(config, "d_kv", dim)
        inner = self.heads * dim
        names = ["k", "v"] if cross else ["q", "k", "v"]
        self.query = Linear(weights, "q", width, inner, bias=False) if cross else None
        self.rest = Linear(weights, names, width, [inner] * len(names), bias=False)
        self.dropout = config.dropout("dropout_rate", 0.1)
        self.output = Linear(weights, "o", inner, width, bias=False, dropout=self.dropout)

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """q, k and v, or k and v, each ``(B, S, H, D)``."""
        both = self.rest(x)
        inner = both.shape[-1] // (3 if self.query is None else 2)
        return tuple(heads(both[..., i : i + inner], self.heads) for i in range(0, both.shape[-1], inner))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """``(B, S, width)`` of ``(B, S, H, D)``."""
        q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
        dropout = self.dropout if self.training else 0.0
        attended = F.flash_attention2(
            q, k, v, scale=1.0, dropout_p=dropout, precision=self.output.precision, **options
        )
        return self.output(joined(attended.transpose(0, 2, 1, 3)))

    def attend_cache(
        self, q: Tensor, k: Tensor, v: Tensor, call: ForwardContext, number: int, **options: Any
    ) -> Tensor:
        """The same over the cache of layer ``number``, to which k and v are added."""
        assert call.cache is not None
        keys, values = call.cache.k[number], call.cache.v[number]
        attended = F.flash_attention_with_kvcache(q, keys, values, k, v, call.lengths, scale=1.0,
                                                  precision=self.output.precision, **options)  # fmt: skip
        return self.output(joined(attended))


class Block(nn.Module):
    """Attention, in a decoder also to the encoder's states, and two linear layers; each normalises its input first."""

    def __init__(self, config: Config, weights: Weights, number: int, decoder: bool) -> None:
        super().__init__()
        width, eps = config.integer("d_model"), config.eps("layer_norm_epsilon", 1e-6)
        self.number, below = number, weights.at("layer")
        self.attention_norm = RMSNorm(below, "0.layer_norm", width, eps)
        self.attention = Attention(config, below.at(0, "SelfAttention"), cross=False)
        self.cross_norm = RMSNorm(below, "1.layer_norm", width, eps) if decoder else None
        self.cross = Attention(config, below.at(1, "EncDecAttention"), cross=True) if decoder else None
        (activation, gated), inner, last = activation_of(config), config.integer("d_ff"), below.at(2 if decoder else 1)
        self.norm, last = RMSNorm(last, "layer_norm", width, eps), last.at("DenseReluDense")
        share = config.dropout("dropout_rate", 0.1)
        dropout = Dropouts(share, share, share)
        self.mlp = (GatedMLP(last, ("wi_0", "wi_1", "wo"), width, inner, activation, dropout=dropout) if gated
                    else MLP(last, ("wi", "wo"), width, inner, activation, bias=False, dropout=dropout))  # fmt: skip

    def forward(self, x: Tensor, call: ForwardContext, places: dict[str, Any], source: Source | None) -> Tensor:
        """``(B, S, width)``; ``places`` are the options of attention that tell positions."""
        q, k, v = self.attention.project(self.attention_norm(x))
        if call.cache is None:
            x = x + self.attention.attend(q, k, v, mask=call.mask, **places)
        else:
            x = x + self.attention.attend_cache(q, k, v, call, self.number, **places)
        if self.cross is not None and self.cross_norm is not None and source is not None:
            assert self.cross.query is not None
            q = heads(self.cross.query(self.cross_norm(x)), self.cross.heads)
            x = x + self.cross.attend(q, *source.keys[self.number], mask=source.mask)
        return x + self.mlp(self.norm(x))


class Stack(nn.Module):
    """The encoder or the decoder. Its first layer's table of positions serves all of its layers."""

    def __init__(self, config: Config, weights: Weights, layers: int, decoder: bool) -> None:
        super().__init__()
        self.decoder, buckets = decoder, config.integer("relative_attention_num_buckets", 32)
        self.distance = config.integer("relative_attention_max_distance", 128)
        near = (buckets if decoder else buckets // 2) // 2  # distances with a bucket of their own, in each direction
        if near < 1 or buckets % 2:
            raise config.error("relative_attention_num_buckets", "an even number, at least 4")
        if not near < self.distance <= MOST_REACH:
            raise config.error("relative_attention_max_distance", f"more than {near}, at most {MOST_REACH}")
        first = weights.at("block.0.layer.0.SelfAttention")
        self.table = first.parameter("relative_attention_bias.weight", buckets, config.integer("num_heads"))
        self.blocks = Layers(Block(config, weights.at("block", i), i, decoder) for i in range(layers))
        eps = config.eps("layer_norm_epsilon", 1e-6)
        self.dropout = nn.Dropout(config.dropout("dropout_rate", 0.1))
        self.norm = RMSNorm(weights, "final_layer_norm", config.integer("d_model"), eps)

    def places(self) -> dict[str, Any]:
        """The options of attention that tell positions."""
        assert self.table is not None
        return {"t5_table": self.table.data.astype("float32", copy=False), "t5_bidirectional": not self.decoder,
                "t5_max_distance": self.distance, "causal": self.decoder}  # fmt: skip

    def forward(self, x: Tensor, call: ForwardContext, source: Source | None = None) -> Tensor:
        """``(B, S, width)``."""
        places, x = self.places(), self.dropout(x)
        x = self.blocks.through(x, call, places, source)
        return self.dropout(self.norm(x))
