"""One of CLIP's two encoders alone, as models of pictures have them, with and without the projection to features."""

from __future__ import annotations

from typing import Any

from ..compute import Tensor
from .clip import PictureEncoder, TextEncoder, pictures_of, texts_of
from .config import Config
from .layers import Linear
from .model import Model
from .output import Output
from .weights import Weights


class CLIPText(Model):
    """The encoder of texts: ``pooler_output`` ``(B, width)`` is the state of the token that ends one."""

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        config.unused("logit_scale_init_value")
        self.encoder = TextEncoder(config, weights.optional("text_model"))

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Output:
        """Hidden states of tokens.

        Parameters
        ----------
        input_ids : array or Tensor of int
            ``(B, S)``, each with the token that ends texts.
        attention_mask : array or Tensor, optional
            ``(B, S)``: 0 for padding.

        Returns
        -------
        Output
            ``last_hidden_state`` ``(B, S, width)`` and ``pooler_output`` ``(B, width)``, or with the projection
            ``text_embeds`` ``(B, features)``, not scaled to length 1.

        Raises
        ------
        TypeError, ValueError
            For arrays that are no such numbers or of another shape, and texts longer than the positions.
        """
        ids, mask, host = texts_of(self, self.encoder, input_ids, attention_mask)
        return self._output(host, *self._replayed(self.encoder.forward, ids, mask))

    def _output(self, host: bool, states: Tensor, last: Tensor) -> Output:
        """What a call gives; ``host``: as arrays."""
        return Output(host, last_hidden_state=states, pooler_output=last)


class CLIPTextFeatures(CLIPText):
    """CLIP's text encoder with its projection: ``text_embeds``."""

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        width = config.integer("projection_dim", 512)
        self.projection = Linear(weights, "text_projection", self.encoder.width, width, bias=False)

    def _output(self, host: bool, states: Tensor, last: Tensor) -> Output:
        return Output(host, text_embeds=lambda: self.projection(last), last_hidden_state=states)


class CLIPPicture(Model):
    """The encoder of pictures: ``pooler_output`` ``(P, width)`` is the first token's state, normalised."""

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        config.unused("logit_scale_init_value")
        self.encoder = PictureEncoder(config, weights.optional("vision_model"))

    def forward(self, pixel_values: Any) -> Output:
        """Hidden states of a picture's patches.

        Parameters
        ----------
        pixel_values : array or Tensor
            ``(P, C, H, W)``, scaled as the model was trained, of the configuration's ``image_size``.

        Returns
        -------
        Output
            ``last_hidden_state`` ``(P, 1 + patches, width)`` and ``pooler_output`` ``(P, width)``, or with the
            projection ``image_embeds`` ``(P, features)``, not scaled to length 1.

        Raises
        ------
        ValueError
            For another shape.
        """
        pixels, host = pictures_of(self, self.encoder, pixel_values)
        return self._output(host, *self._replayed(self.encoder.forward, pixels))

    def _output(self, host: bool, states: Tensor, last: Tensor) -> Output:
        """What a call gives; ``host``: as arrays."""
        return Output(host, last_hidden_state=states, pooler_output=last)


class CLIPPictureFeatures(CLIPPicture):
    """CLIP's image encoder with its projection: ``image_embeds``."""

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        width = config.integer("projection_dim", 512)
        self.projection = Linear(weights, "visual_projection", self.encoder.width, width, bias=False)

    def _output(self, host: bool, states: Tensor, last: Tensor) -> Output:
        return Output(host, image_embeds=lambda: self.projection(last), last_hidden_state=states)
