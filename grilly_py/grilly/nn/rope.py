"""RoPE: rotary position embedding as a layer."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np

from .. import functional as F
from ..compute.backend import Compute
from ..compute.device.arrays import Array, FloatArray, FloatT, IntegersLike, NDArray
from ..compute.device.numbers import integer, number
from ..compute.device.tensor import Tensor
from ..compute.rope import rotary_tables
from ..reference import rope_scaling
from .module import Module, shapes


class RoPE(Module):
    """Rotary position embedding: turns pairs of elements by angles that grow with the position.

    Su et al. 2021, https://arxiv.org/abs/2104.09864. `grilly.reference.rope` has the formula.

    Parameters
    ----------
    dim : int
        Elements of each row that are rotated; even. Rows may be longer: the rest is left alone.
    max_seq_len : int, optional
        transformers' ``max_position_embeddings``. Only scaling reads it: "dynamic", "yarn" and "longrope" need it
        unless they have "original_max_position_embeddings". Longer inputs are fine.
    base : float
        Pair i turns by ``position * base ** (-2 i / dim)`` radians.
    interleaved : bool
        Whether pairs are elements 2 i and 2 i + 1 (GPT-J), and not i and ``i + dim / 2`` (LLaMA, GPT-NeoX).
    scaling : dict, optional
        To run models past the length they were trained for: transformers' ``rope_scaling`` (``rope_parameters``), of
        type "default", "linear", "dynamic", "yarn", "longrope" or "llama3", or "ntk"; `grilly.reference.rope_scaling`
        has the keys and the formulas. "rope_theta" in it is the base. With "original_max_position_embeddings" in it
        "dynamic" follows that, and not ``max_seq_len`` (transformers 5.24 ignores it).

    Raises
    ------
    ValueError
        If ``dim`` is odd or below 2, ``base`` or ``max_seq_len`` is not positive, or ``scaling`` is not understood: a
        key that its type does not know is refused by name.
    TypeError
        If ``scaling`` is no mapping.
    """

    def __init__(
        self,
        dim: int,
        max_seq_len: int | None = None,
        base: float = 10000.0,
        interleaved: bool = False,
        scaling: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        dim = integer("RoPE", "dim", dim)
        max_seq_len = None if max_seq_len is None else integer("RoPE", "max_seq_len", max_seq_len)
        base = number("RoPE", "base", base)
        if not 0 < base < math.inf or max_seq_len is not None and max_seq_len < 1:
            raise ValueError(f"RoPE: base is {base} and max_seq_len is {max_seq_len}; both must be positive and finite")
        rope_scaling(dim, base, scaling, 0, max_seq_len)  # refuses what it does not understand
        if scaling is not None and base not in (10000.0, scaling.get("rope_theta", base)):
            raise ValueError(f"RoPE: base is {base} and scaling's rope_theta {scaling['rope_theta']}; give one of them")
        self.dim = dim
        self.max_seq_len = max_seq_len
        self.base = base
        self.interleaved = interleaved
        self.scaling = None if scaling is None else dict(scaling)

    _inputs = ("q", "k")

    @overload
    def forward(
        self, q: NDArray[FloatT], k: None = ..., *, offset: SupportsIndex = ..., positions: IntegersLike | None = ...
    ) -> NDArray[FloatT]: ...
    @overload
    def forward(
        self, q: Tensor, k: None = ..., *, offset: SupportsIndex = ..., positions: IntegersLike | None = ...
    ) -> Tensor: ...
    @overload
    def forward(
        self, q: NDArray[FloatT], k: NDArray[FloatT], *, offset: SupportsIndex = ...,
        positions: IntegersLike | None = ...,
    ) -> tuple[NDArray[FloatT], NDArray[FloatT]]: ...  # fmt: skip
    @overload
    def forward(
        self, q: Tensor, k: Tensor, *, offset: SupportsIndex = ..., positions: IntegersLike | None = ...
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def forward(
        self, q: FloatArray, k: FloatArray, *, offset: SupportsIndex = ..., positions: IntegersLike | None = ...
    ) -> tuple[Array, Array]: ...
    def forward(
        self, q: FloatArray, k: FloatArray | None = None, *, offset: SupportsIndex = 0,
        positions: IntegersLike | None = None,
    ) -> Array | tuple[Array, Array]:  # fmt: skip
        """Turn the rows of q, and of k if it is given.

        Parameters
        ----------
        q, k : numpy.ndarray or grilly.Tensor
            ``(..., S, D)`` with D at least ``dim``, so ``(B, H, S, D)`` and not ``(B, S, H, D)``, whose heads would
            count as positions; both have the same S, and are rotated by the same positions.
        offset : int
            The position of the first row, as when earlier keys come from a cache.
        positions : array of int, optional
            Positions ``(S,)`` or ``(B, S)``, instead of ``offset + arange(S)``.

        Returns
        -------
        numpy.ndarray or grilly.Tensor, or a pair of them
            Of the shapes of q and k.

        Raises
        ------
        ValueError
            For rows shorter than ``dim``, q and k of different S, negative positions, or positions of another length
            than S.
        TypeError
            For positions that are not integers.
        """
        if k is not None and 1 < len(q.shape) == len(k.shape) and q.shape[-2] != k.shape[-2]:
            raise ValueError(
                f"RoPE: q has {q.shape[-2]} rows and k has {k.shape[-2]}, with shapes {tuple(q.shape)} and "
                f"{tuple(k.shape)}; rows are the last axis but one: turn (B, S, H, D) into (B, H, S, D)"
            )
        arrays = (q,) if k is None else (q, k)
        options = {**self._options(q, operator.index(offset), positions), "interleaved": self.interleaved}
        rotated = tuple(self._turn(array, self.dim, options) for array in arrays)
        return rotated[0] if k is None else rotated

    if TYPE_CHECKING:  # calling a layer is forward: its arguments and results are known to type checkers
        __call__ = forward

        @overload
        def backward(self, grad_output: NDArray[FloatT]) -> NDArray[FloatT]: ...
        @overload
        def backward(self, grad_output: Tensor) -> Tensor: ...
        @overload
        def backward(
            self, grad_output: tuple[NDArray[FloatT], NDArray[FloatT]]
        ) -> tuple[NDArray[FloatT], NDArray[FloatT]]: ...
        @overload
        def backward(self, grad_output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]: ...
        def backward(
            self, grad_output: FloatArray | tuple[FloatArray, FloatArray]
        ) -> Array | tuple[Array, Array]: ...

    def _turn(self, x: FloatArray, dim: int, options: dict[str, Any]) -> Array:
        _rows(x, dim)
        _, (sent,), keep = self._send(x)
        out = F.rope(sent, **options)
        return out if keep else out.numpy()

    def _options(self, x: FloatArray, offset: int, positions: IntegersLike | None) -> dict[str, Any]:
        """Where the rows of x stand, and by which angles they are rotated there."""
        shape = _rows(x, self.dim)
        length = 0
        if self.longest() is not None:
            length = offset + shape[-2] if positions is None else 1 + int(np.max(np.asarray(positions), initial=-1))
        frequencies, factor = rope_scaling(self.dim, self.base, self.scaling, length, self.max_seq_len)
        return {"offset": offset, "positions": positions, "frequencies": frequencies, "factor": factor}

    def longest(self) -> int | None:
        """The length past which angles depend on the sequence's ("dynamic", "longrope"); None where they never do."""
        scaling = self.scaling or {}
        if scaling.get("rope_type", scaling.get("type")) not in ("dynamic", "longrope"):
            return None
        return scaling.get("original_max_position_embeddings") or self.max_seq_len

    def tables(self, backend: Compute, rows: int, length: int = 0) -> tuple[Tensor, Tensor]:
        """Cosines and sines of positions 0 to ``rows - 1`` on the device, float32 ``(rows, dim / 2)``.

        As ``grilly.functional.flash_attention_with_kvcache`` takes them; ``length`` is the sequence's. The backend
        keeps them, for all layers alike.
        """
        frequencies, factor = rope_scaling(self.dim, self.base, self.scaling, length, self.max_seq_len)
        return rotary_tables(backend.opened, frequencies, factor, rows)

    def extra_repr(self) -> str:
        longest = "" if self.max_seq_len is None else f"max_seq_len={self.max_seq_len}, "
        text = f"dim={self.dim}, {longest}base={self.base}, interleaved={self.interleaved}"
        return text if self.scaling is None else f"{text}, scaling={self.scaling}"


def _rows(x: FloatArray, dim: int) -> tuple[int, ...]:
    """The shape of x. Raises ValueError where rows are shorter than dim."""
    (shape,) = shapes("RoPE", x=x)
    if len(shape) < 2 or shape[-1] < dim:
        raise ValueError(f"RoPE: got shape {shape}; expected (..., S, D) with D at least {dim}")
    return shape
