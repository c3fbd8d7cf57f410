"""Attention and its companions as functions of NumPy arrays or grilly.Tensors.

``import grilly.functional as F``. Where one of the arrays is a Tensor results are Tensors, without transfer or waiting;
NumPy arrays alone give NumPy arrays. The work runs on the tensors' backend, or on the default one (see ``grilly.use``).
"""

from . import activations as _activations
from .activations import *  # noqa: F403  whatever has a record
from .attention import flash_attention2, flash_attention2_backward, flash_attention3
from .cascade import cascade_attention, merge_attention
from .convolution import conv1d, conv1d_backward, conv2d, conv2d_backward
from .dropout import dropout
from .embedding import embedding, embedding_backward
from .gated import geglu, geglu_backward, glu, glu_backward, swiglu, swiglu_backward
from .gelu_activation import gelu, gelu_backward
from .interfaces import flash_attention, naive_attention, scaled_dot_product_attention
from .losses import cross_entropy, cross_entropy_backward
from .matmul import linear, linear_backward
from .norms import (
    add_layer_norm,
    add_rms_norm,
    group_norm,
    group_norm_backward,
    layer_norm,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
)
from .rotary import rope
from .sequences import flash_attention_varlen, flash_attention_varlen_backward, flash_attention_with_kvcache
from .softmaxes import log_softmax, log_softmax_backward, softmax, softmax_backward
from .steps import attention_dropout, attention_mask, attention_output, attention_scores, dropout_mask, t5_bias

__all__ = [
    *(name for name in vars(_activations) if not name.startswith("_")),
    "add_layer_norm", "add_rms_norm", "attention_dropout", "attention_mask", "attention_output", "attention_scores",
    "cascade_attention", "conv1d", "conv1d_backward", "conv2d", "conv2d_backward", "cross_entropy",
    "cross_entropy_backward", "dropout", "dropout_mask", "embedding", "embedding_backward", "flash_attention",
    "flash_attention2", "flash_attention2_backward", "flash_attention3", "flash_attention_varlen",
    "flash_attention_varlen_backward", "flash_attention_with_kvcache", "geglu", "geglu_backward", "gelu",
    "gelu_backward", "glu", "glu_backward", "group_norm", "group_norm_backward", "layer_norm",
    "layer_norm_backward", "linear", "linear_backward", "log_softmax", "log_softmax_backward", "merge_attention",
    "naive_attention", "rms_norm", "rms_norm_backward", "rope", "scaled_dot_product_attention", "softmax",
    "softmax_backward", "swiglu", "swiglu_backward", "t5_bias",
]  # fmt: skip
