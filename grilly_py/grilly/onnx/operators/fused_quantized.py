"""Operators of com.microsoft that files of int8 have: what ONNX Runtime's quantization makes of others.

Those between a scale and a zero of inputs and of the result compute in float32 and round once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import array_api as xp
from ...compute import Tensor
from ..table import OPERATORS, Call, operator
from . import activations, matmul, pooling, quantization
from .fused import DOMAIN, biased, embed_layer_normalization, fused
from .fused_attention import attention_of

Function = Callable[[Call, Tensor], Tensor]


def _plain(call: Call) -> Call:
    """A call of an operator of ONNX's own, without attributes of this one's."""
    return call._replace(attributes={})


def _numbers(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """The float32 numbers that integers stand for."""
    return quantization.dequantize(_plain(call), x, scale, zero)


def _integers(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None, dtype: np.dtype[Any]) -> Tensor:
    """The integers that stand for numbers; of the zero's dtype, or of one that is named where there is no zero."""
    zero = xp.zeros((), dtype=dtype, device=call.backend) if zero is None else zero
    return quantization.quantize(_plain(call), x, scale, zero)


def _channels_second(call: Call, x: Tensor, function: Function) -> Tensor:
    """What a function of images gives, where ``channels_last`` says so of images with their channels behind."""
    if not call.get("channels_last", 0):
        return function(call, x)
    return _of_last(function)(call, x)


def _of_last(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of images, for those with their channels behind."""

    def turned(call: Call, x: Tensor, *others: Tensor | None) -> Tensor:
        found = function(call, xp.permute_dims(x, (0, x.ndim - 1, *range(1, x.ndim - 1))), *others)
        return xp.permute_dims(found, (0, *range(2, found.ndim), 1))

    return turned


def _softmax(call: Call, x: Tensor) -> Tensor:
    return activations.softmax(call._replace(version=int(call.get("opset", 13))), x)


_UNARY: dict[str, Function] = {
    "Sigmoid": OPERATORS["Sigmoid"].function, "LeakyRelu": OPERATORS["LeakyRelu"].function, "Softmax": _softmax,
    "AveragePool": lambda call, x: _channels_second(call, x, pooling.mean_of_windows),
    "GlobalAveragePool": lambda call, x: _channels_second(call, x, pooling.mean_of_images),
}  # fmt: skip
_BINARY = {"Add": xp.add, "Mul": xp.multiply}


def _enter_all() -> None:
    def of_one(function: Function) -> Any:
        def found(
            call: Call, x: Tensor, scale: Tensor, zero: Tensor | None, new_scale: Tensor, new_zero: Tensor | None = None
        ) -> Tensor:
            return _integers(call, function(call, _numbers(call, x, scale, zero)), new_scale, new_zero, x.dtype)

        return found

    def of_two(function: Callable[[Tensor, Tensor], Tensor]) -> Any:
        def found(
            call: Call, x: Tensor, scale_x: Tensor, zero_x: Tensor | None, y: Tensor, scale_y: Tensor,
            zero_y: Tensor | None, scale: Tensor, zero: Tensor | None = None,
        ) -> Tensor:  # fmt: skip
            both = function(_numbers(call, x, scale_x, zero_x), _numbers(call, y, scale_y, zero_y))
            return _integers(call, both, scale, zero, x.dtype)

        return found

    for name, one in _UNARY.items():
        fused(f"QLinear{name}")(of_one(one))
    for name, two in _BINARY.items():
        fused(f"QLinear{name}")(of_two(two))


_enter_all()


@fused("QLinearConcat")
def concat(call: Call, scale: Tensor, zero: Tensor, *given: Tensor) -> Tensor:
    """Arrays, each with its scale and its zero, one after the other along an axis."""
    parts = [_numbers(call, *given[place : place + 3]) for place in range(0, len(given), 3)]
    return _integers(call, xp.concat(parts, axis=int(call.attributes["axis"])), scale, zero, zero.dtype)


@fused("QLinearWhere")
def where(
    call: Call, condition: Tensor, x: Tensor, scale_x: Tensor, zero_x: Tensor, y: Tensor, scale_y: Tensor,
    zero_y: Tensor, scale: Tensor, zero: Tensor,
) -> Tensor:  # fmt: skip
    """Elements of x where a condition holds, else of y."""
    found = xp.where(condition, _numbers(call, x, scale_x, zero_x), _numbers(call, y, scale_y, zero_y))
    return _integers(call, found, scale, zero, zero.dtype)


@fused("QLinearConv")
def convolution(call: Call, x: Tensor, *others: Tensor | None) -> Tensor:
    """ONNX's QLinearConv, also of images with their channels behind: x, scale and zero; weight's; result's; bias."""
    of = quantization.quantized_convolution
    return (_of_last(of) if call.get("channels_last", 0) else of)(call, x, *others)


@fused("NhwcMaxPool")
def largest_of_windows(call: Call, x: Tensor) -> Tensor:
    """The largest element of each window of images with their channels behind."""

    def of(call: Call, x: Tensor) -> Tensor:
        found = pooling.largest_of_windows(call._replace(wanted=(True,)), x)
        return found[0] if isinstance(found, tuple) else found

    return _of_last(of)(call, x)


for _name, _function in (("QuantizeLinear", quantization.quantize), ("DequantizeLinear", quantization.dequantize)):
    operator(f"{DOMAIN}.{_name}", known=False)(_function)


def _scaled(call: Call, product: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """A product of integers in units of a scale, one or one for each column, and a bias."""
    scale = scale.reshape(()) if scale.size == 1 else scale
    return biased(xp.multiply(product.astype(np.float32, copy=False), scale), bias)


@fused("MatMulIntegerToFloat")
def product(
    call: Call, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, zero_a: Tensor | None = None,
    zero_b: Tensor | None = None, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The product of matrices of integers, with the scales of both."""
    if scale_a.size > 1:
        raise call.refuse(f"{scale_a.size} scales of a are given; expected one")
    found = quantization.integer_product(_plain(call), a, b, zero_a, zero_b)
    return _scaled(call, found, xp.multiply(scale_a.reshape(()), scale_b), bias)


@fused("DynamicQuantizeMatMul")
def product_of_numbers(
    call: Call, a: Tensor, b: Tensor, scale_b: Tensor, zero_b: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """The product of a matrix of floats, which is quantized by its minimum and maximum, and a matrix of integers."""
    integers, scale, zero = quantization.quantize_by_extremes(_plain(call), a)
    return product(call, integers, b, scale, scale_b, zero, zero_b, bias)


@fused("QGemm")
def gemm(
    call: Call, a: Tensor, scale_a: Tensor, zero_a: Tensor, b: Tensor, scale_b: Tensor, zero_b: Tensor,
    c: Tensor | None = None, scale: Tensor | None = None, zero: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """``alpha A B + C``, A and B turned where attributes say so; float32, or quantized where a scale is given.

    C is int32 in units of alpha and both scales.
    """
    a, b = (each.T if call.get(name, 0) else each for name, each in (("transA", a), ("transB", b)))
    found = quantization.integer_product(_plain(call), a, b, zero_a, zero_b)
    factor = xp.multiply(xp.multiply(scale_a.reshape(()), scale_b), call.get("alpha", 1.0))
    found = _scaled(call, found if c is None else xp.add(found, c), factor, None)
    return found if scale is None else _integers(call, found, scale, zero, a.dtype)


@fused("QAttention")
def quantized_attention(
    call: Call, x: Tensor, weight: Tensor, bias: Tensor, scale_x: Tensor, scale_weight: Tensor,
    mask: Tensor | None = None, zero_x: Tensor | None = None, zero_weight: Tensor | None = None,
    past: Tensor | None = None,
) -> Any:  # fmt: skip
    """com.microsoft's Attention, with projections of integers."""
    projected = product(call, x, weight, scale_x, scale_weight, zero_x, zero_weight, bias)
    return attention_of(call, projected, mask, past)


@fused("QEmbedLayerNormalization")
def quantized_embeddings(
    call: Call, ids: Tensor, segments: Tensor | None, words: Tensor, places: Tensor, kinds: Tensor | None,
    scale: Tensor, shift: Tensor, mask: Tensor | None, *units: Tensor | None,
) -> Any:  # fmt: skip
    """EmbedLayerNormalization of tables of integers; ``units``: scales of the five, and then their zeros."""
    tables = [
        None if each is None or units[place] is None else _numbers(call, each, units[place], units[place + 5])
        for place, each in enumerate((words, places, kinds, scale, shift))
    ]
    return embed_layer_normalization(call, ids, segments, *tables, mask)[:2]


def _activated(call: Call, x: Tensor, given: dict[str, Any]) -> Tensor:
    """x through the activation that a node names, if it does."""
    name = call.get("activation", "")
    name = name.decode() if isinstance(name, bytes) else name
    call = call._replace(attributes=given)
    if name == "Clip":
        return xp.minimum(xp.maximum(x, given["alpha"]), given["beta"])
    functions: dict[str, Function] = {
        "": lambda call, x: x,
        **{key: OPERATORS[key].function for key in ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid")},
    }
    if name not in functions:
        raise call.refuse(f"activation is {name!r}; grilly has {', '.join(filter(None, functions))} and Clip")
    return functions[name](call, x)


@fused("FusedConv")
def convolution_with_activation(
    call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None, added: Tensor | None = None
) -> Tensor:
    """A convolution, the sum with another array, and an activation of it."""
    found = biased(matmul.convolution(call, x, weight, bias), added)
    return _activated(call, found, dict(zip(("alpha", "beta"), call.get("activation_params", ()), strict=False)))


@fused("FusedGemm")
def gemm_with_activation(call: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """A product of matrices, and an activation of it."""
    given = {key: call.get(f"activation_{key}") for key in ("alpha", "beta")}
    found = matmul.gemm(call, a, b, c)
    return _activated(call, found, {key: value for key, value in given.items() if value is not None})
