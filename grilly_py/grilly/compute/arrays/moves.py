"""Copies of captured work that are left out: what they would move is written where it goes.

An optimizer copies each gradient to its place in one array, ``concat`` each array to its part of the result. Where
nothing but the copy reads an array once it is made, the commands that make it are bound to its place in the other
array instead, and the copy goes. The commands stay the same, and so do the bits.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...runtime.interface import Capture
from ..device.device import Device, Noted
from ..device.plan import Move
from ..device.tensor import reshaped
from .fusion import replace

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


def skip_copies(device: Device, captured: Capture) -> None:
    """Leave out copies between arrays that nothing but captured work refers to."""
    commands, facts = captured.commands, device.facts
    noted = ((number, _Copy.of(one, commands[number])) for number, one in sorted(captured.operations.items()))
    copies = {number: copy for number, copy in noted if copy is not None
              and captured.private(copy.source) and captured.private(copy.target)}  # fmt: skip
    if not copies or not facts.windows:
        return
    users: dict[Any, set[int]] = defaultdict(set)
    for number, command in enumerate(commands):
        for memory, *_ in _uses(command):
            users[memory].add(number)
    # Of each target: what copies, or commands in their stead, write there, and their numbers.
    places: dict[Any, list[Range]] = defaultdict(list)
    known: dict[Any, set[int]] = defaultdict(set)
    skipped: dict[int, list] = {}
    for number, copy in copies.items():
        source, target, makers = copy.source, copy.target, users[copy.source] - {number}
        if not makers:  # of what nobody has written
            continue
        shift = copy.written[0] - copy.read[0]
        ranges = [part for maker in makers for memory, *part in _uses(commands[maker]) if memory is source]
        place = min(low for low, _ in ranges) + shift, max(high for _, high in ranges) + shift
        before = {user for user in users[target] if user < number}
        fits = (
            source is not target and max(makers) < number and before <= known[target]
            and shift % facts.alignment == 0 and place[0] >= 0 and place[1] <= copy.room
            and all(place[1] <= low or high <= place[0] for low, high in places[target])
        )  # fmt: skip
        places[target].append(place if fits else copy.written)
        known[target] |= makers if fits else {number}
        if fits:
            for maker in makers:
                commands[maker] = _rebound(commands[maker], source, target, shift)
            users[target] |= users.pop(source) - {number}
            users[target].discard(number)
            skipped[number] = []
    replace(captured, skipped)


def _uses(command: tuple) -> Iterator[tuple[Any, int, int]]:
    """The memory that a command uses, with the first byte and that behind the last."""
    if command[0] is None:
        _, source, start, target, begin, nbytes = command
        yield source, start, start + nbytes
        yield target, begin, begin + nbytes
    else:
        for binding in command[1]:
            if binding is not None:
                yield binding[0], binding[1], binding[1] + binding[2]


def _rebound(command: tuple, source: Any, target: Any, shift: int) -> tuple:
    """The command with one memory in place of another, so many bytes further on."""

    def moved(memory: Any, start: int) -> tuple[Any, int]:
        return (target, start + shift) if memory is source else (memory, start)

    if command[0] is None:
        return (None, *moved(*command[1:3]), *moved(*command[3:5]), command[5])
    bindings = tuple(None if binding is None else (*moved(*binding[:2]), binding[2]) for binding in command[1])
    return (command[0], bindings, *command[2:])


__all__ = ["skip_copies"]
