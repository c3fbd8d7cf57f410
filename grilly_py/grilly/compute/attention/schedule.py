"""How a call of attention is shared out over workgroups: split-KV, packed GQA, tall and short tiles, the last wave.

Workgroups run in waves: as many side by side as the device holds (``at_once``), and a wave that fills only a part of it
takes as long as a full one. So there are three ways to give a device enough to do, all weighed by one cost, in keys
(rates.py):

- `split_rows`: few rows over many keys. The kernels of decode.py split the keys and combine the splits in one dispatch.
- `tile_splits`: rows for less than a wave of tiles. The kernels of split_kv.py split the keys of all tiles, and a
  second dispatch combines the splits.
- `last_wave`: tiles for a few waves. The last heads alone are split, so that the last wave is as full as the others.

All of it is pure functions of shapes, of a kernel's ``tile`` (its shader's data file) and of a device's facts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ...registry import Choice
from ..device.device import DeviceFacts
from .call import MAX_KEYS, AttentionCall
from .rates import SplitRates, TileRates, rates_of

# -- what splits cost --------------------------------------------------------------------------------------------------


def split_keys(keys: int, splits: int, trip: int = 1) -> int:
    """Keys of a split: whole trips of a workgroup, which are ``trip`` keys."""
    return -(-max(keys, 1) // (splits * trip)) * trip


def split_cost(tiles: int, splits: int, keys: int, at_once: int, rates: SplitRates) -> float:
    """The time of ``tiles`` tiles of rows in so many splits of ``keys`` keys each, in keys."""
    workgroups = tiles * splits
    return -(-workgroups // at_once) * (keys + rates.start_keys) + rates.combine_keys * workgroups / at_once


def _best(tiles: int, keys: int, at_once: int, rates: SplitRates, counts: Iterable[int], trip: int = 1) -> int:
    """The number of splits, of ``counts``, that takes least time; the first of equal ones."""
    return min(counts, key=lambda n: split_cost(tiles, n, split_keys(keys, n, trip), at_once, rates))


# -- few rows ----------------------------------------------------------------------------------------------------------


def decode_pays(
    facts: DeviceFacts, itemsize: int, batch: int, heads: int, queries: int, keys: int, many: bool = False
) -> bool:
    """Whether splitting the keys of few rows is faster than tiles of rows that walk all keys.

    ``many``: the kernel's workgroups take many rows.
    """
    rates = rates_of(facts).decode
    if keys < rates.split.least_keys:
        return False
    if queries <= rates.few_queries[itemsize] or many and queries <= rates.many_queries:
        return True
    return batch * heads * queries <= rates.idle_rows[itemsize] * facts.units


def whole_keys_pay(facts: DeviceFacts, queries: int, dim: int) -> bool:
    """Whether a kernel for few rows without split keys is faster than tiles of rows, for any number of keys.

    ``dim`` is the wider of a key's and a value's row.
    """
    rates = rates_of(facts).decode
    return queries <= rates.whole_queries and queries * dim <= rates.whole_values


@dataclasses.dataclass(frozen=True)
class SplitRows:
    """How the rows of a key head and their keys are shared out.

    Attributes
    ----------
    rows, passes : int
        Rows of a workgroup, and passes over the keys, each for so many rows.
    lanes : int
        Invocations that share a key's row.
    unroll : int
        Keys that an invocation has in flight.
    splits : int
        Of the keys.
    stages : int
        Whether keys are loaded ahead: the shader's STAGES.
    """

    rows: int
    passes: int
    lanes: int
    unroll: int
    splits: int
    stages: int


def units_of(facts: DeviceFacts) -> int:
    """Multiprocessors, as ``tile.resident`` of the kernels for few rows counts them."""
    return max(facts.units // rates_of(facts).decode.unit_cores, 1)


def split_rows(
    choice: Choice, size: int, units: int, heads: int, rows: int, keys: int, dims: tuple[int, int], rates: SplitRates
) -> SplitRows:
    """How a kernel of "attention-decode" shares out ``rows`` query rows of each key head to subgroups of ``size``.

    ``heads`` are the key heads of all samples, ``units`` the device's multiprocessors, and ``dims`` the head dimensions
    of q and of v.
    """
    tile = choice.tile
    if "trip" in tile:  # the matrix kernels: subgroups share a trip's keys in one way only
        passes = -(-rows // tile["rows"])
        sharers = 1 if "together" in tile else choice.threads // size // bands(choice, -(-rows // passes))
        return _split(choice, units, heads, rows, passes, keys, rates, tile["trip"] * sharers)
    if "long" in tile:  # flash-decode-llvmpipe: no keys are split
        passes = -(-rows // max(min(tile["rows"], tile["values"] // max(dims)), 1))
        return SplitRows(-(-rows // passes), passes, 1, 1, 1, 1)
    wide = tile.get("wide", 4 if choice.variant.dtype == "float32" else 8)
    words = max(dims) // wide  # of 16 bytes, or as many numbers as `wide` says, in the longer row
    lanes = 1
    while lanes < size and lanes * max(tile["columns"] // wide, 1) < words:
        lanes *= 2
    held = -(-words // lanes)  # words that an invocation holds
    most = max(min(tile["rows"], tile["values"] // (held * wide)), 1)
    unroll = max(tile["words"] // held, 1)
    trip = size // lanes * unroll * (choice.threads // size)
    found = _split(choice, units, heads, rows, -(-rows // most), keys, rates, trip, lanes, unroll)
    if found.rows > 1 and heads * found.passes * found.splits < tile.get("spread", 0) * units:
        # The device is far from full: reading the keys once more, out of the cache, costs less than waiting.
        passes = -(-rows // (found.rows // 2))
        found = _split(choice, units, heads, rows, passes, keys, rates, trip, lanes, unroll)
    return found


def bands(choice: Choice, rows: int) -> int:
    """Parts of a workgroup's rows, each with subgroups of its own: the shader's BANDS."""
    count, fragment = 1, choice.tile.get("fragment", rows)
    while count * fragment < rows:
        count *= 2
    return count


def _split(
    choice: Choice, units: int, heads: int, rows: int, passes: int, keys: int, rates: SplitRates, trip: int,
    lanes: int = 1, unroll: int = 1,
) -> SplitRows:  # fmt: skip
    """The split for ``heads`` key heads of all batches, whose rows take so many passes."""
    tile = choice.tile
    tiles, at_once = heads * passes, max(tile["resident"] * units, 1)
    fewest = max(-(-keys // MAX_KEYS), 1)
    most = max(min(-(-keys // tile["keys"]), -(-rates.most_waves * at_once // tiles)), fewest)
    share = split_keys(keys, _best(tiles, keys, at_once, rates, range(fewest, most + 1), trip), trip)
    stages = tile["stages"] if share >= tile.get("ahead", 0) * trip else 1
    return SplitRows(-(-rows // passes), passes, lanes, unroll, max(-(-keys // share), 1), stages)


# -- tiles of rows -----------------------------------------------------------------------------------------------------


def packed_heads(queries: int, group: int, rates: TileRates) -> int:
    """Query heads whose rows are in a tile (packed GQA): all ``group`` of a key head where that makes fewer tiles, else
    1."""
    return group if -(-queries * group // rates.rows) < group * -(-queries // rates.rows) else 1


def packs_many(call: AttentionCall, facts: DeviceFacts) -> bool:
    """Whether packed tiles are tried before the kernels of decode.py: few queries, many rows of a key head."""
    rates = rates_of(facts).tiles
    batch, heads, queries, head_dim = call.q.shape
    group = heads // call.k.shape[1]
    work = 2.0 * batch * heads * queries * call.k.shape[2] * (head_dim + call.v.shape[3])
    # A recording for any number of keys has the same number of splits for all of them: decode.py.
    few = queries < rates.rows and packed_heads(queries, group, rates) > 1 and not call.counted
    return few and queries * group > rates.few_rows and work >= rates.much_work


def tile_splits(facts: DeviceFacts, tile: Mapping[str, int], tiles: int, keys: int, most: int) -> int:
    """Into how many splits, at most ``most``, the keys of ``tiles`` tiles of rows are to be cut.

    1 where such tiles are the best without being split, 0 where neither pays.
    """
    rates = rates_of(facts).tiles
    split, at_once = rates.split, max(tile["resident"] * facts.units, 1)
    whole = -(-tiles // at_once) * (keys + split.start_keys)
    most = min(most, keys // split.least_keys, split.most_waves * at_once // tiles)
    best = _best(tiles, keys, at_once, split, range(1, max(most, 1) + 1))
    if best == 1:
        return int(keys >= rates.long_keys and rates.nearly * at_once <= tiles <= at_once)
    cost = split_cost(tiles, best, split_keys(keys, best), at_once, split)
    return best if cost <= (1 - split.saved) * whole else 0


def ragged(queries: int, rates: TileRates) -> bool:
    """Whether tiles of 64 rows leave out many empty rows of tiles of 128."""
    return -(-queries // 128) * 128 * rates.short >= -(-queries // 64) * 64


def tall(call: AttentionCall, facts: DeviceFacts) -> bool:
    """Whether tiles of 256 rows, one for each multiprocessor in a wave, take less time than those of 128 rows.

    The last wave costs as much as a full one where its keys cannot be split.
    """
    rates = rates_of(facts).tiles
    batch, heads, queries, _ = call.q.shape
    kv_heads, keys = call.k.shape[1:3]
    units = max(facts.units, 1)
    large, small = (batch * heads * -(-queries // rows) for rows in (256, 128))
    if has_equal_tiles(call, facts):
        takes = [last_wave(tiles, batch * kv_heads, keys, units, rates).waves for tiles in (large, small)]
    else:
        takes = [-(-tiles // units) for tiles in (large, small)]
    return 2 * rates.tall * takes[0] <= takes[1]


# -- the last wave -----------------------------------------------------------------------------------------------------


class LastWave(NamedTuple):
    """The time of a call of equal tiles, and the split of its last wave.

    Attributes
    ----------
    waves : float
        In waves of whole tiles.
    heads : int
        Key heads, the last of all, whose keys are split; 0 where that does not pay.
    splits : int
        Of each such head's keys.
    """

    waves: float
    heads: int
    splits: int


def last_wave(tiles: int, heads: int, keys: int, at_once: int, rates: TileRates) -> LastWave:
    """The best last wave of ``tiles`` equal tiles of ``heads`` key heads; ``at_once`` workgroups run side by side."""
    tail = rates.tail
    full, left = divmod(tiles, at_once)
    whole = LastWave(float(full + (left > 0)), 0, 0)
    each = tiles // heads
    last = -(-left // each)
    if not 1 <= full <= tail.most_waves or not 0 < last < heads or keys < 2 * tail.least_keys:
        return whole
    wave = keys + tail.start_keys
    busy, more = divmod(tiles - last * each, at_once)  # what the other heads take: waves, and workgroups of one more
    best = LastWave(whole.waves * (1 - tail.saved), 0, 0)
    for splits in range(2, min(keys // tail.least_keys, rates.tail_splits) + 1):
        count = last * each * splits
        takes = (split_keys(keys, splits) + tail.start_keys) / wave
        cost = max(_end(count, takes, at_once, busy, more), busy + (more > 0))
        cost += tail.combine_keys * count / at_once / wave
        best = min(best, LastWave(cost, last, splits))
    return best if best.heads else whole


def _end(count: int, takes: float, at_once: int, busy: int, more: int) -> float:
    """When ``count`` workgroups have ended that take a part of a wave each: ``more`` of their places become free after
    ``busy`` + 1 waves, the others after ``busy``."""
    done, first, later, end = 0, 0, 0, 0.0
    while done < count:
        soon, late = busy + (first + 1) * takes, busy + 1 + (later + 1) * takes
        if soon <= late or not more:
            first, done, end = first + 1, done + at_once - more, soon
        else:
            later, done, end = later + 1, done + more, late
    return end


# -- which calls may be split ------------------------------------------------------------------------------------------


def is_plain(call: AttentionCall, facts: DeviceFacts) -> bool:
    """Whether the kernels of split_kv.py serve a call of any size with these terms."""
    return call.mask is None and not call.options.bits and call.q.dtype.itemsize == 2 and call.whole(facts)


def has_equal_tiles(call: AttentionCall, facts: DeviceFacts) -> bool:
    """Whether the keys of a call's last heads may be split: its tiles are equal, and it has no options."""
    alone = call.kernel is None and call.packed is None and not call.counted
    # Else there would have to be more chunks, which wait for each other where they write to one array.
    flat = all(heads_are_even(layout.shape, layout.strides) for layout in (call.q, call.k, call.v))
    return alone and flat and not call.causal and rates_of(facts).tiles.splits and is_plain(call, facts)


def heads_are_even(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the heads of all samples lie at one stride."""
    return 1 in shape[:2] or strides[0] == shape[1] * strides[1]
