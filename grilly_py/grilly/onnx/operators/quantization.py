"""Integers with a scale and a zero, and products of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import array_api as xp
from ...compute import Tensor
from ..table import Call, operator, wide
from .elementwise import dtype_of


def _spread(call: Call, given: Tensor, x: Tensor) -> Tensor:
    """Scales or zeros so that they broadcast to x: one, one for each place along an axis, or one for each block."""
    if given.size == 1:
        return given.reshape(())
    axis, block = int(call.get("axis", 1)) % x.ndim, int(call.get("block_size", 0))
    if block:
        whole = xp.repeat(given, block, axis=axis)
        return whole[tuple(slice(0, extent) for extent in x.shape)]
    if given.ndim == 1:
        return given.reshape(tuple(-1 if a == axis else 1 for a in range(x.ndim)))
    raise call.refuse(f"scales of shape {given.shape} without block_size")


def _quantized(x: Tensor, scale: Tensor, zero: Tensor | None, dtype: np.dtype[Any]) -> Tensor:
    """x / scale rounded to even, from a zero, within the dtype's bounds. 16 bits and less are exact in float32."""
    found = xp.round(xp.divide(x, scale))
    found = found if zero is None else xp.add(found, zero.astype(np.float32))
    bounds = np.iinfo(dtype)
    return xp.minimum(xp.maximum(found, float(bounds.min)), float(bounds.max)).astype(dtype)


@operator("QuantizeLinear")
def quantize(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """Integers that stand for x."""
    asked = call.get("output_dtype", 0)
    dtype = zero.dtype if zero is not None else dtype_of(call, asked) if asked else np.dtype(np.uint8)
    if dtype.kind not in "iu" or dtype.itemsize > 2:
        raise call.refuse(f"{dtype.name} is quantized to; expected an integer of 8 or 16 bits")
    zero = None if zero is None else _spread(call, zero, x)
    return _quantized(x.astype(np.float32), wide(_spread(call, scale, x)), zero, dtype)


@operator("DequantizeLinear")
def dequantize(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """The numbers that integers stand for, in the scale's dtype."""
    asked = call.get("output_dtype", 0)
    dtype = dtype_of(call, asked) if asked else scale.dtype
    found = x.astype(np.int32)
    if zero is not None:
        found = xp.subtract(found, _spread(call, zero, x).astype(np.int32))
    return xp.multiply(found.astype(np.float32), wide(_spread(call, scale, x))).astype(dtype)


@operator("DynamicQuantizeLinear")
def quantize_by_extremes(call: Call, x: Tensor) -> Any:
    """uint8 with the scale and the zero for which x's extremes, and 0, fit; a scale of 1 for zeros alone."""
    least, most = xp.minimum(xp.min(x), 0.0), xp.maximum(xp.max(x), 0.0)
    scale = xp.divide(xp.subtract(most, least), 255.0)
    scale = xp.where(xp.equal(scale, 0.0), 1.0, scale)
    zero = _quantized(xp.negative(least), scale, None, np.dtype(np.uint8))
    return _quantized(x, scale, zero, np.dtype(np.uint8)), scale, zero


def _from_zero(x: Tensor, zero: Tensor | None, rows: bool) -> Tensor:
    """Integers less their zeros, of which there is one, one for each row or one for each column of matrices."""
    found = x.astype(np.int32)
    if zero is None:
        return found
    zero = zero.astype(np.int32)
    if zero.ndim == 1 and zero.size > 1 and rows:
        zero = zero.reshape((-1, 1))
    return xp.subtract(found, zero.reshape(()) if zero.size == 1 else zero)


@operator("MatMulInteger")
def integer_product(
    call: Call, a: Tensor, b: Tensor, zero_a: Tensor | None = None, zero_b: Tensor | None = None
) -> Tensor:
    """The product of matrices of integers, int32."""
    return xp.matmul(_from_zero(a, zero_a, True), _from_zero(b, zero_b, False))


@operator("QLinearMatMul")
def quantized_product(
    call: Call, a: Tensor, scale_a: Tensor, zero_a: Tensor, b: Tensor, scale_b: Tensor, zero_b: Tensor,
    scale: Tensor, zero: Tensor,
) -> Tensor:  # fmt: skip
    """The product of quantized matrices, quantized."""
    found = xp.matmul(_from_zero(a, zero_a, True), _from_zero(b, zero_b, False)).astype(np.float32)
    of_rows, of_columns, of_result = (
        wide(each).reshape(()) if each.size == 1 else wide(each) for each in (scale_a, scale_b, scale)
    )
    of_rows = of_rows.reshape((-1, 1)) if of_rows.ndim == 1 else of_rows
    factor = xp.multiply(of_rows, of_columns)
    zero = zero.reshape(()) if zero.size == 1 else zero
    return _quantized(xp.multiply(found, factor), of_result, zero, zero.dtype)
