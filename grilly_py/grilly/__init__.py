"""grilly: exact, memory-efficient attention for NumPy programs on any Vulkan device.

Importing this package opens no device and loads no Vulkan; the first operation, or ``grilly.Compute()``, does.
"""

from __future__ import annotations

import builtins
import importlib
from typing import TYPE_CHECKING, Any

from .errors import (
    CaptureError,
    ClosedError,
    DeviceLostError,
    ExpressionError,
    GradientError,
    GrillyError,
    ModelError,
    NoDeviceError,
    OutOfDeviceMemoryError,
    SelfCheckWarning,
    ShaderError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from . import data, functional, integrations, linalg, models, nn, optim, pinned, quantization, random, reference
    from .array_api import *  # noqa: F403
    from .array_api.elementwise import *  # noqa: F403
    from .compute import Compute, Tensor, devices, use
    from .compute.arrays.functions import elementwise, reduction
    from .compute.attention.block_masks import block_mask
    from .compute.attention.functions import BlockMask
    from .compute.autocast import autocast
    from .compute.benchmark import benchmark_flash_attention
    from .compute.config import FlashConfig, FlashResult
    from .compute.expressions.scalars import Scalar
    from .compute.graph import Graph
    from .compute.random import manual_seed
    from .models.lora import lora
    from .quantization import QuantizedTensor, quantize
    from .transforms import checkpoint, grad, stop_gradient, value_and_grad, vjp

    bfloat16: Any

__version__ = "0.1.0"

#: Modules, and the homes of what is imported from one.
_MODULES = (
    "data", "functional", "integrations", "linalg", "models", "nn", "optim", "pinned", "quantization", "random",
    "reference",
)  # fmt: skip
_LAZY = {
    "Compute": "compute",
    "Tensor": "compute",
    "use": "compute",
    "devices": "compute",
    "autocast": "compute.autocast",
    "manual_seed": "compute.random",
    "BlockMask": "compute.attention.functions",
    "block_mask": "compute.attention.block_masks",
    "elementwise": "compute.arrays.functions",
    "reduction": "compute.arrays.functions",
    "Scalar": "compute.expressions.scalars",
    "FlashConfig": "compute.config",
    "FlashResult": "compute.config",
    "Graph": "compute.graph",
    "benchmark_flash_attention": "compute.benchmark",
    "QuantizedTensor": "quantization",
    "quantize": "quantization",
    "checkpoint": "transforms",
    "lora": "models.lora",
    "grad": "transforms",
    "stop_gradient": "transforms",
    "value_and_grad": "transforms",
    "vjp": "transforms",
    "__array_api_version__": "array_api",
    "__array_namespace_info__": "array_api",
}
_LAZY["bfloat16"] = "array_api.data_types"  # of an optional package, so not in ``from grilly import *``

#: What there is beside the functions of array_api, whose names are known when that is imported.
__all__ = [
    "BlockMask",
    "CaptureError",
    "ClosedError",
    "Compute",
    "DeviceLostError",
    "ExpressionError",
    "FlashConfig",
    "FlashResult",
    "GradientError",
    "Graph",
    "GrillyError",
    "ModelError",
    "NoDeviceError",
    "OutOfDeviceMemoryError",
    "QuantizedTensor",
    "Scalar",
    "SelfCheckWarning",
    "ShaderError",
    "Tensor",
    "UnsupportedError",
    "__version__",
    "autocast",
    "benchmark_flash_attention",
    "block_mask",
    "checkpoint",
    "data",
    "devices",
    "elementwise",
    "functional",
    "grad",
    "integrations",
    "linalg",
    "lora",
    "manual_seed",
    "models",
    "nn",
    "optim",
    "pinned",
    "quantization",
    "quantize",
    "random",
    "reduction",
    "reference",
    "stop_gradient",
    "use",
    "value_and_grad",
    "vjp",
]


_OWN = tuple(__all__)


def _load(name: str) -> Any:
    """The name's value, imported at its first use (PEP 562)."""
    value: Any
    if name in _MODULES:
        value = importlib.import_module(f".{name}", __name__)
    elif name in _LAZY:
        value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    elif name == "__all__":
        # What has a name of Python's own stays out of ``from grilly import *``.
        value = [*(each for each in _of_arrays() if not hasattr(builtins, each)), *_OWN]
    elif not name.startswith("_") and name in _of_arrays():
        value = getattr(importlib.import_module(".array_api", __name__), name)
    else:
        raise AttributeError(f"module 'grilly' has no attribute {name!r}")
    globals()[name] = value
    return value


def _of_arrays() -> list[str]:
    """What array_api has."""
    found: list[str] = importlib.import_module(".array_api", __name__).__all__
    return found


if not TYPE_CHECKING:  # to which every name would seem to exist
    __getattr__ = _load
    del __all__


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_of_arrays(), *_OWN})
