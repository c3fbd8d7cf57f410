"""Attention scores: ``scale * q k^T``."""

from __future__ import annotations

from ...registry import Registry
from ..arrays.map import with_rows
from ..attention.checks import check_scale
from ..device.arguments import check_float, four_axes
from ..device.arrays import Float32Array, FloatArray
from ..device.call import call
from ..device.device import Device, DeviceFacts
from ..device.plan import Plan, Planner
from ..matmul.call import Matmul
from ..matmul.matmul import emit_matmul
from .checks import check_pair


def attention_scores(device: Device, q: FloatArray, k: FloatArray, *, scale: float | None = None) -> Float32Array:
    """``grilly.functional.attention_scores`` on a device; documented there."""
    name = "attention_scores"
    if scale is not None:
        scale = check_scale(name, scale, 1)

    def check(q, k) -> None:
        check_float(name, q=q, k=k)
        check_pair(name, ("q", "k"), q, k)
        if q.shape[-1] != k.shape[-1]:
            raise ValueError(f"{name}: k has head dimension {k.shape[-1]} and q has {q.shape[-1]}; they must be equal")

    return call(device, plan, (scale,), (q, k), check, floats=2, narrow=0)[0]


def plan(given: tuple[float | None], layouts, facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``attention_scores``."""
    planner = Planner(facts, layouts)
    q, k = planner.inputs
    q, q_offset = with_rows(planner, registry, q, layouts[0].offset)
    k, k_offset = with_rows(planner, registry, k, layouts[1].offset)
    scores = planner.empty((*q.shape[:-1], k.shape[-2]))
    if scores.size:
        scale = check_scale("attention_scores", given[0], max(q.shape[-1], 1))
        operands, offsets = (four_axes(t) for t in (q, k, scores)), (q_offset, k_offset)
        emit_matmul(planner, registry, Matmul("attention-scores", *operands, scale=scale, offsets=offsets))
    return planner.plan(scores)
