"""Softmax and LogSoftmax on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from .. import functional as F
from ..compute import Tensor
from ..compute.device.arrays import Array, FloatArray, FloatT, NDArray
from ..compute.device.numbers import integer
from .module import Module, shapes


class Softmax(Module):
    """``grilly.functional.softmax`` as a module.

    Parameters
    ----------
    dim : int
        The axis; the last one where left out (PyTorch warns then, and picks one by the number of axes).

    Raises
    ------
    TypeError
        For what is no integer.
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = integer(type(self).__name__, "dim", dim)

    def _run(self, x: Tensor) -> Tensor:
        return F.softmax(x, self.dim)

    def _gradient(self, grad: Tensor, output: Tensor) -> Tensor:
        return F.softmax_backward(grad, output, self.dim)

    @overload
    def forward(self, input: NDArray[FloatT]) -> NDArray[FloatT]: ...
    @overload
    def forward(self, input: Tensor) -> Tensor: ...
    def forward(self, input: FloatArray) -> Array:
        """Of input's shape and dtype. Raises as the function."""
        shapes(type(self).__name__, input=input)
        _, (x,), keep = self._send(input)
        y = self._run(x)
        self._keep(y=y)
        return y if keep else y.numpy()

    if TYPE_CHECKING:  # calling a layer is forward: its arguments and results are known to type checkers
        __call__ = forward

    @overload
    def backward(self, grad_output: NDArray[FloatT]) -> NDArray[FloatT]: ...
    @overload
    def backward(self, grad_output: Tensor) -> Tensor: ...
    def backward(self, grad_output: FloatArray) -> Array:
        """The gradient of the last forward's input.

        Raises
        ------
        RuntimeError
            Where ``forward`` kept nothing: see `Module`.
        ValueError, TypeError
            If grad_output is not of the output's shape and dtype.
        """
        y = self._take()["y"]
        found = self._gradient(y.backend.tensor(grad_output), y)
        return found if isinstance(grad_output, Tensor) else found.numpy()

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    """``grilly.functional.log_softmax`` as a module; ``dim`` and errors as of `Softmax`."""

    def _run(self, x: Tensor) -> Tensor:
        return F.log_softmax(x, self.dim)

    def _gradient(self, grad: Tensor, output: Tensor) -> Tensor:
        return F.log_softmax_backward(grad, output, self.dim)
