"""The naive and the tiled attention; the rules are in the package's own documentation."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .options import Options, Rules
from .sums import exp, log, matmul, tanh


def common_dtype(*arrays: np.ndarray) -> np.dtype:
    """What to compute in by default: the arrays' common dtype; float32 for bfloat16, which NumPy cannot multiply."""
    dtype = np.result_type(*arrays)
    return np.dtype(np.float32) if dtype.name == "bfloat16" else dtype


class Problem(NamedTuple):
    """Inputs brought to a common form: q ``(B, Hk, G, Sq, D)``, k and v ``(B, Hk, 1, Sk, ...)``, G = H / Hk."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scale: float
    rules: Rules
    shape: tuple[int, ...]  # of the result, without the last dimension

    @property
    def all(self) -> tuple[slice, slice]:
        """Every row and every key."""
        return slice(0, self.q.shape[-2]), slice(0, self.k.shape[-2])


def problem(q, k, v, scale, mask, causal, dtype, options) -> Problem:
    """Checked inputs in a common form and in the dtype to compute in."""
    q, k, v = np.asarray(q), np.asarray(k), np.asarray(v)
    if not (q.ndim == k.ndim == v.ndim and 2 <= q.ndim <= 4):
        raise ValueError(f"attention: q, k, v need the same 2, 3 or 4 dimensions, got {q.shape}, {k.shape}, {v.shape}")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"attention: q has head dimension {q.shape[-1]} and k has {k.shape[-1]}; they must be equal")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"attention: k is {k.shape} and v is {v.shape}; all but the last dimension must be equal")
    dtype = common_dtype(q, k, v) if dtype is None else np.dtype(dtype)
    shape = q.shape[:-1]
    q, k, v = (a.astype(dtype, copy=False).reshape((1,) * (4 - a.ndim) + a.shape) for a in (q, k, v))
    batch, heads, queries, width = q.shape
    key_heads, keys = k.shape[1:3]
    if k.shape[0] != batch or key_heads == 0 or heads % key_heads:
        raise ValueError(f"attention: k has {key_heads} heads and q has {heads}; q's must be a multiple")
    return Problem(
        q.reshape(batch, key_heads, heads // key_heads, queries, width),
        k[:, :, None],
        v[:, :, None],
        1.0 / math.sqrt(width) if scale is None else float(scale),
        Rules(Options(**options), mask, causal, (batch, heads, queries, keys), key_heads),
        shape,
    )


def products(p: Problem, rows: slice, keys: slice) -> np.ndarray:
    """Scores of a block before anything is added or hidden."""
    with np.errstate(invalid="ignore", over="ignore"):
        scores = matmul(p.q[..., rows, :], np.swapaxes(p.k[..., keys, :], -1, -2))
        scores *= scores.dtype.type(p.scale)
        if p.rules.softcap:
            cap = scores.dtype.type(p.rules.softcap)
            scores = np.multiply(tanh(scores / cap), cap, out=scores)
    return scores


def finish_scores(p: Problem, scores: np.ndarray, rows: slice, keys: slice) -> int:
    """Add and hide what the options say, in place, and return the bytes of all arrays of the block's size."""
    used = scores.nbytes
    with np.errstate(invalid="ignore", over="ignore"):
        for term in p.rules.given(rows, keys):
            scores += term
        for term in p.rules.positional(rows, keys, scores.dtype):
            scores += term
            used += term.nbytes
        for never in p.rules.hidden(rows, keys):
            np.copyto(scores, -np.inf, where=never)
            used += never.nbytes
    return used


def weigh(weights: np.ndarray, visible: np.ndarray, v: np.ndarray) -> np.ndarray:
    """``weights @ v`` in which a value that is not visible counts as nothing, even if it is NaN or infinite."""
    finite = np.isfinite(v)
    if finite.all():
        return matmul(weights, v)
    with np.errstate(invalid="ignore"):
        out = matmul(weights, np.where(finite, v, 0))
        rest = np.where(finite, 0, v)
        for j in np.flatnonzero(~finite.all(axis=(0, 1, 2, 4))):
            out += np.where(visible[..., j, None], weights[..., j, None] * rest[..., j, None, :], 0)
    return out


# ------------------------------------------------------------------------------------------------------------ attention


def attention_weights(
    q: ArrayLike,
    k: ArrayLike,
    *,
    scale: float | None = None,
    mask: ArrayLike | None = None,
    causal: bool = False,
    dtype: DTypeLike | None = None,
    **options: Any,
) -> np.ndarray:
    """Softmax of the scores: ``(..., H, Sq, Sk)``, each row summing to 1, or all zeros where nothing is attended to.

    With sinks a row sums to less than 1, and with dropout it is what the values are multiplied with. Parameters are
    those of `naive_attention`.
    """
    p = problem(q, k, np.asarray(k)[..., :0], scale, mask, causal, dtype, options)
    scores = products(p, *p.all)
    finish_scores(p, scores, *p.all)
    weights, _ = softmax(scores, p.rules)
    factor = p.rules.dropout_factor(*p.all, weights.dtype)
    if factor is not None:
        weights *= factor
    return weights.reshape(*p.shape, p.k.shape[-2])


def softmax(scores: np.ndarray, rules: Rules) -> tuple[np.ndarray, np.ndarray]:
    """Softmax over the last dimension with the rules' sinks, in place, and its log-sum-exp."""
    sinks = None if rules.sinks is None else rules.sinks[..., None].astype(scores.dtype)
    with np.errstate(invalid="ignore", divide="ignore"):
        top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        if sinks is not None:
            top = np.maximum(top, sinks)
        top[top == -np.inf] = 0  # a row with nothing to attend to
        np.subtract(scores, top, out=scores)
        weights = exp(scores, out=scores)
        total = weights.sum(axis=-1, keepdims=True)
        if sinks is not None:
            total += exp(sinks - top)
        lse = log(total) + top
        weights /= np.where(total == 0, 1, total)
    lse = lse[..., 0]
    if rules.nonexistent() is not None:
        np.copyto(lse, -np.inf, where=rules.nonexistent())
    return weights, lse


def naive_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    scale: float | None = None,
    mask: ArrayLike | None = None,
    causal: bool = False,
    *,
    return_lse: bool = False,
    dtype: DTypeLike | None = None,
    **options: Any,
) -> tuple[Any, ...]:
    """Attention with the whole score matrix in memory: ``softmax(scale * q k^T + biases + mask) v``.

    Parameters
    ----------
    q : array
        Queries, ``(B, H, Sq, D)``, ``(H, Sq, D)`` or ``(Sq, D)``.
    k, v : array
        Keys ``(B, Hk, Sk, D)`` and values ``(B, Hk, Sk, Dv)``, or with the same dimensions missing as q's.
    scale : float, optional
        Multiplies ``q k^T``; ``1 / sqrt(D)`` by default.
    mask : array, optional
        Boolean (True = attend) or floating (added), broadcastable to ``(B, H, Sq, Sk)``.
    causal : bool
        Query i sees key j only when ``j <= i + Sk - Sq``.
    return_lse : bool
        Also return the log-sum-exp of each row of scores, ``(B, H, Sq)``.
    dtype : dtype, optional
        What to compute and return; the inputs' dtype by default, and float32 for bfloat16.
    **options
        The attributes of `Options`.

    Returns
    -------
    output : ndarray
        ``(B, H, Sq, Dv)``, or with the same dimensions missing as q's.
    nbytes : int
        Bytes of every array with a row for each query and a column for each key that was made on the way: the scores
        (which become the weights in place), what is added to them, the boolean masks selected with, and dropout's
        factors.
    lse : ndarray
        Only with ``return_lse=True``.

    Raises
    ------
    ValueError
        If the shapes do not fit together, or an option has no meaning.
    TypeError
        If the mask is neither boolean nor floating, or there is no such option.
    """
    p = problem(q, k, v, scale, mask, causal, dtype, options)
    scores = products(p, *p.all)
    nbytes = finish_scores(p, scores, *p.all)
    finite = np.isfinite(p.v).all()
    visible = scores if finite else scores != -np.inf
    nbytes += 0 if finite else visible.nbytes
    weights, lse = softmax(scores, p.rules)
    factor = p.rules.dropout_factor(*p.all, weights.dtype)
    if factor is not None:
        weights *= factor
        nbytes += factor.nbytes
    output = weigh(weights, visible, p.v).reshape(*p.shape, p.v.shape[-1])
    return (output, nbytes, lse.reshape(p.shape)) if return_lse else (output, nbytes)


class RunningState(NamedTuple):
    """The running statistics of the online softmax over the keys seen so far (Milakov and Gimelshein 2018).

    `update` takes one more block of keys in; `finish` gives the result. The flash kernels keep exactly this in
    registers, one state per query row.

    Attributes
    ----------
    max_val : ndarray
        ``(..., Sq)``, the largest score so far; minus infinity before the first visible key.
    sum_exp : ndarray
        ``(..., Sq)``, the sum of ``exp(score - max_val)``.
    output : ndarray
        ``(..., Sq, Dv)``, the sum of ``exp(score - max_val) * value``: not yet divided by ``sum_exp``.
    """

    max_val: np.ndarray
    sum_exp: np.ndarray
    output: np.ndarray

    @classmethod
    def start(
        cls, shape: tuple[int, ...], value_dim: int, dtype: DTypeLike = np.float32, sinks: np.ndarray | None = None
    ) -> RunningState:
        """The state before any key, for query rows of shape ``shape``; ``sinks`` broadcasts to it."""
        output = np.zeros((*shape, value_dim), dtype)
        if sinks is None:
            return cls(np.full(shape, -np.inf, dtype), np.zeros(shape, dtype), output)
        top = np.broadcast_to(sinks, shape).astype(dtype)  # a sink is a key already seen, whose value is zero
        return cls(top, (top > -np.inf).astype(dtype), output)

    def update(self, scores: np.ndarray, values: np.ndarray, factor: np.ndarray | None = None) -> RunningState:
        """The state after one more block.

        Parameters
        ----------
        scores : ndarray
            ``(..., Sq, n)``, scaled and masked; minus infinity where a query does not see a key. Overwritten.
        values : ndarray
            ``(..., n, Dv)``.
        factor : ndarray, optional
            ``(..., Sq, n)``, what dropout multiplies the weights with.
        """
        with np.errstate(invalid="ignore", over="ignore"):
            max_val = np.maximum(self.max_val, scores.max(axis=-1, initial=-np.inf))
            top = np.where(max_val == -np.inf, 0, max_val)  # so that exp(-inf - top) is 0, not NaN
            correction = exp(self.max_val - top)
            visible = scores if np.isfinite(values).all() else scores != -np.inf
            np.subtract(scores, top[..., None], out=scores)
            weights = exp(scores, out=scores)
            sum_exp = self.sum_exp * correction + weights.sum(axis=-1)
            if factor is not None:
                weights *= factor
            output = self.output * correction[..., None] + weigh(weights, visible, values)
        return RunningState(max_val, sum_exp, output)

    def finish(self) -> tuple[np.ndarray, np.ndarray]:
        """The attention's output ``(..., Sq, Dv)`` and log-sum-exp ``(..., Sq)``."""
        with np.errstate(divide="ignore"):
            total = np.where(self.sum_exp == 0, 1, self.sum_exp)
            return self.output / total[..., None], log(self.sum_exp) + np.where(self.sum_exp == 0, 0, self.max_val)


def merge(
    output_a: np.ndarray, lse_a: np.ndarray, output_b: np.ndarray, lse_b: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Attention over two disjoint sets of keys, from the result over each: what the kernels' MERGE constant does.

    Parameters
    ----------
    output_a, output_b : ndarray
        ``(..., Sq, Dv)``.
    lse_a, lse_b : ndarray
        ``(..., Sq)``, minus infinity where nothing was attended to.

    Returns
    -------
    output, lse : ndarray
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        top = np.maximum(lse_a, lse_b)
        top = np.where(top == -np.inf, 0, top)
        a, b = exp(lse_a - top), exp(lse_b - top)
        total = np.where(a + b == 0, 1, a + b)
        output = output_a * (a / total)[..., None] + output_b * (b / total)[..., None]
        return output, log(a + b) + top


def flash_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    scale: float | None = None,
    mask: ArrayLike | None = None,
    causal: bool = False,
    *,
    block_q: int = 512,
    block_k: int = 512,
    return_lse: bool = False,
    dtype: DTypeLike | None = None,
    **options: Any,
) -> Any:
    """The same attention without the score matrix: tiles of ``block_q`` x ``block_k`` and the online softmax.

    The algorithm is that of FlashAttention-2 (Dao 2023, https://arxiv.org/abs/2307.08691): for each block of queries,
    walk over the blocks of keys with a `RunningState`, and divide once at the end. Beyond the inputs and the output it
    holds ``block_q * block_k`` scores for each head.

    Parameters
    ----------
    q, k, v, scale, mask, causal, return_lse, dtype, **options
        As for `naive_attention`.
    block_q, block_k : int
        Queries and keys in a tile, at least 1.

    Returns
    -------
    output : ndarray
        ``(B, H, Sq, Dv)``, or with the same dimensions missing as q's.
    lse : ndarray
        ``(B, H, Sq)``; only with ``return_lse=True``.

    Raises
    ------
    ValueError, TypeError
        As for `naive_attention`, and for a block smaller than 1.
    """
    if block_q < 1 or block_k < 1:
        raise ValueError(f"flash_attention: blocks of {block_q} x {block_k}; both must be at least 1")
    p = problem(q, k, v, scale, mask, causal, dtype, options)
    queries, keys, width = p.q.shape[-2], p.k.shape[-2], p.v.shape[-1]
    output = np.zeros((*p.q.shape[:-1], width), p.q.dtype)
    lse = np.full(p.q.shape[:-1], -np.inf, p.q.dtype)
    for i in range(0, queries, block_q):
        rows = slice(i, min(i + block_q, queries))
        state = RunningState.start((*p.q.shape[:-2], rows.stop - i), width, p.q.dtype, p.rules.sinks)
        for j in range(0, p.rules.last(rows), block_k):
            block = slice(j, min(j + block_k, keys))
            scores = products(p, rows, block)
            finish_scores(p, scores, rows, block)
            state = state.update(scores, p.v[..., block, :], p.rules.dropout_factor(rows, block, scores.dtype))
        output[..., rows, :], lse[..., rows] = state.finish()
    if p.rules.nonexistent() is not None:
        np.copyto(lse, -np.inf, where=p.rules.nonexistent())
    output = output.reshape(*p.shape, width)
    return (output, lse.reshape(p.shape)) if return_lse else output
