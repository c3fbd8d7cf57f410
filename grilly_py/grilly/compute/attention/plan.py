"""The plan of a call of attention: its kernel and its dispatches. Pure functions of data."""

from __future__ import annotations

import dataclasses
import math

from ...errors import UnsupportedError
from ...registry import Choice, Registry, Request
from ...registry.measured import bucket
from ..device.device import NO_PACES, DeviceFacts, Throughputs
from ..device.plan import Planner
from . import added, decode, schedule, split_kv, tile_classes
from .call import MAX_KEYS, AttentionCall, mask_kind
from .chunks import Chunk, split
from .operands import FLOAT32, PARAMETERS, AttentionPlan, aligned, block, filling_of, operands, outputs, parameters_slot
from .rates import rates_of

#: The narrowest heads computed from 16-bit parts: sums of fewer products are more exact in plain float32.
SPLIT_DIM = 16


def request(call: AttentionCall, facts: DeviceFacts) -> Request:
    """The request for a kernel with tiles of rows."""
    batch, heads, queries, head_dim = call.q.shape
    o, _, _ = outputs(Planner(facts, [call.q]), call)
    # Rounded, so that the registry sees few different requests.
    counts = bucket({"keys": call.k.shape[2], "rows": batch * heads * queries})
    asked = (
        ("align", aligned(call, o._strides)), ("causal", int(call.causal)), ("head_dim", head_dim),
        ("high", int(call.high and call.q.dtype == FLOAT32 and head_dim >= SPLIT_DIM)), *counts.items(),
        ("ragged", int(schedule.ragged(queries, rates_of(facts).tiles))), ("tall", int(schedule.tall(call, facts))),
        ("value_dim", call.v.shape[3]),
        *call.options.asked,
    )  # fmt: skip
    return Request("attention", call.q.dtype.name, problem=asked, prefer=call.kernel)


def reads_narrow_bias(call: AttentionCall, facts: DeviceFacts, registry: Registry) -> bool:
    """Whether the kernel for a call reads its bias of 16 bits; else the bias must become float32 before ``planned``.

    Raises UnsupportedError where there is no kernel.
    """
    if _is_empty(call):
        return True  # no kernel runs
    if _planned_split(added.widened(call), facts, registry) is not None:
        return False
    choice = next(tile_classes.kernels(call, facts, registry, request(call, facts)))
    return bool(choice.variant.offered & added.BIAS_HALVES)


def planned(
    call: AttentionCall, facts: DeviceFacts, registry: Registry, throughputs: Throughputs = NO_PACES
) -> AttentionPlan:
    """The plan of a call with the kernel that serves it best; a bias of 16 bits as of ``reads_narrow_bias``.

    ``throughputs`` are what the device was seen to do (``Device.throughputs``).

    Raises UnsupportedError where there is no kernel.
    """
    if _is_empty(call):
        planner = Planner(facts, [call.q, call.k, call.v, call.mask, call.bias, None])
        return AttentionPlan(planner.plan(*outputs(planner, call)[2]), None, call.counted)
    split = None if added.is_narrow(call) else _planned_split(call, facts, registry)
    if split is not None:
        return split
    if call.bits:
        raise UnsupportedError(f"attention: no kernel reads a cache of {call.bits} bits in this call")
    for choice in tile_classes.kernels(call, facts, registry, request(call, facts)):
        found = plan(call, facts, choice, registry, throughputs)
        if found is not None:
            return found
    raise AssertionError("the last kernel takes every call")


def _is_empty(call: AttentionCall) -> bool:
    """Whether the output has no elements."""
    return 0 in (*call.q.shape[:3], call.v.shape[3])


def _planned_split(call: AttentionCall, facts: DeviceFacts, registry: Registry) -> AttentionPlan | None:
    """The plan of a call whose keys are split among workgroups; None where that does not pay."""
    if call.packed is not None:
        return None
    if call.bits:
        return decode.plan(call, facts, registry)
    for way in (split_kv, decode) if schedule.packs_many(call, facts) else (decode, split_kv):
        if call.kernel in (None, *way.FAMILIES):
            found = way.plan(call, facts, registry)
            if found is not None:
                return found
    return None


def plan(
    call: AttentionCall, facts: DeviceFacts, choice: Choice, registry: Registry, throughputs: Throughputs = NO_PACES
) -> AttentionPlan | None:
    """The plan of a call with a kernel; None for one of "attention-tiled" where the call has no classes.

    ``registry`` has the kernels that make classes of tiles.
    """
    options = call.options
    planner = Planner(facts, [call.q, call.k, call.v, call.mask, call.bias, PARAMETERS if options.contents else None])
    q, k, v, mask, bias, given = planner.inputs
    o, sums, results = outputs(planner, call)
    shift = call.shift + options.right
    whole = Chunk(q, k, v, o, sums, mask, shift, False, bias, call.first, bool(options.page_strides))
    # Of other calls the throughput depends on what their masks and lengths hide.
    free = mask is None and not options.bits
    kind = (choice.variant.name, q.shape[3], v.shape[3], call.causal) if free else None
    whole, chunks = _cut(planner, whole, choice, facts.most_work(kind, throughputs))
    end = split_kv.last_wave(call, facts, registry, choice.tile["rows"]) if len(chunks) == 1 else None
    last = None
    if end is not None:
        *chunks, last = split_kv.cut_tail(whole, end.heads)
    classes = tile_classes.plan(facts, registry, choice, chunks, options, call.causal)
    if classes is None and choice.variant.operation == "attention-tiled":
        return None
    bits = options.bits | added.features(choice, chunks, facts, options.bits)
    features = [bits] if classes is None else tile_classes.features(choice, call, bits)
    blocks = _blocks(facts, chunks, classes) if any(features) else []
    parameters, made = parameters_slot(planner, call, given, blocks)
    own = _constants(call, choice, whole, features)
    counted = call.counted and all(p.k.shape[2] == k.shape[2] for p in chunks)
    filling = filling_of(call, choice, registry)
    for number, p in enumerate(chunks):
        tiles = None if classes is None else classes[number].dispatch(planner, registry, parameters, p.mask)
        place = made.places[number] if made else 0
        arrays, push = operands(choice, p, q.shape[1] // k.shape[1], call.scale, parameters, place, tiles, counted)
        batch, heads, queries, _ = p.q.shape
        groups = (-(-queries // choice.tile["rows"]), heads, batch)
        for values in own:
            merged = {**values, "MERGE": int(p.merge)}
            planner.dispatch(choice, merged, arrays, push, groups, p.flops() / len(own), kind, filling)
    if last is not None:
        split_kv.dispatch(planner, registry, end.choice, call, last, end.splits, 1)
    return AttentionPlan(planner.plan(*results), made, counted)


def _cut(planner: Planner, whole: Chunk, choice: Choice, most_work: float) -> tuple[Chunk, list[Chunk]]:
    """A call as dispatches. Where these are merged it has a log-sum-exp in any case."""
    facts = planner.facts
    # A 16-bit result is rounded more coarsely at every merge.
    most = MAX_KEYS if whole.q.dtype == FLOAT32 else math.inf
    max_keys = max(min(most, facts.loop_trips * choice.keys_per_trip), 1)
    chunks = split(facts, whole, max_keys, most_work)
    if whole.lse is None and any(p.merge for p in chunks):
        whole = dataclasses.replace(whole, lse=planner.empty(whole.q.shape[:3]))
        chunks = split(facts, whole, max_keys, most_work)
    return whole, chunks


def _blocks(facts: DeviceFacts, chunks: list[Chunk], classes: list[tile_classes.TileClasses] | None) -> list:
    """The parameters of each dispatch, with those of its classes."""
    tiles = [None] * len(chunks) if classes is None else [c.parameters() for c in classes]
    return [block(facts, *pair) for pair in zip(chunks, tiles, strict=True)]


def _constants(call: AttentionCall, choice: Choice, whole: Chunk, features: list[int]) -> list[dict[str, int]]:
    """The specialization constants of the dispatches that share a chunk's rows."""
    constants = {
        "HEAD_DIM": whole.q.shape[3], "VALUE_DIM": whole.v.shape[3], "MASK": mask_kind(whole.mask),
        "CAUSAL": int(call.causal), "LSE": int(whole.lse is not None),
    }  # fmt: skip
    if "VALUES_IN_KEYS" in choice.variant.constants:
        constants["VALUES_IN_KEYS"] = int(call.values_in_keys)
    if "FEATURES" not in choice.variant.constants:
        return [constants]
    return [{**constants, "FEATURES": bits} for bits in features]
