"""Workgroups that share the query heads of a key head, where otherwise some of the device would be idle.

Each adds up dk and dv of its query heads; a dispatch behind them adds those of a key head, in a fixed order.
"""

from __future__ import annotations

import math

import numpy as np

from ...registry import Choice, Registry
from ..arrays.map import emit
from ..arrays.operations import spec
from ..device.device import DeviceFacts
from ..device.plan import ALIGN_MOST, Planner
from ..device.tensor import Tensor

#: Fewer shares, or one, are as good where they take no more than this of the least time.
_ALIKE = 1.08


def shares_of(facts: DeviceFacts, dkv: Choice, q: Tensor, k: Tensor, causal: bool) -> int:
    """How many workgroups share the query heads of a key head, for each tile of keys.

    A power of two that divides the query heads of a key head. The estimate counts the time of a workgroup with all of
    them as 1: tiles of equal length are taken in rounds; under a causal mask the longest is twice the mean, and half a
    workgroup's time is lost at the end.
    """
    if "SHARES" not in dkv.variant.constants or "resident" not in dkv.tile:
        return 1
    at_once = dkv.tile["resident"] * facts.units
    tiles = k.shape[0] * k.shape[1] * -(-k.shape[2] // dkv.tile["rows"])
    group = q.shape[1] // k.shape[1]

    def time(shares: int) -> float:
        if causal:
            return tiles / 2 / at_once + 0.5 / shares
        return math.ceil(tiles * shares / at_once) / shares

    able = [1 << n for n in range(group.bit_length()) if group % (1 << n) == 0]
    least = min(map(time, able))
    return next(shares for shares in able if time(shares) <= _ALIKE * least)


def add_shares(planner: Planner, registry: Registry, parts: Tensor, shares: int, dtype: np.dtype) -> Tensor:
    """The sums of ``parts``, ``(B, Hk * shares, Sk, D)`` in float32, by key heads; in ``dtype``."""
    while shares > 1:
        batch, heads, keys, width = parts.shape
        pairs = parts.reshape(batch, heads // 2, 2, keys, width)
        shares //= 2
        result = planner.empty((batch, heads // 2, keys, width), dtype if shares == 1 else parts.dtype)
        emit(planner, registry, spec("add", parts.dtype), result, [pairs[:, :, 0], pairs[:, :, 1]], [ALIGN_MOST] * 2)
        parts = result
    return parts


__all__ = ["add_shares", "shares_of"]
