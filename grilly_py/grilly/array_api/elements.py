"""Functions of each element with arguments or checks of their own."""

from __future__ import annotations

import numpy as np

from ..compute.arrays import elementwise as _elementwise
from ..compute.arrays.promotion import kind_of
from ..compute.device.tensor import Tensor
from .operands import Operand, tensor_of


def nextafter(x1: Operand, x2: Operand, /) -> Tensor:
    """The number next to x1 on the way to x2, in the dtype to which they promote."""
    if x1.__class__ is not Tensor and x2.__class__ is not Tensor:
        x1 = tensor_of("nextafter", x1)
    return _elementwise.next_after(x1, x2)


def positive(x: Tensor | np.ndarray, /) -> Tensor:
    """Each element as it is, in a new tensor. Raises TypeError for bool."""
    own = tensor_of("positive", x)
    if kind_of(own.dtype) == "bool":
        raise TypeError("positive: x is bool; expected numbers")
    return _elementwise.cast(own, own.dtype, copy=True)


def real(x: Tensor | np.ndarray, /) -> Tensor:
    """The real part: x itself, which has no other."""
    return tensor_of("real", x)


def conj(x: Tensor | np.ndarray, /) -> Tensor:
    """The complex conjugate: each element as it is, in a new tensor."""
    own = tensor_of("conj", x)
    return _elementwise.cast(own, own.dtype, copy=True)


def clip(x: Tensor | np.ndarray, /, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """Elements below ``min`` and above ``max`` replaced by these, in x's dtype.

    Raises TypeError for a bound that x's dtype does not hold.
    """
    return _elementwise.clip(tensor_of("clip", x), min, max)
