"""Elementary functions against float64, whole numbers and conversions against NumPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest

import grilly
from equal import same
from grilly import array_api as xp

RNG = np.random.default_rng(7)

_EDGES = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 88.7, 89.0, -87.0, 1e10, 0.5, np.pi, 2.0**25]
_VALUES = np.concatenate([
    np.array(_EDGES), RNG.standard_normal(4000) * 3, np.exp(RNG.uniform(-80, 85, 2000)),
    -np.exp(RNG.uniform(-80, 85, 2000)), RNG.uniform(-1, 1, 4000), RNG.uniform(0.5, 2, 4000),
]).astype(np.float32)  # fmt: skip
#: The most units in the last place that docs/arrays.md promises.
_BOUNDS = {
    "exp": 1.5, "expm1": 2, "log": 1.5, "log1p": 1.5, "log2": 1.5, "log10": 1.5, "sin": 3, "cos": 3, "tan": 5,
    "asin": 3, "acos": 2, "atan": 3, "sinh": 3, "cosh": 3, "tanh": 3, "asinh": 3, "acosh": 3, "atanh": 3, "erf": 3,
    "sqrt": 0.5, "reciprocal": 0.5,
}  # fmt: skip
_NUMPY = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh",
          "atanh": "arctanh", "atan2": "arctan2", "pow": "power"}  # fmt: skip


def exact(name, *arrays):
    if name == "erf":
        return np.vectorize(math.erf)(*arrays)
    with np.errstate(all="ignore"):
        return getattr(np, _NUMPY.get(name, name))(*arrays)


def errors(got, exact64):
    """Units in the last place, after the values without error were held against NumPy's."""
    with np.errstate(over="ignore"):
        want = exact64.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    edge = np.isinf(want)
    np.testing.assert_array_equal(got[edge], want[edge])
    fine = np.isfinite(want)
    assert (np.signbit(got[fine & (want == 0)]) == np.signbit(want[fine & (want == 0)])).all()
    unit = np.spacing(np.maximum(np.abs(want[fine]), np.float32(2.0**-126)))
    return np.abs(got[fine].astype(np.float64) - exact64[fine]) / unit


@pytest.mark.parametrize("name", _BOUNDS)
def test_elementary_functions_are_within_their_bounds(vulkan_backend, name):
    got, want = getattr(xp, name)(vulkan_backend.tensor(_VALUES)).numpy(), exact(name, _VALUES.astype(np.float64))
    tiny = (np.abs(want) < 2.0**-126) & (want != 0)  # devices may make zeros of these
    assert (np.abs(got[tiny]) <= 2.0**-126).all()
    assert errors(got[~tiny], want[~tiny]).max() <= _BOUNDS[name] + 1e-6


@pytest.mark.parametrize(("name", "bound"), [
    ("divide", 0.5), ("pow", 2), ("atan2", 4), ("hypot", 1), ("logaddexp", 6), ("remainder", 0), ("floor_divide", 0),
    ("copysign", 0), ("nextafter", 0), ("maximum", 0), ("minimum", 0), ("add", 0.5), ("multiply", 0.5),
])  # fmt: skip
def test_functions_of_two_are_within_their_bounds(vulkan_backend, name, bound):
    x = RNG.permutation(_VALUES)
    y = np.concatenate([_VALUES[:16], RNG.permutation(_VALUES)[16:]])
    x[:256], y[:256] = np.repeat(_VALUES[:16], 16), np.tile(_VALUES[:16], 16)
    if name in ("remainder", "floor_divide"):  # float32 has what no larger type has
        kept = np.abs(x) < 2.0**80 * np.abs(y)
        x, y = x[kept], y[kept]
    got = getattr(xp, name)(vulkan_backend.tensor(x), vulkan_backend.tensor(y)).numpy()
    if bound == 0:
        with np.errstate(all="ignore"):
            want = exact(name, x, y)
        if name in ("maximum", "minimum"):  # of two zeros either
            want, got = want + 0, got + 0
        np.testing.assert_array_equal(got, want)
        return
    want = exact(name, x.astype(np.float64), y.astype(np.float64))
    tiny = np.abs(want) < 2.0**-126  # devices may make zeros of these
    assert (np.abs(got[tiny]) <= 2.0**-126).all()
    got, want = got[~tiny], want[~tiny]
    if name == "logaddexp":  # the larger operand is a term, which the other one may all but cancel
        terms = np.maximum(x, y)[~tiny]
        fine = np.isfinite(want) & np.isfinite(terms)
        unit = np.spacing(np.maximum(np.abs(want[fine]).astype(np.float32), np.abs(terms[fine])))
        assert (np.abs(got[fine] - want[fine]) / unit).max() <= bound
        got, want = got[~fine], want[~fine]
    assert errors(got, want).max(initial=0) <= bound + 1e-6


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
def test_integers_wrap_and_divide_as_numpys(vulkan_backend, dtype):
    info = np.iinfo(dtype)
    x = RNG.integers(info.min, info.max, 997, dtype, endpoint=True)
    y = RNG.permutation(x) >> RNG.integers(0, info.bits, 997).astype(dtype)
    x[:5], y[:5] = [info.min, info.max, 0, 7, info.min], [info.max, 1, 0, 0, -1 if info.min else 1]
    a, b = vulkan_backend.tensor(x), vulkan_backend.tensor(y)
    with np.errstate(all="ignore"):
        for name in ("add", "subtract", "multiply", "floor_divide", "remainder", "bitwise_and", "bitwise_xor", "less",
                     "greater_equal", "equal", "maximum"):  # fmt: skip
            same(getattr(xp, name)(a, b), getattr(np, name)(x, y))
        shift = RNG.integers(0, info.bits, 997).astype(dtype)
        same(a << vulkan_backend.tensor(shift), x << shift)
        same(a >> vulkan_backend.tensor(shift), x >> shift)
        same(-a, -x)
        same(~a, ~x)
        same(a**3, x**3)
    same(abs(a), np.abs(x))
    same(a.astype(np.float32), x.astype(np.float32))
    same(a.astype(bool), x.astype(bool))


def test_conversions(vulkan_backend):
    x = np.array([0.0, -0.9, 2.5, 1e6, -3e9, 65504, 65520, 1e-8, 2.0**-24, np.inf, np.nan], np.float32)
    a = vulkan_backend.tensor(x)
    with np.errstate(all="ignore"):
        same(a.astype(np.float16), x.astype(np.float16))
    same(a[:5].astype(np.int64), x[:5].astype(np.int64))
    same(a.astype(bool), x.astype(bool))
    assert a[9:].astype(np.int64).tolist() == [2**63 - 1, 0]
    ml_dtypes = pytest.importorskip("ml_dtypes")
    got = a.astype("bfloat16").numpy()
    np.testing.assert_array_equal(got.view(np.uint16)[:10], x.astype(ml_dtypes.bfloat16).view(np.uint16)[:10])
    wide = RNG.integers(-(2**62), 2**62, 500)
    same(vulkan_backend.tensor(wide).astype(np.float32), wide.astype(np.float32))


def test_every_float16(vulkan_backend):
    """To float32 and back; and numbers between two of float16, which are rounded to the nearer, or the even one."""
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    wide = vulkan_backend.tensor(every).astype(np.float32)
    same(wide, every.astype(np.float32))
    np.testing.assert_array_equal((wide * 1.0).astype(np.float16).numpy(), every)
    between = every[: 0x7C00].astype(np.float64)
    between = ((between + np.append(between[1:], 65536.0)) / 2).astype(np.float32)
    above, below = np.nextafter(between, np.float32(1e9)), np.nextafter(between, np.float32(0))
    numbers = np.concatenate([below, between, above])
    numbers = np.concatenate([numbers, -numbers, np.float32([65504, 65519.996, 65520, np.inf, 1e-30, 0])])
    with np.errstate(over="ignore"):
        same(vulkan_backend.tensor(numbers).astype(np.float16), numbers.astype(np.float16))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_exp_of_16_bits(vulkan_backend, dtype):
    """Cheaper than float32's: within a hundredth of a unit of 16 bits before it is rounded."""
    dtype = np.dtype(dtype) if dtype != "bfloat16" else np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    x = np.arange(2**16, dtype=np.uint16).view(dtype)
    with np.errstate(all="ignore"):
        want = np.exp(x.astype(np.float64))
        got = grilly.exp(vulkan_backend.tensor(x)).numpy().astype(np.float64)
        rounded = want.astype(np.float32).astype(dtype)
    digits, least = (10, 2.0**-14) if dtype == np.float16 else (7, 2.0**-126)
    edge = ~np.isfinite(rounded.astype(np.float64))
    np.testing.assert_array_equal(got[edge], rounded[edge].astype(np.float64))
    tiny = want < 2.0**-126  # devices may make zeros of these
    assert (got[tiny] <= 2.0**-126).all()
    fine = ~edge & ~tiny
    unit = 2.0 ** (np.floor(np.log2(np.maximum(want[fine], least))) - digits)
    assert (np.abs(got[fine] - want[fine]) / unit).max() <= 0.51
