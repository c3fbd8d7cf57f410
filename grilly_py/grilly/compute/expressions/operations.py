"""The elementwise operations: each is a function of scalars with its documentation, written here and nowhere else.

A function gets scalars of one dtype, that in which the operation computes, and gives one of it, or of bool. Activations
are in activations.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import ExpressionError
from ..arrays.promotion import BOOL, INT64, kind_of
from .elements import converted, long_of, truth, type_of, wrapped
from .nodes import Node, call, constant, make, retyped
from .records import ANY, BITS, FLOATS, INTEGERS, NUMBERS, Operation, noted, record, weak
from .scalars import TRACING, Scalar, alike, line, number

_SIGN, _SIZE, _INFINITY = 0x80000000, 0x7FFFFFFF, 0x7F800000


def _operation(
    takes: str, onnx: str = "", is_test: bool = False
) -> Callable[[Callable[..., Scalar]], Callable[..., Scalar]]:
    def enter(function: Callable[..., Scalar]) -> Callable[..., Scalar]:
        record(Operation(function.__name__, function, takes, is_test, function.__doc__ or "", onnx))
        return function

    return enter



# -- numbers of each type


def _new(like: Scalar, node: Node) -> Scalar:
    return Scalar(like.dtype, wrapped(like.dtype, node) if type_of(like.dtype) == "int" else node)


def _truth(node: Node) -> Scalar:
    return Scalar(BOOL, node)


def _arithmetic(x: Scalar, y: Scalar, on_floats: str, on_integers: str, on_longs: str) -> Scalar:
    type = type_of(x.dtype)
    if type == "long":
        return Scalar(x.dtype, call(on_longs, x.node, y.node))
    return _new(x, make(on_floats if type == "float" else on_integers, x.node, y.node))


def _by_longs(name: str, x: Scalar, y: Scalar) -> Scalar:
    """A library function of integers on numbers of any integer dtype."""
    found = call(name, long_of(x.dtype, x.node), long_of(y.dtype, y.node))
    return Scalar(x.dtype, converted(INT64, x.dtype, found))


def _function(name: str, *operands: Scalar) -> Scalar:
    return Scalar(operands[0].dtype, call(name, *(operand.node for operand in operands)))


def _narrow(name: str, x: Scalar) -> Scalar:
    """A library function that has a quicker form for results of 16 bits."""
    return _function(f"{name}_narrow" if x.dtype.itemsize == 2 else name, x)


def _bits(x: Scalar) -> Node:
    return make("bits", x.node)


def _uint(value: int) -> Node:
    return constant(value, "uint")


def _size(x: Scalar) -> Node:
    """The bits of a float's magnitude."""
    return make("and", _bits(x), _uint(_SIZE))


def _order(x: Scalar) -> Node:
    """Integers in the order of floats; both zeros are 0."""
    size = _size(x)
    minus = make("isub", constant(0, "int"), retyped(size, "int"))
    return make("select", make("not_equal", _bits(x), size), minus, retyped(size, "int"))


def _from_bits(x: Scalar, bits: Node) -> Scalar:
    return Scalar(x.dtype, make("float_of_bits", bits))


def _choose(condition: Scalar, x: Scalar, y: Scalar) -> Scalar:
    return Scalar(x.dtype, make("select", condition.node, x.node, y.node))


def _like(x: Scalar, value: float) -> Scalar:
    return number(value, x.dtype)


# -- selection


@_operation(ANY)
def where(condition: Scalar, x: Scalar, y: Scalar) -> Scalar:
    """Elements of x where ``condition`` is true, else of y."""
    return _choose(_truth(truth(type_of(condition.dtype), condition.node)), x, y)


@_operation(ANY)
def maximum(x1: Scalar, x2: Scalar) -> Scalar:
    """The larger one; NaN where one is NaN."""
    if x1.dtype == BOOL:
        return x1 | x2
    return _choose(isnan(x1) | ~isnan(x2) & less(x2, x1), x1, x2)


@_operation(ANY)
def minimum(x1: Scalar, x2: Scalar) -> Scalar:
    """The smaller one; NaN where one is NaN."""
    if x1.dtype == BOOL:
        return x1 & x2
    return _choose(isnan(x1) | ~isnan(x2) & less(x1, x2), x1, x2)


@_operation(ANY)
def clip(x: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """x, not below ``low`` nor above ``high``."""
    return minimum(maximum(x, low), high)


# -- arithmetic


@_operation(NUMBERS, "Add")
def add(x1: Scalar, x2: Scalar) -> Scalar:
    """x1 + x2."""
    return _arithmetic(x1, x2, "fadd", "iadd", "long_add")


@_operation(NUMBERS, "Sub")
def subtract(x1: Scalar, x2: Scalar) -> Scalar:
    """x1 - x2."""
    return _arithmetic(x1, x2, "fsub", "isub", "long_subtract")


@_operation(NUMBERS, "Mul")
def multiply(x1: Scalar, x2: Scalar) -> Scalar:
    """x1 * x2; integers wrap."""
    return _arithmetic(x1, x2, "fmul", "imul", "long_multiply")


@_operation(FLOATS)
def divide(x1: Scalar, x2: Scalar) -> Scalar:
    """x1 / x2, correctly rounded; of integers in float32."""
    return _function("divide", x1, x2)


@_operation(FLOATS, "Reciprocal")
def reciprocal(x: Scalar) -> Scalar:
    """1 / x."""
    return divide(_like(x, 1.0), x)


@_operation(NUMBERS)
def floor_divide(x1: Scalar, x2: Scalar) -> Scalar:
    """The greatest whole number not above x1 / x2; 0 for integers divided by 0."""
    return _function("floor_divide", x1, x2) if type_of(x1.dtype) == "float" else _by_longs("long_floor_divide", x1, x2)


@_operation(NUMBERS)
def remainder(x1: Scalar, x2: Scalar) -> Scalar:
    """What floor_divide leaves, of x2's sign; 0 for integers divided by 0."""
    return _function("remainder", x1, x2) if type_of(x1.dtype) == "float" else _by_longs("long_remainder", x1, x2)


@_operation(NUMBERS)
def pow(x1: Scalar, x2: Scalar) -> Scalar:
    """x1 to the power of x2; integers wrap, and their negative powers are 0, but those of 1 and -1."""
    return _function("pow", x1, x2) if type_of(x1.dtype) == "float" else _by_longs("long_pow", x1, x2)


@_operation(NUMBERS, "Neg")
def negative(x: Scalar) -> Scalar:
    """Each element with the other sign; integers wrap."""
    if type_of(x.dtype) == "float":
        return _from_bits(x, make("xor", _bits(x), _uint(_SIGN)))
    return subtract(_like(x, 0), x)


@_operation(NUMBERS, "Abs")
def abs(x: Scalar) -> Scalar:
    """The magnitude of each element."""
    if type_of(x.dtype) == "float":
        return _from_bits(x, _size(x))
    return x if kind_of(x.dtype) == "unsigned" else _choose(signbit(x), negative(x), x)


@_operation(NUMBERS, "Sign")
def sign(x: Scalar) -> Scalar:
    """-1, 0 or 1; NaN for NaN."""
    if type_of(x.dtype) == "float":
        return _function("sign", x)
    one, zero = _like(x, 1), _like(x, 0)
    found = _choose(equal(x, zero), zero, one)
    return found if kind_of(x.dtype) == "unsigned" else _choose(signbit(x), _like(x, -1), found)


@_operation(NUMBERS)
def square(x: Scalar) -> Scalar:
    """x * x."""
    return multiply(x, x)


# -- bits


def _bitwise(x: Scalar, y: Scalar, on_bits: str, on_truths: str) -> Scalar:
    if x.dtype == BOOL:
        return _truth(make(on_truths, x.node, y.node))
    if type_of(x.dtype) == "long":
        halves = (make(on_bits, make(half, x.node), make(half, y.node)) for half in ("low", "high"))
        return Scalar(x.dtype, make("pair", *halves))
    return Scalar(x.dtype, make(on_bits, x.node, y.node))


@_operation(BITS, "BitwiseAnd")
def bitwise_and(x1: Scalar, x2: Scalar) -> Scalar:
    """The bits of integers that both have; and of bool."""
    return _bitwise(x1, x2, "and", "logical_and")


@_operation(BITS, "BitwiseOr")
def bitwise_or(x1: Scalar, x2: Scalar) -> Scalar:
    """The bits of integers that either has; or of bool."""
    return _bitwise(x1, x2, "or", "logical_or")


@_operation(BITS, "BitwiseXor")
def bitwise_xor(x1: Scalar, x2: Scalar) -> Scalar:
    """The bits of integers that one has and not the other; of bool, too."""
    return _bitwise(x1, x2, "xor", "logical_not_equal")


@_operation(BITS, "BitwiseNot")
def bitwise_invert(x: Scalar) -> Scalar:
    """Each bit of integers inverted; not of bool."""
    if x.dtype == BOOL:
        return logical_not(x)
    if type_of(x.dtype) == "long":
        return Scalar(x.dtype, make("pair", make("not", make("low", x.node)), make("not", make("high", x.node))))
    return _new(x, make("not", x.node))


def _shift(x: Scalar, y: Scalar, instruction: str, on_longs: str, beyond: int) -> Scalar:
    """By 32 places or more, ``beyond`` places less: SPIR-V leaves that undefined."""
    if type_of(x.dtype) == "long":
        return Scalar(x.dtype, call(on_longs, x.node, y.node))
    places = retyped(y.node, "uint")
    shifted = make(instruction, x.node, make("and", places, _uint(31)))
    zero = constant(0, x.node.type)
    rest = make("shift_right_signed", x.node, _uint(31)) if beyond else zero
    return _new(x, make("select", make("above", places, _uint(31)), rest, shifted))


@_operation(INTEGERS)
def bitwise_left_shift(x1: Scalar, x2: Scalar) -> Scalar:
    """Integers moved left by x2 bits, which is not negative."""
    return _shift(x1, x2, "shift_left", "long_left_shift", 0)


@_operation(INTEGERS)
def bitwise_right_shift(x1: Scalar, x2: Scalar) -> Scalar:
    """Integers moved right by x2 bits, with the sign; x2 is not negative."""
    if type_of(x1.dtype) == "uint":
        return _shift(x1, x2, "shift_right", "long_right_shift", 0)
    return _shift(x1, x2, "shift_right_signed", "long_right_shift", 1)


# -- tests


@_operation(ANY, "Equal", is_test=True)
def equal(x1: Scalar, x2: Scalar) -> Scalar:
    """Whether x1 is x2."""
    type = type_of(x1.dtype)
    if type == "float":
        return _truth(make("equal", _order(x1), _order(x2))) & ~isnan(x1) & ~isnan(x2)
    if type == "bool":
        return _truth(make("logical_equal", x1.node, x2.node))
    if type == "long":
        low, high = (make("equal", make(half, x1.node), make(half, x2.node)) for half in ("low", "high"))
        return _truth(make("logical_and", low, high))
    return _truth(make("equal", x1.node, x2.node))


@_operation(ANY, is_test=True)
def not_equal(x1: Scalar, x2: Scalar) -> Scalar:
    """Whether x1 is not x2."""
    return ~equal(x1, x2)


@_operation(ANY, "Less", is_test=True)
def less(x1: Scalar, x2: Scalar) -> Scalar:
    """Whether x1 is below x2."""
    type = type_of(x1.dtype)
    if type == "float":
        return _truth(make("less", _order(x1), _order(x2))) & ~isnan(x1) & ~isnan(x2)
    if type == "bool":
        return ~x1 & x2
    if type == "long":
        return _truth(call("long_less", x1.node, x2.node))
    return _truth(make("below" if type == "uint" else "less", x1.node, x2.node))


@_operation(ANY, "LessOrEqual", is_test=True)
def less_equal(x1: Scalar, x2: Scalar) -> Scalar:
    """Whether x1 is not above x2."""
    if type_of(x1.dtype) == "float":
        return ~_truth(make("greater", _order(x1), _order(x2))) & ~isnan(x1) & ~isnan(x2)
    return ~less(x2, x1)


@_operation(ANY, "Greater", is_test=True)
def greater(x1: Scalar, x2: Scalar) -> Scalar:
    """Whether x1 is above x2."""
    return less(x2, x1)


@_operation(ANY, "GreaterOrEqual", is_test=True)
def greater_equal(x1: Scalar, x2: Scalar) -> Scalar:
    """Whether x1 is not below x2."""
    return less_equal(x2, x1)


def _true(x: Scalar) -> Scalar:
    return _truth(truth(type_of(x.dtype), x.node))


@_operation(ANY, "And", is_test=True)
def logical_and(x1: Scalar, x2: Scalar) -> Scalar:
    """Whether neither is zero."""
    return _true(x1) & _true(x2)


@_operation(ANY, "Or", is_test=True)
def logical_or(x1: Scalar, x2: Scalar) -> Scalar:
    """Whether not both are zero."""
    return _true(x1) | _true(x2)


@_operation(ANY, "Xor", is_test=True)
def logical_xor(x1: Scalar, x2: Scalar) -> Scalar:
    """Whether one is zero and the other is not."""
    return _true(x1) ^ _true(x2)


@_operation(ANY, "Not", is_test=True)
def logical_not(x: Scalar) -> Scalar:
    """Whether each element is zero."""
    return _truth(make("logical_not", _true(x).node))


def _test_of_size(x: Scalar, instruction: str, otherwise: bool) -> Scalar:
    """How the magnitude of a float compares with infinity; what holds of every integer."""
    if type_of(x.dtype) != "float":
        return number(otherwise, BOOL)
    return _truth(make(instruction, _size(x), _uint(_INFINITY)))


@_operation(ANY, "IsNaN", is_test=True)
def isnan(x: Scalar) -> Scalar:
    """Whether each element is NaN."""
    return _test_of_size(x, "above", False)


@_operation(ANY, is_test=True)
def isinf(x: Scalar) -> Scalar:
    """Whether each element is infinite."""
    return _test_of_size(x, "equal", False)


@_operation(ANY, is_test=True)
def isfinite(x: Scalar) -> Scalar:
    """Whether each element is neither infinite nor NaN."""
    return _test_of_size(x, "below", True)


@_operation(NUMBERS, is_test=True)
def signbit(x: Scalar) -> Scalar:
    """Whether each element has the sign of negative numbers, -0.0 included."""
    if kind_of(x.dtype) == "unsigned":
        return number(False, BOOL)
    type = type_of(x.dtype)
    word = _bits(x) if type == "float" else make("high", x.node) if type == "long" else x.node
    return _truth(make("less", retyped(word, "int"), constant(0, "int")))


# -- functions


def _whole(x: Scalar, name: str) -> Scalar:
    return _function(name, x) if type_of(x.dtype) == "float" else x


@_operation(NUMBERS, "Floor")
def floor(x: Scalar) -> Scalar:
    """The greatest whole number not above each element."""
    return _whole(x, "floor")


@_operation(NUMBERS, "Ceil")
def ceil(x: Scalar) -> Scalar:
    """The least whole number not below each element."""
    return _whole(x, "ceil")


@_operation(NUMBERS)
def trunc(x: Scalar) -> Scalar:
    """Each element without its fraction."""
    return _whole(x, "trunc")


@_operation(NUMBERS, "Round")
def round(x: Scalar) -> Scalar:
    """The nearest whole number, ties to even."""
    return _whole(x, "round")


@_operation(FLOATS, "Exp")
def exp(x: Scalar) -> Scalar:
    """e to the power of each element."""
    return _narrow("exp", x)


@_operation(FLOATS)
def copysign(x1: Scalar, x2: Scalar) -> Scalar:
    """x1 with the sign of x2."""
    return _from_bits(x1, make("or", _size(x1), make("and", _bits(x2), _uint(_SIGN))))


_OF_TWO = ("atan2", "hypot", "logaddexp", "nextafter")


def _of_library(name: str, onnx: str, text: str) -> None:
    def of_one(x: Scalar) -> Scalar:
        return _function(name, x)

    def of_two(x1: Scalar, x2: Scalar) -> Scalar:
        return _function(name, x1, x2)

    record(Operation(name, of_two if name in _OF_TWO else of_one, FLOATS, False, text, onnx))


for _entry in (
    ("sqrt", "Sqrt", "The square root, correctly rounded; NaN below 0."),
    ("expm1", "", "exp(x) - 1, exact near 0."),
    ("log", "Log", "The natural logarithm; NaN below 0."),
    ("log1p", "", "log(1 + x), exact near 0."),
    ("log2", "", "The logarithm to base 2."),
    ("log10", "", "The logarithm to base 10."),
    ("sin", "Sin", "The sine of radians."),
    ("cos", "Cos", "The cosine of radians."),
    ("tan", "Tan", "The tangent of radians."),
    ("asin", "Asin", "The arc sine, in radians; NaN outside -1 to 1."),
    ("acos", "Acos", "The arc cosine, in radians; NaN outside -1 to 1."),
    ("atan", "Atan", "The arc tangent, in radians."),
    ("atan2", "", "The angle of the point (x2, x1), from -pi to pi."),
    ("sinh", "Sinh", "The hyperbolic sine."),
    ("cosh", "Cosh", "The hyperbolic cosine."),
    ("tanh", "", "The hyperbolic tangent."),
    ("asinh", "Asinh", "The inverse hyperbolic sine."),
    ("acosh", "Acosh", "The inverse hyperbolic cosine; NaN below 1."),
    ("atanh", "Atanh", "The inverse hyperbolic tangent; NaN outside -1 to 1."),
    ("erf", "Erf", "The error function."),
    ("hypot", "", "sqrt(x1^2 + x2^2), without overflow on the way."),
    ("logaddexp", "", "log(exp(x1) + exp(x2))."),
    ("nextafter", "", "The number next to x1 on the way to x2, in the dtype to which they promote."),
):
    _of_library(*_entry)


# -- of functions of users: what takes Python numbers in other ways than operators do


def _where(condition: Any, x: Any, y: Any) -> Scalar:
    """``where`` on scalars, tensors and Python numbers, whose condition is of any dtype."""
    TRACING.count()
    return weak(noted("where", where, *alike(condition), *alike(x, y)), x, y)


def _clip(x: Any, low: Any = None, high: Any = None) -> Scalar:
    """``clip`` on scalars, tensors and Python numbers; None is no bound."""
    bounds = [bound for bound in (low, high) if bound is not None]
    (own,), dtype = alike(x), alike(x, *bounds)[0].dtype
    if dtype != own.dtype and own.weak is None:
        raise ExpressionError(f"{line()}: clip: x is {own.dtype.name}, which does not hold a bound of {dtype.name}")
    apply = Scalar.operations
    found = x if low is None else apply["maximum"](x, low)
    return alike(found if high is None else apply["minimum"](found, high))[0]


def _nextafter(x: Any, y: Any) -> Scalar:
    """``nextafter`` on scalars, tensors and Python numbers, but not of 16 bits, which are computed in float32."""
    dtype = alike(x, y)[0].dtype
    if dtype.itemsize == 2 and kind_of(dtype) == "floating":
        raise ExpressionError(f"{line()}: nextafter: a scalar is {dtype.name}, and is computed in float32; cast it")
    return _OF_FLOATS(x, y)


_OF_FLOATS = Scalar.operations["nextafter"]
Scalar.operations |= {"where": _where, "clip": _clip, "nextafter": _nextafter}
