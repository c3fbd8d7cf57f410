"""Attention with the whole score matrix in memory, which others are compared with, and what a call takes of memory."""

from __future__ import annotations

from .attention.checks import check_qkv, check_scale
from .device.arguments import check_float, to_device
from .device.arrays import Array, FloatArray
from .device.device import Device
from .device.tensor import Tensor
from .unfused.attention import stored_attention


def naive_attention(
    device: Device, q: FloatArray, k: FloatArray, v: FloatArray, scale: float | None = None
) -> tuple[Array, int]:
    """``grilly.functional.naive_attention`` on a device; documented there."""
    (q, k, v), kept = operands("naive_attention", device, q, k, v)
    check_scale("naive_attention", scale, q.shape[-1])
    out, nbytes = measured(device, lambda: stored_attention(device, q, k, v, scale=scale))
    return (out if kept else out.numpy()), nbytes


def operands(operation: str, device: Device, q, k, v) -> tuple[list[Tensor], bool]:
    """q, k and v on the device, checked, and whether the result is to be a tensor."""
    device.check_open()
    check_float(operation, q=q, k=k, v=v)
    check_qkv(operation, q, k, v)
    kept = any(isinstance(array, Tensor) for array in (q, k, v))
    return [array if isinstance(array, Tensor) else to_device(device, array) for array in (q, k, v)], kept


def measured(device: Device, call) -> tuple[Tensor, int]:
    """What the call returns, and the peak of device memory during it beyond what was in use before."""
    before = device.runtime.memory(reset_peak=True).in_use
    out = call()
    return out, device.runtime.memory().peak - before


def naive_bytes(q: Tensor, k: Tensor, out: Tensor) -> int:
    """What ``naive_attention`` allocates: scores with weights, or weights with the output."""
    scores = 4 * q.size // max(q.shape[-1], 1) * k.shape[-2]
    return scores + max(scores, out.nbytes)
