"""Linear layers, and their gradients."""

from __future__ import annotations

from typing import Literal, TypeAlias, overload

from ..compute.backend import device_of
from ..compute.device.arrays import Array, FloatArray, FloatT, NDArray, Precision
from ..compute.device.tensor import Tensor
from ..compute.matmul import linear as _linear
from ..quantization import QuantizedTensor

#: What a linear layer can end with.
Activation: TypeAlias = Literal["gelu", "gelu_tanh", "silu", "relu", "quick_gelu", "sigmoid"]


@overload
def linear(
    input: NDArray[FloatT], weight: NDArray[FloatT], bias: NDArray[FloatT] | None = ..., *, precision: Precision = ...,
    activation: Activation | None = ..., gated: bool = ..., residual: NDArray[FloatT] | None = ...,
    norm_weight: NDArray[FloatT] | None = ..., norm_eps: float | None = ..., norm_offset: float = ...,
) -> NDArray[FloatT]: ...  # fmt: skip
@overload
def linear(
    input: NDArray[FloatT], weight: QuantizedTensor, bias: NDArray[FloatT] | None = ..., *, precision: Precision = ...,
    activation: Activation | None = ..., gated: bool = ..., residual: NDArray[FloatT] | None = ...,
    norm_weight: NDArray[FloatT] | None = ..., norm_eps: float | None = ..., norm_offset: float = ...,
) -> NDArray[FloatT] | Tensor: ...  # fmt: skip
@overload
def linear(
    input: Tensor, weight: FloatArray | QuantizedTensor, bias: FloatArray | None = ..., *, precision: Precision = ...,
    activation: Activation | None = ..., gated: bool = ..., residual: FloatArray | None = ...,
    norm_weight: FloatArray | None = ..., norm_eps: float | None = ..., norm_offset: float = ...,
) -> Tensor: ...  # fmt: skip
@overload
def linear(
    input: FloatArray, weight: Tensor, bias: FloatArray | None = ..., *, precision: Precision = ...,
    activation: Activation | None = ..., gated: bool = ..., residual: FloatArray | None = ...,
    norm_weight: FloatArray | None = ..., norm_eps: float | None = ..., norm_offset: float = ...,
) -> Tensor: ...  # fmt: skip
@overload
def linear(
    input: FloatArray, weight: FloatArray, bias: FloatArray | None = ..., *, precision: Precision = ...,
    activation: Activation | None = ..., gated: bool = ..., residual: FloatArray | None = ...,
    norm_weight: FloatArray | None = ..., norm_eps: float | None = ..., norm_offset: float = ...,
) -> Array: ...  # fmt: skip
def linear(
    input: FloatArray, weight: FloatArray | QuantizedTensor, bias: FloatArray | None = None, *,
    precision: Precision = "highest",
    activation: Activation | None = None, gated: bool = False, residual: FloatArray | None = None,
    norm_weight: FloatArray | None = None, norm_eps: float | None = None, norm_offset: float = 0.0,
) -> Array:  # fmt: skip
    """``y = x W^T + b``, accumulated in float32; and ``activation(x W^T + b) + residual``, rounded once.

    Parameters
    ----------
    input : numpy.ndarray or grilly.Tensor
        x, ``(..., K)``, float32, float16 or bfloat16.
    weight : numpy.ndarray, grilly.Tensor or grilly.QuantizedTensor
        W, ``(N, K)``, of x's dtype (PyTorch's layout). Or quantized, best on the device (``backend.tensor(weight)``):
        few rows of x are multiplied by its exact numbers, and minima by the sums of x, so that the rounding of y[i, j]
        is that of ``sum_k |x[i, k]| (|scale level| + |minimum|)``. For many rows parts of W become floats, in at most
        64 MiB of memory; 16-bit x then has them rounded to its dtype.
    bias : numpy.ndarray or grilly.Tensor, optional
        b, ``(N,)``, of x's dtype.
    precision : str
        What float32 may be computed from. "highest" (default): float32 products. "high": matrix units where the device
        has them, each number split into two float16 parts with one power of two for each row of x and of W, so that no
        finite input overflows. The error of y[i, j] is then at most ``2**-20 sum_k |x[i, k] W[j, k]|`` plus
        ``2**-37 K max_k |x[i, k]| max_k |W[j, k]|``, beside the roundings of the sum; an infinity in a row may come
        out as NaN. It takes memory for a copy of x, and for one of W that is kept as long as W's own memory, up to a
        quarter of the backend's ``memory_limit`` in all. No effect on 16-bit types.
    activation : str, optional
        "gelu", "gelu_tanh", "silu", "relu", "quick_gelu" or "sigmoid": those of `grilly.functional`.
    gated : bool
        ``activation(x G^T + g) * (x U^T + u) + residual``, where the first half of W's rows is G and the second U, and
        b is g and u: the projections of gate and up in one weight, as SwiGLU ("silu") and GEGLU ("gelu") models have
        them. The result is ``(..., N / 2)``. With few rows it is one dispatch; with many the two products are rounded
        to x's dtype before a second one.
    residual : numpy.ndarray or grilly.Tensor, optional
        Of the result's shape and dtype.
    norm_weight : numpy.ndarray or grilly.Tensor, optional
        ``(K,)``, of x's dtype. x then stands for ``rms_norm(x, K, norm_weight, norm_eps, norm_offset)``, as before the
        projections of Llama and its kin. With few rows, as in a decoding step, it is part of the one dispatch, and the
        normalised x is not rounded; with many it is a dispatch before, which rounds it to x's dtype.
    norm_eps, norm_offset : float, optional
        ``eps`` and ``weight_offset`` of ``rms_norm``.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        ``(..., N)``, of x's dtype.

    Raises
    ------
    TypeError
        For dtypes other than float32, float16 and bfloat16, or differing ones; for quantized types that kernels do not
        read.
    ValueError
        For shapes that do not go together, another precision or activation, gated without an activation, and
        as ``rms_norm`` raises it.

    References
    ----------
    The split: H. Ootomo and R. Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the
    FP32 theoretical peak performance", 2022.
    """
    return _linear.linear(
        device_of("linear", input, weight, bias, residual, norm_weight), input, weight, bias,
        precision=precision, activation=activation, gated=gated, residual=residual,
        norm_weight=norm_weight, norm_eps=norm_eps, norm_offset=norm_offset,
    )  # fmt: skip


@overload
def linear_backward(
    grad_output: NDArray[FloatT], input: NDArray[FloatT], weight: NDArray[FloatT], *, precision: Precision = ...
) -> tuple[NDArray[FloatT], NDArray[FloatT], NDArray[FloatT]]: ...
@overload
def linear_backward(
    grad_output: FloatArray, input: FloatArray, weight: QuantizedTensor, *, precision: Precision = ...
) -> tuple[Array, None, Array]: ...
@overload
def linear_backward(
    grad_output: Tensor, input: FloatArray, weight: FloatArray, *, precision: Precision = ...
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def linear_backward(
    grad_output: FloatArray, input: FloatArray, weight: FloatArray, *, precision: Precision = ...
) -> tuple[Array, Array, Array]: ...
def linear_backward(
    grad_output: FloatArray, input: FloatArray, weight: FloatArray | QuantizedTensor, *,
    precision: Precision = "highest",
) -> tuple[Array, Array | None, Array]:  # fmt: skip
    """The gradients of a plain ``linear``: of ``sum(grad_output * y)`` by input, weight and bias.

    With an activation, training keeps ``h = linear(input, weight, bias)``, applies the activation by itself, and gives
    this function ``gelu_backward(grad_output, h)`` or the like.

    With G and X the rows of grad_output and input: ``G W``, ``G^T X`` and the sum of G's rows.

    Parameters
    ----------
    grad_output : numpy.ndarray or grilly.Tensor
        ``(..., N)``, of input's dtype.
    input, weight, precision
        As given to ``linear``.

    Returns
    -------
    dx, dweight, dbias : numpy.ndarray or grilly.Tensor
        ``(..., K)``, ``(N, K)`` and ``(N,)``, of x's dtype. A quantized weight has no gradient: dweight is None. Parts
        of it become floats, as in ``linear`` of many rows.

    Raises
    ------
    TypeError, ValueError
        As ``linear``, and for a grad_output that is not of the output's shape.
    """
    device = device_of("linear_backward", grad_output, input, weight)
    return _linear.linear_backward(device, grad_output, input, weight, precision=precision)
