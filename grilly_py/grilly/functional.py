"""Attention and its companions as functions of NumPy arrays or grilly.Tensors.

``import grilly.functional as F``. Tensors in give a Tensor out, without transfer or waiting; NumPy arrays in give a NumPy
array out. The work runs on the tensors' backend, or on the default one (see ``grilly.use``).
"""

from __future__ import annotations

from .compute.attention import Attention
from .compute.launch import backend_of


def flash_attention2(q, k, v, *, mask=None, causal=False, scale=None, return_lse=False, kernel=None):
    return backend_of("flash_attention2", q, k, v, mask).attention.flash_attention2(
        q, k, v, mask=mask, causal=causal, scale=scale, return_lse=return_lse, kernel=kernel
    )


def flash_attention3(
    q, k, v, *, num_heads=None, head_dim=None, num_kv_heads=None, mask=None, causal=False, scale=None, return_lse=False,
    kernel=None,
):  # fmt: skip
    return backend_of("flash_attention3", q, k, v, mask).attention.flash_attention3(
        q, k, v, num_heads=num_heads, head_dim=head_dim, num_kv_heads=num_kv_heads,
        mask=mask, causal=causal, scale=scale, return_lse=return_lse, kernel=kernel,
    )  # fmt: skip


flash_attention2.__doc__ = Attention.flash_attention2.__doc__
flash_attention3.__doc__ = Attention.flash_attention3.__doc__

__all__ = ["flash_attention2", "flash_attention3"]
