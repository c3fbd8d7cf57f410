"""The names of grilly.functional, as public_api.py has those of grilly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import grilly
import grilly.functional as F
from grilly import nn

Floats = NDArray[np.float32]
Halves = NDArray[np.float16]
Mixed = NDArray[Any] | grilly.Tensor


def configured(array: Floats, tensor: grilly.Tensor) -> None:
    config = grilly.FlashConfig(block_q=64, block_kv=64, scale=0.5, causal=True)
    config = grilly.FlashConfig.for_head_dim(64, dtype=np.float16, causal=True)
    result = F.flash_attention(array, array, array, config)
    assert_type(result, grilly.FlashResult)
    assert_type(result.blocks, tuple[int, int] | None)
    assert_type(result.memory_bytes, int)
    assert_type(F.naive_attention(array, array, array, scale=0.5), tuple[Floats, int])
    assert_type(F.naive_attention(tensor, tensor, tensor), tuple[grilly.Tensor, int])
    (row,) = grilly.benchmark_flash_attention([128], heads=2, show=False, config=config)
    assert_type(row.flash_seconds, float)

    grilly.FlashConfig(block=64)  # type: ignore[call-arg]
    F.flash_attention(array, array, array, causal=True)  # type: ignore[call-arg]
    F.naive_attention(array, array, array, causal=True)  # type: ignore[call-overload]
    grilly.benchmark_flash_attention([128], head=2)  # type: ignore[call-arg]


def attention(q: Floats, half: Halves, double: NDArray[np.float64], tensor: grilly.Tensor, mask: NDArray[np.bool_],
              some: Mixed, whole: NDArray[np.int64], lse: bool) -> None:  # fmt: skip
    assert_type(F.flash_attention2(q, q, q), Floats)
    assert_type(F.flash_attention2(half, half, half, causal=True), Halves)
    assert_type(F.flash_attention2(tensor, tensor, tensor, mask=mask), grilly.Tensor)
    assert_type(F.flash_attention2(tensor, q, q), grilly.Tensor)
    assert_type(F.flash_attention2(q, tensor, q), Mixed | tuple[Mixed, Mixed])
    assert_type(F.flash_attention2(half, half, half, return_lse=True), tuple[Halves, Floats])
    assert_type(F.flash_attention2(tensor, tensor, tensor, return_lse=True), tuple[grilly.Tensor, grilly.Tensor])
    assert_type(F.flash_attention2(q, q, q, return_lse=lse), Mixed | tuple[Mixed, Mixed])
    F.flash_attention2(some, some, some)
    F.flash_attention2(
        q, q, q, mask=mask, attn_bias=double, causal=True, scale=0.5, kernel="flash-attention2", precision="high",
        alibi_slopes=[0.5, 0.25], t5_table=tensor, t5_bidirectional=False, t5_max_distance=64, softcap=30.0,
        sinks=double, window_size=(64, None), prefix_len=[1], segment_ids=(whole, whole), seqlens_q=whole,
        seqlens_k=tensor, block_map=mask, block_size=(64, 64), dropout_p=0.1, dropout_seed=whole[0], dropout_offset=1,
        score_mod=lambda score, batch, head, query, key: score - key, mask_mod=lambda b, h, query, key: query >= key,
    )  # fmt: skip
    assert_type(F.flash_attention3(q, q, q, num_heads=4, head_dim=16, num_kv_heads=2, softcap=1.0), Floats)
    assert_type(F.flash_attention3(tensor, tensor, tensor, return_lse=True), tuple[grilly.Tensor, grilly.Tensor])
    assert_type(F.flash_attention2_backward(q, q, q, q, q, q, sinks=q, return_dsinks=True), tuple[NDArray[Any], ...])
    dq, dk, dv = F.flash_attention2_backward(tensor, tensor, tensor, tensor, tensor, tensor, causal=True)
    assert_type(dq, grilly.Tensor)

    F.flash_attention2(q, q, q, casual=True)  # type: ignore[call-overload]
    F.flash_attention2(q, q, q, causal="yes")  # type: ignore[call-overload]
    F.flash_attention2(q, q, q, precision="higher")  # type: ignore[call-overload]
    F.flash_attention2(q, q, q, num_heads=4)  # type: ignore[call-overload]
    F.flash_attention2(q, q, q, score_mod=1)  # type: ignore[call-overload]
    blocks = grilly.block_mask(lambda b, h, query, key: query >= key, None, 2, 64, 64, block_size=(32, 32))
    assert_type(blocks, grilly.BlockMask)
    F.flash_attention2(q, q, q, mask_mod=blocks)
    grilly.block_mask(3, None, None, 64, 64)  # type: ignore[arg-type]
    F.flash_attention2(double, double, double)  # type: ignore[type-var]
    F.flash_attention2(q, q, double)  # type: ignore[type-var]
    F.flash_attention2(q, q, q, mask=whole)  # type: ignore[arg-type]
    F.flash_attention2(q, q, q, seqlens_k=double)  # type: ignore[arg-type]
    F.flash_attention2(q, q, q).numpy()  # type: ignore[attr-defined]
    F.flash_attention2(tensor, tensor, tensor).sum()  # type: ignore[attr-defined]
    print(F.flash_attention2(q, q, q, return_lse=True).shape)  # type: ignore[attr-defined]
    F.flash_attention3(q, q, q, heads=4)  # type: ignore[call-overload]
    F.flash_attention2_backward(q, q, q, q, q, q, return_dmask=True)  # type: ignore[call-overload]
    F.flash_attention2_backward(q, q, q, q, q)  # type: ignore[call-overload]


def interfaces(q: Floats, tensor: grilly.Tensor, mask: NDArray[np.bool_], starts: NDArray[np.int32]) -> None:
    assert_type(F.scaled_dot_product_attention(q, q, q, mask, 0.1, False, scale=0.5, enable_gqa=True), Floats)
    assert_type(F.scaled_dot_product_attention(tensor, tensor, tensor, is_causal=True), grilly.Tensor)
    assert_type(F.flash_attention_varlen(q, q, q, starts, starts, 7, starts.max(), window_size=(3, 0)), Floats)
    assert_type(
        F.flash_attention_varlen(tensor, tensor, tensor, [0, 3], [0, 3], 3, 3, return_lse=True, dropout_p=0.5),
        tuple[grilly.Tensor, grilly.Tensor],
    )
    assert_type(
        F.flash_attention_varlen_backward(
            q, q, q, q, q, q, starts, starts, 7, 7, sinks=q, return_dsinks=True,
            score_mod=lambda s, b, h, query, key: s - query + key,
        ),
        tuple[NDArray[Any], ...],
    )
    assert_type(F.flash_attention_with_kvcache(q, q, q, q, q, cache_seqlens=3, causal=True, rotary=(q, q)), Floats)
    assert_type(F.flash_attention_with_kvcache(q, tensor, tensor, q, q, starts), grilly.Tensor)
    assert_type(
        F.flash_attention_with_kvcache(tensor, tensor, tensor, page_table=starts, return_lse=True),
        tuple[grilly.Tensor, grilly.Tensor],
    )

    assert_type(F.cascade_attention(q, q, q, q, q, causal=True, seqlens_k=starts), Floats)
    assert_type(F.cascade_attention(tensor, q, q, q, q, return_lse=True), tuple[grilly.Tensor, grilly.Tensor])
    assert_type(F.merge_attention(tensor, tensor, tensor, tensor), tuple[grilly.Tensor, grilly.Tensor])
    assert_type(F.merge_attention(q, q, q, q), tuple[Floats, Floats])
    F.flash_attention_varlen(q, q, q, starts, starts, 7, 7, mask_mod=lambda b, h, query, key: query >= key)
    F.flash_attention_with_kvcache(q, tensor, tensor, score_mod=lambda s, b, h, query, key: s + key)

    F.cascade_attention(q, q, q, q, q, mask=mask)  # type: ignore[call-overload]
    F.merge_attention(q, q, q)  # type: ignore[call-overload]
    F.scaled_dot_product_attention(q, q, q, causal=True)  # type: ignore[call-overload]
    F.flash_attention_varlen(q, q, q, starts, starts, 7, 7, mask=mask)  # type: ignore[call-overload]
    F.flash_attention_varlen(q, q, q, q, starts, 7, 7)  # type: ignore[arg-type]
    F.flash_attention_varlen_backward(q, q, q, q, q, q, starts, starts, 7, 7, kernel="")  # type: ignore[call-overload]
    F.flash_attention_with_kvcache(q, q, q, dropout_p=0.5)  # type: ignore[call-overload]
    F.relu(q, inplace=True)  # type: ignore[call-arg]
    F.softmax(q, axis=1)  # type: ignore[arg-type]


def steps(q: Floats, half: Halves, tensor: grilly.Tensor, mask: NDArray[np.bool_]) -> None:
    assert_type(F.attention_scores(half, half, scale=1.0), Floats)
    assert_type(F.attention_scores(tensor, tensor), grilly.Tensor)
    assert_type(F.attention_mask(q, mask=mask, causal=True), Floats)
    assert_type(F.attention_mask(q, mask=tensor), Floats | grilly.Tensor)
    assert_type(F.t5_bias(q, q, bidirectional=False, max_distance=64, offset=3), Floats)
    assert_type(F.softmax(half), Halves)
    assert_type(F.softmax(tensor), grilly.Tensor)
    assert_type(F.softmax(q, 1), Floats)
    assert_type(F.log_softmax(half, dim=0), Halves)
    assert_type(F.softmax_backward(half, half, dim=0), Halves)
    assert_type(F.log_softmax_backward(tensor, tensor), grilly.Tensor)
    assert_type(F.attention_output(q, half, architecture="gpt"), Halves)
    assert_type(F.attention_dropout(q, dropout_p=0.5, dropout_seed=1), Floats)
    assert_type(F.dropout_mask((1, 2, 3, 4), 0.5, 1), NDArray[np.bool_])
    assert_type(F.linear(half, half, half, precision="high"), Halves)
    assert_type(F.linear(input=q, weight=tensor), grilly.Tensor)
    assert_type(F.linear(half, half, activation="silu", gated=True, residual=half), Halves)
    assert_type(F.linear(tensor, q, residual=q, activation="gelu_tanh"), grilly.Tensor)
    assert_type(F.linear_backward(grad_output=q, input=q, weight=q), tuple[Floats, Floats, Floats])
    assert_type(F.gelu(half, approximate="tanh"), Halves)
    assert_type(F.silu(F.relu(F.sigmoid(F.tanh(F.quick_gelu(q))))), Floats)
    for backward in (F.relu_backward, F.sigmoid_backward, F.tanh_backward, F.silu_backward, F.quick_gelu_backward):
        assert_type(backward(tensor, tensor), grilly.Tensor)
    assert_type(F.gelu_backward(half, half, approximate="tanh"), Halves)
    for plain in (
        F.hardsigmoid, F.hardswish, F.logsigmoid, F.mish, F.relu6, F.selu, F.softsign, F.tanhshrink, F.quick_gelu,
    ):  # fmt: skip
        assert_type(plain(input=half), Halves)
    for backward in (
        F.hardsigmoid_backward, F.hardswish_backward, F.logsigmoid_backward, F.mish_backward, F.relu6_backward,
        F.selu_backward, F.softsign_backward, F.tanhshrink_backward,
    ):  # fmt: skip
        assert_type(backward(grad_output=q, input=q), Floats)
    assert_type(F.elu(F.celu(q, 0.5), alpha=2), Floats)
    assert_type(F.elu_backward(tensor, F.celu_backward(tensor, tensor, 0.5), alpha=2), grilly.Tensor)
    assert_type(F.softplus(half, 2.0, threshold=10), Halves)
    assert_type(F.softplus_backward(half, half, beta=2.0), Halves)
    assert_type(F.leaky_relu(F.leaky_relu_backward(q, q, 0.1), negative_slope=0.2), Floats)
    assert_type(F.hardtanh(F.hardtanh_backward(q, q, min_val=-2), -1.0, 0.5), Floats)
    assert_type(F.softshrink(F.softshrink_backward(q, q, 0.1), lambd=0.2), Floats)
    assert_type(F.hardshrink(F.hardshrink_backward(q, q, 0.1), lambd=0.2), Floats)
    assert_type(F.glu(tensor, dim=0), grilly.Tensor)
    assert_type(F.glu_backward(tensor, tensor, dim=0), grilly.Tensor)
    assert_type(F.swiglu(q, F.geglu(q, q, approximate="tanh")), Floats)
    assert_type(F.swiglu_backward(q, q, q), tuple[Floats, Floats])
    assert_type(F.geglu_backward(tensor, tensor, tensor, approximate="none"), tuple[grilly.Tensor, grilly.Tensor])
    assert_type(F.rope(q, base=1e6, offset=3, interleaved=True, reverse=True, factor=1.2), Floats)
    assert_type(F.dropout(half, 0.1, seed=1, offset=2), Halves)
    assert_type(F.dropout(tensor, 0.1, False, seed=tensor), grilly.Tensor)
    assert_type(F.embedding([1, 2], half, padding_idx=0), Halves)
    assert_type(F.embedding(tensor, half), grilly.Tensor)
    assert_type(F.embedding([1, 2], tensor), grilly.Tensor)
    assert_type(F.embedding_backward(half, [1, 2], 5), Halves)
    assert_type(F.embedding_backward(tensor, tensor, 5, -1), grilly.Tensor)
    assert_type(F.cross_entropy(half, [1, 2], half, reduction="sum", label_smoothing=0.1), Halves)
    assert_type(F.cross_entropy(tensor, tensor, ignore_index=0), grilly.Tensor)
    assert_type(F.cross_entropy_backward(half, half, [1, 2]), Halves)
    assert_type(F.cross_entropy_backward(q, tensor, tensor), grilly.Tensor)
    assert_type(F.conv1d(half, half, half, 2, "same", dilation=1, groups=1, precision="high"), Halves)
    assert_type(F.conv1d(tensor, q), grilly.Tensor)
    assert_type(F.conv1d_backward(half, half, half, 2, 1), tuple[Halves, Halves, Halves])
    assert_type(F.conv2d(half, half, stride=(2, 1), padding=(0, 1)), Halves)
    assert_type(F.conv2d_backward(tensor, q, q), tuple[grilly.Tensor, grilly.Tensor, grilly.Tensor])
    assert_type(F.rope(tensor, frequencies=[1.0, 0.1], positions=np.arange(3)), grilly.Tensor)

    F.attention_scores(q, q, causal=True)  # type: ignore[call-overload]
    F.attention_mask(half)  # type: ignore[arg-type]
    F.t5_bias(q, q, buckets=32)  # type: ignore[call-overload]
    F.softmax(mask)  # type: ignore[type-var]
    F.softmax(q, axis=0)  # type: ignore[arg-type]
    F.log_softmax(q, axis=0)  # type: ignore[arg-type]
    F.softmax_backward(q)  # type: ignore[call-arg]
    F.log_softmax_backward(q)  # type: ignore[call-arg]
    F.attention_output(q, half, architecture="llama")  # type: ignore[call-overload]
    F.attention_dropout(q, p=0.5, dropout_seed=1)  # type: ignore[call-overload]
    F.dropout_mask((1, 2, 3, 4), 0.5)  # type: ignore[call-arg]
    F.linear(q, q, precision="low")  # type: ignore[call-overload]
    F.linear(q, q, activation="swish")  # type: ignore[call-overload]
    F.linear_backward(q, q)  # type: ignore[call-overload]
    F.dropout(q, dropout_p=0.5)  # type: ignore[call-overload]
    F.cross_entropy(q, [1], reduction="max")  # type: ignore[call-overload]
    F.cross_entropy_backward(q, q)  # type: ignore[call-overload]
    F.conv1d(q, q, padding="full")  # type: ignore[call-overload]
    F.conv1d_backward(q, q)  # type: ignore[call-overload]
    F.conv2d(q, q, strides=2)  # type: ignore[call-overload]
    F.conv2d_backward(q, q)  # type: ignore[call-overload]
    F.embedding(q, q)  # type: ignore[arg-type]
    F.embedding_backward(q, [1])  # type: ignore[call-overload]
    F.gelu(q, approximate="erf")  # type: ignore[arg-type]
    F.gelu_backward(q, q, "tanh")  # type: ignore[call-arg]
    F.relu(mask)  # type: ignore[type-var]
    F.relu_backward(mask, mask)  # type: ignore[type-var]
    F.sigmoid(mask)  # type: ignore[type-var]
    F.sigmoid_backward(q)  # type: ignore[call-arg]
    F.tanh(mask)  # type: ignore[type-var]
    F.tanh_backward(q)  # type: ignore[call-arg]
    F.silu(mask)  # type: ignore[type-var]
    F.silu_backward(q)  # type: ignore[call-arg]
    F.quick_gelu(mask)  # type: ignore[type-var]
    F.quick_gelu_backward(q)  # type: ignore[call-arg]
    F.hardsigmoid(mask)  # type: ignore[type-var]
    F.hardsigmoid_backward(q)  # type: ignore[call-arg]
    F.hardswish(mask)  # type: ignore[type-var]
    F.hardswish_backward(q)  # type: ignore[call-arg]
    F.logsigmoid(mask)  # type: ignore[type-var]
    F.logsigmoid_backward(q)  # type: ignore[call-arg]
    F.mish(mask)  # type: ignore[type-var]
    F.mish_backward(q)  # type: ignore[call-arg]
    F.relu6(mask)  # type: ignore[type-var]
    F.relu6_backward(q)  # type: ignore[call-arg]
    F.selu(mask)  # type: ignore[type-var]
    F.selu_backward(q)  # type: ignore[call-arg]
    F.softsign(mask)  # type: ignore[type-var]
    F.softsign_backward(q)  # type: ignore[call-arg]
    F.tanhshrink(mask)  # type: ignore[type-var]
    F.tanhshrink_backward(q)  # type: ignore[call-arg]
    F.elu(q, beta=1.0)  # type: ignore[call-arg]
    F.elu_backward(q, q, "1")  # type: ignore[arg-type]
    F.celu(q, beta=1.0)  # type: ignore[call-arg]
    F.celu_backward(q, q, "1")  # type: ignore[arg-type]
    F.softplus(q, alpha=1.0)  # type: ignore[call-arg]
    F.softplus_backward(q, q, "1")  # type: ignore[arg-type]
    F.leaky_relu(q, slope=1.0)  # type: ignore[call-arg]
    F.leaky_relu_backward(q, q, "1")  # type: ignore[arg-type]
    F.hardtanh(q, low=1.0)  # type: ignore[call-arg]
    F.hardtanh_backward(q, q, "1")  # type: ignore[arg-type]
    F.softshrink(q, bound=1.0)  # type: ignore[call-arg]
    F.softshrink_backward(q, q, "1")  # type: ignore[arg-type]
    F.hardshrink(q, bound=1.0)  # type: ignore[call-arg]
    F.hardshrink_backward(q, q, "1")  # type: ignore[arg-type]
    F.glu(q, dim=0.5)  # type: ignore[arg-type]
    F.glu_backward(q)  # type: ignore[call-arg]
    F.swiglu(q)  # type: ignore[call-arg]
    F.swiglu_backward(q, q)  # type: ignore[call-arg]
    F.geglu(q, q, approximate="erf")  # type: ignore[arg-type]
    F.geglu_backward(q, q)  # type: ignore[call-arg]
    F.rope(q, theta=1e6)  # type: ignore[arg-type]


def norms(q: Floats, half: Halves, tensor: grilly.Tensor) -> None:
    assert_type(F.layer_norm(half, 64, half, half, 1e-6), Halves)
    assert_type(F.layer_norm(tensor, (3, 64), q), grilly.Tensor)
    assert_type(F.rms_norm(q, [64], weight=q, weight_offset=1.0), Floats)
    assert_type(F.group_norm(q, 4, q, q), Floats)
    assert_type(F.add_layer_norm(half, half, 64), tuple[Halves, Halves])
    assert_type(F.add_rms_norm(tensor, tensor, 64, tensor, eps=1e-6), tuple[grilly.Tensor, grilly.Tensor])
    assert_type(F.layer_norm_backward(q, q, 64, q), tuple[Floats, Floats | None, Floats | None])
    assert_type(F.rms_norm_backward(tensor, tensor, 64), tuple[grilly.Tensor, grilly.Tensor | None])
    assert_type(F.group_norm_backward(q, q, 4), tuple[Floats, Floats | None, Floats | None])
    layer = nn.LayerNorm((3, 64), eps=1e-6, bias=False)
    assert_type(layer(half), Halves)
    assert_type(layer.backward(tensor), grilly.Tensor)
    assert_type(nn.RMSNorm(64, weight_offset=1.0)(tensor), grilly.Tensor)
    assert_type(nn.GroupNorm(4, 64, affine=False)(q), Floats)
    assert_type(nn.Softmax(1)(q), Floats)
    assert_type(nn.LogSoftmax(dim=-1)(half), Halves)

    F.layer_norm(q)  # type: ignore[call-overload]
    F.rms_norm(q, 64, bias=q)  # type: ignore[call-overload]
    F.group_norm(q)  # type: ignore[call-overload]
    F.add_layer_norm(q, 64)  # type: ignore[call-overload]
    F.add_rms_norm(q, q, 64, q, q)  # type: ignore[call-overload]
    F.layer_norm_backward(q, q)  # type: ignore[call-overload]
    F.rms_norm_backward(q, q)  # type: ignore[call-overload]
    F.group_norm_backward(q, q)  # type: ignore[call-overload]
    nn.LayerNorm()  # type: ignore[call-arg]
    nn.RMSNorm(64, bias=True)  # type: ignore[call-arg]
    nn.GroupNorm(4)  # type: ignore[call-arg]
    nn.Softmax(axis=1)  # type: ignore[call-arg]
