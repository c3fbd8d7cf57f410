"""Rotary positions against float64 NumPy."""


import numpy as np
import pytest

import grilly
import grilly.functional as F
from backends import on
from cases import DTYPES, assert_as_accurate
from grilly import reference
from kernels import pretend


def draw(*shape, dtype=np.float32):
    return np.random.default_rng([*shape]).standard_normal(shape).astype(dtype)


def check(backend, x, **options):
    exact = reference.rope(x, dtype=np.float64, **options)
    plain = reference.rope(x.astype(np.float32), **options).astype(x.dtype)
    scaling, dim = options.pop("scaling", None), options.pop("dim", x.shape[-1])
    options["frequencies"] = reference.rope_frequencies(dim, options.pop("base", 10000.0), scaling)
    out = on(backend, F.rope)(x, **options)
    assert isinstance(out, np.ndarray)
    assert_as_accurate(out, exact, plain, str(options), magnitude=2 * float(np.abs(x).max()))
    on_device = on(backend, F.rope)(backend.tensor(x), **options)
    assert isinstance(on_device, grilly.Tensor) and (on_device.numpy() == out).all()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 37, 64), (2, 37, 30), (5, 2), (1, 1, 1, 256), (131, 80)], ids=str)
def test_shapes(backend, interleaved, dtype, shape):
    check(backend, draw(*shape, dtype=dtype), interleaved=interleaved)


@pytest.mark.parametrize("offset", [0, 1, 1000, 65_535, 999_983, 2**31 - 200])
def test_far_positions(backend, offset):
    """Angles stay exact: float32 sines of large arguments, or float32 angles, would be off by whole turns."""
    check(backend, draw(3, 101, 64), offset=offset)


@pytest.mark.parametrize("options", [
    {"base": 500_000.0}, {"dim": 20}, {"dim": 20, "interleaved": True}, {"scaling": {"type": "linear", "factor": 4.0}},
    {"scaling": {"type": "ntk", "factor": 8.0}, "offset": 5000},
], ids=str)  # fmt: skip
def test_options(backend, options):
    check(backend, draw(2, 3, 29, 48), **options)


@pytest.mark.parametrize("shape", [(3, 2, 11, 8), (3, 11, 8)])
@pytest.mark.parametrize("per_batch", [False, True])
def test_positions(backend, shape, per_batch):
    rng = np.random.default_rng(4)
    positions = rng.integers(0, 1_000_000, (3, 11) if per_batch else 11)
    check(backend, draw(*shape), positions=positions)
    sent = backend.tensor(positions.astype(np.int32))
    placed = on(backend, F.rope)(draw(*shape), positions=positions)
    assert (on(backend, F.rope)(draw(*shape), positions=sent) == placed).all()


def test_every_eighth_of_a_turn(backend):
    """The corners of the range reduction: multiples of an eighth of a turn and their neighbours."""
    x = np.tile(np.array([1.0, 0.0], np.float32), (4096, 1))
    frequency = 2 * np.pi / 4096
    got = on(backend, F.rope)(x, frequencies=[frequency])
    angle = np.arange(4096) * frequency
    np.testing.assert_allclose(got, np.stack([np.cos(angle), np.sin(angle)], 1), rtol=0, atol=1.2e-7)
    for place, (c, s) in {0: (1, 0), 1024: (0, 1), 2048: (-1, 0), 3072: (0, -1)}.items():
        np.testing.assert_allclose(got[place], (c, s), rtol=0, atol=1e-9)


def test_strided(backend):
    x = draw(2, 13, 3, 16)
    want = reference.rope(x.transpose(0, 2, 1, 3))
    out = on(backend, F.rope)(backend.tensor(x).transpose(0, 2, 1, 3))
    np.testing.assert_allclose(out.numpy(), want, rtol=0, atol=5e-7)
    assert out.transpose(0, 2, 1, 3).is_contiguous, "the output's axes lie in memory as the input's"
    part = on(backend, F.rope)(backend.tensor(x)[..., 3:11])
    np.testing.assert_allclose(part.numpy(), reference.rope(x[..., 3:11]), rtol=0, atol=5e-7)
    columns = on(backend, F.rope)(backend.tensor(x).transpose(0, 2, 3, 1)[..., :12])
    np.testing.assert_allclose(columns.numpy(), reference.rope(x.transpose(0, 2, 3, 1)[..., :12]), rtol=0, atol=5e-7)


def test_cut_to_fit(vulkan_backend, monkeypatch):
    backend, x = vulkan_backend, draw(2, 3, 500, 16)
    positions = np.random.default_rng(5).integers(0, 10_000, (2, 500))
    whole, placed = on(backend, F.rope)(x, offset=7), on(backend, F.rope)(x, positions=positions)
    pretend(monkeypatch, backend, storage_range=20_000, groups=(65535, 50, 4))
    assert (on(backend, F.rope)(x, offset=7) == whole).all()
    assert (on(backend, F.rope)(x, positions=positions) == placed).all()


def test_empty(backend):
    assert on(backend, F.rope)(np.zeros((2, 0, 8), np.float32)).shape == (2, 0, 8)


@pytest.mark.parametrize(
    "shape, options, error, text",
    [
        ((4, 7), {}, ValueError, "must be even"),
        ((7,), {}, ValueError, "expected"),
        ((4, 8), {"offset": -1}, ValueError, "offset is -1"),
        ((4, 8), {"positions": np.array([0, 1, -2, 3])}, ValueError, "from -2 to 3"),
        ((4, 8), {"positions": np.arange(3)}, ValueError, r"\(3,\)"),
        ((4, 8), {"positions": np.zeros((1, 4), int)}, ValueError, r"\(1, 4\)"),
        ((2, 5, 3, 8), {"positions": np.zeros((2, 5), int)}, ValueError, r"turn \(B, S, H, D\) into \(B, H, S, D\)$"),
        ((2, 5, 3, 8), {"positions": np.arange(5)}, ValueError, r"turn \(B, S, H, D\) into \(B, H, S, D\)$"),
        ((2, 5, 3, 8), {"positions": np.arange(4)}, ValueError, r"expected \(3,\) or \(2, 3\)$"),
        ((4, 8), {"positions": np.zeros(4)}, TypeError, "integers"),
        ((4, 8), {"frequencies": np.ones(5)}, ValueError, "1 to 4"),
        ((4, 8), {"frequencies": [np.nan]}, ValueError, "finite"),
        ((4, 8), {"base": 0.0}, ValueError, "base"),
    ],
)
def test_refused(backend, shape, options, error, text):
    with pytest.raises(error, match=f"rope: .*{text}"):
        on(backend, F.rope)(np.zeros(shape, np.float32), **options)
