"""Where elements are."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from ..compute.arrays import elementwise as _elementwise
from ..compute.arrays import indexing as _indexing
from ..compute.arrays import reductions as _reductions
from ..compute.arrays import sorting as _sorting
from ..compute.arrays.promotion import kind_of
from ..compute.attention import foreign
from ..compute.device.tensor import Tensor
from ..compute.expressions.scalars import Scalar as TracedScalar
from .operands import KEYWORDS, Axes, Operand, tensor_of, tensors_of


def argmax(
    x: Tensor | np.ndarray, /, axis: int | None = None, *, keepdims: bool = False, **unknown: NoReturn
) -> Tensor:
    """The first place, int64, of the largest element, or of NaN, along an axis or in C order."""
    if unknown:
        raise foreign.unknown("argmax", unknown, KEYWORDS)
    return _reductions.place("argmax", tensor_of("argmax", x), axis, keepdims)


def argmin(
    x: Tensor | np.ndarray, /, axis: int | None = None, *, keepdims: bool = False, **unknown: NoReturn
) -> Tensor:
    """The first place, int64, of the smallest element, or of NaN, along an axis or in C order."""
    if unknown:
        raise foreign.unknown("argmin", unknown, KEYWORDS)
    return _reductions.place("argmin", tensor_of("argmin", x), axis, keepdims)


def count_nonzero(
    x: Tensor | np.ndarray, /, axis: Axes = None, *, keepdims: bool = False, **unknown: NoReturn
) -> Tensor:
    """How many elements over axes (None: all) are not zero, int64."""
    if unknown:
        raise foreign.unknown("count_nonzero", unknown, KEYWORDS)
    x = tensor_of("count_nonzero", x)
    found = _elementwise.binary("not_equal", x, False if kind_of(x.dtype) == "bool" else 0)
    return _reductions.sum_of("sum", found, axis, None, keepdims)


def nonzero(x: Tensor | np.ndarray, /) -> tuple[Tensor, ...]:
    """The places of elements that are not zero, an int64 tensor for each axis. The host counts them, and waits."""
    return _indexing.nonzero(tensor_of("nonzero", x))


def searchsorted(
    x1: Tensor | np.ndarray, x2: Tensor | np.ndarray, /, *, side: str = "left", sorter: Tensor | None = None
) -> Tensor:
    """How many elements of x1, one axis in ascending order, or so by ``sorter``, are below each element of x2; int64.

    ``side`` "right": those not above it. Raises ValueError for another side, and x1 of other than one axis.
    """
    x1, x2 = tensors_of("searchsorted", x1, x2)
    return _sorting.searchsorted(x1, x2, side, sorter)


def where(condition: Tensor | np.ndarray, x1: Operand, x2: Operand, /) -> Tensor:
    """Elements of x1 where ``condition`` is true, else of x2; all three broadcast."""
    if condition.__class__ is not Tensor and TracedScalar not in (condition.__class__, x1.__class__, x2.__class__):
        condition = tensors_of("where", condition, *(x for x in (x1, x2) if isinstance(x, Tensor)))[0]
    return _elementwise.where(condition, x1, x2)
