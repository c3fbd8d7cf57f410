"""What Vulkan devices there are, and what each of them can do.

Everything is read through instance-level calls; no logical device is made. ``describe`` works with any instance, so a
runtime that keeps its own instance describes its device with the same code that made the list.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from types import SimpleNamespace

from ..errors import NoDeviceError, OutOfDeviceMemoryError, UnsupportedError
from .interface import DeviceInfo

#: The newest Vulkan version that grilly asks an instance for.
REQUESTED_VERSION = (1, 3, 0)

INSTALL_HINT = (
    "Install the Vulkan loader with your GPU vendor's driver, or, to compute on the CPU:\n"
    "  apt-get install libvulkan1 mesa-vulkan-drivers"
)

_VENDORS = {
    0x10DE: "nvidia",
    0x1002: "amd",
    0x8086: "intel",
    0x106B: "apple",
    0x13B5: "arm",
    0x5143: "qualcomm",
    0x1010: "imagination",
    0x14E4: "broadcom",
    0x10005: "mesa",
}
_KINDS = ("other", "integrated", "discrete", "virtual", "cpu")  # indexed by VkPhysicalDeviceType
_PREFERENCE = ("discrete", "integrated", "virtual", "cpu", "other")
_COMPONENTS = {
    0: "float16", 1: "float32", 2: "float64", 3: "int8", 4: "int16", 5: "int32", 6: "int64",
    7: "uint8", 8: "uint16", 9: "uint32", 10: "uint64", 1000141000: "bfloat16",
}  # VkComponentTypeKHR  # fmt: skip
# VkPhysicalDeviceShaderBfloat16FeaturesKHR is newer than the binding. This struct has the same layout, three flags:
# the type, its dot product, its cooperative matrices.
BFLOAT16_FEATURES = ("VkPhysicalDevice8BitStorageFeatures", 1000141000)
# VkPhysicalDeviceCooperativeMatrix2FeaturesNV likewise: seven flags, of which those named here stand first, second and
# sixth: a workgroup's matrices, of many sizes, addressed as tensors.
WORKGROUP_MATRIX_FEATURES = ("VkPhysicalDeviceShaderAtomicFloat2FeaturesEXT", 1000593000)
WORKGROUP_MATRIX_FLAGS = ("shaderBufferFloat16Atomics", "shaderBufferFloat16AtomicAdd", "shaderSharedFloat16Atomics")
_SCOPES = {1: "device", 2: "workgroup", 3: "subgroup", 5: "queue-family"}  # VkScopeKHR
_SUBGROUP_FEATURES = {  # VkSubgroupFeatureFlagBits
    0x1: "subgroup-basic",
    0x2: "subgroup-vote",
    0x4: "subgroup-arithmetic",
    0x10: "subgroup-shuffle",
    0x20: "subgroup-shuffle-relative",
}
_COMPUTE = 0x20  # VK_SHADER_STAGE_COMPUTE_BIT
_ENUMERATE_PORTABILITY = 0x1  # VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR

# Extension -> the Vulkan version that made it core.
_CORE_SINCE = {
    "VK_KHR_16bit_storage": (1, 1),
    "VK_KHR_8bit_storage": (1, 2),
    "VK_KHR_shader_float16_int8": (1, 2),
    "VK_KHR_vulkan_memory_model": (1, 2),
    "VK_KHR_driver_properties": (1, 2),
    "VK_EXT_subgroup_size_control": (1, 3),
    "VK_KHR_maintenance4": (1, 3),
}


def load():
    """The ``vulkan`` package's cffi objects.

    Returns
    -------
    (ffi, lib)

    Raises
    ------
    NoDeviceError
        The package or the Vulkan loader is missing.
    """
    try:
        from vulkan import ffi, lib
    except ImportError as error:
        raise NoDeviceError(
            f"the Python package `vulkan` cannot be imported ({error}); install it: pip install vulkan"
        ) from error
    except OSError as error:
        raise NoDeviceError(
            f"the Vulkan loader (libvulkan.so.1, vulkan-1.dll or libvulkan.dylib) was not found. {INSTALL_HINT}"
        ) from error
    return ffi, lib


def version(number: int) -> tuple[int, int, int]:
    """Major, minor and patch of a packed Vulkan version number (specification, section "Version Numbers")."""
    return (number >> 22) & 0x7F, (number >> 12) & 0x3FF, number & 0xFFF


def offers(extension: str, api_version: tuple[int, int, int], extensions: frozenset[str]) -> bool:
    """Whether a device has ``extension``, by itself or as part of its Vulkan version."""
    return extension in extensions or api_version[:2] >= _CORE_SINCE.get(extension, (99, 0))


def create_instance(ffi, lib, box) -> tuple[int, int, int]:
    """Make a Vulkan instance of the newest version that both the loader and grilly know.

    Parameters
    ----------
    ffi, lib
        As ``load`` gives them.
    box : cffi VkInstance[1]
        Where the driver puts the instance, which the caller destroys: so it is not lost if Python is interrupted.

    Returns
    -------
    The Vulkan version it was made with.

    Raises
    ------
    NoDeviceError
        The loader refused the instance.
    OutOfDeviceMemoryError
        The loader or a driver had no memory for it.
    """
    found = ffi.new("uint32_t *", 1 << 22)
    lib.vkEnumerateInstanceVersion(found)
    wanted = min(version(found[0]), REQUESTED_VERSION)

    count = ffi.new("uint32_t *")
    lib.vkEnumerateInstanceExtensionProperties(ffi.NULL, count, ffi.NULL)
    listed = ffi.new("VkExtensionProperties[]", max(count[0], 1))
    lib.vkEnumerateInstanceExtensionProperties(ffi.NULL, count, listed)
    portability = "VK_KHR_portability_enumeration"  # without it the loader hides MoltenVK's devices
    offered = {ffi.string(listed[i].extensionName).decode() for i in range(count[0])}
    names = [portability] if portability in offered else []

    name = ffi.new("char[]", b"grilly")
    application = ffi.new("VkApplicationInfo *", {
        "sType": 0, "pApplicationName": name, "pEngineName": name,
        "apiVersion": wanted[0] << 22 | wanted[1] << 12,
    })  # fmt: skip
    extension_strings = [ffi.new("char[]", text.encode()) for text in names]
    extension_array = ffi.new("char *[]", extension_strings)
    info = ffi.new("VkInstanceCreateInfo *", {
        "sType": 1, "flags": _ENUMERATE_PORTABILITY if names else 0, "pApplicationInfo": application,
        "enabledExtensionCount": len(extension_strings), "ppEnabledExtensionNames": extension_array,
    })  # fmt: skip
    result = lib.vkCreateInstance(info, ffi.NULL, box)
    if result != 0:
        box[0] = ffi.NULL
    _check_memory(result, "vkCreateInstance")
    if result == -9:  # VK_ERROR_INCOMPATIBLE_DRIVER: the loader found no driver at all
        raise NoDeviceError(f"the Vulkan loader found no driver. {INSTALL_HINT}")
    if result != 0:
        raise NoDeviceError(f"the Vulkan loader refused an instance with VkResult {result}. {INSTALL_HINT}")
    return wanted


def physical_devices(ffi, lib, instance) -> list:
    """The instance's ``VkPhysicalDevice`` handles, in the driver's order, which is that of ``grilly.devices()``.

    Raises OutOfDeviceMemoryError where the driver has no memory to list them.
    """
    count = ffi.new("uint32_t *")
    _check_memory(lib.vkEnumeratePhysicalDevices(instance, count, ffi.NULL), "vkEnumeratePhysicalDevices")
    handles = ffi.new("VkPhysicalDevice[]", max(count[0], 1))
    _check_memory(lib.vkEnumeratePhysicalDevices(instance, count, handles), "vkEnumeratePhysicalDevices")
    return [handles[i] for i in range(count[0])]


def _check_memory(result: int, what: str) -> None:
    if result in (-1, -2):  # of the host and of the device
        raise OutOfDeviceMemoryError(f"{what}: the Vulkan loader or a driver has no memory left")


#: An instance that stays, so that the loader keeps NVIDIA's driver: a process can load it about 30 times, and no more.
_anchor = None


def enumerate_devices() -> list[DeviceInfo]:
    """Describe every Vulkan device, in the driver's order.

    Raises
    ------
    NoDeviceError
        The loader is missing, or there is no device; the message says what to install.
    """
    global _anchor
    ffi, lib = load()
    box = ffi.new("VkInstance[1]")
    found = []
    try:
        create_instance(ffi, lib, box)
        instance = box[0]
        found = [describe(instance, handle, index) for index, handle in enumerate(physical_devices(ffi, lib, instance))]
    finally:
        if _anchor is None and any(info.vendor == "nvidia" for info in found):
            _anchor = box[0]
        elif box[0] != ffi.NULL:
            lib.vkDestroyInstance(box[0], ffi.NULL)
    if not found:
        raise NoDeviceError(f"the Vulkan drivers that are installed offer no device. {INSTALL_HINT}")
    return found


class _Chain:
    """Structs linked by ``pNext`` behind a first one, kept alive together."""

    def __init__(self, ffi, kind: str, stype: int):
        self.ffi = ffi
        self.head = ffi.new(f"{kind} *")
        self.head.sType = stype
        self._kept = [self.head]

    def add(self, kind: str, stype: int, wanted: bool = True):
        """Append a zeroed struct; one that the device does not know stays out of the chain, all zeros."""
        struct = self.ffi.new(f"{kind} *")
        struct.sType = stype
        if wanted:
            self._kept[-1].pNext = self.ffi.cast("void *", struct)
            self._kept.append(struct)
        return struct


def _extensions(ffi, lib, physical) -> frozenset[str]:
    count = ffi.new("uint32_t *")
    lib.vkEnumerateDeviceExtensionProperties(physical, ffi.NULL, count, ffi.NULL)
    listed = ffi.new("VkExtensionProperties[]", max(count[0], 1))
    lib.vkEnumerateDeviceExtensionProperties(physical, ffi.NULL, count, listed)
    return frozenset(ffi.string(listed[i].extensionName).decode() for i in range(count[0]))


def _compute_family(ffi, lib, physical) -> tuple[int, int]:
    """Index and timestamp bits of the first queue family that computes, the one that the runtimes open."""
    count = ffi.new("uint32_t *")
    lib.vkGetPhysicalDeviceQueueFamilyProperties(physical, count, ffi.NULL)
    families = ffi.new("VkQueueFamilyProperties[]", max(count[0], 1))
    lib.vkGetPhysicalDeviceQueueFamilyProperties(physical, count, families)
    for i in range(count[0]):
        if families[i].queueFlags & 0x2:  # VK_QUEUE_COMPUTE_BIT
            return i, families[i].timestampValidBits
    return -1, 0


def _memory(ffi, lib, physical, kind: str) -> tuple[int, bool]:
    """Bytes of the largest heap, and whether the host addresses it as its own memory."""
    memory = ffi.new("VkPhysicalDeviceMemoryProperties *")
    lib.vkGetPhysicalDeviceMemoryProperties(physical, memory)
    heaps = range(memory.memoryHeapCount)
    local = [i for i in heaps if memory.memoryHeaps[i].flags & 0x1] or list(heaps)
    main = max(local, key=lambda i: memory.memoryHeaps[i].size)
    types = [memory.memoryTypes[i] for i in range(memory.memoryTypeCount) if memory.memoryTypes[i].heapIndex == main]
    # DEVICE_LOCAL | HOST_VISIBLE | HOST_COHERENT. Discrete GPUs with a resizable BAR have such a type too, but there
    # each access crosses the bus.
    mapped = any(t.propertyFlags & 0x7 == 0x7 for t in types)
    return memory.memoryHeaps[main].size, mapped and kind in ("integrated", "cpu")


def _matrix_properties(ffi, lib, instance, physical, function: bytes, stype: int) -> list:
    """What one of the two queries for cooperative matrices lists: each entry's ten words behind its header.

    The entries of both have one size, and the second query is newer than the binding.
    """
    name = ffi.new("char[]", function)
    address = lib.vkGetInstanceProcAddr(instance, name)
    if address == ffi.NULL:
        return []
    query = ffi.cast("PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", address)
    count = ffi.new("uint32_t *")
    if query(physical, count, ffi.NULL) != 0 or not count[0]:
        return []
    listed = ffi.new("VkCooperativeMatrixPropertiesKHR[]", count[0])
    for i in range(count[0]):
        listed[i].sType = stype
    query(physical, count, listed)
    words = ffi.cast("uint32_t *", listed)
    size = ffi.sizeof("VkCooperativeMatrixPropertiesKHR") // 4
    header = ffi.offsetof("VkCooperativeMatrixPropertiesKHR", "MSize") // 4
    return [[int(words[i * size + header + n]) for n in range(10)] for i in range(count[0])]


def _matrix_shapes(ffi, lib, instance, physical) -> tuple[tuple, ...]:
    """The device's cooperative matrices: (M, N, K, A, B, C, result, scope), types and scope by name."""
    query = b"vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"
    listed = _matrix_properties(ffi, lib, instance, physical, query, 1000506001)
    return tuple(
        (m, n, k, *(_COMPONENTS.get(t, str(t)) for t in types), _SCOPES.get(scope, str(scope)))
        for m, n, k, *types, _, scope, _ in listed
    )


def _workgroup_matrices(ffi, lib, instance, physical) -> tuple[tuple, ...]:
    """The cooperative matrices of any size that a workgroup may hold: (M, N, K, A, B, C, result, invocations).

    Sizes are multiples of M, N and K.
    """
    query = b"vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV"
    listed = _matrix_properties(ffi, lib, instance, physical, query, 1000593001)
    return tuple(
        (m, n, k, *(_COMPONENTS.get(t, str(t)) for t in types), invocations)
        for m, n, k, *types, saturating, scope, invocations in listed
        if _SCOPES.get(scope) == "workgroup" and not saturating
    )


def describe(instance, physical, index: int = 0) -> DeviceInfo:
    """Describe one physical device.

    Parameters
    ----------
    instance : cffi VkInstance
        The instance that ``physical`` came from; its version must be 1.1 or newer.
    physical : cffi VkPhysicalDevice
        The device.
    index : int
        Position in the list of devices.

    Notes
    -----
    ``properties`` holds what helps to recognise an architecture or to open the device: ``device_type``,
    ``driver_id`` (VkDriverId), ``device_uuid``, ``driver_uuid``, ``cache_uuid`` (hexadecimal), ``timestamp_period``
    (nanoseconds a tick), ``timestamp_bits``, ``queue_family``, ``extensions``, ``cooperative_matrix`` (shapes),
    ``workgroup_matrix`` (likewise, what their sizes are multiples of, and invocations), ``memory_model``,
    ``subgroup_operations`` (bits), and, where the driver tells, ``pci`` (domain:bus:device.function), ``sm_count`` and
    ``warps_per_sm``
    (NVIDIA), ``compute_units``, ``simd_per_compute_unit``, ``wavefront_size`` (AMD), ``shader_cores`` (Arm).
    """
    ffi, lib = load()
    told = _told(ffi, lib, physical)
    first, limits, subgroup = told.first, told.first.limits, told.subgroup
    kind = _KINDS[first.deviceType] if first.deviceType < len(_KINDS) else "other"
    memory_bytes, unified = _memory(ffi, lib, physical, kind)
    family, timestamp_bits = _compute_family(ffi, lib, physical)
    # glslang gives every module with cooperative matrices the Vulkan memory model.
    scoped = told.model.vulkanMemoryModel and told.model.vulkanMemoryModelDeviceScope
    shapes = _matrix_shapes(ffi, lib, instance, physical) if told.matrix.cooperativeMatrix and scoped else ()
    flexible: tuple[tuple, ...] = ()
    if shapes and all(getattr(told.workgroups, flag) for flag in WORKGROUP_MATRIX_FLAGS):
        flexible = _workgroup_matrices(ffi, lib, instance, physical)
    features = {"descriptor-offsets", *_features(told), *_matrix_features(told, shapes, flexible)}
    if timestamp_bits:
        features.add("timestamps")
    if kind == "cpu" and _reads_texels(limits):
        features.add("texel-buffers")
    size = subgroup.subgroupSize or 1
    sizes = (told.sizes.minSubgroupSize, told.sizes.maxSubgroupSize)
    return DeviceInfo(
        index=index,
        name=ffi.string(first.deviceName).decode(errors="replace"),
        vendor=_VENDORS.get(first.vendorID, f"0x{first.vendorID:04x}"),
        vendor_id=first.vendorID,
        device_id=first.deviceID,
        kind=kind,
        driver=ffi.string(told.driver.driverName).decode(errors="replace") or "unknown",
        driver_version=_driver_version(ffi, told),
        api_version=told.api,
        subgroup_size=size,
        subgroup_sizes=sizes if "subgroup-size-control" in features else (size, size),
        limits=_limits(told, memory_bytes, size),
        features=frozenset(features),
        memory_bytes=memory_bytes,
        unified=unified,
        properties={
            "device_type": int(first.deviceType),
            "driver_id": int(told.driver.driverID),
            "device_uuid": bytes(told.identity.deviceUUID).hex(),
            "driver_uuid": bytes(told.identity.driverUUID).hex(),
            "cache_uuid": bytes(first.pipelineCacheUUID).hex(),
            "timestamp_period": float(limits.timestampPeriod),
            "timestamp_bits": timestamp_bits,
            "queue_family": family,
            "extensions": told.extensions,
            "cooperative_matrix": shapes,
            "workgroup_matrix": flexible,
            "memory_model": bool(told.model.vulkanMemoryModel),
            "subgroup_operations": int(subgroup.supportedOperations),
            **_vendors_properties(told),
        },
    )


def _told(ffi, lib, physical) -> SimpleNamespace:
    """What the driver tells of a device: structs of features and properties, by short names.

    A struct that the device does not know is all zeros. ``api`` is the Vulkan version, ``extensions`` their names.
    """
    first = ffi.new("VkPhysicalDeviceProperties *")
    lib.vkGetPhysicalDeviceProperties(physical, first)
    api, extensions = version(first.apiVersion), _extensions(ffi, lib, physical)

    def has(extension: str) -> bool:
        return offers(extension, api, extensions)

    chain = _Chain(ffi, "VkPhysicalDeviceFeatures2", 1000059000)
    known = _Chain(ffi, "VkPhysicalDeviceProperties2", 1000059001)
    told = SimpleNamespace(
        first=first, api=api, extensions=extensions, chains=(chain, known), features=chain.head.features,
        half_storage=chain.add("VkPhysicalDevice16BitStorageFeatures", 1000083000),
        byte_storage=chain.add("VkPhysicalDevice8BitStorageFeatures", 1000177000, has("VK_KHR_8bit_storage")),
        small=chain.add("VkPhysicalDeviceShaderFloat16Int8Features", 1000082000, has("VK_KHR_shader_float16_int8")),
        model=chain.add("VkPhysicalDeviceVulkanMemoryModelFeatures", 1000211000, has("VK_KHR_vulkan_memory_model")),
        sized=chain.add(
            "VkPhysicalDeviceSubgroupSizeControlFeatures", 1000225002, has("VK_EXT_subgroup_size_control")
        ),
        matrix=chain.add("VkPhysicalDeviceCooperativeMatrixFeaturesKHR", 1000506000, has("VK_KHR_cooperative_matrix")),
        brain=chain.add(*BFLOAT16_FEATURES, has("VK_KHR_shader_bfloat16")),
        workgroups=chain.add(*WORKGROUP_MATRIX_FEATURES, has("VK_NV_cooperative_matrix2")),
        identity=known.add("VkPhysicalDeviceIDProperties", 1000071004),
        subgroup=known.add("VkPhysicalDeviceSubgroupProperties", 1000094000),
        allocations=known.add("VkPhysicalDeviceMaintenance3Properties", 1000168000),
        driver=known.add("VkPhysicalDeviceDriverProperties", 1000196000, has("VK_KHR_driver_properties")),
        sizes=known.add(
            "VkPhysicalDeviceSubgroupSizeControlProperties", 1000225000, has("VK_EXT_subgroup_size_control")
        ),
        buffers=known.add("VkPhysicalDeviceMaintenance4Properties", 1000413001, has("VK_KHR_maintenance4")),
        nvidia=known.add("VkPhysicalDeviceShaderSMBuiltinsPropertiesNV", 1000154001, has("VK_NV_shader_sm_builtins")),
        amd=known.add("VkPhysicalDeviceShaderCorePropertiesAMD", 1000185000, has("VK_AMD_shader_core_properties")),
        pci=known.add("VkPhysicalDevicePCIBusInfoPropertiesEXT", 1000212000, has("VK_EXT_pci_bus_info")),
        arm=known.add(
            "VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM", 1000497001, has("VK_ARM_shader_core_builtins")
        ),
    )  # fmt: skip
    if api >= (1, 1, 0):  # a Vulkan 1.0 device is listed, with no features; select() refuses it
        lib.vkGetPhysicalDeviceFeatures2(physical, chain.head)
        lib.vkGetPhysicalDeviceProperties2(physical, known.head)
    return told


def _features(told: SimpleNamespace) -> set[str]:
    """The features that flags tell of, but for matrices."""
    subgroup, sized, sizes = told.subgroup, told.sized, told.sizes
    found = set()
    if subgroup.supportedStages & _COMPUTE:
        found |= {name for bit, name in _SUBGROUP_FEATURES.items() if subgroup.supportedOperations & bit}
    flags = {
        "subgroup-size-control": sized.subgroupSizeControl and sized.computeFullSubgroups
        and sizes.requiredSubgroupSizeStages & _COMPUTE,
        "float16-storage": told.half_storage.storageBuffer16BitAccess,
        "float16-arithmetic": told.small.shaderFloat16,
        "int8-storage": told.byte_storage.storageBuffer8BitAccess,
        "int64-arithmetic": told.features.shaderInt64,
        "nvidia-compiler": _is_nvidias_own(told),
    }  # fmt: skip
    return found | {name for name, flag in flags.items() if flag}


def _matrix_features(told: SimpleNamespace, shapes: tuple[tuple, ...], flexible: tuple[tuple, ...]) -> set[str]:
    """The features of matrix units: of matrices of a subgroup, in ``shapes``, and of a workgroup, ``flexible``."""
    found = {"cooperative-matrix"} if shapes else set()
    # The third flag of BFLOAT16_FEATURES.
    types = {"float16": told.small.shaderFloat16, "bfloat16": told.brain.storagePushConstant8}
    for m, n, k, a, b, c, result, scope in shapes:
        if a == b and types.get(a) and c == result == "float32" and scope == "subgroup":
            found.add(f"matrix-{a}-{m}x{n}x{k}")
    # Sums in float32, and matrices of float16, which results become before they leave.
    sums = {
        c for m, n, k, a, b, c, result, threads in flexible
        if a == b == "float16" and c == result and threads == 256 and not 64 % m and not 64 % n and not 64 % k
    }  # fmt: skip
    if types["float16"] and {"float32", "float16"} <= sums:
        found.add("workgroup-matrix-float16")
    return found


def _reads_texels(limits) -> bool:
    """Whether texel buffers reach as far as storage buffers.

    Asked of processors only, whose drivers have ways of their own to read them; GPUs' buffers keep their usages.
    """
    whole = 16 * limits.maxTexelBufferElements >= limits.maxStorageBufferRange
    return whole and limits.minTexelBufferOffsetAlignment <= limits.minStorageBufferOffsetAlignment


def _is_nvidias_own(told: SimpleNamespace) -> bool:
    return told.first.vendorID == 0x10DE and told.driver.driverID == 4  # VK_DRIVER_ID_NVIDIA_PROPRIETARY


def _driver_version(ffi, told: SimpleNamespace) -> str:
    """The driver's version, with its own words behind it where these say something else."""
    raw = told.first.driverVersion
    packed = ".".join(map(str, version(raw)))
    if _is_nvidias_own(told):  # it packs 10, 8, 8 and 6 bits
        packed = f"{raw >> 22}.{(raw >> 14) & 0xFF}.{(raw >> 6) & 0xFF}"
    text = ffi.string(told.driver.driverInfo).decode(errors="replace")
    return f"{packed} ({text})" if text and text != packed else packed


def _vendors_properties(told: SimpleNamespace) -> dict[str, object]:
    """What some drivers tell: numbers of units, and where the device is on its bus."""
    amd, pci, found = told.amd, told.pci, {}
    if told.nvidia.shaderSMCount:
        found |= {"sm_count": told.nvidia.shaderSMCount, "warps_per_sm": told.nvidia.shaderWarpsPerSM}
    if amd.shaderEngineCount:
        units = amd.shaderEngineCount * amd.shaderArraysPerEngineCount * amd.computeUnitsPerShaderArray
        found |= {
            "compute_units": units,
            "simd_per_compute_unit": amd.simdPerComputeUnit,
            "wavefront_size": amd.wavefrontSize,
        }
    if "VK_EXT_pci_bus_info" in told.extensions:
        found["pci"] = f"{pci.pciDomain:04x}:{pci.pciBus:02x}:{pci.pciDevice:02x}.{pci.pciFunction:x}"
    if told.arm.shaderCoreCount:
        found["shader_cores"] = told.arm.shaderCoreCount
    return found


def _limits(told: SimpleNamespace, memory_bytes: int, subgroup_size: int) -> dict:
    """DeviceInfo.limits."""
    limits, sizes = told.first.limits, (told.allocations.maxMemoryAllocationSize, told.buffers.maxBufferSize)
    return {
        "storage_range": limits.maxStorageBufferRange,
        "offset_alignment": int(limits.minStorageBufferOffsetAlignment),
        "push_bytes": limits.maxPushConstantsSize,
        "shared_bytes": limits.maxComputeSharedMemorySize,
        "invocations": limits.maxComputeWorkGroupInvocations,
        "group_size": tuple(limits.maxComputeWorkGroupSize),
        "groups": tuple(limits.maxComputeWorkGroupCount),
        "allocation": min(n for n in (*sizes, memory_bytes) if n),
        "allocations": limits.maxMemoryAllocationCount,
        "subgroups": told.sizes.maxComputeWorkgroupSubgroups or limits.maxComputeWorkGroupInvocations // subgroup_size,
        "bindings": min(limits.maxPerStageDescriptorStorageBuffers, limits.maxDescriptorSetStorageBuffers),
    }


def select(devices: Sequence[DeviceInfo], device: int | str | None = None) -> DeviceInfo:
    """Choose one device.

    Parameters
    ----------
    devices : sequence of DeviceInfo
        What ``enumerate_devices`` returned.
    device : int, str or None
        Index in ``devices``; or a fragment of a name, in any case (a string of digits is an index); or None for
        the environment variable ``GRILLY_DEVICE`` if it is set, else the first of the best kind: a discrete GPU,
        then an integrated one, a virtual one, a CPU, anything else.

    Raises
    ------
    ValueError
        No device, or more than one, fits; the message lists them.
    TypeError
        ``device`` is neither an int, a str nor None.
    UnsupportedError
        The device chosen offers less than Vulkan 1.1, or no queue that computes.
    """
    source = "device"
    if device is None:
        device, source = os.environ.get("GRILLY_DEVICE") or None, "GRILLY_DEVICE"
    listing = "\n".join(f"  {d.index}: {d.name} ({d.kind}, {d.driver})" for d in devices)
    if isinstance(device, str) and device.strip().isdecimal():
        device = int(device)
    elif hasattr(device, "__index__") and not isinstance(device, bool):
        device = operator.index(device)  # NumPy's integers too
    if device is None:
        usable = [d for d in devices if _refusal(d) is None] or list(devices)
        if not usable:
            raise NoDeviceError(f"there is no Vulkan device. {INSTALL_HINT}")
        chosen = min(usable, key=lambda d: _PREFERENCE.index(d.kind))
    elif isinstance(device, bool) or not isinstance(device, int | str):
        raise TypeError(f"device: expected an index, a part of a name or None, and received {type(device).__name__}")
    elif isinstance(device, int):
        if not 0 <= device < len(devices):
            raise ValueError(f"{source}: there is no device {device}; the devices are\n{listing}")
        chosen = devices[device]
    else:
        fragment = device.strip().lower()
        fitting = [d for d in devices if fragment in d.name.lower()] if fragment else []
        exact = [d for d in fitting if d.name.lower() == fragment]
        fitting = exact if len(exact) == 1 else fitting
        if len(fitting) != 1:
            wrong = "no device's name contains" if not fitting else f"{len(fitting)} devices' names contain"
            raise ValueError(f"{source}: {wrong} {device!r}; the devices are\n{listing}")
        chosen = fitting[0]
    refusal = _refusal(chosen)
    if refusal:
        raise UnsupportedError(f"{chosen.name} {refusal}; update its driver or choose another device:\n{listing}")
    return chosen


def _refusal(device: DeviceInfo) -> str | None:
    if device.api_version < (1, 1, 0):
        return f"offers Vulkan {'.'.join(map(str, device.api_version))}, and grilly needs 1.1"
    if device.properties.get("queue_family", 0) == -1:
        return "has no queue for compute"
    return None
