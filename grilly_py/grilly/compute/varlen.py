"""Attention over sequences of many lengths that lie one after the other in the same arrays."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UnsupportedError
from . import stored
from .checks import MAX_DIM, check_scale
from .extras import Extras, Options, check_dropout, prepare
from .flash import attend, to_device
from .launch import FLOAT32, check_float, check_precision, finish
from .tensor import Tensor
from .widen import widens

if TYPE_CHECKING:
    from .backend import Compute

NAME = "flash_attention_varlen"


@widens("q", "k", "v")
def flash_attention_varlen(
    backend: Compute,
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    *,
    causal=False,
    scale=None,
    window_size=None,
    softcap=0.0,
    alibi_slopes=None,
    sinks=None,
    dropout_p=0.0,
    dropout_seed=0,
    dropout_offset=0,
    return_lse=False,
    kernel=None,
    precision="highest",
):
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
    window_size : (left, right), optional
        Query i sees keys from ``i + n_kv - n_q - left`` to ``i + n_kv - n_q + right``; None or -1 sets no bound.
    softcap : float
        Above 0: a scaled score s becomes ``softcap * tanh(s / softcap)``.
    alibi_slopes : array, optional
        ``(H,)`` or ``(B, H)`` float32: adds ``-slope * |i + n_kv - n_q - j|``.
    sinks : array, optional
        ``(H,)`` float32: ``exp(sinks[h])`` is added to the sum of each row's weights.
    dropout_p, dropout_seed, dropout_offset : float, int, int
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
    UnsupportedError
        Where an array is larger than one binding of the device, or no kernel takes what is asked for.
    """
    backend.check_open()
    high = check_precision(NAME, precision)
    check_float(NAME, q=q, k=k, v=v)
    for name, array in (("q", q), ("k", k), ("v", v)):
        if len(array.shape) != 3:
            raise ValueError(f"{NAME}: {name} has shape {tuple(array.shape)}; expected three axes, (total, H, D)")
        if not 1 <= array.shape[2] <= MAX_DIM:
            raise ValueError(f"{NAME}: the head dimension of {name} is {array.shape[2]}; expected 1 to {MAX_DIM}")
    total, heads, dim = q.shape
    kv_heads, value_dim = v.shape[1:]
    if tuple(k.shape[:2]) != tuple(v.shape[:2]):
        raise ValueError(f"{NAME}: k has shape {tuple(k.shape)} and v has {tuple(v.shape)}; keys and heads must agree")
    if k.shape[2] != dim:
        raise ValueError(f"{NAME}: k has head dimension {k.shape[2]} and q has {dim}; they must be equal")
    if heads % kv_heads if kv_heads else heads:
        raise ValueError(f"{NAME}: k has {kv_heads} heads and q has {heads}; q's must be a multiple of k's")
    scale = check_scale(NAME, scale, dim)
    starts_q, longest_q = _check_starts("q", cu_seqlens_q, max_seqlen_q, total)
    starts_k, longest_k = _check_starts("k", cu_seqlens_k, max_seqlen_k, k.shape[0])
    if len(starts_q) != len(starts_k):
        raise ValueError(
            f"{NAME}: cu_seqlens_q has {len(starts_q)} numbers and cu_seqlens_k {len(starts_k)}; give both B + 1"
        )
    batch = len(starts_q) - 1
    options = Options(
        window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks,
        dropout_p=dropout_p, dropout_seed=dropout_seed, dropout_offset=dropout_offset,
    )  # fmt: skip
    extras = prepare(NAME, options, (batch, heads, longest_q, longest_k), bool(causal))
    if extras is None:
        extras = Extras(heads)
        extras.causal = bool(causal)
        extras.set(left=0, right=0)
    samples = np.stack([starts_q[:-1], np.diff(starts_q), starts_k[:-1], np.diff(starts_k)], axis=1)
    extras.offer("lengths")
    extras.put_as("samples", samples.astype(np.int32))
    extras.set(packed=1)

    q_tensor, k_tensor, v_tensor = (to_device(backend, array) for array in (q, k, v))
    o = backend.empty((total, heads, value_dim), q_tensor.dtype)
    lse = backend.empty((heads, total))
    limit = backend.device.limits["storage_range"]
    for name, array in (("q", q_tensor), ("k", k_tensor), ("v", v_tensor), ("the output", o), ("the log-sum-exp", lse)):
        if array._storage.nbytes > limit:
            raise UnsupportedError(
                f"{NAME}: {name} lies in {array._storage.nbytes:,} bytes, and one binding of {backend.device.name} "
                f"takes {limit:,}; give fewer sequences at a time"
            )
    _fill_rest(backend, o, lse, int(starts_q[-1]))
    lse_view = Tensor(lse._storage, (batch, heads, longest_q), FLOAT32, (0, total, 1))
    extras.out = _view(o, batch, longest_q), lse_view
    views = [_view(q_tensor, batch, longest_q), *(_view(t, batch, longest_k) for t in (k_tensor, v_tensor))]
    attend(backend, *views, None, bool(causal), scale, True, kernel, high, extras=extras)
    out = finish(backend, o, q, k, v)
    if not return_lse:
        return out
    return out, finish(backend, lse, q, k, v)


def dropout_mask(backend: Compute, shape, dropout_p, seed, offset=0) -> np.ndarray:
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
    doi:10.1145/2063384.2063405. Word j % 4 of counter ``(j // 4, i, h + H * b, offset)`` under the key (low half of the
    seed, high half) decides on key j of row i: it is kept where the word is below ``floor((1 - dropout_p) * 2**32)``.
    """
    name = "dropout_mask"
    backend.check_open()
    p = check_dropout(name, dropout_p, seed, offset)
    shape = tuple(operator.index(extent) for extent in shape)
    if len(shape) != 4 or min(shape) < 0:
        raise ValueError(f"{name}: shape is {shape}; expected (B, H, Sq, Sk)")
    if p == 0.0 or 0 in shape:
        return np.ones(shape, np.bool_)
    ones = backend.tensor(np.ones(shape[3], np.float32)).broadcast_to(shape)
    kept = stored.attention_dropout(backend, ones, dropout_p=p, dropout_seed=seed, dropout_offset=offset)
    return kept.numpy() != 0


def _check_starts(side: str, starts, longest, total: int) -> tuple[np.ndarray, int]:
    """``cu_seqlens_`` of q or k as a checked int64 array, and the length of the longest sequence."""
    name = f"cu_seqlens_{side}"
    starts = starts.numpy() if isinstance(starts, Tensor) else np.asarray(starts)
    if starts.dtype.kind not in "iu":
        raise TypeError(f"{NAME}: {name} is {starts.dtype}; expected integers")
    if starts.ndim != 1 or not len(starts):
        raise ValueError(f"{NAME}: {name} has shape {starts.shape}; expected (B + 1,)")
    starts = starts.astype(np.int64)
    lengths = np.diff(starts)
    if starts[0] != 0 or (lengths < 0).any() or starts[-1] > total:
        raise ValueError(
            f"{NAME}: {name} goes from {starts[0]} to {starts[-1]}{' and falls' if (lengths < 0).any() else ''}; "
            f"expected to begin with 0 and to rise to at most {total}, the rows of {side}"
        )
    longest = operator.index(longest)
    most = int(lengths.max(initial=0))
    if longest < most:
        raise ValueError(f"{NAME}: max_seqlen_{side} is {longest}; the longest sequence has {most}")
    return starts, most


def _view(tensor: Tensor, batch: int, rows: int) -> Tensor:
    """``(total, H, D)`` as ``(B, H, rows, D)`` at the first row: what a kernel adds a sequence's first row to."""
    row, head, last = tensor._steps
    shape = (batch, tensor.shape[1], rows, tensor.shape[2])
    return Tensor(tensor._storage, shape, tensor.dtype, (0, head, row, last), tensor._offset)


def _fill_rest(backend: Compute, o: Tensor, lse: Tensor, covered: int) -> None:
    """Write what rows get that no sequence covers."""
    total, heads, width = o.shape
    if covered == total or not heads:
        return
    size = o.dtype.itemsize * heads * width
    backend.runtime.write(o._storage.buffer, np.zeros((total - covered) * size, np.uint8), covered * size)
    rest = np.full(total - covered, -np.inf, np.float32)
    for head in range(heads):
        backend.runtime.write(lse._storage.buffer, rest, 4 * (head * total + covered))
