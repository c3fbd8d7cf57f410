"""Decoder: what language models share: calls with and without a cache, and generation."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import functional as F
from ..compute import Tensor
from ..compute.attention.cache_types import CACHE_TYPES, CacheType, check_cache_type
from .cache import Cache, ForwardContext
from .config import Config
from .generation import Generates, State, fewer, packed
from .model import Model
from .output import Output
from .rotary import Rotary
from .weights import Weights


class Decoder(Generates, Model):
    """Base of models that continue texts. A subclass has `hidden`, and `head` if its files have one.

    Attributes
    ----------
    rows : int
        Size of the vocabulary.
    cached : tuple of int
        Layers, key heads and elements of a head: what a cache holds.
    rotary : Rotary or None
        How keys are rotated.
    positions : int or None
        The longest text that there are embeddings of positions for; None where any length can be computed.
    """

    rows: int
    cached: tuple[int, int, int]
    rotary: Rotary | None = None
    positions: int | None = None

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        config.only(is_decoder=(True, False))

    def hidden(self, ids: Tensor, call: ForwardContext) -> Tensor:
        """The states after the last normalisation, ``(B, S, width)``; subclasses define it."""
        raise NotImplementedError

    def head(self, x: Tensor) -> Tensor:
        """Logits ``(..., vocab)``; subclasses define it."""
        raise NotImplementedError

    def make_cache(self, batch: int, max_len: int, dtype: CacheType | None = None) -> Cache:
        """An empty cache with room for ``max_len`` tokens of each sample.

        ``dtype``: "q8_0" or "q4_0" for keys and values of 8.5 or 4.5 bits a number (``grilly.nn.KVCache``); by default
        the model's ``cache_dtype``, and where that is None its ``dtype``. Raises ValueError for another, and
        UnsupportedError for these where heads are no multiple of 32 elements.
        """
        check_cache_type("make_cache", dtype)
        layers, *shape = self.cached
        kind = dtype or self.cache_dtype or self.dtype
        return Cache(self.backend, layers, batch, max_len, *shape, kind, self.rotary, beside=self._held)

    def forward(
        self, input_ids: Any, attention_mask: Any = None, position_ids: Any = None,
        past_key_values: Cache | None = None, segment_ids: Any = None,
    ) -> Output:  # fmt: skip
        """Hidden states and logits.

        Parameters
        ----------
        input_ids : array or Tensor of int
            ``(B, S)``.
        attention_mask : array or Tensor, optional
            ``(B, S)``: 0 for padding, on either side, which nothing attends to.
        position_ids : array or Tensor of int, optional
            ``(B, S)`` or ``(1, S)``; 0, 1, 2, ... by default, whatever the mask says, as in transformers.
        past_key_values : Cache, optional
            Of `make_cache`: the tokens come after those that it holds, and are added to it. Padding and positions then
            follow from its lengths, and are not given.
        segment_ids : array or Tensor of int, optional
            ``(B, S)``: numbers of texts that stand in one row, which do not see each other. Their ``position_ids``
            begin anew with each. Not beside a cache.

        Returns
        -------
        Output
            ``last_hidden_state`` ``(B, S, width)`` and ``logits`` ``(B, S, vocab)``.

        Raises
        ------
        TypeError, ValueError
            For arrays that are no such numbers or of another shape, texts longer than the positions, tokens that do
            not fit into the cache, and a mask or positions beside a cache.
        """
        ids, host = self._numbers("input_ids", input_ids, self.rows)
        batch, length = ids.shape
        name = type(self).__name__
        if past_key_values is not None and not attention_mask is position_ids is segment_ids is None:
            raise ValueError(f"{name}: with past_key_values, padding and positions follow from its lengths, and a row "
                             "is one text")  # fmt: skip
        longest = length if past_key_values is None else self._room(past_key_values, batch, length)
        if self.positions is not None and longest > self.positions:
            raise ValueError(f"{name}: {longest} tokens are more than the {self.positions} positions")
        if past_key_values is None:
            position_ids = self._of_tokens("position_ids", position_ids, self.positions or 2**31, (batch, length))
            if isinstance(position_ids, Tensor):  # as rotary embedding reads them
                position_ids = position_ids.astype("int32", copy=False)
            segment_ids = self._of_tokens("segment_ids", segment_ids, 2**31, (batch, length))
            mask = self._mask(attention_mask, batch, length)
            x = self._replayed(self._states, ids, mask, position_ids, segment_ids)
        else:
            x = self.hidden(self._sent(ids), self._call(past_key_values, past_key_values.before()))
            past_key_values.grow(length)
        return Output(host, logits=(lambda: self.head(x)) if self.has_head else None, last_hidden_state=x)

    def _room(self, cache: Any, batch: int, count: int) -> int:
        """Tokens that a text of a cache may have after ``count`` more.

        Raises TypeError and ValueError for what is no cache of this model with room for them.
        """
        name = type(self).__name__
        if not isinstance(cache, Cache):
            kind = type(cache).__name__
            raise TypeError(f"{name}: past_key_values is a {kind}; expected a cache of make_cache, or None")
        kind = str(cache.k[0].dtype)
        found = (len(cache.k), *cache.k[0].shape[2:], kind)
        wanted = (*self.cached, kind if kind in CACHE_TYPES else str(self.dtype))
        if found != wanted:
            raise ValueError(f"{name}: past_key_values is of another model: layers, heads, elements of these and dtype "
                             f"are {found}; expected {wanted}")  # fmt: skip
        if cache.rotary is not self.rotary and (self.rotary is None or not self.rotary.turns_as(cache.rotary)):
            # Its tables would turn the new keys and queries, and the old keys are rotated already.
            rotated, own = (f"{'no ' if one is None else ''}rotary angles" for one in (cache.rotary, self.rotary))
            own = "other ones" if rotated == own else own
            raise ValueError(f"{name}: past_key_values is of another model: its keys are rotated by {rotated}, this "
                             f"model's by {own}; expected a cache of this model's make_cache")  # fmt: skip
        longest = cache.longest(count)
        if len(cache.k[0]) != batch or longest > cache.max_len:
            raise ValueError(f"{name}: past_key_values has room for {len(cache.k[0])} texts of {cache.max_len} tokens; "
                             f"with this call there are {batch} of {longest}")  # fmt: skip
        return longest

    def _states(
        self, ids: Tensor, mask: Tensor | None, places: Tensor | None, segments: Tensor | None = None
    ) -> Tensor:
        return self.hidden(ids, ForwardContext(mask, places, precision=self.precision, segments=segments))

    def _call(self, cache: Cache, lengths: Any) -> ForwardContext:
        return ForwardContext(cache=cache, lengths=lengths, precision=self.precision)

    # -- generation ------------------------------------------------------------------------------------------------

    def _prompt(
        self, input_ids: Any, attention_mask: Any, decoder_input_ids: Any, room: int, kind: CacheType | None
    ) -> tuple[Tensor, State]:
        ids, lengths = packed(type(self).__name__, input_ids, attention_mask)
        self._ids("input_ids", ids, self.rows)
        longest = int(lengths.max()) + room - 1  # nothing reads the last token
        if self.positions is not None and longest > self.positions:
            raise ValueError(
                f"{type(self).__name__}: {longest} tokens are more than the model's {self.positions} positions; "
                + fewer(self.positions, int(lengths.max()), "the prompt alone is")
            )
        batch, length = ids.shape
        # Room in steps of 64, so that texts of nearly one length need one plan.
        cache = self.make_cache(batch, -(-max(longest, length) // 64) * 64, kind)
        with self._beside(f"a prompt of {batch} x {length} tokens", cache):
            sent = self.backend.tensor(ids.astype(np.int32))
            x = self.hidden(sent, self._call(cache, cache.before()))
            last = self.backend.tensor((np.arange(batch) * length + lengths - 1).astype(np.int32))
            cache.lengths = lengths
            return self.head(F.embedding(last, x.reshape(batch * length, -1))), State(cache)

    def _next(self, ids: Tensor, state: State) -> Tensor:
        x = self.hidden(ids, self._call(state.cache, state.cache.before()))
        state.cache.grow(1)
        return self.head(x)[:, 0]
