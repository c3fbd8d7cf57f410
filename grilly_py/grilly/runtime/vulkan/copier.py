"""Threads that copy arrays, and that an interrupt at any moment leaves in order.

``concurrent.futures`` is no help here: an interrupt between taking a lock of its own and the ``with`` that would give
it back leaves the lock taken for good (its ``submit`` then waits for ever), and one inside ``result()`` comes out as a
RuntimeError. What is used here instead is done inside C, where no signal is handled: ``SimpleQueue``,
``dict.setdefault`` and plain locks.
"""

from __future__ import annotations

import _thread
import os
from collections.abc import Iterator
from queue import SimpleQueue

import numpy as np

LARGEST_CHUNK = 4 << 20  # bytes in one piece: large against a submission, small against what is in flight
SMALLEST_CHUNK = 1 << 20
MOST_THREADS = 8


def usable_processors() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Copy:
    """One copy of ``source`` to ``target``, which are let go once it is done.

    It is written down where it will be waited for before it is begun: then no interrupt can lose it.
    """

    __slots__ = ("done", "_arrays", "_claim", "_ended", "_error")

    def __init__(self, target: np.ndarray, source: np.ndarray):
        self.done = False
        self._arrays: tuple | None = (target, source)
        self._claim: dict[str, str] = {}  # who has it, for good: the first to say so
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Copy, in this thread."""
        np.copyto(*self._arrays)
        self._arrays, self.done = None, True

    def run_in_thread(self) -> None:
        """Copy, unless it was given up meanwhile. Such a thread gets no signals."""
        if self._claim.setdefault("by", "thread") == "thread":
            try:
                np.copyto(*self._arrays)
            except BaseException as error:
                self._error = error
            self._arrays, self.done = None, True
            self._ended.release()

    def wait(self) -> None:
        """Wait until it is done; raises what it raised."""
        while not self.done:
            self._ended.acquire()
        if self._error is not None:
            raise self._error

    def give_up(self) -> None:
        """Keep it from beginning, or wait for its end where it has begun."""
        if not self.done and self._claim.setdefault("by", "nobody") == "thread":
            while not self.done:
                self._ended.acquire()
        self._arrays = None


def _work(queue: SimpleQueue) -> None:
    while (copy := queue.get()) is not None:
        copy.run_in_thread()
        del copy  # an idle thread must hold nobody's array
    queue.put(None)  # for the next thread


class Copier:
    """Threads that copy arrays. With one or two processors there are none: they would only take turns.

    One thread at a time may call it, but for Copy's methods.
    """

    def __init__(self, threads: int | None = None):
        if threads is None:
            processors = usable_processors()
            threads = min(MOST_THREADS, processors) if processors > 2 else 1
        self.threads = threads
        self._queue: SimpleQueue | None = None
        self._begun = 0  # threads; an interrupt can only make it one too few
        self._copies: list[Copy] = []  # of copy(), under way

    def begin(self, copy: Copy) -> None:
        """Let a thread do it, or do it now where there are none."""
        if self.threads == 1:
            copy.run()
            return
        if self._queue is None:
            self._queue = SimpleQueue()
        while self._begun < self.threads:
            try:
                # Not threading.Thread, whose start() waits with locks like those of concurrent.futures.
                _thread.start_new_thread(_work, (self._queue,))
            except RuntimeError:  # no thread is to be had, or the interpreter is ending
                if not self._begun:
                    copy.run()
                    return
                break
            self._begun += 1
        self._queue.put(copy)

    def chunk(self, nbytes: int) -> int:
        """Bytes in one piece of an array of ``nbytes``: a power of two that gives each thread a few."""
        share = max(nbytes // (2 * self.threads), SMALLEST_CHUNK)
        return min(1 << (share.bit_length() - 1), LARGEST_CHUNK) if self.threads > 1 else LARGEST_CHUNK

    def copy(self, target: np.ndarray, source: np.ndarray) -> None:
        """Copy ``source``, of any strides, in C order to the flat ``target`` of its dtype."""
        chunk = self.chunk(source.nbytes)
        if self.threads == 1 or source.nbytes <= chunk:
            np.copyto(target.reshape(source.shape), source)
            return
        place = 0
        for piece in pieces(source, chunk):
            self._copies.append(Copy(target[place : place + piece.size].reshape(piece.shape), piece))
            self.begin(self._copies[-1])
            place += piece.size
        while self._copies:
            self._copies[-1].wait()
            self._copies.pop()

    def mend(self) -> None:
        """End the copies that an exception left behind."""
        while self._copies:
            self._copies[-1].give_up()
            self._copies.pop()

    def close(self) -> None:
        """End the threads."""
        if self._queue is not None:
            self._queue.put(None)
            self._queue, self._begun = None, 0

    __del__ = close


def pieces(array: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """Views of at most ``most`` bytes (or one element) that make up the array, in C order."""
    if array.nbytes <= most or array.size == 1:
        yield array
        return
    if array.flags.c_contiguous:
        array = array.reshape(-1)
    row = array.nbytes // len(array)
    if row > most:
        for part in array:
            yield from pieces(part, most)
        return
    step = most // row
    for first in range(0, len(array), step):
        yield array[first : first + step]


__all__ = ["LARGEST_CHUNK", "SMALLEST_CHUNK", "Copier", "Copy", "pieces", "usable_processors"]
