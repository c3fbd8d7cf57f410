"""What a layer keeps for backward() is what forward() had, whatever is done to arrays in between."""

from __future__ import annotations

import numpy as np
import pytest

from grilly import nn

X = np.random.default_rng(0).standard_normal((2, 3, 8), dtype=np.float32)


def test_arrays_of_numpys_are_kept_as_they_were(default):
    loss, logits = nn.CrossEntropyLoss().train(), X[0]
    target = np.array([0, 1, 2])
    loss(logits, target)
    wanted = loss.backward()
    loss(logits, target)
    target[:] = 7
    np.testing.assert_array_equal(loss.backward(), wanted)
    target = [0, 1, 2]
    loss(logits, target)
    target[:] = [7, 7, 7]
    np.testing.assert_array_equal(loss.backward(), wanted)

    rope, positions = nn.RoPE(8).train(), np.array([3, 1, 4])
    rope(X, positions=positions)
    wanted = rope.backward(X)
    rope(X, positions=positions)
    positions[:] = 0
    np.testing.assert_array_equal(rope.backward(X), wanted)

    layer, mask = nn.MultiheadAttention(8, 2, rng=0).train(), np.tril(np.ones((3, 3), bool))
    layer(X, X, X, mask=mask, need_weights=False)
    wanted = layer.backward(X)
    layer(X, X, X, mask=mask, need_weights=False)
    mask[:] = True
    for found, one in zip(layer.backward(X), wanted, strict=True):
        np.testing.assert_array_equal(found, one)


@pytest.mark.parametrize("layer", [nn.Linear(8, 4, rng=0), nn.LayerNorm(8), nn.SiLU(), nn.Softmax()], ids=repr)
def test_a_tensor_that_is_changed_in_place_is_no_longer_what_was_kept(default, layer):
    """As in PyTorch, which counts writes likewise."""
    layer.to(default).train()
    x = default.tensor(X)
    y = layer(x)
    grad = default.tensor(np.ones(y.shape, np.float32))
    layer.backward(grad)
    kept = layer(x)
    (kept if isinstance(layer, nn.Softmax) else x).__imul__(0.5)
    with pytest.raises(RuntimeError, match="changed in place"):
        layer.backward(grad)
    layer(x)
    layer.backward(grad)


def test_a_parameter_of_another_backend_that_is_written_to(default, vulkan):
    import grilly

    with grilly.Compute(runtime="vulkan") as other:
        value = other.tensor(np.ones((2, 2), np.float32))
        layer = nn.Linear(2, 2, bias=False)
        layer.weight = nn.Parameter(value)
        layer.to(default)
        x = np.ones((1, 2), np.float32)
        assert layer(x).tolist() == [[2.0, 2.0]]
        value *= 2
        assert layer(x).tolist() == [[4.0, 4.0]]
