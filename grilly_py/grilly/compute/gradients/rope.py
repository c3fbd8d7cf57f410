"""The gradient of rotary position embedding: the rotation the other way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import rope
from ..device.tape import Entry
from ..device.tensor import Tensor
from .records import gradient_of


@gradient_of(rope.plan, reads=(1,))
def _rotated(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    base, table, interleaved, reverse, factor = entry.static
    return (rope.rope(
        gradients[0]._storage.device, gradients[0], frequencies=None if table is None else np.frombuffer(table),
        base=base, offset=entry.live[0], positions=entry.arrays[1], interleaved=interleaved, reverse=not reverse,
        factor=factor,
    ),)  # fmt: skip
