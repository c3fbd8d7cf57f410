"""KVCache: the keys and values of earlier tokens, for decoding token by token."""

from __future__ import annotations

import operator
from typing import Literal, SupportsIndex, overload

import numpy as np
from numpy.typing import DTypeLike

from .. import functional as F
from ..compute.attention.keywords import CacheKeywords
from ..compute.backend import Compute, default_backend
from ..compute.device.arrays import FloatArray, NDArray, Unpack
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
        Tokens that each sample holds, int32 ``(batch,)``. It may be changed, say to give samples lengths of their own.

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
        self.lengths: NDArray[np.int32] = np.zeros(sizes[0], np.int32)

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
            As that function, say when the tokens do not fit; the cache is then as it was.
        """
        options.setdefault("causal", True)
        result = F.flash_attention_with_kvcache(
            q, self.k, self.v, k, v, self.lengths, return_lse=return_lse, **options
        )
        self.lengths += k.shape[1]
        return result

    def reset(self) -> None:
        """Forget all tokens."""
        self.lengths[:] = 0

    def truncate(self, length: SupportsIndex) -> None:
        """Forget what samples hold past ``length`` tokens, say rejected drafts. Raises ValueError below 0."""
        length = operator.index(length)
        if length < 0:
            raise ValueError(f"KVCache.truncate: length is {length}; expected 0 or more")
        np.minimum(self.lengths, length, out=self.lengths)

    def __repr__(self) -> str:
        batch, room, heads, dim = self.k.shape
        return f"KVCache(batch={batch}, max_len={room}, num_heads={heads}, head_dim={dim}, dtype={self.k.dtype.name})"
