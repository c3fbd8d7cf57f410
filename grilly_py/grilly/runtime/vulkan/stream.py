"""The order of work on the device: what is taken, submitted, waited for.

Commands are kept in a list, the journal, until ``flush`` has them recorded (recording.py) and submits them all, with a
serial; a serial is complete when its fence has signalled. A command leaves the journal when the driver has taken it,
and not before: an exception on the way there, an interrupt from the keyboard or an error of the driver, loses nothing,
and the next ``flush`` begins anew. Where it cannot be known whether the driver took a submission, its fence tells
(``mend``).

A call ends with ``hand_on``. What is few commands, as most calls are, is recorded once for each set of arguments it is
seen with twice, and submitted again after that (recording_cache.py). A submission costs the host more than the call
itself, so calls that follow each other closely are submitted together, at first one, then two, four and so on; whoever
waits, waits for no others. Recordings of whole graphs (graph.py) go behind the journal.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from ...errors import ClosedError
from ..interface import SUBMISSION_SECONDS, Timing
from ..lifetime import ENDED
from .api import NULL, ffi, lib
from .descriptors import Descriptors
from .device import VulkanDevice
from .interop import InteropOrder
from .memory import VulkanBuffer
from .objects import Handle
from .pipelines import VulkanProgram
from .recording import Recorder
from .recording_cache import RECORDINGS, RecordingCache
from .threads import usable_processors
from .timing import Stamps

DISPATCHES = 64  # in one submission at most
COMMANDS = 4 * DISPATCHES  # dispatches and copies
IN_FLIGHT = 16  # submissions the host may run ahead
SPIN_SECONDS = 150e-6  # polling this long is cheaper than the wake-up after a wait
YIELD_SECONDS = 8e-3  # and this long with other threads let through, where processors are left for them
HELD = 8  # commands of a call whose recording may be kept, at most
TOGETHER = 8  # calls in one submission, at most
CLOSELY_SECONDS = 200e-6  # between the ends of calls that are submitted together
LONG_SECONDS = 1e-3  # of the device's time, which is worth a submission


class Slot:
    """What a submission needs: reusable command buffers, a fence, and time stamps where the device has them."""

    __slots__ = ("commands", "fence", "fences", "stamps", "begun", "serial", "programs")

    def __init__(self, device: VulkanDevice, pool: Handle):
        self.commands = [device.objects.command_buffer(pool)]
        fence_info = ffi.new("VkFenceCreateInfo*")
        fence_info.sType = lib.VK_STRUCTURE_TYPE_FENCE_CREATE_INFO
        self.fence = device.objects.create("Fence", fence_info)
        self.fences = ffi.new("VkFence[1]", [self.fence.value])
        self.stamps = Stamps(device, DISPATCHES) if device.timestamp_bits else None
        self.begun: set[int] = set()  # command buffers whose recording was not ended, so they must be reset first
        self.serial = 0
        self.programs: list = []  # of what is in flight; not its buffers, which others wait for to go


class Begun:
    """Whether a graph was replayed: what its memory asks before others use it."""

    __slots__ = ("yet",)

    def __init__(self) -> None:
        self.yet = False


class Recorded:
    """Work that is submitted again and again, and all that belongs to it. See graph.py.

    Attributes
    ----------
    commands, handles : tuple
        Command buffers, each for a submission, as the driver's handles and as what keeps them.
    entries : tuple
        The same as the journal has it.
    seconds : float
        That the first of them may take.
    serial : int
        The last submission of any of it; 0 before the first.
    arenas, buffers : tuple of VulkanBuffer
        What it lies in, and the others that it uses.
    begun : Begun
    """

    __slots__ = ("commands", "handles", "entries", "seconds", "serial", "arenas", "buffers", "descriptors", "begun")

    def __init__(self) -> None:
        self.seconds, self.serial, self.begun = 0.0, 0, Begun()
        self._empty()

    def _empty(self) -> None:
        self.commands: tuple = ()
        self.handles: tuple[Handle, ...] = ()
        self.entries: tuple[tuple, ...] = ()
        self.arenas: tuple[VulkanBuffer, ...] = ()
        self.buffers: tuple[VulkanBuffer, ...] = ()
        self.descriptors: Descriptors | None = None

    def used(self, serial: int) -> None:
        """Note the submission that comes next."""
        self.serial = serial
        for arena in self.arenas:
            arena.suballocation.serial = serial

    def release(self) -> None:
        """Let go of everything; nothing of it may be in flight. It may be said twice."""
        for buffer in self.buffers:
            buffer.suballocation.graphs = tuple(graph for graph in buffer.suballocation.graphs if graph is not self)
        self._empty()


def misfit(program: VulkanProgram, bindings, push: bytes) -> ValueError:
    """What to raise for a dispatch that is not as its program wants it."""
    name, access, most = program.spec.name, program.spec.access, program.spec.push_bytes
    if len(bindings) == len(access) and len(push) <= most:
        return ValueError(f"{name}: a dispatch binds at least one buffer")
    return ValueError(
        f"{name}: {len(bindings)} bindings and {len(push)} bytes of push constants; expected {len(access)} and at most "
        f"{most}"
    )


class Stream:
    """All work of one device, in order.

    A command is a dispatch, (program, the descriptor set's key, push constants, workgroups), or a copy, (None, source
    block, start, target block, start, bytes).
    """

    def __init__(self, device: VulkanDevice):
        self._device = device
        self._descriptors = Descriptors(device)
        self._recorder = Recorder()
        self._spin = 0.0 if device.info.kind == "cpu" else SPIN_SECONDS
        self._yield = YIELD_SECONDS if self._spin and usable_processors() > 2 else 0.0
        info = ffi.new("VkCommandPoolCreateInfo*")
        info.sType = lib.VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO
        info.flags = lib.VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT
        info.queueFamilyIndex = device.family
        self._pool = device.objects.create("CommandPool", info)
        self._slots: list[Slot] = []
        self._idle: list[Slot] = []
        self._flying: deque[Slot] = deque()
        self._submitting: Slot | None = None  # of which it is not known whether the driver has it
        self.completed = 0  # last serial that has finished
        self.serial = 1  # serial that the journal will have
        self._journal: list[tuple] = []
        self._dispatches = 0  # in the journal
        self._seconds = 0.0
        self._keep = True  # whether a recording of the call that is being taken may be of use again
        self._cuts: list[tuple[int, bool]] = []  # where calls end in the journal, and the same of them
        self.together = TOGETHER if device.info.kind != "cpu" else 1  # calls in one submission, at most
        self._wanted = 1  # before the next submission
        self._handed = 0.0  # when the last call ended
        self.interop: InteropOrder | None = None  # where memory is shared with another interface to the device
        self.ending = False  # set by the end of the interpreter: waits are given up
        self.profiling: str | None = None  # what is timed: "dispatch" or "row"
        self._timings: list[Timing] = []
        self._recordings = RecordingCache(lambda commands: self.recorded(commands, self._descriptors))
        self._structs()
        self._last: Handle | None = None  # made with the first submission

    def _structs(self) -> None:
        """Structs used by every call, made once."""
        self._begin = ffi.new("VkCommandBufferBeginInfo*")
        self._begin.sType = lib.VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO
        self._begin.flags = lib.VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT
        self._begin_recorded = ffi.new("VkCommandBufferBeginInfo*")
        self._begin_recorded.sType = lib.VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO
        self._begin_recorded.flags = lib.VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT
        self._commands = ffi.new("VkCommandBuffer[]", 2 * TOGETHER + 4)
        self._submit = ffi.new("VkSubmitInfo*")
        self._submit.sType = lib.VK_STRUCTURE_TYPE_SUBMIT_INFO
        self._submit.pCommandBuffers = self._commands

    # -- the journal -----------------------------------------------------------------------------------------------

    def dispatch(self, program: VulkanProgram, bindings, push: bytes, groups, seconds: float) -> None:
        """Take one dispatch; see Runtime.dispatch."""
        if program.pipeline is None:
            program.make()
        if self._dispatches >= DISPATCHES or (self._seconds and self._seconds + seconds > SUBMISSION_SECONDS):
            self.flush()
        if len(bindings) != len(program.spec.access) or len(push) > program.spec.push_bytes:
            raise misfit(program, bindings, push)
        serial = self.serial
        key = [program.set_layout]
        for binding in bindings:
            if binding is None:
                key.append(None)
            else:
                buffer, offset, length = binding
                suballocation = buffer.suballocation
                suballocation.serial = serial  # first: whoever asks for a suballocation too late waits for nothing
                if suballocation.shared:
                    self.interop.meet()
                key += (suballocation.block, suballocation.start + offset, length)
        if len(key) == 1 + len(bindings):  # all None
            raise misfit(program, bindings, push)
        self._journal.append((program, tuple(key), push, tuple(groups)))
        self._dispatches += 1
        self._seconds += seconds

    def dispatch_together(self, dispatches: Sequence[tuple]) -> None:
        """Take dispatches, as many as a submission has all or none of them; see Runtime.dispatch_together."""
        for start in range(0, len(dispatches), DISPATCHES):
            some = dispatches[start : start + DISPATCHES]
            if self._dispatches + len(some) > DISPATCHES:
                self.flush()
            entries = [self._entry(*arguments[:4]) for arguments in some]
            self._dispatches += len(entries)
            self._seconds += sum(arguments[4] for arguments in some)
            self._journal.extend(entries)  # nothing interrupts this

    def _entry(self, program: VulkanProgram, bindings, push: bytes, groups) -> tuple:
        """A dispatch as a command of the submission that comes next, as ``dispatch`` makes it."""
        if program.pipeline is None:
            program.make()
        bound = [binding for binding in bindings if binding is not None]
        if len(bindings) != len(program.spec.access) or len(push) > program.spec.push_bytes or not bound:
            raise misfit(program, bindings, push)
        for buffer, _, _ in bound:
            buffer.suballocation.serial = self.serial
            if buffer.suballocation.shared:
                self.interop.meet()
        key = [program.set_layout]
        for binding in bindings:
            if binding is None:
                key.append(None)
            else:
                suballocation = binding[0].suballocation
                key += (suballocation.block, suballocation.start + binding[1], binding[2])
        return program, tuple(key), push, tuple(groups)

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
        if len(self._journal) >= COMMANDS:
            self.flush()
        entry = self._copied(source, source_offset, target, target_offset, nbytes)
        self._keep &= keep
        self._journal.append(entry)

    def _copied(self, source: VulkanBuffer, source_offset: int, target: VulkanBuffer, target_offset: int, nbytes: int):
        """A copy as a command of the submission that comes next."""
        a, b = source.suballocation, target.suballocation
        a.serial = b.serial = self.serial
        if a.shared or b.shared:
            self.interop.meet()
        return (None, a.block, a.start + source_offset, b.block, b.start + target_offset, nbytes)

    # -- recording -------------------------------------------------------------------------------------------------

    def _free_slot(self) -> Slot:
        """A slot that is not in flight, its fence not signalled."""
        self.poll()
        if not self._idle:
            if len(self._flying) >= IN_FLIGHT:
                self.wait(self._flying[0].serial)
            else:
                slot = Slot(self._device, self._pool)
                self._slots.append(slot)
                return slot
        slot = self._idle[-1]
        self._device.check(lib.vkResetFences(self._device.handle, 1, slot.fences), "vkResetFences")
        return self._idle.pop()

    def _end(self, command) -> None:
        self._device.check(lib.vkEndCommandBuffer(command), "vkEndCommandBuffer")

    def _once(self, slot: Slot, journal: list[tuple], number: int = 0):
        """One of the slot's own command buffers, with these commands."""
        if number == len(slot.commands):
            slot.commands.append(self._device.objects.command_buffer(self._pool))
        command = slot.commands[number].value
        if number in slot.begun:
            self._device.check(lib.vkResetCommandBuffer(command, 0), "vkResetCommandBuffer")
        slot.begun.add(number)
        self._device.check(lib.vkBeginCommandBuffer(command, self._begin), "vkBeginCommandBuffer")
        if self.profiling:
            slot.stamps.record(self._recorder, command, journal, self._descriptors, self.profiling)
        else:
            self._recorder.record(command, journal, self._descriptors)
        self._end(command)
        slot.begun.remove(number)
        return command

    def _commands_of(self, slot: Slot) -> list:
        """Command buffers with the journal's commands: the recording of all its calls, or of each its own where it has
        one, and of what lies between those one made for this submission."""
        journal = self._journal
        if self.profiling:
            return [self._once(slot, journal)]
        calls, known, start = [], [], 0
        for stop, keep in (*self._cuts, (len(journal), self._keep)):
            if stop == start:
                continue
            call, start = journal[start:stop], stop
            calls.append(call)
            known.append(self._recordings.see(tuple(call)) if keep and len(call) <= HELD else None)
        if len(known) > 1 and None not in known:
            together = self._recordings.recording(self._recordings.see(tuple(known)), journal)
            if together is not None:
                return [together.value]
        found, once, number = [], [], 0
        for call, its in zip(calls, known, strict=True):
            kept = self._recordings.recording(its, call)
            if kept is None:
                once += call
                continue
            if once:
                found.append(self._once(slot, once, number))
                once, number = [], number + 1
            found.append(kept.value)
        if once:
            found.append(self._once(slot, once, number))
        return found

    def recorded(self, journal: list[tuple], descriptors: Descriptors) -> Handle:
        """A command buffer with these commands, to be submitted any number of times, also while it runs."""
        made = self._device.objects.command_buffer(self._pool)
        self._device.check(lib.vkBeginCommandBuffer(made.value, self._begin_recorded), "vkBeginCommandBuffer")
        self._recorder.record(made.value, journal, descriptors)
        self._end(made.value)
        return made

    def _showing(self) -> Handle:
        """A command buffer that comes last in a submission, once for all its calls: it takes a microsecond."""
        made = self._device.objects.command_buffer(self._pool)
        self._device.check(lib.vkBeginCommandBuffer(made.value, self._begin_recorded), "vkBeginCommandBuffer")
        self._recorder.show(made.value)
        self._end(made.value)
        return made

    def _forget(self) -> None:
        """Give all recordings back, once none is in flight."""
        if self._flying:
            self.wait(self._flying[-1].serial)
        self._recordings.forget()
        self._device.objects.sweep()

    # -- submission ------------------------------------------------------------------------------------------------

    def hand_on(self) -> None:
        """Note that a call ends here; submit the journal unless more calls are likely to follow at once."""
        if not self._journal:
            return
        if self.together > 1 and not self.profiling and not self.meets:
            now = time.perf_counter()
            if now - self._handed > CLOSELY_SECONDS:
                self._wanted = 1
            self._handed = now
            if len(self._cuts) < TOGETHER:  # else a submission failed, and this one has more to do
                self._cuts.append((len(self._journal), self._keep))
                self._keep = True
            if len(self._cuts) < self._wanted and self._seconds < LONG_SECONDS:
                return
            self._wanted = min(2 * self._wanted, self.together)
        self._launch()
        self._handed = time.perf_counter()

    @property
    def meets(self) -> bool:
        """Whether the submission that comes next is one that another interface's work is to come behind."""
        return self.interop is not None and self.interop.meets

    def flush(self) -> int:
        """Submit the journal; returns the serial that covers all work so far."""
        if self._journal:
            self._launch()
        return self.serial - 1

    def replay(self, graph: Recorded, after: Sequence[tuple]) -> None:
        """Submit the journal, then a graph, then copies between buffers, the like of which may come
        again. Each is (source, its offset, target, its offset, bytes)."""
        if self.interop is not None:
            self.interop.meet()  # what a graph uses is not looked through
        if self.profiling:  # what was recorded has no time stamps in it
            for entry in graph.entries:
                if self._dispatches >= DISPATCHES or len(self._journal) >= COMMANDS:
                    self.flush()
                graph.used(self.serial)
                self._journal.append(entry)
                self._dispatches += entry[0] is not None
        elif graph.commands:
            if self._seconds + graph.seconds > SUBMISSION_SECONDS:
                self.flush()
            for command in graph.commands[:-1]:
                graph.used(self.serial)
                self._launch(command)
            graph.used(self.serial)
            if self._launch(graph.commands[-1], after):
                return
        for copy in after:
            self.copy(*copy)

    def _launch(self, command=None, after: Sequence[tuple] = ()) -> bool:
        """Submit the journal, a recording behind it, and copies behind that where those have a recording; returns
        whether they had."""
        if self._descriptors.full:
            self._forget()  # no set may be in use while they are given back
            self._descriptors.reset()
        elif self._recordings.count > RECORDINGS - TOGETHER - 2:
            self._forget()
        count = 0
        if self._last is None:
            self._last = self._showing()
        slot = self._free_slot()
        if self._journal:
            for made in self._commands_of(slot):
                self._commands[count] = made
                count += 1
        if command is not None:
            self._commands[count] = command
            count += 1
        kept = None
        if 0 < len(after) <= HELD:
            copies = [self._copied(*copy) for copy in after]
            kept = self._recordings.recording(self._recordings.see(tuple(copies)), copies)
        if kept is not None:
            self._commands[count] = kept.value
            count += 1
        self._commands[count] = self._last.value
        self._submit.commandBufferCount = count + 1
        slot.serial = self.serial
        interop = self.interop
        if interop is not None:
            interop.arrive(self._submit, slot.serial)
        self._submitting = slot
        result = lib.vkQueueSubmit(self._device.queue, 1, self._submit, slot.fences[0])
        if result < 0:
            self._submitting = None  # the driver has not taken it
            self._device.check(result, "vkQueueSubmit")
        self._flying.append(slot)
        self._taken(slot)
        if interop is not None and interop.depart(slot.serial, self.finished):
            self.wait(slot.serial)
        return kept is not None

    def part(self) -> None:
        """Keep order with nobody else any more."""
        self.interop = None
        self._submit.pNext = NULL
        self._submit.waitSemaphoreCount = self._submit.signalSemaphoreCount = 0

    def _taken(self, slot: Slot) -> None:
        """Begin a new journal: the driver has this one."""
        if self.serial == slot.serial:
            slot.programs = [entry[0] for entry in self._journal]
            self._cuts = []
            self._journal = []
            self._dispatches = 0
            self._seconds = 0.0
            self._keep = True
            self.serial = slot.serial + 1
        self._submitting = None

    def poll(self) -> None:
        """Notice finished submissions."""
        while self._flying:
            slot = self._flying[0]
            status = lib.vkGetFenceStatus(self._device.handle, slot.fences[0])
            if self._device.check(status, "vkGetFenceStatus") != 0:
                return
            self._finish(slot)

    def finished(self, serial: int, seconds: float) -> bool:
        """Whether a submission has finished, at the latest after so many seconds."""
        give_up = time.perf_counter() + seconds
        while True:
            self.poll()
            if self.completed >= serial:
                return True
            if time.perf_counter() >= give_up:
                return False

    def wait(self, serial: int) -> None:
        """Wait until submission ``serial`` has finished: poll for some time, then sleep."""
        if serial >= self.serial:
            self.flush()
        if serial == self.serial - 1:  # the device will have nothing to do, and is not to wait for several calls
            self._wanted = 1
        while self.completed < serial and self._flying:
            slot = self._flying[0]
            hot = time.perf_counter() + self._spin
            give_up = hot + self._yield
            while True:
                result = lib.vkGetFenceStatus(self._device.handle, slot.fences[0])
                now = time.perf_counter()
                if result != 1 or now >= give_up:
                    break
                if now > hot:
                    time.sleep(0)
            while result == 1:  # VK_NOT_READY
                # In slices, so that an interrupt from the keyboard is noticed.
                result = lib.vkWaitForFences(self._device.handle, 1, slot.fences, 1, 500_000_000)
                if result == 2:  # VK_TIMEOUT
                    result = 1
                    if self.ending:
                        raise ClosedError(ENDED)
            self._device.check(result, "waiting for the device")
            self._finish(slot)

    def _finish(self, slot: Slot) -> None:
        """Note that the first slot in flight has finished."""
        stamps = slot.stamps
        if stamps and stamps.labels:
            self._timings += stamps.read()
        self.completed = slot.serial
        slot.programs = []
        self._idle.append(self._flying.popleft())

    def mend(self) -> None:
        """Come to terms with an exception that fell into any of the above: all that was taken is submitted and done."""
        slot = self._submitting
        if slot is not None:
            self._device.check(lib.vkQueueWaitIdle(self._device.queue), "vkQueueWaitIdle")
            status = lib.vkGetFenceStatus(self._device.handle, slot.fences[0])
            if self._device.check(status, "vkGetFenceStatus") == 0:
                if slot not in self._flying:
                    self._flying.append(slot)
                self._taken(slot)
            self._submitting = None
        self._idle = [slot for slot in self._slots if slot not in self._flying]
        for slot in self._idle:
            if slot.stamps:
                slot.stamps.labels = []  # what was recorded there was not submitted
        self.wait(self.flush())

    # -- timing ----------------------------------------------------------------------------------------------------

    def profile(self, what: str | None) -> list[Timing]:
        """Switch to timing ``what``, or nothing, and return what was gathered."""
        self.wait(self.flush())
        gathered, self._timings = self._timings, []
        self.profiling = what
        return gathered

    def close(self) -> None:
        """Let go of everything; the device must be idle."""
        self._cuts = []
        self._journal = []
        self._recordings.forget()
        self._descriptors.reset()
        self.interop = None
        self._submitting = None
        self._flying.clear()
        self._idle = []
        self._slots = []
        self._last = None
        self._pool = None
