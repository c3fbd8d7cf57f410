"""Gradients of rows of a table, and of the sums that are theirs."""

from __future__ import annotations

from collections.abc import Sequence

from .. import embedding
from ..arrays.elementwise import binary, where
from ..device.tape import Entry
from ..device.tensor import Tensor
from .records import gradient_of


@gradient_of(embedding.plan, reads=(0,))
def _rows(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (ids, weight), (padding,), (gradient,) = entry.arrays, entry.static, gradients
    device = gradient._storage.device
    return None, embedding.embedding_backward(device, gradient, ids, weight.shape[0], padding)


@gradient_of(embedding.plan_backward, reads=(0,))
def _sums(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (ids, _), (_, skipped), (gradient,) = entry.arrays, entry.static, gradients
    device = gradient._storage.device
    found = embedding.embedding(device, ids, gradient)
    if skipped != embedding.NONE:
        own = device.tensor(ids) if not isinstance(ids, Tensor) else ids
        found = where(binary("equal", own, skipped)._selected((..., None)), 0.0, found)
    return None, found
