"""Where work of this device's queue and that of another interface to the device meet: at the queue's submissions.

A submission that uses shared memory waits for a value of the other interface's timeline, which the other interface's
stream reaches after all that it was given before; every submission has the queue's own timeline reach its serial, for
which the other interface's stream waits. Where timelines cannot be exported the host waits in both places.

So does it for a moment where they can: work that the other side waits for begins hundreds of microseconds late (H200),
work that is submitted when there is nothing to wait for does not.
"""

from __future__ import annotations

from collections.abc import Callable

from ..sharing import Interop, Loan
from .api import ffi, lib
from .objects import Handle

#: Seconds for which the host waits before it leaves waiting to the device.
MOMENT = 1e-3


class InteropOrder:
    """The order between a stream and another interface. The caller holds the runtime's lock.

    Parameters
    ----------
    interop : Interop
    ours, theirs : Handle or None
        The timelines; None where there are none.
    """

    def __init__(self, interop: Interop, ours: Handle | None, theirs: Handle | None):
        self.interop = interop
        self._streams: set[int] = set()  # that the next submission meets
        self._met: set[int] = set()  # that the present one does
        self._leaving: list[Loan] = []
        self._timelines = (ours, theirs) if ours is not None and theirs is not None else None
        if self._timelines is not None:
            self._wait_values = ffi.new("uint64_t[1]")
            self._signal_values = ffi.new("uint64_t[1]")
            self._waits = ffi.new("VkSemaphore[1]", [theirs.value])
            self._signals = ffi.new("VkSemaphore[1]", [ours.value])
            self._stages = ffi.new("VkPipelineStageFlags[1]", [lib.VK_PIPELINE_STAGE_ALL_COMMANDS_BIT])
            self._values = ffi.new("VkTimelineSemaphoreSubmitInfo*")
            self._values.sType = lib.VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO
            self._values.pWaitSemaphoreValues = self._wait_values
            self._values.pSignalSemaphoreValues = self._signal_values
            self._values.signalSemaphoreValueCount = 1

    @property
    def meets(self) -> bool:
        """Whether the next submission meets a stream."""
        return bool(self._streams)

    @property
    def leaving(self) -> bool:
        """Whether loans have ended whose buffers are still kept."""
        return bool(self.interop.gone)

    def meet(self, stream: int | None = None) -> None:
        """Have the next submission come after what a stream has to do; the calling thread's where None is named."""
        self._streams.add(self.interop.current() if stream is None else stream)

    def arrive(self, submit, serial: int) -> None:
        """Before a submission: say what it waits for, and that it has the serial."""
        gone = self.interop.gone
        # Noted before the streams are asked: what they say then covers all work with these buffers.
        self._leaving = [gone[place] for place in range(len(gone))]
        self._met = set(self._streams)
        streams = self._met.union(loan.stream for loan in self._leaving)
        if self._timelines is None:
            if streams:
                self.interop.settle(streams)
            return
        count = 0
        if streams and not self.interop.idle(streams, MOMENT):
            self._wait_values[0] = self.interop.signal(streams)
            count = 1
        self._signal_values[0] = serial
        self._values.waitSemaphoreValueCount = count
        submit.pNext = self._values
        submit.waitSemaphoreCount = count
        submit.pWaitSemaphores = self._waits
        submit.pWaitDstStageMask = self._stages
        submit.signalSemaphoreCount = 1
        submit.pSignalSemaphores = self._signals

    def depart(self, serial: int, finished: Callable[[int, float], bool]) -> bool:
        """After the driver has taken the submission: have the other interface go on behind it; True where the host must
        wait.

        ``finished`` says whether a submission has, at the latest after so many seconds.
        """
        met = self._met
        if met and self._timelines is not None and not finished(serial, MOMENT):
            self.interop.wait(met, serial)
        self._streams -= met
        for loan in self._leaving:
            loan.buffer.suballocation.serial = max(loan.buffer.suballocation.serial, serial)
        self._end(self._leaving)
        self._leaving = []
        self._met = set()
        return bool(met) and self._timelines is None

    def settle(self) -> None:
        """Wait for the other interface: for this thread's stream, and for those of loans that ended, which are then
        over."""
        gone = self.interop.gone
        leaving = [gone[place] for place in range(len(gone))]
        self.interop.settle({self.interop.current(), *(loan.stream for loan in leaving)})
        self._end(leaving)

    def _end(self, loans: list[Loan]) -> None:
        """Forget loans, which are the first in the other interface's list of those that ended."""
        gone = self.interop.gone
        for loan in loans:
            self.interop.ended(loan)
            if gone and gone[0] is loan:
                gone.popleft()


__all__ = ["InteropOrder"]
