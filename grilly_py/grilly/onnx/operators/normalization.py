"""Norms of rows, groups and channels."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ... import array_api as xp
from ... import functional as F
from ... import linalg
from ...compute import Tensor
from ...compute.arrays.reductions import norm
from ..table import Call, operator, wide, within
from .shapes import padded


def _row_axis(call: Call, x: Tensor) -> int:
    return within(int(call.get("axis", -1)), x.ndim)


def _weight(given: Tensor | None, x: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """A weight or bias that broadcasts to a row, as one of the row's shape and dtype."""
    if given is None:
        return None
    return given.astype(x.dtype, copy=False).broadcast_to(shape).contiguous()


def _with_epsilon(root: Tensor, epsilon: float) -> Tensor:
    """``sqrt(root^2 + epsilon)``."""
    return xp.hypot(root, math.sqrt(epsilon))


@operator("LayerNormalization")
def layer_normalization(call: Call, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Any:
    """The layer norm, and the mean and the reciprocal deviation of each row where the graph asks for them."""
    axis, eps = _row_axis(call, x), call.get("epsilon", 1e-5)
    shape = x.shape[axis:]
    found = F.layer_norm(x, shape, _weight(scale, x, shape), _weight(bias, x, shape), eps)
    if not (call.wants(1) or call.wants(2)):
        return found
    axes = tuple(range(axis, x.ndim))
    mean = xp.mean(wide(x), axis=axes, keepdims=True)
    deviation = xp.std(wide(x), axis=axes, keepdims=True)
    return found, mean, xp.reciprocal(_with_epsilon(deviation, eps))


@operator("RMSNormalization", "SimplifiedLayerNormalization")
def rms_normalization(call: Call, x: Tensor, scale: Tensor) -> Any:
    """The root mean square norm; ONNX Runtime's gives the reciprocal root of each row too, where the graph asks."""
    axis, eps = _row_axis(call, x), call.get("epsilon", 1e-5)
    found = F.rms_norm(x, x.shape[axis:], _weight(scale, x, x.shape[axis:]), eps)
    if not call.wants(1):
        return found
    root = norm("rms", wide(x), tuple(range(axis, x.ndim)), True)
    return found, xp.reciprocal(_with_epsilon(root, eps))


@operator("GroupNormalization")
def group_normalization(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """The norm of groups of channels; before version 21 with one scale for each group."""
    groups, channels = int(call.attributes["num_groups"]), x.shape[1]
    if call.version < 21:
        scale, bias = (xp.repeat(each, channels // groups) for each in (scale, bias))
    scale, bias = scale.astype(x.dtype, copy=False), bias.astype(x.dtype, copy=False)
    return F.group_norm(x, groups, scale, bias, call.get("epsilon", 1e-5))


@operator("InstanceNormalization")
def instance_normalization(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """The norm of each channel by itself."""
    return F.group_norm(x, x.shape[1], scale, bias, call.get("epsilon", 1e-5))


@operator("BatchNormalization")
def batch_normalization(call: Call, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Any:
    """The norm of channels by means and variances that are given; or by x's own, and then both mixed."""
    shape, wider = (-1, *(1,) * (x.ndim - 2)), wide(x)
    epsilon, given = call.get("epsilon", 1e-5), [wide(mean), wide(variance)]
    if call.get("training_mode", 0):
        axes = (0, *range(2, x.ndim))
        own, kept = [xp.mean(wider, axis=axes), xp.var(wider, axis=axes)], call.get("momentum", 0.9)
        mixed = [
            xp.add(xp.multiply(one, kept), xp.multiply(other, 1 - kept)).astype(each.dtype, copy=False)
            for one, other, each in zip(given, own, (mean, variance), strict=True)
        ]
        given, spread = own, _with_epsilon(xp.std(wider, axis=axes), epsilon)
    else:
        mixed, spread = [], xp.sqrt(xp.add(given[1], epsilon))
    middle, spread, factor, shift = (each.reshape(shape) for each in (given[0], spread, wide(scale), wide(bias)))
    factor = xp.divide(factor, spread)
    found = xp.add(xp.multiply(xp.subtract(wider, middle), factor), shift).astype(x.dtype, copy=False)
    return (found, *mixed) if mixed else found


@operator("LpNormalization")
def lp_normalization(call: Call, x: Tensor) -> Tensor:
    """Rows divided by their norm of order 1 or 2; rows of zeros stay."""
    axis, order, wider = call.get("axis", -1), int(call.get("p", 2)), wide(x)
    if not x.size:
        return x
    most = xp.max(xp.abs(wider), axis=axis, keepdims=True)  # norms of rows may exceed float32
    parts = xp.divide(wider, xp.where(xp.logical_and(xp.isfinite(most), xp.greater(most, 0.0)), most, 1.0))
    size = linalg.vector_norm(parts, axis=axis, keepdims=True, ord=order)
    return xp.where(xp.equal(size, 0.0), 0.0, xp.divide(parts, size)).astype(x.dtype, copy=False)


@operator("MeanVarianceNormalization")
def mean_variance_normalization(call: Call, x: Tensor) -> Tensor:
    """``(x - mean) / (deviation + 1e-9)`` over axes."""
    axes, wider = tuple(call.get("axes", (0, 2, 3))), wide(x)
    apart = xp.subtract(wider, xp.mean(wider, axis=axes, keepdims=True))
    deviation = xp.std(wider, axis=axes, keepdims=True)
    return xp.divide(apart, xp.add(deviation, float(np.float32(1e-9)))).astype(x.dtype, copy=False)


@operator("LRN")
def local_response_normalization(call: Call, x: Tensor) -> Tensor:
    """``x / (bias + alpha / size * s) ** beta``, with s the sum of squares of so many neighbouring channels."""
    size, channels = int(call.attributes["size"]), x.shape[1]
    wider = wide(x)
    before, after = [0] * x.ndim, [0] * x.ndim
    before[1], after[1] = (size - 1) // 2, size // 2
    alpha, bias = call.get("alpha", 1e-4), call.get("bias", 1.0)
    if alpha < 0 or bias < 0:
        raise call.refuse(f"alpha is {alpha} and bias {bias}; grilly has numbers of at least 0")
    wider_rows = padded(call, wider, before, after, 0.0)
    near = functools.reduce(xp.hypot, (wider_rows[:, shift : shift + channels] for shift in range(size)))
    under = _with_epsilon(xp.multiply(near, math.sqrt(alpha / size)), bias)  # the root, as squares may exceed float32
    return xp.divide(wider, xp.pow(under, 2 * call.get("beta", 0.75))).astype(x.dtype, copy=False)
