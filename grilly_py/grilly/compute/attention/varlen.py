"""Attention over sequences of many lengths that lie one after the other in the same arrays."""

from __future__ import annotations

import numpy as np

from ..device.arguments import FLOAT32, check_precision, finish, to_device
from ..device.caches import Kept
from ..device.device import Device
from ..device.dtypes import is_sixteen_bits
from ..device.record import key_of
from ..device.sixteen_bits import widens
from ..device.tensor import Tensor
from ..random import with_seed
from . import backward
from .backward_plan import BackwardTerms
from .backward_sums import sinks_gradient
from .call import Terms
from .checks import check_causal, check_kernel
from .options import Options, scalar_key
from .record import Prepared, prepared
from .varlen_checks import check_bindings, check_packed, sequences_of
from .words import words_of

NAME = "flash_attention_varlen"
#: Plans of calls on Tensors whose options have no arrays, by the arguments themselves but for where sequences begin.
REPEATED: Kept[tuple, Prepared] = Kept("repeated calls of flash_attention_varlen", 256)
_SCALES = (type(None), float, int)


@widens("q", "k", "v")
def flash_attention_varlen(
    device: Device,
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    *,
    causal=False,
    scale=None,
    window_size=None,
    softcap=0.0,
    alibi_slopes=None,
    sinks=None,
    dropout_p=0.0,
    dropout_seed=None,
    dropout_offset=0,
    return_lse=False,
    kernel=None,
    precision="highest",
):
    """``grilly.functional.flash_attention_varlen`` on a device; documented there."""
    device.check_open()
    high, causal = check_precision(NAME, precision), check_causal(NAME, causal)
    check_kernel(NAME, kernel)
    dropout = {"dropout_p": dropout_p, "dropout_seed": dropout_seed}
    if dropout_offset:
        dropout["dropout_offset"] = dropout_offset
    options = Options(
        window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks,
        **with_seed(device, NAME, dropout),
    )  # fmt: skip
    starts, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
    key = None
    if type(q) is type(k) is type(v) is Tensor and len(q.shape) == len(k.shape) == 3 and scale.__class__ in _SCALES:
        scalars = scalar_key(options)
        if scalars is not None:
            sequences = sequences_of(NAME, starts, longest, (q.shape[0], k.shape[0]))
            asked = (scalars, causal, scale, kernel, high, len(sequences.samples), sequences.longest)
            key = key_of(device, asked, (q, k, v))
            found = device.caches[REPEATED].get(key)
            if found is not None:
                samples = sequences.samples
                words = words_of(device, found.words.template, ((0, samples),), {}, samples.size)
                o, lse = found.run((q, k, v, None, None), words)
                _fill_rest(device, o, lse, sequences.covered[0])
                device.runtime.flush()
                return (o, lse) if return_lse else o
    packed = check_packed(NAME, q, k, v, starts, longest, causal, scale, options)
    tensors = [to_device(device, array) for array in (q, k, v)]
    total, heads, _ = q.shape
    batch, (longest_q, longest_k) = packed.batch, packed.longest
    made = {"the output": total * heads * v.shape[2] * tensors[0].dtype.itemsize, "the log-sum-exp": 4 * heads * total}
    check_bindings(NAME, device, dict(zip("qkv", tensors, strict=True)), made)
    checked = packed.checked
    views = [_view(t, batch, n) for t, n in zip(tensors, (longest_q, longest_k, longest_k), strict=True)]
    shift = longest_k - longest_q
    terms = Terms(checked.causal, packed.scale, True, kernel, high, shift, checked.facts(), packed=total)
    call = (*views, None, None)
    found = prepared(device, call, terms)
    if key is not None and found.words is not None and len(checked.arrays) == 1 and not checked.live:
        if all(t is a for t, a in zip(tensors, (q, k, v), strict=True)):
            device.caches[REPEATED].keep(key, found)
    o, lse = found.run(call, found.words_of(device, checked))
    _fill_rest(device, o, lse, packed.covered[0])
    out = finish(device, o, q, k, v)
    if not return_lse:
        return out
    return out, finish(device, lse, q, k, v)


def flash_attention_varlen_backward(
    device: Device,
    grad_out,
    q,
    k,
    v,
    out,
    lse,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    *,
    causal=False,
    scale=None,
    window_size=None,
    softcap=0.0,
    alibi_slopes=None,
    sinks=None,
    dropout_p=0.0,
    dropout_seed=None,
    dropout_offset=0,
    return_dsinks=False,
    grad_lse=None,
):
    """``grilly.functional.flash_attention_varlen_backward`` on a device; documented there."""
    name = "flash_attention_varlen_backward"
    device.check_open()
    options = Options(
        window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks,
        dropout_p=dropout_p, dropout_seed=dropout_seed, dropout_offset=dropout_offset,
    )  # fmt: skip
    starts, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
    packed = check_packed(name, q, k, v, starts, longest, bool(causal), scale, options)
    backward.check_results(name, q, (*q.shape[:2], v.shape[2]), (q.shape[1], q.shape[0]), grad_out, out, lse,
                           grad_lse)  # fmt: skip
    if return_dsinks and sinks is None:
        raise ValueError(f"{name}: the gradient of sinks is asked for, which the call lacks; give sinks")
    arrays = (grad_out, q, k, v, out, lse)
    dtype = np.dtype(q.dtype)
    if 0 in (packed.batch, *packed.longest, q.shape[1]):
        results = [device.tensor(np.zeros(tuple(array.shape), dtype)) for array in (q, k, v)]
        if return_dsinks:
            results.append(device.tensor(np.zeros(packed.checked.sinks.shape, np.float32)))
    else:
        tensors = [to_device(device, array) for array in arrays]
        if is_sixteen_bits(dtype) and not device.sixteen_bits:
            tensors = [tensor.astype(FLOAT32, copy=False) for tensor in tensors]
        labels = ("grad_out", "q", "k", "v", "out", "lse")
        check_bindings(name, device, dict(zip(labels, tensors, strict=True)))
        g, q4, k4, v4, o, sums = tensors
        lengths = zip((q4, k4, v4), (packed.longest[0], packed.longest[1], packed.longest[1]), strict=True)
        views = [_view(tensor, packed.batch, rows) for tensor, rows in lengths]
        # delta is a row's own, so for it all sequences are one.
        sums = backward.paired(device, sums, grad_lse)
        views += [*(t.transpose((1, 0, 2))[None] for t in (g, o)), sums[None], None, None]
        totals = (q4.shape[0], k4.shape[0])
        rows = tuple((total, total == covered) for total, covered in zip(totals, packed.covered, strict=True))
        terms = BackwardTerms(packed.checked.causal, packed.scale, 0, packed.checked.facts(), rows)
        *results, stats = backward.attention_gradients(device, views, terms, packed.checked)
        results = [result.astype(dtype, copy=False).transpose((1, 0, 2)).contiguous() for result in results]
        if return_dsinks:
            results.append(sinks_gradient(device, stats[:, :, : packed.covered[0]].contiguous(), packed.checked.sinks))
    return tuple(finish(device, result, *arrays, grad_lse) for result in results)


def _view(tensor: Tensor, batch: int, rows: int) -> Tensor:
    """``(total, H, D)`` as ``(B, H, rows, D)`` at the first row: what a kernel adds a sequence's first row to."""
    row, head, last = tensor._steps
    shape = (batch, tensor.shape[1], rows, tensor.shape[2])
    return Tensor(tensor._storage, shape, tensor.dtype, (0, head, row, last), tensor._offset)


def _fill_rest(device: Device, o: Tensor, lse: Tensor, covered: int) -> None:
    """Write what rows get that no sequence covers."""
    total, heads, width = o.shape
    if covered == total or not heads:
        return
    size = o.dtype.itemsize * heads * width
    device.runtime.write(o._storage.buffer, np.zeros((total - covered) * size, np.uint8), covered * size)
    rest = np.full(total - covered, -np.inf, np.float32)
    for head in range(heads):
        device.runtime.write(lse._storage.buffer, rest, 4 * (head * total + covered))
