"""Random tensors are those of the reference, on every device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import grilly
from grilly import reference

SHADER = Path(__file__).parents[1] / "shaders" / "arrays" / "random.comp"
SEED = 2**40 + 12345


@pytest.mark.parametrize("shape", [(), (1,), (7, 9), (3, 1001), (100_003,)], ids=str)
def test_uniform(vulkan_backend, shape):
    got = grilly.random.uniform(shape, seed=SEED, offset=7, device=vulkan_backend)
    assert got.shape == shape and got.dtype == np.float32
    np.testing.assert_array_equal(got.numpy(), reference.random_uniform(shape, seed=SEED, offset=7))
    between = grilly.random.uniform(shape, low=-3, high=5, dtype="float16", seed=1, device=vulkan_backend).numpy()
    want = reference.random_uniform(shape, low=-3, high=5, seed=1)
    assert between.dtype == np.float16 and (np.abs(between - want) <= 2.0**-9 + 2.0**-20).all()


@pytest.mark.parametrize("shape", [(5,), (3, 1001), (200_001,)], ids=str)
def test_normal(vulkan_backend, shape):
    got = grilly.random.normal(shape, seed=SEED, offset=3, device=vulkan_backend).numpy()
    want = reference.random_normal(shape, seed=SEED, offset=3)
    assert (np.abs(got - want) <= 8 * 2.0**-24 * np.abs(want) + 2.0**-126).all()
    moved = grilly.random.normal(shape, mean=10, std=0.5, seed=SEED, offset=3, device=vulkan_backend).numpy()
    assert (np.abs(moved - (10 + 0.5 * want)) <= 2.0**-20).all()
    half = grilly.random.normal(shape, dtype=grilly.float16, seed=SEED, offset=3, device=vulkan_backend).numpy()
    np.testing.assert_array_equal(half, got.astype(np.float16))


def test_normal_numbers_are_normal(vulkan_backend):
    """Moments and what lies beyond 1, 2 and 3 standard deviations, within five of their standard errors."""
    x = grilly.random.normal(1_000_000, seed=5, device=vulkan_backend).numpy().astype(np.float64)
    root = len(x) ** 0.5
    assert abs(x.mean()) < 5 / root and abs(x.var() - 1) < 5 * 2**0.5 / root
    assert abs((x**4).mean() - 3) < 5 * 96**0.5 / root
    for bound, share in ((1, 0.317311), (2, 0.0455003), (3, 0.0026998)):
        assert abs((np.abs(x) > bound).mean() - share) < 5 * share**0.5 / root
    assert abs(np.corrcoef(x[::2], x[1::2])[0, 1]) < 5 / (root / 2**0.5)


@pytest.mark.parametrize(("low", "high", "dtype"), [
    (0, 10, "int64"), (-(2**62), -(2**62) + 2**32 - 1, "int64"), (-128, 128, "int8"), (0, 2**32 - 1, "uint32"),
    (5, 6, "uint8"),
])  # fmt: skip
def test_integers(vulkan_backend, low, high, dtype):
    for shape in ((3,), (7, 1001)):
        got = grilly.random.integers(low, high, shape, dtype=dtype, seed=SEED, device=vulkan_backend).numpy()
        want = reference.random_integers(low, high, shape, seed=SEED)
        assert got.dtype == dtype and want.min() >= low and want.max() < high
        np.testing.assert_array_equal(got, want.astype(dtype))


def test_seeds(vulkan_backend):
    def draw(**options):
        return grilly.random.uniform(64, device=vulkan_backend, **options).numpy()

    grilly.manual_seed(3)
    first = [draw(), draw()]
    grilly.manual_seed(3)
    second = [draw(), draw()]
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first[1], draw(seed=3, offset=1))
    assert not (first[0] == first[1]).all() and not (draw(seed=0) == draw(seed=2**32)).any()
    grilly.manual_seed(0)


def test_refusals(vulkan_backend):
    for call, error, text in [
        (lambda: grilly.random.uniform(3, low=5, high=1, device=vulkan_backend), ValueError, "high not below low"),
        (lambda: grilly.random.uniform(3, high=np.inf, device=vulkan_backend), ValueError, "expected finite numbers"),
        (lambda: grilly.random.uniform(3, low=np.nan, device=vulkan_backend), ValueError, "expected finite numbers"),
        (lambda: grilly.random.normal(3, device="cpu"), TypeError, "device is 'cpu'; expected a grilly.Compute"),
        (lambda: grilly.random.normal(size=3), TypeError, "normal: .* 'size'; here give shape"),
        (lambda: grilly.random.normal(3, loc=1.0), TypeError, "normal: .* 'loc'; here give mean"),
        (lambda: grilly.random.uniform(3, generator=1), TypeError, "uniform: .* 'generator'; here give seed"),
        (lambda: grilly.random.integers(0, 3, size=3), TypeError, "integers: .* 'size'; here give shape"),
        (lambda: grilly.random.normal(3, dtype="int32", device=vulkan_backend), TypeError, "floating"),
        (lambda: grilly.random.integers(0, 3, 3, dtype="float32", device=vulkan_backend), TypeError, "integers"),
        (lambda: grilly.random.integers(3, 3, 3, device=vulkan_backend), ValueError, "from 3 to 3"),
        (lambda: grilly.random.integers(0, 300, 3, dtype="uint8", device=vulkan_backend), ValueError, "uint8"),
        (lambda: grilly.random.uniform(3, seed=-1, device=vulkan_backend), ValueError, "seed"),
        (lambda: grilly.random.uniform(3, seed=1, offset=2**32, device=vulkan_backend), ValueError, "offset"),
        (lambda: grilly.random.uniform((3, -1), seed=1, device=vulkan_backend), ValueError, "uniform"),
    ]:
        with pytest.raises(error, match=text):
            call()


def test_a_captured_function_with_a_seed(vulkan_backend):
    """Each replay has the same numbers."""
    x = np.zeros((3, 4), np.float32)
    for name in ("normal", "uniform"):
        draw = getattr(grilly.random, name)
        graph = vulkan_backend.capture(lambda x: x + draw((3, 4), seed=5, device=vulkan_backend), x)  # noqa: B023
        for _ in range(2):
            np.testing.assert_array_equal(graph(x).numpy(), draw((3, 4), seed=5, device=vulkan_backend).numpy())


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_a_seed_on_the_device(vulkan_backend, dtype):
    """The numbers of the same seed told by the host; and in a graph those of each replay's own."""
    device = vulkan_backend
    draws_of = (
        lambda seed: grilly.random.normal((3, 5), seed=seed, offset=2, device=device),
        lambda seed: grilly.random.uniform((7,), dtype="float16", seed=seed, device=device),
        lambda seed: grilly.random.integers(-5, 2**31, (6,), seed=seed, device=device),
    )
    seeds = np.array([[0, 0], [0, 77]], dtype)
    for draw in draws_of:
        np.testing.assert_array_equal(draw(device.tensor(seeds)[1, 1:]).numpy(), draw(77).numpy())
        graph = device.capture(draw, np.array(5, dtype))
        for seed in (5, 6):
            np.testing.assert_array_equal(graph(np.array(seed, dtype)).numpy(), draw(seed).numpy())
    float_seed = device.tensor(np.ones(1, np.float32))
    for odd, error in ((device.tensor(seeds), TypeError), (float_seed, TypeError), (1.5, TypeError), (-1, ValueError)):
        with pytest.raises(error, match="normal: seed is"):
            grilly.random.normal((2,), seed=odd, device=device)
