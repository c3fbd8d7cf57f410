"""``grilly.linalg`` against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
from graphs import default, random
from grilly import linalg

INF = float("inf")


@pytest.fixture
def backend(vulkan_backend):
    with default(vulkan_backend):
        yield vulkan_backend


def near(found, wanted, terms, dtype=np.float32):
    """So many roundings of float32 of the magnitudes summed, and one of the result's own dtype."""
    found = found.numpy().astype(np.float64)
    assert found.shape == np.shape(wanted)
    eps = {2: 2.0**-11, 4: 2.0**-24}[np.dtype(dtype).itemsize]
    bound = eps * np.abs(wanted) + 2.0**-22 * terms + 1e-30
    assert (np.abs(found - wanted) <= bound).all()


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (2, 4, 4), (0, 3)])
@pytest.mark.parametrize("offset", [0, 1, -2, 9])
def test_diagonal_and_trace(backend, shape, offset):
    x = random(*shape)
    found = linalg.diagonal(backend.tensor(x), offset=offset)
    wanted = np.diagonal(x, offset, -2, -1)
    np.testing.assert_array_equal(found.numpy(), wanted)
    sums = linalg.trace(backend.tensor(x), offset=offset)
    near(sums, wanted.astype(np.float64).sum(-1), np.abs(wanted).sum(-1))
    whole = (x * 9).astype(np.int32)
    found = linalg.trace(backend.tensor(whole), offset=offset)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found.numpy(), np.trace(whole, offset, -2, -1))


def test_a_diagonal_is_a_view(backend):
    x = backend.tensor(random(4, 6))
    linalg.diagonal(x, offset=2)[...] = 7
    assert (np.diagonal(x.numpy(), 2) == 7).all() and np.count_nonzero(x.numpy() == 7) == 4


@pytest.mark.parametrize("left, right, axis", [((3,), (3,), -1), ((4, 3), (3,), -1), ((3, 5), (3, 5), 0),
                                               ((2, 3, 4), (1, 3, 4), -2)])  # fmt: skip
def test_cross(backend, left, right, axis):
    x, y = random(*left, seed=1), random(*right, seed=2)
    found = linalg.cross(backend.tensor(x), backend.tensor(y), axis=axis)
    wide = [array.astype(np.float64) for array in (x, y)]
    near(found, np.cross(*wide, axis=axis), 2 * np.abs(x).max() * np.abs(y).max())
    whole = [(array * 9).astype(np.int32) for array in (x, y)]
    found = linalg.cross(*map(backend.tensor, whole), axis=axis)
    np.testing.assert_array_equal(found.numpy(), np.cross(*whole, axis=axis))


def test_outer(backend):
    x, y = random(5, seed=1), random(7, seed=2)
    np.testing.assert_array_equal(linalg.outer(backend.tensor(x), backend.tensor(y)).numpy(), np.outer(x, y))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("order", [2, 1, 0, 3, 0.5, INF, -INF])
def test_vector_norm(backend, order, dtype):
    x = random(3, 4, 5).astype(dtype)
    x[0, 0] = 0
    for axis, keepdims in ((None, False), (1, True), ((0, 2), False)):
        found = linalg.vector_norm(backend.tensor(x), axis=axis, keepdims=keepdims, ord=order)
        assert found.dtype == np.dtype(dtype)
        size = np.abs(x.astype(np.float64))
        if order == 0:
            wanted = (size != 0).sum(axis, keepdims=keepdims).astype(float)
        elif abs(order) == INF:
            wanted = (size.max if order > 0 else size.min)(axis, keepdims=keepdims)
        else:
            wanted = (size**order).sum(axis, keepdims=keepdims) ** (1 / order)
        near(found, wanted, 4 * wanted, dtype)


def test_vector_norm_of_large_numbers_of_16_bits(backend):
    x = np.full(16, 3000, np.float16)  # whose squares float16 does not hold
    assert linalg.vector_norm(backend.tensor(x)).numpy() == 12000


@pytest.mark.parametrize("order", ["fro", None, 1, -1, INF, -INF])
def test_matrix_norm(backend, order):
    x = random(2, 5, 3)
    for keepdims in (False, True):
        wanted = np.linalg.norm(x.astype(np.float64), order, (-2, -1), keepdims)
        near(linalg.matrix_norm(backend.tensor(x), ord=order, keepdims=keepdims), wanted, 4 * wanted)


def test_matrix_power(backend):
    whole = np.array([[[1, 2], [3, -1]], [[0, 1], [1, 0]]], np.int32)
    for n in (0, 1, 2, 5):
        found = linalg.matrix_power(backend.tensor(whole), n)
        np.testing.assert_array_equal(found.numpy(), np.linalg.matrix_power(whole, n))
        found = linalg.matrix_power(backend.tensor(whole.astype(np.float32)), n)
        np.testing.assert_array_equal(found.numpy(), np.linalg.matrix_power(whole, n))


@pytest.mark.parametrize("axes", [1, np.int64(1), (1, 0), (-1, 0), ([1, 0], [0, 1]), ((1,), 0)], ids=str)
def test_tensordot(backend, axes):
    x, y = random(4, 5, seed=1), random(5, 4, seed=2)
    found = linalg.tensordot(backend.tensor(x), backend.tensor(y), axes=axes)
    near(found, np.tensordot(x.astype(np.float64), y, axes=axes), 20 * np.abs(x).max() * np.abs(y).max())


def test_the_namespace(backend):
    assert grilly.linalg is linalg
    for name in ("matmul", "matrix_transpose", "tensordot", "vecdot"):
        assert getattr(linalg, name) is getattr(grilly, name)
    x = backend.tensor(random(4, 3, seed=1))
    graph = backend.capture(lambda x: linalg.vector_norm(x, axis=1), x)
    np.testing.assert_array_equal(graph(x).numpy(), linalg.vector_norm(x, axis=1).numpy())


@pytest.mark.parametrize("call, error, words", [
    (lambda x: linalg.cross(x, x), ValueError, r"expected 3 elements along axis -1"),
    (lambda x: linalg.cross(x, x[0], axis=0), ValueError, r"expected 3 elements along axis 0"),
    (lambda x: linalg.diagonal(x[0]), ValueError, r"has shape \(4,\); expected at least two axes"),
    (lambda x: linalg.outer(x, x), ValueError, "expected one axis each"),
    (lambda x: linalg.matrix_norm(x, ord=2), ValueError, "ord is 2; expected 'fro'"),
    (lambda x: linalg.matrix_norm(x[0]), ValueError, "expected at least two axes"),
    (lambda x: linalg.matrix_norm(x.astype("int32")), TypeError, "x is int32; expected a floating dtype"),
    (lambda x: linalg.vector_norm(x > 0), TypeError, "x is bool; expected a floating dtype"),
    (lambda x: linalg.vector_norm(x, ord="fro"), ValueError, "ord is 'fro'; expected a number; .*matrix_norm"),
    (lambda x: linalg.vector_norm(x, dim=1), TypeError, "vector_norm: .* 'dim'; here give axis"),
    (lambda x: linalg.vector_norm(x, p=1), TypeError, "vector_norm: .* 'p'; here give ord"),
    (lambda x: linalg.vecdot(x, x, dim=1), TypeError, "vecdot: .* 'dim'; here give axis"),
    (lambda x: linalg.cross(x, x, dim=1), TypeError, "cross: .* 'dim'; here give axis"),
    (lambda x: linalg.matrix_norm(x, keepdim=True), TypeError, "matrix_norm: .* 'keepdim'; here give keepdims"),
    (lambda x: linalg.matrix_norm(x, dim=(0, 1)), TypeError, "matrix_norm: .* 'dim'; here give nothing: matrices"),
    (lambda x: linalg.diagonal(x, dim1=0), TypeError, "diagonal: .* 'dim1'; here give nothing: matrices"),
    (lambda x: linalg.trace(x, axis1=0), TypeError, "trace: .* 'axis1'; here give nothing: matrices"),
    (lambda x: linalg.tensordot(x, x, axes=(1, 1, 1)), ValueError, r"axes is \(1, 1, 1\); expected a number, or"),
    (lambda x: linalg.tensordot(x, x, axes=1.5), TypeError, "tensordot: axes is 1.5; expected an integer"),
    (lambda x: linalg.matrix_power(x, 2), ValueError, "expected square matrices"),
    (lambda x: linalg.matrix_power(x[:, :3], -1), ValueError, "n is -1; expected at least 0"),
])  # fmt: skip
def test_what_is_refused(backend, call, error, words):
    with pytest.raises(error, match=words):
        call(backend.tensor(random(3, 4)))
