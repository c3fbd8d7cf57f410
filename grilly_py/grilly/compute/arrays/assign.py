"""Assignment: elements of a tensor replaced, by views and by integer indices."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...registry import Registry
from ..device.call import run
from ..device.device import Device, DeviceFacts
from ..device.plan import Layout, Plan, Planner
from ..device.tensor import Tensor
from .map import mapped
from .operations import spec
from .scatter import Counted, emit_scatter


def assign(device: Device, target: Tensor, values: Tensor) -> None:
    """Replace the elements of a view by ``values``, of its dtype, which broadcast to it. Nothing is submitted.

    Where both share memory, all of ``values`` is read before any of it is written.
    """
    if target.size:
        if values._storage is target._storage:
            values = mapped(device, spec("copy", values.dtype), (values,))
        run(device, plan, (None,), (values, None, target))


def scatter(device: Device, target: Tensor, index: Tensor, values: Tensor) -> None:
    """``target[index] = values``: an index of one axis counts the first axis of a view. Nothing is submitted.

    Parameters
    ----------
    target : Tensor
        ``(n, *rest)``.
    index : Tensor
        ``(k,)``, integers.
    values : Tensor
        Broadcasts to ``(k, *rest)``; of the target's dtype.
    """
    shape = (index.size, *target.shape[1:])
    if not target.size or not math.prod(shape):
        return
    # What is read lies where nothing is written.
    values, index = (
        mapped(device, spec("copy", x.dtype), (x,)) if x._storage is target._storage else x
        for x in (values, index)
    )
    places = index._selected((slice(None), *(None,) * (target.ndim - 1)))
    rows = target._view(shape, (0, *target._strides[1:]))
    run(device, plan, (Counted(target._strides[0], target.shape[0], False),), (values, places, rows))


def plan(
    given: tuple[Counted | None], layouts: Sequence[Layout | None], facts: DeviceFacts, registry: Registry
) -> Plan:
    """The dispatches that write the first of three arrays to the third, at the places that the second names."""
    planner = Planner(facts, layouts)
    x, index, y = planner.inputs
    index = None if index is None else index.broadcast_to(y.shape)
    offsets = layouts[0].offset, layouts[2].offset
    emit_scatter(planner, registry, x.broadcast_to(y.shape), y, index, *given, offsets=offsets)
    return planner.plan()
