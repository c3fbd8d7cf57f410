"""Masks on stored attention scores."""

from __future__ import annotations

from ...registry import Choice, Registry, Request
from ..arrays.map import with_rows
from ..attention.call import mask_kind
from ..attention.checks import check_mask
from ..device.arguments import four_axes
from ..device.arrays import Float32Array, MaskArray
from ..device.call import call
from ..device.cut import parts, placed
from ..device.device import Device, DeviceFacts
from ..device.plan import Plan, Planner, strided
from .checks import check_scores, full_shape


def attention_mask(
    device: Device, scores: Float32Array, *, mask: MaskArray | None = None, causal: bool = False
) -> Float32Array:
    """``grilly.functional.attention_mask`` on a device; documented there."""
    name = "attention_mask"

    def check(scores, mask) -> tuple:
        check_scores(name, scores)
        return scores, None if mask is None else check_mask(name, mask, full_shape(scores.shape))

    return call(device, plan, (bool(causal),), (scores, mask), check)[0]


def plan(given: tuple[bool], layouts, facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``attention_mask``."""
    planner = Planner(facts, layouts)
    scores, mask = planner.inputs
    out = planner.empty(scores.shape)
    if not out.size:
        return planner.plan(out)
    scores, _ = with_rows(planner, registry, scores, layouts[0].offset)
    mask = None if mask is None else mask.broadcast_to(full_shape(scores.shape))
    choice = registry.resolve(Request("attention-mask", "float32"))
    constants = {"MASK": mask_kind(mask), "CAUSAL": int(given[0])}
    views = (four_axes(out), four_axes(scores), mask)
    shift = views[0].shape[3] - views[0].shape[2]
    groups = score_groups(choice)
    for (o, s, m), starts in parts(facts, views, groups, ((), (2,), (0, 1))):
        push = {
            **placed("s", s), **strided("mask", m, ("batch", "head", "row", "key")), **placed("o", o),
            "queries": o.shape[2], "keys": o.shape[3], "heads": o.shape[1], "shift": shift + starts[2],
        }  # fmt: skip
        planner.dispatch(choice, constants, {"scores": s, "mask": m, "out": o}, push, groups(o.shape))
    return planner.plan(out)


def score_groups(choice: Choice):
    """What gives the workgroups for an array of scores by its shape."""
    rows, keys = choice.tile["rows"], choice.tile["keys"]
    return lambda shape: (-(-shape[3] // keys), -(-shape[2] // rows), shape[0] * shape[1])
