"""Sequences of many lengths, one after the other in the same arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .attention import naive_attention
from .backward import Gradients, attention_backward


def attention_varlen(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    *,
    scale: float | None = None,
    causal: bool = False,
    return_lse: bool = False,
    dtype: DTypeLike | None = None,
    **options: Any,
) -> Any:
    """Attention within each of the sequences that lie packed in q, k and v.

    Sequence b has the queries ``cu_seqlens_q[b]`` up to ``cu_seqlens_q[b + 1]`` and the keys ``cu_seqlens_k[b]`` up to
    ``cu_seqlens_k[b + 1]``, and attends as if it were sample b of a batch with its own Sq and Sk; for dropout too, rows
    and keys are counted within the sequence.

    Parameters
    ----------
    q : array
        ``(total_q, H, D)``.
    k, v : array
        ``(total_k, Hk, D)`` and ``(total_k, Hk, Dv)``.
    cu_seqlens_q, cu_seqlens_k : array of int
        ``(B + 1,)``, from 0 to total_q and total_k, nowhere falling.
    scale, causal, dtype
        As for `naive_attention`.
    return_lse : bool
        Also return the log-sum-exp of each row of scores.
    **options
        Of `Options`: alibi_slopes (``(H,)`` or ``(B, H)``), t5_table and what belongs to it, softcap, sinks,
        window_size, and those of dropout.

    Returns
    -------
    output : ndarray
        ``(total_q, H, Dv)``.
    lse : ndarray
        ``(H, total_q)``; only with ``return_lse=True``.

    Raises
    ------
    ValueError, TypeError
        As for `naive_attention`, and for cumulative lengths that are no such thing.
    """
    padded, rows, _, options = _problem("attention_varlen", (q, k, v), (cu_seqlens_q, cu_seqlens_k), options)
    output, _, lse = naive_attention(*padded, scale, None, causal, return_lse=True, dtype=dtype, **options)
    output, lse = output.swapaxes(1, 2)[rows], lse.swapaxes(1, 2)[rows].T
    return (output, lse) if return_lse else output


def attention_varlen_backward(
    grad_out: ArrayLike,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    *,
    scale: float | None = None,
    causal: bool = False,
    dtype: DTypeLike | None = None,
    **options: Any,
) -> Gradients:
    """Gradients of ``sum(grad_out * attention_varlen(q, k, v, ...))``.

    Parameters
    ----------
    grad_out : array
        ``(total_q, H, Dv)``.
    q, k, v, cu_seqlens_q, cu_seqlens_k, scale, causal, dtype, **options
        As for `attention_varlen`.

    Returns
    -------
    Gradients
        dq ``(total_q, H, D)``, dk ``(total_k, Hk, D)`` and dv ``(total_k, Hk, Dv)``.

    Raises
    ------
    ValueError, TypeError
        As for `attention_varlen`, and if grad_out does not have the output's shape.
    """
    starts = (cu_seqlens_q, cu_seqlens_k)
    padded, rows, keys, options = _problem("attention_varlen_backward", (q, k, v), starts, options)
    grad = np.asarray(grad_out)
    shape = (*np.shape(q)[:2], np.shape(v)[2])
    if grad.shape != shape:
        raise ValueError(f"attention_varlen_backward: grad_out is {grad.shape}; expected the output's shape, {shape}")
    first = np.asarray(cu_seqlens_q)
    found = attention_backward(
        _padded(grad, first, np.diff(first)), *padded, scale, None, causal, dtype=dtype, **options
    )
    of_rows = {"dq": rows, "dk": keys, "dv": keys}
    return found._replace(**{name: getattr(found, name).swapaxes(1, 2)[which] for name, which in of_rows.items()})


def _problem(
    name: str, arrays: tuple[ArrayLike, ...], starts: tuple[ArrayLike, ...], options: dict[str, Any]
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, dict[str, Any]]:
    """q, k and v as a padded batch, which of its rows and keys belong to a sequence (B, S), and the options for it."""
    q, k, v = (np.asarray(array) for array in arrays)
    if not q.ndim == k.ndim == v.ndim == 3 or len(k) != len(v):
        raise ValueError(
            f"{name}: q is {q.shape}, k {k.shape} and v {v.shape}; expected (total_q, H, D), (total_k, Hk, D) and "
            "(total_k, Hk, Dv)"
        )
    starts = tuple(np.asarray(start) for start in starts)
    starts = tuple(s.astype(np.int64) if s.dtype.kind == "u" else s for s in starts)  # unsigned ones never fall
    for label, start, array in (("cu_seqlens_q", starts[0], q), ("cu_seqlens_k", starts[1], k)):
        if start.ndim != 1 or len(start) < 1 or start[0] != 0 or start[-1] != len(array) or (np.diff(start) < 0).any():
            raise ValueError(f"{name}: {label} must rise from 0 to {len(array)}")
    if len(starts[0]) != len(starts[1]):
        raise ValueError(f"{name}: cu_seqlens_q has {len(starts[0])} numbers and cu_seqlens_k {len(starts[1])}")
    for label in ("attn_bias", "prefix_len", "segment_ids", "seqlens_q", "seqlens_k", "block_map", "block_size"):
        if label in options:
            raise TypeError(f"{name}: packed sequences take no {label}")
    lengths = [np.diff(start) for start in starts]
    padded = [_padded(array, starts[i], lengths[i]) for array, i in ((q, 0), (k, 1), (v, 1))]
    rows, keys = (np.arange(padded[i].shape[2]) < lengths[i][:, None] for i in (0, 1))
    return padded, rows, keys, options | {"seqlens_q": lengths[0], "seqlens_k": lengths[1]}


def _padded(array: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """``(total, H, D)`` as ``(B, H, S, D)``, S the longest sequence's length; zeros past a sequence's end."""
    out = np.zeros((len(length), max(length, default=0), *array.shape[1:]), array.dtype)
    for sample, first, n in zip(out, start[:-1], length, strict=True):
        sample[:n] = array[first : first + n]
    return out.swapaxes(1, 2)
