"""Attention over sequences of many lengths that lie one after the other in the same arrays."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UnsupportedError
from . import backward, option_checks
from .backward_sums import sinks_gradient
from .checks import MAX_DIM, check_scale, integer
from .dtypes import is_sixteen_bits
from .extras import Extras, Options, prepare
from .flash import attend, to_device
from .launch import FLOAT32, check_float, check_precision, finish
from .tensor import Tensor
from .widen import lacks_sixteen_bits, widens

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
    options = Options(
        window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks,
        dropout_p=dropout_p, dropout_seed=dropout_seed, dropout_offset=dropout_offset,
    )  # fmt: skip
    packed = _check(
        NAME, q, k, v, (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k), bool(causal), scale, options
    )
    q_tensor, k_tensor, v_tensor = (to_device(backend, array) for array in (q, k, v))
    total, heads, _ = q.shape
    batch, longest_q, longest_k = packed.batch, *packed.longest
    o = backend.empty((total, heads, v.shape[2]), q_tensor.dtype)
    lse = backend.empty((heads, total))
    arrays = {"q": q_tensor, "k": k_tensor, "v": v_tensor, "the output": o, "the log-sum-exp": lse}
    _check_bindings(NAME, backend, arrays)
    extras = packed.extras
    _fill_rest(backend, o, lse, packed.covered[0])
    lse_view = Tensor(lse._storage, (batch, heads, longest_q), FLOAT32, (0, total, 1))
    extras.out = _view(o, batch, longest_q), lse_view
    views = [_view(q_tensor, batch, longest_q), *(_view(t, batch, longest_k) for t in (k_tensor, v_tensor))]
    attend(backend, *views, None, bool(causal), packed.scale, True, kernel, high, extras=extras)
    out = finish(backend, o, q, k, v)
    if not return_lse:
        return out
    return out, finish(backend, lse, q, k, v)


def flash_attention_varlen_backward(
    backend: Compute,
    grad_out,
    q,
    k,
    v,
    out,
    lse,
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
    return_dsinks=False,
):
    """The gradients of packed sequences: of ``sum(grad_out * output)`` by q, k and v.

    Parameters
    ----------
    grad_out : numpy.ndarray or grilly.Tensor
        The gradient of the output, ``(total_q, H, Dv)``, of q's dtype.
    q, k, v : numpy.ndarray or grilly.Tensor
        As given to ``flash_attention_varlen``.
    out, lse : numpy.ndarray or grilly.Tensor
        What ``flash_attention_varlen(..., return_lse=True)`` gave for these arguments.
    cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, scale, window_size, softcap, alibi_slopes, sinks, \
dropout_p, dropout_seed, dropout_offset
        The same as there.
    return_dsinks : bool
        Also return the gradient of ``sinks``.

    Returns
    -------
    dq, dk, dv : numpy.ndarray or grilly.Tensor
        Of the shapes and dtype of q, k and v; Tensors when an array was one, and then without waiting. Rows past the
        last sequence are zeros.
    dsinks : numpy.ndarray or grilly.Tensor
        ``(H,)`` float32; only with ``return_dsinks``.

    Raises
    ------
    TypeError, ValueError, UnsupportedError
        As ``flash_attention_varlen``; also where grad_out, out or lse has not the output's shape or dtype, or where the
        gradient of sinks is asked for without sinks.

    References
    ----------
    T. Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023,
    arXiv:2307.08691, algorithm 2.
    """
    name = "flash_attention_varlen_backward"
    backend.check_open()
    options = Options(
        window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks,
        dropout_p=dropout_p, dropout_seed=dropout_seed, dropout_offset=dropout_offset,
    )  # fmt: skip
    starts, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
    packed = _check(name, q, k, v, starts, longest, bool(causal), scale, options)
    backward.check_results(name, q, (*q.shape[:2], v.shape[2]), (q.shape[1], q.shape[0]), grad_out, out, lse)
    if return_dsinks and sinks is None:
        raise ValueError(f"{name}: the gradient of sinks is asked for, which the call lacks; give sinks")
    arrays = (grad_out, q, k, v, out, lse)
    dtype = np.dtype(q.dtype)
    if 0 in (packed.batch, *packed.longest, q.shape[1]):
        results = [backend.tensor(np.zeros(tuple(array.shape), dtype)) for array in (q, k, v)]
        if return_dsinks:
            results.append(backend.tensor(np.zeros(packed.extras.sinks.shape, np.float32)))
    else:
        tensors = [to_device(backend, array) for array in arrays]
        if is_sixteen_bits(dtype) and lacks_sixteen_bits(backend):
            tensors = [tensor.astype(FLOAT32) for tensor in tensors]
        labels = ("grad_out", "q", "k", "v", "out", "lse")
        _check_bindings(name, backend, dict(zip(labels, tensors, strict=True)))
        g, q4, k4, v4, o, sums = tensors
        # delta is a row's own, so for it all sequences are one.
        stats = backward.row_stats(backend, *(t.transpose((1, 0, 2))[None] for t in (g, o)), sums[None])
        total = q4.shape[0]
        shape = (packed.batch, q4.shape[1], packed.longest[0], 4)
        views = {
            "q": _view(q4, packed.batch, packed.longest[0]),
            "k": _view(k4, packed.batch, packed.longest[1]),
            "v": _view(v4, packed.batch, packed.longest[1]),
            "g": _view(g, packed.batch, packed.longest[0]),
            "stats": Tensor(stats._storage, shape, FLOAT32, (0, 4 * total, 4, 1)),
        }
        rows = tuple(zip((total, k4.shape[0]), packed.covered, strict=True))
        call = backward.Call(packed.extras.causal, packed.scale, 0, packed.extras, rows)
        results = [
            result.astype(dtype).transpose((1, 0, 2)).contiguous()
            for result in backward.attention_gradients(backend, views, call)
        ]
        if return_dsinks:
            results.append(sinks_gradient(backend, stats[:, :, : packed.covered[0]].contiguous(), packed.extras.sinks))
    return tuple(finish(backend, result, *arrays) for result in results)


@dataclasses.dataclass(frozen=True)
class _Packed:
    """What the checked arguments of a call say."""

    batch: int
    longest: tuple[int, int]  # queries and keys of the longest sequences
    covered: tuple[int, int]  # rows of q and of k that belong to a sequence
    scale: float
    extras: Extras


def _check(name: str, q, k, v, starts: tuple, longest: tuple, causal: bool, scale, options: Options) -> _Packed:
    """Check the arguments that attention and its gradients share, against each other."""
    check_float(name, q=q, k=k, v=v)
    for label, array in (("q", q), ("k", k), ("v", v)):
        if len(array.shape) != 3:
            raise ValueError(f"{name}: {label} has shape {tuple(array.shape)}; expected three axes, (total, H, D)")
        if not 1 <= array.shape[2] <= MAX_DIM:
            raise ValueError(f"{name}: the head dimension of {label} is {array.shape[2]}; expected 1 to {MAX_DIM}")
    total, heads, dim = q.shape
    kv_heads = v.shape[1]
    if tuple(k.shape[:2]) != tuple(v.shape[:2]):
        raise ValueError(f"{name}: k has shape {tuple(k.shape)} and v has {tuple(v.shape)}; keys and heads must agree")
    if k.shape[2] != dim:
        raise ValueError(f"{name}: k has head dimension {k.shape[2]} and q has {dim}; they must be equal")
    if heads % kv_heads if kv_heads else heads:
        raise ValueError(f"{name}: k has {kv_heads} heads and q has {heads}; q's must be a multiple of k's")
    scale = check_scale(name, scale, dim)
    starts_q, longest_q = _check_starts(name, "q", starts[0], longest[0], total)
    starts_k, longest_k = _check_starts(name, "k", starts[1], longest[1], k.shape[0])
    if len(starts_q) != len(starts_k):
        raise ValueError(
            f"{name}: cu_seqlens_q has {len(starts_q)} numbers and cu_seqlens_k {len(starts_k)}; give both B + 1"
        )
    batch = len(starts_q) - 1
    extras = prepare(name, options, (batch, heads, longest_q, longest_k), causal)
    if extras is None:
        extras = Extras(heads)
        extras.causal = causal
        extras.set(left=0, right=0)
    samples = np.stack([starts_q[:-1], np.diff(starts_q), starts_k[:-1], np.diff(starts_k)], axis=1)
    extras.offer("lengths")
    extras.put_as("samples", samples.astype(np.int32))
    extras.set(packed=1)
    return _Packed(batch, (longest_q, longest_k), (int(starts_q[-1]), int(starts_k[-1])), scale, extras)


def _check_bindings(name: str, backend: Compute, arrays: dict[str, Tensor]) -> None:
    """Raise UnsupportedError unless every array fits a binding: packed arrays are not cut."""
    limit = backend.device.limits["storage_range"]
    for label, array in arrays.items():
        if array._storage.nbytes > limit:
            raise UnsupportedError(
                f"{name}: {label} lies in {array._storage.nbytes:,} bytes, and one binding of {backend.device.name} "
                f"takes {limit:,}; give fewer sequences at a time"
            )


def _check_starts(call: str, side: str, starts, longest, total: int) -> tuple[np.ndarray, int]:
    """``cu_seqlens_`` of q or k as a checked int64 array, and the length of the longest sequence."""
    name = f"cu_seqlens_{side}"
    starts = option_checks.integers(call, name, starts)
    starts = starts.numpy() if isinstance(starts, Tensor) else starts
    if starts.ndim != 1 or not len(starts):
        raise ValueError(f"{call}: {name} has shape {starts.shape}; expected (B + 1,)")
    starts = starts.astype(np.int64)
    lengths = np.diff(starts)
    if starts[0] != 0 or (lengths < 0).any() or starts[-1] > total:
        raise ValueError(
            f"{call}: {name} goes from {starts[0]} to {starts[-1]}{' and falls' if (lengths < 0).any() else ''}; "
            f"expected to begin with 0 and to rise to at most {total}, the rows of {side}"
        )
    longest = integer(call, f"max_seqlen_{side}", longest)
    most = int(lengths.max(initial=0))
    if longest < most:
        raise ValueError(f"{call}: max_seqlen_{side} is {longest}; the longest sequence has {most}")
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
