"""Attention outputs: the weighted sum of values."""

from __future__ import annotations

from ...registry import Registry
from ..arrays.map import with_rows
from ..device.arguments import check_float, four_axes
from ..device.arrays import Architecture, Array, Float32Array, FloatArray
from ..device.call import call
from ..device.device import Device, DeviceFacts
from ..device.plan import Plan, Planner
from ..matmul.call import Matmul
from ..matmul.matmul import emit_matmul
from .checks import check_float32, check_pair

#: Model architectures that ``attention_output`` has kernels for.
ARCHITECTURES = ("generic", "gpt", "t5")


def attention_output(
    device: Device, weights: Float32Array, v: FloatArray, *, architecture: Architecture = "generic"
) -> Array:
    """``grilly.functional.attention_output`` on a device; documented there."""
    name = "attention_output"
    if architecture not in ARCHITECTURES:
        raise ValueError(f"{name}: architecture is {architecture!r}; expected one of {', '.join(ARCHITECTURES)}")

    def check(v, weights) -> None:
        check_float32(name, weights=weights)
        check_float(name, v=v)
        check_pair(name, ("weights", "v"), weights, v)
        keys = weights.shape[-1]
        if v.shape[-2] != keys:
            raise ValueError(f"{name}: v has {v.shape[-2]} keys and weights has {keys}; they must be equal")

    return call(device, plan, (architecture,), (v, weights), check, floats=1)[0]


def plan(given: tuple[str], layouts, facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``attention_output`` of values and weights."""
    (architecture,) = given
    planner = Planner(facts, layouts)
    values, w = planner.inputs
    values, v_offset = with_rows(planner, registry, values, layouts[0].offset)
    w, w_offset = with_rows(planner, registry, w, layouts[1].offset)
    shape = (*w.shape[:-1], values.shape[-1])
    w, values = four_axes(w), four_axes(values)
    batch, heads, queries, keys = w.shape
    dim = values.shape[3]
    # Where v's heads lie inside its rows, as those of split heads do, so do the output's: joining them is then a view.
    if architecture == "t5" or (heads > 1 and values._strides[1] < values._strides[2]):
        out = planner.empty((batch, queries, heads, dim), values.dtype).transpose(0, 2, 1, 3)
    else:
        out = planner.empty((batch, heads, queries, dim), values.dtype)
    if out.size:
        shift = keys - queries if architecture == "gpt" else 0
        matmul = Matmul(
            "attention-output", w, values, out, b_is_nk=False, model=architecture, shift=shift,
            offsets=(w_offset, v_offset),
        )  # fmt: skip
        emit_matmul(planner, registry, matmul)
    return planner.plan(out.reshape(shape))
