"""LayerNorm, RMSNorm, GroupNorm, Softmax and LogSoftmax as layers, with their gradients."""

import numpy as np
import pytest

import grilly
from cases import BFLOAT16
from grilly import nn, reference
from test_norms import check, draw

MODULES = {
    "LayerNorm": (lambda: nn.LayerNorm(6), lambda x, w, b: reference.layer_norm(x, 6, w, b), "layer_norm", (6,)),
    "LayerNorm of two axes": (lambda: nn.LayerNorm((4, 6), 1e-3),
                              lambda x, w, b: reference.layer_norm(x, (4, 6), w, b, 1e-3), "layer_norm", ((4, 6),)),
    "RMSNorm": (lambda: nn.RMSNorm(6), lambda x, w, b: reference.rms_norm(x, 6, w), "rms_norm", (6,)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), lambda x, w, b: reference.group_norm(x, 2, w, b), "group_norm", (2,)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_modules(vulkan_backend, name):
    make, function, operation, terms = MODULES[name]
    layer = make().to(vulkan_backend).train()
    x, g = draw(3, 4, 6).astype(np.float32), draw(3, 4, 6, seed=1).astype(np.float32)
    np.testing.assert_allclose(layer(x), function(x.astype(np.float64), None, None), rtol=0, atol=1e-5)
    state = {key: draw(*value.shape, seed=5).astype(np.float32) for key, value in layer.state_dict().items()}
    assert set(state) == ({"weight"} if name == "RMSNorm" else {"weight", "bias"})
    layer.load_state_dict(state)
    weight, bias = state["weight"].astype(np.float64), state.get("bias")
    np.testing.assert_allclose(layer(x), function(x.astype(np.float64), weight, bias), rtol=0, atol=1e-5)
    options = {"eps": layer.eps} if layer.eps is not None else {}
    exact = getattr(reference, f"{operation}_backward")(g, x, *terms, weight, dtype=np.float64, **options)
    np.testing.assert_allclose(layer.backward(g), exact[0], rtol=0, atol=1e-4)
    for parameter, gradient in zip(layer.parameters(), exact[1:], strict=True):
        np.testing.assert_allclose(parameter.grad, gradient, rtol=0, atol=1e-4)
    with pytest.raises(RuntimeError, match="no forward"):
        layer.backward(g)
    assert isinstance(layer(vulkan_backend.tensor(x)), grilly.Tensor)
    with pytest.raises(ValueError, match="expected|normalized_shape"):
        layer(x[:, :3, :5])


def test_modules_without_weights(vulkan_backend):
    x = draw(3, 4, 6).astype(np.float32)
    plain = (nn.LayerNorm(6, elementwise_affine=False), nn.RMSNorm(6, 1e-6, False), nn.GroupNorm(2, 4, affine=False))
    for layer in plain:
        assert not layer.state_dict() and layer.to(vulkan_backend).train()(x).shape == x.shape
        assert layer.backward(x).shape == x.shape
    assert list(nn.LayerNorm(6, bias=False).state_dict()) == ["weight"]
    gemma = nn.RMSNorm(6, weight_offset=1.0).to(vulkan_backend)
    assert (np.asarray(gemma.weight) == 0).all()
    np.testing.assert_array_equal(gemma(x), nn.RMSNorm(6).to(vulkan_backend)(x))
    assert repr(nn.LayerNorm(6)) == "LayerNorm((6,), eps=1e-05, elementwise_affine=True)"
    assert repr(nn.GroupNorm(2, 4)) == "GroupNorm(2, 4, eps=1e-05, affine=True)"
    assert not any([plain[0].elementwise_affine, plain[1].elementwise_affine, plain[2].affine])
    plain[0].weight, plain[2].weight = nn.Parameter(np.ones(6, np.float32)), nn.Parameter(np.ones(4, np.float32))
    assert plain[0].elementwise_affine and plain[2].affine and list(plain[0].state_dict()) == ["weight"]


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
def test_softmax_modules(vulkan_backend, name):
    operation = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}[name]
    layer = getattr(nn, name)(1).to(vulkan_backend).train()
    x, g = draw(3, 4, 6).astype(np.float32), draw(3, 4, 6, seed=1).astype(np.float32)
    exact = getattr(reference, operation)(x, 1, dtype=np.float64)
    np.testing.assert_allclose(layer(x), exact, rtol=0, atol=1e-6)
    gradient = getattr(reference, f"{operation}_backward")(g, exact, 1, dtype=np.float64)
    np.testing.assert_allclose(layer.backward(g), gradient, rtol=0, atol=1e-5)
    assert repr(layer) == f"{name}(dim=1)"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: nn.LayerNorm(0), "LayerNorm: normalized_shape is"),
        (lambda: nn.RMSNorm(4, eps=-1), "RMSNorm: eps is -1"),
        (lambda: nn.GroupNorm(3, 4), "GroupNorm: 4 channels cannot be divided into 3"),
    ],
)
def test_modules_refuse(make, text):
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.skipif(BFLOAT16 is None, reason="ml_dtypes is not installed")
def test_modules_in_bfloat16(vulkan_backend):
    layer = nn.LayerNorm(64).to(vulkan_backend, dtype="bfloat16")
    x = draw(3, 64).astype(BFLOAT16)
    check(layer(x), reference.layer_norm(x, 64, dtype=np.float64), 1e-4, BFLOAT16, "bfloat16")
