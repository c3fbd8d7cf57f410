"""Dropout as a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from .. import functional as F
from ..compute import Tensor
from ..compute.device.arrays import Array, FloatArray, FloatT, NDArray
from ..compute.device.numbers import number
from .module import Module, shapes


class Dropout(Module):
    """While ``training``, each element becomes 0 with probability p, or is divided by ``1 - p``.

    Each forward has the next mask of the sequence of ``grilly.manual_seed``, so the same calls in the same order drop
    the same elements. No mask is stored: gradients make it again.

    Parameters
    ----------
    p : float
        From 0 to 1.

    Raises
    ------
    ValueError
        For a p outside that range.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        p = number("Dropout", "p", p)
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"Dropout: p is {p}; expected 0 to 1")
        self.p = p

    _inputs = ("input",)

    @overload
    def forward(self, input: NDArray[FloatT]) -> NDArray[FloatT]: ...
    @overload
    def forward(self, input: Tensor) -> Tensor: ...
    def forward(self, input: FloatArray) -> Array:
        """Of input's shape and dtype; input itself after ``eval()``.

        Raises
        ------
        TypeError
            If input is not float32, float16 or bfloat16.
        """
        shapes("Dropout", input=input)
        if not self.training or not self.p:
            return input
        _, (sent,), keep = self._send(input)
        y = F.dropout(sent, self.p)
        return y if keep else y.numpy()

    if TYPE_CHECKING:  # calling a layer is forward: its arguments and results are known to type checkers
        __call__ = forward

        @overload
        def backward(self, grad_output: NDArray[FloatT]) -> NDArray[FloatT]: ...
        @overload
        def backward(self, grad_output: Tensor) -> Tensor: ...
        def backward(self, grad_output: FloatArray) -> Array: ...

    def extra_repr(self) -> str:
        return f"p={self.p}"
