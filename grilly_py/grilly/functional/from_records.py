"""Activations and their gradients, made of records (compute/expressions/activations.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, Concatenate, ParamSpec, Protocol, cast

from ..compute.arrays import activations as _activations
from ..compute.backend import device_of
from ..compute.device.arrays import ArrayT
from ..compute.device.numbers import number
from ..compute.expressions.records import OPERATIONS, Operation, public
from ..compute.expressions.scalars import Scalar
from .keywords import no_keyword

#: Where users find them.
_HOME = f"{__package__}.activations"
_P = ParamSpec("_P")


class Value(Protocol[_P]):
    """An activation: arrays of one dtype, and the numbers that its record has."""

    def __call__(self, input: ArrayT, *args: _P.args, **kwargs: _P.kwargs) -> ArrayT: ...


class Gradient(Protocol[_P]):
    """The gradient of an activation."""

    def __call__(self, grad_output: ArrayT, input: ArrayT, *args: _P.args, **kwargs: _P.kwargs) -> ArrayT: ...


_Record = Callable[Concatenate[Scalar, _P], Scalar]
_RESULT = """
Returns
-------
numpy.ndarray or grilly.Tensor
    Of input's shape and dtype.

Raises
------
TypeError
    For another dtype"""


def numbers_of(name: str, of: str, given: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of the activation ``of``, those that are given and others by default, for errors of ``name``.

    Raises
    ------
    TypeError
        For one that the activation does not have, and for what is no number.
    ValueError
        For those that it refuses.
    """
    record = OPERATIONS[of]
    found = dict(record.numbers)
    for key, value in given.items():
        if key not in found:
            raise no_keyword(name, [key])
        found[key] = number(name, key, value)
    reason = record.refused(**found) if record.refused else ""
    if reason:
        raise ValueError(f"{name}: {reason}")
    return found


def _told(name: str, of: str, given: tuple[Any, ...], named: dict[str, Any]) -> list[float]:
    """The numbers as a call gives them, in order and by name."""
    keys = list(OPERATIONS[of].numbers)
    if len(given) > len(keys) or any(key in named for key in keys[: len(given)]):
        raise TypeError(f"{name}: {len(given)} numbers follow the arrays; expected at most {keys}, each once")
    return [*numbers_of(name, of, {**dict(zip(keys, given, strict=False)), **named}).values()]


def _publish(function: Callable[..., Any], name: str, record: Operation, first: str, arrays: str, said: str) -> None:
    """Give a function its name, signature and docstring."""
    numbers = "".join(f"{key} : float\n    By default {value}.\n" for key, value in record.numbers.items())
    errors = ", or what is no number.\n" if numbers else ".\n"
    errors += f"ValueError\n    For {said}.\n" if said else ""
    text = f"{first}\n\nParameters\n----------\n{arrays}{numbers}{_RESULT}{errors}"
    either = Parameter.POSITIONAL_OR_KEYWORD
    names = arrays.split(" : ")[0].split(", ")
    own = [Parameter(key, either, annotation="ArrayT") for key in names]
    own += [Parameter(key, either, default=value, annotation="float") for key, value in record.numbers.items()]
    public(function, _HOME, name, text, own)


def value(record: _Record[_P]) -> Value[_P]:
    """An activation, of its record's function."""
    name = record.__name__
    found = OPERATIONS[name]
    defaults = list(found.numbers.values())

    def function(input: Any, *given: Any, **named: Any) -> Any:
        told = _told(name, name, given, named) if given or named else defaults
        if input.__class__ is Scalar:
            return Scalar.operations[name](input, *told)
        return _activations.apply(device_of(name, input), name, name, told, input=input)

    arrays = "input : numpy.ndarray or grilly.Tensor\n    Any shape; float32, float16 or bfloat16.\n"
    _publish(function, name, found, found.text, arrays, (found.refused and found.refused.__doc__) or "")
    return cast("Value[_P]", function)


def gradient(record: _Record[_P]) -> Gradient[_P]:
    """The gradient of an activation, of its record's function."""
    of, name, kind = record.__name__, f"{record.__name__}_backward", f"{record.__name__}_derivative"
    found = OPERATIONS[of]
    defaults = list(found.numbers.values())

    def function(grad_output: Any, input: Any, *given: Any, **named: Any) -> Any:
        told = _told(name, of, given, named) if given or named else defaults
        device = device_of(name, input, grad_output)
        return _activations.apply(device, name, kind, told, input=input, grad_output=grad_output)

    first = f"The gradient of ``{of}``: of ``sum(grad_output * {of}(input))`` by input."
    arrays = ("grad_output, input : numpy.ndarray or grilly.Tensor\n    Of one shape and dtype: float32, float16 or "
              f"bfloat16. input is what ``{of}`` was given.\n")  # fmt: skip
    said = "differing shapes" + (f", and for {found.refused.__doc__}" if found.refused else "")
    _publish(function, name, found, first, arrays, said)
    return cast("Gradient[_P]", function)
