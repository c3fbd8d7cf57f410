"""Exact attention over whole sequences, and its gradients."""

from __future__ import annotations

from typing import Any, Literal, SupportsIndex, overload

import numpy as np

from ..compute.attention import foreign as _foreign
from ..compute.attention import public as _public
from ..compute.attention.keywords import AttentionKeywords, GradientKeywords, JoinedKeywords, OptionKeywords
from ..compute.attention.options import arrays_of
from ..compute.backend import device_of
from ..compute.device.arrays import Array, Float32Array, FloatArray, FloatT, MaskArray, NDArray, Precision, Unpack
from ..compute.device.tensor import Tensor


@overload
def flash_attention2(
    q: NDArray[FloatT], k: NDArray[FloatT], v: NDArray[FloatT], *, return_lse: Literal[False] = ...,
    **options: Unpack[AttentionKeywords],
) -> NDArray[FloatT]: ...  # fmt: skip
@overload
def flash_attention2(
    q: NDArray[FloatT], k: NDArray[FloatT], v: NDArray[FloatT], *, return_lse: Literal[True],
    **options: Unpack[AttentionKeywords],
) -> tuple[NDArray[FloatT], NDArray[np.float32]]: ...  # fmt: skip
@overload
def flash_attention2(
    q: Tensor, k: FloatArray, v: FloatArray, *, return_lse: Literal[False] = ..., **options: Unpack[AttentionKeywords]
) -> Tensor: ...
@overload
def flash_attention2(
    q: Tensor, k: FloatArray, v: FloatArray, *, return_lse: Literal[True], **options: Unpack[AttentionKeywords]
) -> tuple[Tensor, Tensor]: ...
@overload
def flash_attention2(
    q: FloatArray, k: FloatArray, v: FloatArray, *, return_lse: bool = ..., **options: Unpack[AttentionKeywords]
) -> Array | tuple[Array, Array]: ...
@_foreign.named(_foreign.KEYWORDS)
def flash_attention2(
    q: FloatArray, k: FloatArray, v: FloatArray, *, mask: MaskArray | None = None, causal: bool = False,
    scale: float | None = None, return_lse: bool = False, kernel: str | None = None, precision: Precision = "highest",
    **options: Unpack[OptionKeywords],
) -> Array | tuple[Array, Array]:  # fmt: skip
    """Exact attention (FlashAttention-2).

    With B the batch, H the query heads, N_q queries, N_kv keys and D, D_v the head dimensions, row i of a head is

        output[i] = sum_j softmax_j(scale * q[i] . k[j] + mask[i, j]) v[j]

    (a score is scaled, soft-capped, added to, masked, in this order; then softmax with sinks, then dropout),
    computed tile by tile with the online softmax, so that no N_q x N_kv matrix is ever stored. Sums and
    exponentials are float32 whatever the inputs are; on matrix units the weights of 16-bit inputs are rounded to
    their type before they multiply v, as in the FlashAttention papers' kernels.

    Parameters
    ----------
    q : numpy.ndarray or grilly.Tensor
        ``(B, H, N_q, D)``, ``(H, N_q, D)`` or ``(N_q, D)``; float32, float16 or bfloat16; D from 1 to 576, or to
        256 where gradients are wanted.
    k, v : numpy.ndarray or grilly.Tensor
        ``(B, H_kv, N_kv, D)`` and ``(B, H_kv, N_kv, D_v)``, of q's rank and dtype. H_kv divides H: query
        head h uses key head h // (H / H_kv) (grouped-query attention). D_v is from 1 to 512. Where v is the first
        columns of k, ``k[..., :D_v]``, as in latent attention, kernels on matrix units for wide heads read it once.
    mask : numpy.ndarray or grilly.Tensor, optional
        Broadcastable to ``(B, H, N_q, N_kv)``. Boolean: True = attend (as in PyTorch's
        scaled_dot_product_attention, the opposite of its MultiheadAttention). Floating: added to the scaled
        scores; minus infinity and the dtype's lowest finite number both mean "never attend".
    attn_bias : numpy.ndarray or grilly.Tensor, optional
        Floating, broadcastable to ``(B, H, N_q, N_kv)``: added to the scaled scores, beside a
        mask if both are given.
    causal : bool
        Query i attends to key j only where ``j <= i + N_kv - N_q``: the mask is aligned to the bottom right, as in
        FlashAttention from 2.1 on. For N_q = 2, N_kv = 4 and for N_q = 4, N_kv = 2::

            1 1 1 0        0 0
            1 1 1 1        0 0
                           1 0
                           1 1
    scale : float, optional
        Multiplies the scores; ``1 / sqrt(D)`` when None.
    return_lse : bool
        Also return the log-sum-exp of each row's scores.
    kernel : str, optional
        Use only this shader family ("flash-attention2", "attention-naive", ...); None lets the registry choose.
    precision : str
        What float32 may be computed from. "highest" (default): float32 products only. "high": from 16 columns on,
        matrix units where the device has them, each number split into two float16 parts with a power of two for
        each tile. What parts cannot hold goes to vector units: scores that might pass ``2**20``, numbers of v whose
        neighbours in the tile of keys are ``2**14`` times as large and more, NaN, infinities. On an H200 the root
        mean square error was at most twice NumPy's in float32 for 14 of 16 kinds of input; for two with scores of
        1e4 and more, all of them on vector units, up to 10 times it (docs/benchmarks/float32-matrix.md). One column
        of v beside another of the same four that is ``2**16`` times as large and more keeps fewer bits. No effect on
        16-bit types, nor where the device lacks matrix units or the heads are wider than its kernels.
    softcap : float
        Above 0: a scaled score s becomes ``softcap * tanh(s / softcap)``, before anything is added to it. From
        ``2**100`` up it leaves all scores as they are.
    score_mod : callable, optional
        ``score_mod(score, batch, head, query, key)``, a function of scalars: what a scaled score becomes, before
        soft-cap, biases and masks. Queries and keys count from 0 in the arrays. It may read elements of Tensors.
        docs/score-functions.md says what it may do.
    mask_mod : callable, optional
        ``mask_mod(batch, head, query, key)``: whether the query sees the key. Or what ``grilly.block_mask`` made of
        such a function.
    alibi_slopes : array, optional
        ``(H,)`` or ``(B, H)`` float32: adds ``-slope * |j - (i + N_kv - N_q)|``.
    t5_table : array, optional
        ``(num_buckets, H)`` float32: adds the entry of the bucket of ``j - (i + N_kv - N_q)``, as ``t5_bias`` does
        but without an N_q x N_kv array.
    t5_bidirectional, t5_max_distance : bool, int
        With ``t5_table``: ``bidirectional`` and ``max_distance`` of ``t5_bias``.
    sinks : array, optional
        ``(H,)`` float32: a logit that takes part in each row's softmax and has no value. lse includes it.
    window_size : (left, right), optional
        Only keys with ``-left <= j - (i + N_kv - N_q) <= right``; None or -1 sets no bound. ``causal`` sets
        right to 0.
    prefix_len : array, optional
        ``(B,)`` integers: the first so many keys are seen by every query, whatever causal and window_size say.
    segment_ids : array or tuple of two, optional
        Integers of any type, int32 in a Tensor, ``(B or 1, N_q)`` and ``(B or 1, N_kv)`` (one array where
        N_q = N_kv): a query sees only keys of its own segment.
    seqlens_q, seqlens_k : array, optional
        ``(B,)`` integers: of each sample only the first so many queries and keys exist. Further rows are zeros with
        an lse of minus infinity. N_q and N_kv above are then the sample's own. Tensors are read to the host.
    block_map, block_size : array and (bq, bk), optional
        ``(B or 1, H or 1, ceil(N_q / bq), ceil(N_kv / bk))`` bool: only blocks that are True are attended to.
    dropout_p, dropout_seed, dropout_offset : float, int or Tensor, int
        Each weight is dropped with probability dropout_p, and the others are divided by ``1 - dropout_p``.
        Which ones depends only on seed (64 bits), offset (32 bits), batch, head, query and key;
        ``F.dropout_mask`` tells. A seed that is a Tensor of one integer is read by the device. Without a seed a call
        has the next ones of the sequence of ``grilly.manual_seed``, also in each replay of a captured function;
        ``flash_attention2_backward`` needs the forward's.

    Returns
    -------
    output : numpy.ndarray or grilly.Tensor
        ``(B, H, N_q, D_v)`` (less the axes that q lacks), in the dtype of q; a Tensor when an input was one, and
        then without waiting. A row with nothing to attend to is zeros.
    lse : numpy.ndarray or grilly.Tensor
        ``(B, H, N_q)`` float32, natural logarithm; minus infinity for a row with nothing to attend to. Only with
        ``return_lse``.

    Raises
    ------
    TypeError
        For dtypes other than float32, float16 and bfloat16, differing dtypes, or a mask that is neither boolean nor
        floating.
    ValueError
        For shapes that do not go together, a mask that does not broadcast, numbers out of their range, a scale that
        is not finite or beyond 2.3e38, or another precision.
    ExpressionError
        For a score_mod or mask_mod that cannot become a part of a kernel.
    UnsupportedError
        When no kernel for this device and dtype exists; the message lists each with what it lacks.
    OutOfDeviceMemoryError
        When the device has no room for the arrays.

    References
    ----------
    T. Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023,
    arXiv:2307.08691, algorithm 1. The split: H. Ootomo and R. Yokota, "Recovering single precision accuracy from
    Tensor Cores while surpassing the FP32 theoretical peak performance", 2022.
    """
    return _public.flash_attention2(
        device_of("flash_attention2", q, k, v, mask, *arrays_of(options)), q, k, v,
        mask=mask, causal=causal, scale=scale, return_lse=return_lse, kernel=kernel, precision=precision, **options,
    )  # fmt: skip


@overload
def flash_attention3(
    q: NDArray[FloatT], k: NDArray[FloatT], v: NDArray[FloatT], *, return_lse: Literal[False] = ...,
    **options: Unpack[JoinedKeywords],
) -> NDArray[FloatT]: ...  # fmt: skip
@overload
def flash_attention3(
    q: NDArray[FloatT], k: NDArray[FloatT], v: NDArray[FloatT], *, return_lse: Literal[True],
    **options: Unpack[JoinedKeywords],
) -> tuple[NDArray[FloatT], NDArray[np.float32]]: ...  # fmt: skip
@overload
def flash_attention3(
    q: Tensor, k: FloatArray, v: FloatArray, *, return_lse: Literal[False] = ..., **options: Unpack[JoinedKeywords]
) -> Tensor: ...
@overload
def flash_attention3(
    q: Tensor, k: FloatArray, v: FloatArray, *, return_lse: Literal[True], **options: Unpack[JoinedKeywords]
) -> tuple[Tensor, Tensor]: ...
@overload
def flash_attention3(
    q: FloatArray, k: FloatArray, v: FloatArray, *, return_lse: bool = ..., **options: Unpack[JoinedKeywords]
) -> Array | tuple[Array, Array]: ...
@_foreign.named(_foreign.KEYWORDS)
def flash_attention3(
    q: FloatArray, k: FloatArray, v: FloatArray, *, num_heads: SupportsIndex | None = None,
    head_dim: SupportsIndex | None = None, num_kv_heads: SupportsIndex | None = None, mask: MaskArray | None = None,
    causal: bool = False, scale: float | None = None, return_lse: bool = False, kernel: str | None = None,
    precision: Precision = "highest", **options: Unpack[OptionKeywords],
) -> Array | tuple[Array, Array]:  # fmt: skip
    """Exact attention, also on arrays whose heads are joined (FlashAttention-3's interface).

    The same function as ``flash_attention2``; the registry chooses the fastest kernel the device can run for both.

    Parameters
    ----------
    q : numpy.ndarray or grilly.Tensor
        As for ``flash_attention2``; with ``num_heads`` also ``(B, N_q, num_heads * D)``.
    k, v : numpy.ndarray or grilly.Tensor
        As for ``flash_attention2``; with three-axis q and ``num_heads`` ``(B, N_kv, num_kv_heads * D)`` and
        ``(B, N_kv, num_kv_heads * D_v)``.
    num_heads : int, optional
        H. Three-axis arrays are then read as if their heads were joined.
    head_dim : int, optional
        D, which is checked.
    num_kv_heads : int, optional
        H_kv, where it is not ``num_heads``: grouped heads.
    mask, causal, scale, return_lse, kernel, precision, **options
        As for ``flash_attention2``.

    Returns
    -------
    output : numpy.ndarray or grilly.Tensor
        As of ``flash_attention2``; ``(B, N_q, num_heads * D_v)`` where q has joined heads.
    lse : numpy.ndarray or grilly.Tensor
        ``(B, H, N_q)`` float32. Only with ``return_lse``.

    Raises
    ------
    TypeError, ValueError, UnsupportedError, OutOfDeviceMemoryError
        As ``flash_attention2``; ValueError also where the numbers of heads and the shapes do not go together.

    References
    ----------
    J. Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision", 2024,
    arXiv:2407.08608.
    """
    return _public.flash_attention3(
        device_of("flash_attention3", q, k, v, mask, *arrays_of(options)), q, k, v,
        num_heads=num_heads, head_dim=head_dim, num_kv_heads=num_kv_heads,
        mask=mask, causal=causal, scale=scale, return_lse=return_lse, kernel=kernel, precision=precision, **options,
    )  # fmt: skip


@overload
def flash_attention2_backward(
    grad_out: NDArray[FloatT], q: NDArray[FloatT], k: NDArray[FloatT], v: NDArray[FloatT], out: NDArray[FloatT],
    lse: NDArray[np.float32], **options: Unpack[GradientKeywords],
) -> tuple[NDArray[Any], ...]: ...  # fmt: skip
@overload
def flash_attention2_backward(
    grad_out: Tensor, q: FloatArray, k: FloatArray, v: FloatArray, out: FloatArray, lse: Float32Array,
    **options: Unpack[GradientKeywords],
) -> tuple[Tensor, ...]: ...  # fmt: skip
@overload
def flash_attention2_backward(
    grad_out: FloatArray, q: FloatArray, k: FloatArray, v: FloatArray, out: FloatArray, lse: Float32Array,
    **options: Unpack[GradientKeywords],
) -> tuple[Array, ...]: ...  # fmt: skip
@_foreign.named(_foreign.KEYWORDS)
def flash_attention2_backward(
    grad_out: FloatArray, q: FloatArray, k: FloatArray, v: FloatArray, out: FloatArray, lse: Float32Array, *,
    mask: MaskArray | None = None, causal: bool = False, scale: float | None = None, return_dbias: bool = False,
    return_dsinks: bool = False, return_dt5_table: bool = False, grad_lse: Float32Array | None = None,
    **options: Unpack[OptionKeywords],
) -> tuple[Array, ...]:  # fmt: skip
    """The gradients of attention: of ``sum(grad_out * output)`` by q, k and v.

    With P the weights, S the scores and P's rows made anew from ``lse``, tile by tile, so that no N_q x N_kv matrix
    is ever stored::

        dV = P^T dO     dP = dO V^T     dS = P (dP - rowsum(dO O))     dQ = scale dS K     dK = scale dS^T Q

    Sums are float32 whatever the inputs are, every run gives the same bits, and grouped key heads get the sum over
    their query heads. A row with nothing to attend to contributes nothing. A row that sees nothing but keys of large
    negative numbers, such as -1e9, has a log-sum-exp with no room for the logarithm of how many they are: its gradients
    are so many times too large. A mask that says "never" has none of this.

    Parameters
    ----------
    grad_out : numpy.ndarray or grilly.Tensor
        The gradient of the output, of its shape ``(B, H, N_q, D_v)`` and dtype.
    q, k, v : numpy.ndarray or grilly.Tensor
        As given to ``flash_attention2``.
    out, lse : numpy.ndarray or grilly.Tensor
        What ``flash_attention2(..., return_lse=True)`` gave for these arguments.
    mask, causal, scale, **options
        The same as there: dropout's mask is drawn anew from its seed and offset.
    return_dbias : bool
        Also return the gradient of ``attn_bias``, summed over the axes along which it was broadcast.
    return_dsinks : bool
        Also return the gradient of ``sinks``.
    return_dt5_table : bool
        Also return the gradient of ``t5_table``.
    grad_lse : numpy.ndarray or grilly.Tensor, optional
        The gradient of ``lse``, where what is differentiated uses that too: float32, of its shape. It is taken from
        ``rowsum(dO O)``.

    Returns
    -------
    dq, dk, dv : numpy.ndarray or grilly.Tensor
        Of the shapes and dtype of q, k and v; Tensors when an array was one, and then without waiting.
    dbias, dsinks, dt5_table : numpy.ndarray or grilly.Tensor
        float32; each only if asked for, in this order.

    Raises
    ------
    TypeError, ValueError, UnsupportedError, OutOfDeviceMemoryError
        As ``flash_attention2``; also where grad_out, out, lse or grad_lse has not the shape or dtype that it should, or
        where the gradient of something is asked for that was not given.

    References
    ----------
    T. Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023,
    arXiv:2307.08691, algorithm 2.
    """
    arrays = (grad_out, q, k, v, out, lse)
    device = device_of("flash_attention2_backward", *arrays, mask, grad_lse, *arrays_of(options))
    return _public.flash_attention2_backward(
        device, *arrays, mask=mask, causal=causal, scale=scale, return_dbias=return_dbias, return_dsinks=return_dsinks,
        return_dt5_table=return_dt5_table, grad_lse=grad_lse, **options,
    )  # fmt: skip
