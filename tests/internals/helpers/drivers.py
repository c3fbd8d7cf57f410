"""Drivers of CUDA and HIP made of Python, for the logic of sharing memory where there is no GPU of NVIDIA's or AMD's.

What a runtime exports is imported by a second Vulkan device and mapped, so the drivers' addresses are the host's, over
the same bytes. Streams are threads that do what they are given in its order, late; timelines are the runtime's own
semaphores, which the threads wait for and signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import queue
import struct
import threading
import time

from grilly.interop import cuda, driver, hip
from grilly.runtime.sharing import Descriptor
from grilly.runtime.vulkan import external
from grilly.runtime.vulkan.api import check, ffi, lib
from grilly.runtime.vulkan.device import VulkanDevice

INVALID, OUT_OF_MEMORY, NO_CONTEXT = 1, 2, 201


class Import:
    """Memory behind a file descriptor, in a Vulkan device of its own, mapped."""

    def __init__(self, info, fd: int, nbytes: int):
        self.device = VulkanDevice(info)
        about = ffi.new("VkImportMemoryFdInfoKHR*")
        about.sType = lib.VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR
        about.handleType, about.fd = external.FD, fd
        request = ffi.new("VkMemoryAllocateInfo*")
        request.sType = lib.VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO
        request.pNext, request.allocationSize = about, nbytes
        memory, pointer = ffi.new("VkDeviceMemory*"), ffi.new("void**")
        check(lib.vkAllocateMemory(self.device.handle, request, ffi.NULL, memory), "importing memory")
        self.memory = memory[0]
        check(lib.vkMapMemory(self.device.handle, self.memory, 0, nbytes, 0, pointer), "vkMapMemory")
        self.address = int(ffi.cast("uintptr_t", pointer[0]))

    def close(self):
        lib.vkFreeMemory(self.device.handle, self.memory, ffi.NULL)
        self.device.close()


class Stream:
    """A thread that does what it is given, ``delay`` seconds late."""

    def __init__(self, delay: float):
        self.delay = delay
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._closed = False
        self._waiting, self._lock = 0, threading.Lock()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self):
        while (task := self._queue.get()) is not None:
            time.sleep(self.delay)
            task()
            with self._lock:
                self._waiting -= 1

    def give(self, task) -> None:
        with self._lock:
            self._waiting += 1
        self._queue.put(task)

    @property
    def idle(self) -> bool:
        return self._waiting == 0

    def settle(self) -> None:
        if self._closed:
            return
        done = threading.Event()
        self.give(done.set)
        assert done.wait(60), "a stream of the stand-in hangs"

    def close(self):
        self.give(None)
        self._thread.join(60)
        self._closed = True


class _Function:
    """A function of a library, as ctypes shows it."""

    def __init__(self, fake, name):
        self.fake, self.name = fake, name

    def __call__(self, *arguments):
        fake = self.fake
        with fake.lock:
            fake.calls.append((self.name, arguments))
            if code := fake.failing.pop(self.name, 0):
                return code
        return getattr(fake, "_" + self.name)(*arguments) or 0


class FakeCuda:
    """What ``ctypes.CDLL("libcuda.so.1")`` would be; `FakeHip` is HIP's.

    Parameters
    ----------
    info : DeviceInfo
        Of the Vulkan device behind.
    devices : sequence
        What tells the devices apart: UUIDs, or HIP's PCI addresses.
    delay : float
        Seconds by which streams are late with each task.
    """

    kind, prefix = cuda.Cuda, "cu"

    def __init__(self, info, devices, delay=0.0):
        self.info, self.devices, self.delay = info, list(devices), delay
        self.lock = threading.Lock()
        self.calls: list[tuple] = []
        self.failing: dict[str, int] = {}
        self.memories: dict[int, Import] = {}
        self.freed: list[int] = []
        self.semaphores: dict[int, tuple] = {}
        self.streams: dict[int, Stream] = {}
        self.by_descriptor: dict[int, tuple] = {}
        self._numbers = itertools.count(1000)
        self._context = threading.local()

    def __getattr__(self, name):
        if not name.startswith(self.prefix) or not hasattr(type(self), "_" + name):
            raise AttributeError(name)
        function = self.__dict__[name] = _Function(self, name)
        return function

    def count(self, job: str) -> int:
        name = self.kind.functions.get(job, job)
        return sum(called == name for called, _ in self.calls)

    def stream(self, number: int) -> Stream:
        if number not in self.streams:
            self.streams[number] = Stream(self.delay)
        return self.streams[number]

    def close(self):
        for stream in self.streams.values():
            stream.close()
        while self.memories:
            self.memories.popitem()[1].close()

    # -- the functions ---------------------------------------------------------------------------------------------

    def _cuInit(self, flags):
        pass

    def _cuDeviceGetCount(self, count):
        count._obj.value = len(self.devices)

    def _cuDeviceGet(self, device, number):
        device._obj.value = number

    def _cuDeviceGetUuid(self, uuid, device):
        uuid.raw = self.devices[device]

    def _cuDevicePrimaryCtxRetain(self, context, device):
        context._obj.value = 77

    def _cuDevicePrimaryCtxRelease_v2(self, device):
        pass

    def _stack(self):
        if not hasattr(self._context, "stack"):
            self._context.stack = []
        return self._context.stack

    def _cuCtxGetCurrent(self, context):
        context._obj.value = self._stack()[-1] if self._stack() else 0

    def _cuCtxPushCurrent_v2(self, context):
        self._stack().append(context)

    def _cuCtxPopCurrent_v2(self, context):
        context._obj.value = self._stack().pop()

    def _cuCtxSynchronize(self):
        for stream in list(self.streams.values()):
            stream.settle()

    def _cuImportExternalMemory(self, memory, about):
        if not self._stack():
            return NO_CONTEXT
        self._import(memory, about, lambda fd: fd)

    def _import(self, memory, about, own):
        kind, _, fd, _, nbytes, dedicated = struct.unpack(driver.MEMORY, about.raw[: struct.calcsize(driver.MEMORY)])
        assert (kind, dedicated) == (1, 0)
        memory._obj.value = next(self._numbers)
        self.memories[memory._obj.value] = Import(self.info, own(fd), nbytes)

    def _cuExternalMemoryGetMappedBuffer(self, address, memory, part):
        offset, nbytes = struct.unpack(driver.PART, part.raw[: struct.calcsize(driver.PART)])
        assert offset == 0 and nbytes
        address._obj.value = self.memories[memory].address

    def _cuMemFree_v2(self, address):
        self.freed.append(address)

    def _cuDestroyExternalMemory(self, memory):
        if (memory := self.memories.pop(memory, None)) is not None:
            memory.close()

    def _cuImportExternalSemaphore(self, semaphore, about):
        kind, _, fd, _, flags = struct.unpack_from("=iiQQI", about.raw)
        assert (kind, flags) == (9, 0)
        semaphore._obj.value = next(self._numbers)
        self.semaphores[semaphore._obj.value] = self.by_descriptor.pop(fd)
        os.close(fd)

    def _cuDestroyExternalSemaphore(self, semaphore):
        self.semaphores.pop(semaphore, None)

    def _cuSignalExternalSemaphoresAsync(self, semaphores, params, count, stream):
        device, semaphore = self.semaphores[semaphores[0]]
        about = ffi.new("VkSemaphoreSignalInfo*")
        about.sType = lib.VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO
        about.semaphore, about.value = semaphore, params[0]
        self.stream(stream).give(lambda: check(lib.vkSignalSemaphore(device.handle, about), "vkSignalSemaphore"))

    def _cuWaitExternalSemaphoresAsync(self, semaphores, params, count, stream):
        device, semaphore = self.semaphores[semaphores[0]]
        handles, values = ffi.new("VkSemaphore[1]", [semaphore]), ffi.new("uint64_t[1]", [params[0]])
        about = ffi.new("VkSemaphoreWaitInfo*")
        about.sType = lib.VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO
        about.semaphoreCount, about.pSemaphores, about.pValues = 1, handles, values
        kept = (handles, values)

        def wait():
            check(lib.vkWaitSemaphores(device.handle, about, 60_000_000_000), "vkWaitSemaphores")
            assert kept

        self.stream(stream).give(wait)

    def _cuMemcpyDtoDAsync_v2(self, target, source, nbytes, stream):
        self.stream(stream).give(lambda: ctypes.memmove(target, source, nbytes))

    def _cuStreamSynchronize(self, stream):
        self.stream(stream).settle()

    def _cuStreamQuery(self, stream):
        return 0 if self.stream(stream).idle else 600

    def _cuStreamCreate(self, stream, flags):
        stream._obj.value = next(self._numbers)

    def _cuStreamDestroy_v2(self, stream):
        if stream in self.streams:
            self.streams.pop(stream).close()

    def _cuGetErrorName(self, code, text):
        text._obj.value = b"CUDA_ERROR_OF_THE_STAND_IN"

    def _cuGetErrorString(self, code, text):
        text._obj.value = b"made on purpose"


class FakeHip(FakeCuda):
    """What ``ctypes.CDLL("libamdhip64.so")`` would be, as far as `grilly.interop.hip` says what HIP does."""

    kind, prefix = hip.Hip, "hip"

    def _hipGetDevice(self, device):
        device._obj.value = getattr(self._context, "device", 0)

    def _hipSetDevice(self, device):
        self._context.device = device

    def _hipDeviceGetPCIBusId(self, text, nbytes, device):
        assert nbytes > 12
        text.value = self.devices[device].encode()

    def _hipImportExternalMemory(self, memory, about):
        if getattr(self._context, "device", 0) != len(self.devices) - 1:
            return INVALID
        self._import(memory, about, os.dup)  # the descriptor stays the caller's

    def _hipGetErrorName(self, code):
        return b"hipErrorOfTheStandIn"

    def _hipGetErrorString(self, code):
        return b"made on purpose"


for job, name in cuda.Cuda.functions.items():
    if job != "import memory":
        setattr(FakeHip, f"_{hip.Hip.functions[job]}", getattr(FakeCuda, f"_{name}"))


@contextlib.contextmanager
def exporting(timelines: bool, dedicated: bool = False):
    """Inside, devices are opened as ones that export memory, and timelines if asked; gives where descriptors of
    semaphores are noted, for ``FakeCuda.by_descriptor``."""
    noted: dict[int, tuple] = {}
    kept = (external.importable, external.External.__init__, external.descriptor_of_semaphore)

    def made(self, physical, info):
        kept[1](self, physical, info)
        if self.memories and timelines:
            self.timelines = True
            self.extensions.append(b"VK_KHR_timeline_semaphore")
        self.dedicated = self.dedicated or dedicated

    def describe(device, semaphore):
        found = Descriptor([os.open(os.devnull, os.O_RDONLY)])
        noted[found.number] = (device, semaphore)
        return found

    from grilly.runtime.vulkan import sharing

    external.importable = lambda info: True
    external.External.__init__ = made
    sharing.descriptor_of_semaphore = describe
    own_timeline = sharing.timeline
    sharing.timeline = functools.partial(own_timeline, exported=0)
    try:
        yield noted
    finally:
        external.importable, external.External.__init__, sharing.descriptor_of_semaphore = kept
        sharing.timeline = own_timeline
