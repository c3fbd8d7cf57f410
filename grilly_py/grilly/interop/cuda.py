"""CUDA's driver. Names, structures and constants are those of ``cuda.h``."""

from __future__ import annotations

import ctypes
import struct
import sys
from typing import Any

from ..errors import UnsupportedError
from ..runtime.sharing import Descriptor, Sharing
from .driver import Box, Driver, count, integer, pointer, u64

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_TIMELINE_FD = 9  # CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD
#: One semaphore, and CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS or ..._WAIT_PARAMS, which begin with the value.
_Semaphores, _Params = u64 * 1, u64 * 18


class Cuda(Driver):
    """CUDA's driver on the device with a UUID, in the context that PyTorch and CUDA's runtime use too."""

    name, dlpack, timelines = "CUDA", 2, True  # kDLCUDA
    functions = {
        "start": "cuInit",
        "count devices": "cuDeviceGetCount",
        "import memory": "cuImportExternalMemory",
        "map": "cuExternalMemoryGetMappedBuffer",
        "unmap": "cuMemFree_v2",
        "destroy memory": "cuDestroyExternalMemory",
        "settle all": "cuCtxSynchronize",
        "copy": "cuMemcpyDtoDAsync_v2",
        "settle": "cuStreamSynchronize",
        "query": "cuStreamQuery",
        "make stream": "cuStreamCreate",
        "destroy stream": "cuStreamDestroy_v2",
    }
    own = {
        "cuDeviceGet": (pointer, integer),
        "cuDeviceGetUuid": (pointer, integer),
        "cuDevicePrimaryCtxRetain": (pointer, integer),
        "cuDevicePrimaryCtxRelease_v2": (integer,),
        "cuCtxGetCurrent": (pointer,),
        "cuCtxPushCurrent_v2": (u64,),
        "cuCtxPopCurrent_v2": (pointer,),
        "cuImportExternalSemaphore": (pointer, pointer),
        "cuDestroyExternalSemaphore": (u64,),
        "cuSignalExternalSemaphoresAsync": (pointer, pointer, count, u64),
        "cuWaitExternalSemaphoresAsync": (pointer, pointer, count, u64),
    }

    def __init__(self, library: Any, uuid: bytes):
        super().__init__(library, uuid)
        context = u64()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.ordinal)
        self._context = context.value

    @classmethod
    def open(cls, sharing: Sharing) -> Cuda:
        try:
            library = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise UnsupportedError(f"CUDA's driver library was not found: {error}") from error
        return cls(library, sharing.uuid)

    def _words(self, result: int) -> str:
        words = []
        for function in ("cuGetErrorName", "cuGetErrorString"):
            text = ctypes.c_char_p()
            if getattr(self._library, function)(result, ctypes.byref(text)) == 0 and text.value:
                words.append(text.value.decode())
        return ": ".join(words)

    def _identity(self, number: int) -> bytes:
        device, found = integer(), ctypes.create_string_buffer(16)
        self._call("cuDeviceGet", ctypes.byref(device), number)
        self._call("cuDeviceGetUuid", found, device.value)
        return found.raw

    @staticmethod
    def _shown(identity: bytes) -> str:
        return f"with the UUID {identity.hex()}"

    def _here(self) -> bool:
        current = u64()
        return self._calls["cuCtxGetCurrent"](ctypes.byref(current)) == 0 and current.value == self._context

    def _enter(self) -> None:
        self._call("cuCtxPushCurrent_v2", self._context)

    def _leave(self, former: None) -> None:
        self._calls["cuCtxPopCurrent_v2"](ctypes.byref(u64()))

    def _imported(self, descriptor: Descriptor) -> None:
        descriptor.taken()

    def import_timeline(self, descriptor: Descriptor, semaphore: Box) -> None:
        # CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC: type, union with the descriptor, flags; sixteen words follow.
        about = struct.pack("=iiQQI68x", _TIMELINE_FD, 0, descriptor.number, 0, 0)
        with self._entered():
            try:
                self._call("cuImportExternalSemaphore", ctypes.byref(semaphore), ctypes.create_string_buffer(about))
            finally:
                if semaphore.value:
                    descriptor.taken()

    def signal(self, semaphore: int, value: int, stream: int) -> None:
        self._at_once("cuSignalExternalSemaphoresAsync", _Semaphores(semaphore), _Params(value), 1, stream)

    def wait(self, semaphore: int, value: int, stream: int) -> None:
        self._at_once("cuWaitExternalSemaphoresAsync", _Semaphores(semaphore), _Params(value), 1, stream)

    def _destroy_timeline(self, semaphore: int) -> None:
        self._calls["cuDestroyExternalSemaphore"](semaphore)

    def _let_go(self) -> None:
        self._calls["cuDevicePrimaryCtxRelease_v2"](self.ordinal)


__all__ = ["Cuda"]
