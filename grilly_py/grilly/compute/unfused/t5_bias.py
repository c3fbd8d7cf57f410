"""T5's relative position bias on stored attention scores."""

from __future__ import annotations

import math
from typing import SupportsIndex

from ...registry import Registry, Request
from ..arrays.map import with_rows
from ..attention.t5 import bucket_starts
from ..device.arguments import four_axes
from ..device.arrays import Float32Array
from ..device.call import call
from ..device.cut import parts, placed
from ..device.device import Device, DeviceFacts
from ..device.numbers import integer
from ..device.plan import At, Plan, Planner
from .checks import check_float32, check_scores, full_shape
from .mask import score_groups


def t5_bias(
    device: Device, scores: Float32Array, table: Float32Array, *, bidirectional: bool = True,
    max_distance: SupportsIndex = 128, offset: SupportsIndex = 0,
) -> Float32Array:  # fmt: skip
    """``grilly.functional.t5_bias`` on a device; documented there."""
    name = "t5_bias"
    bidirectional = bool(bidirectional)
    max_distance, offset = integer(name, "max_distance", max_distance), integer(name, "offset", offset)

    def check(scores, table) -> None:
        check_scores(name, scores)
        check_float32(name, table=table)
        heads, rows = full_shape(scores.shape)[1], table.shape[0] if table.shape else 0
        if len(table.shape) != 2 or table.shape[1] != heads:
            shape = tuple(table.shape)
            raise ValueError(f"{name}: table has shape {shape}; expected (num_buckets, H) with H = {heads}")
        exact = (rows // 2 if bidirectional else rows) // 2
        if exact < 1 or (bidirectional and rows % 2):
            raise ValueError(
                f"{name}: table has {rows} rows; expected at least 2 buckets for each direction, as many for both"
            )
        if not exact < max_distance < 2**24:
            raise ValueError(f"{name}: max_distance is {max_distance}; expected more than {exact} and below 2**24")
        if abs(offset) > 2**30:
            raise ValueError(f"{name}: offset is {offset}; expected at most 2**30 either way")

    return call(device, plan, (bidirectional, max_distance, offset), (scores, table), check)[0]


def plan(given: tuple[bool, int, int], layouts, facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``t5_bias``."""
    bidirectional, max_distance, offset = given
    planner = Planner(facts, layouts)
    scores, weights = planner.inputs
    out = planner.empty(scores.shape)
    if not out.size:
        return planner.plan(out)
    scores, _ = with_rows(planner, registry, scores, layouts[0].offset)
    weights, _ = with_rows(planner, registry, weights, layouts[1].offset)
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
            **placed("s", s), **placed("o", o), "table_offset": At(own), "table_row": own._strides[0],
            "starts_offset": At(starts), "queries": o.shape[2], "keys": o.shape[3], "heads": o.shape[1],
            "offset": offset + first[2], "buckets": buckets, "exact": exact, "growth": growth,
        }  # fmt: skip
        arrays = {"scores": s, "table": own, "starts": starts, "out": o}
        planner.dispatch(choice, {"BIDIRECTIONAL": int(bidirectional)}, arrays, push, groups(o.shape))
    return planner.plan(out)
