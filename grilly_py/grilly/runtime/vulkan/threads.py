"""Threads that do jobs, and that an interrupt at any moment leaves in order.

``concurrent.futures`` is no help here: an interrupt between taking a lock of its own and the ``with`` that would give
it back leaves the lock taken for good (its ``submit`` then waits for ever), and one inside ``result()`` comes out as a
RuntimeError. What is used here instead is done inside C, where no signal is handled: ``SimpleQueue``,
``dict.setdefault`` and plain locks.
"""

from __future__ import annotations

import _thread
import os
from queue import SimpleQueue

MOST_THREADS = 8


def usable_processors() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Job:
    """Something that a thread does once. A subclass has ``work``, and ``let_go`` of what is needed for it.

    It is written down where it will be waited for before it is begun: then no interrupt can lose it.
    """

    __slots__ = ("done", "_claim", "_ended", "_error")

    def __init__(self) -> None:
        self.done = False
        self._claim: dict[str, str] = {}  # who has it, for good: the first to say so
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        self._error: BaseException | None = None

    def work(self) -> None:
        """What is to be done."""
        raise NotImplementedError

    def let_go(self) -> None:
        """What it was done with is the owner's again."""

    def run(self) -> None:
        """Do it, in this thread."""
        self.work()
        self.let_go()
        self.done = True

    def run_in_thread(self) -> None:
        """Do it, unless it was given up meanwhile. Such a thread gets no signals."""
        if self._claim.setdefault("by", "thread") == "thread":
            try:
                self.work()
            except BaseException as error:
                self._error = error
            self.let_go()
            self.done = True
            self._ended.release()

    def wait(self) -> None:
        """Wait until it is done; raises what it raised."""
        while not self.done:
            self._ended.acquire()
        if self._error is not None:
            raise self._error

    @property
    def given_up(self) -> bool:
        """Whether nobody will do it any more."""
        return self._claim.get("by") == "nobody"

    def give_up(self) -> None:
        """Keep it from beginning, or wait for its end where it has begun."""
        if not self.done and self._claim.setdefault("by", "nobody") == "thread":
            while not self.done:
                self._ended.acquire()
        self.let_go()


def _work(queue: SimpleQueue) -> None:
    while (job := queue.get()) is not None:
        job.run_in_thread()
        del job  # an idle thread must hold nobody's array
    queue.put(None)  # for the next thread


class Threads:
    """Threads for jobs. With one or two processors there are none: they would only take turns.

    One thread at a time may call it, but for Job's methods.
    """

    def __init__(self, threads: int | None = None):
        if threads is None:
            processors = usable_processors()
            threads = min(MOST_THREADS, processors) if processors > 2 else 1
        self.threads = threads
        self._queue: SimpleQueue | None = None
        self._begun = 0  # threads; an interrupt can only make it one too few

    def begin(self, job: Job) -> None:
        """Let a thread do it, or do it now where there are none."""
        if self.threads == 1:
            job.run()
            return
        if self._queue is None:
            self._queue = SimpleQueue()
        while self._begun < self.threads:
            try:
                # Not threading.Thread, whose start() waits with locks like those of concurrent.futures.
                _thread.start_new_thread(_work, (self._queue,))
            except RuntimeError:  # no thread is to be had, or the interpreter is ending
                if not self._begun:
                    job.run()
                    return
                break
            self._begun += 1
        self._queue.put(job)

    def close(self) -> None:
        """End the threads."""
        if self._queue is not None:
            self._queue.put(None)
            self._queue, self._begun = None, 0

    __del__ = close


__all__ = ["Job", "Threads", "usable_processors"]
