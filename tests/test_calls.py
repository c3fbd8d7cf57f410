"""What a repeated call costs on the host: its Python function calls, finalizers included."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
import grilly.functional as F
from hostcalls import counted

#: The most that a call may take.
MOST = {
    "plain": 50, "causal + mask + window": 80, "linear": 50, "linear with all": 55,
    "KV cache": 100, "KV cache with lengths": 100,
    "varlen": 90, "backward": 130, "rope": 50, "softmax": 50,
    "gelu": 50, "swiglu": 50,
    "layer norm": 50, "sum and RMS norm": 56, "group norm": 50,
    "add": 45, "multiply by a number": 45,
    "dropout": 50, "embedding": 55, "cross entropy": 45, "mean cross entropy": 90, "scaled dot product": 70,
    "rows at an index": 70, "conv1d": 75, "sort": 80, "the largest": 80, "along an axis": 45, "running sum": 45,
    "a number to a view": 60, "zeros": 70, "tile": 65, "repeat": 45, "stack": 55, "roll": 100,
}  # fmt: skip


def calls(backend) -> dict:
    """The measured calls, on Tensors of their own."""
    rng = np.random.default_rng(0)

    def tensor(*shape):
        return backend.tensor(rng.standard_normal(shape).astype(np.float32))

    q, k, v = (tensor(1, 8, 128, 64) for _ in range(3))
    mask = backend.tensor(rng.random((128, 128)) < 0.8)
    out, lse = F.flash_attention2(q, k, v, return_lse=True)
    x, weight, bias, wide = tensor(128, 256), tensor(256, 256), tensor(256), tensor(512, 256)
    caches = [tensor(2, 512, 8, 64) for _ in range(2)]
    step = [tensor(2, 1, 8, 64) for _ in range(3)]
    packed = [tensor(100, 8, 64) for _ in range(3)]
    ids, sound, kernel = backend.tensor(np.arange(128, dtype=np.int32)), tensor(2, 8, 50), tensor(24, 8, 3)
    places = backend.tensor(np.arange(128)[:, None])
    starts, lengths = np.array([0, 30, 100], np.int32), np.array([100, 37], np.int32)

    def attend_to_cache(held):
        return F.flash_attention_with_kvcache(step[0], *caches, *step[1:], cache_seqlens=held, causal=True)

    return {
        "plain": lambda: F.flash_attention2(q, k, v),
        "causal + mask + window": lambda: F.flash_attention2(q, k, v, mask=mask, causal=True, window_size=(64, 0)),
        "linear": lambda: F.linear(x, weight, bias),
        "linear with all": lambda: F.linear(x, wide, activation="silu", gated=True, residual=x),
        "KV cache": lambda: attend_to_cache(100),
        "KV cache with lengths": lambda: attend_to_cache(lengths),
        "varlen": lambda: F.flash_attention_varlen(*packed, starts, starts, 70, 70, causal=True),
        "backward": lambda: F.flash_attention2_backward(out, q, k, v, out, lse),
        "rope": lambda: F.rope(q),
        "softmax": lambda: F.softmax(x),
        "gelu": lambda: F.gelu(x),
        "swiglu": lambda: F.swiglu(x, weight[:128]),
        "layer norm": lambda: F.layer_norm(x, 256, bias, bias),
        "sum and RMS norm": lambda: F.add_rms_norm(x, x, 256, bias, 1e-6),
        "group norm": lambda: F.group_norm(x, 8, bias, bias),
        "dropout": lambda: F.dropout(x, 0.1, seed=3),
        "embedding": lambda: F.embedding(ids, weight),
        "cross entropy": lambda: F.cross_entropy(x, ids, reduction="none"),
        "mean cross entropy": lambda: F.cross_entropy(x, ids),
        "scaled dot product": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "rows at an index": lambda: weight[ids],
        "conv1d": lambda: F.conv1d(sound, kernel, bias[:24], 2, 1),
        "sort": lambda: grilly.sort(x),
        "the largest": lambda: grilly.topk(x, 5, axis=0),
        "along an axis": lambda: grilly.take_along_axis(x, places, axis=1),
        "running sum": lambda: grilly.cumulative_sum(x, axis=0),
        "a number to a view": lambda: x.__setitem__(slice(2, 4), 0.0),
        "zeros": lambda: grilly.zeros((4, 4), device=backend),
        "tile": lambda: grilly.tile(x, (2, 1)),
        "repeat": lambda: grilly.repeat(x, 2, axis=0),
        "stack": lambda: grilly.stack([x, x]),
        "roll": lambda: grilly.roll(x, (1, 2), axis=(0, 1)),
        "add": lambda: x + x,
        "multiply by a number": lambda: x * 1.5,
    }


@pytest.mark.parametrize("name", MOST)
def test_a_repeated_call_is_quick(default, name):
    call = calls(default)[name]
    for _ in range(3):
        call()
        default.synchronize()  # or whether the result's memory is free again, and so recorded, is a matter of luck
    found = counted(call)
    assert found.total() <= MOST[name], found.most_common()
    assert found.total() > 5, "a call that enters nothing was not counted"
