"""Elements at indices."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from ..compute.arrays import take as _take
from ..compute.attention import foreign
from ..compute.device.tensor import Tensor
from .operands import KEYWORDS, tensor_of


def take(x: Tensor | np.ndarray, indices: Any, /, axis: int | None = None, **unknown: NoReturn) -> Tensor:
    """Elements of x along an axis, which becomes the axes of ``indices``. Indices on the host are checked."""
    if unknown:
        raise foreign.unknown("take", unknown, KEYWORDS)
    return _take.take(tensor_of("take", x), indices, axis)


def take_along_axis(x: Tensor | np.ndarray, indices: Any, /, axis: int = -1, **unknown: NoReturn) -> Tensor:
    """For each element of ``indices``, of x's number of axes, that element of x along the axis."""
    if unknown:
        raise foreign.unknown("take_along_axis", unknown, KEYWORDS)
    return _take.take_along_axis(tensor_of("take_along_axis", x), indices, axis)
