"""Kernels of linear layers: rows that they normalise first, which one a product gets, and its last columns."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import grilly
import grilly.functional as F
from cases import DTYPES
from grilly import reference
from grilly.compute.matmul import passes, split_weights
from grilly.compute.matmul.linear import linear, linear_backward, plan
from grilly.compute.matmul.tile_schedule import choose, columns_first
from grilly.registry import Request
from kernels import chosen_as_on, only
from test_linear import backend_linear, bound, check, draw, left_out, matrix_variants
from test_linear_epilogue import ROUNDINGS, TILES, VARIANTS, numpy_type, pinned

#: Looked for by its name here.
LEFT_OUT = left_out

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
        assert len(seen.timings) == 1 + (not fused) + sum(map(bool, map(variant.tile.get, ("split", "transposed"))))
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
    transposed = x.transpose(1, 0, 2, 4, 3, 5).astype(np.float64)
    exact = reference.linear(transposed, weight, norm_weight=norm, norm_eps=EPS)
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


# -- which kernel a product gets, and its last columns ----------------------------------------------------------------


@pytest.mark.parametrize(("rows", "cols", "depth", "first"), [
    (4096, 11008, 4096, 10944), (4096, 11008, 512, 10944), (2048, 28672, 4096, 28416),  # a little more than whole turns
    (3000, 11008, 4096, 11008), (4096, 5120, 13824, 5120),  # a last turn that is half full is no loss
    (128, 192, 4096, 192), (4096, 768, 512, 768),  # one turn
])  # fmt: skip
def test_columns_that_fill_whole_turns(rows, cols, depth, first):
    tile = {"rows": 128, "cols": 192, "throughput": 1215, "start": 600}
    facts = SimpleNamespace(units=132)
    assert columns_first(SimpleNamespace(tile=tile | {"rest": 350}), facts, rows, cols, depth) == first
    assert columns_first(SimpleNamespace(tile=tile), facts, rows, cols, depth) == cols


@pytest.mark.parametrize("dtype", DTYPES)
def test_last_columns_by_another_dispatch(vulkan_backend, monkeypatch, dtype):
    rng = np.random.default_rng(11)
    x, weight, bias, residual = (draw(rng, *s, dtype=dtype) for s in ((2, 9, 24), (88, 24), (88,), (2, 9, 88)))
    options = {"activation": "gelu", "residual": residual}
    whole = backend_linear(vulkan_backend, x, weight, bias, **options)
    asked = []
    monkeypatch.setattr(passes, "columns_first", lambda _, __, ___, cols, depth: asked.append(cols) or min(cols, 64))
    vulkan_backend.opened.caches.pop(plan, None)
    apart = backend_linear(vulkan_backend, x, weight, bias, **options)
    assert asked == [88, 64, 24]
    tolerance = 2.0**-9 if dtype != np.float32 else 2.0**-20
    np.testing.assert_allclose(apart.astype("f8"), whole.astype("f8"), rtol=tolerance, atol=tolerance)


def test_last_columns_of_large_products(vulkan_backend):
    """What kernels of whole workgroups leave to others, where there are such."""
    rows, cols, depth = 4096, 11008, 2048
    own, facts = vulkan_backend.opened.facts, {"outputs": rows * cols, "depth_align": 8, "transposed": 0}
    facts |= {"align": 8, "rows": rows, "cols": cols, "depth": depth}
    request = Request("linear", "float16", "generic", tuple(facts.items()))
    choice = choose(vulkan_backend.registry, request, own, rows, cols, depth, True)
    most = columns_first(choice, own, rows, cols, depth)
    if most == cols:
        pytest.skip("no kernel here leaves the last columns of a product to another one")
    rng = np.random.default_rng(12)
    x, weight, bias = (draw(rng, *s, dtype=np.float16) for s in ((rows, depth), (cols, depth), (cols,)))
    out = backend_linear(vulkan_backend, vulkan_backend.tensor(x), vulkan_backend.tensor(weight), bias)
    some, near = rng.integers(0, rows, 50), np.r_[:8, most - 100 : cols]
    exact = reference.linear(x[some], weight[near], bias[near], dtype=np.float64)
    assert np.abs(out[np.ix_(some, near)] - exact).max() <= 2.0**-10 * np.abs(exact).max()


def test_matrix_units_where_aligned(backend):
    """The registry gives 16-bit products to matrix units, and those they cannot load to the other kernels."""
    matrix_variants(backend, "float16")
    with chosen_as_on(backend, "nvidia-hopper"):
        for align, expected in ((8, "linear-matrix"), (4, "linear")):
            facts = {"align": align, "rows": 4096, "cols": 4096, "outputs": 1 << 24, "high": 0, "transposed": 0}
            assert backend.registry.resolve(Request("linear", "float16", "generic", facts)).variant.family == expected
        rng = np.random.default_rng(5)
        check(backend, *(draw(rng, *shape, dtype=np.float16) for shape in ((33, 36), (20, 36), (20,))))


def test_float32_is_split_only_on_request(backend):
    facts = {"align": 8, "rows": 4096, "cols": 4096, "outputs": 1 << 24}
    with chosen_as_on(backend, "nvidia-hopper"):
        choose = backend.registry.resolve
        assert not choose(Request("linear", "float32", "generic", {**facts, "high": 0})).tile.get("split")


def test_matrix_units_take_split_float32_on_request(backend):
    facts = {"align": 8, "rows": 4096, "cols": 4096, "outputs": 1 << 24}
    with chosen_as_on(backend, "nvidia-hopper"):
        matrix_variants(backend, "float32")
        choose = backend.registry.resolve
        assert choose(Request("linear", "float32", "generic", {**facts, "high": 1})).tile.get("split")


def test_gradients_with_a_kept_split(vulkan_backend):
    """The first call splits the transposed weight and keeps the split, which the second one reads."""
    backend = vulkan_backend
    rng = np.random.default_rng(14)
    g, x, weight = draw(rng, 40, 48), draw(rng, 40, 64), draw(rng, 48, 64)
    for variant in matrix_variants(backend, "float32"):
        view = only(backend, variant)
        tensors = [backend.tensor(a) for a in (g, x, weight)]
        first, second = (linear_backward(view.opened, *tensors, precision="high")[0].numpy() for _ in range(2))
        assert split_weights.find(tensors[2].transpose()) is not None
        assert (first == second).all()
        assert (np.abs(first - g.astype(np.float64) @ weight) <= bound(g, weight.T)).all()
