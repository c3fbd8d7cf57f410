"""Activations, gated forms and their gradients against float64, with bounds in units in the last place."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
import grilly.functional as F
from grilly import nn, reference

#: Numbers other than the defaults.
NUMBERS = {
    "celu": {"alpha": 2.5}, "elu": {"alpha": 0.75}, "hardshrink": {"lambd": 1.25}, "softshrink": {"lambd": 0.0},
    "hardtanh": {"min_val": -2.0, "max_val": 0.5}, "leaky_relu": {"negative_slope": -0.25},
    "softplus": {"beta": 2.5, "threshold": 5.0},
}  # fmt: skip
#: Units in the last place of float32: docs/layers.md.
BOUNDS = {
    "gelu": 12, "gelu_tanh": 6, "silu": 6, "quick_gelu": 6, "relu": 0, "sigmoid": 6, "tanh": 3,
    "celu": 4, "elu": 3, "hardshrink": 0, "hardsigmoid": 2, "hardswish": 3, "hardtanh": 0, "leaky_relu": 2,
    "logsigmoid": 5, "mish": 6, "relu6": 0, "selu": 4, "softplus": 6, "softshrink": 1, "softsign": 2, "tanhshrink": 5,
}  # fmt: skip
#: The function, its gradient, and what these and the reference are given.
KINDS = {
    name: (getattr(F, name), getattr(F, f"{name}_backward"), {}, {}) for name in BOUNDS if name != "gelu_tanh"
}  # fmt: skip
KINDS |= {f"{name} {numbers}": (*KINDS[name][:2], numbers, numbers) for name, numbers in NUMBERS.items()}
KINDS["gelu_tanh"] = (F.gelu, F.gelu_backward, {"approximate": "tanh"}, {})
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
    if name in ("softplus", "celu"):
        numbers = NUMBERS[name]
        return np.abs(x * numbers["beta"] if name == "softplus" else x / numbers["alpha"])
    return np.abs(x * (1.6 + 0.0714 * x * x)) if name == "gelu_tanh" else 0.0


@pytest.mark.parametrize("name", KINDS)
def test_float32_is_within_its_bound(vulkan_backend, name):
    function, _, options, numbers = KINDS[name]
    name = name.split()[0]
    x = spread(np.random.default_rng(0))
    exact = reference.activation(name, x, dtype=np.float64, **numbers)
    got = function(vulkan_backend.tensor(x), **options).numpy()
    error = np.abs(got - exact) - SMALLEST["float32"]
    allowed = BOUNDS[name] + 3 * np.minimum(argument(name, x.astype(np.float64)), 90)
    assert (error <= allowed * unit(exact, "float32")).all(), (error / unit(exact, "float32")).max()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", KINDS)
def test_every_number_of_16_bits_is_rounded_once(vulkan_backend, name, dtype):
    """At most half a unit, and the 2^-15 of the function that short polynomials leave."""
    function, _, options, numbers = KINDS[name]
    x, own = every_number(numpy_type(dtype))
    exact = reference.activation(name.split()[0], x, **numbers)
    got = function(vulkan_backend.tensor(own), **options).numpy()
    assert got.dtype == own.dtype
    got = got.astype(np.float64)
    beyond = np.isinf(got) & (np.abs(exact) > np.abs(x).max())
    error = np.abs(np.where(beyond, exact, got) - exact)
    allowed = 0.5 * unit(exact, dtype) + 2.0**-15 * np.abs(exact) + SMALLEST[dtype]
    assert (error <= allowed).all(), (error / unit(exact, dtype)).max()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", KINDS)
def test_gradients(vulkan_backend, name, dtype):
    """A derivative is a sum of two terms, whose magnitudes bound its error."""
    _, backward, options, numbers = KINDS[name]
    name = name.split()[0]
    rng = np.random.default_rng(1)
    own = spread(rng)[::7] if dtype == "float32" else every_number(numpy_type(dtype))[1]
    x = own.astype(np.float64)
    grad = rng.uniform(0.5, 2, len(x)).astype(own.dtype)
    exact = reference.activation_backward(name, grad.astype(np.float64), x, **numbers)
    got = backward(vulkan_backend.tensor(grad), vulkan_backend.tensor(own), **options).numpy()
    assert got.dtype == own.dtype
    through = np.abs(reference.activation_backward(name, np.ones_like(x), x, **numbers))
    with np.errstate(over="ignore", invalid="ignore"):
        share = reference.activation(name, x, **numbers) / np.where(x == 0, 1, x)
        terms = through + np.where(x == 0, 0, 2 * np.abs(share))
    arithmetic = 2.0**-20 if dtype == "float32" else 2.0**-14
    rounding = 0 if dtype == "float32" else 0.5 * unit(exact, dtype)
    tail = 1 + np.minimum(argument(name, x), 90)
    allowed = arithmetic * tail * terms * grad.astype(np.float64) + rounding + 2.0**-112
    assert (np.abs(got.astype(np.float64) - exact) <= allowed).all()


def test_derivatives():
    """The reference's gradients against differences of its values."""
    x = np.concatenate([np.linspace(-9, -0.1, 90), np.linspace(0.1, 9, 90)])
    x = x[(np.abs(np.abs(x) - 3) > 0.01) & (np.abs(x) != 6)] + 1e-4  # away from where some bend
    for key, (_, _, _, numbers) in KINDS.items():
        name, step = key.split()[0], 1e-6
        above, below = (reference.activation(name, x + by, **numbers) for by in (step, -step))
        found = reference.activation_backward(name, np.ones_like(x), x, **numbers)
        np.testing.assert_allclose(found, (above - below) / (2 * step), atol=1e-8, err_msg=key)


def test_none_is_left_out():
    """Each activation of ``grilly.functional`` has its bound, its gradient and a layer."""
    found = {name for name in F.__all__ if getattr(F, name).__module__ in (F.gelu.__module__, F.relu.__module__)}
    assert found == {f"{name}{end}" for name in BOUNDS if name != "gelu_tanh" for end in ("", "_backward")}
    layers = {name.lower() for name in nn.__all__}
    assert {name.replace("_", "") for name in BOUNDS} - layers == {"gelutanh", "quickgelu"}


SMOOTH = ("gelu", "gelu_tanh", "silu", "quick_gelu", "sigmoid", "tanh", "logsigmoid", "mish", "softsign", "tanhshrink")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_edges(vulkan_backend, dtype):
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], dtype)
    x, ones = vulkan_backend.tensor(values), vulkan_backend.tensor(np.ones(5, dtype))
    for key, (function, backward, options, numbers) in KINDS.items():
        name = key.split()[0]
        close_to = {"rtol": 1e-3 if dtype == "float16" else 1e-6, "err_msg": key}
        y, exact = function(x, **options).numpy(), reference.activation(name, values, **numbers)
        assert np.isnan(y[0]), key
        np.testing.assert_allclose(y[1:], exact[1:].astype(dtype), **close_to)
        derivative = backward(ones, x, **options).numpy()
        assert name not in SMOOTH or np.isnan(derivative[0]), key
        exact = reference.activation_backward(name, np.ones(5), values, **numbers)
        np.testing.assert_allclose(derivative[1:], exact[1:], **close_to)
    hidden = vulkan_backend.tensor(np.array([-1, -1, 2, np.nan], dtype))
    grad = vulkan_backend.tensor(np.array([np.nan, np.inf, 3, 5], dtype))
    np.testing.assert_array_equal(F.relu_backward(grad, hidden).numpy(), [0, 0, 3, 5])
    for backward in (F.relu6_backward, F.hardtanh_backward, F.softshrink_backward):
        closed = vulkan_backend.tensor(np.array([-7, 9], dtype) if backward is not F.softshrink_backward
                                       else np.array([0.25, -0.5], dtype))  # fmt: skip
        found = backward(vulkan_backend.tensor(np.array([np.nan, np.inf], dtype)), closed).numpy()
        np.testing.assert_array_equal(found, [0, 0])


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
        (lambda: reference.activation("mish", 1.0, beta=2), TypeError, "mish takes no numbers; beta given"),
        (lambda: F.elu(x, "1"), TypeError, "elu: alpha is '1'; expected a number"),
        (lambda: F.elu(x, beta=1.0), TypeError, "elu: got an unexpected keyword argument 'beta'"),
        (lambda: F.elu(x, 1.0, alpha=1.0), TypeError, "elu: 1 numbers follow"),
        (lambda: F.celu(x, 0), ValueError, "celu: alpha is 0"),
        (lambda: F.celu_backward(x, x, 0.0), ValueError, "celu_backward: alpha is 0"),
        (lambda: F.hardtanh(x, 2, 1), ValueError, "hardtanh: min_val is 2.0 and max_val 1.0"),
        (lambda: F.softshrink(x, -1), ValueError, "softshrink: lambd is -1.0"),
        (lambda: nn.CELU(0), ValueError, "CELU: alpha is 0"),
        (lambda: nn.Mish(inplace=True), TypeError, "Mish: .*inplace.*results are new arrays"),
    ):
        with pytest.raises(error, match=text):
            call()


MODULES = {
    "gelu": nn.GELU(), "gelu_tanh": nn.GELU("tanh"), "silu": nn.SiLU(), "relu": nn.ReLU(), "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(), "hardsigmoid": nn.Hardsigmoid(), "hardswish": nn.Hardswish(), "logsigmoid": nn.LogSigmoid(),
    "mish": nn.Mish(), "relu6": nn.ReLU6(), "selu": nn.SELU(), "softsign": nn.Softsign(), "tanhshrink": nn.Tanhshrink(),
    "celu": nn.CELU(2.5), "elu": nn.ELU(0.75), "hardshrink": nn.Hardshrink(1.25), "softshrink": nn.Softshrink(0.0),
    "hardtanh": nn.Hardtanh(-2, 0.5), "leaky_relu": nn.LeakyReLU(-0.25), "softplus": nn.Softplus(2.5, 5),
}  # fmt: skip


def test_modules(vulkan_backend):
    rng = np.random.default_rng(4)
    x, grad = (rng.standard_normal((5, 6)).astype(np.float32) for _ in range(2))
    for name, module in MODULES.items():
        numbers = NUMBERS.get(name, {})
        module.to(vulkan_backend).train()
        exact = reference.activation(name, x, dtype=np.float64, **numbers)
        np.testing.assert_allclose(module(x), exact, rtol=1e-5, atol=1e-7)
        exact = reference.activation_backward(name, grad, x, dtype=np.float64, **numbers)
        np.testing.assert_allclose(module.backward(grad), exact, rtol=1e-5, atol=1e-6)
        with pytest.raises(RuntimeError, match="no forward"):
            module.backward(grad)
        assert isinstance(module(vulkan_backend.tensor(x)), grilly.Tensor)
    glu = nn.GLU(0).to(vulkan_backend).train()
    even = x[:4]
    np.testing.assert_array_equal(glu(even), F.glu(vulkan_backend.tensor(even), 0).numpy())
    assert glu.backward(grad[:2]).shape == even.shape
    assert repr(nn.GELU("tanh")) == "GELU(approximate='tanh')" and repr(nn.GLU()) == "GLU(dim=-1)"
    assert repr(nn.Softplus(3)) == "Softplus(beta=3.0, threshold=20.0)" and repr(nn.Mish()) == "Mish()"


@pytest.mark.needs("torch")
def test_they_are_those_of_torch(vulkan_backend):
    """Names, defaults and values of the functions; names and arguments of the layers."""
    import inspect

    torch = pytest.importorskip("torch")
    x = np.linspace(-7, 7, 141).astype(np.float32)
    x = x[np.abs(np.abs(x) - 3) > 0.01]
    for key, (function, backward, _, numbers) in KINDS.items():
        name = key.split()[0]
        if name in ("quick_gelu", "gelu_tanh"):
            continue
        given = torch.tensor(x, requires_grad=True)
        wanted = getattr(torch.nn.functional, name)(given, **numbers)
        wanted.sum().backward()
        close_to = {"rtol": 1e-4, "atol": 1e-5, "err_msg": key}
        np.testing.assert_allclose(function(x, **numbers), wanted.detach().numpy(), **close_to)
        np.testing.assert_allclose(backward(np.ones_like(x), x, **numbers), given.grad.numpy(), **close_to)
    for name, layer in MODULES.items():
        theirs = inspect.signature(getattr(torch.nn, type(layer).__name__).__init__).parameters
        own = inspect.signature(type(layer).__init__).parameters
        ignored = ("self", "inplace", "min_value", "max_value", "args", "kwargs")
        assert {p.name: p.default for p in own.values() if p.name not in ignored} == {
            p.name: p.default for p in theirs.values() if p.name not in ignored
        }, name


def test_they_replay(vulkan_backend):
    rng = np.random.default_rng(5)
    first, second = (rng.standard_normal((7, 20)).astype(np.float32) for _ in range(2))
    graph = vulkan_backend.capture(lambda x: F.glu(F.gelu(x)) * F.swiglu(x[:, :10], x[:, 10:]), first)
    for x in (first, second):
        sent = vulkan_backend.tensor(x)
        called = F.glu(F.gelu(sent)) * F.swiglu(sent[:, :10], sent[:, 10:])
        np.testing.assert_array_equal(graph(x).numpy(), called.numpy())
