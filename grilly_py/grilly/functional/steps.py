"""Attention in single steps, whose scores and weights are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex, overload

import numpy as np

from ..compute.attention import foreign as _foreign
from ..compute.backend import device_of
from ..compute.device.arrays import Architecture, Array, Float32Array, FloatArray, FloatT, HostMask, MaskArray, NDArray
from ..compute.device.tensor import Tensor
from ..compute.unfused import dropout as _dropout
from ..compute.unfused import mask as _mask
from ..compute.unfused import output as _output
from ..compute.unfused import scores as _scores
from ..compute.unfused import t5_bias as _t5_bias


@overload
def attention_scores(q: NDArray[FloatT], k: NDArray[FloatT], *, scale: float | None = ...) -> NDArray[np.float32]: ...
@overload
def attention_scores(q: Tensor, k: FloatArray, *, scale: float | None = ...) -> Tensor: ...
@overload
def attention_scores(q: FloatArray, k: FloatArray, *, scale: float | None = ...) -> Float32Array: ...
@_foreign.named(_foreign.STEP_KEYWORDS["attention_scores"])
def attention_scores(q: FloatArray, k: FloatArray, *, scale: float | None = None) -> Float32Array:
    """``scale * q k^T``.

    Parameters
    ----------
    q : numpy.ndarray or grilly.Tensor
        ``(B, H, Sq, D)``, ``(H, Sq, D)`` or ``(Sq, D)``; float32, float16 or bfloat16.
    k : numpy.ndarray or grilly.Tensor
        ``(B, H_kv, Sk, D)``, of q's rank and dtype; H_kv divides H.
    scale : float, optional
        ``1 / sqrt(D)`` when None.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        ``(B, H, Sq, Sk)`` (less the axes that q lacks), float32.

    Raises
    ------
    TypeError
        For dtypes other than float32, float16 and bfloat16, or differing ones.
    ValueError
        For shapes that do not go together, or a scale that is not finite.
    """
    return _scores.attention_scores(device_of("attention_scores", q, k), q, k, scale=scale)


@overload
def attention_mask(
    scores: NDArray[np.float32], *, mask: HostMask | None = ..., causal: bool = ...
) -> NDArray[np.float32]: ...
@overload
def attention_mask(scores: Tensor, *, mask: MaskArray | None = ..., causal: bool = ...) -> Tensor: ...
@overload
def attention_mask(scores: Float32Array, *, mask: MaskArray | None = ..., causal: bool = ...) -> Float32Array: ...
@_foreign.named(_foreign.STEP_KEYWORDS["attention_mask"])
def attention_mask(scores: Float32Array, *, mask: MaskArray | None = None, causal: bool = False) -> Float32Array:
    """The scores with minus infinity where a query may not attend, and an additive mask added elsewhere.

    Parameters
    ----------
    scores : numpy.ndarray or grilly.Tensor
        ``(B, H, Sq, Sk)``, ``(H, Sq, Sk)`` or ``(Sq, Sk)``, float32.
    mask : numpy.ndarray or grilly.Tensor, optional
        Broadcastable to ``(B, H, Sq, Sk)``. Boolean: True = attend. Floating: added; minus infinity and the lowest
        finite number mean "never attend".
    causal : bool
        Query i attends to key j only where ``j <= i + Sk - Sq`` (the bottom right is aligned).

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        A new array of the scores' shape.

    Raises
    ------
    TypeError
        If the scores are not float32, or the mask neither boolean nor floating.
    ValueError
        For a wrong rank, or a mask that does not broadcast.
    """
    return _mask.attention_mask(device_of("attention_mask", scores, mask), scores, mask=mask, causal=causal)


@overload
def t5_bias(
    scores: NDArray[np.float32], table: NDArray[np.float32], *, bidirectional: bool = ...,
    max_distance: SupportsIndex = ..., offset: SupportsIndex = ...,
) -> NDArray[np.float32]: ...  # fmt: skip
@overload
def t5_bias(
    scores: Tensor, table: Float32Array, *, bidirectional: bool = ..., max_distance: SupportsIndex = ...,
    offset: SupportsIndex = ...,
) -> Tensor: ...  # fmt: skip
@overload
def t5_bias(
    scores: Float32Array, table: Float32Array, *, bidirectional: bool = ..., max_distance: SupportsIndex = ...,
    offset: SupportsIndex = ...,
) -> Float32Array: ...  # fmt: skip
def t5_bias(
    scores: Float32Array, table: Float32Array, *, bidirectional: bool = True, max_distance: SupportsIndex = 128,
    offset: SupportsIndex = 0,
) -> Float32Array:  # fmt: skip
    """The scores plus T5's relative position bias, ``scores[., h, i, j] + table[bucket(j - i - offset), h]``.

    Per direction, the first half of the buckets hold one distance each and the others are logarithmically wider up to
    ``max_distance``, beyond which all is alike. `grilly.reference.t5_bucket` has the formula.

    Parameters
    ----------
    scores : numpy.ndarray or grilly.Tensor
        ``(B, H, Sq, Sk)``, ``(H, Sq, Sk)`` or ``(Sq, Sk)``, float32. T5 does not scale them.
    table : numpy.ndarray or grilly.Tensor
        ``(num_buckets, H)``, float32: ``relative_attention_bias.weight``.
    bidirectional : bool
        Whether keys after the query have buckets of their own (an encoder's); otherwise they share bucket 0.
    max_distance : int
        More than the number of buckets with one distance each.
    offset : int
        The position of the first query among the keys: ``Sk - Sq`` when earlier keys come from a cache.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        A new array of the scores' shape.

    Raises
    ------
    TypeError
        If an array is not float32.
    ValueError
        For shapes that do not go together, too few buckets, or a ``max_distance`` too small.

    References
    ----------
    C. Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", 2020,
    arXiv:1910.10683, section 2.1.
    """
    return _t5_bias.t5_bias(
        device_of("t5_bias", scores, table), scores, table,
        bidirectional=bidirectional, max_distance=max_distance, offset=offset,
    )  # fmt: skip


@overload
def attention_dropout(
    weights: NDArray[np.float32], *, dropout_p: float, dropout_seed: SupportsIndex, dropout_offset: SupportsIndex = ...
) -> NDArray[np.float32]: ...
@overload
def attention_dropout(
    weights: Tensor, *, dropout_p: float, dropout_seed: SupportsIndex | Tensor, dropout_offset: SupportsIndex = ...
) -> Tensor: ...
def attention_dropout(
    weights: Float32Array, *, dropout_p: float, dropout_seed: SupportsIndex | Tensor, dropout_offset: SupportsIndex = 0
) -> Float32Array:
    """Attention weights with some of them dropped: each is 0 with probability p, or else divided by ``1 - p``.

    Which ones depends on seed, offset, row, key, head and batch alone, by a counter-based generator: the same on every
    device, and the same as in attention that does not store its weights.

    Parameters
    ----------
    weights : numpy.ndarray or grilly.Tensor
        ``(B, H, Sq, Sk)``, ``(H, Sq, Sk)`` or ``(Sq, Sk)``, float32.
    dropout_p : float
        p, at least 0 and below 1.
    dropout_seed : int or grilly.Tensor
        From 0 to 2**64 - 1; or a Tensor of one integer, which the device reads.
    dropout_offset : int
        From 0 to 2**32 - 1; another one for each call gives each call weights of its own to drop.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        A new array of the weights' shape.

    Raises
    ------
    TypeError
        If the weights are not float32.
    ValueError
        For a wrong rank, or p, seed or offset outside their ranges.

    References
    ----------
    J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011: Philox4x32-10.
    """
    return _dropout.attention_dropout(
        device_of("attention_dropout", weights), weights,
        dropout_p=dropout_p, dropout_seed=dropout_seed, dropout_offset=dropout_offset,
    )  # fmt: skip


def dropout_mask(
    shape: Sequence[SupportsIndex], dropout_p: float, seed: SupportsIndex, offset: SupportsIndex = 0
) -> NDArray[np.bool_]:
    """Which attention weights dropout keeps: the same on every device and with every kernel.

    Parameters
    ----------
    shape : tuple of int
        ``(B, H, Sq, Sk)``, H query heads.
    dropout_p : float
        The probability to drop a weight, at least 0 and below 1.
    seed, offset : int
        ``dropout_seed`` (64 bits) and ``dropout_offset`` (32 bits) of the attention functions.

    Returns
    -------
    numpy.ndarray
        ``shape``, bool: True = kept. For ``flash_attention_varlen`` sequence b has the first n_q rows and n_kv keys of
        ``mask[b]``.

    Raises
    ------
    TypeError, ValueError
        For a shape that is not four integers from 0 up, and numbers out of range.

    References
    ----------
    The generator is Philox4x32-10: J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011,
    doi:10.1145/2063384.2063405. A number of 16 bits decides on key j of row i: it is kept where that is below
    ``floor((1 - dropout_p) * 2**16)``, so a probability is met to 2**-16. Its upper byte is byte j % 4, the lowest
    first, of word j // 4 % 4 of counter ``(j // 16, i, h + H * b, offset)`` under the key (low half of the seed, high
    half), its lower byte that byte of the next word, the first after the last. So one draw decides on sixteen keys;
    the decisions on two of them four or twelve apart are correlated by at most 1/256, all others are independent.
    """
    return _dropout.dropout_mask(device_of("dropout_mask"), shape, dropout_p, seed, offset)


@overload
def attention_output(
    weights: NDArray[np.float32], v: NDArray[FloatT], *, architecture: Architecture = ...
) -> NDArray[FloatT]: ...
@overload
def attention_output(weights: Tensor, v: FloatArray, *, architecture: Architecture = ...) -> Tensor: ...
@overload
def attention_output(weights: Float32Array, v: FloatArray, *, architecture: Architecture = ...) -> Array: ...
def attention_output(weights: Float32Array, v: FloatArray, *, architecture: Architecture = "generic") -> Array:
    """The weighted sum of values, ``weights v``. A weight of exactly 0 keeps its value out, even NaN.

    Parameters
    ----------
    weights : numpy.ndarray or grilly.Tensor
        ``(B, H, Sq, Sk)``, ``(H, Sq, Sk)`` or ``(Sq, Sk)``, float32.
    v : numpy.ndarray or grilly.Tensor
        ``(B, H_kv, Sk, D)``, of the weights' rank; float32, float16 or bfloat16; H_kv divides H.
    architecture : str
        "generic"; "gpt": causal and autoregressive: query i never reads weights or values past key ``i + Sk - Sq``, the
        first ``Sk - Sq`` keys being cached ones; "t5": the heads of a query lie side by side in memory, so that joining
        them, ``(B, Sq, H * D)``, is a view; H * D need not be the model's width.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        ``(B, H, Sq, D)`` (less the axes that the weights lack), of v's dtype.

    Raises
    ------
    TypeError
        If the weights are not float32, or v neither float32, float16 nor bfloat16.
    ValueError
        For an unknown architecture, or shapes that do not go together.
    UnsupportedError
        For more keys than the device's kernel takes.
    """
    device = device_of("attention_output", weights, v)
    return _output.attention_output(device, weights, v, architecture=architecture)
