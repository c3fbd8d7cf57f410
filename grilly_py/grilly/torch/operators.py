"""The operators ``grilly::attention`` and ``grilly::attention_backward`` of ``torch.library``.

On four-axis CPU tensors and checked numbers; `attention.py` and `sdpa.py` bring calls to this form. What the CPU
runs is `attend` and `gradients`; tracing uses the fake kernels, which give shapes alone.
"""

# No "from __future__ import annotations": torch.library reads the schema from the annotations themselves.
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import torch

from ..compute.backend import default_backend
from .arrays import array_of, tensor_of

# torch.library knows Optional[X]; ruff would write X | None.
_Array = Optional[torch.Tensor]  # noqa: UP045
_Name = Optional[str]  # noqa: UP045
_Int = Optional[int]  # noqa: UP045

#: Finite values of an additive mask are raised to this: to grilly a dtype's lowest number says "never".
LOWEST = np.float32(-1e38)
#: In rows of nothing above this, scores are lost beside the mask, and all keys at the row's maximum count alike, as in
#: PyTorch.
_LOST = np.float32(-1e15)
#: Rows of nothing above this are moved up, which leaves their weights as they are: a log-sum-exp beside such numbers
#: keeps too few bits for backward.
_LOW = np.float32(-1e3)


def _options(
    mask: _Array, attn_bias: _Array, alibi_slopes: _Array, t5_table: _Array, sinks: _Array, prefix_len: _Array,
    q_segments: _Array, k_segments: _Array, seqlens_q: _Array, seqlens_k: _Array, block_map: _Array,
    dropout_seed: _Array, causal: bool, scale: float, softcap: float, left: _Int, right: _Int,
    t5_bidirectional: bool, t5_max_distance: int, block_size: Sequence[int], dropout_p: float, dropout_offset: int,
    lowest_is_never: bool,
) -> dict[str, Any]:  # fmt: skip
    """Keyword arguments of grilly's attention from the operators' own, which are all positional."""
    options: dict[str, Any] = {"causal": causal, "scale": scale}
    for name, array in (
        ("attn_bias", attn_bias), ("alibi_slopes", alibi_slopes), ("t5_table", t5_table), ("sinks", sinks),
        ("prefix_len", prefix_len), ("seqlens_q", seqlens_q), ("seqlens_k", seqlens_k), ("block_map", block_map),
    ):  # fmt: skip
        if array is not None:
            options[name] = array_of(array)
    if mask is not None:
        options["mask"] = array_of(mask)
    if not lowest_is_never:
        for name in ("mask", "attn_bias"):
            if name in options:
                options[name] = _added(options[name])
    if q_segments is not None and k_segments is not None:
        options["segment_ids"] = (array_of(q_segments), array_of(k_segments))
    if softcap:
        options["softcap"] = softcap
    if left is not None or right is not None:
        options["window_size"] = (left, right)
    if t5_table is not None:
        options.update(t5_bidirectional=t5_bidirectional, t5_max_distance=t5_max_distance)
    if block_map is not None:
        options["block_size"] = tuple(block_size)
    if dropout_p:
        seed = 0 if dropout_seed is None else int(dropout_seed) % 2**64
        options.update(dropout_p=dropout_p, dropout_seed=seed, dropout_offset=dropout_offset)
    return options


def _added(mask: np.ndarray) -> np.ndarray:
    """A mask as it is, or an additive one as float32 whose finite values all count as numbers."""
    if mask.dtype == np.bool_:
        return mask
    with np.errstate(over="ignore"):
        mask = mask.astype(np.float32, copy=False)
    if not (mask < _LOW).any():
        return mask
    top = mask.max(axis=-1, keepdims=True)
    top = np.where((top < _LOW) & (top > _LOST), top, np.float32(0))
    return np.where(np.isneginf(mask), mask, np.maximum(mask - top, LOWEST))


def _keys_alike(mask: np.ndarray, keys: int) -> np.ndarray | None:
    """For each row of an additive mask by how many keys its weight is shared where scores are lost; 1 elsewhere.

    None where all are 1. The log-sum-exp of such a row has no room for the logarithm of that number, so backward's
    weights are so many times too large; gradients are linear in them and in the output's gradient.
    """
    if mask.dtype == np.bool_ or mask.size == 0:
        return None
    top = mask.max(axis=-1, keepdims=True)
    lost = np.isfinite(top) & (top <= _LOST)
    if not lost.any():
        return None
    count = (mask == top).sum(axis=-1, keepdims=True) * max(keys // mask.shape[-1], 1)
    return np.where(lost, count, 1).astype(np.float32)


@torch.library.custom_op("grilly::attention", mutates_args=(), device_types="cpu")
def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    mask: _Array, attn_bias: _Array, alibi_slopes: _Array, t5_table: _Array, sinks: _Array, prefix_len: _Array,
    q_segments: _Array, k_segments: _Array, seqlens_q: _Array, seqlens_k: _Array, block_map: _Array,
    dropout_seed: _Array, causal: bool, scale: float, softcap: float, left: _Int, right: _Int,
    t5_bidirectional: bool, t5_max_distance: int, block_size: Sequence[int], dropout_p: float, dropout_offset: int,
    lowest_is_never: bool, kernel: _Name, precision: str,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Output ``(B, H, Sq, Dv)`` and log-sum-exp ``(B, H, Sq)`` float32 of attention on ``(B, H, S, D)``."""
    options = _options(
        mask, attn_bias, alibi_slopes, t5_table, sinks, prefix_len, q_segments, k_segments, seqlens_q, seqlens_k,
        block_map, dropout_seed, causal, scale, softcap, left, right, t5_bidirectional, t5_max_distance, block_size,
        dropout_p, dropout_offset, lowest_is_never,
    )  # fmt: skip
    out, lse = default_backend().attention.flash_attention2(
        array_of(q), array_of(k), array_of(v), return_lse=True, kernel=kernel, precision=precision, **options
    )
    return tensor_of(np.ascontiguousarray(out)), tensor_of(np.ascontiguousarray(lse))


@attend.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    rows = q.shape[:3]
    return q.new_empty((*rows, v.shape[3])), q.new_empty(rows, dtype=torch.float32)


@torch.library.custom_op("grilly::attention_backward", mutates_args=(), device_types="cpu")
def gradients(
    grad_out: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    mask: _Array, attn_bias: _Array, alibi_slopes: _Array, t5_table: _Array, sinks: _Array, prefix_len: _Array,
    q_segments: _Array, k_segments: _Array, seqlens_q: _Array, seqlens_k: _Array, block_map: _Array,
    dropout_seed: _Array, causal: bool, scale: float, softcap: float, left: _Int, right: _Int,
    t5_bidirectional: bool, t5_max_distance: int, block_size: Sequence[int], dropout_p: float, dropout_offset: int,
    lowest_is_never: bool, need_bias: bool, need_table: bool, need_sinks: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """The gradients of q, k, v, attn_bias, t5_table and sinks; one that is not needed has no elements."""
    options = _options(
        mask, attn_bias, alibi_slopes, t5_table, sinks, prefix_len, q_segments, k_segments, seqlens_q, seqlens_k,
        block_map, dropout_seed, causal, scale, softcap, left, right, t5_bidirectional, t5_max_distance, block_size,
        dropout_p, dropout_offset, lowest_is_never,
    )  # fmt: skip
    grad = array_of(grad_out)
    added = options.get("attn_bias", options.get("mask"))
    if not lowest_is_never and added is not None:
        alike = _keys_alike(added, k.shape[2])
        if alike is not None:
            grad = (grad.astype(np.float32) / alike).astype(grad.dtype)
    found = default_backend().attention.flash_attention2_backward(
        grad, *(array_of(tensor) for tensor in (q, k, v, out, lse)),
        return_dbias=need_bias, return_dsinks=need_sinks, return_dt5_table=need_table, **options,
    )  # fmt: skip
    grads = [tensor_of(np.ascontiguousarray(array)) for array in found[:3]]
    more = dict(zip([n for n, w in (("b", need_bias), ("s", need_sinks), ("t", need_table)) if w], found[3:],
                    strict=True))  # fmt: skip
    for name, given in (("b", attn_bias), ("t", t5_table), ("s", sinks)):
        array = more.get(name)
        grads.append(q.new_empty(0) if array is None else tensor_of(np.ascontiguousarray(array)).to(given.dtype))
    return tuple(grads)


@gradients.register_fake
def _(
    grad_out: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    *rest: Any,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    attn_bias, t5_table, sinks = rest[1], rest[3], rest[4]
    made = [tensor.new_empty(tensor.shape) for tensor in (q, k, v)]
    for given, needed in zip((attn_bias, t5_table, sinks), rest[-3:], strict=True):
        made.append(given.new_empty(given.shape) if needed else q.new_empty(0))
    return tuple(made)


_DIFFERENTIABLE = ("q", "k", "v", "attn_bias", "t5_table", "sinks")
# Places among the arguments of `attend`.
_ARGUMENTS = tuple(argument.name for argument in attend._opoverload._schema.arguments)
_BIAS, _TABLE, _SINKS = (_ARGUMENTS.index(name) for name in ("attn_bias", "t5_table", "sinks"))
_ARRAYS = _ARGUMENTS.index("causal")  # what stands before are arrays
_TERMS = _ARGUMENTS.index("kernel")  # from here on what backward does not take


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    for name, needed in zip(_ARGUMENTS, ctx.needs_input_grad, strict=False):
        if needed and name not in _DIFFERENTIABLE:
            raise RuntimeError(
                f"attention: {name} requires grad, which grilly does not find for it; give {name}.detach()"
                + (", or give it as attn_bias" if name == "mask" else "")
            )
    ctx.save_for_backward(*inputs[:_ARRAYS], *output)
    ctx.mark_non_differentiable(output[1])
    ctx.terms = inputs[_ARRAYS:_TERMS]


def _backward(ctx: Any, grad_out: torch.Tensor, grad_lse: Any) -> tuple[Any, ...]:
    *arrays, out, lse = ctx.saved_tensors
    needs = ctx.needs_input_grad
    found = gradients(
        grad_out.contiguous(), out, lse, *arrays, *ctx.terms, needs[_BIAS], needs[_TABLE], needs[_SINKS]
    )
    grads: list[Any] = [None] * len(_ARGUMENTS)
    for place, gradient in zip((0, 1, 2, _BIAS, _TABLE, _SINKS), found, strict=True):
        if needs[place]:
            grads[place] = gradient
    return tuple(grads)


attend.register_autograd(_backward, setup_context=_keep)
