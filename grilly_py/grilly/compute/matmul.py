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
_SPLIT_PUSH = struct.Struct("=9I")
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
    high: bool = False,
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
    high : bool
        For "linear" in float32: whether a and b may be split into 16-bit parts for matrix units.
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
    if operation == "linear":
        facts = (*facts, ("high", int(high)))
    choice = backend.registry.resolve(Request(operation, b.dtype.name, model, facts))
    check_trips(backend, operation, "columns of the left matrix", depth, choice.keys_per_trip)
    block_rows, block_cols = choice.tile["rows"], choice.tile["cols"]
    if choice.tile.get("split"):
        a, b = split(backend, a), split(backend, b[:1, :1]).broadcast_to((*b.shape[:3], split_words(depth)))

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
        known = {
            "HAS_BIAS": int(bias is not None),
            "WHOLE": int(c.shape[2] % block_rows == 0 and c.shape[3] % block_cols == 0),
        }
        program = program_of(backend, choice, {name: known[name] for name in choice.variant.constants})
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
        if 16 <= step < cols:
            step -= step % 16
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


def split_words(depth: int) -> int:
    """32-bit words in a split row of ``depth`` elements: 16 + 16 bits each, in blocks of 32, and the exponent's."""
    return -(-depth // 32) * 32 + 32


def split(backend: Compute, x: Tensor) -> Tensor:
    """Rows of float32 as two 16-bit parts and an exponent, in a float32 tensor's words (products/linear-split.comp).

    Parameters
    ----------
    x : Tensor
        ``(B, H, M, K)``, the last axis contiguous.

    Returns
    -------
    Tensor
        ``(B, H, M, split_words(K))``.
    """
    depth = x.shape[3]
    result = backend.empty((*x.shape[:3], split_words(depth)), x.dtype)
    program = program_of(backend, backend.registry.resolve(Request("linear-split", x.dtype.name)), {})

    def groups(shape):
        return min(math.prod(shape[:3]), 65535), 1, 1

    for (to, part), _ in parts(backend, (result, x), groups, ((), (), ())):

        def push(offsets, part=part):
            return _SPLIT_PUSH.pack(offsets[0], *strides(part), offsets[1], *part.shape[:3], depth)

        launch(backend, program, (part, to), push, groups(to.shape), 4.0 * part.size)
    return result
