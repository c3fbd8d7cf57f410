"""Rotary positions, and the projections around attention."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .activations import activation as _activation
from .activations import gated as _gated
from .attention import attention_weights, common_dtype, naive_attention
from .norms import rms_norm
from .rotary_scaling import rope_scaling
from .sums import matmul


def rope_frequencies(
    dim: int,
    base: float = 10000.0,
    scaling: dict[str, Any] | None = None,
    length: int = 0,
    max_seq_len: int | None = None,
) -> np.ndarray:
    """The angle by which each pair of dimensions turns per position, in radians, float64, ``(dim / 2,)``.

    ``base ** (-2 i / dim)``, changed by ``scaling``: the first of what `rope_scaling` gives, which has the formulas.

    Raises
    ------
    ValueError
        As `rope_scaling`.
    """
    return rope_scaling(dim, base, scaling, length, max_seq_len)[0]


def rope(
    x: ArrayLike,
    *,
    offset: int = 0,
    positions: ArrayLike | None = None,
    base: float = 10000.0,
    interleaved: bool = False,
    scaling: dict[str, Any] | None = None,
    max_seq_len: int | None = None,
    dim: int | None = None,
    dtype: DTypeLike | None = None,
) -> np.ndarray:
    """Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864).

    Pair i of the first ``dim`` elements turns by ``position * rope_frequencies(...)[i]`` and is multiplied by the scale
    that `rope_scaling` gives; the rest are left alone.
    Pairs are elements ``i`` and ``i + dim / 2`` (LLaMA, GPT-NeoX), or ``2 i`` and ``2 i + 1`` when ``interleaved``
    (GPT-J, the paper). Angles are computed in float64.

    Parameters
    ----------
    x : array
        ``(..., S, D)``.
    offset : int
        The position of the first row.
    positions : array of int, optional
        Positions ``(S,)`` or ``(B, S)``, instead of ``offset + arange(S)``.
    base, interleaved, scaling, max_seq_len
        As for `rope_scaling` and above.
    dim : int, optional
        How many elements of each row are turned; D by default.
    dtype : dtype, optional
        What to compute and return; x's by default, and float32 for bfloat16.

    Returns
    -------
    ndarray
        x's shape.
    """
    x = np.asarray(x)
    x = x.astype(common_dtype(x) if dtype is None else dtype)  # a copy: written below
    dim = x.shape[-1] if dim is None else dim
    positions = np.arange(x.shape[-2]) + offset if positions is None else np.asarray(positions)
    length = int(positions.max(initial=-1)) + 1
    frequencies, scale = rope_scaling(dim, base, scaling, length, max_seq_len)
    angles = positions[..., None].astype(np.float64) * frequencies
    if positions.ndim == 2:
        angles = angles.reshape(len(positions), *(1,) * (x.ndim - 3), *angles.shape[1:])
    cos, sin = (scale * np.cos(angles)).astype(x.dtype), (scale * np.sin(angles)).astype(x.dtype)
    first, second = (slice(0, dim, 2), slice(1, dim, 2)) if interleaved else (slice(0, dim // 2), slice(dim // 2, dim))
    a, b = x[..., first].copy(), x[..., second].copy()
    x[..., first] = a * cos - b * sin
    x[..., second] = b * cos + a * sin
    return x


def linear(
    input: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    activation: str | None = None,
    gated: bool = False,
    residual: ArrayLike | None = None,
    norm_weight: ArrayLike | None = None,
    norm_eps: float | None = None,
    norm_offset: float = 0.0,
    dtype: DTypeLike | None = None,
) -> np.ndarray:
    """``activation(input @ weight.T + bias) + residual``, with an activation of `activation`'s.

    input is ``(..., n)``, weight ``(m, n)``, bias ``(m,)``, and the result ``(..., m)``. Where ``gated``, the
    activation is of the first half of the columns and multiplied by the second: ``(..., m / 2)``. With a norm_weight
    ``(n,)`` input stands for its `rms_norm`.
    """
    x, weight = np.asarray(input), np.asarray(weight)
    dtype = common_dtype(x, weight) if dtype is None else np.dtype(dtype)
    if norm_weight is not None:
        x = rms_norm(x, x.shape[-1:], norm_weight, norm_eps, norm_offset, dtype=dtype)
    out = matmul(x.astype(dtype, copy=False), weight.astype(dtype, copy=False).T)
    if bias is not None:
        out = out + np.asarray(bias, dtype)
    if gated:
        out = _gated(activation or "", *np.split(out, 2, -1))
    elif activation is not None:
        out = _activation(activation, out)
    return out if residual is None else out + np.asarray(residual, dtype)


def multihead(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    num_heads: int,
    weights: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike],
    biases: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike] | None = None,
    *,
    scale: float | None = None,
    mask: ArrayLike | None = None,
    causal: bool = False,
    bias: ArrayLike | None = None,
    need_weights: bool = True,
    dtype: DTypeLike | None = None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Multi-head attention with its four projections (Vaswani et al. 2017, section 3.2.2).

    Parameters
    ----------
    query, key, value : array
        ``(B, Sq, E)``, ``(B, Sk, kdim)`` and ``(B, Sk, vdim)``, or without B.
    num_heads : int
        H.
    weights, biases : tuple of four arrays
        Of the projections of query, key, value and output: ``(H * D, E)``, ..., ``(E, H * D)`` and ``(H * D,)``, ...
    scale, mask, causal, dtype
        As for `naive_attention`.
    bias : array, optional
        Added to the scores, broadcastable to ``(B, H, Sq, Sk)``.
    need_weights : bool
        Whether to return the attention weights too.

    Returns
    -------
    output : ndarray
        ``(B, Sq, E)``.
    weights : ndarray or None
        ``(B, H, Sq, Sk)``.
    """

    def heads(x, i):
        y = linear(x, weights[i], None if biases is None else biases[i], dtype=dtype)
        return np.moveaxis(y.reshape(*y.shape[:-1], num_heads, -1), -2, -3)

    q, k, v = heads(query, 0), heads(key, 1), heads(value, 2)
    output, _ = naive_attention(q, k, v, scale, mask, causal, attn_bias=bias)
    output = np.moveaxis(output, -3, -2)
    output = output.reshape(*output.shape[:-2], -1)
    output = linear(output, weights[3], None if biases is None else biases[3], dtype=dtype)
    return output, None if not need_weights else attention_weights(
        q, k, scale=scale, mask=mask, causal=causal, attn_bias=bias
    )
