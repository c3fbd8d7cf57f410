"""The seam between operations and a Vulkan runtime: what every runtime must do.

A runtime owns one device. Work is recorded in the order of the calls and runs in that order; the runtime inserts the
memory barriers that the bindings' access letters call for. Implementations inherit this documentation.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..errors import UnsupportedError
from .sharing import Sharing


@dataclass(frozen=True)
class DeviceInfo:
    """What is known of one device before anything runs on it.

    Attributes
    ----------
    index : int
        Position in ``grilly.devices()``.
    name, vendor, driver, driver_version : str
        As the driver reports them; ``vendor`` is a short lower-case name ("nvidia", "amd", "intel", "mesa", ...).
    kind : str
        "discrete", "integrated", "virtual", "cpu" or "other".
    api_version : tuple of int
        Vulkan version, (major, minor, patch).
    subgroup_size : int
        The default number of invocations in a subgroup.
    subgroup_sizes : tuple of int
        Smallest and largest size that can be requested; equal where none can.
    limits : mapping
        ``storage_range`` (bytes one binding may span), ``offset_alignment`` (bytes), ``push_bytes``,
        ``shared_bytes``, ``invocations`` (per workgroup), ``groups`` (3 per-axis maxima), ``allocation`` (bytes).
    features : frozenset of str
        What the device offers; docs/runtime.md lists the names. A runtime may offer less.
    memory_bytes : int
        Size of the device's largest memory heap.
    unified : bool
        True where the host can address the device's memory directly (CPUs, integrated GPUs).
    architecture : str
        Filled in by the registry ("nvidia-hopper", "amd-rdna3", "llvmpipe", "generic", ...).
    """

    index: int
    name: str
    vendor: str
    vendor_id: int
    device_id: int
    kind: str
    driver: str
    driver_version: str
    api_version: tuple[int, int, int]
    subgroup_size: int
    subgroup_sizes: tuple[int, int]
    limits: Mapping[str, object]
    features: frozenset[str]
    memory_bytes: int
    unified: bool
    properties: Mapping[str, object] = field(default_factory=dict)
    architecture: str = "generic"


class Filling(Protocol):
    """What fills the holes of a binary. Equal ones make equal binaries, and have equal hashes."""

    def __call__(self, spirv: bytes) -> bytes:
        """The binary with its holes filled."""


@dataclass(frozen=True)
class ProgramSpec:
    """A shader binary with everything needed to make a pipeline of it. Equal specs share one pipeline.

    Attributes
    ----------
    name : str
        The variant's name, used as the label in errors and profiles.
    digest : str
        SHA-256 of ``spirv``, the binary's identity.
    spirv : bytes
        The binary.
    access : tuple of str
        One of "r", "w", "rw" for each storage-buffer binding, in order from binding 0; "rt" for a uniform texel buffer
        of four 32-bit integers a texel, which takes the feature ``texel-buffers``.
    push_bytes : int
        Size of the push-constant block.
    constants : tuple of (int, int)
        Specialization constants: id and the 32 bits of its value.
    subgroup_size : int or None
        The subgroup size to request; None leaves it to the driver.
    filling : Filling or None
        What fills the binary's holes.
    """

    name: str
    digest: str
    spirv: bytes = field(repr=False, compare=False)
    access: tuple[str, ...]
    push_bytes: int
    constants: tuple[tuple[int, int], ...] = ()
    subgroup_size: int | None = None
    filling: Filling | None = None


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of device memory: ``in_use`` by live buffers now, their ``peak`` since the last reset, and ``reserved``
    from the driver. ``host`` is not among them: bytes that arrays of ``host_array`` hold."""

    in_use: int
    peak: int
    reserved: int
    host: int = 0


@dataclass(frozen=True)
class Timing:
    """Device time of a dispatch, or a row of them: label (variants' names), seconds, start in seconds on its clock."""

    label: str
    seconds: float
    start: float


#: Seconds that one submission may take. Operating systems reset a device that does not answer for about two.
SUBMISSION_SECONDS = 0.25


def assumed_pace(device: DeviceInfo) -> float:
    """Floating-point operations a second that any kernel does on the slowest device of the kind.

    Infinite for processors, which no system resets.
    """
    return {"cpu": float("inf"), "discrete": 1.6e13}.get(device.kind, 1e12)


#: The message of the GrillyError for a call in the midst of another one.
REENTERED = (
    "grilly was called by a signal handler or a finalizer in the midst of another call of this thread to the same "
    "grilly.Compute(); make the call later, or in another thread"
)


class Buffer:
    """A piece of device memory, given back when the last reference to this goes.

    Opaque but for what stands here: only the runtime that made it looks inside.
    """

    __slots__ = ("nbytes",)

    def __init__(self, nbytes: int):
        self.nbytes = nbytes

    @property
    def replayed(self) -> bool:
        """Whether it lies in the memory of a graph, to which replays write."""
        return False


class Download:
    """Bytes on their way to the host. Opaque but for ``nbytes``: only the runtime that made it looks inside."""

    __slots__ = ("nbytes",)

    def __init__(self, nbytes: int):
        self.nbytes = nbytes


class _Landed(Download):
    """Bytes that are there already."""

    __slots__ = ("array",)


class Program:
    """A pipeline ready to be dispatched. Opaque but for ``spec``."""

    __slots__ = ("spec",)

    def __init__(self, spec: ProgramSpec):
        self.spec = spec


class Capture:
    """Work of one thread that is noted down and not run, while ``active``.

    ``active`` is a plain attribute, so that setting it to False cannot be interrupted in between.

    Attributes
    ----------
    commands : list of tuple
        What was noted down, in its order: dispatches, as (program, bindings, push constants, workgroups, seconds), and
        copies, as (None, source, byte offset, target, byte offset, bytes). Memory is an opaque object, the same one for
        all uses of a buffer. Once the work is over, others of the same results may be put in their place.
    operations : dict of int to object
        Which operations some commands are, by their numbers: noted by who records them, who alone knows what they mean.
    calls : dict of int to object
        Which calls runs of commands are, by the numbers of the first ones; noted likewise.
    """

    __slots__ = ("active", "commands", "operations", "calls", "__weakref__")

    def __init__(self) -> None:
        self.active = False
        self.commands: list[tuple] = []
        self.operations: dict[int, Any] = {}
        self.calls: dict[int, Any] = {}

    def room(self, nbytes: int) -> object:
        """Memory that other commands may have, put in the place of some: it is the graph's own."""
        raise NotImplementedError

    def owns(self, buffer: Buffer) -> bool:
        """Whether the buffer was allocated in the capture."""
        raise NotImplementedError

    def private(self, memory: object) -> bool:
        """Whether nothing but the commands refers to memory of theirs: it was allocated in the capture, and its buffer
        has gone."""
        raise NotImplementedError

    def written(self, buffers: Sequence[Buffer]) -> list[bool]:
        """Whether captured work writes to each of these buffers."""
        raise NotImplementedError

    def restore(self, buffers: Iterable[Buffer]) -> None:
        """Have each replay find in these buffers what the host wrote there in the capture, whoever writes to them."""
        raise NotImplementedError


class Recording:
    """Captured work, ready to be replayed, with the memory that it works in.

    Opaque but for these figures. What it uses of others' buffers it keeps alive; what it has itself lasts as long as
    this and the buffers that were allocated in the capture.

    Attributes
    ----------
    nbytes : int
        Device memory that it holds for itself.
    dispatches, copies, submissions : int
        In each replay.
    """

    __slots__ = ("nbytes", "dispatches", "copies", "submissions", "__weakref__")

    nbytes: int
    dispatches: int
    copies: int
    submissions: int


class Runtime(abc.ABC):
    """One open device. All methods may be called from any thread.

    A method that raises, be it for an interrupt from the keyboard, loses nothing that was there before: buffers keep
    their contents, and what was recorded before still runs. After DeviceLostError everything is lost, and each method
    raises it again. A method called in the midst of another of the same thread, by a signal handler or a finalizer,
    raises GrillyError. In a forked child the methods raise ClosedError, and so they do when the interpreter ends.
    """

    #: The runtime's name, as in ``Compute(runtime=...)``.
    name: str
    #: The device this runtime has open.
    device: DeviceInfo
    #: What the device offers through this runtime.
    features: frozenset[str]

    @abc.abstractmethod
    def allocate(self, nbytes: int, idle: bool = False, passing: bool = False) -> Buffer:
        """Device memory of at least ``nbytes`` bytes (more than 0), its contents undefined.

        ``idle`` asks for memory that no work in flight uses, because the host is about to write it. ``passing`` says
        that the host writes it once and the operation at hand reads it: it need not be memory that can be shared.
        Raises OutOfDeviceMemoryError when the device has no room.
        """

    @abc.abstractmethod
    def free(self, buffer: Buffer) -> None:
        """Give a buffer back before the last reference to it goes; it is not to be used again.

        Work already recorded that uses it still runs; its memory is reused only after that.
        """

    @abc.abstractmethod
    def write(self, buffer: Buffer, array: np.ndarray, offset: int = 0, borrow: bool = False) -> None:
        """Copy ``array``, of any strides, in C order to byte ``offset``. The array may be changed after the call.

        With ``borrow`` an array over ``host_array`` memory may be changed only after the next ``flush`` or ``read`` of
        the same thread, which waits for it.
        """

    @abc.abstractmethod
    def read(self, buffer: Buffer, out: np.ndarray, offset: int = 0) -> None:
        """Fill ``out`` (C-contiguous) from byte ``offset``, after all work recorded so far has run."""

    def download(self, buffer: Buffer, nbytes: int, offset: int = 0) -> Download:
        """Begin to copy bytes to the host, as they are when all work recorded so far has run. Nothing waits.

        `collect` waits for this copy and not for what is recorded after it. A runtime whose copies are not apart from
        other work reads here, and waits. Raises CaptureError in captured work.
        """
        found = _Landed(nbytes)
        found.array = np.empty(nbytes, np.uint8)
        self.read(buffer, found.array, offset)
        return found

    def collect(self, download: Download, out: np.ndarray) -> None:
        """Fill ``out`` (C-contiguous, of the download's bytes) when they have come; it may be called again."""
        assert isinstance(download, _Landed)
        out.reshape(-1).view(np.uint8)[:] = download.array

    def host_array(self, nbytes: int) -> np.ndarray:
        """Bytes, undefined, that ``write`` and ``read`` move without a copy by the host.

        The memory lives as long as any array over it, also after ``close``. A runtime that has no such memory gives an
        ordinary array, which is moved like any other.
        """
        return np.empty(nbytes, np.uint8)

    def holds(self, array: np.ndarray) -> bool:
        """Whether a C-contiguous array lies in memory of this runtime's ``host_array``."""
        return False

    def lend(self, array: np.ndarray) -> tuple[Buffer, int] | None:
        """The buffer behind a C-contiguous array over ``host_array`` memory and the array's byte offset in it.

        None where the device should not use such memory in place, or where the array is not of that kind. The next
        ``flush`` or ``read`` of the same thread waits for the work that was given the buffer, so that the array may be
        changed after it. The caller keeps the array alive while it uses the buffer.
        """
        return None

    @abc.abstractmethod
    def program(self, spec: ProgramSpec) -> Program:
        """The pipeline for ``spec``, made at first use and kept.

        Raises ShaderError when the driver refuses the binary. In a captured function ``record`` may raise that, as the
        driver may still be compiling: pipelines of a capture can be made side by side.
        """

    @abc.abstractmethod
    def dispatch(
        self,
        program: Program,
        bindings: Sequence[tuple[Buffer, int, int] | None],
        push: bytes,
        groups: tuple[int, int, int],
        seconds: float = 0.0,
    ) -> None:
        """Record one dispatch.

        Parameters
        ----------
        bindings : sequence of (buffer, byte offset, byte length) or None
            One for each binding of the program. None where the shader does not touch it. Offsets other than 0 need
            the ``descriptor-offsets`` feature and are multiples of ``limits["offset_alignment"]``.
        push : bytes
            At most the program's push bytes.
        groups : tuple of int
            Workgroups along x, y, z.
        seconds : float
            How long it is expected to take at most. Long recordings are cut into submissions of SUBMISSION_SECONDS.
        """

    def dispatch_together(self, dispatches: Sequence[tuple]) -> None:
        """Record dispatches, the arguments of ``dispatch`` each: all of them, or none where this raises.

        So of up to 64; more are recorded in several parts. A runtime that runs each at once may have run some.
        """
        for arguments in dispatches:
            self.dispatch(*arguments)

    @abc.abstractmethod
    def flush(self) -> None:
        """Note the end of a call: submit what is recorded, without waiting, now or with calls that follow at once."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Submit what is recorded and wait until everything has run.

        Raises DeviceLostError when the device stopped answering.
        """

    # -- capture and replay ----------------------------------------------------------------------------------------

    @property
    def capturing(self) -> bool:
        """Whether work of this thread is being captured."""
        return False

    def capture(self) -> Capture:
        """What captures this thread's work while its ``active`` is True and a reference to it is held.

        Meanwhile ``dispatch`` and ``write`` are noted down in their order. ``allocate`` gives buffers that have a place
        in memory from ``record`` on, or in the device's memory at once with ``idle``, as their contents are the host's.
        ``flush`` does nothing; ``read``, ``synchronize``, ``profile``, ``record`` and ``replay`` raise CaptureError.
        Other threads go on as usual, and may capture too.

        Raises CaptureError while this thread captures already, and UnsupportedError where the runtime cannot.
        """
        raise UnsupportedError(
            f"capture: the {self.name} runtime has no recordings of several dispatches; open the device with "
            "grilly.Compute(runtime='vulkan')"
        )

    def aside(self) -> contextlib.AbstractContextManager:
        """Inside, this thread's work is run and not captured: what is made once and kept for any call."""
        return contextlib.nullcontext()

    def record(self, capture: Capture) -> Recording:
        """Make a recording of captured work, which is over.

        Buffers that were allocated in the capture share memory where one is used last before the other is used first.
        Those that somebody still refers to have memory of their own. What the host wrote is there in each replay.

        Raises OutOfDeviceMemoryError when the device has no room.
        """
        raise UnsupportedError(f"record: the {self.name} runtime captures nothing")

    def replay(
        self,
        recording: Recording,
        arguments: Sequence[tuple[Buffer, np.ndarray | Buffer, int, int]],
        results: Sequence[tuple[Buffer, int, Buffer, int]],
        before: Sequence[tuple] = (),
        behind: Sequence[tuple] = (),
    ) -> None:
        """Fill buffers, submit the recorded work, and copy from buffers: one step, whatever other threads do.

        Parameters
        ----------
        arguments : sequence of (buffer, source, byte offset, bytes)
            Each source is an array, which may be changed after the call, or a buffer, read from the offset.
        results : sequence of (buffer, byte offset, target, bytes)
            Copied to the beginnings of the targets.
        before, behind : sequence of tuple
            The arguments of ``dispatch`` for dispatches that fill buffers and copy from them too.
        """
        raise UnsupportedError(f"replay: the {self.name} runtime captures nothing")

    def share(self) -> Sharing:
        """What makes the device's memory usable by another interface to the same GPU.

        Raises UnsupportedError where the device, its driver or the runtime cannot.
        """
        raise UnsupportedError(
            f"share: the {self.name} runtime exports no memory; open the device with grilly.Compute(runtime='vulkan')"
        )

    @abc.abstractmethod
    def profile(self, what: str | None) -> list[Timing]:
        """Time each "dispatch" from now on, or each "row" of them (``Compute.profile``), or nothing.

        Waits, then returns the timings gathered so far.

        Needs the ``timestamps`` feature; raises UnsupportedError without it.
        """

    @abc.abstractmethod
    def memory(self, reset_peak: bool = False) -> MemoryUse:
        """Memory figures; ``reset_peak`` starts a new peak at the present use."""

    @abc.abstractmethod
    def close(self) -> None:
        """Wait for the device and release everything. Later calls raise ClosedError; closing twice is allowed."""
