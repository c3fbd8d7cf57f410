"""Plans: what a call does on a device, as data. A planner binds arrays and packs push constants by name.

A plan speaks of tensors over slots: they have shapes, strides and offsets, and no memory. record.py gives them some.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from math import gcd
from typing import NamedTuple

import numpy as np

from ...errors import OutOfDeviceMemoryError, UnsupportedError
from ...registry import Choice
from .device import DeviceFacts
from .tensor import Tensor

#: Alignments beyond this many elements make no difference to any kernel.
ALIGN_MOST = 16
_FORMATS = {"uint": "I", "int": "i", "float": "f"}


class Layout(NamedTuple):
    """What a plan knows of an array that a call is given: nothing of its contents.

    Attributes
    ----------
    shape, steps : tuple of int
        Extents, and strides in elements.
    dtype : numpy.dtype
    offset : int
        Of the first element, in elements. Where the storage fits a binding, only the offset's greatest common divisor
        with ALIGN_MOST: a plan serves them all.
    nbytes : int or None
        Of a storage that is larger than a binding; None for others.
    """

    shape: tuple[int, ...]
    steps: tuple[int, ...]
    dtype: np.dtype
    offset: int = 0
    nbytes: int | None = None

    @classmethod
    def of(cls, tensor: Tensor | None, facts: DeviceFacts) -> Layout | None:
        """The layout of a tensor."""
        if tensor is None:
            return None
        nbytes = tensor._storage.nbytes
        if nbytes <= facts.storage_range:
            return cls(tensor.shape, tensor._steps, tensor.dtype, gcd(ALIGN_MOST, tensor._offset))
        return cls(tensor.shape, tensor._steps, tensor.dtype, tensor._offset, nbytes)


class Slot:
    """Stands for an array's memory in a plan. ``moves``: the array's own offset is added when the plan is recorded."""

    __slots__ = ("number", "nbytes", "moves")

    def __init__(self, number: int, nbytes: int, moves: bool = False):
        self.number = number
        self.nbytes = nbytes
        self.moves = moves


class At(NamedTuple):
    """A push-constant word: where a tensor begins in its binding, in units of so many elements."""

    tensor: Tensor | None
    unit: int = 1


class Live(NamedTuple):
    """A push-constant word that a call tells when it is recorded: its number among these, and what is added to it."""

    number: int
    add: int = 0


class Step(NamedTuple):
    """One dispatch.

    Attributes
    ----------
    choice : Choice
    constants : tuple of (str, value)
        Specialization constants.
    bindings : tuple of (slot, byte offset, byte length) or None
        One for each binding; a length of 0 is all of the storage.
    push : bytes
    moved : tuple of (place in push, slot, offset, unit)
        Words to which the slot's own offset is added.
    live : tuple of (place in push, number, add)
        Words of the call's own.
    groups : tuple of int
    work : float
        Floating-point operations.
    kind : tuple or None
        What its pace, in operations a second, depends on, where it depends on nothing else, such as contents.
    """

    choice: Choice
    constants: tuple
    bindings: tuple
    push: bytes
    moved: tuple
    live: tuple
    groups: tuple[int, int, int]
    work: float
    kind: tuple | None = None

    def words(self) -> dict[str, int | float]:
        """The push constants by name, for tests and for people."""
        layout = self.choice.variant.push
        return dict(zip((name for name, _ in layout), push_struct(layout).unpack(self.push), strict=True))


class Result(NamedTuple):
    """What a plan returns: a view of a slot."""

    slot: int
    shape: tuple[int, ...]
    dtype: np.dtype
    steps: tuple[int, ...]
    offset: int


class Plan(NamedTuple):
    """A call as data: ``inputs`` slots that it is given, ``slots`` that it needs beyond them (bytes, negative where
    they are to be zero, or contents that are sent once and kept with the plan), dispatches in order, and results."""

    inputs: int
    slots: tuple[int | np.ndarray, ...]
    steps: tuple[Step, ...]
    results: tuple[Result, ...]


_structs: dict[tuple, struct.Struct] = {}


def push_struct(layout: tuple[tuple[str, str], ...]) -> struct.Struct:
    """What packs push constants of a layout, ``((name, "uint" | "int" | "float"), ...)``."""
    found = _structs.get(layout)
    if found is None:
        found = _structs[layout] = struct.Struct("=" + "".join(_FORMATS[kind] for _, kind in layout))
    return found


def span(tensor: Tensor) -> int:
    """Bytes from the lowest to past the highest element of a view."""
    if tensor.size == 0:
        return 0
    last = sum((extent - 1) * abs(step) for extent, step in zip(tensor.shape, tensor._steps, strict=True))
    return (last + 1) * tensor.dtype.itemsize


def _lowest(tensor: Tensor) -> int:
    """Where in its storage the lowest element of a view is: below its first, where a stride is negative."""
    below = sum((extent - 1) * step for extent, step in zip(tensor.shape, tensor._steps, strict=True) if step < 0)
    return tensor._offset + (below if tensor.size else 0)


def fits_binding(facts: DeviceFacts, tensor: Tensor) -> bool:
    """True when ``binding`` can bind the view."""
    limit = facts.storage_range
    return tensor._storage.nbytes <= limit or span(tensor) + facts.alignment + 4 <= limit


def binding(facts: DeviceFacts, tensor: Tensor) -> tuple[tuple[int, int, int], int]:
    """A slot's number, byte offset and byte length for a tensor, and where in it the first element is, in elements.

    The whole storage is bound where it fits a binding; otherwise a window of it, which the plan has made small enough.
    """
    slot = tensor._storage
    limit = facts.storage_range
    if slot.nbytes <= limit:
        return (slot.number, 0, 0), tensor._offset
    size = tensor.dtype.itemsize
    start = _lowest(tensor) * size
    base = start - start % facts.alignment
    end = start + span(tensor)
    if not facts.windows:
        raise UnsupportedError(
            f"a tensor of {slot.nbytes:,} bytes is larger than one binding ({limit:,}), and the "
            f"{facts.runtime} runtime binds whole buffers only; use runtime='vulkan' or smaller arrays"
        )
    length = min(-(-(end - base) // 4) * 4, slot.nbytes - base)
    if length > limit:
        raise UnsupportedError(f"a view of {length:,} bytes does not fit one binding of {limit:,} bytes")
    return (slot.number, base, length), tensor._offset - base // size


def strided(name: str, tensor: Tensor | None, axes: Sequence[str] = ("batch", "head", "row"), unit: int = 1) -> dict:
    """The words NAME_offset and NAME_AXIS of a tensor's leading axes, as kernels call them; 0 where it is None."""
    words: dict = {f"{name}_offset": At(tensor, unit)}
    for axis, label in enumerate(axes):
        step = 0 if tensor is None else tensor._steps[axis] // unit
        if step >= 2**32 and tensor is not None and tensor.shape[axis] == 1:  # which no word holds, and nothing needs
            step = 0
        words[f"{name}_{label}"] = step
    return words


class Planner:
    """Gathers a plan.

    Parameters
    ----------
    facts : DeviceFacts
    inputs : sequence of Layout or None
        Of the arrays that the call is given.
    """

    def __init__(self, facts: DeviceFacts, inputs: Sequence[Layout | None]):
        self.facts = facts
        self._given = len(inputs)
        self._slots: list[int | np.ndarray] = []
        self._steps: list[Step] = []
        #: Tensors that stand for the inputs.
        self.inputs = [self._stand_in(number, layout) for number, layout in enumerate(inputs)]

    @staticmethod
    def _stand_in(number: int, layout: Layout | None) -> Tensor | None:
        if layout is None:
            return None
        shape, steps, dtype, offset, nbytes = layout
        slot = Slot(number, nbytes or 0, moves=nbytes is None)
        return Tensor(slot, shape, dtype, steps, 0 if nbytes is None else offset)

    def _new(self, contents: int | np.ndarray, nbytes: int) -> Slot:
        self._slots.append(contents)
        return Slot(self._given + len(self._slots) - 1, nbytes)

    def empty(self, shape: tuple[int, ...], dtype=np.float32, zero: bool = False) -> Tensor:
        """A new array of each recording, undefined or zero.

        Raises OutOfDeviceMemoryError for more bytes than one array may take: a plan for it could take hours.
        """
        dtype = np.dtype(dtype)
        nbytes = dtype.itemsize
        for extent in shape:
            nbytes *= extent
        if nbytes > self.facts.largest:
            raise OutOfDeviceMemoryError(
                f"{self.facts.name} has no room for {nbytes:,} bytes: one array may take {self.facts.largest:,}. Work "
                "on less at a time."
            )
        nbytes = max(-(-nbytes // 4) * 4, 4)
        return Tensor(self._new(-nbytes if zero else nbytes, nbytes), tuple(shape), dtype)

    def constant(self, array: np.ndarray) -> Tensor:
        """An array that is sent to the device once and kept with the plan."""
        return Tensor(self._new(array, max(array.nbytes, 4)), array.shape, array.dtype)

    def mark(self) -> tuple[int, int]:
        """A point to come back to with ``back``."""
        return len(self._slots), len(self._steps)

    def back(self, mark: tuple[int, int]) -> None:
        """Forget all that came after a mark."""
        del self._slots[mark[0] :]
        del self._steps[mark[1] :]

    def dispatch(
        self, choice: Choice, constants: Mapping[str, int], arrays: Mapping[str, object], push: Mapping[str, object],
        groups: tuple[int, int, int], work: float = 0.0, kind: tuple | None = None,
    ) -> None:  # fmt: skip
        """Add a dispatch.

        Parameters
        ----------
        choice : Choice
        constants : mapping
            Specialization constants by name.
        arrays : mapping
            Binding's name to a Tensor, or to what ``window`` gives; None and names left out bind nothing. A name that
            the family does not have may only be None.
        push : mapping
            A number, At or Live for each word of the family's push constants, by name.

        Raises
        ------
        ValueError
            For names that are not the family's.
        """
        variant = choice.variant
        known = variant.bindings
        for name, array in arrays.items():
            if array is not None and name not in known:
                raise ValueError(f"{variant.name} has no binding {name!r}, only {', '.join(known)}")
        places = []
        for name in known:
            array = arrays.get(name)
            places.append(binding(self.facts, array)[0] if isinstance(array, Tensor) else array)
        layout = variant.push
        if push.keys() != {name for name, _ in layout}:
            missing = [name for name, _ in layout if name not in push]
            unknown = sorted(push.keys() - {name for name, _ in layout})
            raise ValueError(f"{variant.name}: push constants missing: {missing}, unknown: {unknown}")
        values, moved, live = [], [], []
        for number, (name, _) in enumerate(layout):
            value = push[name]
            if value.__class__ is At:
                tensor, unit = value
                value = 0
                if tensor is not None:
                    value = binding(self.facts, tensor)[1] // unit
                    if tensor._storage.moves:
                        moved.append((4 * number, tensor._storage.number, value, unit))
            elif value.__class__ is Live:
                live.append((4 * number, *value))
                value = 0
            values.append(value)
        packed = push_struct(layout).pack(*values)
        self._steps.append(
            Step(
                choice, tuple(constants.items()), tuple(places), packed, tuple(moved), tuple(live), tuple(groups),
                float(work), kind,
            )  # fmt: skip
        )

    def plan(self, *results: Tensor | None) -> Plan:
        """The plan, which returns these tensors, all over slots of its own (None where there is none)."""
        given = tuple(
            Result(t._storage.number, t.shape, t.dtype, t._steps, t._offset) for t in results if t is not None
        )
        return Plan(self._given, tuple(self._slots), tuple(self._steps), given)


def output_like(planner: Planner, q: Tensor, value_dim: int) -> Tensor:
    """An undefined (B, H, Sq, Dv) tensor; its axes lie in memory in the order of q's, so that joining heads is free."""
    batch, heads, queries, _ = q.shape
    order = sorted(range(3), key=lambda axis: (-q._steps[axis] if q.shape[axis] > 1 else -float("inf"), axis))
    shape = (batch, heads, queries)
    laid = planner.empty((*(shape[a] for a in order), value_dim), q.dtype)
    return laid if order == [0, 1, 2] else laid.transpose([*(order.index(a) for a in range(3)), 3])


def alignment(*numbers: int) -> int:
    """The largest power of two, up to ALIGN_MOST, that divides all numbers."""
    return gcd(ALIGN_MOST, *numbers)
