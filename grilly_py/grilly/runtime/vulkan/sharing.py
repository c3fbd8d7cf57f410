"""VulkanSharing: the Sharing interface of a VulkanRuntime."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ...errors import GrillyError, UnsupportedError
from ..sharing import Allocation, Descriptor, Peer, Place, Sharing
from .device import Device
from .external import descriptor_of_memory, descriptor_of_semaphore, timeline
from .joint import Joint
from .memory import Block, VulkanBuffer


class VulkanSharing(Sharing):
    """Memory of one device for one peer.

    Parameters
    ----------
    enter : callable
        Gives the runtime's parts inside a ``with`` statement, under its lock.
    device : Device
        Which can export memory.
    """

    def __init__(self, enter: Callable[[], AbstractContextManager[Any]], device: Device):
        self._enter = enter
        self.uuid = bytes.fromhex(str(device.info.properties["device_uuid"]))
        self.timelines = device.external.timelines

    def join(self, peer: Peer) -> tuple[Descriptor, Descriptor] | None:
        with self._enter() as parts:
            stream, device = parts.stream, parts.device
            if stream.joint is not None:
                raise GrillyError("the device's memory is shared with another peer already")
            stream.wait(stream.flush())  # what was submitted before has no part in the timeline
            if not self.timelines:
                stream.joint = Joint(peer, None, None)
                return None
            ours, theirs = timeline(device, stream.completed), timeline(device, 0)
            descriptors = descriptor_of_semaphore(device, ours.value), descriptor_of_semaphore(device, theirs.value)
            stream.joint = Joint(peer, ours, theirs)
            return descriptors

    def part(self) -> None:
        with self._enter() as parts:
            parts.stream.part()

    def export(self, block: object) -> Allocation:
        assert isinstance(block, Block)
        with self._enter() as parts:
            if block.memory is None:
                raise GrillyError("the memory has been given back")
            descriptor = descriptor_of_memory(parts.device, block.memory.value)
            return Allocation(descriptor, block.allocated, block.nbytes, parts.device.external.dedicated)

    def keep(self, block: object, foreign: object) -> None:
        assert isinstance(block, Block)
        with self._enter():
            if block.memory is not None:
                block.foreign = foreign

    def lend(self, buffer: VulkanBuffer, writer: int | None = None) -> Place:
        with self._enter() as parts:
            piece, stream = buffer.piece, parts.stream
            block = piece.block
            if not block.exported:
                raise UnsupportedError("memory of the host's is not shared with other interfaces to the device")
            if piece.last >= stream.serial:
                stream.flush()
            if not self.timelines:
                stream.wait(piece.last)
            piece.shared = True
            if writer is not None:
                stream.joint.meet(writer)
            last = piece.last
            return Place(block, piece.start, block.foreign, last if last > stream.completed else 0)

    def meet(self, stream: int) -> None:
        with self._enter() as parts:
            parts.stream.joint.meet(stream)

    def settle(self) -> None:
        with self._enter() as parts:
            parts.stream.joint.settle()


__all__ = ["VulkanSharing"]
