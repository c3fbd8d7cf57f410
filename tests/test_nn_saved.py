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


LAYERS = {
    "Linear": (lambda: nn.Linear(8, 8, rng=0), 1),
    "LayerNorm": (lambda: nn.LayerNorm(8), 1),
    "GELU": (lambda: nn.GELU(), 1),
    "Dropout": (lambda: nn.Dropout(0.5), 1),
    "RoPE": (lambda: nn.RoPE(8), 1),
    "FlashAttention2": (lambda: nn.FlashAttention2(8, 2), 3),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(8, 2, rng=0), 3),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, rng=0), 1),
    "TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0, rng=0), 2),
    "Sequential": (lambda: nn.Sequential(nn.Linear(8, 8, rng=0), nn.Tanh(), nn.Dropout(0.0)), 1),
}


def outputs(found):
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.parametrize("name", LAYERS)
def test_a_gradient_that_is_anothers_is_refused_and_nothing_is_lost(default, name):
    """Neither what forward() kept, at any depth, nor parameters' gradients."""
    make, inputs = LAYERS[name]
    layer = make().train()
    grad = np.random.default_rng(1).standard_normal(X.shape, dtype=np.float32)
    layer(*[X] * inputs)
    for wrong, error in ((grad[:, :2], ValueError), (grad[0], ValueError), (grad.astype(int), TypeError),
                         (grad.tolist(), (TypeError, ValueError)), (None, TypeError)):  # fmt: skip
        with pytest.raises(error, match=rf"^{name}.backward: "):
            layer.backward(wrong)
    assert all(parameter.grad is None for parameter in layer.parameters())
    got = outputs(layer.backward(grad))
    assert all(np.isfinite(array).all() for array in got if array is not None)
    with pytest.raises(RuntimeError, match="no forward"):
        layer.backward(grad)


def test_a_refused_gradient_of_an_embedding_and_of_a_loss(default):
    embedding, loss = nn.Embedding(5, 8, rng=0).train(), nn.CrossEntropyLoss().train()
    embedding(np.array([1, 4]))
    loss(X[0], np.array([0, 1, 2]))
    with pytest.raises(ValueError, match=r"expected the output's, \(2, 8\)"):
        embedding.backward(X[0])
    with pytest.raises(ValueError, match=r"expected the output's, \(\)"):
        loss.backward(X[0])
    embedding.backward(X[0, :2])
    assert loss.backward().shape == (3, 8)


@pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.MultiheadAttention])
def test_a_part_may_run_in_between(default, kind):
    """Layers of layers go backward by what their parts kept in their own forward, not by what those kept last."""
    layer = (kind(8, 2, rng=0) if kind is nn.MultiheadAttention else kind(8, 2, 16, 0.0, rng=0)).train()
    inputs = [X] * (2 if kind is nn.TransformerDecoderLayer else 1)
    layer(*inputs)
    wanted = [array for array in outputs(layer.backward(X)) if array is not None]
    layer(*inputs)
    other = np.random.default_rng(2).standard_normal((2, 5, 8), dtype=np.float32)
    for part in list(layer.modules())[1:]:
        try:
            part(other)
        except ValueError:  # of another width
            part(np.zeros((2, 5, 16), np.float32))
    got = [array for array in outputs(layer.backward(X)) if array is not None]
    assert len(got) == len(wanted)
    for one, same in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(one, same)
