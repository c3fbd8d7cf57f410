"""Normalisations and softmax against float64: rows of any length and layout, numbers of any size, and gradients."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
import grilly.functional as F
from cases import DTYPES, SIXTEEN_BITS, assert_as_accurate, epsilon
from grilly import reference
from kernels import chosen, chosen_as_on, pin, pretend, request, view_of, without_sixteen_bits

U = 2.0**-24  # what a float32 rounding errs by at most, of its result
LENGTHS = [1, 2, 3, 31, 64, 257, 768, 4096, 4097, 20011]


def draw(*shape, seed=0, mean=0.0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape) + mean


def depth(cols: int) -> float:
    """Roundings behind a sum of a row: of an invocation's elements, of invocations, and of blocks and runs of blocks.

    No kernel has blocks of fewer than 16 elements where a row has more of them than one.
    """
    blocks = -(-cols // 16)
    return 18 + min(64, blocks) + blocks / 64


def layer_norm_bound(x, eps=1e-5):
    """The largest error of layer norm in float32, in units of each row's largest result.

    With R the largest distance from the mean, differences from the row's first element are at most 2 R. An invocation's
    mean of them errs by at most 34 U R; putting together two means by at most 9 U R, which is done 8 times;
    blocks one after the other add 2 U R each, and 70 U R for the differences between their means. The variance then
    errs by twice that times R over the deviation, of which a root has half. Elements, root, quotient and products: 16 U
    more.
    """
    apart = x - x.mean(-1, keepdims=True)
    blocks = -(-x.shape[-1] // 16)
    mean = 34 + 72 + (70 + 2 * (min(64, blocks) + blocks / 64) if blocks > 1 else 0)
    deviation = np.sqrt(np.square(apart).mean(-1, keepdims=True) + eps)
    return U * (mean * (1 + np.abs(apart).max(-1, keepdims=True) / deviation) + 16)


def rms_norm_bound(x):
    """... of RMS norm, in units of each result: half of what the sum of squares errs by, root, quotient, products."""
    return U * (depth(x.shape[-1]) / 2 + 14)


def softmax_bound(x):
    """... of softmax, in units of each result; also of log_softmax, absolute, but for its last roundings.

    An exponential errs by 4 U, and by its argument's rounding, U times its size, which is at most the row's range; both
    show in an element and in the sum. Invocations' sums are brought to one maximum 8 times, each as an exponential.
    """
    span = x.max(-1, keepdims=True) - x.min(-1, keepdims=True)
    return U * (depth(x.shape[-1]) + 60 + 4 * span)


def check(found, exact, bound, dtype, what):
    """``bound`` is absolute, of float32; and the result is rounded."""
    assert found.dtype == dtype and found.shape == exact.shape, what
    rounding = 0.0 if np.dtype(dtype) == np.float32 else epsilon(dtype) / 2 * np.abs(exact)
    smallest = 2.0**-24 if np.dtype(dtype) == np.float16 else 2.0**-125  # what is below may be denormal, or zero
    error = np.abs(found.astype(np.float64) - exact)
    limit = np.broadcast_to(bound, exact.shape) * (1 + epsilon(dtype)) + rounding + smallest
    worst = np.unravel_index((error - limit).argmax(), error.shape)
    assert (error <= limit).all(), f"{what}: error {error[worst]:.3g} where {limit[worst]:.3g} is allowed"


def check_layer_norm(device, x, what="", given=None):
    """``given`` is x on the device."""
    dtype, cols = x.dtype, x.shape[-1]
    weight, bias = (draw(cols, seed=n).astype(dtype) for n in (1, 2))
    wide, w, b = (a.astype(np.float64) for a in (x, weight, bias))
    plain, exact = reference.layer_norm(wide, cols), reference.layer_norm(wide, cols, w, b)
    given = device.tensor(x) if given is None else given
    found = F.layer_norm(given, cols, device.tensor(weight), device.tensor(bias)).numpy()
    bound = layer_norm_bound(wide) * np.abs(plain).max(-1, keepdims=True) * np.abs(w) + 2 * U * np.abs(exact)
    check(found, exact, bound, dtype, f"layer_norm {what}")
    if dtype == np.float32:
        # Roots and quotients may err by 4 and 5 roundings.
        single = reference.layer_norm(x, cols, weight, bias)
        assert_as_accurate(found, exact, single, f"layer_norm {what}", 5 * np.abs(exact).max())


def check_softmax(device, x, what="", given=None):
    """As check_layer_norm."""
    wide = x.astype(np.float64)
    exact = reference.softmax(wide)
    found = F.softmax(device.tensor(x) if given is None else given).numpy()
    check(found, exact, softmax_bound(wide) * exact, x.dtype, f"softmax {what}")


def check_all(device, x, what="", given=None):
    """Every forward function on rows along the last axis."""
    dtype, cols = x.dtype, x.shape[-1]
    given = device.tensor(x) if given is None else given
    check_layer_norm(device, x, what, given)
    check_softmax(device, x, what, given)
    wide, weight = x.astype(np.float64), draw(cols, seed=1).astype(dtype)
    exact = reference.rms_norm(wide, cols, weight.astype(np.float64), 1e-6, 1.0)
    found = F.rms_norm(given, cols, device.tensor(weight), 1e-6, 1.0).numpy()
    check(found, exact, rms_norm_bound(wide) * np.abs(exact), dtype, f"rms_norm {what}")
    exact = reference.log_softmax(wide)
    top = np.abs(wide - wide.max(-1, keepdims=True))
    bound = softmax_bound(wide) + U * (2 * top + 5 * np.abs(exact))
    check(F.log_softmax(given).numpy(), exact, bound, dtype, f"log_softmax {what}")


def check_gradients(device, x, what="", names=("layer_norm", "rms_norm", "softmax", "log_softmax")):
    """Within what forward's bound makes of each factor: (mean of g, mean of g y, y) with g at most G.

    |dx - exact| <= G scale (bound of each mean + |y|_max (bound of y, twice, and of the product's mean)).
    """
    dtype, cols = x.dtype, x.shape[-1]
    grad, weight = draw(*x.shape, seed=3).astype(dtype), draw(cols, seed=1).astype(dtype)
    wide, g, w = (a.astype(np.float64) for a in (x, grad, weight))
    given = [device.tensor(a) for a in (grad, x)]
    sent = device.tensor(weight)
    rows = int(np.prod(x.shape[:-1]))
    top = np.abs(g * w).max(-1, keepdims=True)
    bound = layer_norm_bound(wide)  # which is more than that of RMS norm
    for name in names[:2]:
        exact = getattr(reference, f"{name}_backward")(g, wide, cols, w)
        found = [a.numpy() for a in getattr(F, f"{name}_backward")(*given, cols, sent)]
        y = getattr(reference, name)(wide, cols)
        most = np.abs(y).max(-1, keepdims=True)
        scale = 1 / np.sqrt((np.square(wide) if name == "rms_norm" else np.square(wide - wide.mean(-1, keepdims=True)))
                            .mean(-1, keepdims=True) + (1e-5 if name == "layer_norm" else 2.0**-23))  # fmt: skip
        limit = top * scale * bound * (2 + 4 * most)
        check(found[0], exact[0], limit, dtype, f"{name} dx {what}")
        if dtype == np.float32:
            plain = getattr(reference, f"{name}_backward")(grad, x, cols, weight)[0]
            assert_as_accurate(found[0], exact[0], plain, f"{name} dx {what}", 8 * (top * scale).max())
        spread = (np.abs(g) * bound * most).sum(0) + (rows + 2) * U * np.abs(g * y).sum(0)
        check(found[1], exact[1], spread, dtype, f"{name} dweight {what}")
        if name == "layer_norm":
            check(found[2], exact[2], (rows + 2) * U * np.abs(g).sum(0), dtype, f"{name} dbias {what}")
    if "softmax" not in names:
        return
    y = reference.softmax(wide).astype(dtype)
    g_y = np.abs(g * y.astype(np.float64))
    found = F.softmax_backward(given[0], device.tensor(y)).numpy()
    limit = U * (depth(cols) + 6) * y.astype(np.float64) * (np.abs(g) + g_y.sum(-1, keepdims=True))
    check(found, reference.softmax_backward(grad, y, dtype=np.float64), limit, dtype, f"softmax {what}")
    y = reference.log_softmax(wide).astype(dtype)
    found = F.log_softmax_backward(given[0], device.tensor(y)).numpy()
    limit = U * (np.abs(g) + np.exp(y.astype(np.float64)) * (depth(cols) + 12) * np.abs(g).sum(-1, keepdims=True))
    check(found, reference.log_softmax_backward(grad, y, dtype=np.float64), limit, dtype, f"log_softmax {what}")


# -- forward ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cols", LENGTHS)
def test_rows_of_any_length(vulkan_backend, cols):
    check_all(vulkan_backend, draw(5, cols).astype(np.float32), str(cols))


@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
def test_sixteen_bits(vulkan_backend, dtype):
    check_all(vulkan_backend, draw(3, 257).astype(dtype))
    check_layer_norm(vulkan_backend, draw(3, 64).astype(dtype), "64")
    check_all(vulkan_backend, draw(5, 12).astype(dtype), "rows that begin in the middle of 16 bytes")
    check_all(vulkan_backend, draw(3, 768).astype(dtype), "768")


@pytest.mark.parametrize(
    ("name", "held", "wanted"), [("subgroups", 8, 4), ("subgroups", 8, 8), ("shared", 8, 4), ("shared", 4, 4)]
)
def test_every_kernel(vulkan_backend, name, held, wanted):
    """Those that other devices get, with rows of one invocation, several, all of a workgroup, and longer ones."""
    registry = vulkan_backend.registry
    choices = {c.variant.name.split(".")[1]: c for c in registry.candidates(request("norm-rows", "float32"))}
    if name not in choices:
        pytest.skip("the device lacks what this kernel requires")
    choice = registry.choice(choices[name].variant)
    choice.tile = {**choice.tile, "held": held, "wanted": wanted}
    view = pin(view_of(vulkan_backend), choice)
    for cols in (1, 60, 772, 8191, 8196):
        check_layer_norm(view, draw(3, cols).astype(np.float32), f"{name} {cols}")
    for cols in (129, 8196):
        check_softmax(view, draw(3, cols).astype(np.float32), f"{name} {cols}")
    x = draw(6, 700, 33).astype(np.float32)
    check_along(F.softmax(view.tensor(x), 1).numpy(), x, 1)
    check_gradients(view, draw(6, 4096).astype(np.float32), f"{name}", ("layer_norm",))
    for cols in (3, 772):  # squares beyond float32, in some rows of a workgroup
        x = (draw(10, cols) * np.resize([1e-30, 1.0, 1e25, 1e-20, 1.0], (10, 1))).astype(np.float32)
        wide = x.astype(np.float64)
        for given in (view.tensor(x), view.tensor(np.ascontiguousarray(x.T)).T):
            for norm in ("layer_norm", "rms_norm"):
                exact = getattr(reference, norm)(wide, cols, eps=0.0)
                found = getattr(F, norm)(given, cols, eps=0.0).numpy()
                assert np.abs(found - exact).max() <= 1e-5 * np.abs(exact).max(), f"{name} {norm} {cols}"
            exact = reference.rms_norm_backward(np.ones_like(wide), wide, cols, eps=0.0)[0]
            ones = view.tensor(np.ones_like(x))
            found = F.rms_norm_backward(ones, given, cols, eps=0.0)[0].numpy()
            assert (np.abs(found - exact) <= 1e-5 * np.abs(exact).max(1, keepdims=True)).all(), f"{name} {cols}"


@pytest.mark.parametrize("dtype", ["float32", *SIXTEEN_BITS])
def test_weights_that_are_fetched_late(vulkan_backend, dtype):
    """As on an Adreno 650, where an invocation holds up to six fours of a row, and weights when they are needed."""
    with chosen_as_on(vulkan_backend, "qualcomm-adreno65") as backend:
        for cols in (1, 12, 257, 4096, 6144, 6148):
            x, y = (draw(3, cols, seed=n).astype(dtype) for n in (0, 1))
            check_layer_norm(backend, x, f"{cols}")
            check_softmax(backend, x, f"{cols}")
            x, y, w = (backend.tensor(array) for array in (x, y, draw(cols, seed=2).astype(dtype)))
            found, total = F.add_layer_norm(x, y, cols, w, w)
            np.testing.assert_array_equal(total.numpy(), (x + y).numpy())
            np.testing.assert_array_equal(found.numpy(), F.layer_norm(total, cols, w, w).numpy())
        used = [choice for choice in chosen(backend) if choice.variant.family == "norm-rows"]
        assert {choice.variant.dtype for choice in used} == {np.dtype(dtype).name}
        assert all(choice.tile["late"] == 1 for choice in used)


def test_a_large_mean_loses_nothing(vulkan_backend):
    """Differences between elements count: a mean of 10,000 and a deviation of 1, and rows that are constant."""
    for cols in LENGTHS:
        x = draw(4, cols, mean=1e4).astype(np.float32)
        exact = reference.layer_norm(x, cols, dtype=np.float64)
        found = F.layer_norm(vulkan_backend.tensor(x), cols).numpy()
        bound = layer_norm_bound(x.astype(np.float64)) * np.abs(exact).max(-1, keepdims=True)
        check(found, exact, bound, np.float32, f"{cols}")
    constant = np.repeat(np.array([[1e4], [0.1], [-3e4], [0]], np.float32), 300, 1)
    assert (F.layer_norm(vulkan_backend.tensor(constant), 300).numpy() == 0).all()


def test_both_runtimes(backend):
    former = grilly.use(backend)
    try:
        x = draw(2, 3, 8, 65).astype(np.float32)
        check_all(backend, x)
        assert isinstance(F.layer_norm(x, 65), np.ndarray) and isinstance(F.softmax(backend.tensor(x)), grilly.Tensor)
        np.testing.assert_array_equal(F.layer_norm(x, 65), F.layer_norm(backend.tensor(x), 65).numpy())
    finally:
        grilly.use(former)


VIEWS = {
    "transposed": lambda a: a.transpose(0, 2, 1, 3),
    "last axis strided": lambda a: a.transpose(3, 0, 1, 2),
    "odd offset": lambda a: a[1:, 1:, 1:, 3:],
    "every other": lambda a: a[:, :, ::2, ::3],
    "quads at an offset": lambda a: a[:, :, :, 4:12],
    "one row": lambda a: a[1, 2, 3],
    "five axes": lambda a: a[:, None].transpose(4, 2, 1, 3, 0),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_views(vulkan_backend, dtype):
    x = draw(3, 4, 6, 20).astype(dtype)
    sent = vulkan_backend.tensor(x)
    for name, view in VIEWS.items():
        check_layer_norm(vulkan_backend, np.ascontiguousarray(view(x)), name, view(sent))
        check_softmax(vulkan_backend, np.ascontiguousarray(view(x)), name, view(sent))
    rows = vulkan_backend.tensor(x[0, 0])[:, None].broadcast_to((6, 5, 20))
    check_softmax(vulkan_backend, np.ascontiguousarray(np.broadcast_to(x[0, 0][:, None], (6, 5, 20))), "", rows)


def check_along(found, x, dim):
    last = np.moveaxis(x.astype(np.float64), dim, -1)
    exact = reference.softmax(last)
    check(np.moveaxis(found, dim, -1), exact, softmax_bound(last) * exact, x.dtype, f"axis {dim}")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_softmax_along_any_axis(vulkan_backend, dtype):
    for shape in ((5, 33, 40), (3, 300, 7), (2, 2, 1, 9), (1100, 3)):
        x = draw(*shape).astype(dtype)
        for dim in range(-len(shape), len(shape)):
            check_along(F.softmax(vulkan_backend.tensor(x), dim).numpy(), x, dim)
    found = F.log_softmax(vulkan_backend.tensor(draw(5, 33, 40).astype(dtype)), 1).numpy()
    np.testing.assert_allclose(np.exp(found.astype(np.float64)).sum(1), 1, rtol=33 * epsilon(dtype))


def test_several_axes_are_one_row(vulkan_backend):
    x, weight = draw(4, 3, 5, 8).astype(np.float32), draw(3, 5, 8, seed=1).astype(np.float32)
    sent, w = vulkan_backend.tensor(x), vulkan_backend.tensor(weight)
    flat = F.layer_norm(sent.reshape(4, 120), 120, w.reshape(120)).numpy()
    np.testing.assert_array_equal(F.layer_norm(sent, (3, 5, 8), w).numpy().reshape(4, 120), flat)
    np.testing.assert_array_equal(F.layer_norm(sent, [3, 5, 8], w).numpy().reshape(4, 120), flat)
    turned = vulkan_backend.tensor(np.ascontiguousarray(x.transpose(0, 3, 2, 1))).transpose(0, 3, 2, 1)
    np.testing.assert_array_equal(F.layer_norm(turned, (3, 5, 8), w).numpy().reshape(4, 120), flat)


def check_groups(backend, x, groups, what=""):
    weight, bias = (draw(x.shape[1], seed=n).astype(x.dtype) for n in (1, 2))
    found = F.group_norm(*(backend.tensor(x), groups, backend.tensor(weight), backend.tensor(bias))).numpy()
    wide = x.astype(np.float64)
    plain = reference.group_norm(wide, groups)
    exact = reference.group_norm(wide, groups, weight, bias, dtype=np.float64)
    rows = wide.reshape(x.shape[0], groups, -1)
    bound = layer_norm_bound(rows) * np.abs(plain.reshape(rows.shape)).max(-1, keepdims=True)
    bound = np.broadcast_to(bound, rows.shape).reshape(x.shape)
    w = np.abs(weight.astype(np.float64)).reshape(-1, *(1,) * (x.ndim - 2))
    check(found, exact, bound * w + U * np.abs(exact), x.dtype, what)


@pytest.mark.parametrize("dtype", DTYPES)
def test_groups(vulkan_backend, dtype):
    for shape, groups in (((3, 12), 4), ((2, 6, 5, 7), 3), ((2, 8, 4, 4), 2), ((1, 4, 1100), 1), ((2, 6, 9), 6)):
        check_groups(vulkan_backend, draw(*shape, mean=3).astype(dtype), groups, f"{shape} {groups}")


def test_rows_that_the_driver_would_cut_short_are_refused(vulkan_backend, monkeypatch):
    pretend(monkeypatch, vulkan_backend, loop_trips=10.0)
    assert F.softmax(np.zeros(1024, np.float32)).shape == (1024,)
    with pytest.raises(grilly.UnsupportedError, match="softmax: rows of 1,000,000 elements; this driver's loops end"):
        F.softmax(vulkan_backend.tensor(np.zeros(1_000_000, np.float32)))


# -- numbers that are not finite, and none at all ----------------------------------------------------------------------


def test_rows_that_are_not_finite(vulkan_backend):
    """As in PyTorch; other rows see nothing of it."""
    for cols in (65, 1028):
        x = draw(6, cols).astype(np.float32)
        x[1, 2], x[2, 0], x[3, cols - 1], x[4] = np.nan, np.inf, -np.inf, -np.inf
        sent = vulkan_backend.tensor(x)
        norm, rms = F.layer_norm(sent, cols).numpy(), F.rms_norm(sent, cols).numpy()
        weights, logs = F.softmax(sent).numpy(), F.log_softmax(sent).numpy()
        for found in (norm, rms, weights, logs):
            assert np.isfinite(found[[0, 5]]).all()
            assert np.isnan(found[[1, 4]]).all()
        assert np.isnan(norm[2:5]).all() and np.isnan(weights[2]).all() and np.isnan(logs[2]).all()
        assert np.isnan(rms[2, 0]) and (rms[2, 1:] == 0).all()
        assert weights[3, -1] == 0 and logs[3, -1] == -np.inf and np.isfinite(logs[3, :-1]).all()
        dead = vulkan_backend.attention.softmax(sent).numpy()
        assert (dead[4] == 0).all() and np.isfinite(dead[[0, 3, 5]]).all()


def test_extreme_numbers(vulkan_backend):
    x = draw(5, 300).astype(np.float32) * np.array([[1e-30], [1e-10], [1e10], [1e18], [0]], np.float32)
    sent = vulkan_backend.tensor(x)
    wide = x.astype(np.float64)
    for found, exact in ((F.layer_norm(sent, 300), reference.layer_norm(wide, 300)),
                         (F.rms_norm(sent, 300), reference.rms_norm(wide, 300))):  # fmt: skip
        np.testing.assert_allclose(found.numpy(), exact, rtol=0, atol=400 * U * np.abs(exact).max())
    found = F.softmax(vulkan_backend.tensor(np.array([[3e38, -3e38, 3e38]], np.float32))).numpy()
    np.testing.assert_array_equal(found, [[0.5, 0, 0.5]])
    halves = vulkan_backend.tensor(np.full((2, 4), 60000, np.float16))
    np.testing.assert_allclose(F.rms_norm(halves, 4).numpy(), np.ones((2, 4)), rtol=1e-3)


def test_no_elements(vulkan_backend):
    for shape, last in (((0, 4), 4), ((3, 0), 0), ((2, 0, 5), 5)):
        x, w = np.zeros(shape, np.float16), np.ones(last, np.float16)
        for given in (x, vulkan_backend.tensor(x)):
            assert F.layer_norm(given, last, w, w).shape == shape
            assert F.rms_norm(given, last).shape == shape
            assert [a.shape for a in F.add_rms_norm(given, given, last)] == [shape] * 2
            assert F.softmax(given, 0).shape == F.log_softmax_backward(given, given).shape == shape
            dx, dw, db = F.layer_norm_backward(given, given, last, w)
            assert dx.shape == shape and (np.asarray(dw) == np.zeros(last)).all() and db.dtype == np.float16
    assert F.group_norm(np.zeros((0, 6, 2), np.float32), 3).shape == (0, 6, 2)


# -- how calls are made ----------------------------------------------------------------------------------------------


def test_captured(vulkan_backend):
    weight = vulkan_backend.tensor(draw(48, seed=1).astype(np.float32))

    def function(x, y):
        a, total = F.add_rms_norm(x, y, 48, weight)
        b = F.group_norm(F.layer_norm(a, 48, weight, weight), 2)
        return F.softmax(b, 1), F.layer_norm_backward(total, b, 48, weight)

    arrays = [draw(3, 4, 48, seed=n).astype(np.float32) for n in (0, 1)]
    graph = vulkan_backend.capture(function, *arrays)
    for _ in range(2):
        found, gradients = graph(*arrays)
        expected, others = function(*(vulkan_backend.tensor(a) for a in arrays))
        for a, b in zip((found, *gradients), (expected, *others), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.fixture(scope="module")
def narrow():
    with without_sixteen_bits() as backend:
        yield backend


@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
def test_without_sixteen_bit_storage(narrow, dtype):
    x = draw(3, 77).astype(dtype)
    check_layer_norm(narrow, x)
    check_gradients(narrow, x, names=("layer_norm",))
    found = F.add_layer_norm(narrow.tensor(x), x, 77)
    assert [a.dtype for a in found] == [dtype] * 2 and all(isinstance(a, grilly.Tensor) for a in found)


def z(*shape, dtype="f"):
    return np.zeros(shape, dtype)


REFUSED = [
    ("layer_norm", (z(2, 4, dtype="d"), 4), {}, TypeError, "input is float64; expected float32, float16 or bfloat16"),
    ("layer_norm", (z(2, 4), 5), {}, ValueError, r"input has shape \(2, 4\); its last axes must be .* \(5,\)"),
    ("layer_norm", (z(4), (2, 4)), {}, ValueError, "its last axes must be"),
    ("layer_norm", (z(2, 4), ()), {}, ValueError, "expected the last extents"),
    ("layer_norm", (z(2, 4), 4.0), {}, TypeError, "normalized_shape is 4.0; expected an integer"),
    ("layer_norm", (z(2, 4), 4, z(2)), {}, ValueError, r"weight has shape \(2,\); expected \(4,\)"),
    ("layer_norm", (z(2, 4), 4, z(4), z(2, 4)), {}, ValueError, r"bias has shape \(2, 4\); expected \(4,\)"),
    ("layer_norm", (z(2, 4), 4, z(4, dtype="e")), {}, TypeError, "same dtype"),
    ("layer_norm", (z(2, 4), 4), {"eps": -1e-5}, ValueError, "eps is -1e-05; expected a finite number, 0 or more"),
    ("layer_norm", (z(2, 4), 4), {"eps": "a"}, TypeError, "eps is 'a'; expected a number"),
    ("layer_norm", ([1.0], 1), {}, TypeError, "input is a list"),
    ("rms_norm", (z(2, 4), 4), {"weight_offset": np.inf}, ValueError, "weight_offset is inf"),
    ("add_layer_norm", (z(2, 4), z(4), 4), {}, ValueError, r"residual has shape \(4,\); expected \(2, 4\)"),
    ("add_rms_norm", (z(2, 4), None, 4), {}, TypeError, "residual is a NoneType"),
    ("group_norm", (z(2, 4), 3), {}, ValueError, "4 channels cannot be divided into 3 groups"),
    ("group_norm", (z(4), 2), {}, ValueError, r"expected \(N, C, ...\)"),
    ("group_norm", (z(2, 4), True), {}, TypeError, "num_groups is True; expected an integer"),
    ("softmax", (z(),), {}, ValueError, "input has no axes"),
    ("softmax", (z(2, 4), 2), {}, ValueError, "dim is 2 and input has 2 axes"),
    ("log_softmax", (z(2, 4), 0.5), {}, TypeError, "dim is 0.5; expected an integer"),
    ("softmax", (z(2, dtype="i"),), {}, TypeError, "int32"),
    ("softmax_backward", (z(2, 4), z(4)), {}, ValueError, r"grad_output has shape \(2, 4\); expected \(4,\)"),
    ("log_softmax_backward", (None, z(4)), {}, TypeError, "grad_output is a NoneType"),
    ("layer_norm_backward", (z(4), z(2, 4), 4), {}, ValueError, "grad_output has shape"),
    ("group_norm_backward", (z(2, 4), z(2, 4), 0), {}, ValueError, "into 0 groups"),
]  # fmt: skip


@pytest.mark.parametrize("name, arguments, options, error, text", REFUSED)
def test_refused(vulkan_backend, name, arguments, options, error, text):
    former = grilly.use(vulkan_backend)
    try:
        with pytest.raises(error, match=f"^{name}: .*{text}"):
            getattr(F, name)(*arguments, **options)
    finally:
        grilly.use(former)
