"""Exact attention by checked keyword arguments: the one call below all public functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..device.arguments import check_backend, four_axes, to_device
from ..device.arrays import Unpack
from ..device.autocast import cast
from ..device.call import IN_PARTS, call
from ..device.device import Device
from ..device.tape import OPEN, as_one, noted_on, wanted
from ..device.tensor import Tensor
from ..structures import leaves
from . import stream, stream_plan
from .call import AttentionTerms, values_in_keys
from .checks import check_gradient_dims, check_mask, check_qkv, check_scale, take_terms
from .executables import AttentionExecutable, attention_executable
from .foreign import unknown
from .keywords import TermKeywords
from .operands import FLOAT32
from .options import OFF, Options, as_they_are, prepare, scalar_key, tensors_read
from .plan import planned

_SCALES = (type(None), float, int)
#: The options that are arrays which scores depend on.
ADDED_ARRAYS = ("attn_bias", "alibi_slopes", "t5_table", "sinks")


class NotedCall(NamedTuple):
    """A call of ``flash_attention`` as tapes note it.

    Its arrays are q, k, v, the mask, those of ADDED_ARRAYS, the tensors that its functions read, and those among the
    other options.

    Attributes
    ----------
    operation : str
    return_lse : bool
    shift : int or None
    options : Options
    terms : dict
        Of TermKeywords.
    """

    operation: str
    return_lse: bool
    shift: int | None
    options: Options
    terms: dict[str, Any]

    def run(self, device: Device, q, k, v, mask, options: Options, return_lse: bool):
        """``flash_attention`` with these arguments and arrays."""
        return flash_attention(self.operation, device, q, k, v, mask=mask, return_lse=return_lse, shift=self.shift,
                               options=options, **self.terms)  # fmt: skip


def flash_attention(
    operation: str, device: Device, q, k, v, *, mask=None, return_lse=False, shift=None, options=OFF,
    **terms: Unpack[TermKeywords],
):  # fmt: skip
    """Check the arguments, attend, and return what users get. The public functions document the arguments.

    ``shift`` is where query 0 stands among the keys, by default Sk - Sq.
    """
    if OPEN.tapes:
        asked = NotedCall(operation, bool(return_lse), shift, as_they_are(options), terms)
        arrays = (q, k, v, mask, *(getattr(options, name) for name in ADDED_ARRAYS))
        arrays += tensors_read(operation, options)
        arrays += tuple(leaf for name, value in vars(options).items() if name not in ADDED_ARRAYS
                        for _, leaf in leaves(value) if isinstance(leaf, Tensor))  # fmt: skip
        return _taped(device, asked, cast(planned, arrays, 3))
    causal, scale, kernel, high = take_terms(operation, terms)
    if terms:
        raise unknown(operation, terms)
    asked = (causal, scale, bool(return_lse), kernel, high, shift)
    scalars = () if options is OFF else scalar_key(options)
    static = None if scalars is None or scale.__class__ not in _SCALES else (scalars, values_in_keys(k, v), *asked)

    def record(q, k, v, mask, *_):
        return _attend(operation, device, (q, k, v), mask, AttentionTerms(*asked), options)

    found = call(
        device, planned, static, (q, k, v, mask, None, None), record=record, floats=3, results=2, narrow=1,
        like=(q, k, v),
    )  # fmt: skip
    return tuple(found) if return_lse else found[0]


def _taped(device: Device, asked: NotedCall, arrays: Sequence):
    """A call of which a gradient may be wanted: the log-sum-exp, which gradients are made of, is a result then."""
    q, k, v, mask, *_ = arrays
    if not wanted(*arrays):
        with noted_on(()):
            return asked.run(device, q, k, v, mask, asked.options, asked.return_lse)
    check_qkv(asked.operation, q, k, v)
    check_gradient_dims(asked.operation, q.shape[-1], v.shape[-1])
    found = IN_PARTS[flash_attention](device, asked, arrays)
    if found is None:
        found = as_one(flash_attention, asked, arrays,
                       lambda: asked.run(device, q, k, v, mask, asked.options, True))  # fmt: skip
    return found if asked.return_lse else found[0]


def _attend(
    operation: str, device: Device, given: tuple, mask, asked: AttentionTerms, options: Options
) -> tuple[list, AttentionExecutable | None]:
    """Check a call and record it: o and, if asked for, lse; and the plan, where it serves all calls with this key.

    ``shift`` and ``scale`` of ``asked`` are as they were given.
    """
    q, k, v = given
    check_backend(operation, device, q, k, v, mask)
    if options is not OFF:
        check_backend(operation, device, *vars(options).values())
    rank = check_qkv(operation, q, k, v)
    q_shape, k_shape = ((1,) * (4 - rank) + tuple(a.shape) for a in (q, k))
    full = (*q_shape[:3], k_shape[2])
    scale, shift = check_scale(operation, asked.scale, q_shape[3]), asked.shift
    shares = values_in_keys(k, v)
    terms = asked._replace(scale=scale, shift=full[3] - full[2] if shift is None else shift, values_in_keys=shares)
    if mask is not None:
        mask = check_mask(operation, mask, full)
    checked = None if options is OFF else prepare(operation, options, full, asked.causal, _bias_dtype(q, options))
    if stream_plan.needed(device, q, k, v, mask, checked):
        part = stream.Part(operation, asked.causal, scale, asked.kernel, asked.high, checked, terms.shift)
        return stream.attend(part, device, q, k, v, mask)[: 1 + asked.lse], None
    once = shares and not isinstance(v, Tensor)  # arrays of the host are sent once
    tensors = [four_axes(to_device(device, a)) for a in (given[:2] if once else given)]
    if once:
        tensors.append(tensors[1][..., : v.shape[-1]])
    tensors += [on_device(device, array, full) for array in (mask, None if checked is None else checked.bias)]
    if checked is not None:
        terms = terms._replace(causal=checked.causal, options=checked.summary())
    found = attention_executable(device, tensors, terms)
    if found is None:  # the kernel reads a float32 bias
        tensors[4] = options.attn_bias.astype(FLOAT32).broadcast_to(full)
        found = attention_executable(device, tensors, terms)
    assert found is not None, "a bias of 16 bits"
    serves = not terms.options.contents and all(t is a for t, a in zip(tensors, given, strict=False))
    results = found.run((*tensors, found.parameters_of(device, checked)))
    if rank != 4:
        shape = (*tuple(q.shape)[:-1], v.shape[-1])
        results = [result.reshape(shape[: rank - number]) for number, result in enumerate(results)]
    return results, found if serves else None


def on_device(device: Device, array, full: tuple[int, ...]) -> Tensor | None:
    """A checked mask or bias as a tensor broadcast to ``full``; None for None."""
    if array is None:
        return None
    return (array if isinstance(array, Tensor) else device.tensor(array)).broadcast_to(full)


def _bias_dtype(q, options: Options) -> np.dtype:
    """The dtype of a bias beside float32 for the kernel: q's, if both are Tensors."""
    return q.dtype if isinstance(q, Tensor) and isinstance(options.attn_bias, Tensor) else FLOAT32
