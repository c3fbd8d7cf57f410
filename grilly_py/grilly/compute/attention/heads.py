"""Joined heads, ``(B, S, H * D)``, and heads as an axis, ``(B, H, S, D)``."""

from __future__ import annotations

from typing import Any, SupportsIndex, TypeVar

import numpy as np

from ..device.arguments import no_array
from ..device.arrays import NDArray
from ..device.tensor import Tensor

ArrayT = TypeVar("ArrayT", NDArray[Any], Tensor)


def check_heads(operation: str, q: Any, num_heads: SupportsIndex | None, head_dim: SupportsIndex | None) -> None:
    """Raise ValueError when four-axis ``q`` disagrees with the stated numbers."""
    shape = tuple(getattr(q, "shape", ()))
    if len(shape) != 4:
        if num_heads is None and head_dim is None:
            return
        raise ValueError(
            f"{operation}: q has shape {shape}; with num_heads give (B, H, S, D) or (B, S, num_heads * head_dim)"
        )
    for name, value, got in (("num_heads", num_heads, shape[1]), ("head_dim", head_dim, shape[3])):
        if value is not None and value != got:
            raise ValueError(f"{operation}: {name} is {value} and q has shape {shape}, where it is {got}")


def split_heads(
    operation: str, name: str, array: ArrayT, num_heads: int, head_dim: int | None = None, of: str = "num_heads"
) -> ArrayT:
    """``(B, S, H * D)`` as ``(B, H, S, D)``, a view; ``of`` is what errors call the number of heads.

    Raises TypeError for what is no array, and ValueError when the last axis does not divide.
    """
    if not isinstance(array, (np.ndarray, Tensor)):
        raise no_array(operation, name, array)
    shape = tuple(array.shape)
    if len(shape) != 3:
        raise ValueError(f"{operation}: {name} has shape {shape}; expected (B, S, num_heads * head_dim) like q")
    if num_heads < 1:
        raise ValueError(f"{operation}: {of} is {num_heads}; expected 1 or more")
    if head_dim is not None and shape[2] != num_heads * head_dim:
        raise ValueError(f"{operation}: {name}'s last axis has {shape[2]} elements; expected {of} * head_dim = "
                         f"{num_heads} * {head_dim}")  # fmt: skip
    if shape[2] % num_heads:
        raise ValueError(f"{operation}: {name}'s last axis has {shape[2]} elements, which is no multiple of {of}, "
                         f"{num_heads}")  # fmt: skip
    return array.reshape(shape[0], shape[1], num_heads, shape[2] // num_heads).transpose(0, 2, 1, 3)


def join_heads(array: ArrayT) -> ArrayT:
    """``(B, H, S, D)`` as ``(B, S, H * D)``; a view where the heads lie side by side in memory."""
    batch, heads, rows, dim = array.shape
    return array.transpose(0, 2, 1, 3).reshape(batch, rows, heads * dim)
