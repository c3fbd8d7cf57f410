"""In which order the factors of a product lie in memory: as rows, or turned, with the last axis but one contiguous."""

from __future__ import annotations

from ...registry import Choice, Registry
from ..arrays.map import gathered
from ..device.device import DeviceFacts
from ..device.plan import Planner, fits_binding
from ..device.tensor import Tensor


def is_turned(facts: DeviceFacts, factor: Tensor) -> bool | None:
    """Whether a factor of four axes is turned; None for one that no kernel takes as it is."""
    if any(step < 0 for step in factor._steps):
        return None
    if factor.shape[3] <= 1 or factor._steps[3] == 1:
        return False
    return True if factor._steps[2] == 1 and fits_binding(facts, factor) else None


def rows_of(factor: Tensor, turned: bool) -> Tensor:
    """A factor as rows that are contiguous."""
    return factor.swapaxes(2, 3) if turned else factor


def orders(choice: Choice) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Which of ``is_turned`` a kernel takes for a and for b."""
    if "turned" in choice.tile:
        return (False,), (True,)
    constants = () if {"split", "rows_only"} & choice.tile.keys() else choice.variant.constants
    return tuple((False, True) if name in constants else (False,) for name in ("TURNED_A", "TURNED_B"))


def laid(planner: Planner, registry: Registry, factor: Tensor, offset: int, turned: bool) -> Tensor:
    """A copy of a factor in one of the orders; ``offset`` as Layout.offset. What repeats is copied once."""
    once = factor[tuple(slice(0, 1) if step == 0 else slice(None) for step in factor._steps[:2])]
    result = gathered(planner, registry, rows_of(once, turned), offset)
    return rows_of(result, turned).broadcast_to(factor.shape)
