"""Attention by PyTorch's signature and rules, on top of `forward.flash_attention`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..device.arguments import check_float, no_array, to_device
from ..device.device import Device
from ..device.numbers import number
from ..device.tensor import Tensor
from ..random import with_seed
from .checks import broadcasts, check_causal, misplaced
from .forward import flash_attention
from .options import options_of

NAME = "scaled_dot_product_attention"
#: Finite values of an additive mask are raised to this. Beside it every score is lost, so a row of nothing but the
#: lowest number attends to all keys alike, as in PyTorch; the kernels would read that number as "never attend".
LOWEST = np.float32(-1e38)


def scaled_dot_product_attention(
    device: Device,
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
):
    """``grilly.functional.scaled_dot_product_attention`` on a device; documented there."""
    device.check_open()
    is_causal = check_causal(NAME, is_causal, "is_causal")
    check_float(NAME, query=query, key=key, value=value)
    certain = attn_mask is None and dropout_p.__class__ is float and not dropout_p
    if certain and _are_plain(query, key, value, is_causal):
        return flash_attention(
            NAME, device, query, key, value, mask=None, causal=is_causal, scale=scale,
            shift=0 if is_causal else None, options=options_of(NAME, {}),
        )  # fmt: skip
    dropout_p = _probability(dropout_p)
    if attn_mask is not None and is_causal:
        raise ValueError(f"{NAME}: attn_mask is given and is_causal is True; leave one out, or put the causal part "
                         "into the mask")  # fmt: skip
    lead, kv_lead = _leading(query, key, value, bool(enable_gqa))
    length, keys = query.shape[-2], key.shape[-2]
    batch = lead[:-1]
    kv_heads = kv_lead[-1:] or (1,)
    heads = lead[-1:] or (1,)
    mask = None if attn_mask is None else _mask(attn_mask, (*batch, *heads), (length, keys))
    kept = any(isinstance(array, Tensor) for array in (query, key, value))
    q = _four(to_device(device, query), batch, heads)
    k, v = (_four(to_device(device, array), batch, kv_heads) for array in (key, value))
    if is_causal and keys > length:
        # From the top left: query 0 stands at key 0. No query sees keys from `length` on.
        k, v = k[:, :, :length], v[:, :, :length]
    more = {}
    if dropout_p == 1.0:
        mask, is_causal = np.zeros((1, 1), bool), False
    elif dropout_p:
        more = with_seed(device, {"dropout_p": dropout_p})
    out = flash_attention(
        NAME, device, q, k, v,
        mask=mask, causal=is_causal, scale=scale, shift=0 if is_causal else None, options=options_of(NAME, more),
    )  # fmt: skip
    out = out.reshape(*lead, length, value.shape[-1])
    return out if kept else out.numpy()


def _are_plain(query, key, value, is_causal) -> bool:
    """Whether the arrays are Tensors of four axes with equal heads, and no keys are left out."""
    if not query.__class__ is key.__class__ is value.__class__ is Tensor:
        return False
    q, k, v = query.shape, key.shape, value.shape
    if not len(q) == len(k) == len(v) == 4 or not q[:2] == k[:2] == v[:2]:
        return False
    return q[3] == k[3] and k[2] == v[2] and not (is_causal and k[2] > q[2])


def _probability(value) -> float:
    value = number(NAME, "dropout_p", value)
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{NAME}: dropout_p is {value}; expected 0 to 1")
    return value


def _leading(query, key, value, gqa: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Check shapes; the leading axes of the output, before the last two, and those of key and value."""
    shapes = {name: tuple(a.shape) for name, a in (("query", query), ("key", key), ("value", value))}
    least = 3 if gqa else 2
    for name, shape in shapes.items():
        if len(shape) < least:
            why = "with enable_gqa (..., H, S, E)" if gqa else "(..., S, E)"
            raise ValueError(f"{NAME}: {name} has shape {shape}; expected at least {least} axes, {why}")
    q, k, v = shapes.values()
    if k[-1] != q[-1]:
        raise ValueError(f"{NAME}: key has {k[-1]} elements in its last axis and query has {q[-1]}; they must be equal")
    if k[-2] != v[-2]:
        raise ValueError(f"{NAME}: key has {k[-2]} keys and value has {v[-2]}; they must be equal")
    if gqa:
        heads, kv_heads = q[-3], k[-3]
        if v[-3] != kv_heads:
            raise ValueError(f"{NAME}: key has {kv_heads} heads and value has {v[-3]}; they must be equal")
        if heads != kv_heads and (kv_heads == 0 or heads % kv_heads):
            raise ValueError(f"{NAME}: key has {kv_heads} heads and query has {heads}; query's must be a multiple")
        parts = [shape[:-3] for shape in (q, k, v)]
    else:
        parts = [shape[:-2] for shape in (q, k, v)]
    try:
        common = parts[0] if parts[0] == parts[1] == parts[2] else np.broadcast_shapes(*parts)
    except ValueError:
        hint = "" if gqa else "; with fewer key heads than query heads set enable_gqa=True"
        raise ValueError(
            f"{NAME}: query, key and value have shapes {q}, {k} and {v}, whose leading axes do not broadcast{hint}"
        ) from None
    if gqa:
        return (*common, heads), (*common, kv_heads)
    # One head of keys serves all queries without being repeated.
    single = len(common) > 0 and all(len(p) == 0 or p[-1] == 1 for p in parts[1:])
    return common, (*common[:-1], 1) if single else common


def _four(tensor: Tensor, batch: tuple[int, ...], heads: tuple[int]) -> Tensor:
    """``(..., S, E)`` as ``(B, H, S, E)``; copied only where axes that repeat stand beside axes that do not."""
    rows = tensor.shape[-2:]
    if len(batch) == 1 and tensor.shape == (*batch, *heads, *rows):
        return tensor
    missing = len(batch) + 1 - (tensor.ndim - 2)
    tensor = tensor[(None,) * missing] if missing > 0 else tensor
    total = math.prod(batch)
    if math.prod(tensor.shape[: len(batch)]) == 1:
        return tensor.reshape(1, *tensor.shape[-3:]).broadcast_to((total, *heads, *rows))
    return tensor.broadcast_to((*batch, *heads, *rows)).reshape(total, *heads, *rows)


def _mask(mask, lead: tuple[int, ...], matrix: tuple[int, int]):
    """The mask with at most four axes, broadcastable to ``(B, H, L, S)``."""
    if not isinstance(mask, (np.ndarray, Tensor)):
        raise no_array(NAME, "attn_mask", mask)
    check_mask_shape(NAME, tuple(mask.shape), (*lead, *matrix))
    if isinstance(mask, np.ndarray) and mask.dtype != np.bool_:
        if mask.dtype.kind != "f" and mask.dtype.name != "bfloat16":
            raise TypeError(
                f"{NAME}: attn_mask is {mask.dtype}; expected bool (True = take part) or a floating dtype; "
                "cast it with .astype(bool)"
            )
        with np.errstate(over="ignore"):
            mask = mask.astype(np.float32)
        if (mask < LOWEST).any():
            mask = np.where(np.isneginf(mask), mask, np.maximum(mask, LOWEST))
    broadcast = np.broadcast_to if isinstance(mask, np.ndarray) else Tensor.broadcast_to
    return in_four_axes(mask, lead, broadcast)


def check_mask_shape(name: str, shape: tuple[int, ...], full: tuple[int, ...]) -> None:
    """Raise ValueError for the shape of a mask that has not two axes or more which broadcast to ``full``."""
    if len(shape) < 2 or not broadcasts(shape, full):
        raise ValueError(
            f"{name}: attn_mask has shape {shape}; expected two axes or more that broadcast to "
            f"(N, ..., Hq, L, S) = {full}" + misplaced("attn_mask", shape, full)
        )


def in_four_axes(mask: Any, lead: tuple[int, ...], broadcast: Callable[[Any, tuple[int, ...]], Any]) -> Any:
    """A mask of another library's arrays too with at most four axes: those of ``lead`` but the last, heads, are one."""
    missing = len(lead) + 2 - mask.ndim
    if len(lead) <= 2:
        # Two axes are (L, S) here, and three (Hq, L, S), also where there are as many samples.
        return mask if mask.ndim == 4 else mask[(None,) * (4 - mask.ndim)]
    batch, (*outer, heads, rows, keys) = lead[:-1], (*(1,) * missing, *mask.shape)
    if math.prod(outer) == 1:
        return mask.reshape(1, heads, rows, keys)
    wide = broadcast(mask.reshape(*outer, heads, rows, keys), (*batch, heads, rows, keys))
    return wide.reshape(math.prod(batch), heads, rows, keys)
