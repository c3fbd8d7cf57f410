"""KVCache: the keys and values of earlier tokens, for decoding token by token."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeAlias, overload

import numpy as np
from numpy.typing import DTypeLike

from ..compute.attention import foreign
from ..compute.attention.cache_lengths import Lengths
from ..compute.attention.cache_types import QuantizedCache, array_of, cache_dtype, check_widths, new_cache, parts_of
from ..compute.attention.checks import MAX_DIM, MAX_VALUE_DIM
from ..compute.attention.keywords import StepKeywords
from ..compute.attention.kvcache import fill_quantized, flash_attention_with_kvcache
from ..compute.backend import Compute, default_backend, device_of
from ..compute.device.arguments import check_float
from ..compute.device.arrays import FloatArray, FloatsLike, IntegersLike, NDArray, Unpack
from ..compute.device.numbers import integer
from ..compute.device.tensor import Tensor
from ..errors import CaptureError
from .rope import RoPE
from .tapes import KeepsNothing

Rotary: TypeAlias = RoPE | tuple[FloatsLike, FloatsLike] | None
#: What `KVCache.attend` takes beside its own arguments, and other libraries' words for what it does by itself.
_OPTIONS = frozenset(StepKeywords.__annotations__)
_KEYWORDS = {
    **foreign.CACHE_KEYWORDS,
    **dict.fromkeys(("cache_seqlens", "seqlens_k", "cache_position"), "nothing: the cache counts, see KVCache.lengths"),
    **dict.fromkeys(("page_table", "block_table"), "nothing: F.flash_attention_with_kvcache takes caches in pages"),
    **dict.fromkeys(("attention_mask", "key_padding_mask"), "nothing: KVCache.lengths says what each sample holds"),
    **dict.fromkeys(("rotary_cos", "rotary_sin", "position_embeddings"), "rotary=(cos, sin), or rotary=nn.RoPE(...)"),
}
_MADE = {
    "max_batch_size": "batch",
    **dict.fromkeys(("max_cache_len", "max_seq_len", "max_length"), "max_len"),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), "num_heads"),
    "device": "backend",
    "config": "batch, max_len, num_heads and head_dim",
}
#: Methods of transformers' caches.
_METHODS = {
    "update": "attend(q, k, v), which adds k and v and attends to all",
    "get_seq_length": "len(cache), or cache.lengths",
    "crop": "truncate(length)",
}


class KVCache(KeepsNothing):
    """Keys and values of earlier tokens in device memory, which grow in place.

    Made by ``MultiheadAttention.make_cache``, or directly for attention of one's own. Nothing is moved when tokens are
    added, and nothing past a sample's length is read. Cross-attention has one that is filled once (``fill``).

    Parameters
    ----------
    batch, max_len : int
        Samples, and the tokens that each has room for.
    num_heads, head_dim : int
        Of keys and values: Hk, which divides the queries' heads, and D.
    value_dim : int, optional
        Elements of a value; ``head_dim`` by default.
    dtype : dtype_like
        float32, float16 or "bfloat16". Or "q8_0" or "q4_0", for queries, keys and values of any of these: 8.5 or 4.5
        bits a number, in blocks of 32 numbers of a head with one float16 scale, as llama.cpp has them. New keys and
        values are quantized as they are added, after the rotary embedding.
    backend : grilly.Compute, optional
        The device to live on; by default the default backend.

    Attributes
    ----------
    k, v : grilly.Tensor
        ``(batch, max_len, Hk, D)`` and ``(batch, max_len, Hk, Dv)``. Of "q8_0" and "q4_0" arrays with the same
        ``shape``, a ``dtype`` that is that name, and ``dequantize(dtype)``, which gives the numbers as a Tensor.
    nbytes : int
        Of keys and values on the device.
    lengths : numpy.ndarray
        Tokens that each sample holds, int32 ``(batch,)``. It may be changed, say to give samples lengths of their own
        after a prompt that was padded on the right. ``len(cache)`` is the largest of them.

    Notes
    -----
    In a function that ``backend.capture`` captures, ``attend`` finds the lengths on the device and advances them there,
    so a captured step of decoding is replayed while the cache grows. The host counts along: after each replay
    ``lengths`` is right, without waiting. Everything else here is done between replays, and the next replay goes on
    from there. One thread at a time may use a cache. ``copy.copy`` and ``copy.deepcopy`` make one with
    memory of its own and the same tokens.

    Raises
    ------
    ValueError
        For extents below 1 (``batch`` and ``max_len``: below 0), and a dtype of another name.
    UnsupportedError
        For "q8_0" or "q4_0" with heads that are no multiple of 32 elements.
    """

    if not TYPE_CHECKING:  # type checkers have the signatures of what there is

        def __new__(cls, *args, **kwargs):
            foreign.refuse("KVCache", kwargs, _MADE)
            return super().__new__(cls)

        def __getattr__(self, name):
            way = f"; use {_METHODS[name]}" if name in _METHODS else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{way}", name=name, obj=self)

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
        if sizes[3] > MAX_DIM or sizes[4] > MAX_VALUE_DIM:
            most = (MAX_DIM, MAX_VALUE_DIM)
            raise ValueError(f"KVCache: head_dim and value_dim are {sizes[3:]}; expected at most {most}")
        kind = cache_dtype("KVCache", dtype)
        check_widths("KVCache", kind, *sizes[3:])
        backend = default_backend() if backend is None else backend
        if not isinstance(backend, Compute):
            raise TypeError(f"KVCache: backend is {backend!r}; expected a grilly.Compute")
        self.k: Any = new_cache(backend, (*sizes[:3], sizes[3]), kind)
        self.v: Any = new_cache(backend, (*sizes[:3], sizes[4]), kind)
        self._lengths = Lengths(backend.opened, *sizes[:2])
        self._filled = False

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens that each sample holds, int32 ``(batch,)``: the array itself, which may be written to."""
        self._lengths.outside("KVCache.lengths")
        return self._lengths.shown()

    @lengths.setter
    def lengths(self, lengths: IntegersLike) -> None:
        self._lengths.outside("KVCache.lengths")
        self._lengths.put(self._lengths.checked("KVCache", lengths))
        self._filled = True

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
        return int(self.k.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values on the device."""
        return int(self.k.nbytes + self.v.nbytes)

    @overload
    def attend(
        self, q: FloatArray, k: FloatArray | None = ..., v: FloatArray | None = ..., *, rotary: Rotary = ...,
        rotary_interleaved: bool | None = ..., return_lse: Literal[False] = ..., **options: Unpack[StepKeywords],
    ) -> Tensor: ...  # fmt: skip
    @overload
    def attend(
        self, q: FloatArray, k: FloatArray | None = ..., v: FloatArray | None = ..., *, rotary: Rotary = ...,
        rotary_interleaved: bool | None = ..., return_lse: Literal[True], **options: Unpack[StepKeywords],
    ) -> tuple[Tensor, Tensor]: ...  # fmt: skip
    def attend(
        self, q: FloatArray, k: FloatArray | None = None, v: FloatArray | None = None, *, rotary: Rotary = None,
        rotary_interleaved: bool | None = None, return_lse: bool = False, **options: Unpack[StepKeywords],
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        """Add keys and values to every sample, and attend causally to all that it then holds.

        Without k and v nothing is added, and every query attends to all keys: cross-attention to what ``fill`` put
        there, once for every token.

        Parameters
        ----------
        q, k, v : numpy.ndarray or grilly.Tensor
            ``(B, S, H, D)``, ``(B, S, Hk, D)`` and ``(B, S, Hk, Dv)``: the next S tokens. Without k and v q has any
            number of rows.
        rotary : RoPE, or pair of arrays, optional
            The layer that turns q and k by their positions, with its pairs, its scaling and its factor. Or its cosines
            and sines, ``(max_len, P)`` each.
        rotary_interleaved : bool, optional
            With a pair of arrays: as RoPE's ``interleaved``, and False by default like that.
        **options
            Of ``grilly.functional.flash_attention_with_kvcache``: a window, sinks, ``score_mod`` and ``mask_mod``, T5's
            bias and others; also ``causal``, by default whether k and v are given.

        Returns
        -------
        grilly.Tensor
            ``(B, S, H, Dv)``; with ``return_lse`` a pair.

        Raises
        ------
        TypeError, ValueError
            As that function, say when the tokens do not fit; the cache is then as it was. In a graph it is the replay
            that raises it, before anything is submitted. Also for ``rotary_interleaved`` beside a RoPE, and outside of
            graphs for a cache that was never filled where k and v are not given.
        CaptureError
            In a captured function, for a RoPE whose angles depend on the sequence's length ("dynamic", "longrope") and
            a cache that goes beyond the length where they begin to.
        """
        if not options.keys() <= _OPTIONS:
            raise foreign.unknown("KVCache.attend", options.keys() - _OPTIONS, _KEYWORDS)
        if k is None and not self._filled and not self.k.backend.runtime.capturing and not self._lengths.now().any():
            raise ValueError(
                "KVCache.attend: the cache was never filled, and there are no k and v to add; fill(k, v) puts an "
                "encoder's there (fill_cache of a layer)"
            )
        options.setdefault("causal", k is not None)
        pair: tuple[FloatsLike, FloatsLike] | None
        if isinstance(rotary, RoPE):
            if rotary_interleaved is not None:
                raise ValueError("KVCache.attend: rotary_interleaved is given beside a RoPE, which has it: interleaved")
            shape = getattr(k, "shape", ())
            pair, interleaved = self._tables(rotary, shape[1] if len(shape) > 1 else 0), rotary.interleaved
        else:
            pair, interleaved = rotary, bool(rotary_interleaved)
        others = (options.get(name) for name in ("alibi_slopes", "t5_table", "sinks"))
        tables = pair if isinstance(pair, (tuple, list)) else ()
        device = device_of("KVCache.attend", q, array_of(self.k), k, v, *tables, *others)
        found = flash_attention_with_kvcache(
            device, q, self.k, self.v, k, v, self._lengths, rotary=pair, rotary_interleaved=interleaved,
            return_lse=return_lse, **options,
        )  # fmt: skip
        self._filled |= k is not None
        return found

    def _tables(self, rope: RoPE, count: int) -> tuple[Tensor, Tensor]:
        """The cosines and sines for so many next tokens."""
        backend, longest = self.k.backend, rope.longest()
        if longest is None or self.max_len <= longest:
            return rope.tables(backend, self.max_len)
        if backend.runtime.capturing:
            raise CaptureError(
                f"KVCache.attend: angles of {rope} depend on the length past {longest} tokens, and a graph has one "
                f"table of them; capture with a cache of at most {longest} tokens, or call it outside of graphs"
            )
        return rope.tables(backend, self.max_len, int(self._lengths.now().max(initial=0)) + count)

    def fill(self, k: FloatArray, v: FloatArray, lengths: IntegersLike | None = None) -> None:
        """Hold these keys and values and nothing else: an encoder's, for cross-attention by ``attend(q)``.

        Between replays, not in a captured function (CaptureError); a captured ``attend(q)`` finds what the last one put
        here.

        Parameters
        ----------
        k, v : numpy.ndarray or grilly.Tensor
            ``(B, S, Hk, D)`` and ``(B, S, Hk, Dv)`` with S up to ``max_len``, of the cache's dtype.
        lengths : array of int, optional
            ``(B,)``: of how many keys each sample consists, where they are padded on the right; S by default.

        Raises
        ------
        TypeError, ValueError
            For another dtype or shape, or lengths outside of 0 to S; the cache is then as it was.
        """
        self._lengths.outside("KVCache.fill")
        batch, room = self.k.shape[:2]
        dtype, quantized = check_float("KVCache.fill", k=k, v=v), isinstance(self.k, QuantizedCache)
        if not quantized and dtype != self.k.dtype:
            raise TypeError(f"KVCache.fill: k and v are {dtype} and the cache {self.k.dtype}; cast one of them")
        for name, array, held in (("k", k, self.k), ("v", v, self.v)):
            if len(array.shape) != 4 or array.shape[:2] != (batch, k.shape[1]) or array.shape[2:] != held.shape[2:]:
                wanted = f"({batch}, S, {held.shape[2]}, {held.shape[3]})"
                raise ValueError(f"KVCache.fill: {name} has shape {tuple(array.shape)}; expected {wanted}")
        count = k.shape[1]
        if count > room:
            raise ValueError(f"KVCache.fill: k has {count} rows; there is room for {room}")
        given = self._lengths.checked("KVCache", count if lengths is None else lengths, count)
        backend = self.k.backend
        k, v = backend.tensor(k), backend.tensor(v)
        if quantized:
            fill_quantized(backend.opened, self.k, self.v, k, v)
        else:
            for array, held in ((k, self.k), (v, self.v)):
                held[:, :count] = array
        backend.runtime.flush()
        self._lengths.put(given)
        self._filled = True

    def positions(self, count: SupportsIndex = 1) -> Tensor:
        """Where the next ``count`` tokens will stand: int32 ``(batch, count)``, on the device.

        For embeddings of positions and ``grilly.functional.rope``. In a captured function they are those of each
        replay. Raises ValueError for a count below 1.
        """
        count = integer("KVCache.positions", "count", count)
        if count < 1:
            raise ValueError(f"KVCache.positions: count is {count}; expected 1 or more")
        backend = self.k.backend
        first = self._lengths.tensor() if backend.runtime.capturing else backend.tensor(self._lengths.now())
        return first.reshape(-1, 1) + np.arange(count, dtype=np.int32)

    def reset(self) -> None:
        """Forget all tokens. Between replays, not in a captured function (CaptureError)."""
        self._lengths.outside("KVCache.reset")
        self.truncate(0)

    def truncate(self, length: SupportsIndex) -> None:
        """Forget what samples hold past ``length`` tokens, say rejected drafts.

        Between replays, not in a captured function (CaptureError). Raises ValueError below 0.
        """
        self._lengths.outside("KVCache.truncate")
        length = integer("KVCache.truncate", "length", length)
        if length < 0:
            raise ValueError(f"KVCache.truncate: length is {length}; expected 0 or more")
        self._lengths.cut(min(length, self.max_len))

    def reorder(self, index: IntegersLike) -> None:
        """Let sample b hold what sample ``index[b]`` held, as beams do that go on from others.

        ``index`` is ``(batch,)``, integers from 0 to ``batch - 1``, or one of them for all. Between replays, not in a
        captured function (CaptureError). Takes as much memory as the tokens held until it is done. Raises ValueError.
        """
        self._lengths.outside("KVCache.reorder")
        batch, given = self.k.shape[0], np.asarray(index)
        if given.dtype.kind not in "iu" or given.shape not in ((), (batch,)):
            raise ValueError(f"KVCache.reorder: index is {given.dtype} {given.shape}; expected integers ({batch},)")
        if given.size and not 0 <= int(given.min()) <= int(given.max()) < batch:
            ends = f"{given.min()} to {given.max()}"
            raise ValueError(f"KVCache.reorder: index goes from {ends}; expected 0 to {batch - 1}")
        index = np.broadcast_to(given, (batch,))
        count = len(self)
        for held in (*parts_of(self.k), *parts_of(self.v)):
            held[:, :count] = held[:, :count][index]
        self.k.backend.runtime.flush()
        self._lengths.put(self._lengths.now()[index])

    def __copy__(self) -> KVCache:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, Any]) -> KVCache:
        self._lengths.outside("copying a KVCache")
        new = memo[id(self)] = object.__new__(KVCache)
        new.k, new.v = copy.deepcopy(self.k, memo), copy.deepcopy(self.v, memo)
        new._lengths = Lengths(self.k.backend.opened, self.k.shape[0], self.max_len)
        new._lengths.put(self._lengths.now())
        new._filled = self._filled
        return new

    def __reduce__(self) -> Any:
        raise TypeError(
            "a KVCache is memory of an open device and cannot be pickled; pickle cache.k.numpy(), cache.v.numpy() and "
            "cache.lengths, and fill() another with them"
        )

    def __repr__(self) -> str:
        batch, room, heads, dim = self.k.shape
        dtype = getattr(self.k.dtype, "name", self.k.dtype)
        return f"KVCache(batch={batch}, max_len={room}, num_heads={heads}, head_dim={dim}, dtype={dtype})"
