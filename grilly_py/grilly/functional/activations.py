"""Activations, and their gradients."""

from __future__ import annotations

from typing import Literal, NoReturn, TypeAlias

from ..compute.arrays import activations as _activations
from ..compute.backend import device_of
from ..compute.device.arrays import ArrayT
from .words import no_keyword

#: The two ways of computing GELU, by PyTorch's names.
Approximate: TypeAlias = Literal["none", "tanh"]


def _one(name: str, kind: str, input: ArrayT) -> ArrayT:
    return _activations.apply(device_of(name, input), name, kind, input=input)  # type: ignore[no-any-return]


def _slope(name: str, kind: str, grad_output: ArrayT, input: ArrayT) -> ArrayT:
    device = device_of(name, input, grad_output)
    return _activations.apply(  # type: ignore[no-any-return]
        device, name, f"{kind}_slope", input=input, grad_output=grad_output
    )


def gelu(input: ArrayT, *, approximate: Approximate = "none") -> ArrayT:
    """The Gaussian error linear unit (Hendrycks and Gimpel 2016, arXiv:1606.08415).

    x times the normal distribution up to x, which is ``x / 2 (1 + erf(x / sqrt(2)))``, with all its digits also where x
    is far below 0; or with ``approximate="tanh"`` as ``x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))``.

    Parameters
    ----------
    input : numpy.ndarray or grilly.Tensor
        Any shape; float32, float16 or bfloat16.
    approximate : str
        "none" or "tanh".

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of input's shape and dtype; a Tensor when input was one, and then without waiting. NaN where input is NaN, and
        the limit at infinities.

    Raises
    ------
    TypeError
        For another dtype.
    ValueError
        For another ``approximate``.
    """
    return _one("gelu", _activations.gelu_of("gelu", approximate), input)


def gelu_backward(grad_output: ArrayT, input: ArrayT, *, approximate: Approximate = "none") -> ArrayT:
    """The gradient of ``gelu``: of ``sum(grad_output * gelu(input))`` by input.

    Parameters
    ----------
    grad_output, input : numpy.ndarray or grilly.Tensor
        Of one shape and dtype: float32, float16 or bfloat16. input is what ``gelu`` was given.
    approximate : str
        As given to ``gelu``.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of input's shape and dtype; a Tensor when an array was one, and then without waiting.

    Raises
    ------
    TypeError
        For other dtypes, or differing ones.
    ValueError
        For differing shapes, or another ``approximate``.
    """
    kind = _activations.gelu_of("gelu_backward", approximate)
    return _slope("gelu_backward", kind, grad_output, input)


def relu(input: ArrayT, **unknown: NoReturn) -> ArrayT:
    """``max(x, 0)`` of each element x.

    Parameters
    ----------
    input : numpy.ndarray or grilly.Tensor
        Any shape; float32, float16 or bfloat16.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of input's shape and dtype; a Tensor when input was one, and then without waiting. NaN where input is NaN, and
        the limit at infinities.

    Raises
    ------
    TypeError
        For another dtype.
    """
    if unknown:
        raise no_keyword("relu", unknown)
    return _one("relu", "relu", input)


def relu_backward(grad_output: ArrayT, input: ArrayT) -> ArrayT:
    """The gradient of ``relu``: of ``sum(grad_output * relu(input))`` by input.

    Parameters
    ----------
    grad_output, input : numpy.ndarray or grilly.Tensor
        Of one shape and dtype: float32, float16 or bfloat16. input is what ``relu`` was given.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of input's shape and dtype; a Tensor when an array was one, and then without waiting.

    Raises
    ------
    TypeError
        For other dtypes, or differing ones.
    ValueError
        For differing shapes.
    """
    return _slope("relu_backward", "relu", grad_output, input)


def sigmoid(input: ArrayT) -> ArrayT:
    """``1 / (1 + exp(-x))`` of each element x.

    Parameters
    ----------
    input : numpy.ndarray or grilly.Tensor
        Any shape; float32, float16 or bfloat16.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of input's shape and dtype; a Tensor when input was one, and then without waiting. NaN where input is NaN, and
        the limit at infinities.

    Raises
    ------
    TypeError
        For another dtype.
    """
    return _one("sigmoid", "sigmoid", input)


def sigmoid_backward(grad_output: ArrayT, input: ArrayT) -> ArrayT:
    """The gradient of ``sigmoid``: of ``sum(grad_output * sigmoid(input))`` by input.

    Parameters
    ----------
    grad_output, input : numpy.ndarray or grilly.Tensor
        Of one shape and dtype: float32, float16 or bfloat16. input is what ``sigmoid`` was given.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of input's shape and dtype; a Tensor when an array was one, and then without waiting.

    Raises
    ------
    TypeError
        For other dtypes, or differing ones.
    ValueError
        For differing shapes.
    """
    return _slope("sigmoid_backward", "sigmoid", grad_output, input)


def tanh(input: ArrayT) -> ArrayT:
    """The hyperbolic tangent of each element.

    Parameters
    ----------
    input : numpy.ndarray or grilly.Tensor
        Any shape; float32, float16 or bfloat16.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of input's shape and dtype; a Tensor when input was one, and then without waiting. NaN where input is NaN, and
        the limit at infinities.

    Raises
    ------
    TypeError
        For another dtype.
    """
    return _one("tanh", "tanh", input)


def tanh_backward(grad_output: ArrayT, input: ArrayT) -> ArrayT:
    """The gradient of ``tanh``: of ``sum(grad_output * tanh(input))`` by input.

    Parameters
    ----------
    grad_output, input : numpy.ndarray or grilly.Tensor
        Of one shape and dtype: float32, float16 or bfloat16. input is what ``tanh`` was given.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of input's shape and dtype; a Tensor when an array was one, and then without waiting.

    Raises
    ------
    TypeError
        For other dtypes, or differing ones.
    ValueError
        For differing shapes.
    """
    return _slope("tanh_backward", "tanh", grad_output, input)


def silu(input: ArrayT, **unknown: NoReturn) -> ArrayT:
    """``x / (1 + exp(-x))`` of each element x, also called swish (Elfwing et al. 2017, arXiv:1702.03118).

    Parameters
    ----------
    input : numpy.ndarray or grilly.Tensor
        Any shape; float32, float16 or bfloat16.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of input's shape and dtype; a Tensor when input was one, and then without waiting. NaN where input is NaN, and
        the limit at infinities.

    Raises
    ------
    TypeError
        For another dtype.
    """
    if unknown:
        raise no_keyword("silu", unknown)
    return _one("silu", "silu", input)


def silu_backward(grad_output: ArrayT, input: ArrayT) -> ArrayT:
    """The gradient of ``silu``: of ``sum(grad_output * silu(input))`` by input.

    Parameters
    ----------
    grad_output, input : numpy.ndarray or grilly.Tensor
        Of one shape and dtype: float32, float16 or bfloat16. input is what ``silu`` was given.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of input's shape and dtype; a Tensor when an array was one, and then without waiting.

    Raises
    ------
    TypeError
        For other dtypes, or differing ones.
    ValueError
        For differing shapes.
    """
    return _slope("silu_backward", "silu", grad_output, input)


def quick_gelu(input: ArrayT) -> ArrayT:
    """``x / (1 + exp(-1.702 x))`` of each element x, the approximation of GELU that CLIP was trained with.

    Parameters
    ----------
    input : numpy.ndarray or grilly.Tensor
        Any shape; float32, float16 or bfloat16.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of input's shape and dtype; a Tensor when input was one, and then without waiting. NaN where input is NaN, and
        the limit at infinities.

    Raises
    ------
    TypeError
        For another dtype.
    """
    return _one("quick_gelu", "quick_gelu", input)


def quick_gelu_backward(grad_output: ArrayT, input: ArrayT) -> ArrayT:
    """The gradient of ``quick_gelu``: of ``sum(grad_output * quick_gelu(input))`` by input.

    Parameters
    ----------
    grad_output, input : numpy.ndarray or grilly.Tensor
        Of one shape and dtype: float32, float16 or bfloat16. input is what ``quick_gelu`` was given.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of input's shape and dtype; a Tensor when an array was one, and then without waiting.

    Raises
    ------
    TypeError
        For other dtypes, or differing ones.
    ValueError
        For differing shapes.
    """
    return _slope("quick_gelu_backward", "quick_gelu", grad_output, input)
