"""Softmax and LogSoftmax on the device."""

from __future__ import annotations

from .. import functional as F
from ..compute import Tensor
from ..compute.device.numbers import integer
from .unary import Unary


class Softmax(Unary):
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

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    """``grilly.functional.log_softmax`` as a module; ``dim`` and errors as of `Softmax`."""

    def _run(self, x: Tensor) -> Tensor:
        return F.log_softmax(x, self.dim)
