"""VulkanRuntime: the Runtime interface over Device, Pool, Pipelines and Stream."""

from __future__ import annotations

import threading
import weakref
from collections import deque

import numpy as np

from ...errors import ClosedError, DeviceLostError, OutOfDeviceMemoryError, UnsupportedError
from ..interface import DeviceInfo, MemoryUse, ProgramSpec, Runtime, Timing
from .device import Device
from .memory import VulkanBuffer, device_pool, staging_pool
from .pipelines import Pipelines, VulkanProgram
from .stream import Stream

MAPPED_WRITE = 1 << 20  # bytes up to which storing across the bus beats a copy by the device
CHUNK = 16 << 20  # staging goes in pieces, so that the host's copy overlaps the device's


class _Parts:
    """Everything that must be released, held apart from the runtime so that a finalizer can reach it."""

    def __init__(self, info: DeviceInfo):
        self.device = Device(info)
        try:
            self.pool = device_pool(self.device)
            self.staging = staging_pool(self.device)
            self.pipelines = Pipelines(self.device)
            self.stream = Stream(self.device)
        except BaseException:
            self.device.close()
            raise
        self.garbage: deque[VulkanBuffer] = deque()

    def close(self) -> None:
        self.device.wait_idle()
        self.stream.close()
        self.pipelines.close()
        self.staging.close()
        self.pool.close()
        self.device.close()


class VulkanRuntime(Runtime):
    """A Vulkan device opened with the features grilly uses. See Runtime for the methods."""

    name = "vulkan"

    def __init__(self, device: DeviceInfo):
        self._lock = threading.RLock()
        self._parts: _Parts | None = _Parts(device)
        self._lost: str | None = None
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

    def allocate(self, nbytes: int) -> VulkanBuffer:
        with self._lock:
            parts = self._open()
            self._sweep(parts)
            return self._allocate(parts, parts.pool, nbytes, idle=False)

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

    def write(self, buffer: VulkanBuffer, array: np.ndarray, offset: int = 0) -> None:
        if array.nbytes == 0:
            return
        with self._lock:
            parts = self._open()
            stream = parts.stream
            if self._maps_write(buffer, array.nbytes, stream):
                if buffer.serial > stream.completed:
                    self._wait(stream, buffer.serial)
                begin = buffer.start + offset
                target = np.frombuffer(buffer.block.view, array.dtype, array.size, begin)
                np.copyto(target.reshape(array.shape), array)
                return
            if array.nbytes > CHUNK and not array.flags.c_contiguous:
                array = np.ascontiguousarray(array)
            flat = array.reshape(-1) if array.flags.c_contiguous else array
            step = max(CHUNK // array.itemsize, 1) if flat.ndim == 1 else array.size
            for first in range(0, array.size, step):
                piece = flat[first : first + step] if flat.ndim == 1 else flat
                staging = self._allocate(parts, parts.staging, piece.nbytes, idle=True)
                target = np.frombuffer(staging.block.view, piece.dtype, piece.size, staging.start)
                np.copyto(target.reshape(piece.shape), piece)
                stream.copy(staging, 0, buffer, offset + first * array.itemsize, piece.nbytes)
                parts.staging.free(staging)
                if array.size > step:
                    stream.flush()

    @staticmethod
    def _maps_write(buffer: VulkanBuffer, nbytes: int, stream: Stream) -> bool:
        """Whether the host writes straight into the buffer's memory instead of through staging."""
        if buffer.block.view is None:
            return False
        if buffer.block.readable:
            return True
        # Across a bus: one thread's stores pay for little data, and only where there is nothing to wait for.
        return nbytes <= MAPPED_WRITE and buffer.serial <= stream.completed

    def read(self, buffer: VulkanBuffer, out: np.ndarray, offset: int = 0) -> None:
        if out.nbytes == 0:
            return
        target = out.reshape(-1).view(np.uint8)
        with self._lock:
            parts = self._open()
            stream = parts.stream
            if buffer.block.readable:
                self._wait(stream, buffer.serial)
                begin = buffer.start + offset
                np.copyto(target, np.frombuffer(buffer.block.view, np.uint8, target.size, begin))
                return
            pieces = []
            for first in range(0, target.size, CHUNK):
                size = min(CHUNK, target.size - first)
                staging = self._allocate(parts, parts.staging, size, idle=True)
                stream.copy(buffer, offset + first, staging, 0, size)
                pieces.append((stream.flush(), staging, first, size))
                if len(pieces) > 4:
                    self._take(parts, pieces.pop(0), target)
            for piece in pieces:
                self._take(parts, piece, target)

    def _take(self, parts: _Parts, piece: tuple, target: np.ndarray) -> None:
        serial, staging, first, size = piece
        self._wait(parts.stream, serial)
        np.copyto(target[first : first + size], np.frombuffer(staging.block.view, np.uint8, size, staging.start))
        parts.staging.free(staging)

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
                parts.stream.flush()
            except DeviceLostError as error:
                raise self._guard(error) from None
            self._sweep(parts)

    def synchronize(self) -> None:
        with self._lock:
            parts = self._open()
            self._wait(parts.stream, parts.stream.flush())
            self._sweep(parts)

    def profile(self, on: bool) -> list[Timing]:
        with self._lock:
            parts = self._open()
            if "timestamps" not in self.features:
                raise UnsupportedError(f"profile: {self.device.name} has no timestamps on its compute queue")
            return parts.stream.profile(on)

    def memory(self, reset_peak: bool = False) -> MemoryUse:
        with self._lock:
            parts = self._open()
            self._sweep(parts)
            pool = parts.pool
            if reset_peak:
                pool.peak = pool.in_use
            return MemoryUse(pool.in_use, pool.peak, pool.reserved)

    def close(self) -> None:
        with self._lock:
            if self._parts is not None:
                self._parts = None
                self._finalizer()
