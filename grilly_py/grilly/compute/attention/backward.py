"""The gradients of attention: argument checks, and the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import OutOfDeviceMemoryError, UnsupportedError
from ...registry import Choice
from ..arrays.shapes import stack
from ..device.arguments import FLOAT32, check_backend, check_float, four_axes, to_device
from ..device.arrays import Unpack
from ..device.call import call
from ..device.device import Device, Throughputs
from ..device.executables import key_of, placed
from ..device.plan import Layout
from ..device.submission_budget import within_budget
from ..device.tape import OPEN, as_one
from ..device.tensor import Tensor
from . import backward_stored
from .backward_plan import BackwardCall, BackwardTerms, plan
from .backward_sums import bias_gradient, read_gradient, sinks_gradient, t5_gradient
from .checks import check_gradient_dims, check_mask, check_qkv, check_scale
from .executables import AttentionExecutable
from .foreign import unknown
from .forward import on_device
from .function_gradients import Read, derived
from .functions import traced
from .keywords import WantedKeywords
from .options import OFF, CheckedOptions, Options, prepare, scalar_key, tensors_read

NAME = "flash_attention2_backward"
_SCALES = (type(None), float, int)


def check_results(
    operation: str, q, shape: tuple[int, ...], lse_shape: tuple[int, ...], grad_out, out, lse, grad_lse
) -> None:
    """Check the results of forward and their gradients against ``shape`` of the output, ``lse_shape`` and q's dtype."""
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
    """lse, or lse and its gradient side by side on a new last axis."""
    return lse if grad_lse is None else stack([lse, to_device(device, grad_lse)], axis=-1)


def noted(operation: str, plan: Any, arrays: Sequence, options: Options, compute: Callable[[], list]) -> list:
    """What ``compute`` gives of arrays and options, as one operation of the tapes, which has no gradient itself."""
    if not OPEN.tapes:
        return compute()
    arrays = (*arrays, *vars(options).values(), *tensors_read(operation, options))
    found: list = as_one(plan, None, arrays, compute)
    return found


class _MoreKeywords(WantedKeywords, total=False):
    reads: Sequence[Read]


def flash_attention_backward(
    device: Device, grad_out, q, k, v, out, lse, *, mask=None, causal=False, scale=None, shift=None, options=OFF,
    **more: Unpack[_MoreKeywords],
):  # fmt: skip
    """Check the arguments, find the gradients, and return what users get.

    ``grilly.functional.flash_attention2_backward`` documents the arguments. ``shift`` is where query 0 stands among the
    keys, by default Sk - Sq. ``reads`` are of the score function: for each the result has at last the gradient of the
    tensor by that read alone.
    """
    causal, grad_lse, reads = bool(causal), more.pop("grad_lse", None), more.pop("reads", ())
    asked = (
        ("attn_bias", more.pop("return_dbias", False)), ("sinks", more.pop("return_dsinks", False)),
        ("t5_table", more.pop("return_dt5_table", False)),
    )  # fmt: skip
    if more:
        raise unknown(NAME, more)
    wanted = [name for name, is_asked in asked if is_asked]
    static = None
    if not wanted and grad_lse is None and scale.__class__ in _SCALES:
        scalars = () if options is OFF else scalar_key(options)
        static = None if scalars is None else (scalars, causal, scale, shift)

    def record(*arrays):
        *arrays, mask, _, _ = arrays
        check_backend(NAME, device, *arrays, mask, grad_lse)
        if options is not OFF:
            check_backend(NAME, device, *vars(options).values())
        return _gradients(device, _checked(arrays, mask, (causal, scale, shift), grad_lse, options, wanted), reads)

    found = noted(
        NAME, plan, (q, k, v, grad_out, out, lse, mask, grad_lse), options,
        lambda: call(
            device, plan, static, (q, k, v, grad_out, out, lse, mask, None, None), record=record, floats=5,
            results=3 + len(wanted) + len(reads), narrow=3, like=(grad_out, q, k, v, out, lse, grad_lse),
        ),
    )  # fmt: skip
    return tuple(found[: 3 + len(wanted) + len(reads)])


class _Checked(NamedTuple):
    """The checked arguments of a call.

    Attributes
    ----------
    arrays : tuple
        q, k, v, grad_out, out and lse, as they were given.
    rank : int
        Axes of q.
    full : tuple of int
        (B, H, Sq, Sk).
    mask, grad_lse : array or None
    terms : BackwardTerms
    checked : CheckedOptions or None
    wanted : dict
        Further arrays with gradients, by the names of their options.
    tensors : tuple of Tensor
        Those that the score function reads.
    """

    arrays: Sequence
    rank: int
    full: tuple[int, int, int, int]
    mask: Any
    grad_lse: Any
    terms: BackwardTerms
    checked: CheckedOptions | None
    wanted: dict[str, Any]
    tensors: tuple[Tensor, ...]

    def tensor_of(self, read: Read) -> Tensor:
        """The tensor of which an element is read."""
        return self.tensors[read.tensor]


def _checked(
    arrays: Sequence, mask, asked: tuple, grad_lse, options: Options, wanted: Sequence[str]
) -> _Checked:
    """Check a call's arguments against each other; ``asked`` are causal, scale and shift. Raises TypeError and
    ValueError."""
    causal, scale, shift = asked
    q, k, v, grad_out, out, lse = arrays
    rank = check_qkv(NAME, q, k, v)
    check_gradient_dims(NAME, q.shape[-1], v.shape[-1])
    shape = (*tuple(q.shape)[:-1], v.shape[-1])
    check_results(NAME, q, shape, shape[:-1], grad_out, out, lse, grad_lse)
    for name in wanted:
        if getattr(options, name) is None:
            raise ValueError(f"{NAME}: the gradient of {name} is asked for, which the call lacks; give {name}")
    q_shape, k_shape = ((1,) * (4 - rank) + tuple(a.shape) for a in (q, k))
    scale = check_scale(NAME, scale, q_shape[3])
    full = (*q_shape[:3], k_shape[2])
    if mask is not None:
        mask = check_mask(NAME, mask, full)
    checked = None if options is OFF else with_derivatives(prepare(NAME, options, full, causal), options)
    terms = BackwardTerms(causal, scale, full[3] - full[2] if shift is None else shift)
    if checked is not None:
        terms = BackwardTerms(checked.causal, scale, terms.shift + checked.right, checked.summary())
    # As checked: the caller's may be lists, or of another type.
    kept = {"attn_bias": "bias", "sinks": "sinks", "t5_table": "t5_table"}
    more = {name: getattr(checked, kept[name]) for name in wanted}
    read = () if options.score_mod is None else traced(NAME, "score_mod", options.score_mod).tensors
    return _Checked(arrays, rank, full, mask, grad_lse, terms, checked, more, read)


def with_derivatives(checked: CheckedOptions | None, options: Options) -> CheckedOptions | None:
    """What ``prepare`` gave of the options, for gradients: with the derivative of a score function."""
    if checked is not None and options.score_mod is not None:
        checked.functions = checked.functions._replace(score=derived(options.score_mod).own, derived=True)
    return checked


def _gradients(
    device: Device, call: _Checked, reads: Sequence[Read]
) -> tuple[list[Tensor], AttentionExecutable | None]:
    """Record the gradients of a call: of q, k and v, then those of ``call.wanted``, then those by ``reads``.

    Also gives the plan, where it serves all calls with this key.
    """
    terms, checked, wanted, given = call.terms, call.checked, call.wanted, call.arrays
    dtype, shapes = np.dtype(given[0].dtype), [tuple(array.shape) for array in given[:3]]
    if 0 in call.full:
        sizes = [(shape, dtype) for shape in shapes]
        sizes += [(tuple(array.shape), FLOAT32) for array in wanted.values()]
        sizes += [(tensor.shape, tensor.dtype) for tensor in map(call.tensor_of, reads)]
        return [device.tensor(np.zeros(*size)) for size in sizes], None
    sent = [to_device(device, array) for array in given]
    sums = paired(device, sent[5], call.grad_lse)
    tensors: list = [*(four_axes(tensor) for tensor in sent[:5]), sums[(None,) * (4 - call.rank)]]
    tensors += [on_device(device, a, call.full) for a in (call.mask, None if checked is None else checked.bias)]
    found, (*results, stats) = _recorded(device, tensors, terms, checked)
    serves = not terms.options.contents and all(a is b for a, b in zip(tensors[:5], given, strict=False))
    serves = serves and sent[5] is given[5] and results[0].dtype == results[1].dtype == dtype
    results = [result.astype(dtype, copy=False).reshape(shape) for result, shape in zip(results, shapes, strict=True)]
    if "attn_bias" in wanted:
        results.append(bias_gradient(device, tensors, stats, terms, checked, tuple(wanted["attn_bias"].shape)))
    if "sinks" in wanted:
        results.append(sinks_gradient(device, stats, wanted["sinks"]))
    if "t5_table" in wanted:
        results.append(t5_gradient(device, tensors, stats, terms, checked, tuple(wanted["t5_table"].shape)))
    for read in reads:
        results.append(read_gradient(device, tensors, stats, terms, checked, read, call.tensor_of(read)))
    return results, found if serves else None


def attention_executable(
    device: Device, tensors: Sequence[Tensor | None], terms: BackwardTerms, stores: bool = True
) -> AttentionExecutable:
    """The plan of a call for gradients, of the cache of ``plan`` or new.

    Parameters
    ----------
    tensors : sequence of Tensor or None
        q, k, v, g, o, lse, mask and bias, checked; None for a mask or a bias that the call lacks.
    terms : BackwardTerms
    stores : bool
        Whether dS may be stored in memory.
    """
    key = key_of(device, (terms, stores), tensors)
    bias = tensors[7]
    if bias is not None and bias._offset:  # it stands among the parameters of the header
        key = (*key[:8], placed(bias))
    plans = device.caches[plan]
    found = plans.get(key)
    if found is None:
        layouts = (None if layout is None else Layout(*layout) for layout in key[1:])
        asked = BackwardCall(*layouts, *terms)
        facts, registry = device.facts if stores else backward_stored.without(device.facts), device.registry

        def make(throughputs: Throughputs) -> AttentionExecutable:
            return AttentionExecutable(device, plan(asked, facts, registry, throughputs))

        found = plans.keep(key, within_budget(device, make, (*tensors, None)))
    return found


def attention_gradients(
    device: Device, tensors: Sequence[Tensor | None], terms: BackwardTerms, checked: CheckedOptions | None
) -> list[Tensor]:
    """Record dq, dk, dv and the rows' stats of checked tensors, as ``attention_executable`` takes them."""
    return _recorded(device, tensors, terms, checked)[1]


def _recorded(
    device: Device, tensors: Sequence[Tensor | None], terms: BackwardTerms, checked: CheckedOptions | None
) -> tuple[AttentionExecutable, list[Tensor]]:
    """The plan that was recorded, and its results; where there is no room for dS, the plan that does without."""
    found = attention_executable(device, tensors, terms)
    try:
        return found, found.run((*tensors, found.parameters_of(device, checked)))
    except OutOfDeviceMemoryError:
        if not backward_stored.stores(found.plan):
            raise
    found = attention_executable(device, tensors, terms, stores=False)
    return found, found.run((*tensors, found.parameters_of(device, checked)))


def gradients_by(
    device: Device, choice: Choice, tensors: Sequence[Tensor | None], terms: BackwardTerms,
    checked: CheckedOptions | None = None,
) -> list[Tensor]:  # fmt: skip
    """Record the results of one kernel: dq, or dk and dv. Tensors as of ``attention_executable``.

    A kernel that reads dS gets it, of any size. Raises UnsupportedError where memory has no room for it.
    """
    layouts = (Layout.of(tensor, device.facts) for tensor in tensors)
    reads = choice.variant.operation == backward_stored.OPERATION
    facts = backward_stored.with_room(device.facts) if reads else device.facts
    made = plan(BackwardCall(*layouts, *terms), facts, device.registry, device.throughputs, [choice])
    if reads and not backward_stored.stores(made.plan):
        raise UnsupportedError(f"{choice.variant.name} was not run: dS of the call cannot be stored")
    found = AttentionExecutable(device, made)
    return found.run((*tensors, found.parameters_of(device, checked)))[:-1]
