"""Gradients of attention by operations on all scores at once, which have gradients themselves.

A user's functions are called again, with tensors of all scores and of all indices, and what they do then has gradients
as any operation does. This takes memory for several arrays of (B, H, Sq, Sk) float32.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from ...registry.shader_constants import CONSTANTS
from ..arrays.elementwise import binary, cast, unary, where
from ..arrays.matmul import matmul
from ..arrays.promotion import BOOL, FLOAT32
from ..arrays.reductions import extreme, sum_of
from ..attention.checks import check_scale
from ..attention.forward import NotedCall
from ..attention.options import OFF, Options
from ..device.call import on_device
from ..device.device import Device
from ..device.tape import Entry, noted_on, taped
from ..device.tensor import Tensor
from .alias import aliased
from .pull import pulled
from .repeated import once

#: The options of which the gradients are taken so.
TOGETHER = ("score_mod", "mask_mod", "attn_bias", "softcap")
_FLOOR = float(CONSTANTS["numbers"]["MASK_FLOOR"])


def other_options(options: Options) -> list[str]:
    """The options that are given beside TOGETHER."""
    return [
        field.name for field in dataclasses.fields(options)
        if field.name not in TOGETHER and getattr(options, field.name) is not getattr(OFF, field.name)
    ]  # fmt: skip


#: Of a call's arrays, those that are no function's: q, k, v, the mask and the bias.
GIVEN = 5


def by_scores(
    device: Device, asked: NotedCall, entry: Entry, gradients: Sequence[Tensor | None]
) -> Sequence[Tensor | None]:
    """The gradients of a call, by operations that have gradients."""
    # One tensor may be several of these: each gets its own part of the gradient. Functions read others as they are.
    arrays = [aliased(array) if needs and place < GIVEN else array
              for place, (array, needs) in enumerate(zip(entry.arrays, entry.needs, strict=True))]  # fmt: skip
    own = [once(array) for array, needs in zip(arrays, entry.needs, strict=True) if needs]
    with taped(own) as tape:
        results = _computed(device, asked, arrays)
    pairs = [pair for pair in zip(results, gradients, strict=True) if pair[1] is not None]
    found = iter(pulled(tape.entries, [one for one, _ in pairs], [one for _, one in pairs], own))
    return [next(found) if needs else None for needs in entry.needs]


def _computed(device: Device, asked: NotedCall, arrays: Sequence) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of a call that was checked, by operations on all scores."""
    q, k, v, mask, bias, *_ = (on_device(device, array) if number < 4 else array for number, array in enumerate(arrays))
    rank, dtype = q.ndim, q.dtype
    q, k, v = (cast(array.reshape((1,) * (4 - rank) + array.shape), FLOAT32) for array in (q, k, v))
    (batch, heads, queries, dim), (_, key_heads, keys, _) = q.shape, k.shape
    grouped = (batch, key_heads, heads // key_heads)
    scale = check_scale(asked.operation, asked.terms.get("scale"), dim)
    scores = matmul(q.reshape((*grouped, queries, dim)), k.swapaxes(-1, -2)._selected((slice(None), slice(None), None)))
    scores = _scores(device, asked, binary("multiply", scores.reshape((batch, heads, queries, keys)), scale))
    if bias is not None:
        scores = binary("add", scores, cast(device.tensor(bias), FLOAT32) if not isinstance(bias, Tensor) else bias)
    if mask is not None and mask.dtype != BOOL:
        mask = cast(mask, FLOAT32)
        scores = where(binary("less", mask, _FLOOR), -math.inf, binary("add", scores, mask))
    seen = _seen(device, asked, scores.shape, mask)
    if seen is not None:
        scores = where(seen, scores, -math.inf)
    with noted_on(()):  # of which the results do not depend
        top = extreme("max", scores, -1, True)
        top = where(binary("equal", top, -math.inf), 0.0, top)
    weights = unary("exp", binary("subtract", scores, top))
    total = sum_of("sum", weights, -1, None, True)
    empty = binary("equal", total, 0.0)
    weights = binary("divide", weights, where(empty, 1.0, total)).reshape((*grouped, queries, keys))
    out = matmul(weights, v._selected((slice(None), slice(None), None))).reshape((batch, heads, queries, v.shape[3]))
    lse = binary("add", unary("log", where(empty, 1.0, total)), top)
    lse = where(empty, -math.inf, lse).reshape((batch, heads, queries))
    return cast(out, dtype).reshape(out.shape[4 - rank :]), lse.reshape(lse.shape[4 - rank :])


def _scores(device: Device, asked: NotedCall, scores: Tensor) -> Tensor:
    """What score_mod and soft-cap make of scaled scores."""
    options = asked.options
    if options.score_mod is not None:
        made = options.score_mod(scores, *_indices(device, scores.shape))
        made = made if isinstance(made, Tensor) else device.tensor(np.float32(made))
        scores = cast(made, FLOAT32).broadcast_to(scores.shape)
    if options.softcap:
        scores = binary("multiply", unary("tanh", binary("divide", scores, options.softcap)), options.softcap)
    return scores


def _seen(device: Device, asked: NotedCall, shape: tuple[int, ...], mask: Tensor | None) -> Tensor | None:
    """Which scores are not hidden; None where none is."""
    batch, head, query, key = _indices(device, shape)
    shift = shape[3] - shape[2] if asked.shift is None else asked.shift
    found = []
    if asked.terms.get("causal"):
        found.append(binary("less_equal", key, binary("add", query, shift)))
    if asked.options.mask_mod is not None:
        made = asked.options.mask_mod(batch, head, query, key)
        found.append(made if isinstance(made, Tensor) else device.tensor(np.bool_(made)))
    if mask is not None and mask.dtype == BOOL:
        found.append(mask)
    seen = None
    for one in found:
        seen = one if seen is None else binary("bitwise_and", seen, one)
    return seen


def _indices(device: Device, shape: tuple[int, ...]) -> list[Tensor]:
    """Batches, heads, queries and keys, int32, each along its axis."""
    return [
        device.tensor(np.arange(extent, dtype=np.int32).reshape((-1, *(1,) * (len(shape) - axis - 1))))
        for axis, extent in enumerate(shape)
    ]


__all__ = ["TOGETHER", "by_scores", "other_options"]
