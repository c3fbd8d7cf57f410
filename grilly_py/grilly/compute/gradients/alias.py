"""The same array as another one than before: constants, and arguments that tapes tell apart from their source."""

from __future__ import annotations

from collections.abc import Sequence

from ..device.tape import Entry, as_one
from ..device.tensor import AliasStorage, Tensor
from .records import gradient_of
from .repeated import repeats


def constant(x: Tensor) -> Tensor:
    """The same array, of which no gradient is wanted."""
    return Tensor(AliasStorage(x._storage), x.shape, x.dtype, x._strides, x._offset)


def aliased(x: Tensor) -> Tensor:
    """The same array; for tapes computed of x. A copy where x is broadcast: each element has a gradient of its own."""
    if repeats(x):
        return x.contiguous()
    found: Tensor = as_one(aliased, (), (x,), lambda: constant(x))
    return found


@gradient_of(aliased, reads=())
def _pull(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    return gradients


__all__ = ["aliased", "constant"]
