"""Division and roots as devices have them: within 2.5 units of the last place, and quicker than the exact ones.

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


__all__ = ["divided", "root"]
