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
    GrillyError,
    ModelError,
    NoDeviceError,
    OutOfDeviceMemoryError,
    SelfCheckWarning,
    ShaderError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from . import functional, integrations, linalg, models, nn, pinned, random, reference
    from .array_api import *  # noqa: F403
    from .compute import Compute, Tensor, devices, use
    from .compute.benchmark import benchmark_flash_attention
    from .compute.config import FlashConfig, FlashResult
    from .compute.graph import Graph
    from .compute.random import manual_seed

    bfloat16: Any

__version__ = "0.1.0"

#: Modules, and the homes of what is imported from one.
_MODULES = ("functional", "integrations", "linalg", "models", "nn", "pinned", "random", "reference")
_LAZY = {
    "Compute": "compute",
    "Tensor": "compute",
    "use": "compute",
    "devices": "compute",
    "manual_seed": "compute.random",
    "FlashConfig": "compute.config",
    "FlashResult": "compute.config",
    "Graph": "compute.graph",
    "benchmark_flash_attention": "compute.benchmark",
}

#: What array_api.py has, whose import is not needed to list it.
_ARRAY_API = (
    "__array_api_version__", "__array_namespace_info__", "abs", "acos", "acosh", "add", "all", "any", "arange",
    "argmax", "argmin", "argsort", "asarray", "asin", "asinh", "astype", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "bool",
    "broadcast_arrays", "broadcast_to", "can_cast", "ceil", "clip", "concat", "conj", "copysign", "cos", "cosh",
    "count_nonzero", "cumulative_prod", "cumulative_sum", "diff", "divide", "e", "empty", "empty_like", "equal", "erf",
    "exp", "expand_dims", "expm1", "eye", "finfo", "flip", "float16", "float32", "floor", "floor_divide", "from_dlpack",
    "full", "full_like", "greater", "greater_equal", "hypot", "iinfo", "inf", "int16", "int32", "int64", "int8",
    "isdtype", "isfinite", "isin", "isinf", "isnan", "less", "less_equal", "linspace", "log", "log10", "log1p", "log2",
    "logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor", "matmul", "matrix_transpose", "max",
    "maximum", "mean", "meshgrid", "min", "minimum", "moveaxis", "multiply", "nan", "negative", "newaxis", "nextafter",
    "nonzero", "not_equal", "ones", "ones_like", "permute_dims", "pi", "positive", "pow", "prod", "real", "reciprocal",
    "remainder", "repeat", "reshape", "result_type", "roll", "round", "searchsorted", "sign", "signbit", "sin", "sinh",
    "sort", "split", "sqrt", "square", "squeeze", "stack", "std", "subtract", "sum", "take", "take_along_axis", "tan",
    "tanh", "tensordot", "tile", "topk", "tril", "triu", "trunc", "uint16", "uint32", "uint8", "unique_all",
    "unique_counts", "unique_inverse", "unique_values", "unstack", "var", "vecdot", "where", "zeros", "zeros_like",
)  # fmt: skip
_LAZY.update(dict.fromkeys(_ARRAY_API, "array_api"))
_LAZY["bfloat16"] = "array_api.data_types"  # of an optional package, so not in ``from grilly import *``

# What has a name of Python's own stays out of ``from grilly import *``.
__all__ = [
    *(name for name in _ARRAY_API if not hasattr(builtins, name)),
    "CaptureError",
    "ClosedError",
    "Compute",
    "DeviceLostError",
    "FlashConfig",
    "FlashResult",
    "Graph",
    "GrillyError",
    "ModelError",
    "NoDeviceError",
    "OutOfDeviceMemoryError",
    "SelfCheckWarning",
    "ShaderError",
    "Tensor",
    "UnsupportedError",
    "__version__",
    "benchmark_flash_attention",
    "devices",
    "functional",
    "integrations",
    "linalg",
    "manual_seed",
    "models",
    "nn",
    "pinned",
    "random",
    "reference",
    "use",
]


def _load(name: str) -> Any:
    """The name's value, imported at its first use (PEP 562)."""
    value: Any
    if name in _MODULES:
        value = importlib.import_module(f".{name}", __name__)
    elif name in _LAZY:
        value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    else:
        raise AttributeError(f"module 'grilly' has no attribute {name!r}")
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # to which every name would seem to exist
    __getattr__ = _load


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
