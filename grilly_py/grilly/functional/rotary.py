"""Rotary position embedding."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

from ..compute import rope as _rope
from ..compute.backend import device_of
from ..compute.device.arrays import ArrayT, FloatsLike, IntegersLike
from .keywords import no_keyword


def rope(
    x: ArrayT, *, frequencies: FloatsLike | None = None, base: float = 10000.0, offset: SupportsIndex = 0,
    positions: IntegersLike | None = None, interleaved: bool = False, reverse: bool = False, factor: float = 1.0,
    **unknown: NoReturn,
) -> ArrayT:  # fmt: skip
    """Turn pairs of elements of each row by angles that grow with its position (Su et al. 2021, arXiv:2104.09864).

    Parameters
    ----------
    x : numpy.ndarray or grilly.Tensor
        ``(B, H, S, D)``, ``(B, S, D)`` or ``(S, D)``; float32, float16 or bfloat16.
    frequencies : array_like, optional
        Radians per position of each pair, ``(P,)`` with 2 P <= D; further elements are left alone. By default
        ``base ** (-2 i / D)`` for i below D / 2. Angles are exact to 2^-32 of a turn at any position.
    base : float
        For the default frequencies.
    offset : int
        The position of the first row.
    positions : numpy.ndarray or grilly.Tensor, optional
        Positions ``(S,)`` or ``(B, S)``, instead of ``offset + arange(S)``. A Tensor must be int32, and is trusted to
        hold no negative number.
    interleaved : bool
        Whether pairs are elements 2 i and 2 i + 1 (GPT-J), and not i and i + P (LLaMA, GPT-NeoX).
    reverse : bool
        Turn back by the same angles. This undoes the turn (of a factor of 1), and is its gradient: of
        ``sum(g * rope(x))`` by x.
    factor : float
        Multiplies the elements that are rotated: the attention factor of YaRN and LongRoPE, which
        ``grilly.reference.rope_scaling`` gives beside frequencies.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of x's shape and dtype.

    Raises
    ------
    TypeError
        For dtypes other than float32, float16 and bfloat16, or positions that are not integers.
    ValueError
        For shapes that do not go together, an odd D without frequencies, or negative positions.
    """
    if unknown:
        raise no_keyword("rope", unknown)
    return _rope.rope(  # type: ignore[no-any-return]
        device_of("rope", x, positions), x,
        frequencies=frequencies, base=base, offset=offset, positions=positions, interleaved=interleaved,
        reverse=reverse, factor=factor,
    )  # fmt: skip
