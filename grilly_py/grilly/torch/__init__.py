"""Attention on PyTorch's tensors: registered operators with gradients, in grilly's and in PyTorch's words.

Needs the extra ``grilly-vulkan[torch]``; nothing else in grilly imports PyTorch.
"""

from __future__ import annotations

try:
    import torch as _torch
except ModuleNotFoundError as error:
    raise ImportError("grilly.torch needs PyTorch; run: pip install 'grilly-vulkan[torch]'", name=error.name) from error

from . import functional
from .arrays import from_torch, to_torch
from .attention import attention
from .cuda import cuda_device, empty
from .flex import flex_attention
from .lift import lift
from .patched import Patched, patched
from .sdpa import scaled_dot_product_attention

del _torch

__all__ = [
    "Patched", "attention", "cuda_device", "empty", "flex_attention", "from_torch", "functional", "lift", "patched",
    "scaled_dot_product_attention", "to_torch",
]  # fmt: skip
