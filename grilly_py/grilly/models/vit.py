"""The Vision Transformer (Dosovitskiy et al. 2021, arXiv:2010.11929)."""

from __future__ import annotations

from typing import Any

from .. import functional as F
from .. import nn
from ..compute import Tensor
from .config import Config
from .encoder import Block, Patches, sides
from .layers import ACTIVATIONS, Dropouts, LayerNorm, Layers, Linear, check_dim
from .model import Model
from .output import Output
from .weights import Weights

#: Names in a layer: of the norms, the projections and the two linear layers.
NAMES = (
    "layernorm_before", "attention.attention.query", "attention.attention.key", "attention.attention.value",
    "attention.output.dense", "layernorm_after", "intermediate.dense", "output.dense",
)  # fmt: skip


class ViT(Model):
    """The Vision Transformer without a head; ``pooler_output`` where the files have the pooler."""

    renamed = {
        "encoder.layer.": "layers.", "attention.attention.query": "attention.q_proj",
        "attention.attention.key": "attention.k_proj", "attention.attention.value": "attention.v_proj",
        "attention.output.dense": "attention.o_proj", "intermediate.dense": "mlp.fc1", "output.dense": "mlp.fc2",
    }  # fmt: skip

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        width, eps = config.integer("hidden_size"), config.eps("layer_norm_eps", 1e-12)
        heads, inner = config.integer("num_attention_heads"), config.integer("intermediate_size")
        if width % heads:
            raise config.error("hidden_size", "a multiple of num_attention_heads")
        check_dim(config, "hidden_size", width // heads)
        self.width = width
        config.unused("encoder_stride")
        activation, bias = config.text("hidden_act", ACTIVATIONS, "gelu"), config.flag("qkv_bias", True)
        below = weights.optional("vit")
        self.patches = Patches(
            below, "embeddings.patch_embeddings.projection", config.integer("num_channels", 3),
            *sides(config), width,
        )  # fmt: skip
        self.first = below.parameter("embeddings.cls_token", 1, 1, width)
        self.places = below.parameter("embeddings.position_embeddings", 1, self.patches.count + 1, width)
        below.allow("embeddings.mask_token")
        added = config.dropout("hidden_dropout_prob", 0.0)
        dropout = Dropouts(config.dropout("attention_probs_dropout_prob", 0.0), 0.0, added)
        self.dropout = nn.Dropout(added)
        self.layers = Layers(
            Block(below.at("encoder.layer", i), NAMES, width, heads, inner, activation, eps, [bias] * 3, dropout)
            for i in range(config.integer("num_hidden_layers"))
        )
        self.norm = LayerNorm(below, "layernorm", width, eps)
        self.pooler = None
        pooled = config.integer("pooler_output_size", width)
        config.only(pooler_act="tanh")
        if below.has("pooler.dense.weight"):
            self.pooler = Linear(below, "pooler.dense", width, pooled)

    def _encode(self, pixel_values: Any) -> tuple[Tensor, bool]:
        side = self.patches.side
        pixels, host = self._floats("pixel_values", pixel_values, (None, self.patches.channels, side, side))
        return self._replayed(self._states, pixels), host

    def _states(self, pixels: Tensor) -> Tensor:
        assert self.first is not None and self.places is not None
        x = self.dropout(self.patches(pixels, self.first.data.reshape(self.width), self.places.data))
        x = self.layers.through(x)
        return self.norm(x)

    def forward(self, pixel_values: Any) -> Output:
        """Hidden states of a picture's patches.

        Parameters
        ----------
        pixel_values : array or Tensor
            ``(B, C, H, W)``, scaled as the model was trained, of the configuration's ``image_size``.

        Returns
        -------
        Output
            ``last_hidden_state`` ``(B, 1 + patches, width)``, ``pooler_output`` ``(B, width)``.

        Raises
        ------
        ValueError
            For another shape.
        """
        x, host = self._encode(pixel_values)
        pooler = self.pooler
        return Output(
            host, last_hidden_state=x, pooler_output=None if pooler is None else lambda: F.tanh(pooler(x[:, 0]))
        )


class ViTClassifier(ViT):
    """A vision transformer that classifies: ``logits`` ``(B, labels)``."""

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        self.classifier = Linear(weights, "classifier", self.width, config.labels())

    def forward(self, pixel_values: Any) -> Output:
        """As `ViT.forward`, with ``logits`` ``(B, labels)``."""
        x, host = self._encode(pixel_values)
        return Output(host, logits=lambda: self.classifier(x[:, 0]), last_hidden_state=x)
