"""Attention over keys that all samples share and keys of their own, and results over different keys merged."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from ..compute.attention import cascade as _cascade
from ..compute.attention import foreign as _foreign
from ..compute.attention.keywords import CascadeKeywords
from ..compute.backend import device_of
from ..compute.device.arrays import (
    Array,
    Float32Array,
    FloatArray,
    FloatT,
    IntegersLike,
    NDArray,
    Precision,
    Unpack,
)
from ..compute.device.tensor import Tensor


@overload
def cascade_attention(
    q: NDArray[FloatT], k_shared: NDArray[FloatT], v_shared: NDArray[FloatT], k: NDArray[FloatT], v: NDArray[FloatT], *,
    return_lse: Literal[False] = ..., **options: Unpack[CascadeKeywords],
) -> NDArray[FloatT]: ...  # fmt: skip
@overload
def cascade_attention(
    q: NDArray[FloatT], k_shared: NDArray[FloatT], v_shared: NDArray[FloatT], k: NDArray[FloatT], v: NDArray[FloatT], *,
    return_lse: Literal[True], **options: Unpack[CascadeKeywords],
) -> tuple[NDArray[FloatT], NDArray[np.float32]]: ...  # fmt: skip
@overload
def cascade_attention(
    q: Tensor, k_shared: FloatArray, v_shared: FloatArray, k: FloatArray, v: FloatArray, *,
    return_lse: Literal[False] = ..., **options: Unpack[CascadeKeywords],
) -> Tensor: ...  # fmt: skip
@overload
def cascade_attention(
    q: Tensor, k_shared: FloatArray, v_shared: FloatArray, k: FloatArray, v: FloatArray, *,
    return_lse: Literal[True], **options: Unpack[CascadeKeywords],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def cascade_attention(
    q: FloatArray, k_shared: FloatArray, v_shared: FloatArray, k: FloatArray, v: FloatArray, *,
    return_lse: bool = ..., **options: Unpack[CascadeKeywords],
) -> Array | tuple[Array, Array]: ...  # fmt: skip
@_foreign.named(_foreign.CASCADE_KEYWORDS)
def cascade_attention(
    q: FloatArray, k_shared: FloatArray, v_shared: FloatArray, k: FloatArray, v: FloatArray, *, causal: bool = False,
    scale: float | None = None, softcap: float = 0.0, seqlens_k: IntegersLike | None = None, return_lse: bool = False,
    kernel: str | None = None, precision: Precision = "highest",
) -> Array | tuple[Array, Array]:  # fmt: skip
    """Attention to a prefix that all samples share, say a prompt, and then to keys of each sample's own.

    The same as ``flash_attention2`` with a copy of the prefix before each sample's keys, but the prefix is there once,
    and is read once for the queries of all samples. These are two calls of attention, whose results ``merge_attention``
    merges: in 16-bit types the output is rounded once more than by one call.

    Parameters
    ----------
    q : numpy.ndarray or grilly.Tensor
        ``(B, H, N_q, D)``; float32, float16 or bfloat16; D from 1 to 256.
    k_shared, v_shared : numpy.ndarray or grilly.Tensor
        ``(H_kv, N_shared, D)`` and ``(H_kv, N_shared, D_v)``, of q's dtype; H_kv divides H. Every query sees all of it.
    k, v : numpy.ndarray or grilly.Tensor
        ``(B, H_kv, N_kv, D)`` and ``(B, H_kv, N_kv, D_v)``: each sample's own, which follow.
    causal : bool
        Query i of a sample sees its own key j only where ``j <= i + n - N_q``, n the sample's own keys.
    scale : float, optional
        Multiplies the scores; ``1 / sqrt(D)`` when None.
    softcap : float
        Above 0: a scaled score s becomes ``softcap * tanh(s / softcap)``.
    seqlens_k : array, optional
        ``(B,)`` integers: of its own keys each sample has only the first so many. Tensors are read to the host.
    return_lse : bool
        Also return the log-sum-exp of each row's scores.
    kernel, precision : str
        As for ``flash_attention2``.

    Returns
    -------
    output : numpy.ndarray or grilly.Tensor
        ``(B, H, N_q, D_v)``, in q's dtype; a Tensor when an array was one, and then without waiting. A row with nothing
        to attend to is zeros.
    lse : numpy.ndarray or grilly.Tensor
        ``(B, H, N_q)`` float32; minus infinity for such a row. Only with ``return_lse``.

    Raises
    ------
    TypeError, ValueError
        For arrays and numbers that do not go together, before any device work.
    UnsupportedError
        As ``flash_attention2``.

    References
    ----------
    Z. Ye et al., "Cascade Inference: Memory Bandwidth Efficient Shared Prefix Batch Decoding", 2024. J. Juravsky et
    al., "Hydragen: High-Throughput LLM Inference with Shared Prefixes", 2024, arXiv:2402.05099.
    """
    arrays = (q, k_shared, v_shared, k, v)
    return _cascade.cascade_attention(
        device_of("cascade_attention", *arrays), *arrays, causal=causal, scale=scale, softcap=softcap,
        seqlens_k=seqlens_k, return_lse=return_lse, kernel=kernel, precision=precision,
    )  # fmt: skip


@overload
def merge_attention(
    out: NDArray[FloatT], lse: NDArray[np.float32], other: NDArray[FloatT], other_lse: NDArray[np.float32]
) -> tuple[NDArray[FloatT], NDArray[np.float32]]: ...
@overload
def merge_attention(
    out: Tensor, lse: Float32Array, other: FloatArray, other_lse: Float32Array
) -> tuple[Tensor, Tensor]: ...
@overload
def merge_attention(
    out: FloatArray, lse: Float32Array, other: FloatArray, other_lse: Float32Array
) -> tuple[Array, Array]: ...
@_foreign.named(_foreign.MERGE_KEYWORDS)
def merge_attention(
    out: FloatArray, lse: Float32Array, other: FloatArray, other_lse: Float32Array
) -> tuple[Any, Any]:
    """The result of attention to all keys, of results of the same queries over some and over the others.

    With a and b the two log-sum-exps, ``(exp(a) out + exp(b) other) / (exp(a) + exp(b))``.

    Parameters
    ----------
    out, other : numpy.ndarray or grilly.Tensor
        ``(..., D_v)``, of one shape and dtype; float32, float16 or bfloat16. In any layout: what ``flash_attention2``
        gave, or what ``flash_attention_with_kvcache`` gave, with its log-sum-exp as ``(B, N_q, H)``.
    lse, other_lse : numpy.ndarray or grilly.Tensor
        ``(...)`` float32, natural logarithms: of each row's scores.

    Returns
    -------
    output : numpy.ndarray or grilly.Tensor
        Of out's shape and dtype; Tensors when an array was one, and then without waiting. A row that saw nothing is
        zeros.
    lse : numpy.ndarray or grilly.Tensor
        Of lse's shape, float32.

    Raises
    ------
    TypeError, ValueError
        For arrays that do not go together, before any device work.
    """
    arrays = (out, lse, other, other_lse)
    return _cascade.merge_attention(device_of("merge_attention", *arrays), *arrays)
