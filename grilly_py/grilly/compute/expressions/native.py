"""Division, roots and powers as devices have them: within a few units of the last place, quicker than the exact ones.

Numbers below 2^-126 may count as 0. For where a result is added to something larger, as a step of an optimizer is.
"""

from __future__ import annotations

from typing import Any

from ..arrays.promotion import FLOAT32
from .nodes import make
from .scalars import Scalar


def divided(x: Any, y: Any) -> Any:
    """x / y, of float32 scalars."""
    return Scalar(FLOAT32, make("native_divide", x.node, y.node))


def root(x: Any) -> Any:
    """The square root of a float32 scalar."""
    return Scalar(FLOAT32, make("native_sqrt", x.node))


def power_of_two(x: Any) -> Any:
    """2 to the power of a float32 scalar."""
    return Scalar(FLOAT32, make("native_exp2", x.node))


def fused(x: Any, y: Any, z: Any) -> Any:
    """x y + z, of float32 scalars, rounded once."""
    return Scalar(FLOAT32, make("fma", x.node, y.node, z.node))


__all__ = ["divided", "fused", "power_of_two", "root"]
