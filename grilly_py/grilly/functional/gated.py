"""Activations of one array times another, and their gradients."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

from ..compute.arrays import activations as _activations
from ..compute.backend import device_of
from ..compute.device.arrays import ArrayT
from .gelu_activation import Approximate
from .keywords import no_keyword


def glu(input: ArrayT, dim: SupportsIndex = -1, **unknown: NoReturn) -> ArrayT:
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
        Of input's shape with half of that extent, and of its dtype.

    Raises
    ------
    TypeError
        For another dtype.
    ValueError
        For an odd extent, or an axis that input lacks.
    """
    if unknown:
        raise no_keyword("glu", unknown)
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
        Of input's shape and dtype.

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
        Of their shape and dtype, rounded once.

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
        Of their shape and dtype.

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
        Of their shape and dtype, rounded once.

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
        Of their shape and dtype.

    Raises
    ------
    TypeError, ValueError
        As ``geglu``.
    """
    kind = _activations.gelu_of("geglu_backward", approximate)
    device = device_of("geglu_backward", grad_output, gate, up)
    return _activations.gated_backward(device, "geglu_backward", kind, grad_output, gate, up)
