"""The gradients of what attention adds to its scores: ``attn_bias``, ``sinks``, a T5 table, and what functions read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ...errors import UnsupportedError
from ...registry import Registry, Request
from ...registry.names import FUNCTIONS
from ...registry.shared import extras_bits
from ..arrays.accumulate import accumulated, accumulates
from ..arrays.creation import full as full_of
from ..arrays.elementwise import cast
from ..arrays.promotion import FLOAT32, INT32
from ..arrays.reductions import sum_of
from ..device.call import run
from ..device.device import Device, DeviceFacts
from ..device.executables import key_of, placed
from ..device.plan import At, Layout, Plan, Planner
from ..device.tensor import Tensor
from .backward_chunks import Chunk
from .backward_plan import BackwardCall, BackwardTerms, block, operands, views_of
from .executables import AttentionExecutable
from .function_gradients import Read
from .operands import PARAMETERS, AttentionPlan, parameters_slot
from .options import CheckedOptions

NAME = "flash_attention2_backward"
#: Numbers that one invocation adds, of dS and of partial sums.
_PART, _PARTS = 64, 256
#: Numbers that a workgroup adds, of diagonals and of rows: so few that no driver ends its loops (loop_trips).
_SHARE = 2**18
_MOST = 2**32 - 1


def _spread(count: int, most: int) -> tuple[int, int, int]:
    """At least ``count`` workgroups, as (x, y, 1) with x at most ``most``."""
    rows = -(-count // most)
    return -(-count // rows), rows, 1


class Sums(NamedTuple):
    """Which numbers are summed to one.

    Attributes
    ----------
    axes : int
        Those that are summed over, as bits: 1 batch, 2 head, 4 query, 8 key.
    diagonal : bool
        Whether sums are along diagonals.
    shape : tuple of int
        The result's.
    """

    axes: int
    diagonal: bool
    shape: tuple[int, ...]


def plan(
    call: BackwardCall, facts: DeviceFacts, registry: Registry, what: Sums
) -> AttentionPlan:
    """The plan of a gradient: dS summed over axes, or along diagonals and from there to a T5 table.

    The inputs are those of the call, with stats in the place of o. Where the call's functions have a ``read``, dS is
    multiplied by that derivative, and there are two results: sums, also those along diagonals, and the places of what
    they are gradients of, int32.
    """
    sums, diagonal, shape = what
    layouts = [call.q, call.k, call.v, call.g, call.o, call.lse, call.mask, call.bias]
    planner = Planner(facts, [*layouts, PARAMETERS if call.options.contents else None])
    q, k, v, g, stats, _, mask, bias, given = planner.inputs
    views = views_of(call, {"q": q, "k": k, "v": v, "g": g, "stats": stats, "mask": mask, "bias": bias})
    chunk = Chunk(views, call.shift)
    bits = call.options.bits
    parameters, made = parameters_slot(planner, call, given, [block(facts, chunk)] if bits else [])
    place = made.places[0] if made else 0
    flat, read = _summed(planner, registry, call, chunk, what, parameters, place)
    if read is not None:
        return AttentionPlan(planner.plan(flat.reshape(shape), read.reshape(shape)), made)
    if not diagonal:
        return AttentionPlan(planner.plan(flat.reshape(shape)), made)
    batch, heads = q.shape[:2]
    parts = max(-(-batch * (q.shape[2] + k.shape[2] - 1) // _SHARE), 1)
    tables = planner.empty((parts, math.prod(shape)))
    bits &= ~extras_bits(FUNCTIONS)  # of which it calls none
    choice = registry.resolve(Request("attention-backward-t5", "float32", problem=(("extras", bits),)))
    arrays, push = operands(chunk, (0, batch, heads), call.scale, parameters, place)
    arrays = {"extra": arrays["extra"], "bias": arrays["bias"], "diagonals": flat, "table": tables}
    planner.dispatch(choice, {"FEATURES": bits}, arrays, push, (shape[0], heads, parts))
    return AttentionPlan(planner.plan(_added(planner, registry, tables).reshape(shape)), made)


def _summed(
    planner: Planner, registry: Registry, call: BackwardCall, chunk: Chunk, what: Sums, parameters: Tensor | None,
    place: int,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """dS summed over axes, or along diagonals; and the places of read elements, if any are read. Both flat."""
    views, facts, functions = chunk.views, planner.facts, call.options.functions
    sums, diagonal, _ = what
    q, k = views["q"], views["k"]
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    extents, summed = [], []
    for axis, extent in enumerate((batch, heads, queries, keys)):
        extents.append(1 if sums >> axis & 1 else extent)
        summed.append(extent // extents[axis])
    if diagonal:
        extents[2:], summed[2:] = [1, queries + keys - 1], [queries, 1]
    if call.packed is not None and sums & 1 and (diagonal or sums & 4):
        summed[0], summed[2] = 1, call.packed[0][0]
    planes, elements, total = extents[0] * extents[1], extents[2] * extents[3], math.prod(summed)
    parts = -(-total // _PART)
    if max(parts * planes * elements, total) > _MOST:
        scores = batch * heads * queries * keys
        raise UnsupportedError(f"{NAME}: the gradient of a bias over {scores:,} scores is too large")
    partial = planner.empty((parts, planes * elements))
    read = None if functions.read is None else planner.empty((planes * elements,), INT32)
    choice = registry.resolve(
        Request("attention-backward-bias", q.dtype.name, problem=(("align", 1), ("extras", call.options.bits)))
    )
    constants = {
        **call.constants(views), "GROUP": chunk.group, "SUM": sums, "DIAGONAL": int(diagonal), "PART": _PART,
        "READS": int(read is not None),
    }  # fmt: skip
    filling = functions.filling(registry)
    jobs = -(-elements // 64) * planes * parts
    each = 128.0 * _PART * (q.shape[3] + views["v"].shape[3])
    most = max(int(min(facts.work_limit / each, 2**31)), 1)
    most = min(most, facts.groups[0] * facts.groups[1])
    for first in range(0, jobs, most):
        count = min(most, jobs - first)
        arrays, push = operands(chunk, (first, batch, heads), call.scale, parameters, place)
        planner.dispatch(
            choice, constants, {**arrays, "parts": partial, "places": read}, push, _spread(count, facts.groups[0]),
            each * count, filling=filling,
        )  # fmt: skip
    return _added(planner, registry, partial), read


def _added(planner: Planner, registry: Registry, parts: Tensor) -> Tensor:
    """The sum over the first axis, ``(elements,)``."""
    choice = registry.resolve(Request("attention-backward-sum", "float32"))
    while parts.shape[0] > 1:
        rows, elements = parts.shape
        result = planner.empty((-(-rows // _PARTS), elements))
        groups = _spread(-(-result.size // 64), planner.facts.groups[0])
        push = {"rows": rows, "elements": elements}
        arrays = {"parts": parts, "result": result}
        planner.dispatch(choice, {"PARTS": _PARTS}, arrays, push, groups, float(parts.size))
        parts = result
    return parts[0]


def _gradient(
    device: Device, tensors: Sequence[Tensor | None], stats: Tensor, terms: BackwardTerms,
    checked: CheckedOptions | None, what: Sums,
) -> list[Tensor]:  # fmt: skip
    given = (*tensors[:4], stats, *tensors[5:])
    key = key_of(device, (terms, what), given)
    bias = given[7]
    if bias is not None and bias._offset:
        key = (*key[:8], placed(bias))
    found = device.caches[plan].get(key)
    if found is None:
        layouts = (None if layout is None else Layout(*layout) for layout in key[1:])
        made = plan(BackwardCall(*layouts, *terms), device.facts, device.registry, what)
        found = device.caches[plan].keep(key, AttentionExecutable(device, made))
    results: list[Tensor] = found.run((*given, found.parameters_of(device, checked)))
    return results


def bias_gradient(
    device: Device, tensors: Sequence[Tensor | None], stats: Tensor, terms: BackwardTerms,
    checked: CheckedOptions | None, shape: tuple[int, ...],
) -> Tensor:  # fmt: skip
    """The gradient of an ``attn_bias`` of this shape, float32. ``tensors`` are those of the call for gradients."""
    full = (*tensors[0].shape[:3], tensors[1].shape[2])
    padded = (1,) * (4 - len(shape)) + shape
    sums = sum(1 << axis for axis in range(4) if padded[axis] == 1 and full[axis] > 1)
    return _gradient(device, tensors, stats, terms, checked, Sums(sums, False, shape))[0]


def t5_gradient(
    device: Device, tensors: Sequence[Tensor | None], stats: Tensor, terms: BackwardTerms,
    checked: CheckedOptions | None, shape: tuple[int, int],
) -> Tensor:  # fmt: skip
    """The gradient of a T5 table of this shape, float32. ``tensors`` are those of the call for gradients."""
    return _gradient(device, tensors, stats, terms, checked, Sums(0, True, shape))[0]


def read_gradient(
    device: Device, tensors: Sequence[Tensor | None], stats: Tensor, terms: BackwardTerms,
    checked: CheckedOptions | None, read: Read, of: Tensor,
) -> Tensor:  # fmt: skip
    """The gradient of a tensor by a read of its elements, of its shape and dtype.

    ``tensors`` are those of the call for gradients. Numbers are summed over all axes on which the place of the element
    does not depend; by places that is done in fixed point, so that every run gives the same bits.
    """
    batch, heads, queries, keys = (*tensors[0].shape[:3], tensors[1].shape[2])
    kept = read.axes if read.axes & {2, 3} else read.axes | {3}  # so that there are numbers for all invocations
    shape = tuple(n if axis in kept else 1 for axis, n in enumerate((batch, heads, queries, keys)))
    sums = sum(1 << axis for axis in range(4) if axis not in kept)
    if read.diagonal:
        shape = (*shape[:2], queries + keys - 1)
    functions = terms.options.functions._replace(read=read.own)
    terms = terms._replace(options=terms.options._replace(functions=functions))
    found, places = _gradient(device, tensors, stats, terms, checked, Sums(sums, read.diagonal, shape))
    if kept != read.axes:
        found, places = sum_of("sum", found, (3,), None, True), places[..., :1]
    zeros, places, found = full_of(device, (of.size,), 0.0, FLOAT32), places.reshape(-1), found.reshape(-1)
    if not accumulates("add", zeros, places, found, 0):
        raise UnsupportedError(
            f"{NAME}: the gradient of a tensor of {of.size:,} elements by {found.size:,} reads is too large; give what "
            "has a number for each query and key as attn_bias"
        )
    added = accumulated("add", zeros, places, found, 0)
    return cast(added.reshape(of.shape), of.dtype)


def sinks_plan(given: tuple, layouts, facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatch of ``sinks_gradient``."""
    planner = Planner(facts, layouts)
    stats, sinks = planner.inputs
    batch, heads, queries, _ = stats.shape
    parts = max(-(-batch * queries // _SHARE), 1)
    result = planner.empty((parts, heads))
    choice = registry.resolve(Request("attention-backward-sinks", "float32"))
    push = {"sinks_offset": At(sinks), "batches": batch, "heads": heads, "queries": queries}
    arrays = {"stats": stats, "sinks": sinks, "result": result}
    planner.dispatch(choice, {}, arrays, push, (heads, parts, 1), float(stats.size))
    return planner.plan(_added(planner, registry, result))


def sinks_gradient(device: Device, stats: Tensor, sinks) -> Tensor:
    """The gradient of ``sinks``, an array ``(H,)``; float32. ``stats`` are contiguous, at the start of their memory."""
    given = sinks if isinstance(sinks, Tensor) else device.tensor(sinks)
    return run(device, sinks_plan, (), (stats, given.contiguous()))[0]
