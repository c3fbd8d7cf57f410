"""Derivatives of elementwise operations, and of functions that apply them.

A rule is a function of a factor, the operation's result and its operands. It gives, for each operand, the factor times
the derivative by it; None where that is 0 everywhere. Rules are made of operations, so that they have derivatives too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import GradientError
from ..arrays.promotion import kind_of
from .nodes import Node
from .records import OPERATIONS
from .scalars import TRACING, Scalar

_Rule = Callable[..., Sequence[Any]]

#: Of operations by name.
RULES: dict[str, _Rule] = {}


def _rule(*names: str) -> Callable[[_Rule], _Rule]:
    def enter(rule: _Rule) -> _Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return enter


def _apply(name: str, *operands: Any) -> Scalar:
    return Scalar.operations[name](*operands)


def _where(condition: Any, x: Any, y: Any) -> Scalar:
    return _apply("where", condition, x, y)


def _one(derivative: Callable[[Any, Any], Any]) -> _Rule:
    """The rule of an operation on one operand, from its derivative by the operand x and the result y."""
    return lambda factor, y, x: (factor * derivative(x, y),)


for _name, _derivative in {
    "negative": lambda x, y: -1.0,
    "exp": lambda x, y: y,
    "expm1": lambda x, y: y + 1.0,
    "log": lambda x, y: 1.0 / x,
    "log1p": lambda x, y: 1.0 / (1.0 + x),
    "log2": lambda x, y: 1.0 / (x * math.log(2)),
    "log10": lambda x, y: 1.0 / (x * math.log(10)),
    "sqrt": lambda x, y: 0.5 / y,
    "square": lambda x, y: 2.0 * x,
    "reciprocal": lambda x, y: -(y * y),
    "sin": lambda x, y: _apply("cos", x),
    "cos": lambda x, y: -_apply("sin", x),
    "tan": lambda x, y: 1.0 + y * y,
    "asin": lambda x, y: 1.0 / _apply("sqrt", 1.0 - x * x),
    "acos": lambda x, y: -1.0 / _apply("sqrt", 1.0 - x * x),
    "atan": lambda x, y: 1.0 / (1.0 + x * x),
    "sinh": lambda x, y: _apply("cosh", x),
    "cosh": lambda x, y: _apply("sinh", x),
    "asinh": lambda x, y: 1.0 / _apply("sqrt", x * x + 1.0),
    "acosh": lambda x, y: 1.0 / _apply("sqrt", x * x - 1.0),
    "atanh": lambda x, y: 1.0 / (1.0 - x * x),
    "erf": lambda x, y: _apply("exp", -(x * x)) * (2 / math.sqrt(math.pi)),
    "abs": lambda x, y: _apply("sign", x),
}.items():
    RULES[_name] = _one(_derivative)

# What changes by steps: a derivative of 0.
for _name in ("sign", "floor", "ceil", "trunc", "round", "floor_divide", "nextafter"):
    RULES[_name] = lambda factor, result, *operands: (None,) * len(operands)


@_rule("astype")
def _astype(factor: Scalar, y: Scalar, x: Scalar) -> Sequence[Any]:
    return (factor,)


@_rule("add")
def _add(factor: Scalar, z: Scalar, x: Scalar, y: Scalar) -> Sequence[Any]:
    return factor, factor


@_rule("subtract")
def _subtract(factor: Scalar, z: Scalar, x: Scalar, y: Scalar) -> Sequence[Any]:
    return factor, -factor


@_rule("multiply")
def _multiply(factor: Scalar, z: Scalar, x: Scalar, y: Scalar) -> Sequence[Any]:
    return factor * y, factor * x


@_rule("divide")
def _divide(factor: Scalar, z: Scalar, x: Scalar, y: Scalar) -> Sequence[Any]:
    by_x = factor / y
    return by_x, -(by_x * z)


@_rule("remainder")
def _remainder(factor: Scalar, z: Scalar, x: Scalar, y: Scalar) -> Sequence[Any]:
    return factor, -(factor * _apply("floor_divide", x, y))


@_rule("pow")
def _pow(factor: Scalar, z: Scalar, x: Scalar, y: Scalar) -> Sequence[Any]:
    by_x = _where(_apply("equal", y, 0.0), 0.0, factor * (y * x ** (y - 1.0)))
    vanishes = _apply("equal", x, 0.0) & _apply("greater_equal", y, 0.0)
    return by_x, _where(vanishes, 0.0, factor * (z * _apply("log", x)))


@_rule("maximum")
def _maximum(factor: Scalar, z: Scalar, x: Scalar, y: Scalar) -> Sequence[Any]:
    return _shared(factor, _apply("greater", x, y), _apply("equal", x, y))


@_rule("minimum")
def _minimum(factor: Scalar, z: Scalar, x: Scalar, y: Scalar) -> Sequence[Any]:
    return _shared(factor, _apply("less", x, y), _apply("equal", x, y))


def _shared(factor: Scalar, is_x: Scalar, is_tie: Scalar) -> Sequence[Any]:
    """A factor for one of two operands; half of it for each where they are equal, as PyTorch has it."""
    half = 0.5 * factor
    return _where(is_tie, half, _where(is_x, factor, 0.0)), _where(is_tie, half, _where(is_x, 0.0, factor))


@_rule("clip")
def _clip(factor: Scalar, z: Scalar, x: Scalar, low: Scalar, high: Scalar) -> Sequence[Any]:
    inner, by_high = _minimum(factor, z, _apply("maximum", x, low), high)
    by_x, by_low = _maximum(inner, z, x, low)
    return by_x, by_low, by_high


@_rule("where")
def _choice(factor: Scalar, z: Scalar, condition: Scalar, x: Scalar, y: Scalar) -> Sequence[Any]:
    return None, _where(condition, factor, 0.0), _where(condition, 0.0, factor)


@_rule("copysign")
def _copysign(factor: Scalar, z: Scalar, x: Scalar, y: Scalar) -> Sequence[Any]:
    changes = _apply("not_equal", _apply("signbit", x), _apply("signbit", y))
    by_x = _where(changes, -factor, factor)
    return _where(_apply("equal", x, 0.0), 0.0, by_x), None


@_rule("atan2")
def _atan2(factor: Scalar, z: Scalar, x: Scalar, y: Scalar) -> Sequence[Any]:
    share = factor / (x * x + y * y)
    return share * y, -(share * x)


@_rule("hypot")
def _hypot(factor: Scalar, z: Scalar, x: Scalar, y: Scalar) -> Sequence[Any]:
    share = factor / z
    return share * x, share * y


@_rule("logaddexp")
def _logaddexp(factor: Scalar, z: Scalar, x: Scalar, y: Scalar) -> Sequence[Any]:
    by_x = _apply("sigmoid", x - y)
    return factor * by_x, factor * _apply("sigmoid", y - x)


def _of_activation(name: str) -> _Rule:
    """The rule of an activation of x, up to two further arrays, and its numbers (activations.py)."""
    count = len(OPERATIONS[name].numbers)

    def rule(factor: Scalar, z: Scalar, x: Scalar, *rest: Scalar) -> Sequence[Any]:
        arrays, numbers = rest[: len(rest) - count], rest[len(rest) - count :]
        gated = factor * arrays[0] if arrays else factor
        found: list[Any] = [_apply(f"{name}_derivative", x, gated, *numbers)]
        if arrays:
            found.append(factor * _apply(name, x, *numbers))
        if len(arrays) > 1:
            found.append(factor)
        return [*found, *(None for _ in numbers)]

    return rule


def _through(parts: Callable[..., Any]) -> _Rule:
    """The rule of an operation from the same function, made of other operations."""

    def rule(factor: Scalar, z: Scalar, *operands: Scalar) -> Sequence[Any]:
        found = gradients(parts, operands, (factor,), operands)
        # An operand that is given twice has the sum of both, once.
        sums = {id(one.node): part for one, part in zip(operands, found, strict=True) if isinstance(part, Scalar)}
        return [sums.pop(id(one.node), None) for one in operands]

    return rule


def _rule_of(name: str) -> _Rule:
    """The rule of an operation. Raises GradientError where there is none."""
    if f"{name}_derivative" in OPERATIONS:
        return _of_activation(name)
    if name in RULES:
        return RULES[name]
    parts = OPERATIONS[name].parts
    if parts is None:
        raise GradientError(f"the operation {name} has no derivative")
    return _through(parts)


def gradients(
    function: Callable[..., Any], operands: Sequence[Scalar], factors: Sequence[Any], wanted: Sequence[Scalar]
) -> list[Any]:
    """Sums of factors times the derivatives of a function's results by some scalars that it computes with.

    Parameters
    ----------
    function : callable
        Of scalars; gives one or several.
    operands : sequence of Scalar
    factors : sequence of Scalar
        One for each result; None for 0.
    wanted : sequence of Scalar
        Operands, or what stands for tensors that the function finds outside.

    Returns
    -------
    list
        A Scalar for each wanted one, or 0.0 where the results do not depend on it.

    Raises
    ------
    GradientError
        For an operation of which no derivative is known.
    """
    before, TRACING.applied = TRACING.applied, []
    try:
        found = function(*operands)
        applied = TRACING.applied
    finally:
        TRACING.applied = before
    if before is not None:  # this function is differentiated itself
        before += applied
    results = found if isinstance(found, (tuple, list)) else (found,)
    sums: dict[int, Any] = {}
    for result, factor in zip(results, factors, strict=True):
        if isinstance(result, Scalar) and factor is not None:
            _add_to(sums, result.node, factor)
    for name, given, gave in reversed(applied):
        factor = sums.pop(id(gave.node), None)
        if factor is None or kind_of(gave.dtype) != "floating":
            continue
        for operand, part in zip(given, _rule_of(name)(factor, gave, *given), strict=True):
            if part is not None and kind_of(operand.dtype) == "floating":
                _add_to(sums, operand.node, part)
    return [sums.get(id(scalar.node), 0.0) for scalar in wanted]


def _add_to(sums: dict[int, Any], node: Node, part: Any) -> None:
    known = sums.get(id(node))
    sums[id(node)] = part if known is None else known + part


__all__ = ["RULES", "gradients"]
