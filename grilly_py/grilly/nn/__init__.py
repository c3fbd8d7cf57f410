"""Layers built of grilly's operations: modules with parameters and state dicts, in PyTorch's terms."""

from .activations import (
    CELU,
    ELU,
    GELU,
    GLU,
    SELU,
    Hardshrink,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    Mish,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softplus,
    Softshrink,
    Softsign,
    Tanh,
    Tanhshrink,
)
from .containers import Identity, ModuleList, Sequential
from .convolution import Conv1d, Conv2d
from .dropout import Dropout
from .embedding import Embedding
from .flash import FlashAttention2, FlashAttention3
from .flash_attention import FlashAttention
from .kvcache import KVCache
from .linear import Linear
from .losses import CrossEntropyLoss
from .module import Module
from .multihead import MultiheadAttention
from .norms import GroupNorm, LayerNorm, RMSNorm
from .parameter import Parameter
from .rope import RoPE
from .softmax import LogSoftmax, Softmax
from .states import LoadResult
from .transformer import TransformerDecoderLayer, TransformerEncoderLayer

__all__ = [
    "CELU",
    "Conv1d",
    "Conv2d",
    "CrossEntropyLoss",
    "Dropout",
    "ELU",
    "Embedding",
    "FlashAttention",
    "FlashAttention2",
    "FlashAttention3",
    "GELU",
    "GLU",
    "GroupNorm",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "Identity",
    "KVCache",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LoadResult",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "Module",
    "ModuleList",
    "MultiheadAttention",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "ReLU6",
    "RoPE",
    "SELU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "TransformerDecoderLayer",
    "TransformerEncoderLayer",
]
