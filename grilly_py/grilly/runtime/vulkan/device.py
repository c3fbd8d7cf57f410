"""The logical device and its one compute queue, with each feature that grilly uses enabled by name."""

from __future__ import annotations

from ...errors import DeviceLostError, NoDeviceError
from ..interface import DeviceInfo
from ..probe import (
    BFLOAT16_FEATURES,
    WORKGROUP_MATRIX_FEATURES,
    WORKGROUP_MATRIX_FLAGS,
    create_instance,
    offers,
    physical_devices,
)  # fmt: skip
from .api import NULL, check, ffi, lib, out
from .external import External
from .objects import Objects


class Instance:
    """A Vulkan instance at version 1.1 to 1.3, whichever the loader offers."""

    def __init__(self):
        self._box = ffi.new("VkInstance[1]")
        try:
            self.version = create_instance(ffi, lib, self._box)
            self.handle = self._box[0]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Destroy the instance."""
        handle, self._box[0] = self._box[0], NULL
        if handle != NULL:
            lib.vkDestroyInstance(handle, NULL)


#: Features, and what enables each: structs of flags that are set, and extensions.
_ENABLED: dict[str, tuple[tuple[tuple, ...], tuple[str, ...]]] = {
    "maintenance4": (
        (("VkPhysicalDeviceMaintenance4Features", lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_FEATURES,
          "maintenance4"),),
        (),
    ),
    "float16-storage": (
        (("VkPhysicalDevice16BitStorageFeatures", lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES,
          "storageBuffer16BitAccess"),),
        (),
    ),
    "float16-arithmetic": (
        (("VkPhysicalDeviceShaderFloat16Int8Features",
          lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES, "shaderFloat16"),),
        ("VK_KHR_shader_float16_int8",),
    ),
    "int8-storage": (
        (("VkPhysicalDevice8BitStorageFeatures", lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES,
          "storageBuffer8BitAccess"),),
        ("VK_KHR_8bit_storage",),
    ),
    "subgroup-size-control": (
        (("VkPhysicalDeviceSubgroupSizeControlFeatures",
          lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES,
          "subgroupSizeControl", "computeFullSubgroups"),),
        ("VK_EXT_subgroup_size_control",),
    ),
    # Cooperative-matrix shaders declare the Vulkan memory model. Where it is on, device scope needs asking for, in
    # shaders without it as well.
    "cooperative-matrix": (
        (("VkPhysicalDeviceCooperativeMatrixFeaturesKHR",
          lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR, "cooperativeMatrix"),
         ("VkPhysicalDeviceVulkanMemoryModelFeatures",
          lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES,
          "vulkanMemoryModel", "vulkanMemoryModelDeviceScope")),
        ("VK_KHR_vulkan_memory_model", "VK_KHR_cooperative_matrix"),
    ),
    "matrix-bfloat16": (  # the type, its matrices
        ((*BFLOAT16_FEATURES, "storageBuffer8BitAccess", "storagePushConstant8"),),
        ("VK_KHR_shader_bfloat16",),
    ),
    "workgroup-matrix-float16": (
        ((*WORKGROUP_MATRIX_FEATURES, *WORKGROUP_MATRIX_FLAGS),),
        ("VK_NV_cooperative_matrix2",),
    ),
    "timelines": (
        (("VkPhysicalDeviceTimelineSemaphoreFeatures",
          lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES, "timelineSemaphore"),),
        (),
    ),
}  # fmt: skip


class VulkanDevice:
    """A logical device, its queue and its memory types."""

    def __init__(self, info: DeviceInfo):
        self.info = info
        #: Why the device does not answer any more, once that was seen.
        self.lost: str | None = None
        self.objects = Objects(self)
        self._box = ffi.new("VkDevice[1]")
        self.instance = Instance()
        try:
            devices = physical_devices(ffi, lib, self.instance.handle)
            if info.index >= len(devices):
                raise NoDeviceError(f"device {info.index} ({info.name}) is no longer there; {len(devices)} are.")
            self.physical = devices[info.index]
            self.memory_properties = out("VkPhysicalDeviceMemoryProperties")
            lib.vkGetPhysicalDeviceMemoryProperties(self.physical, self.memory_properties)
            self.family, self.timestamp_bits = info.properties["queue_family"], info.properties["timestamp_bits"]
            if self.family < 0:
                raise NoDeviceError(f"{info.name} has no compute queue")
            self.external = External(self.physical, info)
            self._open()
        except BaseException:
            self.close()
            raise

    def check(self, result: int, what: str) -> int:
        """As api.check; remembers that the device was lost."""
        if result >= 0:
            return result
        try:
            return check(result, what)
        except DeviceLostError as error:
            self.lost = str(error)
            raise

    def _open(self) -> None:
        """Create the logical device, with every feature that ``info`` names, and its queue."""
        structs, extensions = self._wanted()  # all structs live until vkCreateDevice returns
        priority = ffi.new("float[]", [1.0])
        queue_info = ffi.new("VkDeviceQueueCreateInfo*")
        queue_info.sType = lib.VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO
        queue_info.queueFamilyIndex = self.family
        queue_info.queueCount = 1
        queue_info.pQueuePriorities = priority
        strings = [ffi.new("char[]", name) for name in extensions]
        names = ffi.new("char*[]", strings)
        info = ffi.new("VkDeviceCreateInfo*")
        info.sType = lib.VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO
        info.pNext = structs[0]
        info.queueCreateInfoCount = 1
        info.pQueueCreateInfos = queue_info
        info.enabledExtensionCount = len(strings)
        info.ppEnabledExtensionNames = names
        result = lib.vkCreateDevice(self.physical, info, NULL, self._box)
        if result < 0:
            self._box[0] = NULL
        check(result, f"opening {self.info.name}")
        self.handle = self._box[0]
        queue = out("VkQueue")
        lib.vkGetDeviceQueue(self.handle, self.family, 0, queue)
        self.queue = queue[0]

    def _wanted(self) -> tuple[list, list[bytes]]:
        """The chain of feature structs, whose first is ``VkPhysicalDeviceFeatures2``, and extensions to enable."""
        have, core = self.info.features, min(self.info.api_version, self.instance.version)
        features = ffi.new("VkPhysicalDeviceFeatures2*")
        features.sType = lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2
        features.features.shaderInt64 = int("int64-arithmetic" in have)
        structs, extensions = [features], []
        asked = {
            # Vulkan 1.3 always has it. Shaders for it may have workgroups of a size that comes with the pipeline.
            "maintenance4": core >= (1, 3, 0),
            "matrix-bfloat16": any(name.startswith("matrix-bfloat16") for name in have),
            "timelines": self.external.timelines,
        }
        for name, (enabled, named) in _ENABLED.items():
            if not asked.get(name, name in have):
                continue
            for kind, stype, *fields in enabled:
                struct = ffi.new(f"{kind}*")
                struct.sType = stype
                for field in fields:
                    setattr(struct, field, 1)
                structs[-1].pNext = struct
                structs.append(struct)
            # What is part of the version needs no extension, and drivers need not list it.
            extensions += [each.encode() for each in named if not offers(each, core, frozenset())]
        extensions += self.external.extensions
        if self._has_extension(b"VK_KHR_portability_subset"):
            extensions.append(b"VK_KHR_portability_subset")  # must be enabled where it exists
        return structs, extensions

    def _has_extension(self, name: bytes) -> bool:
        count = out("uint32_t")
        lib.vkEnumerateDeviceExtensionProperties(self.physical, NULL, count, NULL)
        found = ffi.new("VkExtensionProperties[]", max(count[0], 1))
        lib.vkEnumerateDeviceExtensionProperties(self.physical, NULL, count, found)
        return any(ffi.string(found[i].extensionName) == name for i in range(count[0]))

    def memory_type(self, bits: int, *wishes: int) -> tuple[int, int]:
        """The first memory type allowed by ``bits`` that has all flags of a wish, tried in order: (index, flags)."""
        types = self.memory_properties.memoryTypes
        for wish in wishes:
            for index in range(self.memory_properties.memoryTypeCount):
                if bits >> index & 1 and types[index].propertyFlags & wish == wish:
                    return index, types[index].propertyFlags
        raise NoDeviceError(f"{self.info.name} has no memory type that grilly can use")

    def heap_bytes(self, memory_type: int) -> int:
        """Size of the heap behind a memory type."""
        heap = self.memory_properties.memoryTypes[memory_type].heapIndex
        return self.memory_properties.memoryHeaps[heap].size

    def wait_idle(self) -> int:
        """Wait until the device has nothing to do; returns the VkResult."""
        return lib.vkDeviceWaitIdle(self.handle)

    def close(self) -> None:
        """Destroy what nobody refers to any more, the device, then its instance."""
        if self._box[0] != NULL:
            self.objects.sweep()
        handle, self._box[0] = self._box[0], NULL  # after the sweep, in which a finalizer may do all of this
        if handle != NULL:
            lib.vkDestroyDevice(handle, NULL)
        self.instance.close()
