"""What the functions take, as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compute.arrays import elementwise as _elementwise
from ..compute.backend import Compute, default_backend
from ..compute.device.device import Device
from ..compute.device.tensor import Tensor

Scalar = bool | int | float
Operand = Tensor | np.ndarray | np.generic | bool | int | float
Axes = int | tuple[int, ...] | None


def tensor_of(name: str, x: Any) -> Tensor:
    """An array as a tensor. Raises TypeError for what is none."""
    if x.__class__ is Tensor:
        return x  # type: ignore[no-any-return]
    if isinstance(x, (np.ndarray, np.generic)):
        return default_backend().tensor(x)
    raise TypeError(f"{name}: x is a {type(x).__name__}; expected a tensor or an array")


def binary(name: str, x1: Any, x2: Any) -> Tensor:
    """An operation on two operands, of which arrays become tensors."""
    if x1.__class__ is not Tensor and x2.__class__ is not Tensor:
        if not isinstance(x1, (np.ndarray, np.generic)) and isinstance(x2, (np.ndarray, np.generic)):
            x2 = tensor_of(name, x2)
        else:
            x1 = tensor_of(name, x1)
    return _elementwise.binary(name, x1, x2)


def device_at(device: Compute | None) -> Device:
    """The device of a backend; None: the default one's."""
    return default_backend().opened if device is None else device.opened
