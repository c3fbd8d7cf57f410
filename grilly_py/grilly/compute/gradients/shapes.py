"""Gradients of arrays joined and laid out anew. Views have none of their own (adjoints.py)."""

from __future__ import annotations

from collections.abc import Sequence

from ..arrays import shapes
from ..arrays.reductions import sum_of
from ..arrays.shapes import flip, roll, triangle
from ..device.tape import Entry
from ..device.tensor import Tensor
from .records import gradient_of


@gradient_of(shapes._flip, reads=())
def _flipped(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    return (flip(gradients[0], entry.static[0]),)


@gradient_of(shapes._concat, reads=())
def _joined(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    axis, is_new = entry.static
    lead, begin, found = (slice(None),) * axis, 0, []
    for array in entry.arrays:
        extent = 1 if is_new else array.shape[axis]
        found.append(gradients[0]._selected((*lead, begin if is_new else slice(begin, begin + extent))))
        begin += extent
    return found


@gradient_of(shapes._rolled, reads=())
def _rolled(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    axes, places = zip(*entry.static, strict=True)
    return (roll(gradients[0], places, axes),)


@gradient_of(shapes._tiled, reads=())
def _repeated(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (x,), (apart, wide, _) = entry.arrays, entry.static
    axes = tuple(axis for axis, (one, many) in enumerate(zip(apart, wide, strict=True)) if one != many)
    return (sum_of("sum", gradients[0].reshape(wide), axes).reshape(x.shape),)


@gradient_of(shapes._triangle, reads=())
def _triangle(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    name, k = entry.static
    return (triangle(name, gradients[0], k),)
