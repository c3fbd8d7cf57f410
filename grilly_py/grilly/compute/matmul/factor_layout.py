"""The layouts of a product's factors: contiguous rows, or transposed, with the last axis but one contiguous."""

from __future__ import annotations

from ...registry import Choice, Registry
from ..arrays.map import gathered
from ..device.device import DeviceFacts
from ..device.plan import Planner, fits_binding
from ..device.tensor import Tensor


def is_transposed(facts: DeviceFacts, factor: Tensor) -> bool | None:
    """Whether a factor of four axes is transposed; None where a kernel takes neither and it must be copied."""
    if any(stride < 0 for stride in factor._strides):
        return None
    if factor.shape[3] <= 1 or factor._strides[3] == 1:
        return False
    return True if factor._strides[2] == 1 and fits_binding(facts, factor) else None


def rows_of(factor: Tensor, transposed: bool) -> Tensor:
    """A view of the factor with contiguous rows: its last two axes swapped, if it is transposed."""
    return factor.swapaxes(2, 3) if transposed else factor


def orders(choice: Choice) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """The values of ``is_transposed`` that a kernel takes for a, and for b."""
    if "transposed" in choice.tile:
        return (False,), (True,)
    constants = () if {"split", "rows_only"} & choice.tile.keys() else choice.variant.constants
    return tuple((False, True) if name in constants else (False,) for name in ("TRANSPOSED_A", "TRANSPOSED_B"))


def with_layout(planner: Planner, registry: Registry, factor: Tensor, offset: int, transposed: bool) -> Tensor:
    """Copy a factor, transposed or not; ``offset`` as in ``Layout``. Repeated batches and heads are copied once."""
    once = factor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in factor._strides[:2])]
    result = gathered(planner, registry, rows_of(once, transposed), offset)
    return rows_of(result, transposed).broadcast_to(factor.shape)
