"""KVCache: the keys and values of earlier tokens, for decoding token by token."""

from __future__ import annotations

import operator
from typing import Literal, SupportsIndex, overload

import numpy as np
from numpy.typing import DTypeLike

from ..compute.attention.cache_lengths import Lengths
from ..compute.attention.keywords import CacheKeywords
from ..compute.attention.kvcache import flash_attention_with_kvcache
from ..compute.backend import Compute, default_backend, device_of
from ..compute.device.arrays import FloatArray, IntegersLike, NDArray, Unpack
from ..compute.device.dtypes import dtype_of
from ..compute.device.numbers import integer
from ..compute.device.tensor import Tensor


class KVCache:
    """Keys and values of earlier tokens in device memory, which grow in place.

    Made by ``MultiheadAttention.make_cache``, or directly for attention of one's own. Nothing is moved when tokens are
    added, and nothing past a sample's length is read.

    Parameters
    ----------
    batch, max_len : int
        Samples, and the tokens that each has room for.
    num_heads, head_dim : int
        Of keys and values: Hk, which divides the queries' heads, and D.
    value_dim : int, optional
        Elements of a value; ``head_dim`` by default.
    dtype : dtype_like
        float32, float16 or "bfloat16".
    backend : grilly.Compute, optional
        The device to live on; by default the default backend.

    Attributes
    ----------
    k, v : grilly.Tensor
        ``(batch, max_len, Hk, D)`` and ``(batch, max_len, Hk, Dv)``.
    lengths : numpy.ndarray
        Tokens that each sample holds, int32 ``(batch,)``. It may be changed, say to give samples lengths of their own
        after a prompt that was padded on the right. ``len(cache)`` is the largest of them.

    Notes
    -----
    In a function that ``backend.capture`` captures, ``attend`` finds the lengths on the device and advances them there,
    so a captured step of decoding is replayed while the cache grows. The host counts along: after each replay
    ``lengths`` is right, without waiting. Everything else here is done between replays, and the next replay goes on
    from there. One thread at a time may use a cache.

    Raises
    ------
    ValueError
        For extents below 1 (``batch`` and ``max_len``: below 0).
    """

    def __init__(
        self,
        batch: int,
        max_len: int,
        num_heads: int,
        head_dim: int,
        *,
        value_dim: int | None = None,
        dtype: DTypeLike = np.float32,
        backend: Compute | None = None,
    ) -> None:
        value_dim = head_dim if value_dim is None else value_dim
        names = ("batch", "max_len", "num_heads", "head_dim", "value_dim")
        given = (batch, max_len, num_heads, head_dim, value_dim)
        sizes = tuple(integer("KVCache", name, n) for name, n in zip(names, given, strict=True))
        if min(sizes[:2]) < 0 or min(sizes[2:]) < 1:
            raise ValueError(
                f"KVCache: batch, max_len, num_heads, head_dim and value_dim are {sizes}; "
                "expected at least 0, 0, 1, 1 and 1"
            )
        backend = default_backend() if backend is None else backend
        self.k = backend.empty((*sizes[:3], sizes[3]), dtype_of(dtype))
        self.v = backend.empty((*sizes[:3], sizes[4]), dtype_of(dtype))
        self._lengths = Lengths(backend.opened, *sizes[:2])

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens that each sample holds, int32 ``(batch,)``: the array itself, which may be written to."""
        self._lengths.outside("KVCache.lengths")
        return self._lengths.shown()

    @lengths.setter
    def lengths(self, lengths: IntegersLike) -> None:
        self._lengths.outside("KVCache.lengths")
        given = np.asarray(lengths)
        if given.dtype.kind not in "iu" or given.shape not in ((), (self.k.shape[0],)):
            raise ValueError(
                f"KVCache: lengths are {given.dtype} {given.shape}; expected integers ({self.k.shape[0]},)"
            )
        if given.size and not 0 <= int(given.min()) <= int(given.max()) <= self.max_len:
            raise ValueError(
                f"KVCache: lengths go from {given.min()} to {given.max()}; expected 0 to {self.max_len}"
            )
        self._lengths.put(given)

    def __len__(self) -> int:
        """Tokens that the longest sample holds."""
        self._lengths.outside("len(KVCache)")
        return int(self._lengths.now().max(initial=0))

    def __bool__(self) -> bool:
        """True, also of an empty cache."""
        return True

    @property
    def max_len(self) -> int:
        """Tokens that each sample has room for."""
        return self.k.shape[1]

    @overload
    def attend(
        self, q: FloatArray, k: FloatArray, v: FloatArray, *,
        return_lse: Literal[False] = ..., **options: Unpack[CacheKeywords],
    ) -> Tensor: ...  # fmt: skip
    @overload
    def attend(
        self, q: FloatArray, k: FloatArray, v: FloatArray, *,
        return_lse: Literal[True], **options: Unpack[CacheKeywords],
    ) -> tuple[Tensor, Tensor]: ...  # fmt: skip
    def attend(
        self, q: FloatArray, k: FloatArray, v: FloatArray, *, return_lse: bool = False, **options: Unpack[CacheKeywords]
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Add keys and values to every sample, and attend causally to all that it then holds.

        Parameters
        ----------
        q, k, v : numpy.ndarray or grilly.Tensor
            ``(B, S, H, D)``, ``(B, S, Hk, D)`` and ``(B, S, Hk, Dv)``: the next S tokens.
        **options
            Of ``grilly.functional.flash_attention_with_kvcache``: rotary tables, a window, sinks and others; also
            ``causal``, True by default.

        Returns
        -------
        grilly.Tensor
            ``(B, S, H, Dv)``; with ``return_lse`` a pair.

        Raises
        ------
        TypeError, ValueError
            As that function, say when the tokens do not fit; the cache is then as it was. In a graph it is the replay
            that raises it, before anything is submitted.
        """
        options.setdefault("causal", True)
        others = (*(options.get("rotary") or ()), options.get("alibi_slopes"), options.get("sinks"))
        device = device_of("KVCache.attend", q, self.k, k, v, *others)
        return flash_attention_with_kvcache(
            device, q, self.k, self.v, k, v, self._lengths, return_lse=return_lse, **options
        )

    def positions(self, count: SupportsIndex = 1) -> Tensor:
        """Where the next ``count`` tokens will stand: int32 ``(batch, count)``, on the device.

        For embeddings of positions and ``grilly.functional.rope``. In a captured function they are those of each
        replay. Raises ValueError for a count below 1.
        """
        count = operator.index(count)
        if count < 1:
            raise ValueError(f"KVCache.positions: count is {count}; expected 1 or more")
        backend = self.k.backend
        first = self._lengths.tensor() if backend.runtime.capturing else backend.tensor(self._lengths.now())
        return first.reshape(-1, 1) + np.arange(count, dtype=np.int32)

    def reset(self) -> None:
        """Forget all tokens. Between replays, not in a captured function (CaptureError)."""
        self.truncate(0)

    def truncate(self, length: SupportsIndex) -> None:
        """Forget what samples hold past ``length`` tokens, say rejected drafts.

        Between replays, not in a captured function (CaptureError). Raises ValueError below 0.
        """
        self._lengths.outside("KVCache.truncate")
        length = operator.index(length)
        if length < 0:
            raise ValueError(f"KVCache.truncate: length is {length}; expected 0 or more")
        self._lengths.cut(min(length, self.max_len))

    def __repr__(self) -> str:
        batch, room, heads, dim = self.k.shape
        return f"KVCache(batch={batch}, max_len={room}, num_heads={heads}, head_dim={dim}, dtype={self.k.dtype.name})"
