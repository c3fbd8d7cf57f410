"""Gradients of attention in one kernel: of its arrays, and of those that are added to its scores."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from ...errors import GradientError
from ..arrays.creation import full
from ..arrays.elementwise import binary, cast
from ..arrays.promotion import FLOAT32
from ..attention import backward_plan, option_checks, varlen
from ..attention.backward import flash_attention_backward
from ..attention.checks import check_mask, check_qkv
from ..attention.forward import ADDED_ARRAYS, NotedCall, flash_attention
from ..attention.function_gradients import Read, derived, fixed
from ..attention.options import prepare
from ..device.call import IN_PARTS
from ..device.device import Device
from ..device.tape import Entry, as_one, wanted
from ..device.tensor import Tensor
from .records import gradient_of
from .whole_scores import TOGETHER, by_scores, other_options

#: Arrays of a call before those that its functions read: q, k, v and the mask go before ADDED_ARRAYS.
_BEFORE_READ = 4 + len(ADDED_ARRAYS)
#: A processor computes gradients from so many scores at most.
SCORES = 2**22


@gradient_of(flash_attention)
def _attention(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    asked, (q, k, v, mask, *_) = entry.static, entry.arrays
    device = entry.results[0]._storage.device
    if not other_options(asked.options) and (wanted(*gradients, *entry.arrays) or _quicker(asked, device, q, k)):
        return by_scores(device, asked, entry, gradients)
    needs = dict(zip(ADDED_ARRAYS, entry.needs[4:], strict=False))
    out, lse = entry.results
    gradient, of_lse = gradients
    if wanted(of_lse):  # the call below notes nothing of it
        raise _no_second()
    reads = _wanted_reads(asked.options.score_mod, entry.needs[_BEFORE_READ:])
    dq, dk, dv, *more = flash_attention_backward(
        device, _or_zeros(gradient, out), q, k, v, out, lse, mask=mask, causal=asked.terms.get("causal", False),
        scale=asked.terms.get("scale"), shift=asked.shift, options=asked.options, grad_lse=of_lse,
        return_dbias=needs["attn_bias"], return_dsinks=needs["sinks"], return_dt5_table=needs["t5_table"], reads=reads,
    )  # fmt: skip
    by_bias, by_sinks, by_table = (more.pop(0) if needs[name] else None for name in ("attn_bias", "sinks", "t5_table"))
    by_read = _of_tensors(reads, more, len(entry.arrays) - _BEFORE_READ)
    return dq, dk, dv, None, by_bias, None, by_table, by_sinks, *by_read


def _wanted_reads(score, needs: Sequence[bool]) -> list[Read]:
    """The reads of a score function, or of None, from tensors of which gradients are wanted: ``needs`` by number."""
    return [read for read in (() if score is None else derived(score).reads) if needs[read.tensor]]


def _of_tensors(reads: Sequence[Read], gradients: Sequence[Tensor], count: int) -> list[Tensor | None]:
    """The gradients of ``count`` tensors, of those by each read; None where none is read."""
    found: list[Tensor | None] = [None] * count
    for read, gradient in zip(reads, gradients, strict=True):
        before = found[read.tensor]
        found[read.tensor] = gradient if before is None else binary("add", before, gradient)
    return found


def _quicker(asked: NotedCall, device: Device, q, k) -> bool:
    """Whether a processor computes gradients from all scores, in less time than by a kernel that waits at barriers."""
    if asked.options.score_mod is not None or asked.options.mask_mod is not None:
        return False
    return device.runtime.device.kind == "cpu" and math.prod(q.shape[:-1]) * k.shape[-2] <= SCORES


def _or_zeros(gradient: Tensor | None, result: Tensor) -> Tensor:
    return full(result._storage.device, result.shape, 0.0, result.dtype) if gradient is None else gradient


def _in_parts(device: Device, asked: NotedCall, arrays: Sequence):
    """A call with a gradient by an additive mask or by ALiBi's slopes: both become a bias of all scores.

    Users' functions are noted as they are now.
    """
    q, k, v, mask, bias, slopes, *_ = arrays
    if not wanted(mask, slopes):
        if asked.options.score_mod is None and asked.options.mask_mod is None:
            return None
        asked = asked._replace(options=fixed(asked.operation, asked.options))
        return as_one(flash_attention, asked, arrays,
                      lambda: asked.run(device, q, k, v, mask, asked.options, True))  # fmt: skip
    options, rank = asked.options, check_qkv(asked.operation, q, k, v)
    q_shape, k_shape = ((1,) * (4 - rank) + tuple(array.shape) for array in (q, k))
    whole = (*q_shape[:3], k_shape[2])
    prepare(asked.operation, options, whole, bool(asked.terms.get("causal", False)))
    if wanted(mask):
        check_mask(asked.operation, mask, whole)
        bias, mask = mask if bias is None else binary("add", mask, cast(device.tensor(bias), FLOAT32)), None
    if wanted(slopes):
        straight = _straight(device, asked, slopes, whole)
        bias = straight if bias is None else binary("add", straight, cast(device.tensor(bias), FLOAT32))
        options = dataclasses.replace(options, alibi_slopes=None)
    return asked.run(device, q, k, v, mask, dataclasses.replace(options, attn_bias=bias), True)


def _straight(device: Device, asked: NotedCall, slopes: Tensor, whole: tuple[int, int, int, int]) -> Tensor:
    """What ALiBi adds to the scores, ``(B or 1, H, Sq, Sk)``: slopes times minus the distance."""
    batch, heads, queries, keys = whole
    shift = np.full(batch, keys - queries if asked.shift is None else asked.shift)
    given, ends = (asked.options.seqlens_q, asked.options.seqlens_k), []
    if any(lengths is not None for lengths in given):  # the last query stands at the last key of its sample
        for name, lengths, most in zip(("seqlens_q", "seqlens_k"), given, (queries, keys), strict=True):
            own = np.full(batch, most) if lengths is None else lengths
            ends.append(option_checks.lengths(asked.operation, name, own, batch, most, read=True))
        shift = ends[1] - ends[0]
    shift = shift[:1] if (shift == shift[0]).all() else shift
    apart = np.arange(keys)[None, None] - np.arange(queries)[None, :, None] - shift[:, None, None]
    distance = device.tensor(-np.abs(apart)[:, None].astype(np.float32))
    return binary("multiply", slopes.reshape((-1, heads, 1, 1)), distance)


IN_PARTS[flash_attention] = _in_parts


@gradient_of(varlen.flash_attention_varlen)
def _packed(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (places, asked), (q, k, v, _, *read) = entry.static, entry.arrays
    options = {name: value for name, value in asked.items() if name not in ("kernel", "precision")}
    out, lse = entry.results
    gradient, of_lse = gradients
    if wanted(of_lse):
        raise _no_second()
    reads = _wanted_reads(asked["score_mod"], entry.needs[4:])
    dq, dk, dv, *more = varlen.flash_attention_varlen_backward(
        out._storage.device, _or_zeros(gradient, out), q, k, v, out, lse, *places, grad_lse=of_lse,
        return_dsinks=entry.needs[3], reads=reads, **options,
    )  # fmt: skip
    by_sinks = more.pop(0) if entry.needs[3] else None
    return dq, dk, dv, by_sinks, *_of_tensors(reads, more, len(read))


@gradient_of(backward_plan.plan, varlen.CALLS)
def _twice(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    raise _no_second()


def _no_second() -> GradientError:
    return GradientError(
        "attention has gradients of gradients with mask, causal, scale, "
        f"{', '.join(TOGETHER)} alone, and not of packed sequences: write other options as a part of score_mod or "
        "mask_mod, or compute attention in steps (functional.attention_scores, softmax, attention_output)"
    )
