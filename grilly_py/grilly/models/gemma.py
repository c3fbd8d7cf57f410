"""Gemma (Gemma Team 2024, arXiv:2403.08295), Gemma 2 (arXiv:2408.00118) and the texts of Gemma 3 (arXiv:2503.19786)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from .. import functional as F
from .. import nn
from ..compute import Tensor
from .cache import ForwardContext
from .config import Config
from .layers import ACTIVATIONS, GatedMLP, RMSNorm
from .llama import KINDS, Attention, Layer, Llama, LlamaLM, eps_of
from .rotary import Rotary, rotary_of
from .weights import Weights


def softcap(name: str, absent: float, config: Config) -> tuple[str, float]:
    """A field and its default: transformers caps where it is not there, and does not where it is null."""
    return name, config.default(name, absent=absent, null=0.0)


class GemmaAttention(Attention):
    """Scores scaled by a number of the configuration, and soft-capped."""

    def __init__(self, config: Config, weights: Weights, number: int, rotary: Rotary, window: int | None) -> None:
        super().__init__(config, weights, number, rotary, window)
        self.scale = config.number("query_pre_attn_scalar", 256.0, above=0) ** -0.5
        self.softcap = config.number(*softcap("attn_logit_softcapping", 50.0, config), least=0)

    def options(self) -> dict[str, Any]:
        """Others of `attend`."""
        return {**super().options(), "scale": self.scale, "softcap": self.softcap}


class GemmaLayer(nn.Module):
    """Attention and a gated MLP; each is normalised before and after, and then added to its input."""

    offset = 1.0

    def __init__(self, config: Config, weights: Weights, number: int, rotary: Rotary, window: int | None) -> None:
        super().__init__()
        width, eps, inner = config.integer("hidden_size"), eps_of(config), "intermediate_size"

        def norm(name: str) -> RMSNorm:
            return RMSNorm(weights, name, width, eps, self.offset)

        self.attention_norm, self.attended_norm = norm("input_layernorm"), norm("post_attention_layernorm")
        self.attention = GemmaAttention(config, weights.at("self_attn"), number, rotary, window)
        self.norm, self.last_norm = norm("pre_feedforward_layernorm"), norm("post_feedforward_layernorm")
        names = ("gate_proj", "up_proj", "down_proj")
        activation = config.text("hidden_activation", ACTIVATIONS, "gelu_pytorch_tanh")
        self.mlp = GatedMLP(weights.at("mlp"), names, width, config.integer(inner), activation)

    def forward(self, x: Tensor, call: ForwardContext) -> Tensor:
        """``(B, S, width)``."""
        h = x + self.attended_norm(self.attention(self.attention_norm(x), call))
        return h + self.last_norm(self.mlp(self.norm(h)))


class Gemma1Layer(Layer):
    """Llama's, with an offset of the norms' weights and GELU's approximation by tanh."""

    offset = 1.0

    def activation(self, config: Config) -> str:
        """The first files say gelu, and mean the approximation too."""
        config.only(hidden_activation="gelu_pytorch_tanh")
        found: str = config.text("hidden_act", ACTIVATIONS, "gelu_pytorch_tanh")
        return "gelu_pytorch_tanh" if found == "gelu" else found


class Gemma1(Llama):
    """Gemma without a head."""

    layer: type[nn.Module] = Gemma1Layer

    def __init__(self, config: Config, weights: Weights) -> None:
        config.fields.setdefault("tie_word_embeddings", True)
        super().__init__(config, weights)
        config.only(use_bidirectional_attention=(False, None))
        self.width = config.integer("hidden_size")

    def embed(self, ids: Tensor) -> Tensor:
        """``(B, S)`` to ``(B, S, width)``, times the root of the width."""
        return self.tokens(ids) * math.sqrt(self.width)


class Gemma1LM(Gemma1, LlamaLM):
    """Gemma 1 with logits, by the token embeddings."""


class Gemma(Gemma1):
    """Gemma 2 without a head."""

    layer = GemmaLayer

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        config.only(sliding_window_size=config.fields.get("sliding_window", 4096))  # the same, in older files
        # Older files have hidden_act beside hidden_activation, which is the one that counts; the cap is of the logits.
        config.unused("hidden_act", "final_logit_softcapping")

    def windows(self, config: Config, layers: int) -> list[int | None]:
        """Every other layer has a window, beginning with the first."""
        width = config.integer("sliding_window", 4096)
        types = config.list("layer_types", ["sliding_attention", "full_attention"] * layers)[:layers]
        if len(types) < layers or not all(kind in KINDS for kind in types):
            raise config.error("layer_types", f"{layers} of full_attention and sliding_attention")
        return [width if kind == "sliding_attention" else None for kind in types]


class GemmaLM(Gemma, Gemma1LM):
    """Gemma 2 with soft-capped logits, by the token embeddings."""

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        self.softcap = config.number(*softcap("final_logit_softcapping", 30.0, config), least=0)

    def head(self, x: Tensor) -> Tensor:
        """``(..., width)`` to ``(..., vocab)``."""
        logits = super().head(x)
        return F.tanh(logits * (1 / self.softcap)) * self.softcap if self.softcap else logits


class Gemma3(Gemma):
    """Gemma 3 without a head: norms of heads, no caps, and layers with windows that have angles of their own."""

    def __init__(self, config: Config, weights: Weights) -> None:
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            config.fields.setdefault(name, None)
        config.only(attn_logit_softcapping=None)
        super().__init__(config, weights)

    def windows(self, config: Config, layers: int) -> list[int | None]:
        """Five layers with a window, then one without."""
        turn = config.integer("sliding_window_pattern", config.integer("_sliding_window_pattern", 6))
        kinds = ["full_attention" if i % turn == turn - 1 else "sliding_attention" for i in range(layers)]
        config.fields["layer_types"] = config.list("layer_types", kinds)
        return super().windows(config, layers)

    def angles(self, config: Config, dim: int) -> Rotary:
        """Those of layers without windows, with those of the others."""
        positions = config.integer("max_position_embeddings")
        bases = {"full_attention": config.number("rope_theta", 1e6, above=0),
                 "sliding_attention": config.number("rope_local_base_freq", 10000.0, above=0)}  # fmt: skip
        scaling = config.inner("rope_scaling")
        given = config.inner("rope_parameters")
        if given is not None and not given.fields.keys() <= bases.keys():
            raise config.error("rope_parameters", " and ".join(bases))
        found = []
        for kind, base in bases.items():
            own = None if given is None else given.inner(kind)
            fields = {"rope_theta": base, **({} if own is None else own.fields)}
            if scaling is not None and kind == "full_attention":
                fields |= scaling.fields
            base = fields.pop("rope_theta")
            for one in (own, scaling):
                if one is not None:
                    one.unused(*one.fields)  # each is known or refused below
            inner = Config(f"{config.where}: {kind}", {"rope_theta": base, "rope_parameters": fields})
            found.append(rotary_of(inner, dim, positions))
            inner.finish()
        return dataclasses.replace(found[0], local=found[1])


class Gemma3LM(Gemma3, GemmaLM):
    """Gemma 3 with logits, by the token embeddings."""
