"""The gradients of attention: argument checks, and the call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import OutOfDeviceMemoryError, UnsupportedError
from ...registry import Choice
from ..arrays.shapes import stack
from ..device.arguments import FLOAT32, check_backend, check_float, four_axes, to_device
from ..device.caches import Kept
from ..device.device import Device
from ..device.dtypes import is_sixteen_bits
from ..device.pace import ready_plan
from ..device.plan import Layout
from ..device.record import Ready, key_of, placed
from ..device.tensor import Tensor
from . import backward_stored
from .backward_plan import BackwardCall, BackwardTerms, plan
from .backward_sums import bias_gradient, sinks_gradient, t5_gradient
from .checks import check_mask, check_qkv, check_scale
from .options import OFF, CheckedOptions, prepare, scalar_key
from .record import Prepared

NAME = "flash_attention2_backward"
#: Plans of gradients, by what they depend on.
PLANS: Kept[tuple, Prepared] = Kept("plans of gradients", 512)
#: Those of calls on Tensors without arrays among their options, by the arguments themselves.
REPEATED: Kept[tuple, Ready] = Kept("repeated calls for gradients", 512)
_SCALES = (type(None), float, int)


def check_results(
    operation: str, q, shape: tuple[int, ...], lse_shape: tuple[int, ...], grad_out, out, lse, grad_lse
) -> None:
    """Check what forward gave, and the gradients of its output, which has ``shape`` and q's dtype, and of lse."""
    check_float(operation, q=q, grad_out=grad_out, out=out)
    for name, array in (("grad_out", grad_out), ("out", out)):
        if tuple(array.shape) != shape:
            raise ValueError(f"{operation}: {name} has shape {tuple(array.shape)}; expected the output's, {shape}")
    dtype = getattr(lse, "dtype", None)
    if dtype != FLOAT32:
        raise TypeError(
            f"{operation}: lse is {type(lse).__name__ if dtype is None else dtype}; expected the float32 array that "
            "attention gives with return_lse=True"
        )
    if grad_lse is not None and getattr(grad_lse, "dtype", None) != FLOAT32:
        raise TypeError(
            f"{operation}: grad_lse is {getattr(grad_lse, 'dtype', type(grad_lse).__name__)}; expected float32, as lse"
        )
    for name, array in (("lse", lse), ("grad_lse", grad_lse)):
        if array is not None and tuple(array.shape) != lse_shape:
            raise ValueError(f"{operation}: {name} has shape {tuple(array.shape)}; expected {lse_shape}")


def paired(device: Device, lse: Tensor, grad_lse) -> Tensor:
    """lse as it is, or with each number's gradient behind it on a last axis."""
    return lse if grad_lse is None else stack([lse, to_device(device, grad_lse)], axis=-1)


def flash_attention_backward(
    device: Device,
    grad_out,
    q,
    k,
    v,
    out,
    lse,
    *,
    mask=None,
    causal=False,
    scale=None,
    return_dbias=False,
    return_dsinks=False,
    return_dt5_table=False,
    grad_lse=None,
    options=OFF,
):
    """Check the arguments, find the gradients, and return what users get.

    ``grilly.functional.flash_attention2_backward`` documents the arguments.
    """
    device.check_open()
    arrays, causal = (grad_out, q, k, v, out, lse), bool(causal)
    check_backend(NAME, device, *arrays, mask, grad_lse)
    wanted = {"attn_bias": return_dbias, "sinks": return_dsinks, "t5_table": return_dt5_table}
    key = None
    if type(grad_out) is type(q) is type(k) is type(v) is type(out) is type(lse) is Tensor and len(q.shape) == 4:
        scalars = () if options is OFF else scalar_key(options)
        plain = not (return_dbias or return_dsinks or return_dt5_table) and scale.__class__ in _SCALES
        plain = plain and grad_lse is None
        if plain and scalars is not None and (mask is None or type(mask) is Tensor):
            tensors = (q, k, v, grad_out, out, lse, mask, None, None)
            key = key_of(device, (scalars, causal, scale), tensors)
            results = _again(device, key, tensors)
            if results is not None:
                device.runtime.flush()
                return tuple(results[:3])
    if options is not OFF:
        check_backend(NAME, device, *vars(options).values())
    rank = check_qkv(NAME, q, k, v)
    shape = (*tuple(q.shape)[:-1], v.shape[-1])
    check_results(NAME, q, shape, shape[:-1], grad_out, out, lse, grad_lse)
    for name, asked in wanted.items():
        if asked and getattr(options, name) is None:
            raise ValueError(f"{NAME}: the gradient of {name} is asked for, which the call lacks; give {name}")
    q_shape, k_shape = ((1,) * (4 - rank) + tuple(a.shape) for a in (q, k))
    scale = check_scale(NAME, scale, q_shape[3])
    full = (*q_shape[:3], k_shape[2])
    if mask is not None:
        mask = check_mask(NAME, mask, full)
    checked = None if options is OFF else prepare(NAME, options, full, causal)
    terms = BackwardTerms(causal, scale, full[3] - full[2])
    if checked is not None:
        terms = BackwardTerms(checked.causal, scale, terms.shift + checked.right, checked.facts())
    dtype = np.dtype(q.dtype)
    shapes = [tuple(array.shape) for array in (q, k, v)]
    # As checked: the caller's may be lists, or of another type.
    given = {"attn_bias": "bias", "sinks": "sinks", "t5_table": "t5_table"}
    more = {name: getattr(checked, given[name]) for name, asked in wanted.items() if asked}
    if 0 in full:
        results = [device.tensor(np.zeros(shape, dtype)) for shape in shapes]
        results += [device.tensor(np.zeros(tuple(array.shape), np.float32)) for array in more.values()]
    else:
        sent = [to_device(device, array) for array in (q, k, v, grad_out, out, lse)]
        unchanged = all(a is b for a, b in zip(sent, (q, k, v, grad_out, out, lse), strict=True))
        if is_sixteen_bits(dtype) and not device.sixteen_bits:
            sent, unchanged = [tensor.astype(FLOAT32, copy=False) for tensor in sent], False
        sums = paired(device, sent[5], grad_lse)
        call: list = [*(four_axes(tensor) for tensor in sent[:5]), sums[(None,) * (4 - rank)]]
        for array in (mask, None if checked is None else checked.bias):
            if array is not None:
                array = (array if isinstance(array, Tensor) else device.tensor(array)).broadcast_to(full)
            call.append(array)
        found, (*results, stats) = _recorded(device, call, terms, checked)
        narrow = results[0].dtype == results[1].dtype == dtype
        if key is not None and unchanged and narrow and not terms.options.contents:
            device.caches[REPEATED].keep(key, found.ready)
        results = [
            result.astype(dtype, copy=False).reshape(shape) for result, shape in zip(results, shapes, strict=True)
        ]
        if return_dbias:
            results.append(bias_gradient(device, call, stats, terms, checked, tuple(more["attn_bias"].shape)))
        if return_dsinks:
            results.append(sinks_gradient(device, stats, more["sinks"]))
        if return_dt5_table:
            results.append(t5_gradient(device, call, stats, terms, checked, tuple(more["t5_table"].shape)))
    if any(isinstance(array, Tensor) for array in (*arrays, grad_lse)):
        device.runtime.flush()
    else:
        results = [result.numpy() for result in results]
    return tuple(results)


def prepared(
    device: Device, tensors: Sequence[Tensor | None], terms: BackwardTerms, stores: bool = True
) -> Prepared:
    """The plan for checked tensors q, k, v, g, o, lse, mask and bias, the last two None where there are none.

    ``stores`` says that dS may be kept in memory.
    """
    key = key_of(device, (terms, stores), tensors)
    bias = tensors[7]
    if bias is not None and bias._offset:  # it stands among the words of the header
        key = (*key[:8], placed(bias))
    plans = device.caches[PLANS]
    found = plans.get(key)
    if found is None:
        layouts = (None if layout is None else Layout(*layout) for layout in key[1:])
        call = BackwardCall(*layouts, *terms)
        facts = device.facts if stores else backward_stored.without(device.facts)
        made, ready = ready_plan(device, lambda: plan(call, facts, device.registry), (*tensors, None))
        found = plans.keep(key, Prepared(ready, made.words))
    return found


def attention_gradients(
    device: Device, tensors: Sequence[Tensor | None], terms: BackwardTerms, checked: CheckedOptions | None
) -> list[Tensor]:
    """Record dq, dk, dv and the rows' stats of checked tensors, as ``prepared`` takes them."""
    return _recorded(device, tensors, terms, checked)[1]


def _recorded(
    device: Device, tensors: Sequence[Tensor | None], terms: BackwardTerms, checked: CheckedOptions | None
) -> tuple[Prepared, list[Tensor]]:
    """The plan that was recorded, and its results; where there is no room for dS, the plan that does without."""
    found = prepared(device, tensors, terms)
    words = found.words_of(device, checked)
    try:
        return found, found.run_all(tensors, words)
    except OutOfDeviceMemoryError:
        if not backward_stored.stores(found.ready.plan):
            raise
    found = prepared(device, tensors, terms, stores=False)
    return found, found.run_all(tensors, found.words_of(device, checked))


def _again(device: Device, key: tuple | None, tensors: Sequence[Tensor | None]) -> list[Tensor] | None:
    """The results of a call that was seen before; None of others, and where there is no room for dS any more."""
    ready = device.caches[REPEATED].get(key)
    if ready is None:
        return None
    try:
        return ready.run(tensors)
    except OutOfDeviceMemoryError:
        if not backward_stored.stores(ready.plan):
            raise
        device.caches[REPEATED].pop(key, None)
        return None


def gradients_by(
    device: Device, choice: Choice, tensors: Sequence[Tensor | None], terms: BackwardTerms
) -> list[Tensor]:
    """Record what one kernel gives: dq, or dk and dv; of tensors as ``prepared`` takes them, no options.

    A kernel that needs dS in memory gets it, whatever share of the memory that is: UnsupportedError where it cannot.
    """
    layouts = (Layout.of(tensor, device.facts) for tensor in tensors)
    reads = choice.variant.operation == backward_stored.OPERATION
    facts = backward_stored.with_room(device.facts) if reads else device.facts
    made = plan(BackwardCall(*layouts, *terms), facts, device.registry, [choice])
    if reads and not backward_stored.stores(made.plan):
        raise UnsupportedError(f"{choice.variant.name} was not run: dS of the call cannot be stored")
    return Ready(device, made.plan).run((*tensors, None))[:-1]
