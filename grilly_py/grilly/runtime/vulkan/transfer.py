"""Moving NumPy arrays into and out of device memory at the speed of the bus.

One thread copies slower than a bus moves data, and a large array fresh from the system has no memory behind it until
it is first touched. So large arrays go in chunks: several threads copy (NumPy lets go of the interpreter meanwhile, and
the first touch is theirs too) while earlier chunks travel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from ..interface import Download
from .copier import SMALLEST_CHUNK, Copier, Copy, chunks
from .memory import HostMemory, Pool, VulkanBuffer
from .stream import Stream

MAPPED_WRITE = 1 << 20  # bytes up to which storing across the bus beats a copy by the device
MAPPED_MOST = 16 << 20  # the same where threads share it, into memory that holds nothing else
STORING = 3  # threads that then store at once: the bus takes no more
BORROWED_WRITE = 1 << 16  # the same where the copy needs no wait of its own
LANDING = 16  # chunks of a download that may be under way


class VulkanDownload(Download):
    """The memory of the host that bytes are copied to, and the submission that copies them."""

    __slots__ = ("staging", "serial")

    staging: VulkanBuffer
    serial: int


class Transfers:
    """Copies between NumPy arrays and the buffers of one runtime, whose lock the caller holds.

    Parameters
    ----------
    stream : Stream
        Where copies by the device are recorded.
    staging : Pool
        Host memory for chunks on their way.
    owner : object
        What ``HostMemory.owner`` is for the runtime's own host arrays.
    allocate, wait : callable
        The runtime's: idle memory from a pool, and waiting for a serial.
    """

    def __init__(self, stream: Stream, staging: Pool, owner: object, allocate: Callable, wait: Callable):
        self._stream = stream
        self._staging = staging
        self._owner = owner
        self._allocate = allocate
        self._wait = wait
        self._chunks: deque[tuple] = deque()  # under way: first the copy by the host, then the staging
        self._arriving: deque[tuple] = deque()
        self.copier = Copier()

    # -- to the device ---------------------------------------------------------------------------------------------

    def write(self, buffer: VulkanBuffer, array: np.ndarray, offset: int, borrow: bool) -> VulkanBuffer | None:
        """Runtime.write; returns the buffer behind an array that is still on its way."""
        stream = self._stream
        if array.dtype.isbuiltin == 2:  # a type from outside NumPy: its bits are copied without the interpreter's lock
            array = array.view(f"u{array.itemsize}")
        if not buffer.suballocation.block.readable and array.nbytes > (BORROWED_WRITE if borrow else MAPPED_WRITE):
            held = HostMemory.of(array, self._owner)
            if held is not None:
                memory, place = held
                stream.copy(memory.buffer, place, buffer, offset, array.nbytes)
                if borrow:
                    return memory.buffer
                self._wait(stream.flush())  # from here on the array is the caller's again
                return None
        if self._maps_write(buffer, array.nbytes):
            suballocation = buffer.suballocation
            if (last := suballocation.last) > stream.completed:
                self._wait(last)
            target = np.frombuffer(suballocation.block.view, array.dtype, array.size, suballocation.start + offset)
            if suballocation.block.readable:
                self.copier.copy(target, array)
            else:
                self.copier.store(target, array, STORING)
            return None
        chunk = self.copier.chunk(array.nbytes)
        if array.nbytes <= chunk:
            self._through_staging(buffer, array, offset)
            return None
        copying = self._chunks
        try:
            for part in chunks(array, chunk):
                staging = self._allocate(self._staging, chunk)
                target = _shown(staging, part.dtype, part.size).reshape(part.shape)
                copying.append((Copy(target, part), staging, offset, part.nbytes))
                self.copier.begin(copying[-1][0])
                offset += part.nbytes
                if len(copying) > 2 * self.copier.threads or self.copier.threads == 1:
                    self._send(buffer)
            while copying:
                self._send(buffer)
        except BaseException:
            self.mend()  # now, so that the chunks' memory is free; if this is interrupted too, before the next call
            raise
        return None

    def put(self, buffer: VulkanBuffer, array: np.ndarray) -> None:
        """Write to a buffer that work in flight may use, without waiting for it where the array is not large."""
        if array.nbytes > SMALLEST_CHUNK or buffer.suballocation.last <= self._stream.completed:
            self.write(buffer, array, 0, False)
        else:
            self._through_staging(buffer, array, 0)

    def _through_staging(self, buffer: VulkanBuffer, array: np.ndarray, offset: int) -> None:
        staging = self._allocate(self._staging, array.nbytes)
        np.copyto(_shown(staging, array.dtype, array.size).reshape(array.shape), array)
        self._stream.copy(staging, 0, buffer, offset, array.nbytes)
        self._staging.free(staging)

    def _send(self, buffer: VulkanBuffer) -> None:
        copy, staging, offset, nbytes = self._chunks[0]
        copy.wait()
        self._stream.copy(staging, 0, buffer, offset, nbytes, keep=False)
        self._chunks.popleft()
        self._staging.free(staging)
        self._stream.flush()

    def _maps_write(self, buffer: VulkanBuffer, nbytes: int) -> bool:
        """Whether the host writes straight into the buffer's memory instead of through staging."""
        if buffer.suballocation.block.view is None or buffer.suballocation.shared:
            return False
        if buffer.suballocation.block.readable:
            return True
        # Across a bus: one thread's stores pay for little data, and only where there is nothing to wait for.
        most = MAPPED_WRITE if buffer.suballocation.block.exported or self.copier.threads == 1 else MAPPED_MOST
        return nbytes <= most and buffer.suballocation.last <= self._stream.completed

    # -- to the host -----------------------------------------------------------------------------------------------

    def read(self, buffer: VulkanBuffer, out: np.ndarray, offset: int) -> None:
        """Runtime.read."""
        stream = self._stream
        target = out.reshape(-1).view(np.uint8)
        suballocation = buffer.suballocation
        if suballocation.block.readable:
            if suballocation.shared:
                stream.interop.settle()
            self._wait(suballocation.last)
            self.copier.copy(
                target, np.frombuffer(suballocation.block.view, np.uint8, target.size, suballocation.start + offset)
            )
            return
        if (held := HostMemory.of(out, self._owner)) is not None:
            memory, place = held
            stream.copy(buffer, offset, memory.buffer, place, target.size)
            self._wait(stream.flush())
            return
        chunk = self.copier.chunk(target.size)
        if target.size <= chunk:
            staging = self._allocate(self._staging, target.size)
            stream.copy(buffer, offset, staging, 0, target.size)
            self._wait(stream.flush())
            np.copyto(target, _shown(staging, np.uint8, target.size))
            self._staging.free(staging)
            return
        travelling: deque[tuple] = deque()  # (serial, staging, where in the target)
        try:
            for first in range(0, target.size, chunk):
                where = target[first : first + chunk]
                staging = self._allocate(self._staging, chunk)
                stream.copy(buffer, offset + first, staging, 0, where.size, keep=False)
                travelling.append((stream.flush(), staging, where))
                if len(travelling) > LANDING // 2:
                    self._land(travelling)
            while travelling:
                self._land(travelling)
            while self._arriving:
                self._landed()
        except BaseException:
            travelling.clear()
            self.mend()
            raise

    def download(self, buffer: VulkanBuffer, nbytes: int, offset: int) -> VulkanDownload:
        """Runtime.download."""
        staging = self._allocate(self._staging, nbytes)
        self._stream.copy(buffer, offset, staging, 0, nbytes)
        found = VulkanDownload(nbytes)
        found.staging, found.serial = staging, self._stream.flush()
        return found

    def collect(self, download: VulkanDownload, out: np.ndarray) -> None:
        """Runtime.collect."""
        self._wait(download.serial)
        self.copier.copy(out.reshape(-1).view(np.uint8), _shown(download.staging, np.uint8, download.nbytes))

    def _land(self, travelling: deque) -> None:
        serial, staging, where = travelling[0]
        self._wait(serial)
        landing = self._arriving
        landing.append((Copy(where, _shown(staging, np.uint8, where.size)), staging))
        self.copier.begin(landing[-1][0])
        travelling.popleft()
        while len(landing) > LANDING or (landing and landing[0][0].done):
            self._landed()

    def _landed(self) -> None:
        copy, staging = self._arriving[0]
        copy.wait()
        self._arriving.popleft()
        self._staging.free(staging)

    def mend(self) -> None:
        """After an exception: no thread may go on writing to memory that others will get."""
        self.copier.mend()
        for under_way in (self._chunks, self._arriving):
            while under_way:
                under_way[0][0].give_up()
                under_way.popleft()

    def close(self) -> None:
        """End the threads."""
        self.copier.close()


def _shown(buffer: VulkanBuffer, dtype, count: int) -> np.ndarray:
    """A mapped buffer's first ``count`` elements as an array."""
    return np.frombuffer(buffer.suballocation.block.view, dtype, count, buffer.suballocation.start)


__all__ = ["MAPPED_MOST", "MAPPED_WRITE", "Transfers", "VulkanDownload"]
