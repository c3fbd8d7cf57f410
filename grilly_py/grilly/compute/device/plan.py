"""Plans: the dispatches of a call as data. A planner binds arrays and packs push constants by name.

The tensors of a plan lie over slots: they have shapes, strides and offsets, and no memory. executables.py allocates it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...errors import OutOfDeviceMemoryError, UnsupportedError
from ...registry import Choice
from ...runtime.interface import Filling
from .device import DeviceFacts
from .tensor import Tensor

#: Alignments beyond this many elements make no difference to any kernel.
ALIGN_MOST = 16
_FORMATS = {"uint": "I", "int": "i", "float": "f"}


class Layout(NamedTuple):
    """An array of a call for a plan: no contents.

    Attributes
    ----------
    shape, strides : tuple of int
        Extents, and strides in elements.
    dtype : numpy.dtype
    offset : int
        Of the first element, in elements. Where the storage fits a binding, only the offset's greatest common divisor
        with ALIGN_MOST: a plan serves them all.
    nbytes : int or None
        Of a storage that is larger than a binding; None for others.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
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
            return cls(tensor.shape, tensor._strides, tensor.dtype, gcd(ALIGN_MOST, tensor._offset))
        return cls(tensor.shape, tensor._strides, tensor.dtype, tensor._offset, nbytes)


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
    """A push-constant word with a runtime argument: its number among those of ``Executable.run``, and an addend."""

    number: int
    add: int = 0


class Elementwise(NamedTuple):
    """An elementwise operation of a plan.

    Attributes
    ----------
    expression : Expression
    arrays : tuple of Tensor
        The operands over the plan's slots, in the order of the expression's numbers.
    result : Tensor
    counted : Counted or None
        Of a gather: the axis of the first operand that the second, of indices, counts (arrays/scatter.py).
    """

    expression: Any
    arrays: tuple[Tensor, ...]
    result: Tensor
    counted: Any = None


class Walk(NamedTuple):
    """How the invocations of a reduction walk through its rows.

    Attributes
    ----------
    columns : bool
        Whether neighbouring invocations have neighbouring rows.
    lanes : int
        Invocations of a row.
    parts, part_length : int
        Of each row, and elements of one.
    runs : bool
        Whether an invocation has four neighbouring elements at a time.
    """

    columns: bool
    lanes: int
    parts: int
    part_length: int
    runs: bool = False


class Reduce(NamedTuple):
    """A reduction of a plan, in one dispatch.

    Attributes
    ----------
    name : str
        As kernels know it.
    arrays : tuple of Tensor
        The one that is reduced, over the plan's slots: the rows' axes, then those of their elements.
    result : Tensor
        One element a row.
    kept : int
        How many axes the rows have.
    floats, mean : bool
        Whether float32 is reduced, else int64; and whether a sum is divided by the number of elements.
    walk : Walk
    """

    name: str
    arrays: tuple[Tensor]
    result: Tensor
    kept: int
    floats: bool
    mean: bool
    walk: Walk


class Move(NamedTuple):
    """A copy of a plan, in one dispatch.

    Attributes
    ----------
    arrays : tuple of Tensor
        The one that is copied, over the plan's slots.
    result : Tensor
        A view of the same shape and dtype.
    """

    arrays: tuple[Tensor]
    result: Tensor


class Operation(Protocol):
    """What a step is noted as in captured work: its arrays, all but the result, over the plan's slots."""

    @property
    def arrays(self) -> tuple[Tensor, ...]:
        """Read, or written beside the result."""

    @property
    def result(self) -> Tensor:
        """Written."""


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
        The key of its throughput; None where that depends on contents.
    filling : Filling or None
        The code for the shader's holes.
    operation : Operation or None
        Which operation it is: captured ones that follow each other may become one.
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
    filling: Filling | None = None
    operation: Operation | None = None

    def push_constants(self) -> dict[str, int | float]:
        """The push constants by name, for tests and for people."""
        layout = self.choice.variant.push
        return dict(zip((name for name, _ in layout), push_struct(layout).unpack(self.push), strict=True))


class Result(NamedTuple):
    """A result of a plan: a view of a slot."""

    slot: int
    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...]
    offset: int


class Plan(NamedTuple):
    """A call as data.

    Attributes
    ----------
    inputs : int
        The first so many slots are the call's arrays.
    slots : tuple of int or numpy.ndarray
        Further slots: bytes of new memory, negative for zeroed memory, or contents, sent once and kept with the plan.
    steps : tuple of Step
        In order.
    results : tuple of Result
    operation : object
        Which operation the whole plan is, of those that captured work makes anew with others beside them; else None.
    """

    inputs: int
    slots: tuple[int | np.ndarray, ...]
    steps: tuple[Step, ...]
    results: tuple[Result, ...]
    operation: Any = None


_structs: dict[tuple, struct.Struct] = {}


def push_struct(layout: tuple[tuple[str, str], ...]) -> struct.Struct:
    """The struct of push constants of a layout, ``((name, "uint" | "int" | "float"), ...)``."""
    found = _structs.get(layout)
    if found is None:
        found = _structs[layout] = struct.Struct("=" + "".join(_FORMATS[kind] for _, kind in layout))
    return found


def reach(shape: Sequence[int], strides: Sequence[int], offset: int) -> tuple[int, int]:
    """Where in its storage the lowest element of a view is, and the place behind the highest; equal if it has none."""
    if 0 in shape:
        return offset, offset
    steps = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    below = sum(step for step in steps if step < 0)
    return offset + below, offset + sum(steps) - below + 1


def bounds(tensor: Tensor) -> tuple[int, int]:
    """The reach of a tensor, in elements."""
    return reach(tensor.shape, tensor._strides, tensor._offset)


def span(tensor: Tensor) -> int:
    """Bytes from the lowest to past the highest element of a view."""
    low, high = bounds(tensor)
    return (high - low) * tensor.dtype.itemsize


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
    start = bounds(tensor)[0] * size
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
        stride = 0 if tensor is None else tensor._strides[axis] // unit
        if stride >= 2**32 and tensor is not None and tensor.shape[axis] == 1:  # which no word holds, and nothing needs
            stride = 0
        words[f"{name}_{label}"] = stride
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
        shape, strides, dtype, offset, nbytes = layout
        slot = Slot(number, nbytes or 0, moves=nbytes is None)
        return Tensor(slot, shape, dtype, strides, 0 if nbytes is None else offset)

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
        """An array of the plan's own: sent to the device once and kept with the plan."""
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
        groups: tuple[int, int, int], work: float = 0.0, kind: tuple | None = None, filling: Filling | None = None,
        operation: Operation | None = None,
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
        groups, work, kind, filling, operation
            See Step.

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
                choice,
                tuple(constants.items()),
                tuple(places),
                packed,
                tuple(moved),
                tuple(live),
                tuple(groups),
                float(work),
                kind,
                filling,
                operation,
            )  # fmt: skip
        )

    def plan(self, *results: Tensor | None, operation: Any = None) -> Plan:
        """The plan, which returns these tensors, all over slots of its own (None where there is none)."""
        given = tuple(
            Result(t._storage.number, t.shape, t.dtype, t._strides, t._offset) for t in results if t is not None
        )
        return Plan(self._given, tuple(self._slots), tuple(self._steps), given, operation)


def output_like(planner: Planner, q: Tensor, value_dim: int) -> Tensor:
    """An undefined (B, H, Sq, Dv) tensor; its axes lie in memory in the order of q's, so that joining heads is free."""
    batch, heads, queries, _ = q.shape
    order = sorted(range(3), key=lambda axis: (-q._strides[axis] if q.shape[axis] > 1 else -float("inf"), axis))
    shape = (batch, heads, queries)
    laid = planner.empty((*(shape[a] for a in order), value_dim), q.dtype)
    return laid if order == [0, 1, 2] else laid.transpose([*(order.index(a) for a in range(3)), 3])


def alignment(*numbers: int) -> int:
    """The largest power of two, up to ALIGN_MOST, that divides all numbers."""
    return gcd(ALIGN_MOST, *numbers)
