"""Commands as the driver has them: dispatches and copies in a command buffer, with the barriers that they need."""

from __future__ import annotations

from .api import NULL, ffi, lib
from .descriptors import Descriptors
from .memory import Block
from .pipelines import VulkanProgram


class Recorder:
    """Writes commands of the journal (stream.py) into command buffers, one at a time.

    A barrier comes before a command that reads what an earlier one wrote, or writes what an earlier one touched.
    """

    def __init__(self) -> None:
        self._reads: list[tuple] = []  # of the recording that is being made, since its last barrier
        self._writes: list[tuple] = []
        self._stages = lib.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | lib.VK_PIPELINE_STAGE_TRANSFER_BIT
        access = lib.VK_ACCESS_SHADER_READ_BIT | lib.VK_ACCESS_SHADER_WRITE_BIT
        access |= lib.VK_ACCESS_TRANSFER_READ_BIT | lib.VK_ACCESS_TRANSFER_WRITE_BIT
        self._barrier = ffi.new("VkMemoryBarrier*")
        self._barrier.sType = lib.VK_STRUCTURE_TYPE_MEMORY_BARRIER
        self._barrier.srcAccessMask = access
        self._barrier.dstAccessMask = access
        self._to_host = ffi.new("VkMemoryBarrier*")
        self._to_host.sType = lib.VK_STRUCTURE_TYPE_MEMORY_BARRIER
        self._to_host.srcAccessMask = lib.VK_ACCESS_SHADER_WRITE_BIT | lib.VK_ACCESS_TRANSFER_WRITE_BIT
        self._to_host.dstAccessMask = lib.VK_ACCESS_HOST_READ_BIT
        self._region = ffi.new("VkBufferCopy*")

    def record(self, command, journal: list[tuple], descriptors: Descriptors) -> None:
        """Record all of a journal, behind a barrier."""
        # A fence makes earlier writes available but not visible, so even after a wait the device needs a barrier.
        self.separate(command)
        for entry in journal:
            if entry[0] is None:
                self.copy(command, *entry[1:])
            else:
                self.dispatch(command, *entry, descriptors)

    def separate(self, command) -> None:
        """Record a barrier between all that came before and all that follows."""
        lib.vkCmdPipelineBarrier(command, self._stages, self._stages, 0, 1, self._barrier, 0, NULL, 0, NULL)
        self._reads.clear()
        self._writes.clear()

    def dispatch(
        self, command, program: VulkanProgram, key: tuple, push: bytes, groups, descriptors: Descriptors
    ) -> None:
        """Record a dispatch, with a barrier before it if it needs one."""
        uses, place = [], 1
        for letters in program.spec.access:
            block = key[place]
            if block is None:
                place += 1
                continue
            start, writes = key[place + 1], "w" in letters
            end = start + key[place + 2]
            place += 3
            self._use(command, block, start, end, writes)
            uses.append((writes, (block, start, end)))
        for writes, use in uses:
            (self._writes if writes else self._reads).append(use)
        sets = descriptors.get(key)
        lib.vkCmdBindPipeline(command, lib.VK_PIPELINE_BIND_POINT_COMPUTE, program.pipeline)
        lib.vkCmdBindDescriptorSets(command, lib.VK_PIPELINE_BIND_POINT_COMPUTE, program.layout, 0, 1, sets, 0, NULL)
        if push:
            data = ffi.from_buffer(push)
            lib.vkCmdPushConstants(command, program.layout, lib.VK_SHADER_STAGE_COMPUTE_BIT, 0, len(push), data)
        lib.vkCmdDispatch(command, groups[0], groups[1], groups[2])

    def copy(self, command, source: Block, source_start: int, target: Block, target_start: int, nbytes: int) -> None:
        """Record a copy, with a barrier before it if it needs one."""
        self._use(command, source, source_start, source_start + nbytes, False)
        self._use(command, target, target_start, target_start + nbytes, True)
        self._reads.append((source, source_start, source_start + nbytes))
        self._writes.append((target, target_start, target_start + nbytes))
        self._region.srcOffset = source_start
        self._region.dstOffset = target_start
        self._region.size = nbytes
        lib.vkCmdCopyBuffer(command, source.buffer.value, target.buffer.value, 1, self._region)

    def show(self, command) -> None:
        """Record what lets the host see the results of all that came before."""
        lib.vkCmdPipelineBarrier(
            command, self._stages, lib.VK_PIPELINE_STAGE_HOST_BIT, 0, 1, self._to_host, 0, NULL, 0, NULL
        )

    def _use(self, command, block: Block, start: int, end: int, writes: bool) -> None:
        """Put a barrier before the next command if it reads what an earlier one wrote, or writes what one touched."""
        for other, begin, stop in self._writes:
            if other is block and begin < end and start < stop:
                return self.separate(command)
        if writes:
            for other, begin, stop in self._reads:
                if other is block and begin < end and start < stop:
                    return self.separate(command)
