"""Attention over a growing cache of keys and values: one array, or pages of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...errors import UnsupportedError
from ...registry.shared import value
from ..device.arguments import FLOAT32, to_device
from ..device.arrays import Unpack
from ..device.caches import DeviceCache
from ..device.call import call, executable_for, run
from ..device.device import Device
from ..device.executables import Executable
from ..device.tape import OPEN, refuse_wanted, refuse_writes
from ..device.tensor import Tensor
from . import decode
from .cache_checks import NAME, CacheCall, checked_call
from .cache_lengths import Lengths
from .cache_plan import Rows, append_plan, parameters_plan
from .cache_types import QuantizedCache, array_of
from .call import NOTHING, AttentionTerms, values_in_keys
from .checks import check_scale, take_terms
from .executables import AttentionExecutable, attention_executable
from .foreign import unknown
from .functions import BlockMask
from .keywords import StepKeywords, TermKeywords
from .options import CheckedOptions, Options, prepare, scalar_key, tensors_read
from .parameters import parameters_of, template
from .rates import RATES

#: Plans are for multiples of so many keys, so that most steps find one made; of fewer where keys are few, as a plan
#: dispatches workgroups for all of its own.
STEP_KEYS = 256
#: Steps of at most so many queries, on any device, are planned for all keys that a counted cache has room for.
WHOLE_QUERIES = RATES["gpu"].decode.many_queries
_SCALES = (type(None), float, int)
_OPTIONS = StepKeywords.__annotations__.keys() - TermKeywords.__annotations__.keys()
_HALVES, _INTERLEAVED = value("rotary", "ROTARY_HALVES"), value("rotary", "ROTARY_INTERLEAVED")


class StepExecutable(NamedTuple):
    """The plans of a step of decoding on Tensors, without its lengths.

    Attributes
    ----------
    rows : Executable or None
        Writes new keys and values to the caches and rotates queries; None where there is nothing to do.
    attention : AttentionExecutable
    """

    rows: Executable | None
    attention: AttentionExecutable

    def run(self, inputs: Sequence[Tensor | None], live: tuple[int, int, np.ndarray | None]) -> list[Tensor]:
        """Record a step.

        Parameters
        ----------
        inputs : sequence of Tensor or None
            q, the caches, new keys and values, cosines and sines.
        live : (int, int, numpy.ndarray or None)
            Where all samples hold as many keys: their keys before the new ones, with the new ones, and None. Else 0,
            keys of the longest sample with the new ones, and ``(B, 4)`` int32: for each sample the first row, rows,
            first key and keys.

        Returns
        -------
        list of Tensor
            o (B, Sq, H, Dv) and, if asked for, lse (B, H, Sq).
        """
        q, k_cache, v_cache, k, v, *tables = inputs
        start, keys, samples = live
        device, parameters = self.attention.device, None
        if samples is not None:
            made = self.attention.parameters.template
            parameters = parameters_of(device, made, ((0, samples),), {}, samples.size)
        rotated = q if tables[0] is None else device.empty(q.shape, q.dtype)
        if self.rows is not None:
            self.rows.run(_rows(k, v, q, parameters, tables, (k_cache, v_cache), rotated), (start,))
        o, *lse = self.attention.run((rotated, k_cache, v_cache, None, None, parameters), (keys,))
        (batch, heads, queries, dim), (a, b, c, d) = o.shape, o._strides
        return [Tensor(o._storage, (batch, queries, heads, dim), o.dtype, (a, c, b, d), o._offset), *lse]


#: Steps on Tensors whose options have no arrays, by all but the lengths.
STEPS: DeviceCache[tuple, StepExecutable] = DeviceCache("steps with a cache", 512)


class _Asked(NamedTuple):
    """The terms of a call, unchecked: hashable where the scale is."""

    causal: bool
    scale: float | None
    lse: bool
    kernel: str | None
    high: bool
    interleaved: bool


def _refuse_gradients(arrays: Sequence, written: Sequence) -> None:
    """Raise GradientError where a gradient of arrays is wanted, or a tensor is written to that one depends on."""
    refuse_wanted(NAME, "train with flash_attention2 and all keys", *arrays)
    refuse_writes([array for array in written if isinstance(array, Tensor)])


def flash_attention_with_kvcache(
    device: Device, q, k_cache, v_cache, k=None, v=None, cache_seqlens=None, page_table=None, *, rotary=None,
    rotary_interleaved=False, return_lse=False, **options: Unpack[StepKeywords],
):  # fmt: skip
    """``grilly.functional.flash_attention_with_kvcache`` on a device; documented there.

    ``cache_seqlens`` may be `Lengths`. They count the new keys, in a captured function on the device. A step of few
    queries is then planned for all keys of the cache: a graph and a call outside give the same bits.
    """
    device.check_open()
    caches, kinds = (k_cache, v_cache), ()
    if k_cache.__class__ is QuantizedCache or v_cache.__class__ is QuantizedCache:
        caches = (array_of(k_cache), array_of(v_cache))
        kinds = (k_cache.dtype, tuple(k_cache.shape), v_cache.dtype, tuple(v_cache.shape))
    if OPEN.tapes:
        functions = Options(score_mod=options.get("score_mod"), mask_mod=options.get("mask_mod"))
        read = tensors_read(NAME, functions)
        _refuse_gradients((q, *caches, k, v, *read, *options.values()), caches if k is not None else ())
    counted = cache_seqlens if cache_seqlens.__class__ is Lengths else None
    if counted is not None:
        cache_seqlens = counted.tensor() if device.runtime.capturing else counted.now()
    causal, scale, kernel, high = take_terms(NAME, options)
    if not options.keys() <= _OPTIONS:
        raise unknown(NAME, options.keys() - _OPTIONS)
    asked = _Asked(causal, scale, bool(return_lse), kernel, high, bool(rotary_interleaved))
    made = Options(**options)
    if isinstance(made.mask_mod, BlockMask):
        raise ValueError(f"{NAME}: mask_mod is a block mask, and caches take functions; give its mask_mod")
    given = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "k": k, "v": v}
    whole = counted is not None and getattr(q, "shape", ())[1:2] <= (WHOLE_QUERIES,)
    static, told, tables = None, (), rotary if rotary.__class__ in (tuple, list) else ()
    if page_table is None and type(q) is type(caches[0]) is type(caches[1]) is Tensor and scale.__class__ in _SCALES:
        static, told = _static(q, k_cache, k, v, cache_seqlens, rotary, made, asked, whole)
        static = static and (*static, values_in_keys(*caches), *kinds)

    def record(*_):
        checked = checked_call(device, given, cache_seqlens, page_table, rotary, asked.interleaved)
        return _attend(device, checked, made, asked, counted, whole)

    arrays = (q, *caches, k, v, *(tables or (None, None)))
    like = (*arrays, cache_seqlens, page_table, *options.values())
    results = call(device, STEPS, static, arrays, live=told, record=record, results=2, like=like)
    if counted is not None and not device.runtime.capturing and k is not None:
        counted.grow(k.shape[1])
    return tuple(results) if return_lse else results[0]


class _Keys(NamedTuple):
    """For how many keys a step is planned.

    Attributes
    ----------
    exact : int
        Keys of the longest sample, the new ones too; all keys of the cache where only the device knows.
    fitting : int
        As many, rounded up (`_planned`).
    planned : int
        Of the first plan to try.
    alike : bool
        Whether all samples hold as many, as the host knows: their number can be a runtime argument of a plan.
    """

    exact: int
    fitting: int
    planned: int
    alike: bool


def _keys_of(call: CacheCall, whole: bool) -> _Keys:
    """The keys of a call; ``whole``: it is planned for all keys of the cache."""
    held = call.lengths
    if isinstance(held, Tensor):
        exact, alike = call.room, False
    else:
        exact = int(held.max(initial=0)) + call.count
        alike = call.table is None and bool((held == held[:1]).all())
    fitting = _planned(exact, call.room)
    return _Keys(exact, fitting, call.room if whole else fitting, alike)


def _attend(
    device: Device, call: CacheCall, options: Options, asked: _Asked, counted: Lengths | None, whole: bool
) -> tuple[list[Tensor], StepExecutable | None]:  # fmt: skip
    """Record a checked call: o and, if asked for, lse; and the plans, where they serve all calls with this key."""
    batch, queries, heads, dim = call.q.shape
    scale, keys = check_scale(NAME, asked.scale, dim), _keys_of(call, whole)
    checked = prepare(NAME, options, (batch, heads, queries, keys.planned), asked.causal)
    if checked is not None:
        checked.stand_at_positions()
    lay = None
    if not keys.alike:
        checked = checked or CheckedOptions(heads, asked.causal)
        lay = _lay(checked, call, queries)
    summary = NOTHING if checked is None else checked.summary()
    causal = asked.causal if checked is None else checked.causal
    sent = _sent(device, call)
    rotated = device.empty(sent.q.shape, sent.q.dtype) if sent.tables else sent.q
    terms = AttentionTerms(causal, scale, asked.lse, asked.kernel, asked.high, 0, summary)
    terms = terms._replace(values_in_keys=values_in_keys(*sent.caches))
    views, found, floats = _plan(device, sent, rotated, terms, keys)
    parameters = _words_for(device, sent, lay, found, checked, counted)
    appended = _append(device, sent, rotated, parameters, lay, _advances(options, asked.causal))
    for cache, target in zip(sent.caches, floats, strict=bool(floats)):
        cache.write_floats(device, target)
    o, *lse = found.run((*views, parameters if summary.contents else None), (keys.exact,))
    serves = checked is None or len(checked.arrays) == (lay is not None) and not checked.live
    serves = serves and (found.counted if lay is None else found.parameters is not None)
    serves = serves and not floats and _is_as_given(sent, call)
    for array, cache in zip(call.caches, sent.caches, strict=True):
        if call.fresh and array is not cache:
            array[...] = cache.numpy()
    return [o.transpose(0, 2, 1, 3), *lse], StepExecutable(appended, found) if serves else None


def _advances(options: Options, causal: bool) -> bool:
    """Whether each query is rotated by its own position: under causality or a window."""
    window = options.window_size
    return causal or window is not None and any(bound not in (None, -1) for bound in window)


def _sent(device: Device, call: CacheCall) -> CacheCall:
    """The call with its arrays on the device."""
    return dataclasses.replace(
        call,
        caches=tuple(
            c if isinstance(c, (Tensor, QuantizedCache)) else device.tensor(np.ascontiguousarray(c))
            for c in call.caches
        ),
        fresh=tuple(to_device(device, array) for array in call.fresh),
        q=to_device(device, call.q),
        tables=tuple(_table(device, table) for table in call.tables),
    )


def _is_as_given(sent: CacheCall, call: CacheCall) -> bool:
    """Whether the arrays on the device are the given ones."""
    pairs = ((a.q, *a.caches, *a.fresh, *a.tables) for a in (sent, call))
    return all(a is b for a, b in zip(*pairs, strict=True))


def _plan(
    device: Device, call: CacheCall, rotated: Tensor, terms: AttentionTerms, keys: _Keys
) -> tuple[list, AttentionExecutable, tuple[Tensor, ...]]:
    """The inputs of attention and its plan, if possible with the number of keys as a runtime argument.

    Where no kernel reads a quantized cache, also where its keys and values are to be written as floats before.
    """
    batch, queries = rotated.shape[:2]
    quantized, floats = call.caches[0].__class__ is QuantizedCache, ()
    if quantized and decode.may_read_levels(terms, queries):
        made = _reading_levels(device, call, rotated, terms, keys)
        if made is not None:
            return made
    tries = [(keys.planned, keys.alike)]
    if keys.alike:
        # A plan whose keys are cut into dispatches is for their very number.
        tries += [(keys.fitting, True)] * (keys.fitting < keys.planned) + [(keys.exact, False)]
    for count, counted in tries:
        caches = call.caches
        if quantized:
            caches = floats = tuple(device.empty((batch, count, *c.shape[2:]), rotated.dtype) for c in call.caches)
        views = [rotated.transpose(0, 2, 1, 3), *(_keys_view(c, call, batch, count) for c in caches), None, None]
        found = attention_executable(device, views, terms._replace(shift=count - queries, counted=counted))
        assert found is not None, "a bias of 16 bits"
        if found.counted == counted:
            break
    return views, found, floats


def _reading_levels(
    device: Device, call: CacheCall, rotated: Tensor, terms: AttentionTerms, keys: _Keys
) -> tuple[list, AttentionExecutable, tuple] | None:
    """The same by a kernel that reads the quantized cache; None where there is none."""
    count = keys.planned
    views = [rotated.transpose(0, 2, 1, 3), *(cache.view(count) for cache in call.caches), None, None]
    terms = terms._replace(shift=count - rotated.shape[1], counted=keys.alike, bits=call.caches[0].bits)
    try:
        found = attention_executable(device, views, terms)
    except UnsupportedError:
        return None
    assert found is not None, "a bias of 16 bits"
    return views, found, ()


def _planned(keys: int, room: int) -> int:
    """The number of keys, rounded up for a plan: by at most an eighth, or 15; ``room`` at most."""
    step = min(1 << max((keys - 1).bit_length() - 4, 4), STEP_KEYS)
    return min(-(-keys // step) * step, room)


def _static(
    q: Tensor, k_cache: Tensor, k, v, lengths, rotary, options: Options, asked: _Asked, whole: bool
) -> tuple[tuple | None, tuple]:  # fmt: skip
    """The key of a step but for its arrays, and what ``StepExecutable.run`` is told.

    None and () where a step has no key, and where its lengths may be wrong.
    """
    scalars = scalar_key(options)
    if scalars is None or not _are_tensors(q, k_cache, k, v, rotary):
        return None, ()
    batch, queries, room = q.shape[0], q.shape[1], k_cache.shape[1]
    if lengths.__class__ is int:
        least = most = lengths
    elif type(lengths) is np.ndarray and lengths.dtype.kind == "i" and lengths.shape == (batch,) and batch:
        least, most = int(lengths.min()), int(lengths.max())
    else:
        return None, ()
    count = 0 if k is None else k.shape[1]
    keys, alike = most + count, least == most
    if least < 0 or keys > room or (rotary is not None and rotary[0].shape[0] < keys):
        return None, ()  # what is checked there says what is wrong
    samples = None
    if not alike:
        samples = np.zeros((batch, 4), np.int32)
        samples[:, 1], samples[:, 3] = queries, lengths + count
    planned = room if whole else _planned(keys, room)
    return (scalars, asked, planned, alike, whole), (least if alike else 0, keys, samples)


def _are_tensors(q: Tensor, k_cache: Tensor, k, v, rotary) -> bool:
    """Whether new keys, values and tables are Tensors or absent, and the others have four axes."""
    if len(q.shape) != 4 or len(k_cache.shape) != 4 or k is not None and not type(k) is type(v) is Tensor:
        return False
    if rotary is None:
        return True
    return rotary.__class__ is tuple and len(rotary) == 2 and type(rotary[0]) is type(rotary[1]) is Tensor


def _table(device: Device, table) -> Tensor:
    if not isinstance(table, Tensor):
        return device.tensor(np.ascontiguousarray(table, dtype=np.float32))
    return to_device(device, table.astype(FLOAT32, copy=False))


class _Lay(NamedTuple):
    """Where the samples' lengths and the table begin among the parameters, and whether the device writes them."""

    samples: int
    pages: int
    on_device: bool


def _lay(checked: CheckedOptions, call: CacheCall, queries: int) -> _Lay:
    """Put the samples' lengths and the table among the parameters that kernels read."""
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
        checked.page_strides = tuple(_strides(cache)[0] for cache in call.caches)
        checked.set(
            pages=pages_at, pages_batch=columns, page_keys=call.caches[0].shape[1],
            k_page=checked.page_strides[0], v_page=checked.page_strides[1],
        )  # fmt: skip
    return _Lay(samples_at, pages_at, on_device and batch > 0)


def _words_for(
    device: Device, call: CacheCall, lay: _Lay | None, found: AttentionExecutable, checked: CheckedOptions | None,
    counted: Lengths | None,
) -> Tensor | None:  # fmt: skip
    """The parameters of options on the device, samples' lengths among them where there is a ``lay``."""
    if lay is None:
        return found.parameters_of(device, checked)
    if not lay.on_device:
        return _parameters(device, found, checked, True)
    return _parameters_of_device(device, call, lay, found, checked, counted)


def _parameters(device: Device, found: AttentionExecutable, checked: CheckedOptions, keep: bool) -> Tensor:
    """The parameters of options on the device, samples' lengths among them."""
    parameters = found.parameters_of(device, checked, keep)
    if parameters is None:  # attention has nothing to do, and the new keys are to be written all the same
        parameters = parameters_of(device, template(checked.size, {}, []), checked.arrays, {}, checked.size, keep)
    return parameters


def _parameters_of_device(
    device: Device,
    call: CacheCall,
    lay: _Lay,
    found: AttentionExecutable,
    checked: CheckedOptions,
    counted: Lengths | None,
) -> Tensor:
    """The parameters with lengths or table from the device. Layers of a captured step share those of equal lengths."""
    key = None
    if device.runtime.capturing and counted is None and found.parameters is not None:
        arrays = (call.lengths, call.table, *(array for _, array in checked.arrays))
        key = (found.parameters.template.tobytes(), tuple(checked.live.items()),
            tuple(place for place, _ in checked.arrays),
               call.q.shape[1], call.count, call.room, lay, *map(_contents, arrays))  # fmt: skip
        parameters = device.captured.parameters.get(key)
        if parameters is not None:
            return parameters
    parameters = _parameters(device, found, checked, False)
    _lay_on_device(device, call, lay, parameters, counted)
    if key is not None:
        device.captured.parameters[key] = parameters
    return parameters


def _contents(array) -> tuple | None:
    """A key that is equal for arrays of equal contents; of a tensor, its memory, version and layout."""
    if array is None:
        return None
    if isinstance(array, Tensor):
        storage = array._storage
        return storage, storage.version, array.dtype, array.shape, array._strides, array._offset
    return array.dtype.str, array.shape, array.tobytes()


def _lay_on_device(device: Device, call: CacheCall, lay: _Lay, parameters: Tensor, counted: Lengths | None) -> None:
    """Record the dispatch that writes lengths and table to the parameters, and count the new keys."""
    lengths, table, queries = call.lengths, call.table, call.q.shape[1]
    count = None
    if counted is not None:
        lengths, count = None, lengths
    elif not isinstance(lengths, Tensor):
        lengths = device.tensor(lengths.astype(np.int32))
    table = table if isinstance(table, Tensor) or table is None else device.tensor(table)
    columns, pages = (1, 1) if table is None else (table.shape[1], call.caches[0].shape[0])
    given = (call.lengths.shape[0], columns, pages, queries, call.count, call.room, lay.samples, lay.pages)
    run(device, parameters_plan, given, (lengths, table, parameters, count))
    if counted is not None:
        counted.noted(call.count)


def _strides(cache) -> tuple[int, ...]:
    """A cache's strides in elements, as it is or will be on the device."""
    if isinstance(cache, Tensor):
        return cache._strides
    return tuple(math.prod(cache.shape[axis + 1 :]) for axis in range(4))


def _keys_view(cache: Tensor, call: CacheCall, batch: int, keys: int) -> Tensor:
    """The cache as ``(B, Hk, keys, D)``; of a paged one only the shape and the strides within a page are true."""
    if call.table is None:
        return cache[:, :keys].transpose(0, 2, 1, 3)
    _, row, head, last = cache._strides
    shape = (batch, cache.shape[2], keys, cache.shape[3])
    return Tensor(cache._storage, shape, cache.dtype, (0, head, row, last), cache._offset)


def _rows(k, v, q, parameters, tables: tuple, caches: Sequence, rotated) -> tuple:
    """The inputs of append_plan."""
    queries = (q, rotated) if tables[0] is not None else (None, None)
    return k, v, queries[0], parameters, *tables, *(caches if k is not None else (None, None)), queries[1]


def _append(
    device: Device, call: CacheCall, rotated: Tensor, parameters: Tensor | None, lay: _Lay | None, advance: bool
) -> Executable | None:
    """Record the dispatches that write new keys and values to the caches, and rotated queries to ``rotated``."""
    if not call.fresh and not call.tables:
        return None
    q, rotary = call.q, 0 if not call.tables else _INTERLEAVED if call.interleaved else _HALVES
    columns = 0 if call.table is None or not call.fresh else call.table.shape[1]
    given = Rows(rotary, advance, None if lay is None else (lay.samples, lay.pages), columns)
    if isinstance(call.caches[0], QuantizedCache):
        given = given._replace(bits=call.caches[0].bits, room=call.room)
    start = int(call.lengths[0]) if lay is None and len(call.lengths) else 0
    told = None if lay is None else parameters
    caches = [array_of(cache) for cache in call.caches]
    tensors = _rows(*(call.fresh or (None, None)), q, told, call.tables or (None, None), caches, rotated)
    executable = executable_for(device, append_plan, given, tensors)
    executable.run(tensors, (start,))
    return executable


def fill_quantized(device: Device, k_cache: QuantizedCache, v_cache: QuantizedCache, k: Tensor, v: Tensor) -> None:
    """Record that keys and values ``(B, S, Hk, D)`` become the first of quantized caches."""
    tensors = _rows(k, v, None, None, (None, None), (k_cache.data, v_cache.data), None)
    given = Rows(0, True, None, 0, k_cache.bits, k_cache.shape[1])
    executable_for(device, append_plan, given, tensors).run(tensors, (0,))


__all__ = ["fill_quantized", "flash_attention_with_kvcache"]
