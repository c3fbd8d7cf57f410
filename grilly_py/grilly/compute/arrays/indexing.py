"""Indices of every kind: what ``x[index]`` selects, what ``x[index] = value`` replaces, take and its relatives.

Integers on the host are checked; those on the device are not, because that would wait for them.
"""

from __future__ import annotations

import math
import operator

import numpy as np

from ...errors import CaptureError
from ..device.device import Device
from ..device.dtypes import is_storable
from ..device.other_arrays import refuse_hidden
from ..device.tensor import Tensor, reshaped
from .assign import assign, scatter
from .axes import axis_of
from .creation import host_numbers, within
from .elementwise import binary, cast, check_writable, clip, where
from .map import Gather, mapped
from .operations import spec
from .promotion import BOOL, INT64, kind_of
from .shapes import flip

_ARRAYS = (Tensor, np.ndarray, list)


def selected(x: Tensor, index) -> Tensor:
    """``x[index]``, as Tensor.__getitem__ says."""
    if isinstance(index, Tensor) and x.ndim and kind_of(index.dtype) in ("signed", "unsigned"):
        return take(x, index, 0)
    items = _items(x, index)
    if not any(isinstance(item, _ARRAYS) for item in items):
        items, turned = _forward(x, items)
        found = x.view(items)
        return flip(found, turned) if turned else found
    if len(items) == 1 and _is_mask(items[0]):
        mask = _host(items[0])
        return _gathered(_merged(x, _mask_axes(x, mask)), _device_of(x, _places(mask)))
    view, axes, arrays, first, turned = _advanced(x, items)
    if turned:
        view = flip(view, turned)
    flat, shape = _flat(x, view, axes, arrays)
    rest = [a for a in range(view.ndim) if a not in axes]
    found = _gathered(_merged(view.transpose([*axes, *rest]), len(axes)), flat)
    found = found.reshape((*shape, *found.shape[1:]))
    return moved(found, tuple(range(len(shape))), tuple(range(first, first + len(shape))))


def assigned(x: Tensor, index, value) -> None:
    """``x[index] = value``, as Tensor.__setitem__ says."""
    device = x._storage.device
    check_writable("assignment", x)
    items = _items(x, index)
    if not any(isinstance(item, _ARRAYS) for item in items):
        items, turned = _forward(x, items)
        target = x.view(items)
        values = _values(x, value, target.shape)
        assign(device, target, flip(values.broadcast_to(target.shape), turned) if turned else values)
    elif len(items) == 1 and _is_mask(items[0]):
        _assign_mask(x, items[0], value)
    else:
        view, axes, arrays, first, turned = _advanced(x, items)
        flat, shape = _flat(x, view, axes, arrays, writes=True)
        rest = [a for a in range(view.ndim) if a not in axes]
        rests = tuple(view.shape[a] for a in rest)
        values = _values(x, value, (*rests[:first], *shape, *rests[first:]))
        values = values.broadcast_to((*rests[:first], *shape, *rests[first:]))
        values = moved(values, tuple(range(first, first + len(shape))), tuple(range(len(shape))))
        if turned:
            values = flip(values, [len(shape) + rest.index(a) for a in turned])
        _scatter(view.transpose([*axes, *rest]), len(axes), flat, values.reshape((flat.size, *rests)))
    device.runtime.flush()


def take(x: Tensor, indices, axis: int | None = None) -> Tensor:
    """Elements of x along an axis at integer indices; negative ones count from the end.

    The axis becomes the axes of ``indices``. It may be left out where x has one.
    """
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"take: x has {x.ndim} axes; name one")
        axis = 0
    axis = axis_of("take", axis, x.ndim)
    indices = _index_array(x, indices, x.shape[axis], axis)
    found = _gathered(x, indices.reshape(indices.size), axis)
    return found.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def take_along_axis(x: Tensor, indices, axis: int = -1) -> Tensor:
    """For each element of ``indices``, of x's number of axes, that element of x along the axis; others broadcast."""
    axis = axis_of("take_along_axis", axis, x.ndim)
    indices = _index_array(x, indices, x.shape[axis], axis)
    if indices.ndim != x.ndim:
        raise ValueError(f"take_along_axis: indices have {indices.ndim} axes and x {x.ndim}")
    others = [
        np.broadcast_shapes((a,), (b,))[0] if n != axis else b
        for n, (a, b) in enumerate(zip(x.shape, indices.shape, strict=True))
    ]
    whole = [extent if n != axis else x.shape[axis] for n, extent in enumerate(others)]
    x, indices = x.broadcast_to(whole).contiguous(), indices.broadcast_to(others).contiguous()
    outer, inner = math.prod(others[:axis]), math.prod(others[axis + 1 :])
    count, extent = others[axis], whole[axis]
    data = x._view((outer, count, inner), (extent * inner, 0, 1))
    found = _gather(data, indices.reshape((outer, count, inner)), inner, extent)
    return found.reshape(others)


def nonzero(x: Tensor) -> tuple[Tensor, ...]:
    """The places of elements that are not zero, an int64 tensor for each axis. The host counts them, and waits."""
    if not x.ndim:
        raise ValueError("nonzero: x has no axes")
    device = x._storage.device
    return tuple(device.tensor(places.astype(np.int64)) for places in np.nonzero(x._read("nonzero")))


def moved(x: Tensor, source: tuple[int, ...], destination: tuple[int, ...]) -> Tensor:
    """x with axes moved from some places to others; a view."""
    order = [a for a in range(x.ndim) if a not in source]
    for place, axis in sorted(zip(destination, source, strict=True)):
        order.insert(place, axis)
    return x.transpose(order) if x.ndim else x


# -- indices as they come ----------------------------------------------------------------------------------------------


def _items(x: Tensor, index) -> tuple:
    """The index as a tuple; lists are arrays, numbers of NumPy's and tensors without axes are integers."""
    items = index if isinstance(index, tuple) else (index,)
    found = []
    for item in items:
        if isinstance(item, list):
            item = np.asarray(item, np.int64 if not item else None)
        if isinstance(item, (bool, np.bool_)):
            raise TypeError("a single truth value is no index of a tensor")
        if isinstance(item, (Tensor, np.ndarray)):
            if item.dtype.kind == "f" or kind_of(item.dtype) == "floating":
                raise TypeError(f"an index is {item.dtype}; expected integers or bool")
            if not item.shape and item.dtype != BOOL and isinstance(item, np.ndarray):
                item = int(item)
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
    turned, axis, own = [], 0, 0
    for item in _expanded(x, items):
        if isinstance(item, slice) and item.step is not None and operator.index(item.step) < 0:
            start, stop, step = item.indices(x.shape[axis])
            count = max(0, -(-(stop - start) // step))
            last = start + (count - 1) * step
            item = slice(last, start + 1, -step) if count else slice(0, 0)
            turned.append(own)
        found.append(item)
        axis += item is not None
        own += item is None or isinstance(item, slice)
    return tuple(found), tuple(turned)


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
    forward, turned = _forward(x, tuple(basic))
    view = x.view(forward)
    places = [n for n, kind in enumerate(kinds) if kind]
    # As in NumPy, "..." stands between arrays also where it is for no axis.
    cut = next((n for n, item in enumerate(items) if item is Ellipsis), 0)
    together = places == list(range(places[0], places[0] + len(places))) and not places[0] < cut <= places[-1]
    return view, axes, arrays, places[0] if together else 0, turned


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
            flat = flat * extent + _checked(array, extent, axis)
        return _device_of(x, flat.reshape(-1)), shape
    if len(arrays) == 1:  # kernels count negative ones from the end, and find what is out of bounds
        return _index_array(x, arrays[0], extents[0], axes[0]).reshape(-1), shape
    total = inside = None
    for array, axis, extent in zip(arrays, axes, extents, strict=True):
        own = cast(_index_array(x, array, extent, axis), INT64)
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


def _checked(array: np.ndarray, extent: int, axis: int) -> np.ndarray:
    """Indices from 0 on. Raises IndexError for what is out of bounds."""
    array = array.astype(np.int64)
    if array.size and not (-extent <= array.min() and array.max() < extent):
        wrong = array.min() if array.min() < -extent else array.max()
        raise IndexError(f"index {wrong} is out of bounds for axis {axis} with size {extent}")
    return np.where(array < 0, array + extent, array)


def _index_array(x: Tensor, indices, extent: int, axis: int) -> Tensor:
    """Indices as a tensor of integers on x's device; those of the host are checked."""
    if not isinstance(indices, Tensor):
        indices = np.asarray(indices)
        if not indices.size:
            indices = indices.astype(np.int64)
        if indices.dtype.kind not in "iu":
            raise TypeError(f"indices are {indices.dtype}; expected integers")
        return _device_of(x, _checked(indices, extent, axis))
    if kind_of(indices.dtype) not in ("signed", "unsigned"):
        raise TypeError(f"indices are {indices.dtype}; expected integers")
    return indices


def _device_of(x: Tensor, array: np.ndarray) -> Tensor:
    return x._storage.device.tensor(array)


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


def _gathered(x: Tensor, index: Tensor, axis: int = 0) -> Tensor:
    """Elements of x at an index of one axis, along an axis."""
    lead, extent, tail = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    shape = (*lead, index.size, *tail)
    if math.prod(shape) and not extent:
        raise IndexError(f"axis {axis} has no elements to take")
    if len(shape) > 4:
        x = x.contiguous()
    data = x._view(shape, (*x._steps[:axis], 0, *x._steps[axis + 1 :]))
    places = index._view(shape, (*(0,) * len(lead), index._steps[0], *(0,) * len(tail)))
    return _gather(data, places, x._steps[axis], extent)


def _gather(data: Tensor, places: Tensor, step: int, extent: int) -> Tensor:
    device: Device = data._storage.device
    found = mapped(device, Gather(spec("gather", data.dtype), step, extent), (data, places, None))
    device.runtime.flush()
    return found


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
    while value.ndim > len(shape) and value.shape[0] == 1:
        value = value.view(0)
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
    steps = reshaped(view.shape, view._steps, shape) if view.size else None
    if steps is not None:
        scatter(device, view._view(shape, steps), flat, values)
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
        on_device = on_device.view((..., *(None,) * len(rest)))
        values = _values(x, value, rest)
        chosen = where(on_device, values, x)
        assign(device, x, chosen)
        return
    flat = _device_of(x, _places(_host(mask)))
    values = _values(x, value, (flat.size, *rest)).broadcast_to((flat.size, *rest))
    _scatter(x, count, flat, values)

