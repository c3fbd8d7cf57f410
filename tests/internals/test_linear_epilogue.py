"""What linear does with its sums before it rounds them: activations, gates and residuals, by every kernel."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
import grilly.functional as F
from grilly import reference
from grilly.compute.device.trial import pin, view_of
from grilly.compute.matmul.linear import linear, plan
from grilly.registry import Request, default_manifest
from kernels import pretend

ROUNDINGS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}
VARIANTS = default_manifest().by_operation["linear"]
ACTIVATIONS = ("relu", "sigmoid", "silu", "quick_gelu", "gelu_tanh", "gelu")


def numpy_type(name):
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else name)


def pinned(backend, variant, **tile):
    """A device that runs the variant with these numbers of its tile; skips where it cannot."""
    facts = {fact: high for fact, (_, high) in variant.limits.items()} | {"align": variant.align}
    lacks = backend.registry._lacks(variant, Request("linear", variant.dtype, problem=facts))
    if lacks:
        pytest.skip(f"{variant.name}: {lacks}")
    choice = backend.registry.choice(variant)
    choice.tile = {**choice.tile, **tile}
    return pin(view_of(backend.opened), choice)


class Case:
    """Arrays of a call, and what it gives in float64."""

    def __init__(self, seed, dtype, rows, cols, depth):
        rng = np.random.default_rng([seed, rows, cols, depth])
        shapes = (rows, depth), (cols, depth), (cols,), (rows, cols), (rows, cols // 2)
        arrays = [rng.standard_normal(shape, dtype=np.float32).astype(dtype) for shape in shapes]
        self.x, self.weight, self.bias, self.residual, self.half = arrays
        wide = [a.astype(np.float64) for a in arrays]
        self.sums = wide[0] @ wide[1].T + wide[2]
        self.magnitude = np.abs(wide[0]) @ np.abs(wide[1]).T + np.abs(wide[2])
        self.added, self.half_added = wide[3:]

    def check(self, got, variant, activation, residual, gated=False, once=True):
        """A sum is off as test_linear_rows has it; slopes are at most 1.13; then an activation and a rounding."""
        error = (2.0**-18 if variant.unproven else 2.0**-21) * self.magnitude
        rounding = ROUNDINGS[variant.dtype]
        computed = 2.0**-14 if variant.dtype != "float32" else 2.0**-19
        sums = self.sums
        value = sums if activation is None else reference.activation(activation, sums)
        if gated:
            n = sums.shape[1] // 2
            if not once:  # the products were rounded by themselves
                error = error + rounding * np.abs(sums)
            error = 1.2 * error[:, :n] * np.abs(sums[:, n:]) + np.abs(value[:, :n]) * error[:, n:] + error[:, n:] ** 2
            value = value[:, :n] * sums[:, n:]
        elif activation is not None:
            error = 1.2 * error
        error = error + computed * np.abs(value)
        if residual:
            value = value + (self.half_added if gated else self.added)
        error = error + rounding * np.abs(value) + 2.0**-24
        assert got.shape == value.shape and got.dtype == self.x.dtype
        off = np.abs(got.astype(np.float64) - value)
        assert (off <= error).all(), f"{variant.name} {activation}: {off.max():.3g}"


TILES = {"linear-rows": {"deep": 4, "fill": 1000}, "linear-rows-matrix": {"fill": 64, "splits": 8},
         "linear-matrix-small": {"fill": 64, "splits": 8, "least": 16},
         "linear-llvmpipe": {"cols": 8}}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_every_kernel(vulkan_backend, variant):
    """With whole and divided depths, past the last row and column; the last is an exact zero where relu hides all."""
    dtype = numpy_type(variant.dtype)
    for number, tile in enumerate([{}, TILES.get(variant.family)]):
        if tile is None:
            continue
        view = pinned(vulkan_backend, variant, **tile)
        align = max(variant.align, 2)
        rows, cols, depth = (3, -(-70 // align) * align, 144) if number == 0 else (18, 48, 272)
        case = Case(number, dtype, rows, cols, depth)
        x, weight, bias, residual, half = (
            view.tensor(a) for a in (case.x, case.weight, case.bias, case.residual, case.half)
        )
        for activation, added in (("gelu", residual), ("relu", None), (None, residual)):
            got = linear(view, x, weight, bias, precision="high", activation=activation, residual=added).numpy()
            case.check(got, variant, activation, added is not None)
        once = "GATED" in variant.constants
        for added in (half, None):
            options = {"precision": "high", "activation": "silu", "gated": True, "residual": added}
            with vulkan_backend.profile() as seen:
                got = linear(view, x, weight, bias, **options).numpy()
            case.check(got, variant, "silu", added is not None, gated=True, once=once)
            assert len(seen.timings) == 1 + (not once) + sum(map(bool, map(variant.tile.get, ("split", "transposed"))))
            assert linear(view, x, weight, bias, **options).numpy().tobytes() == got.tobytes()


@pytest.mark.parametrize("variant", [v for v in VARIANTS if "FINISHED" in v.constants], ids=lambda v: v.name)
def test_expressions_behind_every_kernel(vulkan_backend, variant):
    """In captured work, with the bits of calls; arrays that lie as the result, by columns, and of another dtype."""
    dtype = numpy_type(variant.dtype)
    behind = {
        "both": lambda y, r, c, n: F.relu(y * c + r),
        "numbers": lambda y, r, c, n: r - y * 2.5,
        "chosen": lambda y, r, c, n: grilly.where(n, y, -y),
        "called": lambda y, r, c, n: grilly.exp(-abs(y)) * r,
    }
    for number, tile in enumerate([{}, TILES.get(variant.family)]):
        if tile is None:
            continue
        view = pinned(vulkan_backend, variant, **tile)
        compute, align = grilly.Compute.over(view), max(variant.align, 2)
        rows, cols, depth = (3, -(-70 // align) * align, 144) if number == 0 else (18, 48, 272)
        case = Case(number, dtype, rows, cols, depth)
        arrays = [view.tensor(a) for a in (case.x, case.weight, case.bias, case.residual, case.bias)]
        arrays.append(view.tensor(case.residual > 0))

        def made(x, w, b, *rest, view=view):
            return linear(view, x, w, b, precision="high")

        alone = compute.capture(made, *arrays).dispatches
        for name, function in behind.items():

            def call(x, w, b, *rest, function=function, made=made):
                return function(made(x, w, b), *rest)

            graph, wanted = compute.capture(call, *arrays), call(*arrays).numpy()
            if name == "called" and variant.unproven and variant.tile["rows"] > 16:
                assert graph.dispatches > alone  # large blocks on matrix units call no library functions
            else:
                assert graph.dispatches == alone or "finish" in variant.tile, name  # processors take short ones
            for _ in range(2):
                assert graph(*arrays).numpy().tobytes() == wanted.tobytes(), name


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_activation(backend, dtype):
    case = Case(7, np.dtype(dtype), 5, 24, 40)
    sent = [backend.tensor(a) for a in (case.x, case.weight, case.bias)]
    variant = next(v for v in VARIANTS if v.dtype == dtype and not v.unproven)
    for name in ACTIVATIONS:
        case.check(F.linear(*sent, activation=name).numpy(), variant, name, False)
        case.check(F.linear(*sent, activation=name, gated=True).numpy(), variant, name, False, gated=True, once=False)


@pytest.mark.parametrize("rows", [1, 40])
def test_layouts_of_residuals(vulkan_backend, rows):
    """Rows at any distance, axes in any order, offsets that no vector has, and x whose rows have no one distance."""
    rng = np.random.default_rng(rows)
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    x, weight, wide = draw(3, rows, 4, 16), draw(12, 16), draw(4, 3, rows + 1, 19)
    sent, sent_weight, sent_wide = (vulkan_backend.tensor(a) for a in (x, weight, wide))
    for view in (lambda a: a, lambda a: a.transpose(0, 2, 1, 3), lambda a: a[:, :, 0], lambda a: a[1, 0, 2]):
        for place in (slice(0, 12), slice(1, 13), slice(4, 16)):
            take = lambda a: a.transpose(1, 2, 0, 3)[:, :rows, :, place]  # noqa: E731, B023
            got = F.linear(view(sent), sent_weight, activation="relu", residual=view(take(sent_wide))).numpy()
            exact = np.maximum(view(x) @ weight.T, 0) + view(take(wide))
            np.testing.assert_allclose(got, exact, rtol=0, atol=2e-5)
    many = vulkan_backend.tensor(draw(2, 1, 3, 2, 16))
    added = vulkan_backend.tensor(draw(2, 1, 2, 3, 6)).transpose(0, 1, 3, 2, 4)
    got = F.linear(many, sent_weight, activation="silu", gated=True, residual=added).numpy()
    both = many.numpy().astype(np.float64) @ weight.T.astype(np.float64)
    exact = reference.gated("silu", both[..., :6], both[..., 6:]) + added.numpy()
    np.testing.assert_allclose(got, exact, rtol=0, atol=5e-5)


@pytest.mark.parametrize("gated", [False, True])
def test_cut_to_fit(vulkan_backend, monkeypatch, gated):
    backend = vulkan_backend
    rng = np.random.default_rng(2)
    shapes = (3, 200, 64), (600, 64), (600,), (3, 200, 300 if gated else 600)
    x, weight, bias, residual = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    options = {"activation": "gelu", "residual": residual, "gated": gated}
    whole = linear(backend.opened, x, weight, bias, **options)
    few = linear(backend.opened, x[0, :2], weight, bias, **{**options, "residual": residual[0, :2]})
    pretend(monkeypatch, backend, storage_range=100_000, groups=(65535, 2, 65535))
    assert (linear(backend.opened, x, weight, bias, **options) == whole).all()
    again = linear(backend.opened, x[0, :2], weight, bias, **{**options, "residual": residual[0, :2]})
    np.testing.assert_allclose(again, few, rtol=1e-5, atol=1e-5)


def test_plans_are_kept_by_what_they_end_with(vulkan_backend):
    rng = np.random.default_rng(3)
    x, weight = (vulkan_backend.tensor(rng.standard_normal((6, 6)).astype(np.float32)) for _ in range(2))
    view = view_of(vulkan_backend.opened)
    endings = ({}, {"activation": "gelu"}, {"activation": "relu"}, {"activation": "relu", "gated": True})
    found = [linear(view, x, weight, **ending).numpy() for ending in endings]
    before = len(view.caches[plan].values())
    for ending, first in zip(endings, found, strict=True):
        assert (linear(view, x, weight, **ending).numpy() == first).all()
    assert len(view.caches[plan].values()) == before
    assert len({array.tobytes() for array in found}) == 4


def test_it_replays(vulkan_backend):
    rng = np.random.default_rng(4)
    weight, down = (vulkan_backend.tensor(rng.standard_normal(s).astype(np.float32)) for s in ((64, 16), (16, 32)))

    def block(x):
        hidden = F.linear(x, weight, activation="silu", gated=True)
        return F.linear(hidden, down, residual=x, activation="gelu_tanh")

    x = rng.standard_normal((3, 16)).astype(np.float32)
    hidden = reference.linear(x, weight.numpy(), activation="silu", gated=True, dtype=np.float64)
    exact = reference.linear(hidden, down.numpy(), activation="gelu_tanh", residual=x, dtype=np.float64)
    np.testing.assert_allclose(block(vulkan_backend.tensor(x)).numpy(), exact, rtol=1e-5, atol=1e-3)
    for rows in (1, 30):
        first, second = (rng.standard_normal((rows, 16)).astype(np.float32) for _ in range(2))
        graph = vulkan_backend.capture(block, first)
        for x in (first, second):
            np.testing.assert_array_equal(graph(x).numpy(), block(vulkan_backend.tensor(x)).numpy())


def test_arrays_and_empty_ones(backend):
    former = grilly.use(backend)
    try:
        x, weight = np.ones((2, 4), np.float32), np.ones((6, 4), np.float32)
        got = F.linear(x, weight, activation="relu", gated=True, residual=x[:, :3])
        assert isinstance(got, np.ndarray) and (got == 17).all()
        assert isinstance(F.linear(x, weight, residual=backend.tensor(np.ones((2, 6), "f"))), grilly.Tensor)
        assert F.linear(x[:0], weight, activation="relu", gated=True).shape == (0, 3)
        nothing = F.linear(x[:, :0], weight[:, :0], np.arange(6, dtype=np.float32), activation="relu", gated=True)
        np.testing.assert_array_equal(nothing, [[0, 4, 10]] * 2)
        assert F.linear(x[0], weight, activation="relu", residual=np.ones(6, np.float32)).shape == (6,)
    finally:
        grilly.use(former)


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"activation": "swish"}, ValueError, "activation is 'swish'; expected None, relu, sigmoid"),
        ({"activation": ["gelu"]}, ValueError, "activation is"),
        ({"activation": "none"}, ValueError, "activation is 'none'"),
        ({"gated": True}, ValueError, "activation is None; expected relu"),
        ({"gated": "yes", "activation": "silu"}, ValueError, "gated is 'yes'"),
        ({"gated": True, "activation": "silu"}, ValueError, "weight has .*even number of rows"),
        ({"residual": np.zeros((2, 4), "f")}, ValueError, r"residual has shape \(2, 4\); expected the .* \(2, 3\)"),
        ({"residual": np.zeros((2, 3), "e")}, TypeError, "residual is float16"),
    ],
)
def test_refused(vulkan_backend, options, error, text):
    x, weight = np.zeros((2, 4), "f"), np.zeros((3, 4), "f")
    with pytest.raises(error, match=f"linear: {text}"):
        linear(vulkan_backend.opened, x, weight, **options)
