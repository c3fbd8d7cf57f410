"""Layers built of grilly's operations: modules with parameters and state dicts, in PyTorch's terms."""

from .flash import FlashAttention2, FlashAttention3
from .flash_attention import FlashAttention
from .kvcache import KVCache
from .linear import Linear
from .module import LoadResult, Module, ModuleList, Parameter
from .multihead import MultiheadAttention
from .norms import GroupNorm, LayerNorm, RMSNorm
from .rope import RoPE
from .softmax import LogSoftmax, Softmax

__all__ = [
    "FlashAttention",
    "FlashAttention2",
    "FlashAttention3",
    "GroupNorm",
    "KVCache",
    "LayerNorm",
    "Linear",
    "LoadResult",
    "LogSoftmax",
    "Module",
    "ModuleList",
    "MultiheadAttention",
    "Parameter",
    "RMSNorm",
    "RoPE",
    "Softmax",
]
