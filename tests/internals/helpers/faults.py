"""Faults of a Vulkan driver, made on purpose: `Faults` stands between the vulkan runtime and the driver.

It counts the calls that return a result, lets one of them fail with a code of its choice, and keeps a list of the
objects that live. It also notices calls that no driver need survive: destroying what is not there, recording into a
command buffer that was not begun, submitting one that was not ended, or a fence that was not reset.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import threading
from collections import Counter

HOST, DEVICE, LOST = -1, -2, -4  # out of host memory, out of device memory, device lost
MEMORY = (HOST, DEVICE)
UNKNOWN = -13  # which any call may return
#: The results other than success that each call may return (Vulkan 1.3 specification, "Return Codes" of each command;
#: 1 is not ready, 2 time-out, 5 incomplete). A call that is not here returns nothing.
CODES: dict[str, tuple[int, ...]] = {
    "vkEnumerateInstanceVersion": (HOST,),
    "vkEnumerateInstanceExtensionProperties": (5, *MEMORY, -6),
    "vkEnumerateDeviceExtensionProperties": (5, *MEMORY, -6),
    "vkEnumeratePhysicalDevices": (5, *MEMORY, -3),
    "vkCreateInstance": (*MEMORY, -3, -6, -7, -9),
    "vkCreateDevice": (*MEMORY, -3, -7, -8, -10, LOST),
    "vkCreateBuffer": MEMORY,
    "vkCreateBufferView": MEMORY,
    "vkAllocateMemory": (*MEMORY, -10),
    "vkBindBufferMemory": MEMORY,
    "vkMapMemory": (*MEMORY, -5),
    "vkFlushMappedMemoryRanges": MEMORY,
    "vkInvalidateMappedMemoryRanges": MEMORY,
    "vkCreateFence": MEMORY,
    "vkResetFences": (DEVICE,),
    "vkGetFenceStatus": (1, *MEMORY, LOST),
    "vkWaitForFences": (2, *MEMORY, LOST),
    "vkCreateSemaphore": MEMORY,
    "vkCreateQueryPool": MEMORY,
    "vkGetQueryPoolResults": (1, *MEMORY, LOST),
    "vkCreateShaderModule": (*MEMORY, -1000012000),
    "vkCreatePipelineCache": MEMORY,
    "vkGetPipelineCacheData": (5, *MEMORY),
    "vkCreateComputePipelines": (*MEMORY, -1000012000),
    "vkCreatePipelineLayout": MEMORY,
    "vkCreateDescriptorSetLayout": MEMORY,
    "vkCreateDescriptorPool": (*MEMORY, -1000161000),
    "vkAllocateDescriptorSets": (*MEMORY, -12, -1000069000),
    "vkResetDescriptorPool": (),
    "vkFreeDescriptorSets": (),
    "vkCreateCommandPool": MEMORY,
    "vkResetCommandPool": (DEVICE,),
    "vkAllocateCommandBuffers": MEMORY,
    "vkBeginCommandBuffer": MEMORY,
    "vkEndCommandBuffer": MEMORY,
    "vkResetCommandBuffer": (DEVICE,),
    "vkQueueSubmit": (*MEMORY, LOST),
    "vkQueueWaitIdle": (*MEMORY, LOST),
    "vkDeviceWaitIdle": (*MEMORY, LOST),
}
for _name in CODES:
    CODES[_name] += (UNKNOWN,)
WAITS = ("vkWaitForFences", "vkDeviceWaitIdle", "vkQueueWaitIdle")
GARBAGE = 0xDEAD0BAD  # what a call that fails leaves where its result would have been
_MEMORY_PROPERTIES = "vkGetPhysicalDeviceMemoryProperties"


def modules() -> list:
    """Every module of the vulkan runtime that calls the driver."""
    package = importlib.import_module("grilly.runtime.vulkan")
    names = [f"{package.__name__}.{each.name}" for each in pkgutil.iter_modules(package.__path__)]
    found = map(importlib.import_module, names)
    return [module for module in (package, *found) if hasattr(module, "lib")]


class Faults:
    """A driver that fails when it is told to.

    Parameters
    ----------
    lib, ffi
        The real driver, and the binding's cffi object.
    bus : bool
        Show the device's memory as one that the host cannot address, so that transfers go through staging memory.
    """

    def __init__(self, lib, ffi, bus: bool = False):
        self._lib, self._ffi, self._bus = lib, ffi, bus
        self._lock = threading.Lock()
        self.calls = 0  # of those in CODES, since `arm`
        self.at = None  # the call that fails, counted from 1
        self.code = 0
        self.failed = None  # the name of the call that did
        self.only: str | None = None  # the one call that may
        self.trace: list[str] | None = None
        self.lost = False  # once lost, a device stays so until another is opened
        self.largest = None  # bytes of one allocation that the driver has left
        self.live: dict[str, set[int]] = {}
        self.maps: set[int] = set()
        self.misuse: list[str] = []
        self._pools: dict[int, list[tuple[str, int]]] = {}  # what goes with a pool
        self._state: dict[int, str] = {}  # of command buffers
        self._signalled: dict[int, bool] = {}  # fences that were submitted and not reset since
        self._device = None

    # -- what a test asks and says -----------------------------------------------------------------------------------

    def arm(self, at: int | None = None, code: int = 0) -> None:
        """Let the ``at``-th call from now on, or the first after it that may, fail with ``code``; None: none."""
        self.calls, self.at, self.code, self.failed = 0, at, code, None

    def counts(self) -> Counter:
        """How many objects of each kind live, and maps."""
        found = Counter({kind: len(handles) for kind, handles in self.live.items() if handles})
        if self.maps:
            found["map"] = len(self.maps)
        return found

    # -- calls -------------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str):
        value = getattr(self._lib, name)
        if name.startswith("vk") and callable(value):
            value = self._wrapped(name, value)
        self.__dict__[name] = value  # asked for once
        return value

    def _wrapped(self, name: str, real):
        def call(*arguments):
            code = self._fault(name) if name in CODES else None
            if code is not None:
                return self._fail(name, real, arguments, code)
            if self._bus and name == "vkAllocateMemory":
                arguments[1].memoryTypeIndex = 0  # both types are one
            with self._lock:
                self._before(name, arguments)
            if name.startswith("vkDestroy") and not self._known(name, arguments):
                return None
            result = real(*arguments)
            with self._lock:
                if result is None or result >= 0:
                    self._after(name, arguments)
            return result

        call.__name__ = name
        return call

    def _fault(self, name: str):
        with self._lock:
            self.calls += 1
            if self.trace is not None:
                self.trace.append(name)
            # Where another call than last time has this number, the next one that may return the code.
            due = self.at is not None and self.at <= self.calls and self.failed is None
            if due and self.code in CODES[name] and self.only in (None, name):
                self.failed = name
                if self.code == LOST:
                    self.lost = True
                return self.code
        if self.lost and LOST in CODES[name] and name != "vkCreateDevice":
            return LOST
        return None

    def _fail(self, name: str, real, arguments, code: int) -> int:
        if code == LOST and self._device is not None:
            self._lib.vkDeviceWaitIdle(self._device)  # what was submitted has stopped running, as on a lost device
        if code < 0 and name.startswith(("vkCreate", "vkAllocate", "vkMapMemory")):
            target = arguments[-1]
            kind = self._ffi.typeof(target).item
            # The specification promises NULL where a call makes several objects, and nothing where it makes one.
            several = name in ("vkAllocateDescriptorSets", "vkAllocateCommandBuffers", "vkCreateComputePipelines")
            target[0] = self._ffi.NULL if several else self._ffi.cast(kind, GARBAGE)
        elif code == 5:
            real(*arguments)  # incomplete: what there is room for was written
        return code

    def _number(self, handle) -> int:
        return int(self._ffi.cast("uintptr_t", handle))

    def _known(self, name: str, arguments) -> bool:
        """Whether what is to be destroyed is there; where it is not, the driver is spared it."""
        handle = arguments[0] if name in ("vkDestroyInstance", "vkDestroyDevice") else arguments[1]
        if handle == self._ffi.NULL:
            return False
        number, kind = self._number(handle), name[len("vkDestroy") :]
        with self._lock:
            if number not in self.live.get(kind, ()):
                self.misuse.append(f"{name} of what is not there")
                return False
        return True

    def _before(self, name: str, arguments) -> None:
        """Look at what is about to be called."""
        if name == "vkFreeMemory":
            number = self._number(arguments[1])
            if number and number not in self.live.get("Memory", ()):
                self.misuse.append("vkFreeMemory of what is not there")
        elif name.startswith("vkCmd"):
            if self._state.get(self._number(arguments[0])) != "recording":
                self.misuse.append(f"{name} into a command buffer that was not begun")
        elif name == "vkEndCommandBuffer":
            if self._state.get(self._number(arguments[0])) != "recording":
                self.misuse.append("vkEndCommandBuffer of a command buffer that was not begun")
        elif name == "vkQueueSubmit":
            for i in range(arguments[1]):
                for j in range(arguments[2][i].commandBufferCount):
                    if self._state.get(self._number(arguments[2][i].pCommandBuffers[j])) != "ended":
                        self.misuse.append("vkQueueSubmit of a command buffer that was not ended")
            if arguments[3] != self._ffi.NULL and self._signalled.get(self._number(arguments[3])):
                self.misuse.append("vkQueueSubmit with a fence that was not reset")
        elif name in ("vkWaitForFences", "vkResetFences"):
            for i in range(arguments[1]):
                if self._number(arguments[2][i]) not in self.live.get("Fence", ()):
                    self.misuse.append(f"{name} of a fence that is not there")

    def _after(self, name: str, arguments) -> None:
        """Note what a call that succeeded has changed."""
        if name.startswith("vkCreate"):
            handle = arguments[-1][0]
            kind = "Pipeline" if name == "vkCreateComputePipelines" else name[len("vkCreate") :]
            self._born(kind, handle)
            if kind == "Device":
                self._device, self.lost = handle, False
        elif name.startswith("vkDestroy"):
            handle = arguments[0] if name in ("vkDestroyInstance", "vkDestroyDevice") else arguments[1]
            kind, number = name[len("vkDestroy") :], self._number(handle)
            self.live[kind].discard(number)
            for child, other in self._pools.pop(number, ()):
                self.live[child].discard(other)
                self._state.pop(other, None)
            self._signalled.pop(number, None)
            if kind == "Device":
                self._device = None
        elif name == "vkAllocateMemory":
            self._born("Memory", arguments[-1][0])
        elif name == "vkFreeMemory":
            number = self._number(arguments[1])
            self.live.get("Memory", set()).discard(number)
            self.maps.discard(number)
        elif name == "vkMapMemory":
            self.maps.add(self._number(arguments[1]))
        elif name == "vkUnmapMemory":
            self.maps.discard(self._number(arguments[1]))
        elif name in ("vkAllocateCommandBuffers", "vkAllocateDescriptorSets"):
            kind, count, pool = (
                ("CommandBuffer", arguments[1].commandBufferCount, arguments[1].commandPool)
                if name == "vkAllocateCommandBuffers"
                else ("DescriptorSet", arguments[1].descriptorSetCount, arguments[1].descriptorPool)
            )
            for i in range(count):
                self._born(kind, arguments[-1][i])
                owned = self._pools.setdefault(self._number(pool), [])
                owned.append((kind, self._number(arguments[-1][i])))
        elif name in ("vkFreeCommandBuffers", "vkFreeDescriptorSets"):
            kind = name[len("vkFree") : -1]
            owned = self._pools.get(self._number(arguments[1]), [])
            for i in range(arguments[2]):
                number = self._number(arguments[3][i])
                if number and number not in self.live.get(kind, ()):  # NULL may be freed
                    self.misuse.append(f"{name} of what is not there")
                self.live.get(kind, set()).discard(number)
                self._state.pop(number, None)
                if (kind, number) in owned:
                    owned.remove((kind, number))
        elif name == "vkResetDescriptorPool":
            for child, other in self._pools.pop(self._number(arguments[1]), ()):
                self.live[child].discard(other)
        elif name == "vkBeginCommandBuffer":
            self._state[self._number(arguments[0])] = "recording"
        elif name == "vkEndCommandBuffer":
            self._state[self._number(arguments[0])] = "ended"
        elif name == "vkResetCommandBuffer":
            self._state[self._number(arguments[0])] = "reset"
        elif name == "vkQueueSubmit" and arguments[3] != self._ffi.NULL:
            self._signalled[self._number(arguments[3])] = True
        elif name == "vkResetFences":
            for i in range(arguments[1]):
                self._signalled[self._number(arguments[2][i])] = False
        elif self._bus and name == _MEMORY_PROPERTIES:
            self._behind_a_bus(arguments[1])
        elif self._bus and name == "vkGetBufferMemoryRequirements":
            arguments[2].memoryTypeBits = 0b11

    def _born(self, kind: str, handle) -> None:
        self.live.setdefault(kind, set()).add(self._number(handle))

    def _behind_a_bus(self, properties) -> None:
        """Two types of memory in place of the CPU driver's one: the device's alone, and the host's."""
        if not properties.memoryTypes[0].propertyFlags & self._lib.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT:
            raise RuntimeError("the device's first type of memory is none that the host addresses")
        properties.memoryTypeCount = 2
        properties.memoryTypes[1].heapIndex = properties.memoryTypes[0].heapIndex
        properties.memoryTypes[1].propertyFlags = (
            self._lib.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT
            | self._lib.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
            | self._lib.VK_MEMORY_PROPERTY_HOST_CACHED_BIT
        )
        properties.memoryTypes[0].propertyFlags = self._lib.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT


class Little(Faults):
    """A driver whose allocations are small: one of more than ``largest`` bytes fails."""

    def _wrapped(self, name: str, real):
        call = super()._wrapped(name, real)
        if name != "vkAllocateMemory":
            return call

        def allocate(*arguments):
            if self.largest is not None and arguments[1].allocationSize > self.largest:
                return self._fail(name, real, arguments, DEVICE)
            return call(*arguments)

        return allocate


@contextlib.contextmanager
def between(bus: bool = False, kind: type = Faults):
    """Inside, the vulkan runtime calls a driver that can fail: the `Faults` object that this gives."""
    from vulkan import ffi, lib

    faults = kind(lib, ffi, bus)
    patched = [(module, module.lib) for module in modules()]
    for module, _ in patched:
        module.lib = faults
    try:
        yield faults
    finally:
        for module, own in patched:
            module.lib = own


# -- kompute ----------------------------------------------------------------------------------------------------------

KP_BEFORE, KP_AFTER = -101, -102  # a call that raises, and one that raises when it has done its work
_KP_CALLS = {
    "Manager": ("tensor_t", "sequence", "algorithm", "get_device_properties"),
    "Sequence": ("record", "eval"),
}


class KomputeFaults:
    """The package kp, one call of which raises RuntimeError when it is told to; used as `Faults`."""

    def __init__(self, kp):
        self._kp = kp
        self.trace: list[str] | None = None
        self.misuse: list[str] = []
        self.lost = False
        self.arm()

    arm = Faults.arm

    def counts(self) -> Counter:
        """Nothing: kp shows none of its objects."""
        return Counter()

    def __getattr__(self, name: str):
        value = getattr(self._kp, name)
        return self._through(name, value) if name.startswith("Op") or name == "Manager" else value

    def _through(self, name: str, real):
        def call(*arguments):
            self.calls += 1
            if self.trace is not None:
                self.trace.append(name)
            fails = self.at == self.calls
            if fails:
                self.failed = name
            if fails and self.code == KP_BEFORE:
                raise RuntimeError(f"made on purpose, at {name}")
            result = real(*arguments)
            kind = {"Manager": "Manager", "Manager.sequence": "Sequence"}.get(name)
            if fails and self.code == KP_AFTER:
                raise RuntimeError(f"made on purpose, after {name}")
            return result if kind is None else _KomputeObject(self, kind, result)

        return call


class _KomputeObject:
    """A manager or a sequence of kp."""

    def __init__(self, faults: KomputeFaults, kind: str, real):
        self._faults, self._kind, self._real = faults, kind, real

    def __getattr__(self, name: str):
        value = getattr(self._real, name)
        return self._faults._through(f"{self._kind}.{name}", value) if name in _KP_CALLS[self._kind] else value


@contextlib.contextmanager
def between_kompute():
    """Inside, the kompute runtime calls a kp that can fail: the `KomputeFaults` that this gives."""
    from grilly.runtime import kompute

    real = kompute._import_kp
    faults = KomputeFaults(real())
    kompute._import_kp = lambda: faults
    try:
        yield faults
    finally:
        kompute._import_kp = real
