"""``backend.attention``: the attention operations of one backend, bound to it."""

from __future__ import annotations

from typing import Any, Literal, SupportsIndex, TypeVar, overload

import numpy as np

from .attention import backward
from .attention.forward import flash_attention
from .attention.keywords import AttentionKeywords, GradientKeywords, JoinedKeywords, OptionKeywords
from .attention.options import options_of
from .device.arguments import no_array
from .device.arrays import (
    Architecture,
    Array,
    Float32Array,
    FloatArray,
    FloatT,
    HostMask,
    MaskArray,
    NDArray,
    Precision,
    Unpack,
)
from .device.device import Device
from .device.numbers import integer
from .device.tensor import Tensor
from .random import with_seed
from .unfused import mask as unfused_mask
from .unfused import output as unfused_output
from .unfused import scores as unfused_scores
from .unfused import softmax as unfused_softmax
from .unfused import t5_bias as unfused_t5_bias

ArrayT = TypeVar("ArrayT", NDArray[Any], Tensor)


class Attention:
    """The attention operations of one ``grilly.Compute``.

    Each is ``grilly.functional``'s function of its name on this backend: the same arguments, results and errors, which
    are documented there. Tensors of another backend raise ValueError.
    """

    def __init__(self, device: Device):
        self._device = device

    @overload
    def flash_attention2(
        self, q: NDArray[FloatT], k: NDArray[FloatT], v: NDArray[FloatT], *, return_lse: Literal[False] = ...,
        **options: Unpack[AttentionKeywords],
    ) -> NDArray[FloatT]: ...  # fmt: skip
    @overload
    def flash_attention2(
        self, q: NDArray[FloatT], k: NDArray[FloatT], v: NDArray[FloatT], *, return_lse: Literal[True],
        **options: Unpack[AttentionKeywords],
    ) -> tuple[NDArray[FloatT], NDArray[np.float32]]: ...  # fmt: skip
    @overload
    def flash_attention2(
        self, q: Tensor, k: FloatArray, v: FloatArray, *, return_lse: Literal[False] = ...,
        **options: Unpack[AttentionKeywords],
    ) -> Tensor: ...  # fmt: skip
    @overload
    def flash_attention2(
        self, q: Tensor, k: FloatArray, v: FloatArray, *, return_lse: Literal[True],
        **options: Unpack[AttentionKeywords],
    ) -> tuple[Tensor, Tensor]: ...  # fmt: skip
    @overload
    def flash_attention2(
        self, q: FloatArray, k: FloatArray, v: FloatArray, *, return_lse: bool = ...,
        **options: Unpack[AttentionKeywords],
    ) -> Array | tuple[Array, Array]: ...  # fmt: skip
    def flash_attention2(
        self, q: FloatArray, k: FloatArray, v: FloatArray, *, mask: MaskArray | None = None, causal: bool = False,
        scale: float | None = None, return_lse: bool = False, kernel: str | None = None,
        precision: Precision = "highest", **options: Unpack[OptionKeywords],
    ) -> Array | tuple[Array, Array]:  # fmt: skip
        """Exact attention (FlashAttention-2): ``grilly.functional.flash_attention2`` on this backend."""
        return flash_attention(
            "flash_attention2", self._device, q, k, v,
            mask=mask, causal=causal, scale=scale, return_lse=return_lse, kernel=kernel, precision=precision,
            options=options_of("flash_attention2", with_seed(self._device, "flash_attention2", options)),
        )  # fmt: skip

    @overload
    def flash_attention2_backward(
        self, grad_out: NDArray[FloatT], q: NDArray[FloatT], k: NDArray[FloatT], v: NDArray[FloatT],
        out: NDArray[FloatT], lse: NDArray[np.float32], **options: Unpack[GradientKeywords],
    ) -> tuple[NDArray[Any], ...]: ...  # fmt: skip
    @overload
    def flash_attention2_backward(
        self, grad_out: Tensor, q: FloatArray, k: FloatArray, v: FloatArray, out: FloatArray, lse: Float32Array,
        **options: Unpack[GradientKeywords],
    ) -> tuple[Tensor, ...]: ...  # fmt: skip
    @overload
    def flash_attention2_backward(
        self, grad_out: FloatArray, q: FloatArray, k: FloatArray, v: FloatArray, out: FloatArray, lse: Float32Array,
        **options: Unpack[GradientKeywords],
    ) -> tuple[Array, ...]: ...  # fmt: skip
    def flash_attention2_backward(
        self, grad_out: FloatArray, q: FloatArray, k: FloatArray, v: FloatArray, out: FloatArray, lse: Float32Array, *,
        mask: MaskArray | None = None, causal: bool = False, scale: float | None = None, return_dbias: bool = False,
        return_dsinks: bool = False, return_dt5_table: bool = False, grad_lse: Float32Array | None = None,
        **options: Unpack[OptionKeywords],
    ) -> tuple[Array, ...]:  # fmt: skip
        """The gradients of attention: ``grilly.functional.flash_attention2_backward`` on this backend."""
        return backward.flash_attention_backward(
            self._device, grad_out, q, k, v, out, lse, mask=mask, causal=causal, scale=scale,
            return_dbias=return_dbias, return_dsinks=return_dsinks, return_dt5_table=return_dt5_table,
            grad_lse=grad_lse, options=options_of(backward.NAME, options),
        )  # fmt: skip

    @overload
    def flash_attention3(
        self, q: NDArray[FloatT], k: NDArray[FloatT], v: NDArray[FloatT], *, return_lse: Literal[False] = ...,
        **options: Unpack[JoinedKeywords],
    ) -> NDArray[FloatT]: ...  # fmt: skip
    @overload
    def flash_attention3(
        self, q: NDArray[FloatT], k: NDArray[FloatT], v: NDArray[FloatT], *, return_lse: Literal[True],
        **options: Unpack[JoinedKeywords],
    ) -> tuple[NDArray[FloatT], NDArray[np.float32]]: ...  # fmt: skip
    @overload
    def flash_attention3(
        self, q: Tensor, k: FloatArray, v: FloatArray, *, return_lse: Literal[False] = ...,
        **options: Unpack[JoinedKeywords],
    ) -> Tensor: ...  # fmt: skip
    @overload
    def flash_attention3(
        self, q: Tensor, k: FloatArray, v: FloatArray, *, return_lse: Literal[True], **options: Unpack[JoinedKeywords]
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def flash_attention3(
        self, q: FloatArray, k: FloatArray, v: FloatArray, *, return_lse: bool = ..., **options: Unpack[JoinedKeywords]
    ) -> Array | tuple[Array, Array]: ...
    def flash_attention3(
        self, q: FloatArray, k: FloatArray, v: FloatArray, *, num_heads: SupportsIndex | None = None,
        head_dim: SupportsIndex | None = None, num_kv_heads: SupportsIndex | None = None, mask: MaskArray | None = None,
        causal: bool = False, scale: float | None = None, return_lse: bool = False, kernel: str | None = None,
        precision: Precision = "highest", **options: Unpack[OptionKeywords],
    ) -> Array | tuple[Array, Array]:  # fmt: skip
        """Exact attention, also with joined heads: ``grilly.functional.flash_attention3`` on this backend."""
        options = {
            "mask": mask, "causal": causal, "scale": scale, "return_lse": return_lse, "kernel": kernel,
            "precision": precision,
            "options": options_of("flash_attention3", with_seed(self._device, "flash_attention3", options)),
        }  # fmt: skip
        name = "flash_attention3"
        if num_heads is None or len(getattr(q, "shape", ())) != 3:
            check_heads(name, q, num_heads, head_dim)
            if num_kv_heads is not None:
                shape, heads = tuple(getattr(k, "shape", ())), integer(name, "num_kv_heads", num_kv_heads)
                if len(shape) != 4 or shape[1] != heads:
                    raise ValueError(f"{name}: num_kv_heads is {heads} and k has shape {shape}; joined heads, "
                                     "(B, S, num_kv_heads * head_dim), need num_heads too")  # fmt: skip
            return flash_attention(name, self._device, q, k, v, **options)
        for label, count in (("num_heads", num_heads), ("num_kv_heads", num_kv_heads), ("head_dim", head_dim)):
            if count is not None:
                integer(name, label, count)
        kv_heads, of_keys = (num_heads, "num_heads") if num_kv_heads is None else (num_kv_heads, "num_kv_heads")
        q, k, v = (
            split_heads(name, label, array, heads, head_dim if label != "v" else None, of)
            for label, array, heads, of in (
                ("q", q, num_heads, "num_heads"), ("k", k, kv_heads, of_keys), ("v", v, kv_heads, of_keys)
            )
        )
        result = flash_attention(name, self._device, q, k, v, **options)
        return (join_heads(result[0]), *result[1:]) if return_lse else join_heads(result)

    @overload
    def attention_scores(
        self, q: NDArray[FloatT], k: NDArray[FloatT], *, scale: float | None = ...
    ) -> NDArray[np.float32]: ...
    @overload
    def attention_scores(self, q: Tensor, k: FloatArray, *, scale: float | None = ...) -> Tensor: ...
    @overload
    def attention_scores(self, q: FloatArray, k: FloatArray, *, scale: float | None = ...) -> Float32Array: ...
    def attention_scores(self, q: FloatArray, k: FloatArray, *, scale: float | None = None) -> Float32Array:
        """``scale * q k^T``: ``grilly.functional.attention_scores`` on this backend."""
        return unfused_scores.attention_scores(self._device, q, k, scale=scale)

    @overload
    def attention_mask(
        self, scores: NDArray[np.float32], *, mask: HostMask | None = ..., causal: bool = ...
    ) -> NDArray[np.float32]: ...
    @overload
    def attention_mask(self, scores: Tensor, *, mask: MaskArray | None = ..., causal: bool = ...) -> Tensor: ...
    @overload
    def attention_mask(
        self, scores: Float32Array, *, mask: MaskArray | None = ..., causal: bool = ...
    ) -> Float32Array: ...
    def attention_mask(
        self, scores: Float32Array, *, mask: MaskArray | None = None, causal: bool = False
    ) -> Float32Array:
        """Scores with a mask applied: ``grilly.functional.attention_mask`` on this backend."""
        return unfused_mask.attention_mask(self._device, scores, mask=mask, causal=causal)

    @overload
    def t5_bias(
        self, scores: NDArray[np.float32], table: NDArray[np.float32], *, bidirectional: bool = ...,
        max_distance: SupportsIndex = ..., offset: SupportsIndex = ...,
    ) -> NDArray[np.float32]: ...  # fmt: skip
    @overload
    def t5_bias(
        self, scores: Tensor, table: Float32Array, *, bidirectional: bool = ..., max_distance: SupportsIndex = ...,
        offset: SupportsIndex = ...,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def t5_bias(
        self, scores: Float32Array, table: Float32Array, *, bidirectional: bool = ...,
        max_distance: SupportsIndex = ..., offset: SupportsIndex = ...,
    ) -> Float32Array: ...  # fmt: skip
    def t5_bias(
        self, scores: Float32Array, table: Float32Array, *, bidirectional: bool = True,
        max_distance: SupportsIndex = 128, offset: SupportsIndex = 0,
    ) -> Float32Array:  # fmt: skip
        """Scores plus T5's relative position bias: ``grilly.functional.t5_bias`` on this backend."""
        return unfused_t5_bias.t5_bias(
            self._device, scores, table, bidirectional=bidirectional, max_distance=max_distance, offset=offset
        )

    @overload
    def softmax(self, x: NDArray[FloatT]) -> NDArray[FloatT]: ...
    @overload
    def softmax(self, x: Tensor) -> Tensor: ...
    def softmax(self, x: FloatArray) -> Array:
        """Softmax along the last axis, as a step of attention: of scores, for which a mask's numbers count.

        Numbers below -3.0e38 are minus infinity, and a row of nothing but minus infinity becomes zeros, where
        ``grilly.functional.softmax`` has NaN. x is of any shape with at least one axis; the result is of its shape and
        dtype. Raises TypeError for dtypes other than float32, float16 and bfloat16, and ValueError for no axes.
        """
        return unfused_softmax.softmax(self._device, x)

    @overload
    def attention_output(
        self, weights: NDArray[np.float32], v: NDArray[FloatT], *, architecture: Architecture = ...
    ) -> NDArray[FloatT]: ...
    @overload
    def attention_output(self, weights: Tensor, v: FloatArray, *, architecture: Architecture = ...) -> Tensor: ...
    @overload
    def attention_output(self, weights: Float32Array, v: FloatArray, *, architecture: Architecture = ...) -> Array: ...
    def attention_output(
        self, weights: Float32Array, v: FloatArray, *, architecture: Architecture = "generic"
    ) -> Array:
        """The weighted sum of values: ``grilly.functional.attention_output`` on this backend."""
        return unfused_output.attention_output(self._device, weights, v, architecture=architecture)


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
