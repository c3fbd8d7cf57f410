"""Arrays that lie one behind the other in one array: an optimizer updates all of them in one dispatch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from .. import array_api as xp
from ..compute import Compute, Tensor
from ..compute.arrays.join import join

#: Every array begins at a multiple of so many elements, as kernels read the longest runs from there.
ALIGN = 16


def _padded(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


class Place(NamedTuple):
    """Where an array lies.

    Attributes
    ----------
    name : str
    shape : tuple of int
    start, size : int
        In elements.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    size: int


class Layout:
    """Where some arrays of one dtype lie in a flat one, those of one shape side by side.

    Attributes
    ----------
    places : tuple of Place
    dtype : numpy.dtype
    size : int
        Elements of the flat array.
    """

    def __init__(self, places: Iterable[Place], dtype: np.dtype):
        self.dtype, self.places = dtype, tuple(places)
        last = self.places[-1]
        self.size = max(last.start + _padded(last.size), ALIGN)

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype) -> Layout:
        """Arrays of these shapes, sorted by them."""
        places, start = [], 0
        for name in sorted(shapes, key=lambda name: shapes[name]):  # of equal ones the order stays
            places.append(Place(name, shapes[name], start, math.prod(shapes[name])))
            start += _padded(places[-1].size)
        return cls(places, dtype)

    @classmethod
    def found(cls, arrays: Mapping[str, Any], most: int) -> list[Layout]:
        """Layouts as arrays lie, where they are parts of flat ones; of others new ones, as of ``several``."""
        storages: dict[tuple[int, str], list[str]] = {}
        for name, array in arrays.items():
            number = id(array._storage) if array.__class__ is Tensor else 0
            storages.setdefault((number, np.dtype(array.dtype).name), []).append(name)
        found: list[Layout] = []
        others: dict[str, dict[str, tuple[int, ...]]] = {}
        for names in storages.values():
            layout = cls._parts({name: arrays[name] for name in names})
            if layout is None:
                for name in names:
                    others.setdefault(np.dtype(arrays[name].dtype).name, {})[name] = tuple(arrays[name].shape)
            else:
                found.append(layout)
        for shapes in others.values():
            found += cls.several(shapes, np.dtype(arrays[next(iter(shapes))].dtype), most)
        return found

    @classmethod
    def _parts(cls, arrays: Mapping[str, Tensor]) -> Layout | None:
        names = sorted(arrays, key=lambda name: getattr(arrays[name], "_offset", 0))
        first = arrays[names[0]]
        if len(names) == 1 or first.__class__ is not Tensor:
            return None
        own = [(name, arrays[name]) for name in names]
        places = [Place(name, array.shape, array._offset - first._offset, array.size) for name, array in own]
        ends = [place.start + _padded(place.size) for place in places]
        apart = all(end <= place.start for end, place in zip(ends, places[1:], strict=False))
        if not apart or any(place.start % ALIGN for place in places):
            return None
        layout = cls(places, first.dtype)
        return None if layout.lies(arrays) is None else layout

    @classmethod
    def several(cls, shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype, most: int) -> list[Layout]:
        """Layouts of at most so many elements, but for single arrays that are larger."""
        found: list[dict[str, tuple[int, ...]]] = []
        total = 0
        for name in sorted(shapes, key=lambda name: shapes[name]):
            size = _padded(math.prod(shapes[name]))
            if not found or total + size > most:
                found.append({})
                total = 0
            found[-1][name] = shapes[name]
            total += size
        return [cls.of(each, dtype) for each in found]

    def view(self, flat: Tensor, place: Place) -> Tensor:
        """An array in a flat one."""
        return Tensor(flat._storage, place.shape, flat.dtype, None, flat._offset + place.start)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The arrays in a flat one, by their names."""
        return {place.name: self.view(flat, place) for place in self.places}

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Beginnings and lengths of what lies without gaps: what is between arrays is undefined."""
        begin = end = 0
        for place in self.places:
            if place.start != end:
                yield begin, end - begin
                begin = place.start
            end = place.start + place.size
        yield begin, end - begin

    def filled(self, flat: Tensor) -> Iterator[Tensor]:
        """Views of a flat array that together are its arrays: ``(runs, length)``, of runs at one distance."""
        found: list[list[int]] = []  # beginning, length, runs, distance
        for begin, length in self._runs():
            last = found[-1] if found else [0, -1, 1, 0]
            step = begin - last[0] - (last[2] - 1) * last[3]
            if length == last[1] and (last[2] == 1 or step == last[3]):
                last[2:] = last[2] + 1, step
            else:
                found.append([begin, length, 1, length])
        for begin, length, count, step in found:
            yield flat._view((count, length), (step, 1), flat._offset + begin)

    def stacks(self) -> Iterator[tuple[tuple[int, ...], list[Place]]]:
        """The arrays by their shapes."""
        found: dict[tuple[int, ...], list[Place]] = {}
        for place in self.places:
            found.setdefault(place.shape, []).append(place)
        yield from found.items()

    def stack(self, flat: Tensor, places: list[Place]) -> Tensor:
        """Arrays of one shape in a flat one, with an axis more that counts them; a view."""
        first, step = places[0], _padded(places[0].size)
        part = flat[first.start : first.start + step * len(places)].reshape(len(places), step)
        return part[:, : first.size].reshape(len(places), *first.shape)

    def lies(self, arrays: Mapping[str, Any]) -> Tensor | None:
        """The flat array of which the arrays are the parts; None where they lie elsewhere."""
        first = arrays[self.places[0].name]
        if first.__class__ is not Tensor:
            return None
        storage, dtype = first._storage, first.dtype
        start = first._offset - self.places[0].start
        if start < 0 or start % ALIGN or (start + self.size) * dtype.itemsize > storage.nbytes:
            return None
        for place in self.places:
            own = arrays[place.name]
            if (
                own.__class__ is not Tensor or own._storage is not storage or own.dtype != dtype
                or own._offset != start + place.start or not own.is_contiguous
            ):  # fmt: skip
                return None
        return Tensor(storage, (self.size,), dtype, (1,), start)

    def gathered(self, backend: Compute, arrays: Mapping[str, Any], dtype: np.dtype | None = None) -> Tensor:
        """A flat array with the arrays, of their common dtype or of a given one: a new one, unless they lie in one."""
        if dtype is None:
            dtypes = {np.dtype(arrays[place.name].dtype) for place in self.places}
            dtype = dtypes.pop() if len(dtypes) == 1 else np.dtype(np.float32)
        found = self.lies(arrays)
        if found is not None and found.dtype == dtype:
            return found
        flat = backend.empty(self.size, dtype)
        self.fill(flat, arrays, (place.name for place in self.places))
        return flat

    def new(self, backend: Compute, dtype: Any) -> Tensor:
        """A flat array of zeros."""
        return xp.zeros(self.size, dtype=dtype, device=backend)

    def fill(self, flat: Tensor, arrays: Mapping[str, Any], names: Iterable[str]) -> None:
        """Copy some of the arrays to their places in a flat one."""
        own = {place.name: place for place in self.places}
        places, tensors = [], []
        for name in names:
            array = arrays[name]
            array = array if isinstance(array, Tensor) else flat.backend.tensor(np.asarray(array))
            tensors.append(array if array.dtype == flat.dtype else xp.astype(array, flat.dtype))
            places.append(own[name].start)
        join(flat.backend.opened, flat, places, tensors)
        flat.backend.runtime.flush()


__all__ = ["ALIGN", "Layout", "Place"]
