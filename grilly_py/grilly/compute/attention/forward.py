"""Attention: the call that all public functions of exact attention come to."""

from __future__ import annotations

import numpy as np

from ..device.arguments import check_backend, check_precision, four_axes, to_device
from ..device.caches import Kept
from ..device.device import Device
from ..device.record import Ready, key_of
from ..device.sixteen_bits import widens
from ..device.tensor import Tensor
from . import stream, stream_plan
from .added import WideBias
from .call import NOTHING, Terms
from .checks import check_causal, check_kernel, check_mask, check_qkv, check_scale
from .operands import FLOAT32
from .options import OFF, Options, prepare, scalar_key
from .record import prepared

#: Plans of calls on Tensors without arrays among their options, by the arguments themselves. Only calls that passed
#: their checks have one, so a call like an earlier one needs none.
REPEATED: Kept[tuple, Ready] = Kept("repeated calls of attention", 1024)
_SCALES = (type(None), float, int)


@widens("q", "k", "v")
def flash_attention(
    operation: str,
    device: Device,
    q,
    k,
    v,
    *,
    mask=None,
    causal=False,
    scale=None,
    return_lse=False,
    kernel=None,
    precision="highest",
    shift=None,
    options=OFF,
):
    """Check the arguments, attend, and return what users get. The public functions document the arguments.

    ``shift`` is where query 0 stands among the keys, by default Sk - Sq.
    """
    device.check_open()
    high = check_precision(operation, precision)
    causal, return_lse = check_causal(operation, causal), bool(return_lse)
    check_kernel(operation, kernel)
    check_backend(operation, device, q, k, v, mask)
    key = None
    if type(q) is type(k) is type(v) is Tensor and len(q.shape) == 4 and (mask is None or type(mask) is Tensor):
        scalars = () if options is OFF else scalar_key(options)
        if scalars is not None and scale.__class__ in _SCALES:
            key = key_of(device, (scalars, causal, scale, return_lse, kernel, high, shift), (q, k, v, mask, None, None))
            ready = device.caches[REPEATED].get(key)
            if ready is not None:
                results = ready.run((q, k, v, mask, None, None))
                device.runtime.flush()
                return tuple(results) if return_lse else results[0]
    if options is not OFF:
        check_backend(operation, device, *vars(options).values())
    rank = check_qkv(operation, q, k, v)
    q_shape, k_shape = ((1,) * (4 - rank) + tuple(a.shape) for a in (q, k))
    scale = check_scale(operation, scale, q_shape[3])
    full = (*q_shape[:3], k_shape[2])
    if mask is not None:
        mask = check_mask(operation, mask, full)
    checked = None if options is OFF else prepare(operation, options, full, causal, _bias_dtype(q, options))
    place = full[3] - full[2] if shift is None else shift
    if stream_plan.needed(device, q, k, v, mask, checked):
        part = stream.Part(operation, causal, scale, kernel, high, checked, place)
        return stream.attend(part, device, q, k, v, mask, return_lse)
    given = (q, k, v)
    tensors: list = [four_axes(to_device(device, a)) for a in given]
    for array in (mask, None if checked is None else checked.bias):
        if array is not None:
            array = (array if isinstance(array, Tensor) else device.tensor(array)).broadcast_to(full)
        tensors.append(array)
    options_ = NOTHING if checked is None else checked.facts()
    causal = causal if checked is None else checked.causal
    terms = Terms(causal, scale, return_lse, kernel, high, place, options_)
    try:
        found = prepared(device, tensors, terms)
    except WideBias:
        tensors[4] = options.attn_bias.astype(FLOAT32).broadcast_to(full)
        found = prepared(device, tensors, terms)
    if key is not None and not options_.contents and all(t is a for t, a in zip(tensors, given, strict=False)):
        device.caches[REPEATED].keep(key, found.ready)
    o, lse = found.run(tensors, found.words_of(device, checked))
    shape = (*tuple(q.shape)[:-1], v.shape[-1])
    o = o.reshape(shape) if rank != 4 else o
    results = [o] if lse is None else [o, lse.reshape(shape[:-1])]
    if any(isinstance(a, Tensor) for a in given):
        device.runtime.flush()
    else:
        results = [r.numpy() for r in results]
    return results[0] if lse is None else tuple(results)


def _bias_dtype(q, options: Options) -> np.dtype:
    """What a bias may stay, where the kernel can read it: q's dtype, if both are Tensors."""
    return q.dtype if isinstance(q, Tensor) and isinstance(options.attn_bias, Tensor) else FLOAT32
