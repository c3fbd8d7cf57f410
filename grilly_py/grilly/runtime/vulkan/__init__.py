"""The default runtime: Vulkan through the ``vulkan`` package's cffi binding, with no layer in between."""

from .runtime import VulkanRuntime

__all__ = ["VulkanRuntime"]
