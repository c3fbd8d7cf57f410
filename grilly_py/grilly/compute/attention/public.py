"""Attention by the arguments that users give, on a device; ``grilly.functional`` documents each function."""

from __future__ import annotations

from typing import Any, SupportsIndex

from ..device.arrays import Array, Float32Array, FloatArray, MaskArray, Precision, Unpack
from ..device.device import Device
from ..device.numbers import integer
from ..random import with_seed
from . import backward, forward
from .heads import check_heads, join_heads, split_heads
from .keywords import OptionKeywords
from .options import options_of


def flash_attention2(
    device: Device, q: FloatArray, k: FloatArray, v: FloatArray, *, mask: MaskArray | None = None,
    causal: bool = False, scale: float | None = None, return_lse: bool = False, kernel: str | None = None,
    precision: Precision = "highest", **options: Unpack[OptionKeywords],
) -> Any:  # fmt: skip
    """Exact attention (FlashAttention-2): ``grilly.functional.flash_attention2`` on a device."""
    name = "flash_attention2"
    return forward.flash_attention(
        name, device, q, k, v, mask=mask, causal=causal, scale=scale, return_lse=return_lse, kernel=kernel,
        precision=precision, options=options_of(name, with_seed(device, options)),
    )  # fmt: skip


def flash_attention3(
    device: Device, q: FloatArray, k: FloatArray, v: FloatArray, *, num_heads: SupportsIndex | None = None,
    head_dim: SupportsIndex | None = None, num_kv_heads: SupportsIndex | None = None, mask: MaskArray | None = None,
    causal: bool = False, scale: float | None = None, return_lse: bool = False, kernel: str | None = None,
    precision: Precision = "highest", **options: Unpack[OptionKeywords],
) -> Any:  # fmt: skip
    """Exact attention, also with joined heads: ``grilly.functional.flash_attention3`` on a device."""
    name = "flash_attention3"
    joined = num_heads is not None and len(getattr(q, "shape", ())) == 3
    if joined:
        q, k, v = _split(name, q, k, v, num_heads, head_dim, num_kv_heads)
    else:
        check_heads(name, q, num_heads, head_dim)
        if num_kv_heads is not None:
            shape, heads = tuple(getattr(k, "shape", ())), integer(name, "num_kv_heads", num_kv_heads)
            if len(shape) != 4 or shape[1] != heads:
                raise ValueError(f"{name}: num_kv_heads is {heads} and k has shape {shape}; joined heads, "
                                 "(B, S, num_kv_heads * head_dim), need num_heads too")  # fmt: skip
    found = forward.flash_attention(
        name, device, q, k, v, mask=mask, causal=causal, scale=scale, return_lse=return_lse, kernel=kernel,
        precision=precision, options=options_of(name, with_seed(device, options)),
    )  # fmt: skip
    if not joined:
        return found
    return (join_heads(found[0]), *found[1:]) if return_lse else join_heads(found)


def _split(name: str, q, k, v, num_heads, head_dim, num_kv_heads) -> tuple:
    """Joined heads of q, k and v as an axis. Raises TypeError and ValueError."""
    for label, count in (("num_heads", num_heads), ("num_kv_heads", num_kv_heads), ("head_dim", head_dim)):
        if count is not None:
            integer(name, label, count)
    kv_heads, of_keys = (num_heads, "num_heads") if num_kv_heads is None else (num_kv_heads, "num_kv_heads")
    return (
        split_heads(name, "q", q, num_heads, head_dim),
        split_heads(name, "k", k, kv_heads, head_dim, of_keys),
        split_heads(name, "v", v, kv_heads, None, of_keys),
    )


def flash_attention2_backward(
    device: Device, grad_out: FloatArray, q: FloatArray, k: FloatArray, v: FloatArray, out: FloatArray,
    lse: Float32Array, *, mask: MaskArray | None = None, causal: bool = False, scale: float | None = None,
    return_dbias: bool = False, return_dsinks: bool = False, return_dt5_table: bool = False,
    grad_lse: Float32Array | None = None, **options: Unpack[OptionKeywords],
) -> tuple[Array, ...]:  # fmt: skip
    """The gradients of attention: ``grilly.functional.flash_attention2_backward`` on a device."""
    return backward.flash_attention_backward(
        device, grad_out, q, k, v, out, lse, mask=mask, causal=causal, scale=scale, return_dbias=return_dbias,
        return_dsinks=return_dsinks, return_dt5_table=return_dt5_table, grad_lse=grad_lse,
        options=options_of(backward.NAME, options),
    )  # fmt: skip


__all__ = ["flash_attention2", "flash_attention2_backward", "flash_attention3"]
