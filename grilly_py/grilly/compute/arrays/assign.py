"""Assignment: elements of a tensor replaced, by views and by integer indices (shaders/arrays/put.comp)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...errors import UnsupportedError
from ...registry import Registry, Request
from ..device.caches import Kept
from ..device.device import Device, DeviceFacts
from ..device.plan import At, Layout, Plan, Planner, fits_binding
from ..device.record import Ready, run
from ..device.tensor import Tensor
from .map import fewest_axes, mapped
from .operations import code, spec

#: Plans of assignments.
PLANS: Kept[tuple, Ready] = Kept("plans of assignments", 1024)

_AXES = 4


def assign(device: Device, target: Tensor, values: Tensor) -> None:
    """Replace the elements of a view by ``values``, of its dtype, which broadcast to it. Nothing is submitted.

    Where both share memory, all of ``values`` is read before any of it is written.
    """
    if target.size:
        if values._storage is target._storage:
            values = mapped(device, spec("copy", values.dtype), (values, None, None))
        run(device, PLANS, plan, ((0, 0),), (values, None, target))


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
    if values._storage is target._storage:
        values = mapped(device, spec("copy", values.dtype), (values, None, None))
    places = index.view((slice(None), *(None,) * (target.ndim - 1)))
    rows = target._view(shape, (0, *target._steps[1:]))
    run(device, PLANS, plan, ((target._steps[0], target.shape[0]),), (values, places, rows))


def plan(
    given: tuple[tuple[int, int]], layouts: Sequence[Layout | None], facts: DeviceFacts, registry: Registry
) -> Plan:
    """The dispatches that write the first of three arrays to the third, at the places that the second names."""
    planner = Planner(facts, layouts)
    x, index, y = planner.inputs
    choice = registry.resolve(Request("put", "float32"))
    stripe, threads = choice.tile["stripe"], choice.threads
    constants = {"BITS": 8 * y.dtype.itemsize, "INDEX": 0 if index is None else code(index.dtype)}
    todo = [(x.broadcast_to(y.shape), None if index is None else index.broadcast_to(y.shape), y)]
    while todo:
        own = todo.pop()
        part, places, target = own
        views = [view for view in own if view is not None]
        extents, steps = fewest_axes(target.shape, [view._steps for view in views])
        fits = all(fits_binding(facts, view) for view in views) and target.size <= threads * stripe * facts.groups[1]
        if not fits or len(extents) > _AXES:
            axis = next((axis for axis, extent in enumerate(target.shape) if extent > 1), None)
            if axis is None:
                raise UnsupportedError(
                    f"assignment: a view of {target.dtype} does not fit one binding of {facts.storage_range:,} bytes"
                )
            extent = target.shape[axis]
            cut = -(-extent // 2) if not fits else 1  # an axis too many: its places one by one
            for low in range(0, extent, cut):
                some = (slice(None),) * axis + (slice(low, low + cut),)
                todo.append((part[some], None if places is None else places[some], target[some]))
            continue
        extents = [1] * (_AXES - len(extents)) + extents
        steps = [[0] * (_AXES - len(step)) + step for step in steps]
        if places is None:
            steps.insert(1, [0] * _AXES)
        words: dict = {
            "count": target.size, "x_offset": At(part), "index_offset": At(places), "y_offset": At(target),
            "y_step": given[0][0], "y_extent": given[0][1],
        }  # fmt: skip
        words |= {f"e_{axis}": extent for axis, extent in enumerate(extents)}
        for name, step in zip("xiy", steps, strict=True):
            words |= {f"{name}_{axis}": value for axis, value in enumerate(step)}
        count = -(-target.size // threads)
        groups = (min(count, stripe), -(-count // stripe), 1)
        planner.dispatch(choice, constants, {"x": part, "index": places, "y": target}, words, groups, target.size)
    return planner.plan()
