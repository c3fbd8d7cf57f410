"""The order of work on the device: recording, barriers, submission, completion, timing.

Work is recorded into a slot (a command buffer with its fence and timestamp queries). ``flush`` submits
the slot and numbers it with a serial; a serial is complete when its fence has signalled. Slots are reused.

A submission of few commands, which is what a call is, is recorded once for each set of arguments it is seen with twice,
and submitted again after that. So the first commands are held back until it is known whether more follow.
"""

from __future__ import annotations

import time
from collections import Counter, deque

from ..interface import Timing, work_limit
from .api import NULL, check, ffi, lib, out
from .descriptors import Descriptors
from .device import Device
from .memory import VulkanBuffer
from .pipelines import VulkanProgram

DISPATCHES = 64  # in one submission at most
IN_FLIGHT = 16  # submissions the host may run ahead
SPIN_SECONDS = 150e-6  # polling this long is cheaper than the wake-up after a wait
HELD = 8  # commands of a submission whose recording may be kept, at most
RECORDINGS = 512  # kept at most


def _command(device: Device, pool):
    """A new command buffer."""
    info = ffi.new("VkCommandBufferAllocateInfo*")
    info.sType = lib.VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO
    info.commandPool = pool
    info.level = lib.VK_COMMAND_BUFFER_LEVEL_PRIMARY
    info.commandBufferCount = 1
    command = out("VkCommandBuffer")
    check(lib.vkAllocateCommandBuffers(device.handle, info, command), "vkAllocateCommandBuffers")
    return command[0]


class Slot:
    """One reusable command buffer and what belongs to it."""

    __slots__ = ("command", "fence", "queries", "dispatches", "work", "labels", "serial")

    def __init__(self, device: Device, pool, timestamps: bool):
        self.command = _command(device, pool)
        fence_info = ffi.new("VkFenceCreateInfo*")
        fence_info.sType = lib.VK_STRUCTURE_TYPE_FENCE_CREATE_INFO
        fence = out("VkFence")
        check(lib.vkCreateFence(device.handle, fence_info, NULL, fence), "vkCreateFence")
        self.fence = ffi.new("VkFence[1]", [fence[0]])
        self.queries = NULL
        if timestamps:
            query_info = ffi.new("VkQueryPoolCreateInfo*")
            query_info.sType = lib.VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO
            query_info.queryType = lib.VK_QUERY_TYPE_TIMESTAMP
            query_info.queryCount = 2 * DISPATCHES
            queries = out("VkQueryPool")
            check(lib.vkCreateQueryPool(device.handle, query_info, NULL, queries), "vkCreateQueryPool")
            self.queries = queries[0]
        self.dispatches = 0
        self.work = 0.0
        self.labels: list[str] = []
        self.serial = 0

    def close(self, device: Device) -> None:
        """Destroy what the slot holds; it must not be in flight."""
        lib.vkDestroyFence(device.handle, self.fence[0], NULL)
        if self.queries != NULL:
            lib.vkDestroyQueryPool(device.handle, self.queries, NULL)


class Stream:
    """All work of one device, in order."""

    def __init__(self, device: Device):
        self._device = device
        self._descriptors = Descriptors(device)
        self._spin = 0.0 if device.info.kind == "cpu" else SPIN_SECONDS
        self._work_limit = work_limit(device.info)
        info = ffi.new("VkCommandPoolCreateInfo*")
        info.sType = lib.VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO
        info.flags = lib.VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT
        info.queueFamilyIndex = device.family
        pool = out("VkCommandPool")
        check(lib.vkCreateCommandPool(device.handle, info, NULL, pool), "vkCreateCommandPool")
        self._pool = pool[0]
        self._idle: list[Slot] = []
        self._flying: deque[Slot] = deque()
        self._slot: Slot | None = None
        self.completed = 0  # last serial that has finished
        self.serial = 1  # serial that what is being recorded will have
        self._reads: list[tuple] = []
        self._writes: list[tuple] = []
        self.profiling: str | None = None  # what is timed: "dispatch" or "row"
        self._timings: list[Timing] = []
        self._period = float(device.info.properties.get("timestamp_period", 1.0)) * 1e-9
        self._tick_mask = (1 << device.timestamp_bits) - 1 if device.timestamp_bits else 0
        self._held: list[tuple] = []  # first commands, not recorded yet: see _record and _record_copy
        self._held_work = 0.0
        self._seen: set[tuple] = set()  # submissions seen once
        self._recordings: dict[tuple, object] = {}  # and those seen again, with their command buffers
        self._structs()

    def _structs(self) -> None:
        """Structs used by every call, made once."""
        stages = lib.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | lib.VK_PIPELINE_STAGE_TRANSFER_BIT
        self._stages = stages
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
        self._begin = ffi.new("VkCommandBufferBeginInfo*")
        self._begin.sType = lib.VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO
        self._begin.flags = lib.VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT
        self._begin_kept = ffi.new("VkCommandBufferBeginInfo*")
        self._begin_kept.sType = lib.VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO
        self._begin_kept.flags = lib.VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT
        self._commands = ffi.new("VkCommandBuffer[1]")
        self._submit = ffi.new("VkSubmitInfo*")
        self._submit.sType = lib.VK_STRUCTURE_TYPE_SUBMIT_INFO
        self._submit.commandBufferCount = 1
        self._submit.pCommandBuffers = self._commands
        self._region = ffi.new("VkBufferCopy*")

    # -- recording -------------------------------------------------------------------------------------------------

    def _free_slot(self) -> Slot:
        self.poll()
        if not self._idle and len(self._flying) >= IN_FLIGHT:
            self.wait(self._flying[0].serial)
        return self._idle.pop() if self._idle else Slot(self._device, self._pool, self._tick_mask != 0)

    def _recording(self) -> Slot:
        slot = self._slot
        if slot is None:
            slot = self._slot = self._free_slot()
            check(lib.vkBeginCommandBuffer(slot.command, self._begin), "vkBeginCommandBuffer")
            # A fence makes earlier writes available but not visible, so even after a wait the device needs a barrier.
            self._separate(slot.command)
            if self.profiling:
                lib.vkCmdResetQueryPool(slot.command, slot.queries, 0, 2 * DISPATCHES)
                if self.profiling == "row":
                    self._stamp(slot, 0, separate=True)
            for command in self._take_held():
                self._record(slot.command, *command)
                self._count(slot, command)
        return slot

    def _take_held(self) -> list[tuple]:
        held, self._held, self._held_work = self._held, [], 0.0
        return held

    @staticmethod
    def _count(slot: Slot, command: tuple) -> None:
        if command[0] is not None:
            slot.dispatches += 1
            slot.work += command[-1]

    def _use(self, command, block, start: int, end: int, writes: bool) -> None:
        """Put a barrier before the next command if it reads what an earlier one wrote, or writes what one touched."""
        for other, begin, stop in self._writes:
            if other is block and begin < end and start < stop:
                return self._separate(command)
        if writes:
            for other, begin, stop in self._reads:
                if other is block and begin < end and start < stop:
                    return self._separate(command)

    def _separate(self, command) -> None:
        lib.vkCmdPipelineBarrier(command, self._stages, self._stages, 0, 1, self._barrier, 0, NULL, 0, NULL)
        self._reads.clear()
        self._writes.clear()

    def dispatch(self, program: VulkanProgram, bindings, push: bytes, groups, work: float) -> None:
        """Take one dispatch; see Runtime.dispatch."""
        if self._descriptors.full:
            self.wait(self.flush())  # no set may be in use while they are given back
            self._forget()
            self._descriptors.reset()
        if self._slot is None and not self.profiling and len(self._held) < HELD:
            if self._held_work and self._held_work + work > self._work_limit:
                self.flush()
            for binding, _ in zip(bindings, program.spec.access, strict=True):
                if binding is not None:
                    binding[0].serial = self.serial
            self._held.append((program, bindings, push, tuple(groups), work))
            self._held_work += work
            return
        slot = self._recording()
        if slot.work and slot.work + work > self._work_limit:
            self.flush()
            slot = self._recording()
        if self.profiling == "dispatch":
            self._stamp(slot, 2 * slot.dispatches, separate=True)
        elif self.profiling == "row":
            self._separate(slot.command)
        self._record(slot.command, program, bindings, push, groups, work)
        for binding in bindings:
            if binding is not None:
                binding[0].serial = self.serial
        if self.profiling == "dispatch":
            self._stamp(slot, 2 * slot.dispatches + 1)
        if self.profiling:
            slot.labels.append(program.spec.name)
        slot.dispatches += 1
        slot.work += work
        if slot.dispatches == DISPATCHES:
            self.flush()

    def _sets(self, program: VulkanProgram, bindings) -> tuple:
        """What names the descriptor set: the layout, then each binding's block, start and length, or one None."""
        key = [program.set_layout]
        for binding in bindings:
            if binding is None:
                key.append(None)
            else:
                buffer, offset, length = binding
                key += (buffer.block, buffer.start + offset, length)
        return tuple(key)

    def _record(self, command, program: VulkanProgram | None, *arguments) -> None:
        """Record one command of ``_held``: a program and its arguments, or None and a copy's."""
        if program is None:
            return self._record_copy(command, *arguments)
        bindings, push, groups, _ = arguments
        access = program.spec.access
        for binding, letters in zip(bindings, access, strict=True):
            if binding is not None:
                buffer, offset, length = binding
                start = buffer.start + offset
                self._use(command, buffer.block, start, start + length, letters != "r")
        for binding, letters in zip(bindings, access, strict=True):
            if binding is not None:
                buffer, offset, length = binding
                start = buffer.start + offset
                (self._reads if letters == "r" else self._writes).append((buffer.block, start, start + length))
        sets = self._descriptors.get(self._sets(program, bindings))
        lib.vkCmdBindPipeline(command, lib.VK_PIPELINE_BIND_POINT_COMPUTE, program.pipeline)
        lib.vkCmdBindDescriptorSets(command, lib.VK_PIPELINE_BIND_POINT_COMPUTE, program.layout, 0, 1, sets, 0, NULL)
        if push:
            data = ffi.from_buffer(push)
            lib.vkCmdPushConstants(command, program.layout, lib.VK_SHADER_STAGE_COMPUTE_BIT, 0, len(push), data)
        lib.vkCmdDispatch(command, groups[0], groups[1], groups[2])

    def _record_copy(self, command, source, source_start: int, target, target_start: int, nbytes: int) -> None:
        self._use(command, source, source_start, source_start + nbytes, False)
        self._use(command, target, target_start, target_start + nbytes, True)
        self._reads.append((source, source_start, source_start + nbytes))
        self._writes.append((target, target_start, target_start + nbytes))
        self._region.srcOffset = source_start
        self._region.dstOffset = target_start
        self._region.size = nbytes
        lib.vkCmdCopyBuffer(command, source.buffer, target.buffer, 1, self._region)

    def _kept(self, held: list[tuple]):
        """The recording of a submission of these commands alone; None at the first sight of them."""
        key = tuple(
            [c if c[0] is None else (c[0], c[2], c[3], self._sets(c[0], c[1])) for c in held]
        )
        command = self._recordings.get(key)
        if command is not None:
            return command
        if key not in self._seen:
            if len(self._seen) >= 4 * RECORDINGS:
                self._seen.clear()
            self._seen.add(key)
            return None
        self._seen.remove(key)
        if len(self._recordings) >= RECORDINGS:
            self._forget()
        command = _command(self._device, self._pool)
        check(lib.vkBeginCommandBuffer(command, self._begin_kept), "vkBeginCommandBuffer")
        self._separate(command)
        for one in held:
            self._record(command, *one)
        self._end(command)
        self._recordings[key] = command
        return command

    def _forget(self) -> None:
        """Give all recordings back, once none is in flight."""
        if self._flying:
            self.wait(self._flying[-1].serial)
        if self._recordings:
            commands = ffi.new("VkCommandBuffer[]", list(self._recordings.values()))
            lib.vkFreeCommandBuffers(self._device.handle, self._pool, len(self._recordings), commands)
        self._recordings.clear()
        self._seen.clear()

    def _stamp(self, slot: Slot, query: int, separate: bool = False) -> None:
        if separate:  # alone on the device, so that the difference of two stamps is the time of what lies between
            self._separate(slot.command)
        lib.vkCmdWriteTimestamp(slot.command, lib.VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, slot.queries, query)

    def copy(
        self,
        source: VulkanBuffer,
        source_offset: int,
        target: VulkanBuffer,
        target_offset: int,
        nbytes: int,
        keep: bool = True,
    ) -> None:
        """Take a copy between two buffers; ``keep`` where the like may come again."""
        copy = (None, source.block, source.start + source_offset, target.block, target.start + target_offset, nbytes)
        if keep and self._slot is None and len(self._held) < HELD:
            self._held.append(copy)
        else:
            self._record(self._recording().command, *copy)
        source.serial = target.serial = self.serial

    # -- submission ------------------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Submit what is recorded; returns the serial that covers all work so far."""
        if self._held:
            command = self._kept(self._held)
            if command is not None:
                self._take_held()
                return self._submit_to(self._free_slot(), command)
            self._recording()
        slot, self._slot = self._slot, None
        if slot is None:
            return self.serial - 1
        if slot.labels and self.profiling == "row":
            self._stamp(slot, 1)
            slot.labels = [", ".join(f"{n} x {label}" for label, n in Counter(slot.labels).items())]
        self._end(slot.command)
        return self._submit_to(slot, slot.command)

    def _end(self, command) -> None:
        """End a recording, with what lets the host see its results."""
        lib.vkCmdPipelineBarrier(
            command, self._stages, lib.VK_PIPELINE_STAGE_HOST_BIT, 0, 1, self._to_host, 0, NULL, 0, NULL
        )
        check(lib.vkEndCommandBuffer(command), "vkEndCommandBuffer")

    def _submit_to(self, slot: Slot, command) -> int:
        """Submit a recording, with the slot's fence; returns its serial."""
        self._commands[0] = command
        check(lib.vkQueueSubmit(self._device.queue, 1, self._submit, slot.fence[0]), "vkQueueSubmit")
        slot.serial = self.serial
        self.serial += 1
        self._flying.append(slot)
        return slot.serial

    def poll(self) -> None:
        """Notice finished submissions."""
        while self._flying:
            result = check(lib.vkGetFenceStatus(self._device.handle, self._flying[0].fence[0]), "vkGetFenceStatus")
            if result != 0:
                return
            self._finish(self._flying.popleft())

    def wait(self, serial: int) -> None:
        """Wait until submission ``serial`` has finished: poll for a moment, then sleep."""
        if serial >= self.serial:
            self.flush()
        while self.completed < serial and self._flying:
            slot = self._flying[0]
            give_up = time.perf_counter() + self._spin
            while True:
                result = lib.vkGetFenceStatus(self._device.handle, slot.fence[0])
                if result != 1 or time.perf_counter() >= give_up:
                    break
            while result == 1:  # VK_NOT_READY
                # In slices, so that an interrupt from the keyboard is noticed.
                result = lib.vkWaitForFences(self._device.handle, 1, slot.fence, 1, 500_000_000)
                if result == 2:  # VK_TIMEOUT
                    result = 1
            check(result, "waiting for the device")
            self._flying.popleft()
            self._finish(slot)

    def _finish(self, slot: Slot) -> None:
        if slot.labels:
            self._collect_timings(slot)
        self.completed = slot.serial
        lib.vkResetFences(self._device.handle, 1, slot.fence)
        slot.dispatches = 0
        slot.work = 0.0
        slot.labels = []
        self._idle.append(slot)

    # -- timing ----------------------------------------------------------------------------------------------------

    def _collect_timings(self, slot: Slot) -> None:
        count = 2 * len(slot.labels)
        ticks = ffi.new("uint64_t[]", count)
        flags = lib.VK_QUERY_RESULT_64_BIT | lib.VK_QUERY_RESULT_WAIT_BIT
        result = lib.vkGetQueryPoolResults(
            self._device.handle, slot.queries, 0, count, 8 * count, ticks, 8, flags
        )
        check(result, "vkGetQueryPoolResults")
        for i, label in enumerate(slot.labels):
            start = ticks[2 * i] & self._tick_mask
            spent = (ticks[2 * i + 1] - ticks[2 * i]) & self._tick_mask
            self._timings.append(Timing(label, spent * self._period, start * self._period))

    def profile(self, what: str | None) -> list[Timing]:
        """Switch to timing ``what``, or nothing, and return what was gathered."""
        self.wait(self.flush())
        gathered, self._timings = self._timings, []
        self.profiling = what
        return gathered

    def close(self) -> None:
        """Destroy all slots; the device must be idle."""
        for slot in [*self._idle, *self._flying, *([self._slot] if self._slot else [])]:
            slot.close(self._device)
        self._idle.clear()
        self._flying.clear()
        self._slot = None
        self._descriptors.close()
        lib.vkDestroyCommandPool(self._device.handle, self._pool, NULL)


