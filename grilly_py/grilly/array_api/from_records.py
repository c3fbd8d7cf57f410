"""Functions of arrays, made of records of elementwise operations (compute/expressions/records.py)."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ..compute.arrays import elementwise
from ..compute.device.tensor import Tensor
from ..compute.expressions.records import OPERATIONS, public
from .operands import Operand, binary, tensor_of

#: Where users find them.
_HOME = f"{__package__}.elementwise"


class One(Protocol):
    """A function of one array."""

    def __call__(self, x: Tensor | np.ndarray, /) -> Tensor: ...


class Two(Protocol):
    """A function of two operands, which promote and broadcast."""

    def __call__(self, x1: Operand, x2: Operand, /) -> Tensor: ...


def one(name: str) -> One:
    """The function of one array that an operation is."""

    def function(x: Tensor | np.ndarray, /) -> Tensor:
        return elementwise.unary(name, tensor_of(name, x))

    public(function, _HOME, name, OPERATIONS[name].text)
    return function


def two(name: str) -> Two:
    """The function of two operands that an operation is."""

    def function(x1: Operand, x2: Operand, /) -> Tensor:
        return binary(name, x1, x2)

    public(function, _HOME, name, OPERATIONS[name].text)
    return function
