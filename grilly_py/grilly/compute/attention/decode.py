"""Attention of few queries over many keys: the keys are split over the device, and the last workgroup joins the splits.

The plan of the families flash-decode and flash-decode-matrix, used by plan.py: when it pays, how rows, invocations and
keys are dealt out, and the prepared call; and that of flash-decode-llvmpipe, which splits no keys.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ...errors import UnsupportedError
from ...registry import Choice, Registry, Request
from ...registry.measured import bucket
from ...registry.shared import extras_bits
from ..device.device import DeviceFacts
from ..device.plan import Planner
from .call import MAX_KEYS, AttentionCall, mask_kind
from .operands import WORDS, AttentionPlan, aligned, header, operands, outputs, words_slot
from .pieces import Piece

_WINDOW, _PREFIX, _LENGTHS = (extras_bits((name,)) for name in ("window", "prefix", "lengths"))
FAMILY = "flash-decode"
MATRIX_FAMILY = "flash-decode-matrix"
PROCESSOR_FAMILY = "flash-decode-llvmpipe"
FAMILIES = (FAMILY, MATRIX_FAMILY, PROCESSOR_FAMILY)
# Fewer keys than this are no work for a device, whoever does them.
FEWEST_KEYS = 512
# What a workgroup does before its first key and after its last, in keys: decides between numbers of splits that are
# otherwise equally good.
START_KEYS = 256
# Rounds of workgroups after which it no longer matters that the last fills only a part of the device.
ROUNDS = 4
# A processor's core runs one workgroup at a time, and walks through those without keys too; a multiprocessor runs eight
# (`resident`), and leaves such ones at once.
CORES = 8
# Queries up to which reading the keys again for every few rows costs less than a tile of 64 or 128 rows that are mostly
# padding; by bytes of an element, as 16-bit tiles may have matrix units. docs/benchmarks/decode.md has the estimate.
FEW_QUERIES = {2: 6, 4: 16}
# The same for a kernel whose workgroups take many rows of a key head: so many queries of four heads are 64 rows, for
# which it reads the keys once, and a tile has 64 rows of one head.
MANY_QUERIES = 16
# The same for flash-decode-llvmpipe, which computes what rows there are where tiles have 8 or 16.
PROCESSOR_QUERIES = 8
PROCESSOR_VALUES = 1024


def pays(
    facts: DeviceFacts, itemsize: int, batch: int, heads: int, queries: int, keys: int, many: bool = False
) -> bool:
    """Whether splitting the keys is faster than the kernels that walk all keys of a tile of queries.

    ``many`` says that a kernel would do it whose workgroups take many rows.
    """
    if keys < FEWEST_KEYS:
        return False
    if facts.architecture == "llvmpipe":  # a processor is filled by less: docs/benchmarks/decode.md
        return queries == 1
    few = FEW_QUERIES[itemsize]
    if many and queries <= MANY_QUERIES:
        return True
    return queries <= few or batch * heads * queries <= 2 * few * facts.units  # else tiles would fill the device


def pays_on_processors(queries: int, dim: int) -> bool:
    """Whether flash-decode-llvmpipe is faster than the kernels that compute a tile of queries, whatever the keys.

    ``dim`` is the wider of a key's and a value's row. Measured: docs/benchmarks/lavapipe.md.
    """
    return queries <= PROCESSOR_QUERIES and queries * dim <= PROCESSOR_VALUES


@dataclasses.dataclass(frozen=True)
class Deal:
    """How a call is dealt out: rows of a workgroup and passes over the keys, invocations that share a key's row, keys
    an invocation has in flight, splits of the keys, and whether keys are loaded ahead (the shader's STAGES)."""

    rows: int
    passes: int
    lanes: int
    unroll: int
    splits: int
    stages: int


def deal(
    choice: Choice, size: int, units: int, batch: int, kv_heads: int, rows: int, keys: int, dims: tuple[int, int]
) -> Deal:
    """How to deal out ``rows`` query rows a key head to subgroups of ``size``; ``dims`` are q's and v's."""
    tile = choice.tile
    if "trip" in tile:  # the matrix kernel: subgroups deal with a trip's keys in one way only
        passes = -(-rows // tile["rows"])
        sharers = choice.threads // size // bands(choice, -(-rows // passes))
        return _share(choice, units, batch * kv_heads, rows, passes, keys, tile["trip"] * sharers)
    if "long" in tile:  # flash-decode-llvmpipe: no keys are split
        passes = -(-rows // max(min(tile["rows"], tile["values"] // max(dims)), 1))
        return Deal(-(-rows // passes), passes, 1, 1, 1, 1)
    wide = 4 if choice.variant.dtype == "float32" else 8
    words = max(dims) // wide  # of 16 bytes, in the longer row
    lanes = 1
    while lanes < size and lanes * max(tile["columns"] // wide, 1) < words:
        lanes *= 2
    held = -(-words // lanes)  # words that an invocation holds
    most = max(min(tile["rows"], tile["values"] // (held * wide)), 1)
    unroll = max(tile["words"] // held, 1)
    step = size // lanes * unroll * (choice.threads // size)
    dealt = _share(choice, units, batch * kv_heads, rows, -(-rows // most), keys, step, lanes, unroll)
    if dealt.rows > 1 and batch * kv_heads * dealt.passes * dealt.splits < tile.get("spread", 0) * units:
        # The device is far from full: reading the keys once more, out of the cache, costs less than waiting.
        passes = -(-rows // (dealt.rows // 2))
        dealt = _share(choice, units, batch * kv_heads, rows, passes, keys, step, lanes, unroll)
    return dealt


def bands(choice: Choice, rows: int) -> int:
    """Into how many parts a workgroup's rows are cut, each for subgroups of its own: the shader's BANDS."""
    count, fragment = 1, choice.tile.get("fragment", rows)
    while count * fragment < rows:
        count *= 2
    return count


def _share(choice, units, heads, rows, passes, keys, step, lanes=1, unroll=1) -> Deal:
    """The deal for ``heads`` key heads of all batches; ``step`` keys are a trip of a workgroup.

    The device runs ``resident`` workgroups for each unit in a round, or in a whole number of them, and a round that
    fills only a part of the device costs as much as a full one.
    """
    tile = choice.tile
    teams, at_once = heads * passes, max(tile["resident"] * units, 1)
    fewest = max(-(-keys // MAX_KEYS), 1)
    most = max(min(-(-keys // tile["keys"]), -(-ROUNDS * at_once // teams)), fewest)

    def share(splits: int) -> int:
        return -(-max(keys, 1) // (splits * step)) * step  # whole trips of a workgroup

    best = min(range(fewest, most + 1), key=lambda n: -(-teams * n // at_once) * (share(n) + START_KEYS))
    stages = tile["stages"] if share(best) >= tile.get("ahead", 0) * step else 1
    return Deal(-(-rows // passes), passes, lanes, unroll, max(-(-keys // share(best)), 1), stages)


def plan(call: AttentionCall, facts: DeviceFacts, registry: Registry) -> AttentionPlan | None:
    """The call planned; None where it does not pay or cannot be done.

    Raises UnsupportedError instead of returning None when the call's ``kernel`` names a family.
    """
    family, whole, options = call.kernel, call.whole(facts), call.options
    forced = family is not None
    batch, heads, queries, head_dim = call.q.shape
    kv_heads, keys, value_dim = call.k.shape[1], call.k.shape[2], call.v.shape[3]
    bits, right = options.bits, options.right
    walked = keys  # that a row of queries sees
    if call.causal and bits & _WINDOW and not bits & _PREFIX:
        walked = min(keys, options.left + right + queries)
    few, group = (facts, call.q.dtype.itemsize, batch, heads, queries, walked), heads // kv_heads
    # Which kernel there is, only the registry knows; it is not asked where none would do.
    long = FAMILY if facts.architecture == "llvmpipe" and walked > MAX_KEYS else None  # these are to be split
    processor = facts.architecture == "llvmpipe" and pays_on_processors(queries, max(head_dim, value_dim))
    if not forced and (not whole or not (processor or pays(*few, many=call.q.dtype.itemsize == 2))):
        return None
    # The last row of a call sees every key. With lengths a block's row stands where its sample's own say.
    anywhere = options.partial and bits & _LENGTHS
    causal = call.causal and (queries > 1 or anywhere or call.shift + right < keys - 1)
    masked = call.mask is not None or causal
    planner = Planner(facts, [call.q, call.k, call.v, call.mask, call.bias, WORDS if options.contents else None])
    q, k, v, mask, bias, given = planner.inputs
    o, sums, results = outputs(planner, call)
    asked = (
        ("align", aligned(call, o._steps)), ("head_dim", head_dim), ("value_dim", value_dim), ("masked", int(masked)),
        *bucket({"rows": group * queries}).items(),
        *options.asked,
    )  # fmt: skip
    try:
        choice = registry.resolve(Request("attention-decode", call.q.dtype.name, facts=asked, prefer=family or long))
    except UnsupportedError:
        if forced:
            raise
        return None
    alone = choice.variant.family == PROCESSOR_FAMILY  # a workgroup has all keys of its rows
    if not (forced or (alone and processor) or pays(*few, many=alone or "trip" in choice.tile)):
        return None
    size = choice.subgroup_size or facts.subgroup_size
    units = max(facts.units // CORES, 1) if facts.architecture == "llvmpipe" else facts.units
    dealt = deal(choice, size, units, batch, kv_heads, group * queries, walked, (head_dim, value_dim))
    teams = batch * kv_heads * dealt.passes
    parts_bytes = 4 * teams * dealt.splits * dealt.rows * (value_dim + 4)
    groups = (dealt.splits * dealt.passes, kv_heads, batch)
    work = 2.0 * batch * heads * queries * walked * (head_dim + value_dim)
    for true, problem in (
        (not whole or not facts.holds(max(parts_bytes, o._storage.nbytes)), "an array is beyond a binding"),
        (any(n > most for n, most in zip(groups, facts.groups, strict=True)),
         f"{groups} workgroups are beyond the device's limits"),
        (work > facts.work_limit, "one submission would take too long"),
        (alone and walked > min(facts.loop_trips * choice.keys_per_trip, MAX_KEYS), f"{walked} keys are too many"),
    ):  # fmt: skip
        if true:
            if forced:
                raise UnsupportedError(f"{family}: {problem}; leave the kernel to the registry (kernel=None)")
            return None
    constants = {
        "HEAD_DIM": head_dim, "VALUE_DIM": value_dim, "CAUSAL": int(causal), "LSE": int(call.lse), "MERGE": 0,
        "MASK": mask_kind(mask), "FEATURES": bits,
        "ROWS": dealt.rows, "LANES": dealt.lanes, "UNROLL": dealt.unroll, "SUBGROUP": size,
        "THREADS": choice.threads, "STAGES": dealt.stages, "SPLIT_KEYS": choice.tile.get("keys", 0),
        "LONG": int(walked >= choice.tile.get("long", walked + 1)),
    }  # fmt: skip
    constants = {name: value for name, value in constants.items() if name in choice.variant.constants}
    piece = Piece(q, k, v, o, sums, mask, call.shift + right, False, bias, call.first)
    words, made = words_slot(planner, call, given, [header(facts, piece)] if bits else [])
    place = made.places[0] if made else 0
    arrays, push = operands(choice, piece, group, call.scale, words, place, counted=call.counted)
    # Zero before and after every dispatch. Calls of the plan that are in flight together do not meet in it.
    if "arrived" in choice.variant.bindings:
        arrived = planner.constant(np.zeros(teams, np.int32))
        arrays |= {"parts": planner.empty((parts_bytes // 4,)), "arrived": arrived}
    planner.dispatch(choice, constants, arrays, push, groups, work)
    return AttentionPlan(planner.plan(*results), made, call.counted)
