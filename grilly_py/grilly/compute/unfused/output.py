"""Attention outputs: the weighted sum of values."""

from __future__ import annotations

from ...registry import Registry
from ..device.arguments import check_float, finish, four_axes, to_device
from ..device.caches import Kept
from ..device.device import Device, DeviceFacts
from ..device.plan import Plan, Planner
from ..device.record import Ready, run
from ..device.sixteen_bits import widens
from ..products.matmul import product
from .checks import check_float32, check_pair

#: Model architectures that ``attention_output`` has kernels for.
ARCHITECTURES = ("generic", "gpt", "t5")
#: Plans of outputs.
PLANS: Kept[tuple, Ready] = Kept("plans of attention_output", 256)


@widens("v")
def attention_output(device: Device, weights, v, *, architecture="generic"):
    """``grilly.functional.attention_output`` on a device; documented there."""
    name = "attention_output"
    device.check_open()
    if architecture not in ARCHITECTURES:
        raise ValueError(f"{name}: architecture is {architecture!r}; expected one of {', '.join(ARCHITECTURES)}")
    check_float32(name, weights=weights)
    dtype = check_float(name, v=v)
    check_pair(name, ("weights", "v"), weights, v)
    queries, keys = weights.shape[-2:]
    if v.shape[-2] != keys:
        raise ValueError(f"{name}: v has {v.shape[-2]} keys and weights has {keys}; they must be equal")
    shape = (*weights.shape[:-1], v.shape[-1])
    if 0 in shape:
        return finish(device, device.empty(shape, dtype), weights, v)
    tensors = [to_device(device, array) for array in (weights, v)]
    (out,) = run(device, PLANS, plan, (architecture,), tensors)
    return finish(device, out if len(shape) == 4 else out.reshape(shape), weights, v)


def plan(given: tuple[str], layouts, facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``attention_output``; the result has four axes."""
    (architecture,) = given
    planner = Planner(facts, layouts)
    w, values = (four_axes(tensor) for tensor in planner.inputs)
    batch, heads, queries, keys = w.shape
    dim = values.shape[3]
    # Where v's heads lie inside its rows, as those of split heads do, so do the output's: joining them is then a view.
    if architecture == "t5" or (heads > 1 and values._steps[1] < values._steps[2]):
        out = planner.empty((batch, queries, heads, dim), values.dtype).transpose(0, 2, 1, 3)
    else:
        out = planner.empty((batch, heads, queries, dim), values.dtype)
    shift = keys - queries if architecture == "gpt" else 0
    product(
        planner, registry, "attention-output", w, values, out, model=architecture, columns_are_rows=False, shift=shift,
        offsets=(layouts[0].offset, layouts[1].offset),
    )  # fmt: skip
    return planner.plan(out)
