"""Checks of an optimizer's numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def check_number(
    owner: str, name: str, value: Any, least: float = -math.inf, below: float = math.inf, above: bool = False
) -> float:
    """The number. Raises TypeError for what is none, ValueError for one out of bounds."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
        raise TypeError(f"{owner}: {name} is a {type(value).__name__}; expected a number")
    if not math.isfinite(value) or value < least or value >= below or above and value == least:
        low = f" {'above' if above else 'from'} {least}" * (least > -math.inf)
        high = f" below {below}" * (below < math.inf)
        raise ValueError(f"{owner}: {name} is {value}; expected a finite number{low}{high}")
    return float(value)


def check_steps(owner: str, name: str, value: Any, least: int = 1) -> int:
    """A number of steps. Raises TypeError for no integer, ValueError for one below ``least``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{owner}: {name} is a {type(value).__name__}; expected a number of steps, an integer")
    if value < least:
        raise ValueError(f"{owner}: {name} is {value}; expected at least {least}")
    return value


__all__ = ["check_number", "check_steps"]
