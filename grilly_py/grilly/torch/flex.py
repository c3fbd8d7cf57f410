"""``grilly.torch.flex_attention``: PyTorch's function of this name, on any Vulkan device and without a compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import numpy as np
import torch
from torch.autograd.function import once_differentiable
from torch.nn.attention import flex_attention as pytorch
from torch.nn.attention.flex_attention import BlockMask as TorchBlockMask

from ..compute.attention.functions import BlockMask, traced
from ..compute.backend import default_backend
from ..compute.device.tape import taped
from ..compute.device.tensor import Tensor
from ..compute.gradients import pulled
from ..errors import UnsupportedError
from ..functional import flash_attention2
from .arrays import array_of, check_dense, tensor_of
from .attention import check_floats
from .compiled import uncompiled
from .score_functions import Captured

NAME = "grilly.torch.flex_attention"


@overload
def flex_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Callable[..., Any] | None = ...,
    block_mask: TorchBlockMask | None = ..., scale: float | None = ..., enable_gqa: bool = ..., return_lse: bool = ...,
    kernel_options: dict[str, Any] | None = ..., *, return_aux: None = ...,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...  # fmt: skip
@overload
def flex_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Callable[..., Any] | None = ...,
    block_mask: TorchBlockMask | None = ..., scale: float | None = ..., enable_gqa: bool = ..., return_lse: bool = ...,
    kernel_options: dict[str, Any] | None = ..., *, return_aux: tuple[bool, bool],
) -> tuple[torch.Tensor, Any]: ...  # fmt: skip
@uncompiled
def flex_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Callable[..., Any] | None = None,
    block_mask: TorchBlockMask | None = None, scale: float | None = None, enable_gqa: bool = False,
    return_lse: bool = False, kernel_options: dict[str, Any] | None = None, *, return_aux: Any = None,
) -> torch.Tensor | tuple[torch.Tensor, Any]:  # fmt: skip
    """PyTorch's ``flex_attention`` on tensors of the CPU, computed on the default backend, with gradients.

    Parameters
    ----------
    query : torch.Tensor
        ``(B, H, N_q, D)``; float32, float16 or bfloat16; D from 1 to 576, to 256 for gradients.
    key, value : torch.Tensor
        ``(B, H_kv, N_kv, D)`` and ``(B, H_kv, N_kv, D_v)``, of query's dtype; B may be 1.
    score_mod : callable, optional
        ``score_mod(score, batch, head, query, key)`` of tensors without axes: what a scaled score becomes. It may use
        operators, ``tensor[indices]`` of up to eight tensors, ``torch.where``, ``clamp``, conversions and functions of
        elements; not ``if`` on a tensor, nor what it computes of whole tensors with a gradient.
    block_mask : torch.nn.attention.flex_attention.BlockMask, optional
        As ``create_block_mask`` makes it: its blocks and its ``mask_mod`` are taken.
    scale : float, optional
        Multiplies the scores; ``1 / sqrt(D)`` when None.
    enable_gqa : bool
        Whether H may be a multiple of H_kv.
    return_lse : bool
        Also return the log-sum-exp, ``(B, H, N_q)`` float32, of natural logarithms.
    kernel_options : dict, optional
        For PyTorch's own kernels: they mean nothing here.
    return_aux : torch.nn.attention.flex_attention.AuxRequest, optional
        Newer PyTorch's form of ``return_lse``: with ``AuxRequest(lse=True)`` the second result is an ``AuxOutput``
        that has it.

    Returns
    -------
    output : torch.Tensor
        ``(B, H, N_q, D_v)``. Rows that see nothing are zeros, with a log-sum-exp of minus infinity.
    lse : torch.Tensor
        Only with ``return_lse``; with ``return_aux`` an AuxOutput.

    Raises
    ------
    TypeError
        For tensors that are not on the CPU, of other dtypes, and functions of other arguments.
    ValueError
        For shapes that do not go together, heads that differ without ``enable_gqa``, and ``return_lse`` beside
        ``return_aux``.
    UnsupportedError
        For ``AuxRequest(max_scores=True)``: kernels keep no row's largest score.
    ExpressionError
        For a function that does what is not taken.

    Notes
    -----
    Gradients are found as ``grilly.grad`` finds them, of query, key, value and the tensors that ``score_mod`` reads,
    without an array of all scores.

    Examples
    --------
    >>> def alibi(score, batch, head, query, key):
    ...     return score - slopes[head] * (query - key).abs()
    >>> out = grilly.torch.flex_attention(q, k, v, score_mod=alibi)
    """
    _check(query, key, value, block_mask, enable_gqa)
    _check_aux(return_lse, return_aux)
    batch = query.shape[0]
    if key.shape[0] == 1 and batch > 1:
        key, value = (tensor.expand(batch, *tensor.shape[1:]) for tensor in (key, value))
    call = _Call(score_mod, block_mask, scale)
    found: tuple[torch.Tensor, torch.Tensor] = _Attention.apply(call, query, key, value, *call.captured.tensors)
    if return_aux is not None:
        return found[0], pytorch.AuxOutput(lse=found[1] if return_aux.lse else None)
    return found if return_lse else found[0]


def _check_aux(return_lse: bool, return_aux: Any) -> None:
    if return_aux is None:
        return
    if return_lse:
        raise ValueError(f"{NAME}: return_lse and return_aux are given; give return_aux=AuxRequest(lse=True) alone")
    if return_aux.max_scores:
        raise UnsupportedError(f"{NAME}: max_scores are asked for, which kernels do not keep; ask for lse")


def _check(query: Any, key: Any, value: Any, block_mask: Any, enable_gqa: bool) -> None:
    check_floats(NAME, query=query, key=key, value=value)
    if query.device.type != "cpu":
        raise TypeError(f"{NAME}: query is on {query.device}; expected tensors of the CPU: give query.cpu()")
    if not query.ndim == key.ndim == value.ndim == 4:
        axes = f"{query.ndim}, {key.ndim} and {value.ndim}"
        raise ValueError(f"{NAME}: query, key and value have {axes} axes; expected 4 of each: (B, H, N, D)")
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError(
            f"{NAME}: query has {query.shape[1]} heads and key {key.shape[1]}; give enable_gqa=True where query heads "
            "share key heads"
        )
    if block_mask is not None and not isinstance(block_mask, TorchBlockMask):
        raise TypeError(
            f"{NAME}: block_mask is a {type(block_mask).__name__}; expected a BlockMask of create_block_mask"
        )


class _Call:
    """A call's functions as grilly's, and the tensors of PyTorch's that they read."""

    def __init__(
        self, score_mod: Callable[..., Any] | None, block_mask: TorchBlockMask | None, scale: float | None
    ):  # fmt: skip
        self.scale, self.captured = scale, Captured(_sent)
        self.score_mod = None if score_mod is None else self.captured.function(score_mod)
        self.blocks = None if block_mask is None else _blocks(block_mask, self.captured)
        # Now the tensors are known.
        for name, function in (("score_mod", self.score_mod), ("mask_mod", self.blocks)):
            if function is not None:
                traced(NAME, name, function)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp."""
        found: tuple[Tensor, Tensor] = flash_attention2(
            q, k, v, score_mod=self.score_mod, mask_mod=self.blocks, scale=self.scale, return_lse=True
        )
        return found


def _sent(tensor: torch.Tensor) -> Tensor:
    """A tensor in device memory."""
    check_dense(NAME, **{"a tensor that a function reads": tensor})
    if tensor.is_cuda:
        raise TypeError(f"{NAME}: a tensor that a function reads is on {tensor.device}; give it on the CPU")
    if tensor.dtype == torch.float64:
        tensor = tensor.float()
    return default_backend().tensor(array_of(tensor))


def _blocks(mask: TorchBlockMask, captured: Captured) -> BlockMask:
    """A block mask of PyTorch's: its blocks hide what they hide, and its function is asked in those seen in part."""
    block, (queries, keys) = mask.BLOCK_SIZE, mask.seq_lengths
    classes = np.zeros((*mask.kv_num_blocks.shape, -(-keys // block[1])), np.uint8)
    for value, counts, indices in (
        (1, mask.kv_num_blocks, mask.kv_indices), (2, mask.full_kv_num_blocks, mask.full_kv_indices)
    ):  # fmt: skip
        if counts is None:
            continue
        for row in np.ndindex(*counts.shape):
            classes[(*row, indices[row][: int(counts[row])].cpu().numpy())] = value
    held, own = default_backend().tensor(classes), captured.function(mask.mask_mod)
    several = [extent > 1 for extent in classes.shape[:2]]

    def seen(batch: Any, head: Any, query: Any, key: Any) -> Any:
        of = held[batch if several[0] else 0, head if several[1] else 0, query // block[0], key // block[1]]
        return (of == 2) | ((of == 1) & own(batch, head, query, key))

    return BlockMask(seen, (*classes.shape[:2], queries, keys), block, held)


class _Attention(torch.autograd.Function):
    """The call as an operation of PyTorch's, of query, key, value and what the functions read."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.call = call
        ctx.save_for_backward(*tensors)
        return tuple(tensor_of(one.numpy()) for one in call(*map(_sent, tensors[:3])))  # type: ignore[return-value]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        call, tensors = ctx.call, ctx.saved_tensors
        arrays = [*map(_sent, tensors[:3]), *call.captured.stand_ins]
        wanted = [array for array, needs in zip(arrays, ctx.needs_input_grad[1:], strict=True) if needs]
        with taped(wanted) as tape:
            results = call(*arrays[:3])
        found = iter(pulled(tape.entries, results, [*map(_sent, gradients)], wanted))
        given: list[torch.Tensor | None] = [None]
        for tensor, needs in zip(tensors, ctx.needs_input_grad[1:], strict=True):
            gradient = next(found) if needs else None
            given.append(None if gradient is None else tensor_of(gradient.numpy()).to(tensor.dtype))
        return tuple(given)


__all__ = ["flex_attention"]
