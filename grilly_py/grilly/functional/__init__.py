"""Attention and its companions as functions of NumPy arrays or grilly.Tensors.

``import grilly.functional as F``. Tensors in give a Tensor out, without transfer or waiting; NumPy arrays in give a
NumPy array out. The work runs on the tensors' backend, or on the default one (see ``grilly.use``).
"""

from .attention import flash_attention2, flash_attention2_backward, flash_attention3
from .interfaces import flash_attention, naive_attention, scaled_dot_product_attention
from .layers import linear, linear_backward, rope
from .norms import (
    add_layer_norm,
    add_rms_norm,
    group_norm,
    group_norm_backward,
    layer_norm,
    layer_norm_backward,
    log_softmax,
    log_softmax_backward,
    rms_norm,
    rms_norm_backward,
    softmax,
    softmax_backward,
)
from .sequences import flash_attention_varlen, flash_attention_varlen_backward, flash_attention_with_kvcache
from .steps import attention_dropout, attention_mask, attention_output, attention_scores, dropout_mask, t5_bias

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "attention_dropout",
    "attention_mask",
    "attention_output",
    "attention_scores",
    "dropout_mask",
    "flash_attention",
    "flash_attention2",
    "flash_attention2_backward",
    "flash_attention3",
    "flash_attention_varlen",
    "flash_attention_varlen_backward",
    "flash_attention_with_kvcache",
    "group_norm",
    "group_norm_backward",
    "layer_norm",
    "layer_norm_backward",
    "linear",
    "linear_backward",
    "log_softmax",
    "log_softmax_backward",
    "naive_attention",
    "rms_norm",
    "rms_norm_backward",
    "rope",
    "scaled_dot_product_attention",
    "softmax",
    "softmax_backward",
    "t5_bias",
]
