"""CLIP (Radford et al. 2021, arXiv:2103.00020): texts and pictures in one space."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import array_api as xp
from .. import functional as F
from .. import linalg, nn
from ..compute import Tensor
from .config import Config
from .encoder import Block, Patches, sides
from .layers import ACTIVATIONS, Dropouts, Embedding, LayerNorm, Layers, Linear, check_dim
from .model import Model
from .output import Output
from .weights import Weights

#: Names in a layer: of the norms, the projections and the two linear layers.
NAMES = (
    "layer_norm1", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj", "layer_norm2",
    "mlp.fc1", "mlp.fc2",
)  # fmt: skip
#: The end of a text, where its features are; in older configurations the number of another token stands for it.
END, OLD_END = 49407, 2
#: What a call may give, in transformers' order.
FIELDS = (
    "logits_per_image", "logits_per_text", "text_embeds", "image_embeds", "text_last_hidden_state",
    "vision_last_hidden_state",
)  # fmt: skip


def blocks_of(config: Config, weights: Weights, width: int, inner: int, heads: int) -> Layers:
    """The layers of one of the two encoders."""
    heads, inner = config.integer("num_attention_heads", heads), config.integer("intermediate_size", inner)
    if width % heads:
        raise config.error("num_attention_heads", "a divisor of hidden_size")
    check_dim(config, "num_attention_heads", width // heads)
    activation, eps = config.text("hidden_act", ACTIVATIONS, "quick_gelu"), config.eps("layer_norm_eps", 1e-5)
    dropout = Dropouts(config.dropout("attention_dropout", 0.0))
    return Layers(
        Block(weights.at("encoder.layers", i), NAMES, width, heads, inner, activation, eps, dropout=dropout)
        for i in range(config.integer("num_hidden_layers", 12))
    )


def part_of(config: Config, name: str) -> Config:
    """The configuration of one of the two encoders. Where older files have it twice, ``NAME_dict`` counts."""
    part, doubled = config.inner(name), config.inner(f"{name}_dict")
    if doubled is not None and part is not None:
        part.unused(*part.fields)
    return doubled or part or Config(config.where, {})


class TextEncoder(nn.Module):
    """Causal attention over a text; its features are those of the token that ends it."""

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__()
        config.unused("projection_dim", "tie_word_embeddings")
        self.width = config.integer("hidden_size", 512)
        self.rows = config.integer("vocab_size", 49408)
        self.positions = config.integer("max_position_embeddings", 77)
        self.end = config.integer("eos_token_id", END, least=0)
        self.tokens = Embedding(weights, "embeddings.token_embedding", self.rows, self.width)
        self.places = weights.parameter("embeddings.position_embedding.weight", self.positions, self.width)
        self.layers = blocks_of(config, weights, self.width, 2048, 8)
        self.norm = LayerNorm(weights, "final_layer_norm", self.width, config.eps("layer_norm_eps", 1e-5))

    def forward(self, ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """``(B, S)`` to ``(B, S, width)`` and ``(B, width)``."""
        assert self.places is not None
        batch, length = ids.shape
        x = self.tokens(ids) + self.places.data[:length]
        x = self.layers.through(x, mask, causal=True)
        x = self.norm(x)
        ends = ids if self.end == OLD_END else (ids == self.end).astype("int32", copy=False)
        places = xp.argmax(ends, axis=1).astype("int32", copy=False) + np.arange(batch, dtype=np.int32) * length
        return x, F.embedding(places, x.reshape(batch * length, self.width))


class PictureEncoder(nn.Module):
    """A Vision Transformer with a normalisation before its layers; its features are those of the first token."""

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__()
        config.unused("projection_dim", "tie_word_embeddings")
        self.width, eps = config.integer("hidden_size", 768), config.eps("layer_norm_eps", 1e-5)
        self.patches = Patches(
            weights, "embeddings.patch_embedding", config.integer("num_channels", 3),
            *sides(config, 224, 32), self.width, bias=False,
        )  # fmt: skip
        self.first = weights.parameter("embeddings.class_embedding", self.width)
        count = self.patches.count + 1
        self.places = weights.parameter("embeddings.position_embedding.weight", count, self.width)
        self.before = LayerNorm(weights, "pre_layrnorm", self.width, eps)
        self.layers = blocks_of(config, weights, self.width, 3072, 12)
        self.norm = LayerNorm(weights, "post_layernorm", self.width, eps)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """``(B, C, H, W)`` to ``(B, 1 + patches, width)`` and ``(B, width)``."""
        assert self.first is not None and self.places is not None
        x = self.before(self.patches(pixels, self.first.data, self.places.data))
        x = self.layers.through(x)
        return x, self.norm(x[:, 0].contiguous())


def texts_of(model: Model, encoder: TextEncoder, ids: Any, mask: Any) -> tuple[Any, Tensor | None, bool]:
    """Tokens and their mask as the encoder takes them, and whether the tokens came from the host."""
    ids, host = model._numbers("input_ids", ids, encoder.rows)
    if ids.shape[1] <= encoder.positions:
        return ids, model._mask(mask, *ids.shape), host
    name = type(model).__name__
    raise ValueError(f"{name}: {ids.shape[1]} tokens are more than the {encoder.positions} positions")


def pictures_of(model: Model, encoder: PictureEncoder, pixels: Any) -> tuple[Any, bool]:
    """Pictures as the encoder takes them, and whether they came from the host."""
    side = encoder.patches.side
    return model._floats("pixel_values", pixels, (None, encoder.patches.channels, side, side))


def unit(x: Tensor) -> Tensor:
    """Rows scaled to length 1, in float32."""
    wide = x.astype("float32", copy=False)
    return (wide / linalg.vector_norm(wide, axis=-1, keepdims=True)).astype(x.dtype, copy=False)


class CLIP(Model):
    """CLIP: features of texts and of pictures, and how well each goes with each."""

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        config.only(tie_word_embeddings=(True, False))
        config.unused("logit_scale_init_value")
        self.text = TextEncoder(part_of(config, "text_config"), weights.at("text_model"))
        self.picture = PictureEncoder(part_of(config, "vision_config"), weights.at("vision_model"))
        width = config.integer("projection_dim", 512)
        self.text_projection = Linear(weights, "text_projection", self.text.width, width, bias=False)
        self.picture_projection = Linear(weights, "visual_projection", self.picture.width, width, bias=False)
        self.scale = weights.parameter("logit_scale")

    def _texts(self, ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        states, last = self.text(ids, mask)
        return states, (features := self.text_projection(last)), unit(features)

    def _pictures(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        states, last = self.picture(pixels)
        return states, (features := self.picture_projection(last)), unit(features)

    def get_text_features(self, input_ids: Any, attention_mask: Any = None) -> Output:
        """Of texts ``last_hidden_state`` and ``pooler_output`` ``(B, features)``, not of length 1; else as a call."""
        ids, mask, host = texts_of(self, self.text, input_ids, attention_mask)
        states, features, _ = self._replayed(self._texts, ids, mask)
        return Output(host, last_hidden_state=states, pooler_output=features)

    def get_image_features(self, pixel_values: Any) -> Output:
        """The same of pictures."""
        pixels, host = pictures_of(self, self.picture, pixel_values)
        states, features, _ = self._replayed(self._pictures, pixels)
        return Output(host, last_hidden_state=states, pooler_output=features)

    def forward(self, input_ids: Any = None, pixel_values: Any = None, attention_mask: Any = None) -> Output:
        """Features of texts, of pictures, or of both.

        Parameters
        ----------
        input_ids : array or Tensor of int, optional
            ``(B, S)``, each with the token that ends texts.
        pixel_values : array or Tensor, optional
            ``(P, C, H, W)``, scaled as the model was trained, of the configuration's ``image_size``.
        attention_mask : array or Tensor, optional
            ``(B, S)``: 0 for padding.

        Returns
        -------
        Output
            Of texts ``text_last_hidden_state`` ``(B, S, width)`` and ``text_embeds`` ``(B, features)``, of length 1; of
            pictures ``vision_last_hidden_state`` and ``image_embeds``; of both ``logits_per_image`` ``(P, B)`` and
            ``logits_per_text`` ``(B, P)``.

        Raises
        ------
        TypeError, ValueError
            For arrays that are no such numbers or of another shape, texts longer than the positions, and neither.
        """
        if input_ids is None and pixel_values is None:
            raise ValueError("CLIP: expected input_ids, pixel_values or both")
        found: dict[str, Tensor] = {}
        host = False
        if input_ids is not None:
            ids, mask, host = texts_of(self, self.text, input_ids, attention_mask)
            found["text_last_hidden_state"], _, found["text_embeds"] = self._replayed(self._texts, ids, mask)
        if pixel_values is not None:
            pixels, sent = pictures_of(self, self.picture, pixel_values)
            host |= sent
            found["vision_last_hidden_state"], _, found["image_embeds"] = self._replayed(self._pictures, pixels)
        if len(found) == 4:
            assert self.scale is not None
            scale = xp.exp(self.scale.data.astype("float32", copy=False)).astype(self.dtype, copy=False)
            products = F.linear(found["text_embeds"], found["image_embeds"], precision=self.precision)
            found["logits_per_text"] = products * scale
            found["logits_per_image"] = found["logits_per_text"].T
        return Output(host, **{name: found.get(name) for name in FIELDS})
