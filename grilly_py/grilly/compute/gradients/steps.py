"""Gradients of the steps of unfused attention: scores, masks, T5's bias, outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..arrays.elementwise import binary, cast, where
from ..arrays.matmul import matmul
from ..arrays.promotion import FLOAT32
from ..arrays.reductions import sum_of
from ..arrays.shapes import triangle
from ..attention.checks import check_scale
from ..attention.t5 import bucket_words
from ..device.call import on_device
from ..device.tape import Entry
from ..device.tensor import Tensor
from ..embedding import embedding_backward
from ..unfused import mask, output, scores, t5_bias
from ..unfused.checks import full_shape
from .records import gradient_of
from .repeated import summed_to


def _by_groups(x: Tensor, like) -> Tensor:
    """Heads of x that read one head of another array, added up."""
    if x.ndim < 3 or x.shape[-3] == like.shape[-3]:
        return x
    heads = like.shape[-3]
    apart = x.reshape((*x.shape[:-3], heads, x.shape[-3] // heads, *x.shape[-2:]))
    return sum_of("sum", apart, x.ndim - 2)


def _for_heads(x: Tensor, like: Tensor) -> Tensor:
    """An array with each head as often as another's heads read it."""
    if x.ndim < 3 or x.shape[-3] == like.shape[-3]:
        return x
    apart = x._selected((..., None, slice(None), slice(None)))
    apart = apart.broadcast_to((*x.shape[:-2], like.shape[-3] // x.shape[-3], *x.shape[-2:]))
    return apart.reshape((*x.shape[:-3], like.shape[-3], *x.shape[-2:]))


@gradient_of(scores.plan)
def _scores(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (gradient,) = gradients
    q, k = (cast(on_device(gradient._storage.device, array), FLOAT32) for array in entry.arrays)
    gradient = binary("multiply", gradient, check_scale("attention_scores", entry.static[0], max(q.shape[-1], 1)))
    by_q = by_k = None
    if entry.needs[0]:
        by_q = matmul(gradient, _for_heads(k, q))
    if entry.needs[1]:
        by_k = _by_groups(matmul(gradient.swapaxes(-1, -2), q), k)
    return by_q, by_k


@gradient_of(output.plan)
def _output(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    device = gradients[0]._storage.device
    v, weights = (cast(on_device(device, array), FLOAT32) for array in entry.arrays)
    gradient, by_v, by_weights = cast(gradients[0], FLOAT32), None, None
    last = weights.shape[-1] - weights.shape[-2] if entry.static[0] == "gpt" else None  # weights after it are not read
    if entry.needs[0]:
        read = weights if last is None else triangle("tril", weights, last)
        by_v = _by_groups(matmul(read.swapaxes(-1, -2), gradient), v)
    if entry.needs[1]:
        by_weights = matmul(gradient, _for_heads(v, weights).swapaxes(-1, -2))
        by_weights = by_weights if last is None else triangle("tril", by_weights, last)
    return by_v, by_weights


@gradient_of(mask.plan, reads=(1,))
def _masked(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (own, added), (causal,), (gradient,) = entry.arrays, entry.static, gradients
    if causal:
        gradient = triangle("tril", gradient, own.shape[-1] - own.shape[-2])
    if added is None:
        return (gradient,)
    if added.dtype != np.bool_:
        lead = full_shape(gradient.shape)
        return gradient, summed_to(gradient.reshape(lead), full_shape(added.shape)).reshape(tuple(added.shape))
    shown = on_device(gradient._storage.device, added).broadcast_to(full_shape(gradient.shape))
    return (where(shown.reshape(gradient.shape), gradient, 0.0),)


@gradient_of(t5_bias.plan, reads=())
def _biased(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (_, table), (bidirectional, most, offset), (gradient,) = entry.arrays, entry.static, gradients
    if not entry.needs[1]:
        return (gradient,)
    full = gradient.reshape(full_shape(gradient.shape))
    _, heads, queries, keys = full.shape
    apart = np.arange(keys)[None] - np.arange(queries)[:, None] - offset
    ids = bucket_words(table.shape[0], bidirectional, most)[np.clip(apart, -most, most) + most].reshape(-1)
    rows = sum_of("sum", full, 0).reshape((heads, queries * keys)).transpose()
    device = gradient._storage.device
    return gradient, embedding_backward(device, rows, device.tensor(ids), table.shape[0])
