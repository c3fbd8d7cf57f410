"""Device: what operations take. A runtime, a registry, facts, and caches; the arrays on it are made here."""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import ClosedError, UnsupportedError
from ...registry import Choice, Registry, identify
from ...runtime.interface import SUBMISSION_SECONDS, Capture, DeviceInfo, Runtime, assumed_pace
from .caches import Caches
from .capsules import on_host
from .dtypes import dtype_of, is_storable, plain, refused
from .exchange import Exchange
from .numbers import extents
from .operators import ArrayOperations
from .other_arrays import is_torch, refuse_hidden
from .tensor import LentStorage, Storage, Tensor

# Multiprocessors where the device does not tell.
_UNITS = {"cpu": 8, "integrated": 12}
# Where the driver ends loops silently (docs/shader-files.md): trips of an invocation, with room for a kernel's outer
# loops and for the trip in which it looks at a tile's class.
LOOP_TRIPS = {"llvmpipe": 64_000}
#: The part of a device's memory, or of a backend's limit, that a call may take as workspace is one of so many.
WORKSPACE_SHARE = 16
#: Of a device's memory, what tensors may take without a limit: the rest is for others, and for what the driver keeps.
HEAP_SHARE = 0.9
#: An attention call of fewer floating-point operations takes about as long as the dispatch that makes classes of tiles.
LEAST_WORK = 2.0**30
#: Operations for each byte of mask that is read for the classes. GPUs do some 100 operations in the time in which they
#: read a byte, so the classes cost at most about a tenth of a call in which they help nothing. A mask that no two heads
#: share is read by the kernel once, and reading it twice would cost more than that.
WORK_PER_BYTE = 1024.0


#: Floating-point operations a second that a device was seen to do, by ``Step.kind``. Plans take them beside its facts.
Throughputs = Mapping[tuple[Any, ...], float]
NO_PACES: Throughputs = types.MappingProxyType({})


@dataclasses.dataclass(frozen=True)
class DeviceFacts:
    """The facts of a device for plans, without measurements. Made by hand, they serve plans without a device.

    Attributes
    ----------
    name, runtime, architecture : str
        The device's and the runtime's names, and the architecture as the registry recognised it.
    storage_range : int
        Bytes that one binding may span.
    alignment : int
        Bytes to which a binding's start inside a storage is rounded down.
    windows : bool
        Whether a binding may start inside a buffer.
    groups : tuple of int
        Most workgroups along x, y and z.
    work_limit : float
        Most floating-point operations of one submission, where nothing is known of its kernel's throughput.
    units : int
        Multiprocessors, or a guess.
    subgroup_size : int
        Where none is requested.
    loop_trips : float
        Trips after which the driver ends an invocation's loops.
    class_work : float
        Floating-point operations from which on classes of tiles are made (attention/tile_classes.py).
    class_read : float
        Such operations for each byte of mask that is read for them.
    largest : float
        Bytes that one array may take.
    workspace : int
        Bytes of a call for arrays between its kernels: a part of the device's memory, or of the backend's limit.
    """

    name: str
    runtime: str
    architecture: str
    storage_range: int
    alignment: int
    windows: bool
    groups: tuple[int, int, int]
    work_limit: float
    units: int
    subgroup_size: int
    loop_trips: float = math.inf
    class_work: float = LEAST_WORK
    class_read: float = WORK_PER_BYTE
    largest: float = math.inf
    workspace: int = 2**28

    @classmethod
    def of(cls, info: DeviceInfo, runtime: str, features) -> DeviceFacts:
        """The facts of a device that a runtime of this name has opened with these features."""
        limits = info.limits
        return cls(
            info.name,
            runtime,
            info.architecture,
            limits["storage_range"],
            max(limits["offset_alignment"], 16),
            "descriptor-offsets" in features,
            tuple(limits["groups"]),
            assumed_pace(info) * SUBMISSION_SECONDS,
            units_of(info),
            info.subgroup_sizes[0],
            LOOP_TRIPS.get(info.architecture, math.inf),
            largest=limits.get("allocation") or math.inf,
            workspace=info.memory_bytes // WORKSPACE_SHARE,
        )

    def holds(self, nbytes: int) -> bool:
        """Whether one new array may have so many bytes and be bound as a whole."""
        return nbytes <= min(self.storage_range, self.largest)

    def most_work(self, kind: tuple | None, throughputs: Throughputs) -> float:
        """Most floating-point operations of a dispatch of this kind: what takes SUBMISSION_SECONDS."""
        throughput = None if kind is None else throughputs.get(kind)
        return self.work_limit if throughput is None else throughput * SUBMISSION_SECONDS


def units_of(info: DeviceInfo) -> int:
    """The device's multiprocessors, or a guess."""
    for name in ("sm_count", "compute_units", "shader_cores"):
        count = info.properties.get(name)
        if count:
            return int(count)
    return _UNITS.get(info.kind, 48)


class Stale:
    """Tells whether a graph is out of date: ``why`` is the reason, such as a replaced weight, or None."""

    __slots__ = ("why", "thread", "__weakref__")

    def __init__(self) -> None:
        self.why: str | None = None
        self.thread = threading.get_ident()


#: Those of the captures under way, of any device and thread: a list, as every call of a layer asks whether it is empty.
UNDER_WAY: list[Stale] = []


def under_way() -> list[Stale]:
    """The entries of UNDER_WAY that belong to captures of this thread."""
    thread = threading.get_ident()
    return [stale for stale in UNDER_WAY[:] if stale.thread == thread]


class Noted(NamedTuple):
    """An operation of captured work.

    Attributes
    ----------
    operation : Operation
        Of the plan.
    words : sequence of int
        What its ``Live`` words are.
    offsets : list of int
        Where its arrays and its result begin, in elements.
    """

    operation: Any
    words: Sequence[int]
    offsets: list[int]


class NotedCall(NamedTuple):
    """A call among captured work, whose plan says which operation it is.

    Attributes
    ----------
    plan : Plan
        Its steps are commands that follow each other.
    layouts : tuple of Layout or None
        Of its arrays; offsets are where they begin, in elements.
    """

    plan: Any
    layouts: tuple


class Captured(threading.local):
    """Notes on the captured work of a thread, while it is under way, and on what it holds back.

    Attributes
    ----------
    grown : dict
        What replays advance, and by how much: lengths of caches (attention/cache_lengths.py), seeds (random.py).
    parameters : dict
        Parameters of options made in the work, for its later calls (attention/kvcache.py).
    parts : dict
        Split weights made in the work (matmul/split_weights.py).
    kept : dict
        Storages whose split weights were made before the work and are used in it, and their versions.
    written : WeakSet
        Storages that the work writes to beside its results.
    filled : WeakSet or None
        Storages that the host wrote in the work, but for those of caches.
    stale : Stale or None
        Told when a weight of the work is replaced.
    work : Capture or None
        The work itself.
    together : list or None
        Outside of captures: dispatches that are held back until all are there (together.py).
    """

    def __init__(self) -> None:
        self.grown: dict[Any, int] = {}
        self.parameters: dict[tuple, Any] = {}
        self.parts: dict[tuple, tuple[int, Tensor]] = {}
        self.kept: dict[Any, int] = {}
        self.written: weakref.WeakSet[Any] = weakref.WeakSet()
        self.filled: weakref.WeakSet[Any] | None = None
        self.stale: Stale | None = None
        self.work: Capture | None = None
        self.together: list[tuple] | None = None


class Device:
    """An open device, as operations see it.

    Parameters
    ----------
    runtime : Runtime
        Open.
    convert : callable
        ``convert(tensor, dtype)``: a contiguous copy on the device (copy.py, which stands on this file).
    prove : callable
        ``prove(device, choice, facts)`` checks a kernel that the registry does not trust yet (selfcheck/).
    arrays : ArrayOperations
        What tensors' operators and indices do (compute/arrays, which stands on this file).

    Attributes
    ----------
    runtime : Runtime
    info : DeviceInfo
        With its architecture recognised.
    facts : DeviceFacts
    throughputs : dict
        As ``Throughputs``; it grows (submission_budget.py).
    registry : Registry
    caches : Caches
        Plans and what else calls may use again.
    home : Device
        The device that tensors belong to: this one, or that which this is a view of.
    backend : Compute
        The facade over this device, which ``Tensor.backend`` gives.
    exchange : Exchange, UnsupportedError or None
        Shares its memory with another interface to the GPU, or the reason why not: exchange.py.
    sixteen_bits : bool
        Whether kernels can read arrays of 16-bit elements.
    memory_limit : int or None
        Bytes that tensors may take together before calls on NumPy arrays are streamed.
    progress : callable or None
        Called with the progress of streamed calls.
    captured : Captured
        What this thread's capture has noted for the replays of its graph.
    profiled : bool
        Whether dispatches are timed (``Compute.profile``).
    planned : callable or None
        Called with a plan before it is prepared (trial.py).
    """

    def __init__(
        self,
        runtime: Runtime,
        convert: Callable[[Tensor, np.dtype], Tensor],
        prove: Callable[[Device, Choice, Mapping[str, int]], str | None],
        arrays: ArrayOperations,
    ):
        self.runtime = runtime
        self.info = dataclasses.replace(runtime.device, architecture=identify(runtime.device))
        self.facts = DeviceFacts.of(self.info, runtime.name, runtime.features)
        self.throughputs: dict[tuple[Any, ...], float] = {}
        self.convert = convert
        self.arrays = arrays
        self.caches = Caches()
        self.registry = Registry(
            self.info, runtime.features, prove=functools.partial(prove, self), changed=lambda: self.caches.forget()
        )
        self.home: Device = self
        #: Held by a replay while it counts the keys that it adds to caches.
        self.growing = threading.RLock()
        self.backend: Any = None
        self.exchange: Exchange | UnsupportedError | None = None
        self.sixteen_bits = "float16-storage" in runtime.features
        self._memory_limit: int | None = None
        self.progress: Callable | None = None
        self.captured = Captured()
        self.profiled = False
        self.planned: Callable | None = None
        self.closed = False

    def view(self, registry) -> Device:
        """The same device, memory and order of work with another registry, and plans of its own."""
        other = object.__new__(Device)
        other.__dict__.update(self.__dict__, registry=registry, caches=Caches())
        return other

    @property
    def memory_limit(self) -> int | None:
        """Bytes that tensors may take together before calls on arrays are streamed; workspace is a part of it."""
        return self._memory_limit

    @memory_limit.setter
    def memory_limit(self, limit: int | None) -> None:
        self._memory_limit = limit
        most = self.info.memory_bytes
        workspace = (most if limit is None else min(limit, most)) // WORKSPACE_SHARE
        if workspace != self.facts.workspace:
            self.facts = dataclasses.replace(self.facts, workspace=workspace)
            self.caches.forget()

    @property
    def most_memory(self) -> int:
        """Bytes that tensors may take together: ``memory_limit``, or HEAP_SHARE of the memory where that is None."""
        return int(HEAP_SHARE * self.info.memory_bytes) if self.memory_limit is None else self.memory_limit

    def check_open(self) -> None:
        """Raise ClosedError if the device was closed."""
        if self.home.closed:
            raise ClosedError("this grilly.Compute() is closed and its tensors are gone; open a new one")

    def close(self) -> None:
        """Wait for the device and release everything. After an interrupt it can be called again."""
        self.closed = True
        self.caches.forget()
        self.runtime.close()

    # -- arrays ----------------------------------------------------------------------------------------------------

    def tensor(self, array) -> Tensor:
        """Copy an array to the device: ``Compute.tensor``."""
        return self._place(array)

    def fill(self, tensor: Tensor, array: np.ndarray) -> None:
        """Copy an array to a contiguous tensor of its shape and dtype; waits for work that uses its memory."""
        self.check_open()
        tensor._storage.version += 1
        self.runtime.write(tensor._storage.buffer, plain(array), tensor._offset * array.itemsize)

    def borrow(self, array, passing: bool = True) -> Tensor:
        """As ``tensor``, but the device may still be reading an array of ``grilly.pinned.empty`` when this returns.

        For operations: the array must not change before their ``runtime.flush()`` or ``Tensor.numpy()``, either of
        which waits for that. Where host and device share memory, the device uses the array in place. ``passing``:
        nobody is given the tensor, so it may lie where it is written soonest.
        """
        return self._place(array, lend=True, passing=passing)

    def _place(self, array, lend: bool = False, passing: bool = False) -> Tensor:
        self.check_open()
        if isinstance(array, Tensor):
            return array if array._storage.device is self.home else self.tensor(array.numpy())
        refuse_hidden("tensor", array)
        try:
            # NumPy asks for neither capsules nor shapes: what has nothing else would become an array of one object.
            alone = hasattr(array, "__dlpack__") and not hasattr(array, "__array__")
            array = on_host(array) if alone else np.asarray(array)
        except TypeError as error:
            way = "; grilly.torch.from_torch copies PyTorch's" if is_torch(array) else ""
            if not way and hasattr(array, "__dlpack__"):
                way = "; grilly.from_dlpack takes what it exports by DLPack"
            raise TypeError(f"tensor: {type(array).__name__} is no array for NumPy: {error}{way}") from error
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        if not is_storable(array.dtype):
            raise TypeError(f"tensor: {refused(array.dtype)}")
        order, laid = None, array
        if not array.flags.c_contiguous:
            # Outermost first; repeated axes (stride 0) count as outermost, so that the others keep their neighbours.
            order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]) or -math.inf)
            laid = array.transpose(order)
        lent = self.runtime.lend(laid) if lend and array.base is not None and array.size else None
        if lent is not None and lent[1] % array.itemsize == 0:
            storage = LentStorage(self, lent[0], array)
            tensor = Tensor(storage, laid.shape, array.dtype, offset=lent[1] // array.itemsize)
        else:
            storage = Storage(self, array.nbytes, idle=True, passing=passing)
            self.runtime.write(storage.buffer, plain(laid), borrow=lend)
            if self.captured.filled is not None:
                self.captured.filled.add(storage)
            tensor = Tensor(storage, laid.shape, array.dtype)
        return tensor if order is None else tensor.transpose([order.index(axis) for axis in range(array.ndim)])

    def empty(self, shape, dtype=np.float32) -> Tensor:
        """A tensor whose contents are undefined: ``Compute.empty``."""
        self.check_open()
        shape = extents("empty", shape)
        dtype = dtype_of(dtype)
        if not is_storable(dtype):
            raise TypeError(f"empty: {refused(dtype)}")
        return Tensor(Storage(self, math.prod(shape) * dtype.itemsize), shape, dtype)
