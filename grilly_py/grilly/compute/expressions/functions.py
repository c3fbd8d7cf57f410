"""Users' functions: traced with scalars, and what they read from enclosing scopes."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from ...errors import ExpressionError
from ..arrays.promotion import BOOL, FLOAT32, INT64
from ..device.tensor import Tensor
from .elements import loaded
from .nodes import constant, element, make, word
from .scalars import TRACING, Scalar, Told, alike

#: Words in which a call passes a Python number: a float's bits; or an integer's halves, and its value as a float.
WORDS = 3
_PACKAGE = __name__.split(".")[0]
_PLAIN = (bool, int, float, str)


class Traced(NamedTuple):
    """What a function computes.

    Attributes
    ----------
    outputs : tuple of Scalar
    several : bool
        Whether it returns a tuple of them.
    tensors : tuple of Tensor
        Those that it reads from enclosing scopes: further arrays.
    ranges : tuple of (int, numpy.dtype)
        A position of an argument, a Python integer, and a dtype whose range it must be in.
    """

    outputs: tuple[Scalar, ...]
    several: bool
    tensors: tuple[Tensor, ...]
    ranges: tuple[tuple[int, np.dtype], ...]


def place_of(function: Callable[..., Any]) -> str:
    """File, line and name of a function, for errors."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    name = getattr(function, "__name__", type(function).__name__)
    return name if code is None else f"{code.co_filename}:{code.co_firstlineno}: {name}"


def trace(
    function: Callable[..., Any], kinds: Sequence[np.dtype | type], static: Mapping[str, Any],
    scalars: Sequence[Scalar] | None = None, reads: Callable[[Tensor, Any], Scalar] | None = None,
) -> Traced:  # fmt: skip
    """Call a function with scalars, and return what it computes.

    Parameters
    ----------
    function : callable
    kinds : sequence of numpy.dtype or type
        For each argument an array's dtype, or the type of a Python number.
    static : mapping
        Keyword arguments, passed as they are.
    scalars : sequence of Scalar, optional
        Given instead of those of ``kinds``.

    With ``reads``, `reads.element_at`, the tensors that it finds outside are memory, which it reads by indices.

    Raises
    ------
    ExpressionError
        Where it is no function of elements.
    """
    arrays = [kind for kind in kinds if not isinstance(kind, type)]
    before = dict(vars(TRACING))
    try:
        TRACING.start(len(arrays))
        TRACING.active, TRACING.reads = True, reads
        try:
            returned = function(*(_scalars(kinds) if scalars is None else scalars), **static)
        except RecursionError:
            raise ExpressionError(f"{place_of(function)} calls itself without end") from None
        except (AttributeError, TypeError) as error:
            where = None if isinstance(error, ExpressionError) else _line_before_ours(error)
            if where is None:
                raise
            raise ExpressionError(f"{where}: the function asks for what no scalar has or is: {error}") from error
        outputs, several = _outputs(function, returned)
        del returned
        _check_tensors(function)
        return Traced(outputs, several, tuple(TRACING.tensors), tuple(TRACING.ranges))
    finally:
        TRACING.start(0)
        vars(TRACING).update(before)


def _line_before_ours(error: Exception) -> str | None:
    """File and line where the function used a scalar, or called grilly, and an error came; None for other errors."""
    found, trail = None, error.__traceback__
    ours = False
    while trail is not None:
        ours = trail.tb_frame.f_globals.get("__name__", "").split(".")[0] == _PACKAGE
        if not ours:
            found = f"{trail.tb_frame.f_code.co_filename}:{trail.tb_lineno}"
        trail = trail.tb_next
    return found if ours or isinstance(getattr(error, "obj", None), Scalar) else None


def _scalars(kinds: Sequence[np.dtype | type]) -> list[Scalar]:
    found: list[Scalar] = []
    array = number = 0
    for place, kind in enumerate(kinds):
        if isinstance(kind, type):
            found.append(_told(number, place, kind))
            number += 1
        else:
            found.append(Scalar(kind, loaded(kind, element(array))))
            array += 1
    return found


def _told(number: int, place: int, kind: type) -> Scalar:
    """The scalar of a Python number that a call passes; ``number`` counts such numbers."""
    first = WORDS * number
    if kind is bool:
        return Scalar(BOOL, make("not_equal", word(first, "uint"), constant(0, "uint")), bool)
    if kind is float:
        return Scalar(FLOAT32, word(first, "float"), float)
    whole = make("pair", word(first, "uint"), word(first + 1, "uint"))
    return Scalar(INT64, whole, int, Told(place, word(first + 2, "float")))


def _outputs(function: Callable[..., Any], returned: Any) -> tuple[tuple[Scalar, ...], bool]:
    several = isinstance(returned, (tuple, list))
    found = tuple(returned) if several else (returned,)
    for one in found:
        if not isinstance(one, (Scalar, Tensor, bool, int, float)):
            said = "nothing (None)" if one is None else f"a {type(one).__name__}"
            raise ExpressionError(f"{place_of(function)} returns {said}; expected a scalar, or a tuple of scalars")
    if not found:
        raise ExpressionError(f"{place_of(function)} returns an empty {type(returned).__name__}; expected scalars")
    return tuple(alike(one)[0] for one in found), several


def _check_tensors(function: Callable[..., Any]) -> None:
    """Raise ExpressionError for tensors that the function itself makes: later calls would not make them again."""
    held = TRACING.tensors
    probe = [Scalar(FLOAT32, constant(0, "float"))]
    alone = sys.getrefcount(probe[0])  # of an object that one list, or one attribute, holds
    for place in range(len(held)):
        if sys.getrefcount(held[place]) <= alone and sys.getrefcount(held[place]._storage) <= alone:
            tensor = held[place]
            raise ExpressionError(
                f"{place_of(function)} makes a tensor of shape {tensor.shape} by work on whole arrays; make it outside "
                "of the function, or give what it is made of as an argument"
            )


class Outside:
    """Variables of modules and of enclosing functions that functions read, and those functions that they call."""

    __slots__ = ("_globals", "_cells")

    def __init__(self, *functions: Callable[..., Any]):
        self._globals: list[tuple[dict[str, Any], str, Any]] = []
        self._cells: list[tuple[Any, Any]] = []
        seen: set[int] = set()
        waiting: list[Any] = list(functions)
        while waiting:
            one = waiting.pop()
            if isinstance(one, functools.partial):
                waiting += [one.func, *one.args, *one.keywords.values()]
            one = getattr(one, "__wrapped__", one) if type(one).__module__.startswith(_PACKAGE) else one
            one = getattr(one, "__func__", one) if isinstance(one, MethodType) else one
            if isinstance(one, FunctionType) and id(one) not in seen and not _is_ours(one):
                seen.add(id(one))
                waiting += self._read(one)

    def _read(self, function: FunctionType) -> list[Any]:
        found = []
        for name in _names(function.__code__):
            if name in function.__globals__ and not isinstance(function.__globals__[name], ModuleType):
                found.append(function.__globals__[name])
                self._globals.append((function.__globals__, name, found[-1]))
        for cell in function.__closure__ or ():
            try:
                found.append(cell.cell_contents)
            except ValueError:  # not there yet
                continue
            self._cells.append((cell, found[-1]))
        return found

    def changed(self) -> bool:
        """Whether one of the variables has another value by now."""
        for scope, name, value in self._globals:
            now = scope.get(name)
            if now is not value and not _is_same(now, value):
                return True
        for cell, value in self._cells:
            now = cell.cell_contents
            if now is not value and not _is_same(now, value):
                return True
        return False


def _is_ours(function: FunctionType) -> bool:
    return (function.__module__ or "").split(".")[0] == _PACKAGE


def _is_same(one: Any, other: Any) -> bool:
    return one.__class__ is other.__class__ and one.__class__ in _PLAIN and bool(one == other)


def _names(code: CodeType) -> set[str]:
    """Names that may be of global variables, in a function and in those that it defines."""
    found = set(code.co_names)
    for one in code.co_consts:
        if isinstance(one, CodeType):
            found |= _names(one)
    return found


__all__ = ["WORDS", "Outside", "Traced", "place_of", "trace"]
