"""The running sum of a streamed call: attention over further keys, added to a result."""

from __future__ import annotations

import math

from ...registry import Request
from ..device.call import run
from ..device.device import Device
from ..device.plan import Plan, Planner, strided
from ..device.tensor import Tensor


def add(device: Device, part: Tensor, part_lse: Tensor, total: Tensor, weight: Tensor) -> None:
    """Record ``total += part``, attention over further keys.

    ``part`` and the float32 ``total`` are (B, H, Sq, Dv) with their last axis contiguous, ``part_lse`` float32
    (B, H, Sq) likewise. ``weight`` is float32 (B, H, Sq, 2) with contiguous queries: largest log-sum-exp so far, and
    the sum of the exponentials relative to it. Where the first is minus infinity, ``total`` may hold anything.
    """
    if math.prod(part.shape[:3]):
        run(device, plan, (), (part, part_lse, total, weight))


def plan(given: tuple, layouts, facts, registry) -> Plan:
    """The dispatch of ``add``."""
    planner = Planner(facts, layouts)
    part, part_lse, total, weight = planner.inputs
    batch, heads, queries, columns = part.shape
    rows = batch * heads * queries
    choice = registry.resolve(Request("attention-merge", part.dtype.name))
    count, stripe = -(-rows // choice.tile["rows"]), choice.tile["stripe"]
    push = {
        **strided("part", part), **strided("part_lse", part_lse, ("batch", "head")), **strided("sum", total),
        **strided("weight", weight, ("batch", "head"), unit=2),
        "heads": heads, "queries": queries, "rows": rows, "columns": columns,
    }  # fmt: skip
    arrays = {"part": part, "part_lse": part_lse, "sum": total, "weight": weight}
    planner.dispatch(choice, {}, arrays, push, (min(count, stripe), -(-count // stripe), 1), 3.0 * part.size)
    return planner.plan()
