"""Attention on Dask arrays: out of core on one machine, or on many with ``dask.distributed``.

Needs the extra ``grilly-vulkan[dask]``. Each pair of a chunk of queries and a chunk of keys is one task; what tasks
find for one chunk of queries is joined by log-sum-exp in a tree. Each process has one ``grilly.Compute``.
"""

from __future__ import annotations

import dataclasses
import math
import os
import threading
from typing import Any, Literal, TypeAlias, overload

import numpy as np

try:
    import dask
    import dask.array
except ModuleNotFoundError as error:
    raise ImportError("grilly.dask needs Dask; run: pip install 'grilly-vulkan[dask]'", name=error.name) from error

from .compute import Compute, default_backend, devices
from .compute.attention import options as options_
from .compute.attention.checks import check_broadcast, check_qkv, check_scale
from .compute.attention.keywords import PlaceKeywords, TermKeywords
from .compute.attention.stream import Part, attend_part
from .compute.device.arguments import check_precision
from .compute.device.arrays import NDArray, Precision, Unpack
from .compute.device.dtypes import is_float
from .compute.random import with_seed
from .compute.structures import rebuilt
from .runtime.lifetime import in_child

NAME = "dask.flash_attention"
Chunked: TypeAlias = dask.array.Array | NDArray[np.float32] | NDArray[np.float16]
ChunkedBias: TypeAlias = dask.array.Array | NDArray[np.floating[Any]]
ChunkedMask: TypeAlias = ChunkedBias | NDArray[np.bool_]
_lock = threading.Lock()  # of _own, and of the device: two tasks at once would each count on all of its memory
_own: Compute | None = None


class DaskKeywords(TermKeywords, PlaceKeywords, total=False):
    """Of ``flash_attention``, but for ``return_lse``."""

    mask: ChunkedMask | None
    attn_bias: ChunkedBias | None


@in_child
def _forget_own() -> None:
    """The parent's backend is of no use in a forked worker."""
    global _own
    _own = None
    _lock._at_fork_reinit()


@overload
def flash_attention(
    q: Chunked, k: Chunked, v: Chunked, *, return_lse: Literal[False] = ..., **options: Unpack[DaskKeywords]
) -> dask.array.Array: ...
@overload
def flash_attention(
    q: Chunked, k: Chunked, v: Chunked, *, return_lse: Literal[True], **options: Unpack[DaskKeywords]
) -> tuple[dask.array.Array, dask.array.Array]: ...
@overload
def flash_attention(
    q: Chunked, k: Chunked, v: Chunked, *, return_lse: bool = ..., **options: Unpack[DaskKeywords]
) -> dask.array.Array | tuple[dask.array.Array, dask.array.Array]: ...
def flash_attention(
    q: Chunked,
    k: Chunked,
    v: Chunked,
    *,
    mask: ChunkedMask | None = None,
    attn_bias: ChunkedBias | None = None,
    causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
    kernel: str | None = None,
    precision: Precision = "highest",
    **options: Unpack[PlaceKeywords],
) -> dask.array.Array | tuple[dask.array.Array, dask.array.Array]:
    """Exact attention on Dask arrays, lazily.

    The arguments mean what they do in ``grilly.functional.flash_attention2``, for the whole arrays: causal masks,
    windows, biases by distance and dropout do not depend on the chunks. Chunks of keys that a causal mask or a window
    hides from all queries of a chunk are no tasks.

    Parameters
    ----------
    q : dask.array.Array or numpy.ndarray
        ``(B, H, N_q, D)``, ``(H, N_q, D)`` or ``(N_q, D)``; float32, float16 or bfloat16. The chunks along B, H and N_q
        are those of the result; along D there is made one.
    k, v : dask.array.Array or numpy.ndarray
        ``(B, H_kv, N_kv, D)`` and ``(B, H_kv, N_kv, D_v)``; H_kv divides H. The chunks of k along N_kv are what one
        task attends to; along B and H_kv they are made those of q, or along H q's are made those of k where q's cut
        through a group of heads.
    mask, attn_bias : dask.array.Array or numpy.ndarray, optional
        Broadcastable to ``(B, H, N_q, N_kv)``. Each task gets its part; axes of extent 1 stay so. A large NumPy array
        becomes part of the graph: a Dask array, made where it is needed, is better.
    causal, scale, return_lse, kernel, precision
        As in ``flash_attention2``.
    **options
        The other options of ``flash_attention2``. Their arrays are NumPy arrays; ``block_map`` and ``segment_ids`` are
        of the whole arrays.

    Returns
    -------
    output : dask.array.Array
        ``(B, H, N_q, D_v)`` (less the axes that q lacks), in the dtype of q.
    lse : dask.array.Array
        ``(B, H, N_q)`` float32. Only with ``return_lse``.

    Raises
    ------
    TypeError, ValueError
        As ``flash_attention2``, when the graph is made; ValueError also for chunks of unknown size.

    Notes
    -----
    A task opens its process's ``grilly.Compute`` at first use: the device that ``GRILLY_DEVICE`` names; otherwise, in a
    worker of ``dask.distributed`` whose name is a number (as ``LocalCluster`` gives them), the discrete GPU of that
    number, counted around; otherwise the default backend. So with several GPUs, run one worker for each. A task's
    arrays that do not fit on its device are streamed.

    Results of 16-bit arrays over several chunks of keys are rounded once for each, and once after they were joined in
    float32.

    References
    ----------
    H. Liu, M. Zaharia and P. Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023,
    arXiv:2310.01889, for attention over blocks of keys on several devices; the tree is this module's.
    """
    q, k, v = (_array(name, a) for name, a in (("q", q), ("k", k), ("v", v)))
    # Arrays of their shapes and dtypes, without memory, are what the checks ask for.
    rank = check_qkv(NAME, *(np.broadcast_to(np.empty((), a.dtype), a.shape) for a in (q, k, v)))
    scale = check_scale(NAME, scale, q.shape[-1])
    check_precision(NAME, precision)
    q, k, v = (a[(None,) * (4 - rank)].rechunk({-1: -1}) for a in (q, k, v))
    q, k, v = _aligned(q, k, v)
    whole = (*q.shape[:3], k.shape[2])
    settings = options_.options_of(NAME, with_seed(None, rebuilt(options, _as_it_is)))
    # The checks of the options; what they make of them also tells which chunks are hidden.
    checked = options_.prepare(NAME, settings, whole, bool(causal))
    places = Part(NAME, bool(causal), scale, kernel, False, checked, whole[3] - whole[2])
    call = dask.delayed(_Call(whole, bool(causal), scale, kernel, precision, settings), pure=True, traverse=False)
    chunks = (*q.chunks[:3], k.chunks[2])
    grids = [_grid(name, bias, chunks) for name, bias in (("mask", mask), ("attn_bias", attn_bias))]
    parts = [a.to_delayed() for a in (q, k, v)]
    begin = [np.cumsum((0, *sizes)) for sizes in chunks]
    # Sinks are counted with the first keys: once, though an empty chunk before them begins at key 0 too.
    opening = next((j for j, size in enumerate(chunks[3]) if size), 0) if places.has("sinks") else None
    joined = np.empty(tuple(len(sizes) for sizes in q.chunks[:3]), object)
    for at in np.ndindex(joined.shape):
        first = tuple(int(b[i]) for b, i in zip(begin, at, strict=False))
        shape = tuple(sizes[i] for sizes, i in zip(q.chunks, at, strict=False))
        low, high = places.keys((first[2], first[2] + shape[2]), whole[3])
        leaves = []
        for j, size in enumerate(k.chunks[2]):
            start = int(begin[3][j])
            if (size and start < high and start + size > low) or j == opening:
                arrays = [parts[0][(*at, 0)], parts[1][(*at[:2], j, 0)], parts[2][(*at[:2], j, 0)]]
                arrays += [None if grid is None else grid(*at, j) for grid in grids]
                leaves.append(_attend(call, (*first, start), *arrays))
        joined[at] = _tree(leaves) if leaves else _nothing((*shape, v.shape[3]), q.dtype)
    results = [_assembled(joined, _output, (*q.chunks[:3], v.chunks[3]), q.dtype)]
    if return_lse:
        results.append(_assembled(joined, _lse, q.chunks[:3], np.dtype(np.float32)))
    results = [r[(0,) * (4 - rank)] for r in results]
    return tuple(results) if return_lse else results[0]


# -- when the graph is made --------------------------------------------------------------------------------------------


def _as_it_is(option: Any) -> Any:
    """An option for a graph that is computed later: what is written to an array meanwhile does not reach it."""
    return option.copy() if isinstance(option, np.ndarray) else option


def _array(name: str, array: Any) -> dask.array.Array:
    """The argument as a Dask array."""
    if isinstance(array, np.ndarray):
        array = dask.array.from_array(array, chunks=array.shape)
    if not isinstance(array, dask.array.Array):
        raise TypeError(f"{NAME}: {name} is a {type(array).__name__}; expected a dask.array.Array or a numpy.ndarray")
    if any(math.isnan(n) for n in array.shape):
        raise ValueError(f"{NAME}: {name} has chunks of unknown size; call {name}.compute_chunk_sizes() before")
    return array


def _aligned(q, k, v):
    """The arrays, with chunks of batches and key heads that go together and the same keys in k and v."""
    group = q.shape[1] // k.shape[1] if k.shape[1] else 1
    if all(size % group == 0 for size in q.chunks[1]):
        heads = tuple(size // group for size in q.chunks[1])
    else:
        heads = k.chunks[1]
        q = q.rechunk({1: tuple(size * group for size in heads)})
    k = k.rechunk({0: q.chunks[0], 1: heads})
    return q, k, v.rechunk({0: q.chunks[0], 1: heads, 2: k.chunks[2]})


def _grid(name: str, bias, chunks):
    """A function from a chunk's four places to the part of a mask or bias that belongs there; None for none."""
    if bias is None:
        return None
    bias = _array(name, bias)
    full = tuple(sum(sizes) for sizes in chunks)
    check_broadcast(NAME, name, bias.shape, full)
    if bias.dtype.kind != "f" and not is_float(bias.dtype) and (name != "mask" or bias.dtype != np.bool_):
        raise TypeError(f"{NAME}: {name} is {bias.dtype}; expected {'bool or ' if name == 'mask' else ''}float32")
    bias = bias[(None,) * (4 - bias.ndim)]
    # An axis of extent 1 has one chunk, also where the arrays' has more.
    bias = bias.rechunk({a: chunks[a] if bias.shape[a] == full[a] else -1 for a in range(4)})
    parts = bias.to_delayed()
    return lambda *at: parts[tuple(i if n > 1 else 0 for i, n in zip(at, parts.shape, strict=True))]


def _tree(leaves: list):
    """The leaves joined, two at a time."""
    while len(leaves) > 1:
        leaves = [_join(*leaves[i : i + 2]) if i + 1 < len(leaves) else leaves[i] for i in range(0, len(leaves), 2)]
    return leaves[0]


def _assembled(joined: np.ndarray, take, chunks, dtype) -> dask.array.Array:
    """The array of which the chunks are what ``take`` makes of the joined results."""
    blocks = np.empty(joined.shape, object)
    for at in np.ndindex(joined.shape):
        shape = tuple(sizes[i] for sizes, i in zip(chunks, (*at, 0), strict=False))
        blocks[at] = dask.array.from_delayed(take(joined[at], dtype), shape, dtype)
    if len(chunks) > blocks.ndim:
        blocks = blocks[..., None]
    return dask.array.block(blocks.tolist())


# -- what workers do ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Call:
    """What all tasks of a call share."""

    whole: tuple[int, int, int, int]
    causal: bool
    scale: float
    kernel: str | None
    precision: str
    options: options_.Options


def worker_backend() -> Compute:
    """This process's backend: see the notes on ``flash_attention``.

    Raises
    ------
    NoDeviceError
        When no device can be opened.
    """
    global _own
    if _own is not None and not _own._closed:
        return _own
    number = None if os.environ.get("GRILLY_DEVICE") else _worker_number()
    if number is None:
        return default_backend()
    found = devices()
    gpus = [d for d in found if d.kind == "discrete"]
    if len(gpus) < 2:
        return default_backend()
    _own = Compute(gpus[number % len(gpus)].index)
    return _own


def _worker_number() -> int | None:
    """The number that is the name of this process's worker of dask.distributed; None for none."""
    try:
        from distributed import get_worker

        return int(get_worker().name)
    except (ImportError, ValueError, TypeError):  # not installed, not in a worker, or a name that is no number
        return None


def _attend_chunk(call: _Call, first, q, k, v, mask, attn_bias):
    arrays = [np.asarray(a) for a in (q, k, v)]
    masks = [None if a is None else np.asarray(a) for a in (mask, attn_bias)]
    with _lock:
        return attend_part(
            NAME, worker_backend().opened, *arrays,
            whole=call.whole, first=tuple(first), mask=masks[0], attn_bias=masks[1],
            causal=call.causal, scale=call.scale, kernel=call.kernel, precision=call.precision, options=call.options,
        )  # fmt: skip


def _no_keys(shape, dtype):
    """The result over no keys."""
    return np.zeros(shape, dtype), np.full(shape[:3], -np.inf)


def join(
    left: tuple[NDArray[Any], NDArray[Any]], right: tuple[NDArray[Any], NDArray[Any]]
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Attention over two sets of keys from the (output, log-sum-exp) over each; the output is float32.

    Where a log-sum-exp is minus infinity the output beside it is zeros.
    """
    (a, a_lse), (b, b_lse) = left, right
    with np.errstate(invalid="ignore"):  # of infinite and NaN scores comes NaN, as in one call
        lse = np.logaddexp(np.asarray(a_lse, np.float64), b_lse)
        floor = np.where(np.isneginf(lse), 0, lse)
        weights = [np.exp(part - floor).astype(np.float32)[..., None] for part in (a_lse, b_lse)]
    o, more = (np.multiply(part, weight, dtype=np.float32) for part, weight in zip((a, b), weights, strict=True))
    o += more
    return o, lse


def _output_of(joined, dtype):
    return joined[0].astype(dtype, copy=False)


def _lse_of(joined, dtype):
    return joined[1].astype(dtype, copy=False)


# Under names of their own: workers look a task's function up by its name.
_attend, _nothing, _join, _output, _lse = (
    dask.delayed(function, pure=True, traverse=False)
    for function in (_attend_chunk, _no_keys, join, _output_of, _lse_of)
)


__all__ = ["flash_attention", "join", "worker_backend"]
