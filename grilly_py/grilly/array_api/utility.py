"""Truth over axes, and differences."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from ..compute.arrays import axes as _axes
from ..compute.arrays import elementwise as _elementwise
from ..compute.arrays import reductions as _reductions
from ..compute.arrays import shapes as _shapes
from ..compute.attention import foreign
from ..compute.device.numbers import integer
from ..compute.device.tensor import Tensor
from .operands import KEYWORDS, Axes, tensor_of, tensors_of


def all(x: Tensor | np.ndarray, /, axis: Axes = None, *, keepdims: bool = False, **unknown: NoReturn) -> Tensor:
    """Whether no element over axes (None: all) is zero."""
    if unknown:
        raise foreign.unknown("all", unknown, KEYWORDS)
    return _reductions.truth("all", tensor_of("all", x), axis, keepdims)


def any(x: Tensor | np.ndarray, /, axis: Axes = None, *, keepdims: bool = False, **unknown: NoReturn) -> Tensor:
    """Whether an element over axes (None: all) is not zero."""
    if unknown:
        raise foreign.unknown("any", unknown, KEYWORDS)
    return _reductions.truth("any", tensor_of("any", x), axis, keepdims)


def diff(
    x: Tensor | np.ndarray,
    /,
    axis: int = -1,
    *,
    n: int = 1,
    prepend: Tensor | np.ndarray | None = None,
    append: Tensor | np.ndarray | None = None,
    **unknown: NoReturn,
) -> Tensor:
    """The differences of neighbours along an axis, taken ``n`` times; x itself for none, as in NumPy.

    Raises TypeError for an ``n`` that is no integer, and ValueError for a negative one.
    """
    if unknown:
        raise foreign.unknown("diff", unknown, KEYWORDS)
    n = integer("diff", "n", n)
    if n < 0:
        raise ValueError(f"diff: n is {n}; expected 0 or more")
    x, *more = tensors_of("diff", x, *(one for one in (prepend, append) if one is not None))
    parts = [*more[: prepend is not None], x, *more[prepend is not None :]]
    place = _axes.axis_of("diff", axis, x.ndim)
    found = _shapes.concat(parts, place) if len(parts) > 1 and n else x
    lead = (slice(None),) * place
    for _ in range(min(n, found.shape[place])):  # there is nothing left then
        after, before = found._selected((*lead, slice(1, None))), found._selected((*lead, slice(0, -1)))
        found = _elementwise.binary("subtract", after, before)
    return found
