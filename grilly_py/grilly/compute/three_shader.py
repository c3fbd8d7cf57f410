"""Attention step by step, with the scores stored: scores, mask or bias, softmax, output.

It takes memory of order Sq x Sk, which `flash` does not, and gives the weights, which `flash` cannot. Scores and
weights are float32 whatever the dtype of q, k and v.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import numpy as np

from ..registry import Request
from .checks import integer
from .flash import check_mask, check_scale, to_device
from .launch import FLOAT32, check_float, finish, launch, program_of
from .matmul import product
from .parts import check_trips, four_axes, parts, strides
from .prepared import mask_kind
from .tensor import Tensor
from .widen import widens

if TYPE_CHECKING:
    from .backend import Compute

#: Model architectures that ``attention_output`` has kernels for.
ARCHITECTURES = ("generic", "gpt", "t5")
_MASK_PUSH = struct.Struct("=16Ii")
_BIAS_PUSH = struct.Struct("=14I3if")
_SOFTMAX_PUSH = struct.Struct("=10I")


def _check_pair(operation: str, names, first, second) -> None:
    """Raise ValueError unless two arrays have the same rank from 2 to 4, batches that agree and heads that divide."""
    shapes = tuple(first.shape), tuple(second.shape)
    rank = len(shapes[0])
    if rank not in (2, 3, 4):
        raise ValueError(
            f"{operation}: {names[0]} has shape {shapes[0]}; expected (B, H, ., .), (H, ., .) or (., .)"
        )
    if len(shapes[1]) != rank:
        raise ValueError(
            f"{operation}: {names[1]} has {len(shapes[1])} axes and {names[0]} has {rank}; give them the same number"
        )
    (batch, heads), (other_batch, other_heads) = (((1,) * (4 - rank) + shape)[:2] for shape in shapes)
    if batch != other_batch:
        raise ValueError(
            f"{operation}: {names[1]} has batch {other_batch} and {names[0]} has {batch}; they must be equal"
        )
    if other_heads != heads and (other_heads == 0 or heads % other_heads):
        raise ValueError(
            f"{operation}: {names[1]} has {other_heads} heads and {names[0]} has {heads}; "
            f"{names[0]}'s must be a multiple"
        )


def _check_float32(operation: str, **arrays) -> None:
    """Raise TypeError unless the named arrays are float32."""
    for name, array in arrays.items():
        if check_float(operation, **{name: array}) != FLOAT32:
            raise TypeError(
                f"{operation}: {name} is {array.dtype}; expected float32; cast with {name}.astype(numpy.float32)"
            )


def _check_scores(operation: str, scores) -> None:
    _check_float32(operation, scores=scores)
    if len(scores.shape) not in (2, 3, 4):
        raise ValueError(
            f"{operation}: scores has shape {tuple(scores.shape)}; expected (B, H, Sq, Sk), (H, Sq, Sk) or (Sq, Sk)"
        )


def _full(shape) -> tuple[int, ...]:
    return (1,) * (4 - len(shape)) + tuple(shape)


@widens("q", "k", narrow=False)
def attention_scores(backend: Compute, q, k, *, scale=None):
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
        ``(B, H, Sq, Sk)`` (less the axes that q lacks), float32; a Tensor when an input was one, and then without
        waiting.

    Raises
    ------
    TypeError
        For dtypes other than float32, float16 and bfloat16, or differing ones.
    ValueError
        For shapes that do not go together, or a scale that is not finite.
    """
    name = "attention_scores"
    backend.check_open()
    check_float(name, q=q, k=k)
    _check_pair(name, ("q", "k"), q, k)
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"{name}: k has head dimension {k.shape[-1]} and q has {q.shape[-1]}; they must be equal")
    scale = check_scale(name, scale, max(q.shape[-1], 1))
    scores = backend.empty((*q.shape[:-1], k.shape[-2]))
    if scores.size:
        a, b = (four_axes(to_device(backend, array)) for array in (q, k))
        product(backend, "attention-scores", a, b, four_axes(scores), columns_are_rows=True, scale=scale)
    return finish(backend, scores, q, k)


def attention_mask(backend: Compute, scores, *, mask=None, causal=False):
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
        A new array of the scores' shape; a Tensor when an input was one, and then without waiting.

    Raises
    ------
    TypeError
        If the scores are not float32, or the mask neither boolean nor floating.
    ValueError
        For a wrong rank, or a mask that does not broadcast.
    """
    name = "attention_mask"
    backend.check_open()
    _check_scores(name, scores)
    full = _full(scores.shape)
    if mask is not None:
        mask = check_mask(name, mask, full)
    out = backend.empty(scores.shape)
    if out.size:
        at = None
        if mask is not None:
            at = (mask if isinstance(mask, Tensor) else backend.tensor(mask)).broadcast_to(full)
        choice = backend.registry.resolve(Request("attention-mask", "float32"))
        program = program_of(backend, choice, {"MASK": mask_kind(at), "CAUSAL": int(bool(causal))})
        views = (four_axes(out), four_axes(to_device(backend, scores)), at)
        groups = _score_groups(choice)
        for (o, s, m), starts in parts(backend, views, groups, ((), (2,), (0, 1))):

            def push(offsets, o=o, s=s, m=m, starts=starts):
                mask_steps = (0, 0, 0, 0) if m is None else m._steps
                return _MASK_PUSH.pack(
                    offsets[0], *strides(s), offsets[1], *mask_steps, offsets[2], *strides(o), *o.shape[2:], o.shape[1],
                    full[3] - full[2] + starts[2],
                )  # fmt: skip

            launch(backend, program, (s, m, o), push, groups(o.shape))
    return finish(backend, out, scores, mask)


def _score_groups(choice):
    rows, keys = choice.tile["rows"], choice.tile["keys"]
    return lambda shape: (-(-shape[3] // keys), -(-shape[2] // rows), shape[0] * shape[1])


def t5_bias(backend: Compute, scores, table, *, bidirectional=True, max_distance=128, offset=0):
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
        A new array of the scores' shape; a Tensor when an input was one, and then without waiting.

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
    name = "t5_bias"
    backend.check_open()
    _check_scores(name, scores)
    _check_float32(name, table=table)
    full = _full(scores.shape)
    if len(table.shape) != 2 or table.shape[1] != full[1]:
        raise ValueError(f"{name}: table has shape {tuple(table.shape)}; expected (num_buckets, H) with H = {full[1]}")
    buckets = table.shape[0] // 2 if bidirectional else table.shape[0]
    exact = buckets // 2
    max_distance, offset = integer(name, "max_distance", max_distance), integer(name, "offset", offset)
    if exact < 1 or (bidirectional and table.shape[0] % 2):
        raise ValueError(
            f"{name}: table has {table.shape[0]} rows; expected at least 2 buckets for each direction, as many for both"
        )
    if not exact < max_distance < 2**24:
        raise ValueError(f"{name}: max_distance is {max_distance}; expected more than {exact} and below 2**24")
    if abs(offset) > 2**30:
        raise ValueError(f"{name}: offset is {offset}; expected at most 2**30 either way")
    out = backend.empty(scores.shape)
    if out.size:
        starts_key = (buckets, max_distance)
        starts = backend.t5_starts.get(starts_key)
        if starts is None:
            starts = backend.t5_starts.keep(starts_key, backend.tensor(bucket_starts(buckets, max_distance)))
        weights = to_device(backend, table)
        choice = backend.registry.resolve(Request("t5-bias", "float32", "t5"))
        program = program_of(backend, choice, {"BIDIRECTIONAL": int(bool(bidirectional))})
        groups = _score_groups(choice)
        growth = (buckets - exact) / math.log2(max_distance / exact)
        views = (four_axes(out), four_axes(to_device(backend, scores)))
        for (o, s), first in parts(backend, views, groups, ((), (2,), (0, 1))):
            own = weights[:, first[1] :]

            def push(offsets, o=o, s=s, own=own, first=first):
                return _BIAS_PUSH.pack(
                    offsets[0], *strides(s), offsets[3], *strides(o), offsets[1], own._steps[0], offsets[2],
                    *o.shape[2:], o.shape[1], offset + first[2], buckets, exact, growth,
                )  # fmt: skip

            launch(backend, program, (s, own, starts, o), push, groups(o.shape))
    return finish(backend, out, scores, table)


def bucket_starts(buckets: int, max_distance: int) -> np.ndarray:
    """The least distance in each of the wider buckets of one direction, ``(buckets - buckets // 2,)`` int32.

    In float32, as in the models that were trained with these buckets: it decides which side of a boundary a distance is
    on. A bucket that no distance falls into starts where the next one does.
    """
    exact = buckets // 2
    distance = np.arange(exact, max_distance + 1, dtype=np.float32)
    steps = np.log(distance / np.float32(exact)) / np.float32(math.log(max_distance / exact))
    bucket = np.minimum(exact + (steps * np.float32(buckets - exact)).astype(np.int64), buckets - 1)
    # Should rounding leave the last bucket empty, it starts one further.
    return (exact + np.searchsorted(bucket, np.arange(exact, buckets))).astype(np.int32)


@widens("x")
def softmax(backend: Compute, x):
    """Softmax along the last axis; a row of nothing but minus infinity becomes zeros.

    Parameters
    ----------
    x : numpy.ndarray or grilly.Tensor
        Any shape with at least one axis; float32, float16 or bfloat16, computed in float32.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of x's shape and dtype; a Tensor when x was one, and then without waiting.

    Raises
    ------
    TypeError
        For another dtype.
    ValueError
        For an array without axes.
    """
    backend.check_open()
    dtype = check_float("softmax", x=x)
    if len(x.shape) < 1:
        raise ValueError("softmax: x has no axes; expected at least one")
    out = backend.empty(x.shape, dtype)
    if out.size:
        source = to_device(backend, x)
        if source.ndim > 4 or source.is_contiguous:
            source = source.reshape(-1, source.shape[-1])  # copies only what has more than four axes
        target = out.reshape(source.shape)
        cols = out.shape[-1]
        choice = backend.registry.resolve(Request("softmax", dtype.name, facts=(("cols", min(cols, 2**31 - 1)),)))
        check_trips(backend, "softmax", "columns", cols, choice.keys_per_trip)
        program = program_of(backend, choice, {})
        block = choice.tile["rows"]

        def groups(shape):
            return -(-shape[2] // block), shape[1], shape[0]

        views = (four_axes(target), four_axes(source))
        for (y, s), _ in parts(backend, views, groups, ((2,), (1,), (0,))):

            def push(offsets, y=y, s=s):
                return _SOFTMAX_PUSH.pack(offsets[0], *strides(s), offsets[1], *strides(y), *y.shape[2:])

            launch(backend, program, (s, y), push, groups(y.shape))
    return finish(backend, out, x)


@widens("v")
def attention_output(backend: Compute, weights, v, *, architecture="generic"):
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
        ``(B, H, Sq, D)`` (less the axes that the weights lack), of v's dtype; a Tensor when an input was one, and then
        without waiting.

    Raises
    ------
    TypeError
        If the weights are not float32, or v neither float32, float16 nor bfloat16.
    ValueError
        For an unknown architecture, or shapes that do not go together.
    UnsupportedError
        For more keys than the device's kernel takes.
    """
    name = "attention_output"
    backend.check_open()
    if architecture not in ARCHITECTURES:
        raise ValueError(f"{name}: architecture is {architecture!r}; expected one of {', '.join(ARCHITECTURES)}")
    _check_float32(name, weights=weights)
    dtype = check_float(name, v=v)
    _check_pair(name, ("weights", "v"), weights, v)
    queries, keys = weights.shape[-2:]
    if v.shape[-2] != keys:
        raise ValueError(f"{name}: v has {v.shape[-2]} keys and weights has {keys}; they must be equal")
    shape = (*weights.shape[:-1], v.shape[-1])
    if 0 in shape:
        return finish(backend, backend.empty(shape, dtype), weights, v)
    w, values = (four_axes(to_device(backend, array)) for array in (weights, v))
    batch, heads, dim = w.shape[0], w.shape[1], values.shape[3]
    # Where v's heads lie inside its rows, as those of split heads do, so do the output's: joining them is then a view.
    if architecture == "t5" or (heads > 1 and values._steps[1] < values._steps[2]):
        out = backend.empty((batch, queries, heads, dim), dtype).transpose(0, 2, 1, 3)
    else:
        out = backend.empty((batch, heads, queries, dim), dtype)
    shift = keys - queries if architecture == "gpt" else 0
    product(backend, "attention-output", w, values, out, model=architecture, columns_are_rows=False, shift=shift)
    return finish(backend, out if len(shape) == 4 else out.reshape(shape), weights, v)
