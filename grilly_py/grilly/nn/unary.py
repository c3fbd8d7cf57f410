"""What layers share that make one array of one array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from ..compute import Compute, Tensor
from ..compute.device.arrays import Array, FloatArray, FloatT, NDArray
from .module import Like, Module, shapes


class Unary(Module):
    """A layer that makes one array of one array: subclasses have ``_run`` and ``_gradient``."""

    #: Whether the gradient follows from the output, so that this is what ``backward`` needs, and not the input.
    _by_output = False

    def _run(self, x: Tensor) -> Tensor:
        """The output."""
        raise NotImplementedError

    def _used(self, backend: Compute) -> dict[str, Any]:
        """What ``_gradient`` needs beside arrays: the weights that ``_run`` has used, and settings."""
        return {}

    def _gradient(self, grad: Tensor, kept: Tensor, **used: Any) -> Tensor:
        """The input's gradient, given the output's and what was kept; adds those of parameters."""
        raise NotImplementedError

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
        _, (x,), keep = self._send(input)
        y = self._run(x)
        if self._keeps:
            self._keep(Like.of(y), array=y if self._by_output else x, used=self._used(x.backend))
        return y if keep else y.numpy()

    if TYPE_CHECKING:  # calling a layer is forward: its arguments and results are known to type checkers
        __call__ = forward

    @overload
    def backward(self, grad_output: NDArray[FloatT]) -> NDArray[FloatT]: ...
    @overload
    def backward(self, grad_output: Tensor) -> Tensor: ...
    def backward(self, grad_output: FloatArray) -> Array:
        """The gradient of the last forward's input; adds those of the parameters.

        Raises
        ------
        RuntimeError
            Where ``forward`` kept nothing: see `Module`.
        ValueError, TypeError
            If grad_output is not of the output's shape and dtype.
        """
        record = self._take((grad_output,))
        kept = record["array"]
        found = self._gradient(kept.backend.tensor(grad_output), kept, **record["used"])
        return found if isinstance(grad_output, Tensor) else found.numpy()
