"""What a captured function asks of the runtime, in its order; nothing of it runs.

Buffers that it allocates get their places in memory at the end, when it is known how long each is used. Those that the
host fills (``idle``) are there at once, so that what a module keeps of a captured call is of use to any other.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence

from ...errors import CaptureError
from ..interface import Capture
from .memory import ALIGNMENT, Block, Suballocation, VulkanBuffer
from .pipelines import VulkanProgram
from .stream import Begun, misfit

UNPLACED = (
    "a tensor that was made in a captured function has no memory: the capture has not ended yet, or it failed; use "
    "what the graph returns"
)
NOT_REPLAYED = (
    "a tensor that was made in a captured function holds nothing before the graph's first replay; use what the graph "
    "returns, and make what is to last from replay to replay before the capture"
)


class GraphSuballocation:
    """The memory of a buffer that was allocated in a capture; like memory.Suballocation from the graph's first replay
    on."""

    __slots__ = ("size", "start", "holder", "arena", "begun")
    replayed = True

    def __init__(self, size: int):
        self.size = size
        self.holder: weakref.ref | None = None
        self.arena: VulkanBuffer | None = None  # what it lies in, and keeps alive

    def place(self, arena: VulkanBuffer, start: int, begun: Begun) -> None:
        """Say where it lies, of a graph that tells ``begun``."""
        self.start = arena.suballocation.start + start
        self.begun = begun
        self.arena = arena

    @property
    def held(self) -> bool:
        """Whether somebody still refers to the buffer."""
        return self.holder is not None and self.holder() is not None

    @property
    def whole(self) -> Suballocation:
        """What it lies in, for other graphs that are captured, before the first replay too."""
        if self.arena is None:
            raise CaptureError(UNPLACED)
        return self.arena.suballocation

    @property
    def _whole(self) -> Suballocation:
        if self.arena is None:
            raise CaptureError(UNPLACED)
        if not self.begun.yet:
            raise CaptureError(NOT_REPLAYED)
        return self.arena.suballocation

    @property
    def block(self) -> Block:
        """As Suballocation.block."""
        return self._whole.block

    @property
    def serial(self) -> int:
        """As Suballocation.serial, of the whole arena, which goes back to its pool as one."""
        return self._whole.serial

    @serial.setter
    def serial(self, serial: int) -> None:
        self._whole.serial = serial

    @property
    def last(self) -> int:
        """As Suballocation.last."""
        return self._whole.last

    @property
    def shared(self) -> bool:
        """As Suballocation.shared, of the whole arena."""
        return self._whole.shared

    @shared.setter
    def shared(self, shared: bool) -> None:
        self._whole.shared = shared


def targets(command: tuple) -> Iterator[GraphSuballocation | VulkanBuffer]:
    """The buffers that a command writes to."""
    if command[0] is None:
        yield command[3]
    else:
        for letters, binding in zip(command[0].spec.access, command[1], strict=True):
            if "w" in letters and binding is not None:
                yield binding[0]


class VulkanCapture(Capture):
    """A capture of one thread.

    A command is a dispatch, (program, bindings, push constants, workgroups, seconds), or a copy, (None, source, start,
    target, start, bytes). It holds a GraphSuballocation for a buffer of the capture's own, so that it can be seen
    whether anyone else refers to the buffer, and any other buffer itself.
    """

    __slots__ = ("aside", "suballocations", "filled", "restored", "_unused")

    def __init__(self) -> None:
        super().__init__()
        self.aside = 0  # how many times the thread has stepped aside
        self.suballocations: list[GraphSuballocation] = []
        self.filled: set[VulkanBuffer] = set()  # by the host
        self.restored: set[VulkanBuffer] = set()  # of these, what others may write to
        self._unused: set[VulkanBuffer] = set()  # of these, what no command uses yet

    def allocate(self, nbytes: int) -> VulkanBuffer:
        """A buffer without a place."""
        suballocation = GraphSuballocation(-(-nbytes // ALIGNMENT) * ALIGNMENT)
        self.suballocations.append(suballocation)
        buffer = VulkanBuffer(nbytes)
        buffer.end = None
        buffer.suballocation = suballocation
        suballocation.holder = weakref.ref(buffer)
        return buffer

    def room(self, nbytes: int) -> GraphSuballocation:
        return self.allocate(nbytes).suballocation

    def owns(self, buffer: VulkanBuffer) -> bool:
        return buffer in self.filled or buffer.suballocation in self.suballocations

    def private(self, memory: object) -> bool:
        return memory.__class__ is GraphSuballocation and not memory.held

    def written(self, buffers: Sequence[VulkanBuffer]) -> list[bool]:
        found = {held for command in self.commands for held in targets(command)}
        return [buffer in found or buffer.suballocation in found for buffer in buffers]

    def restore(self, buffers: Iterable[VulkanBuffer]) -> None:
        self.restored.update(self.filled.intersection(buffers))

    def fill(self, buffer: VulkanBuffer) -> None:
        """Take a buffer that the host is about to write."""
        self.filled.add(buffer)
        self._unused.add(buffer)

    def fills(self, buffer: VulkanBuffer) -> bool:
        """Whether the host may write to the buffer now: the device has it, and no command comes before."""
        return buffer in self._unused

    def _held(self, buffer: VulkanBuffer) -> GraphSuballocation | VulkanBuffer:
        if buffer.suballocation.__class__ is GraphSuballocation:
            return buffer.suballocation
        self._unused.discard(buffer)
        return buffer

    def dispatch(self, program: VulkanProgram, bindings, push: bytes, groups, seconds: float) -> None:
        """As Stream.dispatch."""
        if len(bindings) != len(program.spec.access) or len(push) > program.spec.push_bytes or not any(bindings):
            raise misfit(program, bindings, push)
        bound = tuple(None if b is None else (self._held(b[0]), b[1], b[2]) for b in bindings)
        self.commands.append((program, bound, push, tuple(groups), seconds))

    def copy(self, source: VulkanBuffer, target: VulkanBuffer, offset: int, nbytes: int) -> None:
        """Copy the beginning of a buffer."""
        self.commands.append((None, self._held(source), 0, self._held(target), offset, nbytes))


__all__ = ["GraphSuballocation", "VulkanCapture", "targets"]
