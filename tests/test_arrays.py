"""Tensors compute as the array API standard and NumPy say; errors of elementary functions against float64."""

from __future__ import annotations

import math
import operator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grilly
from grilly import array_api as xp
from grilly.compute.arrays import operations, promotion, reductions, transpose
from grilly.compute.arrays.map import ABSENT, FLAT, NUMBER, REPEATED, RUNS, STRIDED, replaceable
from grilly.compute.arrays.map import plan as map_plan
from grilly.compute.device.device import DeviceFacts
from grilly.compute.device.plan import Layout
from grilly.registry import Registry
from shaderbuild.shared_facts import shared_facts

ROOM = Path(__file__).parents[1] / "shaders" / "arrays"
RNG = np.random.default_rng(7)


def same(tensor, array):
    """The tensor holds exactly what the array does, with its shape and dtype."""
    got, want = tensor.numpy(), np.asarray(array)
    assert got.shape == want.shape and got.dtype == want.dtype, (got.shape, got.dtype, want.shape, want.dtype)
    np.testing.assert_array_equal(got, want)


def test_grilly_lists_what_the_namespace_has():
    """Two lists, as type checkers read one and `import grilly` must not import what the other stands in."""
    assert list(grilly._ARRAY_API) == xp.__all__


# -- numbers that kernels and Python share -----------------------------------------------------------------------------


def test_numbers_of_operations_are_the_kernels():
    own = {"AND": "bitwise_and", "OR": "bitwise_or", "XOR": "bitwise_xor", "INVERT": "bitwise_invert",
           "LEFT_SHIFT": "bitwise_left_shift", "RIGHT_SHIFT": "bitwise_right_shift", "SIGN_OF": "sign"}  # fmt: skip
    found = shared_facts([ROOM / "operations.glsl"])["operations"]
    assert {own.get(name, name.lower()): number for name, number in found.items()} == operations.NUMBERS
    words = shared_facts([ROOM / "words.glsl"])
    assert {name.lower(): number for name, number in words["elements"].items()} == promotion.CODES
    assert words["kinds"] == {"FLOATING": promotion.FLOATING, "INTEGER": promotion.INTEGER, "LONG": promotion.LONG}
    forms = shared_facts([ROOM / "places.glsl"])["forms"]
    assert forms == {"ABSENT": ABSENT, "FLAT": FLAT, "STRIDED": STRIDED, "NUMBER": NUMBER, "RUNS": RUNS,
                     "REPEATED": REPEATED}  # fmt: skip
    names = {"PRODUCT": "prod", "MAXIMUM": "max", "MINIMUM": "min", "FIRST_MAXIMUM": "argmax",
             "FIRST_MINIMUM": "argmin"}  # fmt: skip
    states = shared_facts([ROOM / "states.glsl"])["reductions"]
    assert states.pop("STATES") == reductions.STATES
    assert {names.get(name, name.lower()): number for name, number in states.items()} == reductions.NUMBERS


def test_promotion():
    def dtype(*names):
        return promotion.promoted(*(np.dtype(name) for name in names)).name

    assert dtype("int8", "int32") == "int32" and dtype("uint8", "int8") == "int16"
    assert dtype("float16", "float32") == "float32" and dtype("int64", "float16") == "float16"
    assert dtype("bool", "uint8") == "uint8" and dtype("uint32", "int32") == "int64"
    with_scalar = promotion.with_scalar
    assert with_scalar(np.dtype("int8"), int).name == "int8" and with_scalar(np.dtype("int8"), float).name == "float32"
    assert with_scalar(np.dtype("float16"), float).name == "float16" and with_scalar(np.dtype("bool"), int) == np.int64
    for refused in (lambda: dtype("float64", "int8"), lambda: with_scalar(np.dtype("int8"), complex)):
        with pytest.raises(TypeError):
            refused()


# -- plans, without a device -------------------------------------------------------------------------------------------


def planned(name, *layouts, registry, **facts):
    known = {"storage_range": 2**30, "alignment": 16, "windows": True, "groups": (65535,) * 3, "work_limit": 1e30}
    opened = DeviceFacts("none", "vulkan", "generic", **{**known, **facts}, units=8, subgroup_size=32)
    asked = operations.spec(name, layouts[0].dtype)
    return map_plan((asked,), (*layouts, *(None,) * (3 - len(layouts))), opened, registry)


def laid(shape, steps, dtype=np.float32, offset=16, nbytes=None):
    return Layout(tuple(shape), tuple(steps), np.dtype(dtype), offset, nbytes)


@pytest.fixture
def registry(vulkan_backend):
    return Registry(vulkan_backend.device, vulkan_backend.runtime.features)


def constants(step):
    return dict(step.constants)


def test_layouts_are_recognised(registry):
    flat, row = laid((64, 32), (32, 1)), laid((32,), (1,))
    (step,) = planned("add", flat, flat, registry=registry).steps
    assert (constants(step)["FORM_A"], constants(step)["FORM_B"]) == (FLAT, FLAT) and step.words()["count"] == 2048
    (step,) = planned("add", flat, row, registry=registry).steps
    assert (constants(step)["FORM_B"], constants(step)["AXES"]) == (RUNS, 2)
    (step,) = planned("add", flat, laid((64, 1), (1, 1)), registry=registry).steps
    assert constants(step)["FORM_B"] == REPEATED
    (step,) = planned("add", laid((64, 33), (33, 1)), laid((33,), (1,)), registry=registry).steps
    assert constants(step)["FORM_B"] == STRIDED, "runs would cross rows"
    odd = laid((64, 32), (32, 1), offset=1)
    assert constants(planned("add", odd, flat, registry=registry).steps[0])["FORM_A"] == STRIDED, "quads begin at fours"
    deep = laid((2,) * 6, (1, 2, 4, 8, 16, 32))
    (step,) = planned("negative", deep, registry=registry).steps
    assert constants(step)["DEEP"] == 1
    (step,) = planned("add", deep, laid((2,) * 6, (32, 16, 8, 4, 2, 1)), registry=registry).steps
    assert (constants(step)["DEEP"], constants(step)["FORM_B"]) == (1, FLAT)
    assert len(planned("add", deep, laid((2,) * 6, (2, 1, 8, 4, 32, 16)), registry=registry).steps) == 3, "two copies"


def test_large_arrays_are_cut(registry):
    large = laid((1001, 7, 300), (2100, 300, 1), offset=0, nbytes=4 * 1001 * 2100)
    plan = planned("add", large, large, registry=registry, storage_range=2**20)
    assert len(plan.steps) > 8 and sum(step.words()["count"] for step in plan.steps) == 1001 * 2100
    assert all(binding is None or binding[2] <= 2**20 for step in plan.steps for binding in step.bindings)


# -- elementwise -------------------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1023, 1025, 4099])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int64", "bool"])
def test_every_end_of_an_array(vulkan_backend, dtype, size):
    x = (RNG.standard_normal(size + 8) * 9).astype(dtype) if dtype != "uint8" else RNG.integers(0, 99, size + 8, dtype)
    held = vulkan_backend.tensor(x)
    for begin in (0, 1, 4):
        own, part = x[begin : begin + size], held[begin : begin + size]
        same(xp.where(xp.astype(part, xp.bool), part, part), own)
        same(part == part, np.ones(size, bool))


@pytest.mark.parametrize("dtype", ["float16", "float32", "uint8", "int64", "bfloat16"])
def test_runs_of_rows_and_columns(vulkan_backend, dtype):
    """Elements that are read some at a time: where they begin at fours or eights, and where not; rows of a table."""
    dtype = np.dtype(dtype) if dtype != "bfloat16" else np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    x = RNG.integers(0, 9, (6, 5, 48)).astype(dtype)
    t = vulkan_backend.tensor(x)
    for part in (np.s_[:], np.s_[:, :, :40], np.s_[1:, :, 4:44], np.s_[:, 1:4, 1:41], np.s_[::2, :, 8:]):
        own, array = t[part], x[part]
        for other in (np.s_[:1], np.s_[:, :, :1], np.s_[:, :1], np.s_[:1, :1, :1]):
            same(own + own[other], array + array[other])
            same(own[other] * own, array[other] * array)
    table = t.reshape(30, 48)
    index = np.array([[29, 0, 3], [7, 7, 1]])
    same(xp.take(table, vulkan_backend.tensor(index), axis=0), x.reshape(30, 48)[index])
    same(xp.take(table[:, 8:40], vulkan_backend.tensor(index), axis=0), x.reshape(30, 48)[:, 8:40][index])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_transposed_copies_by_tiles(vulkan_backend, monkeypatch, dtype):
    monkeypatch.setattr(transpose, "CACHED", ())
    for shape, order, tiles in [
        ((70, 130), (1, 0), True), ((3, 66, 50), (0, 2, 1), True), ((3, 66, 50), (2, 1, 0), False),
        ((2, 34, 3, 98), (3, 0, 1, 2), True), ((34, 2, 3, 98), (3, 1, 2, 0), True), ((17, 33), (1, 0), True),
    ]:  # fmt: skip
        x = RNG.standard_normal(shape).astype(dtype)
        y, want = vulkan_backend.tensor(x).transpose(order), x.transpose(order)
        found = transpose.axes_of(vulkan_backend.opened.facts, y, 16)
        assert (found is not None) == (tiles and (dtype == "float32" or shape != (17, 33))), "16 bits go by twos"
        same(y.contiguous(), want)
        same(y + y.contiguous(), want + want)
        same(y[1:].contiguous(), want[1:])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_broadcasting_and_strides(vulkan_backend, data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=7))
    arrays = []
    for _ in range(2):
        own = [extent if data.draw(st.booleans()) else 1 for extent in shape]
        order = data.draw(st.permutations(range(len(own))))
        array = RNG.integers(-50, 50, [own[a] for a in order]).astype(np.int32)
        back = [order.index(a) for a in range(len(own))]
        arrays.append((array.transpose(back), vulkan_backend.tensor(array).transpose(*back)))
    (x, a), (y, b) = arrays
    same(a + b, x + y)
    part = (slice(None, None, data.draw(st.integers(1, 2))),) * data.draw(st.integers(0, len(shape)))
    same(a[part] * 2 - b, x[part] * np.int32(2) - y) if x[part].shape == x.shape else same(a[part] * 2, x[part] * 2)


# -- operators ---------------------------------------------------------------------------------------------------------


def test_operators(vulkan_backend):
    x = np.arange(-12, 12, dtype=np.float32).reshape(2, 3, 4)
    t = vulkan_backend.tensor(x)
    for op in (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.lt, operator.ne):
        same(op(t, 3), op(x, np.float32(3)))
        same(op(3.0, t), op(np.float32(3), x)) if op not in (operator.floordiv, operator.mod) else None
        same(op(t, x[0] + 20), op(x, x[0] + 20))
        same(op(x[0], t + 20), op(x[0], x + 20))
    assert isinstance(x + t, grilly.Tensor) and (t == None) is False  # noqa: E711
    assert float(t[0, 0, 0]) == -12 and int(t[1, 0, 0]) == 0 and t[0, 0, 1].item() == -11 and bool(t[0, 0, 0])
    assert [row.shape for row in t] == [(3, 4)] * 2 and -12.0 in t and 99 not in t
    assert t.tolist() == x.tolist() and len({t, t}) == 1 and operator.index(vulkan_backend.tensor(np.int32(3))) == 3
    assert t.__array_namespace__() is grilly and t.__array_namespace__(api_version="2024.12") is grilly
    same(t.mT, x.swapaxes(-1, -2))
    mask = vulkan_backend.tensor(x > 0)
    same(~mask, x <= 0)
    same(mask & (t < 5) | (t == -3), (x > 0) & (x < 5) | (x == -3))


def test_refusals(vulkan_backend):
    t = vulkan_backend.tensor(np.ones((2, 3), np.float32))
    i = vulkan_backend.tensor(np.ones(3, np.int8))
    for call, error, text in [
        (lambda: bool(t), ValueError, "ambiguous"),
        (lambda: t.item(), ValueError, "one element"),
        (lambda: t + np.ones(3), TypeError, "float64"),
        (lambda: t + "a", TypeError, "unsupported operand"),
        (lambda: t + np.ones((2, 2), np.float32), ValueError, "do not broadcast"),
        (lambda: t & t, TypeError, "integers"),
        (lambda: (t > 0) + (t > 0), TypeError, "bool"),
        (lambda: i + 300, OverflowError, "int8"),
        (lambda: operator.iadd(i, 1.5), TypeError, "float32"),
        (lambda: operator.iadd(i, vulkan_backend.tensor(np.ones((2, 3), np.int8))), ValueError, "shape"),
        (lambda: np.exp(t), TypeError, "ufunc"),
        (lambda: operator.index(t), TypeError, "index"),
        (lambda: t[5], IndexError, "bounds"),
        (lambda: t[[5]], IndexError, "bounds"),
        (lambda: t[np.ones((3, 3), bool)], IndexError, "mask"),
        (lambda: t[1.5], TypeError, "integer"),
        (lambda: operator.setitem(t, 0, np.ones(4, np.float32)), ValueError, "broadcast"),
        (lambda: xp.max(t[:0]), ValueError, "no elements"),
        (lambda: xp.sum(t, axis=2), ValueError, "axis"),
        (lambda: t @ t, ValueError, "matmul"),
        (lambda: xp.concat([t, i]), ValueError, "concat"),
        (lambda: xp.zeros((2,), dtype=np.float64), TypeError, "float64"),
    ]:
        with pytest.raises(error, match=text):
            call()
    assert (i == 300).tolist() == [False] * 3, "comparisons take every number"


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int64"])
def test_in_place(vulkan_backend, dtype):
    x = np.arange(60).reshape(5, 12).astype(dtype)
    t = vulkan_backend.tensor(x)
    view = t[1:4, 3:]
    t += 1
    x += np.asarray(1, dtype)
    view *= 2
    x[1:4, 3:] *= np.asarray(2, dtype)
    t[:2] -= t[:2]
    x[:2] -= x[:2]
    same(t, x)
    t[1:] += t[:-1]  # memory that is read and written
    x[1:] += x[:-1].copy()
    same(t, x)
    assert not replaceable(t[1:], (t[:-1], None, None)) and replaceable(t, (t, None, None))


# -- indices -----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_indices_are_numpys(vulkan_backend, data):
    x = np.arange(4 * 5 * 6, dtype=np.int32).reshape(4, 5, 6)
    index = []
    for extent in x.shape[: data.draw(st.integers(1, 3))]:
        kind = data.draw(st.sampled_from(["slice", "back", "int", "array", "device", "matrix"]))
        if kind == "slice":
            ends = data.draw(st.tuples(st.integers(-6, 6), st.integers(-6, 6)))
            index.append(slice(*ends, data.draw(st.integers(1, 3))))
        elif kind == "back":
            index.append(slice(None, None, -data.draw(st.integers(1, 3))))
        elif kind == "int":
            index.append(data.draw(st.integers(-extent, extent - 1)))
        else:
            shape = (2, 3) if kind == "matrix" else (3,)
            index.append(RNG.integers(-extent, extent, shape))
    own = tuple(vulkan_backend.tensor(one) if isinstance(one, np.ndarray) and data.draw(st.booleans()) else one
                for one in index)  # fmt: skip
    index = tuple(index)
    t = vulkan_backend.tensor(x)
    same(t[own], x[index])
    # Places may be named twice, so all get one number, or values that their places decide.
    t[own] = -1
    want = x.copy()
    want[index] = -1
    same(t, want)


def test_masks_and_assignment(vulkan_backend):
    x = RNG.standard_normal((6, 7)).astype(np.float32)
    t, rows = vulkan_backend.tensor(x), np.array([True, False, True, True, False, False])
    for mask in (x > 0, rows):
        same(t[mask], x[mask])
        same(t[vulkan_backend.tensor(mask)], x[mask])
        values = RNG.standard_normal(x[mask].shape).astype(np.float32)
        t[mask], x[mask] = values, values
        t[vulkan_backend.tensor(mask)] = 3
        x[mask] = 3
        same(t, x)
    t[::-1, [0, 5]], x[::-1, [0, 5]] = (np.arange(12, dtype=np.float32).reshape(6, 2),) * 2
    same(t, x)
    t[[1, 1], [2, 3]], x[[1, 1], [2, 3]] = (np.array([7, 8], np.float32),) * 2
    same(t, x)
    half = vulkan_backend.tensor(x.astype(np.float16))
    own = x.astype(np.float16)
    half.T[1:3, ::2], own.T[1:3, ::2] = 5, 5
    same(half, own)


def test_take(vulkan_backend):
    x = RNG.integers(0, 99, (3, 4, 5)).astype(np.int16)
    t, index = vulkan_backend.tensor(x), np.array([[3, 0], [-1, 2]])
    for axis in range(3):
        same(xp.take(t, index % 3, axis=axis), np.take(x, index % 3, axis))
        same(xp.take(t.transpose(2, 0, 1), vulkan_backend.tensor(index % 3), axis=axis),
             np.take(x.transpose(2, 0, 1), index % 3, axis))  # fmt: skip
        order = np.argsort(x, axis)
        same(xp.take_along_axis(t, vulkan_backend.tensor(order), axis=axis), np.take_along_axis(x, order, axis))
    assert [p.tolist() for p in xp.nonzero(t > 50)] == [p.tolist() for p in np.nonzero(x > 50)]


# -- reductions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7, 1001), (3, 50, 17), (2, 9000)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_reductions(vulkan_backend, dtype, shape):
    x = (RNG.standard_normal(shape) * 9).astype(dtype)
    t, wide = vulkan_backend.tensor(x), x.astype(np.float64)
    for axis in (None, 0, -1, (0, 1)):
        same(xp.max(t, axis=axis), x.max(axis))
        same(xp.any(t, axis=axis, keepdims=True), x.any(axis, keepdims=True))
        total, size = xp.sum(t, axis=axis), np.abs(wide).sum(axis)
        assert total.dtype == (np.float32 if dtype == "float32" else np.int64)
        assert (np.abs(total.numpy() - wide.sum(axis)) <= 2.0**-22 * size).all()
        if not isinstance(axis, tuple):
            same(xp.argmin(t, axis=axis), x.argmin(axis))
        np.testing.assert_allclose(xp.std(t, axis=axis, correction=1).numpy(), wide.std(axis, ddof=1), rtol=1e-6)
        np.testing.assert_allclose(xp.mean(t, axis=axis).numpy(), wide.mean(axis), rtol=0, atol=2e-6)
    running = xp.cumulative_sum(t, axis=-1, include_initial=True).numpy()
    np.testing.assert_array_equal(running[..., 0], 0)
    bound = 2.0**-23 * np.cumsum(np.abs(wide), -1)
    assert (np.abs(running[..., 1:] - np.cumsum(wide, -1)) <= bound).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "int64", "uint8"])
def test_reductions_of_columns_and_runs(vulkan_backend, dtype):
    """Some rows, or columns, at a time, from where they begin at fours or eights and where not, in parts or not."""
    x = RNG.integers(0, 7, (1100, 48)).astype(dtype)
    if dtype == "float16":
        x[700, 5], x[::3, 7] = np.nan, -0.0
    t = vulkan_backend.tensor(x)
    for part in (np.s_[:], np.s_[:, 1:40], np.s_[:, 8:40], np.s_[:90, :33]):
        own, array = t[part], x[part]
        for axis in (0, 1):
            same(xp.argmax(own, axis=axis), array.argmax(axis))
            same(xp.argmin(own, axis=axis), array.argmin(axis))
            same(xp.max(own, axis=axis), array.max(axis))
            total = xp.sum(own, axis=axis, dtype=None if dtype in ("float16", "float32") else np.int64)
            same(total, array.astype(np.float64).sum(axis).astype(total.dtype))


def test_edges_of_reductions(vulkan_backend):
    x = np.array([[1, np.nan, 3], [np.inf, -np.inf, 2], [np.inf, 1, 2]], np.float32)
    t = vulkan_backend.tensor(x)
    for name in ("max", "sum", "argmax"):
        np.testing.assert_array_equal(getattr(xp, name)(t, axis=1).numpy(), getattr(np, name)(x, 1))
    empty = t[:, :0]
    assert xp.sum(empty, axis=1).tolist() == [0] * 3 and xp.prod(empty, axis=1).tolist() == [1] * 3
    assert xp.all(empty).item() is True and xp.any(empty).item() is False and np.isnan(xp.mean(empty).item())
    assert xp.sum(t[:0], axis=1).shape == (0,)
    many = vulkan_backend.tensor(np.full(2_000_000, 0.1, np.float32))
    assert xp.sum(many).item() == np.float32(2_000_000 * float(np.float32(0.1))), "added up one by one it is 0.4 % off"
    assert xp.sum(many).item() == xp.sum(many).item()
    wide = np.full(3, 2**62)
    assert xp.sum(vulkan_backend.tensor(wide)).item() == int(wide.sum()), "wraps as NumPy's"


# -- shapes, creation, products ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64"])
def test_layouts(vulkan_backend, dtype):
    x = RNG.integers(0, 99, (3, 5, 4)).astype(dtype)
    t = vulkan_backend.tensor(x)
    same(xp.concat([t, t[:, :2]], axis=1), np.concatenate([x, x[:, :2]], 1))
    same(xp.concat([t, t], axis=None), np.concatenate([x, x], None))
    same(xp.stack([t, t + t], axis=-1), np.stack([x, x + x], -1))
    same(xp.flip(t, axis=(0, 2)), np.flip(x, (0, 2)))
    same(xp.roll(t, (2, -1), axis=(1, 2)), np.roll(x, (2, -1), (1, 2)))
    same(xp.roll(t, 7), np.roll(x, 7))
    same(xp.repeat(t, 3, axis=1), np.repeat(x, 3, 1))
    same(xp.tile(t, (2, 1, 3)), np.tile(x, (2, 1, 3)))
    same(xp.tril(t, k=1), np.tril(x, 1))
    same(xp.triu(t, k=-1), np.triu(x, -1))
    same(xp.moveaxis(t, 0, 2), np.moveaxis(x, 0, 2))
    same(xp.squeeze(xp.expand_dims(t, axis=1), axis=1), x)
    same(xp.permute_dims(t, (2, 0, 1)), x.transpose(2, 0, 1))
    assert [u.tolist() for u in xp.unstack(t, axis=1)] == [x[:, n].tolist() for n in range(5)]
    same(xp.diff(t, axis=1), np.diff(x, axis=1))


def test_creation(vulkan_backend):
    former = grilly.use(vulkan_backend)
    try:
        same(grilly.zeros((2, 3)), np.zeros((2, 3), np.float32))
        same(grilly.ones(3, dtype=grilly.int64), np.ones(3, np.int64))
        same(grilly.full((2,), 7), np.full(2, 7))
        same(grilly.full((5,), True), np.ones(5, bool))
        same(grilly.arange(3, 10, 2), np.arange(3, 10, 2))
        same(grilly.arange(0, 1, 0.25), np.arange(0, 1, 0.25, np.float32))
        same(grilly.linspace(0, 1, 7), np.linspace(0, 1, 7, dtype=np.float32))
        same(grilly.eye(3, 4, k=1), np.eye(3, 4, 1, np.float32))
        same(grilly.asarray([[1, 2], [3, 4]]), np.array([[1, 2], [3, 4]]))
        same(grilly.asarray(1.5), np.float32(1.5))
        assert grilly.empty((2, 3)).shape == (2, 3) and isinstance(grilly.pinned.empty(3), np.ndarray)
        same(grilly.meshgrid(grilly.arange(2), grilly.arange(3))[0], np.meshgrid(np.arange(2), np.arange(3))[0])
    finally:
        grilly.use(former)


@pytest.mark.parametrize(("left", "right"), [
    ((3, 1, 5, 7), (4, 7, 6)), ((5, 7), (7, 6)), ((7,), (7, 6)), ((3, 5, 7), (7,)), ((7,), (7,)), ((7,), (4, 7, 6)),
    ((2, 0), (0, 3)),
], ids=str)  # fmt: skip
def test_matmul(vulkan_backend, left, right):
    x, y = (RNG.standard_normal(shape).astype(np.float32) for shape in (left, right))
    got, want = (vulkan_backend.tensor(x) @ y).numpy(), x.astype(np.float64) @ y
    assert got.shape == want.shape and np.abs(got - want).max(initial=0) < 1e-5
    whole = [(array * 9).astype(np.int32) for array in (x, y)]
    same(vulkan_backend.tensor(whole[0]) @ vulkan_backend.tensor(whole[1]), np.matmul(*whole))
