"""Cutting an operation into dispatches that fit the device's limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...errors import UnsupportedError
from .device import DeviceFacts
from .plan import At, fits_binding, span
from .tensor import Tensor

Groups = tuple[int, int, int]
Views = tuple["Tensor | None", ...]
#: Rows of the largest tiles of kernels.
TILE = 128


def check_trips(
    facts: DeviceFacts, operation: str, what: str, length: int, keys_per_trip: float | None, remedy: str
) -> None:
    """Raise UnsupportedError, with a remedy, when the driver would end a kernel's loop over so many elements."""
    trips = facts.loop_trips
    if keys_per_trip is not None and length > trips * keys_per_trip:
        raise UnsupportedError(
            f"{operation}: {length} {what}; this driver's loops end after {int(trips * keys_per_trip)}; {remedy}"
        )


def parts(
    facts: DeviceFacts,
    views: Sequence[Tensor | None],
    groups: Callable[[tuple[int, int, int, int]], Groups],
    axes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    fits: Callable[[tuple[int, int, int], tuple[int, ...]], bool] = lambda starts, shape: True,
    work: Callable[[tuple[int, ...]], float] = lambda shape: 0.0,
) -> Iterator[tuple[Views, tuple[int, int, int]]]:
    """Cut four-axis views along their first three axes until one dispatch can take each part.

    Parameters
    ----------
    views : sequence of Tensor or None
        The first is the result; all have its first three extents (repeated ones have stride 0).
    groups : callable
        The workgroups for a result of this shape.
    axes : three tuples of int
        For each dimension of ``groups``, the axes along which to cut when there are too many.
    fits : callable
        Whether what else is bound fits, given a part's first (batch, head, row) and its shape. Cut by batch and head.
    work : callable
        Floating-point operations of a part of this shape.

    Yields
    ------
    views, starts
        Of each part, and its first (batch, head, row).
    """
    most = facts.groups
    most_work = facts.work_limit
    todo: list = [(tuple(views), (0, 0, 0))]
    while todo:
        views, starts = todo.pop()
        shape = views[0].shape
        axis = _axis_to_cut(facts, views, zip(groups(shape), most, axes, strict=True))
        if axis is None and not fits(starts, shape):
            axis = next((a for a in (0, 1) if shape[a] > 1), None)
        if axis is None and work(shape) > most_work:
            axis = next((a for a in (0, 1, 2) if shape[a] > 1), None)
        if axis is None:
            yield views, starts
            continue
        half = _half(shape[axis])
        for low, high in ((half, None), (0, half)):
            part = (slice(None),) * axis + (slice(low, high),)
            begin = tuple(s + low if a == axis else s for a, s in enumerate(starts))
            todo.append((tuple(None if v is None else v[part] for v in views), begin))


def _half(extent: int) -> int:
    """About half of an extent; a multiple of TILE where the extent is more than two of them."""
    half = -(-extent // 2)
    return -(-half // TILE) * TILE if extent > 2 * TILE else half


def _axis_to_cut(facts: DeviceFacts, views: Views, counts) -> int | None:
    shape = views[0].shape
    for count, most, axes in counts:
        if count > most:
            axis = next((a for a in axes if shape[a] > 1), None)
            if axis is None:
                raise UnsupportedError(f"a row of {shape[3]} elements takes {count} workgroups; the device has {most}")
            return axis
    for view in views:
        if view is not None and not fits_binding(facts, view):
            axis = max((0, 1, 2), key=lambda a: view._strides[a] * (view.shape[a] - 1))
            if view._strides[axis] * (view.shape[axis] - 1) == 0:
                raise UnsupportedError(f"one row, a view of {span(view):,} bytes, does not fit one binding")
            return axis
    return None


def strides(tensor: Tensor) -> tuple[int, int, int]:
    """Strides of the first three axes, 0 where there is nothing to step over."""
    return tuple(0 if e == 1 else s for e, s in zip(tensor.shape[:3], tensor._strides[:3], strict=True))


def placed(name: str, tensor: Tensor) -> dict:
    """The words NAME_offset, NAME_batch, NAME_head and NAME_row of a four-axis view, by ``strides``."""
    batch, head, row = strides(tensor)
    return {f"{name}_offset": At(tensor), f"{name}_batch": batch, f"{name}_head": head, f"{name}_row": row}
