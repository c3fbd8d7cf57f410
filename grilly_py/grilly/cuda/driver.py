"""The functions of CUDA's driver that sharing needs, called by ctypes.

Structures are laid out as ``cuda.h`` has them: arrays of words with the few fields that are used at their places.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import GrillyError, OutOfDeviceMemoryError, UnsupportedError
from ..runtime.sharing import Allocation, Descriptor

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_OUT_OF_MEMORY, _NOT_READY = 2, 600
_OPAQUE_FD, _DEDICATED, _TIMELINE_FD = 1, 1, 9
#: A place for a handle or an address, 0 as long as there is none.
Box = ctypes.c_uint64
_u64, _int, _pointer = ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p
#: One semaphore, and CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS or ..._WAIT_PARAMS, which begin with the value.
_Semaphores, _Params = _u64 * 1, _u64 * 18

#: Arguments of each function. Handles and addresses are 64-bit numbers.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (ctypes.c_uint,),
    "cuDeviceGetCount": (_pointer,),
    "cuDeviceGet": (_pointer, _int),
    "cuDeviceGetUuid": (_pointer, _int),
    "cuDevicePrimaryCtxRetain": (_pointer, _int),
    "cuDevicePrimaryCtxRelease_v2": (_int,),
    "cuCtxGetCurrent": (_pointer,),
    "cuCtxPushCurrent_v2": (_u64,),
    "cuCtxPopCurrent_v2": (_pointer,),
    "cuCtxSynchronize": (),
    "cuImportExternalMemory": (_pointer, _pointer),
    "cuExternalMemoryGetMappedBuffer": (_pointer, _u64, _pointer),
    "cuDestroyExternalMemory": (_u64,),
    "cuMemFree_v2": (_u64,),
    "cuImportExternalSemaphore": (_pointer, _pointer),
    "cuDestroyExternalSemaphore": (_u64,),
    "cuSignalExternalSemaphoresAsync": (_pointer, _pointer, ctypes.c_uint, _u64),
    "cuWaitExternalSemaphoresAsync": (_pointer, _pointer, ctypes.c_uint, _u64),
    "cuMemcpyDtoDAsync_v2": (_u64, _u64, ctypes.c_size_t, _u64),
    "cuStreamSynchronize": (_u64,),
    "cuStreamQuery": (_u64,),
    "cuStreamCreate": (_pointer, ctypes.c_uint),
    "cuStreamDestroy_v2": (_u64,),
}


def load() -> ctypes.CDLL:
    """CUDA's driver library. Raises UnsupportedError where there is none."""
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise UnsupportedError(f"CUDA's driver library was not found: {error}") from error


class Driver:
    """CUDA's driver on the device with a UUID, in the context that PyTorch and CUDA's runtime use too.

    Parameters
    ----------
    library : ctypes.CDLL
        What ``load`` gives.
    uuid : bytes
        The GPU's.

    Attributes
    ----------
    ordinal : int
        CUDA's number of the device.

    Raises
    ------
    UnsupportedError
        Where CUDA does not have this GPU.
    GrillyError
        When a function of the driver fails; also from the methods.
    """

    def __init__(self, library: Any, uuid: bytes):
        self._calls = {}
        for name, arguments in _FUNCTIONS.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                raise UnsupportedError(f"CUDA's driver has no {name}: it is too old to import memory") from None
            function.argtypes, function.restype = arguments, _int
            self._calls[name] = function
        self._library = library
        self._call("cuInit", 0)
        self.ordinal = self._find(uuid)
        context = _u64()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.ordinal)
        self._context = context.value

    def _call(self, name: str, *arguments: Any) -> None:
        result = self._calls[name](*arguments)
        if result:
            self._raise(name, result)

    def _raise(self, name: str, result: int) -> None:
        words = []
        for function in ("cuGetErrorName", "cuGetErrorString"):
            text = ctypes.c_char_p()
            if getattr(self._library, function)(result, ctypes.byref(text)) == 0 and text.value:
                words.append(text.value.decode())
        said = f"{name}: {': '.join(words) or f'CUDA error {result}'}"
        raise OutOfDeviceMemoryError(said) if result == _OUT_OF_MEMORY else GrillyError(said)

    def _find(self, uuid: bytes) -> int:
        count = _int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        seen = []
        for number in range(count.value):
            device, found = _int(), ctypes.create_string_buffer(16)
            self._call("cuDeviceGet", ctypes.byref(device), number)
            self._call("cuDeviceGetUuid", found, device.value)
            if found.raw == uuid:
                return number
            seen.append(found.raw.hex())
        raise UnsupportedError(
            f"CUDA does not have the GPU with the UUID {uuid.hex()}, which the backend's device is; it has "
            f"{', '.join(seen) or 'none'} (CUDA_VISIBLE_DEVICES hides others)"
        )

    @contextlib.contextmanager
    def _entered(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._calls["cuCtxPopCurrent_v2"](ctypes.byref(_u64()))

    def _here(self) -> bool:
        current = _u64()
        return self._calls["cuCtxGetCurrent"](ctypes.byref(current)) == 0 and current.value == self._context

    def _enter(self) -> None:
        self._call("cuCtxPushCurrent_v2", self._context)

    # -- memory ----------------------------------------------------------------------------------------------------

    def import_memory(self, given: Allocation, memory: Box, address: Box) -> None:
        """Import an allocation; its handle and its address come into the boxes, which hold 0 before."""
        number = given.descriptor.number
        about = struct.pack("=iiQQQI68x", _OPAQUE_FD, 0, number, 0, given.nbytes, int(given.dedicated))
        part = struct.pack("=QQ72x", 0, given.buffer_nbytes)
        with self._entered():
            try:
                self._call("cuImportExternalMemory", ctypes.byref(memory), ctypes.create_string_buffer(about))
            finally:
                if memory.value:
                    given.descriptor.taken()
            words = ctypes.create_string_buffer(part)
            self._call("cuExternalMemoryGetMappedBuffer", ctypes.byref(address), memory.value, words)

    def free_memory(self, memory: Box, address: Box) -> None:
        """Give back what ``import_memory`` put into the boxes, after the context's work. Errors are passed over."""
        if not memory.value:
            return
        with self._entered():
            self._calls["cuCtxSynchronize"]()
            if address.value:
                self._calls["cuMemFree_v2"](address.value)
            self._calls["cuDestroyExternalMemory"](memory.value)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy on the device, in the order of the stream."""
        self._at_once("cuMemcpyDtoDAsync_v2", target, source, nbytes, stream)

    # -- order -----------------------------------------------------------------------------------------------------

    def import_timeline(self, descriptor: Descriptor, semaphore: Box) -> None:
        """Import a timeline semaphore; its handle comes into the box, which holds 0 before."""
        about = struct.pack("=iiQQI68x", _TIMELINE_FD, 0, descriptor.number, 0, 0)
        with self._entered():
            try:
                self._call("cuImportExternalSemaphore", ctypes.byref(semaphore), ctypes.create_string_buffer(about))
            finally:
                if semaphore.value:
                    descriptor.taken()

    def signal(self, semaphore: int, value: int, stream: int) -> None:
        """Have a timeline reach a value after all that the stream has to do."""
        self._ask("cuSignalExternalSemaphoresAsync", semaphore, value, stream)

    def wait(self, semaphore: int, value: int, stream: int) -> None:
        """Have what the stream is given from now on wait for a timeline's value."""
        self._ask("cuWaitExternalSemaphoresAsync", semaphore, value, stream)

    def _ask(self, name: str, semaphore: int, value: int, stream: int) -> None:
        self._at_once(name, _Semaphores(semaphore), _Params(value), 1, stream)

    def _at_once(self, name: str, *arguments: Any) -> None:
        """As ``_call`` in the context, which mostly is the thread's already."""
        if self._here():
            self._call(name, *arguments)
            return
        with self._entered():
            self._call(name, *arguments)

    def settle(self, stream: int) -> None:
        """Let the host wait until the stream has nothing to do."""
        with self._entered():
            self._call("cuStreamSynchronize", stream)

    def idle(self, stream: int, seconds: float) -> bool:
        """Whether the stream has nothing to do, at the latest after so many seconds."""
        if not self._here():
            with self._entered():
                return self._idle(stream, seconds)
        return self._idle(stream, seconds)

    def _idle(self, stream: int, seconds: float) -> bool:
        query, give_up = self._calls["cuStreamQuery"], 0.0
        while result := query(stream):
            if result != _NOT_READY:
                self._raise("cuStreamQuery", result)
            now = time.perf_counter()
            give_up = give_up or now + seconds
            if now >= give_up:
                return False
        return True

    def make_stream(self, stream: Box) -> None:
        """Make a stream that waits for no other; its handle comes into the box."""
        with self._entered():
            self._call("cuStreamCreate", ctypes.byref(stream), 1)

    def close(self, timelines: Sequence[Box], streams: Sequence[Box]) -> None:
        """Give back timelines, streams and the context, where the boxes hold some. Errors are passed over."""
        with self._entered():
            for stream in streams:
                if stream.value:
                    self._calls["cuStreamDestroy_v2"](stream.value)
            for semaphore in timelines:
                if semaphore.value:
                    self._calls["cuDestroyExternalSemaphore"](semaphore.value)
        self._calls["cuDevicePrimaryCtxRelease_v2"](self.ordinal)


__all__ = ["Box", "Driver", "load"]
