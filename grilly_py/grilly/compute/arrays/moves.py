"""Copies of captured work that are left out: what they would move is written where it goes.

An optimizer copies each gradient to its place in one array, ``concat`` each array to its part of the result. Where
nothing but the copy reads an array once it is made, the commands that make it are bound to its place in the other
array instead, and the copy goes. The commands stay the same, and so do the bits.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, NamedTuple

from ...runtime.interface import Capture
from ..device.device import Device, Noted
from ..device.plan import Move
from ..device.tensor import reshaped
from .fusion import replace, uses

#: Bytes of memory, from the first to behind the last.
Range = tuple[int, int]


class _Copy(NamedTuple):
    """A copy as it was captured, of elements that lie side by side in the same order here and there.

    Attributes
    ----------
    source, target : memory
    read, written : Range
    room : int
        Where the target ends.
    """

    source: Any
    read: Range
    target: Any
    written: Range
    room: int

    @classmethod
    def of(cls, noted: Noted, command: tuple) -> _Copy | None:
        """The copy of which this was noted; None for another."""
        operation = noted.operation
        if not isinstance(operation, Move):
            return None
        (x,), y = operation.arrays, operation.result
        count, size = math.prod(y.shape), y.dtype.itemsize
        if any(reshaped(view.shape, view._strides, (count,)) != (1,) for view in (x, y)):
            return None
        bindings = [binding for binding in command[1] if binding is not None]
        (source, start, _), (target, begin, nbytes) = bindings[0], bindings[-1]
        first, to = (at + size * offset for at, offset in zip((start, begin), noted.offsets, strict=True))
        return cls(source, (first, first + size * count), target, (to, to + size * count), begin + nbytes)

    @property
    def shift(self) -> int:
        """How many bytes further on the elements lie in the target."""
        return self.written[0] - self.read[0]


def skip_copies(device: Device, captured: Capture) -> None:
    """Leave out copies between arrays that nothing but captured work refers to."""
    commands = captured.commands
    noted = ((number, _Copy.of(one, commands[number])) for number, one in sorted(captured.operations.items()))
    copies = {number: copy for number, copy in noted if copy is not None
              and captured.private(copy.source) and captured.private(copy.target)}  # fmt: skip
    if copies and device.facts.windows:
        work = _Work(commands, device.facts.alignment)
        replace(captured, {number: [] for number, copy in copies.items() if work.skips(number, copy)})


class _Work:
    """Captured commands, whose memory is another where a copy was left out.

    Attributes
    ----------
    commands : list of tuple
    alignment : int
        Of what is bound, in bytes.
    users : dict of memory to set of int
        The commands that use it.
    places, known : dict of memory to list of Range, and to set of int
        Where copies, or commands in their stead, write to a target, and these commands.
    """

    def __init__(self, commands: list[tuple], alignment: int):
        self.commands, self.alignment = commands, alignment
        self.users: dict[Any, set[int]] = defaultdict(set)
        self.places: dict[Any, list[Range]] = defaultdict(list)
        self.known: dict[Any, set[int]] = defaultdict(set)
        for number, command in enumerate(commands):
            for memory, *_ in uses(command):
                self.users[memory].add(number)

    def skips(self, number: int, copy: _Copy) -> bool:
        """Whether a copy may be left out; what makes its source writes to the target then."""
        source, target, makers = copy.source, copy.target, self.users[copy.source] - {number}
        if not makers:  # of what nobody has written
            return False
        place = self._place(number, copy, makers)
        self.places[target].append(copy.written if place is None else place)
        self.known[target] |= {number} if place is None else makers
        if place is None:
            return False
        for maker in makers:
            self.commands[maker] = _rebound(self.commands[maker], source, target, copy.shift)
        self.users[target] |= self.users.pop(source) - {number}
        self.users[target].discard(number)
        return True

    def _place(self, number: int, copy: _Copy, makers: set[int]) -> Range | None:
        """Where these commands, which use the source beside the copy, can write in the target; None for nowhere."""
        ranges = [part for maker in makers for memory, part, *_ in uses(self.commands[maker]) if memory is copy.source]
        low, high = (limit + copy.shift for limit in (min(low for low, _ in ranges), max(high for _, high in ranges)))
        before = {user for user in self.users[copy.target] if user < number}
        fits = (
            copy.source is not copy.target and max(makers) < number and before <= self.known[copy.target]
            and copy.shift % self.alignment == 0 and low >= 0 and high <= copy.room
            and all(high <= first or last <= low for first, last in self.places[copy.target])
        )  # fmt: skip
        return (low, high) if fits else None


def _rebound(command: tuple, source: Any, target: Any, shift: int) -> tuple:
    """The command with one memory in place of another, so many bytes further on."""

    def moved(memory: Any, start: int) -> tuple[Any, int]:
        return (target, start + shift) if memory is source else (memory, start)

    if command[0] is None:
        return (None, *moved(*command[1:3]), *moved(*command[3:5]), command[5])
    bindings = tuple(None if binding is None else (*moved(*binding[:2]), binding[2]) for binding in command[1])
    return (command[0], bindings, *command[2:])


__all__ = ["skip_copies"]
