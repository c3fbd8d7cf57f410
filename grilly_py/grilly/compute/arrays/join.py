"""Arrays copied to their places in one, several in a dispatch: shaders/arrays/join.comp."""

from __future__ import annotations

from collections.abc import Sequence

from ...registry import Registry, Request
from ..device.call import run
from ..device.device import Device, DeviceFacts
from ..device.plan import At, Layout, Plan, Planner
from ..device.tensor import Tensor
from .assign import assign

_ARRAYS = "abcdefgh"
_WORD, _VECTOR = 4, 16  # bytes


def join(device: Device, flat: Tensor, places: Sequence[int], arrays: Sequence[Tensor]) -> None:
    """Copy arrays to the places in a flat one at which they are to begin. Nothing is submitted.

    Parameters
    ----------
    flat : Tensor
        Contiguous, with one axis.
    places : sequence of int
        In elements. The word of 32 bits in which an array ends is written whole.
    arrays : sequence of Tensor
        Of the flat one's dtype. Those that do not lie as words side by side are copied by a dispatch each, and so are
        those that a captured function has made: such copies are left out where nothing else reads the array.
    """
    together, work = [], device.captured.work
    size, start = flat.dtype.itemsize, flat._offset
    fits = size <= _WORD and flat._storage.nbytes <= device.facts.storage_range
    for place, array in zip(places, arrays, strict=True):
        if not array.size:
            continue
        storage = array._storage
        if (
            fits and not (start + place) * size % _VECTOR and not array._offset * size % _WORD and array.is_contiguous
            and storage is not flat._storage and storage.nbytes <= device.facts.storage_range
            and (work is None or not work.owns(storage.buffer))
        ):  # fmt: skip
            together.append((place, array))
        else:
            assign(device, flat[place : place + array.size].reshape(array.shape), array)
    for first in range(0, len(together), len(_ARRAYS)):
        some = together[first : first + len(_ARRAYS)]
        run(device, plan, tuple(place for place, _ in some), (*(array for _, array in some), flat))


def plan(places: Sequence[int], layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatch that writes arrays to their places in the last."""
    planner = Planner(facts, layouts)
    *arrays, flat = planner.inputs
    choice = registry.resolve(Request("join", "float32"))
    unit, chunks = _WORD // flat.dtype.itemsize, 0
    push = {f"{name}_{word}": 0 for name in _ARRAYS for word in ("offset", "place", "words")}
    for name, place, array in zip(_ARRAYS, places, arrays, strict=False):
        words = -(-array.size // unit)
        push |= {f"{name}_offset": At(array, unit), f"{name}_place": At(flat[place:], unit), f"{name}_words": words}
        chunks += -(-words // choice.tile["chunk"])
    bound = {**dict(zip(_ARRAYS, arrays, strict=False)), "y": flat}
    groups = choice.workgroups(chunks, 1)
    planner.dispatch(choice, {}, bound, push, groups, sum(array.size for array in arrays))
    return planner.plan()


__all__ = ["join"]
