"""Attention scores: ``scale * q k^T``."""

from __future__ import annotations

from ...registry import Registry
from ..attention.checks import check_scale
from ..device.arguments import check_float, finish, four_axes, to_device
from ..device.caches import Kept
from ..device.device import Device, DeviceFacts
from ..device.plan import Plan, Planner
from ..device.record import Ready, run
from ..device.sixteen_bits import widens
from ..products.matmul import product
from .checks import check_pair

#: Plans of scores.
PLANS: Kept[tuple, Ready] = Kept("plans of attention_scores", 256)


@widens("q", "k", narrow=False)
def attention_scores(device: Device, q, k, *, scale=None):
    """``grilly.functional.attention_scores`` on a device; documented there."""
    name = "attention_scores"
    device.check_open()
    check_float(name, q=q, k=k)
    check_pair(name, ("q", "k"), q, k)
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"{name}: k has head dimension {k.shape[-1]} and q has {q.shape[-1]}; they must be equal")
    scale = check_scale(name, scale, max(q.shape[-1], 1))
    shape = (*q.shape[:-1], k.shape[-2])
    if 0 in shape:
        return finish(device, device.empty(shape), q, k)
    tensors = [to_device(device, array) for array in (q, k)]
    return finish(device, run(device, PLANS, plan, (scale,), tensors)[0], q, k)


def plan(given: tuple[float], layouts, facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``attention_scores``."""
    planner = Planner(facts, layouts)
    q, k = planner.inputs
    scores = planner.empty((*q.shape[:-1], k.shape[-2]))
    product(
        planner, registry, "attention-scores", *(four_axes(t) for t in (q, k, scores)), columns_are_rows=True,
        scale=given[0], offsets=(layouts[0].offset, layouts[1].offset),
    )  # fmt: skip
    return planner.plan(scores)
