"""The gradients of what attention adds to its scores: ``attn_bias``, ``sinks`` and a T5 table."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ...errors import UnsupportedError
from ...registry import Request
from ...runtime.interface import work_limit
from ..device.dispatch import binding, program_of
from ..device.tensor import Tensor
from .backward import NAME, Call, Piece, header, operands

if TYPE_CHECKING:
    from ..backend import Compute

#: Numbers that one invocation adds, of dS and of partial sums.
_PART, _PARTS = 64, 256
_MOST = 2**32 - 1


def _spread(count: int, most: int) -> tuple[int, int, int]:
    """At least ``count`` workgroups, as (x, y, 1) with x at most ``most``."""
    rows = -(-count // most)
    return -(-count // rows), rows, 1


def _summed(backend: Compute, views: dict[str, Tensor], call: Call, sums: int, diagonal: bool) -> Tensor:
    """dS summed over the axes with a bit in ``sums`` (1 batch, 2 head, 4 query, 8 key), or along diagonals; flat."""
    q, k = views["q"], views["k"]
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    extents = [1 if sums >> axis & 1 else n for axis, n in enumerate((batch, heads, queries, keys))]
    if diagonal:
        extents[2:] = [1, queries + keys - 1]
    planes, elements = extents[0] * extents[1], extents[2] * extents[3]
    total = queries if diagonal else batch * heads * queries * keys // (planes * elements)
    parts = -(-total // _PART)
    if max(parts * planes * elements, total) > _MOST:
        scores = batch * heads * queries * keys
        raise UnsupportedError(f"{NAME}: the gradient of a bias over {scores:,} scores is too large")
    partial = backend.empty((parts, planes * elements))
    choice = backend.registry.resolve(
        Request("attention-backward-bias", q.dtype.name, facts=(("align", 1), ("extras", call.bits)))
    )
    piece = Piece(views, call.shift)
    words, place = None, 0
    if call.bits:
        words, (place,) = call.extras.storage(backend, [header(backend, piece)])
    program = program_of(
        backend, choice,
        {**call.constants(views), "GROUP": piece.group, "SUM": sums, "DIAGONAL": int(diagonal), "PART": _PART},
    )  # fmt: skip
    jobs = -(-elements // 64) * planes * parts
    each = 128.0 * _PART * (q.shape[3] + views["v"].shape[3])
    most = max(int(min(work_limit(backend.device) / each, 2**31)), 1)
    across = backend.device.limits["groups"]
    most = min(most, across[0] * across[1])
    result, _ = binding(backend, partial)
    for first in range(0, jobs, most):
        count = min(most, jobs - first)
        bindings, push = operands(backend, piece, (first, batch, heads), call.scale, words, place)
        backend.runtime.dispatch(program, [*bindings, result], push, _spread(count, across[0]), each * count)
    return _added(backend, partial)


def _added(backend: Compute, parts: Tensor) -> Tensor:
    """The sum over the first axis, ``(elements,)``."""
    choice = backend.registry.resolve(Request("attention-backward-sum", "float32"))
    program = program_of(backend, choice, {"PARTS": _PARTS})
    while parts.shape[0] > 1:
        rows, elements = parts.shape
        result = backend.empty((-(-rows // _PARTS), elements))
        groups = _spread(-(-result.size // 64), backend.device.limits["groups"][0])
        bindings = [binding(backend, tensor)[0] for tensor in (parts, result)]
        backend.runtime.dispatch(program, bindings, struct.pack("=2I", rows, elements), groups, float(parts.size))
        parts = result
    return parts[0]


def bias_gradient(backend: Compute, views: dict[str, Tensor], call: Call, shape: tuple[int, ...]) -> Tensor:
    """The gradient of an ``attn_bias`` of this shape, float32."""
    full = (*views["q"].shape[:3], views["k"].shape[2])
    padded = (1,) * (4 - len(shape)) + shape
    sums = sum(1 << axis for axis in range(4) if padded[axis] == 1 and full[axis] > 1)
    return _summed(backend, views, call, sums, False).reshape(shape)


def t5_gradient(backend: Compute, views: dict[str, Tensor], call: Call, shape: tuple[int, int]) -> Tensor:
    """The gradient of a T5 table of this shape, float32."""
    diagonals = _summed(backend, views, call, 0, True)
    batch, heads = views["q"].shape[:2]
    table = backend.empty(shape)
    choice = backend.registry.resolve(Request("attention-backward-t5", "float32", facts=(("extras", call.bits),)))
    piece = Piece(views, call.shift)
    words, (place,) = call.extras.storage(backend, [header(backend, piece)])
    bindings, push = operands(backend, piece, (0, batch, heads), call.scale, words, place)
    results = [binding(backend, tensor)[0] for tensor in (diagonals, table)]
    backend.runtime.dispatch(
        program_of(backend, choice, {"FEATURES": call.bits}), [*([None] * 6), *bindings[6:], *results], push,
        (shape[0], heads, 1),
    )  # fmt: skip
    return table


def sinks_gradient(backend: Compute, stats: Tensor, sinks) -> Tensor:
    """The gradient of ``sinks``, an array ``(H,)``; float32."""
    batch, heads, queries, _ = stats.shape
    result = backend.empty((heads,))
    given = sinks if isinstance(sinks, Tensor) else backend.tensor(sinks)
    given = given.contiguous()
    choice = backend.registry.resolve(Request("attention-backward-sinks", "float32"))
    descriptors, offsets = zip(*(binding(backend, tensor) for tensor in (stats, given, result)), strict=True)
    push = struct.pack("=4I", offsets[1], batch, heads, queries)
    backend.runtime.dispatch(program_of(backend, choice, {}), list(descriptors), push, (heads, 1, 1), float(stats.size))
    return result
