"""Gradients of users' functions of elements, and of every function of scalars."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..arrays.functions import TRACES, ElementwiseFunction, Reduction, TracedFunction
from ..arrays.promotion import FLOAT32
from ..device.caches import Cache
from ..device.tape import Entry
from ..device.tensor import Outline, Tensor
from ..expressions.derivatives import gradients
from ..expressions.scalars import TRACING, alike
from .records import gradient_of


class Derivative:
    """The gradients of a function of scalars, by its arguments and by tensors that it finds outside.

    Parameters
    ----------
    function : callable
    name : str
        For errors.
    outside : sequence of Tensor
        They count as further arguments.
    """

    def __init__(self, function: Callable[..., Any], name: str, outside: Sequence[Tensor] = ()):
        self._function, self._name, self._outside = function, name, tuple(outside)
        self._made: dict[tuple, list[TracedFunction]] = {}

    def __call__(
        self, arguments: Sequence[Any], factors: Sequence[Tensor | None], wanted: Sequence[int]
    ) -> list[Tensor]:  # fmt: skip
        """Gradients by the wanted arguments, numbers of arrays, from those of the function's results.

        They are summed where an argument was broadcast, and then in float32 before they are rounded.
        """
        given = [factor for factor in factors if factor is not None]
        shape = given[0].shape
        arrays = [*arguments, *self._outside]
        found: dict[int, Tensor] = {}
        whole = [place for place in wanted if arrays[place].shape == shape]
        if whole:
            made = self._function_for(tuple(whole), tuple(factor is not None for factor in factors), len(arguments))
            parts = made(*map(_there, arguments), *given)
            found.update(zip(whole, parts, strict=True))
        for place in wanted:
            if place not in found:
                found[place] = self._sum(arrays[place], place, arguments, factors)
        return [found[place] for place in wanted]

    def _function_for(self, wanted: tuple[int, ...], there: tuple[bool, ...], count: int) -> Any:
        key = (wanted, there, count)
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = ElementwiseFunction(self._gradients(*key), self._name, self._function)
        return made

    def _sum(self, array: Tensor, place: int, arguments: Sequence[Any], factors: Sequence[Tensor | None]) -> Tensor:
        """The gradient by an argument that was broadcast."""
        there = tuple(factor is not None for factor in factors)
        given = [factor for factor in factors if factor is not None]
        key = ("sum", place, there, len(arguments))
        made = self._made.get(key)
        if made is None:
            function = self._gradients((place,), there, len(arguments), wide=True)
            made = self._made[key] = Reduction(function, "sum", None, self._function)
        shape = given[0].shape
        own = (1,) * (len(shape) - array.ndim) + array.shape
        axes = tuple(axis for axis, (one, many) in enumerate(zip(own, shape, strict=True)) if one != many)
        found: Tensor = made(*map(_there, arguments), *given, axis=axes, keepdims=True)
        return found.reshape(array.shape).astype(array.dtype, copy=False)

    def _gradients(
        self, wanted: tuple[int, ...], there: tuple[bool, ...], count: int, wide: bool = False
    ) -> Callable[..., Any]:
        """A function of the arguments and of the factors that are there, which gives gradients.

        Of the arguments' dtypes; with ``wide`` one, of float32.
        """

        def function(*scalars: Any) -> Any:
            operands, rest = scalars[:count], list(scalars[count:])
            factors = [rest.pop(0) if is_there else None for is_there in there]
            own = [*operands, *map(TRACING.scalar_of, self._outside)]
            asked = [own[place] for place in wanted]
            found = gradients(self._function, operands, factors, asked)
            given = [FLOAT32 if wide else scalar.dtype for scalar in asked]
            parts = [alike(part)[0].cast(dtype) for part, dtype in zip(found, given, strict=True)]
            return parts[0] if wide else tuple(parts)

        return function


def _there(argument: Any) -> Any:
    """An argument; 0 in place of an array that the gradients do not read."""
    is_gone = isinstance(argument, Tensor) and isinstance(argument._storage, Outline)
    return 0.0 if is_gone else argument


_KNOWN: weakref.WeakKeyDictionary[ElementwiseFunction, Cache[tuple, Derivative]] = weakref.WeakKeyDictionary()


@gradient_of(ElementwiseFunction)
def _pull(entry: Entry, factors: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    function, (arguments, static) = entry.operation, entry.static
    places = [place for place, one in enumerate(arguments) if isinstance(one, (Tensor, np.ndarray))]
    outside = entry.arrays[len(places) :]
    derivative = _derivative(function, static, outside)
    places += range(len(arguments), len(arguments) + len(outside))
    wanted = [place for place, needs in zip(places, entry.needs, strict=True) if needs]
    found = dict(zip(wanted, derivative(arguments, factors, wanted), strict=True))
    return [found.get(place) for place in places]


def _derivative(function: ElementwiseFunction, static: tuple, outside: Sequence[Tensor]) -> Derivative:
    """The derivative of a user's function with these keyword-only arguments, also by tensors that it finds outside."""
    key = (static, tuple(map(id, outside)))
    known = _KNOWN.setdefault(function, Cache(TRACES))
    found = known.get(key)
    if found is None:
        plain = functools.partial(function.__wrapped__, **{name: value for name, _, value in static})
        found = known.keep(key, Derivative(plain, function.__name__, outside))
    return found


__all__ = ["Derivative"]
