"""Convolutions of one and two axes, and their gradients."""

from __future__ import annotations

from typing import Literal, TypeAlias, overload

from ..compute.backend import device_of
from ..compute.convolution import backward as _backward
from ..compute.convolution import forward as _forward
from ..compute.device.arrays import Array, FloatArray, FloatT, NDArray, Precision
from ..compute.device.tensor import Tensor

#: A number for all axes, or one for each.
Sizes: TypeAlias = int | tuple[int, ...]
#: Zeros on both sides of each axis; "same" keeps the extents, "valid" is 0.
Padding: TypeAlias = Sizes | Literal["same", "valid"]


@overload
def conv1d(
    input: NDArray[FloatT], weight: NDArray[FloatT], bias: NDArray[FloatT] | None = ..., stride: Sizes = ...,
    padding: Padding = ..., dilation: Sizes = ..., groups: int = ..., *, precision: Precision = ...,
) -> NDArray[FloatT]: ...  # fmt: skip
@overload
def conv1d(
    input: Tensor, weight: FloatArray, bias: FloatArray | None = ..., stride: Sizes = ..., padding: Padding = ...,
    dilation: Sizes = ..., groups: int = ..., *, precision: Precision = ...,
) -> Tensor: ...  # fmt: skip
@overload
def conv1d(
    input: FloatArray, weight: FloatArray, bias: FloatArray | None = ..., stride: Sizes = ..., padding: Padding = ...,
    dilation: Sizes = ..., groups: int = ..., *, precision: Precision = ...,
) -> Array: ...  # fmt: skip
def conv1d(
    input: FloatArray, weight: FloatArray, bias: FloatArray | None = None, stride: Sizes = 1, padding: Padding = 0,
    dilation: Sizes = 1, groups: int = 1, *, precision: Precision = "highest",
) -> Array:  # fmt: skip
    """Convolution along one axis, the kernel not turned around: ``conv2d`` with a height of 1.

    Parameters
    ----------
    input : numpy.ndarray or grilly.Tensor
        ``(N, C, L)`` or ``(C, L)``; float32, float16 or bfloat16.
    weight : numpy.ndarray or grilly.Tensor
        ``(O, C / groups, k)``, of input's dtype.
    bias : numpy.ndarray or grilly.Tensor, optional
        ``(O,)``, of input's dtype.
    stride, padding, dilation, groups, precision
        As for ``conv2d``.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        ``(N, O, Lo)`` or ``(O, Lo)``, of input's dtype, with channels last in memory.

    Raises
    ------
    TypeError, ValueError, UnsupportedError
        As ``conv2d``.
    """
    return _forward.convolution(
        device_of("conv1d", input, weight, bias), "conv1d", 1, input, weight, bias,
        stride=stride, padding=padding, dilation=dilation, groups=groups, precision=precision,
    )  # fmt: skip


@overload
def conv2d(
    input: NDArray[FloatT], weight: NDArray[FloatT], bias: NDArray[FloatT] | None = ..., stride: Sizes = ...,
    padding: Padding = ..., dilation: Sizes = ..., groups: int = ..., *, precision: Precision = ...,
) -> NDArray[FloatT]: ...  # fmt: skip
@overload
def conv2d(
    input: Tensor, weight: FloatArray, bias: FloatArray | None = ..., stride: Sizes = ..., padding: Padding = ...,
    dilation: Sizes = ..., groups: int = ..., *, precision: Precision = ...,
) -> Tensor: ...  # fmt: skip
@overload
def conv2d(
    input: FloatArray, weight: FloatArray, bias: FloatArray | None = ..., stride: Sizes = ..., padding: Padding = ...,
    dilation: Sizes = ..., groups: int = ..., *, precision: Precision = ...,
) -> Array: ...  # fmt: skip
def conv2d(
    input: FloatArray, weight: FloatArray, bias: FloatArray | None = None, stride: Sizes = 1, padding: Padding = 0,
    dilation: Sizes = 1, groups: int = 1, *, precision: Precision = "highest",
) -> Array:  # fmt: skip
    """Convolution along two axes, the kernel not turned around.

    ``y[n, o, i, j] = b[o] + sum over c, a, b of x[n, c, i s - p + a d, j s - p + b d] W[o, c, a, b]``, zeros outside of
    x. The windows become a matrix, which the kernels of ``linear`` multiply; it takes at most one binding of the
    device, and a quarter of the backend's ``memory_limit``, and is made in parts where it would be larger.

    Parameters
    ----------
    input : numpy.ndarray or grilly.Tensor
        ``(N, C, H, W)`` or ``(C, H, W)``; float32, float16 or bfloat16.
    weight : numpy.ndarray or grilly.Tensor
        W, ``(O, C / groups, kh, kw)``, of input's dtype (PyTorch's layout).
    bias : numpy.ndarray or grilly.Tensor, optional
        ``(O,)``, of input's dtype.
    stride, dilation : int or tuple of int
        s and d, from 1; one for both axes, or one each.
    padding : int, tuple of int or str
        p, zeros on both sides of each axis. "same", with stride 1: as many as keep H and W, of an odd number one more
        at the end. "valid": none.
    groups : int
        C and O are divided into so many, each with its own channels. The bias is then added in a pass of its own, and
        sums of 16-bit types are rounded before it.
    precision : str
        "highest" or "high", as in ``linear``; with groups always "highest".

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        ``(N, O, Ho, Wo)`` or ``(O, Ho, Wo)``, of input's dtype, with ``Ho = (H + 2 p - d (kh - 1) - 1) // s + 1``. In
        memory the channels are last, so ``y.reshape(N, O, -1).transpose(0, 2, 1)`` moves nothing.

    Raises
    ------
    TypeError
        For dtypes other than float32, float16 and bfloat16, or differing ones, and numbers that are no integers.
    ValueError
        For shapes that do not go together, an input smaller than the kernel, and numbers outside their ranges.
    UnsupportedError
        Where one sample, or one window, is larger than a binding of the device.
    """
    return _forward.convolution(
        device_of("conv2d", input, weight, bias), "conv2d", 2, input, weight, bias,
        stride=stride, padding=padding, dilation=dilation, groups=groups, precision=precision,
    )  # fmt: skip


@overload
def conv1d_backward(
    grad_output: NDArray[FloatT], input: NDArray[FloatT], weight: NDArray[FloatT], stride: Sizes = ...,
    padding: Padding = ..., dilation: Sizes = ..., groups: int = ..., *, precision: Precision = ...,
) -> tuple[NDArray[FloatT], NDArray[FloatT], NDArray[FloatT]]: ...  # fmt: skip
@overload
def conv1d_backward(
    grad_output: Tensor, input: FloatArray, weight: FloatArray, stride: Sizes = ..., padding: Padding = ...,
    dilation: Sizes = ..., groups: int = ..., *, precision: Precision = ...,
) -> tuple[Tensor, Tensor, Tensor]: ...  # fmt: skip
@overload
def conv1d_backward(
    grad_output: FloatArray, input: FloatArray, weight: FloatArray, stride: Sizes = ..., padding: Padding = ...,
    dilation: Sizes = ..., groups: int = ..., *, precision: Precision = ...,
) -> tuple[Array, Array, Array]: ...  # fmt: skip
def conv1d_backward(
    grad_output: FloatArray, input: FloatArray, weight: FloatArray, stride: Sizes = 1, padding: Padding = 0,
    dilation: Sizes = 1, groups: int = 1, *, precision: Precision = "highest",
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The gradients of ``conv1d``: of ``sum(grad_output * y)`` by input, weight and bias.

    Parameters
    ----------
    grad_output : numpy.ndarray or grilly.Tensor
        ``(N, O, Lo)`` or ``(O, Lo)``, of input's dtype.
    input, weight, stride, padding, dilation, groups, precision
        As given to ``conv1d``.

    Returns
    -------
    dinput, dweight, dbias : numpy.ndarray or grilly.Tensor
        As ``conv2d_backward``.

    Raises
    ------
    TypeError, ValueError, UnsupportedError
        As ``conv1d``, and for a grad_output that is not of the output's shape.
    """
    return _backward.convolution_backward(
        device_of("conv1d_backward", grad_output, input, weight), "conv1d_backward", 1, grad_output, input, weight,
        stride=stride, padding=padding, dilation=dilation, groups=groups, precision=precision,
    )  # fmt: skip


@overload
def conv2d_backward(
    grad_output: NDArray[FloatT], input: NDArray[FloatT], weight: NDArray[FloatT], stride: Sizes = ...,
    padding: Padding = ..., dilation: Sizes = ..., groups: int = ..., *, precision: Precision = ...,
) -> tuple[NDArray[FloatT], NDArray[FloatT], NDArray[FloatT]]: ...  # fmt: skip
@overload
def conv2d_backward(
    grad_output: Tensor, input: FloatArray, weight: FloatArray, stride: Sizes = ..., padding: Padding = ...,
    dilation: Sizes = ..., groups: int = ..., *, precision: Precision = ...,
) -> tuple[Tensor, Tensor, Tensor]: ...  # fmt: skip
@overload
def conv2d_backward(
    grad_output: FloatArray, input: FloatArray, weight: FloatArray, stride: Sizes = ..., padding: Padding = ...,
    dilation: Sizes = ..., groups: int = ..., *, precision: Precision = ...,
) -> tuple[Array, Array, Array]: ...  # fmt: skip
def conv2d_backward(
    grad_output: FloatArray, input: FloatArray, weight: FloatArray, stride: Sizes = 1, padding: Padding = 0,
    dilation: Sizes = 1, groups: int = 1, *, precision: Precision = "highest",
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The gradients of ``conv2d``: of ``sum(grad_output * y)`` by input, weight and bias.

    Nothing is added by atomic operations, so the bits are the same each time. Of 16-bit types the gradients of windows
    are rounded once before those that overlap are added up, in float32, and rounded again; so are the parts of the
    weight's gradient, where there are several: one for every 65,536 places of the output, and as in ``conv2d``.

    Parameters
    ----------
    grad_output : numpy.ndarray or grilly.Tensor
        ``(N, O, Ho, Wo)`` or ``(O, Ho, Wo)``, of input's dtype.
    input, weight, stride, padding, dilation, groups, precision
        As given to ``conv2d``.

    Returns
    -------
    dinput, dweight, dbias : numpy.ndarray or grilly.Tensor
        Of input's and weight's shapes and ``(O,)``, of input's dtype.

    Raises
    ------
    TypeError, ValueError, UnsupportedError
        As ``conv2d``, and for a grad_output that is not of the output's shape.
    """
    return _backward.convolution_backward(
        device_of("conv2d_backward", grad_output, input, weight), "conv2d_backward", 2, grad_output, input, weight,
        stride=stride, padding=padding, dilation=dilation, groups=groups, precision=precision,
    )  # fmt: skip
