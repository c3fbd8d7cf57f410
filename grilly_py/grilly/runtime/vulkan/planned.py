"""Where the buffers of a graph lie: which may share memory, and where each begins.

Numbers only, so that it can be tested without a device. Commands between two barriers may run at once, so time is
counted in barriers: two buffers share memory only where a barrier that is there anyway lies between the last use of one
and the first use of the other. Sharing then never makes a dispatch wait.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable, Sequence


def levels(commands: Iterable[Sequence[tuple[object, int, int, bool]]]) -> list[int]:
    """How many barriers come before each command.

    A command is a list of its uses of memory: (what, start, end, whether it writes), where only uses of one ``what``
    can overlap. A barrier comes before a command that reads what was written since the last one, or writes what was
    touched since.
    """
    level = 0
    touched: dict[int, list[tuple[int, int, bool]]] = {}
    found = []
    for uses in commands:
        if any(
            start < stop and begin < end and (writes or wrote)
            for what, start, end, writes in uses
            for begin, stop, wrote in touched.get(id(what), ())
        ):
            level += 1
            touched.clear()
        for what, start, end, writes in uses:
            touched.setdefault(id(what), []).append((start, end, writes))
        found.append(level)
    return found


class _Arena:
    """Memory that grows as it must, with its holes by where they begin."""

    def __init__(self) -> None:
        self.size = 0
        self._holes: list[tuple[int, int]] = []

    def take(self, size: int, most: int) -> int | None:
        """The beginning of so many bytes in the smallest hole that holds them, or at the end; None beyond ``most``."""
        fits = [(length, start) for start, length in self._holes if length >= size]
        if fits:
            length, start = min(fits)
            self._holes.remove((start, length))
            if length > size:
                insort(self._holes, (start + size, length - size))
            return start
        start = self.size
        if self._holes and sum(self._holes[-1]) == self.size:
            start = self._holes[-1][0]
        if start + size > most:
            return None
        if start < self.size:
            self._holes.pop()
        self.size = start + size
        return start

    def give(self, start: int, length: int) -> None:
        """Take bytes back, and join the holes beside them."""
        insort(self._holes, (start, length))
        at = self._holes.index((start, length))
        if at + 1 < len(self._holes) and start + length == self._holes[at + 1][0]:
            length += self._holes.pop(at + 1)[1]
        if at and sum(self._holes[at - 1]) == start:
            at -= 1
            start, length = self._holes[at][0], length + self._holes.pop(at)[1]
        self._holes[at] = (start, length)


def _taken(arenas: list[_Arena], size: int, most: int) -> tuple[int, int]:
    """So many bytes of the first arena that has them, or of a new one: its number, and where they begin."""
    for number, arena in enumerate(arenas):
        if (start := arena.take(size, most)) is not None:
            return number, start
    arena = _Arena()
    arenas.append(arena)
    return len(arenas) - 1, arena.take(size, max(most, size)) or 0


def places(wanted: Sequence[tuple[float, float, int]], most: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Places for buffers in as little memory as comes of it.

    Parameters
    ----------
    wanted : sequence of (first, last, bytes)
        The levels of a buffer's first and last use, both included.
    most : int
        Bytes of one arena at most, but for a buffer that is larger by itself.

    Returns
    -------
    list of (arena, start), list of int
        Of each buffer, and the arenas' sizes.
    """
    arenas: list[_Arena] = []
    found: list[tuple[int, int]] = [(0, 0)] * len(wanted)
    ends: list[tuple[float, int]] = []
    for number in sorted(range(len(wanted)), key=lambda n: (wanted[n][0], -wanted[n][2])):
        first, last, size = wanted[number]
        while ends and ends[0][0] < first:
            gone = heapq.heappop(ends)[1]
            arena, start = found[gone]
            arenas[arena].give(start, wanted[gone][2])
        found[number] = _taken(arenas, size, most)
        heapq.heappush(ends, (last, number))
    return found, [arena.size for arena in arenas]


__all__ = ["levels", "places"]
