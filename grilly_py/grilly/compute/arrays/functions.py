"""Users' functions: traced once for each combination of dtypes, then one dispatch a call."""

from __future__ import annotations

import functools
import inspect
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import ExpressionError
from ..backend import device_of
from ..device.caches import Cache
from ..device.call import call
from ..device.dtypes import dtype_of
from ..device.other_arrays import called, refuse_hidden
from ..device.tape import OPEN, as_one, refuse_writes, wanted
from ..device.tensor import Tensor
from ..expressions.functions import WORDS, Outside, Traced, place_of, trace
from ..expressions.scalars import Scalar
from . import map_reduce, subexpressions
from .map import replaceable
from .map_reduce import HOWS, Reduced, found_of
from .promotion import BOOL, FLOAT32, INT64, check_range, kind_of
from .reductions import axes_of, extreme, moment, sum_of, truth
from .subexpressions import Subexpressions

#: A function keeps its traces for so many combinations of dtypes and keyword-only arguments.
TRACES = 64
_FLOAT = struct.Struct("<f")


def _float_bits(value: float) -> int:
    try:
        return int.from_bytes(_FLOAT.pack(value), "little")
    except (OverflowError, struct.error):  # the latter of integers
        return 0x7F800000 if value > 0 else 0xFF800000


class Given(NamedTuple):
    """The arguments of a call, sorted.

    Attributes
    ----------
    arguments : tuple
        Tensors, NumPy arrays and Python numbers.
    kinds : list
        The dtypes of arrays and the types of numbers.
    arrays : list
    live : list of int
        The words in which the numbers are passed.
    """

    arguments: tuple
    kinds: list
    arrays: list
    live: list[int]


class Prepared(NamedTuple):
    """What a function computes of arguments of these dtypes: its trace, and the key of its plan.

    Attributes
    ----------
    work
        The plan's key.
    traced : Traced
    whole : tuple of int
        The positions of integer arguments of which all 64 bits are used.
    """

    work: Any
    traced: Traced
    whole: tuple[int, ...]


class TracedFunction:
    """A function of users that becomes kernels.

    ``reads`` are further functions that it calls. The variables that any of them reads are watched for changes.
    """

    def __init__(self, function: Callable[..., Any], wrapped: str, *reads: Callable[..., Any]):
        if not callable(function) or isinstance(function, type):
            raise TypeError(f"{wrapped}: expected a function, got {function!r}")
        functools.update_wrapper(self, function)
        self._function = function
        self._name = getattr(function, "__name__", wrapped)
        self._prepared: Cache[tuple, Prepared] = Cache(TRACES)
        self._read_by: tuple[Callable[..., Any], ...] = (function, *reads)
        self._outside: Outside | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__module__.split('.')[0]}.{type(self).__name__} {self._name}>"

    def __copy__(self) -> Any:
        return self  # as a function

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce__(self) -> str:
        return self.__qualname__  # type: ignore[attr-defined, no-any-return]

    def _work(self, traced: Traced, arrays: int) -> tuple[Any, set[int]]:
        """The plan's key, and the words that it needs."""
        raise NotImplementedError

    def _taken(self, arguments: tuple) -> Given | None:
        """The arguments, sorted; None where some are scalars, since another function that is traced calls this one."""
        kinds: list = []
        arrays: list = []
        live: list[int] = []
        for place, argument in enumerate(arguments):
            kind = argument.__class__
            if kind is Tensor:
                kinds.append(argument._dtype)
                arrays.append(argument)
            elif kind is float:
                kinds.append(kind)
                live += (_float_bits(argument), 0, 0)
            elif kind is int:
                kinds.append(kind)
                live += (argument & 0xFFFFFFFF, argument >> 32 & 0xFFFFFFFF, _float_bits(argument))
            elif kind is bool:
                kinds.append(kind)
                live += (int(argument), 0, 0)
            elif kind is np.ndarray:
                kinds.append(dtype_of(argument.dtype))
                arrays.append(argument)
            elif kind is Scalar:
                return None
            else:
                return self._taken((*arguments[:place], self._plain(place, argument), *arguments[place + 1 :]))
        return Given(arguments, kinds, arrays, live)

    def _plain(self, place: int, argument: Any) -> np.ndarray | bool | int | float:
        """An argument as a NumPy array or a Python number. Raises ExpressionError for what is neither."""
        if isinstance(argument, np.bool_):
            return bool(argument)
        for kind in (float, int):
            if isinstance(argument, kind):
                return kind(argument)
        if isinstance(argument, (np.ndarray, np.generic)):
            refuse_hidden(self._name, argument)
            return np.asarray(argument)
        raise ExpressionError(
            f"{place_of(self._function)}: argument {place} is a {called(argument)}; expected tensors, NumPy arrays and "
            "Python numbers; what is the same for all elements is given by a keyword-only argument"
        )

    def _bound(self, arguments: tuple, named: dict[str, Any]) -> tuple[tuple, tuple]:
        """The positional arguments in their order, and keyword-only ones as (name, type, value)."""
        given = inspect.signature(self._function).bind(*arguments, **named)
        kinds = {name: one.kind for name, one in given.signature.parameters.items()}
        if any(kinds.get(name) is inspect.Parameter.POSITIONAL_OR_KEYWORD for name in given.kwargs):
            given.apply_defaults()  # also of positional ones before one that is given by name
        static = tuple((name, type(value), value) for name, value in given.kwargs.items())
        return given.args, static

    def _prepare(self, given: Given, static: tuple) -> Prepared:
        """The trace for such arguments: an earlier call's, or a new one."""
        outside = self._outside
        if outside is None or outside.changed():
            self._prepared.clear()
            self._outside = Outside(*self._read_by)
        key = (static, *given.kinds)
        try:
            prepared = self._prepared.get(key)
        except TypeError as error:
            raise ExpressionError(
                f"{place_of(self._function)}: keyword-only arguments must be hashable: {error}"
            ) from None
        if prepared is None:
            traced = trace(self._function, given.kinds, {name: value for name, _, value in static})
            work, words = self._work(traced, len(given.arrays) + len(traced.tensors))
            numbers = [place for place, kind in enumerate(given.kinds) if isinstance(kind, type)]
            whole = tuple(
                place for number, place in enumerate(numbers)
                if given.kinds[place] is int and not words.isdisjoint(
                    range(WORDS * number, WORDS * number + 2))
            )  # fmt: skip
            prepared = self._prepared.keep(key, Prepared(work, traced, whole))
        for place, dtype in prepared.traced.ranges:
            check_range(self._name, dtype, given.arguments[place])
        for place in prepared.whole:
            check_range(self._name, INT64, given.arguments[place])
        return prepared


class ElementwiseFunction(TracedFunction):
    """What ``grilly.elementwise`` gives: a function of scalars, applied to the elements of arrays."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The function of each element of arrays that broadcast.

        Parameters
        ----------
        *arguments : grilly.Tensor, numpy.ndarray, bool, int or float
            At least one array, unless the function finds a tensor outside. Numbers may change from call to call.
        **named
            Arguments by their names; keyword-only ones are hashable, and the same for all elements: each value of them
            makes a kernel.

        Returns
        -------
        grilly.Tensor or numpy.ndarray, or a tuple of them
            Of the shape to which the arrays broadcast, in the order in which the first of that shape lies in memory.
            Tensors where an argument is one, and then without waiting.

        Raises
        ------
        ExpressionError
            For a function that is none of elements.
        ValueError
            For shapes that do not broadcast, and tensors of different backends.
        OverflowError
            For an integer that does not fit the dtype in which the function computes with it.
        """
        static: tuple = ()
        if named:
            arguments, static = self._bound(arguments, named)
        given = self._taken(arguments)
        if given is None:  # in another function
            return self._function(*arguments, **{name: value for name, _, value in static})
        prepared = self._prepare(given, static)
        work, traced = prepared.work, prepared.traced
        arrays = (*given.arrays, *traced.tensors)
        if not arrays:
            raise TypeError(f"{self._name}: no argument is an array; give a tensor or a NumPy array")
        first = arrays[0]
        device = first._storage.device if first.__class__ is Tensor else device_of(self._name, *arrays)

        def compute() -> list:
            return call(device, subexpressions.plan, (work,), arrays, self._check, given.live,
                        results=len(work.results))  # fmt: skip

        found = as_one(self, (given.arguments, static), arrays, compute) if OPEN.tapes else compute()
        return tuple(found) if traced.several else found[0]

    def into(self, results: Sequence[Tensor | None], *arguments: Any, **named: Any) -> tuple[Tensor, ...]:
        """The function's results in place of what tensors hold, which the function may read.

        Parameters
        ----------
        results : sequence of Tensor or None
            One for each result: contiguous, of the result's shape and dtype, whole words of memory, and apart from each
            other; an argument that shares memory with one lies exactly as it does. None for a new tensor.
        *arguments, **named
            As in a call.

        Returns
        -------
        tuple of Tensor
            Those that are new.

        Raises
        ------
        ExpressionError, OverflowError
            As in a call.
        TypeError
            For what is no Tensor, and a result of another dtype.
        ValueError
            For another number of results, and for one that does not lie so.
        GradientError
            Where a gradient depends on what is read or written.
        """
        static: tuple = ()
        if named:
            arguments, static = self._bound(arguments, named)
        given = self._taken(arguments)
        if given is None:
            raise ExpressionError(f"{place_of(self._function)}: results go into tensors outside of functions alone")
        prepared = self._prepare(given, static)
        work, outputs = prepared.work, prepared.traced.outputs
        arrays = (*given.arrays, *prepared.traced.tensors)
        if len(results) != len(outputs):
            raise ValueError(f"{self._name}: {len(results)} places for {len(outputs)} results")
        for one, output in zip(results, outputs, strict=True):
            if one is not None and one.__class__ is not Tensor:
                raise TypeError(f"{self._name}: a result goes into a {called(one)}; expected a Tensor, or None")
            if one is not None and one.dtype != output.dtype:
                raise TypeError(f"{self._name}: a result is {output.dtype}, which does not replace {one.dtype}")
        targets = [one for one in results if one is not None]
        if not targets:
            raise ValueError(f"{self._name}: all results are new; call the function itself")
        _check_places(self._name, targets, arrays)
        refuse_writes(targets, arrays)

        def check(*given: Tensor | np.ndarray) -> None:
            shape = check_arrays(self._name, given)
            if any(one.shape != shape for one in targets):
                raise ValueError(f"{self._name}: results of shape {shape} go to tensors of {targets[0].shape}")

        into, new = tuple(one is not None for one in results), len(results) - len(targets)
        device = targets[0]._storage.device
        arrays += tuple(targets)
        return tuple(call(device, subexpressions.plan, (work, into), arrays, check, given.live, results=new))

    def _check(self, *arrays: Tensor | np.ndarray) -> None:
        check_arrays(self._name, arrays)

    def _work(self, traced: Traced, arrays: int) -> tuple[Subexpressions, set[int]]:
        own = Subexpressions.of(traced.outputs, arrays)
        return own, own.words()


def _check_places(name: str, targets: Sequence[Tensor], arrays: Sequence[Tensor | np.ndarray]) -> None:
    """Raise ValueError where a kernel that reads the arrays may not write these tensors as it goes."""
    read = [one for one in arrays if isinstance(one, Tensor)]
    for place, one in enumerate(targets):
        if not replaceable(one, read) or any(one._storage is other._storage for other in targets[:place]):
            raise ValueError(
                f"{name}: no result goes into a tensor of shape {one.shape} and strides {one.strides}: it must be "
                "whole words in C order, and lie apart from other results and from arguments, or exactly as one does"
            )


def check_arrays(name: str, arrays: Sequence[Tensor | np.ndarray]) -> tuple[int, ...]:
    """The shape to which arrays broadcast. Raises ValueError where there is none, and for several backends."""
    device_of(name, *arrays)
    shapes = [array.shape for array in arrays]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ValueError(f"{name}: shapes {' and '.join(map(str, shapes))} do not broadcast") from None


def elementwise(function: Callable[..., Any]) -> ElementwiseFunction:
    """Make a function of scalars one of arrays, in one dispatch.

    The function is called once for each combination of dtypes, with a ``grilly.Scalar`` in place of each argument, and
    what it does with them becomes a kernel. It may use operators, grilly's functions of elements (``grilly.exp``,
    ``grilly.where``, ``grilly.functional.silu`` and the like), other such functions, and tensors that it finds
    outside. What it returns is a scalar or a tuple of them, which are a dispatch each.

    Parameters
    ----------
    function : callable

    Returns
    -------
    ElementwiseFunction

    Raises
    ------
    TypeError
        For what is no function.

    Examples
    --------
    >>> @grilly.elementwise
    ... def swish(x, beta):
    ...     return x / (1 + grilly.exp(-beta * x))
    >>> swish(np.float32([0.0, 1.0]), 1.5)
    array([0.        , 0.81757444], dtype=float32)
    """
    return ElementwiseFunction(function, "elementwise")


def _reduced_scalars(how: str, output: Scalar) -> tuple[Scalar, np.dtype]:
    """The scalar to be reduced, in float32 or int64 as the kernel takes it, and the dtype of the result."""
    floats = kind_of(output.dtype) == "floating"
    if how in ("any", "all"):
        return output.cast(BOOL).cast(INT64), BOOL
    if how == "mean":
        return output.cast(FLOAT32), output.dtype if floats else FLOAT32
    if how in ("sum", "prod"):
        return output.cast(FLOAT32 if floats else INT64), output.dtype if floats else INT64
    return output.cast(FLOAT32 if floats else INT64), output.dtype


class Reduction(TracedFunction):
    """A reduction of a function of elements: what ``grilly.reduction`` makes."""

    def __init__(self, function: Callable[..., Any], how: str, finish: Callable[..., Any] | None,
                 *reads: Callable[..., Any]):  # fmt: skip
        super().__init__(function, "reduction", *reads)
        if how not in HOWS:
            raise ValueError(f"reduction: how is {how!r}; expected one of {', '.join(map(repr, HOWS))}")
        if finish is not None and not callable(finish):
            raise TypeError(f"reduction: finish is {finish!r}; expected a function of one scalar, or None")
        self._how, self._finish = how, finish
        # Kept, with their traces, for calls of which a gradient is wanted.
        self._elements = ElementwiseFunction(function, self._name, *reads)
        self._finished = None if finish is None else ElementwiseFunction(finish, self._name)
        if finish is not None:
            self._read_by += (finish,)

    def __call__(self, *arguments: Any, axis: int | tuple[int, ...] | None = None, keepdims: bool = False,
                 **static: Any) -> Any:  # fmt: skip
        """The reduction of the function of arrays that broadcast.

        Parameters
        ----------
        *arguments : grilly.Tensor, numpy.ndarray, bool, int or float
            At least one array, unless the function finds a tensor outside. Numbers may change from call to call.
        axis : int, tuple of int or None
            Of the shape to which the arrays broadcast; None for all.
        keepdims : bool
            Whether these axes stay, with extent 1.
        **static
            Keyword-only arguments of the function: hashable, and each value of them makes a kernel.

        Returns
        -------
        grilly.Tensor or numpy.ndarray
            A Tensor where an argument is one, and then without waiting. Of dtypes as ``grilly.sum``, ``grilly.mean``
            and so on have it of the function's results, unless ``finish`` gives another.

        Raises
        ------
        ExpressionError
            For a function that is none of elements.
        ValueError
            For shapes that do not broadcast, an axis that there is not, tensors of different backends, and the largest
            or smallest of no elements.
        OverflowError
            For an integer that does not fit the dtype in which the function computes with it.
        """
        named: tuple = ()
        if static:
            arguments, named = self._bound(arguments, static)
        given = self._taken(arguments)
        if given is None:
            raise ExpressionError(f"{place_of(self._function)}: a reduction is called in a function of elements")
        prepared = self._prepare(given, named)
        arrays = (*given.arrays, *prepared.traced.tensors)
        if not arrays:
            raise TypeError(f"{self._name}: no argument is an array; give a tensor or a NumPy array")
        if axis.__class__ is list:
            axis = tuple(axis)
        if wanted(*arrays):
            self._check(arrays, axis)
            return self._in_parts(arguments, named, axis, bool(keepdims))
        first = arrays[0]
        device = first._storage.device if first.__class__ is Tensor else device_of(self._name, *arrays)

        def check(*arrays: Tensor | np.ndarray) -> None:
            self._check(arrays, axis)

        return call(device, map_reduce.plan, (prepared.work, axis, bool(keepdims)), arrays, check, given.live)[0]

    def _in_parts(self, arguments: tuple, named: tuple, axis: Any, keepdims: bool) -> Any:
        """The same by operations that have gradients: the function's results are stored."""
        static = {name: value for name, _, value in named}
        elements = self._elements(*arguments, **static)
        if self._how in ("any", "all"):
            found = truth(self._how, elements, axis, keepdims)
        elif self._how in ("max", "min"):
            found = extreme(self._how, elements, axis, keepdims)
        elif self._how == "mean":
            found = moment("mean", elements, axis, keepdims)
        else:
            found = sum_of(self._how, elements, axis, None, keepdims)
        return found if self._finished is None else self._finished(found)

    def _check(self, arrays: Sequence[Tensor | np.ndarray], axis: Any) -> None:
        shape = check_arrays(self._name, arrays)
        axes = axes_of(self._name, np.broadcast_to(np.False_, shape), axis)  # type: ignore[arg-type]
        if self._how in ("max", "min") and not all(shape[place] for place in axes):
            raise ValueError(f"{self._name}: of no elements (shape {shape}) there is no {self._how}")

    def _work(self, traced: Traced, arrays: int) -> tuple[Reduced, set[int]]:
        if traced.several:
            raise ExpressionError(f"{place_of(self._function)} returns a tuple; expected one scalar to be reduced")
        reduced, dtype = _reduced_scalars(self._how, traced.outputs[0])
        elements = Subexpressions.of([reduced], arrays)
        found = found_of(reduced.dtype, self._how == "mean").cast(dtype)
        if self._finish is not None:
            finished = trace(self._finish, (), {}, [found])
            if finished.several or finished.tensors:
                said = "a tuple" if finished.several else "what it computes of a tensor"
                raise ExpressionError(f"{place_of(self._finish)} returns {said}; expected one scalar, of its argument")
            found = finished.outputs[0]
        own = Reduced.of(HOWS[self._how], elements, Subexpressions.of([found], 2))
        return own, elements.words()


def reduction(
    function: Callable[..., Any], how: str = "sum", *, finish: Callable[..., Any] | None = None
) -> Reduction:
    """Make a reduction of a function of scalars: of each element, and then of these over axes, in one dispatch.

    No array of the function's results is stored: each argument is read once.

    Parameters
    ----------
    function : callable
        As for ``grilly.elementwise``; it returns one scalar.
    how : str
        "sum", "mean", "prod", "max", "min", "any" or "all". Sums are float32 with what rounding lost beside them, or
        int64.
    finish : callable, optional
        A function of the reduction's scalar, which gives the element of the result.

    Returns
    -------
    Reduction

    Raises
    ------
    TypeError
        For what is no function.
    ValueError
        For another ``how``.

    Examples
    --------
    >>> distance = grilly.reduction(lambda x, y: (x - y) ** 2, "sum", finish=grilly.sqrt)
    >>> distance(np.float32([[3, 0], [1, 1]]), np.float32([0, 4]), axis=-1)
    array([5.       , 3.1622777], dtype=float32)
    """
    return Reduction(function, how, finish)


__all__ = ["ElementwiseFunction", "Reduction", "elementwise", "reduction"]
