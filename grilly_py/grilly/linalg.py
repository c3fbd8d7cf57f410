"""The standard's extension ``linalg``, as far as it is made of sums and products: ``grilly.linalg``.

Decompositions, and what needs them (``cholesky``, ``det``, ``eigh``, ``inv``, ``matrix_rank``, ``pinv``, ``qr``,
``slogdet``, ``solve``, ``svd``, ``svdvals``, norms by singular values), are not here. Every function works in a
captured function.
"""

from __future__ import annotations

import builtins
import math
from typing import Any, Literal, NoReturn

from .array_api.creation import eye
from .array_api.elementwise import abs, divide, isfinite, logical_and, multiply, pow, subtract
from .array_api.linear_algebra import matmul, matrix_transpose, tensordot, vecdot
from .array_api.manipulation import broadcast_to, moveaxis, squeeze, stack
from .array_api.operands import KEYWORDS, tensor_of, tensors_of, wide
from .array_api.searching import where
from .array_api.statistical import max, min, sum
from .compute.arrays.elementwise import cast, check_broadcast
from .compute.arrays.promotion import FLOAT32, kind_of
from .compute.arrays.reductions import axes_of, norm
from .compute.arrays.shapes import diagonal_of
from .compute.attention import foreign
from .compute.device.numbers import integer, number
from .compute.device.tensor import Tensor

__all__ = [
    "cross", "diagonal", "matmul", "matrix_norm", "matrix_power", "matrix_transpose", "outer", "tensordot", "trace",
    "vecdot", "vector_norm",
]  # fmt: skip

#: Other libraries' keywords of norms, and of functions of matrices.
_NORMS = {**KEYWORDS, "p": "ord", "dtype": "nothing: the result has x's dtype; cast x before"}
_OF_MATRICES = dict.fromkeys(
    ("axis", "dim", "axis1", "axis2", "dim1", "dim2"),
    "nothing: matrices are the last two axes, where grilly.moveaxis puts others",
)


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1, **unknown: NoReturn) -> Tensor:
    """The cross product of vectors of three numbers along ``axis``; the other axes broadcast.

    Parameters
    ----------
    x1, x2 : Tensor or array
        Of numbers, with 3 elements along the axis.
    axis : int
        Counted from the end if negative; it must be that of both after broadcasting.

    Returns
    -------
    Tensor
        Of the shape to which both broadcast and the dtype to which they promote.

    Raises
    ------
    ValueError
        Where an operand has no such axis, or not 3 elements along it, and for shapes that do not broadcast.
    """
    if unknown:
        raise foreign.unknown("cross", unknown, KEYWORDS)
    x1, x2 = tensors_of("cross", x1, x2)
    shape = check_broadcast("cross", x1, x2)
    axis, least = integer("cross", "axis", axis), builtins.min(x1.ndim, x2.ndim)
    if not -least <= axis < (len(shape) if x1.ndim == x2.ndim else 0) or x1.shape[axis] != 3 or x2.shape[axis] != 3:
        raise ValueError(f"cross: shapes {x1.shape} and {x2.shape}; expected 3 elements along axis {axis} of both")
    x1, x2, dtype = wide(x1, x2)
    a, b = (moveaxis(broadcast_to(x, shape), axis, 0) for x in (x1, x2))
    parts = []
    for first, second in ((1, 2), (2, 0), (0, 1)):
        parts.append(subtract(multiply(a[first], b[second]), multiply(a[second], b[first])))
    return moveaxis(stack(parts, axis=0), 0, axis).astype(dtype, copy=False)


def diagonal(x: Tensor, /, *, offset: int = 0, **unknown: NoReturn) -> Tensor:
    """The diagonals of matrices ``(..., M, N)``, a view ``(..., n)``; above the main one for a positive ``offset``.

    Raises ValueError for fewer than two axes.
    """
    if unknown:
        raise foreign.unknown("diagonal", unknown, _OF_MATRICES)
    return diagonal_of(tensor_of("diagonal", x), integer("diagonal", "offset", offset))


def matrix_norm(
    x: Tensor, /, *, keepdims: bool = False, ord: float | Literal["fro"] | None = "fro", **unknown: NoReturn
) -> Tensor:
    """The norms of matrices ``(..., M, N)`` of a floating dtype, ``(...)``, or ``(..., 1, 1)`` with ``keepdims``.

    Parameters
    ----------
    ord : "fro", 1, -1, inf or -inf
        The root of the sum of squares ("fro", and None), the largest or smallest sum of magnitudes of a column (1, -1)
        or of a row (inf, -inf).

    Raises
    ------
    TypeError
        For dtypes that are not floating.
    ValueError
        For fewer than two axes, and other norms: 2, -2 and "nuc" are of singular values.
    """
    if unknown:
        raise foreign.unknown("matrix_norm", unknown, {**_NORMS, **_OF_MATRICES})
    x = _floating("matrix_norm", x)
    if x.ndim < 2:
        raise ValueError(f"matrix_norm: x has shape {x.shape}; expected at least two axes")
    if ord is None or ord == "fro":
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord in (1, -1):
        sums = sum(abs(x), axis=-2, keepdims=True)
    elif isinstance(ord, (int, float)) and math.isinf(ord):
        sums = sum(abs(x), axis=-1, keepdims=True)
    else:
        raise ValueError(f"matrix_norm: ord is {ord!r}; expected 'fro', 1, -1, inf or -inf; others need an SVD")
    return (max if float(ord) > 0 else min)(sums, axis=(-2, -1), keepdims=keepdims)


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """The product of ``n`` times the square matrices ``(..., M, M)``, by squaring; for 0 the identity.

    Raises ValueError for other shapes, and for a negative ``n``, which needs an inverse.
    """
    x, n = tensor_of("matrix_power", x), integer("matrix_power", "n", n)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ValueError(f"matrix_power: x has shape {x.shape}; expected square matrices")
    if n < 0:
        raise ValueError(f"matrix_power: n is {n}; expected at least 0")
    found = None
    while n:
        if n & 1:
            found = x if found is None else matmul(found, x)
        n >>= 1
        if n:
            x = matmul(x, x)
    if found is None:
        return broadcast_to(eye(x.shape[-1], dtype=x.dtype, device=x.backend), x.shape)
    return found


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The products of all pairs, ``(M, N)`` of vectors ``(M,)`` and ``(N,)``. Raises ValueError for other axes."""
    x1, x2 = tensors_of("outer", x1, x2)
    if x1.ndim != 1 or x2.ndim != 1:
        raise ValueError(f"outer: shapes {x1.shape} and {x2.shape}; expected one axis each")
    return multiply(x1.reshape(x1.size, 1), x2.reshape(1, x2.size))


def trace(x: Tensor, /, *, offset: int = 0, dtype: Any = None, **unknown: NoReturn) -> Tensor:
    """The sums ``(...)`` of the diagonals of ``(..., M, N)``, of dtypes as ``grilly.sum``."""
    if unknown:
        raise foreign.unknown("trace", unknown, _OF_MATRICES)
    return sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def vector_norm(
    x: Tensor,
    /,
    *,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    ord: float = 2,
    **unknown: NoReturn,
) -> Tensor:
    """The norm of the vector of the elements over axes (None: all).

    Parameters
    ----------
    x : Tensor or array
        Of a floating dtype.
    ord : float
        p of ``sum(|x|^p)^(1/p)``; inf and -inf for the largest and the smallest magnitude, 0 for how many elements are
        not 0. Powers may lie beyond float32's range where the norm does not.

    Returns
    -------
    Tensor
        Of x's dtype, without the axes, which ``keepdims`` keeps with one element.

    Raises
    ------
    TypeError
        For dtypes that are not floating.
    ValueError
        For axes that x does not have, an ord that is no number, and one of inf or -inf of no elements.
    """
    if unknown:
        raise foreign.unknown("vector_norm", unknown, _NORMS)
    if isinstance(ord, str) or ord is None:
        raise ValueError(f"vector_norm: ord is {ord!r}; expected a number; grilly.linalg.matrix_norm has 'fro'")
    x, ord = _floating("vector_norm", x), number("vector_norm", "ord", ord)
    if ord == 2:
        return norm("norm", x, axis, keepdims)
    if math.isinf(ord):
        return (max if ord > 0 else min)(abs(x), axis=axis, keepdims=keepdims)
    wide = cast(x, FLOAT32)
    if ord == 0:
        found = sum(cast(wide != 0, FLOAT32), axis=axis, keepdims=keepdims)
    elif ord == 1:
        found = sum(abs(wide), axis=axis, keepdims=keepdims)
    else:
        found = _root_of_powers(abs(wide), axis, keepdims, ord)
    return cast(found, x.dtype)


def _root_of_powers(size: Tensor, axis: int | tuple[int, ...] | None, keepdims: bool, ord: float) -> Tensor:
    """``sum(size^ord)^(1/ord)``, of quotients by the size that counts most, whose powers are at most 1."""
    most: Tensor | float = 1.0
    if all(size.shape[a] for a in axes_of("vector_norm", size, axis)):
        most = (max if ord > 0 else min)(size, axis=axis, keepdims=True)
        most = where(logical_and(isfinite(most), most > 0), most, 1.0)  # or infinity by infinity were NaN
    found = multiply(pow(sum(pow(divide(size, most), ord), axis=axis, keepdims=True), 1 / ord), most)
    return found if keepdims else squeeze(found, axes_of("vector_norm", size, axis))


def _floating(name: str, x: Any) -> Tensor:
    x = tensor_of(name, x)
    if kind_of(x.dtype) != "floating":
        raise TypeError(f"{name}: x is {x.dtype.name}; expected a floating dtype; cast with .astype(grilly.float32)")
    return x
