"""Attention by other interfaces: PyTorch's, and one with a configuration that tells its memory."""

from __future__ import annotations

from typing import overload

from ..compute import config as _config
from ..compute import naive as _naive
from ..compute.attention import foreign as _foreign
from ..compute.attention import sdpa as _sdpa
from ..compute.backend import device_of
from ..compute.config import FlashConfig, FlashResult
from ..compute.device.arrays import Array, FloatArray, FloatT, MaskArray, NDArray
from ..compute.device.tensor import Tensor


@overload
def scaled_dot_product_attention(
    query: NDArray[FloatT], key: NDArray[FloatT], value: NDArray[FloatT], attn_mask: MaskArray | None = ...,
    dropout_p: float = ..., is_causal: bool = ..., scale: float | None = ..., enable_gqa: bool = ...,
) -> NDArray[FloatT]: ...  # fmt: skip
@overload
def scaled_dot_product_attention(
    query: Tensor, key: FloatArray, value: FloatArray, attn_mask: MaskArray | None = ..., dropout_p: float = ...,
    is_causal: bool = ..., scale: float | None = ..., enable_gqa: bool = ...,
) -> Tensor: ...  # fmt: skip
@overload
def scaled_dot_product_attention(
    query: FloatArray, key: FloatArray, value: FloatArray, attn_mask: MaskArray | None = ..., dropout_p: float = ...,
    is_causal: bool = ..., scale: float | None = ..., enable_gqa: bool = ...,
) -> Array: ...  # fmt: skip
@_foreign.named(_foreign.SDPA_KEYWORDS)
def scaled_dot_product_attention(
    query: FloatArray, key: FloatArray, value: FloatArray, attn_mask: MaskArray | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Array:  # fmt: skip
    """Exact attention with the signature and the rules of ``torch.nn.functional.scaled_dot_product_attention``.

    Two things differ from ``flash_attention2``: ``is_causal`` is aligned to the top left, and arrays have any number of
    leading axes.

    Parameters
    ----------
    query : numpy.ndarray or grilly.Tensor
        ``(N, ..., Hq, L, E)``, or less axes down to ``(L, E)``; float32, float16 or bfloat16; E from 1 to 256.
    key, value : numpy.ndarray or grilly.Tensor
        ``(N, ..., H, S, E)`` and ``(N, ..., H, S, Ev)``, of the query's dtype. The leading axes of the three broadcast
        to each other.
    attn_mask : numpy.ndarray or grilly.Tensor, optional
        Of two axes or more, broadcastable to ``(N, ..., Hq, L, S)``. Boolean: True = take part. Floating: added to the
        scaled scores. A Tensor is bool or float32.
    dropout_p : float
        From 0 to 1: each weight is dropped with this probability and the others are divided by ``1 - dropout_p``. It is
        applied whenever it is not 0, there being no training mode here. Seed and offset come from
        ``grilly.manual_seed``; row, head and batch count as in ``(B, Hq, L, S)`` with the axes before Hq as one.
    is_causal : bool
        Query i attends only to keys ``j <= i``, also where L and S differ. Not together with ``attn_mask``.
    scale : float, optional
        Multiplies the scores; ``1 / sqrt(E)`` when None.
    enable_gqa : bool
        Whether H may be a divisor of Hq (query head h then uses key head ``h // (Hq / H)``). It needs a head axis.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        ``(N, ..., Hq, L, Ev)`` in the query's dtype; a Tensor when query, key or value was one, and then without
        waiting. A row with nothing to attend to is zeros, as in PyTorch from 2.5 on.

    Raises
    ------
    TypeError
        For dtypes other than these, differing dtypes, or a mask that is neither boolean nor floating.
    ValueError
        For shapes that do not go together, a mask beside ``is_causal`` (which PyTorch documents as an error), a dropout
        probability outside 0 to 1, or a scale that is not finite.
    UnsupportedError
        When no kernel for this device and dtype exists.

    Notes
    -----
    A row whose additive mask holds nothing but the dtype's lowest finite number attends to all keys alike, as in
    PyTorch. In a mask that is a Tensor that number means "never attend", as everywhere in grilly.

    References
    ----------
    The PyTorch documentation of ``torch.nn.functional.scaled_dot_product_attention``, version 2.13.
    """
    return _sdpa.scaled_dot_product_attention(
        device_of("scaled_dot_product_attention", query, key, value, attn_mask), query, key, value,
        attn_mask, dropout_p, is_causal, scale, enable_gqa,
    )  # fmt: skip


@_foreign.named(_foreign.STEP_KEYWORDS["flash_attention"])
def flash_attention(q: FloatArray, k: FloatArray, v: FloatArray, config: FlashConfig | None = None) -> FlashResult:
    """Exact attention by a configuration, with the memory that it took.

    Parameters
    ----------
    q, k, v : numpy.ndarray or grilly.Tensor
        As for ``flash_attention2``.
    config : grilly.FlashConfig, optional
        Blocks, scale and causality; ``FlashConfig()`` when None.

    Returns
    -------
    FlashResult
        ``output`` as of ``flash_attention2``; ``memory_bytes`` as the backend counted it during the call, which counts
        what other threads allocate too; and ``memory_saved_percent``. The count starts anew at the call, as with
        ``backend.memory(reset_peak=True)``.

    Raises
    ------
    TypeError, ValueError
        As ``flash_attention2``; ValueError also for blocks that no kernel has, whatever the device. The message lists
        those that there are for the call.
    UnsupportedError
        When no kernel for this device and dtype exists.
    """
    return _config.flash_attention(device_of("flash_attention", q, k, v), q, k, v, config)


@overload
def naive_attention(
    q: NDArray[FloatT], k: NDArray[FloatT], v: NDArray[FloatT], scale: float | None = ...
) -> tuple[NDArray[FloatT], int]: ...
@overload
def naive_attention(q: Tensor, k: FloatArray, v: FloatArray, scale: float | None = ...) -> tuple[Tensor, int]: ...
@overload
def naive_attention(q: FloatArray, k: FloatArray, v: FloatArray, scale: float | None = ...) -> tuple[Array, int]: ...
@_foreign.named(_foreign.STEP_KEYWORDS["naive_attention"])
def naive_attention(q: FloatArray, k: FloatArray, v: FloatArray, scale: float | None = None) -> tuple[Array, int]:
    """Attention on the device with the whole score matrix in memory, and the bytes that this took.

    The unfused path: scores, softmax, output. ``grilly.reference.naive_attention`` is the same in NumPy.

    Parameters
    ----------
    q, k, v : numpy.ndarray or grilly.Tensor
        As for ``flash_attention2``.
    scale : float, optional
        Multiplies the scores; ``1 / sqrt(D)`` when None.

    Returns
    -------
    output : numpy.ndarray or grilly.Tensor
        As of ``flash_attention2``.
    nbytes : int
        The most device memory that the call had allocated at a time beyond its inputs, as the backend counted it (see
        ``flash_attention``): two float32 matrices of Sq x Sk for each head, or one and the output.

    Raises
    ------
    TypeError, ValueError, UnsupportedError
        As ``flash_attention2``.
    OutOfDeviceMemoryError
        When the matrices do not fit.
    """
    return _naive.naive_attention(device_of("naive_attention", q, k, v), q, k, v, scale)
