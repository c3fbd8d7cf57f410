"""GELU, whose two ways of computing are two activations."""

from __future__ import annotations

from typing import Literal, TypeAlias

from ..compute.arrays import activations as _activations
from ..compute.backend import device_of
from ..compute.device.arrays import ArrayT
from ..compute.expressions.scalars import Scalar

#: The two ways of computing GELU, by PyTorch's names.
Approximate: TypeAlias = Literal["none", "tanh"]


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
        Of input's shape and dtype. NaN where input is NaN, and the limit at infinities.

    Raises
    ------
    TypeError
        For another dtype.
    ValueError
        For another ``approximate``.
    """
    kind = _activations.gelu_of("gelu", approximate)
    if input.__class__ is Scalar:
        return Scalar.operations[kind](input)  # type: ignore[return-value]
    return _activations.apply(device_of("gelu", input), "gelu", kind, input=input)  # type: ignore[no-any-return]


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
        Of input's shape and dtype.

    Raises
    ------
    TypeError
        For other dtypes, or differing ones.
    ValueError
        For differing shapes, or another ``approximate``.
    """
    kind = _activations.gelu_of("gelu_backward", approximate)
    return _activations.apply(  # type: ignore[no-any-return]
        device_of("gelu_backward", input, grad_output), "gelu_backward", f"{kind}_derivative", input=input,
        grad_output=grad_output,
    )  # fmt: skip
