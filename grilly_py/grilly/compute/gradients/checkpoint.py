"""Functions whose inside is computed again when gradients are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..device.dtypes import is_float
from ..device.plan import bounds
from ..device.tape import OPEN, Entry, Tape, noted_on, taped
from ..device.tensor import Outline, Tensor, contiguous_strides
from ..random import Sequence as Draws
from ..structures import tensors
from .pull import pulled
from .records import gradient_of
from .repeated import once


class _Probe(Tape):
    """Notes no calls, only which memory that other tapes want gradients of is read."""

    def __init__(self, tapes: tuple[Tape, ...]):
        super().__init__(())
        self._tapes = tapes
        self.found: dict[Outline, list[Tensor]] = {}

    def wants(self, array: Any) -> bool:
        """Whether an array is of a tape's memory, or was computed of it here."""
        return super().wants(array) or any(tape.wants(array) for tape in self._tapes)

    def enter(self, operation: Any, static: Any, arrays: Sequence, live: Sequence[int], results: Sequence) -> None:
        """Note what is read of the tapes' memory."""
        if not any(map(self.wants, arrays)):
            return
        for array in arrays:
            if any(tape.wants(array) for tape in self._tapes):
                _hold(self.found.setdefault(Outline.of(array._storage), []), once(array))
        for result in results:
            if isinstance(result, Tensor) and is_float(result.dtype):
                self._wanted.add(Outline.of(result._storage))


def _hold(held: list[Tensor], array: Tensor) -> None:
    """Add a view to those of its memory, none of which has places of another; all of the memory where it has."""
    if any((one.shape, one._strides, one._offset) == (array.shape, array._strides, array._offset) for one in held):
        return
    low, high = bounds(array)
    apart = all(high <= first or last <= low for first, last in map(bounds, held))
    held[:] = [*held, array] if apart else [_whole(array)]


def _whole(tensor: Tensor) -> Tensor:
    """All memory of a tensor, as one axis."""
    shape = (tensor._storage.nbytes // tensor.dtype.itemsize,)
    return Tensor(tensor._storage, shape, tensor.dtype, contiguous_strides(shape))


class _Again:
    """The operation that a call of such a function is."""

    def __init__(self, function: Callable[..., Any], arguments: tuple, named: Mapping[str, Any], draws: Draws):
        self._function, self._arguments, self._named, self._draws = function, arguments, named, draws

    def __call__(self) -> list[Tensor]:
        """The function's results once more."""
        with self._draws.again():
            return tensors(self._function(*self._arguments, **self._named))


@gradient_of(_Again)
def _pull(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    with taped(entry.arrays) as tape:
        results = entry.operation()
    pairs = [pair for pair in zip(results, gradients, strict=True) if pair[1] is not None]
    return pulled(tape.entries, [one for one, _ in pairs], [one for _, one in pairs], entry.arrays)


def checkpointed(function: Callable[..., Any], arguments: tuple, named: Mapping[str, Any]) -> Any:
    """What a function gives of arguments; on the tapes it is one operation, which calls the function again."""
    tapes = OPEN.tapes
    if not tapes:
        return function(*arguments, **named)
    draws, probe = Draws(), _Probe(tapes)
    with noted_on((probe,)):
        found = function(*arguments, **named)
    again = _Again(function, arguments, named, draws)
    for tape in tapes:
        tape.enter(again, (), [view for held in probe.found.values() for view in held], (), tensors(found))
    return found


__all__ = ["checkpointed"]
