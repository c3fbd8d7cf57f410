"""Losses as layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from .. import functional as F
from ..compute import Tensor
from ..compute.arrays.creation import full
from ..compute.device.arrays import Array, FloatArray, FloatT, HostIntegers, IntegersLike, NDArray
from ..compute.device.numbers import integer, number
from ..compute.losses import REDUCTIONS
from ..functional.losses import Reduction
from .module import Module
from .tapes import KeptForward


class CrossEntropyLoss(Module):
    """Cross entropy of logits and class indices, as ``F.cross_entropy``.

    Parameters
    ----------
    weight : numpy.ndarray or grilly.Tensor, optional
        Of the classes, ``(C,)``, of the logits' dtype. It is not trained, and in no state dict.
    ignore_index, reduction, label_smoothing
        As for ``F.cross_entropy``.

    Raises
    ------
    ValueError
        For another reduction, and a smoothing outside its range.
    """

    def __init__(
        self, weight: FloatArray | None = None, *, ignore_index: int = -100, reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        if reduction not in REDUCTIONS:
            raise ValueError(f"CrossEntropyLoss: reduction is {reduction!r}; expected 'mean', 'sum' or 'none'")
        if not 0.0 <= number("CrossEntropyLoss", "label_smoothing", label_smoothing) <= 1.0:
            raise ValueError(f"CrossEntropyLoss: label_smoothing is {label_smoothing}; expected 0 to 1")
        self.weight = weight
        self.ignore_index = integer("CrossEntropyLoss", "ignore_index", ignore_index)
        self.reduction: Reduction = reduction
        self.label_smoothing = label_smoothing

    _inputs = ("input",)

    @overload
    def forward(self, input: NDArray[FloatT], target: HostIntegers | int) -> NDArray[FloatT]: ...
    @overload
    def forward(self, input: Tensor, target: IntegersLike | int) -> Tensor: ...
    @overload
    def forward(self, input: FloatArray, target: IntegersLike | int) -> Array: ...
    def forward(self, input: FloatArray, target: IntegersLike | int) -> Array:
        """Logits ``(C,)``, ``(N, C)`` or ``(N, C, d1, ...)`` and class indices to the loss.

        Raises
        ------
        TypeError, ValueError, IndexError
            As ``F.cross_entropy``.
        """
        if isinstance(target, Tensor) and not isinstance(input, Tensor):
            input = target.backend.tensor(input)
        _, (sent,), keep = self._send(input)
        weight = sent.backend.tensor(self.weight) if isinstance(self.weight, Tensor) else self.weight
        options = {
            "weight": weight, "ignore_index": self.ignore_index, "reduction": self.reduction,
            "label_smoothing": self.label_smoothing,
        }  # fmt: skip
        loss = F.cross_entropy(sent, target, **options)
        return loss if keep else loss.numpy()

    if TYPE_CHECKING:  # calling a layer is forward: its arguments and results are known to type checkers
        __call__ = forward

        @overload
        def backward(self, grad_output: float = ...) -> Array: ...
        @overload
        def backward(self, grad_output: NDArray[FloatT]) -> NDArray[FloatT]: ...
        @overload
        def backward(self, grad_output: Tensor) -> Tensor: ...
        def backward(self, grad_output: FloatArray | float = 1.0) -> Array: ...

    def _grads(self, grad_output: Any, kept: KeptForward) -> tuple[Any, ...]:
        """One number stands for all of the loss: 1 by default, for the gradient of the loss itself."""
        if grad_output is None or isinstance(grad_output, (int, float)):
            value, loss = 1.0 if grad_output is None else grad_output, kept.results[0]
            return (full(loss._storage.device, loss.shape, value, loss.dtype),)
        return (grad_output,)

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, ignore_index={self.ignore_index}, label_smoothing={self.label_smoothing}"
