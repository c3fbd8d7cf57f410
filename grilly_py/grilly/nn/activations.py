"""Activations as layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import functional as F
from ..compute import Tensor
from ..compute.arrays.activations import gelu_of
from ..compute.device.arrays import ArrayT
from ..compute.device.numbers import integer
from ..functional.activations import Approximate
from .module import Module


class _Activation(Module):
    """A layer without parameters: subclasses say what is computed."""

    def _forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _backward(self, grad_output: Tensor, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, input: ArrayT) -> ArrayT:
        """The activation of an array or Tensor, float32, float16 or bfloat16, as one of the same kind and dtype.

        Raises
        ------
        TypeError
            For other dtypes.
        """
        _, (x,), keep = self._send(input)
        y = self._forward(x)
        self._keep(x=x)
        return y if keep else y.numpy()  # type: ignore[return-value]

    if TYPE_CHECKING:  # calling a layer is forward: its arguments and results are known to type checkers
        __call__ = forward

    def backward(self, grad_output: ArrayT) -> ArrayT:
        """The gradient of the last forward's input.

        Raises
        ------
        RuntimeError
            Where ``forward`` kept nothing: see `Module`.
        ValueError, TypeError
            If grad_output is not of the output's shape and dtype.
        """
        x = self._take()["x"]
        dx = self._backward(x.backend.tensor(grad_output), x)
        return dx if isinstance(grad_output, Tensor) else dx.numpy()


class GELU(_Activation):
    """``grilly.functional.gelu`` as a layer.

    Parameters
    ----------
    approximate : str
        "none", or "tanh" for the approximation by the hyperbolic tangent.

    Raises
    ------
    ValueError
        For another ``approximate``.
    """

    def __init__(self, approximate: Approximate = "none") -> None:
        super().__init__()
        gelu_of("GELU", approximate)
        self.approximate: Approximate = approximate

    def _forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate=self.approximate)

    def _backward(self, grad_output: Tensor, x: Tensor) -> Tensor:
        return F.gelu_backward(grad_output, x, approximate=self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class SiLU(_Activation):
    """``grilly.functional.silu`` as a layer."""

    def _forward(self, x: Tensor) -> Tensor:
        return F.silu(x)

    def _backward(self, grad_output: Tensor, x: Tensor) -> Tensor:
        return F.silu_backward(grad_output, x)


class ReLU(_Activation):
    """``grilly.functional.relu`` as a layer."""

    def _forward(self, x: Tensor) -> Tensor:
        return F.relu(x)

    def _backward(self, grad_output: Tensor, x: Tensor) -> Tensor:
        return F.relu_backward(grad_output, x)


class Sigmoid(_Activation):
    """``grilly.functional.sigmoid`` as a layer."""

    def _forward(self, x: Tensor) -> Tensor:
        return F.sigmoid(x)

    def _backward(self, grad_output: Tensor, x: Tensor) -> Tensor:
        return F.sigmoid_backward(grad_output, x)


class Tanh(_Activation):
    """``grilly.functional.tanh`` as a layer."""

    def _forward(self, x: Tensor) -> Tensor:
        return F.tanh(x)

    def _backward(self, grad_output: Tensor, x: Tensor) -> Tensor:
        return F.tanh_backward(grad_output, x)


class GLU(_Activation):
    """``grilly.functional.glu`` as a layer: half of the input, times the sigmoid of the other half.

    Parameters
    ----------
    dim : int
        The axis that is halved.
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = integer("GLU", "dim", dim)

    def _forward(self, x: Tensor) -> Tensor:
        return F.glu(x, self.dim)

    def _backward(self, grad_output: Tensor, x: Tensor) -> Tensor:
        return F.glu_backward(grad_output, x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"
