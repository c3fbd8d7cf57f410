"""Measured rates by which schedule.py shares attention out over workgroups, for each kind of device and of kernel.

What depends on one kernel alone (rows of a tile, workgroups of a multiprocessor) stands in the data file of its shader.
Times are in keys: one key is what a workgroup needs for the products of its rows with one more key and its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..device.device import DeviceFacts


class SplitRates(NamedTuple):
    """Rates of kernels among whose workgroups the keys of a tile of rows are split (split-KV).

    Attributes
    ----------
    start_keys : int
        What a workgroup does before its first key and after its last, in keys.
    combine_keys : int
        What writing the partial result of a split and combining it costs, in keys.
    least_keys : int
        Keys of a split at least.
    most_waves : int
        Waves of workgroups: that splits make at most, or beyond which the last wave no longer matters.
    saved : float
        Part of the time of whole tiles that splits must save.
    """

    start_keys: int
    combine_keys: int
    least_keys: int
    most_waves: int
    saved: float


class DecodeRates(NamedTuple):
    """Rates of the kernels for few rows ("attention-decode").

    Attributes
    ----------
    split : SplitRates
        Without ``saved``. ``least_keys`` are those of a call; a split's stand with each kernel, as ``tile.keys``.
    few_queries : mapping of int to int
        By bytes of an element: queries of a head up to which these kernels are the fastest.
    idle_rows : mapping of int to int
        By bytes of an element: rows for each multiprocessor up to which tiles would leave the device idle.
    many_queries : int
        As ``few_queries``, for kernels whose workgroups take many rows of a key head.
    whole_queries, whole_values : int
        Queries of a head, and queries times the head dimension, up to which a kernel that splits no keys is the fastest
        whatever the keys; 0 where there is none.
    unit_cores : int
        Of ``DeviceFacts.units``, how many are one multiprocessor, as ``tile.resident`` counts them.
    """

    split: SplitRates
    few_queries: Mapping[int, int]
    idle_rows: Mapping[int, int]
    many_queries: int
    whole_queries: int
    whole_values: int
    unit_cores: int


class TileRates(NamedTuple):
    """Rates of the kernels with tiles of 64, 128 and 256 rows ("attention", "attention-split-kv").

    Attributes
    ----------
    splits : bool
        Whether the keys of tiles are split at all.
    split : SplitRates
        Of calls all of whose tiles are split, and combined by a second dispatch.
    long_keys, nearly : int, float
        Keys from which on unsplit tiles of those kernels are faster than smaller tiles, where they fill a wave to this
        part or more.
    tail : SplitRates
        Of the last heads of a call, split to fill the last wave.
    tail_splits : int
        Splits of such a head's keys at most.
    rows : int
        Of the tallest tile for packed GQA.
    few_rows, much_work : int, float
        Up to so many rows of a key head, or below so many floating-point operations, "attention-decode" is faster than
        packed GQA in such tiles.
    short : float
        Tiles of 64 rows are taken where they compute at most this part of the rows that tiles of 128 would.
    tall : float
        A tile of 256 rows takes this part of the time of two of 128.
    """

    splits: bool
    split: SplitRates
    long_keys: int
    nearly: float
    tail: SplitRates
    tail_splits: int
    rows: int
    few_rows: int
    much_work: float
    short: float
    tall: float


class Rates(NamedTuple):
    """The rates of a device, by kind of kernel."""

    decode: DecodeRates
    tiles: TileRates


_GPU = Rates(
    DecodeRates(
        SplitRates(
            start_keys=256,  # decides between numbers of splits that are otherwise equal; an estimate
            combine_keys=0,  # the last workgroup combines, in the same dispatch
            least_keys=512,  # fewer are no work for a device, whoever does them; an estimate
            most_waves=4,  # beyond it hardly matters that the last wave is filled in part; an estimate
            saved=0.0,
        ),
        # The keys are read once for every few rows; a tile has 64 or 128, mostly padding. 16-bit tiles may have matrix
        # units. Estimated from bytes and operations: docs/benchmarks/decode.md.
        few_queries={2: 6, 4: 16},
        idle_rows={2: 12, 4: 32},  # twice those queries: the same estimate
        many_queries=16,  # of 4 heads 64 rows, for which the keys are read once; a tile has 64 of one head. An estimate
        whole_queries=0,
        whole_values=0,
        unit_cores=1,
    ),
    TileRates(
        splits=True,
        split=SplitRates(
            start_keys=256,  # an estimate
            # A float32 row is written and read: at 4.3 TB/s as long as its products with 140 keys at 300 TFLOP/s. H200.
            combine_keys=140,
            least_keys=512,  # about as long as a workgroup's beginning and end; an estimate
            most_waves=4,  # as above
            saved=0.1,  # an estimate
        ),
        # H200, 512 queries of 32 heads, 8192 keys: 236 us in such tiles, 275 in smaller ones (docs, decode.md).
        long_keys=4096,  # an estimate between that and few keys
        nearly=0.8,  # likewise
        # Measured on an H200 as a whole: docs/benchmarks/h200-matrix.md, "The last round".
        tail=SplitRates(
            start_keys=256,  # as of whole calls
            combine_keys=140,  # likewise
            least_keys=256,  # 6 % of (3, 16, 1500, 128) are saved with 256
            most_waves=12,  # one of thirteen waves is less than must be saved
            saved=0.08,  # what is saved is 6 % less than predicted
        ),
        tail_splits=8,  # an estimate
        rows=128,  # the kernels' tiles: shaders/attention/flash-attention3-split-kv.toml
        few_rows=16,  # H200, 29 random shapes: docs/benchmarks/decode.md, "Rows of all heads of a key head in one tile"
        much_work=1e9,  # floating-point operations; likewise
        short=6 / 7,  # H200, docs/benchmarks/h200-shapes.md
        tall=0.93,  # likewise
    ),
)  # fmt: skip

#: By the name of an architecture; "gpu" for all others.
RATES = {
    "gpu": _GPU,
    # A processor is filled by less, and its core runs one workgroup at a time, through those without keys too, where a
    # multiprocessor runs eight and leaves such ones at once. Two cores, docs/benchmarks/decode.md and lavapipe.md.
    "llvmpipe": Rates(
        _GPU.decode._replace(
            few_queries={2: 1, 4: 1},
            idle_rows={2: 0, 4: 0},
            many_queries=0,
            # flash-decode-llvmpipe computes what rows there are, and tiles have 8 or 16.
            whole_queries=8,
            whole_values=1024,
            unit_cores=8,
        ),
        _GPU.tiles._replace(splits=False),
    ),
}


def rates_of(facts: DeviceFacts) -> Rates:
    """The rates of a device."""
    return RATES.get(facts.architecture) or RATES["gpu"]
