"""Nomic BERT (Nussbaum et al. 2024, arXiv:2402.01613): BERT with rotary positions, gated layers and no biases."""

from __future__ import annotations

from typing import Any

from .. import functional as F
from .. import nn
from ..compute import Tensor
from .bert import Bert
from .config import Config
from .layers import Dropouts, GatedMLP, LayerNorm, Linear, heads, joined
from .rotary import Rotary, rotary_of
from .weights import Weights


class Layer(nn.Module):
    """Attention of all tokens to all, then a gated MLP; each is added to its input and normalised."""

    def __init__(
        self, weights: Weights, width: int, heads: int, inner: int, activation: str, eps: float, rotary: Rotary,
        dropout: Dropouts,
    ) -> None:  # fmt: skip
        super().__init__()
        self.heads, self.rotary, self.dropout = heads, rotary, dropout.attention
        self.qkv = Linear(weights, "attn.Wqkv", width, 3 * width, bias=False)
        self.output = Linear(weights, "attn.out_proj", width, width, bias=False, dropout=dropout.added)
        self.attention_norm = LayerNorm(weights, "norm1", width, eps)
        names = ("fc12", "fc11", "fc2")
        self.mlp = GatedMLP(weights.at("mlp"), names, width, inner, activation, dropout=Dropouts(added=dropout.added))
        self.norm = LayerNorm(weights, "norm2", width, eps)

    def forward(self, x: Tensor, mask: Tensor | None, places: dict[str, Any]) -> Tensor:
        """``(B, S, width)``; ``places`` are the options of `F.rope` that tell positions."""
        width, qkv = x.shape[-1], self.qkv(x)
        q, k, v = (
            heads(qkv[..., i * width : (i + 1) * width], self.heads).transpose(0, 2, 1, 3) for i in range(3)
        )
        q, k = (F.rope(x, frequencies=self.rotary.frequencies, factor=self.rotary.factor, **places) for x in (q, k))
        attended = F.flash_attention2(
            q, k, v, mask=mask, precision=self.qkv.precision, dropout_p=self.dropout if self.training else 0.0
        ).transpose(0, 2, 1, 3)
        h = self.attention_norm(x + self.output(joined(attended)))
        return self.norm(h + self.mlp(h))


class NomicBert(Bert):
    """Nomic BERT without a head."""

    prefix, encoder, norm_name, placed = "nomic_bert", ("encoder", "layers"), "emb_ln", False

    def __init__(self, config: Config, weights: Weights) -> None:
        config.fields.setdefault("rope_theta", 1000.0)
        config.fields.setdefault("hidden_act", "silu")
        for name in self.dropouts:
            config.fields.setdefault(name, 0.0)
        super().__init__(config, weights)
        self.rotary: Rotary = self.layers[0].rotary

    def _layer(
        self, config: Config, weights: Weights, heads: int, inner: int, eps: float, dropout: Dropouts
    ) -> nn.Module:
        dim = self.width // heads
        config.only(head_dim=dim)
        if dim % 2:
            raise config.error("hidden_size", "an even number of elements for each of num_attention_heads")
        rotary = rotary_of(config, dim, self.positions)
        return Layer(weights, self.width, heads, inner, self.activation, eps, rotary, dropout)

    @property
    def longest(self) -> int:
        """The most tokens that there are positions for."""
        return min(self.positions, self.rotary.longest or self.positions)

    def _options(self, places: Tensor | None) -> dict[str, Any]:
        if places is None:
            return {}
        places = places.astype("int32", copy=False)
        return {"positions": places.reshape(-1) if len(places) == 1 else places}
