"""The tape: which operations were called on what gradients are wanted of.

``call`` and ``run`` of call.py tell the tapes of their thread what they do. Gradients are found from there by
compute/gradients.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ...errors import GradientError
from .dtypes import is_float
from .tensor import Outline, Tensor


class Entry(NamedTuple):
    """A call of an operation.

    Attributes
    ----------
    operation
        What GRADIENTS (compute/gradients/records.py) has the gradient of: a plan function, or an object of a class.
    static : tuple
        The arguments beside arrays.
    arrays : tuple of Tensor, numpy.ndarray or None
        Those that the gradient does not read are without memory (Outline).
    live : sequence of int
        The values of the plan's ``Live`` words.
    results : tuple of Tensor
        With memory where the gradient reads them.
    needs : tuple of bool
        Of which arrays gradients are wanted.
    """

    operation: Any
    static: Any
    arrays: tuple
    live: Sequence[int]
    results: tuple
    needs: tuple[bool, ...]


#: What a gradient reads of a call with these static arguments and ``needs``: the numbers of arrays, None for all, and
#: whether the results.
Reads = Callable[[Any, tuple[bool, ...]], tuple[Collection[int] | None, bool]]
#: By an operation, as in Entry, or its class; all of what is not here.
READS: dict[Any, Reads] = {}


class Tape:
    """The calls that depend on some tensors, in their order.

    Attributes
    ----------
    entries : list of Entry
    """

    def __init__(self, tensors: Iterable[Tensor]):
        self.entries: list[Entry] = []
        #: Of what gradients are wanted, and what depends on it.
        self._wanted: set[Outline] = {Outline.of(tensor._storage) for tensor in tensors}
        #: What gradients are computed of.
        self._read: set[Outline] = set()

    def wants(self, array: Any) -> bool:
        """Whether an array is a tensor of which a gradient is wanted."""
        return array.__class__ is Tensor and array._storage.outline in self._wanted and is_float(array._dtype)

    def enter(self, operation: Any, static: Any, arrays: Sequence, live: Sequence[int], results: Sequence) -> None:
        """Note a call, if it is of use."""
        needs = tuple(self.wants(array) for array in arrays)
        gives = [result for result in results if result.__class__ is Tensor and is_float(result._dtype)]
        if not gives or not any(needs):
            return
        asked = READS.get(operation) or READS.get(type(operation))
        reads, reads_results = (None, True) if asked is None else asked(static, needs)
        own = tuple(_kept(array) if reads is None or number in reads else _outlined(array)
                    for number, array in enumerate(arrays))  # fmt: skip
        kept = tuple(results) if reads_results else tuple(map(_outlined, results))
        self.entries.append(Entry(operation, static, own, tuple(live), kept, needs))
        self._wanted.update(Outline.of(result._storage) for result in gives)
        held = (*own, *kept)
        self._read.update(Outline.of(each._storage) for each in held if each.__class__ is Tensor and _has_memory(each))

    def close(self) -> None:
        """Note no more: of the memory only what entries have is held."""
        self._wanted, self._read = set(), set()

    def check_written(self, written: Sequence[Tensor], arrays: Sequence) -> None:
        """Raise GradientError where writing to tensors would make a gradient another's."""
        read = any(tensor._storage.outline in self._read or self.wants(tensor) for tensor in written)
        if read or any(self.wants(array) for array in arrays):
            raise GradientError(
                "a tensor that a gradient depends on is written to in place (x[...] = y, x += y); compute a new one: "
                "x = x + y, grilly.where, grilly.concat or grilly.stack"
            )


def _kept(array: Any) -> Any:
    """An array for later: the host's as it is now."""
    return copy.deepcopy(array) if isinstance(array, (np.ndarray, list)) else array


def _outlined(array: Any) -> Any:
    """A tensor without its memory; other things stay."""
    if array.__class__ is not Tensor:
        return array
    return Tensor(Outline.of(array._storage), array.shape, array.dtype, array._strides, array._offset)


def _has_memory(tensor: Tensor) -> bool:
    return tensor._storage.__class__ is not Outline


class _Open(threading.local):
    """The tapes of a thread that calls are noted on; none within an operation."""

    tapes: tuple[Tape, ...] = ()


OPEN = _Open()


@contextmanager
def noted_on(tapes: tuple[Tape, ...]) -> Iterator[None]:
    """Have calls of this thread noted on these tapes alone."""
    before, OPEN.tapes = OPEN.tapes, tapes
    try:
        yield
    finally:
        OPEN.tapes = before


@contextmanager
def taped(tensors: Iterable[Tensor]) -> Iterator[Tape]:
    """Note on a new tape the calls that depend on tensors, beside the tapes that are open."""
    tape = Tape(tensors)
    try:
        with noted_on((*OPEN.tapes, tape)):
            yield tape
    finally:
        tape.close()


def wanted(*arrays: Any) -> bool:
    """Whether an open tape wants a gradient of one of these."""
    return any(tape.wants(array) for tape in OPEN.tapes for array in arrays)


def refuse_writes(written: Sequence[Tensor], arrays: Sequence = ()) -> None:
    """Raise GradientError where writing to tensors, of what arrays give, would lose or change a wanted gradient."""
    for tape in OPEN.tapes:
        tape.check_written(written, arrays)


def refuse_wanted(operation: str, remedy: str, *arrays: Any) -> None:
    """Raise GradientError where a gradient of one of the arrays is wanted, for an operation that has none."""
    if OPEN.tapes and wanted(*arrays):
        raise GradientError(f"{operation} has no gradient; {remedy}, or grilly.stop_gradient")


def as_one(operation: Any, static: Any, arrays: Sequence, compute: Callable[[], Any], live: Sequence[int] = ()) -> Any:
    """What ``compute`` gives of arrays, a tensor or a sequence of them, as one operation of the tapes.

    ``operation``, ``static`` and ``live`` are as in Entry. Raises GradientError where a gradient is wanted and a result
    is an array of NumPy's, which none goes through.
    """
    tapes = OPEN.tapes
    with noted_on(()):
        found = compute()
    results = (found,) if isinstance(found, (Tensor, np.ndarray)) else found
    if any(isinstance(result, np.ndarray) and is_float(result.dtype) for result in results) and wanted(*arrays):
        raise GradientError("an operation on a Tensor of which a gradient is wanted gives an array of NumPy's: give it "
                            "Tensors alone, or grilly.stop_gradient(x)")  # fmt: skip
    for tape in tapes:
        tape.enter(operation, static, arrays, live, results)
    return found


__all__ = [
    "OPEN", "READS", "Entry", "Reads", "Tape", "as_one", "noted_on", "refuse_wanted", "refuse_writes", "taped",
    "wanted",
]  # fmt: skip
