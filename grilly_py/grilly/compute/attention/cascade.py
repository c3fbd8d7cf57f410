"""Attention over keys that all samples share and over keys of their own, in two calls; and how such results are merged.

All of it is made of other operations, and so are its gradients.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..arrays.functions import elementwise
from ..device.arguments import check_backend, check_float, to_device
from ..device.device import Device
from ..device.tensor import Tensor
from ..expressions.scalars import Scalar
from . import forward
from .checks import check_dims, check_grouped, check_qkv, check_scale, take_terms
from .foreign import unknown
from .options import Options, prepare

NAME, MERGE = "cascade_attention", "merge_attention"
_FLOAT32 = np.dtype(np.float32)


def _weights(lse: Scalar, other: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """The larger log-sum-exp, and both sums of exponentials relative to it; 0, 0 and 0 where a row saw nothing."""
    of = Scalar.operations
    larger = of["maximum"](lse, other)
    larger = of["where"](larger == -math.inf, 0.0, larger)
    return larger, of["exp"](lse - larger), of["exp"](other - larger)


@elementwise
def _merged(out: Any, lse: Any, other: Any, other_lse: Any) -> Any:
    """An element of the merged output: a part of weight 0 adds nothing, whatever it is."""
    where = Scalar.operations["where"]
    _, one, two = _weights(lse, other_lse)
    total = one + two
    first = where(one == 0.0, 0.0, out.astype("float32") * one)
    second = where(two == 0.0, 0.0, other.astype("float32") * two)
    return ((first + second) / where(total == 0.0, 1.0, total)).astype(out.dtype)


@elementwise
def _merged_lse(lse: Any, other: Any) -> Any:
    where = Scalar.operations["where"]
    larger, one, two = _weights(lse, other)
    total = one + two
    return where(total == 0.0, -math.inf, larger + Scalar.operations["log"](where(total == 0.0, 1.0, total)))


def merge_attention(device: Device, out, lse, other, other_lse) -> tuple:
    """``grilly.functional.merge_attention`` on a device; documented there."""
    device.check_open()
    arrays = {"out": out, "lse": lse, "other": other, "other_lse": other_lse}
    check_float(MERGE, out=out, other=other)
    check_float(MERGE, lse=lse, other_lse=other_lse)
    check_backend(MERGE, device, *arrays.values())
    shape = tuple(out.shape)
    for name, array in arrays.items():
        want = shape[:-1] if name.endswith("lse") else shape
        if len(shape) < 1 or tuple(array.shape) != want:
            raise ValueError(f"{MERGE}: {name} has shape {tuple(array.shape)} and out {shape}; expected {want}")
    if lse.dtype != _FLOAT32:
        raise TypeError(f"{MERGE}: lse and other_lse are {lse.dtype}; expected float32")
    kept = any(isinstance(array, Tensor) for array in arrays.values())
    found = _merge(*(to_device(device, array) for array in arrays.values()))
    return found if kept else tuple(array.numpy() for array in found)


def _merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    return _merged(out, lse[..., None], other, other_lse[..., None]), _merged_lse(lse, other_lse)


def cascade_attention(device: Device, q, k_shared, v_shared, k, v, *, return_lse: bool = False, **options: Any):
    """``grilly.functional.cascade_attention`` on a device; documented there."""
    device.check_open()
    causal, scale, kernel, high = take_terms(NAME, options)
    given = Options(softcap=options.pop("softcap", 0.0), seqlens_k=options.pop("seqlens_k", None))
    if options:
        raise unknown(NAME, options)
    arrays = (q, k_shared, v_shared, k, v)
    check_backend(NAME, device, *arrays)
    _check_shapes(*arrays)
    batch, heads, queries, dim = q.shape
    scale = check_scale(NAME, scale, dim)
    prepare(NAME, given, (batch, heads, queries, k.shape[2]), causal)
    terms: dict[str, Any] = {"scale": scale, "kernel": kernel, "precision": "high" if high else "highest"}
    tensors = [to_device(device, array) for array in arrays]
    kept = any(isinstance(array, Tensor) for array in arrays)
    # The queries of all samples are those of one, which reads the shared keys once.
    together = tensors[0].transpose(1, 0, 2, 3).reshape(1, heads, batch * queries, dim)
    shared = [tensor if len(tensor.shape) == 4 else tensor[None] for tensor in tensors[1:3]]
    of_all, all_lse = forward.flash_attention(
        NAME, device, together, *shared, return_lse=True, options=Options(softcap=given.softcap), **terms
    )
    width = of_all.shape[3]
    of_all = of_all.reshape(heads, batch, queries, width).transpose(1, 0, 2, 3)
    all_lse = all_lse.reshape(heads, batch, queries).transpose(1, 0, 2)
    own, own_lse = forward.flash_attention(
        NAME, device, tensors[0], *tensors[3:], return_lse=True, causal=causal, options=given, **terms
    )
    found = _merge(own, own_lse, of_all, all_lse)
    found = found if kept else tuple(array.numpy() for array in found)
    return found if return_lse else found[0]


def _check_shapes(q, k_shared, v_shared, k, v) -> None:
    """Check the arrays against each other. Raises TypeError and ValueError."""
    check_float(NAME, q=q, k_shared=k_shared, v_shared=v_shared, k=k, v=v)
    if len(q.shape) != 4:
        raise ValueError(f"{NAME}: q has shape {tuple(q.shape)}; expected (B, H, N_q, D)")
    check_qkv(NAME, q, k, v)
    for name, array in (("k_shared", k_shared), ("v_shared", v_shared)):
        shape = tuple(array.shape)
        if len(shape) != 3 and not (len(shape) == 4 and shape[0] == 1):
            raise ValueError(f"{NAME}: {name} has shape {shape}; expected (H_kv, N_shared, D), without samples")
    (heads, count, dim), (v_heads, v_count, width) = k_shared.shape[-3:], v_shared.shape[-3:]
    if (heads, count) != (v_heads, v_count):
        raise ValueError(
            f"{NAME}: k_shared has shape {tuple(k_shared.shape)} and v_shared {tuple(v_shared.shape)}; heads and keys "
            "must agree"
        )
    check_grouped(NAME, "k_shared", heads, q.shape[1])
    check_dims(NAME, ("q", "k_shared", "v_shared"), q.shape[3], dim, width)
    if width != v.shape[3]:
        raise ValueError(f"{NAME}: v_shared has head dimension {width} and v has {v.shape[3]}; they must be equal")


__all__ = ["cascade_attention", "merge_attention"]
