"""Calling Vulkan through raw cffi.

The binding's own wrappers drop their references to nested structs while a call runs, so this package builds every
struct with ``ffi.new`` and keeps it in a variable until the call has returned.
"""

from __future__ import annotations

from vulkan import ffi, lib

from ...errors import DeviceLostError, GrillyError, OutOfDeviceMemoryError

NULL = ffi.NULL

_NAMES = {
    -1: "VK_ERROR_OUT_OF_HOST_MEMORY",
    -2: "VK_ERROR_OUT_OF_DEVICE_MEMORY",
    -3: "VK_ERROR_INITIALIZATION_FAILED",
    -4: "VK_ERROR_DEVICE_LOST",
    -5: "VK_ERROR_MEMORY_MAP_FAILED",
    -6: "VK_ERROR_LAYER_NOT_PRESENT",
    -7: "VK_ERROR_EXTENSION_NOT_PRESENT",
    -8: "VK_ERROR_FEATURE_NOT_PRESENT",
    -9: "VK_ERROR_INCOMPATIBLE_DRIVER",
    -10: "VK_ERROR_TOO_MANY_OBJECTS",
    -12: "VK_ERROR_FRAGMENTED_POOL",
    -13: "VK_ERROR_UNKNOWN",
    -1000069000: "VK_ERROR_OUT_OF_POOL_MEMORY",
    -1000012000: "VK_ERROR_INVALID_SHADER_NV",
}
DEVICE_LOST = -4
OUT_OF_POOL_MEMORY = (-12, -1000069000)
# A mapping fails where the host's address space has no room for it.
OUT_OF_MEMORY = (-1, -2, -5, -10, *OUT_OF_POOL_MEMORY)


def name_of(result: int) -> str:
    """The Vulkan name of a result code."""
    return _NAMES.get(result, f"VkResult {result}")


def check(result: int, what: str) -> int:
    """Raise the exception that ``result`` calls for; negative results are errors, others are returned."""
    if result >= 0:
        return result
    if result == DEVICE_LOST:
        raise DeviceLostError(
            f"{what}: the device was lost (a driver reset, a time-out of the operating system's watchdog, or a fault). "
            "What it held is gone; open a new grilly.Compute()."
        )
    if result in OUT_OF_MEMORY:
        raise OutOfDeviceMemoryError(f"{what}: {name_of(result)}")
    raise GrillyError(f"{what} failed with {name_of(result)}")


def out(kind: str):
    """An output parameter for one ``kind`` (``out("VkBuffer")`` for ``VkBuffer *``)."""
    return ffi.new(f"{kind}*")


__all__ = [
    "DEVICE_LOST", "NULL", "OUT_OF_MEMORY", "OUT_OF_POOL_MEMORY", "check", "ffi", "lib", "name_of", "out",
]  # fmt: skip
