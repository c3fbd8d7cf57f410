"""Arrays and push constants, by name, of all attention kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ...registry import Choice, Registry
from ..device.device import DeviceFacts
from ..device.plan import ALIGN_MOST, Layout, Live, Plan, Planner, alignment, binding, output_like, strided
from ..device.tensor import Tensor
from ..expressions.expression import Filling
from .call import AttentionCall
from .chunks import Chunk
from .functions import LONGEST
from .parameters import places, template

FLOAT32 = np.dtype(np.float32)
#: The layout of parameters that depend on a call's contents; how many there are, no plan needs to know.
PARAMETERS = Layout((0,), (1,), np.dtype(np.int32), ALIGN_MOST)


class ParameterTemplate(NamedTuple):
    """The parameters of a call but for its arrays: ``template`` (uint32), and where the blocks in it begin."""

    template: np.ndarray
    places: tuple[int, ...]


class AttentionPlan(NamedTuple):
    """A plan, and the template of its last input, the parameters; None where these are the plan's own.

    ``counted``: the plan's ``Live`` word 0 is the number of keys. A call that asks for it may get a plan without.
    """

    plan: Plan
    parameters: ParameterTemplate | None
    counted: bool = False


def outputs(planner: Planner, call: AttentionCall) -> tuple[Tensor, Tensor | None, tuple]:
    """Tensors for o and, if asked for, lse, as kernels see them; and the results, as the caller gets them."""
    batch, heads, queries, _ = call.q.shape
    value_dim = call.v.shape[3]
    if call.packed is None:
        o = output_like(planner, planner.inputs[0], value_dim)
        sums = planner.empty((batch, heads, queries)) if call.lse else None
        return o, sums, (o, sums)
    total = call.packed
    whole, whole_lse = planner.empty((total, heads, value_dim), call.q.dtype), planner.empty((heads, total))
    o = Tensor(whole._storage, (batch, heads, queries, value_dim), whole.dtype, (0, *whole._strides[1::-1], 1))
    sums = Tensor(whole_lse._storage, (batch, heads, queries), FLOAT32, (0, total, 1))
    return o, sums, (whole, whole_lse)


def aligned(call: AttentionCall, out_strides: tuple[int, ...]) -> int:
    """The largest power of two, up to ALIGN_MOST, that divides all offsets, strides and dimensions of a call."""
    arrays: list[Layout] = [call.q] if call.bits else [call.q, call.k, call.v]  # caches' rows are of whole 16 bytes
    strides = [stride for array in arrays for stride in array.strides[:3]]
    offsets = [array.offset for array in arrays]
    dims = (call.q.shape[3], call.v.shape[3])
    return alignment(*offsets, *dims, *strides, *out_strides[:3], *call.options.page_strides)


def block(facts: DeviceFacts, p: Chunk, classes: Mapping[str, int] | None = None) -> dict[str, int]:
    """The parameters of a dispatch that differ from chunk to chunk."""
    batch, head, row, key = p.first
    parameters = {"first_batch": batch, "first_head": head, "first_row": row, "first_key": key}
    parameters["sink_here"] = int(not p.merge)
    return {**parameters, **bias_parameters(facts, p.bias), **(classes or {})}


def bias_parameters(facts: DeviceFacts, bias: Tensor | None) -> dict[str, int]:
    """The parameters of a block for a bias. Its own offset is among them: biases begin at 0."""
    if bias is None:
        return {}
    names = ("bias_batch", "bias_head", "bias_row", "bias_key")
    return {"bias_offset": binding(facts, bias)[1], **dict(zip(names, bias._strides, strict=True))}


def parameters_slot(
    planner: Planner, call: AttentionCall, given: Tensor | None, blocks: list[dict[str, int]]
) -> tuple[Tensor | None, ParameterTemplate | None]:
    """The parameters as kernels bind them, and their template; where they depend on no contents, they are the plan's
    own."""
    if not blocks:
        return None, None
    options = call.options
    shared = dict(options.parameters) or {"heads": call.q.shape[1], "left": 0, "right": 0}
    made = ParameterTemplate(template(options.size, shared, blocks), tuple(places(options.size, len(blocks))))
    return (planner.constant(made.template) if given is None else given), made


def filling_of(call: AttentionCall, choice: Choice, registry: Registry) -> Filling | None:
    """What fills the holes of a call's kernel; None where the call has no functions."""
    longest = max(call.first[2] + call.q.shape[2], call.first[3] + call.k.shape[2])
    return call.options.functions.filling(registry, choice.variant.unproven and longest <= LONGEST)


def operands(
    choice: Choice, p: Chunk, group: int, scale: float, parameters: Tensor | None, place: int,
    tiles: Tensor | None = None,
    counted: bool = False,
) -> tuple[dict, dict]:  # fmt: skip
    """The arrays and push constants of shaders/attention/attention.glsl for a dispatch; ``counted`` as of the plan."""
    heads, keys = p.q.shape[1], p.k.shape[2]
    arrays = {
        "q": p.q, "k": p.k, "v": p.v, "mask": p.mask, "o": p.o, "lse": p.lse, "extra": parameters, "bias": p.bias,
        "tiles": tiles,
    }  # fmt: skip
    push = {
        **strided("q", p.q), **strided("k", p.k), **strided("v", p.v), **strided("o", p.o),
        **strided("mask", p.mask, ("batch", "head", "row", "key")), **strided("lse", p.lse, ("batch", "head")),
        "queries": p.q.shape[2], "keys": Live(0) if counted else keys,
        "group": group if p.k.shape[1] > 1 else max(heads, 1),
        "causal_shift": Live(0, p.shift - keys) if counted else p.shift, "scale": scale,
    }  # fmt: skip
    if any(name == "extra" for name, _ in choice.variant.push):
        push["extra"] = place
    return arrays, push
