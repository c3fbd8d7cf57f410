"""What layers share that make one array of one array."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from ..compute import Tensor
from ..compute.device.arrays import Array, FloatArray, FloatT, NDArray
from .module import Module, shapes


class Unary(Module):
    """A layer that makes one array of one array: subclasses have ``_run``."""

    _inputs = ("input",)

    def _run(self, x: Tensor) -> Tensor:
        """The output."""
        raise NotImplementedError

    def _is_identity(self) -> bool:
        """Whether the output is the input itself, now."""
        return False

    def _check(self, input: FloatArray) -> None:
        """Raise TypeError for what is no array."""
        shapes(type(self).__name__, input=input)

    @overload
    def forward(self, input: NDArray[FloatT]) -> NDArray[FloatT]: ...
    @overload
    def forward(self, input: Tensor) -> Tensor: ...
    def forward(self, input: FloatArray) -> Array:
        """The layer's output for an array or Tensor, as one of the same kind and dtype.

        Raises
        ------
        ValueError
            If input is not of the shape that the layer takes.
        TypeError
            If input is not float32, float16 or bfloat16, or not of the weights' dtype where there are any.
        """
        self._check(input)
        if self._is_identity():
            return input
        _, (x,), keep = self._send(input)
        y = self._run(x)
        return y if keep else y.numpy()

    if TYPE_CHECKING:  # calling a layer is forward: its arguments and results are known to type checkers
        __call__ = forward

        @overload
        def backward(self, grad_output: NDArray[FloatT]) -> NDArray[FloatT]: ...
        @overload
        def backward(self, grad_output: Tensor) -> Tensor: ...
        def backward(self, grad_output: FloatArray) -> Array: ...
