"""The operators ``grilly::attention`` and ``grilly::attention_backward`` of ``torch.library``.

On four-axis tensors of the CPU or of CUDA and checked numbers; `attention.py` and `sdpa.py` bring calls to this form.
What runs is `attend` and `gradients`; tracing uses the fake kernels, which give shapes alone.
"""

# No "from __future__ import annotations": torch.library reads the schema from the annotations themselves.
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import torch

from ..compute.backend import default_backend
from .places import Host, place_of

# torch.library knows Optional[X]; ruff would write X | None.
_Array = Optional[torch.Tensor]  # noqa: UP045
_Name = Optional[str]  # noqa: UP045
_Int = Optional[int]  # noqa: UP045


def _options(
    place: Host, mask: _Array, attn_bias: _Array, alibi_slopes: _Array, t5_table: _Array, sinks: _Array,
    prefix_len: _Array, q_segments: _Array, k_segments: _Array, seqlens_q: _Array, seqlens_k: _Array, block_map: _Array,
    dropout_seed: _Array, causal: bool, scale: float, softcap: float, left: _Int, right: _Int,
    t5_bidirectional: bool, t5_max_distance: int, block_size: Sequence[int], dropout_p: float, dropout_offset: int,
    lowest_is_never: bool,
) -> dict[str, Any]:  # fmt: skip
    """Keyword arguments of grilly's attention from the operators' own, which are all positional."""
    options: dict[str, Any] = {"causal": causal, "scale": scale}
    for name, array, how in (
        ("alibi_slopes", alibi_slopes, place.table), ("t5_table", t5_table, place.table), ("sinks", sinks, place.table),
        ("prefix_len", prefix_len, place.integers), ("seqlens_q", seqlens_q, place.integers),
        ("seqlens_k", seqlens_k, place.integers), ("block_map", block_map, place.integers),
    ):  # fmt: skip
        if array is not None:
            options[name] = how(array)
    for name, array, how in (("mask", mask, place.mask), ("attn_bias", attn_bias, place.table)):
        if array is not None:
            options[name] = how(array) if lowest_is_never else place.added(array)
    if q_segments is not None and k_segments is not None:
        options["segment_ids"] = (place.integers(q_segments), place.integers(k_segments))
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


@torch.library.custom_op("grilly::attention", mutates_args=(), device_types=("cpu", "cuda"))
def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    mask: _Array, attn_bias: _Array, alibi_slopes: _Array, t5_table: _Array, sinks: _Array, prefix_len: _Array,
    q_segments: _Array, k_segments: _Array, seqlens_q: _Array, seqlens_k: _Array, block_map: _Array,
    dropout_seed: _Array, causal: bool, scale: float, softcap: float, left: _Int, right: _Int,
    t5_bidirectional: bool, t5_max_distance: int, block_size: Sequence[int], dropout_p: float, dropout_offset: int,
    lowest_is_never: bool, kernel: _Name, precision: str,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Output ``(B, H, Sq, Dv)`` and log-sum-exp ``(B, H, Sq)`` float32 of attention on ``(B, H, S, D)``."""
    place = place_of("attention", q)
    options = _options(
        place, mask, attn_bias, alibi_slopes, t5_table, sinks, prefix_len, q_segments, k_segments, seqlens_q, seqlens_k,
        block_map, dropout_seed, causal, scale, softcap, left, right, t5_bidirectional, t5_max_distance, block_size,
        dropout_p, dropout_offset, lowest_is_never,
    )  # fmt: skip
    out, lse = default_backend().attention.flash_attention2(
        *map(place.array, (q, k, v)), return_lse=True, kernel=kernel, precision=precision, **options
    )
    return place.result(out), place.result(lse)


def attend_at_once(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, arguments: Sequence[Any], kernel: str | None, precision: str,
    return_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """What `attend` computes, without PyTorch's dispatcher, whose time is several times that of the call itself.

    ``arguments`` are the operator's from ``mask`` on, to ``lowest_is_never``.
    """
    place = place_of("attention", q)
    options = _options(place, *arguments)
    found = default_backend().attention.flash_attention2(
        *map(place.array, (q, k, v)), return_lse=return_lse, kernel=kernel, precision=precision, **options
    )
    return (place.result(found[0]), place.result(found[1])) if return_lse else (place.result(found), None)


def nobody_looks(*tensors: torch.Tensor | None) -> bool:
    """Whether nothing of PyTorch's asks to see the operator that a call on these tensors is: no gradient, no compiler,
    no transform, no mode, no subclass."""
    grad = torch.is_grad_enabled()
    for tensor in tensors:
        if tensor is not None and (
            grad and tensor.requires_grad
            or type(tensor) not in (torch.Tensor, torch.nn.Parameter)
            or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        ):
            return False
    return not torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack() == 0


@attend.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    rows = q.shape[:3]
    return q.new_empty((*rows, v.shape[3])), q.new_empty(rows, dtype=torch.float32)


@torch.library.custom_op("grilly::attention_backward", mutates_args=(), device_types=("cpu", "cuda"))
def gradients(
    grad_out: torch.Tensor, grad_lse: _Array, out: torch.Tensor, lse: torch.Tensor,
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    mask: _Array, attn_bias: _Array, alibi_slopes: _Array, t5_table: _Array, sinks: _Array, prefix_len: _Array,
    q_segments: _Array, k_segments: _Array, seqlens_q: _Array, seqlens_k: _Array, block_map: _Array,
    dropout_seed: _Array, causal: bool, scale: float, softcap: float, left: _Int, right: _Int,
    t5_bidirectional: bool, t5_max_distance: int, block_size: Sequence[int], dropout_p: float, dropout_offset: int,
    lowest_is_never: bool, need_bias: bool, need_table: bool, need_sinks: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """The gradients of q, k, v, attn_bias, t5_table and sinks; one that is not needed has no elements."""
    place = place_of("attention", q)
    options = _options(
        place, mask, attn_bias, alibi_slopes, t5_table, sinks, prefix_len, q_segments, k_segments, seqlens_q, seqlens_k,
        block_map, dropout_seed, causal, scale, softcap, left, right, t5_bidirectional, t5_max_distance, block_size,
        dropout_p, dropout_offset, lowest_is_never,
    )  # fmt: skip
    if not lowest_is_never:
        shared = mask if attn_bias is None else attn_bias
        grad_out = place.shared_out(grad_out, shared, k.shape[2])
        if grad_lse is not None:
            grad_lse = place.shared_out(grad_lse[..., None], shared, k.shape[2])[..., 0]
    found = default_backend().attention.flash_attention2_backward(
        *map(place.array, (grad_out, q, k, v, out, lse)),
        grad_lse=None if grad_lse is None else place.array(grad_lse.contiguous()),
        return_dbias=need_bias, return_dsinks=need_sinks, return_dt5_table=need_table, **options,
    )  # fmt: skip
    grads = [place.result(array) for array in found[:3]]
    more = dict(zip([n for n, w in (("b", need_bias), ("s", need_sinks), ("t", need_table)) if w], found[3:],
                    strict=True))  # fmt: skip
    for name, given in (("b", attn_bias), ("t", t5_table), ("s", sinks)):
        array = more.get(name)
        grads.append(q.new_empty(0) if array is None else place.result(array).to(given.dtype))
    return tuple(grads)


@gradients.register_fake
def _(
    grad_out: torch.Tensor, grad_lse: _Array, out: torch.Tensor, lse: torch.Tensor, q: torch.Tensor, k: torch.Tensor,
    v: torch.Tensor, *rest: Any,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    attn_bias, t5_table, sinks = rest[1], rest[3], rest[4]
    made = [tensor.new_empty(tensor.shape) for tensor in (q, k, v)]
    for given, needed in zip((attn_bias, t5_table, sinks), rest[-3:], strict=True):
        made.append(given.new_empty(given.shape) if needed else q.new_empty(0))
    return tuple(made)


def _no_second(ctx: Any, *grads: Any) -> Any:
    raise NotImplementedError(
        "grilly.torch: there are no gradients of gradients of attention (create_graph=True, double backward); use "
        "PyTorch's own function for them"
    )


gradients.register_autograd(_no_second)

_DIFFERENTIABLE = ("q", "k", "v", "attn_bias", "t5_table", "sinks")
# Places among the arguments of `attend`.
_ARGUMENTS = tuple(argument.name for argument in attend._opoverload._schema.arguments)
_BIAS, _TABLE, _SINKS = (_ARGUMENTS.index(name) for name in ("attn_bias", "t5_table", "sinks"))
_ARRAYS = _ARGUMENTS.index("causal")  # what stands before are arrays
_TERMS = _ARGUMENTS.index("kernel")  # from here on what backward does not take


def check_gradients(needed: Mapping[str, bool]) -> None:
    """Raise RuntimeError where grad is required of an argument that grilly finds none of."""
    for name in needed:
        if needed[name] and name not in _DIFFERENTIABLE:
            raise RuntimeError(
                f"attention: {name} requires grad, which grilly does not find for it; give {name}.detach()"
                + (", or give it as attn_bias" if name == "mask" else "")
            )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    check_gradients(dict(zip(_ARGUMENTS, ctx.needs_input_grad, strict=False)))
    ctx.save_for_backward(*inputs[:_ARRAYS], *output)
    ctx.set_materialize_grads(False)  # who uses the output alone, as nearly all do, has no gradient of the other
    ctx.terms = inputs[_ARRAYS:_TERMS]


def _backward(ctx: Any, grad_out: _Array, grad_lse: _Array) -> tuple[Any, ...]:
    *arrays, out, lse = ctx.saved_tensors
    needs = ctx.needs_input_grad
    grad_out = torch.zeros_like(out) if grad_out is None else grad_out.contiguous()
    found = gradients(
        grad_out, grad_lse, out, lse, *arrays, *ctx.terms, needs[_BIAS], needs[_TABLE], needs[_SINKS]
    )
    grads: list[Any] = [None] * len(_ARGUMENTS)
    for place, gradient in zip((0, 1, 2, _BIAS, _TABLE, _SINKS), found, strict=True):
        if needs[place]:
            grads[place] = gradient
    return tuple(grads)


attend.register_autograd(_backward, setup_context=_keep)
