"""Deviations and norms that fit their dtype where squares do not: against float64, beside ordinary numbers."""

from __future__ import annotations

import numpy as np
import pytest

import grilly.functional as F
from grilly import array_api as xp
from grilly import linalg, reference
from kernels import pretend

RNG = np.random.default_rng(3)
#: Of results of a dtype: their error, in units of what is exact, and the largest and the smallest ones.
LIMITS = {"float32": (2e-6, 3.4028235e38, 2.0**-126), "bfloat16": (2.0**-8, 3.3895e38, 2.0**-126),
          "float16": (2.0**-10, 65504.0, 2.0**-24)}  # fmt: skip
DTYPES = list(LIMITS)


@pytest.fixture(autouse=True)
def same_numbers():
    """Each test draws the same numbers, whichever ran before."""
    global RNG
    RNG = np.random.default_rng(3)


def type_of(dtype: str) -> np.dtype:
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)


def extremes(shape: tuple[int, ...], dtype: str) -> dict[str, np.ndarray]:
    """Numbers whose squares, or sums of squares, a float32 does not hold, and ordinary ones."""
    noise, signs = RNG.standard_normal(shape), np.where(np.arange(np.prod(shape)).reshape(shape) % 2, 1.0, -1.0)
    if dtype == "float16":
        given = {"ordinary": noise, "largest": signs * 65504, "smallest": signs * 2.0**-24, "zeros": noise * 0}
    else:
        first, last, middle, infinite = (noise * 1e-25 for _ in range(4))
        first.flat[0], last.flat[-1], middle.flat[noise.size // 2], infinite.flat[1] = 1e30, -1e30, 1e-3, np.inf
        given = {
            "ordinary": noise, "large": 1e20 + 1e19 * noise, "opposite": 1e19 * signs, "largest": 3.3e38 * signs,
            "small": 1e-25 * noise, "near": 1e-30 + 1e-31 * noise, "smallest": 1e-36 * (2 + noise % 1),
            "all sizes": noise * np.exp(30 * RNG.standard_normal(shape)).clip(1e-36, 1e36), "equal": noise * 0 + 1e20,
            "zeros": noise * 0, "first": first, "last": last, "middle": middle, "infinite": infinite,
        }  # fmt: skip
    return {name: array.astype(type_of(dtype)) for name, array in given.items()}


def check(found, exact, dtype: str, what, unit=None) -> None:
    """Within the dtype's error of what is exact, or of ``unit``; infinite where that is too large, NaN where it is."""
    error, largest, smallest = LIMITS[dtype]
    found, exact = np.asarray(found.numpy(), np.float64), np.asarray(exact)
    assert found.shape == exact.shape, what
    near = np.abs(found - exact) <= error * (np.abs(exact) if unit is None else unit) + smallest
    near |= (np.abs(exact) > largest * (1 - error)) & np.isinf(found) | np.isnan(exact) & np.isnan(found)
    assert near.all(), f"{what}: {found[~near][:3]} for {exact[~near][:3]}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, axes", [((5, 1025), (0, 1)), ((70, 48), (0, 1, None)), ((2, 9008), (1,))], ids=str)
def test_deviations_and_norms(vulkan_backend, shape, axes, dtype):
    """Of rows, columns and all; in runs and not; in parts and not. A variance that is too large is infinite."""
    for name, x in extremes(shape, dtype).items():
        t, wide = vulkan_backend.tensor(x), x.astype(np.float64)
        with np.errstate(invalid="ignore"):
            for axis in axes:
                what = f"{name}, axis {axis}"
                check(xp.std(t, axis=axis), wide.std(axis), dtype, f"std: {what}")
                check(xp.var(t, axis=axis, correction=1), wide.var(axis, ddof=1), dtype, f"var: {what}")
                check(linalg.vector_norm(t, axis=axis), np.sqrt(np.square(wide).sum(axis)), dtype, f"norm: {what}")


def test_on_either_runtime(backend):
    alternating = np.array([1e19, -1e19] * 4, np.float32)
    large = (1e20 + 1e19 * RNG.standard_normal(1000)).astype(np.float32)
    for x in (alternating, large, alternating * np.float32(1e-44)):
        check(xp.std(backend.tensor(x)), x.astype(np.float64).std(), "float32", "std")
    assert np.isinf(xp.var(backend.tensor(alternating * np.float32(10))).numpy())
    assert linalg.matrix_norm(backend.tensor(np.full((3, 3), 1e30, np.float32))).numpy() == np.float32(3e30)


@pytest.mark.parametrize("shape, axis", [((16_001,), None), ((2, 12_000), 1), ((3001, 7), 0)], ids=str)
def test_pieces_of_different_sizes(vulkan_backend, monkeypatch, shape, axis):
    """What is found in pieces, each with a pivot of its own, comes together in one range."""
    pretend(monkeypatch, vulkan_backend, storage_range=8000 * 4)
    for low, high in ((1e-25, 1e20), (1e20, 1e-25), (1e-25, 1.0), (1e-25, 1e-28), (1e19, 3e38)):
        size = np.where(np.arange(np.prod(shape)) < np.prod(shape) * 0.6, low, high).reshape(shape)
        x = (size * (2 + RNG.standard_normal(shape)).clip(-1, 1)).astype(np.float32)
        t, wide = vulkan_backend.tensor(x), x.astype(np.float64)
        check(xp.std(t, axis=axis), wide.std(axis), "float32", f"std of {low} and {high}")
        check(linalg.vector_norm(t, axis=axis), np.sqrt(np.square(wide).sum(axis)), "float32", f"norm of {low}, {high}")


def test_integers_that_span_their_type(vulkan_backend):
    ends = np.iinfo(np.int64)
    for given in ([ends.min, ends.max] * 5, [ends.max, ends.min, 0, 1], RNG.integers(ends.min, ends.max, (37, 3))):
        x = np.array(given, np.int64)
        t, wide = vulkan_backend.tensor(x), x.astype(np.float64)
        check(xp.std(t, axis=0), wide.std(0), "float32", "std")
        check(xp.var(t, axis=0), wide.var(0), "float32", "var")
        check(xp.mean(t, axis=0), wide.mean(0), "float32", "mean", unit=np.abs(wide).mean(0))


@pytest.mark.parametrize("order", [3, 1.5, 0.5, -1, -2, 200])
def test_powers(vulkan_backend, order):
    for scale in (1e38, 1.0, 1e-30):
        x = (scale * RNG.uniform(-1, 1, (4, 33))).astype(np.float32)
        size = np.abs(x.astype(np.float64))
        most = (size.max if order > 0 else size.min)(1, keepdims=True)
        exact = np.power(size / most, order).sum(1) ** (1 / order) * most[:, 0]
        check(linalg.vector_norm(vulkan_backend.tensor(x), axis=1, ord=order), exact, "float32", f"{order}, {scale}")
    edges = np.array([[0, 0, 0], [0, 1, np.inf], [1, np.nan, 2], [np.inf, np.inf, np.inf]], np.float32)
    with np.errstate(divide="ignore", over="ignore"):
        exact = np.linalg.norm(edges.astype(np.float64), order, axis=1)
    found = linalg.vector_norm(vulkan_backend.tensor(edges), axis=1, ord=order).numpy()
    np.testing.assert_array_equal(found, exact.astype(np.float32))
    assert not linalg.vector_norm(vulkan_backend.tensor(edges[:, :0]), axis=1, ord=2).numpy().any()


def rows_of_all_sizes(shape: tuple[int, int], dtype: str) -> np.ndarray:
    """Rows of extremes one after the other, so that neighbours differ."""
    given = [x for name, x in extremes(shape, dtype).items() if name not in ("all sizes", "infinite", "zeros", "equal")]
    return np.stack(given, 1).reshape(-1, shape[1])


@pytest.mark.parametrize("shape, dtype", [
    ((3, 3), "float32"), ((3, 3), "bfloat16"), ((2, 768), "float32"), ((2, 768), "bfloat16"), ((2, 768), "float16"),
    ((1, 1027), "float32"),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_normalised_rows(vulkan_backend, name, shape, dtype):
    """Forward, backward, and of a sum; rows of a workgroup are each in a range of their own."""
    for eps in (1e-5, 0.0):
        normalised_rows(vulkan_backend, name, eps, shape, dtype)


def normalised_rows(vulkan_backend, name, eps, shape, dtype):
    x = rows_of_all_sizes(shape, dtype)
    grad = RNG.standard_normal(x.shape).astype(x.dtype)
    cols, wide, centred = shape[1], x.astype(np.float64), name == "layer_norm"
    apart = wide - wide.mean(-1, keepdims=True) if centred else wide
    inverse = 1 / np.sqrt(np.square(apart).mean(-1, keepdims=True) + eps)
    y, g = apart * inverse, grad.astype(np.float64)
    # Differences of nearly equal numbers are as exact as the numbers; below 2^-126 a device may have 0 for them, and
    # for their mean.
    unit = 4 * np.abs(y).max(-1, keepdims=True) + 2.0**-125 * inverse / LIMITS[dtype][0]
    t, d = vulkan_backend.tensor(x), vulkan_backend.tensor(grad)
    check(getattr(F, name)(t, cols, eps=eps), y, dtype, name, unit)
    half = vulkan_backend.tensor((x / x.dtype.type(2)).astype(x.dtype))
    if dtype == "float32":
        check(getattr(F, f"add_{name}")(half, half, cols, eps=eps)[0], y, dtype, f"add_{name}", unit)
    exact = (g - (g.mean(-1, keepdims=True) if centred else 0) - y * (g * y).mean(-1, keepdims=True)) * inverse
    found = getattr(F, f"{name}_backward")(d, t, cols, eps=eps)[0]
    check(found, exact, dtype, f"{name}_backward", (4 + unit) * np.abs(g).max() * inverse)
    with np.errstate(over="ignore"):
        single = getattr(reference, name)(x.astype(np.float32), cols, eps=eps, dtype=np.float32)
    np.testing.assert_allclose(single, y, rtol=0, atol=1e-5 * np.abs(y).max())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_groups_and_gradients_of_every_size(vulkan_backend, dtype):
    error = LIMITS[dtype][0]
    x = (RNG.standard_normal((2, 6, 35)) * np.array([1e30, 1, 1e-30]).repeat(2)[:, None]).astype(type_of(dtype))
    wide = x.astype(np.float64).reshape(2, 3, 70)
    exact = (wide - wide.mean(-1, keepdims=True)) / wide.std(-1, keepdims=True)
    check(F.group_norm(vulkan_backend.tensor(x), 3, eps=0.0), exact.reshape(x.shape), dtype, "group_norm", 4)
    # Products with gradients leave the range where squares do not.
    x, grad = ((RNG.standard_normal((3, 40)) * scale).astype(type_of(dtype)) for scale in (1e8, 1e34))
    wide, g = x.astype(np.float64), grad.astype(np.float64)
    inverse = 1 / np.sqrt(np.square(wide).mean(-1, keepdims=True))
    y = wide * inverse
    found = F.rms_norm_backward(vulkan_backend.tensor(grad), vulkan_backend.tensor(x), 40, eps=0.0)[0].numpy()
    exact = (g - y * (g * y).mean(-1, keepdims=True)) * inverse
    assert (np.abs(found.astype(np.float64) - exact) <= 8 * error * np.abs(g).max() * inverse).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_linear_layers_of_normalised_rows(vulkan_backend, dtype):
    """One and two rows, which the kernel itself normalises, and more."""
    kind, error = type_of(dtype), 1e-5 if dtype == "float32" else 2.0**-6
    weight, norm = (RNG.standard_normal(s).astype(kind) for s in ((24, 272), (272,)))
    for rows, scale in ((1, 1e25), (2, 1e-25), (2, 3e37), (5, 1e25)):
        x = RNG.standard_normal((rows, 272)) * scale
        x[rows - 1 :: 2] /= scale if rows > 1 else 1
        x = x.astype(kind)
        wide = x.astype(np.float64)
        both = reference.rms_norm(wide, 272, norm.astype(np.float64), 0.0) @ weight.astype(np.float64).T
        gate, other = np.split(both, 2, axis=1)
        given = [vulkan_backend.tensor(a) for a in (x, weight)]
        options = {"norm_weight": vulkan_backend.tensor(norm), "norm_eps": 0.0}
        plain = F.linear(*given, **options).numpy().astype(np.float64)
        gated = F.linear(*given, activation="relu", gated=True, **options).numpy().astype(np.float64)
        assert np.abs(plain - both).max() <= error * np.abs(both).max()
        gate = gate.clip(0) * other
        assert np.abs(gated - gate).max() <= error * np.abs(gate).max()
