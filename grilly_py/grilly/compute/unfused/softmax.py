"""Softmax along the last axis."""

from __future__ import annotations

from ...registry import Registry, Request
from ..device.arguments import check_float, finish, four_axes, to_device
from ..device.caches import Kept
from ..device.cut import check_trips, parts, placed
from ..device.device import Device, DeviceFacts
from ..device.plan import Plan, Planner
from ..device.record import Ready, again, run
from ..device.sixteen_bits import widens
from ..device.tensor import Tensor

#: Plans of softmax.
PLANS: Kept[tuple, Ready] = Kept("plans of softmax", 256)


@widens("x")
def softmax(device: Device, x):
    """``grilly.functional.softmax`` on a device; documented there."""
    device.check_open()
    if type(x) is Tensor:
        done = again(device, PLANS, (), (x,))  # like an earlier call, which passed the checks
        if done is not None:
            device.runtime.flush()
            return done[0]
    dtype = check_float("softmax", x=x)
    if len(x.shape) < 1:
        raise ValueError("softmax: x has no axes; expected at least one")
    if 0 in x.shape:
        return finish(device, device.empty(x.shape, dtype), x)
    source = to_device(device, x)
    if source.ndim > 4 and not source.is_contiguous:
        source = source.contiguous()
    return finish(device, run(device, PLANS, plan, (), (source,))[0], x)


def plan(given: tuple, layouts, facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``softmax`` on an array with a contiguous last axis, wholly contiguous with more than four."""
    planner = Planner(facts, layouts)
    (source,) = planner.inputs
    out = planner.empty(source.shape, source.dtype)
    if source.is_contiguous:
        source = source.reshape(-1, source.shape[-1])
    target = out.reshape(source.shape)
    cols = out.shape[-1]
    choice = registry.resolve(Request("softmax", out.dtype.name, facts=(("cols", min(cols, 2**31 - 1)),)))
    check_trips(facts, "softmax", "columns", cols, choice.keys_per_trip, "flash_attention2 takes any number")
    block = choice.tile["rows"]

    def groups(shape):
        return -(-shape[2] // block), shape[1], shape[0]

    for (y, s), _ in parts(facts, (four_axes(target), four_axes(source)), groups, ((2,), (1,), (0,))):
        push = {**placed("x", s), **placed("y", y), "rows": y.shape[2], "cols": y.shape[3]}
        planner.dispatch(choice, {}, {"x": s, "y": y}, push, groups(y.shape))
    return planner.plan(out)
