"""FlashAttention2 and FlashAttention3: attention as a layer without weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from .. import functional as F
from ..compute import Tensor
from ..compute.attention.heads import join_heads
from ..compute.attention.keywords import MaskFunction, ScoreFunction
from ..compute.device.arguments import check_precision
from ..compute.device.arrays import Array, FloatArray, FloatT, HostMask, MaskArray, NDArray, Precision
from ..compute.device.numbers import integer
from .module import Module, shapes

ArrayT = TypeVar("ArrayT", NDArray[Any], Tensor)


def split_heads(array: ArrayT, heads: int) -> ArrayT:
    """``(B, S, H * D)`` as ``(B, H, S, D)``, a view."""
    batch, rows, width = array.shape
    return array.reshape(batch, rows, heads, width // heads).transpose(0, 2, 1, 3)


class FlashAttention2(Module):
    """Exact attention without weights: splits the heads, attends, joins them (``F.flash_attention2``).

    Parameters
    ----------
    embed_dim : int
        Width of the queries over all heads, E.
    num_heads : int
        H; it divides ``embed_dim``.
    causal : bool
        Whether query i attends only to keys ``j <= i + Sk - Sq``.
    scale : float, optional
        Multiplies the scores; ``1 / sqrt(embed_dim / num_heads)`` by default.
    precision : str
        "highest" or "high", as in ``grilly.functional.flash_attention2``.

    Raises
    ------
    ValueError
        If the heads do not divide the width, or for another precision.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, causal: bool = False, *, scale: float | None = None,
        precision: Precision = "highest",
    ) -> None:  # fmt: skip
        super().__init__()
        check_heads(type(self).__name__, embed_dim, num_heads)
        check_precision(type(self).__name__, precision)
        self.precision: Precision = precision
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.causal = causal
        self.scale = scale

    _inputs = ("query", "key", "value")

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        return F.flash_attention2(q, k, v, **options)

    @overload
    def forward(
        self, query: NDArray[FloatT], key: NDArray[FloatT], value: NDArray[FloatT], *, mask: HostMask | None = ...,
        causal: bool | None = ..., score_mod: ScoreFunction | None = ..., mask_mod: MaskFunction | None = ...,
    ) -> NDArray[FloatT]: ...  # fmt: skip
    @overload
    def forward(
        self, query: Tensor, key: FloatArray, value: FloatArray, *,
        mask: MaskArray | None = ..., causal: bool | None = ..., score_mod: ScoreFunction | None = ...,
        mask_mod: MaskFunction | None = ...,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def forward(
        self, query: FloatArray, key: FloatArray, value: FloatArray, *,
        mask: MaskArray | None = ..., causal: bool | None = ..., score_mod: ScoreFunction | None = ...,
        mask_mod: MaskFunction | None = ...,
    ) -> Array: ...  # fmt: skip
    def forward(
        self, query: FloatArray, key: FloatArray, value: FloatArray, *, mask: MaskArray | None = None,
        causal: bool | None = None, score_mod: ScoreFunction | None = None, mask_mod: MaskFunction | None = None,
    ) -> Array:  # fmt: skip
        """Attend.

        Parameters
        ----------
        query : numpy.ndarray or grilly.Tensor
            ``(B, Sq, E)``, ``(Sq, E)`` or ``(B, H, Sq, E / H)``.
        key, value : numpy.ndarray or grilly.Tensor
            The same layout: ``(B, Sk, Hk * D)`` and ``(B, Sk, Hk * Dv)`` with D = E / H and Hk a divisor of H, or
            ``(B, Hk, Sk, D)`` and ``(B, Hk, Sk, Dv)``.
        mask : numpy.ndarray or grilly.Tensor, optional
            Boolean (True = attend) or additive, broadcastable to ``(B, H, Sq, Sk)``.
        causal : bool, optional
            Instead of the layer's own.
        score_mod, mask_mod : callable, optional
            As for ``grilly.functional.flash_attention2``, or a block mask as ``mask_mod``.

        Returns
        -------
        numpy.ndarray or grilly.Tensor
            In the layout of the query. A query with nothing to attend to gives zeros.

        Raises
        ------
        ValueError, TypeError
            For shapes and dtypes that do not go together.
        """
        name = type(self).__name__
        found = shapes(name, query=query, key=key, value=value)
        q_shape, k_shape, v_shape = found
        rank = len(q_shape)
        if rank not in (2, 3, 4) or {len(shape) for shape in found} != {rank}:
            raise ValueError(
                f"{name}: query, key and value have shapes {', '.join(map(str, found))}; expected all "
                f"(B, S, {self.embed_dim}), (S, {self.embed_dim}) or (B, H, S, {self.head_dim})"
            )
        causal = self.causal if causal is None else causal
        options = {"causal": causal, "scale": self.scale, "precision": self.precision, "score_mod": score_mod,
                   "mask_mod": mask_mod}  # fmt: skip
        if rank == 4:
            if q_shape[1] != self.num_heads or q_shape[3] != self.head_dim:
                raise ValueError(
                    f"{name}: query has shape {q_shape}; expected (B, {self.num_heads}, S, {self.head_dim})"
                )
            _, (query, key, value), keep = self._send(query, key, value, mask=mask)
            output = self._attend(query, key, value, mask=mask, **options)
            return output if keep else output.numpy()
        if q_shape[-1] != self.embed_dim:
            raise ValueError(f"{name}: query has shape {q_shape}; its last axis must be {self.embed_dim}")
        key_heads = k_shape[-1] // self.head_dim
        if key_heads < 1 or k_shape[-1] % self.head_dim or v_shape[-1] % key_heads:
            raise ValueError(
                f"{name}: key and value have widths {k_shape[-1]} and {v_shape[-1]}; expected key heads "
                f"of {self.head_dim} elements and as many value heads"
            )
        _, (query, key, value), keep = self._send(query, key, value, mask=mask)
        if rank == 2:
            query, key, value = (array.reshape(1, *array.shape) for array in (query, key, value))
        heads = (split_heads(query, self.num_heads), split_heads(key, key_heads), split_heads(value, key_heads))
        output = join_heads(self._attend(*heads, mask=mask, **options))
        if rank == 2:
            output = output.reshape(output.shape[1:])
        return output if keep else output.numpy()

    if TYPE_CHECKING:  # calling a layer is forward: its arguments and results are known to type checkers
        __call__ = forward

        @overload
        def backward(
            self, grad_output: NDArray[FloatT]
        ) -> tuple[NDArray[FloatT], NDArray[FloatT], NDArray[FloatT]]: ...
        @overload
        def backward(self, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor]: ...
        def backward(self, grad_output: FloatArray) -> tuple[Array, Array, Array]: ...

    def extra_repr(self) -> str:
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, causal={self.causal}"


class FlashAttention3(FlashAttention2):
    """Exact attention without weights, as `FlashAttention2` (``F.flash_attention3``).

    Parameters, arrays, results and errors are those of `FlashAttention2`.
    """

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        return F.flash_attention3(q, k, v, **options)


def check_heads(name: str, embed_dim: int, num_heads: int) -> None:
    """Raise TypeError unless both are integers, and ValueError unless the heads divide the width."""
    integer(name, "embed_dim", embed_dim)
    integer(name, "num_heads", num_heads)
    if num_heads < 1 or embed_dim < 1 or embed_dim % num_heads:
        raise ValueError(f"{name}: embed_dim is {embed_dim} and num_heads is {num_heads}, which must divide it")
