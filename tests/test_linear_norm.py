"""linear of rows that it normalises first, by every kernel: part of the one dispatch, or a dispatch before it."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
import grilly.functional as F
from grilly import reference
from grilly.compute.products.linear import linear
from test_linear_epilogue import ROUNDINGS, TILES, VARIANTS, numpy_type, pinned

EPS, OFFSET = 1e-5, 0.5


class Case:
    """Rows of very different sizes, and what a call gives in float64."""

    def __init__(self, dtype, rows, cols, depth):
        rng = np.random.default_rng([rows, cols, depth])
        x, weight, norm = (rng.standard_normal(s, dtype=np.float32) for s in ((rows, depth), (cols, depth), (depth,)))
        x *= np.exp2(rng.integers(-6, 7, (rows, 1))).astype(np.float32)
        x[rows // 2 :: 7] = 0
        self.x, self.weight, self.norm = (a.astype(dtype) for a in (x, weight, norm))
        wide = [a.astype(np.float64) for a in (self.x, self.weight, self.norm)]
        self.normed = reference.rms_norm(wide[0], depth, wide[2], EPS, OFFSET)
        self.exact, self.magnitude = self.normed @ wide[1].T, np.abs(self.normed) @ np.abs(wide[1]).T

    def check(self, got, variant, fused):
        rounding = ROUNDINGS[variant.dtype]
        error = (2.0**-18 if variant.unproven else 2.0**-20) * self.magnitude
        error += 0 if fused else rounding / 2 * self.magnitude
        off = np.abs(got.astype(np.float64) - self.exact)
        assert got.dtype == self.x.dtype
        assert (off <= error + rounding * np.abs(self.exact) + 2.0**-24).all(), f"{variant.name}: {off.max():.3g}"


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_every_kernel(vulkan_backend, variant):
    dtype = numpy_type(variant.dtype)
    align, shared = max(variant.align, 2), TILES.get(variant.family, {})
    calls = ({}, 2, -(-70 // align) * align, 144), (shared, 1, 48, 272), (shared, 18, 48, 272)
    for tile, rows, cols, depth in calls:
        view = pinned(vulkan_backend, variant, **tile)
        case = Case(dtype, rows, cols, depth)
        x, weight, norm = (view.tensor(a) for a in (case.x, case.weight, case.norm))
        options = {"precision": "high", "norm_weight": norm, "norm_eps": EPS, "norm_offset": OFFSET}
        fused = min(rows, variant.tile["rows"]) <= variant.tile.get("norm", 0)
        linear(view, x, weight, **options)  # splits the weight, where the kernel does
        with vulkan_backend.profile() as seen:
            got = linear(view, x, weight, **options).numpy()
        case.check(got, variant, fused)
        assert len(seen.timings) == 1 + (not fused) + sum(map(bool, map(variant.tile.get, ("split", "turned"))))
        assert linear(view, x, weight, **options).numpy().tobytes() == got.tobytes()
        # With all that comes after a sum, it is that of the normalised rows.
        residual, bias = view.tensor(got[:, : cols // 2]), view.tensor(np.ones(cols, dtype))
        ends = {"activation": "silu", "gated": True, "residual": residual}
        both = linear(view, x, weight, bias, **ends, **options).numpy().astype(np.float64)
        apart = linear(view, view.tensor(case.normed.astype(dtype)), weight, bias, precision="high", **ends)
        apart = apart.numpy().astype(np.float64)
        np.testing.assert_allclose(both, apart, rtol=0, atol=8 * ROUNDINGS[variant.dtype] * np.abs(apart).max())


def few(backend):
    """A device that runs the kernel for few rows which normalises on its way."""
    for variant in VARIANTS:
        if variant.tile.get("norm") and variant.dtype == "float32":
            try:
                return pinned(backend, variant)
            except pytest.skip.Exception:
                continue
    pytest.skip("no kernel for few rows that normalises runs here")


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_weights_anywhere(vulkan_backend, offset):
    """A weight whose place no vector has, or that has gaps, and rows far apart."""
    backend, case = vulkan_backend, Case(np.float32, 2, 24, 64)
    x = backend.tensor(np.pad(case.x, ((0, 0), (0, 8))))[:, :64]
    norm = backend.tensor(np.pad(case.norm, (offset, 0)))[offset:]
    apart = backend.tensor(np.repeat(case.norm, 2))[::2]
    for device, weights in ((few(backend), (apart,) if offset % 4 else (norm, apart)), (backend.opened, (norm, apart))):
        for own in weights:
            got = linear(device, x, backend.tensor(case.weight), norm_weight=own, norm_eps=EPS, norm_offset=OFFSET)
            np.testing.assert_allclose(got.numpy(), case.exact, rtol=0, atol=1e-5 * case.magnitude.max())


def test_batches_of_more_axes(vulkan_backend):
    """Five axes, rows in an order that has no one distance, and no rows at all."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 3, 1, 2, 5, 32)).astype(np.float32)
    weight, norm = (rng.standard_normal(s).astype(np.float32) for s in ((12, 32), (32,)))
    sent = vulkan_backend.tensor(x).transpose(1, 0, 2, 4, 3, 5)
    turned = x.transpose(1, 0, 2, 4, 3, 5).astype(np.float64)
    exact = reference.linear(turned, weight, norm_weight=norm, norm_eps=EPS)
    got = F.linear(sent, vulkan_backend.tensor(weight), norm_weight=norm, norm_eps=EPS)
    np.testing.assert_allclose(got.numpy(), exact, rtol=0, atol=1e-4)
    got = F.linear(sent[:, :, 0, 0], weight, norm_weight=norm, norm_eps=EPS)
    np.testing.assert_allclose(got.numpy(), exact[:, :, 0, 0], rtol=0, atol=1e-4)
    assert F.linear(sent[:0], weight, norm_weight=norm).shape == (0, 2, 1, 5, 2, 12)


def test_its_eps_and_plans(backend):
    """PyTorch's eps where none is given; plans of other numbers are others."""
    former = grilly.use(backend)
    try:
        x = np.full((2, 8), 1e-3, np.float32)
        weight, norm = np.eye(8, dtype=np.float32), np.ones(8, np.float32)
        for eps in (None, 0.0, 1e-6, 1.0):
            for offset in (0.0, 1.0):
                got = F.linear(x, weight, norm_weight=norm, norm_eps=eps, norm_offset=offset)
                want = reference.rms_norm(x.astype(np.float64), 8, norm, eps, offset)
                assert isinstance(got, np.ndarray)
                np.testing.assert_allclose(got, want, rtol=1e-5)
    finally:
        grilly.use(former)


def test_it_replays(vulkan_backend):
    rng = np.random.default_rng(4)
    weight, norm = (vulkan_backend.tensor(rng.standard_normal(s).astype(np.float32)) for s in ((32, 16), (16,)))

    def block(x):
        return F.linear(x, weight, norm_weight=norm, activation="silu", gated=True, residual=x)

    for rows in (1, 30):
        first, second = (rng.standard_normal((rows, 16)).astype(np.float32) for _ in range(2))
        graph = vulkan_backend.capture(block, first)
        for x in (first, second):
            np.testing.assert_array_equal(graph(x).numpy(), block(vulkan_backend.tensor(x)).numpy())


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"norm_weight": np.ones(3, "f")}, ValueError, r"norm_weight has shape \(3,\); expected \(4,\)"),
        ({"norm_weight": np.ones(4, "e")}, TypeError, "norm_weight is float16"),
        ({"norm_weight": np.ones(4, "f"), "norm_eps": -1.0}, ValueError, "norm_eps is -1.0; expected a finite number"),
        ({"norm_weight": np.ones(4, "f"), "norm_eps": "1"}, TypeError, "norm_eps"),
        ({"norm_weight": np.ones(4, "f"), "norm_offset": np.inf}, ValueError, "norm_offset is inf; expected a finite"),
        ({"norm_eps": 1e-5}, ValueError, "norm_eps is 1e-05 and there is no norm_weight"),
        ({"norm_offset": 1.0}, ValueError, "norm_offset is 1.0 and there is no norm_weight"),
    ],
)
def test_refused(vulkan_backend, options, error, text):
    x, weight = np.zeros((2, 4), "f"), np.zeros((3, 4), "f")
    with pytest.raises(error, match=f"linear: {text}"):
        linear(vulkan_backend.opened, x, weight, **options)
