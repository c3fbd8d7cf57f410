"""Attention over packed sequences: sequences of many lengths, one after the other in the same arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..device.arguments import to_device
from ..device.arrays import Unpack
from ..device.autocast import cast
from ..device.caches import DeviceCache
from ..device.call import call
from ..device.device import Device
from ..device.tape import OPEN, as_one, refuse_wanted, wanted
from ..device.tensor import Tensor
from ..random import with_seed
from . import backward
from .backward_plan import BackwardTerms
from .backward_sums import read_gradient, sinks_gradient
from .call import AttentionTerms
from .checks import check_gradient_dims, take_terms
from .executables import AttentionExecutable, attention_executable
from .foreign import unknown
from .function_gradients import Read, fixed
from .keywords import PackedGradientKeywords, PackedKeywords, PackedOptionKeywords
from .options import Options, as_they_are, scalar_key, tensors_read
from .parameters import parameters_of
from .varlen_checks import Packed, Sequences, check_arrays, check_bindings, check_packed, sequences_of

NAME = "flash_attention_varlen"
#: Calls whose options have no arrays, by all but where sequences begin.
CALLS: DeviceCache[tuple, PackedExecutable] = DeviceCache("calls of flash_attention_varlen", 256)
_SCALES = (type(None), float, int)
_OPTIONS = PackedOptionKeywords.__annotations__.keys()


class _MoreKeywords(PackedGradientKeywords, total=False):
    reads: Sequence[Read]


class PackedExecutable(NamedTuple):
    """The plan of a call on Tensors, without the places of its sequences."""

    attention: AttentionExecutable

    def run(self, inputs: Sequence[Tensor], live: tuple[Sequences]) -> list[Tensor]:
        """Record the dispatches for q, k, v and sequences; returns o (total, H, Dv) and lse (H, total)."""
        samples, device, made = live[0].samples, self.attention.device, self.attention.parameters
        parameters = parameters_of(device, made.template, ((0, samples),), {}, samples.size)
        results = self.attention.run((*inputs, None, None, parameters))
        _fill_rest(device, *results, live[0].covered[0])
        return results


def flash_attention_varlen(
    device: Device, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, return_lse=False,
    **options: Unpack[PackedKeywords],
):  # fmt: skip
    """``grilly.functional.flash_attention_varlen`` on a device; documented there."""
    device.check_open()
    causal, scale, kernel, high = take_terms(NAME, options)
    if not options.get("dropout_offset"):
        options.pop("dropout_offset", None)  # else it would go before what is drawn
    given = _options(NAME, with_seed(device, options))
    starts, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
    if OPEN.tapes:
        refuse_wanted(f"{NAME} by alibi_slopes", "write them as a part of score_mod", given.alibi_slopes)
        read = tensors_read(NAME, given)
        kept = as_they_are(given)
        if wanted(q, k, v, given.sinks, *read):
            check_arrays(NAME, q, k, v)
            check_gradient_dims(NAME, q.shape[2], v.shape[2])
            kept = fixed(NAME, kept)
        asked = {"causal": causal, "scale": scale, "kernel": kernel, "precision": "high" if high else "highest",
                 **{name: getattr(kept, name) for name in _OPTIONS}}  # fmt: skip
        starts = tuple(value if isinstance(value, Tensor) else np.array(value) for value in starts)  # as they are now
        q, k, v = cast(CALLS, (q, k, v), 3)
        found = as_one(
            flash_attention_varlen, ((*starts, *longest), asked), (q, k, v, given.sinks, *read),
            lambda: flash_attention_varlen(device, q, k, v, *starts, *longest, return_lse=True, **asked),
        )  # fmt: skip
        return tuple(found) if return_lse else found[0]
    static, live = None, ()
    if type(q) is type(k) is type(v) is Tensor and len(q.shape) == len(k.shape) == 3 and scale.__class__ in _SCALES:
        scalars = scalar_key(given)
        if scalars is not None:
            sequences = sequences_of(NAME, starts, longest, (q.shape[0], k.shape[0]))
            static = (scalars, causal, scale, kernel, high, len(sequences.samples), sequences.longest)
            live = (sequences,)

    def record(*arrays):
        packed = check_packed(NAME, *arrays, starts, longest, causal, scale, given)
        return _attend(device, arrays, packed, kernel, high)

    found = call(device, CALLS, static, (q, k, v), live=live, record=record, floats=3, results=1 + bool(return_lse),
                 narrow=1)  # fmt: skip
    return tuple(found) if return_lse else found[0]


def _attend(
    device: Device, given: tuple, packed: Packed, kernel: str | None, high: bool
) -> tuple[list[Tensor], PackedExecutable | None]:
    """Record a checked call: o and lse, and what serves all calls with this key."""
    tensors = [to_device(device, array) for array in given]
    q, _, v = tensors
    total, heads, _ = q.shape
    batch, (longest_q, longest_k), checked = packed.batch, packed.longest, packed.checked
    made = {"the output": total * heads * v.shape[2] * q.dtype.itemsize, "the log-sum-exp": 4 * heads * total}
    check_bindings(NAME, device, dict(zip("qkv", tensors, strict=True)), made)
    views = [_view(t, batch, n) for t, n in zip(tensors, (longest_q, longest_k, longest_k), strict=True)]
    shift = longest_k - longest_q
    terms = AttentionTerms(checked.causal, packed.scale, True, kernel, high, shift, checked.summary(), packed=total)
    found = attention_executable(device, (*views, None, None), terms)
    assert found is not None, "a bias of 16 bits"
    results = found.run((*views, None, None, found.parameters_of(device, checked)))
    _fill_rest(device, *results, packed.covered[0])
    serves = found.parameters is not None and len(checked.arrays) == 1 and not checked.live
    serves = serves and all(t is a for t, a in zip(tensors, given, strict=True))
    return results, PackedExecutable(found) if serves else None


def flash_attention_varlen_backward(
    device: Device, grad_out, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
    **options: Unpack[_MoreKeywords],
):  # fmt: skip
    """``grilly.functional.flash_attention_varlen_backward`` on a device; documented there.

    ``reads`` are of the score function: for each the result has at last the gradient of the tensor by that read alone.
    """
    name = "flash_attention_varlen_backward"
    device.check_open()
    causal, scale = bool(options.pop("causal", False)), options.pop("scale", None)
    dsinks, grad_lse = options.pop("return_dsinks", False), options.pop("grad_lse", None)
    reads = options.pop("reads", ())
    given = _options(name, options)
    starts, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)

    def record(q, k, v, grad_out, out, lse):
        packed = check_packed(name, q, k, v, starts, longest, causal, scale, given)
        check_gradient_dims(name, q.shape[2], v.shape[2])
        backward.with_derivatives(packed.checked, given)
        shape = (*q.shape[:2], v.shape[2])
        backward.check_results(name, q, shape, (q.shape[1], q.shape[0]), grad_out, out, lse, grad_lse)
        if dsinks and given.sinks is None:
            raise ValueError(f"{name}: the gradient of sinks is asked for, which the call lacks; give sinks")
        arrays = {"q": q, "k": k, "v": v, "grad_out": grad_out, "out": out, "lse": lse}
        tensors = tensors_read(name, given)
        sought = [(read, tensors[read.tensor]) for read in reads]
        return _gradients(device, name, arrays, grad_lse, packed, dsinks, sought), None

    arrays = (q, k, v, grad_out, out, lse)
    every = (*arrays, grad_lse)
    found = backward.noted(
        name, CALLS, every, given,
        lambda: call(device, CALLS, None, arrays, record=record, floats=5, narrow=3,
                     results=3 + bool(dsinks) + len(reads), like=every),
    )  # fmt: skip
    return tuple(found)


def _gradients(
    device: Device, name: str, arrays: dict, grad_lse, packed: Packed, dsinks: bool, reads: list[tuple[Read, Tensor]]
) -> list[Tensor]:
    """Record the gradients of q, k, v, if asked for sinks, and by ``reads``, each with the tensor that it is of.

    ``arrays`` are checked, by name.
    """
    heads, dtype, checked = arrays["q"].shape[1], np.dtype(arrays["q"].dtype), packed.checked
    if 0 in (packed.batch, *packed.longest, heads):
        results = [device.tensor(np.zeros(tuple(arrays[side].shape), dtype)) for side in "qkv"]
        if dsinks:
            results.append(device.tensor(np.zeros(checked.sinks.shape, np.float32)))
        return results + [device.tensor(np.zeros(tensor.shape, tensor.dtype)) for _, tensor in reads]
    sent = {label: to_device(device, array) for label, array in arrays.items()}
    check_bindings(name, device, sent)
    q, k, v, g, o, lse = sent.values()
    longest_q, longest_k = packed.longest
    views = [_view(t, packed.batch, n) for t, n in ((q, longest_q), (k, longest_k), (v, longest_k))]
    # delta is a row's own, so for it all sequences are one.
    sums = backward.paired(device, lse, grad_lse)
    views += [*(t.transpose((1, 0, 2))[None] for t in (g, o)), sums[None], None, None]
    totals = (q.shape[0], k.shape[0])
    rows = tuple((total, total == covered) for total, covered in zip(totals, packed.covered, strict=True))
    terms = BackwardTerms(checked.causal, packed.scale, 0, checked.summary(), rows)
    *results, stats = backward.attention_gradients(device, views, terms, checked)
    results = [result.astype(dtype, copy=False).transpose((1, 0, 2)).contiguous() for result in results]
    if dsinks:
        results.append(sinks_gradient(device, stats[:, :, : packed.covered[0]].contiguous(), checked.sinks))
    return results + [read_gradient(device, views, stats, terms, checked, read, tensor) for read, tensor in reads]


def _options(name: str, given: dict) -> Options:
    """The options among keyword arguments. Raises TypeError for a name that is none of packed sequences."""
    if not given.keys() <= _OPTIONS:
        raise unknown(name, given.keys() - _OPTIONS)
    return Options(**given)


def _view(tensor: Tensor, batch: int, rows: int) -> Tensor:
    """``(total, H, D)`` as ``(B, H, rows, D)``, every sequence at row 0: kernels add its first row."""
    row, head, last = tensor._strides
    shape = (batch, tensor.shape[1], rows, tensor.shape[2])
    return Tensor(tensor._storage, shape, tensor.dtype, (0, head, row, last), tensor._offset)


def _fill_rest(device: Device, o: Tensor, lse: Tensor, covered: int) -> None:
    """Write zeros to o and minus infinity to lse for the rows after the last sequence."""
    total, heads, width = o.shape
    if covered == total or not heads:
        return
    size = o.dtype.itemsize * heads * width
    device.runtime.write(o._storage.buffer, np.zeros((total - covered) * size, np.uint8), covered * size)
    rest = np.full(total - covered, -np.inf, np.float32)
    for head in range(heads):
        device.runtime.write(lse._storage.buffer, rest, 4 * (head * total + covered))
