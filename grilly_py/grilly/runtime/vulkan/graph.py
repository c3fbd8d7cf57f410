"""Graphs: captured work with its memory planned and its command buffers recorded, to be replayed.

A graph lasts until nobody refers to its recording any more and its last replay has run. Its memory lasts longer where
somebody refers to a buffer that lies in it. Which graphs there are is known from one set, which changes in single
steps.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Iterator

from ...errors import OutOfDeviceMemoryError
from ..interface import SUBMISSION_SECONDS, Recording
from .capture import GraphSuballocation, VulkanCapture, targets
from .descriptors import Descriptors
from .device import VulkanDevice
from .memory import Block, VulkanBuffer
from .planned import levels, places
from .stream import Begun, Recorded, Stream


class VulkanRecording(Recording):
    """What the user of a graph refers to."""

    __slots__ = ("recorded",)

    def __init__(self, recorded: Recorded):
        self.recorded = recorded


class _End(weakref.ref):
    """What is left of a recording when it goes."""

    __slots__ = ("recorded",)


class RecordedGraphs:
    """The graphs of one device. The caller holds the runtime's lock."""

    def __init__(self, device: VulkanDevice):
        self._device = device
        self._live: set[_End] = set()
        self.gone: deque[_End] = deque()

    def sweep(self, completed: int) -> None:
        """Give back what belongs to graphs that have gone, where their last replay is among the completed."""
        self.gone.clear()
        for end in tuple(self._live):
            if end() is None:
                if end.recorded.serial <= completed:
                    end.recorded.release()
                    self._live.discard(end)
                else:
                    self.gone.append(end)
        self._device.objects.sweep()

    def close(self) -> None:
        """Let go of all graphs; the device must be idle."""
        for end in tuple(self._live):
            end.recorded.release()
        self._live = set()
        self.gone.clear()

    def record(self, capture: VulkanCapture, stream: Stream, allocate: Callable, most: int) -> VulkanRecording:
        """Runtime.record; ``allocate`` gives device memory, of which one buffer has ``most`` bytes at most."""
        for command in capture.commands:  # nothing is to be given back where a shader is refused
            if command[0] is not None and command[0].pipeline is None:
                command[0].make()
        beginnings = _beginnings(capture, stream, allocate)
        commands = [*beginnings, *capture.commands]
        recorded = Recorded()
        own = set(capture.suballocations)
        # What lies in another graph's memory is used there, and keeps all of that memory.
        recorded.buffers = tuple({
            held if _real(held) else held.arena
            for command in commands for held in _helds(command)
            if held not in own and (_real(held) or held.arena is not None)
        })  # fmt: skip
        recorded.arenas = _placed(capture, commands, allocate, most, recorded.begun)
        recorded.descriptors = Descriptors(self._device)
        recording = VulkanRecording(recorded)
        end = _End(recording, self.gone.append)
        end.recorded = recorded
        self._live.add(end)
        for buffer in recorded.buffers:
            buffer.suballocation.graphs += (recorded,)
        entries = tuple(map(_entry, commands))
        cuts = _cut(commands)
        recorded.entries = entries
        recorded.seconds = sum(_seconds(command) for command in commands[slice(*cuts[0])]) if cuts else 0.0
        recorded.handles = tuple(stream.recorded(entries[first:last], recorded.descriptors) for first, last in cuts)
        recorded.commands = tuple(handle.value for handle in recorded.handles)
        recording.dispatches = sum(command[0] is not None for command in commands)
        recording.copies = len(commands) - recording.dispatches
        recording.submissions = len(cuts)
        made = capture.filled.union(command[1] for command in beginnings).intersection(recorded.buffers)
        recording.nbytes = sum(buffer.suballocation.size for buffer in (*recorded.arenas, *made))
        return recording


def _real(held) -> bool:
    return held.__class__ is VulkanBuffer


def _helds(command: tuple) -> Iterator[GraphSuballocation | VulkanBuffer]:
    """The buffers of a command."""
    if command[0] is None:
        yield command[1]
        yield command[3]
    else:
        for binding in command[1]:
            if binding is not None:
                yield binding[0]


def _beginnings(capture: VulkanCapture, stream: Stream, allocate: Callable) -> list[tuple]:
    """Copies that put what the host wrote to where the device or others write too, so that each replay finds it."""
    both = {held for command in capture.commands for held in targets(command) if held in capture.filled}
    found = []
    for buffer in both | capture.restored:
        kept = allocate(buffer.nbytes)
        stream.copy(buffer, 0, kept, 0, buffer.nbytes, keep=False)
        found.append((None, kept, 0, buffer, 0, buffer.nbytes))
    return found


def _uses(command: tuple) -> list[tuple[object, int, int, bool]]:
    """As ``levels`` takes them."""
    if command[0] is None:
        _, source, begin, target, start, nbytes = command
        ranges = [(source, begin, nbytes, False), (target, start, nbytes, True)]
    else:
        pairs = zip(command[0].spec.access, command[1], strict=True)
        ranges = [(*binding, "w" in letters) for letters, binding in pairs if binding is not None]
    found = []
    for held, start, nbytes, writes in ranges:
        what = held
        if _real(held):
            what, start = held.suballocation.block, held.suballocation.start + start
        found.append((what, start, start + nbytes, writes))
    return found


def _placed(
    capture: VulkanCapture, commands: list[tuple], allocate: Callable, most: int, begun: Begun
) -> tuple[VulkanBuffer, ...]:
    """Give the capture's buffers their places; returns what they lie in."""
    first: dict[GraphSuballocation, float] = {}
    last: dict[GraphSuballocation, float] = {}
    for level, command in zip(levels(map(_uses, commands)), commands, strict=True):
        for held in _helds(command):
            if not _real(held):
                first.setdefault(held, level)
                last[held] = level
    for suballocation in capture.suballocations:
        if suballocation.held:  # an argument, a result, or what a closure keeps: nothing else is to lie there
            first[suballocation], last[suballocation] = -1, math.inf
    suballocations = [suballocation for suballocation in capture.suballocations if suballocation in first]
    found, sizes = places(
        [(first[suballocation], last[suballocation], suballocation.size) for suballocation in suballocations], most
    )
    try:
        arenas = tuple(map(allocate, sizes))
    except OutOfDeviceMemoryError as error:
        raise OutOfDeviceMemoryError(f"the graph takes {sum(sizes):,} bytes: {error}") from error
    for suballocation, (arena, start) in zip(suballocations, found, strict=True):
        suballocation.place(arenas[arena], start, begun)
    return arenas


def _lies(held: GraphSuballocation | VulkanBuffer) -> tuple[Block, int]:
    """The block, and the byte in it where memory begins."""
    if held.__class__ is GraphSuballocation:
        return held.whole.block, held.start
    return held.suballocation.block, held.suballocation.start


def _entry(command: tuple) -> tuple:
    """A command as the stream's journal has it."""
    if command[0] is None:
        _, source, begin, target, start, nbytes = command
        (a, first), (b, second) = map(_lies, (source, target))
        return (None, a, first + begin, b, second + start, nbytes)
    program, bindings, push, groups, _ = command
    key: list = [program.set_layout]
    for binding in bindings:
        if binding is None:
            key.append(None)
        else:
            held, offset, nbytes = binding
            block, begins = _lies(held)
            key += (block, begins + offset, nbytes)
    return (program, tuple(key), push, groups)


def _seconds(command: tuple) -> float:
    return 0.0 if command[0] is None else command[4]


def _cut(commands: list[tuple]) -> list[tuple[int, int]]:
    """The commands of each submission, as (first, behind the last)."""
    found, start, total = [], 0, 0.0
    for number, command in enumerate(commands):
        seconds = _seconds(command)
        if total and total + seconds > SUBMISSION_SECONDS:
            found.append((start, number))
            start, total = number, 0.0
        total += seconds
    return [*found, (start, len(commands))] if commands else []


__all__ = ["RecordedGraphs", "VulkanRecording"]
