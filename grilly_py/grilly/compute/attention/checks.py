"""Checks of the arguments that all attention functions share."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from ...errors import UnsupportedError
from ..device.arguments import check_float, check_precision, no_array
from ..device.callers import callers_level
from ..device.dtypes import is_float
from ..device.numbers import number
from ..device.tensor import Tensor

#: Columns of a head's queries and keys, and of its values, at most: DeepSeek's latent attention has 576 and 512.
MAX_DIM = 576
MAX_VALUE_DIM = 512
#: Of both, where gradients are taken.
MAX_GRADIENT_DIM = 256
#: Kernels multiply by a scale times log2(e), in float32.
MOST_SCALE = float(np.finfo(np.float32).max) / math.log2(math.e)


def check_qkv(operation: str, q, k, v) -> int:
    """Check q, k and v of one rank (2, 3 or 4) against each other; returns their rank."""
    check_float(operation, q=q, k=k, v=v)
    rank = len(q.shape)
    if rank not in (2, 3, 4):
        raise ValueError(f"{operation}: q has shape {tuple(q.shape)}; expected (B, H, S, D), (H, S, D) or (S, D)")
    for name, array in (("k", k), ("v", v)):
        if len(array.shape) != rank:
            raise ValueError(
                f"{operation}: {name} has {len(array.shape)} axes and q has {rank}; give them the same number"
            )
    q_shape, k_shape, v_shape = ((1,) * (4 - rank) + tuple(a.shape) for a in (q, k, v))
    for name, shape in (("k", k_shape), ("v", v_shape)):
        if shape[0] != q_shape[0]:
            raise ValueError(f"{operation}: {name} has batch {shape[0]} and q has {q_shape[0]}; they must be equal")
    if k_shape[1] != v_shape[1]:
        raise ValueError(f"{operation}: k has {k_shape[1]} heads and v has {v_shape[1]}; they must be equal")
    check_grouped(operation, "k", k_shape[1], q_shape[1], bool(k_shape[2]) and q_shape[2] % k_shape[2] == 0)
    if k_shape[2] != v_shape[2]:
        raise ValueError(f"{operation}: k has {k_shape[2]} keys and v has {v_shape[2]}; they must be equal")
    check_dims(operation, ("q", "k", "v"), q_shape[3], k_shape[3], v_shape[3])
    return rank


def check_grouped(operation: str, name: str, kv_heads: int, heads: int, transposed: bool = False) -> None:
    """Raise ValueError unless the keys ``name``, of ``kv_heads`` heads, serve q's heads in groups of one size.

    ``transposed``: the arrays may be (B, S, H, D), and the message says so.
    """
    if heads % kv_heads if kv_heads else heads:
        way = "; arrays are (B, H, S, D) here: turn (B, S, H, D) by swapaxes(1, 2)" if transposed else ""
        raise ValueError(
            f"{operation}: {name} has {kv_heads} heads and q has {heads}; q's must be a multiple of {name}'s{way}"
        )


def check_dims(operation: str, names: tuple[str, str, str], dim: int, k_dim: int, value_dim: int) -> None:
    """Raise ValueError unless kernels take these head dimensions. ``names`` are those of q, k and v in messages."""
    q, k, v = names
    if k_dim != dim:
        raise ValueError(f"{operation}: {k} has head dimension {k_dim} and {q} has {dim}; they must be equal")
    for name, width, most in ((f"{q} and {k}", dim, MAX_DIM), (v, value_dim, MAX_VALUE_DIM)):
        if not 1 <= width <= most:
            raise ValueError(f"{operation}: the head dimension of {name} is {width}; expected 1 to {most}")


def check_gradient_dims(operation: str, dim: int, value_dim: int) -> None:
    """Raise UnsupportedError for heads that no gradient is computed of."""
    if max(dim, value_dim) > MAX_GRADIENT_DIM:
        raise UnsupportedError(
            f"{operation}: gradients are of heads of at most {MAX_GRADIENT_DIM} columns, and these have {dim} in q and "
            f"k, {value_dim} in v"
        )


def take_terms(operation: str, keywords: dict[str, Any]) -> tuple[bool, Any, str | None, bool]:
    """Take the terms of a call (`keywords.TermKeywords`) out of its keyword arguments, and check all but the scale.

    Returns causal, scale, kernel, and whether the precision is "high". Raises TypeError and ValueError.
    """
    high = check_precision(operation, keywords.pop("precision", "highest"))
    causal, kernel = keywords.pop("causal", False), keywords.pop("kernel", None)
    if causal.__class__ is not bool:
        causal = check_causal(operation, causal)
    if kernel is not None and not isinstance(kernel, str):
        raise TypeError(f"{operation}: kernel is a {type(kernel).__name__}; expected the name of a shader family")
    return causal, keywords.pop("scale", None), kernel, high


def check_causal(operation: str, causal, name: str = "causal") -> bool:
    """Whether attention is causal. Raises TypeError for texts, masks and other values that are no truth value."""
    if causal.__class__ is bool:
        return causal
    if causal is not None and not isinstance(causal, (int, np.integer, np.bool_)):
        mask = "; a mask is given as mask" if hasattr(causal, "shape") else ""
        raise TypeError(f"{operation}: {name} is a {type(causal).__name__}; expected True or False{mask}")
    return bool(causal)


def check_scale(operation: str, scale, head_dim: int) -> float:
    """``scale``, or 1/sqrt(head_dim) for None. Raises TypeError, and ValueError for a scale beyond MOST_SCALE."""
    if scale is None:
        return 1.0 / math.sqrt(head_dim)
    given, scale = scale, number(operation, "scale", scale)
    if not abs(scale) <= MOST_SCALE:
        raise ValueError(
            f"{operation}: scale is {given}; expected a finite number, at most {MOST_SCALE:.3g} either way as scores "
            "are float32, or None for 1/sqrt(head dimension)"
        )
    return scale


def check_mask(operation: str, mask, full: tuple[int, ...]):
    """The mask as bool or float32, checked to broadcast to ``full`` = (B, H, Sq, Sk); a NumPy array or a Tensor.

    In a float16 or float64 array the lowest finite number becomes minus infinity, as float32's own is read as such.
    """
    if not isinstance(mask, (np.ndarray, Tensor)):
        raise no_array(operation, "mask", mask)
    dtype = mask.dtype
    shape = tuple(mask.shape)
    check_broadcast(operation, "mask", shape, full)
    if len(shape) == 2 and shape == (full[0], full[3]) and full[0] == full[2] > 1:
        warnings.warn(
            f"{operation}: a mask of shape {shape} is taken as (Sq, Sk), and (B, Sk) would be the same; write "
            "mask[None, None] to say so, or mask[:, None, None] for padding",
            stacklevel=callers_level(),
        )
    if len(shape) == 3 and full[0] == full[1] == shape[0] > 1:
        warnings.warn(
            f"{operation}: a mask of shape {shape} is taken as (H, Sq, Sk), and (B, Sq, Sk) would be the same; write "
            "mask[None] to say so, or mask[:, None] for one of each sample",
            stacklevel=callers_level(),
        )
    if dtype == np.bool_ or dtype == np.float32:
        return mask
    if np.dtype(dtype).name == "bfloat16" and not isinstance(mask, Tensor):
        return mask.astype(np.float32)  # its lowest number is below what the kernels read as "never"
    if isinstance(mask, Tensor) or np.dtype(dtype).kind != "f":
        raise TypeError(
            f"{operation}: mask is {dtype}; expected bool (True = attend) or float32 (added to the scores); "
            f"cast it with .astype({'numpy.float32' if is_float(dtype) else 'bool'})"
        )
    with np.errstate(over="ignore"):
        return np.where(mask <= np.finfo(dtype).min, np.float32(-np.inf), mask.astype(np.float32))


def check_broadcast(operation: str, name: str, shape: tuple[int, ...], full: tuple[int, ...]) -> None:
    """Raise ValueError for the shape of a mask or bias that does not broadcast to ``full`` = (B, H, Sq, Sk)."""
    if not broadcasts(shape, full):
        raise ValueError(
            f"{operation}: {name} has shape {shape}, which does not broadcast to (B, H, Sq, Sk) = {tuple(full)}"
            + misplaced(name, shape, full)
        )


def broadcasts(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    """Whether a shape broadcasts to ``full``, which stays as it is."""
    if len(shape) > len(full):
        return False
    return all(own in (1, extent) for own, extent in zip(shape[::-1], full[::-1], strict=False))


def misplaced(name: str, shape: tuple[int, ...], full: tuple[int, ...]) -> str:
    """The end of the message for a mask or bias in another library's layout; an empty text for others."""
    if len(full) != 4:
        return ""
    batch, heads, queries, keys = full
    if shape == (batch, keys):
        return f"; a padding mask (B, Sk), True = attend, is given as {name}[:, None, None]"
    if shape == (batch, heads, keys) and heads not in (1, queries):
        return f"; one of (B, H, Sk) is given as {name}[:, :, None]"
    if len(shape) != 3 or shape[1] not in (1, queries) or shape[2] not in (1, keys):
        return ""
    if shape[0] == batch:
        return f"; one of (B, Sq, Sk) is given as {name}[:, None]"
    if shape[0] == batch * heads:
        return f"; one of (B * H, Sq, Sk) is given as {name}.reshape({batch}, {heads}, {shape[1]}, {shape[2]})"
    return ""
