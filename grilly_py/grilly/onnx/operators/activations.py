"""Activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import array_api as xp
from ... import functional as F
from ...compute import Tensor
from ..table import Call, is_floating, operator, wide, within


def _rounded_once(*names: str) -> Callable[[Any], Any]:
    """Enter a function that computes in float32, with its result in the first input's dtype."""

    def enter(function: Any) -> Any:
        operator(*names)(lambda call, x, *rest: function(call, wide(x), *map(wide, rest)).astype(x.dtype, copy=False))
        return function

    return enter


@operator("Relu")
def relu(call: Call, x: Tensor) -> Tensor:
    """``max(x, 0)``."""
    return F.relu(x) if is_floating(x) else xp.maximum(x, 0)


@operator("Sigmoid")
def sigmoid(call: Call, x: Tensor) -> Tensor:
    """``1 / (1 + exp(-x))``."""
    return F.sigmoid(x)


@operator("Tanh")
def tanh(call: Call, x: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return F.tanh(x)


@operator("Gelu")
def gelu(call: Call, x: Tensor) -> Tensor:
    """The Gaussian error linear unit."""
    return F.gelu(x, approximate=call.get("approximate", "none"))


@_rounded_once("Swish")
def swish(call: Call, x: Tensor) -> Tensor:
    """``x sigmoid(alpha x)``."""
    alpha = call.get("alpha", 1.0)
    return F.silu(x) if alpha == 1 else xp.multiply(x, F.sigmoid(xp.multiply(x, alpha)))


@_rounded_once("SwiGLU")
def swiglu(call: Call, gate: Tensor, up: Tensor) -> Tensor:
    """``gate sigmoid(alpha gate) up``."""
    return F.swiglu(gate, up) if call.get("alpha", 1.0) == 1 else xp.multiply(swish(call, gate), up)


@_rounded_once("HardSigmoid")
def hard_sigmoid(call: Call, x: Tensor) -> Tensor:
    """``alpha x + beta`` between 0 and 1."""
    line = xp.add(xp.multiply(x, call.get("alpha", 0.2)), call.get("beta", 0.5))
    return xp.minimum(xp.maximum(line, 0.0), 1.0)


@_rounded_once("HardSwish")
def hard_swish(call: Call, x: Tensor) -> Tensor:
    """``x`` times the hard sigmoid of slope 1/6."""
    return xp.multiply(x, xp.minimum(xp.maximum(xp.add(xp.divide(x, 6.0), 0.5), 0.0), 1.0))


@_rounded_once("LeakyRelu")
def leaky_relu(call: Call, x: Tensor) -> Tensor:
    """``alpha x`` below 0."""
    return xp.where(xp.less(x, 0.0), xp.multiply(x, call.get("alpha", 0.01)), x)


@operator("PRelu")
def parametric_relu(call: Call, x: Tensor, slope: Tensor) -> Tensor:
    """``slope x`` below 0."""
    return xp.where(xp.less(x, 0), xp.multiply(x, slope), x)


@_rounded_once("ThresholdedRelu")
def thresholded_relu(call: Call, x: Tensor) -> Tensor:
    """``x`` above ``alpha``, else 0."""
    return xp.where(xp.greater(x, call.get("alpha", 1.0)), x, 0.0)


@_rounded_once("Elu")
def elu(call: Call, x: Tensor) -> Tensor:
    """``alpha (exp(x) - 1)`` below 0."""
    return xp.where(xp.less(x, 0.0), xp.multiply(xp.expm1(x), call.get("alpha", 1.0)), x)


@_rounded_once("Celu")
def celu(call: Call, x: Tensor) -> Tensor:
    """``alpha (exp(x / alpha) - 1)`` below 0."""
    alpha = call.get("alpha", 1.0)
    return xp.where(xp.less(x, 0.0), xp.multiply(xp.expm1(xp.divide(x, alpha)), alpha), x)


@_rounded_once("Selu")
def selu(call: Call, x: Tensor) -> Tensor:
    """``gamma`` times the exponential linear unit."""
    alpha = call.get("alpha", 1.6732632423543772)
    bent = xp.where(xp.less(x, 0.0), xp.multiply(xp.expm1(x), alpha), x)
    return xp.multiply(bent, call.get("gamma", 1.0507009873554805))


@_rounded_once("Softplus")
def softplus(call: Call, x: Tensor) -> Tensor:
    """``log(1 + exp(x))``."""
    return xp.logaddexp(x, xp.zeros_like(x))


@_rounded_once("Softsign")
def softsign(call: Call, x: Tensor) -> Tensor:
    """``x / (1 + |x|)``."""
    return xp.divide(x, xp.add(xp.abs(x), 1.0))


@_rounded_once("Mish")
def mish(call: Call, x: Tensor) -> Tensor:
    """``x tanh(log(1 + exp(x)))``."""
    return xp.multiply(x, F.tanh(softplus(call, x)))


def _by_rows(call: Call, x: Tensor, function: Callable[..., Tensor]) -> Tensor:
    """A softmax along an axis; before version 13 of rows that begin at the axis."""
    if call.version >= 13:
        return function(x, call.get("axis", -1))
    axis = within(int(call.get("axis", 1)), x.ndim) if x.ndim else 0
    rows = 1
    for extent in x.shape[:axis]:
        rows *= extent
    return function(x.reshape((rows, x.size // max(rows, 1))), 1).reshape(x.shape)


@operator("Softmax")
def softmax(call: Call, x: Tensor) -> Tensor:
    """``exp(x) / sum(exp(x))``."""
    return _by_rows(call, x, F.softmax)


@operator("LogSoftmax")
def log_softmax(call: Call, x: Tensor) -> Tensor:
    """The logarithm of the softmax."""
    return _by_rows(call, x, F.log_softmax)


@operator("Hardmax")
def hardmax(call: Call, x: Tensor) -> Tensor:
    """1 at the first of the largest elements, else 0."""

    def of_rows(rows: Tensor, axis: int) -> Tensor:
        axis = within(int(axis), rows.ndim)
        if not rows.size:
            return rows
        places = xp.arange(rows.shape[axis], device=call.backend)
        places = places.reshape(tuple(-1 if a == axis else 1 for a in range(rows.ndim)))
        return xp.equal(places, xp.argmax(rows, axis=axis, keepdims=True)).astype(rows.dtype, copy=False)

    return _by_rows(call, x, of_rows)


@operator("Shrink")
def shrink(call: Call, x: Tensor) -> Tensor:
    """``x`` moved towards 0 by ``bias`` where it is farther away than ``lambd``, else 0."""
    bound, bias = call.get("lambd", 0.5), call.get("bias", 0.0)
    y = wide(x) if is_floating(x) else x.astype("float32", copy=False)
    up, down = xp.where(xp.less(y, -bound), xp.add(y, bias), 0.0), xp.subtract(y, bias)
    return xp.where(xp.greater(y, bound), down, up).astype(x.dtype, copy=False)
