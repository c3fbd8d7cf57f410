"""Indices of every kind: what ``x[index]`` selects, and what ``x[index] = value`` replaces.

Integers on the host are checked; those on the device are not, because that would wait for them.
"""

from __future__ import annotations

import math
import operator

import numpy as np

from ...errors import CaptureError, ExpressionError
from ..device.dtypes import is_storable
from ..device.other_arrays import refuse_hidden
from ..device.tensor import Tensor, reshaped
from ..expressions.reads import has_scalar, indexed
from ..expressions.scalars import TRACING, line
from .assign import assign, scatter
from .axes import moved
from .creation import fill, host_numbers, within
from .elementwise import binary, cast, check_writable, clip, where
from .map import replaceable
from .promotion import BOOL, INT64, check_range, kind_of
from .shapes import flip
from .take import index_array, picked, take, within_bounds

_NUMBERS = (int, float, bool)
_ARRAYS = (Tensor, np.ndarray, list)


def selected(x: Tensor, index) -> Tensor:
    """``x[index]``, as Tensor.__getitem__ says."""
    if TRACING.active and has_scalar(index):
        return indexed(x, index)  # type: ignore[return-value]
    if isinstance(index, Tensor) and x.ndim and kind_of(index.dtype) in ("signed", "unsigned"):
        return take(x, index, 0)
    items = _items(x, index)
    if not any(isinstance(item, _ARRAYS) for item in items):
        items, flipped = _forward(x, items)
        found = x._selected(items)
        return flip(found, flipped) if flipped else found
    if len(items) == 1 and _is_mask(items[0]):
        mask = _host(items[0])
        return picked(_merged(x, _mask_axes(x, mask)), x._storage.device.tensor(_places(mask)))
    view, axes, arrays, first, flipped = _advanced(x, items)
    if flipped:
        view = flip(view, flipped)
    flat, shape = _flat(x, view, axes, arrays)
    rest = [a for a in range(view.ndim) if a not in axes]
    found = picked(_merged(view.transpose([*axes, *rest]), len(axes)), flat)
    found = found.reshape((*shape, *found.shape[1:]))
    return moved(found, tuple(range(len(shape))), tuple(range(first, first + len(shape))))


def assigned(x: Tensor, index, value) -> None:
    """``x[index] = value``, as Tensor.__setitem__ says."""
    if TRACING.active:
        raise ExpressionError(f"{line()}: the function writes to a tensor; it gives its result by return")
    device = x._storage.device
    check_writable("assignment", x)
    items = _items(x, index)
    if not any(isinstance(item, _ARRAYS) for item in items):
        items, flipped = _forward(x, items)
        target = x._selected(items)
        if value.__class__ in _NUMBERS and replaceable(target, ()):
            check_range("a value", x.dtype, value)
            fill(device, target, value)
            device.runtime.flush()
            return
        values = _values(x, value, target.shape)
        assign(device, target, flip(values.broadcast_to(target.shape), flipped) if flipped else values)
    elif len(items) == 1 and _is_mask(items[0]):
        _assign_mask(x, items[0], value)
    else:
        view, axes, arrays, first, flipped = _advanced(x, items)
        flat, shape = _flat(x, view, axes, arrays, writes=True)
        rest = [a for a in range(view.ndim) if a not in axes]
        rests = tuple(view.shape[a] for a in rest)
        values = _values(x, value, (*rests[:first], *shape, *rests[first:]))
        values = values.broadcast_to((*rests[:first], *shape, *rests[first:]))
        values = moved(values, tuple(range(first, first + len(shape))), tuple(range(len(shape))))
        if flipped:
            values = flip(values, [len(shape) + rest.index(a) for a in flipped])
        _scatter(view.transpose([*axes, *rest]), len(axes), flat, values.reshape((flat.size, *rests)))
    device.runtime.flush()


def nonzero(x: Tensor, name: str = "nonzero") -> tuple[Tensor, ...]:
    """The places of elements that are not zero, an int64 tensor for each axis. The host counts them, and waits."""
    if not x.ndim:
        raise ValueError("nonzero: x has no axes")
    device = x._storage.device
    return tuple(device.tensor(places.astype(np.int64)) for places in np.nonzero(x._read(name)))


# -- indices as they come ----------------------------------------------------------------------------------------------


def _items(x: Tensor, index) -> tuple:
    """The index as a tuple; lists are arrays, numbers of NumPy's and tensors without axes are integers."""
    items = index if isinstance(index, tuple) else (index,)
    found = []
    for item in items:
        if isinstance(item, list):
            item = np.asarray(item)
            item = item if item.size else item.astype(np.int64)  # which NumPy makes float64
        if isinstance(item, (bool, np.bool_)):
            raise TypeError("a single truth value is no index of a tensor")
        if isinstance(item, (Tensor, np.ndarray)):
            if item.dtype.kind == "f" or kind_of(item.dtype) == "floating":
                raise TypeError(f"an index is {item.dtype}; expected integers or bool")
        found.append(item)
    if len(found) > 1 and any(_is_mask(item) for item in found):
        return _without_masks(x, found)
    return tuple(found)


def _without_masks(x: Tensor, items: list) -> tuple:
    """The items with the places that boolean arrays name, an array of integers for each axis of one."""
    axes = [item.ndim if _is_mask(item) else int(item is not None and item is not Ellipsis) for item in items]
    found: list = []
    axis = 0
    for item, taken in zip(items, axes, strict=True):
        if item is Ellipsis:
            taken = max(x.ndim - sum(axes), 0)
        if _is_mask(item):
            if not item.ndim:
                raise TypeError("a single truth value is no index of a tensor")
            if tuple(item.shape) != x.shape[axis : axis + taken]:
                there = x.shape[axis : axis + taken]
                raise IndexError(f"a boolean index has shape {tuple(item.shape)}, and the tensor {there} there")
            found += np.nonzero(_host(item))
        else:
            found.append(item)
        axis += taken
    return tuple(found)


def _is_mask(item) -> bool:
    return isinstance(item, (Tensor, np.ndarray)) and item.dtype == BOOL


def _expanded(x: Tensor, items: tuple) -> list:
    """The items with ``...`` written out as slices, and slices for the axes that are not named."""
    ellipses = [n for n, item in enumerate(items) if item is Ellipsis]
    if len(ellipses) > 1:
        raise IndexError("an index may hold one '...'")
    taken = sum(1 for item in items if item is not None and item is not Ellipsis)
    if taken > x.ndim:
        raise IndexError(f"{taken} indices for a tensor of {x.ndim} axes")
    place = ellipses[0] if ellipses else len(items)
    return [*items[:place], *[slice(None)] * (x.ndim - taken), *items[place + 1 :]]


def _forward(x: Tensor, items: tuple) -> tuple[tuple, tuple[int, ...]]:
    """The items with slices that run forward, and the axes of the result that are then to be turned."""
    if not any(isinstance(item, slice) and item.step is not None and operator.index(item.step) < 0 for item in items):
        return items, ()
    found: list = []
    flipped, axis, own = [], 0, 0
    for item in _expanded(x, items):
        if isinstance(item, slice) and item.step is not None and operator.index(item.step) < 0:
            start, stop, step = item.indices(x.shape[axis])
            count = max(0, -(-(stop - start) // step))
            last = start + (count - 1) * step
            item = slice(last, start + 1, -step) if count else slice(0, 0)
            flipped.append(own)
        found.append(item)
        axis += item is not None
        own += item is None or isinstance(item, slice)
    return tuple(found), tuple(flipped)


def _advanced(x: Tensor, items: tuple) -> tuple[Tensor, list[int], list, int, tuple[int, ...]]:
    """An index with arrays of integers: a view of x with all else applied, the arrays' axes, the arrays, where theirs
    go, and the axes of the view that are still to be turned."""
    basic: list = []
    axes, arrays, kinds, axis = [], [], [], 0
    for item in _expanded(x, items):
        if item is None or isinstance(item, slice):
            kinds.append(False)
        else:
            kinds.append(True)
            axes.append(axis)
            arrays.append(item if isinstance(item, (Tensor, np.ndarray)) else np.asarray(operator.index(item)))
            item = slice(None)
        basic.append(item)
        axis += 1
    forward, flipped = _forward(x, tuple(basic))
    view = x._selected(forward)
    places = [n for n, kind in enumerate(kinds) if kind]
    # As in NumPy, "..." stands between arrays also where it is for no axis.
    cut = next((n for n, item in enumerate(items) if item is Ellipsis), 0)
    together = places == list(range(places[0], places[0] + len(places))) and not places[0] < cut <= places[-1]
    return view, axes, arrays, places[0] if together else 0, flipped


def _flat(
    x: Tensor, view: Tensor, axes: list[int], arrays: list, writes: bool = False
) -> tuple[Tensor, tuple[int, ...]]:
    """One index into the axes together, (n,) integers, and the shape that the arrays broadcast to."""
    try:
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
    except ValueError:
        raise IndexError(f"indices of shapes {[array.shape for array in arrays]} do not broadcast") from None
    extents = [view.shape[a] for a in axes]
    if not any(isinstance(array, Tensor) for array in arrays):
        flat = np.zeros(shape, np.int64)
        for array, axis, extent in zip(arrays, axes, extents, strict=True):
            flat = flat * extent + within_bounds(array, extent, axis)
        return x._storage.device.tensor(flat.reshape(-1)), shape
    if len(arrays) == 1:  # kernels count negative ones from the end, and find what is out of bounds
        return index_array(x, arrays[0], extents[0], axes[0]).reshape(-1), shape
    total = inside = None
    for array, axis, extent in zip(arrays, axes, extents, strict=True):
        own = cast(index_array(x, array, extent, axis), INT64)
        if isinstance(array, Tensor):
            raw = where(binary("less", own, 0), binary("add", own, extent), own)
            own = clip(raw, 0, max(extent - 1, 0))
            if writes:
                within = binary("equal", own, raw)
                inside = within if inside is None else binary("logical_and", inside, within)
        total = own if total is None else binary("add", binary("multiply", total, extent), own)
    if inside is not None:
        total = where(inside, total, math.prod(extents))  # out of bounds together, too
    return total.broadcast_to(shape).reshape(-1), shape


def _host(mask) -> np.ndarray:
    if not isinstance(mask, Tensor):
        return mask
    if mask._storage.device.runtime.capturing:
        raise CaptureError(
            "a boolean index: how many elements are True is known once the mask is read, and a captured function runs "
            "nothing yet; use grilly.where(mask, values, x)"
        )
    return mask.numpy()


def _mask_axes(x: Tensor, mask) -> int:
    if tuple(mask.shape) != x.shape[: len(mask.shape)]:
        raise IndexError(f"a mask of shape {tuple(mask.shape)} for a tensor of shape {x.shape}")
    return len(mask.shape)


def _places(mask: np.ndarray) -> np.ndarray:
    return np.flatnonzero(mask).astype(np.int64)


def _merged(x: Tensor, count: int) -> Tensor:
    """x with its first axes as one."""
    return x.reshape((math.prod(x.shape[:count]), *x.shape[count:]))


# -- reading and writing -----------------------------------------------------------------------------------------------


def _values(x: Tensor, value, shape: tuple[int, ...]) -> Tensor:
    """What is assigned, as a tensor of x's dtype that broadcasts to a shape."""
    device = x._storage.device
    if not isinstance(value, Tensor):
        if isinstance(value, np.generic) and value.dtype.kind in "biuf":
            value = value.item()  # which is checked, as Python's numbers are
        if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__array__"):
            refuse_hidden("a value", value)
            array = np.asarray(value)
            if array.dtype.kind not in "biuf" and not is_storable(array.dtype):
                raise TypeError(f"a value of {array.dtype} is no number for a tensor of {x.dtype.name}")
            value = device.tensor(within("a value", array, x.dtype))
        else:
            value = device.tensor(host_numbers("a value", value, x.dtype))
    value = cast(value, x.dtype)
    if value.shape == shape:
        return value
    while value.ndim > len(shape) and value.shape[0] == 1:
        value = value._selected(0)
    try:
        fits = np.broadcast_shapes(value.shape, shape) == tuple(shape)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"a value of shape {value.shape} does not broadcast to {tuple(shape)}")
    return value


def _scatter(view: Tensor, axes: int, flat: Tensor, values: Tensor) -> None:
    """Write values at an index into the first axes of a view, which may not lie so that they are one."""
    device = view._storage.device
    shape = (math.prod(view.shape[:axes]), *view.shape[axes:])
    strides = reshaped(view.shape, view._strides, shape) if view.size else None
    if strides is not None:
        scatter(device, view._view(shape, strides), flat, values)
        return
    copied = cast(view, view.dtype, copy=True)
    scatter(device, copied.reshape(shape), flat, values)
    assign(device, view, copied)


def _assign_mask(x: Tensor, mask, value) -> None:
    device = x._storage.device
    count = _mask_axes(x, mask)
    rest = x.shape[count:]
    shape = getattr(value, "shape", None)
    if shape is None:
        shape = np.shape(value)
    if len(shape) <= len(rest):
        on_device = mask if isinstance(mask, Tensor) else device.tensor(mask)
        on_device = on_device._selected((..., *(None,) * len(rest)))
        values = _values(x, value, rest)
        chosen = where(on_device, values, x)
        assign(device, x, chosen)
        return
    flat = x._storage.device.tensor(_places(_host(mask)))
    values = _values(x, value, (flat.size, *rest)).broadcast_to((flat.size, *rest))
    _scatter(x, count, flat, values)
