"""VulkanRuntime: the Runtime interface over VulkanDevice, Pool, Pipelines and Stream.

An exception can leave a method at any point: an error of the driver, or an interrupt from the keyboard, which Python
raises between any two steps. So each method says before its first step that it is at work, and after its last that it
is not. Whoever comes next and finds the former mends first: the parts make their books anew from what cannot be torn
(the stream's journal and fences, the pools' sets of live buffers, the threads' copies).
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any, TypeVar

import numpy as np

from ...errors import CaptureError, DeviceLostError, GrillyError, OutOfDeviceMemoryError, UnsupportedError
from ..interface import REENTERED, DeviceInfo, Download, MemoryUse, ProgramSpec, Runtime, Timing
from ..lifetime import CLOSED, FORKED, check_alive, closed, track
from .capture import VulkanCapture
from .device import VulkanDevice
from .graph import RecordedGraphs, VulkanRecording
from .memory import HostMemory, Peak, VulkanBuffer, device_pool, host_pool, passing_pool
from .pipelines import Pipelines, VulkanProgram
from .sharing import VulkanSharing
from .stream import Stream
from .transfer import MAPPED_MOST, MAPPED_WRITE, Transfers, VulkanDownload

NOTHING_RUNS = (
    "a captured function runs nothing yet, so there is nothing to read, to wait for or to time; return the tensors, "
    "and read what the graph gives"
)

Shared = TypeVar("Shared")


class _Parts:
    """Everything that must be released, held apart from the runtime so that a finalizer can reach it."""

    def __init__(self, info: DeviceInfo):
        self.at_work = True  # until the runtime is ready, and while a method runs
        self.closed = False
        self.abandoned = False  # in a forked child: the driver is not to be called again
        self._ending = threading.RLock()
        self._ended = False
        self.device = VulkanDevice(info)
        try:
            self.pool = device_pool(self.device)
            self.staging = host_pool(self.device)
            self.host = host_pool(self.device)
            self.passing = passing_pool(self.device)
            self.pools = [self.pool] if self.passing is None else [self.pool, self.passing]  # of device memory
            self.peak = Peak(*self.pools)
            self.pipelines = Pipelines(self.device)
            self.stream = Stream(self.device)
            self.graphs = RecordedGraphs(self.device)
        except BaseException:
            self.pipelines = self.stream = None
            self.device.close()
            raise

    def mend(self) -> None:
        """After an exception that came between a method's first step and its last. May raise as the device does."""
        if self.device.lost is None:
            self.stream.mend()
            self.graphs.sweep(self.stream.completed)
            for pool in (*self.pools, self.staging, self.host):
                pool.mend()
        self.device.objects.sweep()

    def close(self) -> None:
        """Wait for the device and give everything back but the memory of arrays that are still there."""
        if self.abandoned or sys.is_finalizing():  # too late to call the driver: the system takes it all back
            return
        if not self.closed:
            self.device.wait_idle()
            self.pipelines.close()
            self.graphs.close()
            self.stream.close()
            self.staging.close()
            for pool in self.pools:
                pool.close()
            self.closed = True
        self.end()

    def array_gone(self) -> None:
        """An array's memory is back in its pool; called by a finalizer at any moment, in any thread."""
        if self.closed:
            self.end()

    def end(self, finalizing=sys.is_finalizing) -> None:
        """Close the device once no array lies in its memory: arrays outlive the backend that made them."""
        if finalizing() or self.abandoned:
            return
        with self._ending:
            if not self._ended and self.host.empty:
                self.host.close()
                self.device.close()
                self._ended = True


class VulkanRuntime(Runtime):
    """A Vulkan device opened with the features grilly uses. See Runtime for the methods."""

    name = "vulkan"

    def __init__(self, device: DeviceInfo):
        check_alive()
        self._lock = threading.RLock()
        self._ended = CLOSED  # what is said once there are no parts
        self._captures: dict[int, weakref.ref[VulkanCapture]] = {}  # by thread
        self._lent = threading.local()  # .buffers: host arrays that work of this thread uses in place
        self._parts: _Parts | None = None
        parts = _Parts(device)
        self._finalizer = weakref.finalize(self, _Parts.close, parts)
        self._finalizer.atexit = False  # the end of the interpreter comes through track()
        self._parts = self._left = parts
        self._transfers = Transfers(
            parts.stream,
            parts.staging,
            parts,
            lambda pool, nbytes: self._allocate(parts, pool, nbytes, idle=True),
            parts.stream.wait,
        )
        self.device = device
        self.features = device.features
        parts.at_work = False
        track(self)

    def _open(self) -> _Parts:
        """The parts, in order and marked as at work; the caller holds the lock, and unmarks them at its end."""
        parts = self._parts
        if parts is None:
            raise closed(self._ended)
        if parts.device.lost is not None:
            raise DeviceLostError(parts.device.lost)
        if parts.at_work:
            self._transfers.mend()
            parts.mend()
        parts.at_work = True
        return parts

    def _enter(self) -> threading.RLock:
        """The lock, to be taken by ``with``. Raises GrillyError in the midst of another method of this thread.

        The methods that every call needs do the same themselves, to save the time of calling this.
        """
        if self._lock._is_owned():
            raise GrillyError(REENTERED)
        return self._lock

    # -- memory ----------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, idle: bool = False, passing: bool = False) -> VulkanBuffer:
        if self._lock._is_owned():
            raise GrillyError(REENTERED)
        with self._lock:
            parts = self._open()
            capture = self._captured() if self._captures else None
            if capture is not None and not idle:
                buffer = capture.allocate(nbytes)
                parts.at_work = False
                return buffer
            if passing and idle and capture is None and parts.passing is not None and nbytes <= MAPPED_MOST:
                # Where that memory is full or still in use, the other is as good, but for the way there.
                with contextlib.suppress(OutOfDeviceMemoryError):
                    buffer = parts.passing.allocate(nbytes, parts.stream.completed, idle=True)
                    if buffer is not None:
                        parts.at_work = False
                        return buffer
            # What goes through staging waits for nothing, and may go to memory that is still in use.
            idle = idle and (self.device.unified or nbytes <= MAPPED_WRITE)
            buffer = self._allocate(parts, parts.pool, nbytes, idle)
            if capture is not None:
                capture.fill(buffer)
            parts.at_work = False
            return buffer

    def host_array(self, nbytes: int) -> np.ndarray:
        with self._enter():
            parts = self._open()
            buffer = self._allocate(parts, parts.host, max(nbytes, 1), idle=True)
            array = np.asarray(HostMemory(buffer, parts, parts.array_gone))[:nbytes]
            parts.at_work = False
            return array

    def holds(self, array: np.ndarray) -> bool:
        parts = self._parts
        if parts is None:
            raise closed(self._ended)
        return HostMemory.of(array, parts) is not None

    def lend(self, array: np.ndarray) -> tuple[VulkanBuffer, int] | None:
        parts = self._parts
        if parts is None:
            raise closed(self._ended)
        if self.capturing:  # its contents now are what the graph is to have
            return None
        held = HostMemory.of(array, parts) if self.device.unified else None
        if held is None:
            return None
        memory, place = held
        self._lent_here().append(memory.buffer)
        return memory.buffer, place

    def _lent_here(self) -> list[VulkanBuffer]:
        if not hasattr(self._lent, "buffers"):
            self._lent.buffers = []
        return self._lent.buffers

    def _take_back(self, stream: Stream) -> None:
        """Wait for this thread's work on the arrays it lent, which are then the caller's to change again."""
        lent = getattr(self._lent, "buffers", None)
        if lent:
            stream.wait(max(buffer.suballocation.serial for buffer in lent))
            self._lent.buffers = []

    def _allocate(self, parts: _Parts, pool, nbytes: int, idle: bool) -> VulkanBuffer:
        stream = parts.stream
        if parts.graphs.gone:
            parts.graphs.sweep(stream.completed)
        try:
            buffer = pool.allocate(nbytes, stream.completed, idle)
        except OutOfDeviceMemoryError:
            lent = stream.interop is not None and stream.interop.leaving
            if not parts.graphs.gone and not lent:
                raise
            if lent:
                stream.interop.settle()
            stream.wait(stream.flush())  # for replays of graphs that nobody has any more
            parts.graphs.sweep(stream.completed)
            buffer = pool.allocate(nbytes, stream.completed, idle)
        while buffer is None:  # the pool is full of memory that work in flight may use
            before = stream.completed
            stream.wait(stream.flush())
            buffer = pool.allocate(nbytes, stream.completed, idle)
            if buffer is None and stream.completed == before:
                raise OutOfDeviceMemoryError(f"{self.device.name} has no room for {nbytes:,} bytes")
        return buffer

    def free(self, buffer: VulkanBuffer) -> None:
        parts = self._parts
        if parts is not None:
            pool = parts.pool if parts.passing is None or not parts.passing.has(buffer) else parts.passing
            pool.free(buffer)

    def write(self, buffer: VulkanBuffer, array: np.ndarray, offset: int = 0, borrow: bool = False) -> None:
        if array.nbytes:
            with self._enter():
                parts = self._open()
                capture = self._captured() if self._captures else None
                if capture is not None:
                    borrow = False
                    if not capture.fills(buffer):  # where others would see it, or work that comes before
                        target, buffer = buffer, self._allocate(parts, parts.pool, array.nbytes, idle=True)
                        capture.filled.add(buffer)
                        capture.copy(buffer, target, offset, array.nbytes)
                        offset = 0
                lent = self._transfers.write(buffer, array, offset, borrow)
                if lent is not None:
                    self._lent_here().append(lent)
                parts.at_work = False

    def read(self, buffer: VulkanBuffer, out: np.ndarray, offset: int = 0) -> None:
        if out.nbytes:
            with self._enter():
                self._refuse()
                parts = self._open()
                self._transfers.read(buffer, out, offset)
                self._take_back(parts.stream)
                parts.at_work = False

    def download(self, buffer: VulkanBuffer, nbytes: int, offset: int = 0) -> VulkanDownload:
        with self._enter():
            self._refuse()
            parts = self._open()
            found = self._transfers.download(buffer, nbytes, offset)
            self._take_back(parts.stream)
            parts.at_work = False
            return found

    def collect(self, download: Download, out: np.ndarray) -> None:
        assert isinstance(download, VulkanDownload)
        with self._enter():
            parts = self._open()
            self._transfers.collect(download, out)
            parts.at_work = False

    # -- work ------------------------------------------------------------------------------------------------------

    def program(self, spec: ProgramSpec) -> VulkanProgram:
        with self._enter():
            parts = self._open()
            held = self._captures.get(get_ident())  # also while what was captured is put in order
            capture = None if held is None else held()
            program = parts.pipelines.get(spec, later=capture is not None and not capture.aside)
            parts.at_work = False
            return program

    def dispatch(self, program, bindings, push, groups, seconds: float = 0.0) -> None:
        if self._lock._is_owned():
            raise GrillyError(REENTERED)
        with self._lock:
            parts = self._open()
            capture = self._captured() if self._captures else None
            (parts.stream if capture is None else capture).dispatch(program, bindings, push, groups, seconds)
            parts.at_work = False

    def dispatch_together(self, dispatches) -> None:
        with self._enter():
            parts = self._open()
            if self.capturing:
                for arguments in dispatches:
                    self._captured().dispatch(*arguments)
            else:
                parts.stream.dispatch_together(dispatches)
            parts.at_work = False

    def flush(self) -> None:
        if self._lock._is_owned():
            raise GrillyError(REENTERED)
        with self._lock:
            parts = self._open()
            if self._captures and self._captured() is not None:
                parts.at_work = False
                return
            # A row is to grow until it is full, or somebody waits, as another interface to the device does.
            if parts.stream.profiling != "row" or parts.stream.meets:
                parts.stream.hand_on()
            self._take_back(parts.stream)
            parts.at_work = False

    def synchronize(self) -> None:
        with self._enter():
            self._refuse()
            parts = self._open()
            parts.stream.wait(parts.stream.flush())
            if parts.stream.interop is not None and parts.stream.interop.leaving:
                parts.stream.interop.settle()
            if parts.graphs.gone:
                parts.graphs.sweep(parts.stream.completed)
            self._take_back(parts.stream)
            parts.at_work = False

    def share(self) -> VulkanSharing:
        with self._enter():
            self._refuse()
            parts = self._open()
            if not parts.device.external.memories:
                parts.at_work = False
                raise UnsupportedError(
                    f"share: {self.device.name} ({self.device.driver}) has no memory that CUDA or HIP can import: that "
                    "needs VK_KHR_external_memory_fd, and NVIDIA's own driver, or an AMD GPU and PyTorch for ROCm "
                    "imported before the backend is used"
                )
            sharing = VulkanSharing(self.shared, parts.device)
            parts.at_work = False
            return sharing

    def shared(self, work: Callable[..., Shared], *arguments: Any) -> Shared:
        """What ``work(parts, *arguments)`` gives, under the lock, for VulkanSharing.

        Raises as every method does, and in a captured function.
        """
        with self._enter():
            self._refuse()
            parts = self._open()
            found = work(parts, *arguments)
            parts.at_work = False
            return found

    def profile(self, what: str | None) -> list[Timing]:
        with self._enter():
            self._refuse()
            parts = self._open()
            if "timestamps" not in self.features:
                parts.at_work = False
                raise UnsupportedError(f"profile: {self.device.name} has no timestamps on its compute queue")
            timings = parts.stream.profile(what)
            parts.at_work = False
            return timings

    def memory(self, reset_peak: bool = False) -> MemoryUse:
        with self._enter():
            parts = self._open()
            if parts.stream.interop is not None and parts.stream.interop.leaving:
                parts.stream.interop.settle()
            if parts.graphs.gone:
                parts.stream.poll()
                parts.graphs.sweep(parts.stream.completed)
            if reset_peak:
                parts.peak.reset()
            in_use, reserved = sum(pool.in_use for pool in parts.pools), sum(pool.reserved for pool in parts.pools)
            use = MemoryUse(in_use, parts.peak.nbytes, reserved, parts.host.in_use)
            parts.at_work = False
            return use

    # -- capture and replay ----------------------------------------------------------------------------------------

    def _captured(self) -> VulkanCapture | None:
        """What captures this thread's work now."""
        held = self._captures.get(get_ident())
        capture = None if held is None else held()
        return capture if capture is not None and capture.active and not capture.aside else None

    def _refuse(self) -> None:
        if self.capturing:
            raise CaptureError(NOTHING_RUNS)

    @property
    def capturing(self) -> bool:
        return bool(self._captures) and self._captured() is not None

    def capture(self) -> VulkanCapture:
        with self._enter():
            parts = self._open()
            parts.at_work = False
            thread, captures = get_ident(), self._captures
            held = captures.get(thread)
            former = None if held is None else held()
            if former is not None and former.active:
                raise CaptureError("a captured function cannot capture another; call that one instead")
            capture = VulkanCapture()

            def gone(end: weakref.ref) -> None:
                if captures.get(thread) is end:
                    del captures[thread]

            captures[thread] = weakref.ref(capture, gone)
            return capture

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        capture = self._captured() if self._captures else None
        if capture is not None:
            capture.aside += 1
        try:
            yield
        finally:
            if capture is not None:
                capture.aside -= 1

    def record(self, capture: VulkanCapture) -> VulkanRecording:
        with self._enter():
            self._refuse()
            if capture.aside:  # an interrupt came while what is kept was made, and the function went on
                raise CaptureError("the captured function was interrupted and did not end there; capture it again")
            parts = self._open()
            recording = parts.graphs.record(
                capture,
                parts.stream,
                lambda nbytes: self._allocate(parts, parts.pool, nbytes, idle=False),
                parts.pool.largest,
            )
            self._captures.pop(get_ident(), None)
            parts.at_work = False
            return recording

    def replay(self, recording: VulkanRecording, arguments, results, before=(), behind=()) -> None:
        with self._enter():
            if self.capturing:
                raise CaptureError("a graph cannot be replayed in a captured function; call what it was captured from")
            parts = self._open()
            stream = parts.stream
            if parts.graphs.gone:
                parts.graphs.sweep(stream.completed)
            begun = recording.recorded.begun
            former, begun.yet = begun.yet, True  # its arguments and results are copied through its memory
            try:
                for buffer, source, offset, nbytes in arguments:
                    if source.__class__ is VulkanBuffer:
                        stream.copy(source, offset, buffer, 0, nbytes)
                    else:
                        self._transfers.put(buffer, source)
                stream.dispatch_together(before)
                after = [(source, start, target, 0, nbytes) for source, start, target, nbytes in results]
                stream.replay(recording.recorded, after)
                stream.dispatch_together(behind)
            except BaseException:
                begun.yet = former
                raise
            if stream.profiling != "row" or stream.meets:
                stream.flush()
            self._take_back(stream)
            parts.at_work = False

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        with self._enter():
            if self._parts is not None:
                self._close()
            elif not self._left.abandoned:
                self._left.end()  # where an interrupt fell into the finalizer of the last array

    def _close(self) -> None:
        parts = self._parts
        with contextlib.suppress(GrillyError):  # there is nobody to tell
            self._transfers.mend()
        self._transfers.close()
        parts.close()
        self._parts = None  # last: an interrupted close can be called again
        self._finalizer.detach()

    def end(self, patience: float) -> None:
        """See lifetime.Mortal."""
        parts = self._parts
        if parts is None:
            return
        parts.stream.ending = True
        if self._lock._is_owned() or not self._lock.acquire(timeout=patience):
            return
        try:
            if self._parts is not None:
                self._close()
        finally:
            self._lock.release()

    def before_fork(self) -> None:
        """See lifetime.Mortal."""
        self._lock.acquire()
        parts = self._parts
        if parts is not None:
            parts.pipelines.settle()
        # A CPU's driver works in threads of this process, and a child would inherit what they have locked.
        if parts is not None and self.device.kind == "cpu" and parts.device.lost is None:
            parts.device.wait_idle()

    def after_fork(self, child: bool) -> None:
        """See lifetime.Mortal."""
        if not child:
            if self._lock._is_owned():
                self._lock.release()
            return
        self._lock = threading.RLock()
        self._ended = FORKED
        if self._parts is not None:
            self._parts.abandoned = True
            self._finalizer.detach()
            _abandoned.append((self._parts, self._transfers))
            self._parts = None


#: What forked children inherited, kept so that nothing of it is ever finalized.
_abandoned: list = []
