"""Activations as layers."""

from __future__ import annotations

from typing import Any

from .. import functional as F
from ..compute import Compute, Tensor
from ..compute.arrays.activations import gelu_of
from ..compute.device.arrays import FloatArray
from ..compute.device.numbers import integer
from ..functional.activations import Approximate
from .unary import Unary


class _Activation(Unary):
    """An activation takes what its function takes, NumPy's scalars among it."""

    def _check(self, input: FloatArray) -> None:
        pass


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

    def _run(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate=self.approximate)

    def _used(self, backend: Compute) -> dict[str, Any]:
        return {"approximate": self.approximate}

    def _gradient(self, grad: Tensor, kept: Tensor, **used: Any) -> Tensor:
        return F.gelu_backward(grad, kept, **used)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class SiLU(_Activation):
    """``grilly.functional.silu`` as a layer."""

    def _run(self, x: Tensor) -> Tensor:
        return F.silu(x)

    def _gradient(self, grad: Tensor, kept: Tensor, **used: Any) -> Tensor:
        return F.silu_backward(grad, kept)


class ReLU(_Activation):
    """``grilly.functional.relu`` as a layer."""

    def _run(self, x: Tensor) -> Tensor:
        return F.relu(x)

    def _gradient(self, grad: Tensor, kept: Tensor, **used: Any) -> Tensor:
        return F.relu_backward(grad, kept)


class Sigmoid(_Activation):
    """``grilly.functional.sigmoid`` as a layer."""

    def _run(self, x: Tensor) -> Tensor:
        return F.sigmoid(x)

    def _gradient(self, grad: Tensor, kept: Tensor, **used: Any) -> Tensor:
        return F.sigmoid_backward(grad, kept)


class Tanh(_Activation):
    """``grilly.functional.tanh`` as a layer."""

    def _run(self, x: Tensor) -> Tensor:
        return F.tanh(x)

    def _gradient(self, grad: Tensor, kept: Tensor, **used: Any) -> Tensor:
        return F.tanh_backward(grad, kept)


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

    def _run(self, x: Tensor) -> Tensor:
        return F.glu(x, self.dim)

    def _used(self, backend: Compute) -> dict[str, Any]:
        return {"dim": self.dim}

    def _gradient(self, grad: Tensor, kept: Tensor, **used: Any) -> Tensor:
        return F.glu_backward(grad, kept, **used)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"
