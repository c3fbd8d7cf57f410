"""The search for scales with small errors: several are tried for each row, and each is improved by least squares.

Rows are float32 ``(n, elements)``, weights of their errors the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def inverse(x: Floats) -> Floats:
    """``1 / x``, and 0 for 0."""
    with np.errstate(divide="ignore", over="ignore"):
        found = np.where(x == 0, np.float32(0), np.float32(1) / x)
    return np.where(np.isfinite(found), found, np.float32(0)).astype(np.float32)


def largest(x: Floats) -> Floats:
    """The element of each row that is furthest from 0, with its sign, ``(n, 1)``."""
    return np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)


def nearest(x: Floats, low: int, high: int) -> Floats:
    """The whole numbers from ``low`` to ``high`` that are nearest, as floats."""
    return np.clip(np.rint(x), low, high)


def scale_of(x: Floats, levels: int) -> Floats:
    """Scales s ``(n,)`` with a small error of ``s q``, for whole numbers q from ``-levels`` to ``levels - 1``.

    The element that is furthest from 0 becomes about ``-levels``: there is one more number on that side. Errors of
    large elements count more.
    """
    top, weight = inverse(largest(x)), x * x
    best, scale = np.zeros(len(x), np.float32), np.zeros(len(x), np.float32)
    for step in range(-9, 10):
        q = nearest(x * (top * np.float32(-(levels + 0.1 * step))), -levels, levels - 1)
        both, square = (weight * x * q).sum(axis=1), (weight * q * q).sum(axis=1)
        gained = both * both * inverse(square)  # the error that s = both / square takes away
        better = gained > best
        best, scale = np.where(better, gained, best), np.where(better, both * inverse(square), scale)
    return scale


def scale_one_by_one(x: Floats, levels: int) -> Floats:
    """As `scale_of`, for few levels: five times each q in turn is changed where that makes the error smaller."""
    weight = x * x
    q = nearest(x * (inverse(largest(x)) * np.float32(-levels)), -levels, levels - 1)
    both, square = (weight * x * q).sum(axis=1), (weight * q * q).sum(axis=1)
    for place in [*range(x.shape[1])] * 5:
        one, heavy, was = x[:, place], weight[:, place], q[:, place]
        others, rest = both - heavy * one * was, square - heavy * was * was
        tried = nearest(one * rest * inverse(others), -levels, levels - 1)
        new, whole = others + heavy * one * tried, rest + heavy * tried * tried
        better = (others > 0) & (whole > 0) & (new * new * square > both * both * whole)
        q[:, place] = np.where(better, tried, was)
        both, square = np.where(better, new, both), np.where(better, whole, square)
    found: Floats = both * inverse(square)
    return found


def scale_and_minimum(
    x: Floats, weight: Floats, levels: int, first: float, steps: int, absolute: bool = False
) -> tuple[Floats, Floats]:
    """Scales s and minima m ``(n,)``, not negative, with a small error of ``s q - m``, for q from 0 to ``levels``.

    Parameters
    ----------
    first : float
        The first try makes the largest number ``levels`` plus this; each of ``steps`` further tries 0.1 more.
    absolute : bool
        Whether the magnitudes of errors are added up, not their squares.
    """
    low, high = np.minimum(x.min(axis=1, keepdims=True), 0), x.max(axis=1, keepdims=True)
    total, sum_x = weight.sum(axis=1), (weight * x).sum(axis=1)

    def error(scale: Floats, minimum: Floats) -> Floats:
        q = nearest((x - minimum[:, None]) * inverse(scale)[:, None], 0, levels)
        lost = np.abs(scale[:, None] * q + minimum[:, None] - x)
        found: Floats = (weight * (lost if absolute else lost * lost)).sum(axis=1)
        return found

    scale, minimum = ((high - low) / np.float32(levels))[:, 0], low[:, 0]
    best = error(scale, minimum)
    for step in range(steps + 1):
        spread = high - minimum[:, None]
        q = nearest((x - minimum[:, None]) * (inverse(spread) * np.float32(first + 0.1 * step + levels)), 0, levels)
        s1, s2, sx = (weight * q).sum(axis=1), (weight * q * q).sum(axis=1), (weight * x * q).sum(axis=1)
        determinant = inverse(total * s2 - s1 * s1)
        tried, below = (total * sx - sum_x * s1) * determinant, (s2 * sum_x - s1 * sx) * determinant
        above = below > 0  # no minimum then
        tried, below = np.where(above, sx * inverse(s2), tried), np.where(above, np.float32(0), below)
        lost = error(tried, below)
        better = (lost < best) & (tried > 0)
        best = np.where(better, lost, best)
        scale, minimum = np.where(better, tried, scale), np.where(better, below, minimum)
    return scale, -minimum


__all__ = ["Floats", "inverse", "largest", "nearest", "scale_and_minimum", "scale_of", "scale_one_by_one"]
