"""The plan of a call of attention: which kernel, which dispatches. All of it is pure functions of data."""

from __future__ import annotations

import dataclasses
import math

from ...registry import Choice, Registry, Request
from ...registry.measured import bucket
from ..device.device import DeviceFacts
from ..device.plan import Planner
from . import added, decode, shares, tails
from . import classes as classes_
from .call import MAX_KEYS, AttentionCall, mask_kind
from .operands import FLOAT32, WORDS, AttentionPlan, aligned, header, operands, outputs, words_slot
from .pieces import Piece, split

#: Tiles of 64 rows are taken where they compute at most SAVED of the rows that tiles of 128 would. Tiles of 256 rows
#: take TALL of the time of two of 128. Measured on an H200: docs/benchmarks/h200-shapes.md.
SAVED, TALL = 6 / 7, 0.93
#: The narrowest heads computed from 16-bit parts: sums of fewer products are more exact in plain float32.
SPLIT_DIM = 16


def ragged(queries: int) -> bool:
    """Whether tiles of 64 rows leave out much of what tiles of 128 rows would compute: their empty ends."""
    return -(-queries // 128) * 128 * SAVED >= -(-queries // 64) * 64


def tall(call: AttentionCall, facts: DeviceFacts) -> bool:
    """Whether tiles of 256 rows, one for each multiprocessor in a round, take less time than those of 128 rows.

    The last round costs as much as a full one where its keys cannot be shared out.
    """
    batch, heads, queries, _ = call.q.shape
    kv_heads, keys = call.k.shape[1:3]
    units = max(facts.units, 1)
    large, small = (batch * heads * -(-queries // rows) for rows in (256, 128))
    if tails.divisible(call, facts):
        takes = [tails.rounds(tiles, batch * kv_heads, keys, units)[0] for tiles in (large, small)]
    else:
        takes = [-(-tiles // units) for tiles in (large, small)]
    return 2 * TALL * takes[0] <= takes[1]


def request(call: AttentionCall, facts: DeviceFacts) -> Request:
    """What the registry is asked for."""
    batch, heads, queries, head_dim = call.q.shape
    o, _, _ = outputs(Planner(facts, [call.q]), call)
    # Rounded, so that the registry sees few different requests.
    counts = bucket({"keys": call.k.shape[2], "rows": batch * heads * queries})
    asked = (
        ("align", aligned(call, o._steps)), ("causal", int(call.causal)), ("head_dim", head_dim),
        ("high", int(call.high and call.q.dtype == FLOAT32 and head_dim >= SPLIT_DIM)), *counts.items(),
        ("ragged", int(ragged(queries))), ("tall", int(tall(call, facts))),
        ("value_dim", call.v.shape[3]),
        *call.options.asked,
    )  # fmt: skip
    return Request("attention", call.q.dtype.name, facts=asked, prefer=call.kernel)


def planned(call: AttentionCall, facts: DeviceFacts, registry: Registry) -> AttentionPlan:
    """The plan of a call with the kernel that serves it best.

    Raises UnsupportedError where there is none, and WideBias where the bias must be float32.
    """
    if 0 in (*call.q.shape[:3], call.v.shape[3]):
        planner = Planner(facts, [call.q, call.k, call.v, call.mask, call.bias, None])
        return AttentionPlan(planner.plan(*outputs(planner, call)[2]), None, call.counted)
    wide = added.widened(call) if added.is_narrow(call) else call
    few = None
    for way in (shares, decode) if shares.crowded(call) else (decode, shares):
        if few is None and call.packed is None and call.kernel in (None, *way.FAMILIES):
            few = way.plan(wide, facts, registry)
    if few is not None:
        if wide is not call:
            raise added.WideBias
        return few
    for choice in classes_.kernels(call, facts, registry, request(call, facts)):
        found = plan(call, facts, choice, registry)
        if found is not None:
            return found
    raise AssertionError("the last kernel takes every call")


def plan(call: AttentionCall, facts: DeviceFacts, choice: Choice, registry: Registry) -> AttentionPlan | None:
    """The plan of a call with a kernel; None for one of "attention-tiled" that the call has no classes for.

    ``registry`` is asked for the kernels that make classes of tiles. Raises WideBias.
    """
    options = call.options
    planner = Planner(facts, [call.q, call.k, call.v, call.mask, call.bias, WORDS if options.contents else None])
    q, k, v, mask, bias, given = planner.inputs
    o, sums, results = outputs(planner, call)
    batch, heads, queries, head_dim = q.shape
    most = MAX_KEYS if q.dtype == FLOAT32 else math.inf  # a 16-bit result is rounded more coarsely at every merge
    max_keys = max(min(most, facts.loop_trips * choice.keys_per_trip), 1)
    shift = call.shift + options.right
    piece = Piece(q, k, v, o, sums, mask, shift, False, bias, call.first, bool(options.page_steps))
    # Of other calls the pace depends on what their masks and lengths hide.
    free = mask is None and not options.bits
    kind = (choice.variant.name, head_dim, v.shape[3], call.causal) if free else None
    pieces = split(facts, piece, max_keys, kind)
    if sums is None and any(p.merge for p in pieces):
        sums = planner.empty((batch, heads, queries))
        pieces = split(facts, dataclasses.replace(piece, lse=sums), max_keys, kind)
    end = tails.tail(call, facts, registry, choice.tile["rows"]) if len(pieces) == 1 else None
    last = None
    if end is not None:
        *pieces, last = tails.cut(piece, end.heads)
    classes = classes_.plan(facts, registry, choice, pieces, options, call.causal)
    if classes is None and choice.variant.operation == "attention-tiled":
        return None
    bits = options.bits | added.features(choice, pieces, facts, options.bits)
    features = [bits] if classes is None else classes_.features(choice, call, bits)
    headers = []
    if any(features):
        tiles = [None] * len(pieces) if classes is None else [c.header() for c in classes]
        headers = [header(facts, *pair) for pair in zip(pieces, tiles, strict=True)]
    words, made = words_slot(planner, call, given, headers)
    constants = {
        "HEAD_DIM": head_dim, "VALUE_DIM": v.shape[3], "MASK": mask_kind(mask),
        "CAUSAL": int(call.causal), "LSE": int(sums is not None),
    }  # fmt: skip
    if "FEATURES" in choice.variant.constants:
        own = [{**constants, "FEATURES": bits} for bits in features]
    else:
        own = [constants]
    counted = call.counted and all(p.k.shape[2] == k.shape[2] for p in pieces)
    group = heads // k.shape[1]
    for number, p in enumerate(pieces):
        tiles = None if classes is None else classes[number].dispatch(planner, registry, words, p.mask)
        place = made.places[number] if made else 0
        arrays, push = operands(choice, p, group, call.scale, words, place, tiles, counted)
        batch, heads, queries, _ = p.q.shape
        groups = (-(-queries // choice.tile["rows"]), heads, batch)
        for values in own:
            merged = {**values, "MERGE": int(p.merge)}
            planner.dispatch(choice, merged, arrays, push, groups, p.flops() / len(own), kind)
    if last is not None:
        shares.share_out(planner, registry, end.choice, call, last, end.shares, 1)
    return AttentionPlan(planner.plan(*results), made, counted)
