"""Gradients of normalisations and softmax against float64; bounds are those of `test_norms`."""

from __future__ import annotations

import numpy as np
import pytest

import grilly.functional as F
from cases import DTYPES, SIXTEEN_BITS, epsilon
from grilly import reference
from test_norms import U, check_gradients, draw


@pytest.mark.parametrize("cols", [1, 3, 257, 4096])
def test_gradients(vulkan_backend, cols):
    check_gradients(vulkan_backend, draw(7, cols).astype(np.float32), str(cols))


@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
def test_gradients_of_sixteen_bits(vulkan_backend, dtype):
    check_gradients(vulkan_backend, draw(7, 77).astype(dtype))


def test_gradients_are_arrays_of_their_own(vulkan_backend):
    """Also where there is nothing to add up."""
    x, grad, weight = (vulkan_backend.tensor(draw(3, 4, seed=n).astype(np.float32)) for n in range(3))
    given = grad.numpy()
    _, _, bias = F.layer_norm_backward(grad, x, (3, 4), weight)
    np.testing.assert_array_equal(bias.numpy(), given)
    bias *= 0
    np.testing.assert_array_equal(grad.numpy(), given)


def test_gradients_are_those_of_differences(vulkan_backend):
    """The reference's formulas, by central differences of its own functions in float64."""
    x, g, w = draw(3, 4, 6), draw(3, 4, 6, seed=1), draw(6, seed=2)
    channels = draw(4, seed=3)
    ways = {
        "layer_norm": (lambda a, b: reference.layer_norm(a, 6, b, b), w),
        "rms_norm": (lambda a, b: reference.rms_norm(a, 6, b, 1e-6, 1.0), w),
        "group_norm": (lambda a, b: reference.group_norm(a, 2, b, b), channels),
    }
    found = {
        "layer_norm": reference.layer_norm_backward(g, x, 6, w),
        "rms_norm": (*reference.rms_norm_backward(g, x, 6, w, 1e-6, 1.0), 0),
        "group_norm": reference.group_norm_backward(g, x, 2, channels),
    }
    step = 1e-6
    for name, (function, weight) in ways.items():
        for seed in range(3):
            way, other = draw(3, 4, 6, seed=10 + seed), draw(*weight.shape, seed=20 + seed)
            values = [(g * function(x + sign * step * way, weight)).sum() for sign in (1, -1)]
            assert (values[0] - values[1]) / (2 * step) == pytest.approx((found[name][0] * way).sum(), rel=1e-6)
            values = [(g * function(x, weight + sign * step * other)).sum() for sign in (1, -1)]
            both = ((found[name][1] + found[name][2]) * other).sum()
            assert (values[0] - values[1]) / (2 * step) == pytest.approx(both, rel=1e-6)
    for name in ("softmax", "log_softmax"):
        function = getattr(reference, name)
        for dim in (0, 1, 2):
            way = draw(3, 4, 6, seed=10)
            values = [(g * function(x + sign * step * way, dim)).sum() for sign in (1, -1)]
            found_way = getattr(reference, f"{name}_backward")(g, function(x, dim), dim)
            assert (values[0] - values[1]) / (2 * step) == pytest.approx((found_way * way).sum(), rel=1e-6)
            y = function(x, dim).astype(np.float32)
            device = getattr(F, f"{name}_backward")(vulkan_backend.tensor(g.astype(np.float32)), y, dim).numpy()
            np.testing.assert_allclose(device, found_way, rtol=0, atol=2e-6 * np.abs(g).sum())


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_groups(vulkan_backend, dtype):
    for shape, groups in (((3, 12), 4), ((2, 6, 5, 7), 3), ((2, 8, 4, 4), 2)):
        x, grad = draw(*shape, mean=3).astype(dtype), draw(*shape, seed=3).astype(dtype)
        weight = draw(shape[1], seed=1).astype(dtype)
        exact = reference.group_norm_backward(grad, x, groups, weight, dtype=np.float64)
        found = F.group_norm_backward(*(vulkan_backend.tensor(a) for a in (grad, x)), groups, weight)
        for a, b in zip(found, exact, strict=True):
            most = np.abs(b).max()
            np.testing.assert_allclose(a.numpy().astype(np.float64), b, rtol=0, atol=(1000 * U + epsilon(dtype)) * most)


def test_gradients_have_the_same_bits_each_time(vulkan_backend):
    shapes = ((700, 96), (700, 96), (96,))
    x, g, w = (vulkan_backend.tensor(draw(*shape, seed=1).astype(np.float32)) for shape in shapes)
    first = [a.numpy() for a in F.layer_norm_backward(g, x, 96, w)]
    for _ in range(5):
        for a, b in zip(F.layer_norm_backward(g, x, 96, w), first, strict=True):
            assert a.numpy().tobytes() == b.tobytes()
    without = F.layer_norm_backward(g, x, 96)
    assert without[1:] == (None, None) and F.rms_norm_backward(g, x, 96)[1] is None
