"""T5's relative position bias on stored attention scores."""

from __future__ import annotations

import math

from ...registry import Registry, Request
from ..attention.t5 import bucket_starts
from ..device.arguments import finish, four_axes, to_device
from ..device.caches import Kept
from ..device.cut import parts, placed
from ..device.device import Device, DeviceFacts
from ..device.numbers import integer
from ..device.plan import At, Plan, Planner
from ..device.record import Ready, run
from .checks import check_float32, check_scores, full_shape
from .mask import score_groups

#: Plans of biases.
PLANS: Kept[tuple, Ready] = Kept("plans of t5_bias", 256)


def t5_bias(device: Device, scores, table, *, bidirectional=True, max_distance=128, offset=0):
    """``grilly.functional.t5_bias`` on a device; documented there."""
    name = "t5_bias"
    device.check_open()
    check_scores(name, scores)
    check_float32(name, table=table)
    full = full_shape(scores.shape)
    if len(table.shape) != 2 or table.shape[1] != full[1]:
        raise ValueError(f"{name}: table has shape {tuple(table.shape)}; expected (num_buckets, H) with H = {full[1]}")
    buckets = table.shape[0] // 2 if bidirectional else table.shape[0]
    exact = buckets // 2
    max_distance, offset = integer(name, "max_distance", max_distance), integer(name, "offset", offset)
    if exact < 1 or (bidirectional and table.shape[0] % 2):
        raise ValueError(
            f"{name}: table has {table.shape[0]} rows; expected at least 2 buckets for each direction, as many for both"
        )
    if not exact < max_distance < 2**24:
        raise ValueError(f"{name}: max_distance is {max_distance}; expected more than {exact} and below 2**24")
    if abs(offset) > 2**30:
        raise ValueError(f"{name}: offset is {offset}; expected at most 2**30 either way")
    if 0 in scores.shape:
        return finish(device, device.empty(scores.shape), scores, table)
    given = (bool(bidirectional), max_distance, offset)
    (out,) = run(device, PLANS, plan, given, (to_device(device, scores), to_device(device, table)))
    return finish(device, out, scores, table)


def plan(given: tuple[bool, int, int], layouts, facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``t5_bias``."""
    bidirectional, max_distance, offset = given
    planner = Planner(facts, layouts)
    scores, weights = planner.inputs
    out = planner.empty(scores.shape)
    buckets = weights.shape[0] // 2 if bidirectional else weights.shape[0]
    exact = buckets // 2
    starts = planner.constant(bucket_starts(buckets, max_distance))
    choice = registry.resolve(Request("t5-bias", "float32", "t5"))
    groups = score_groups(choice)
    growth = (buckets - exact) / math.log2(max_distance / exact)
    views = (four_axes(out), four_axes(scores))
    for (o, s), first in parts(facts, views, groups, ((), (2,), (0, 1))):
        own = weights[:, first[1] :]
        push = {
            **placed("s", s), **placed("o", o), "table_offset": At(own), "table_row": own._steps[0],
            "starts_offset": At(starts), "queries": o.shape[2], "keys": o.shape[3], "heads": o.shape[1],
            "offset": offset + first[2], "buckets": buckets, "exact": exact, "growth": growth,
        }  # fmt: skip
        arrays = {"scores": s, "table": own, "starts": starts, "out": o}
        planner.dispatch(choice, {"BIDIRECTIONAL": int(bidirectional)}, arrays, push, groups(o.shape))
    return planner.plan(out)
