"""Elements at indices."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compute.arrays import take as _take
from ..compute.device.tensor import Tensor
from .operands import tensor_of


def take(x: Tensor | np.ndarray, indices: Any, /, *, axis: int | None = None) -> Tensor:
    """Elements of x along an axis, which becomes the axes of ``indices``. Indices on the host are checked."""
    return _take.take(tensor_of("take", x), indices, axis)


def take_along_axis(x: Tensor | np.ndarray, indices: Any, /, *, axis: int = -1) -> Tensor:
    """For each element of ``indices``, of x's number of axes, that element of x along the axis."""
    return _take.take_along_axis(tensor_of("take_along_axis", x), indices, axis)
