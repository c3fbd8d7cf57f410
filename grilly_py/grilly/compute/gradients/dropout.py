"""Gradients of dropout: it drops from them what it has dropped."""

from __future__ import annotations

from collections.abc import Sequence

from .. import dropout
from ..device.call import call
from ..device.tape import Entry
from ..device.tensor import Tensor
from ..unfused import dropout as of_weights
from .records import gradient_of


@gradient_of(dropout.plan, of_weights.plan, reads=(1,))
def _dropped(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    arrays = (gradients[0], *entry.arrays[1:])
    return call(gradients[0]._storage.device, entry.operation, entry.static, arrays, live=entry.live)
