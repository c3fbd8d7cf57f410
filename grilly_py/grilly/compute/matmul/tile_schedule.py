"""How products are partitioned: rows and columns of a workgroup, and workgroups that share a depth (split-K)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...registry import Choice, Registry, Request
from ..device.device import DeviceFacts

#: Bytes that an invocation loads at a time, where a data file's ``bytes`` says nothing else.
_WORD = 16
#: The time of a workgroup that has a multiprocessor for itself, to that of two.
_ALONE = 0.75


class TileSchedule(NamedTuple):
    """The partition of a product.

    Attributes
    ----------
    rows, cols : int
        Rows and columns of a workgroup's tile.
    splits : int
        Workgroups that share the depth of the same tile, and add their sums.
    constants : mapping
        Specialization constants that follow from these.
    """

    rows: int
    cols: int
    splits: int
    constants: Mapping[str, int]


def choose(
    registry: Registry, request: Request, facts: DeviceFacts, rows: int, cols: int, depth: int, divisible: bool = False
) -> Choice:
    """The registry's choice; among kernels of its rank with a ``throughput``, the one whose tiles take the least time.

    Multiprocessors take tiles in waves, so what counts is how many the busiest of them has. Kernels that are slow where
    the depth is not in whole panels state a ``panel``, and are then left out. ``divisible``: the last columns may be
    left to another kernel (``columns_first``).
    """
    first = registry.resolve(request)
    if "throughput" not in first.tile:
        return first
    able = [c for c in registry.equals(request) if "throughput" in c.tile and not depth % c.tile.get("panel", 1)]

    def effort(choice: Choice) -> float:
        most = columns_first(choice, facts, rows, cols, depth) if divisible else cols
        return _effort(choice, facts, rows, most, depth) + _effort_of_rest(choice, facts, rows, cols - most, depth)

    return min(able, key=effort, default=first)


def _blocks(choice: Choice, rows: int, cols: int) -> int:
    return -(-rows // choice.tile["rows"]) * -(-cols // choice.tile["cols"])


def _waves(choice: Choice, facts: DeviceFacts, rows: int, cols: int, splits: int = 1) -> float:
    """How many tiles the busiest multiprocessor takes, where each has ``resident`` of them at a time."""
    resident = choice.tile.get("resident", 1)
    whole, rest = divmod(_blocks(choice, rows, cols) * splits, resident * facts.units)
    last = max(-(-rest // facts.units) / resident, _ALONE) if rest else 0
    return resident * (whole + last)


def _effort(choice: Choice, facts: DeviceFacts, rows: int, cols: int, depth: int) -> float:
    return _effort_of(choice, facts, rows, cols, depth, _splits(choice, facts, rows, cols, depth))


def _effort_of(choice: Choice, facts: DeviceFacts, rows: int, cols: int, depth: int, splits: int) -> float:
    """The time of a product, where so many workgroups share the depth of a tile."""
    tile = choice.tile
    share = -(-depth // splits) + tile["start"] + (tile.get("join", 0) if splits > 1 else 0)
    return _waves(choice, facts, rows, cols, splits) * tile["rows"] * tile["cols"] * share / tile["throughput"]


def _splits(choice: Choice, facts: DeviceFacts, rows: int, cols: int, depth: int) -> int:
    """How many workgroups share the depth of a tile."""
    tile = choice.tile
    if "join" in tile:
        most = max(min(tile["splits"], depth // tile["least"]), 1)
        return min(range(1, most + 1), key=lambda n: _effort_of(choice, facts, rows, cols, depth, n))
    splits, wanted = 1, tile.get("fill", 0) * facts.units
    blocks = _blocks(choice, rows, cols)
    while 2 * splits * blocks <= wanted and depth >= 2 * splits * tile["least"] and splits < tile["splits"]:
        splits *= 2
    return 1 if depth - depth / splits < tile.get("combine", 0) else splits


def _effort_of_rest(choice: Choice, facts: DeviceFacts, rows: int, cols: int, depth: int) -> float:
    """The time of the columns left to a kernel with smaller tiles, which all multiprocessors share."""
    if not cols:
        return 0.0
    return rows * cols * (depth + choice.tile["start"]) / (choice.tile["rest"] * facts.units)


def columns_first(choice: Choice, facts: DeviceFacts, rows: int, cols: int, depth: int) -> int:
    """How many of a product's columns a kernel should compute (wave quantization): all, or those of whole rounds.

    Where a last round of tiles would leave most of the device idle, its columns are a product of their own, for a
    kernel with smaller tiles. Kernels that gain by this state the throughput of that other one, ``rest``.
    """
    tile = choice.tile
    if "rest" not in tile:
        return cols
    waves = -(-_blocks(choice, rows, cols) // facts.units)
    fewer = (waves - 1) * facts.units // -(-rows // tile["rows"]) * tile["cols"]
    if not 0 < fewer < cols:
        return cols
    saved = _effort(choice, facts, rows, cols, depth) / waves
    return fewer if _effort_of_rest(choice, facts, rows, cols - fewer, depth) < saved else cols


def tile_schedule(
    choice: Choice, facts: DeviceFacts, rows: int, cols: int, depth: int, itemsize: int, paired: bool = False
) -> TileSchedule:
    """The partition of a product of ``(rows, depth)`` and ``(cols, depth)``, elements of ``itemsize`` bytes.

    A data file's ``columns`` marks the kernels that are made for few rows. ``paired``: two columns make one of the
    result, so none is tiling out alone; of those kernels only.
    """
    tile = choice.tile
    if "held" in tile:
        return _held(choice, facts, rows, cols, depth, itemsize, 2 if paired else 1)
    if tile.get("transposed"):
        return _few_transposed(choice, facts, rows, cols, depth)
    if "columns" not in tile:
        return _tiles(choice, facts, rows, cols, depth)
    if "trip" in tile:
        return _few_on_matrices(choice, facts, cols, depth)
    return _few(choice, facts, rows, cols, depth, itemsize, 2 if paired else 1)


def _tiles(choice: Choice, facts: DeviceFacts, rows: int, cols: int, depth: int) -> TileSchedule:
    """Tiles of fixed size; where they are too few for the device, several workgroups share a tile's depth."""
    splits = _splits(choice, facts, rows, cols, depth)
    return TileSchedule(choice.tile["rows"], choice.tile["cols"], splits, {"SPLITS": splits})


def _few_transposed(choice: Choice, facts: DeviceFacts, rows: int, cols: int, depth: int) -> TileSchedule:
    """matmul/linear-rows-transposed.comp: as ``_tiles``, with no more rows than the product has."""
    tiling = _tiles(choice, facts, rows, cols, depth)
    taken = min(1 << (rows - 1).bit_length(), tiling.rows)
    return tiling._replace(rows=taken, constants={**tiling.constants, "ROWS": taken})


def _few(
    choice: Choice, facts: DeviceFacts, rows: int, cols: int, depth: int, itemsize: int, least: int
) -> TileSchedule:
    """matmul/linear-rows.comp: as many subgroups as the device wants, each with as much of W as it can have."""
    tile = choice.tile
    size = choice.subgroup_size or facts.subgroup_size
    subgroups = choice.threads // size
    words = max(-(-depth * itemsize // tile.get("bytes", _WORD)), 1)
    wanted = tile["fill"] * facts.units
    most = min(tile["deep"], subgroups)
    while most > 1 and words < 2 * size * most:  # for less than two words each the sums at the end weigh too much
        most //= 2
    columns, deep = max(tile["columns"], least), 1
    # Several rows of x are read once for all columns, so those are given up last; one row costs little.
    while columns > least and -(-cols // columns) * (most if rows > 1 else 1) < wanted:
        columns //= 2
    while 2 * deep <= most and -(-cols // columns) * deep < wanted:
        deep *= 2
    own = max(-(-words // (size * deep)), 1)
    trips = -(-own // max(tile["words"] // columns, 1))
    taken = min(1 << (rows - 1).bit_length(), tile["rows"])
    known = {
        "ROWS": taken, "COLUMNS": columns, "UNROLL": -(-own // trips), "DEEP": deep, "SUBGROUP": size,
        "THREADS": choice.threads,
    }  # fmt: skip
    return TileSchedule(taken, columns * (subgroups // deep), 1, known)


def _held(
    choice: Choice, facts: DeviceFacts, rows: int, cols: int, depth: int, itemsize: int, paired: int
) -> TileSchedule:
    """matmul/linear-llvmpipe.comp: a subgroup holds a row of x, where it can, and has columns as long as every
    core has some workgroups."""
    tile, size = choice.tile, choice.subgroup_size
    words = max(-(-depth * itemsize // tile["bytes"]), 1)
    columns = tile["cols"] // paired
    while columns > 8 and -(-cols // (columns * paired)) < tile["fill"] * facts.units:
        columns //= 2
    taken = min(rows, tile["rows"])
    own = -(-words // size)
    if own * taken > tile["held"]:
        own = tile["trip"]
    trips = -(-words // (own * size))
    ragged = int(words < own * size * trips)
    known = {"ROWS": taken, "COLUMNS": columns, "WORDS": own, "TRIPS": trips, "RAGGED": ragged}
    return TileSchedule(taken, columns * paired, 1, known)


def _few_on_matrices(choice: Choice, facts: DeviceFacts, cols: int, depth: int) -> TileSchedule:
    """matmul/linear-rows-matrix.comp: subgroups side by side read x once for all of them, so they divide the depth
    only as far as there are too few columns for the device."""
    tile = choice.tile
    subgroups = choice.threads // (choice.subgroup_size or facts.subgroup_size)
    blocks = -(-cols // tile["columns"])
    trips = max(-(-depth // tile["trip"]), 1)
    wanted = tile["fill"] * facts.units
    deep = 1
    while 2 * deep <= min(tile["deep"], subgroups) and blocks * deep < wanted and trips >= 2 * deep:
        deep *= 2
    splits = 1
    # Workgroups that wait for each other pay only where half of the device would be idle.
    while 2 * blocks * deep * splits <= wanted and trips >= 4 * deep * splits and splits < tile["splits"]:
        splits *= 2
    known = {"DEEP": deep, "SPLITS": splits, "THREADS": choice.threads}
    return TileSchedule(tile["rows"], tile["columns"] * (subgroups // deep), splits, known)
