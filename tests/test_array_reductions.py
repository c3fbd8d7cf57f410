"""Reductions of arrays, along every axis and in parts, as NumPy and the array API standard have them."""

from __future__ import annotations

import numpy as np
import pytest

from equal import same
from grilly import UnsupportedError
from grilly import array_api as xp
from kernels import pretend

RNG = np.random.default_rng(7)


@pytest.mark.parametrize(
    ("dtype", "shape"), [("float32", (7, 1001)), ("int32", (3, 50, 17)), ("float32", (2, 9000))], ids=str
)
def test_reductions(vulkan_backend, dtype, shape):
    x = (RNG.standard_normal(shape) * 9).astype(dtype)
    t, wide = vulkan_backend.tensor(x), x.astype(np.float64)
    for axis in (None, 0, -1, (0, 1)):
        same(xp.max(t, axis=axis), x.max(axis))
        same(xp.any(t, axis=axis, keepdims=True), x.any(axis, keepdims=True))
        total, size = xp.sum(t, axis=axis), np.abs(wide).sum(axis)
        assert total.dtype == (np.float32 if dtype == "float32" else np.int64)
        assert (np.abs(total.numpy() - wide.sum(axis)) <= 2.0**-22 * size).all()
        if not isinstance(axis, tuple):
            same(xp.argmin(t, axis=axis), x.argmin(axis))
        np.testing.assert_allclose(xp.std(t, axis=axis, correction=1).numpy(), wide.std(axis, ddof=1), rtol=1e-6)
        np.testing.assert_allclose(xp.mean(t, axis=axis).numpy(), wide.mean(axis), rtol=0, atol=2e-6)
    running = xp.cumulative_sum(t, axis=-1, include_initial=True).numpy()
    np.testing.assert_array_equal(running[..., 0], 0)
    bound = 2.0**-23 * np.cumsum(np.abs(wide), -1)
    assert (np.abs(running[..., 1:] - np.cumsum(wide, -1)) <= bound).all()


@pytest.mark.parametrize("dtype", ["float16", "int64", "uint8"])
def test_reductions_of_columns_and_runs(vulkan_backend, dtype):
    """Some rows, or columns, at a time, from where they begin at fours or eights and where not, in parts or not."""
    x = RNG.integers(0, 7, (1100, 48)).astype(dtype)
    if dtype == "float16":
        x[700, 5], x[::3, 7] = np.nan, -0.0
    t = vulkan_backend.tensor(x)
    for part in (np.s_[:], np.s_[:, 1:40], np.s_[:, 8:40], np.s_[:90, :33]):
        own, array = t[part], x[part]
        for axis in (0, 1):
            same(xp.argmax(own, axis=axis), array.argmax(axis))  # argmin: in the other tests
            same(xp.max(own, axis=axis), array.max(axis))
            total = xp.sum(own, axis=axis, dtype=None if dtype in ("float16", "float32") else np.int64)
            same(total, array.astype(np.float64).sum(axis).astype(total.dtype))


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("float16", (5, 1025)), ("bfloat16", (304, 4096)), ("float16", (2, 40_000)), ("bfloat16", (16, 9001))],
    ids=str,
)
def test_extremes_of_long_rows_and_columns_of_16_bits(vulkan_backend, dtype, shape):
    """Bits are compared many at a time: NaNs of either sign win, zeros are equal, and the first of equals stays."""
    kind = np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)
    x = RNG.standard_normal(shape).astype(kind)
    some, size = RNG.integers(0, shape[1], 3), np.abs(x) + kind.type(1)
    mixed_zeros, infinite, rounded = np.zeros_like(x), x.copy(), np.round(x * kind.type(2)).astype(kind)
    mixed_zeros[:, some] = -kind.type(0)
    infinite[1, some], infinite[0, some] = np.inf, -np.inf
    positive, negative = x.copy(), -size
    positive[1, some] = np.nan
    negative.view(np.uint16)[1, some] = 0xFFFF
    for array in (x, size, -size, mixed_zeros, infinite, rounded, positive, negative, np.full_like(x, -np.inf)):
        wide = array.astype(np.float32)
        for t, axis in ((vulkan_backend.tensor(array), -1), (vulkan_backend.tensor(np.ascontiguousarray(array.T)), 0)):
            for name in ("max", "min", "argmax", "argmin"):
                found = getattr(xp, name)(t, axis=axis).numpy()
                np.testing.assert_array_equal(found.astype(np.float64), getattr(wide, name)(-1).astype(np.float64))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "float32"])
@pytest.mark.parametrize("columns", [33, 34, 36, 40])
def test_columns_of_several_matrices(vulkan_backend, dtype, columns):
    """Runs of columns end with a matrix: what lies behind it is the next one's."""
    x = RNG.integers(0, 2 if dtype == "bool" else 100, (4, 3, 7, columns)).astype(dtype)
    t = vulkan_backend.tensor(x)
    for axis in (1, 2, (1, 2), (0, 2)):
        if dtype == "bool":
            same(xp.any(t, axis=axis), x.any(axis))
            continue
        same(xp.max(t, axis=axis), x.max(axis))
        if not isinstance(axis, tuple):
            same(xp.argmin(t, axis=axis), x.argmin(axis))


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("float32", (7, 9001)), ("int8", (9001, 7)), ("float32", (60_001,)), ("int8", (3, 2, 9001))],
    ids=str,
)
def test_arrays_beyond_a_binding(vulkan_backend, monkeypatch, dtype, shape):
    """Rows are parted where they lie apart, else all of them are taken in pieces."""
    x = (RNG.standard_normal(shape) * 50).astype(dtype)
    pretend(monkeypatch, vulkan_backend, storage_range=30_000 * x.itemsize)
    t, wide = vulkan_backend.tensor(x), x.astype(np.float64)
    for axis in (None, *range(x.ndim)):
        same(xp.max(t, axis=axis), x.max(axis))
        same(xp.argmin(t, axis=axis), x.argmin(axis))
        size = np.abs(wide).sum(axis)
        assert (np.abs(xp.sum(t, axis=axis).numpy() - wide.sum(axis)) <= 2.0**-22 * size).all()
        if dtype == "float32":
            np.testing.assert_allclose(xp.std(t, axis=axis).numpy(), wide.std(axis), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_variances_in_one_pass(vulkan_backend, dtype):
    """Far from zero, from an outlier on, of equal numbers, of rows and columns, in runs and not, in parts and not."""
    kind = np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)
    noise = RNG.standard_normal((48, 5001))
    outlier = noise.copy()
    outlier[:, 0] = 500
    infinite = noise.copy()
    infinite[3, 2500], infinite[5, 0], infinite[7, 1] = np.inf, -np.inf, np.nan
    for given in (noise, noise + 1000, outlier, np.full_like(noise, 0.1), infinite, noise[:, :8], noise[:20, :1]):
        array = given.astype(kind)
        wide = array.astype(np.float64)
        with np.errstate(invalid="ignore"):
            exact = wide.var(-1)
        bound = exact * (2e-6 if dtype == "float32" else 2.0**-8 if dtype == "bfloat16" else 2.0**-10)
        for t, axis in ((vulkan_backend.tensor(array), -1), (vulkan_backend.tensor(np.ascontiguousarray(array.T)), 0)):
            found = xp.var(t, axis=axis).numpy().astype(np.float64)
            np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
            assert (np.abs(found - exact) <= bound)[~np.isnan(exact)].all()
    assert np.isnan(xp.var(vulkan_backend.tensor(noise[:, :0].astype(kind)), axis=-1).numpy().astype(np.float32)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(5, 4104), (3, 2, 1024), (7, 40), (2, 1001)], ids=str)
def test_running_sums_in_runs(vulkan_backend, dtype, shape):
    """Rows that begin at runs and end with them, and others; slices, steps and columns."""
    kind = np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)
    x = (RNG.standard_normal(shape) / 8).astype(kind)
    t = vulkan_backend.tensor(x)
    step = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}[dtype]
    for part in (np.s_[:], np.s_[..., 8:32], np.s_[..., 1:], np.s_[1:, ..., ::2]):
        own, wide = t[part], x[part].astype(np.float64)
        for axis in (-1, 0):
            exact = np.cumsum(wide, axis)
            bound = step * np.abs(exact) + 2.0**-22 * np.cumsum(np.abs(wide), axis) + 2.0**-25
            found = xp.cumulative_sum(own, axis=axis)
            assert found.dtype == kind
            assert (np.abs(found.numpy().astype(np.float64) - exact) <= bound).all()
    again, wide = xp.cumulative_sum(t, axis=-1, dtype="float32").numpy(), x.astype(np.float64)
    assert (np.abs(again - np.cumsum(wide, -1)) <= 2.0**-22 * np.cumsum(np.abs(wide), -1)).all()
    held = x.copy()
    held[..., 3], held[0, ..., 11] = np.inf, np.nan
    np.testing.assert_array_equal(
        xp.cumulative_sum(vulkan_backend.tensor(held), axis=-1).numpy()[..., 3:].astype(np.float32),
        np.cumsum(held.astype(np.float32), -1)[..., 3:],
    )


def test_edges_of_reductions(vulkan_backend):
    x = np.array([[1, np.nan, 3], [np.inf, -np.inf, 2], [np.inf, 1, 2]], np.float32)
    t = vulkan_backend.tensor(x)
    for name in ("max", "sum", "argmax"):
        np.testing.assert_array_equal(getattr(xp, name)(t, axis=1).numpy(), getattr(np, name)(x, 1))
    empty = t[:, :0]
    assert xp.sum(empty, axis=1).tolist() == [0] * 3 and xp.prod(empty, axis=1).tolist() == [1] * 3
    assert xp.all(empty).item() is True and xp.any(empty).item() is False and np.isnan(xp.mean(empty).item())
    assert xp.sum(t[:0], axis=1).shape == (0,)
    many = vulkan_backend.tensor(np.full(2_000_000, 0.1, np.float32))
    assert xp.sum(many).item() == np.float32(2_000_000 * float(np.float32(0.1))), "added up one by one it is 0.4 % off"
    assert xp.sum(many).item() == xp.sum(many).item()
    wide = np.full(3, 2**62)
    assert xp.sum(vulkan_backend.tensor(wide)).item() == int(wide.sum()), "wraps as NumPy's"


def test_a_broadcast_row_of_more_elements_than_a_word_counts(vulkan_backend):
    x = vulkan_backend.tensor(np.ones(1, np.float32))
    with pytest.raises(UnsupportedError, match="sum: a row of 8,589,934,592 elements; expected fewer than 2"):
        xp.sum(xp.broadcast_to(x, (2**33,)))


def test_moments_of_integers_that_float32_does_not_hold(vulkan_backend):
    times = np.array([[1_700_000_000, 1_700_000_010], [1_700_000_020, 1_700_000_050]])
    for dtype in ("int64", "uint32", "int32"):
        t = vulkan_backend.tensor(times.astype(dtype))
        for axis in (None, 0, 1):
            np.testing.assert_allclose(xp.var(t, axis=axis, correction=1).numpy(), times.var(axis, ddof=1), rtol=1e-6)
            np.testing.assert_allclose(xp.std(t, axis=axis).numpy(), times.std(axis), rtol=1e-6)
    cancelling = np.array([2**30, 1, -(2**30), 5], np.int32)
    assert xp.mean(vulkan_backend.tensor(cancelling)).item() == 1.5
    assert xp.mean(vulkan_backend.tensor(cancelling.astype(np.int8)), keepdims=True).shape == (1,)
