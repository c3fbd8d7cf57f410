"""Functions of PyTorch's scalars, as flex_attention takes them, on grilly's scalars and Tensors.

The function runs once with stand-ins for its arguments. What PyTorch's operations would do with them grilly's do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

import grilly

from ..compute.device.tensor import Tensor
from ..compute.expressions.scalars import Scalar
from ..errors import ExpressionError

_NUMBERS = (bool, int, float)
#: Names of grilly's functions, by those of PyTorch's without underscores around them, where they differ.
_CALLED = {
    "sub": "subtract", "mul": "multiply", "div": "divide", "truediv": "divide", "truedivide": "divide",
    "true_divide": "divide", "floordiv": "floor_divide", "mod": "remainder", "neg": "negative", "absolute": "abs",
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
    "greater_than": "greater", "less_than": "less", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "invert": "bitwise_invert", "bitwise_not": "bitwise_invert", "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift", "arctan": "atan", "arcsin": "asin", "arccos": "acos", "arctan2": "atan2",
    "getitem": "index",
}  # fmt: skip
#: Functions of elements that both have.
_ALIKE = frozenset((
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "pow", "negative", "abs", "equal",
    "not_equal", "less", "less_equal", "greater", "greater_equal", "bitwise_and", "bitwise_or", "bitwise_xor",
    "bitwise_invert", "bitwise_left_shift", "bitwise_right_shift", "logical_and", "logical_or", "logical_not",
    "logical_xor", "exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "square", "reciprocal", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "tanh", "atan2", "sign", "floor", "ceil", "trunc", "maximum", "minimum",
    "where", "isnan", "isinf", "isfinite", "hypot", "copysign", "logaddexp",
))  # fmt: skip
_DTYPES = {
    torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16", torch.int64: "int64",
    torch.int32: "int32", torch.int16: "int16", torch.int8: "int8", torch.uint8: "uint8", torch.bool: "bool",
}  # fmt: skip
_CASTS = {"float": "float32", "half": "float16", "bfloat16": "bfloat16", "int": "int32", "long": "int64",
          "bool": "bool", "double": "float32"}  # fmt: skip


class StandIn:
    """What a function is given in place of a tensor without axes: a scalar of grilly's, or a Tensor of all of them."""

    def __init__(self, value: Any, captured: Captured):
        self.value, self._captured = value, captured

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        """PyTorch's functions on stand-ins, where no `_Tracing` is on; there is none."""
        return NotImplemented

    def __getattr__(self, name: str) -> Callable[..., StandIn]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self._captured.call(name, (self, *args), kwargs)

    def __bool__(self) -> bool:
        return bool(self.value)  # which a scalar refuses, and says what to do

    __hash__ = None  # type: ignore[assignment]


def _operator(name: str, swapped: bool) -> Callable[..., StandIn]:
    def apply(self: StandIn, *others: Any) -> StandIn:
        return self._captured.call(name, (*others, self) if swapped else (self, *others), {})

    return apply


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
    setattr(StandIn, f"__{_name}__", _operator(_name, swapped=False))
    setattr(StandIn, f"__r{_name}__", _operator(_name, swapped=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "abs", "invert"):
    setattr(StandIn, f"__{_name}__", _operator(_name, swapped=False))


class Captured:
    """The tensors of PyTorch's that functions read, and what stands for them.

    Attributes
    ----------
    tensors : list of torch.Tensor
        In the order in which they are read first.
    stand_ins : list of grilly.Tensor
    """

    def __init__(self, send: Callable[[torch.Tensor], Tensor]):
        self.tensors: list[torch.Tensor] = []
        self.stand_ins: list[Tensor] = []
        self._send = send

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of PyTorch's scalars as one of grilly's."""

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            with _Tracing(self):
                found = function(*(StandIn(argument, self) for argument in arguments))
            return self._value(found) if isinstance(found, torch.Tensor) else getattr(found, "value", found)

        return call

    def call(self, called: str, args: Sequence[Any], kwargs: dict[str, Any]) -> StandIn:
        """What grilly's function of a name of PyTorch's gives. Raises ExpressionError where there is none."""
        plain = called.strip("_")
        if called.startswith("__r") and plain[1:] in _CALLED:
            plain, args = plain[1:], args[::-1]
        name = _CALLED.get(plain, plain)
        if name in ("index", "new_ones", "new_zeros", "new_full", "new_tensor"):
            return StandIn(self._of_tensor(name, args, kwargs), self)
        values = [self._value(argument) for argument in args]
        if name in ("to", "type"):
            wanted = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.dtype)]
            return StandIn(values[0].astype(self._dtype(wanted[0])) if wanted else values[0], self)
        if name in _CASTS:
            return StandIn(values[0].astype(_CASTS[name]), self)
        if name in ("clamp", "clip"):
            low = kwargs.get("min", values[1] if len(values) > 1 else None)
            high = kwargs.get("max", values[2] if len(values) > 2 else None)
            return StandIn(_between(values[0], self._value(low), self._value(high)), self)
        if name in ("sigmoid", "relu", "softplus"):
            return StandIn(getattr(grilly.functional, name)(values[0]), self)
        if name == "exp2":
            return StandIn(grilly.pow(2.0, values[0]), self)
        if name in ("max", "min") and len(values) == 2:
            name = f"{name}imum"
        if name not in _ALIKE or kwargs.keys() - {"alpha"} or kwargs.get("alpha", 1) != 1:
            raise ExpressionError(
                f"flex_attention: the function calls torch's {called} on a scalar, which is not taken here; it takes "
                "operators, tensor[indices], where, clamp, conversions and functions of elements such as exp and tanh"
            )
        return StandIn(_applied(name, values), self)

    def _of_tensor(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """An element of a tensor, or a number."""
        if name == "index":
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            return self._value(args[0])[tuple(self._value(item) for item in index)]
        number = {"new_ones": 1, "new_zeros": 0}.get(name, kwargs.get("fill_value", args[-1]))
        return bool(number) if kwargs.get("dtype") == torch.bool else float(number)

    def _value(self, argument: Any) -> Any:
        """A stand-in's scalar, a number, or a Tensor for one of PyTorch's."""
        if isinstance(argument, StandIn):
            return argument.value
        if not isinstance(argument, torch.Tensor):
            return argument
        place = next((place for place, one in enumerate(self.tensors) if _is_same(one, argument)), None)
        if place is None:
            place = len(self.tensors)
            self.tensors.append(argument)
            self.stand_ins.append(self._send(argument))
        return self.stand_ins[place]

    @staticmethod
    def _dtype(dtype: torch.dtype) -> str:
        if dtype not in _DTYPES:
            raise ExpressionError(f"flex_attention: the function converts a scalar to {dtype}, which grilly lacks")
        return _DTYPES[dtype]


class _Tracing(TorchFunctionMode):
    """Has PyTorch's functions that are given stand-ins done by grilly's."""

    def __init__(self, captured: Captured):
        super().__init__()
        self._captured = captured

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if not any(_has_stand_in(one) for one in (*args, *kwargs.values())):
            return func(*args, **kwargs)
        return self._captured.call(func.__name__, args, kwargs)


def _has_stand_in(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_has_stand_in, value))
    return isinstance(value, StandIn)


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both are one view of one memory."""
    return one is other or (
        one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()
        and one.dtype == other.dtype and one.numel() > 0
    )  # fmt: skip


def _applied(name: str, values: Sequence[Any]) -> Any:
    if any(isinstance(value, Scalar) for value in values):
        return Scalar.operations[name](*values)
    if all(isinstance(value, _NUMBERS) for value in values):
        values = [grilly.asarray(value) for value in values]
    return getattr(grilly, name)(*values)


def _between(value: Any, low: Any, high: Any) -> Any:
    if low is not None:
        value = grilly.maximum(value, low)
    return value if high is None else grilly.minimum(value, high)


__all__ = ["Captured", "StandIn"]
