"""Normalisations, with their gradients."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex, overload

from ..compute.backend import device_of
from ..compute.device.arrays import Array, FloatArray, FloatT, NDArray, Shape
from ..compute.device.tensor import Tensor
from ..compute.norms import backward as _backward
from ..compute.norms import forward as _forward
from .keywords import no_keyword


@overload
def layer_norm(
    input: NDArray[FloatT], normalized_shape: Shape, weight: NDArray[FloatT] | None = ...,
    bias: NDArray[FloatT] | None = ..., eps: float = ...,
) -> NDArray[FloatT]: ...  # fmt: skip
@overload
def layer_norm(
    input: Tensor, normalized_shape: Shape, weight: FloatArray | None = ..., bias: FloatArray | None = ...,
    eps: float = ...,
) -> Tensor: ...  # fmt: skip
@overload
def layer_norm(
    input: FloatArray, normalized_shape: Shape, weight: FloatArray | None = ..., bias: FloatArray | None = ...,
    eps: float = ...,
) -> Array: ...  # fmt: skip
def layer_norm(
    input: FloatArray, normalized_shape: Shape, weight: FloatArray | None = None, bias: FloatArray | None = None,
    eps: float = 1e-5, **unknown: NoReturn,
) -> Array:  # fmt: skip
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` of each row x (Ba et al. 2016, arXiv:1607.06450).

    The variance is the mean of squared distances from the mean. Both are found in float32 from differences between a
    row's elements, so rows with a large mean and a small deviation lose nothing.

    Parameters
    ----------
    input : numpy.ndarray or grilly.Tensor
        ``(..., *normalized_shape)``; float32, float16 or bfloat16, of any strides. A row is the elements of the last
        axes.
    normalized_shape : int or sequence of int
        Extents of the last axes.
    weight, bias : numpy.ndarray or grilly.Tensor, optional
        ``normalized_shape``, of input's dtype; 1 and 0 where left out.
    eps : float
        At least 0.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of input's shape and dtype, rounded once. A row that holds NaN or an infinity becomes NaN.

    Raises
    ------
    TypeError
        For dtypes other than float32, float16 and bfloat16, or differing ones.
    ValueError
        For shapes that do not go together, or an eps that is negative or not finite.
    UnsupportedError
        Where a row is longer than the loops of the driver (Mesa 22.3's on processors: 8 million elements).
    """
    if unknown:
        raise no_keyword("layer_norm", unknown)
    device = device_of("layer_norm", input, weight, bias)
    return _forward.layer_norm(device, input, normalized_shape, weight, bias, eps)


@overload
def rms_norm(
    input: NDArray[FloatT], normalized_shape: Shape, weight: NDArray[FloatT] | None = ..., eps: float | None = ...,
    weight_offset: float = ...,
) -> NDArray[FloatT]: ...  # fmt: skip
@overload
def rms_norm(
    input: Tensor, normalized_shape: Shape, weight: FloatArray | None = ..., eps: float | None = ...,
    weight_offset: float = ...,
) -> Tensor: ...  # fmt: skip
@overload
def rms_norm(
    input: FloatArray, normalized_shape: Shape, weight: FloatArray | None = ..., eps: float | None = ...,
    weight_offset: float = ...,
) -> Array: ...  # fmt: skip
def rms_norm(
    input: FloatArray, normalized_shape: Shape, weight: FloatArray | None = None, eps: float | None = None,
    weight_offset: float = 0.0, **unknown: NoReturn,
) -> Array:  # fmt: skip
    """``x / sqrt(mean(x^2) + eps) * (weight + weight_offset)`` of each row x (Zhang and Sennrich, arXiv:1910.07467).

    Parameters
    ----------
    input, normalized_shape
        As for ``layer_norm``.
    weight : numpy.ndarray or grilly.Tensor, optional
        ``normalized_shape``, of input's dtype. Where left out nothing is multiplied, whatever ``weight_offset`` is.
    eps : float, optional
        At least 0. None is 2**-23, the eps of float32, in which all dtypes are computed.
    weight_offset : float
        Added to the weight: 1 for Gemma, whose weights are kept less 1.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of input's shape and dtype, rounded once. In a row that holds an infinity, but no NaN, finite elements become 0.

    Raises
    ------
    TypeError, ValueError, UnsupportedError
        As ``layer_norm``; ValueError also for a weight_offset that is not finite.
    """
    if unknown:
        raise no_keyword("rms_norm", unknown)
    device = device_of("rms_norm", input, weight)
    return _forward.rms_norm(device, input, normalized_shape, weight, eps, weight_offset)


@overload
def add_layer_norm(
    input: NDArray[FloatT], residual: NDArray[FloatT], normalized_shape: Shape, weight: NDArray[FloatT] | None = ...,
    bias: NDArray[FloatT] | None = ..., eps: float = ...,
) -> tuple[NDArray[FloatT], NDArray[FloatT]]: ...  # fmt: skip
@overload
def add_layer_norm(
    input: Tensor, residual: FloatArray, normalized_shape: Shape, weight: FloatArray | None = ...,
    bias: FloatArray | None = ..., eps: float = ...,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def add_layer_norm(
    input: FloatArray, residual: FloatArray, normalized_shape: Shape, weight: FloatArray | None = ...,
    bias: FloatArray | None = ..., eps: float = ...,
) -> tuple[Array, Array]: ...  # fmt: skip
def add_layer_norm(
    input: FloatArray, residual: FloatArray, normalized_shape: Shape, weight: FloatArray | None = None,
    bias: FloatArray | None = None, eps: float = 1e-5,
) -> tuple[Array, Array]:  # fmt: skip
    """The layer norm of ``input + residual``, and that sum, by one dispatch that reads both once.

    Parameters
    ----------
    input, residual : numpy.ndarray or grilly.Tensor
        ``(..., *normalized_shape)``, of one shape and dtype.
    normalized_shape, weight, bias, eps
        As for ``layer_norm``.

    Returns
    -------
    normed, sum : numpy.ndarray or grilly.Tensor
        The same bits as ``layer_norm(input + residual, ...)`` and ``input + residual`` (which is rounded before it is
        normalised).

    Raises
    ------
    TypeError, ValueError, UnsupportedError
        As ``layer_norm``; ValueError also for a residual of another shape.
    """
    device = device_of("add_layer_norm", input, residual, weight, bias)
    return _forward.add_layer_norm(device, input, residual, normalized_shape, weight, bias, eps)


@overload
def add_rms_norm(
    input: NDArray[FloatT], residual: NDArray[FloatT], normalized_shape: Shape, weight: NDArray[FloatT] | None = ...,
    eps: float | None = ..., weight_offset: float = ...,
) -> tuple[NDArray[FloatT], NDArray[FloatT]]: ...  # fmt: skip
@overload
def add_rms_norm(
    input: Tensor, residual: FloatArray, normalized_shape: Shape, weight: FloatArray | None = ...,
    eps: float | None = ..., weight_offset: float = ...,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def add_rms_norm(
    input: FloatArray, residual: FloatArray, normalized_shape: Shape, weight: FloatArray | None = ...,
    eps: float | None = ..., weight_offset: float = ...,
) -> tuple[Array, Array]: ...  # fmt: skip
def add_rms_norm(
    input: FloatArray, residual: FloatArray, normalized_shape: Shape, weight: FloatArray | None = None,
    eps: float | None = None, weight_offset: float = 0.0,
) -> tuple[Array, Array]:  # fmt: skip
    """The RMS norm of ``input + residual``, and that sum, by one dispatch that reads both once.

    Parameters
    ----------
    input, residual : numpy.ndarray or grilly.Tensor
        ``(..., *normalized_shape)``, of one shape and dtype.
    normalized_shape, weight, eps, weight_offset
        As for ``rms_norm``.

    Returns
    -------
    normed, sum : numpy.ndarray or grilly.Tensor
        The same bits as ``rms_norm(input + residual, ...)`` and ``input + residual`` (which is rounded before it is
        normalised).

    Raises
    ------
    TypeError, ValueError, UnsupportedError
        As ``rms_norm``; ValueError also for a residual of another shape.
    """
    device = device_of("add_rms_norm", input, residual, weight)
    return _forward.add_rms_norm(device, input, residual, normalized_shape, weight, eps, weight_offset)


@overload
def group_norm(
    input: NDArray[FloatT], num_groups: SupportsIndex, weight: NDArray[FloatT] | None = ...,
    bias: NDArray[FloatT] | None = ..., eps: float = ...,
) -> NDArray[FloatT]: ...  # fmt: skip
@overload
def group_norm(
    input: Tensor, num_groups: SupportsIndex, weight: FloatArray | None = ..., bias: FloatArray | None = ...,
    eps: float = ...,
) -> Tensor: ...  # fmt: skip
@overload
def group_norm(
    input: FloatArray, num_groups: SupportsIndex, weight: FloatArray | None = ..., bias: FloatArray | None = ...,
    eps: float = ...,
) -> Array: ...  # fmt: skip
def group_norm(
    input: FloatArray, num_groups: SupportsIndex, weight: FloatArray | None = None, bias: FloatArray | None = None,
    eps: float = 1e-5,
) -> Array:  # fmt: skip
    """The layer norm of groups of channels, with a weight and a bias for each channel (Wu and He, arXiv:1803.08494).

    Parameters
    ----------
    input : numpy.ndarray or grilly.Tensor
        ``(N, C, ...)``; float32, float16 or bfloat16. Strides in which a group's elements do not follow each other cost
        a copy.
    num_groups : int
        Divides C. Each sample's C channels are normalised in as many groups of neighbours.
    weight, bias : numpy.ndarray or grilly.Tensor, optional
        ``(C,)``, of input's dtype; 1 and 0 where left out.
    eps : float
        At least 0.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of input's shape and dtype.

    Raises
    ------
    TypeError, ValueError, UnsupportedError
        As ``layer_norm``; ValueError also for channels that cannot be divided so.
    """
    device = device_of("group_norm", input, weight, bias)
    return _forward.group_norm(device, input, num_groups, weight, bias, eps)


@overload
def layer_norm_backward(
    grad_output: NDArray[FloatT], input: NDArray[FloatT], normalized_shape: Shape,
    weight: NDArray[FloatT] | None = ..., eps: float = ...,
) -> tuple[NDArray[FloatT], NDArray[FloatT] | None, NDArray[FloatT] | None]: ...  # fmt: skip
@overload
def layer_norm_backward(
    grad_output: Tensor, input: FloatArray, normalized_shape: Shape, weight: FloatArray | None = ..., eps: float = ...
) -> tuple[Tensor, Tensor | None, Tensor | None]: ...
@overload
def layer_norm_backward(
    grad_output: FloatArray, input: FloatArray, normalized_shape: Shape, weight: FloatArray | None = ...,
    eps: float = ...,
) -> tuple[Array, Array | None, Array | None]: ...  # fmt: skip
def layer_norm_backward(
    grad_output: FloatArray, input: FloatArray, normalized_shape: Shape, weight: FloatArray | None = None,
    eps: float = 1e-5,
) -> tuple[Array, Array | None, Array | None]:  # fmt: skip
    """The gradients of ``layer_norm``: of ``sum(grad_output * y)`` by input, weight and bias.

    The same bits each time: sums are added up in an order that depends on the shape alone.

    Parameters
    ----------
    grad_output : numpy.ndarray or grilly.Tensor
        Of input's shape and dtype.
    input, normalized_shape, weight, eps
        As given to ``layer_norm``; after ``add_layer_norm`` input is the sum, and the gradient of both that were added
        is dinput plus the gradient of the sum.

    Returns
    -------
    dinput, dweight, dbias : numpy.ndarray or grilly.Tensor
        Of input's shape, and ``normalized_shape``, of input's dtype. The last two are None where there is no weight.

    Raises
    ------
    TypeError, ValueError, UnsupportedError
        As ``layer_norm``; ValueError also for a grad_output of another shape.
    """
    device = device_of("layer_norm_backward", grad_output, input, weight)
    return _backward.layer_norm_backward(device, grad_output, input, normalized_shape, weight, eps)


@overload
def rms_norm_backward(
    grad_output: NDArray[FloatT], input: NDArray[FloatT], normalized_shape: Shape,
    weight: NDArray[FloatT] | None = ..., eps: float | None = ..., weight_offset: float = ...,
) -> tuple[NDArray[FloatT], NDArray[FloatT] | None]: ...  # fmt: skip
@overload
def rms_norm_backward(
    grad_output: Tensor, input: FloatArray, normalized_shape: Shape, weight: FloatArray | None = ...,
    eps: float | None = ..., weight_offset: float = ...,
) -> tuple[Tensor, Tensor | None]: ...  # fmt: skip
@overload
def rms_norm_backward(
    grad_output: FloatArray, input: FloatArray, normalized_shape: Shape, weight: FloatArray | None = ...,
    eps: float | None = ..., weight_offset: float = ...,
) -> tuple[Array, Array | None]: ...  # fmt: skip
def rms_norm_backward(
    grad_output: FloatArray, input: FloatArray, normalized_shape: Shape, weight: FloatArray | None = None,
    eps: float | None = None, weight_offset: float = 0.0,
) -> tuple[Array, Array | None]:  # fmt: skip
    """The gradients of ``rms_norm``: of ``sum(grad_output * y)`` by input and weight.

    Parameters
    ----------
    grad_output : numpy.ndarray or grilly.Tensor
        Of input's shape and dtype.
    input, normalized_shape, weight, eps, weight_offset
        As given to ``rms_norm``; after ``add_rms_norm`` input is the sum, and the gradient of both that were added
        is dinput plus the gradient of the sum.

    Returns
    -------
    dinput, dweight : numpy.ndarray or grilly.Tensor
        As of ``layer_norm_backward``.

    Raises
    ------
    TypeError, ValueError, UnsupportedError
        As ``rms_norm``; ValueError also for a grad_output of another shape.
    """
    device = device_of("rms_norm_backward", grad_output, input, weight)
    return _backward.rms_norm_backward(device, grad_output, input, normalized_shape, weight, eps, weight_offset)


@overload
def group_norm_backward(
    grad_output: NDArray[FloatT], input: NDArray[FloatT], num_groups: SupportsIndex,
    weight: NDArray[FloatT] | None = ..., eps: float = ...,
) -> tuple[NDArray[FloatT], NDArray[FloatT] | None, NDArray[FloatT] | None]: ...  # fmt: skip
@overload
def group_norm_backward(
    grad_output: Tensor, input: FloatArray, num_groups: SupportsIndex, weight: FloatArray | None = ...,
    eps: float = ...,
) -> tuple[Tensor, Tensor | None, Tensor | None]: ...  # fmt: skip
@overload
def group_norm_backward(
    grad_output: FloatArray, input: FloatArray, num_groups: SupportsIndex, weight: FloatArray | None = ...,
    eps: float = ...,
) -> tuple[Array, Array | None, Array | None]: ...  # fmt: skip
def group_norm_backward(
    grad_output: FloatArray, input: FloatArray, num_groups: SupportsIndex, weight: FloatArray | None = None,
    eps: float = 1e-5,
) -> tuple[Array, Array | None, Array | None]:  # fmt: skip
    """The gradients of ``group_norm``: of ``sum(grad_output * y)`` by input, weight and bias.

    Parameters
    ----------
    grad_output : numpy.ndarray or grilly.Tensor
        Of input's shape and dtype.
    input, num_groups, weight, eps
        As given to ``group_norm``.

    Returns
    -------
    dinput, dweight, dbias : numpy.ndarray or grilly.Tensor
        As of ``layer_norm_backward``, the last two ``(C,)``.

    Raises
    ------
    TypeError, ValueError, UnsupportedError
        As ``group_norm``; ValueError also for a grad_output of another shape.
    """
    device = device_of("group_norm_backward", grad_output, input, weight)
    return _backward.group_norm_backward(device, grad_output, input, num_groups, weight, eps)
