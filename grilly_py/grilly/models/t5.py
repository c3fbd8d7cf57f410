"""T5 (Raffel et al. 2020, arXiv:1910.10683), version 1.1 with gated layers (Flan-T5) too."""

from __future__ import annotations

from typing import Any

from ..compute import Tensor
from .cache import ForwardContext
from .config import Config
from .encoder_decoder import EncoderDecoder, Source
from .layers import Embedding, Linear
from .model import Model
from .output import Output
from .t5_layers import Stack
from .weights import Weights


class T5Encoder(Model):
    """T5's encoder alone, which reads prompts for models of pictures: ``last_hidden_state`` ``(B, S, width)``."""

    unread: tuple[str, ...] = ("decoder.", "lm_head.")  # the rest of the model that the encoder is of

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        config.unused("tie_word_embeddings", "n_positions", "scale_decoder_outputs")
        config.unused("is_encoder_decoder", "num_decoder_layers")  # of a decoder, where there is one
        self.width, self.rows = config.integer("d_model"), config.integer("vocab_size")
        self.tokens = Embedding(weights, "shared", self.rows, self.width)
        weights.allow("encoder.embed_tokens.weight", copies="shared.weight")
        weights.allow_below(*self.unread)
        self.encoder = Stack(config, weights.at("encoder"), config.integer("num_layers"), decoder=False)

    def encode(self, inputs: Any, attention_mask: Any) -> tuple[Tensor, Tensor | None, bool]:
        """The encoder's states ``(B, S, width)``, the mask of its tokens, and whether the ids came from the host."""
        ids, host = self._numbers("input_ids", inputs, self.rows)
        mask = self._mask(attention_mask, *ids.shape)
        return self._replayed(self._states, ids, mask), mask, host

    def _states(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        return self.encoder(self.tokens(ids), ForwardContext(mask=mask))

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Output:
        """Hidden states of tokens.

        Parameters
        ----------
        input_ids : array or Tensor of int
            ``(B, S)``.
        attention_mask : array or Tensor, optional
            ``(B, S)``: 0 for padding.

        Raises
        ------
        TypeError, ValueError
            For arrays that are no such numbers or of another shape.
        """
        states, _, host = self.encode(input_ids, attention_mask)
        return Output(host, last_hidden_state=states)


class T5(T5Encoder, EncoderDecoder):
    """T5 without a head."""

    has_head = False
    unread = ()

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        config.only(is_encoder_decoder=True)
        answers = config.integer("num_decoder_layers", config.integer("num_layers"))
        self.cached = (answers, config.integer("num_heads"), config.integer("d_kv"))
        weights.allow("decoder.embed_tokens.weight", copies="shared.weight")
        weights.allow("lm_head.weight")
        weights.allow("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight")  # of the oldest files
        self.decoder = Stack(config, weights.at("decoder"), answers, decoder=True)

    def source(self, states: Tensor, mask: Tensor | None) -> Source:
        """The keys and values of each layer's attention to the encoder's states."""
        return Source([block.cross.project(states) for block in self.decoder.blocks], mask)

    def decode(self, ids: Tensor, call: ForwardContext, source: Source) -> Tensor:
        """The decoder's states ``(B, S, width)``."""
        return self.decoder(self.tokens(ids), call, source)

    def forward(
        self, input_ids: Any, attention_mask: Any = None, decoder_input_ids: Any = None,
        decoder_attention_mask: Any = None,
    ) -> Output:  # fmt: skip
        """The decoder's hidden states.

        Parameters
        ----------
        input_ids, decoder_input_ids : array or Tensor of int
            ``(B, S)`` and ``(B, T)``: what is read, and what was written, with the token that answers begin with.
        attention_mask, decoder_attention_mask : array or Tensor, optional
            ``(B, S)`` and ``(B, T)``: 0 for padding.

        Returns
        -------
        Output
            ``last_hidden_state`` ``(B, T, width)``, ``encoder_last_hidden_state``, with a head ``logits``.

        Raises
        ------
        TypeError, ValueError
            For arrays that are no such numbers or of another shape.
        """
        return self._called(input_ids, attention_mask, decoder_input_ids, decoder_attention_mask)


class T5LM(T5):
    """T5 with logits, by a head of its own or the token embeddings."""

    has_head = True

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        # Where the table of tokens is the head, states are scaled; newer files say so in a field of its own.
        self.scaled = config.flag("scale_decoder_outputs", config.flag("tie_word_embeddings", True))
        own = weights.has("lm_head.weight")
        self.lm_head = Linear(weights, "lm_head", self.width, self.rows, bias=False) if own else None

    def head(self, x: Tensor) -> Tensor:
        """``(..., width)`` to ``(..., vocab)``."""
        x = x * self.width**-0.5 if self.scaled else x
        return self.tokens.logits(x) if self.lm_head is None else self.lm_head(x)
