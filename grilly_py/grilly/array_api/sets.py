"""Distinct elements. How many there are decides shapes, so these functions wait for the device, but ``isin``."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..compute.arrays import sets as _sets
from ..compute.device.tensor import Tensor
from .operands import tensor_of, tensors_of


class UniqueAll(NamedTuple):
    """What ``unique_all`` gives: ``(n,)`` values in order, first places and counts; inverse indices of x's shape."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """What ``unique_counts`` gives: ``(n,)`` values in order, and how often each is there."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """What ``unique_inverse`` gives: ``(n,)`` values in order; for each element of x which it is."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: Tensor | np.ndarray, /) -> UniqueAll:
    """The distinct elements, where each is first (in C order), which of them each element is, and their counts; int64
    but the values. Every NaN is distinct."""
    return UniqueAll(*_sets.unique(tensor_of("unique_all", x)))


def unique_counts(x: Tensor | np.ndarray, /) -> UniqueCounts:
    """The distinct elements, and how often each is there."""
    values, _, _, counts = _sets.unique(tensor_of("unique_counts", x))
    return UniqueCounts(values, counts)


def unique_inverse(x: Tensor | np.ndarray, /) -> UniqueInverse:
    """The distinct elements, and for each element of x which of them it is."""
    values, _, inverse, _ = _sets.unique(tensor_of("unique_inverse", x))
    return UniqueInverse(values, inverse)


def unique_values(x: Tensor | np.ndarray, /) -> Tensor:
    """The distinct elements, in order."""
    return _sets.unique(tensor_of("unique_values", x))[0]


def isin(x1: Tensor | np.ndarray, x2: Tensor | np.ndarray, /, *, invert: bool = False) -> Tensor:
    """Whether each element of x1 is among those of x2 (``invert``: is not), bool; NaN never is. Does not wait."""
    return _sets.isin(*tensors_of("isin", x1, x2), invert)
