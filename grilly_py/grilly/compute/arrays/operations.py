"""Elementwise operations on dtypes: in which dtype they compute, which they give, and the expression that they are."""

from __future__ import annotations

import functools

import numpy as np

from ..expressions import activations as _activations  # noqa: F401 its operations are entered
from ..expressions.expression import Expression, traced
from ..expressions.nodes import element
from ..expressions.records import OPERATIONS, dtype_for
from .promotion import BOOL, CODES, kind_of


class Spec:
    """An elementwise operation on a dtype: equal only to itself, so that it is a quick key.

    Attributes
    ----------
    name : str
    dtype, gives : numpy.dtype
        What operands are promoted to, and the result's.
    scalars : tuple of int
        The positions of operands that are Python numbers.
    """

    __slots__ = ("name", "dtype", "gives", "scalars", "_expressions")

    def __init__(self, name: str, dtype: np.dtype, gives: np.dtype, scalars: tuple[int, ...]):
        self.name = name
        self.dtype = dtype
        self.gives = gives
        self.scalars = scalars
        self._expressions: dict[tuple, Expression] = {}

    def expression(self, dtypes: tuple[np.dtype | None, ...], gives: np.dtype) -> Expression:
        """What the result's elements are of those of operands of these dtypes, None where there is none."""
        found = self._expressions.get((dtypes, gives))
        if found is None:
            is_same = self.name == "copy" and dtypes[0] == gives
            found = Expression(element(0)) if is_same else self._trace(dtypes, gives)
            self._expressions[dtypes, gives] = found
        return found

    def _trace(self, dtypes: tuple[np.dtype | None, ...], gives: np.dtype) -> Expression:
        told = [(place, self.dtype) for place in self.scalars]
        if self.name == "copy":
            return traced(lambda x: x, dtypes, told, None, gives)
        function = OPERATIONS[self.name].function
        if self.name == "where":  # whose condition is of any dtype
            return traced(lambda is_x, *others: function(is_x, *(one.cast(self.dtype) for one in others)),
                          dtypes, told, None, gives)  # fmt: skip
        return traced(function, dtypes, told, self.dtype, gives)


@functools.lru_cache(maxsize=4096)
def spec(name: str, dtype: np.dtype, gives: np.dtype | None = None, scalars: tuple[int, ...] = ()) -> Spec:
    """The operation on operands that promote to a dtype.

    Parameters
    ----------
    gives : numpy.dtype, optional
        Of a copy: the dtype to convert to.

    Raises
    ------
    TypeError
        Where the operation does not take the dtype.
    """
    kind_of(dtype)
    if name == "copy":
        return Spec("copy", dtype, dtype if gives is None else gives, scalars)
    operation = OPERATIONS[name]
    dtype = dtype_for(operation, dtype)
    if gives is None:
        gives = BOOL if operation.is_test else dtype
    return Spec(name, dtype, gives, scalars)


def code(dtype: np.dtype) -> int:
    """A dtype's number in kernels."""
    return CODES[dtype.name]
