"""Losses of classes."""

from __future__ import annotations

from typing import Any

from ... import array_api as xp
from ... import functional as F
from ...compute import Tensor
from ..table import Call, operator, wide


@operator("NegativeLogLikelihoodLoss")
def negative_log_likelihood(call: Call, x: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Minus the logarithm of the target's probability, ``x[n, target[n]]``: of each, their sum, or their mean."""
    dtype, x = x.dtype, wide(x)
    ignored = xp.equal(target, call.attributes["ignore_index"]) if "ignore_index" in call.attributes else None
    index = target if ignored is None else xp.where(ignored, 0, target)
    found = xp.negative(xp.squeeze(xp.take_along_axis(x, xp.expand_dims(index, axis=1), axis=1), 1))
    counted = xp.ones_like(found) if weight is None else xp.take(wide(weight), index.reshape((-1,)), axis=0)
    counted = counted.reshape(found.shape)
    if ignored is not None:
        counted = xp.where(ignored, 0.0, counted)
    found = xp.multiply(found, counted)
    how = call.get("reduction", "mean")
    if how == "mean":
        found = xp.divide(xp.sum(found), xp.sum(counted))
    elif how == "sum":
        found = xp.sum(found)
    return found.astype(dtype, copy=False)


@operator("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(call: Call, x: Tensor, target: Tensor, weight: Tensor | None = None) -> Any:
    """The same of logits; and their log-softmax over classes."""
    probabilities = F.log_softmax(wide(x), 1)
    found = negative_log_likelihood(call, probabilities, target, weight)
    return found.astype(x.dtype, copy=False), probabilities.astype(x.dtype, copy=False)
