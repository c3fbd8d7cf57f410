"""Activations, their gated forms, and the gradients of both."""

from __future__ import annotations

from typing import Literal, SupportsIndex, TypeAlias

from ..compute.arrays import activations as _activations
from ..compute.backend import device_of
from ..compute.device.arrays import ArrayT

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


def relu(input: ArrayT) -> ArrayT:
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


def silu(input: ArrayT) -> ArrayT:
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


def glu(input: ArrayT, dim: SupportsIndex = -1) -> ArrayT:
    """``a * sigmoid(b)``, where a and b are the halves of input along an axis (Dauphin et al. 2016, arXiv:1612.08083).

    The second half is the gate. The halves are read where they lie.

    Parameters
    ----------
    input : numpy.ndarray or grilly.Tensor
        Any shape whose axis ``dim`` has an even extent; float32, float16 or bfloat16.
    dim : int
        The axis.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of input's shape with half of that extent, and of its dtype; a Tensor when input was one, and then without
        waiting.

    Raises
    ------
    TypeError
        For another dtype.
    ValueError
        For an odd extent, or an axis that input lacks.
    """
    return _activations.glu(device_of("glu", input), input, dim)  # type: ignore[no-any-return]


def glu_backward(grad_output: ArrayT, input: ArrayT, dim: SupportsIndex = -1) -> ArrayT:
    """The gradient of ``glu``: of ``sum(grad_output * glu(input, dim))`` by input.

    Parameters
    ----------
    grad_output : numpy.ndarray or grilly.Tensor
        Of the output's shape and input's dtype.
    input, dim
        As given to ``glu``.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of input's shape and dtype; a Tensor when an array was one, and then without waiting.

    Raises
    ------
    TypeError, ValueError
        As ``glu``, and for a grad_output that is not of the output's shape and dtype.
    """
    device = device_of("glu_backward", grad_output, input)
    return _activations.glu_backward(device, grad_output, input, dim)  # type: ignore[no-any-return]


def swiglu(gate: ArrayT, up: ArrayT) -> ArrayT:
    """``silu(gate) * up`` in one pass (Shazeer 2020, arXiv:2002.05202), as Llama, Mistral and Qwen have it.

    gate and up may be views, so the halves of one product need no copy: ``F.swiglu(h[..., :n], h[..., n:])``.
    ``F.linear(..., activation="silu", gated=True)`` makes the product and this in one.

    Parameters
    ----------
    gate, up : numpy.ndarray or grilly.Tensor
        Of one shape and dtype: float32, float16 or bfloat16.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of their shape and dtype, rounded once; a Tensor when an array was one, and then without waiting.

    Raises
    ------
    TypeError
        For other dtypes, or differing ones.
    ValueError
        For differing shapes.
    """
    return _activations.apply(  # type: ignore[no-any-return]
        device_of("swiglu", gate, up), "swiglu", "silu", gate=gate, up=up
    )


def swiglu_backward(grad_output: ArrayT, gate: ArrayT, up: ArrayT) -> tuple[ArrayT, ArrayT]:
    """The gradients of ``swiglu``: of ``sum(grad_output * swiglu(gate, up))`` by gate and up.

    Parameters
    ----------
    grad_output, gate, up : numpy.ndarray or grilly.Tensor
        Of one shape and dtype: float32, float16 or bfloat16.

    Returns
    -------
    dgate, dup : numpy.ndarray or grilly.Tensor
        Of their shape and dtype; Tensors when an array was one, and then without waiting.

    Raises
    ------
    TypeError, ValueError
        As ``swiglu``.
    """
    device = device_of("swiglu_backward", grad_output, gate, up)
    return _activations.gated_backward(device, "swiglu_backward", "silu", grad_output, gate, up)


def geglu(gate: ArrayT, up: ArrayT, *, approximate: Approximate = "none") -> ArrayT:
    """``gelu(gate) * up`` in one pass (Shazeer 2020, arXiv:2002.05202); Gemma has it with "tanh".

    Parameters
    ----------
    gate, up : numpy.ndarray or grilly.Tensor
        Of one shape and dtype: float32, float16 or bfloat16; views as well.
    approximate : str
        As ``gelu`` takes it.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of their shape and dtype, rounded once; a Tensor when an array was one, and then without waiting.

    Raises
    ------
    TypeError
        For other dtypes, or differing ones.
    ValueError
        For differing shapes, or another ``approximate``.
    """
    kind = _activations.gelu_of("geglu", approximate)
    return _activations.apply(  # type: ignore[no-any-return]
        device_of("geglu", gate, up), "geglu", kind, gate=gate, up=up
    )


def geglu_backward(
    grad_output: ArrayT, gate: ArrayT, up: ArrayT, *, approximate: Approximate = "none"
) -> tuple[ArrayT, ArrayT]:
    """The gradients of ``geglu``: of ``sum(grad_output * geglu(gate, up))`` by gate and up.

    Parameters
    ----------
    grad_output, gate, up : numpy.ndarray or grilly.Tensor
        Of one shape and dtype: float32, float16 or bfloat16.
    approximate : str
        As given to ``geglu``.

    Returns
    -------
    dgate, dup : numpy.ndarray or grilly.Tensor
        Of their shape and dtype; Tensors when an array was one, and then without waiting.

    Raises
    ------
    TypeError, ValueError
        As ``geglu``.
    """
    kind = _activations.gelu_of("geglu_backward", approximate)
    device = device_of("geglu_backward", grad_output, gate, up)
    return _activations.gated_backward(device, "geglu_backward", kind, grad_output, gate, up)
