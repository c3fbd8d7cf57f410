"""Order."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from ..compute.arrays import sorting as _sorting
from ..compute.attention import foreign
from ..compute.device.tensor import Tensor
from .operands import KEYWORDS, tensor_of


def argsort(
    x: Tensor | np.ndarray, /, axis: int = -1, *, descending: bool = False, stable: bool = True, **unknown: NoReturn
) -> Tensor:
    """The places, int64, of the elements in order along an axis.

    Equal elements keep their order, whatever ``stable`` says. NaN is larger than all numbers: last, or first where
    ``descending``. Raises ValueError for an axis that x has not.
    """
    if unknown:
        raise foreign.unknown("argsort", unknown, KEYWORDS)
    return _sorting.argsort(tensor_of("argsort", x), axis, descending)


def sort(
    x: Tensor | np.ndarray, /, axis: int = -1, *, descending: bool = False, stable: bool = True, **unknown: NoReturn
) -> Tensor:
    """The elements in order along an axis, as ``argsort`` orders them. Raises ValueError for an axis that x has not."""
    if unknown:
        raise foreign.unknown("sort", unknown, KEYWORDS)
    return _sorting.sort(tensor_of("sort", x), axis, descending)


def topk(
    x: Tensor | np.ndarray, k: int, /, axis: int = -1, largest: bool = True, **unknown: NoReturn
) -> tuple[Tensor, Tensor]:
    """The ``k`` largest elements along an axis, the largest first, and their places.

    Beyond the standard. Of equal elements the first come first; NaN is larger than all numbers.

    Parameters
    ----------
    x : Tensor
        Of any shape.
    k : int
        Up to the axis's extent.
    axis : int
    largest : bool
        False: the smallest ones, the smallest first.

    Returns
    -------
    (values, indices) : tuple of Tensor
        Of x's shape with ``k`` places along the axis; x's dtype, and int64.

    Raises
    ------
    ValueError
        For an axis that x has not, and where it has fewer than ``k`` elements.
    """
    if unknown:
        raise foreign.unknown("topk", unknown, KEYWORDS)
    return _sorting.topk(tensor_of("topk", x), k, axis, largest)
