"""Integers with a scale and a zero, and products and convolutions of them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from ... import array_api as xp
from ... import functional as F
from ...compute import Tensor
from ...compute.arrays.matmul import EXACT, added_as_integers, even, from_zero, largest, whole_product
from ...errors import UnsupportedError
from ..table import Call, operator, wide, within
from .elementwise import dtype_of
from .matmul import padding
from .shapes import padded


def _spread(call: Call, given: Tensor, x: Tensor) -> Tensor:
    """Scales or zeros so that they broadcast to x: one, one for each place along an axis, or one for each block."""
    if given.size == 1:
        return given.reshape(())
    axis, block = within(int(call.get("axis", 1)), x.ndim), int(call.get("block_size", 0))
    if block:
        whole = xp.repeat(given, block, axis=axis)
        return whole[tuple(slice(0, extent) for extent in x.shape)]
    if given.ndim == 1:
        return given.reshape(tuple(-1 if a == axis else 1 for a in range(x.ndim)))
    raise call.refuse(f"scales of shape {given.shape} without block_size")


def _quantized(x: Tensor, scale: Tensor, zero: Tensor | None, dtype: np.dtype[Any]) -> Tensor:
    """x / scale rounded to even, from a zero, within the dtype's bounds. 16 bits and less are exact in float32."""
    found = xp.round(xp.divide(x, scale))
    found = found if zero is None else xp.add(found, zero.astype(np.float32, copy=False))
    bounds = np.iinfo(dtype)
    return xp.minimum(xp.maximum(found, float(bounds.min)), float(bounds.max)).astype(dtype, copy=False)


@operator("QuantizeLinear")
def quantize(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """Integers that stand for x."""
    asked = call.get("output_dtype", 0)
    dtype = zero.dtype if zero is not None else dtype_of(call, asked) if asked else np.dtype(np.uint8)
    if dtype.kind not in "iu" or dtype.itemsize > 2:
        raise call.refuse(f"{dtype.name} is quantized to; expected an integer of 8 or 16 bits")
    zero = None if zero is None else _spread(call, zero, x)
    return _quantized(x.astype(np.float32, copy=False), wide(_spread(call, scale, x)), zero, dtype)


@operator("DequantizeLinear")
def dequantize(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """The numbers that integers stand for, in the scale's dtype."""
    asked = call.get("output_dtype", 0)
    dtype = dtype_of(call, asked) if asked else scale.dtype
    found = x.astype(np.int32, copy=False)
    if zero is not None:
        found = xp.subtract(found, _spread(call, zero, x).astype(np.int32, copy=False))
    return xp.multiply(found.astype(np.float32, copy=False), wide(_spread(call, scale, x))).astype(dtype, copy=False)


@operator("DynamicQuantizeLinear")
def quantize_by_extremes(call: Call, x: Tensor) -> Any:
    """uint8 with the scale and the zero for which x's extremes, and 0, fit; a scale of 1 for zeros alone."""
    least, most = xp.minimum(xp.min(x), 0.0), xp.maximum(xp.max(x), 0.0)
    scale = xp.divide(xp.subtract(most, least), 255.0)
    scale = xp.where(xp.equal(scale, 0.0), 1.0, scale)
    zero = _quantized(xp.negative(least), scale, None, np.dtype(np.uint8))
    return _quantized(x, scale, zero, np.dtype(np.uint8)), scale, zero


def _from_zero(x: Tensor, zero: Tensor | None, rows: bool) -> tuple[Tensor, int]:
    """Integers less their zeros, as float32, and the largest magnitude that they may have.

    There is one zero, one for each row or one for each column of matrices.
    """
    if zero is None:
        return from_zero(x, None), largest(x.dtype)
    if zero.ndim == 1 and zero.size > 1 and rows:
        zero = zero.reshape((-1, 1))
    bounds = np.iinfo(x.dtype)
    return from_zero(x, zero.reshape(()) if zero.size == 1 else zero), bounds.max - bounds.min


def _terms(call: Call, high_a: int, high_b: int) -> int:
    """How many products of whole numbers up to these have sums that float32 holds."""
    most = EXACT // (high_a * high_b)
    if not most:
        raise call.refuse(f"products of integers up to {high_a:,} and {high_b:,}; expected those of 8 bits")
    return most


def _longest(call: Call, sizes: np.ndarray[Any, Any], high: int) -> int:
    """How many rows of ``sizes``, magnitudes of weights ``(rows, columns)``, a part may have: sums of products of its
    rows with numbers up to ``high`` are held by float32."""
    depth, least = sizes.shape[0], _terms(call, high, 1)
    for parts in range(1, depth + 1):
        step = even(depth, -(-depth // parts))
        if np.add.reduceat(sizes, range(0, depth, step), axis=0).max(initial=0) <= least:
            return step
    raise call.refuse(f"products of integers up to {high:,} and {int(sizes.max()):,}; expected those of 8 bits")


def _columns(call: Call, b: Tensor, zero: Tensor | None, high: int) -> tuple[Tensor, int]:
    """Second factors less their zeros, in the order in which products read them, and how many terms sums may have.

    Of constants they are made once, and the terms are counted by what the weights are.
    """

    def make(constant: bool) -> tuple[Tensor, int]:
        found, own = _from_zero(b, zero, False)
        if not constant or b.ndim != 2 or not b.size:
            return found, _terms(call, high, own)
        laid = found.T.contiguous()
        return laid.T, _longest(call, np.abs(laid.numpy()).T.astype(np.int64), high)

    return call.once((b, zero), ("columns", high), make)


def _kernels(call: Call, weight: Tensor, zero: Tensor | None, high: int) -> tuple[Tensor, int]:
    """Weights of a convolution less their zeros, and of how many channels sums may be; as ``_columns``."""

    def make(constant: bool) -> tuple[Tensor, int]:
        found, own = _from_zero(weight, _of_channels(zero, weight, 0), False)
        if not constant or not weight.size:
            return found, _terms(call, high, own) // math.prod(weight.shape[2:])
        sizes = np.abs(found.numpy()).astype(np.int64)
        try:
            return found, _longest(call, sizes.sum(axis=tuple(range(2, weight.ndim))).T, high)
        except UnsupportedError:
            return found, 0

    return call.once((weight, zero), ("kernels", high), make)


def _product(call: Call, a: Tensor, zero_a: Tensor | None, b: Tensor, zero_b: Tensor | None) -> Tensor:
    """The product of matrices of integers less their zeros, int32."""
    rows, high = _from_zero(a, zero_a, True)
    columns, most = _columns(call, b, zero_b, high)
    return whole_product(rows, columns, most)


@operator("MatMulInteger")
def integer_product(
    call: Call, a: Tensor, b: Tensor, zero_a: Tensor | None = None, zero_b: Tensor | None = None
) -> Tensor:
    """The product of matrices of integers, int32."""
    return _product(call, a, zero_a, b, zero_b)


@operator("QLinearMatMul")
def quantized_product(
    call: Call, a: Tensor, scale_a: Tensor, zero_a: Tensor, b: Tensor, scale_b: Tensor, zero_b: Tensor,
    scale: Tensor, zero: Tensor,
) -> Tensor:  # fmt: skip
    """The product of quantized matrices, quantized."""
    found = _product(call, a, zero_a, b, zero_b).astype(np.float32, copy=False)
    of_rows, of_columns, of_result = (
        wide(each).reshape(()) if each.size == 1 else wide(each) for each in (scale_a, scale_b, scale)
    )
    of_rows = of_rows.reshape((-1, 1)) if of_rows.ndim == 1 else of_rows
    factor = xp.multiply(of_rows, of_columns)
    zero = zero.reshape(()) if zero.size == 1 else zero
    return _quantized(xp.multiply(found, factor), of_result, zero, zero.dtype)


def _integer_convolution(
    call: Call, x: Tensor, zero: Tensor | None, weight: Tensor, zero_weight: Tensor | None
) -> Tensor:
    """The convolution of integers less their zeros, as int32, exact: by parts of the channels whose sums float32
    holds."""
    kernel, groups = weight.shape[2:], int(call.get("group", 1))
    bounds = np.iinfo(weight.dtype)
    own = largest(weight.dtype) if zero_weight is None else bounds.max - bounds.min
    x, high = _from_zero(x, zero, False)
    weight, most = _kernels(call, weight, zero_weight, high)
    if len(kernel) > 2 or not most or groups > 1 and weight.shape[1] > most:
        return _of_windows(call, x, weight, _terms(call, high, own))
    before, after = padding(call, x.shape[2:], kernel)
    if before != after:
        x = padded(call, x, [0, 0, *before], [0, 0, *after], 0.0)
        before = [0] * len(kernel)
    step = weight.shape[1] if groups > 1 else even(weight.shape[1], most)
    options = dict(
        stride=tuple(call.get("strides", [1] * len(kernel))), padding=tuple(before),
        dilation=tuple(call.get("dilations", [1] * len(kernel))), groups=groups,
    )  # fmt: skip
    convolve = F.conv1d if len(kernel) == 1 else F.conv2d
    order = (0, *range(2, x.ndim), 1)  # as the results lie in memory
    parts = []
    for first in range(0, weight.shape[1], step):
        some = slice(first, first + step)
        found = convolve(x[:, some] if groups == 1 else x, weight[:, some], **options)
        parts.append(xp.permute_dims(found, order))
    return xp.permute_dims(added_as_integers(parts), (0, x.ndim - 1, *range(1, x.ndim - 1)))


def _of_windows(call: Call, x: Tensor, weight: Tensor, most: int) -> Tensor:
    """The same by windows as a matrix, and products of it whose sums of ``most`` terms float32 holds."""
    (batch, channels), kernel, outputs = x.shape[:2], weight.shape[2:], weight.shape[0]
    count, groups = len(kernel), int(call.get("group", 1))
    strides, dilations = call.get("strides", [1] * count), call.get("dilations", [1] * count)
    before, after = padding(call, x.shape[2:], kernel)
    x = padded(call, x, [0, 0, *before], [0, 0, *after], 0.0)
    counts = [
        (e - d * (k - 1) - 1) // s + 1 for e, d, k, s in zip(x.shape[2:], dilations, kernel, strides, strict=True)
    ]
    windows = xp.stack([
        x[(slice(None), slice(None), *(
            slice(p * d, p * d + (n - 1) * s + 1, s)
            for p, d, n, s in zip(place, dilations, counts, strides, strict=True)
        ))]
        for place in itertools.product(*map(range, kernel))
    ], axis=2)  # fmt: skip
    places = math.prod(kernel)
    windows = windows.reshape((batch, groups, channels // groups * places, math.prod(counts)))
    found = whole_product(weight.reshape((groups, outputs // groups, channels // groups * places)), windows, most)
    return found.reshape((batch, outputs, *counts))


def _of_channels(given: Tensor | None, x: Tensor, axis: int) -> Tensor | None:
    """One number, or one for each channel, so that it broadcasts to x."""
    if given is None:
        return None
    return given.reshape(()) if given.size == 1 else given.reshape(tuple(-1 if a == axis else 1 for a in range(x.ndim)))


@operator("ConvInteger")
def integer_convolution(
    call: Call, x: Tensor, weight: Tensor, zero: Tensor | None = None, zero_weight: Tensor | None = None
) -> Tensor:
    """The convolution of integers, int32."""
    return _integer_convolution(call, x, zero, weight, zero_weight)


@operator("QLinearConv")
def quantized_convolution(
    call: Call, x: Tensor, scale_x: Tensor, zero_x: Tensor, weight: Tensor, scale_weight: Tensor, zero_weight: Tensor,
    scale: Tensor, zero: Tensor, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The convolution of quantized images, quantized; its bias is int32 in units of both scales."""
    found = _integer_convolution(call, x, zero_x, weight, zero_weight)
    if bias is not None:
        found = xp.add(found, bias.reshape((-1, *(1,) * (x.ndim - 2))))
    factor = xp.multiply(wide(scale_x).reshape(()), _of_channels(wide(scale_weight), x, 1))
    return _quantized(
        xp.multiply(found.astype(np.float32, copy=False), factor), wide(scale).reshape(()), zero.reshape(()), zero.dtype
    )
