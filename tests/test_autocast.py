"""grilly.autocast: products and attention in 16 bits."""

import numpy as np
import pytest

import grilly
import grilly.functional as F


def drawn(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products_and_attention_are_cast(by_default, dtype):
    x, w, b = (grilly.asarray(array) for array in (drawn(6, 8), drawn(4, 8), drawn(4)))
    image, kernel, q = (grilly.asarray(array) for array in (drawn(1, 4, 5, 5), drawn(8, 4, 3, 3), drawn(1, 2, 5, 8)))
    calls = {
        "linear": lambda: F.linear(x, w, b), "matmul": lambda: x @ w.T, "convolution": lambda: F.conv2d(image, kernel),
        "attention": lambda: F.flash_attention2(q, q, q, causal=True),
    }  # fmt: skip
    for name, call in calls.items():
        exact = call()
        with grilly.autocast(dtype):
            found = call()
        assert found.dtype.name == dtype and exact.dtype == np.float32, name
        np.testing.assert_allclose(found.astype(np.float32).numpy(), exact.numpy(), rtol=0.03, atol=0.05)


def test_all_else_stays(default):
    x = grilly.asarray(drawn(6, 8))
    with grilly.autocast("bfloat16"):
        for found in (x + 1.0, F.softmax(x, -1), F.layer_norm(x, (8,)), grilly.sum(x, axis=0)):
            assert found.dtype == np.float32
        with grilly.autocast(None):
            assert (x @ x.T).dtype == np.float32
        assert (x @ x.T).dtype == grilly.bfloat16
    assert (x @ x.T).dtype == np.float32


def test_gradients_of_weights_keep_their_dtype(default):
    x, w = drawn(6, 8), drawn(8, 4)

    @grilly.autocast("bfloat16")
    def loss(w, x):
        return grilly.mean((x @ w).astype(np.float32) ** 2)

    value, gradient = grilly.value_and_grad(loss)(w, x)
    exact = 2 / 24 * x.T @ (x @ w)
    assert value.dtype == gradient.dtype == np.float32
    np.testing.assert_allclose(gradient.numpy(), exact, rtol=0.05, atol=0.05)


def test_no_floating_dtype(default):
    with pytest.raises(TypeError, match="int32"), grilly.autocast("int32"):
        pass
