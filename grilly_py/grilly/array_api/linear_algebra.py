"""Products of matrices and vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from ..compute.arrays import matmul as _matmul
from ..compute.arrays import reductions as _reductions
from ..compute.attention import foreign
from ..compute.device.numbers import integer
from ..compute.device.tensor import Tensor
from .manipulation import permute_dims
from .operands import KEYWORDS, binary, tensor_of, tensors_of, wide


def matmul(x1: Tensor | np.ndarray, x2: Tensor | np.ndarray, /) -> Tensor:
    """The product of ``(..., M, K)`` and ``(..., K, N)``, leading axes broadcast; of vectors as in NumPy."""
    return _matmul.matmul(*tensors_of("matmul", x1, x2))


def matrix_transpose(x: Tensor | np.ndarray, /) -> Tensor:
    """x with its last two axes exchanged; a view."""
    return tensor_of("matrix_transpose", x).mT


def tensordot(
    x1: Tensor | np.ndarray,
    x2: Tensor | np.ndarray,
    /,
    *,
    axes: int | tuple[int | Sequence[int], int | Sequence[int]] = 2,
) -> Tensor:
    """The sums of products over axes: the last of x1 with as many first ones of x2, or pairs that are named.

    ``axes`` is how many, or the axes of x1 and those of x2, each a number or several. Raises ValueError for axes that
    there are not, or of other extents.
    """
    x1, x2 = tensors_of("tensordot", x1, x2)
    if not np.iterable(axes):
        axes = integer("tensordot", "axes", axes)
        if not 0 <= axes <= min(x1.ndim, x2.ndim):
            raise ValueError(f"tensordot: {axes} axes of shapes {x1.shape} and {x2.shape}")
        first, second = tuple(range(x1.ndim - axes, x1.ndim)), tuple(range(axes))
    else:
        pair = [tuple(own) if np.iterable(own) else (own,) for own in axes]
        if len(pair) != 2:
            raise ValueError(f"tensordot: axes is {axes!r}; expected a number, or the axes of x1 and those of x2")
        first, second = (_reductions.axes_of("tensordot", x, own) for x, own in zip((x1, x2), pair, strict=True))
    shared = [x1.shape[a] for a in first]
    if shared != [x2.shape[a] for a in second]:
        raise ValueError(f"tensordot: axes {first} of {x1.shape} and {second} of {x2.shape} differ")
    left = [a for a in range(x1.ndim) if a not in first]
    right = [a for a in range(x2.ndim) if a not in second]
    shape = (*(x1.shape[a] for a in left), *(x2.shape[a] for a in right))
    many = math.prod(shared)
    rows = permute_dims(x1, (*left, *first)).reshape(math.prod(x1.shape[a] for a in left), many)
    columns = permute_dims(x2, (*second, *right)).reshape(many, math.prod(x2.shape[a] for a in right))
    return matmul(rows, columns).reshape(shape)


def vecdot(x1: Tensor | np.ndarray, x2: Tensor | np.ndarray, /, *, axis: int = -1, **unknown: NoReturn) -> Tensor:
    """The sums of products along an axis, which both have counted from the end."""
    if unknown:
        raise foreign.unknown("vecdot", unknown, KEYWORDS)
    x1, x2 = tensors_of("vecdot", x1, x2)
    axis = integer("vecdot", "axis", axis)
    if not (-min(x1.ndim, x2.ndim) <= axis < 0):
        raise ValueError(f"vecdot: axis {axis}; expected a negative one that both have")
    if x1.shape[axis] != x2.shape[axis]:
        raise ValueError(f"vecdot: axis {axis} has {x1.shape[axis]} and {x2.shape[axis]} elements")
    x1, x2, dtype = wide(x1, x2)
    return _reductions.sum_of("sum", binary("multiply", x1, x2), axis, dtype)
