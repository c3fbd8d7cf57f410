"""Scalar: what a user's function is given in place of an array's element. Computing with it builds an expression."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ...errors import ExpressionError
from ..arrays.promotion import BOOL, check_range, default_of, kind_of, promoted, with_scalar
from ..device.dtypes import dtype_of
from ..device.tensor import Tensor
from .elements import converted, loaded, rounded, type_of
from .nodes import Node, constant, element

_PYTHON = (bool, int, float)
#: Operations of a function, at most: what has more is taken for a loop without end.
MOST = 20_000
#: NumPy's names of operators that have another one here; its numbers compute by them.
_UFUNCS = {"true_divide": "divide", "power": "pow", "left_shift": "bitwise_left_shift",
           "right_shift": "bitwise_right_shift"}  # fmt: skip


class Told(NamedTuple):
    """A Python number that is an argument of each call, not a part of the kernel.

    Attributes
    ----------
    place : int
        Its position among the arguments.
    as_float : Node
        Its value as a float32.
    """

    place: int
    as_float: Node


class Scalar:
    """What a function of ``grilly.elementwise`` or ``grilly.reduction`` is given in place of an array's element.

    It has NumPy's operators, and grilly's elementwise functions take it. Floating numbers of 16 bits are computed in
    float32 and rounded when they are stored, or by ``astype``. Python's ``if``, ``while``, ``and``, ``or`` and ``not``
    do not go with it, as its value is not known: use ``grilly.where``, ``&``, ``|`` and ``~``.

    Attributes
    ----------
    dtype : numpy.dtype
    weak : type or None
        bool, int or float where the value is made of Python numbers alone: it takes the dtype of the other operand.
    """

    __slots__ = ("dtype", "node", "weak", "told")

    #: The operations by their names, which operations.py fills in.
    operations: dict[str, Callable[..., Scalar]] = {}

    def __init__(self, dtype: np.dtype, node: Node, weak: type | None = None, told: Told | None = None):
        self.dtype, self.node, self.weak, self.told = dtype, node, weak, told

    def __repr__(self) -> str:
        return f"grilly.Scalar(dtype={self.dtype.name})"

    def astype(self, dtype: Any, copy: bool = True) -> Scalar:
        """The value as a dtype stores it, rounded to 16 bits where that has them. ``copy`` has no effect."""
        dtype = dtype_of(dtype)
        computed = self.cast(dtype)
        found = Scalar(dtype, rounded(dtype, computed.node))
        computed._note_cast(found)
        return found

    def cast(self, dtype: np.dtype) -> Scalar:
        """The value as a dtype computes it: floats of 16 bits are computed in float32, so nothing is rounded."""
        if dtype == self.dtype:
            return self
        if self.told is not None:
            if kind_of(dtype) == "floating":  # of an integer, which has no derivative
                return Scalar(dtype, self.told.as_float)
            if dtype.kind in "iu" and self.weak is int:
                TRACING.ranges.add((self.told.place, dtype))
        found = Scalar(dtype, converted(self.dtype, dtype, self.node))
        self._note_cast(found)
        return found

    def _note_cast(self, found: Scalar) -> None:
        if TRACING.applied is not None and found.node is not self.node:
            TRACING.applied.append(("astype", [self], found))

    def __bool__(self) -> NoReturn:
        raise ExpressionError(
            f"{line()}: the function asks whether a scalar is true, which is known for each element alone; use "
            "grilly.where(condition, x, y) in place of if, and &, | and ~ in place of and, or and not"
        )

    def _no_number(self, *_: Any, **__: Any) -> NoReturn:
        raise ExpressionError(
            f"{line()}: the function takes a scalar for a number or an array, which it is for each element alone; use "
            "operators and grilly's functions of elements, not those of NumPy and math"
        )

    __array__ = __float__ = __int__ = __index__ = __complex__ = __len__ = __iter__ = __getitem__ = _no_number
    __matmul__ = __rmatmul__ = __array_function__ = _no_number
    __hash__ = None  # type: ignore[assignment]

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Scalar:
        """What NumPy calls for ``x + scalar`` where x is its own: the operator. Its functions are refused."""
        name = _UFUNCS.get(ufunc.__name__, ufunc.__name__)
        others = [one for one in inputs if not isinstance(one, Scalar)]
        if method != "__call__" or options or name not in self.operations or len(others) != 1:
            raise ExpressionError(
                f"{line()}: the function calls numpy.{ufunc.__name__} on a scalar; use grilly's function of that name"
            )
        return self.operations[name](*inputs)

    def __round__(self, digits: int | None = None) -> Scalar:
        return self.operations["round"](self) if digits in (None, 0) else self._no_number()

    def __pow__(self, other: Any) -> Scalar:
        if other.__class__ in (int, float) and other == 2 and with_scalar(self.dtype, type(other)) == self.dtype:
            return self.operations["square"](self)
        if other.__class__ is int and other < 0 and kind_of(self.dtype) != "floating":
            raise ExpressionError(
                f"{line()}: {self.dtype.name} to the power {other} is no integer; cast it with .astype(grilly.float32)"
            )
        return self.operations["pow"](self, other)


class Tracing(threading.local):
    """The trace that runs in this thread: what the function has used so far.

    Attributes
    ----------
    arrays : int
        How many arrays it was given.
    tensors : list of Tensor
        Those that it reads from enclosing scopes: further arrays.
    ranges : set of (int, numpy.dtype)
        A position of an argument, a Python integer, and a dtype whose range it must be in.
    operations : int
    active : bool
    reads : callable or None
        Where tensors are memory: gives an element of a tensor as a scalar, by an index with scalars (reads.py).
    applied : list of (str, list of Scalar, Scalar), or None
        For derivatives: the operations applied so far, by name, with operands and result; casts are named "astype".
    """

    def __init__(self) -> None:
        self.active = False
        self.reads: Callable[[Tensor, Any], Scalar] | None = None
        self.applied: list[tuple[str, list[Scalar], Scalar]] | None = None
        self.start(0)

    def start(self, arrays: int) -> None:
        """Begin with a function of so many arrays."""
        self.arrays = arrays
        self.tensors: list[Tensor] = []
        self.ranges: set[tuple[int, np.dtype]] = set()
        self.operations = 0

    def scalar_of(self, tensor: Tensor) -> Scalar:
        """The scalar for an element of a tensor that the function reads from an enclosing scope."""
        if not self.active:
            raise ExpressionError(f"{line()}: a scalar is used outside of the function that was given it")
        if self.reads is not None:
            if tensor.ndim:
                raise ExpressionError(
                    f"{line()}: the function computes with a tensor of shape {tensor.shape}; here it reads elements by "
                    "indices, as in x[head] or x[batch, query]"
                )
            return self.reads(tensor, ())
        return Scalar(tensor.dtype, loaded(tensor.dtype, element(self.arrays + self.place_of(tensor))))

    def place_of(self, tensor: Tensor) -> int:
        """The number of a tensor that the function found outside."""
        place = next((place for place, one in enumerate(self.tensors) if one is tensor), None)
        if place is None:
            place = len(self.tensors)
            self.tensors.append(tensor)
        return place

    def count(self) -> None:
        """Count an operation. Raises ExpressionError for too many."""
        self.operations += 1
        if self.operations > MOST:
            raise ExpressionError(f"{line()}: the function has more than {MOST:,} operations")


TRACING = Tracing()


def line() -> str:
    """File and line of the innermost frame that is not grilly's, for errors."""
    frame = sys._getframe(1)
    package = __name__.split(".")[0] + "."
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(package):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def number(value: bool | int | float, dtype: np.dtype) -> Scalar:
    """A Python number as a scalar of a dtype. Raises OverflowError for an integer that the dtype does not hold."""
    check_range("a number of an expression", dtype, value)
    type = type_of(dtype)
    return Scalar(dtype, constant(value if type == "float" else bool(value) if type == "bool" else int(value), type))


def known(operand: Any) -> Scalar | bool | int | float:
    """An operand as a scalar or a Python number: tensors become arguments of the function.

    Raises ExpressionError for other operands.
    """
    if isinstance(operand, (Scalar, *_PYTHON)):
        return operand
    if isinstance(operand, Tensor):
        return TRACING.scalar_of(operand)
    if isinstance(operand, np.bool_):
        return bool(operand)
    if isinstance(operand, (np.generic, np.ndarray)) and operand.ndim == 0:
        value = np.float32(operand).item() if kind_of(operand.dtype) == "floating" else operand.item()
        return number(value, operand.dtype)
    if isinstance(operand, np.ndarray):
        raise ExpressionError(
            f"{line()}: the function computes with a numpy.ndarray of shape {operand.shape}; give it as an argument, "
            "or make a tensor of it before the call"
        )
    raise ExpressionError(
        f"{line()}: the function computes with a {type(operand).__name__}; expected scalars, tensors and Python numbers"
    )


def _dtype_for(scalars: list[Scalar], kinds: list[type]) -> np.dtype:
    """The dtype to which scalars that are not weak and Python numbers promote."""
    dtype = scalars[0].dtype if scalars else default_of(kinds[0])
    for scalar in scalars[1:]:
        dtype = promoted(dtype, scalar.dtype)
    for kind in kinds:
        dtype = with_scalar(dtype, kind)
    return dtype


def alike(*operands: Any) -> list[Scalar]:
    """Operands as scalars of the dtype to which they promote; Python numbers take that of the others.

    Raises ExpressionError for what is neither a scalar, a tensor nor a Python number.
    """
    found = [known(operand) for operand in operands]
    kinds = [one.weak if isinstance(one, Scalar) else type(one) for one in found]
    strong = [one for one, kind in zip(found, kinds, strict=True) if kind is None]
    dtype = _dtype_for(strong, [kind for kind in kinds if kind is not None])
    return [one.cast(dtype) if isinstance(one, Scalar) else number(one, dtype) for one in found]


def _operator(name: str, swapped: bool = False) -> Callable[..., Scalar]:
    def two(self: Scalar, other: Any) -> Scalar:
        return self.operations[name](other, self) if swapped else self.operations[name](self, other)

    def one(self: Scalar) -> Scalar:
        return self.operations[name](self)

    return one if name in ("negative", "abs", "bitwise_invert") else two


for _method, _name in {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}.items():  # fmt: skip
    setattr(Scalar, f"__{_method}__", _operator(_name))
    setattr(Scalar, f"__r{_method}__", _operator(_name, swapped=True))
Scalar.__rpow__ = _operator("pow", swapped=True)  # type: ignore[attr-defined]
for _method, _name in {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
    "neg": "negative", "abs": "abs", "invert": "bitwise_invert",
}.items():  # fmt: skip
    setattr(Scalar, f"__{_method}__", _operator(_name))
Scalar.__pos__ = lambda self: self  # type: ignore[attr-defined]

__all__ = ["BOOL", "MOST", "Scalar", "TRACING", "Told", "alike", "known", "line", "number"]
