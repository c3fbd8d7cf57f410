"""Checks of plain numbers: what is a number, an integer, a shape."""

from __future__ import annotations

import math
import operator

import numpy as np


def number(operation: str, name: str, value) -> float:
    """``value`` as a float. Raises TypeError for what is no real number; NaN and infinities are left to the caller."""
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):
        raise TypeError(f"{operation}: {name} is {value!r}; expected a number") from None


def integer(operation: str, name: str, value) -> int:
    """``value`` as an int. Raises TypeError for what is no integer, True and False included."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{operation}: {name} is {value!r}; expected an integer")


def extents(operation: str, shape) -> tuple[int, ...]:
    """The shape of a new array, an int or a sequence of them. Raises TypeError, and ValueError for negative ones."""
    try:
        found = shape if shape.__class__ is tuple else tuple(shape) if np.ndim(shape) else (shape,)
    except ValueError:
        raise TypeError(f"{operation}: shape is {shape!r}; expected an int or a tuple of them") from None
    found = tuple(integer(operation, "an extent of the shape", extent) for extent in found)
    if any(extent < 0 for extent in found):
        raise ValueError(f"{operation}: shape is {found}; expected no negative extent")
    return found
