"""Threads that copy arrays."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .threads import Job, Threads

LARGEST_CHUNK = 4 << 20  # bytes in one piece: large against a submission, small against what is in flight
SMALLEST_CHUNK = 1 << 20
SMALLEST_STORE = 1 << 19  # a thread takes some 30 us to begin


class Copy(Job):
    """One copy of ``source`` to ``target``, which are let go once it is done."""

    __slots__ = ("_arrays",)

    def __init__(self, target: np.ndarray, source: np.ndarray):
        super().__init__()
        self._arrays: tuple | None = (target, source)

    def work(self) -> None:
        np.copyto(*self._arrays)

    def let_go(self) -> None:
        self._arrays = None


class Copier(Threads):
    """Threads that copy arrays. One thread at a time may call it, but for the methods of copies."""

    def __init__(self, threads: int | None = None):
        super().__init__(threads)
        self._copies: list[Copy] = []  # of copy(), under way

    def chunk(self, nbytes: int) -> int:
        """Bytes in one piece of an array of ``nbytes``: a power of two that gives each thread a few."""
        smallest = SMALLEST_CHUNK if nbytes < 8 * SMALLEST_CHUNK else 2 * SMALLEST_CHUNK
        share = max(nbytes // (2 * self.threads), smallest)
        return min(1 << (share.bit_length() - 1), LARGEST_CHUNK) if self.threads > 1 else LARGEST_CHUNK

    def copy(self, target: np.ndarray, source: np.ndarray) -> None:
        """Copy ``source``, of any strides, in C order to the flat ``target`` of its dtype."""
        chunk = self.chunk(source.nbytes)
        if self.threads == 1 or source.nbytes <= chunk:
            np.copyto(target.reshape(source.shape), source)
            return
        place = 0
        for piece in chunks(source, chunk):
            self._copies.append(Copy(target[place : place + piece.size].reshape(piece.shape), piece))
            self.begin(self._copies[-1])
            place += piece.size
        while self._copies:
            self._copies[-1].wait()
            self._copies.pop()

    def store(self, target: np.ndarray, source: np.ndarray, threads: int) -> None:
        """As ``copy``, to memory across a bus: equal parts for this thread and up to ``threads`` - 1 others."""
        count = min(self.threads, threads, source.nbytes // SMALLEST_STORE) if source.flags.c_contiguous else 1
        if count <= 1:
            np.copyto(target.reshape(source.shape), source)
            return
        flat, share = source.reshape(-1), -(-source.size // count)
        for place in range(share, source.size, share):
            self._copies.append(Copy(target[place : place + share], flat[place : place + share]))
            self.begin(self._copies[-1])
        np.copyto(target[:share], flat[:share])
        while self._copies:
            self._copies[-1].wait()
            self._copies.pop()

    def mend(self) -> None:
        """End the copies that an exception left behind."""
        while self._copies:
            self._copies[-1].give_up()
            self._copies.pop()


def chunks(array: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """Views of at most ``most`` bytes (or one element) that make up the array, in C order."""
    if array.nbytes <= most or array.size == 1:
        yield array
        return
    if array.flags.c_contiguous:
        array = array.reshape(-1)
    row = array.nbytes // len(array)
    if row > most:
        for part in array:
            yield from chunks(part, most)
        return
    step = most // row
    for first in range(0, len(array), step):
        yield array[first : first + step]


__all__ = ["LARGEST_CHUNK", "SMALLEST_CHUNK", "Copier", "Copy", "chunks"]
