"""Functions of each element: arithmetic, comparisons, elementary functions."""

from __future__ import annotations

import numpy as np

from ..compute.arrays import elementwise as _elementwise
from ..compute.arrays.promotion import kind_of
from ..compute.device.tensor import Tensor
from .operands import Operand, binary, tensor_of


def abs(x: Tensor | np.ndarray, /) -> Tensor:
    """The magnitude of each element."""
    return _elementwise.unary("abs", tensor_of("abs", x))


def acos(x: Tensor | np.ndarray, /) -> Tensor:
    """The arc cosine, in radians; NaN outside -1 to 1."""
    return _elementwise.unary("acos", tensor_of("acos", x))


def acosh(x: Tensor | np.ndarray, /) -> Tensor:
    """The inverse hyperbolic cosine; NaN below 1."""
    return _elementwise.unary("acosh", tensor_of("acosh", x))


def asin(x: Tensor | np.ndarray, /) -> Tensor:
    """The arc sine, in radians; NaN outside -1 to 1."""
    return _elementwise.unary("asin", tensor_of("asin", x))


def asinh(x: Tensor | np.ndarray, /) -> Tensor:
    """The inverse hyperbolic sine."""
    return _elementwise.unary("asinh", tensor_of("asinh", x))


def atan(x: Tensor | np.ndarray, /) -> Tensor:
    """The arc tangent, in radians."""
    return _elementwise.unary("atan", tensor_of("atan", x))


def atanh(x: Tensor | np.ndarray, /) -> Tensor:
    """The inverse hyperbolic tangent; NaN outside -1 to 1."""
    return _elementwise.unary("atanh", tensor_of("atanh", x))


def bitwise_invert(x: Tensor | np.ndarray, /) -> Tensor:
    """Each bit of integers inverted; not of bool."""
    return _elementwise.unary("bitwise_invert", tensor_of("bitwise_invert", x))


def ceil(x: Tensor | np.ndarray, /) -> Tensor:
    """The least whole number not below each element."""
    return _elementwise.unary("ceil", tensor_of("ceil", x))


def cos(x: Tensor | np.ndarray, /) -> Tensor:
    """The cosine of radians."""
    return _elementwise.unary("cos", tensor_of("cos", x))


def cosh(x: Tensor | np.ndarray, /) -> Tensor:
    """The hyperbolic cosine."""
    return _elementwise.unary("cosh", tensor_of("cosh", x))


def erf(x: Tensor | np.ndarray, /) -> Tensor:
    """The error function."""
    return _elementwise.unary("erf", tensor_of("erf", x))


def exp(x: Tensor | np.ndarray, /) -> Tensor:
    """e to the power of each element."""
    return _elementwise.unary("exp", tensor_of("exp", x))


def expm1(x: Tensor | np.ndarray, /) -> Tensor:
    """exp(x) - 1, exact near 0."""
    return _elementwise.unary("expm1", tensor_of("expm1", x))


def floor(x: Tensor | np.ndarray, /) -> Tensor:
    """The greatest whole number not above each element."""
    return _elementwise.unary("floor", tensor_of("floor", x))


def isfinite(x: Tensor | np.ndarray, /) -> Tensor:
    """Whether each element is neither infinite nor NaN."""
    return _elementwise.unary("isfinite", tensor_of("isfinite", x))


def isinf(x: Tensor | np.ndarray, /) -> Tensor:
    """Whether each element is infinite."""
    return _elementwise.unary("isinf", tensor_of("isinf", x))


def isnan(x: Tensor | np.ndarray, /) -> Tensor:
    """Whether each element is NaN."""
    return _elementwise.unary("isnan", tensor_of("isnan", x))


def log(x: Tensor | np.ndarray, /) -> Tensor:
    """The natural logarithm; NaN below 0."""
    return _elementwise.unary("log", tensor_of("log", x))


def log10(x: Tensor | np.ndarray, /) -> Tensor:
    """The logarithm to base 10."""
    return _elementwise.unary("log10", tensor_of("log10", x))


def log1p(x: Tensor | np.ndarray, /) -> Tensor:
    """log(1 + x), exact near 0."""
    return _elementwise.unary("log1p", tensor_of("log1p", x))


def log2(x: Tensor | np.ndarray, /) -> Tensor:
    """The logarithm to base 2."""
    return _elementwise.unary("log2", tensor_of("log2", x))


def logical_not(x: Tensor | np.ndarray, /) -> Tensor:
    """Whether each element is zero."""
    return _elementwise.unary("logical_not", tensor_of("logical_not", x))


def negative(x: Tensor | np.ndarray, /) -> Tensor:
    """Each element with the other sign; integers wrap."""
    return _elementwise.unary("negative", tensor_of("negative", x))


def reciprocal(x: Tensor | np.ndarray, /) -> Tensor:
    """1 / x."""
    return _elementwise.unary("reciprocal", tensor_of("reciprocal", x))


def round(x: Tensor | np.ndarray, /) -> Tensor:
    """The nearest whole number, ties to even."""
    return _elementwise.unary("round", tensor_of("round", x))


def sign(x: Tensor | np.ndarray, /) -> Tensor:
    """-1, 0 or 1; NaN for NaN."""
    return _elementwise.unary("sign", tensor_of("sign", x))


def signbit(x: Tensor | np.ndarray, /) -> Tensor:
    """Whether each element has the sign of negative numbers, -0.0 included."""
    return _elementwise.unary("signbit", tensor_of("signbit", x))


def sin(x: Tensor | np.ndarray, /) -> Tensor:
    """The sine of radians."""
    return _elementwise.unary("sin", tensor_of("sin", x))


def sinh(x: Tensor | np.ndarray, /) -> Tensor:
    """The hyperbolic sine."""
    return _elementwise.unary("sinh", tensor_of("sinh", x))


def sqrt(x: Tensor | np.ndarray, /) -> Tensor:
    """The square root, correctly rounded; NaN below 0."""
    return _elementwise.unary("sqrt", tensor_of("sqrt", x))


def square(x: Tensor | np.ndarray, /) -> Tensor:
    """x * x."""
    return _elementwise.unary("square", tensor_of("square", x))


def tan(x: Tensor | np.ndarray, /) -> Tensor:
    """The tangent of radians."""
    return _elementwise.unary("tan", tensor_of("tan", x))


def tanh(x: Tensor | np.ndarray, /) -> Tensor:
    """The hyperbolic tangent."""
    return _elementwise.unary("tanh", tensor_of("tanh", x))


def trunc(x: Tensor | np.ndarray, /) -> Tensor:
    """Each element without its fraction."""
    return _elementwise.unary("trunc", tensor_of("trunc", x))


def add(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 + x2."""
    return binary("add", x1, x2)


def atan2(x1: Operand, x2: Operand, /) -> Tensor:
    """The angle of the point (x2, x1), from -pi to pi."""
    return binary("atan2", x1, x2)


def bitwise_and(x1: Operand, x2: Operand, /) -> Tensor:
    """The bits of integers that both have; and of bool."""
    return binary("bitwise_and", x1, x2)


def bitwise_left_shift(x1: Operand, x2: Operand, /) -> Tensor:
    """Integers moved left by x2 bits, which is not negative."""
    return binary("bitwise_left_shift", x1, x2)


def bitwise_or(x1: Operand, x2: Operand, /) -> Tensor:
    """The bits of integers that either has; or of bool."""
    return binary("bitwise_or", x1, x2)


def bitwise_right_shift(x1: Operand, x2: Operand, /) -> Tensor:
    """Integers moved right by x2 bits, with the sign; x2 is not negative."""
    return binary("bitwise_right_shift", x1, x2)


def bitwise_xor(x1: Operand, x2: Operand, /) -> Tensor:
    """The bits of integers that one has and not the other; of bool, too."""
    return binary("bitwise_xor", x1, x2)


def copysign(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 with the sign of x2."""
    return binary("copysign", x1, x2)


def divide(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 / x2, correctly rounded; of integers in float32."""
    return binary("divide", x1, x2)


def equal(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether x1 is x2."""
    return binary("equal", x1, x2)


def floor_divide(x1: Operand, x2: Operand, /) -> Tensor:
    """The greatest whole number not above x1 / x2; 0 for integers divided by 0."""
    return binary("floor_divide", x1, x2)


def greater(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether x1 is above x2."""
    return binary("greater", x1, x2)


def greater_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether x1 is not below x2."""
    return binary("greater_equal", x1, x2)


def hypot(x1: Operand, x2: Operand, /) -> Tensor:
    """sqrt(x1^2 + x2^2), without overflow on the way."""
    return binary("hypot", x1, x2)


def less(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether x1 is below x2."""
    return binary("less", x1, x2)


def less_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether x1 is not above x2."""
    return binary("less_equal", x1, x2)


def logaddexp(x1: Operand, x2: Operand, /) -> Tensor:
    """log(exp(x1) + exp(x2))."""
    return binary("logaddexp", x1, x2)


def logical_and(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether neither is zero."""
    return binary("logical_and", x1, x2)


def logical_or(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether not both are zero."""
    return binary("logical_or", x1, x2)


def logical_xor(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether one is zero and the other is not."""
    return binary("logical_xor", x1, x2)


def maximum(x1: Operand, x2: Operand, /) -> Tensor:
    """The larger one; NaN where one is NaN."""
    return binary("maximum", x1, x2)


def minimum(x1: Operand, x2: Operand, /) -> Tensor:
    """The smaller one; NaN where one is NaN."""
    return binary("minimum", x1, x2)


def multiply(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 * x2; integers wrap."""
    return binary("multiply", x1, x2)


def nextafter(x1: Operand, x2: Operand, /) -> Tensor:
    """The number next to x1 on the way to x2, in the dtype to which they promote."""
    if x1.__class__ is not Tensor and x2.__class__ is not Tensor:
        x1 = tensor_of("nextafter", x1)
    return _elementwise.next_after(x1, x2)


def not_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether x1 is not x2."""
    return binary("not_equal", x1, x2)


def pow(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 to the power of x2; integers wrap, and their negative powers are 0, but those of 1 and -1."""
    return binary("pow", x1, x2)


def remainder(x1: Operand, x2: Operand, /) -> Tensor:
    """What floor_divide leaves, of x2's sign; 0 for integers divided by 0."""
    return binary("remainder", x1, x2)


def subtract(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 - x2."""
    return binary("subtract", x1, x2)


def positive(x: Tensor | np.ndarray, /) -> Tensor:
    """Each element as it is, in a new tensor. Raises TypeError for bool."""
    own = tensor_of("positive", x)
    if kind_of(own.dtype) == "bool":
        raise TypeError("positive: x is bool; expected numbers")
    return _elementwise.cast(own, own.dtype, copy=True)


def real(x: Tensor | np.ndarray, /) -> Tensor:
    """The real part: x itself, which has no other."""
    return tensor_of("real", x)


def conj(x: Tensor | np.ndarray, /) -> Tensor:
    """The complex conjugate: each element as it is, in a new tensor."""
    own = tensor_of("conj", x)
    return _elementwise.cast(own, own.dtype, copy=True)


def clip(x: Tensor | np.ndarray, /, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """Elements below ``min`` and above ``max`` replaced by these, in x's dtype.

    Raises TypeError for a bound that x's dtype does not hold.
    """
    return _elementwise.clip(tensor_of("clip", x), min, max)
