"""Gradients of products of matrices."""

from __future__ import annotations

from collections.abc import Sequence

from ..arrays import matmul as products
from ..arrays.matmul import matmul
from ..device.tape import Entry
from ..device.tensor import Tensor
from .records import gradient_of, the_other
from .repeated import summed_to


@gradient_of(products.plan, reads=the_other)
def _product(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (x, y), (gradient,) = entry.arrays, gradients
    rows = x._selected(None) if x.ndim == 1 else x
    columns = y._selected((slice(None), None)) if y.ndim == 1 else y
    if x.ndim == 1:
        gradient = gradient._selected((..., None) if y.ndim == 1 else (..., None, slice(None)))
    if y.ndim == 1:
        gradient = gradient._selected((..., None))
    by_x = by_y = None
    if entry.needs[0]:
        by_x = summed_to(matmul(gradient, columns.swapaxes(-1, -2)), rows.shape).reshape(x.shape)
    if entry.needs[1]:
        by_y = summed_to(matmul(rows.swapaxes(-1, -2), gradient), columns.shape).reshape(y.shape)
    return by_x, by_y
