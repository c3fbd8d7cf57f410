"""Attention over a cache of keys and values that grows in place, in one piece for each sample or in pages."""

from __future__ import annotations

import dataclasses
import itertools
import math
import struct
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UnsupportedError
from ..registry import Request
from .checks import integer
from .dtypes import is_float
from .extras import Extras, Options, prepare
from .flash import MAX_DIM, attend, check_scale, to_device
from .launch import FLOAT32, check_float, check_precision, fits_binding, launch, program_of
from .option_checks import INT32, integers
from .tensor import Storage, Tensor
from .widen import lacks_sixteen_bits

if TYPE_CHECKING:
    from .backend import Compute

NAME = "flash_attention_with_kvcache"
_APPEND_PUSH = struct.Struct("=24I")
_WORDS_PUSH = struct.Struct("=13I")
#: Where samples have lengths of their own, plans are for multiples of so many keys, so that most steps find one made.
STEP_KEYS = 256
_MOST = 2**31 - 1
_HALVES, _INTERLEAVED = 1, 2  # cache-append's ROTARY


@dataclasses.dataclass
class _Call:
    """A checked call. The caches are tensors ``(B, S, Hk, D)``, or ``(pages, page size, Hk, D)`` with a ``table``."""

    caches: tuple[Tensor, Tensor]
    fresh: tuple  # the new keys and values, or ()
    lengths: np.ndarray | Tensor  # keys of each sample before the new ones
    table: np.ndarray | Tensor | None
    tables: tuple  # of cosines and sines, or ()
    interleaved: bool
    count: int  # new keys of each sample
    room: int  # keys that a sample has room for


def flash_attention_with_kvcache(
    backend: Compute,
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    cache_seqlens=None,
    page_table=None,
    *,
    rotary=None,
    rotary_interleaved=True,
    causal=False,
    window_size=None,
    softcap=0.0,
    alibi_slopes=None,
    sinks=None,
    scale=None,
    return_lse=False,
    kernel=None,
    precision="highest",
):
    """Attend to a cache of keys and values, to which new ones may be added first: one step of decoding.

    The interface of flash-attn's function of this name: arrays are ``(B, S, H, D)``, and query i of a sample with n
    keys, new ones included, stands at key n - Sq + i. For few queries the keys are split as the device needs.

    Parameters
    ----------
    q : numpy.ndarray or grilly.Tensor
        ``(B, Sq, H, D)``; float32, float16 or bfloat16.
    k_cache, v_cache : numpy.ndarray or grilly.Tensor
        ``(B, S, Hk, D)`` and ``(B, S, Hk, Dv)`` with Hk a divisor of H; with ``page_table``
        ``(num_pages, page_size, Hk, D)`` and ``(num_pages, page_size, Hk, Dv)``. New keys and values are written into
        them: on the device into Tensors, which may be views; NumPy arrays travel to the device and back whole, so keep
        caches in Tensors. What lies past a sample's length is not read.
    k, v : numpy.ndarray or grilly.Tensor, optional
        ``(B, Sn, Hk, D)`` and ``(B, Sn, Hk, Dv)``: new keys and values, put at ``cache_seqlens`` of each sample.
    cache_seqlens : int, numpy.ndarray or grilly.Tensor, optional
        Keys in the cache before the new ones, ``(B,)`` integers or one for all samples. None: the cache is full. A
        Tensor must be int32. The host does not read it, so it is not checked: a length is taken as the nearest from 0
        to S - Sn.
        The caller adds Sn to the lengths for the next step.
    page_table : numpy.ndarray or grilly.Tensor, optional
        ``(B, max_pages)`` integers: the page of each ``page_size`` keys of a sample. S is then max_pages * page_size.
        Entries past a sample's keys may be anything. A Tensor must be int32; an entry out of range in it is taken as
        the nearest page. Samples may share pages, but not those that new keys are written to.
    rotary : pair of arrays, optional
        Cosines and sines, ``(positions, P)`` with 2 P <= D (flash-attn's rotary_cos and rotary_sin): pair p of a new
        key at position t is turned by the angle of row t, and so is a query: with ``causal`` or a window at position
        cache_seqlens + i, else at cache_seqlens (Su et al. 2021, arXiv:2104.09864). Needs k and v. Computed in
        float32, rounded to the arrays' dtype. Tensors save sending the tables at every call.
    rotary_interleaved : bool
        Whether pairs are elements 2 p and 2 p + 1 (default, as in flash-attn, unlike ``rope``), and not p and p + P.
    causal : bool
        Query i sees key j when ``j <= i + n - Sq``.
    window_size : (left, right), optional
        Query i sees keys from ``i + n - Sq - left`` to ``i + n - Sq + right``; None or -1 sets no bound.
    softcap : float
        Above 0: a scaled score s becomes ``softcap * tanh(s / softcap)``.
    alibi_slopes : array, optional
        ``(H,)`` or ``(B, H)`` float32: adds ``-slope * |i + n - Sq - j|``.
    sinks : array, optional
        ``(H,)`` float32: ``exp(sinks[h])`` is added to the sum of each row's weights.
    scale : float, optional
        ``1 / sqrt(D)`` by default.
    return_lse : bool
        Also return the log-sum-exp of each row's scores.
    kernel, precision : str
        As for ``flash_attention2``.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        ``(B, Sq, H, Dv)``, of q's dtype; a Tensor when any argument was one, and then without waiting. Rows with
        nothing to attend to are zeros. With ``return_lse`` a pair, the second float32 ``(B, H, Sq)``.

    Raises
    ------
    TypeError, ValueError
        For arrays and numbers that do not go together, new keys that do not fit and pages that are not there; before
        any device work, and with the caches as they were.
    UnsupportedError
        For 16-bit caches on a device without 16-bit storage, and paged caches beyond one binding of the device.
    """
    backend.check_open()
    high = check_precision(NAME, precision)
    given = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "k": k, "v": v}
    call, shape = _checked(backend, given, cache_seqlens, page_table, rotary, rotary_interleaved)
    batch, queries, heads, dim = shape
    scale = check_scale(NAME, scale, dim)
    held = call.lengths
    keys = call.room if isinstance(held, Tensor) else int(held.max(initial=0)) + call.count
    own = not isinstance(held, Tensor) and call.table is None and (held == held[:1]).all()  # all samples alike
    if not own:
        keys = min(-(-keys // STEP_KEYS) * STEP_KEYS, call.room)
    options = Options(window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks)
    extras = prepare(NAME, options, (batch, heads, queries, keys), bool(causal))
    advance = bool(causal) or window_size is not None and any(bound not in (None, -1) for bound in window_size)
    if not own:
        if extras is None:
            extras = Extras(heads)
            extras.causal = bool(causal)
        _lay(backend, extras, call, queries)
    caches = tuple(backend.tensor(np.ascontiguousarray(c)) if not isinstance(c, Tensor) else c for c in call.caches)
    call = dataclasses.replace(call, caches=caches, fresh=tuple(to_device(backend, a) for a in call.fresh))
    q_tensor = to_device(backend, q)
    turned = q_tensor
    if call.tables:
        call = dataclasses.replace(call, tables=tuple(_table(backend, t) for t in call.tables))
        turned = backend.empty(shape, q_tensor.dtype)

    def append(words: Storage | None) -> None:
        for cache, rows, tables in zip(caches, call.fresh, (call.tables, ()), strict=bool(call.fresh)):
            _append(backend, call, rows, cache, tables, words, extras, True)
        if call.tables:
            _append(backend, call, q_tensor, turned, call.tables, words, extras, advance)

    if own:
        append(None)
    else:
        extras.before.append(append)
        if 0 in (queries, heads, keys):
            extras.storage(backend, [])
    views = [turned.transpose(0, 2, 1, 3), *(_keys_view(c, call, batch, keys) for c in caches)]
    o, lse = attend(backend, *views, None, bool(causal), scale, return_lse, kernel, high, extras=extras)
    o = o.transpose(0, 2, 1, 3)
    for array, cache in zip((k_cache, v_cache), caches, strict=True):
        if call.fresh and not isinstance(array, Tensor):
            array[...] = cache.numpy()
    results = [o] if lse is None else [o, lse]
    arrays = (*given.values(), cache_seqlens, page_table, *(rotary or ()), alibi_slopes, sinks)
    if any(isinstance(array, Tensor) for array in arrays):
        backend.runtime.flush()
    else:
        results = [result.numpy() for result in results]
    return results[0] if lse is None else tuple(results)


# -- checks ----------------------------------------------------------------------------------------------------------


def _checked(backend: Compute, given: dict, lengths, table, rotary, interleaved) -> tuple[_Call, tuple[int, ...]]:
    q, k_cache, v_cache, k, v = given.values()
    if (k is None) != (v is None):
        raise ValueError(f"{NAME}: one of k and v is given; give both or neither")
    arrays = {name: array for name, array in given.items() if array is not None}
    dtype = check_float(NAME, **arrays)
    for name, array in arrays.items():
        if len(array.shape) != 4:
            raise ValueError(f"{NAME}: {name} has shape {tuple(array.shape)}; expected four axes, (B, S, H, D)")
    for name, array in (*arrays.items(), ("cache_seqlens", lengths), ("page_table", table)):
        if isinstance(array, Tensor) and array._storage.backend.runtime is not backend.runtime:
            raise ValueError(f"{NAME}: {name} belongs to another backend; move it with backend.tensor(...)")
    if dtype != FLOAT32 and lacks_sixteen_bits(backend):
        raise UnsupportedError(f"{NAME}: {dtype} caches need 16-bit storage, which the device lacks; use float32")
    batch, queries, heads, dim = q.shape
    blocks, size, kv_heads, k_dim = k_cache.shape
    if k_dim != dim:
        raise ValueError(f"{NAME}: k_cache has head dimension {k_dim} and q has {dim}; they must be equal")
    if tuple(v_cache.shape[:3]) != (blocks, size, kv_heads):
        raise ValueError(
            f"{NAME}: v_cache has shape {tuple(v_cache.shape)} and k_cache {tuple(k_cache.shape)}; "
            "all but the last axis must be equal"
        )
    if kv_heads == 0 and heads or kv_heads and heads % kv_heads:
        raise ValueError(f"{NAME}: k_cache has {kv_heads} heads and q has {heads}; q's must be a multiple of k_cache's")
    value_dim = v_cache.shape[3]
    for name, width in (("q and k_cache", dim), ("v_cache", value_dim)):
        if not 1 <= width <= MAX_DIM:
            raise ValueError(f"{NAME}: the head dimension of {name} is {width}; expected 1 to {MAX_DIM}")
    if table is None and blocks != batch:
        raise ValueError(f"{NAME}: k_cache has batch {blocks} and q has {batch}; they must be equal")
    count = 0
    if k is not None:
        count = k.shape[1]
        for name, array, width in (("k", k, dim), ("v", v, value_dim)):
            if tuple(array.shape) != (batch, count, kv_heads, width):
                raise ValueError(
                    f"{NAME}: {name} has shape {tuple(array.shape)}; expected {(batch, count, kv_heads, width)}, "
                    "as q and the caches have it"
                )
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        _check_cache(backend, name, cache, k is not None, table is not None)
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
    call = _Call((k_cache, v_cache), fresh, lengths, table, tables, bool(interleaved), count, room)
    return call, (batch, queries, heads, dim)


def _check_cache(backend: Compute, name: str, cache, written: bool, paged: bool) -> None:
    if isinstance(cache, Tensor):
        if cache.shape[3] > 1 and cache._steps[3] != 1:
            raise ValueError(f"{NAME}: the last axis of {name} is not contiguous; make the cache so")
        if written and any(step == 0 and extent > 1 for step, extent in zip(cache._steps, cache.shape, strict=True)):
            raise ValueError(f"{NAME}: {name} is a broadcast view, which cannot be written; pass a copy of it")
        large = cache._storage.nbytes > backend.device.limits["storage_range"]
    else:
        if written and not cache.flags.writeable:
            raise ValueError(f"{NAME}: {name} is a read-only array, and new keys are to be written to it; pass a copy")
        large = cache.nbytes > backend.device.limits["storage_range"]
    if large and paged:
        raise UnsupportedError(
            f"{NAME}: {name} is larger than one binding of the device, "
            f"{backend.device.limits['storage_range']:,} bytes; keep the pages in several caches"
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
    """The table, entries that no sample's keys lie in set to 0."""
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
        raise TypeError(f"{NAME}: rotary is a {type(rotary).__name__}; expected (cosines, sines)")
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


# -- device work -----------------------------------------------------------------------------------------------------


def _table(backend: Compute, table) -> Tensor:
    if not isinstance(table, Tensor):
        return backend.tensor(np.ascontiguousarray(table, dtype=np.float32))
    return to_device(backend, table.astype(FLOAT32))


def _lay(backend: Compute, extras: Extras, call: _Call, queries: int) -> None:
    """Put the samples' lengths and the table among the words that kernels read."""
    lengths, table = call.lengths, call.table
    batch = lengths.shape[0]
    extras.offer("lengths", *(("paged",) if table is not None else ()))
    on_device = any(isinstance(array, Tensor) for array in (lengths, table))
    samples = np.zeros((batch, 4), np.int32)
    if not on_device:
        samples[:, 1], samples[:, 3] = queries, lengths + call.count
    samples_at = extras.put(samples)
    extras.set(samples=samples_at)
    pages_at, columns, pages = 0, 1, 1
    if table is not None:
        columns, pages = table.shape[1], call.caches[0].shape[0]
        pages_at = extras.put(np.zeros(table.shape, np.int32) if on_device else table)
        extras.page_steps = tuple(_steps(cache)[0] for cache in call.caches)
        extras.set(
            pages=pages_at, pages_batch=columns, page_keys=call.caches[0].shape[1],
            k_page=extras.page_steps[0], v_page=extras.page_steps[1],
        )  # fmt: skip
    extras.places = samples_at, pages_at
    if not on_device or batch == 0:
        return
    lengths = lengths if isinstance(lengths, Tensor) else backend.tensor(lengths.astype(np.int32))
    table = table if isinstance(table, Tensor) or table is None else backend.tensor(table)

    def write(storage: Storage) -> None:
        choice = backend.registry.resolve(Request("cache-words", "float32"))
        program = program_of(backend, choice, {"PAGED": int(table is not None)})
        steps = (0, 0) if table is None else table._steps
        words = Tensor(storage, (storage.nbytes // 4,), INT32)

        def push(offsets):
            return _WORDS_PUSH.pack(
                offsets[0], lengths._steps[0], offsets[1], *steps, batch, columns, pages,
                queries, call.count, call.room, samples_at, pages_at,
            )  # fmt: skip

        groups = (-(-batch * columns // choice.threads), 1, 1)
        launch(backend, program, (lengths, table, words), push, groups)

    extras.write = write


def _steps(cache) -> tuple[int, ...]:
    """A cache's strides in elements, as it is or will be on the device."""
    if isinstance(cache, Tensor):
        return cache._steps
    return tuple(math.prod(cache.shape[axis + 1 :]) for axis in range(4))


def _keys_view(cache: Tensor, call: _Call, batch: int, keys: int) -> Tensor:
    """The cache as ``(B, Hk, keys, D)``; of a paged one only the shape and the strides within a page are true."""
    if call.table is None:
        return cache[:, :keys].transpose(0, 2, 1, 3)
    _, row, head, last = cache._steps
    shape = (batch, cache.shape[2], keys, cache.shape[3])
    return Tensor(cache._storage, shape, cache.dtype, (0, head, row, last), cache._offset)


def _append(backend, call: _Call, rows: Tensor, target: Tensor, tables, words, extras, advance: bool) -> None:
    """Record the copy of ``rows`` (B, S, H, D) to a cache, or to an array like them, turned by ``tables``."""
    if rows.size == 0:
        return
    batch, count, heads, width = rows.shape
    into_cache = any(target is cache for cache in call.caches)
    paged = into_cache and call.table is not None
    own = words is None
    rotary = 0 if not tables else _INTERLEAVED if call.interleaved else _HALVES
    choice = backend.registry.resolve(Request("cache-append", rows.dtype.name))
    constants = {"ROTARY": rotary, "LENGTHS": int(not own), "PAGED": int(paged), "CACHE": int(into_cache)}
    program = program_of(backend, choice, constants)
    pairs = tables[0].shape[1] if tables else 0
    words = None if own else Tensor(words, (words.nbytes // 4,), INT32)
    samples_at, pages_at = (0, 0) if own else extras.places
    columns = call.table.shape[1] if paged else 0
    cos, sin = tables or (None, None)
    cos_row, sin_row = (0 if table is None else table._steps[0] for table in (cos, sin))
    tile, (_, most_y, most_z) = choice.tile, backend.device.limits["groups"]
    fits = fits_binding(backend, rows) and (paged or fits_binding(backend, target))
    many = max(min(most_z // heads, batch), 1) if fits else 1
    most_rows = most_y * tile["rows"]
    for first, row in itertools.product(range(0, batch, many), range(0, count, most_rows)):
        x = rows[first : first + many, row : row + most_rows]
        y = target if paged else target[first : first + len(x)]
        if not into_cache:
            y = y[:, row : row + most_rows]
        moved = row if advance else 0

        def push(offsets, x=x, y=y, first=first, moved=moved):
            page, y_row, y_head, _ = y._steps
            place = (0, y_head, y_row, page, y.shape[1]) if paged else (page, y_head, y_row, 0, 1)
            start = int(call.lengths[0]) + moved if own else 0
            return _APPEND_PUSH.pack(
                offsets[0], x._steps[0], x._steps[2], x._steps[1], offsets[4], *place,
                samples_at + 4 * first, pages_at + columns * first, columns,
                offsets[2], cos_row, offsets[3], sin_row, start, call.count - moved, int(advance),
                x.shape[1], pairs, width, heads,
            )  # fmt: skip

        groups = (-(-(width - pairs) // tile["items"]), -(-x.shape[1] // tile["rows"]), heads * len(x))
        launch(backend, program, (x, words, cos, sin, y), push, groups)
