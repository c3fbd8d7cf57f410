"""Linear layers against float64 NumPy, with the device's own kernels and with those for GPUs."""


import numpy as np
import pytest

import grilly
import grilly.functional as F
from backends import on
from cases import DTYPES, assert_as_accurate
from grilly import nn, reference
from kernels import chosen_as_on, lacks, only, pretend

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


def backend_linear(backend, x, *rest, **options):
    out = on(backend, F.linear)(x, *rest, **options)
    return out.numpy() if isinstance(out, grilly.Tensor) else out


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, cols, depth", SHAPES)
def test_shapes(backend, architecture, dtype, rows, cols, depth):
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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("cols, depth", [(1, 8), (16, 264), (33, 1000), (64, 88)])
def test_few_columns_of_many_rows(vulkan_backend, dtype, cols, depth):
    """A weight in either layout, called and captured, with what follows the product."""
    backend, rows = vulkan_backend, 1031
    rng = np.random.default_rng([cols, depth])
    shapes = (rows, depth), (cols, depth), (cols,), (rows, cols)
    x, weight, bias, added = (draw(rng, *shape).astype(numpy_type(dtype)) for shape in shapes)
    wide = [array.astype(np.float64) for array in (x, weight, bias, added)]
    exact = np.maximum(wide[0] @ wide[1].T + wide[2], 0) + wide[3]
    sums = np.abs(wide[0]) @ np.abs(wide[1]).T + np.abs(wide[2]) + np.abs(wide[3])
    bound = depth * 2.0**-23 * sums + ROUNDINGS[dtype] * np.abs(exact)
    sent = [backend.tensor(array) for array in (x, weight, bias, added)]
    turned = backend.tensor(np.ascontiguousarray(weight.T)).T

    def layer(x, weight):
        return F.linear(x, weight, sent[2], activation="relu", residual=sent[3])

    for given in (sent[1], turned):
        found = layer(sent[0], given).numpy().astype(np.float64)
        assert (np.abs(found - exact) <= bound).all()
        graph = backend.capture(lambda x, given=given: abs(layer(x, given) * 2), sent[0])
        np.testing.assert_array_equal(graph(sent[0]).numpy().astype(np.float64), np.abs(found * 2))


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
            got = on(backend, F.linear)(view(sent), sent_weight[:, : own.shape[-1]], sent_bias).numpy()
            np.testing.assert_allclose(got, own @ w.T + bias, rtol=0, atol=2e-5)
        got = on(backend, F.linear)(sent, sent_weight[2:9], sent_bias[2:9]).numpy()
        np.testing.assert_allclose(got, x @ weight[2:9].T + bias[2:9], rtol=0, atol=2e-5)


@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize("gated", [False, True])
def test_activation_and_residual(backend, rows, gated):
    """In one kernel, or, where a kernel has no gates, with a dispatch behind it."""
    rng = np.random.default_rng([rows, gated])
    shapes = (rows, 40), (24, 40), (24,), (rows, 24 // (1 + gated))
    x, weight, bias, residual = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    options = {"gated": gated, "residual": residual}
    sums = x.astype(np.float64) @ weight.T + bias
    for name in ("silu", "gelu", "relu"):
        wide = reference.activation(name, sums)
        exact = (wide[:, :12] * sums[:, 12:] if gated else wide) + residual
        found = F.linear(backend.tensor(x), backend.tensor(weight), bias, activation=name, **options)
        np.testing.assert_allclose(found.numpy(), exact, rtol=1e-4, atol=1e-4)


def test_empty(backend):
    zeros = np.zeros
    assert on(backend, F.linear)(zeros((0, 4), "f"), zeros((3, 4), "f")).shape == (0, 3)
    assert on(backend, F.linear)(zeros((2, 4), "f"), zeros((0, 4), "f")).shape == (2, 0)
    bias = np.arange(3, dtype=np.float32)
    assert (on(backend, F.linear)(zeros((2, 0), "f"), zeros((3, 0), "f"), bias) == bias).all()


def test_cut_to_fit(vulkan_backend, monkeypatch):
    """Bindings, workgroup counts and work far below the device's own: cut by rows, columns and batch."""
    backend = vulkan_backend
    rng = np.random.default_rng(2)
    x, weight, bias = draw(rng, 3, 200, 64), draw(rng, 600, 64), draw(rng, 600)
    whole = on(backend, F.linear)(x, weight, bias)
    pretend(monkeypatch, backend, storage_range=100_000, groups=(65535, 2, 65535))
    counted = []
    dispatch = backend.runtime.dispatch
    monkeypatch.setattr(backend.runtime, "dispatch", lambda *a, **k: (counted.append(a), dispatch(*a, **k)))
    assert (on(backend, F.linear)(x, weight, bias) == whole).all()
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
        on(backend, F.linear)(*(np.zeros(s, d) for s, d in zip(shapes, dtypes, strict=True)))


# -- matrix units ----------------------------------------------------------------------------------------------------


def left_out(registry, item):
    """What is of matrix units alone, in the element type that is a parameter or float32."""
    if not item.function.__name__.startswith(("test_matrix_units", "test_split_")):
        return None
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    dtype = parameters.get("dtype", "float16" if item.function.__name__.endswith("aligned") else "float32")
    variants = [v for v in registry.manifest.by_operation["linear"] if "cooperative-matrix" in v.requires]
    reasons = []
    for variant in variants:
        facts = {fact: high for fact, (_, high) in variant.limits.items()} | {"align": variant.align}
        reasons.append(lacks(registry, variant, dtype, **facts))
    return None if None in reasons else f"linear on matrix units in {dtype}: the device has none that a kernel is for"


def matrix_variants(backend, dtype):
    """The variants on matrix units that the device can run; a skip where there are none."""
    registry = backend.registry
    found = []
    for variant in registry.manifest.by_operation["linear"]:
        facts = {fact: high for fact, (_, high) in variant.limits.items()} | {"align": variant.align}
        usable = lacks(registry, variant, dtype, **facts) is None
        if usable and "cooperative-matrix" in variant.requires:
            found.append(variant)
    if not found:
        pytest.skip(f"the device has no matrix units that linear has a kernel for in {dtype}")
    return found


def numpy_type(name):
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else name)


ROUNDINGS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}


def check_matrix(backend, variant, x, weight, bias, given=None):
    out = backend_linear(only(backend, variant), x if given is None else given, weight, bias, precision="high")
    wide = [None if a is None else a.astype(np.float64) for a in (x, weight, bias)]
    single = [None if a is None else a.astype(np.float32) for a in (x, weight, bias)]
    exact = reference.linear(*wide, dtype=np.float64)
    plain = reference.linear(*single, dtype=np.float32).astype(x.dtype).astype(np.float64)
    magnitude = reference.linear(*(None if a is None else np.abs(a) for a in wide), dtype=np.float64).max()
    assert out.shape == exact.shape and out.dtype == x.dtype
    error, its = np.abs(out.astype(np.float64) - exact).max(), np.abs(plain - exact).max()
    limit = 2 * its + ROUNDINGS[variant.dtype] * magnitude
    assert error <= limit, f"{variant.name}: {error:.3g}, plain float32's {its:.3g}"
    return out


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("rows", [1, 7, 129])
def test_matrix_units(vulkan_backend, dtype, rows):
    backend = vulkan_backend
    for variant in matrix_variants(backend, dtype):
        block = max(variant.tile["rows"], variant.tile["cols"])
        sizes = [(block, 64), (8, 8), (72, 200), (136, 1000)]
        if "depth_align" in variant.limits:
            sizes += [(1, 8), (5, 24), (67, 136)]
        elif variant.align == 1:
            sizes += [(1, 1), (5, 3), (67, 131), (66, 34)]
        if "panel" in variant.tile:  # every number of panels that is one piece of code, and part of one
            sizes.append((block + 8, variant.tile["panels"] * variant.tile["panel"] + 8))
        for cols, depth in sizes:
            rng = np.random.default_rng([rows, cols, depth])
            shapes = ((rows, depth), (cols, depth), (cols,))
            x, weight, bias = (draw(rng, *shape, dtype=np.float32).astype(numpy_type(dtype)) for shape in shapes)
            check_matrix(backend, variant, x, weight, bias)
            check_matrix(backend, variant, x, weight, None)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_matrix_units_strided(vulkan_backend, dtype):
    backend = vulkan_backend
    rng = np.random.default_rng(4)
    for variant in matrix_variants(backend, dtype):
        shapes = ((3, 4, 40, 48), (80, 48), (80,))
        x, weight, bias = (draw(rng, *shape, dtype=np.float32).astype(numpy_type(dtype)) for shape in shapes)
        sent = backend.tensor(x)
        first = check_matrix(backend, variant, x, weight, bias, given=sent)
        for view in (
            lambda a: a.transpose(0, 2, 1, 3), lambda a: a[:, 1:3], lambda a: a[1:, :, ::2], lambda a: a[0, 1],
        ):  # fmt: skip
            check_matrix(backend, variant, view(x), weight, bias, given=view(sent))
        for _ in range(10):
            again = check_matrix(backend, variant, x, weight, bias, given=sent)
            assert again.tobytes() == first.tobytes(), "not the same bits again"


def bound(x, weight):
    """The largest error that linear's documentation allows for "high", with float32's over a sum of K terms."""
    x, weight = np.abs(x).astype(np.float64), np.abs(weight).astype(np.float64)
    depth = x.shape[1]
    largest = x.max(axis=1)[:, None] * weight.max(axis=1)[None, :]
    return (2.0**-20 + depth * 2.0**-24) * (x @ weight.T) + 2.0**-37 * depth * largest


def test_split_any_finite_input(vulkan_backend):
    """Rows from the smallest to the largest numbers: nothing overflows on the way, and small rows keep their digits."""
    backend = vulkan_backend
    rng = np.random.default_rng(6)
    powers = np.array([-37, -36, -30, -20, -5, 0, 5, 20, 30, 37], np.float64)
    signs = rng.choice([-1, 1], (2, 10, 96))
    x, weight = (rng.uniform(0.5, 1.5, (2, 10, 96)) * signs * 10 ** powers[:, None]).astype(np.float32)
    x[3, 5] = 0
    x[4] = 0
    x[8, ::2] *= 1e-8
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    fits = np.abs(x).astype(np.float64) @ np.abs(weight).astype(np.float64).T < 3e38
    for variant in matrix_variants(backend, "float32"):
        out = backend_linear(only(backend, variant), x, weight, precision="high")
        error = np.abs(out.astype(np.float64) - exact)
        # Devices may take numbers below the normal ones for zero.
        assert (error <= bound(x, weight) + 2.0**-126)[fits].all()
        assert (out[4] == 0).all()
        assert fits.sum() > 60 and (np.abs(exact[fits]) > 1e-30).sum() > 30


def test_split_infinite_input(vulkan_backend):
    """Infinity and NaN show in their own rows and columns, and nowhere else."""
    backend = vulkan_backend
    rng = np.random.default_rng(7)
    x, weight = draw(rng, 40, 64), draw(rng, 40, 64)
    x[3, 5], x[7, 0], weight[9, 63] = np.inf, np.nan, -np.inf
    spoilt = np.zeros((40, 40), bool)
    spoilt[[3, 7]] = spoilt[:, 9] = True
    clean = bound(np.where(np.isfinite(x), x, 0), np.where(np.isfinite(weight), weight, 0))
    with np.errstate(invalid="ignore"):
        exact = x.astype(np.float64) @ weight.astype(np.float64).T
    for variant in matrix_variants(backend, "float32"):
        out = backend_linear(only(backend, variant), x, weight, precision="high")
        assert not np.isfinite(out[spoilt]).any()
        assert (np.abs(out[~spoilt] - exact[~spoilt]) <= clean[~spoilt]).all()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_matrix_units_cut_to_fit(vulkan_backend, monkeypatch, dtype):
    backend = vulkan_backend
    rng = np.random.default_rng(8)
    variant = matrix_variants(backend, dtype)[0]
    x, weight, bias = (draw(rng, *shape, dtype=dtype) for shape in ((3, 200, 64), (600, 64), (600,)))
    view = only(backend, variant)
    whole = on(view, F.linear)(x, weight, bias, precision="high")
    pretend(monkeypatch, view, storage_range=60_000, groups=(65535, 2, 65535))
    assert (on(view, F.linear)(x, weight, bias, precision="high") == whole).all()


def test_precision_refused(backend):
    zeros = np.zeros((2, 4), np.float32)
    for call in (
        lambda: F.linear(zeros, zeros, precision="low"),
        lambda: on(backend, F.linear)(zeros, zeros, precision=None),
        lambda: nn.Linear(4, 4, precision="fast"),
    ):
        with pytest.raises(ValueError, match="precision is .*; expected 'highest' or 'high'"):
            call()


def test_precision_where_there_are_no_matrix_units(backend):
    """ "high" allows less, and asks for nothing: any device takes it."""
    rng = np.random.default_rng(9)
    x, weight = draw(rng, 5, 12), draw(rng, 3, 12)
    np.testing.assert_allclose(F.linear(x, weight, precision="high"), x @ weight.T, rtol=0, atol=1e-5)
    layer = nn.Linear(12, 3, precision="high", rng=0)
    expected = x @ np.asarray(layer.weight).T + np.asarray(layer.bias)
    np.testing.assert_allclose(layer(x), expected, rtol=0, atol=1e-5)
