"""EncoderDecoder: what models share that read one sequence and write another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..compute import Tensor
from ..compute.attention.cache_types import CacheType
from ..compute.device.arrays import NDArray
from .cache import Cache, ForwardContext
from .generation import Generates, State, fewer
from .model import Model
from .output import Output


@dataclass
class Source:
    """What a decoder takes from the encoder: keys and values of each layer, and a mask ``(B, 1, 1, S)``."""

    keys: Sequence[tuple[Tensor, Tensor]]
    mask: Tensor | None


class EncoderDecoder(Generates, Model):
    """Base of models with an encoder and a decoder. A subclass has the four methods below.

    Attributes
    ----------
    rows : int
        Size of the vocabulary.
    cached : tuple of int
        Layers of the decoder, heads and elements of a head.
    positions : int or None
        The longest answer that there are embeddings of positions for.
    starts : bool
        Whether ``decoder_start_token_id`` comes before ``decoder_input_ids`` none of which begin with it.
    reads : str
        What `generate` calls its first argument, for messages.
    """

    rows: int
    cached: tuple[int, int, int]
    positions: int | None = None
    starts = True
    reads = "input_ids"

    def encode(self, inputs: Any, attention_mask: Any) -> tuple[Tensor, Tensor | None, bool]:
        """The encoder's states, the mask of its tokens, and whether the inputs came from the host."""
        raise NotImplementedError

    def source(self, states: Tensor, mask: Tensor | None) -> Source:
        """The keys and values that the decoder's layers make of the encoder's states."""
        raise NotImplementedError

    def decode(self, ids: Tensor, call: ForwardContext, source: Source) -> Tensor:
        """The decoder's states, ``(B, S, width)``."""
        raise NotImplementedError

    def head(self, x: Tensor) -> Tensor:
        """Logits ``(..., vocab)``."""
        raise NotImplementedError

    def _called(self, inputs: Any, attention_mask: Any, decoder_input_ids: Any, decoder_attention_mask: Any) -> Output:
        name = type(self).__name__
        if decoder_input_ids is None:
            raise ValueError(f"{name}: decoder_input_ids are missing: what was written so far, of which the first "
                             f"token is decoder_start_token_id, {self.decoder_start_token_id}")  # fmt: skip
        try:
            shape = np.shape(inputs)
        except ValueError:  # rows of different lengths, of which encode() speaks
            shape = ()
        if shape[:1] == (0,):
            self.encode(inputs, attention_mask)  # which says so
        ids, _ = self._ids("decoder_input_ids", decoder_input_ids, self.rows)
        self._fits(ids.shape[1])
        call = ForwardContext(self._mask(decoder_attention_mask, *ids.shape), precision=self.precision)
        if len(shape) > 1 and shape[0] != len(ids):
            raise ValueError(f"{name}: {shape[0]} inputs and {len(ids)} answers")
        states, mask, host = self.encode(inputs, attention_mask)
        x = self.decode(ids, call, self.source(states, mask))
        return Output(host, logits=(lambda: self.head(x)) if self.has_head else None,
                      last_hidden_state=x, encoder_last_hidden_state=states)  # fmt: skip

    def _fits(self, length: int, remedy: str = "") -> None:
        if self.positions is not None and length > self.positions:
            raise ValueError(
                f"{type(self).__name__}: {length} tokens are more than the {self.positions} positions{remedy}"
            )

    def _call(self, cache: Cache, lengths: Any) -> ForwardContext:
        return ForwardContext(cache=cache, lengths=lengths, precision=self.precision)

    # -- generation ------------------------------------------------------------------------------------------------

    def _begin(self, input_ids: Any, decoder_input_ids: Any = None) -> NDArray[Any]:
        start = self.decoder_start_token_id
        if not len(input_ids):
            shape = np.shape(input_ids)
            raise ValueError(f"{type(self).__name__}: {self.reads} has shape {shape}; expected at least one sample")
        if decoder_input_ids is not None:
            ids = self._numbers("decoder_input_ids", decoder_input_ids, self.rows)[0]
            if len(ids) != len(input_ids):
                raise ValueError(f"{type(self).__name__}: {len(input_ids)} inputs and {len(ids)} decoder_input_ids")
            begun = super()._begin(ids)
            if not self.starts or start is None or (begun[:, 0] == start).any():
                return begun
            return np.concatenate([np.full((len(begun), 1), start, np.int64), begun], axis=1)
        if start is None:
            raise ValueError(f"{type(self).__name__}: the folder names no decoder_start_token_id; "
                             "give decoder_input_ids")  # fmt: skip
        return np.full((len(input_ids), 1), start, np.int64)

    def _texts(self, begun: NDArray[Any], attention_mask: Any) -> list[NDArray[np.int64]]:
        return list(begun)  # the mask is that of what was read

    def _prompt(
        self, input_ids: Any, attention_mask: Any, decoder_input_ids: Any, room: int, kind: CacheType | None
    ) -> tuple[Tensor, State]:
        begun = self._begin(input_ids, decoder_input_ids)
        ids, _ = self._ids("decoder_input_ids", begun, self.rows)
        remedy = fewer(self.positions or 0, ids.shape[1], "decoder_input_ids alone are")
        self._fits(ids.shape[1] + room - 1, f"; {remedy}")  # nothing reads the last token
        states, mask, _ = self.encode(input_ids, attention_mask)
        length = -(-(ids.shape[1] + room) // 64) * 64  # in steps, so that answers of nearly one length need one plan
        layers, *shape = self.cached
        dtype = kind or self.cache_dtype or self.dtype
        cache = Cache(self.backend, layers, len(states), length, *shape, dtype, beside=self._held)
        with self._beside(f"a prompt of {len(states)} x {ids.shape[1]} tokens", cache):
            state = State(cache, self.source(states, mask))
            x = self.decode(ids, self._call(cache, cache.before()), state.source)
            cache.grow(ids.shape[1])
            return self.head(x[:, -1]), state

    def _next(self, ids: Tensor, state: State) -> Tensor:
        x = self.decode(ids, self._call(state.cache, state.cache.before()), state.source)
        state.cache.grow(1)
        return self.head(x[:, 0])
