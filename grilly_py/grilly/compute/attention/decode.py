"""Attention of few queries over many keys: the keys are split over the device, the last workgroup combines the splits.

The plan of the families flash-decode, flash-decode-matrix and flash-decode-wide, and that of flash-decode-llvmpipe,
which splits no keys.
schedule.py decides when it pays, and how rows, invocations and keys are shared out.
"""

from __future__ import annotations

import numpy as np

from ...errors import UnsupportedError
from ...registry import Choice, Registry, Request
from ...registry.measured import bucket
from ...registry.shared import extras_bits
from ..device.device import DeviceFacts
from ..device.plan import Planner
from . import schedule
from .call import MAX_KEYS, AttentionCall, AttentionTerms, mask_kind
from .chunks import Chunk
from .operands import PARAMETERS, AttentionPlan, aligned, block, filling_of, operands, outputs, parameters_slot
from .rates import rates_of

_WINDOW, _PREFIX, _LENGTHS = (extras_bits((name,)) for name in ("window", "prefix", "lengths"))
FAMILY = "flash-decode"
MATRIX_FAMILY = "flash-decode-matrix"
WIDE_FAMILY = "flash-decode-wide"
PROCESSOR_FAMILY = "flash-decode-llvmpipe"
#: Those that read quantized caches, and no others.
LEVELS_FAMILY = "flash-decode-quantized"
PROCESSOR_LEVELS_FAMILY = "flash-decode-quantized-llvmpipe"
LEVELS_FAMILIES = (LEVELS_FAMILY, PROCESSOR_LEVELS_FAMILY)
#: Those in which a workgroup has all keys of its rows.
_WHOLE = (PROCESSOR_FAMILY, PROCESSOR_LEVELS_FAMILY)
#: Up to so many queries of a head they do; more take the cache as floats, which tiles of rows read once.
LEVELS_QUERIES = 16
FAMILIES = (FAMILY, MATRIX_FAMILY, WIDE_FAMILY, PROCESSOR_FAMILY)


def may_read_levels(terms: AttentionTerms, queries: int) -> bool:
    """Whether a kernel may read the quantized cache of a call of so many queries; else it is read as floats."""
    return queries <= LEVELS_QUERIES if terms.kernel is None else terms.kernel in LEVELS_FAMILIES


def plan(call: AttentionCall, facts: DeviceFacts, registry: Registry) -> AttentionPlan | None:
    """The plan of a call; None where no kernel serves it or none pays.

    Where the call's ``kernel`` names a family, UnsupportedError takes the place of None.
    """
    walked, causal = _walked(call), _hides_later_keys(call)
    if call.kernel is None and not call.bits and not _may_pay(call, facts, walked):
        return None
    planner = Planner(
        facts, [call.q, call.k, call.v, call.mask, call.bias, PARAMETERS if call.options.contents else None]
    )
    q, k, v, mask, bias, given = planner.inputs
    o, sums, results = outputs(planner, call)
    choice = _kernel(call, facts, registry, o._strides, walked, causal)
    if choice is None:
        return None
    batch, heads, queries, head_dim = q.shape
    kv_heads, value_dim = k.shape[1], v.shape[3]
    size, group = choice.subgroup_size or facts.subgroup_size, heads // kv_heads
    split = schedule.split_rows(
        choice, size, schedule.units_of(facts), batch * kv_heads, group * queries, walked, (head_dim, value_dim),
        rates_of(facts).decode.split,
    )  # fmt: skip
    tiles = batch * kv_heads * split.passes
    parts_bytes = 4 * tiles * split.splits * split.rows * (value_dim + 4)
    groups = (split.splits * split.passes, kv_heads, batch)
    work = 2.0 * batch * heads * queries * walked * (head_dim + value_dim)
    problem = _problem(call, facts, choice, max(parts_bytes, o._storage.nbytes), groups, work, walked)
    if problem is not None:
        if call.kernel is not None:
            raise UnsupportedError(f"{call.kernel}: {problem}; leave the kernel to the registry (kernel=None)")
        return None
    bits = call.options.bits
    constants = {
        "HEAD_DIM": head_dim, "VALUE_DIM": value_dim, "CAUSAL": int(causal), "LSE": int(call.lse), "MERGE": 0,
        "MASK": mask_kind(mask), "FEATURES": bits,
        "ROWS": split.rows, "LANES": split.lanes, "UNROLL": split.unroll, "SUBGROUP": size,
        "THREADS": choice.threads, "STAGES": split.stages, "SPLIT_KEYS": choice.tile.get("keys", 0),
        "LONG": int(walked >= choice.tile.get("long", walked + 1)), "BITS": call.bits,
        "VALUES_IN_KEYS": int(call.values_in_keys),
    }  # fmt: skip
    constants = {name: value for name, value in constants.items() if name in choice.variant.constants}
    chunk = Chunk(q, k, v, o, sums, mask, call.shift + call.options.right, False, bias, call.first)
    parameters, made = parameters_slot(planner, call, given, [block(facts, chunk)] if bits else [])
    place = made.places[0] if made else 0
    arrays, push = operands(choice, chunk, group, call.scale, parameters, place, counted=call.counted)
    # Zero before and after every dispatch. Calls of the plan that are in flight together do not meet in it.
    if "arrived" in choice.variant.bindings:
        arrived = planner.constant(np.zeros(tiles, np.int32))
        arrays |= {"parts": planner.empty((parts_bytes // 4,)), "arrived": arrived}
    filling = filling_of(call, choice, registry)
    planner.dispatch(choice, constants, arrays, push, groups, work, filling=filling)
    return AttentionPlan(planner.plan(*results), made, call.counted)


def _walked(call: AttentionCall) -> int:
    """Keys of a row of queries at most."""
    keys, options = call.k.shape[2], call.options
    if call.causal and options.bits & _WINDOW and not options.bits & _PREFIX:
        return min(keys, options.left + options.right + call.q.shape[2])
    return keys


def _hides_later_keys(call: AttentionCall) -> bool:
    """Whether causality hides any key: the last row of most calls sees every key."""
    queries, keys, options = call.q.shape[2], call.k.shape[2], call.options
    # With lengths a block's row stands where its sample's own say.
    anywhere = options.partial and options.bits & _LENGTHS
    return call.causal and (queries > 1 or bool(anywhere) or call.shift + options.right < keys - 1)


def _pays(call: AttentionCall, facts: DeviceFacts, walked: int, many: bool) -> bool:
    batch, heads, queries, _ = call.q.shape
    return schedule.decode_pays(facts, call.q.dtype.itemsize, batch, heads, queries, walked, many)


def _whole_keys_pay(call: AttentionCall, facts: DeviceFacts) -> bool:
    return schedule.whole_keys_pay(facts, call.q.shape[2], max(call.q.shape[3], call.v.shape[3]))


def _may_pay(call: AttentionCall, facts: DeviceFacts, walked: int) -> bool:
    """Whether any kernel could pay, before the registry is asked for one."""
    many = call.q.dtype.itemsize == 2
    return call.whole(facts) and (_whole_keys_pay(call, facts) or _pays(call, facts, walked, many))


def _kernel(
    call: AttentionCall, facts: DeviceFacts, registry: Registry, o_steps: tuple[int, ...], walked: int, causal: bool
) -> Choice | None:
    """The kernel for a call; None where there is none, or it does not pay. Raises UnsupportedError as ``plan`` does."""
    forced = call.kernel is not None
    _, heads, queries, head_dim = call.q.shape
    asked = (
        ("align", aligned(call, o_steps)), ("head_dim", head_dim), ("value_dim", call.v.shape[3]),
        ("masked", int(call.mask is not None or causal)),
        *bucket({"rows": heads // call.k.shape[1] * queries}).items(),
        *call.options.asked,
    )  # fmt: skip
    prefer = call.kernel
    if not forced and rates_of(facts).decode.whole_queries and walked > MAX_KEYS:
        prefer = LEVELS_FAMILY if call.bits else FAMILY  # so many keys are to be split
    try:
        operation = "attention-decode-quantized" if call.bits else "attention-decode"
        choice = registry.resolve(Request(operation, call.q.dtype.name, problem=asked, prefer=prefer))
    except UnsupportedError:
        if forced:
            raise
        return None
    alone = choice.variant.family in _WHOLE
    if forced or call.bits or alone and _whole_keys_pay(call, facts):
        return choice
    return choice if _pays(call, facts, walked, alone or "trip" in choice.tile) else None


def _problem(
    call: AttentionCall, facts: DeviceFacts, choice: Choice, largest: int, groups: tuple[int, int, int], work: float,
    walked: int,
) -> str | None:  # fmt: skip
    """Why the kernel does not serve the call in one dispatch with a largest array of so many bytes; None if it does."""
    if not call.whole(facts) or not facts.holds(largest):
        return "an array is beyond a binding"
    if any(n > most for n, most in zip(groups, facts.groups, strict=True)):
        return f"{groups} workgroups are beyond the device's limits"
    if work > facts.work_limit:
        return "one submission would take too long"
    alone = choice.variant.family in _WHOLE
    if alone and walked > min(facts.loop_trips * choice.keys_per_trip, MAX_KEYS):
        return f"{walked} keys are too many"
    return None
