"""Factors of products in the orders in which they may lie in memory: as rows, or transposed."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

import grilly.functional as F
from grilly.compute.arrays import matmul
from grilly.compute.device.device import DeviceFacts
from grilly.compute.device.plan import Layout
from grilly.compute.device.trial import pin, view_of
from grilly.compute.matmul.factor_layout import orders
from grilly.compute.matmul.linear import linear
from grilly.registry import Registry, Request, default_manifest
from kernels import plans, pretend
from test_registry import GPU

ROUNDINGS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}
VARIANTS = default_manifest().by_operation["linear"]
ORDERS = list(itertools.product((False, True), repeat=2))
#: Rows, columns and depth: one row, several panels and what is left of the last, rows and columns past the last block.
SHAPES = [(1, 40, 4104), (7, 136, 72), (72, 200, 264)]


def numpy_type(name):
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else name)


def pinned(backend, variant):
    """A device that runs the variant; skips where it cannot."""
    facts = {fact: high for fact, (_, high) in variant.limits.items()} | {"align": variant.align}
    lacks = backend.registry._lacks(variant, Request("linear", variant.dtype, problem=facts))
    if lacks:
        pytest.skip(f"{variant.name}: {lacks}")
    return pin(view_of(backend.opened), backend.registry.choice(variant))


def placed(backend, array, transposed):
    """A tensor within a larger one that is NaN; its rows contiguous, or transposed its columns."""
    lies = array.T if transposed else array
    # Strides are as aligned as any kernel asks.
    around = np.full((lies.shape[0] + 16, -(-lies.shape[1] // 16) * 16 + 32), np.nan, lies.dtype)
    around[8 : 8 + lies.shape[0], 16 : 16 + lies.shape[1]] = lies
    part = backend.tensor(around)[8 : 8 + lies.shape[0], 16 : 16 + lies.shape[1]]
    return part.T if transposed else part


def check(got, x, weight, added, dtype, unproven=True):
    """Sums are as test_linear_rows has them, and then rounded."""
    wide_x, wide_w = x.astype(np.float64), weight.astype(np.float64)
    exact = wide_x @ wide_w.T + added
    magnitude = np.abs(wide_x) @ np.abs(wide_w).T + np.abs(added)
    bound = (2.0**-18 if unproven else 2.0**-21) * magnitude + ROUNDINGS[dtype] * np.abs(exact) + 1e-7
    off = np.abs(np.asarray(got).astype(np.float64) - exact) - bound
    assert got.shape == exact.shape and not np.isnan(off).any() and off.max() <= 0, off.max()


@pytest.mark.parametrize("transposed", ORDERS, ids=lambda t: "".join("nt"[o] for o in t))
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_every_kernel(vulkan_backend, variant, transposed):
    view = pinned(vulkan_backend, variant)
    dtype = numpy_type(variant.dtype)
    for rows, cols, depth in SHAPES:
        if transposed[0]:  # they are then read in whole words
            rows = -(-rows // 8) * 8
        if rows > variant.limits.get("rows", (1, rows))[1]:
            continue
        rng = np.random.default_rng([rows, cols, depth])
        x, weight, bias, residual = (
            rng.standard_normal(shape, dtype=np.float32).astype(dtype)
            for shape in ((rows, depth), (cols, depth), (cols,), (rows, cols))
        )
        x_there, w_there = (placed(vulkan_backend, a, t) for a, t in zip((x, weight), transposed, strict=True))
        high = {"precision": "high"} if variant.limits.get("high") == (1, 1) else {}
        bias_there, added_there = (vulkan_backend.tensor(a) for a in (bias, residual))
        got = linear(view, x_there, w_there, bias_there, residual=added_there, **high)
        check(got.numpy(), x, weight, bias.astype(np.float64) + residual, variant.dtype, variant.unproven)


def test_which_kernels_take_transposed_factors(backend):
    """Rows only, transposed only and both occur, and what the tests above run is told apart."""
    taken = {orders(backend.registry.choice(v)) for v in VARIANTS if v.dtype == "float32"}
    rows, either = (False,), (False, True)
    assert taken == {(rows, rows), (rows, (True,)), (either, either)}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("rows", [1, 16, 64, 512, 4096])
def test_nothing_is_copied_on_a_gpu(dtype, rows):
    """x @ W with NumPy's order is one dispatch, as F.linear is."""
    features = frozenset(need for v in VARIANTS for need in v.requires)
    limits = {"storage_range": 1 << 32, "offset_alignment": 16, "groups": (65535, 65535, 65535), **GPU.limits}
    device = dataclasses.replace(GPU, limits=limits, features=features, memory_bytes=1 << 36)
    registry = Registry(device, features, default_manifest())
    layouts = [Layout(s, (s[1], 1), np.dtype(dtype), 16) for s in ((rows, 1024), (1024, 2048))]
    found = matmul.plan((), layouts, DeviceFacts.of(device, "vulkan", features), registry)
    assert [step.choice.variant.operation for step in found.steps] == ["linear"]


def test_one_call_is_one_plan(vulkan_backend):
    """What repeats is planned once, whatever views it is given."""
    x, w = (vulkan_backend.tensor(np.ones(s, np.float32)) for s in ((3, 16), (16, 8)))
    before = len(plans(vulkan_backend, matmul.plan))
    for _ in range(3):
        assert (x @ w).numpy().tolist() == [[16.0] * 8] * 3
    assert len(plans(vulkan_backend, matmul.plan)) == before + 1


VIEWS = {
    "plain": lambda t: t, "rows backwards": lambda t: t[::-1], "columns backwards": lambda t: t[:, ::-1],
    "every second": lambda t: t[::2], "every second column": lambda t: t[:, ::2], "first": lambda t: t[:1],
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("of_x", VIEWS)
@pytest.mark.parametrize("of_y", VIEWS)
def test_views(backend, dtype, of_x, of_y):
    rng = np.random.default_rng(3)
    for transposed in ORDERS:
        x, y = (rng.standard_normal((24, 24)).astype(dtype) for _ in range(2))
        there = [
            backend.tensor(a.T.copy()).T if t else backend.tensor(a) for a, t in zip((x, y), transposed, strict=True)
        ]
        a, b = VIEWS[of_x](x), VIEWS[of_y](y)
        most = min(a.shape[1], b.shape[0])
        got = VIEWS[of_x](there[0])[:, :most] @ VIEWS[of_y](there[1])[:most]
        check(got.numpy(), a[:, :most], b[:most].T, 0.0, dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    "x, y",
    [
        ((2, 3, 5, 16), (2, 3, 16, 24)), ((2, 1, 5, 16), (3, 16, 24)), ((5, 16), (2, 3, 16, 24)),
        ((2, 3, 2, 5, 16), (2, 16, 24)), ((2, 3, 5, 16), (1, 1, 16, 24)), ((16,), (2, 16, 24)), ((2, 5, 16), (16,)),
        ((16,), (16,)), ((0, 16), (16, 24)), ((5, 0), (0, 24)),
    ],
    ids=str,
)  # fmt: skip
def test_leading_axes(backend, dtype, x, y):
    """As NumPy's, where heads lie between other axes in memory and where factors are transposed."""
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal(x).astype(dtype), rng.standard_normal(y).astype(dtype)
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    magnitude = np.matmul(np.abs(a).astype(np.float64), np.abs(b).astype(np.float64))
    bound = 2.0**-18 * magnitude + ROUNDINGS[dtype] * np.abs(expected) + 1e-7
    for transposed in ORDERS:
        views = []
        for array, own in zip((a, b), transposed, strict=True):
            order = list(range(array.ndim))
            if own and array.ndim > 1:
                order = [*order[:-2][::-1], order[-1], order[-2]]
            back = np.argsort(order).tolist()
            views.append(backend.tensor(np.ascontiguousarray(array.transpose(order))).transpose(back))
        got = (views[0] @ views[1]).numpy()
        assert got.shape == expected.shape
        assert (np.abs(got.astype(np.float64) - expected) <= bound).all()


def test_bindings_smaller_than_a_transposed_factor(vulkan_backend, monkeypatch):
    """What no binding holds as it lies is cut, and still right."""
    rng = np.random.default_rng(5)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((5, 256), (256, 192)))
    there = vulkan_backend.tensor(x), vulkan_backend.tensor(w)
    pretend(monkeypatch, vulkan_backend, storage_range=64 * 1024)
    check((there[0] @ there[1]).numpy(), x, w.T, 0.0, "float32")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_gradients_of_linear(backend, dtype):
    """Two of its products have transposed factors."""
    rng = np.random.default_rng(6)
    g, x, w = (rng.standard_normal(s).astype(dtype) for s in ((40, 24), (40, 16), (24, 16)))
    grads = F.linear_backward(*(backend.tensor(a) for a in (g, x, w)))
    check(grads[0].numpy(), g, w.T, 0.0, dtype)
    check(grads[1].numpy(), g.T, x.T, 0.0, dtype)
    check(grads[2].numpy()[:, None], g.T, np.ones((1, 40), dtype), 0.0, dtype)


def test_replays(vulkan_backend):
    w = vulkan_backend.tensor(np.random.default_rng(7).standard_normal((64, 32)).astype(np.float32))
    x = np.random.default_rng(8).standard_normal((4, 64)).astype(np.float32)
    graph = vulkan_backend.capture(lambda x: x @ w, vulkan_backend.tensor(x))
    for factor in (1.0, 2.0):
        got = graph(vulkan_backend.tensor(factor * x)).numpy()
        check(got, factor * x, w.numpy().T, 0.0, "float32")
