"""Activations, gated forms and their gradients against float64, with bounds in units in the last place."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
import grilly.functional as F
from grilly import nn, reference

KINDS = {
    "gelu": (F.gelu, F.gelu_backward, {}),
    "gelu_tanh": (F.gelu, F.gelu_backward, {"approximate": "tanh"}),
    "silu": (F.silu, F.silu_backward, {}),
    "quick_gelu": (F.quick_gelu, F.quick_gelu_backward, {}),
    "relu": (F.relu, F.relu_backward, {}),
    "sigmoid": (F.sigmoid, F.sigmoid_backward, {}),
    "tanh": (F.tanh, F.tanh_backward, {}),
}
#: Units in the last place of float32: docs/layers.md.
BOUNDS = {"gelu": 12, "gelu_tanh": 6, "silu": 6, "quick_gelu": 6, "relu": 0, "sigmoid": 6, "tanh": 3}
#: What may be zero, or have fewer digits.
SMALLEST = {"float32": 2.0**-119, "float16": 0.0, "bfloat16": 2.0**-119}


def numpy_type(name):
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else name)


def unit(values, dtype):
    """The distance between neighbours of a dtype at these values, in float64."""
    digits, least = {"float32": (23, -149), "float16": (10, -24), "bfloat16": (7, -133)}[dtype]
    exponent = np.frexp(np.abs(values))[1] - 1.0
    return np.maximum(2.0 ** (exponent - digits), 2.0**least)


def every_number(dtype):
    """All finite numbers of 16 bits, in float64 and in the dtype."""
    numbers = np.arange(2**16, dtype=np.uint16).view(dtype)
    numbers = numbers[np.isfinite(numbers.astype(np.float32))]
    return numbers.astype(np.float64), numbers


def spread(rng):
    """float32 numbers of every size, and of those where activations bend."""
    parts = rng.uniform(-12, 12, 60_000), rng.uniform(-100, 100, 20_000)
    small = rng.standard_normal(20_000) * 10.0 ** rng.uniform(-30, 3, 20_000)
    return np.concatenate([*parts, small, [0.0, -0.0]]).astype(np.float32)


def argument(name, x):
    """What an activation takes the exponential of, where its rounding shows in the result."""
    return np.abs(x * (1.6 + 0.0714 * x * x)) if name == "gelu_tanh" else 0.0


@pytest.mark.parametrize("name", KINDS)
def test_float32_is_within_its_bound(vulkan_backend, name):
    function, _, options = KINDS[name]
    x = spread(np.random.default_rng(0))
    exact = reference.activation(name, x, dtype=np.float64)
    got = function(vulkan_backend.tensor(x), **options).numpy()
    error = np.abs(got - exact) - SMALLEST["float32"]
    allowed = BOUNDS[name] + 3 * np.minimum(argument(name, x.astype(np.float64)), 90)
    assert (error <= allowed * unit(exact, "float32")).all(), (error / unit(exact, "float32")).max()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", KINDS)
def test_every_number_of_16_bits_is_rounded_once(vulkan_backend, name, dtype):
    """At most half a unit, and the 2^-15 of the function that short polynomials leave."""
    function, _, options = KINDS[name]
    x, own = every_number(numpy_type(dtype))
    exact = reference.activation(name, x)
    got = function(vulkan_backend.tensor(own), **options).numpy()
    assert got.dtype == own.dtype
    error = np.abs(got.astype(np.float64) - exact)
    allowed = 0.5 * unit(exact, dtype) + 2.0**-15 * np.abs(exact) + SMALLEST[dtype]
    assert (error <= allowed).all(), (error / unit(exact, dtype)).max()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", KINDS)
def test_gradients(vulkan_backend, name, dtype):
    """A slope is a sum of two terms, whose magnitudes bound its error."""
    _, backward, options = KINDS[name]
    rng = np.random.default_rng(1)
    own = spread(rng)[::7] if dtype == "float32" else every_number(numpy_type(dtype))[1]
    x = own.astype(np.float64)
    grad = rng.uniform(0.5, 2, len(x)).astype(own.dtype)
    exact = reference.activation_backward(name, grad.astype(np.float64), x)
    got = backward(vulkan_backend.tensor(grad), vulkan_backend.tensor(own), **options).numpy()
    assert got.dtype == own.dtype
    through = np.abs(reference.activation_backward(name, np.ones_like(x), x))
    with np.errstate(over="ignore", invalid="ignore"):
        terms = through + np.where(x == 0, 0, 2 * np.abs(reference.activation(name, x) / np.where(x == 0, 1, x)))
    arithmetic = 2.0**-20 if dtype == "float32" else 2.0**-14
    rounding = 0 if dtype == "float32" else 0.5 * unit(exact, dtype)
    tail = 1 + np.minimum(argument(name, x), 90)
    allowed = arithmetic * tail * terms * grad.astype(np.float64) + rounding + 2.0**-112
    assert (np.abs(got.astype(np.float64) - exact) <= allowed).all()


def test_slopes_are_the_derivatives():
    """The reference's gradients against differences of its values."""
    x = np.concatenate([np.linspace(-9, -0.1, 90), np.linspace(0.1, 9, 90)])
    for name in KINDS:
        step = 1e-6
        slope = (reference.activation(name, x + step) - reference.activation(name, x - step)) / (2 * step)
        np.testing.assert_allclose(reference.activation_backward(name, np.ones_like(x), x), slope, atol=1e-8)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_edges(vulkan_backend, dtype):
    x = vulkan_backend.tensor(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], dtype))
    ones = vulkan_backend.tensor(np.ones(5, dtype))
    for name, (function, backward, options) in KINDS.items():
        y = function(x, **options).numpy()
        assert np.isnan(y[0]), name
        np.testing.assert_array_equal(y[1:3], {"sigmoid": [1, 0], "tanh": [1, -1]}.get(name, [np.inf, 0]), name)
        assert (y[3:] == (0.5 if name == "sigmoid" else 0)).all(), name
        slope = backward(ones, x, **options).numpy()
        assert name == "relu" or np.isnan(slope[0]), name
        np.testing.assert_array_equal(slope[1:3], [0 if name in ("sigmoid", "tanh") else 1, 0], name)
    hidden = vulkan_backend.tensor(np.array([-1, -1, 2, np.nan], dtype))
    grad = vulkan_backend.tensor(np.array([np.nan, np.inf, 3, 5], dtype))
    np.testing.assert_array_equal(F.relu_backward(grad, hidden).numpy(), [0, 0, 3, 5])


def close(got, exact, dtype, units=8):
    assert got.shape == exact.shape and got.dtype == np.dtype(dtype)
    allowed = (units if dtype == "float32" else 0.6) * unit(exact, dtype)
    assert (np.abs(got.astype(np.float64) - exact) <= allowed).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gated_forms(backend, dtype):
    rng = np.random.default_rng(2)
    gate, up, grad = (rng.uniform(-3, 3, (3, 5, 37)).astype(dtype) for _ in range(3))
    sent = [backend.tensor(array) for array in (gate, up)]
    single = {"gelu": ({}, 16), "gelu_tanh": ({"approximate": "tanh"}, 40)}
    wide = [array.astype(np.float64) for array in (gate, up, grad)]
    close(F.swiglu(*sent).numpy(), reference.gated("silu", *wide[:2]), dtype)
    for name, (options, units) in single.items():
        close(F.geglu(*sent, **options).numpy(), reference.gated(name, *wide[:2]), dtype, units)
    for backward, name, options in (
        (F.swiglu_backward, "silu", {}), (F.geglu_backward, "gelu", {}),
        (F.geglu_backward, "gelu_tanh", {"approximate": "tanh"}),
    ):  # fmt: skip
        dgate, dup = backward(backend.tensor(grad), *sent, **options)
        np.testing.assert_allclose(
            dgate.numpy(), reference.activation_backward(name, wide[2] * wide[1], wide[0]), rtol=2e-3, atol=1e-5
        )
        np.testing.assert_allclose(dup.numpy(), reference.gated(name, wide[0], wide[2]), rtol=2e-3, atol=1e-5)


def test_halves_are_read_where_they_lie(vulkan_backend):
    rng = np.random.default_rng(3)
    whole = rng.uniform(-3, 3, (4, 6, 22)).astype(np.float32)
    wide, sent = whole.astype(np.float64), vulkan_backend.tensor(whole)
    for dim in (-1, 0, 1):
        value, gate = np.split(wide, 2, dim)
        close(F.glu(sent, dim).numpy(), reference.gated("sigmoid", gate, value), "float32")
        grad = rng.uniform(-1, 1, gate.shape).astype(np.float32)
        exact = np.concatenate([
            reference.gated("sigmoid", gate, grad), reference.activation_backward("sigmoid", grad * value, gate)
        ], dim)  # fmt: skip
        got = F.glu_backward(vulkan_backend.tensor(grad), sent, dim).numpy()
        np.testing.assert_allclose(got, exact, rtol=1e-6, atol=1e-9)
    gate, up = np.split(wide, 2, -1)
    with vulkan_backend.profile() as seen:
        got = F.swiglu(sent[..., :11], sent[..., 11:]).numpy()
    assert len(seen.timings) == 1, "no copies"
    close(got, reference.gated("silu", gate, up), "float32")


def test_arrays_give_arrays(backend):
    x = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
    former = grilly.use(backend)
    try:
        for function in (F.gelu, F.silu, F.glu, lambda a: F.swiglu(a, a), lambda a: F.silu_backward(a, a)):
            got, sent = function(x), function(backend.tensor(x))
            assert isinstance(got, np.ndarray) and isinstance(sent, grilly.Tensor)
            np.testing.assert_array_equal(got, sent.numpy())
        assert isinstance(F.swiglu(x, backend.tensor(x)), grilly.Tensor)
        assert all(isinstance(g, grilly.Tensor) for g in F.swiglu_backward(x, x, backend.tensor(x)))
        assert F.gelu(x[:0]).shape == (0, 4) and F.silu(x.T).shape == (4, 3)
        np.testing.assert_array_equal(F.silu(x.T), F.silu(x).T)
    finally:
        grilly.use(former)


def test_refusals(vulkan_backend):
    x, y = vulkan_backend.tensor(np.zeros((3, 4), "f")), vulkan_backend.tensor(np.zeros((4, 3), "f"))
    for call, error, text in (
        (lambda: F.gelu(np.zeros(3)), TypeError, "gelu: input is float64"),
        (lambda: F.gelu(x, approximate="erf"), ValueError, "gelu: approximate is 'erf'; expected 'none' or 'tanh'"),
        (lambda: nn.GELU("fast"), ValueError, "GELU: approximate"),
        (lambda: F.swiglu(x, y), ValueError, r"swiglu: up has shape \(4, 3\) and gate \(3, 4\)"),
        (lambda: F.swiglu(x, x.astype("float16")), TypeError, "swiglu: up is float16 and gate is float32"),
        (lambda: F.silu_backward(y, x), ValueError, "silu_backward: grad_output has shape"),
        (lambda: F.glu(y), ValueError, "glu: .*even extent"),
        (lambda: F.glu(x, 2), ValueError, "glu: axis 2 is out of bounds"),
        (lambda: F.glu_backward(x, x), ValueError, "glu_backward: grad_output has shape"),
        (lambda: reference.activation("swish", 1.0), ValueError, "activation: 'swish'"),
    ):
        with pytest.raises(error, match=text):
            call()


MODULES = {
    "gelu": nn.GELU(), "gelu_tanh": nn.GELU("tanh"), "silu": nn.SiLU(), "relu": nn.ReLU(), "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
}  # fmt: skip


def test_modules(vulkan_backend):
    rng = np.random.default_rng(4)
    x, grad = (rng.standard_normal((5, 6)).astype(np.float32) for _ in range(2))
    for name, module in MODULES.items():
        module.to(vulkan_backend).train()
        np.testing.assert_allclose(module(x), reference.activation(name, x, dtype=np.float64), rtol=1e-5, atol=1e-7)
        exact = reference.activation_backward(name, grad, x, dtype=np.float64)
        np.testing.assert_allclose(module.backward(grad), exact, rtol=1e-5, atol=1e-6)
        with pytest.raises(RuntimeError, match="no forward"):
            module.backward(grad)
        assert isinstance(module(vulkan_backend.tensor(x)), grilly.Tensor)
    glu = nn.GLU(0).to(vulkan_backend).train()
    even = x[:4]
    np.testing.assert_array_equal(glu(even), F.glu(vulkan_backend.tensor(even), 0).numpy())
    assert glu.backward(grad[:2]).shape == even.shape
    assert repr(nn.GELU("tanh")) == "GELU(approximate='tanh')" and repr(nn.GLU()) == "GLU(dim=-1)"


def test_they_replay(vulkan_backend):
    rng = np.random.default_rng(5)
    first, second = (rng.standard_normal((7, 20)).astype(np.float32) for _ in range(2))
    graph = vulkan_backend.capture(lambda x: F.glu(F.gelu(x)) * F.swiglu(x[:, :10], x[:, 10:]), first)
    for x in (first, second):
        sent = vulkan_backend.tensor(x)
        called = F.glu(F.gelu(sent)) * F.swiglu(sent[:, :10], sent[:, 10:])
        np.testing.assert_array_equal(graph(x).numpy(), called.numpy())
