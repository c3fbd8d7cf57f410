"""What a device offers for sharing memory and semaphores with other interfaces to it, by file descriptors.

Blocks of device memory are made for it from the start, because a tensor's memory is there before anyone asks to share
it. Only devices to which another interface exists that can import them get such blocks (``importable``).
"""

from __future__ import annotations

from ...errors import GrillyError, UnsupportedError
from ..interface import DeviceInfo
from ..loaded import HIP, path_of_loaded
from ..sharing import Descriptor
from .api import NULL, ffi, lib, out

FD = 1  # VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT, and the semaphores' of that name
_DEDICATED_ONLY, _EXPORTABLE = 1, 2
_AMD = 0x1002


def importable(info: DeviceInfo) -> bool:
    """Whether something can import the device's memory: CUDA, with NVIDIA's own driver, or on an AMD GPU HIP, if this
    process has loaded it. Most users of such a GPU have no HIP, and their memory stays as it is."""
    return "nvidia-compiler" in info.features or (info.vendor_id == _AMD and path_of_loaded(HIP) is not None)


class External:
    """What a physical device can export.

    Attributes
    ----------
    memories : bool
        Whether blocks of memory are made to be exported.
    dedicated : bool
        Whether each is then an allocation for its one buffer, which the importer is to be told.
    timelines : bool
        Whether timeline semaphores can be exported.
    extensions : list of bytes
        To be enabled for this.
    """

    def __init__(self, physical, info: DeviceInfo):
        self.memories = self.dedicated = self.timelines = False
        self.extensions: list[bytes] = []
        listed = info.properties.get("extensions", ())
        if not importable(info) or "VK_KHR_external_memory_fd" not in listed:
            return
        asked = ffi.new("VkPhysicalDeviceExternalBufferInfo*")
        asked.sType = lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO
        asked.usage = (
            lib.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
            | lib.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
            | lib.VK_BUFFER_USAGE_TRANSFER_DST_BIT
        )
        asked.handleType = FD
        told = out("VkExternalBufferProperties")
        told.sType = lib.VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES
        lib.vkGetPhysicalDeviceExternalBufferProperties(physical, asked, told)
        offers = told.externalMemoryProperties.externalMemoryFeatures
        if not offers & _EXPORTABLE:
            return
        self.memories, self.dedicated = True, bool(offers & _DEDICATED_ONLY)
        self.extensions.append(b"VK_KHR_external_memory_fd")
        if {"VK_KHR_external_semaphore_fd", "VK_KHR_timeline_semaphore"} <= set(listed):
            kind = ffi.new("VkSemaphoreTypeCreateInfo*")
            kind.sType = lib.VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO
            kind.semaphoreType = lib.VK_SEMAPHORE_TYPE_TIMELINE
            wanted = ffi.new("VkPhysicalDeviceExternalSemaphoreInfo*")
            wanted.sType = lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_SEMAPHORE_INFO
            wanted.pNext = kind
            wanted.handleType = FD
            given = out("VkExternalSemaphoreProperties")
            given.sType = lib.VK_STRUCTURE_TYPE_EXTERNAL_SEMAPHORE_PROPERTIES
            lib.vkGetPhysicalDeviceExternalSemaphoreProperties(physical, wanted, given)
            if given.externalSemaphoreFeatures & lib.VK_EXTERNAL_SEMAPHORE_FEATURE_EXPORTABLE_BIT:
                self.timelines = True
                self.extensions += [b"VK_KHR_external_semaphore_fd", b"VK_KHR_timeline_semaphore"]

    def buffer(self):
        """What is chained to the create info of a buffer."""
        info = ffi.new("VkExternalMemoryBufferCreateInfo*")
        info.sType = lib.VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO
        info.handleTypes = FD
        return info

    def memory(self, buffer) -> tuple:
        """What is chained to the allocation for a buffer: the first struct, and what keeps the others."""
        info = ffi.new("VkExportMemoryAllocateInfo*")
        info.sType = lib.VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO
        info.handleTypes = FD
        if not self.dedicated:
            return (info,)
        own = ffi.new("VkMemoryDedicatedAllocateInfo*")
        own.sType = lib.VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO
        own.buffer = buffer
        info.pNext = own
        return info, own


def descriptor_of_memory(device, memory) -> Descriptor:
    """A file descriptor for device memory."""
    info = ffi.new("VkMemoryGetFdInfoKHR*")
    info.sType = lib.VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR
    info.memory = memory
    info.handleType = FD
    return _descriptor(device, "vkGetMemoryFdKHR", info)


def descriptor_of_semaphore(device, semaphore) -> Descriptor:
    """A file descriptor for a semaphore."""
    info = ffi.new("VkSemaphoreGetFdInfoKHR*")
    info.sType = lib.VK_STRUCTURE_TYPE_SEMAPHORE_GET_FD_INFO_KHR
    info.semaphore = semaphore
    info.handleType = FD
    return _descriptor(device, "vkGetSemaphoreFdKHR", info)


def _descriptor(device, name: str, info) -> Descriptor:
    word = ffi.new("char[]", name.encode())
    address = lib.vkGetDeviceProcAddr(device.handle, word)
    if address == NULL:
        raise UnsupportedError(f"{device.info.name}: the driver has no {name}")
    found = Descriptor(ffi.new("int[1]", [-1]))
    result = ffi.cast(f"PFN_{name}", address)(device.handle, info, found.box)
    if result < 0:
        found.taken()  # undefined after a failure
    if result == -10:
        raise GrillyError(f"{name}: VK_ERROR_TOO_MANY_OBJECTS: the process has no file descriptors left")
    device.check(result, name)
    return found


def timeline(device, value: int, exported: int = FD):
    """A timeline semaphore at a value, that can be exported as handles of these kinds (0: not at all): a Handle."""
    kind = ffi.new("VkSemaphoreTypeCreateInfo*")
    kind.sType = lib.VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO
    kind.semaphoreType = lib.VK_SEMAPHORE_TYPE_TIMELINE
    kind.initialValue = value
    export = ffi.new("VkExportSemaphoreCreateInfo*")
    export.sType = lib.VK_STRUCTURE_TYPE_EXPORT_SEMAPHORE_CREATE_INFO
    export.handleTypes = exported
    export.pNext = kind
    info = ffi.new("VkSemaphoreCreateInfo*")
    info.sType = lib.VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO
    info.pNext = export
    return device.objects.create("Semaphore", info)


__all__ = ["External", "descriptor_of_memory", "descriptor_of_semaphore", "timeline"]
