"""As public_api.py, for what needs PyTorch."""

from __future__ import annotations

import torch
from typing_extensions import assert_type

import grilly
from grilly import torch as gt


def attention(q: torch.Tensor, mask: torch.Tensor, whether: bool) -> None:
    assert_type(gt.scaled_dot_product_attention(q, q, q, mask, is_causal=False, enable_gqa=True), torch.Tensor)
    assert_type(gt.attention(q, q, q, causal=True, window_size=(4, None), alibi_slopes=[0.5]), torch.Tensor)
    assert_type(gt.attention(q, q, q, attn_bias=mask, return_lse=True), tuple[torch.Tensor, torch.Tensor])
    gt.attention(q, q, q, return_lse=whether, precision="high")

    gt.flex_attention(q, q, q, score_mod=lambda score, b, h, query, key: score, scale=0.5, return_lse=True)
    assert_type(gt.flex_attention(q, q, q), torch.Tensor | tuple[torch.Tensor, torch.Tensor])

    gt.flex_attention(q, q, q, score_mod=3)  # type: ignore[call-overload]
    gt.attention(q, q, q, is_causal=True)  # type: ignore[call-overload]
    gt.attention(q, q, q, precision="low")  # type: ignore[call-overload]
    gt.scaled_dot_product_attention(q, q)  # type: ignore[call-arg]


def around(q: torch.Tensor, backend: grilly.Compute) -> None:
    assert_type(gt.from_torch(q, backend), grilly.Tensor)
    assert_type(gt.to_torch(gt.from_torch(q)), torch.Tensor)
    gt.lift(grilly.functional.softmax)(q)
    assert_type(gt.cuda_device(), torch.device)
    assert_type(gt.cuda_device(backend), torch.device)
    assert_type(gt.empty(2, 3, dtype=torch.float16, device="cuda"), torch.Tensor)
    assert_type(gt.empty((2, 3)), torch.Tensor)
    with gt.patched() as report:
        assert_type(report, gt.Patched)
    assert_type(report.calls, int)

    gt.empty("2")  # type: ignore[arg-type]
    gt.to_torch(q)  # type: ignore[arg-type]
