"""Device memory: large blocks from the driver, cut into buffers.

Each block carries one VkBuffer, so a grilly buffer is (block, offset). A freed piece waits in a bin for its exact size,
with the serial of the last submission that may still use it. Reuse by later device work is safe at once (the queue
runs in order and the stream puts barriers between conflicting uses); the host must wait for the serial.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict, deque
from collections.abc import Callable

import numpy as np

from ...errors import OutOfDeviceMemoryError
from ..interface import Buffer
from .api import NULL, check, ffi, lib, out
from .device import Device

ALIGNMENT = 256  # at least every device's minStorageBufferOffsetAlignment
BLOCK = 64 << 20


class Block:
    """One allocation of the driver with a VkBuffer over all of it, mapped if asked and the memory type allows."""

    __slots__ = ("buffer", "memory", "nbytes", "view", "readable", "holes", "dedicated")

    def __init__(self, device: Device, nbytes: int, wishes: tuple[int, ...], dedicated: bool, mapped: bool):
        info = ffi.new("VkBufferCreateInfo*")
        info.sType = lib.VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO
        info.size = nbytes
        info.usage = (
            lib.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
            | lib.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
            | lib.VK_BUFFER_USAGE_TRANSFER_DST_BIT
        )
        info.sharingMode = lib.VK_SHARING_MODE_EXCLUSIVE
        buffer = out("VkBuffer")
        check(lib.vkCreateBuffer(device.handle, info, NULL, buffer), "vkCreateBuffer")
        self.buffer = buffer[0]
        self.nbytes = nbytes
        self.dedicated = dedicated
        self.view = None
        needs = out("VkMemoryRequirements")
        lib.vkGetBufferMemoryRequirements(device.handle, self.buffer, needs)
        index, flags = device.memory_type(needs.memoryTypeBits, *wishes)
        request = ffi.new("VkMemoryAllocateInfo*")
        request.sType = lib.VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO
        request.allocationSize = needs.size
        request.memoryTypeIndex = index
        memory = out("VkDeviceMemory")
        result = lib.vkAllocateMemory(device.handle, request, NULL, memory)
        if result < 0:
            lib.vkDestroyBuffer(device.handle, self.buffer, NULL)
            check(result, "vkAllocateMemory")
        self.memory = memory[0]
        check(lib.vkBindBufferMemory(device.handle, self.buffer, self.memory, 0), "vkBindBufferMemory")
        coherent = lib.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | lib.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
        if mapped and flags & coherent == coherent:
            pointer = out("void*")
            check(lib.vkMapMemory(device.handle, self.memory, 0, nbytes, 0, pointer), "vkMapMemory")
            self.view = ffi.buffer(pointer[0], nbytes)
        # Reading write-combined memory takes microseconds a cache line: there only writes go through the mapping.
        self.readable = self.view is not None and bool(flags & lib.VK_MEMORY_PROPERTY_HOST_CACHED_BIT)
        self.holes = [(0, nbytes)]

    def take(self, nbytes: int) -> int | None:
        """Cut ``nbytes`` from the first hole that fits."""
        for i, (start, length) in enumerate(self.holes):
            if length >= nbytes:
                if length == nbytes:
                    del self.holes[i]
                else:
                    self.holes[i] = (start + nbytes, length - nbytes)
                return start
        return None

    def give(self, start: int, length: int) -> None:
        """Return a piece and join it with the holes beside it."""
        insort(self.holes, (start, length))
        joined = []
        for begin, size in self.holes:
            if joined and joined[-1][0] + joined[-1][1] == begin:
                joined[-1] = (joined[-1][0], joined[-1][1] + size)
            else:
                joined.append((begin, size))
        self.holes = joined

    def close(self, device: Device) -> None:
        """Give the block back to the driver."""
        self.view = None
        lib.vkDestroyBuffer(device.handle, self.buffer, NULL)
        lib.vkFreeMemory(device.handle, self.memory, NULL)


class VulkanBuffer(Buffer):
    """A piece of a block. ``serial`` is the last submission that may use it."""

    __slots__ = ("block", "start", "size", "serial", "live")

    def __init__(self, nbytes: int, block: Block, start: int, size: int, serial: int):
        super().__init__(nbytes)
        self.block = block
        self.start = start
        self.size = size
        self.serial = serial
        self.live = True


class HostMemory:
    """Bytes that the host and the device both address, shown to NumPy; given back when the last array over them goes.

    NumPy keeps this object as the base of the arrays made of it, which is how ``of`` recognises them.
    """

    __slots__ = ("buffer", "address", "owner", "_give_back", "__array_interface__")

    def __init__(self, buffer: VulkanBuffer, owner: object, give_back: Callable[[VulkanBuffer], None]):
        self.buffer = buffer
        self.owner = owner
        self.address = int(ffi.cast("uintptr_t", ffi.from_buffer(buffer.block.view))) + buffer.start
        self._give_back = give_back
        self.__array_interface__ = {
            "version": 3, "typestr": "|u1", "shape": (buffer.nbytes,), "data": (self.address, False),
        }  # fmt: skip

    def __del__(self):
        give_back = getattr(self, "_give_back", None)
        if give_back is not None:
            give_back(self.buffer)

    @staticmethod
    def of(array: np.ndarray, owner: object) -> tuple[HostMemory, int] | None:
        """The memory of ``owner`` that a C-contiguous array lies in, with the array's place there in bytes; or None."""
        base = array.base
        while isinstance(base, np.ndarray):
            base = base.base
        if type(base) is not HostMemory or base.owner is not owner or not array.flags.c_contiguous:
            return None
        return base, array.__array_interface__["data"][0] - base.address


class Pool:
    """Buffers of one kind of memory: the device's for tensors, or the host's.

    ``mapped`` says whether the host addresses it, where its memory type lets it.
    """

    def __init__(self, device: Device, wishes: tuple[int, ...], heap_bytes: int, mapped: bool = True):
        self._device = device
        self._wishes = wishes
        self._heap = heap_bytes
        self._mapped = mapped
        self._largest = int(device.info.limits.get("allocation") or heap_bytes)
        self._blocks: list[Block] = []
        self._bins: dict[int, deque] = defaultdict(deque)
        self.in_use = 0
        self.peak = 0
        self.reserved = 0

    @staticmethod
    def _round(nbytes: int) -> int:
        step = ALIGNMENT if nbytes <= 1 << 16 else 1 << 12
        return -(-nbytes // step) * step

    def allocate(self, nbytes: int, completed: int, idle: bool = False) -> VulkanBuffer | None:
        """A buffer, or None when the pool must wait for the device before it can say whether there is room.

        ``completed`` is the last finished submission; with ``idle`` only memory that no submission uses will do.
        """
        size = self._round(nbytes)
        found = self._bins.get(size)
        if found and (not idle or found[0][2] <= completed):
            # The newest where the device's order makes it safe: a repeated call then finds the same buffers, and with
            # them its descriptors and its recording. The oldest where the host must find it finished.
            block, start, serial = found.popleft() if idle else found.pop()
        else:
            block, start, serial = self._fresh(size, nbytes, completed)
            if block is None:
                return None
        self.in_use += size
        if self.in_use > self.peak:
            self.peak = self.in_use
        return VulkanBuffer(nbytes, block, start, size, serial)

    def _fresh(self, size: int, nbytes: int, completed: int):
        for collected in (False, True):
            if collected:
                self._collect(completed)
            for block in self._blocks:
                if not block.dedicated and (start := block.take(size)) is not None:
                    return block, start, 0
        self._release()
        dedicated = size > BLOCK // 2
        want = size if dedicated else BLOCK
        if want > self._largest or self.reserved + want > self._heap:
            if self._pending():
                return None, 0, 0
            raise self._full(nbytes)
        try:
            block = Block(self._device, want, self._wishes, dedicated, self._mapped)
        except OutOfDeviceMemoryError:
            if self._pending():
                return None, 0, 0
            raise self._full(nbytes) from None
        self._blocks.append(block)
        self.reserved += want
        return block, block.take(size), 0

    def _full(self, nbytes: int) -> OutOfDeviceMemoryError:
        return OutOfDeviceMemoryError(
            f"{self._device.info.name} has no room for {nbytes:,} bytes: {self.in_use:,} are in use, {self.reserved:,} "
            f"reserved, of {self._heap:,}; one allocation may take {self._largest:,}. Free tensors, or work on fewer "
            "batches or heads at a time."
        )

    def _pending(self) -> bool:
        return any(self._bins.values())

    def _collect(self, completed: int) -> None:
        """Return finished pieces to their blocks."""
        for size, pieces in list(self._bins.items()):
            waiting = deque()
            for block, start, serial in pieces:
                if serial <= completed:
                    block.give(start, size)
                else:
                    waiting.append((block, start, serial))
            if waiting:
                self._bins[size] = waiting
            else:
                del self._bins[size]

    def _release(self) -> None:
        """Give blocks that are whole back to the driver."""
        for block in [b for b in self._blocks if b.holes == [(0, b.nbytes)]]:
            self._blocks.remove(block)
            self.reserved -= block.nbytes
            block.close(self._device)

    def free(self, buffer: VulkanBuffer) -> None:
        """Take back a buffer whose ``serial`` says when it was last used."""
        self.in_use -= buffer.size
        self._bins[buffer.size].append((buffer.block, buffer.start, buffer.serial))

    def close(self) -> None:
        """Give all memory back to the driver."""
        for block in self._blocks:
            block.close(self._device)
        self._blocks.clear()
        self._bins.clear()
        self.in_use = self.reserved = 0


def device_pool(device: Device) -> Pool:
    """Memory for tensors: device-local, and mapped too where the host can address all of it.

    That is so on processors, integrated GPUs, and discrete GPUs with a resizable BAR; without one only a window of 256
    MB can be addressed, which is not worth spending on tensors.
    """
    local = lib.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
    host = lib.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | lib.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
    cached = lib.VK_MEMORY_PROPERTY_HOST_CACHED_BIT
    plain, _ = device.memory_type(0xFFFFFFFF, local, 0)
    mapped, flags = device.memory_type(0xFFFFFFFF, local | host | cached, local | host, 0)
    wishes = (local, 0)
    if flags & (local | host) == local | host and device.heap_bytes(mapped) >= device.heap_bytes(plain):
        wishes = (local | host | cached, local | host, local)
    return Pool(device, wishes, device.heap_bytes(plain))


def host_pool(device: Device) -> Pool:
    """Host memory that the device copies to and from, for staging and for arrays."""
    host = lib.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | lib.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
    wishes = (host | lib.VK_MEMORY_PROPERTY_HOST_CACHED_BIT, host)
    index, _ = device.memory_type(0xFFFFFFFF, *wishes)
    return Pool(device, wishes, device.heap_bytes(index))


__all__ = ["HostMemory", "Pool", "VulkanBuffer", "device_pool", "host_pool"]
