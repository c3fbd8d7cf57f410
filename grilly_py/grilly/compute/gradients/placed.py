"""An array in a place of otherwise empty memory."""

from __future__ import annotations

from collections.abc import Sequence

from ...registry import Registry
from ..arrays.map import emit, words
from ..arrays.operations import spec
from ..arrays.scatter import emit_scatter
from ..device.call import call
from ..device.device import DeviceFacts
from ..device.plan import ALIGN_MOST, Layout, Plan, Planner
from ..device.tape import Entry
from ..device.tensor import Tensor
from .records import gradient_of


def placed(x: Tensor, size: int, strides: tuple[int, ...], offset: int) -> Tensor:
    """An array of one axis and so many elements, zeros but where a view with these strides and offset has x."""
    filled = spec("copy", x.dtype, scalars=(0,))
    return call(x._storage.device, plan, (size, strides, offset), (x,), live=words(filled, 0))[0]


def plan(given: tuple, layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``placed``."""
    size, strides, offset = given
    planner = Planner(facts, layouts)
    (x,) = planner.inputs
    found = planner.empty((size,), x.dtype)
    if size:
        emit(planner, registry, spec("copy", x.dtype, scalars=(0,)), found, [None], [ALIGN_MOST])
    if x.size:
        emit_scatter(planner, registry, x, found._view(x.shape, strides, offset), offsets=(layouts[0].offset, 0))
    return planner.plan(found)


@gradient_of(plan, reads=())
def _pull(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (gradient,), (x,) = gradients, entry.arrays
    _, strides, offset = entry.static
    flat = gradient.contiguous()
    return (flat._view(x.shape, strides, flat._offset + offset),)


__all__ = ["placed"]
