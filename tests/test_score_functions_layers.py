"""score_mod and mask_mod of layers, beside the same calls of functions and a mask that is the same."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
import grilly.functional as F
from grilly import nn

RNG = np.random.default_rng(2)
SLOPES = np.float32([0.3, -0.1])
X = RNG.standard_normal((2, 19, 16)).astype(np.float32)
QUERY, KEY = np.ogrid[:19, :19]
SEEN = (KEY + 2 * QUERY) % 3 != 0
BIAS = SLOPES[:, None, None] * (QUERY - KEY).astype(np.float32)


@pytest.fixture
def functions(default):
    slopes = default.tensor(SLOPES)
    return {
        "score_mod": lambda s, b, h, q, k: s + slopes[h] * (q - k), "mask_mod": lambda b, h, q, k: (k + 2 * q) % 3 != 0
    }  # fmt: skip


def heads(x):
    return x.reshape(2, 19, 2, 8).swapaxes(1, 2)


@pytest.mark.parametrize("layer", [nn.FlashAttention2, nn.FlashAttention3])
def test_layers_of_joined_heads(default, functions, layer):
    out = layer(16, 2, causal=True)(X, X, X, **functions)
    mask = np.where(SEEN, BIAS, -np.inf).astype(np.float32)
    np.testing.assert_allclose(out, layer(16, 2, causal=True)(X, X, X, mask=mask[None]), atol=2e-6)


def test_flash_attention(default, functions):
    q = heads(X)
    found = nn.FlashAttention()(q, q, q, **functions)
    np.testing.assert_allclose(found, F.flash_attention2(q, q, q, mask=SEEN, attn_bias=BIAS), atol=2e-6)
    assert (nn.FlashAttention(flash=False).flash_attn(q, q, q, **functions) == found).all()
    with pytest.raises(ValueError, match="FlashAttention: score_mod or mask_mod is given and flash is False"):
        nn.FlashAttention(flash=False)(q, q, q, **functions)


def test_multihead_attention(default, functions):
    layer = nn.MultiheadAttention(16, 2, rng=0)
    found, weights = layer(X, need_weights=False, **functions)
    mask = np.where(SEEN, BIAS, -np.inf).astype(np.float32)
    np.testing.assert_allclose(found, layer(X, mask=mask[None])[0], atol=2e-6)
    assert weights is None
    blocks = grilly.block_mask(functions["mask_mod"], None, None, 19, 19, block_size=(8, 8))
    np.testing.assert_allclose(
        layer(X, need_weights=False, mask_mod=blocks)[0], layer(X, mask=SEEN[None, None])[0], atol=2e-6
    )
    with pytest.raises(ValueError, match="MultiheadAttention: with mask_mod no weights are returned"):
        layer(X, mask_mod=functions["mask_mod"])


def test_multihead_attention_with_a_cache(default, functions):
    """Token by token as all at once: the functions are given positions."""
    layer = nn.MultiheadAttention(16, 2, architecture="gpt", rng=0)
    whole, _ = layer(X, need_weights=False, **functions)
    cache = layer.make_cache(2, 19, default)
    parts = [layer(X[:, n : n + 1], need_weights=False, cache=cache, **functions)[0] for n in range(19)]
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=2e-6)


def test_gradients_of_a_layer(default, functions):
    layer = nn.MultiheadAttention(16, 2, rng=0).train()
    out, _ = layer(X, need_weights=False, **functions)
    found = layer.backward(np.ones_like(out))
    other = nn.MultiheadAttention(16, 2, rng=0).train()
    mask = np.where(SEEN, BIAS, -np.inf).astype(np.float32)
    out, _ = other(X, need_weights=False, mask=mask[None])
    for one, two in zip(found, other.backward(np.ones_like(out)), strict=True):
        assert (one is None) == (two is None)
        if one is not None:
            np.testing.assert_allclose(one, two, atol=2e-5)
