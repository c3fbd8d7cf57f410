"""VulkanSharing: the Sharing interface of a VulkanRuntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import GrillyError, UnsupportedError
from ..sharing import Allocation, Descriptor, Interop, Place, Sharing
from .device import VulkanDevice
from .external import descriptor_of_memory, descriptor_of_semaphore, timeline
from .interop import InteropOrder
from .memory import Block, VulkanBuffer


class VulkanSharing(Sharing):
    """Memory of one device for one other interface.

    Parameters
    ----------
    under_lock : callable
        ``under_lock(work, *arguments)`` gives what ``work(parts, *arguments)`` does under the runtime's lock.
    device : VulkanDevice
        Which can export memory.
    """

    def __init__(self, under_lock: Callable[..., Any], device: VulkanDevice):
        self._under_lock = under_lock
        self.uuid = bytes.fromhex(str(device.info.properties["device_uuid"]))
        self.pci = str(device.info.properties["pci"]) if "pci" in device.info.properties else None
        self.timelines = device.external.timelines

    def connect(self, interop: Interop) -> tuple[Descriptor, Descriptor] | None:
        return self._under_lock(self._connect, interop)

    def _connect(self, parts: Any, interop: Interop) -> tuple[Descriptor, Descriptor] | None:
        stream, device = parts.stream, parts.device
        if stream.interop is not None:
            raise GrillyError("the device's memory is shared with another interface already")
        stream.wait(stream.flush())  # what was submitted before has no part in the timeline
        self.timelines = self.timelines and interop.timelines
        if not self.timelines:
            stream.interop = InteropOrder(interop, None, None)
            return None
        ours, theirs = timeline(device, stream.completed), timeline(device, 0)
        descriptors = descriptor_of_semaphore(device, ours.value), descriptor_of_semaphore(device, theirs.value)
        stream.interop = InteropOrder(interop, ours, theirs)
        return descriptors

    def part(self) -> None:
        self._under_lock(lambda parts: parts.stream.part())

    def export(self, block: object) -> Allocation:
        return self._under_lock(self._export, block)

    @staticmethod
    def _export(parts: Any, block: Block) -> Allocation:
        if block.memory is None:
            raise GrillyError("the memory has been given back")
        descriptor = descriptor_of_memory(parts.device, block.memory.value)
        return Allocation(descriptor, block.allocated, block.nbytes, parts.device.external.dedicated)

    def keep(self, block: object, foreign: object) -> None:
        self._under_lock(self._keep, block, foreign)

    @staticmethod
    def _keep(parts: Any, block: Block, foreign: object) -> None:
        if block.memory is not None:
            block.foreign = foreign

    def lend(self, buffer: VulkanBuffer, writer: int | None = None) -> Place:
        return self._under_lock(self._lend, buffer, writer)

    def _lend(self, parts: Any, buffer: VulkanBuffer, writer: int | None) -> Place:
        suballocation, stream = buffer.suballocation, parts.stream
        block = suballocation.block
        if not block.exported:
            raise UnsupportedError("memory of the host's is not shared with other interfaces to the device")
        if suballocation.last >= stream.serial:
            stream.flush()
        # A dispatch that an interrupt ended may have left the serial of a submission that is still to come. Nothing
        # waits for that one: it may never come.
        last = min(suballocation.last, stream.serial - 1)
        if not self.timelines:
            stream.wait(last)
        suballocation.shared = True
        if writer is not None:
            stream.interop.meet(writer)
        return Place(block, suballocation.start, block.foreign, last if last > stream.completed else 0)

    def meet(self, stream: int) -> None:
        self._under_lock(lambda parts: parts.stream.interop.meet(stream))


__all__ = ["VulkanSharing"]
