"""Rows of float32 as 16-bit parts, which matrix units multiply."""

from __future__ import annotations

import math

from ...registry import Choice, Registry, Request
from ..device.cut import parts, placed
from ..device.plan import Planner, strided
from ..device.tensor import Tensor


def split_words(depth: int) -> int:
    """32-bit words in a split row of ``depth`` elements: 16 + 16 bits each, in blocks of 32, and the exponent's."""
    return -(-depth // 32) * 32 + 32


def split(planner: Planner, registry: Registry, x: Tensor) -> Tensor:
    """Rows of float32 as two 16-bit parts and an exponent, in a float32 tensor's words (matmul/linear-split.comp).

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
    result = planner.empty((*x.shape[:3], split_words(depth)), x.dtype)
    choice: Choice = registry.resolve(Request("linear-split", x.dtype.name))

    def groups(shape):
        return min(math.prod(shape[:3]), 65535), 1, 1

    for (to, part), _ in parts(planner.facts, (result, x), groups, ((), (), ())):
        batches, heads, rows = part.shape[:3]
        push = {
            **placed("x", part), **strided("split", to, ()), "batches": batches, "heads": heads, "rows": rows,
            "depth": depth,
        }  # fmt: skip
        planner.dispatch(choice, {}, {"x": part, "split": to}, push, groups(to.shape), 4.0 * part.size)
    return result
