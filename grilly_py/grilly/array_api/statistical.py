"""Sums, products, means and extremes."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from ..compute.arrays import reductions as _reductions
from ..compute.arrays import scans as _scans
from ..compute.attention import foreign
from ..compute.device.tensor import Tensor
from .operands import KEYWORDS, Axes, tensor_of


def cumulative_prod(
    x: Tensor | np.ndarray, /, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False,
    **unknown: NoReturn,
) -> Tensor:  # fmt: skip
    """Products of the elements so far along an axis, of dtypes as ``sum``; ``include_initial`` begins with 1."""
    if unknown:
        raise foreign.unknown("cumulative_prod", unknown, KEYWORDS)
    return _scans.running("prod", tensor_of("cumulative_prod", x), axis, dtype, include_initial)


def cumulative_sum(
    x: Tensor | np.ndarray, /, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False,
    **unknown: NoReturn,
) -> Tensor:  # fmt: skip
    """Sums of the elements so far along an axis, of dtypes as ``sum``; ``include_initial`` begins with 0."""
    if unknown:
        raise foreign.unknown("cumulative_sum", unknown, KEYWORDS)
    return _scans.running("sum", tensor_of("cumulative_sum", x), axis, dtype, include_initial)


def max(x: Tensor | np.ndarray, /, axis: Axes = None, *, keepdims: bool = False, **unknown: NoReturn) -> Tensor:
    """The largest element over axes (None: all), NaN where there is one. Raises ValueError for no elements."""
    if unknown:
        raise foreign.unknown("max", unknown, KEYWORDS)
    return _reductions.extreme("max", tensor_of("max", x), axis, keepdims)


def mean(x: Tensor | np.ndarray, /, axis: Axes = None, *, keepdims: bool = False, **unknown: NoReturn) -> Tensor:
    """The mean over axes (None: all); of integers in float32, to which int64 is rounded before it is added."""
    if unknown:
        raise foreign.unknown("mean", unknown, KEYWORDS)
    return _reductions.moment("mean", tensor_of("mean", x), axis, keepdims)


def min(x: Tensor | np.ndarray, /, axis: Axes = None, *, keepdims: bool = False, **unknown: NoReturn) -> Tensor:
    """The smallest element over axes (None: all), NaN where there is one. Raises ValueError for no elements."""
    if unknown:
        raise foreign.unknown("min", unknown, KEYWORDS)
    return _reductions.extreme("min", tensor_of("min", x), axis, keepdims)


def prod(
    x: Tensor | np.ndarray, /, axis: Axes = None, *, dtype: Any = None, keepdims: bool = False, **unknown: NoReturn
) -> Tensor:
    """The product over axes (None: all), of dtypes as ``sum``."""
    if unknown:
        raise foreign.unknown("prod", unknown, KEYWORDS)
    return _reductions.sum_of("prod", tensor_of("prod", x), axis, dtype, keepdims)


def std(
    x: Tensor | np.ndarray, /, axis: Axes = None, *, correction: float = 0.0, keepdims: bool = False,
    **unknown: NoReturn,
) -> Tensor:  # fmt: skip
    """The square root of ``var``."""
    if unknown:
        raise foreign.unknown("std", unknown, KEYWORDS)
    return _reductions.moment("std", tensor_of("std", x), axis, keepdims, correction)


def sum(
    x: Tensor | np.ndarray, /, axis: Axes = None, *, dtype: Any = None, keepdims: bool = False, **unknown: NoReturn
) -> Tensor:
    """The sum over axes (None: all): of floating types in their own dtype, of integers and bool in int64.

    Sums of floating types are float32 with what rounding lost beside them, and do not depend on the device.
    """
    if unknown:
        raise foreign.unknown("sum", unknown, KEYWORDS)
    return _reductions.sum_of("sum", tensor_of("sum", x), axis, dtype, keepdims)


def var(
    x: Tensor | np.ndarray, /, axis: Axes = None, *, correction: float = 0.0, keepdims: bool = False,
    **unknown: NoReturn,
) -> Tensor:  # fmt: skip
    """The mean squared difference from the mean over axes; the number of elements less ``correction`` divides.

    Of integers it is found in float32 from their exact differences from the first.
    """
    if unknown:
        raise foreign.unknown("var", unknown, KEYWORDS)
    return _reductions.moment("var", tensor_of("var", x), axis, keepdims, correction)
