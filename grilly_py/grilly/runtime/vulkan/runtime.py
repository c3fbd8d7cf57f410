"""VulkanRuntime: the Runtime interface over Device, Pool, Pipelines and Stream."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque

import numpy as np

from ...errors import ClosedError, DeviceLostError, OutOfDeviceMemoryError, UnsupportedError
from ..interface import DeviceInfo, MemoryUse, ProgramSpec, Runtime, Timing
from .device import Device
from .memory import HostMemory, VulkanBuffer, device_pool, host_pool
from .pipelines import Pipelines, VulkanProgram
from .stream import Stream
from .transfer import MAPPED_WRITE, Transfers


class _Parts:
    """Everything that must be released, held apart from the runtime so that a finalizer can reach it."""

    def __init__(self, info: DeviceInfo):
        self.device = Device(info)
        try:
            self.pool = device_pool(self.device)
            self.staging = host_pool(self.device)
            self.host = host_pool(self.device)
            self.pipelines = Pipelines(self.device)
            self.stream = Stream(self.device)
        except BaseException:
            self.device.close()
            raise
        self.garbage: deque[VulkanBuffer] = deque()
        self.host_garbage: deque[VulkanBuffer] = deque()
        self.closed = False
        self._ending = threading.Lock()
        self._ended = False

    def close(self) -> None:
        self.device.wait_idle()
        self.stream.close()
        self.pipelines.close()
        self.staging.close()
        self.pool.close()
        self.closed = True
        self._end()

    def give_back(self, buffer: VulkanBuffer) -> None:
        """Take a host array's memory back; a finalizer calls this at any moment, in any thread."""
        self.host_garbage.append(buffer)
        if self.closed:
            self._end()

    def sweep_host(self) -> None:
        while self.host_garbage:
            self.host.free(self.host_garbage.popleft())

    def _end(self, finalizing=sys.is_finalizing) -> None:
        """Close the device once no array lies in its memory: arrays outlive the backend that made them."""
        # Whoever holds the lock looks again after letting go of it, so an array that goes meanwhile is not missed.
        while not finalizing() and self._ending.acquire(blocking=False):
            try:
                self.sweep_host()
                if self.host.in_use == 0 and not self._ended:
                    self._ended = True
                    self.host.close()
                    self.device.close()
            finally:
                self._ending.release()
            if not self.host_garbage:
                return


class VulkanRuntime(Runtime):
    """A Vulkan device opened with the features grilly uses. See Runtime for the methods."""

    name = "vulkan"

    def __init__(self, device: DeviceInfo):
        self._lock = threading.RLock()
        self._parts: _Parts | None = _Parts(device)
        self._lost: str | None = None
        self._lent = threading.local()  # .buffers: host arrays that work of this thread uses in place
        parts = self._parts
        self._transfers = Transfers(
            parts.stream,
            parts.staging,
            parts,
            lambda pool, nbytes: self._allocate(parts, pool, nbytes, idle=True),
            lambda serial: self._wait(parts.stream, serial),
        )
        self.device = device
        self.features = device.features
        self._finalizer = weakref.finalize(self, _Parts.close, self._parts)

    def _open(self) -> _Parts:
        parts = self._parts
        if parts is None:
            raise ClosedError("this grilly.Compute() is closed; open a new one")
        if self._lost is not None:
            raise DeviceLostError(self._lost)
        return parts

    def _guard(self, error: DeviceLostError) -> DeviceLostError:
        self._lost = str(error)
        return error

    # -- memory ----------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, idle: bool = False) -> VulkanBuffer:
        with self._lock:
            parts = self._open()
            self._sweep(parts)
            # What goes through staging waits for nothing, and may go to memory that is still in use.
            idle = idle and (self.device.unified or nbytes <= MAPPED_WRITE)
            return self._allocate(parts, parts.pool, nbytes, idle)

    def host_array(self, nbytes: int) -> np.ndarray:
        with self._lock:
            parts = self._open()
            parts.sweep_host()
            buffer = self._allocate(parts, parts.host, max(nbytes, 1), idle=True)
            return np.asarray(HostMemory(buffer, parts, parts.give_back))[:nbytes]

    def holds(self, array: np.ndarray) -> bool:
        with self._lock:
            return HostMemory.of(array, self._open()) is not None

    def lend(self, array: np.ndarray) -> tuple[VulkanBuffer, int] | None:
        with self._lock:
            held = HostMemory.of(array, self._open()) if self.device.unified else None
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
            self._lent.buffers = []
            self._wait(stream, max(buffer.serial for buffer in lent))

    def _allocate(self, parts: _Parts, pool, nbytes: int, idle: bool) -> VulkanBuffer:
        stream = parts.stream
        buffer = pool.allocate(nbytes, stream.completed, idle)
        while buffer is None:  # the pool is full of memory that work in flight may use
            before = stream.completed
            self._wait(stream, stream.flush())
            buffer = pool.allocate(nbytes, stream.completed, idle)
            if buffer is None and stream.completed == before:
                raise OutOfDeviceMemoryError(f"{self.device.name} has no room for {nbytes:,} bytes")
        return buffer

    def free(self, buffer: VulkanBuffer) -> None:
        # Called by finalizers at any moment, also within a method of this object: only queue it here.
        parts = self._parts
        if parts is not None and buffer.live:
            buffer.live = False
            parts.garbage.append(buffer)

    @staticmethod
    def _sweep(parts: _Parts) -> None:
        while parts.garbage:
            parts.pool.free(parts.garbage.popleft())

    def _wait(self, stream: Stream, serial: int) -> None:
        try:
            stream.wait(serial)
        except DeviceLostError as error:
            raise self._guard(error) from None

    def write(self, buffer: VulkanBuffer, array: np.ndarray, offset: int = 0, borrow: bool = False) -> None:
        if array.nbytes:
            with self._lock:
                self._open()
                lent = self._transfers.write(buffer, array, offset, borrow)
                if lent is not None:
                    self._lent_here().append(lent)

    def read(self, buffer: VulkanBuffer, out: np.ndarray, offset: int = 0) -> None:
        if out.nbytes:
            with self._lock:
                parts = self._open()
                self._transfers.read(buffer, out, offset)
                self._take_back(parts.stream)

    # -- work ------------------------------------------------------------------------------------------------------

    def program(self, spec: ProgramSpec) -> VulkanProgram:
        with self._lock:
            return self._open().pipelines.get(spec)

    def dispatch(self, program, bindings, push, groups, work: float = 0.0) -> None:
        with self._lock:
            try:
                self._open().stream.dispatch(program, bindings, push, groups, work)
            except DeviceLostError as error:
                raise self._guard(error) from None

    def flush(self) -> None:
        with self._lock:
            parts = self._open()
            try:
                if parts.stream.profiling != "row":  # which is to grow until it is full, or somebody waits
                    parts.stream.flush()
            except DeviceLostError as error:
                raise self._guard(error) from None
            self._take_back(parts.stream)
            self._sweep(parts)

    def synchronize(self) -> None:
        with self._lock:
            parts = self._open()
            self._wait(parts.stream, parts.stream.flush())
            self._take_back(parts.stream)
            self._sweep(parts)

    def profile(self, what: str | None) -> list[Timing]:
        with self._lock:
            parts = self._open()
            if "timestamps" not in self.features:
                raise UnsupportedError(f"profile: {self.device.name} has no timestamps on its compute queue")
            return parts.stream.profile(what)

    def memory(self, reset_peak: bool = False) -> MemoryUse:
        with self._lock:
            parts = self._open()
            self._sweep(parts)
            pool = parts.pool
            if reset_peak:
                pool.peak = pool.in_use
            parts.sweep_host()
            return MemoryUse(pool.in_use, pool.peak, pool.reserved, parts.host.in_use)

    def close(self) -> None:
        with self._lock:
            if self._parts is not None:
                self._parts = None
                self._transfers.close()
                self._finalizer()
