"""Masks on stored attention scores."""

from __future__ import annotations

from ...registry import Choice, Registry, Request
from ..attention.call import mask_kind
from ..attention.checks import check_mask
from ..device.arguments import finish, four_axes, to_device
from ..device.caches import Kept
from ..device.cut import parts, placed
from ..device.device import Device, DeviceFacts
from ..device.plan import Plan, Planner, strided
from ..device.record import Ready, run
from ..device.tensor import Tensor
from .checks import check_scores, full_shape

#: Plans of masks.
PLANS: Kept[tuple, Ready] = Kept("plans of attention_mask", 256)


def attention_mask(device: Device, scores, *, mask=None, causal=False):
    """``grilly.functional.attention_mask`` on a device; documented there."""
    name = "attention_mask"
    device.check_open()
    check_scores(name, scores)
    full = full_shape(scores.shape)
    if mask is not None:
        mask = check_mask(name, mask, full)
    if 0 in scores.shape:
        return finish(device, device.empty(scores.shape), scores, mask)
    at = None
    if mask is not None:
        at = (mask if isinstance(mask, Tensor) else device.tensor(mask)).broadcast_to(full)
    (out,) = run(device, PLANS, plan, (bool(causal),), (to_device(device, scores), at))
    return finish(device, out, scores, mask)


def plan(given: tuple[bool], layouts, facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``attention_mask``; the mask has the scores' four axes."""
    planner = Planner(facts, layouts)
    scores, mask = planner.inputs
    out = planner.empty(scores.shape)
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
