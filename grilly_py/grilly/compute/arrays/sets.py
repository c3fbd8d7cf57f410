"""Distinct elements, and membership. How many are distinct decides shapes, so the host waits for that."""

from __future__ import annotations

import numpy as np

from ..device.tensor import Tensor
from .assign import scatter
from .elementwise import binary, cast
from .indexing import nonzero
from .promotion import BOOL, INT64, promoted
from .scans import running
from .shapes import concat
from .sorting import argsort, searchsorted, sort
from .take import take


def unique(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The distinct elements in order; of each the first place in x, in C order; for each element of x which it is; and
    how often each is there. Every NaN is distinct. The last three are int64."""
    device = x._storage.device
    flat = x.reshape(-1)
    if not flat.size:
        none = device.tensor(np.zeros(0, np.int64))
        return cast(flat, x.dtype, copy=True), none, none.reshape(x.shape), none
    order = argsort(flat)
    ordered = take(flat, order)
    news = binary("not_equal", ordered._selected(slice(1, None)), ordered._selected(slice(0, -1)))
    news = concat([device.tensor(np.ones(1, np.bool_)), news])
    (begins,) = nonzero(news, "unique_values")
    which = binary("subtract", running("sum", news, 0, INT64), 1)
    inverse = device.empty((flat.size,), INT64)
    scatter(device, inverse, order, which)
    device.runtime.flush()
    ends = concat([begins._selected(slice(1, None)), device.tensor(np.array([flat.size]))])
    return take(ordered, begins), take(order, begins), inverse.reshape(x.shape), binary("subtract", ends, begins)


def isin(x: Tensor, values: Tensor, invert: bool = False) -> Tensor:
    """Whether each element of x is among the elements of ``values``, or is not; bool."""
    device = x._storage.device
    dtype = promoted(x.dtype, values.dtype)
    if not values.size:
        found = binary("not_equal", x, x) if x.dtype == BOOL else binary("less", x, x)  # nothing is
    else:
        own, among = cast(x, dtype), sort(cast(values, dtype).reshape(-1))
        places = searchsorted(among, own)
        last = device.tensor(np.asarray(among.size - 1))
        near = take(among, binary("minimum", places, last).reshape(-1)).reshape(x.shape)
        found = binary("equal", near, own)
    return binary("equal", found, False) if invert else found
