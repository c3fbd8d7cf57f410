"""The keys and values of earlier tokens in all layers of a model, and attention with them or without."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import functional as F
from ..compute import Compute, Tensor
from ..compute.attention.cache_lengths import Lengths
from ..compute.attention.cache_types import cache_dtype, cache_nbytes, check_widths, new_cache
from ..compute.device.arrays import IntegersLike, NDArray, Precision
from .room import mib, room
from .rotary import Rotary

#: What to do where there is no room for a cache.
LESS = "fewer texts, fewer tokens or 16 bits take less"


class Cache:
    """What a decoder has seen: made by ``model.make_cache``, given as ``past_key_values``, grown in place.

    ``copy.deepcopy(cache)`` (and ``copy.copy``, which gives the same) has keys, values and lengths of its own, on the
    same device: so a prompt that is read once may go on in several ways. A cache cannot be pickled (TypeError).

    Attributes
    ----------
    k, v : list of grilly.Tensor
        For each layer ``(batch, max_len, key heads, D)``. Keys are rotated by their positions already.
    lengths : numpy.ndarray
        Tokens that each sample holds, int32 ``(batch,)``. It may be changed: after a prompt that is padded on the
        right, to the number of its tokens. What is assigned is checked (else ValueError). In a captured call lengths
        are read and advanced on the device, and the host counts along with each replay; here they are then asked for
        between replays (else CaptureError).
        With a dtype "q8_0" or "q4_0" each is a quantized array of this shape (see ``grilly.nn.KVCache``).
    nbytes : int
        Of keys and values.
    tables, local_tables : pair of grilly.Tensor or None
        Cosines and sines of all positions, for models with rotary embeddings; those of layers with windows, where they
        are others.
    rotary : Rotary or None
        What keys are rotated by: a model takes caches of its own angles alone.
    """

    def __init__(
        self, backend: Compute, layers: int, batch: int, max_len: int, heads: int, dim: int, dtype: np.dtype[Any] | str,
        rotary: Rotary | None = None, beside: str = "",
    ) -> None:  # fmt: skip
        shape, kind = (batch, max_len, heads, dim), cache_dtype("Cache", dtype)
        check_widths("Cache", kind, dim)
        self.nbytes = 2 * layers * cache_nbytes(kind, *shape)
        what = f"a cache of {batch} texts of up to {max_len} tokens takes {mib(self.nbytes)}{beside}"
        with room(backend, what, self.nbytes, LESS):
            self.k: list[Any] = [new_cache(backend, shape, kind) for _ in range(layers)]
            self.v: list[Any] = [new_cache(backend, shape, kind) for _ in range(layers)]
        self._backend, self._lengths = backend, Lengths(backend.opened, batch, max_len)
        self.rotary = rotary
        self.tables = None if rotary is None else rotary.tables(backend, max_len)
        local = None if rotary is None else rotary.local
        self.local_tables = None if local is None else local.tables(backend, max_len)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens that each sample holds, int32 ``(batch,)``: the array itself, which may be written to."""
        self._lengths.outside("Cache.lengths")
        return self._lengths.shown()

    @lengths.setter
    def lengths(self, lengths: IntegersLike) -> None:
        self._lengths.outside("Cache.lengths")
        self._lengths.put(self._lengths.checked("Cache", lengths))

    @property
    def max_len(self) -> int:
        """Tokens that each sample has room for."""
        return int(self.k[0].shape[1])

    def longest(self, count: int) -> int:
        """Tokens that a sample may hold after ``count`` more; replays of a captured function may fill the cache."""
        if self._backend.runtime.capturing:
            return self.max_len
        return int(self._lengths.now().max(initial=0)) + count

    def before(self) -> Any:
        """The lengths before a call, for its layers: those now, or in a captured function those of each replay."""
        return self._lengths.tensor() if self._backend.runtime.capturing else self._lengths.now().copy()

    def grow(self, count: int) -> None:
        """Count the tokens of a call, after its layers; in a captured function in each replay."""
        if not self._backend.runtime.capturing:
            self._lengths.grow(count)
            return
        lengths = self._lengths.tensor()
        lengths += count
        self._lengths.noted(count)

    def __copy__(self) -> Cache:
        return self.__deepcopy__({})  # with shared keys the two would write over each other's tokens

    def __deepcopy__(self, memo: dict[int, Any]) -> Cache:
        self._lengths.outside("copying a Cache")
        new = memo[id(self)] = object.__new__(Cache)
        new.nbytes, new.rotary, new.tables, new._backend = self.nbytes, self.rotary, self.tables, self._backend
        new.local_tables = self.local_tables
        with room(self._backend, f"a copy of a cache takes {mib(self.nbytes)}", self.nbytes, LESS):
            new.k, new.v = copy.deepcopy((self.k, self.v), memo)
        new._lengths = Lengths(self._backend.opened, len(self.k[0]), self.max_len)
        new._lengths.put(self._lengths.now())
        return new

    def __reduce__(self) -> Any:
        raise TypeError("a Cache is memory of an open device and cannot be pickled; copy.deepcopy(cache) copies it")


@dataclass(frozen=True)
class ForwardContext:
    """What all layers share in one call of a decoder: the mask and positions, or a cache and the lengths before it.

    Also the texts' numbers ``(B, S)`` where a row has several, which do not see each other, and of float32 products of
    queries, keys and values the precision.
    """

    mask: Tensor | None = None
    positions: Any = None
    cache: Cache | None = None
    lengths: Any = None
    precision: Precision = "highest"
    segments: Tensor | None = None

    def places(self, count: int) -> Any:
        """Where ``count`` new tokens of each sample stand: ``(1 or B, count)``, as an array or a Tensor."""
        new = np.arange(count, dtype=np.int32)
        if self.cache is None:
            return new[None] if self.positions is None else self.positions
        return self.lengths.reshape(-1, 1) + new


def attend(
    q: Tensor, k: Tensor, v: Tensor, layer: int, call: ForwardContext, *, rotary: Rotary | None = None,
    local: bool = False, window: int | None = None, scale: float | None = None, softcap: float = 0.0,
    dropout: float = 0.0,
) -> Tensor:  # fmt: skip
    """Causal attention of one layer, over a cache if the call has one.

    Parameters
    ----------
    q, k, v : Tensor
        ``(B, S, H, D)``, ``(B, S, Hk, D)``, ``(B, S, Hk, D)``.
    layer : int
        Its place in the cache.
    rotary : Rotary, optional
        The angles by which queries and keys are rotated.
    local : bool
        Whether these are those of layers with windows.
    window : int, optional
        How many keys a query sees, its own among them.
    scale, softcap : float
        As in ``flash_attention2``.
    dropout : float
        The share of weights that is dropped, without a cache.

    Returns
    -------
    Tensor
        ``(B, S, H, D)``.
    """
    seen = None if window is None else (window - 1, 0)
    if rotary is not None and rotary.whole and rotary.factor != 1:  # on queries and keys, so its square on the scores
        scale = (q.shape[-1] ** -0.5 if scale is None else scale) * rotary.factor**2
    if call.cache is not None:
        keys, values = call.cache.k[layer], call.cache.v[layer]
        return F.flash_attention_with_kvcache(
            q, keys, values, k, v, call.lengths, rotary=call.cache.local_tables if local else call.cache.tables,
            rotary_interleaved=False, causal=True, window_size=seen, scale=scale, softcap=softcap,
            precision=call.precision,
        )  # fmt: skip
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    if rotary is not None:
        places = call.positions
        if places is not None and len(places) == 1:  # the same for all texts
            places = places.reshape(-1)
        factor = 1.0 if rotary.whole else rotary.factor
        q, k = (F.rope(x, frequencies=rotary.frequencies, positions=places, factor=factor) for x in (q, k))
    out = F.flash_attention2(
        q, k, v, mask=call.mask, causal=True, window_size=seen, scale=scale, softcap=softcap, dropout_p=dropout,
        segment_ids=call.segments, precision=call.precision,
    )  # fmt: skip
    return out.transpose(0, 2, 1, 3)
