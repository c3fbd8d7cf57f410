"""The activations: each is a function of a scalar and of the numbers that a call tells, with its gradient beside it.

A gradient is what the derivative makes of a factor. Where the derivative is 0, the factor is not looked at: it may be
infinite or NaN. NaN in place of x gives NaN; infinities give the limit. Gradients of gradients are taken of the same
gradient made of operations; where a library function computes it, that is written a second time.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import TypeVar

from .nodes import call, constant, make, retyped
from .operations import isinf, isnan, where
from .records import FLOATS, Operation, noted, record
from .scalars import BOOL, Scalar, number

#: Keeps the names of numbers, their types and defaults, which type checkers read here (functional/from_records.py).
_Function = TypeVar("_Function", bound=Callable[..., Scalar])
_ALPHA, _GAMMA = 1.6732632423543772, 1.0507009873554805  # of selu
_FAR = 200.0  # where exponentials have vanished
_CUBIC = 0.044715  # of gelu_tanh
# Not the functions themselves: these are noted, so that there are derivatives of what they make.
abs, add, copysign, divide, exp, maximum, minimum, multiply, negative, _cosh, _erf, _expm1, _log1p, _tanh = (
    Scalar.operations[name] for name in (
        "abs", "add", "copysign", "divide", "exp", "maximum", "minimum", "multiply", "negative", "cosh", "erf", "expm1",
        "log1p", "tanh",
    )
)  # fmt: skip


def _of_library(name: str, x: Scalar) -> Scalar:
    """A function of shaders/arrays/expressions.comp, which has a quicker form for results of 16 bits."""
    return Scalar(x.dtype, call(f"{name}_narrow" if x.dtype.itemsize == 2 else name, x.node))


def _select(condition: Scalar, x: Scalar | float, y: Scalar | float) -> Scalar:
    """x where the condition holds, else y; one may be a number."""
    dtype = x.dtype if isinstance(x, Scalar) else y.dtype
    x, y = (one if isinstance(one, Scalar) else number(one, dtype) for one in (x, y))
    return noted("where", where, condition, x, y)


def _decayed(x: Scalar) -> Scalar:
    """exp(-|x|), from 0 to 1."""
    return exp(negative(abs(x)))


def _is_positive(x: Scalar) -> Scalar:
    """Also numbers that a device takes for zero; and NaN."""
    bits = retyped(make("bits", x.node), "int")
    return Scalar(BOOL, make("greater", bits, constant(0, "int"))) | isnan(x)


def _numbers(function: Callable[..., Scalar]) -> dict[str, float]:
    """The numbers that a function takes after x, by their names, with their defaults."""
    return {each.name: each.default for each in [*inspect.signature(function).parameters.values()][1:]}


def _activation(
    gradient: Callable[..., Scalar], onnx: str = "", attributes: Mapping[str, float] | None = None,
    refused: Callable[..., str] | None = None, parts: Callable[..., Scalar] | None = None,
) -> Callable[[_Function], _Function]:  # fmt: skip
    """Enter ``NAME`` and ``NAME_derivative``, which take x, up to two more arrays, and the numbers.

    The activation is multiplied by the first of the arrays, and the second is added; the derivative is multiplied by
    both. ``parts`` is the gradient made of operations, where ``gradient`` is not.
    """

    def enter(value: _Function) -> _Function:
        name, numbers = value.__name__, _numbers(value)
        count = len(numbers)

        def activated(x: Scalar, *rest: Scalar) -> Scalar:
            arrays, own = rest[: len(rest) - count], rest[len(rest) - count :]
            found = value(x, *own)
            if arrays:
                found = multiply(found, arrays[0])
            return add(found, arrays[1]) if len(arrays) > 1 else found

        def derived(made: Callable[..., Scalar], x: Scalar, *rest: Scalar) -> Scalar:
            factors, own = rest[: len(rest) - count], rest[len(rest) - count :]
            return made(x, functools.reduce(multiply, factors) if factors else number(1.0, x.dtype), *own)

        names = numbers if attributes is None else attributes
        record(Operation(name, activated, FLOATS, False, value.__doc__ or "", onnx, numbers, names, refused))
        record(Operation(
            f"{name}_derivative", functools.partial(derived, gradient), FLOATS, numbers=numbers, refused=refused,
            parts=functools.partial(derived, parts or gradient),
        ))  # fmt: skip
        return value

    return enter


# -- of shaders/include/activations.glsl, which products end with too


def _times_derivative(name: str) -> Callable[[Scalar, Scalar], Scalar]:
    return lambda x, factor: multiply(_of_library(f"{name}_derivative", x), factor)


def _bounded(x: Scalar, bound: float = _FAR) -> Scalar:
    """x, not farther from 0 than a bound beyond which derivatives no longer change."""
    return minimum(maximum(x, -bound), bound)


def _sigmoid_parts(x: Scalar, factor: Scalar) -> Scalar:
    sigmoid = Scalar.operations["sigmoid"]
    return factor * (sigmoid(x) * sigmoid(-x))


def _tanh_parts(x: Scalar, factor: Scalar) -> Scalar:
    return factor * (1.0 - _tanh(x) * _tanh(x))


def _silu_parts(x: Scalar, factor: Scalar, steep: float = 1.0) -> Scalar:
    """Of ``x sigmoid(steep x)``."""
    sigmoid, x = Scalar.operations["sigmoid"], steep * _bounded(x)
    return factor * (sigmoid(x) * (1.0 + x * sigmoid(-x)))


def _gelu_parts(x: Scalar, factor: Scalar) -> Scalar:
    x = _bounded(x, 20.0)
    density = exp(-0.5 * (x * x)) * (1 / math.sqrt(2 * math.pi))
    return factor * (0.5 + 0.5 * _erf(x * math.sqrt(0.5)) + x * density)


def _gelu_tanh_parts(x: Scalar, factor: Scalar) -> Scalar:
    x = _bounded(x, 20.0)
    scale, square = math.sqrt(2 / math.pi), x * x
    t = _tanh(scale * (x * (1.0 + _CUBIC * square)))
    return factor * (0.5 + 0.5 * t + 0.5 * x * (1.0 - t * t) * (scale * (1.0 + 3 * _CUBIC * square)))


@_activation(lambda x, factor: _select(_is_positive(x), factor, 0.0))
def relu(x: Scalar) -> Scalar:
    """``max(x, 0)`` of each element x."""
    return _select(_is_positive(x), x, 0.0)


@_activation(_times_derivative("sigmoid"), "Sigmoid", parts=_sigmoid_parts)
def sigmoid(x: Scalar) -> Scalar:
    """``1 / (1 + exp(-x))`` of each element x."""
    return _of_library("sigmoid", x)


@_activation(_times_derivative("tanh"), "Tanh", parts=_tanh_parts)
def tanh(x: Scalar) -> Scalar:
    """The hyperbolic tangent of each element."""
    return _tanh(x)


@_activation(_times_derivative("silu"), parts=_silu_parts)
def silu(x: Scalar) -> Scalar:
    """``x / (1 + exp(-x))`` of each element x, also called swish (Elfwing et al. 2017, arXiv:1702.03118)."""
    return _of_library("silu", x)


@_activation(_times_derivative("quick_gelu"), parts=functools.partial(_silu_parts, steep=1.702))
def quick_gelu(x: Scalar) -> Scalar:
    """``x / (1 + exp(-1.702 x))`` of each element x, the approximation of GELU that CLIP was trained with."""
    return _of_library("quick_gelu", x)


@_activation(_times_derivative("gelu"), parts=_gelu_parts)
def gelu(x: Scalar) -> Scalar:
    """x times the normal distribution up to x."""
    return Scalar(x.dtype, call("gelu_float16", x.node)) if x.dtype.name == "float16" else _of_library("gelu", x)


@_activation(_times_derivative("gelu_tanh"), parts=_gelu_tanh_parts)
def gelu_tanh(x: Scalar) -> Scalar:
    """``x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))``."""
    return _of_library("gelu_tanh", x)


# -- of pieces


def _outside(low: float | Scalar, high: float | Scalar, x: Scalar) -> Scalar:
    return (x <= low) | (x >= high)


def _wrong_bounds(min_val: float, max_val: float) -> str:
    """a min_val above max_val"""
    return f"min_val is {min_val} and max_val {max_val}; expected min_val <= max_val" if min_val > max_val else ""


@_activation(lambda x, factor, low, high: _select(_outside(low, high, x), 0.0, factor), refused=_wrong_bounds)
def hardtanh(x: Scalar, min_val: float = -1.0, max_val: float = 1.0) -> Scalar:
    """Each element, not below ``min_val`` nor above ``max_val``."""
    return minimum(maximum(x, min_val), max_val)


@_activation(lambda x, factor: _select(_outside(0.0, 6.0, x), 0.0, factor))
def relu6(x: Scalar) -> Scalar:
    """``min(max(x, 0), 6)`` of each element x."""
    return minimum(_select(_is_positive(x), x, 0.0), number(6.0, x.dtype))


@_activation(lambda x, factor, slope: _select(x > 0.0, factor, factor * slope), "LeakyRelu", {"alpha": 0.01})
def leaky_relu(x: Scalar, negative_slope: float = 0.01) -> Scalar:
    """Each element x above 0, else ``negative_slope x``."""
    return _select(x > 0.0, x, x * negative_slope)


@_activation(lambda x, factor: _select(_outside(-3.0, 3.0, x), 0.0, factor * (1 / 6)))
def hardsigmoid(x: Scalar) -> Scalar:
    """``min(max(x + 3, 0), 6) / 6`` of each element x."""
    return divide(minimum(maximum(x + 3.0, number(0.0, x.dtype)), number(6.0, x.dtype)), number(6.0, x.dtype))


def _hardswish_gradient(x: Scalar, factor: Scalar) -> Scalar:
    return _select(x <= -3.0, 0.0, _select(x >= 3.0, factor, factor * (x * (1 / 3) + 0.5)))


@_activation(_hardswish_gradient, "HardSwish")
def hardswish(x: Scalar) -> Scalar:
    """``x min(max(x + 3, 0), 6) / 6`` of each element x (Howard et al. 2019, arXiv:1905.02244)."""
    return _select(x <= -3.0, 0.0, _select(x >= 3.0, x, x * hardsigmoid(x)))


def _is_small(x: Scalar, bound: Scalar | float) -> Scalar:
    return abs(x) <= bound


@_activation(lambda x, factor, bound: _select(_is_small(x, bound), 0.0, factor))
def hardshrink(x: Scalar, lambd: float = 0.5) -> Scalar:
    """0 from ``-lambd`` to ``lambd``, else each element as it is."""
    return _select(_is_small(x, lambd), 0.0, x)


def _wrong_bound(lambd: float) -> str:
    """a negative lambd"""
    return "" if lambd >= 0 else f"lambd is {lambd}; expected a number from 0 on"


@_activation(lambda x, factor, bound: _select(_is_small(x, bound), 0.0, factor), refused=_wrong_bound)
def softshrink(x: Scalar, lambd: float = 0.5) -> Scalar:
    """0 from ``-lambd`` to ``lambd``, else each element moved towards 0 by ``lambd``."""
    return _select(_is_small(x, lambd), 0.0, x - copysign(lambd, x))


# -- of exponentials


def _elu(x: Scalar, alpha: Scalar | float) -> Scalar:
    return _select(x > 0.0, x, alpha * _expm1(x))


def _elu_gradient(x: Scalar, factor: Scalar, alpha: Scalar | float) -> Scalar:
    return _select(x > 0.0, factor, factor * (alpha * exp(_select(x > 0.0, 0.0, x))))


@_activation(_elu_gradient, "Elu")
def elu(x: Scalar, alpha: float = 1.0) -> Scalar:
    """Each element x above 0, else ``alpha (exp(x) - 1)`` (Clevert et al. 2015, arXiv:1511.07289)."""
    return _elu(x, alpha)


@_activation(lambda x, factor: _elu_gradient(x, factor, _ALPHA) * _GAMMA)
def selu(x: Scalar) -> Scalar:
    """1.0507 times each element x above 0, else 1.7581 ``(exp(x) - 1)`` (Klambauer et al. 2017, arXiv:1706.02515)."""
    return _GAMMA * _elu(x, _ALPHA)


def _no_alpha(alpha: float) -> str:
    """an alpha of 0"""
    return "" if alpha else "alpha is 0; expected another number"


def _celu_gradient(x: Scalar, factor: Scalar, alpha: Scalar) -> Scalar:
    return _select(x > 0.0, factor, factor * exp(divide(_select(x > 0.0, 0.0, x), alpha)))


@_activation(_celu_gradient, "Celu", refused=_no_alpha)
def celu(x: Scalar, alpha: float = 1.0) -> Scalar:
    """Each element x above 0, else ``alpha (exp(x / alpha) - 1)`` (Barron 2017, arXiv:1704.07483)."""
    return _select(x > 0.0, x, alpha * _expm1(divide(x, alpha)))


def _softplus(x: Scalar) -> Scalar:
    return maximum(x, number(0.0, x.dtype)) + _log1p(_decayed(x))


def _softplus_gradient(x: Scalar, factor: Scalar, beta: Scalar, threshold: Scalar) -> Scalar:
    return _select(x * beta > threshold, factor, factor * Scalar.operations["sigmoid"](x * beta))


@_activation(_softplus_gradient, "Softplus", {})
def softplus(x: Scalar, beta: float = 1.0, threshold: float = 20.0) -> Scalar:
    """``log(1 + exp(beta x)) / beta`` of each element x; x itself where ``beta x`` is above ``threshold``."""
    return _select(x * beta > threshold, x, divide(_softplus(x * beta), beta))


@_activation(lambda x, factor: factor * Scalar.operations["sigmoid"](negative(x)))
def logsigmoid(x: Scalar) -> Scalar:
    """``-log(1 + exp(-x))`` of each element x."""
    return negative(_softplus(negative(x)))


def _mish_parts(x: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """exp(-|x|); a numerator and a denominator, whose quotient is tanh(log(1 + exp(x)))."""
    t = _decayed(x)
    above = _select(x > 0.0, 1.0 + 2.0 * t, t * (t + 2.0))
    return t, above, above + 2.0 * _select(x > 0.0, t * t, 1.0)


def _mish_gradient(x: Scalar, factor: Scalar) -> Scalar:
    t, above, below = _mish_parts(x)
    x = minimum(maximum(x, number(-_FAR, x.dtype)), number(_FAR, x.dtype))
    own = _select(x > 0.0, t * t, t) * (1.0 + t) * 4.0 * x
    return factor * divide(above + divide(own, below), below)


def _mish_in_parts(x: Scalar, factor: Scalar) -> Scalar:
    x = _bounded(x)
    t = _tanh(Scalar.operations["softplus"](x, 1.0, _FAR))
    return factor * (t + x * (1.0 - t * t) * Scalar.operations["sigmoid"](x))


@_activation(_mish_gradient, "Mish", parts=_mish_in_parts)
def mish(x: Scalar) -> Scalar:
    """``x tanh(log(1 + exp(x)))`` of each element x (Misra 2019, arXiv:1908.08681)."""
    _, above, below = _mish_parts(x)
    return maximum(x, number(-_FAR, x.dtype)) * divide(above, below)


def _softsign_gradient(x: Scalar, factor: Scalar) -> Scalar:
    share = 1.0 / (abs(x) + 1.0)
    return factor * (share * share)


@_activation(_softsign_gradient, "Softsign")
def softsign(x: Scalar) -> Scalar:
    """``x / (1 + |x|)`` of each element x."""
    return _select(isinf(x), copysign(number(1.0, x.dtype), x), divide(x, abs(x) + 1.0))


@_activation(lambda x, factor: factor * (_tanh(x) * _tanh(x)))
def tanhshrink(x: Scalar) -> Scalar:
    """``x - tanh(x)`` of each element x."""
    square = x * x
    series = number(0.0, x.dtype)
    for inverse in (93405312000, 518918400, 3991680, 45360, 840, 30, 3):  # of x cosh(x) - sinh(x), by x^3
        series = series * square + 1 / inverse
    near = divide(x * (square * series), _cosh(x))
    return _select(abs(x) < 2.0, near, x - _tanh(x))


# -- of ONNX alone: these have no function in grilly.functional


def _of_onnx(onnx: str = "") -> Callable[[_Function], _Function]:
    def enter(function: _Function) -> _Function:
        numbers = _numbers(function)
        record(Operation(f"onnx{function.__name__}", function, FLOATS, onnx=onnx, numbers=numbers, attributes=numbers))
        return function

    return enter


@_of_onnx("HardSigmoid")
def _hard_sigmoid(x: Scalar, alpha: float = 0.2, beta: float = 0.5) -> Scalar:
    return minimum(maximum(alpha * x + beta, number(0.0, x.dtype)), number(1.0, x.dtype))


@_of_onnx("Selu")
def _scaled_elu(x: Scalar, alpha: float = _ALPHA, gamma: float = _GAMMA) -> Scalar:
    return gamma * _elu(x, alpha)


@_of_onnx()  # whose operator takes integers too
def _shrink(x: Scalar, lambd: float = 0.5, bias: float = 0.0) -> Scalar:
    return _select(x < negative(lambd), x + bias, _select(x > lambd, x - bias, 0.0))


@_of_onnx("Swish")
def _swish(x: Scalar, alpha: float = 1.0) -> Scalar:
    return x * _of_library("sigmoid", alpha * x)


@_of_onnx("ThresholdedRelu")
def _thresholded_relu(x: Scalar, alpha: float = 1.0) -> Scalar:
    return _select(x > alpha, x, 0.0)
