"""BERT (Devlin et al. 2019, arXiv:1810.04805) and RoBERTa (Liu et al. 2019, arXiv:1907.11692): encoders of text.

What differs from them by its names, and a little more, is a subclass in a file of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import array_api as xp
from .. import functional as F
from .. import nn
from ..compute import Tensor
from .config import Config
from .layers import ACTIVATIONS, MLP, Dropouts, Embedding, LayerNorm, Layers, Linear, check_dim
from .model import Model
from .output import Output
from .weights import Weights

#: Names in a layer of BERT: see `Layer`.
NAMES = (
    "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
    "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm",
)  # fmt: skip


class Layer(nn.Module):
    """Attention of all tokens to all, then two linear layers; each is added to its input and normalised.

    Parameters
    ----------
    weights : Weights
    names : sequence of str
        Of the layers of q, k, v and of the output, a norm, the two linear layers, and a norm.
    width, heads, inner : int
    activation : str
    eps : float
    dropout : Dropouts
    """

    def __init__(
        self, weights: Weights, names: Sequence[str], width: int, heads: int, inner: int, activation: str, eps: float,
        dropout: Dropouts,
    ) -> None:  # fmt: skip
        super().__init__()
        self.heads, self.dropout = heads, dropout.attention
        self.qkv = Linear(weights, names[:3], width, [width] * 3)
        self.output = Linear(weights, names[3], width, width, dropout=dropout.added)
        self.attention_norm = LayerNorm(weights, names[4], width, eps)
        self.mlp = MLP(weights, names[5:7], width, inner, activation, dropout=dropout)
        self.norm = LayerNorm(weights, names[7], width, eps)

    def forward(self, x: Tensor, mask: Tensor | None, places: dict[str, Any]) -> Tensor:
        """``(B, S, width)``; ``places`` are the options of attention that tell positions."""
        width = x.shape[-1]
        qkv = self.qkv(x)
        q, k, v = (qkv[..., i * width : (i + 1) * width] for i in range(3))
        attended = F.flash_attention3(
            q, k, v, num_heads=self.heads, mask=mask, precision=self.qkv.precision,
            dropout_p=self.dropout if self.training else 0.0, **places,
        )  # fmt: skip
        h = self.attention_norm(x + self.output(attended))
        return self.norm(h + self.mlp(h))


class Bert(Model):
    """BERT without a head: ``last_hidden_state``, and ``pooler_output`` where the files have the pooler."""

    prefix, encoder, names = "bert", ("encoder", "layer"), NAMES
    norm_name = "embeddings.LayerNorm"
    sizes = ("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size")
    act, dropouts = "hidden_act", ("attention_probs_dropout_prob", "hidden_dropout_prob")
    first_position = 0
    typed = placed = True  # whether there are tables of types, and of positions

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        config.only(position_embedding_type="absolute")
        config.unused("tie_word_embeddings")
        # Of old files: of the programs that trained them.
        config.unused("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
                      "pooler_size_per_head", "pooler_type")  # fmt: skip
        (self.width, heads, layers, inner), self.rows = map(config.integer, self.sizes), config.integer("vocab_size")
        if self.width % heads:
            raise config.error(self.sizes[0], f"a multiple of {self.sizes[1]}")
        check_dim(config, self.sizes[0], self.width // heads)
        self.positions = config.integer("max_position_embeddings")
        self.types = config.integer("type_vocab_size", 2) if self.typed else 0
        eps = self._eps(config)
        self.padding = config.integer("pad_token_id", 1 if self.first_position else 0, least=0)
        weights = weights.optional(self.prefix)
        below = weights.at("embeddings")
        self.word_embeddings = Embedding(below, "word_embeddings", self.rows, self.width)
        self.position_embeddings = None
        if self.placed:
            self.position_embeddings = Embedding(
                below, "position_embeddings", self.positions, self.width, quantized=False
            )
        self.token_type_embeddings = None
        if self.typed:
            self.token_type_embeddings = Embedding(
                below, "token_type_embeddings", self.types, self.width, quantized=False
            )
        self.norm = LayerNorm(weights, self.norm_name, self.width, eps)
        self.activation = config.text(self.act, ACTIVATIONS, "gelu")
        attention, added = (config.dropout(name, 0.1) for name in self.dropouts)
        dropout, self.dropout = Dropouts(attention, 0.0, added), nn.Dropout(added)
        self.layers = Layers(
            self._layer(config, weights.at(*self.encoder, i), heads, inner, eps, dropout) for i in range(layers)
        )
        self.pooler = None
        if weights.has("pooler.dense.weight"):
            self.pooler = Linear(weights, "pooler.dense", self.width, self.width)

    def _layer(
        self, config: Config, weights: Weights, heads: int, inner: int, eps: float, dropout: Dropouts
    ) -> nn.Module:
        """One layer."""
        return Layer(weights, self.names, self.width, heads, inner, self.activation, eps, dropout)

    def _eps(self, config: Config) -> float:
        """What norms add to a variance."""
        return config.eps("layer_norm_eps", 1e-12)

    def forward(
        self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None, position_ids: Any = None
    ) -> Output:
        """Hidden states of tokens.

        Parameters
        ----------
        input_ids : array or Tensor of int
            ``(B, S)``.
        attention_mask : array or Tensor, optional
            ``(B, S)``: 0 for padding, which nothing attends to.
        token_type_ids, position_ids : array or Tensor of int, optional
            ``(B, S)``, or ``(1, S)`` for all texts: 0 and the place in the text by default; for RoBERTa and MPNet the
            place among what is not padding. DistilBERT and MPNet have no types.

        Returns
        -------
        Output
            ``last_hidden_state`` ``(B, S, width)``, and ``pooler_output`` ``(B, width)`` or, with a head, ``logits``.

        Raises
        ------
        TypeError, ValueError
            For arrays that are no such numbers or of another shape, and texts longer than the positions.
        """
        x, host = self._encode(input_ids, attention_mask, token_type_ids, position_ids)
        return self._output(host, x)

    def _output(self, host: bool, x: Tensor) -> Output:
        """What a call gives of the hidden states; ``host``: as arrays."""
        return Output(host, last_hidden_state=x, pooler_output=None if self.pooler is None else lambda: self._pooled(x))

    @property
    def longest(self) -> int:
        """The most tokens that there are positions for."""
        return self.positions - (self.padding + 1 if self.first_position else 0)

    def _need_pooler(self, weights: Weights) -> None:
        """For a head that begins with the pooler: where the files lack it, that is said."""
        if self.pooler is None:
            self.pooler = Linear(weights.optional(self.prefix), "pooler.dense", self.width, self.width)

    def _pooled(self, x: Tensor) -> Tensor:
        assert self.pooler is not None
        return F.tanh(self.pooler(x[:, 0]))

    def positions_of(self, tokens: Sequence[int]) -> Sequence[int]:
        """The positions of a text's tokens."""
        return range(len(tokens))

    def _placed(self, ids: Tensor) -> Tensor:
        """What is added for the places of tokens, ``(S, width)`` or of each text."""
        assert self.position_embeddings is not None
        return self.position_embeddings.weight.data[: ids.shape[1]]

    def _options(self, places: Tensor | None) -> dict[str, Any]:
        """The options of attention that tell positions."""
        return {}

    def _encode(self, input_ids: Any, mask: Any, types: Any, places: Any) -> tuple[Tensor, bool]:
        if types is not None and not self.typed:
            raise ValueError(f"{type(self).__name__}: token_type_ids are given; this architecture has no types")
        ids, host = self._numbers("input_ids", input_ids, self.rows)
        places = self._of_tokens("position_ids", places, self.positions, tuple(ids.shape))
        types = self._of_tokens("token_type_ids", types, self.types, tuple(ids.shape))
        return self._replayed(self.states, ids, self._mask(mask, *ids.shape), types, places), host

    def states(self, ids: Tensor, mask: Tensor | None, types: Tensor | None, places: Tensor | None) -> Tensor:
        """Hidden states ``(B, S, width)`` of tokens ``(B, S)``, with a mask ``(B, 1, 1, S)``.

        Raises ValueError for texts longer than the positions.
        """
        if ids.shape[1] > self.longest:
            raise ValueError(f"{type(self).__name__}: {ids.shape[1]} tokens are more than the {self.longest} positions")
        # Where a row of a table is the same for all texts it is added as it lies.
        x, table = self.word_embeddings(ids), self.token_type_embeddings
        if table is not None:
            x = x + (table.weight.data[0] if types is None else table(types))
        if self.position_embeddings is not None:
            x = x + (self._placed(ids) if places is None else self.position_embeddings(places))
        x = self.dropout(self.norm(x))
        options = self._options(places)
        x = self.layers.through(x, mask, options)
        return x


class Roberta(Bert):
    """RoBERTa: positions count from the padding's number on, and padding has that number itself."""

    prefix = "roberta"
    first_position = 1

    def positions_of(self, tokens: Sequence[int]) -> Sequence[int]:
        """As `_placed` counts them."""
        seen = np.asarray(tokens) != self.padding
        return (np.cumsum(seen) * seen + self.padding).tolist()

    def _placed(self, ids: Tensor) -> Tensor:
        assert self.position_embeddings is not None
        tokens = (ids != self.padding).astype("int32")
        return self.position_embeddings(xp.cumulative_sum(tokens, axis=1).astype("int32") * tokens + self.padding)
