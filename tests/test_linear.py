"""Linear layers against float64 NumPy, with the device's own kernels and with those for GPUs."""

import dataclasses

import numpy as np
import pytest

import grilly
import grilly.functional as F
from cases import assert_as_accurate
from grilly import reference
from grilly.compute.linear import linear
from kernels import chosen_as_on

ARCHITECTURES = [None, "nvidia-hopper"]
SHAPES = [
    (1, 1, 1), (1, 384, 384), (3, 5, 7), (17, 31, 67), (64, 64, 64), (65, 33, 129), (127, 131, 37), (128, 96, 256),
    (200, 1, 3), (5, 257, 1),
]  # fmt: skip


def draw(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def check(backend, x, weight, bias, given=None):
    out = backend_linear(backend, x if given is None else given, weight, bias)
    exact = reference.linear(x, weight, bias, dtype=np.float64)
    plain = reference.linear(x, weight, bias, dtype=np.float32).astype(x.dtype)
    magnitude = reference.linear(
        np.abs(x), np.abs(weight), None if bias is None else np.abs(bias), dtype=np.float64
    ).max(initial=0)
    assert_as_accurate(out, exact, plain, f"{x.shape} x {weight.shape}", magnitude)


def backend_linear(backend, x, *rest):
    out = linear(backend, x, *rest)
    return out.numpy() if isinstance(out, grilly.Tensor) else out


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("rows, cols, depth", SHAPES)
def test_shapes(backend, architecture, dtype, rows, cols, depth):
    if dtype == np.float16 and "float16-storage" not in backend.runtime.features:
        pytest.skip("the device has no float16-storage")
    rng = np.random.default_rng([rows, cols, depth])
    x, weight, bias = (draw(rng, *s, dtype=dtype) for s in ((rows, depth), (cols, depth), (cols,)))
    with chosen_as_on(backend, architecture):
        check(backend, x, weight, bias)
        check(backend, x, weight, None)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("depth", [72, 77])
def test_large_blocks(backend, architecture, depth):
    """More than 2^20 outputs: the kernels with the largest blocks, with whole and partial blocks."""
    rng = np.random.default_rng(depth)
    with chosen_as_on(backend, architecture):
        check(backend, draw(rng, 1100, depth), draw(rng, 1000, depth), draw(rng, 1000))


@pytest.mark.parametrize("shape", [(7,), (2, 7), (2, 3, 7), (2, 3, 4, 7), (2, 1, 2, 3, 7)])
def test_any_rank(backend, shape):
    rng = np.random.default_rng(0)
    x, weight, bias = draw(rng, *shape), draw(rng, 5, 7), draw(rng, 5)
    check(backend, x, weight, bias)
    check(backend, x, weight, bias, given=backend.tensor(x))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_strided(backend, architecture):
    """Views of tensors: no layout needs a copy first, but for a last axis that is strided."""
    rng = np.random.default_rng(1)
    x, weight, bias = draw(rng, 3, 4, 6, 24), draw(rng, 10, 24), draw(rng, 10)
    sent, sent_weight, sent_bias = (backend.tensor(a) for a in (x, weight, bias))
    with chosen_as_on(backend, architecture):
        for view in (
            lambda a: a.transpose(0, 2, 1, 3), lambda a: a[:, 1:3], lambda a: a[..., 1:13], lambda a: a[:, :, ::2],
            lambda a: a.transpose(0, 1, 3, 2), lambda a: a[0, 1], lambda a: a[:, None, 2:, 0],
        ):  # fmt: skip
            own = view(x)
            w = weight[:, : own.shape[-1]] if own.shape[-1] <= 24 else weight
            got = linear(backend, view(sent), sent_weight[:, : own.shape[-1]], sent_bias).numpy()
            np.testing.assert_allclose(got, own @ w.T + bias, rtol=0, atol=2e-5)
        got = linear(backend, sent, sent_weight[2:9], sent_bias[2:9]).numpy()
        np.testing.assert_allclose(got, x @ weight[2:9].T + bias[2:9], rtol=0, atol=2e-5)


def test_empty(backend):
    zeros = np.zeros
    assert linear(backend, zeros((0, 4), "f"), zeros((3, 4), "f")).shape == (0, 3)
    assert linear(backend, zeros((2, 4), "f"), zeros((0, 4), "f")).shape == (2, 0)
    bias = np.arange(3, dtype=np.float32)
    assert (linear(backend, zeros((2, 0), "f"), zeros((3, 0), "f"), bias) == bias).all()


def test_cut_to_fit(vulkan_backend, monkeypatch):
    """Bindings, workgroup counts and work far below the device's own: cut by rows, columns and batch."""
    backend = vulkan_backend
    rng = np.random.default_rng(2)
    x, weight, bias = draw(rng, 3, 200, 64), draw(rng, 600, 64), draw(rng, 600)
    whole = linear(backend, x, weight, bias)
    limits = {**backend.device.limits, "storage_range": 100_000, "groups": (65535, 2, 65535)}
    monkeypatch.setattr(backend, "device", dataclasses.replace(backend.device, limits=limits))
    counted = []
    dispatch = backend.runtime.dispatch
    monkeypatch.setattr(backend.runtime, "dispatch", lambda *a, **k: (counted.append(a), dispatch(*a, **k)))
    assert (linear(backend, x, weight, bias) == whole).all()
    assert len(counted) > 10
    for _, bindings, _, groups, *_ in counted:
        assert all(b is None or b[2] <= 100_000 for b in bindings) and groups[1] <= 2


def test_functional_takes_both(backend):
    rng = np.random.default_rng(3)
    x, weight = draw(rng, 4, 6), draw(rng, 3, 6)
    assert isinstance(F.linear(x, weight), np.ndarray)
    assert isinstance(F.linear(x, backend.tensor(weight)), grilly.Tensor)


@pytest.mark.parametrize(
    "shapes, dtypes, error, text",
    [
        (((2, 4), (3, 5)), "ff", ValueError, "last axis must have 5"),
        (((2, 4), (3,)), "ff", ValueError, r"expected \(N, K\)"),
        (((), (3, 4)), "ff", ValueError, "last axis"),
        (((2, 4), (3, 4), (4,)), "fff", ValueError, r"expected \(3,\)"),
        (((2, 4), (3, 4)), "fe", TypeError, "same dtype"),
        (((2, 4), (3, 4)), "dd", TypeError, "float64"),
    ],
)
def test_refused(backend, shapes, dtypes, error, text):
    with pytest.raises(error, match=f"linear: .*{text}"):
        linear(backend, *(np.zeros(s, d) for s, d in zip(shapes, dtypes, strict=True)))
