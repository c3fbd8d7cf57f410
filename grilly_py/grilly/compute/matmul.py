"""Batched matrix products: the plan behind linear layers, attention scores and attention outputs."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

from ..registry import Request
from .launch import alignment, fits_binding, launch, program_of
from .parts import check_trips, parts, strides
from .tensor import Tensor

if TYPE_CHECKING:
    from .backend import Compute

_PUSH = struct.Struct("=17Iif")
_MOST = 2**31 - 1


def product(
    backend: Compute,
    operation: str,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    model: str = "generic",
    columns_are_rows: bool,
    bias: Tensor | None = None,
    scale: float = 1.0,
    shift: int = 0,
) -> None:
    """Record ``c = scale * a b + bias`` with the kernels of ``operation``.

    Parameters
    ----------
    a, c : Tensor
        ``(B, H, M, K)`` and ``(B, H, M, N)``, their last axes contiguous.
    b : Tensor
        ``(B, H / g, N, K)`` if ``columns_are_rows``, else ``(B, H / g, K, N)``; the last axis contiguous.
    shift : int
        For the "gpt" model: row i uses the first ``i + shift + 1`` of K.
    """
    if c.size == 0:
        return
    batch, heads, rows, depth = a.shape
    cols = c.shape[3]
    aligned = alignment(
        a._offset, b._offset, c._offset, depth, cols, *strides(a), *strides(b), *strides(c)
    )
    sizes = (("rows", rows), ("cols", cols), ("outputs", c.size))
    facts = (("align", aligned), *((name, min(size, _MOST)) for name, size in sizes))
    choice = backend.registry.resolve(Request(operation, b.dtype.name, model, facts))
    check_trips(backend, operation, "columns of the left matrix", depth, choice.keys_per_trip)
    program = program_of(backend, choice, {} if operation != "linear" else {"HAS_BIAS": int(bias is not None)})
    block_rows, block_cols = choice.tile["rows"], choice.tile["cols"]

    def groups(shape):
        return -(-shape[3] // block_cols), -(-shape[2] // block_rows) * shape[1], shape[0]

    def work(shape):
        return 2.0 * math.prod(shape) * depth

    def record(a, b, c, group, first_row, bias):
        def push(offsets):
            return _PUSH.pack(
                offsets[0], *strides(a), offsets[1], *strides(b), offsets[2], *strides(c), offsets[3] if bias else 0,
                c.shape[2], c.shape[3], depth, group, shift + first_row, scale,
            )  # fmt: skip

        bound = (a, b, c) if operation != "linear" else (a, b, c, bias)
        launch(backend, program, bound, push, groups(c.shape), work(c.shape))

    def cut(a, b, c, bias):
        """Parts of a product whose heads of b are one each for a's (group 1), or one for all."""
        group = a.shape[1] if b.shape[1] == 1 else 1

        def part_of_b(starts, shape):
            first, head = starts[:2]
            whole = slice(None) if b.shape[1] == 1 else slice(head, head + shape[1])
            return b[first : first + shape[0], whole]

        def fits(starts, shape):
            return fits_binding(backend, part_of_b(starts, shape))

        axes = ((), (1, 2), (0,))
        for (c_part, a_part), starts in parts(backend, (c, a), groups, axes, fits, work):
            record(a_part, part_of_b(starts, c_part.shape), c_part, group, starts[2], bias)

    group = heads // b.shape[1]
    whole = all(fits_binding(backend, t) for t in (a, b, c)) and work(c.shape) <= 1e11
    if whole and all(n <= m for n, m in zip(groups(c.shape), backend.device.limits["groups"], strict=True)):
        record(a, b, c, group, 0, bias)
        return
    step = cols
    if columns_are_rows:  # b's rows are what a block of columns needs: halve them until they fit
        while step > 1 and not fits_binding(backend, b[:1, :1, :step]):
            step = -(-step // 2)
        step = min(-(-step // 16) * 16, cols)
    for first in range(0, cols, step):
        some = slice(first, first + step)
        b_part = b[:, :, some] if columns_are_rows else b
        c_part = c if step == cols else c[..., some]
        bias_part = None if bias is None else bias[some]
        if group == 1 or b.shape[1] == 1:
            cut(a, b_part, c_part, bias_part)
            continue
        for head in range(b.shape[1]):
            own = slice(head * group, (head + 1) * group)
            cut(a[:, own], b_part[:, head : head + 1], c_part[:, own], bias_part)
