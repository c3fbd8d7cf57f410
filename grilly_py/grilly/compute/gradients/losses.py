"""The gradient of cross entropy; its own gradient, and that by the weights of classes, by operations that have one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .. import losses
from ..arrays.creation import arange, full
from ..arrays.elementwise import binary, cast, where
from ..arrays.promotion import FLOAT32, INT64
from ..arrays.reductions import sum_of
from ..arrays.take import picked
from ..device.call import IN_PARTS, on_device
from ..device.device import Device
from ..device.tape import Entry, wanted
from ..device.tensor import Tensor
from ..norms.softmax import log_softmax, softmax
from .records import gradient_of


@gradient_of(losses.plan)
def _cross_entropy(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (terms, reduction), (x, target, weight), (gradient, _) = entry.static, entry.arrays, gradients
    return (losses.cross_entropy_backward(
        gradient._storage.device, gradient, x, target, weight, ignore_index=terms.ignored, reduction=reduction,
        label_smoothing=terms.smoothing, states=entry.results[1],
    ),)  # fmt: skip


def _loss(device: Device, static: tuple, arrays: Sequence) -> list[Tensor] | None:
    """The loss, where a gradient by the weights is wanted: minus the logarithms of softmax times what they weigh."""
    (terms, reduction), (x, target, weight) = static, arrays
    if not wanted(weight):
        return None
    logits = _logits(device, x)
    shares, total = _shares(device, terms, logits, target, weight)
    logs = where(binary("equal", shares, 0.0), 0.0, log_softmax(device, logits, 1))
    found = sum_of("sum", binary("multiply", shares, binary("multiply", logs, -1.0)), 1)
    if reduction == "none":
        return [cast(found.reshape(tuple(target.shape)), x.dtype)]
    found = sum_of("sum", found)
    return [cast(binary("divide", found, total) if reduction == "mean" else found, x.dtype)]


def _gradient(device: Device, static: tuple, arrays: Sequence) -> list[Tensor]:
    """The gradient by the logits: softmax times the sum of the shares, less the shares."""
    (terms, reduction), (x, target, weight, gradient, _) = static, arrays
    logits = _logits(device, x)
    shares, total = _shares(device, terms, logits, target, weight)
    gradient = cast(on_device(device, gradient), FLOAT32)
    if reduction == "mean":
        gradient = binary("divide", gradient, total)
    each = gradient.reshape((logits.shape[0], 1, logits.shape[2]) if reduction == "none" else (1, 1, 1))
    whole = sum_of("sum", shares, 1, None, True)
    apart = binary("subtract", binary("multiply", softmax(device, logits, 1), whole), shares)
    return [cast(binary("multiply", apart, each).reshape(tuple(x.shape)), x.dtype)]


def _logits(device: Device, x) -> Tensor:
    """Logits as float32 (batch, classes, inner)."""
    own = cast(on_device(device, x), FLOAT32)
    batch, classes = (1, x.shape[0]) if x.ndim == 1 else x.shape[:2]
    return own.reshape((batch, classes, math.prod(x.shape[2:])))


def _shares(device: Device, terms: losses.LossTerms, logits: Tensor, target, weight) -> tuple[Tensor, Tensor]:
    """What the logarithm of each class counts in a row's loss, and the sum of what rows weigh."""
    batch, classes, inner = logits.shape
    own = cast(on_device(device, target), INT64).reshape((batch, inner))
    counts = binary("not_equal", own, terms.ignored)
    own = where(counts, own, 0)
    weights = full(device, (classes,), 1.0, FLOAT32) if weight is None else cast(on_device(device, weight), FLOAT32)
    weighs = where(counts, picked(weights, own.reshape(-1)).reshape((batch, inner)), 0.0)
    numbers = arange(device, classes)._selected((None, slice(None), None))
    hits = binary("equal", own._selected((slice(None), None)), numbers)
    row = weighs._selected((slice(None), None))
    shares = where(hits, binary("multiply", row, 1.0 - terms.smoothing), 0.0)
    if terms.smoothing:
        even = binary("multiply", weights, terms.smoothing / classes)._selected((None, slice(None), None))
        shares = binary("add", shares, where(counts._selected((slice(None), None)), even, 0.0))
    return shares, sum_of("sum", weighs)


IN_PARTS[losses.plan] = _loss
IN_PARTS[losses.plan_backward] = _gradient
