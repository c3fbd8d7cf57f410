"""Attention of com.microsoft: of BERT and GPT-2, with projections; of several heads; of grouped heads with a cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import array_api as xp
from ... import functional as F
from ...compute import Tensor
from ..table import Call
from .attention import heads_apart, heads_joined, rotary_embedding
from .fused import biased, fused


def _refuse_all(call: Call, given: dict[str, Any]) -> None:
    """Raise UnsupportedError for an input that is given, or an attribute that is set, and is not computed here."""
    for name, value in given.items():
        if isinstance(value, Tensor) or value:
            raise call.refuse(f"{name} is given")


def _shown(call: Call, mask: Tensor | None, batch: int, rows: int, keys: int) -> Tensor | None:
    """Which keys queries see, ``(B, 1, 1 or rows, keys)``, by one of the forms that these operators take.

    They are numbers of keys ``(B,)``; these and then the first keys ``(2 B,)``; 0 for hidden keys ``(B, keys)``, and
    the same for each query ``(B, rows, keys)``.
    """
    if mask is None:
        return None
    if mask.shape in ((batch,), (2 * batch,)):
        place = xp.arange(keys, dtype="int32", device=call.backend)
        bounds = mask.astype("int32", copy=False).reshape(-1, batch, 1)
        found = xp.less(place, bounds[0])
        if len(bounds) == 2:
            found = xp.logical_and(found, xp.greater_equal(place, bounds[1]))
        return found.reshape(batch, 1, 1, keys)
    if mask.shape in ((batch, keys), (batch, rows, keys)):
        return xp.not_equal(mask, 0).reshape(batch, 1, -1, keys)
    raise call.refuse(f"a mask of shape {mask.shape} for {batch} texts of {rows} queries and {keys} keys")


def _attended(
    call: Call, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, **options: Any
) -> Tensor:
    """Attention of ``(B, H, S, D)``, as ``(B, S, H D)``; ``mask`` as `_shown` takes it."""
    shown = _shown(call, mask, q.shape[0], q.shape[2], k.shape[2])
    scale = call.get("scale", 0.0) or None
    causal = bool(call.get("unidirectional", 0))
    return heads_joined(F.flash_attention2(q, k, v, mask=shown, attn_bias=bias, scale=scale, causal=causal, **options))


@fused("Attention")
def attention(
    call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None, mask: Tensor | None = None,
    past: Tensor | None = None, added: Tensor | None = None, past_length: Tensor | None = None,
) -> Any:  # fmt: skip
    """Projections of x to q, k and v, attention, and keys and values with those of before, ``(2, B, H, S, D)``."""
    _refuse_all(call, {"past_sequence_length": past_length})
    return attention_of(call, biased(xp.matmul(x, weight), bias), mask, past, added)


def attention_of(
    call: Call, projected: Tensor, mask: Tensor | None, past: Tensor | None, added: Tensor | None = None
) -> Any:
    """Attention of q, k and v, one behind the other, and keys and values with those of before."""
    _refuse_all(call, {"do_rotary": call.get("do_rotary", 0)})
    widths = call.get("qkv_hidden_sizes")
    widths = list(widths) if widths else [projected.shape[2] // 3] * 3
    ends = np.cumsum(widths).tolist()
    every = [projected[..., end - width : end] for end, width in zip(ends, widths, strict=True)]
    q, k, v = (heads_apart(call, each, "num_heads") for each in every)
    if past is not None:
        k, v = xp.concat([past[0], k], axis=2), xp.concat([past[1], v], axis=2)
    found = _attended(call, q, k, v, mask, added)
    return (found, xp.stack([k, v])) if call.wants(1) else found


@fused("MultiHeadAttention")
def multi_head_attention(
    call: Call, q: Tensor, k: Tensor | None = None, v: Tensor | None = None, bias: Tensor | None = None,
    mask: Tensor | None = None, added: Tensor | None = None, past_k: Tensor | None = None,
    past_v: Tensor | None = None, past_length: Tensor | None = None, beams: Tensor | None = None,
) -> Any:  # fmt: skip
    """Attention of projections, apart or packed, and keys and values with those of before."""
    _refuse_all(call, {"past_sequence_length": past_length, "cache_indirection": beams, "output_qk": call.wants(3)})
    if q.ndim == 5:  # (B, S, H, 3, D)
        q, k, v = (q[..., i, :].reshape(*q.shape[:2], -1) for i in range(3))
    elif k is not None and k.ndim == 5:  # (B, S, H, 2, D)
        k, v = (k[..., i, :].reshape(*k.shape[:2], -1) for i in range(2))
    if k is None or v is None:
        raise call.refuse(f"a query of shape {q.shape} without a key and a value")
    if bias is not None:
        width = q.shape[2]
        q = xp.add(q, bias[:width])
        if k.ndim == 3:
            k, v = xp.add(k, bias[width : 2 * width]), xp.add(v, bias[2 * width :])
    q = heads_apart(call, q, "num_heads")
    k, v = (each if each.ndim == 4 else heads_apart(call, each, "num_heads") for each in (k, v))
    if past_k is not None and past_v is not None:
        k, v = xp.concat([past_k, k], axis=2), xp.concat([past_v, v], axis=2)
    return _attended(call, q, k, v, mask, added), k, v


def _placed(past: Tensor | None, new: Tensor, before: np.ndarray, length: int) -> Tensor:
    """A cache ``(B, H, length, D)``: of each text so many keys of before, the new ones, and zeros."""
    batch, heads, rows, width = new.shape
    if past is None:
        past = xp.zeros((batch, heads, 0, width), dtype=new.dtype, device=new.device)

    def one(past: Tensor, new: Tensor, count: int) -> Tensor:
        zeros = xp.zeros((*new.shape[:2], length - count - rows, width), dtype=new.dtype, device=new.device)
        parts = [part for part in (past[:, :, :count], new, zeros) if part.size]
        return xp.concat(parts, axis=2) if len(parts) > 1 else parts[0]

    if len(set(before.tolist())) == 1:
        return one(past, new, int(before[0]))
    return xp.concat([one(past[i : i + 1], new[i : i + 1], int(n)) for i, n in enumerate(before)], axis=0)


@fused("GroupQueryAttention", host=(5, 6))
def group_query_attention(
    call: Call, q: Tensor, k: Tensor | None, v: Tensor | None, past_k: Tensor | None, past_v: Tensor | None,
    last: np.ndarray, total: np.ndarray, cosines: Tensor | None = None, sines: Tensor | None = None,
    positions: Tensor | None = None, *more: Tensor | None,
) -> Any:  # fmt: skip
    """Causal attention of grouped heads over a cache, to which new keys are added; rotary embeddings on the way.

    ``last`` is the place of each text's last key. Where there is nothing before, texts are padded on the right.
    ``more``: a bias of the scores, sinks, and scales of quantized caches, which are refused.
    """
    added, sinks, *scales = *more, *(None,) * (2 - len(more))
    _refuse_all(call, {"output_qk": call.wants(3), "quantization": any(each is not None for each in scales)})
    heads, kv_heads = int(call.attributes["num_heads"]), int(call.attributes["kv_num_heads"])
    if k is None or v is None:
        width = q.shape[2] // (heads + 2 * kv_heads)
        ends = heads * width, (heads + kv_heads) * width
        q, k, v = q[..., : ends[0]], q[..., ends[0] : ends[1]], q[..., ends[1] :]
    q = heads_apart(call, q, "num_heads")
    k, v = heads_apart(call, k, "kv_num_heads"), heads_apart(call, v, "kv_num_heads")
    rows, whole = q.shape[2], int(np.asarray(total).reshape(-1)[0])
    lengths = last.reshape(-1).astype(np.int64) + 1
    first = rows == whole
    before = np.zeros_like(lengths) if first else lengths - rows
    room = 0 if past_k is None else past_k.shape[2]
    if (before < 0).any() or (before > room).any() or (lengths > whole).any():
        raise call.refuse(f"{lengths.tolist()} keys of {whole}, {rows} of them new, with {room} of before")
    if call.get("do_rotary", 0):
        if cosines is None or sines is None:
            raise call.refuse("do_rotary without caches of cosines and sines")
        if positions is None:
            positions = call.tensor((before[:, None] + np.arange(rows)).astype(np.int32))
        turn = {"interleaved": call.get("rotary_interleaved", 0), "rotary_embedding_dim": 2 * cosines.shape[1]}
        q, k = (rotary_embedding(call._replace(attributes=turn), x, cosines, sines, positions) for x in (q, k))
    length = max(room, whole)
    k, v = _placed(past_k, k, before, length), _placed(past_v, v, before, length)
    options: dict[str, Any] = {"softcap": call.get("softcap", 0.0), "causal": True}
    if (lengths < whole).any():
        options |= {"seqlens_k": lengths, "seqlens_q": lengths if first else None}
    window = int(call.get("local_window_size", -1))
    if window > 0:
        options["window_size"] = (window - 1, 0)
    if sinks is not None:
        options["sinks"] = sinks.astype("float32", copy=False)
    elif call.get("smooth_softmax", 0) == 1:  # one more in each sum
        options["sinks"] = np.zeros(heads, np.float32)
    keys, values = k[:, :, :whole], v[:, :, :whole]
    found = F.flash_attention2(q, keys, values, attn_bias=added, scale=call.get("scale", 0.0) or None, **options)
    return heads_joined(found), k, v


@fused("RotaryEmbedding")
def fused_rotary_embedding(call: Call, x: Tensor, positions: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Pairs of elements rotated; ``positions`` are those of the tokens, or that of the first."""
    _refuse_all(call, {"is_packed_batching": call.get("is_packed_batching", 0), "scale": call.get("scale", 1.0) != 1})
    rows = x.shape[-2]
    if positions.ndim == 1:
        places = xp.arange(rows, dtype="int32", device=call.backend)
        positions = xp.add(positions.astype("int32", copy=False), places).reshape(1, rows)
    count = int(call.get("num_heads", 0))
    if x.ndim == 3 and not count:
        count = x.shape[2] // (int(call.get("rotary_embedding_dim", 0)) or 2 * cosines.shape[1])
    turn = {**call.attributes, "num_heads": count}
    return rotary_embedding(call._replace(attributes=turn), x, cosines, sines, positions)
