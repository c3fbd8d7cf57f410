"""Device memory: large blocks from the driver, cut into suballocations, of which buffers are made.

Each block carries one VkBuffer, so a suballocation is (block, offset). A buffer's suballocation comes back when the
buffer goes, and waits in a bin for its exact size, with the serial of the last submission that may still use it. Reuse
by later device work is safe at once (the queue runs in order and the stream puts barriers between conflicting uses);
the host must wait for the serial.

Which buffers are there is known from one set, which changes in single steps; ``Pool.mend`` makes all else anew from it
after an exception came between.
"""

from __future__ import annotations

import weakref
from bisect import insort
from collections import defaultdict, deque
from collections.abc import Callable

import numpy as np

from ...errors import OutOfDeviceMemoryError
from ..interface import Buffer
from .api import ffi, lib, out
from .device import VulkanDevice

ALIGNMENT = 256  # at least every device's minStorageBufferOffsetAlignment
BLOCK = 64 << 20
PASSING = 128 << 20  # of memory for what passes through
SMALLEST_BLOCK = 1 << 20  # what is tried where there is no room for more


class Block:
    """One allocation of the driver with a VkBuffer over all of it, mapped if asked and the memory type allows."""

    __slots__ = (
        "buffer", "memory", "nbytes", "view", "readable", "holes", "dedicated", "allocated", "exported", "foreign",
    )  # fmt: skip

    def __init__(
        self, device: VulkanDevice, nbytes: int, wishes: tuple[int, ...], dedicated: bool, mapped: bool, exported: bool
    ):
        info = ffi.new("VkBufferCreateInfo*")
        info.sType = lib.VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO
        info.size = nbytes
        info.usage = (
            lib.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
            | lib.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
            | lib.VK_BUFFER_USAGE_TRANSFER_DST_BIT
        )
        if "texel-buffers" in device.info.features:
            info.usage |= lib.VK_BUFFER_USAGE_UNIFORM_TEXEL_BUFFER_BIT
        info.sharingMode = lib.VK_SHARING_MODE_EXCLUSIVE
        external = device.external.buffer() if exported else None
        if external is not None:
            info.pNext = external
        self.buffer = device.objects.create("Buffer", info)
        self.nbytes = nbytes
        self.dedicated = dedicated
        self.view = None
        needs = out("VkMemoryRequirements")
        lib.vkGetBufferMemoryRequirements(device.handle, self.buffer.value, needs)
        index, flags = device.memory_type(needs.memoryTypeBits, *wishes)
        request = ffi.new("VkMemoryAllocateInfo*")
        request.sType = lib.VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO
        request.allocationSize = needs.size
        request.memoryTypeIndex = index
        chain = device.external.memory(self.buffer.value) if exported else None
        if chain is not None:
            request.pNext = chain[0]
        self.allocated = needs.size
        self.exported = exported
        self.foreign: object = None  # what another interface made of it: sharing.py
        self.memory = device.objects.make(
            "DeviceMemory",
            "vkAllocateMemory",
            lambda box: lib.vkAllocateMemory(device.handle, request, ffi.NULL, box),
        )
        bound = lib.vkBindBufferMemory(device.handle, self.buffer.value, self.memory.value, 0)
        device.check(bound, "vkBindBufferMemory")
        coherent = lib.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | lib.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
        if mapped and flags & coherent == coherent:
            pointer = out("void*")
            device.check(lib.vkMapMemory(device.handle, self.memory.value, 0, nbytes, 0, pointer), "vkMapMemory")
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
        """Return a suballocation and join it with the holes beside it."""
        insort(self.holes, (start, length))
        joined = []
        for begin, size in self.holes:
            if joined and joined[-1][0] + joined[-1][1] == begin:
                joined[-1] = (joined[-1][0], joined[-1][1] + size)
            else:
                joined.append((begin, size))
        self.holes = joined

    @property
    def whole(self) -> bool:
        """Whether nothing is cut from it."""
        return self.holes == [(0, self.nbytes)]

    def release(self) -> None:
        """Let the driver have the memory back. The block itself may still be a part of somebody's key."""
        self.view = self.buffer = self.memory = self.foreign = None


class Suballocation:
    """Part of a block. ``serial`` is the last submission that may use it, but for replays of the ``graphs`` that do.
    Where it is ``shared`` another interface to the GPU may use it too: sharing.py."""

    __slots__ = ("block", "start", "size", "serial", "graphs", "shared")
    replayed = False  # as Buffer.replayed

    def __init__(self, block: Block, start: int, size: int, serial: int):
        self.block = block
        self.start = start
        self.size = size
        self.serial = serial
        self.shared = False
        self.graphs: tuple = ()  # things with a ``serial`` of their own, so that a replay sets one number

    @property
    def last(self) -> int:
        """The last submission that may use it."""
        return max([self.serial, *[graph.serial for graph in self.graphs]]) if self.graphs else self.serial


class VulkanBuffer(Buffer):
    """A suballocation that somebody uses; it goes back when this does."""

    __slots__ = ("suballocation", "end", "__weakref__")

    @property
    def replayed(self) -> bool:
        return self.suballocation.replayed


class _End(weakref.ref):
    """What is left of a buffer when it goes."""

    __slots__ = ("suballocation",)


class HostMemory:
    """Bytes that the host and the device both address, shown to NumPy; given back when the last array over them goes.

    NumPy keeps this object as the base of the arrays made of it, which is how ``of`` recognises them.
    """

    __slots__ = ("buffer", "address", "owner", "_given_back", "__array_interface__")

    def __init__(self, buffer: VulkanBuffer, owner: object, given_back: Callable[[], None]):
        self.buffer = buffer
        self.owner = owner
        self.address = (
            int(ffi.cast("uintptr_t", ffi.from_buffer(buffer.suballocation.block.view))) + buffer.suballocation.start
        )
        self._given_back = given_back
        self.__array_interface__ = {
            "version": 3, "typestr": "|u1", "shape": (buffer.nbytes,), "data": (self.address, False),
        }  # fmt: skip

    def __del__(self):
        given_back = getattr(self, "_given_back", None)
        if given_back is not None:
            self.buffer = None  # back in its pool
            given_back()

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

    ``mapped`` says whether the host addresses it, where its memory type lets it; ``exported``, whether other interfaces
    to the device may be given it.
    """

    def __init__(
        self,
        device: VulkanDevice,
        wishes: tuple[int, ...],
        heap_bytes: int,
        mapped: bool = True,
        exported: bool = False,
    ):
        self._device = device
        self._wishes = wishes
        self._heap = heap_bytes
        self._mapped = mapped
        self._exported = exported
        self.largest = int(device.info.limits.get("allocation") or heap_bytes)
        self._blocks: list[Block] = []
        self._bins: dict[int, deque[Suballocation]] = defaultdict(deque)
        self._live: set[_End] = set()
        self._gone: deque[_End] = deque()
        self._used = 0
        self.reserved = 0
        self.peak = Peak(self)

    @property
    def in_use(self) -> int:
        """Bytes of the buffers that are there."""
        self.sweep()
        return self._used

    def has(self, buffer: VulkanBuffer) -> bool:
        """Whether a buffer is of this pool."""
        return buffer.suballocation.block in self._blocks

    @property
    def empty(self) -> bool:
        """Whether no buffer is left, whatever an exception left of the books."""
        return not self._still_live()

    def _still_live(self) -> set[_End]:
        return {end for end in tuple(self._live) if (buffer := end()) is not None and buffer.end is end}

    @staticmethod
    def _round(nbytes: int) -> int:
        step = ALIGNMENT if nbytes <= 1 << 16 else 1 << 12
        return -(-nbytes // step) * step

    def allocate(self, nbytes: int, completed: int, idle: bool = False) -> VulkanBuffer | None:
        """A buffer, or None when the pool must wait for the device before it can say whether there is room.

        ``completed`` is the last finished submission; with ``idle`` only memory that no submission uses will do.
        """
        if self._gone:
            self.sweep()
        size = self._round(nbytes)
        found = self._bins.get(size)
        if found and (not idle or found[0].serial <= completed):
            # The newest where the device's order makes it safe: a repeated call then finds the same buffers, and with
            # them its descriptors and its recording. The oldest where the host must find it finished.
            suballocation = found.popleft() if idle else found.pop()
        else:
            suballocation = self._fresh(size, nbytes, completed)
            if suballocation is None:
                return None
        self._used += size
        self.peak.note()
        buffer = VulkanBuffer(nbytes)
        buffer.suballocation = suballocation
        end = buffer.end = _End(buffer, self._gone.append)
        end.suballocation = suballocation
        self._live.add(end)
        return buffer

    def free(self, buffer: VulkanBuffer) -> None:
        """Take a buffer back before it goes."""
        end, buffer.end = buffer.end, None
        if end is not None:
            self._gone.append(end)

    def sweep(self) -> None:
        """Take back what has gone."""
        while self._gone:
            end = self._gone.popleft()
            if end in self._live:  # else it was given back before
                self._live.remove(end)
                suballocation = end.suballocation
                self._used -= suballocation.size
                suballocation.shared = False
                self._bins[suballocation.size].append(suballocation)

    def _fresh(self, size: int, nbytes: int, completed: int) -> Suballocation | None:
        for collected in (False, True):
            if collected:
                self._collect(completed)
            for block in self._blocks:
                if not block.dedicated and (start := block.take(size)) is not None:
                    return Suballocation(block, start, size, 0)
        self._release()
        dedicated = size > BLOCK // 2
        want = size if dedicated else BLOCK
        while (block := self._block(want, dedicated)) is None:
            if self._pending():
                return None
            if want == size:
                raise self._full(nbytes)
            want = max(want // 2, size) if want > SMALLEST_BLOCK else size
        self._blocks.append(block)
        self.reserved += want
        return Suballocation(block, block.take(size), size, 0)

    def _block(self, nbytes: int, dedicated: bool) -> Block | None:
        if nbytes > self.largest or self.reserved + nbytes > self._heap:
            return None
        try:
            return Block(self._device, nbytes, self._wishes, dedicated, self._mapped, self._exported)
        except OutOfDeviceMemoryError:
            pass
        self._device.objects.sweep()  # what the block had got before it failed
        return None

    def _full(self, nbytes: int) -> OutOfDeviceMemoryError:
        return OutOfDeviceMemoryError(
            f"{self._device.info.name} has no room for {nbytes:,} bytes: {self._used:,} are in use, {self.reserved:,} "
            f"reserved, of {self._heap:,}; one allocation may take {self.largest:,}. Free tensors, or work on fewer "
            "batches or heads at a time."
        )

    def _pending(self) -> bool:
        return any(self._bins.values())

    def _collect(self, completed: int) -> None:
        """Return finished suballocations to their blocks."""
        for size, suballocations in list(self._bins.items()):
            waiting: deque[Suballocation] = deque()
            for suballocation in suballocations:
                if suballocation.serial <= completed:
                    suballocation.block.give(suballocation.start, size)
                else:
                    waiting.append(suballocation)
            if waiting:
                self._bins[size] = waiting
            else:
                del self._bins[size]

    def _release(self) -> None:
        """Give blocks that are whole back to the driver."""
        for block in [b for b in self._blocks if b.whole]:
            block.release()
            self._blocks.remove(block)
            self.reserved -= block.nbytes
        self._device.objects.sweep()

    def mend(self) -> None:
        """Make the books anew from the buffers that are there; the device has finished all work."""
        self._gone.clear()
        self._live = self._still_live()
        self._bins.clear()
        self._blocks = [block for block in self._blocks if block.memory is not None]
        suballocations: dict[Block, list[Suballocation]] = {block: [] for block in self._blocks}
        for end in self._live:
            suballocations[end.suballocation.block].append(end.suballocation)
        for block, cut in suballocations.items():
            holes, place = [], 0
            for suballocation in sorted(cut, key=lambda suballocation: suballocation.start):
                if suballocation.start > place:
                    holes.append((place, suballocation.start - place))
                place = suballocation.start + suballocation.size
            if place < block.nbytes:
                holes.append((place, block.nbytes - place))
            block.holes = holes
        self.reserved = sum(block.nbytes for block in self._blocks)
        self._used = sum(end.suballocation.size for end in self._live)

    def close(self) -> None:
        """Give all memory back to the driver."""
        for block in self._blocks:
            block.release()
        self._blocks = []
        self._bins.clear()
        self._live = set()
        self._used = self.reserved = 0


class Peak:
    """The most bytes that pools had in use together since the last ``reset``."""

    def __init__(self, *pools: Pool):
        self._pools = pools
        self.nbytes = 0
        for pool in pools:
            pool.peak = self

    def note(self) -> None:
        """Count what is in use now."""
        used = 0
        for pool in self._pools:
            used += pool._used
        if used > self.nbytes:
            # One of several may not know yet of all that has gone.
            self.nbytes = used if len(self._pools) == 1 else max(self.nbytes, sum(pool.in_use for pool in self._pools))

    def reset(self) -> None:
        """Begin anew, with what is in use now."""
        self.nbytes = sum(pool.in_use for pool in self._pools)


def device_pool(device: VulkanDevice) -> Pool:
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
    return Pool(device, wishes, device.heap_bytes(plain), exported=device.external.memories)


def passing_pool(device: VulkanDevice) -> Pool | None:
    """Device memory to which the host writes what is used once, where memory for tensors can be shared with other
    interfaces: the host may not be able to address that (NVIDIA). None where none is needed, or none can be had."""
    local = lib.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
    host = lib.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | lib.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
    plain, _ = device.memory_type(0xFFFFFFFF, local, 0)
    mapped, flags = device.memory_type(0xFFFFFFFF, local | host, 0)
    if not device.external.memories or flags & (local | host) != local | host:
        return None
    return Pool(device, (local | host,), PASSING) if device.heap_bytes(mapped) >= device.heap_bytes(plain) else None


def host_pool(device: VulkanDevice) -> Pool:
    """Host memory that the device copies to and from, for staging and for arrays."""
    host = lib.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | lib.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
    wishes = (host | lib.VK_MEMORY_PROPERTY_HOST_CACHED_BIT, host)
    index, _ = device.memory_type(0xFFFFFFFF, *wishes)
    return Pool(device, wishes, device.heap_bytes(index))


__all__ = ["HostMemory", "Peak", "Suballocation", "Pool", "VulkanBuffer", "device_pool", "host_pool", "passing_pool"]
