"""Whisper (Radford et al. 2022, arXiv:2212.04356): sound to text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import functional as F
from .. import nn
from ..compute import Tensor
from ..compute.device.arrays import NDArray, Unpack
from .cache import ForwardContext, attend
from .config import Config
from .encoder import Block
from .encoder_decoder import EncoderDecoder, Source
from .generation import GenerationKeywords
from .layers import ACTIVATIONS, MLP, Dropouts, Embedding, LayerNorm, Layers, Linear, check_dim, heads, joined
from .output import Output
from .weights import Weights

#: Names in a layer of the encoder; keys have no bias.
NAMES = (
    "self_attn_layer_norm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj",
    "final_layer_norm", "fc1", "fc2",
)  # fmt: skip
BIAS = (True, False, True)
EPS = 1e-5


def dropouts(config: Config) -> Dropouts:
    """What layers of both halves drop in training."""
    return Dropouts(*(config.dropout(name, 0.0) for name in ("attention_dropout", "activation_dropout", "dropout")))


class Encoder(nn.Module):
    """Two convolutions over time, of which the second halves it, and layers of attention."""

    def __init__(self, config: Config, weights: Weights, width: int, activation: str) -> None:
        super().__init__()
        self.precision = weights.precision
        self.bins, self.length = config.integer("num_mel_bins", 80), config.integer("max_source_positions", 1500)
        self.first = weights.parameter("conv1.weight", width, self.bins, 3)
        self.first_bias = weights.parameter("conv1.bias", width)
        self.second = weights.parameter("conv2.weight", width, width, 3)
        self.second_bias = weights.parameter("conv2.bias", width)
        self.places = weights.parameter("embed_positions.weight", self.length, width)
        if self.places is not None:
            self.places.requires_grad = False  # sines, which transformers does not train either
        count, inner = config.integer("encoder_attention_heads"), config.integer("encoder_ffn_dim")
        dropout = dropouts(config)
        self.dropout = nn.Dropout(dropout.added)
        self.layers = Layers(
            Block(weights.at("layers", i), NAMES, width, count, inner, activation, EPS, BIAS, dropout)
            for i in range(config.integer("encoder_layers"))
        )
        self.norm = LayerNorm(weights, "layer_norm", width, EPS)

    def forward(self, features: Tensor) -> Tensor:
        """``(B, bins, 2 S)`` to ``(B, S, width)``."""
        assert self.first is not None and self.first_bias is not None
        assert self.second is not None and self.second_bias is not None and self.places is not None
        x = F.gelu(F.conv1d(features, self.first.data, self.first_bias.data, padding=1, precision=self.precision))
        x = F.gelu(F.conv1d(x, self.second.data, self.second_bias.data, 2, 1, precision=self.precision))
        x = self.dropout(x.transpose(0, 2, 1) + self.places.data)
        x = self.layers.through(x)
        return self.norm(x)


class Layer(nn.Module):
    """A layer of the decoder: causal attention, attention to the sound, and two linear layers."""

    def __init__(self, config: Config, weights: Weights, number: int, width: int, activation: str) -> None:
        super().__init__()
        self.number, self.heads = number, config.integer("decoder_attention_heads")
        dropout = dropouts(config)
        self.dropout = dropout.attention
        self.attention_norm = LayerNorm(weights, NAMES[0], width, EPS)
        self.qkv = Linear(weights, NAMES[1:4], width, [width] * 3, BIAS)
        self.output = Linear(weights, NAMES[4], width, width, dropout=dropout.added)
        self.cross_norm = LayerNorm(weights, "encoder_attn_layer_norm", width, EPS)
        self.query = Linear(weights, "encoder_attn.q_proj", width, width)
        self.source = Linear(weights, ["encoder_attn.k_proj", "encoder_attn.v_proj"], width, [width] * 2, BIAS[1:])
        self.cross_output = Linear(weights, "encoder_attn.out_proj", width, width, dropout=dropout.added)
        self.norm = LayerNorm(weights, NAMES[5], width, EPS)
        inner = config.integer("decoder_ffn_dim")
        self.mlp = MLP(weights, NAMES[6:], width, inner, activation, dropout=dropout)

    def project(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of the encoder's states, ``(B, S, width)`` each."""
        both, width = self.source(states), states.shape[-1]
        return both[..., :width], both[..., width:]

    def forward(self, x: Tensor, call: ForwardContext, source: tuple[Tensor, Tensor]) -> Tensor:
        """``(B, S, width)``."""
        qkv, width = self.qkv(self.attention_norm(x)), x.shape[-1]
        dropout = self.dropout if self.training else 0.0
        q, k, v = (heads(qkv[..., i * width : (i + 1) * width], self.heads) for i in range(3))
        x = x + self.output(joined(attend(q, k, v, self.number, call, dropout=dropout)))
        q = self.query(self.cross_norm(x))
        attended = F.flash_attention3(
            q, *source, num_heads=self.heads, precision=self.query.precision, dropout_p=dropout
        )
        x = x + self.cross_output(attended)
        return x + self.mlp(self.norm(x))


class WhisperStates(EncoderDecoder):
    """Whisper without a head."""

    has_head = False
    starts = False  # as in transformers: what comes first may be a token of what was said before
    reads = "input_features"

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        config.only(is_encoder_decoder=True, scale_embedding=False, tie_word_embeddings=True,
                    use_weighted_layer_sum=False, num_hidden_layers=config.integer("encoder_layers"))  # fmt: skip
        config.unused(
            "apply_spec_augment", "classifier_proj_size", "decoder_layerdrop",
            "encoder_layerdrop", "init_std", "mask_feature_length", "mask_feature_min_masks", "mask_feature_prob",
            "mask_time_length", "mask_time_min_masks", "mask_time_prob", "median_filter_width",
        )  # fmt: skip
        width, activation = config.integer("d_model"), config.text("activation_function", ACTIVATIONS, "gelu")
        layers, count = config.integer("decoder_layers"), config.integer("decoder_attention_heads")
        for name in ("encoder_attention_heads", "decoder_attention_heads"):
            if width % config.integer(name):
                raise config.error(name, "a divisor of d_model")
            check_dim(config, name, width // config.integer(name))
        self.rows, self.positions = config.integer("vocab_size"), config.integer("max_target_positions", 448)
        self.cached = (layers, count, width // count)
        below = weights.optional("model")
        weights.allow("proj_out.weight", copies=below.name("decoder.embed_tokens.weight"))
        self.encoder = Encoder(config, below.at("encoder"), width, activation)
        below = below.at("decoder")
        self.tokens = Embedding(below, "embed_tokens", self.rows, width)
        self.places = Embedding(below, "embed_positions", self.positions, width)
        self.dropout = nn.Dropout(dropouts(config).added)
        self.layers = Layers(Layer(config, below.at("layers", i), i, width, activation) for i in range(layers))
        self.norm = LayerNorm(below, "layer_norm", width, EPS)

    def encode(self, inputs: Any, attention_mask: Any) -> tuple[Tensor, Tensor | None, bool]:
        """The encoder's states ``(B, S, width)``, no mask, and whether the features came from the host."""
        shape = (None, self.encoder.bins, 2 * self.encoder.length)
        features, host = self._floats("input_features", inputs, shape)
        return self._replayed(self.encoder.forward, features), None, host

    def source(self, states: Tensor, mask: Tensor | None) -> Source:
        """The keys and values of each layer's attention to the encoder's states."""
        return Source([layer.project(states) for layer in self.layers], mask)

    def decode(self, ids: Tensor, call: ForwardContext, source: Source) -> Tensor:
        """The decoder's states ``(B, S, width)``."""
        x = self.dropout(self.tokens(ids) + self.places(self._sent(call.places(ids.shape[1]))))
        for layer, keys in zip(self.layers, source.keys, strict=True):
            x = self.layers.one(layer, x, call, keys)
        return self.norm(x)

    def forward(
        self, input_features: Any, decoder_input_ids: Any = None, decoder_attention_mask: Any = None,
        attention_mask: Any = None,
    ) -> Output:  # fmt: skip
        """The decoder's states, with a head logits of the tokens that come next.

        Parameters
        ----------
        input_features : array or Tensor
            ``(B, bins, 2 max_source_positions)``: the logarithmic mel spectrogram.
        decoder_input_ids : array or Tensor of int
            ``(B, T)``: what was written.
        decoder_attention_mask : array or Tensor, optional
            ``(B, T)``: 0 for padding.
        attention_mask : array or Tensor, optional
            That of the sounds, which transformers' processor gives. It has no effect, as in transformers: the model
            hears silence where a sound is over.

        Returns
        -------
        Output
            ``last_hidden_state`` ``(B, T, width)``, ``encoder_last_hidden_state``, with a head ``logits``
            ``(B, T, vocab)``.

        Raises
        ------
        TypeError, ValueError
            For arrays that are no such numbers or of another shape, and texts longer than the positions.
        """
        return self._called(input_features, None, decoder_input_ids, decoder_attention_mask)


class Whisper(WhisperStates):
    """Whisper with logits, by the token embeddings."""

    has_head = True

    def head(self, x: Tensor) -> Tensor:
        """``(..., width)`` to ``(..., vocab)``."""
        return self.tokens.logits(x)

    def generate(  # type: ignore[override]  # sounds have the name that transformers' processor gives them
        self, input_features: Any, attention_mask: Any = None, **options: Unpack[GenerationKeywords]
    ) -> NDArray[np.int64]:
        """The tokens of sounds, ``(B, T + n)``: `Generates.generate` has the options.

        They begin with ``decoder_input_ids``, by default ``decoder_start_token_id`` alone: it is `Transcriber` that
        knows the tokens of languages and tasks. A mask has no effect, as in transformers.
        """
        return super().generate(input_features, attention_mask, **options)

    def stream(  # type: ignore[override]
        self, input_features: Any, attention_mask: Any = None, **options: Unpack[GenerationKeywords]
    ) -> Iterator[NDArray[np.int64]]:
        """The tokens that `generate` adds, one of each sound at a time, int64 ``(B,)``, as they are found."""
        return super().stream(input_features, attention_mask, **options)
