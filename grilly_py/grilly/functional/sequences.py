"""Attention over packed sequences, and over caches that grow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex, overload

import numpy as np

from ..compute.attention import foreign as _foreign
from ..compute.attention import kvcache as _kvcache
from ..compute.attention import varlen as _varlen
from ..compute.attention.keywords import (
    CacheKeywords,
    HostCacheKeywords,
    MaskFunction,
    PackedGradientKeywords,
    PackedKeywords,
    ScoreFunction,
)
from ..compute.backend import device_of
from ..compute.device.arrays import (
    Array,
    Float32Array,
    FloatArray,
    FloatsLike,
    FloatT,
    HostIntegers,
    IntegersLike,
    NDArray,
    Precision,
    Unpack,
)
from ..compute.device.tensor import Tensor


@overload
def flash_attention_varlen(
    q: NDArray[FloatT], k: NDArray[FloatT], v: NDArray[FloatT], cu_seqlens_q: IntegersLike, cu_seqlens_k: IntegersLike,
    max_seqlen_q: SupportsIndex, max_seqlen_k: SupportsIndex, *, return_lse: Literal[False] = ...,
    **options: Unpack[PackedKeywords],
) -> NDArray[FloatT]: ...  # fmt: skip
@overload
def flash_attention_varlen(
    q: NDArray[FloatT], k: NDArray[FloatT], v: NDArray[FloatT], cu_seqlens_q: IntegersLike, cu_seqlens_k: IntegersLike,
    max_seqlen_q: SupportsIndex, max_seqlen_k: SupportsIndex, *, return_lse: Literal[True],
    **options: Unpack[PackedKeywords],
) -> tuple[NDArray[FloatT], NDArray[np.float32]]: ...  # fmt: skip
@overload
def flash_attention_varlen(
    q: Tensor, k: FloatArray, v: FloatArray, cu_seqlens_q: IntegersLike, cu_seqlens_k: IntegersLike,
    max_seqlen_q: SupportsIndex, max_seqlen_k: SupportsIndex, *, return_lse: Literal[False] = ...,
    **options: Unpack[PackedKeywords],
) -> Tensor: ...  # fmt: skip
@overload
def flash_attention_varlen(
    q: Tensor, k: FloatArray, v: FloatArray, cu_seqlens_q: IntegersLike, cu_seqlens_k: IntegersLike,
    max_seqlen_q: SupportsIndex, max_seqlen_k: SupportsIndex, *, return_lse: Literal[True],
    **options: Unpack[PackedKeywords],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def flash_attention_varlen(
    q: FloatArray, k: FloatArray, v: FloatArray, cu_seqlens_q: IntegersLike, cu_seqlens_k: IntegersLike,
    max_seqlen_q: SupportsIndex, max_seqlen_k: SupportsIndex, *, return_lse: bool = ...,
    **options: Unpack[PackedKeywords],
) -> Array | tuple[Array, Array]: ...  # fmt: skip
@_foreign.named(_foreign.PACKED_KEYWORDS)
def flash_attention_varlen(
    q: FloatArray, k: FloatArray, v: FloatArray, cu_seqlens_q: IntegersLike, cu_seqlens_k: IntegersLike,
    max_seqlen_q: SupportsIndex, max_seqlen_k: SupportsIndex, *, causal: bool = False, scale: float | None = None,
    score_mod: ScoreFunction | None = None, mask_mod: MaskFunction | None = None,
    window_size: Sequence[int | None] | None = None, softcap: float = 0.0, alibi_slopes: FloatsLike | None = None,
    sinks: FloatsLike | None = None, dropout_p: float = 0.0, dropout_seed: SupportsIndex | Tensor | None = None,
    dropout_offset: SupportsIndex = 0, return_lse: bool = False, kernel: str | None = None,
    precision: Precision = "highest",
) -> Array | tuple[Array, Array]:  # fmt: skip
    """Attention within each of the sequences that lie packed in q, k and v, without padding.

    The interface of flash-attn's flash_attn_varlen_func. Sequence b has the queries ``cu_seqlens_q[b]`` up to
    ``cu_seqlens_q[b + 1]`` and the keys ``cu_seqlens_k[b]`` up to ``cu_seqlens_k[b + 1]``. With n_q and n_kv of them it
    attends as a sample of its own would: ``causal``, a window and ALiBi put its query i at its key ``i + n_kv - n_q``.

    Parameters
    ----------
    q : numpy.ndarray or grilly.Tensor
        ``(total_q, H, D)``; float32, float16 or bfloat16; D from 1 to 256.
    k, v : numpy.ndarray or grilly.Tensor
        ``(total_k, Hk, D)`` and ``(total_k, Hk, Dv)``, of q's dtype; Hk divides H.
    cu_seqlens_q, cu_seqlens_k : array of int
        ``(B + 1,)``: from 0, nowhere falling, to at most total_q and total_k. Sequences may be empty. Tensors (int32)
        are read to the host, which waits for the work that makes them.
    max_seqlen_q, max_seqlen_k : int
        At least the queries and keys of the longest sequence. ``cu_seqlens_`` tell these, so more costs nothing.
    causal : bool
        Query i of a sequence sees key j when ``j <= i + n_kv - n_q``.
    scale : float, optional
        ``1 / sqrt(D)`` by default.
    score_mod, mask_mod : callable, optional
        As for ``flash_attention2``, functions of scalars: batch is the sequence's number, and queries and keys count
        from 0 within it.
    window_size : (left, right), optional
        Query i sees keys from ``i + n_kv - n_q - left`` to ``i + n_kv - n_q + right``; None or -1 sets no bound.
    softcap : float
        Above 0: a scaled score s becomes ``softcap * tanh(s / softcap)``.
    alibi_slopes : array, optional
        ``(H,)`` or ``(B, H)`` float32: adds ``-slope * |i + n_kv - n_q - j|``.
    sinks : array, optional
        ``(H,)`` float32: ``exp(sinks[h])`` is added to the sum of each row's weights.
    dropout_p, dropout_seed, dropout_offset : float, int or Tensor, int
        As for ``flash_attention2``; batch is the sequence's number, and queries and keys count within the sequence.
    return_lse : bool
        Also return the log-sum-exp of each row's scores.
    kernel, precision : str
        As for ``flash_attention2``.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        ``(total_q, H, Dv)``, of q's dtype; a Tensor when q, k or v was one, and then without waiting. Rows with nothing
        to attend to, and rows past the last sequence, are zeros. With ``return_lse`` a pair, the second float32
        ``(H, total_q)``, minus infinity for such rows (without sinks).

    Raises
    ------
    TypeError, ValueError
        For arrays and numbers that do not go together, before any device work.
    ExpressionError
        For a score_mod or mask_mod that cannot become a part of a kernel.
    GradientError
        Where a gradient is wanted by alibi_slopes.
    UnsupportedError
        Where an array is larger than one binding of the device, or no kernel takes what is asked for, and where a
        gradient is wanted of heads of more than 256 columns.
    """
    arrays = (q, k, v, cu_seqlens_q, cu_seqlens_k)
    device = device_of("flash_attention_varlen", *arrays, alibi_slopes, sinks)
    return _varlen.flash_attention_varlen(
        device, *arrays, max_seqlen_q, max_seqlen_k,
        causal=causal, scale=scale, score_mod=score_mod, mask_mod=mask_mod, window_size=window_size, softcap=softcap,
        alibi_slopes=alibi_slopes, sinks=sinks, dropout_p=dropout_p, dropout_seed=dropout_seed,
        dropout_offset=dropout_offset, return_lse=return_lse, kernel=kernel, precision=precision,
    )  # fmt: skip


@overload
def flash_attention_varlen_backward(
    grad_out: NDArray[FloatT], q: NDArray[FloatT], k: NDArray[FloatT], v: NDArray[FloatT], out: NDArray[FloatT],
    lse: NDArray[np.float32], cu_seqlens_q: IntegersLike, cu_seqlens_k: IntegersLike, max_seqlen_q: SupportsIndex,
    max_seqlen_k: SupportsIndex, **options: Unpack[PackedGradientKeywords],
) -> tuple[NDArray[Any], ...]: ...  # fmt: skip
@overload
def flash_attention_varlen_backward(
    grad_out: Tensor, q: FloatArray, k: FloatArray, v: FloatArray, out: FloatArray, lse: Float32Array,
    cu_seqlens_q: IntegersLike, cu_seqlens_k: IntegersLike, max_seqlen_q: SupportsIndex, max_seqlen_k: SupportsIndex,
    **options: Unpack[PackedGradientKeywords],
) -> tuple[Tensor, ...]: ...  # fmt: skip
@overload
def flash_attention_varlen_backward(
    grad_out: FloatArray, q: FloatArray, k: FloatArray, v: FloatArray, out: FloatArray, lse: Float32Array,
    cu_seqlens_q: IntegersLike, cu_seqlens_k: IntegersLike, max_seqlen_q: SupportsIndex, max_seqlen_k: SupportsIndex,
    **options: Unpack[PackedGradientKeywords],
) -> tuple[Array, ...]: ...  # fmt: skip
@_foreign.named(_foreign.PACKED_KEYWORDS)
def flash_attention_varlen_backward(
    grad_out: FloatArray, q: FloatArray, k: FloatArray, v: FloatArray, out: FloatArray, lse: Float32Array,
    cu_seqlens_q: IntegersLike, cu_seqlens_k: IntegersLike, max_seqlen_q: SupportsIndex, max_seqlen_k: SupportsIndex, *,
    causal: bool = False, scale: float | None = None, score_mod: ScoreFunction | None = None,
    mask_mod: MaskFunction | None = None, window_size: Sequence[int | None] | None = None, softcap: float = 0.0,
    alibi_slopes: FloatsLike | None = None, sinks: FloatsLike | None = None, dropout_p: float = 0.0,
    dropout_seed: SupportsIndex | Tensor | None = None, dropout_offset: SupportsIndex = 0, return_dsinks: bool = False,
    grad_lse: Float32Array | None = None,
) -> tuple[Array, ...]:  # fmt: skip
    """The gradients of packed sequences: of ``sum(grad_out * output)`` by q, k and v.

    Parameters
    ----------
    grad_out : numpy.ndarray or grilly.Tensor
        The gradient of the output, ``(total_q, H, Dv)``, of q's dtype.
    q, k, v : numpy.ndarray or grilly.Tensor
        As given to ``flash_attention_varlen``.
    out, lse : numpy.ndarray or grilly.Tensor
        What ``flash_attention_varlen(..., return_lse=True)`` gave for these arguments.
    cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
        The same as there.
    causal, scale, score_mod, mask_mod, window_size, softcap, alibi_slopes, sinks
        The same as there.
    dropout_p, dropout_seed, dropout_offset
        The same as there.
    return_dsinks : bool
        Also return the gradient of ``sinks``.
    grad_lse : numpy.ndarray or grilly.Tensor, optional
        The gradient of ``lse``, float32, of its shape, where that is used too.

    Returns
    -------
    dq, dk, dv : numpy.ndarray or grilly.Tensor
        Of the shapes and dtype of q, k and v; Tensors when an array was one, and then without waiting. Rows past the
        last sequence are zeros.
    dsinks : numpy.ndarray or grilly.Tensor
        ``(H,)`` float32; only with ``return_dsinks``.

    Raises
    ------
    TypeError, ValueError, ExpressionError, UnsupportedError
        As ``flash_attention_varlen``; also where grad_out, out, lse or grad_lse has not the shape or dtype that it
        should, or where the gradient of sinks is asked for without sinks.

    References
    ----------
    T. Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023,
    arXiv:2307.08691, algorithm 2.
    """
    arrays = (grad_out, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k)
    device = device_of("flash_attention_varlen_backward", *arrays, alibi_slopes, sinks, grad_lse)
    return _varlen.flash_attention_varlen_backward(
        device, *arrays, max_seqlen_q, max_seqlen_k,
        causal=causal, scale=scale, score_mod=score_mod, mask_mod=mask_mod, window_size=window_size, softcap=softcap,
        alibi_slopes=alibi_slopes, sinks=sinks, dropout_p=dropout_p, dropout_seed=dropout_seed,
        dropout_offset=dropout_offset, return_dsinks=return_dsinks, grad_lse=grad_lse,
    )  # fmt: skip


@overload
def flash_attention_with_kvcache(
    q: NDArray[FloatT], k_cache: NDArray[FloatT], v_cache: NDArray[FloatT], k: NDArray[FloatT] | None = ...,
    v: NDArray[FloatT] | None = ..., cache_seqlens: SupportsIndex | HostIntegers | None = ...,
    page_table: HostIntegers | None = ..., *, return_lse: Literal[False] = ..., **options: Unpack[HostCacheKeywords],
) -> NDArray[FloatT]: ...  # fmt: skip
@overload
def flash_attention_with_kvcache(
    q: NDArray[FloatT], k_cache: NDArray[FloatT], v_cache: NDArray[FloatT], k: NDArray[FloatT] | None = ...,
    v: NDArray[FloatT] | None = ..., cache_seqlens: SupportsIndex | HostIntegers | None = ...,
    page_table: HostIntegers | None = ..., *, return_lse: Literal[True], **options: Unpack[HostCacheKeywords],
) -> tuple[NDArray[FloatT], NDArray[np.float32]]: ...  # fmt: skip
@overload
def flash_attention_with_kvcache(
    q: FloatArray, k_cache: Tensor, v_cache: FloatArray, k: FloatArray | None = ..., v: FloatArray | None = ...,
    cache_seqlens: SupportsIndex | IntegersLike | None = ..., page_table: IntegersLike | None = ..., *,
    return_lse: Literal[False] = ..., **options: Unpack[CacheKeywords],
) -> Tensor: ...  # fmt: skip
@overload
def flash_attention_with_kvcache(
    q: FloatArray, k_cache: Tensor, v_cache: FloatArray, k: FloatArray | None = ..., v: FloatArray | None = ...,
    cache_seqlens: SupportsIndex | IntegersLike | None = ..., page_table: IntegersLike | None = ..., *,
    return_lse: Literal[True], **options: Unpack[CacheKeywords],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def flash_attention_with_kvcache(
    q: FloatArray, k_cache: FloatArray, v_cache: FloatArray, k: FloatArray | None = ..., v: FloatArray | None = ...,
    cache_seqlens: SupportsIndex | IntegersLike | None = ..., page_table: IntegersLike | None = ..., *,
    return_lse: bool = ..., **options: Unpack[CacheKeywords],
) -> Array | tuple[Array, Array]: ...  # fmt: skip
@_foreign.named(_foreign.CACHE_KEYWORDS)
def flash_attention_with_kvcache(
    q: FloatArray, k_cache: FloatArray, v_cache: FloatArray, k: FloatArray | None = None, v: FloatArray | None = None,
    cache_seqlens: SupportsIndex | IntegersLike | None = None, page_table: IntegersLike | None = None, *,
    rotary: tuple[FloatsLike, FloatsLike] | None = None, rotary_interleaved: bool = False, causal: bool = False,
    score_mod: ScoreFunction | None = None, mask_mod: MaskFunction | None = None,
    window_size: Sequence[int | None] | None = None, softcap: float = 0.0, alibi_slopes: FloatsLike | None = None,
    t5_table: FloatsLike | None = None, t5_bidirectional: bool = True, t5_max_distance: SupportsIndex = 128,
    sinks: FloatsLike | None = None, scale: float | None = None, return_lse: bool = False, kernel: str | None = None,
    precision: Precision = "highest",
) -> Array | tuple[Array, Array]:  # fmt: skip
    """Attend to a cache of keys and values, to which new ones may be added first: one step of decoding.

    The interface of flash-attn's function of this name: arrays are ``(B, S, H, D)``, and query i of a sample with n
    keys, new ones included, stands at key n - Sq + i. For few queries the keys are split as the device needs.

    Parameters
    ----------
    q : numpy.ndarray or grilly.Tensor
        ``(B, Sq, H, D)``; float32, float16 or bfloat16.
    k_cache, v_cache : numpy.ndarray or grilly.Tensor
        ``(B, S, Hk, D)`` and ``(B, S, Hk, Dv)`` with Hk a divisor of H; with ``page_table``
        ``(num_pages, page_size, Hk, D)`` and ``(num_pages, page_size, Hk, Dv)``. New keys and values are written into
        them: on the device into Tensors, which may be views; NumPy arrays travel to the device and back whole, so keep
        caches in Tensors. What lies past a sample's length is not read. Or ``k`` and ``v`` of a quantized
        ``grilly.nn.KVCache``, without ``page_table``.
    k, v : numpy.ndarray or grilly.Tensor, optional
        ``(B, Sn, Hk, D)`` and ``(B, Sn, Hk, Dv)``: new keys and values, put at ``cache_seqlens`` of each sample.
    cache_seqlens : int, numpy.ndarray or grilly.Tensor, optional
        Keys in the cache before the new ones, ``(B,)`` integers or one for all samples. None: the cache is full. A
        Tensor must be int32. The host does not read it, so it is not checked: a length is taken as the nearest from 0
        to S - Sn.
        The caller adds Sn to the lengths for the next step.
    page_table : numpy.ndarray or grilly.Tensor, optional
        ``(B, max_pages)`` integers: the page of each ``page_size`` keys of a sample. S is then max_pages * page_size.
        Entries past a sample's keys may be anything. A Tensor must be int32; an entry out of range in it is taken as
        the nearest page. Samples may share pages, but not those that new keys are written to.
    rotary : pair of arrays, optional
        Cosines and sines, ``(positions, P)`` with 2 P <= D (flash-attn's rotary_cos and rotary_sin): pair p of a new
        key at position t is rotated by the angle of row t, and so is a query: with ``causal`` or a window at position
        cache_seqlens + i, else at cache_seqlens (Su et al. 2021, arXiv:2104.09864). Needs k and v. Computed in
        float32, rounded to the arrays' dtype. Tensors save sending the tables at every call.
    rotary_interleaved : bool
        Whether pairs are elements 2 p and 2 p + 1 (flash-attn's default), and not p and p + P (as ``rope``).
    causal : bool
        Query i sees key j when ``j <= i + n - Sq``.
    score_mod, mask_mod : callable, optional
        As for ``flash_attention2``, functions of scalars: batch is the sample, key the position in its cache, and query
        that of the query, ``i + n - Sq``: negative where a sample has fewer keys than queries.
    window_size : (left, right), optional
        Query i sees keys from ``i + n - Sq - left`` to ``i + n - Sq + right``; None or -1 sets no bound.
    softcap : float
        Above 0: a scaled score s becomes ``softcap * tanh(s / softcap)``.
    alibi_slopes : array, optional
        ``(H,)`` or ``(B, H)`` float32: adds ``-slope * |i + n - Sq - j|``.
    t5_table : array, optional
        ``(num_buckets, H)`` float32: T5's learned bias for the distance ``j - (i + n - Sq)``.
    t5_bidirectional, t5_max_distance : bool, int
        With ``t5_table``, as for ``flash_attention2``; T5's decoder has False.
    sinks : array, optional
        ``(H,)`` float32: ``exp(sinks[h])`` is added to the sum of each row's weights.
    scale : float, optional
        ``1 / sqrt(D)`` by default.
    return_lse : bool
        Also return the log-sum-exp of each row's scores.
    kernel, precision : str
        As for ``flash_attention2``.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        ``(B, Sq, H, Dv)``, of q's dtype; a Tensor when any argument was one, and then without waiting. Rows with
        nothing to attend to are zeros. With ``return_lse`` a pair, the second float32 ``(B, H, Sq)``.

    Raises
    ------
    TypeError, ValueError
        For arrays and numbers that do not go together, new keys that do not fit and pages that are not there; before
        any device work, and with the caches as they were. Also for a block mask as ``mask_mod``.
    ExpressionError
        For a score_mod or mask_mod that cannot become a part of a kernel.
    UnsupportedError
        For 16-bit caches on a device without 16-bit storage, and paged caches beyond one binding of the device.
    """
    arrays = (q, k_cache, v_cache, k, v, cache_seqlens, page_table)
    tables = rotary if isinstance(rotary, (tuple, list)) else ()
    device = device_of("flash_attention_with_kvcache", *arrays, *tables, alibi_slopes, t5_table, sinks)
    return _kvcache.flash_attention_with_kvcache(
        device, *arrays, rotary=rotary, rotary_interleaved=rotary_interleaved,
        causal=causal, score_mod=score_mod, mask_mod=mask_mod, window_size=window_size, softcap=softcap,
        alibi_slopes=alibi_slopes, t5_table=t5_table, t5_bidirectional=t5_bidirectional,
        t5_max_distance=t5_max_distance, sinks=sinks, scale=scale, return_lse=return_lse, kernel=kernel,
        precision=precision,
    )  # fmt: skip
