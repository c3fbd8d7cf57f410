"""``grilly.torch.attention``: grilly's attention with all of its options on PyTorch's tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypedDict, overload

import torch

from ..compute.attention import foreign
from ..compute.device.arrays import Precision, Unpack
from ..compute.device.numbers import integer, number
from .arrays import FLOATS, check_dense, in_autocast, plain_mask
from .operators import attend, attend_at_once, check_gradients, nobody_looks
from .words import in_torch

NAME = "grilly.torch.attention"
_KEYWORDS = in_torch(foreign.KEYWORDS) | {
    "score_mod": "grilly.torch.flex_attention, which has score_mod",
    **dict.fromkeys(("mask_mod", "block_mask"), "grilly.torch.flex_attention, which has block_mask"),
}
#: No options: what `run` is given where a call says nothing.
_NO_ARRAYS: dict[str, Any] = dict.fromkeys(
    ("mask", "attn_bias", "alibi_slopes", "t5_table", "sinks", "prefix_len", "q_segments", "k_segments", "seqlens_q",
     "seqlens_k", "block_map", "dropout_seed")
)  # fmt: skip
_NO_TERMS: dict[str, Any] = {
    "causal": False, "scale": 1.0, "softcap": 0.0, "left": None, "right": None, "t5_bidirectional": True,
    "t5_max_distance": 128, "block_size": (), "dropout_p": 0.0, "dropout_offset": 0, "lowest_is_never": True,
    "kernel": None, "precision": "highest",
}  # fmt: skip
_ORDER = (*_NO_ARRAYS, *_NO_TERMS)


def run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, return_lse: bool, **options: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The operator on four-axis tensors, with what is not given left out; without ``return_lse`` there may be none."""
    given = {**_NO_ARRAYS, **_NO_TERMS, **options}
    arguments = [given[name] for name in _ORDER]
    if q.is_cuda and nobody_looks(q, k, v, *arguments[: len(_NO_ARRAYS)]):
        return attend_at_once(q, k, v, arguments[:-2], *arguments[-2:], return_lse)
    return attend(q, k, v, *arguments)


def check_floats(operation: str, **tensors: torch.Tensor) -> None:
    """Raise TypeError unless the named tensors are on one device and of one floating dtype that kernels know."""
    for name, tensor in tensors.items():
        if tensor is None:
            raise TypeError(f"{operation}: {name} is None; expected a torch.Tensor")
    check_dense(operation, **tensors)
    (first, one), *others = tensors.items()
    for name, tensor in others:
        if tensor.device != one.device:
            raise TypeError(f"{operation}: {name} is on {tensor.device} and {first} on {one.device}; give both there")
    if one.dtype not in FLOATS:
        raise TypeError(
            f"{operation}: {first} is {one.dtype}; expected torch.float32, float16 or bfloat16: give {first}.float()"
        )
    for name, tensor in others:
        if tensor.dtype != one.dtype:
            raise TypeError(f"{operation}: {name} is {tensor.dtype} and {first} is {one.dtype}; give both one dtype")


def drop_seed() -> torch.Tensor:
    """Numbers from PyTorch's generator, so that ``torch.manual_seed`` and checkpointing repeat a dropout."""
    return torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64)


class AttentionOptions(TypedDict, total=False):
    """Keyword arguments of ``attention``, but for ``return_lse``."""

    mask: torch.Tensor | None
    attn_bias: torch.Tensor | None
    causal: bool
    scale: float | None
    kernel: str | None
    precision: Precision
    softcap: float
    alibi_slopes: torch.Tensor | Sequence[float] | None
    t5_table: torch.Tensor | None
    t5_bidirectional: bool
    t5_max_distance: int
    sinks: torch.Tensor | None
    window_size: Sequence[int | None] | None
    prefix_len: torch.Tensor | Sequence[int] | None
    segment_ids: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None
    seqlens_q: torch.Tensor | Sequence[int] | None
    seqlens_k: torch.Tensor | Sequence[int] | None
    block_map: torch.Tensor | None
    block_size: Sequence[int] | None
    dropout_p: float
    dropout_seed: int | None
    dropout_offset: int


@overload
def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, return_lse: Literal[False] = ...,
    **options: Unpack[AttentionOptions],
) -> torch.Tensor: ...  # fmt: skip
@overload
def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, return_lse: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[torch.Tensor, torch.Tensor]: ...  # fmt: skip
@overload
def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, return_lse: bool = ..., **options: Unpack[AttentionOptions]
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    attn_bias: torch.Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
    kernel: str | None = None,
    precision: Precision = "highest",
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | Sequence[float] | None = None,
    t5_table: torch.Tensor | None = None,
    t5_bidirectional: bool = True,
    t5_max_distance: int = 128,
    sinks: torch.Tensor | None = None,
    window_size: Sequence[int | None] | None = None,
    prefix_len: torch.Tensor | Sequence[int] | None = None,
    segment_ids: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
    seqlens_q: torch.Tensor | Sequence[int] | None = None,
    seqlens_k: torch.Tensor | Sequence[int] | None = None,
    block_map: torch.Tensor | None = None,
    block_size: Sequence[int] | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int | None = None,
    dropout_offset: int = 0,
    **unknown: Any,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Exact attention on PyTorch's tensors, of the CPU or of the backend's GPU, with grilly's options and gradients.

    ``grilly.functional.flash_attention2`` documents the arguments, and they mean the same here; in particular
    ``causal`` is aligned to the bottom right. The work runs on the default backend (``grilly.use``). The call is the
    operator ``grilly::attention`` of ``torch.library``: ``torch.compile`` keeps it as one node.

    Parameters
    ----------
    q : torch.Tensor
        ``(B, H, N_q, D)``, ``(H, N_q, D)`` or ``(N_q, D)``; float32, float16 or bfloat16;
        D from 1 to 576, to 256 for gradients.
    k, v : torch.Tensor
        ``(B, H_kv, N_kv, D)`` and ``(B, H_kv, N_kv, D_v)``, of q's rank and dtype; H_kv divides H.
    mask : torch.Tensor, optional
        Broadcastable to ``(B, H, N_q, N_kv)``: bool (True = attend) or floating (added; without a gradient).
    attn_bias : torch.Tensor, optional
        Floating, broadcastable to ``(B, H, N_q, N_kv)``: added to the scaled scores, and differentiable.
    dropout_seed : int, optional
        From ``-2**63`` to ``2**64 - 1``. None draws one from PyTorch's generator (``torch.manual_seed``).
    return_lse : bool
        Also return the log-sum-exp of each row. Its gradient is found too where a loss uses it.
    causal, scale, kernel, precision, softcap, alibi_slopes, t5_table, t5_bidirectional, t5_max_distance, sinks, \
window_size, prefix_len, segment_ids, seqlens_q, seqlens_k, block_map, block_size, dropout_p, dropout_offset
        As there. Gradients are found of q, k, v, attn_bias, t5_table and sinks.

    Returns
    -------
    output : torch.Tensor
        ``(B, H, N_q, D_v)`` (less the axes that q lacks), in the dtype of q.
    lse : torch.Tensor
        ``(B, H, N_q)`` float32. Only with ``return_lse``.

    Raises
    ------
    TypeError
        For what is no dense tensor of these dtypes, on the CPU or on the backend's GPU: q, k and v on one of them.
    ValueError
        As ``flash_attention2``.
    RuntimeError
        For a mask or alibi_slopes that requires grad: grilly finds no gradient of them.
    NotImplementedError
        For tensors with a tangent: there are no derivatives in forward mode.
    UnsupportedError
        When no kernel for the device and dtype exists, and as ``grilly.torch.cuda_device`` for CUDA tensors.
    """
    if unknown:
        raise foreign.unknown(NAME, unknown, _KEYWORDS)
    q, k, v = in_autocast(q, k, v)
    check_floats(NAME, q=q, k=k, v=v)
    rank = q.dim()
    if rank not in (2, 3, 4) or k.dim() != rank or v.dim() != rank:
        raise ValueError(
            f"{NAME}: q, k and v have {rank}, {k.dim()} and {v.dim()} axes; expected (B, H, S, D), (H, S, D) or "
            "(S, D), the same for all"
        )
    arrays: dict[str, Any] = {
        "mask": plain_mask(mask, q), "attn_bias": plain_mask(attn_bias, q), "t5_table": t5_table, "sinks": sinks,
        "block_map": block_map,
    }  # fmt: skip
    check_dense(NAME, **arrays)
    for name, given in (
        ("alibi_slopes", alibi_slopes), ("prefix_len", prefix_len), ("seqlens_q", seqlens_q), ("seqlens_k", seqlens_k)
    ):  # fmt: skip
        arrays[name] = None if given is None else torch.as_tensor(given)
    if segment_ids is not None:
        pair = segment_ids if isinstance(segment_ids, tuple) else (segment_ids, segment_ids)
        arrays["q_segments"], arrays["k_segments"] = pair
        check_dense(NAME, q_segments=pair[0], k_segments=pair[1])
    if torch.is_grad_enabled():
        check_gradients({name: array is not None and array.requires_grad for name, array in arrays.items()})
    left, right = _window(window_size)
    if dropout_p:
        if dropout_seed is None:
            arrays["dropout_seed"] = drop_seed()
        else:
            seed = integer(NAME, "dropout_seed", dropout_seed)
            if not 0 <= seed < 2**64:
                raise ValueError(f"{NAME}: dropout_seed is {seed}; expected 0 to 2**64 - 1")
            arrays["dropout_seed"] = torch.tensor([seed - 2**64 if seed >= 2**63 else seed], dtype=torch.int64)
    if rank < 4:
        q, k, v = (tensor[(None,) * (4 - rank)] for tensor in (q, k, v))
    scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else number(NAME, "scale", scale)
    out, lse = run(
        q, k, v, return_lse, **arrays, causal=bool(causal), scale=scale,
        softcap=number(NAME, "softcap", softcap), left=left, right=right, t5_bidirectional=bool(t5_bidirectional),
        t5_max_distance=t5_max_distance, block_size=() if block_size is None else tuple(block_size),
        dropout_p=number(NAME, "dropout_p", dropout_p), dropout_offset=dropout_offset, kernel=kernel,
        precision=precision,
    )  # fmt: skip
    if rank < 4:
        out = out[(0,) * (4 - rank)]
    if not return_lse:
        return out
    assert lse is not None
    return out, lse[(0,) * (4 - rank)] if rank < 4 else lse


def _window(given: Sequence[int | None] | None) -> tuple[int | None, int | None]:
    """The two bounds, None where there is none."""
    if given is None:
        return None, None
    if len(given) != 2:
        raise ValueError(f"{NAME}: window_size is {given!r}; expected (left, right), each an integer or None")
    left, right = (None if bound is None else integer(NAME, "window_size", bound) for bound in given)
    return None if left == -1 else left, None if right == -1 else right
