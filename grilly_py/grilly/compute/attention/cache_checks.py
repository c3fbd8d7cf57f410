"""Checks of the arguments of attention over a cache, before any device work."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ...errors import UnsupportedError
from ..device.arguments import FLOAT32, check_float
from ..device.device import Device
from ..device.dtypes import is_float
from ..device.numbers import integer
from ..device.tensor import Tensor
from .cache_types import QuantizedCache, array_of
from .checks import check_dims, check_grouped
from .option_checks import integers

NAME = "flash_attention_with_kvcache"
_MOST = 2**31 - 1


@dataclasses.dataclass
class CacheCall:
    """A checked call. The caches are ``(B, S, Hk, D)``, or ``(pages, page size, Hk, D)`` with a ``table``.

    Attributes
    ----------
    q : array
        (B, Sq, H, D).
    caches : tuple of array
        Of keys and of values: arrays, or each a QuantizedCache.
    fresh : tuple of array
        The new keys and values, or ().
    lengths : numpy.ndarray or Tensor
        Keys of each sample before the new ones.
    table : numpy.ndarray, Tensor or None
        Pages of each sample.
    tables : tuple of array
        Of cosines and sines, or ().
    interleaved : bool
        How these pair elements.
    count : int
        New keys of each sample.
    room : int
        Keys that a sample has room for.
    """

    q: Any
    caches: tuple
    fresh: tuple
    lengths: np.ndarray | Tensor
    table: np.ndarray | Tensor | None
    tables: tuple
    interleaved: bool
    count: int
    room: int


def checked_call(device: Device, given: dict, lengths, table, rotary, interleaved: bool) -> CacheCall:
    """Check the arguments of a call; ``given`` has q, the caches, and new keys and values, by name.

    Raises TypeError, ValueError or UnsupportedError, and changes nothing.
    """
    q, k_cache, v_cache, k, v = given.values()
    _check_arrays(device, given, lengths, table)
    _check_shapes(q, k_cache, v_cache, table is not None)
    batch, dim = q.shape[0], q.shape[3]
    blocks, size = k_cache.shape[:2]
    count = 0 if k is None else _checked_count(k, v, (batch, *k_cache.shape[2:]), v_cache.shape[3])
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        _check_cache(device, name, cache, k is not None, table is not None)
    room = size
    if table is not None:
        table = integers(NAME, "page_table", table)
        if len(table.shape) != 2 or table.shape[0] != batch:
            raise ValueError(f"{NAME}: page_table has shape {tuple(table.shape)}; expected ({batch}, max_pages)")
        room = table.shape[1] * size
        if room > _MOST:
            raise ValueError(f"{NAME}: a row of page_table stands for {room:,} keys; expected fewer than 2**31")
    lengths = _checked_lengths(lengths, batch, count, room, k is not None)
    if table is not None:
        table = _checked_table(table, lengths, count, blocks, size)
    positions = room if isinstance(lengths, Tensor) else int(lengths.max(initial=0)) + count
    tables = _checked_rotary(rotary, dim, k is not None, positions)
    fresh = () if k is None else (k, v)
    return CacheCall(q, (k_cache, v_cache), fresh, lengths, table, tables, interleaved, count, room)


def _check_arrays(device: Device, given: dict, lengths, table) -> None:
    """Check dtypes, numbers of axes and backends."""
    if (given["k"] is None) != (given["v"] is None):
        raise ValueError(f"{NAME}: one of k and v is given; give both or neither")
    arrays = {name: array for name, array in given.items() if array is not None or name not in ("k", "v")}
    caches = (given["k_cache"], given["v_cache"])
    if any(isinstance(cache, QuantizedCache) for cache in caches):
        if not all(isinstance(cache, QuantizedCache) and cache.dtype == caches[0].dtype for cache in caches):
            raise TypeError(f"{NAME}: one of k_cache and v_cache is quantized; both are to be of one type")
        if table is not None:
            raise UnsupportedError(f"{NAME}: page_table is given, and caches of {caches[0].dtype} have no pages")
        dtype = check_float(NAME, **{name: array for name, array in arrays.items() if not name.endswith("_cache")})
    else:
        dtype = check_float(NAME, **arrays)
    for name, array in arrays.items():
        if len(array.shape) != 4:
            raise ValueError(f"{NAME}: {name} has shape {tuple(array.shape)}; expected four axes, (B, S, H, D)")
    for name, array in (*arrays.items(), ("cache_seqlens", lengths), ("page_table", table)):
        array = array_of(array)
        if isinstance(array, Tensor) and array._storage.device is not device.home:
            raise ValueError(f"{NAME}: {name} belongs to another backend; move it with backend.tensor(...)")
    if dtype != FLOAT32 and not device.sixteen_bits:
        raise UnsupportedError(f"{NAME}: {dtype} caches need 16-bit storage, which the device lacks; use float32")


def _check_shapes(q, k_cache, v_cache, paged: bool) -> None:
    """Check the shapes of q and of the caches against each other."""
    batch, queries, heads, dim = q.shape
    blocks, size, kv_heads, k_dim = k_cache.shape
    if tuple(v_cache.shape[:3]) != (blocks, size, kv_heads):
        raise ValueError(
            f"{NAME}: v_cache has shape {tuple(v_cache.shape)} and k_cache {tuple(k_cache.shape)}; "
            "all but the last axis must be equal"
        )
    check_dims(NAME, ("q", "k_cache", "v_cache"), dim, k_dim, v_cache.shape[3])
    # Heads that do not go together, and would if the middle axes of q, of the caches or of both changed places.
    whole = 0 if paged else size
    others = ((queries, kv_heads), (heads, whole), (queries, whole))
    if kv_heads and heads % kv_heads and any(few and not many % few for many, few in others):
        raise ValueError(
            f"{NAME}: q has shape {tuple(q.shape)} and k_cache {kv_heads} heads; arrays are (B, S, H, D) here: turn "
            "(B, H, S, D) by swapaxes(1, 2)"
        )
    check_grouped(NAME, "k_cache", kv_heads, heads)
    if not paged and blocks != batch:
        raise ValueError(f"{NAME}: k_cache has batch {blocks} and q has {batch}; they must be equal")


def _checked_count(k, v, like: tuple[int, int, int], value_dim: int) -> int:
    """The number of new keys. ``like``: the batch, key heads and head dimension of the caches."""
    batch, kv_heads, dim = like
    count = k.shape[1]
    for name, array, width in (("k", k, dim), ("v", v, value_dim)):
        if tuple(array.shape) != (batch, count, kv_heads, width):
            raise ValueError(
                f"{NAME}: {name} has shape {tuple(array.shape)}; expected {(batch, count, kv_heads, width)}, "
                "as q and the caches have it"
            )
    return count


def _check_cache(device: Device, name: str, cache, written: bool, paged: bool) -> None:
    if isinstance(cache, QuantizedCache):
        return
    if isinstance(cache, Tensor):
        if cache.shape[3] > 1 and cache._strides[3] != 1:
            raise ValueError(f"{NAME}: the last axis of {name} is not contiguous; make the cache so")
        if written and any(step == 0 and extent > 1 for step, extent in zip(cache._strides, cache.shape, strict=True)):
            raise ValueError(f"{NAME}: {name} is a broadcast view, which cannot be written; pass a copy of it")
        large = cache._storage.nbytes > device.facts.storage_range
    else:
        if written and not cache.flags.writeable:
            raise ValueError(f"{NAME}: {name} is a read-only array, and new keys are to be written to it; pass a copy")
        large = cache.nbytes > device.facts.storage_range
    if large and paged:
        raise UnsupportedError(
            f"{NAME}: {name} is larger than one binding of the device, "
            f"{device.facts.storage_range:,} bytes; keep the pages in several caches"
        )


def _checked_lengths(lengths, batch: int, count: int, room: int, appends: bool):
    """Keys of each sample before the new ones, int64 on the host or an int32 Tensor."""
    if lengths is None:
        if appends:
            raise ValueError(f"{NAME}: k and v are given without cache_seqlens; say how many keys the cache holds")
        return np.full(batch, room, np.int64)
    if not isinstance(lengths, Tensor) and np.ndim(lengths) == 0:
        every = integer(NAME, "cache_seqlens", lengths)
        if abs(every) > _MOST:
            raise ValueError(f"{NAME}: cache_seqlens is {every}; expected 0 to {room - count}")
        lengths = np.full(batch, every, np.int64)
    lengths = integers(NAME, "cache_seqlens", lengths)
    if tuple(lengths.shape) != (batch,):
        raise ValueError(f"{NAME}: cache_seqlens has shape {tuple(lengths.shape)}; expected an integer or ({batch},)")
    if count > room:
        raise ValueError(f"{NAME}: {count} new keys do not fit in a cache of {room}")
    if isinstance(lengths, Tensor):
        return lengths
    if lengths.size and not 0 <= int(lengths.min()) <= int(lengths.max()) <= room - count:
        raise ValueError(
            f"{NAME}: cache_seqlens goes from {lengths.min()} to {lengths.max()}; expected 0 to {room - count}, as a "
            f"sample has room for {room} keys and {count} are new"
        )
    return lengths.astype(np.int64)


def _checked_table(table, lengths, count: int, pages: int, size: int):
    """The table, with 0 for pages without keys of a sample."""
    if pages == 0 or size == 0:
        raise ValueError(f"{NAME}: k_cache has {pages} pages of {size} keys; expected at least one of each")
    if isinstance(table, Tensor):
        return table
    if isinstance(lengths, Tensor):
        used = np.zeros(table.shape, bool)  # not known here
    else:
        used = np.arange(table.shape[1]) < -(-(lengths + count) // size)[:, None]
        wrong = used & ((table < 0) | (table >= pages))
        if wrong.any():
            sample, column = np.argwhere(wrong)[0]
            raise ValueError(
                f"{NAME}: page_table[{sample}, {column}] is {table[sample, column]}; expected 0 to {pages - 1}"
            )
        return np.where(used, table, 0).astype(np.int32)
    return table.clip(0, pages - 1).astype(np.int32)


def _checked_rotary(rotary, dim: int, appends: bool, positions: int) -> tuple:
    if rotary is None:
        return ()
    if not appends:
        raise ValueError(f"{NAME}: rotary is given without k and v; turn q with rope(...) instead")
    if not isinstance(rotary, (tuple, list)) or len(rotary) != 2:
        layer = hasattr(rotary, "tables")
        way = "; nn.KVCache.attend takes the layer, and its tables(backend, rows) makes them" if layer else ""
        raise TypeError(f"{NAME}: rotary is a {type(rotary).__name__}; expected (cosines, sines){way}")
    cos, sin = (table if isinstance(table, Tensor) else np.asarray(table) for table in rotary)
    for name, table in (("cosines", cos), ("sines", sin)):
        if not (is_float(table.dtype) or table.dtype == np.float64 and not isinstance(table, Tensor)):
            raise TypeError(f"{NAME}: the {name} of rotary are {table.dtype}; expected float32, float16 or bfloat16")
    shape = tuple(cos.shape)
    if len(shape) != 2 or tuple(sin.shape) != shape or not 1 <= shape[1] <= dim // 2:
        raise ValueError(
            f"{NAME}: the tables of rotary have shapes {shape} and {tuple(sin.shape)}; expected both (positions, P) "
            f"with P from 1 to {dim // 2}"
        )
    if shape[0] < positions:
        raise ValueError(f"{NAME}: the tables of rotary have {shape[0]} positions; expected at least {positions}")
    return cos, sin
