"""The gradients of attention, with the whole score matrix in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .attention import finish_scores, problem, products, softmax, weigh
from .sums import exp, matmul


class Gradients(NamedTuple):
    """What `attention_backward` returns; each array has the shape of what it is the gradient of.

    Attributes
    ----------
    dq, dk, dv : ndarray
        Of the queries, keys and values.
    dbias : ndarray or None
        Of ``attn_bias``: summed along every axis along which that was broadcast.
    dsinks : ndarray or None
        Of ``sinks``, ``(H,)``.
    dt5_table : ndarray or None
        Of ``t5_table``, ``(num_buckets, H)``.
    """

    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    dbias: np.ndarray | None = None
    dsinks: np.ndarray | None = None
    dt5_table: np.ndarray | None = None


def attention_backward(
    grad_out: ArrayLike,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    scale: float | None = None,
    mask: ArrayLike | None = None,
    causal: bool = False,
    *,
    dtype: DTypeLike | None = None,
    grad_lse: ArrayLike | None = None,
    **options: Any,
) -> Gradients:
    """Gradients of ``sum(grad_out * naive_attention(q, k, v, ...)[0])``, and of ``sum(grad_lse * lse)`` added to it.

    With P the softmax's weights, Z dropout's factors and S the scores before the biases, scaled and capped at c::

        dV = (P Z)^T dO                  dP = (dO V^T) Z
        delta_i = sum_j P_ij dP_ij - dlse_i    dS = P (dP - delta)
        dU = dS (1 - (S / c)^2)          dQ = scale dU K        dK = scale dU^T Q

    where products of equally shaped arrays are element by element; dS is also the gradient of everything added to the
    scores, and a sink's is ``-sum_i exp(sink - lse_i) delta_i``. (Dao 2023, https://arxiv.org/abs/2307.08691, section
    2.2, without options.)

    Parameters
    ----------
    grad_out : array
        The output's gradient: ``(B, H, Sq, Dv)``, or with the same dimensions missing as q's.
    q, k, v, scale, mask, causal, dtype, **options
        As for `naive_attention`.
    grad_lse : array, optional
        The log-sum-exp's gradient: ``(B, H, Sq)``, or with the same dimensions missing as q's.

    Returns
    -------
    Gradients

    Raises
    ------
    ValueError, TypeError
        As for `naive_attention`, and if grad_out does not have the output's shape, or grad_lse that of lse.
    """
    p = problem(q, k, v, scale, mask, causal, dtype, options)
    out_shape = (*p.shape, p.v.shape[-1])
    grad = np.asarray(grad_out)
    if grad.shape != out_shape:
        raise ValueError(f"attention_backward: grad_out is {grad.shape}; expected the output's shape, {out_shape}")
    rules, kind = p.rules, p.q.dtype
    if grad_lse is not None and np.shape(grad_lse) != out_shape[:-1]:
        raise ValueError(
            f"attention_backward: grad_lse is {np.shape(grad_lse)}; expected lse's shape, {out_shape[:-1]}"
        )
    grad = grad.astype(kind, copy=False).reshape(*p.q.shape[:-1], out_shape[-1])
    capped = products(p, *p.all)
    scores = capped.copy() if rules.softcap else capped
    finish_scores(p, scores, *p.all)
    visible = scores != -np.inf
    weights, lse = softmax(scores, rules)
    factor = rules.dropout_factor(*p.all, kind)
    with np.errstate(invalid="ignore", over="ignore"):
        d_weights = matmul(grad, p.v.swapaxes(-1, -2))
        if factor is not None:
            d_weights *= factor
        np.copyto(d_weights, 0, where=~visible)
        delta = (weights * d_weights).sum(-1, keepdims=True)
        if grad_lse is not None:
            delta = delta - np.asarray(grad_lse, kind).reshape(delta.shape)
        d_scores = weights * (d_weights - delta)
        d_products = d_scores * kind.type(p.scale)
        if rules.softcap:
            d_products *= 1 - np.square(capped / kind.type(rules.softcap))
        np.copyto(d_products, 0, where=~visible)
    dq = weigh(d_products, visible, p.k)
    across = visible.swapaxes(-1, -2)
    dk = weigh(d_products.swapaxes(-1, -2), across, p.q).sum(2)
    dv = weigh((weights if factor is None else weights * factor).swapaxes(-1, -2), across, grad).sum(2)
    dsinks = None
    if rules.sinks is not None:
        with np.errstate(over="ignore"):  # rows past a length have no sink
            share = np.where(lse == -np.inf, 0, exp(rules.sinks.astype(kind) - lse))
        dsinks = -(share * delta[..., 0]).sum((0, 3)).reshape(-1)
    return Gradients(
        dq.reshape(np.shape(q)),
        dk.reshape(np.shape(k)),
        dv.reshape(np.shape(v)),
        None if rules.bias is None else _summed_to(d_scores, rules.bias.shape).reshape(np.shape(options["attn_bias"])),
        dsinks,
        None if rules.table is None else _of_table(d_scores, rules.buckets(*p.all), rules.table.shape),
    )


def _summed_to(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The sum along every axis that ``shape`` has only one of."""
    axes = tuple(i for i, n in enumerate(shape) if n == 1 and array.shape[i] != 1)
    return array.sum(axes, keepdims=True)


def _of_table(d_scores: np.ndarray, buckets: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """The gradient of a T5 table: each score's goes to its bucket and head."""
    out = np.zeros(shape, d_scores.dtype)
    heads = np.arange(shape[1]).reshape(*d_scores.shape[1:3], 1, 1)
    np.add.at(out, (np.broadcast_to(buckets, d_scores.shape), np.broadcast_to(heads, d_scores.shape)), d_scores)
    return out
