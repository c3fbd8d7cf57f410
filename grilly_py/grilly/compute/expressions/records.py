"""The record of an elementwise operation: its function, dtypes, documentation, and name in ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ...errors import ExpressionError
from ..arrays.promotion import BOOL, FLOAT32, kind_of
from .elements import type_of
from .scalars import TRACING, Scalar, alike, line

#: What an operation takes: any dtype; all but bool; floats, and integers, which become float32; integers and bool;
#: integers.
ANY, NUMBERS, FLOATS, BITS, INTEGERS = "any", "numbers", "floats", "bits", "integers"
_PYTHON = (bool, int, float)
_NONE: Mapping[str, float] = MappingProxyType({})


class Operation(NamedTuple):
    """An elementwise operation.

    Attributes
    ----------
    name : str
    function : callable
        Takes scalars of the dtype in which the operation computes. Returns one of that dtype, or of bool.
    takes : str
        ANY, NUMBERS, FLOATS, BITS or INTEGERS.
    is_test : bool
        Whether it gives bool.
    text : str
        What it computes, for users: the docstring of the function that they call.
    onnx : str
        The operator of ONNX that it is; "" where there is none.
    numbers : mapping
        Names and defaults of the numbers that ``function`` takes after the arrays. Each call passes them.
    attributes : mapping
        The same as ONNX has them: its names and defaults.
    refused : callable or None
        Of an activation: takes the numbers, and returns why they are refused, or "". Its docstring says what is.
    parts : callable or None
        The same function made of other operations, of which its derivative is taken. For what has no rule in
        derivatives.py.
    """

    name: str
    function: Callable[..., Scalar]
    takes: str
    is_test: bool = False
    text: str = ""
    onnx: str = ""
    numbers: Mapping[str, float] = _NONE
    attributes: Mapping[str, float] = _NONE
    refused: Callable[..., str] | None = None
    parts: Callable[..., Scalar] | None = None


#: The operations by their names.
OPERATIONS: dict[str, Operation] = {}


def record(operation: Operation) -> None:
    """Enter an operation."""
    OPERATIONS[operation.name] = operation
    Scalar.operations[operation.name] = _applied(operation)


def dtype_for(operation: Operation, dtype: np.dtype) -> np.dtype:
    """The dtype in which an operation computes with operands that promote to a dtype.

    Raises TypeError where it does not take them.
    """
    kind, takes, name = kind_of(dtype), operation.takes, operation.name
    if takes == FLOATS and kind != "floating":
        if kind == "bool":
            raise TypeError(f"{name}: operands are bool; expected numbers; cast with .astype(grilly.float32)")
        return FLOAT32
    if takes in (BITS, INTEGERS) and (kind == "floating" or kind == "bool" and takes == INTEGERS):
        raise TypeError(f"{name}: operands are {dtype.name}; expected integers" + " or bool" * (takes == BITS))
    if takes == NUMBERS and kind == "bool":
        raise TypeError(f"{name}: operands are bool; expected numbers; cast them, or use logical functions")
    return dtype


def _applied(operation: Operation) -> Callable[..., Scalar]:
    """The operation on scalars, tensors and Python numbers, promoted as arrays are.

    Raises ExpressionError where it does not take their dtype.
    """

    def apply(*operands: Any) -> Scalar:
        TRACING.count()
        scalars = alike(*operands)
        try:
            dtype = dtype_for(operation, scalars[0].dtype)
        except TypeError as error:
            raise ExpressionError(f"{line()}: {error}") from None
        scalars = [scalar.cast(dtype) for scalar in scalars]
        return weak(noted(operation.name, operation.function, *scalars), *operands)

    return apply


def noted(name: str, function: Callable[..., Scalar], *scalars: Scalar) -> Scalar:
    """What an operation gives of scalars of its dtype, noted where derivatives are asked for: it, and not its parts."""
    applied, TRACING.applied = TRACING.applied, None
    try:
        found = function(*scalars)
    finally:
        TRACING.applied = applied
    if applied is not None:
        applied.append((name, [*scalars], found))
    return found


def weak(found: Scalar, *operands: Any) -> Scalar:
    """A result, which is a Python number as its operands are if all of them are."""
    if found.dtype != BOOL and all(isinstance(one, _PYTHON) or getattr(one, "weak", None) for one in operands):
        return Scalar(found.dtype, found.node, float if type_of(found.dtype) == "float" else int)
    return found


def public(function: Callable, module: str, name: str, text: str, parameters: Sequence[Parameter] = ()) -> None:
    """Give a function that was made of a record the name and docstring that users see.

    Parameters
    ----------
    module : str
        Where users find it.
    parameters : sequence of inspect.Parameter
        Where the function does not name its own, which are its signature then. It gives what it takes.
    """
    function.__module__, function.__doc__ = module, text
    function.__name__ = function.__qualname__ = name
    if parameters:
        gives = parameters[0].annotation
        function.__signature__ = Signature(parameters, return_annotation=gives)  # type: ignore[attr-defined]
        function.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": gives}
