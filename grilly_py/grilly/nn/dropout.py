"""Dropout as a layer."""

from __future__ import annotations

from .. import functional as F
from ..compute import Tensor
from ..compute.device.numbers import number
from .unary import Unary


class Dropout(Unary):
    """While ``training``, each element becomes 0 with probability p, or is divided by ``1 - p``.

    Each forward has the next mask of the sequence of ``grilly.manual_seed``, so the same calls in the same order drop
    the same elements. No mask is stored: gradients make it again. After ``eval()`` the input itself is given back.

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

    def _is_identity(self) -> bool:
        return not self.training or not self.p

    def _run(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"
