"""Attention and its companions as functions of NumPy arrays or grilly.Tensors.

``import grilly.functional as F``. Tensors in give a Tensor out, without transfer or waiting; NumPy arrays in give a
NumPy array out. The work runs on the tensors' backend, or on the default one (see ``grilly.use``).
"""

from __future__ import annotations

from .compute import config as _config
from .compute import rope as _rope
from .compute.attention import kvcache as _kvcache
from .compute.attention import sdpa as _sdpa
from .compute.attention import varlen as _varlen
from .compute.attention.options import arrays_of, without_self
from .compute.backend import backend_of, device_of
from .compute.methods import Attention
from .compute.products import linear as _linear
from .compute.unfused import dropout as _dropout


def flash_attention2(q, k, v, **options):
    backend = backend_of("flash_attention2", q, k, v, *arrays_of(options))
    return backend.attention.flash_attention2(q, k, v, **options)


def flash_attention2_backward(grad_out, q, k, v, out, lse, **options):
    arrays = (grad_out, q, k, v, out, lse)
    backend = backend_of("flash_attention2_backward", *arrays, *arrays_of(options))
    return backend.attention.flash_attention2_backward(*arrays, **options)


def flash_attention3(q, k, v, **options):
    backend = backend_of("flash_attention3", q, k, v, *arrays_of(options))
    return backend.attention.flash_attention3(q, k, v, **options)


def flash_attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, **options):
    arrays = (q, k, v, cu_seqlens_q, cu_seqlens_k)
    device = device_of("flash_attention_varlen", *arrays, *arrays_of(options))
    return _varlen.flash_attention_varlen(device, *arrays, max_seqlen_q, max_seqlen_k, **options)


def flash_attention_varlen_backward(
    grad_out, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, **options
):
    arrays = (grad_out, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k)
    device = device_of("flash_attention_varlen_backward", *arrays, *arrays_of(options))
    return _varlen.flash_attention_varlen_backward(device, *arrays, max_seqlen_q, max_seqlen_k, **options)


def flash_attention_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, cache_seqlens=None, page_table=None, *, rotary=None, **options
):
    arrays = (q, k_cache, v_cache, k, v, cache_seqlens, page_table)
    tables = rotary if isinstance(rotary, (tuple, list)) else ()
    device = device_of("flash_attention_with_kvcache", *arrays, *tables, *arrays_of(options))
    return _kvcache.flash_attention_with_kvcache(device, *arrays, rotary=rotary, **options)


def flash_attention(q, k, v, config=None):
    return _config.flash_attention(device_of("flash_attention", q, k, v), q, k, v, config)


def naive_attention(q, k, v, scale=None):
    return _config.naive_attention(device_of("naive_attention", q, k, v), q, k, v, scale)


def attention_scores(q, k, *, scale=None):
    return backend_of("attention_scores", q, k).attention.attention_scores(q, k, scale=scale)


def attention_mask(scores, *, mask=None, causal=False):
    return backend_of("attention_mask", scores, mask).attention.attention_mask(scores, mask=mask, causal=causal)


def t5_bias(scores, table, *, bidirectional=True, max_distance=128, offset=0):
    return backend_of("t5_bias", scores, table).attention.t5_bias(
        scores, table, bidirectional=bidirectional, max_distance=max_distance, offset=offset
    )


def softmax(x):
    return backend_of("softmax", x).attention.softmax(x)


def attention_output(weights, v, *, architecture="generic"):
    return backend_of("attention_output", weights, v).attention.attention_output(
        weights, v, architecture=architecture
    )


def attention_dropout(weights, *, dropout_p, dropout_seed, dropout_offset=0):
    return _dropout.attention_dropout(
        device_of("attention_dropout", weights), weights,
        dropout_p=dropout_p, dropout_seed=dropout_seed, dropout_offset=dropout_offset,
    )  # fmt: skip


def dropout_mask(shape, dropout_p, seed, offset=0):
    return _dropout.dropout_mask(device_of("dropout_mask"), shape, dropout_p, seed, offset)


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    return _sdpa.scaled_dot_product_attention(
        device_of("scaled_dot_product_attention", query, key, value, attn_mask), query, key, value,
        attn_mask, dropout_p, is_causal, scale, enable_gqa,
    )  # fmt: skip


def linear(x, weight, bias=None, *, precision="highest"):
    return _linear.linear(device_of("linear", x, weight, bias), x, weight, bias, precision=precision)


def linear_backward(grad_output, x, weight, *, precision="highest"):
    device = device_of("linear_backward", grad_output, x, weight)
    return _linear.linear_backward(device, grad_output, x, weight, precision=precision)


def rope(x, *, frequencies=None, base=10000.0, offset=0, positions=None, interleaved=False, reverse=False):
    return _rope.rope(
        device_of("rope", x, positions), x,
        frequencies=frequencies, base=base, offset=offset, positions=positions, interleaved=interleaved,
        reverse=reverse,
    )  # fmt: skip


for _function in (attention_scores, attention_mask, t5_bias, softmax, attention_output):
    _function.__doc__ = getattr(Attention, _function.__name__).__doc__
attention_dropout.__doc__ = _dropout.attention_dropout.__doc__
scaled_dot_product_attention.__doc__ = _sdpa.scaled_dot_product_attention.__doc__
flash_attention.__doc__ = _config.flash_attention.__doc__
naive_attention.__doc__ = _config.naive_attention.__doc__
linear.__doc__ = _linear.linear.__doc__
linear_backward.__doc__ = _linear.linear_backward.__doc__
rope.__doc__ = _rope.rope.__doc__
flash_attention_with_kvcache.__doc__ = _kvcache.flash_attention_with_kvcache.__doc__
flash_attention_varlen.__doc__ = _varlen.flash_attention_varlen.__doc__
flash_attention_varlen.__signature__ = without_self(_varlen.flash_attention_varlen)
flash_attention_varlen_backward.__doc__ = _varlen.flash_attention_varlen_backward.__doc__
flash_attention_varlen_backward.__signature__ = without_self(_varlen.flash_attention_varlen_backward)
dropout_mask.__doc__ = _dropout.dropout_mask.__doc__
flash_attention_with_kvcache.__signature__ = without_self(_kvcache.flash_attention_with_kvcache)
for _function in (flash_attention2, flash_attention2_backward, flash_attention3):
    _method = getattr(Attention, _function.__name__)
    _function.__doc__ = _method.__doc__
    _function.__signature__ = without_self(_method)

__all__ = [
    "attention_dropout", "attention_mask", "attention_output", "attention_scores", "dropout_mask", "flash_attention",
    "flash_attention2", "flash_attention2_backward", "flash_attention3", "flash_attention_varlen",
    "flash_attention_varlen_backward", "flash_attention_with_kvcache", "linear", "linear_backward",
    "naive_attention", "rope", "scaled_dot_product_attention", "softmax", "t5_bias",
]  # fmt: skip
