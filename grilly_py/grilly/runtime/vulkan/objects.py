"""Objects of the driver, destroyed after the last reference to them goes.

An exception can arrive between any two steps of Python code, an interrupt from the keyboard among them. So nothing here
depends on a line being reached: an object is known before the driver makes it, the garbage collector notes the end of
its handle by a callback in C, and the loop that destroys runs in C from taking an object off the list to the driver's
call.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from itertools import repeat
from operator import attrgetter, itemgetter

from .api import NULL, ffi, lib

_run = deque(maxlen=0).extend  # drives an iterator to its end
_box = attrgetter("box")
_value = itemgetter(0)

#: The kinds, in the order in which they are destroyed.
KINDS = (
    "CommandBuffer", "CommandPool", "Fence", "Semaphore", "QueryPool", "DescriptorPool", "Pipeline", "PipelineLayout",
    "DescriptorSetLayout", "ShaderModule", "PipelineCache", "BufferView", "Buffer", "DeviceMemory",
)  # fmt: skip


class Handle:
    """One object of the driver, ``value``, which lasts as long as this does."""

    __slots__ = ("value", "__weakref__")


class _End(weakref.ref):
    """What is left of a Handle when it goes: the place of the driver's handle."""

    box = (NULL,)  # until there is one


class Objects:
    """The objects of one device. The caller holds the runtime's lock.

    Whoever lets go of a handle makes sure that no submission in flight uses the object.
    """

    def __init__(self, device):
        self._device = device
        self._dead: dict[str, deque[_End]] = {kind: deque() for kind in KINDS}
        self._ends: set[_End] = set()
        self._pool = NULL

    def create(self, kind: str, info) -> Handle:
        """What ``vkCreate`` of that kind makes of its create info. Raises as VulkanDevice.check."""
        function = f"vkCreate{kind}"
        return self.make(kind, function, lambda box: getattr(lib, function)(self._device.handle, info, NULL, box))

    def make(self, kind: str, function: str, call: Callable) -> Handle:
        """What ``call`` puts into the place that it is given; it returns the driver's result."""
        handle, place = self.begin(kind)
        return self.made(handle, place, call(place), function)

    def begin(self, kind: str) -> tuple[Handle, object]:
        """A handle without a value, and the place in which the driver is to put it."""
        handle = Handle()
        end = _End(handle, self._dead[kind].append)
        end.box = ffi.new(f"Vk{kind}[1]")
        self._ends.add(end)
        return handle, end.box

    def made(self, handle: Handle, place, result: int, function: str) -> Handle:
        """The handle, once the driver has put it in its place; raises what its result calls for."""
        if result < 0:
            place[0] = NULL  # undefined after a failure
        self._device.check(result, function)
        handle.value = place[0]
        return handle

    def command_buffer(self, pool: Handle) -> Handle:
        """A primary command buffer. All are of one pool, which outlives them."""
        self._pool = pool.value
        info = ffi.new("VkCommandBufferAllocateInfo*")
        info.sType = lib.VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO
        info.commandPool = pool.value
        info.level = lib.VK_COMMAND_BUFFER_LEVEL_PRIMARY
        info.commandBufferCount = 1
        return self.make(
            "CommandBuffer",
            "vkAllocateCommandBuffers",
            lambda box: lib.vkAllocateCommandBuffers(self._device.handle, info, box),
        )

    def sweep(self) -> None:
        """Destroy what nobody refers to any more."""
        swept = False
        for kind, dead in self._dead.items():
            if dead:
                swept = True
                self._destroy(kind, map(_box, map(deque.popleft, repeat(dead, len(dead)))))
        if swept:
            self._ends = {end for end in self._ends if end() is not None}

    def _destroy(self, kind: str, boxes) -> None:
        device = repeat(self._device.handle)
        if kind == "CommandBuffer":
            # A place that the driver never filled in holds NULL, which this call, too, passes over.
            _run(map(lib.vkFreeCommandBuffers, device, repeat(self._pool), repeat(1), boxes))
        elif kind == "DeviceMemory":
            _run(map(lib.vkFreeMemory, device, map(_value, boxes), repeat(NULL)))
        else:
            _run(map(getattr(lib, f"vkDestroy{kind}"), device, map(_value, boxes), repeat(NULL)))
