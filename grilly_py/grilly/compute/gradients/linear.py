"""Gradients of linear layers. One with a norm, an activation or a residual is noted as these in a row."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..arrays.activations import apply
from ..arrays.axes import two_parts
from ..arrays.elementwise import binary
from ..arrays.reductions import sum_of
from ..device.call import IN_PARTS, call, on_device
from ..device.device import Device
from ..device.tape import Entry
from ..device.tensor import Tensor
from ..matmul import linear as floats
from ..matmul import quantized
from ..norms.forward import rms_norm
from .records import gradient_of, the_other

_PLAIN = (None, False, ())  # no activation, not gated, no norm


def _in_parts(device: Device, static: tuple, arrays: Sequence) -> list[Tensor] | None:
    high, activation, gated, norm = static
    x, weight, bias, residual, factors, _ = arrays
    if activation is None and residual is None and not norm:
        return None
    x = _normed(device, x, factors, norm)
    y = floats.linear(device, x, weight, bias, precision="high" if high else "highest")
    return [_ended(device, y, activation, gated, residual)]


def _quantized_in_parts(device: Device, static: tuple, arrays: Sequence) -> list[Tensor] | None:
    types, high, activation, gated, norm = static
    x, bias, residual, factors, *weight = arrays
    if activation is None and residual is None and not norm:
        return None
    x = _normed(device, x, factors, norm)
    (y,) = call(device, quantized.plan, (types, high, *_PLAIN), (x, bias, None, None, *weight), floats=4)
    return [_ended(device, y, activation, gated, residual)]


IN_PARTS[floats.plan] = _in_parts
IN_PARTS[quantized.plan] = _quantized_in_parts


def _normed(device: Device, x, factors, norm: tuple):
    return rms_norm(device, x, x.shape[-1], factors, *norm) if norm else x


def _ended(device: Device, y: Tensor, activation: str | None, gated: bool, residual) -> Tensor:
    """What follows a product: an activation, and the sum with a residual."""
    if gated:
        gate, value = two_parts(y.ndim - 1, y.shape[-1] // 2)
        y = apply(device, "linear", activation, gate=y._selected(gate), value=y._selected(value))
    elif activation is not None:
        y = apply(device, "linear", activation, input=y)
    return y if residual is None else binary("add", y, residual)


@gradient_of(floats.plan, reads=the_other)
def _linear(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    x, weight, *_ = entry.arrays
    (high, *_), (gradient, *_) = entry.static, gradients  # a second result is the weight's split
    found: list[Tensor | None] = [None] * len(entry.arrays)
    if entry.needs[0]:
        found[0] = _by_x(gradient, weight, high)
    if entry.needs[1]:
        found[1] = _by_weight(gradient, x, high)
    if entry.needs[2]:
        found[2] = over_rows(gradient)
    return found


def _by_x(gradient: Tensor, weight, high: bool) -> Tensor:
    device = gradient._storage.device
    weight = on_device(device, weight).transpose()
    found: Tensor = floats.linear(device, gradient, weight, precision="high" if high else "highest")
    return found


def _by_weight(gradient: Tensor, x, high: bool) -> Tensor:
    device = gradient._storage.device
    factors = (_columns(device, gradient), _columns(device, x), None, None, None, None)
    found: Tensor = call(device, floats.plan, (high, *_PLAIN), factors, floats=5)[0]
    return found


def _backward_in_parts(device: Device, static: tuple, arrays: Sequence) -> list[Tensor]:
    """The gradients by x, weight and bias, each by an operation of its own."""
    (high,), (gradient, x, weight, _) = static, arrays
    gradient = on_device(device, gradient)
    return [_by_x(gradient, weight, high), _by_weight(gradient, x, high), over_rows(gradient)]


IN_PARTS[floats.plan_backward] = _backward_in_parts


def _columns(device: Device, x) -> Tensor:
    """An array ``(..., K)`` as ``(K, rows)``."""
    x = on_device(device, x)
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1]).transpose()


def over_rows(gradient: Tensor) -> Tensor:
    """The sum over all axes but the last."""
    return sum_of("sum", gradient, tuple(range(gradient.ndim - 1))) if gradient.ndim > 1 else gradient


@gradient_of(quantized.plan, reads=range(4, 1 << 16))
def _quantized(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    types, high, *_ = entry.static
    (gradient,), (_, _, _, _, *weight) = gradients, entry.arrays
    dx, dbias = call(gradient._storage.device, quantized.plan_backward, (types, high), (gradient, *weight), floats=1,
                     results=2)  # fmt: skip
    return dx, dbias


@gradient_of(quantized.plan_backward)
def _quantized_backward(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (types, high), (gradient, *weight), (by_dx, by_dbias) = entry.static, entry.arrays, gradients
    device = gradient._storage.device
    if by_dx is None:
        return (by_dbias.broadcast_to(gradient.shape),)
    arrays = (by_dx, by_dbias, None, None, *weight)  # the gradient of a sum over rows is added to each, as a bias
    return (call(device, quantized.plan, (types, high, *_PLAIN), arrays, floats=4)[0],)


__all__ = ["over_rows"]
