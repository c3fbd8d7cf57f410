"""Attention and rotary embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import array_api as xp
from ... import functional as F
from ...compute import Tensor
from ..table import Call, operator, wide
from .shapes import padded


def heads_apart(call: Call, x: Tensor, name: str) -> Tensor:
    """(B, S, heads D) as (B, heads, S, D), a view."""
    heads = int(call.get(name, 0))
    if heads < 1 or x.shape[2] % heads:
        raise call.refuse(f"{name} is {heads}; an input of shape {x.shape} cannot have so many heads")
    return xp.permute_dims(x.reshape((x.shape[0], x.shape[1], heads, x.shape[2] // heads)), (0, 2, 1, 3))


def _visible(rows: int, keys: int, offset: Any, left: int | None, right: int | None) -> np.ndarray:
    """Which keys each query sees: True from ``left`` before its own place up to ``right`` after it."""
    apart = np.arange(keys) - (np.arange(rows)[:, None] + offset)
    seen = np.ones(apart.shape, np.bool_)
    if left is not None:
        seen &= apart >= -left
    if right is not None:
        seen &= apart <= right
    return seen


def _only(call: Call, mask: Tensor | None, seen: np.ndarray) -> Tensor:
    """A mask that also hides what is not seen."""
    if mask is None:
        return call.tensor(seen)
    if mask.dtype == np.bool_:
        return xp.logical_and(mask, seen)
    return xp.where(call.tensor(seen), mask, float("-inf"))


def _with_past(
    k: Tensor, v: Tensor, past_k: Tensor | None, past_v: Tensor | None
) -> tuple[Tensor, Tensor, int]:
    """Keys and values behind those of the past, and how many these are."""
    if past_k is None or past_v is None:
        return k, v, 0
    k = xp.concat([past_k.astype(k.dtype, copy=False), k], axis=2)
    v = xp.concat([past_v.astype(v.dtype, copy=False), v], axis=2)
    return k, v, past_k.shape[2]


def _window(call: Call) -> tuple[int | None, int | None]:
    """How far a query sees before its own place and after it; None: to the end."""
    left, right = (int(call.get(f"{side}_window_size", -1)) for side in ("left", "right"))
    right = 0 if call.get("is_causal", 0) else right
    return None if left < 0 else left, None if right < 0 else right


def _whole(call: Call, mask: Tensor, keys: int) -> Tensor:
    """A mask with four axes, of all keys: those that it does not reach are hidden."""
    mask = wide(mask).reshape((*(1,) * (4 - mask.ndim), *mask.shape))
    if mask.shape[-1] >= keys:
        return mask
    hidden = False if mask.dtype == np.bool_ else float("-inf")
    return padded(call, mask, [0] * 4, [0, 0, 0, keys - mask.shape[-1]], hidden)


def _bounds(window: tuple[int | None, int | None], shift: int) -> tuple[int | None, int | None]:
    """A window of ONNX as grilly's, whose diagonal is so much later."""
    left, right = window
    return None if left is None else left - shift, None if right is None else right + shift


@operator("Attention", host=(6,))
def attention(
    call: Call, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, past_k: Tensor | None = None,
    past_v: Tensor | None = None, lengths: np.ndarray | None = None,
) -> Any:  # fmt: skip
    """Attention with masks, grouped heads, a cache, windows and soft-caps; the score matrix only where asked for."""
    joined, rows, given_q = q.ndim == 3, q.shape[-2], q
    if joined:
        q = heads_apart(call, q, "q_num_heads")
        k, v = heads_apart(call, k, "kv_num_heads"), heads_apart(call, v, "kv_num_heads")
    k, v, past = _with_past(k, v, past_k, past_v)
    present = k, v
    k, v = k.astype(q.dtype, copy=False), v.astype(q.dtype, copy=False)
    keys, window = k.shape[2], _window(call)
    mask = None if mask is None else _whole(call, mask, keys)
    options: dict[str, Any] = dict(scale=call.get("scale"), softcap=call.get("softcap", 0.0), mask=mask)
    # grilly counts from the last query and key of each sample, ONNX from the first: they differ by so much.
    bounds = _bounds(window, 0 if lengths is not None else past - (keys - rows))
    if any(bound is not None and bound < 0 for bound in bounds):
        options["mask"] = _only(call, mask, _visible(rows, keys, past, *window))
    elif bounds != (None, None):
        options |= dict(causal=True) if bounds == (None, 0) else dict(window_size=bounds)
    if lengths is not None:
        options["seqlens_k"] = lengths.reshape(-1)
    if joined and past_k is None and not call.wants(3):
        heads = dict(num_heads=q.shape[1], num_kv_heads=k.shape[1])
        return F.flash_attention3(given_q, heads_joined(k), heads_joined(v), **heads, **options), *present
    found = F.flash_attention2(q, k, v, **options)
    found = heads_joined(found) if joined else found
    if not call.wants(3):
        return found, *present
    offset = past if lengths is None else lengths.reshape(-1, 1, 1, 1) - rows
    seen = _visible(rows, keys, offset, *window)
    if lengths is not None:
        seen = seen & (np.arange(keys) < lengths.reshape(-1, 1, 1, 1))
    return found, *present, _scores(call, q, k, mask, seen).astype(q.dtype, copy=False)


def heads_joined(x: Tensor) -> Tensor:
    """(B, heads, S, D) as (B, S, heads D)."""
    batch, heads, rows, width = x.shape
    return xp.permute_dims(x, (0, 2, 1, 3)).reshape((batch, rows, heads * width))


def _scores(call: Call, q: Tensor, k: Tensor, mask: Tensor | None, seen: np.ndarray) -> Tensor:
    """The score matrix as far as the fourth output's mode goes: products, soft-cap, mask, softmax; float32."""
    mode, cap = int(call.get("qk_matmul_output_mode", 0)), call.get("softcap", 0.0)
    scores = F.attention_scores(q, k, scale=call.get("scale"))
    if mode >= 1 and cap > 0:
        scores = xp.multiply(xp.tanh(xp.divide(scores, cap)), cap)
    if mode < 2:
        return scores
    if mask is not None and mask.dtype != np.bool_:
        scores = xp.add(scores, mask)
    shown = call.tensor(seen) if mask is None or mask.dtype != np.bool_ else xp.logical_and(mask, seen)
    scores = xp.where(shown, scores, float("-inf"))
    return scores if mode == 2 else call.backend.attention.softmax(scores)


@operator("ai.onnx.preview.FlexAttention")
def flexible_attention(call: Call, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention whose scores, or weights, go through graphs in the node; only then they are stored."""
    k, scale = k.astype(q.dtype, copy=False), call.get("scale")
    if not call.branches:
        return F.flash_attention2(q, k, v.astype(q.dtype, copy=False), scale=scale).astype(v.dtype, copy=False)
    scores = F.attention_scores(q, k, scale=scale)
    if "score_mod" in call.branches:
        scores = wide(call.branches["score_mod"](scores)[0])
    weights = F.softmax(scores, -1)
    if "prob_mod" in call.branches:
        weights = wide(call.branches["prob_mod"](weights)[0])
    return F.attention_output(weights, v)


@operator("RotaryEmbedding")
def rotary_embedding(call: Call, x: Tensor, cosines: Tensor, sines: Tensor, positions: Tensor | None = None) -> Tensor:
    """Pairs of elements rotated by angles whose cosines and sines are given, at positions or in order."""
    heads = x if x.ndim == 4 else heads_apart(call, x, "num_heads")
    width = int(call.get("rotary_embedding_dim", 0)) or heads.shape[3]
    if positions is not None:
        cosines, sines = (xp.take(each, positions, axis=0) for each in (cosines, sines))
    if cosines.shape[-1] != width // 2 or sines.shape[-1] != width // 2:
        raise call.refuse(f"caches of shape {cosines.shape} for {width} elements, which need {width // 2}")
    cosines, sines = wide(cosines)[:, None], wide(sines)[:, None]
    rotated, rest = wide(heads)[..., :width], heads[..., width:]
    if call.get("interleaved", 0):
        first, second = rotated[..., 0::2], rotated[..., 1::2]
    else:
        first, second = rotated[..., : width // 2], rotated[..., width // 2 :]
    one = xp.subtract(xp.multiply(cosines, first), xp.multiply(sines, second))
    other = xp.add(xp.multiply(sines, first), xp.multiply(cosines, second))
    if call.get("interleaved", 0):
        found = xp.stack([one, other], axis=-1).reshape(rotated.shape)
    else:
        found = xp.concat([one, other], axis=-1)
    found = found.astype(x.dtype, copy=False)
    found = found if not rest.size else xp.concat([found, rest], axis=-1)
    return found if x.ndim == 4 else heads_joined(found)
