"""Reductions of users' functions: ``grilly.reduction``."""

from __future__ import annotations

import numpy as np
import pytest

import grilly

RNG = np.random.default_rng(11)
DTYPES = ("float32", "float16", "int64", "int32", "int8", "uint8", "bool")


def numbers(shape, dtype="float32"):
    """Random elements of a dtype."""
    if np.dtype(dtype).kind == "f":
        return (RNG.standard_normal(shape) * 2).astype(dtype)
    return RNG.integers(0, 2 if dtype == "bool" else 5, shape).astype(dtype)

HOWS = {"sum": np.sum, "mean": np.mean, "prod": np.prod, "max": np.max, "min": np.min, "any": np.any, "all": np.all}


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8", "int64"])
def test_reductions_have_numpys_results(by_default, how, dtype):
    x = (RNG.random((6, 33)) < 0.05 if how == "prod" else RNG.integers(0, 3, (6, 33))).astype(dtype)
    function = grilly.reduction(lambda x: x + 1 if how == "prod" else x * 2 - 1, how)
    same = grilly.elementwise(lambda x: x + 1 if how == "prod" else x * 2 - 1)(by_default.tensor(x)).numpy()
    for axis in (None, 0, -1):
        found = function(by_default.tensor(x), axis=axis)
        assert found.dtype == getattr(grilly, how)(by_default.tensor(same), axis=axis).dtype
        want = HOWS[how](same.astype(np.float64), axis=axis)
        np.testing.assert_allclose(found.numpy().astype(np.float64), want.astype(np.float64), rtol=1e-3)


@pytest.mark.parametrize("shape", [(5, 7), (300, 4), (3, 100_001), (4, 1000, 33), (1,), (2, 70_000), (900, 64), (0, 3)])
def test_sums_of_many_shapes(by_default, shape):
    function = grilly.reduction(lambda x, y: (x - y) ** 2)
    x, y = numbers(shape), numbers(shape[-1:])
    exact = (x.astype(np.float64) - y) ** 2
    for axis in (None, -1, 0, tuple(range(len(shape)))):
        for keepdims in (False, True):
            found = function(x, y, axis=axis, keepdims=keepdims)
            want = exact.sum(axis=axis, keepdims=keepdims)
            assert found.shape == want.shape
            np.testing.assert_allclose(found, want, rtol=4e-7, atol=1e-30)


def test_views_are_reduced(vulkan_backend):
    x = numbers((6, 8, 10, 5))
    t = vulkan_backend.tensor(x)
    function = grilly.reduction(lambda x, scale: x * scale, "max")
    for order in ((0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)):
        for axis in (0, 1, (0, 2), (1, 3), -1):
            found = function(t.transpose(order)[:, 1::2], -0.5, axis=axis).numpy()
            np.testing.assert_array_equal(found, (x.transpose(order)[:, 1::2] * np.float32(-0.5)).max(axis=axis))


def test_distances_of_all_pairs_read_each_array_once(by_default):
    distance = grilly.reduction(lambda x, y: (x - y) ** 2, "sum", finish=grilly.sqrt)
    a, b = numbers((31, 1, 9)), numbers((1, 40, 9))
    np.testing.assert_allclose(distance(a, b, axis=-1), np.sqrt(((a - b) ** 2).sum(-1)), rtol=1e-6)
    if by_default.runtime.name == "vulkan":
        a, b = by_default.tensor(a), by_default.tensor(b)
        with by_default.profile() as profile:
            distance(a, b, axis=-1)
        assert len(profile.timings) == 1


def test_more_than_a_kernel_takes_is_computed_first(by_default):
    function = grilly.reduction(
        lambda a, b, c, d, e, n: a * b + c * d + e * n, "mean", finish=lambda x: grilly.maximum(x * 2, 0)
    )
    given = [numbers((20, 30)) for _ in range(5)]
    exact = given[0] * given[1] + given[2] * given[3] + given[4] * 0.5
    np.testing.assert_allclose(function(*given, 0.5, axis=0), np.maximum(2 * exact.mean(0), 0), rtol=1e-4, atol=1e-6)
    axes = numbers((3, 4, 5, 6, 7))
    some = grilly.reduction(lambda x: x + 1, "sum")
    np.testing.assert_allclose(some(axes, axis=(1, 3)), (axes + 1).sum((1, 3)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(some(axes, axis=(0, 2, 4)), (axes + 1).sum((0, 2, 4)), rtol=1e-5, atol=1e-5)


def test_sums_lose_nothing(vulkan_backend):
    """What rounding loses is kept beside the sum."""
    x = vulkan_backend.tensor(np.float32([1e8] + [1.0] * 99_999))
    assert float(grilly.reduction(lambda x: x * 1.0)(x)) == np.float32(1e8 + 99_999)


def test_nan_and_infinities(by_default):
    x = np.float32([[1, np.nan, 2], [np.inf, 1, -np.inf], [np.inf, 1, 2], [-0.0, 0.0, -0.0]])
    with np.errstate(all="ignore"):
        for how in ("sum", "max", "min", "mean"):
            np.testing.assert_array_equal(grilly.reduction(lambda x: x * 1, how)(x, axis=1), HOWS[how](x, axis=1))


def test_finish_and_outside(vulkan_backend):
    weight, scale = vulkan_backend.tensor(np.float32([1, 2, 3])), 2.0
    function = grilly.reduction(lambda x: x * weight, "sum", finish=lambda total: total * scale > 10)
    x = vulkan_backend.tensor(np.float32([[1, 1, 1], [0, 1, 1]]))
    assert function(x, axis=1).tolist() == [True, False]
    scale = 2.5
    assert function(x, axis=1).tolist() == [True, True]
    for bad in (lambda x: (x, x), lambda x: x * weight):
        with pytest.raises(grilly.ExpressionError, match="expected one scalar"):
            grilly.reduction(lambda x: x, finish=bad)(x)


def test_a_captured_reduction_has_the_bits_of_the_call(vulkan_backend):
    function = grilly.reduction(lambda x, y: abs(x - y), "sum")
    x, y = numbers((5, 3000)), numbers((3000,))
    t = vulkan_backend.tensor(y)
    graph = vulkan_backend.capture(lambda x: function(grilly.exp(x * 0.1), t, axis=1), np.zeros_like(x))
    want = function(grilly.exp(vulkan_backend.tensor(x) * 0.1), t, axis=1)
    np.testing.assert_array_equal(graph(x).numpy(), want.numpy())
    np.testing.assert_array_equal(graph(x).numpy(), want.numpy())


def test_bad_reductions(vulkan_backend):
    x = vulkan_backend.tensor(np.zeros((2, 0), np.float32))
    with pytest.raises(ValueError, match="how is 'median'"):
        grilly.reduction(lambda x: x, "median")
    with pytest.raises(TypeError, match="finish"):
        grilly.reduction(lambda x: x, finish=3)
    own = grilly.reduction(lambda x: x, "max")
    with pytest.raises(ValueError, match="no elements"):
        own(x, axis=1)
    for axis in (2, -3, (0, 0)):
        with pytest.raises(ValueError, match="axis"):
            own(x, axis=axis)
    with pytest.raises(TypeError):
        own(x, axis="row")
    with pytest.raises(grilly.ExpressionError, match="tuple"):
        grilly.reduction(lambda x: (x, x))(x)
    with pytest.raises(grilly.ExpressionError, match="reduction is called in a function"):
        grilly.elementwise(lambda x: own(x))(x)
    assert grilly.reduction(lambda x: x, "sum")(x, axis=1).tolist() == [0.0, 0.0]
    assert np.isnan(grilly.reduction(lambda x: x, "mean")(x, axis=1).numpy()).all()
