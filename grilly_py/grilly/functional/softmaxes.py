"""Softmax and its logarithm, with their gradients."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

from ..compute.backend import device_of
from ..compute.device.arrays import ArrayT
from ..compute.norms import softmax as _softmax
from .keywords import no_keyword


def softmax(input: ArrayT, dim: SupportsIndex = -1, **unknown: NoReturn) -> ArrayT:
    """``exp(x) / sum(exp(x))`` along an axis.

    Parameters
    ----------
    input : numpy.ndarray or grilly.Tensor
        Any shape with at least one axis; float32, float16 or bfloat16, computed in float32. Any strides: along another
        axis than the last neighbours in memory are read together, without a copy.
    dim : int
        The axis.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of input's shape and dtype. A row of nothing but minus infinity becomes NaN, as in PyTorch (in
        ``backend.attention.softmax``, a step of attention, zeros), and so does one that holds NaN or plus infinity.

    Raises
    ------
    TypeError
        For another dtype, or a dim that is no integer.
    ValueError
        For an array without axes, or a dim that it has not.
    UnsupportedError
        Where a row is longer than the loops of the driver (Mesa 22.3's on processors: 8 million elements).
    """
    if unknown:
        raise no_keyword("softmax", unknown)
    return _softmax.softmax(device_of("softmax", input), input, dim)  # type: ignore[no-any-return]


def log_softmax(input: ArrayT, dim: SupportsIndex = -1, **unknown: NoReturn) -> ArrayT:
    """``x - log(sum(exp(x)))`` along an axis, the logarithm of ``softmax`` without its loss of small numbers.

    Parameters
    ----------
    input, dim
        As for ``softmax``.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of input's shape and dtype. A row of nothing but minus infinity becomes NaN, as in PyTorch, and so does one that
        holds NaN or plus infinity.

    Raises
    ------
    TypeError, ValueError, UnsupportedError
        As ``softmax``.
    """
    if unknown:
        raise no_keyword("log_softmax", unknown)
    return _softmax.log_softmax(device_of("log_softmax", input), input, dim)  # type: ignore[no-any-return]


def softmax_backward(grad_output: ArrayT, output: ArrayT, dim: SupportsIndex = -1) -> ArrayT:
    """The gradient of ``softmax``: of ``sum(grad_output * y)`` by its input.

    Parameters
    ----------
    grad_output, output : numpy.ndarray or grilly.Tensor
        The gradient of ``softmax``'s result, and the result; of one shape and dtype.
    dim : int
        As given to ``softmax``.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of output's shape and dtype.

    Raises
    ------
    TypeError, ValueError, UnsupportedError
        As ``softmax``; also for dtypes or shapes that differ.
    """
    device = device_of("softmax_backward", grad_output, output)
    return _softmax.softmax_backward(device, grad_output, output, dim)  # type: ignore[no-any-return]


def log_softmax_backward(grad_output: ArrayT, output: ArrayT, dim: SupportsIndex = -1) -> ArrayT:
    """The gradient of ``log_softmax``: of ``sum(grad_output * y)`` by its input.

    Parameters
    ----------
    grad_output, output : numpy.ndarray or grilly.Tensor
        The gradient of ``log_softmax``'s result, and the result; of one shape and dtype.
    dim : int
        As given to ``log_softmax``.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of output's shape and dtype.

    Raises
    ------
    TypeError, ValueError, UnsupportedError
        As ``softmax``; also for dtypes or shapes that differ.
    """
    device = device_of("log_softmax_backward", grad_output, output)
    return _softmax.log_softmax_backward(device, grad_output, output, dim)  # type: ignore[no-any-return]
