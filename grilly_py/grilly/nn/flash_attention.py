"""FlashAttention: attention of split heads as a layer, with or without stored weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np

from .. import functional as F
from ..compute import Tensor
from ..compute.attention.checks import check_qkv
from ..compute.attention.keywords import MaskFunction, ScoreFunction
from ..compute.backend import backend_of
from ..compute.device.arrays import Array, BoolArray, Float32Array, FloatArray, FloatT, NDArray
from ..compute.device.numbers import number
from ..compute.random import with_seed
from ..compute.unfused.attention import stored_attention
from .module import Module, shapes


class FlashAttention(Module):
    """Exact attention of heads that are split already, without weights of its own.

    Parameters
    ----------
    causal : bool
        Whether query i attends only to keys ``j <= i + Sk - Sq``.
    dropout : float
        Probability to drop an attention weight while ``training`` is True, at least 0 and below 1. Seeds and offsets
        come from ``grilly.manual_seed``.
    flash : bool
        Whether to attend tile by tile (``flash_attn``), in memory of order Sq + Sk. False makes scores, mask, softmax
        and output one after the other, with whole matrices of Sq x Sk. The results agree within rounding.

    Raises
    ------
    ValueError
        For a dropout outside its range.
    """

    def __init__(self, causal: bool = False, dropout: float = 0.0, flash: bool = True) -> None:
        super().__init__()
        dropout = number("FlashAttention", "dropout", dropout)
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"FlashAttention: dropout is {dropout}; expected at least 0 and below 1")
        self.causal = bool(causal)
        self.dropout = dropout
        self.flash = bool(flash)

    _inputs = ("q", "k", "v", "attn_bias")

    def get_mask(self, i: int, j: int) -> NDArray[np.bool_]:
        """The causal mask of i queries over j keys.

        Parameters
        ----------
        i, j : int
            Numbers of queries and keys; the last of both are aligned.

        Returns
        -------
        numpy.ndarray
            ``(i, j)`` bool, True = hidden: the opposite of the ``mask`` that ``forward`` takes.
        """
        return np.triu(np.ones((i, j), dtype=bool), j - i + 1)

    @overload
    def flash_attn(
        self, q: NDArray[FloatT], k: NDArray[FloatT], v: NDArray[FloatT], mask: NDArray[np.bool_] | None = ...,
        attn_bias: NDArray[np.float32] | None = ..., *, score_mod: ScoreFunction | None = ...,
        mask_mod: MaskFunction | None = ...,
    ) -> NDArray[FloatT]: ...  # fmt: skip
    @overload
    def flash_attn(
        self, q: Tensor, k: FloatArray, v: FloatArray, mask: BoolArray | None = ...,
        attn_bias: Float32Array | None = ..., *, score_mod: ScoreFunction | None = ...,
        mask_mod: MaskFunction | None = ...,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def flash_attn(
        self, q: FloatArray, k: FloatArray, v: FloatArray,
        mask: BoolArray | None = ..., attn_bias: Float32Array | None = ..., *,
        score_mod: ScoreFunction | None = ..., mask_mod: MaskFunction | None = ...,
    ) -> Array: ...  # fmt: skip
    def flash_attn(
        self, q: FloatArray, k: FloatArray, v: FloatArray, mask: BoolArray | None = None,
        attn_bias: Float32Array | None = None, *, score_mod: ScoreFunction | None = None,
        mask_mod: MaskFunction | None = None,
    ) -> Array:  # fmt: skip
        """Attend tile by tile, whatever ``flash`` is. Parameters, result and errors as in ``forward``."""
        return self._attend(True, q, k, v, mask, attn_bias, {"score_mod": score_mod, "mask_mod": mask_mod})

    @overload
    def forward(
        self, q: NDArray[FloatT], k: NDArray[FloatT], v: NDArray[FloatT], mask: NDArray[np.bool_] | None = ...,
        attn_bias: NDArray[np.float32] | None = ..., *, score_mod: ScoreFunction | None = ...,
        mask_mod: MaskFunction | None = ...,
    ) -> NDArray[FloatT]: ...  # fmt: skip
    @overload
    def forward(
        self, q: Tensor, k: FloatArray, v: FloatArray, mask: BoolArray | None = ...,
        attn_bias: Float32Array | None = ..., *, score_mod: ScoreFunction | None = ...,
        mask_mod: MaskFunction | None = ...,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def forward(
        self, q: FloatArray, k: FloatArray, v: FloatArray,
        mask: BoolArray | None = ..., attn_bias: Float32Array | None = ..., *,
        score_mod: ScoreFunction | None = ..., mask_mod: MaskFunction | None = ...,
    ) -> Array: ...  # fmt: skip
    def forward(
        self, q: FloatArray, k: FloatArray, v: FloatArray, mask: BoolArray | None = None,
        attn_bias: Float32Array | None = None, *, score_mod: ScoreFunction | None = None,
        mask_mod: MaskFunction | None = None,
    ) -> Array:  # fmt: skip
        """Attend.

        Parameters
        ----------
        q : numpy.ndarray or grilly.Tensor
            ``(B, H, Sq, D)``; float32, float16 or bfloat16.
        k, v : numpy.ndarray or grilly.Tensor
            ``(B, Hk, Sk, D)`` and ``(B, Hk, Sk, Dv)`` with Hk a divisor of H, or ``(B, Sk, D)`` and ``(B, Sk, Dv)``:
            one head that all query heads share.
        mask : numpy.ndarray or grilly.Tensor, optional
            Boolean, True = attend: ``(B, Sk)``, the keys of each sample that are no padding, or three or four axes that
            broadcast to ``(B, H, Sq, Sk)``.
        attn_bias : numpy.ndarray or grilly.Tensor, optional
            float32, broadcastable to ``(B, H, Sq, Sk)``, added to the scaled scores.
        score_mod, mask_mod : callable, optional
            As for ``grilly.functional.flash_attention2``, or a block mask as ``mask_mod``; not with ``flash=False``.

        Returns
        -------
        numpy.ndarray or grilly.Tensor
            ``(B, H, Sq, Dv)``, in q's dtype; a Tensor when an input was one, and then without waiting. A query with
            nothing to attend to gives zeros.

        Raises
        ------
        ValueError, TypeError
            For shapes and dtypes that do not go together.
        """
        return self._attend(self.flash, q, k, v, mask, attn_bias, {"score_mod": score_mod, "mask_mod": mask_mod})

    if TYPE_CHECKING:  # calling a layer is forward: its arguments and results are known to type checkers
        __call__ = forward

        @overload
        def backward(self, grad_output: NDArray[FloatT]) -> tuple[NDArray[Any], ...]: ...
        @overload
        def backward(self, grad_output: Tensor) -> tuple[Tensor, ...]: ...
        def backward(self, grad_output: FloatArray) -> tuple[Array, ...]: ...

    def _attend(
        self, flash: bool, q: FloatArray, k: FloatArray, v: FloatArray, mask: BoolArray | None,
        attn_bias: Float32Array | None, functions: dict[str, Any],
    ) -> Array:  # fmt: skip
        name = type(self).__name__
        q_shape, k_shape, v_shape = shapes(name, q=q, k=k, v=v)
        if len(q_shape) != 4 or len(k_shape) != len(v_shape) or len(k_shape) not in (3, 4):
            raise ValueError(
                f"{name}: q, k and v have shapes {q_shape}, {k_shape} and {v_shape}; expected (B, H, Sq, D) and for k "
                "and v (B, Hk, Sk, D) or (B, Sk, D)"
            )
        if len(k_shape) == 3:
            k, v = k[:, None], v[:, None]
        check_qkv(name, q, k, v)
        if mask is not None:
            mask = _key_mask(name, mask, q_shape[0], k_shape[-2])
        if attn_bias is not None and getattr(attn_bias, "dtype", None) != np.float32:
            kind = getattr(attn_bias, "dtype", type(attn_bias).__name__)
            raise TypeError(f"{name}: attn_bias is {kind}; expected float32: use .astype(numpy.float32)")
        if not flash and any(function is not None for function in functions.values()):
            raise ValueError(f"{name}: score_mod or mask_mod is given and flash is False; they are for flash=True")
        backend_of(name, q, k, v, mask, attn_bias)  # refuses tensors of different backends
        backend, (q, k, v), keep = self._send(q, k, v)
        options = {"mask": mask, "attn_bias": attn_bias, "causal": self.causal}
        if self.training and self.dropout:
            options |= with_seed(backend.opened, {"dropout_p": self.dropout})
        if flash:
            out = F.flash_attention2(q, k, v, **options, **functions)
        else:
            out = stored_attention(backend.opened, q, k, v, **options)
        return out if keep else out.numpy()

    def extra_repr(self) -> str:
        return f"causal={self.causal}, dropout={self.dropout}, flash={self.flash}"


def _key_mask(name: str, mask: BoolArray, batch: int, keys: int) -> BoolArray:
    """The mask with two axes as ``(B, 1, 1, Sk)``; others as they are. Raises unless it is boolean."""
    if not isinstance(mask, (np.ndarray, Tensor)) or mask.dtype != np.bool_:
        kind = getattr(mask, "dtype", type(mask).__name__)
        raise TypeError(f"{name}: mask is {kind}; expected bool (True = attend); give what is added as attn_bias")
    shape = tuple(mask.shape)
    if len(shape) != 2:
        return mask
    if shape[0] not in (1, batch) or shape[1] not in (1, keys):
        raise ValueError(
            f"{name}: mask has shape {shape}; with two axes it is (B, Sk) = {(batch, keys)}; give a mask of queries "
            "and keys as (1, 1, Sq, Sk)"
        )
    return mask[:, None, None]
