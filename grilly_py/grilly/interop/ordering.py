"""DriverInterop: a runtime's memory in a driver's address space, and order between its streams and the runtime's
work."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from ..runtime.sharing import Interop, Loan, Sharing
from .driver import Box, Driver


class _Memory:
    """Memory in the driver's address space, given back when this goes."""

    __slots__ = ("__weakref__",)


class _End(weakref.ref):
    """What is left of it then."""

    __slots__ = ("memory", "address")

    memory: Box
    address: Box


class Mapped:
    """An allocation of the runtime's, imported. It lasts as long as the allocation and the loans that lie in it."""

    __slots__ = ("address", "_memory", "_sweep")

    def __init__(self, memory: _Memory, sweep: Callable[[], None]):
        self.address = 0
        self._memory: _Memory | None = memory
        self._sweep = sweep

    def __del__(self):
        if getattr(self, "_memory", None) is not None:
            self._memory = None  # noted as gone
            self._sweep()


def _close(driver: Driver, timelines: tuple[Box, Box], streams: tuple[Box], process: int) -> None:
    if not sys.is_finalizing() and os.getpid() == process:
        driver.close(timelines, streams)


class DriverInterop(Interop):
    """CUDA or HIP as the other interface of a runtime's memory.

    Parameters
    ----------
    driver : Driver
        On the runtime's GPU.
    sharing : Sharing
        The runtime's.
    current : callable
        The driver's stream that the calling thread gives work to, as a number.
    """

    def __init__(self, driver: Driver, sharing: Sharing, current: Callable[[], int]):
        self.driver, self.timelines = driver, driver.timelines
        self.gone: deque[Loan] = deque()
        self._sharing = sharing
        self._current = current
        self._lock = threading.RLock()  # of imports
        self._loans: set[Loan] = set()
        self._mapped: set[_End] = set()
        self._unmapped: deque[_End] = deque()
        self._process = os.getpid()
        # Of the driver's timeline. An interrupt in a call that signals leaves _value beyond _signalled: then nobody
        # knows whether the signaller will bring the timeline to _value.
        self._value = 0  # that was given out last
        self._signalled = 0  # that it will reach
        self._signaller = 0  # the stream that brings it there, and what that is given now comes after it
        self._given = threading.local()  # .waits: the streams that were made to wait last, and for what
        self._timelines: tuple[int, int] | None = None
        self._own_stream = Box()
        boxes = Box(), Box()
        self._end = weakref.finalize(self, _close, driver, boxes, (self._own_stream,), self._process)
        self._end.atexit = False
        descriptors = sharing.connect(self)
        if descriptors is not None:
            try:
                for descriptor, box in zip(descriptors, boxes, strict=True):
                    driver.import_timeline(descriptor, box)
            except BaseException:
                sharing.part()
                raise
            self._timelines = boxes[0].value, boxes[1].value

    def own_stream(self) -> int:
        """A stream that nobody else uses, made at the first call."""
        with self._lock:
            if not self._own_stream.value:
                self.driver.make_stream(self._own_stream)
            return self._own_stream.value

    # -- what the runtime asks -------------------------------------------------------------------------------------

    def current(self) -> int:
        return self._current()

    def signal(self, streams: set[int]) -> int:
        if self._value != self._signalled:  # another value on the same stream is reached either way, and later
            self._signal(self._signaller)
        for stream in streams:
            self._signal(stream)
        return self._signalled

    def _signal(self, stream: int) -> None:
        assert self._timelines is not None
        theirs = self._timelines[1]
        if self._signalled and stream != self._signaller:
            # The timeline may only go up, whichever stream is quicker.
            self.driver.wait(theirs, self._signalled, stream)
        # Both are noted before the call: an interrupt may come in it, before or after the driver has taken it.
        self._signaller = stream
        self._value += 1
        self.driver.signal(theirs, self._value, stream)
        self._signalled = self._value

    def wait(self, streams: set[int], serial: int) -> None:
        assert self._timelines is not None
        for stream in streams:
            self.driver.wait(self._timelines[0], serial, stream)
        self._given.waits = streams, serial

    def idle(self, streams: set[int], seconds: float) -> bool:
        for stream in streams:
            if not self.driver.idle(stream, seconds):
                return False
        return True

    def settle(self, streams: set[int]) -> None:
        for stream in streams:
            self.driver.settle(stream)

    def ended(self, loan: Loan) -> None:
        self._loans.discard(loan)

    # -- what lends ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Forget which waits the calling thread has given out: a stream's number may be another stream's by now."""
        self._given.waits = None

    def place(self, buffer: Any, stream: int, writes: bool = False) -> tuple[int, Mapped]:
        """A buffer's address for the driver, and what it lies in; work that the stream is given now may use it at once.

        With a stream of -1 no stream is made to wait. ``writes`` says that the stream is about to write there, for
        which the runtime's next submission is to wait whatever becomes of the call. Raises as ``Sharing.lend``, and
        GrillyError when the driver fails.
        """
        place = self._sharing.lend(buffer, stream if writes else None)
        mapped = place.foreign
        if mapped is None:
            mapped = self._map(buffer)
        assert isinstance(mapped, Mapped)
        if place.serial and self._timelines is not None and stream >= 0:
            given = getattr(self._given, "waits", None)
            if given is None or stream not in given[0] or given[1] < place.serial:
                self.wait({stream}, place.serial)
        return mapped.address + place.start, mapped

    def _map(self, buffer: Any) -> Mapped:
        with self._lock:
            place = self._sharing.lend(buffer)
            if place.foreign is not None:  # another thread was here meanwhile
                assert isinstance(place.foreign, Mapped)
                return place.foreign
            held = _Memory()
            end = _End(held, self._unmapped.append)
            end.memory, end.address = Box(), Box()
            self._mapped.add(end)
            mapped = Mapped(held, self._sweep)
            self.driver.import_memory(self._sharing.export(place.block), end.memory, end.address)
            mapped.address = end.address.value
            self._sharing.keep(place.block, mapped)
            return mapped

    def lend(self, holder: object, buffer: Any, kept: object, stream: int) -> None:
        """Keep a buffer for the driver until the holder goes and what the stream was given before that has run."""
        loan = Loan(holder, self.gone.append)
        loan.buffer, loan.kept, loan.stream = buffer, kept, stream
        self._loans.add(loan)

    def _sweep(self) -> None:
        """Unmap what nobody refers to any more; called by a finalizer at any moment, in any thread."""
        if sys.is_finalizing() or os.getpid() != self._process:
            return
        while self._unmapped:
            with contextlib.suppress(IndexError):
                end = self._unmapped.popleft()
                self._mapped.discard(end)
                self.driver.free_memory(end.memory, end.address)


__all__ = ["DriverInterop", "Mapped"]
