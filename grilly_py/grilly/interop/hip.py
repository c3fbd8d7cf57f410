"""HIP, AMD's runtime. It was never run on a GPU here: names, layouts and rules are read from public sources.

Functions, structures and constants are those of ``include/hip/hip_runtime_api.h`` of github.com/ROCm/HIP (commit
c5e11fca, ROCm 6.2); what they do, of ``hipamd/src`` of github.com/ROCm/clr (commit f9f995c6) and of ROCm/rocm-systems:

- ``hip_memory.cpp``: an imported buffer is given back by ``hipFree`` and ``hipDestroyExternalMemory``. A semaphore of
  a kind beyond D3D12's fences, as timelines are, is refused, and on Linux none can be imported. So the host waits.
- ``hip_memory.cpp`` leaves the file descriptor alone, and ROCm/rocDecode closes it after the import (its pull request
  55): it stays the caller's. CUDA takes it.
- ``hip_device.cpp``: a UUID is made of the serial number. Vulkan's drivers make it of the PCI address (ROCm/hipamd,
  issue 50). So devices are told apart by that address.
"""

from __future__ import annotations

import ctypes

from ..errors import UnsupportedError
from ..runtime.loaded import HIP, path_of_loaded
from ..runtime.sharing import Descriptor, Sharing
from .driver import Driver, integer, pointer


class Hip(Driver):
    """HIP on the device with a PCI address, in the library that PyTorch loaded: another copy has streams of its own."""

    name, dlpack, timelines = "HIP", 10, False  # kDLROCM
    functions = {
        "start": "hipInit",
        "count devices": "hipGetDeviceCount",
        "import memory": "hipImportExternalMemory",
        "map": "hipExternalMemoryGetMappedBuffer",
        "unmap": "hipFree",
        "destroy memory": "hipDestroyExternalMemory",
        "settle all": "hipDeviceSynchronize",
        "copy": "hipMemcpyDtoDAsync",
        "settle": "hipStreamSynchronize",
        "query": "hipStreamQuery",
        "make stream": "hipStreamCreateWithFlags",
        "destroy stream": "hipStreamDestroy",
    }
    own = {
        "hipDeviceGetPCIBusId": (pointer, integer, integer),
        "hipGetDevice": (pointer,),
        "hipSetDevice": (integer,),
    }

    @classmethod
    def open(cls, sharing: Sharing) -> Hip:
        path = path_of_loaded(HIP)
        if path is None:
            raise UnsupportedError(f"HIP's library {HIP} is not loaded; PyTorch for ROCm loads it")
        if sharing.pci is None:
            raise UnsupportedError("the Vulkan driver lacks VK_EXT_pci_bus_info, which tells HIP's GPUs apart")
        return cls(ctypes.CDLL(path), sharing.pci)

    def _words(self, result: int) -> str:
        words = []
        for name in ("hipGetErrorName", "hipGetErrorString"):
            function = getattr(self._library, name)
            function.argtypes, function.restype = (integer,), ctypes.c_char_p
            if text := function(result):
                words.append(text.decode())
        return ": ".join(words)

    def _identity(self, number: int) -> str:
        text = ctypes.create_string_buffer(32)  # 13 are enough: domain:bus:device.function
        self._call("hipDeviceGetPCIBusId", text, len(text), number)
        return text.value.decode().lower()

    @staticmethod
    def _shown(identity: str) -> str:
        return f"at PCI address {identity}"

    def _device(self) -> int:
        current = integer(-1)
        self._call("hipGetDevice", ctypes.byref(current))
        return current.value

    def _here(self) -> bool:
        return self._device() == self.ordinal

    def _enter(self) -> int:
        former = self._device()
        self._call("hipSetDevice", self.ordinal)
        return former

    def _leave(self, former: int) -> None:
        self._calls["hipSetDevice"](former)

    def _imported(self, descriptor: Descriptor) -> None:
        """It stays ours and is closed when it goes: the memory does not need it any more."""

    def _let_go(self) -> None:
        """HIP keeps devices open until the process ends."""


__all__ = ["Hip"]
