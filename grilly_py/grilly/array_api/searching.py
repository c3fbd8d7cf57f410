"""Where elements are."""

from __future__ import annotations

import numpy as np

from ..compute.arrays import elementwise as _elementwise
from ..compute.arrays import indexing as _indexing
from ..compute.arrays import reductions as _reductions
from ..compute.arrays import sorting as _sorting
from ..compute.arrays.promotion import kind_of
from ..compute.backend import device_of
from ..compute.device.tensor import Tensor
from .operands import Axes, Operand, tensor_of


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The first place, int64, of the largest element, or of NaN, along an axis or in C order."""
    return _reductions.place("argmax", tensor_of("argmax", x), axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The first place, int64, of the smallest element, or of NaN, along an axis or in C order."""
    return _reductions.place("argmin", tensor_of("argmin", x), axis, keepdims)


def count_nonzero(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """How many elements over axes (None: all) are not zero, int64."""
    found = _elementwise.binary("not_equal", x, False if kind_of(x.dtype) == "bool" else 0)
    return _reductions.sum_of("sum", found, axis, None, keepdims)


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """The places of elements that are not zero, an int64 tensor for each axis. The host counts them, and waits."""
    return _indexing.nonzero(x)


def searchsorted(
    x1: Tensor | np.ndarray, x2: Tensor | np.ndarray, /, *, side: str = "left", sorter: Tensor | None = None
) -> Tensor:
    """How many elements of x1, one axis in ascending order, or so by ``sorter``, are below each element of x2; int64.

    ``side`` "right": those not above it. Raises ValueError for another side, and x1 of other than one axis.
    """
    return _sorting.searchsorted(tensor_of("searchsorted", x1), tensor_of("searchsorted", x2), side, sorter)


def where(condition: Tensor | np.ndarray, x1: Operand, x2: Operand, /) -> Tensor:
    """Elements of x1 where ``condition`` is true, else of x2; all three broadcast."""
    if condition.__class__ is not Tensor:
        condition = device_of("where", x1, x2).tensor(condition)
    return _elementwise.where(tensor_of("where", condition), x1, x2)
