"""Layers built of grilly's operations: modules with parameters and state dicts, in PyTorch's terms."""

from .activations import GELU, GLU, ReLU, Sigmoid, SiLU, Tanh
from .flash import FlashAttention2, FlashAttention3
from .flash_attention import FlashAttention
from .kvcache import KVCache
from .linear import Linear
from .module import LoadResult, Module, ModuleList, Parameter
from .multihead import MultiheadAttention
from .rope import RoPE

__all__ = [
    "FlashAttention",
    "FlashAttention2",
    "FlashAttention3",
    "GELU",
    "GLU",
    "KVCache",
    "Linear",
    "LoadResult",
    "Module",
    "ModuleList",
    "MultiheadAttention",
    "Parameter",
    "ReLU",
    "RoPE",
    "SiLU",
    "Sigmoid",
    "Tanh",
]
