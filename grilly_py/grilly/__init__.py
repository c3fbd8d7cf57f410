"""grilly: exact, memory-efficient attention for NumPy programs on any Vulkan device.

Importing this package opens no device and loads no Vulkan; the first operation, or ``grilly.Compute()``, does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import (
    CaptureError,
    ClosedError,
    DeviceLostError,
    GrillyError,
    NoDeviceError,
    OutOfDeviceMemoryError,
    SelfCheckWarning,
    ShaderError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from . import functional, integrations, nn, reference
    from .compute import Compute, Tensor, asarray, devices, empty, use
    from .compute.benchmark import benchmark_flash_attention
    from .compute.config import FlashConfig, FlashResult
    from .compute.graph import Graph
    from .compute.random import manual_seed

__version__ = "0.1.0"

_LAZY = {
    "Compute": "compute",
    "Tensor": "compute",
    "use": "compute",
    "asarray": "compute",
    "empty": "compute",
    "devices": "compute",
    "manual_seed": "compute.random",
    "FlashConfig": "compute.config",
    "FlashResult": "compute.config",
    "Graph": "compute.graph",
    "benchmark_flash_attention": "compute.benchmark",
    "functional": None,
    "nn": None,
    "reference": None,
    "integrations": None,
}

__all__ = [
    "CaptureError",
    "ClosedError",
    "Compute",
    "DeviceLostError",
    "FlashConfig",
    "FlashResult",
    "Graph",
    "GrillyError",
    "NoDeviceError",
    "OutOfDeviceMemoryError",
    "SelfCheckWarning",
    "ShaderError",
    "Tensor",
    "UnsupportedError",
    "__version__",
    "asarray",
    "benchmark_flash_attention",
    "devices",
    "empty",
    "functional",
    "integrations",
    "manual_seed",
    "nn",
    "reference",
    "use",
]


def _load(name: str) -> Any:
    """The name's value, imported at its first use (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module 'grilly' has no attribute {name!r}")
    home = _LAZY[name]
    value = importlib.import_module(f".{name if home is None else home}", __name__)
    if home is not None:
        value = getattr(value, name)
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # to which every name would seem to exist
    __getattr__ = _load


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
