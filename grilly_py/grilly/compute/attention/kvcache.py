"""Attention over a cache of keys and values that grows in place, in one piece for each sample or in pages."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from ...registry.shared import value
from ..device.arguments import FLOAT32, check_precision, to_device
from ..device.caches import Kept
from ..device.device import Device
from ..device.record import Ready, key_of, ready_for, run
from ..device.tensor import Storage, Tensor
from .cache_checks import NAME, CacheCall, checked_call
from .cache_lengths import Lengths
from .cache_plan import Rows, append_plan, words_plan
from .call import NOTHING, Terms
from .checks import check_causal, check_kernel, check_scale
from .decode import MANY_QUERIES
from .option_checks import INT32
from .options import CheckedOptions, Options, arrays_of, prepare, scalar_key
from .record import Prepared, prepared
from .words import template, words_of

#: Plans that put new rows into a cache, and that make words of lengths on the device.
APPENDS: Kept[tuple, Ready] = Kept("plans of cache-append", 512)
CACHE_WORDS: Kept[tuple, Ready] = Kept("plans of cache-words", 64)
#: Plans are for multiples of so many keys, so that most steps find one made; of fewer where keys are few, as a plan
#: dispatches workgroups for all of its own.
STEP_KEYS = 256
_SCALES = (type(None), float, int)
_HALVES, _INTERLEAVED = value("rotary", "ROTARY_HALVES"), value("rotary", "ROTARY_INTERLEAVED")


class _Step(NamedTuple):
    """A step of decoding, ready to be run on Tensors: what puts new keys, values and turned queries where they belong
    (None where there are none), and attention. ``only`` is the number of keys that it serves, None for all up to the
    plan's."""

    rows: Ready | None
    attention: Prepared
    only: int | None


#: Steps on Tensors whose options have no arrays, by the arguments themselves but for the lengths.
REPEATED: Kept[tuple, _Step] = Kept("repeated steps with a cache", 512)


def flash_attention_with_kvcache(
    device: Device,
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    cache_seqlens=None,
    page_table=None,
    *,
    rotary=None,
    rotary_interleaved=False,
    causal=False,
    window_size=None,
    softcap=0.0,
    alibi_slopes=None,
    t5_table=None,
    t5_bidirectional=True,
    t5_max_distance=128,
    sinks=None,
    scale=None,
    return_lse=False,
    kernel=None,
    precision="highest",
):
    """``grilly.functional.flash_attention_with_kvcache`` on a device; documented there.

    ``cache_seqlens`` may be Lengths, which count the new keys: on the device in a captured function. Steps of few
    queries are then planned for the whole cache, in a graph and outside, so that both give the same bits.
    """
    device.check_open()
    counted = cache_seqlens if cache_seqlens.__class__ is Lengths else None
    if counted is not None:
        cache_seqlens = counted.tensor() if device.runtime.capturing else counted.now()
    options = Options(
        window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes, t5_table=t5_table,
        t5_bidirectional=t5_bidirectional, t5_max_distance=t5_max_distance, sinks=sinks,
    )  # fmt: skip
    results = _attended(
        device, q, k_cache, v_cache, k, v, cache_seqlens, page_table, counted, rotary, rotary_interleaved, causal,
        options, scale, return_lse, kernel, precision,
    )  # fmt: skip
    if counted is not None and not device.runtime.capturing and k is not None:
        counted.grow(k.shape[1])
    return results


def _attended(
    device: Device, q, k_cache, v_cache, k, v, cache_seqlens, page_table, counted: Lengths | None, rotary,
    rotary_interleaved, causal, options: Options, scale, return_lse, kernel, precision,
):  # fmt: skip
    """The call, which leaves the host's count to the caller."""
    high, causal = check_precision(NAME, precision), check_causal(NAME, causal)
    check_kernel(NAME, kernel)
    given = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "k": k, "v": v}
    key = None
    # Planned for all that a sample has room for?
    whole = counted is not None and getattr(q, "shape", ())[1:2] <= (MANY_QUERIES,)
    if page_table is None and type(q) is type(k_cache) is type(v_cache) is Tensor and scale.__class__ in _SCALES:
        key, results = _again(device, tuple(given.values()), cache_seqlens, rotary, options,
                              (causal, scale, bool(return_lse), kernel, high, bool(rotary_interleaved)), whole)
        if results is not None:
            return results if return_lse else results[0]
    call, shape = checked_call(device, given, cache_seqlens, page_table, rotary, rotary_interleaved)
    batch, queries, heads, dim = shape
    scale = check_scale(NAME, scale, dim)
    held = call.lengths
    keys = call.room if isinstance(held, Tensor) else int(held.max(initial=0)) + call.count
    own = not isinstance(held, Tensor) and call.table is None and (held == held[:1]).all()  # all samples alike
    exact, fitting = keys, _planned(keys, call.room)
    keys = call.room if whole else fitting
    checked = prepare(NAME, options, (batch, heads, queries, keys), causal)
    window = options.window_size
    advance = causal or window is not None and any(bound not in (None, -1) for bound in window)
    lay = None
    if not own:
        checked = checked or CheckedOptions(heads, causal)
        lay = _lay(checked, call, queries)
    caches = tuple(device.tensor(np.ascontiguousarray(c)) if not isinstance(c, Tensor) else c for c in call.caches)
    call = dataclasses.replace(call, caches=caches, fresh=tuple(to_device(device, a) for a in call.fresh))
    q_tensor = to_device(device, q)
    turned = q_tensor
    if call.tables:
        call = dataclasses.replace(call, tables=tuple(_table(device, t) for t in call.tables))
        turned = device.empty(shape, q_tensor.dtype)
    facts = NOTHING if checked is None else checked.facts()
    causal = causal if checked is None else checked.causal

    def plan_of(keys: int, counted: bool) -> tuple[list, Prepared]:
        views = [turned.transpose(0, 2, 1, 3), *(_keys_view(c, call, batch, keys) for c in caches), None, None]
        terms = Terms(causal, scale, return_lse, kernel, high, keys - queries, facts, counted=counted)
        return views, prepared(device, views, terms)

    views, found = plan_of(keys, own)
    if own and not found.counted and fitting < keys:
        views, found = plan_of(fitting, True)
    if own and not found.counted:  # its keys are cut into dispatches, which is for their very number
        views, found = plan_of(exact, False)
    if lay is None:
        words = found.words_of(device, checked)
    elif not lay.on_device:
        words = _words(device, found, checked, True)
    else:
        words = _words_of_device(device, call, lay, found, checked, queries, counted)
    appended = _append(device, call, q_tensor, turned, words, lay, advance)
    o, lse = found.run(views, words if facts.contents else None, (exact,))
    plain = checked is None or len(checked.arrays) == (lay is not None) and not checked.live
    if key is not None and plain and (lay is None or found.words is not None):
        same = (q_tensor, *caches, *call.fresh, *call.tables)
        if all(a is b for a, b in zip(same, (q, k_cache, v_cache, *((k, v) if call.fresh else ()), *(rotary or ())),
                                      strict=True)):  # fmt: skip
            device.caches[REPEATED].keep(key, _Step(appended, found, exact if own and not found.counted else None))
    o = o.transpose(0, 2, 1, 3)
    for array, cache in zip((k_cache, v_cache), caches, strict=True):
        if call.fresh and not isinstance(array, Tensor):
            array[...] = cache.numpy()
    results = [o] if lse is None else [o, lse]
    arrays = (*given.values(), cache_seqlens, page_table, *(rotary or ()), *arrays_of(options.__dict__))
    if any(isinstance(array, Tensor) for array in arrays):
        device.runtime.flush()
    else:
        results = [result.numpy() for result in results]
    return results[0] if lse is None else tuple(results)


def _planned(keys: int, room: int) -> int:
    """The number of keys that a plan for so many is made for: at most an eighth more, or 15."""
    step = min(1 << max((keys - 1).bit_length() - 4, 4), STEP_KEYS)
    return min(-(-keys // step) * step, room)


def _again(device: Device, given: tuple, lengths, rotary, options: Options, terms: tuple, whole: bool) -> tuple:
    """The key of a step, and its results where a step like it was planned; each None where there is none."""
    q, k_cache, v_cache, k, v = given
    scalars, tables = scalar_key(options), (None, None) if rotary is None else rotary
    if scalars is None or len(q.shape) != 4 or len(k_cache.shape) != 4 or tables.__class__ is not tuple:
        return None, None
    if k is not None and not type(k) is type(v) is Tensor or rotary is not None and len(tables) != 2:
        return None, None
    if rotary is not None and not type(tables[0]) is type(tables[1]) is Tensor:
        return None, None
    batch, queries, room = q.shape[0], q.shape[1], k_cache.shape[1]
    count = 0 if k is None else k.shape[1]
    if lengths.__class__ is int:
        least = most = lengths
    elif type(lengths) is np.ndarray and lengths.dtype.kind == "i" and lengths.shape == (batch,) and batch:
        least, most = int(lengths.min()), int(lengths.max())
    else:
        return None, None
    keys, own = most + count, least == most
    if least < 0 or keys > room or (rotary is not None and tables[0].shape[0] < keys):
        return None, None  # what is checked there says what is wrong
    planned = room if whole else _planned(keys, room)
    key = key_of(device, (scalars, terms, planned, own, whole), (*given, *tables))
    step = device.caches[REPEATED].get(key)
    if step is None or step.only not in (None, keys):
        return key, None
    words = told = None
    if not own:
        samples = np.zeros((batch, 4), np.int32)
        samples[:, 1], samples[:, 3] = queries, lengths + count
        words = words_of(device, step.attention.words.template, ((0, samples),), {}, samples.size)
        told = _all_words(words)
    start = (least if own else 0,)
    turned = q if rotary is None else device.empty(q.shape, q.dtype)
    if step.rows is not None:
        step.rows.run(_rows(k, v, q, told, tables, (k_cache, v_cache), turned), start)
    o, lse = step.attention.run((turned, k_cache, v_cache, None, None), words, (keys,))
    a, b, c, d = o._steps
    o = Tensor(o._storage, (batch, queries, *o.shape[1::2]), o.dtype, (a, c, b, d), o._offset)
    device.runtime.flush()
    return key, (o, lse)


def _table(device: Device, table) -> Tensor:
    if not isinstance(table, Tensor):
        return device.tensor(np.ascontiguousarray(table, dtype=np.float32))
    return to_device(device, table.astype(FLOAT32, copy=False))


class _Lay(NamedTuple):
    """Where the samples' lengths and the table begin among the words, and whether the device is to write them."""

    samples: int
    pages: int
    on_device: bool


def _lay(checked: CheckedOptions, call: CacheCall, queries: int) -> _Lay:
    """Put the samples' lengths and the table among the words that kernels read."""
    lengths, table = call.lengths, call.table
    batch = lengths.shape[0]
    checked.offer("lengths", *(("paged",) if table is not None else ()))
    on_device = any(isinstance(array, Tensor) for array in (lengths, table))
    samples = np.zeros((batch, 4), np.int32)
    if not on_device:
        samples[:, 1], samples[:, 3] = queries, lengths + call.count
    samples_at = checked.put(samples)
    checked.set(samples=samples_at)
    pages_at = 0
    if table is not None:
        columns = table.shape[1]
        pages_at = checked.put(np.zeros(table.shape, np.int32) if on_device else table)
        checked.page_steps = tuple(_steps(cache)[0] for cache in call.caches)
        checked.set(
            pages=pages_at, pages_batch=columns, page_keys=call.caches[0].shape[1],
            k_page=checked.page_steps[0], v_page=checked.page_steps[1],
        )  # fmt: skip
    return _Lay(samples_at, pages_at, on_device and batch > 0)


def _words(device: Device, found: Prepared, checked: CheckedOptions, keep: bool) -> Storage:
    """The words of options on the device, samples' lengths among them."""
    words = found.words_of(device, checked, keep)
    if words is None:  # attention has nothing to do, and the new keys are to be written all the same
        words = words_of(device, template(checked.size, {}, []), checked.arrays, {}, checked.size, keep)
    return words


def _words_of_device(
    device: Device, call: CacheCall, lay: _Lay, found: Prepared, checked: CheckedOptions, queries: int,
    counted: Lengths | None,
) -> Storage:  # fmt: skip
    """The words where the device has lengths or table. Layers of a captured step with the same lengths share them."""
    key = None
    if device.runtime.capturing and counted is None and found.words is not None:
        arrays = (call.lengths, call.table, *(array for _, array in checked.arrays))
        key = (found.words.template.tobytes(), tuple(checked.live.items()), tuple(place for place, _ in checked.arrays),
               queries, call.count, call.room, lay, *map(_contents, arrays))  # fmt: skip
        words = device.captured.words.get(key)
        if words is not None:
            return words
    words = _words(device, found, checked, False)
    _lay_on_device(device, call, lay, words, queries, counted)
    if key is not None:
        device.captured.words[key] = words
    return words


def _contents(array) -> tuple | None:
    """What tells whether two arrays have the same contents; of a tensor, where they lie and which they are."""
    if array is None:
        return None
    if isinstance(array, Tensor):
        storage = array._storage
        return storage, storage.version, array.dtype, array.shape, array._steps, array._offset
    return array.dtype.str, array.shape, array.tobytes()


def _lay_on_device(
    device: Device, call: CacheCall, lay: _Lay, words: Storage, queries: int, counted: Lengths | None
) -> None:
    """Have the device, which has them, write lengths and table to the words, and count the new keys."""
    lengths, table = call.lengths, call.table
    count = None
    if counted is not None:
        lengths, count = None, lengths
    elif not isinstance(lengths, Tensor):
        lengths = device.tensor(lengths.astype(np.int32))
    table = table if isinstance(table, Tensor) or table is None else device.tensor(table)
    columns, pages = (1, 1) if table is None else (table.shape[1], call.caches[0].shape[0])
    given = (call.lengths.shape[0], columns, pages, queries, call.count, call.room, lay.samples, lay.pages)
    run(device, CACHE_WORDS, words_plan, given, (lengths, table, _all_words(words), count))
    if counted is not None:
        counted.noted(call.count)


def _all_words(words: Storage) -> Tensor:
    return Tensor(words, (words.nbytes // 4,), INT32)


def _steps(cache) -> tuple[int, ...]:
    """A cache's strides in elements, as it is or will be on the device."""
    if isinstance(cache, Tensor):
        return cache._steps
    return tuple(math.prod(cache.shape[axis + 1 :]) for axis in range(4))


def _keys_view(cache: Tensor, call: CacheCall, batch: int, keys: int) -> Tensor:
    """The cache as ``(B, Hk, keys, D)``; of a paged one only the shape and the strides within a page are true."""
    if call.table is None:
        return cache[:, :keys].transpose(0, 2, 1, 3)
    _, row, head, last = cache._steps
    shape = (batch, cache.shape[2], keys, cache.shape[3])
    return Tensor(cache._storage, shape, cache.dtype, (0, head, row, last), cache._offset)


def _rows(k, v, q, words, tables: tuple, caches: tuple, turned) -> tuple:
    """The inputs of append_plan."""
    queries = (q, turned) if tables[0] is not None else (None, None)
    return k, v, queries[0], words, *tables, *(caches if k is not None else (None, None)), queries[1]


def _append(
    device: Device, call: CacheCall, q: Tensor, turned: Tensor, words: Storage | None, lay: _Lay | None, advance: bool
) -> Ready | None:
    """Record what puts new keys and values into the caches, and queries turned by tables into ``turned``."""
    if not call.fresh and not call.tables:
        return None
    rotary = 0 if not call.tables else _INTERLEAVED if call.interleaved else _HALVES
    columns = 0 if call.table is None or not call.fresh else call.table.shape[1]
    given = Rows(rotary, advance, None if lay is None else (lay.samples, lay.pages), columns)
    start = int(call.lengths[0]) if lay is None and len(call.lengths) else 0
    told = None if lay is None else _all_words(words)
    tensors = _rows(*(call.fresh or (None, None)), q, told, call.tables or (None, None), call.caches, turned)
    ready = ready_for(device, APPENDS, append_plan, given, tensors)
    ready.run(tensors, (start,))
    return ready
