"""What the functions take, as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compute.arrays import elementwise as _elementwise
from ..compute.arrays.promotion import FLOAT32, kind_of, promoted
from ..compute.backend import Compute, default_backend, device_of
from ..compute.device.device import Device
from ..compute.device.other_arrays import no_operand
from ..compute.device.tensor import Tensor
from ..compute.expressions.scalars import Scalar as TracedScalar
from ..compute.expressions.scalars import line
from ..errors import ExpressionError

Scalar = bool | int | float
#: Functions of elements that are no operations.
_OF_SCALARS = ("astype", "clip", "conj", "positive", "real")
Operand = Tensor | np.ndarray | np.generic | bool | int | float
Axes = int | tuple[int, ...] | None
#: Other libraries' keywords of these functions.
KEYWORDS = {
    **dict.fromkeys(("dim", "dims"), "axis"), "keepdim": "keepdims", "ddof": "correction",
    "unbiased": "correction=1, or correction=0 for False",
    "sorted": "nothing: the largest come first", "out": "nothing: the result is a new Tensor",
    "initial": "nothing: use grilly.maximum, minimum, add or multiply on the result",
    "where": "grilly.where(condition, x, other) in place of x", "kind": "stable",
}  # fmt: skip


def tensor_of(name: str, x: Any) -> Tensor:
    """An array as a tensor; scalars of a function stay, for functions of elements. Raises TypeError for others."""
    if x.__class__ is Tensor:
        return x  # type: ignore[no-any-return]
    if isinstance(x, (np.ndarray, np.generic)):
        return default_backend().tensor(x)
    if x.__class__ is TracedScalar:
        if name in _OF_SCALARS or name in TracedScalar.operations:
            return x  # type: ignore[no-any-return]
        raise ExpressionError(f"{line()}: {name} is no function of elements, which are all that the function has")
    raise no_operand(name, x)


def tensors_of(name: str, *arrays: Any) -> list[Tensor]:
    """Arrays as tensors, on the device of those that are some. Raises TypeError for what is none."""
    for x in arrays:
        if x.__class__ is not Tensor:
            break
    else:
        return list(arrays)
    for x in arrays:
        if not isinstance(x, (Tensor, np.ndarray, np.generic)):
            raise no_operand(name, x)
    device = device_of(name, *arrays)
    return [x if isinstance(x, Tensor) else device.tensor(np.asarray(x)) for x in arrays]


def wide(x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor, np.dtype]:
    """Factors whose products are added, those of 16 bits as float32; and the dtype that they promote to."""
    dtype = promoted(x1.dtype, x2.dtype)
    if kind_of(dtype) == "floating" and dtype.itemsize == 2:
        return _elementwise.cast(x1, FLOAT32), _elementwise.cast(x2, FLOAT32), dtype
    return x1, x2, dtype


def binary(name: str, x1: Any, x2: Any) -> Tensor:
    """An operation on two operands, of which arrays become tensors."""
    if x1.__class__ is not Tensor and x2.__class__ is not Tensor:
        if x1.__class__ is TracedScalar or x2.__class__ is TracedScalar:
            return _elementwise.binary(name, x1, x2)
        if not isinstance(x1, (np.ndarray, np.generic)) and isinstance(x2, (np.ndarray, np.generic)):
            x2 = tensor_of(name, x2)
        else:
            x1 = tensor_of(name, x1)
    return _elementwise.binary(name, x1, x2)


def device_at(device: Compute | None) -> Device:
    """The device of a backend; None: the default one's. Raises TypeError for what is no backend."""
    if device is None:
        return default_backend().opened
    if not isinstance(device, Compute):
        raise TypeError(f"device is {device!r}; expected a grilly.Compute, or None for the default one")
    return device.opened
