"""What sharing asks of another interface to the GPU, by ctypes: what CUDA's driver and HIP's have in common.

HIP's interface was made after CUDA's: the functions that sharing needs take the same arguments, and the structures for
memory have the same layout (``cuda.h`` and HIP's ``hip_runtime_api.h``). They are written here as words with the few
fields that are used at their places. What differs is in `cuda.py` and `hip.py`.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ..errors import GrillyError, OutOfDeviceMemoryError, UnsupportedError
from ..runtime.sharing import Allocation, Descriptor, Sharing

#: CUDA_ERROR_OUT_OF_MEMORY and CUDA_ERROR_NOT_READY; hipErrorOutOfMemory and hipErrorNotReady.
_OUT_OF_MEMORY, _NOT_READY = 2, 600
#: CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, hipExternalMemoryHandleTypeOpaqueFd.
_OPAQUE_FD = 1
#: CU_STREAM_NON_BLOCKING, hipStreamNonBlocking.
_NON_BLOCKING = 1
#: CUDA_EXTERNAL_MEMORY_HANDLE_DESC, hipExternalMemoryHandleDesc: type, union with the descriptor, size, and a flag for
#: dedicated memory. Sixteen words and four bytes follow.
MEMORY = "=iiQQQI68x"
#: CUDA_EXTERNAL_MEMORY_BUFFER_DESC, hipExternalMemoryBufferDesc: offset, size; flags and sixteen words follow.
PART = "=QQ72x"
#: A place for a handle or an address, 0 as long as there is none.
Box = ctypes.c_uint64
u64, integer, pointer, count = ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint

#: Arguments of what both have, by what it does. Handles and addresses are 64-bit numbers.
_JOBS: dict[str, tuple[Any, ...]] = {
    "start": (count,),
    "count devices": (pointer,),
    "import memory": (pointer, pointer),
    "map": (pointer, u64, pointer),
    "unmap": (u64,),
    "destroy memory": (u64,),
    "settle all": (),
    "copy": (u64, u64, ctypes.c_size_t, u64),
    "settle": (u64,),
    "query": (u64,),
    "make stream": (pointer, count),
    "destroy stream": (u64,),
}


class Driver(abc.ABC):
    """A driver on one GPU.

    Parameters
    ----------
    library : ctypes.CDLL
        The driver's.
    identity : bytes or str
        Of the GPU, as the driver names it.

    Attributes
    ----------
    name : str
        The interface's.
    dlpack : int
        DLPack's type of its devices.
    timelines : bool
        Whether it can import timeline semaphores.
    ordinal : int
        Its number of the device.

    Raises
    ------
    UnsupportedError
        Where the driver does not have this GPU, or lacks a function.
    GrillyError
        When a function of the driver fails; also from the methods.
    """

    name: ClassVar[str]
    dlpack: ClassVar[int]
    timelines: ClassVar[bool]
    #: The function for each of the jobs that both have.
    functions: ClassVar[Mapping[str, str]]
    #: Arguments of the others.
    own: ClassVar[Mapping[str, tuple[Any, ...]]]

    def __init__(self, library: Any, identity: Any):
        self._calls = {}
        self._library = library
        for job, arguments in _JOBS.items():
            self._calls[job] = self._function(self.functions[job], arguments)
        for name, arguments in self.own.items():
            self._calls[name] = self._function(name, arguments)
        self._call("start", 0)
        self.ordinal = self._find(identity)

    @classmethod
    @abc.abstractmethod
    def open(cls, sharing: Sharing) -> Driver:
        """The driver on a runtime's GPU. Raises UnsupportedError where there is none."""

    def _function(self, name: str, arguments: tuple[Any, ...]) -> Any:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise UnsupportedError(f"{self.name}'s driver has no {name}: it is too old to import memory") from None
        function.argtypes, function.restype = arguments, integer
        return function

    def _call(self, job: str, *arguments: Any) -> None:
        result = self._calls[job](*arguments)
        if result:
            self._raise(job, result)

    def _raise(self, job: str, result: int) -> None:
        said = f"{self.functions.get(job, job)}: {self._words(result) or f'{self.name} error {result}'}"
        raise OutOfDeviceMemoryError(said) if result == _OUT_OF_MEMORY else GrillyError(said)

    @abc.abstractmethod
    def _words(self, result: int) -> str:
        """What the driver calls an error, "" where it does not know it."""

    def _find(self, identity: Any) -> int:
        found = integer()
        self._call("count devices", ctypes.byref(found))
        seen = []
        for number in range(found.value):
            seen.append(self._identity(number))
            if seen[-1] == identity:
                return number
        raise UnsupportedError(
            f"{self.name} does not have the GPU {self._shown(identity)}, which the backend's device is; it has "
            f"{', '.join(map(self._shown, seen)) or 'none'} ({self.name}_VISIBLE_DEVICES hides others)"
        )

    @abc.abstractmethod
    def _identity(self, number: int) -> Any:
        """What tells which GPU a device is."""

    @staticmethod
    def _shown(identity: Any) -> str:
        return str(identity)

    # -- where the calling thread is -------------------------------------------------------------------------------

    @abc.abstractmethod
    def _here(self) -> bool:
        """Whether what the calling thread calls now is for this device."""

    @abc.abstractmethod
    def _enter(self) -> Any:
        """Have what the thread calls be for this device; gives what ``_leave`` takes."""

    @abc.abstractmethod
    def _leave(self, former: Any) -> None:
        """Undo ``_enter``. Errors are passed over."""

    @contextlib.contextmanager
    def _entered(self) -> Iterator[None]:
        former = self._enter()
        try:
            yield
        finally:
            self._leave(former)

    def _at_once(self, job: str, *arguments: Any) -> None:
        """As ``_call`` on the device, which mostly is the thread's already."""
        if self._here():
            self._call(job, *arguments)
            return
        with self._entered():
            self._call(job, *arguments)

    # -- memory ----------------------------------------------------------------------------------------------------

    def import_memory(self, given: Allocation, memory: Box, address: Box) -> None:
        """Import an allocation; its handle and its address come into the boxes, which hold 0 before."""
        about = struct.pack(MEMORY, _OPAQUE_FD, 0, given.descriptor.number, 0, given.nbytes, int(given.dedicated))
        part = struct.pack(PART, 0, given.buffer_nbytes)
        with self._entered():
            try:
                self._call("import memory", ctypes.byref(memory), ctypes.create_string_buffer(about))
            finally:
                if memory.value:
                    self._imported(given.descriptor)
            words = ctypes.create_string_buffer(part)
            self._call("map", ctypes.byref(address), memory.value, words)

    @abc.abstractmethod
    def _imported(self, descriptor: Descriptor) -> None:
        """Note whose the descriptor of imported memory is now."""

    def free_memory(self, memory: Box, address: Box) -> None:
        """Give back what ``import_memory`` put into the boxes, after the device's work. Errors are passed over."""
        if not memory.value:
            return
        with self._entered():
            self._calls["settle all"]()
            if address.value:
                self._calls["unmap"](address.value)
            self._calls["destroy memory"](memory.value)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy on the device, in the order of the stream."""
        self._at_once("copy", target, source, nbytes, stream)

    # -- order -----------------------------------------------------------------------------------------------------

    def import_timeline(self, descriptor: Descriptor, semaphore: Box) -> None:
        """Import a timeline semaphore, where ``timelines``; its handle comes into the box, which holds 0 before."""
        raise NotImplementedError

    def signal(self, semaphore: int, value: int, stream: int) -> None:
        """Have a timeline reach a value after all that the stream has to do."""
        raise NotImplementedError

    def wait(self, semaphore: int, value: int, stream: int) -> None:
        """Have what the stream is given from now on wait for a timeline's value."""
        raise NotImplementedError

    def settle(self, stream: int) -> None:
        """Let the host wait until the stream has nothing to do."""
        with self._entered():
            self._call("settle", stream)

    def idle(self, stream: int, seconds: float) -> bool:
        """Whether the stream has nothing to do, at the latest after so many seconds."""
        if not self._here():
            with self._entered():
                return self._idle(stream, seconds)
        return self._idle(stream, seconds)

    def _idle(self, stream: int, seconds: float) -> bool:
        query, give_up = self._calls["query"], 0.0
        while result := query(stream):
            if result != _NOT_READY:
                self._raise("query", result)
            now = time.perf_counter()
            give_up = give_up or now + seconds
            if now >= give_up:
                return False
        return True

    def make_stream(self, stream: Box) -> None:
        """Make a stream that waits for no other; its handle comes into the box."""
        with self._entered():
            self._call("make stream", ctypes.byref(stream), _NON_BLOCKING)

    def close(self, timelines: Sequence[Box], streams: Sequence[Box]) -> None:
        """Give back timelines and streams, where the boxes hold some, and the device. Errors are passed over."""
        with self._entered():
            for stream in streams:
                if stream.value:
                    self._calls["destroy stream"](stream.value)
            for semaphore in timelines:
                if semaphore.value:
                    self._destroy_timeline(semaphore.value)
        self._let_go()

    def _destroy_timeline(self, semaphore: int) -> None:
        raise NotImplementedError

    @abc.abstractmethod
    def _let_go(self) -> None:
        """Give the device back."""


__all__ = ["Box", "Driver"]
