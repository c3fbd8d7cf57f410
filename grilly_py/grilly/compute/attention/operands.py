"""What the plans of all attention kernels share: the arrays they bind, and the push constants, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ...registry import Choice
from ..device.device import DeviceFacts
from ..device.plan import ALIGN_MOST, Layout, Live, Plan, Planner, alignment, binding, output_like, strided
from ..device.tensor import Tensor
from .call import AttentionCall
from .pieces import Piece
from .words import places, template

FLOAT32 = np.dtype(np.float32)
#: The layout of words that depend on a call's contents; how many there are, no plan needs to know.
WORDS = Layout((0,), (1,), np.dtype(np.int32), ALIGN_MOST)


class HeaderWords(NamedTuple):
    """The words of a call but for its arrays: ``template`` (uint32), and where the headers in it begin."""

    template: np.ndarray
    places: tuple[int, ...]


class AttentionPlan(NamedTuple):
    """A plan, and the words that its last input needs, where those depend on the call's contents.

    ``counted``: the plan's ``Live`` word 0 is the number of keys. A call that asks for it may get a plan without.
    """

    plan: Plan
    words: HeaderWords | None
    counted: bool = False


def outputs(planner: Planner, call: AttentionCall) -> tuple[Tensor, Tensor | None, tuple]:
    """Tensors for o and, if asked for, lse; and the results, which for packed sequences have other shapes."""
    batch, heads, queries, _ = call.q.shape
    value_dim = call.v.shape[3]
    if call.packed is None:
        o = output_like(planner, planner.inputs[0], value_dim)
        sums = planner.empty((batch, heads, queries)) if call.lse else None
        return o, sums, (o, sums)
    total = call.packed
    whole, whole_lse = planner.empty((total, heads, value_dim), call.q.dtype), planner.empty((heads, total))
    o = Tensor(whole._storage, (batch, heads, queries, value_dim), whole.dtype, (0, *whole._steps[1::-1], 1))
    sums = Tensor(whole_lse._storage, (batch, heads, queries), FLOAT32, (0, total, 1))
    return o, sums, (whole, whole_lse)


def aligned(call: AttentionCall, out_steps: tuple[int, ...]) -> int:
    """What divides all offsets, strides and dimensions of a call."""
    arrays: list[Layout] = [call.q, call.k, call.v]
    strides = [step for array in arrays for step in array.steps[:3]]
    offsets = [array.offset for array in arrays]
    dims = (call.q.shape[3], call.v.shape[3])
    return alignment(*offsets, *dims, *strides, *out_steps[:3], *call.options.page_steps)


def header(facts: DeviceFacts, p: Piece, classes: Mapping[str, int] | None = None) -> dict[str, int]:
    """The words of a dispatch's header that differ from piece to piece."""
    batch, head, row, key = p.first
    words = {"first_batch": batch, "first_head": head, "first_row": row, "first_key": key}
    words["sink_here"] = int(not p.merge)
    return {**words, **bias_words(facts, p.bias), **(classes or {})}


def bias_words(facts: DeviceFacts, bias: Tensor | None) -> dict[str, int]:
    """The words of a header that tell where a bias is. Its own offset is among them: biases begin at 0."""
    if bias is None:
        return {}
    names = ("bias_batch", "bias_head", "bias_row", "bias_key")
    return {"bias_offset": binding(facts, bias)[1], **dict(zip(names, bias._steps, strict=True))}


def words_slot(
    planner: Planner, call: AttentionCall, given: Tensor | None, headers: list[dict[str, int]]
) -> tuple[Tensor | None, HeaderWords | None]:
    """The words as kernels bind them, and their template; where they depend on no contents, they are the plan's own."""
    if not headers:
        return None, None
    options = call.options
    shared = dict(options.header) or {"heads": call.q.shape[1], "left": 0, "right": 0}
    made = HeaderWords(template(options.size, shared, headers), tuple(places(options.size, len(headers))))
    return (planner.constant(made.template) if given is None else given), made


def operands(
    choice: Choice, p: Piece, group: int, scale: float, words: Tensor | None, place: int, tiles: Tensor | None = None,
    counted: bool = False,
) -> tuple[dict, dict]:  # fmt: skip
    """The arrays and push constants of shaders/attention/attention.glsl for a dispatch; ``counted`` as of the plan."""
    heads, keys = p.q.shape[1], p.k.shape[2]
    arrays = {
        "q": p.q, "k": p.k, "v": p.v, "mask": p.mask, "o": p.o, "lse": p.lse, "extra": words, "bias": p.bias,
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
