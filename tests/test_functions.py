"""Functions of users: ``grilly.elementwise``."""

from __future__ import annotations

import copy
import functools
import math
import pickle
from pathlib import Path

import numpy as np
import pytest

import grilly
import grilly.functional as F
from elementwise_functions import numbers, of_all, swish
from hostcalls import counted

STATM = Path("/proc/self/statm")
RNG = np.random.default_rng(11)
DTYPES = ("float32", "float16", "int64", "int32", "int8", "uint8", "bool")
SCALE = None  # what functions here find outside


# -- elementwise


def test_an_array_of_numpys_gives_one(by_default):
    x = numbers((3, 5))
    y = swish(x, 1.5)
    assert y.__class__ is np.ndarray and y.dtype == np.float32
    np.testing.assert_allclose(y, x / (1 + np.exp(-1.5 * x)), rtol=1e-6)


def test_one_tensor_makes_tensors_of_all(by_default):
    x, bias = numbers((4, 6)), numbers((6,))
    y = of_all(by_default.tensor(x), bias)
    assert isinstance(y, grilly.Tensor)
    np.testing.assert_array_equal(y.numpy(), np.where(x > bias, x - bias, x * 2 + bias))


@pytest.mark.parametrize("shapes", [((3, 1), (1, 4)), ((2, 3, 4), (4,)), ((), (5,)), ((0, 4), (4,)), ((7,), (7,))])
def test_arrays_broadcast(by_default, shapes):
    a, b = (numbers(shape) for shape in shapes)
    found = of_all(a, b)
    want = np.where(a > b, a - b, a * 2 + b)
    assert found.shape == want.shape
    np.testing.assert_array_equal(found, want)


def test_views_and_channels_last(vulkan_backend):
    x = numbers((4, 6, 5))
    t = vulkan_backend.tensor(x)
    for view, its in ((t.transpose(2, 0, 1), x.transpose(2, 0, 1)), (t[:, ::2], x[:, ::2]), (t[1], x[1])):
        found = of_all(view, 0.25)
        np.testing.assert_array_equal(found.numpy(), np.where(its > 0.25, its - np.float32(0.25), its * 2 + 0.25))
    assert of_all(t.transpose(2, 0, 1), 1.0).strides == t.transpose(2, 0, 1).strides


@pytest.mark.parametrize("one", DTYPES)
@pytest.mark.parametrize("other", ["float32", "int32", "bool", float, int, bool])
def test_dtypes_promote_as_operators_do(vulkan_backend, one, other):
    """Of the same operations one by one."""
    x = vulkan_backend.tensor(numbers((9,), one))
    y = other(1) if isinstance(other, type) else vulkan_backend.tensor(numbers((9,), other))
    if one == "bool" and other in ("bool", bool):
        pytest.skip("arithmetic takes no bool")

    def function(a, b):
        return a + b

    found, want = grilly.elementwise(function)(x, y), function(x, y)
    assert found.dtype == want.dtype
    np.testing.assert_array_equal(found.numpy(), want.numpy())


def test_a_result_of_sixteen_bits_is_rounded_once_and_by_astype(vulkan_backend):
    x = vulkan_backend.tensor(np.float16([1.0]))
    eps = 2.0**-11  # half of what float16 tells from 1

    assert float(grilly.elementwise(lambda x: (x + eps) - 1)(x)) == eps
    assert float(grilly.elementwise(lambda x: (x + eps).astype(grilly.float16) - 1)(x)) == 0


def test_numbers_that_change_make_no_kernel(vulkan_backend):
    x = vulkan_backend.tensor(np.float32([2.0]))
    traced = []

    @grilly.elementwise
    def power(x, n, shift, negate):
        traced.append(n)
        return grilly.where(negate, -x, x) * n + shift

    found = [float(power(x, n, shift, n > 1)) for n, shift in ((1, 0.5), (2, 1e-3), (-3, math.inf), (10**12, -0.0))]
    assert found == [2.5, float(np.float32(-4 + np.float32(1e-3))), math.inf, float(np.float32(-2e12))]
    assert len(traced) == 1


def test_integers_stay_exact_and_are_in_range(vulkan_backend):
    x = vulkan_backend.tensor(np.int64([1, -1]))
    add = grilly.elementwise(lambda x, n: x + n)
    assert add(x, 2**53 + 1).tolist() == [2**53 + 2, 2**53]
    assert add(x, -(2**63) + 1).tolist()[0] == -(2**63) + 2
    small = vulkan_backend.tensor(np.int8([1]))
    assert add(small, 126).tolist() == [127]
    for array, n in ((small, 128), (small, -129), (x, 2**63)):
        with pytest.raises(OverflowError, match=str(n)):
            add(array, n)
    assert float(add(vulkan_backend.tensor(np.float32([0.0])), 10**20)) == np.float32(1e20)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int8", "uint16"])
def test_what_is_chosen_beside_a_one_keeps_its_truth(vulkan_backend, dtype):
    x = vulkan_backend.tensor(np.array([0, 1, 2, 77], dtype))
    assert grilly.elementwise(lambda x: grilly.minimum(1, x).astype(bool))(x).tolist() == [False, True, True, True]
    assert grilly.elementwise(lambda x: grilly.where(x > 1, 1, x) != 0)(x).tolist() == [False, True, True, True]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_zeros_in_a_function_are_numbers_as_others(vulkan_backend, dtype):
    """Compilers know better what x * 0 is, but for infinities, NaN and -0."""
    given = np.array([1, -1, 0.0, -0.0, math.inf, -math.inf, math.nan], dtype)
    x = vulkan_backend.tensor(given)
    for of in (lambda x: x * 0.0, lambda x: -0.0 * x, lambda x: x + 0.0, lambda x: x - -0.0, lambda x: 0.0 - x,
               lambda x: x + x * (x * 0)):  # fmt: skip
        with np.errstate(invalid="ignore"):
            wanted = of(given)
        for found in (grilly.elementwise(of)(x).numpy(), vulkan_backend.capture(of, x)(x).numpy()):
            np.testing.assert_array_equal(found, wanted)
            numbers = ~np.isnan(wanted)
            np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(wanted[numbers]))


@pytest.mark.parametrize("digits", [39, 400])
def test_integers_beyond_floats_are_rounded_to_infinity(vulkan_backend, digits):
    """As arrays have it: as arguments, and as numbers in a function."""
    x, large = vulkan_backend.tensor(np.float32([1, -2])), 10**digits
    for n in (large, -large):
        for found in (grilly.elementwise(lambda x, n: x + n)(x, n), grilly.elementwise(lambda x, n=n: x + n)(x), x + n):
            assert found.tolist() == [math.inf if n > 0 else -math.inf] * 2
    assert float(grilly.reduction(lambda x, n: x * n, "max")(x, large)) == math.inf


def test_grillys_functions_of_elements_take_scalars(vulkan_backend):
    x = np.abs(numbers((40,))) + np.float32(0.1)
    t = vulkan_backend.tensor(x)
    one = ("abs", "exp", "expm1", "log", "log1p", "sqrt", "square", "sin", "tanh", "erf", "floor", "round", "sign",
           "isfinite", "negative", "reciprocal", "signbit", "positive", "real", "logical_not")  # fmt: skip
    two = ("add", "maximum", "minimum", "pow", "remainder", "hypot", "logaddexp", "atan2", "copysign", "less", "equal",
           "floor_divide", "nextafter", "logical_and")  # fmt: skip
    for name in one:
        own = getattr(grilly, name)
        np.testing.assert_array_equal(grilly.elementwise(lambda x, own=own: own(x))(t).numpy(), own(t).numpy(), name)
    for name in two:
        own = getattr(grilly, name)
        np.testing.assert_array_equal(
            grilly.elementwise(lambda x, own=own: own(x, 0.75))(t).numpy(), own(t, 0.75).numpy(), name
        )
    for own in (F.gelu, F.relu, F.silu, F.sigmoid, F.quick_gelu, F.tanh, lambda x: F.gelu(x, approximate="tanh")):
        np.testing.assert_array_equal(grilly.elementwise(lambda x, own=own: own(x))(t).numpy(), own(t).numpy())
    clip = grilly.elementwise(lambda x, low: grilly.clip(x, low, max=2))
    np.testing.assert_array_equal(clip(t, 0.5).numpy(), np.clip(x, 0.5, 2))
    cast = grilly.elementwise(lambda x: grilly.astype(x, grilly.int32))
    assert cast(t).dtype == np.int32


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32"])
@pytest.mark.parametrize("name", ["sinh", "atan", "asinh", "tanh"])
def test_functions_of_what_was_computed(vulkan_backend, name, dtype):
    """Several elements of a word, each after an operation: LLVM 15 lost those of asinh, whose sign was set by bits."""
    x = vulkan_backend.tensor((np.arange(13) % 10).astype(dtype))
    own = getattr(grilly, name)
    for before in (grilly.abs, lambda x: grilly.minimum(x, 1), lambda x: x * x):
        found = grilly.elementwise(lambda x, before=before: own(before(x)).astype(grilly.float32))(x)
        np.testing.assert_array_equal(found.numpy(), own(before(x).astype(grilly.float32)).numpy())


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float16", "float32", "bool"])
@pytest.mark.parametrize("power", [2, 2.0])
def test_squares_promote_as_powers_do(vulkan_backend, dtype, power):
    t = vulkan_backend.tensor(np.array([1, 0, 1, 1]).astype(dtype) * np.array(7).astype(dtype))
    same = grilly.elementwise(lambda x: x**power)(t)
    assert same.dtype == (t**power).dtype
    np.testing.assert_array_equal(same.numpy(), (t**power).numpy())


def test_operators_are_numpys(vulkan_backend):
    x = np.int32([-7, 5, 9])
    t = vulkan_backend.tensor(x)

    def function(x):
        y = (x // 2) % 3 + (x & 6 | 1) ^ 3
        return np.int32(2) * (y << 1) + (-x >> 1) + abs(~x) + x**2 - (+x)

    np.testing.assert_array_equal(grilly.elementwise(function)(t).numpy(), function(x))
    tests = grilly.elementwise(lambda x: ((x < 5) | (x >= 9), (x <= 5) & (x != -7), ~(x == 5) ^ (x > 0)))
    want = ((x < 5) | (x >= 9), (x <= 5) & (x != -7), ~(x == 5) ^ (x > 0))
    for found, its in zip(tests(t), want, strict=True):
        np.testing.assert_array_equal(found.numpy(), its)
    assert grilly.elementwise(lambda x: round(x))(vulkan_backend.tensor(np.float32([2.5]))).tolist() == [2.0]


def test_a_function_in_a_function_becomes_a_part_of_it(vulkan_backend):
    outer = grilly.elementwise(lambda x: swish(x, 2.0) + of_all(x, x))
    x = numbers((8,))
    found = outer(vulkan_backend.tensor(x)).numpy()
    np.testing.assert_allclose(found, x / (1 + np.exp(-2 * x)) + x * 3, rtol=1e-5)
    with vulkan_backend.profile() as profile:
        outer(vulkan_backend.tensor(x))
    assert len(profile.timings) == 1


def test_tensors_outside_are_arguments(by_default):
    weight, more = by_default.tensor(np.float32([1, 2, 3])), by_default.tensor(np.float32([[10], [20]]))
    function = grilly.elementwise(lambda x: weight * x + more - weight)
    x = np.float32([1, 1, 2])
    want = np.float32([1, 2, 3]) * x + np.float32([[10], [20]]) - np.float32([1, 2, 3])
    np.testing.assert_array_equal(function(x).numpy(), want)
    weight[:] = 0  # their contents are those of each call
    np.testing.assert_array_equal(function(x).numpy(), np.float32([[10], [20]]) + 0 * x)
    assert grilly.elementwise(lambda n: weight + n)(2.0).tolist() == [2.0, 2.0, 2.0]


def test_a_variable_that_gets_another_value_is_read_again(vulkan_backend, monkeypatch):
    monkeypatch.setitem(globals(), "SCALE", 2.0)

    helper, shift = lambda x: x * SCALE, 1.0

    @grilly.elementwise
    def function(x):
        return helper(x) + shift

    x = vulkan_backend.tensor(np.float32([3.0]))
    assert float(function(x)) == 7
    monkeypatch.setitem(globals(), "SCALE", vulkan_backend.tensor(np.float32([10.0])))
    assert float(function(x)) == 31
    shift = 5.0
    assert float(function(x)) == 35

    helper = lambda x: x - SCALE  # noqa: E731
    assert float(function(x)) == -2


def test_keyword_only_arguments_are_the_same_for_all_elements(vulkan_backend):
    @grilly.elementwise
    def act(x, scale=2.0, *, kind="relu", shift=0):
        y = grilly.maximum(x, 0) if kind == "relu" else F.silu(x)
        return y * scale + shift

    x = vulkan_backend.tensor(np.float32([-1.0, 3.0]))
    assert act(x).tolist() == [0.0, 6.0]
    assert act(x, scale=0.5, shift=1).tolist() == act(x, 0.5, shift=1.0).tolist() == [1.0, 2.5]
    np.testing.assert_allclose(act(x, kind="silu").numpy(), [-0.5378829, 5.7154449], rtol=1e-6)
    with pytest.raises(grilly.ExpressionError, match="hashable"):
        act(x, kind=["relu"])
    with pytest.raises(TypeError, match="colour"):
        act(x, colour=1)


def test_several_results(by_default):
    both = grilly.elementwise(lambda x, y: (x + y, x > y, 7))
    x = np.float32([1, 5])
    total, above, seven = both(x, np.int32([[3], [4]]))
    np.testing.assert_array_equal(total, x + np.int32([[3], [4]]))
    np.testing.assert_array_equal(above, x > np.int32([[3], [4]]))
    assert seven.dtype == np.int64 and seven.shape == (2, 2) and (seven == 7).all()


def dispatches(backend, call):
    """How many dispatches a call takes, of a function that was called before."""
    call()
    with backend.profile() as profile:
        call()
    return len(profile.timings)


@grilly.elementwise
def four(x, y, z):
    """Results of four dtypes."""
    scaled = x * y + z
    return scaled, x > y, scaled.astype(grilly.float16), (z * 8).astype(grilly.int8)


@pytest.mark.parametrize(
    "shapes, copies",
    [(((33,), (33,), (33,)), 0), (((4, 5, 7), (7,), (5, 1)), 0), (((1021,), (1,), ()), 0), (((0, 3), (3,), (1,)), 0),
     (((2, 3, 2, 5), (3, 1, 5), (2, 1, 2, 1)), 0), (((3, 1, 8), (2, 8), (3, 2, 1)), 1)],
)  # fmt: skip
def test_several_results_are_one_dispatch(vulkan_backend, shapes, copies):
    """Where there are at most two ways in which arrays broadcast; others are copied first."""
    given = [numbers(shape) for shape in shapes]
    x, y, z = tensors = [vulkan_backend.tensor(one) for one in given]
    found = four(*tensors)
    scaled = x * y + z
    for one, want in zip(found, (scaled, x > y, scaled.astype("float16"), (z * 8).astype("int8")), strict=True):
        assert one.dtype == want.dtype
        np.testing.assert_array_equal(one.numpy(), np.broadcast_to(want.numpy(), one.shape))
    if scaled.size:
        assert dispatches(vulkan_backend, lambda: four(*tensors)) == 1 + copies


@pytest.mark.parametrize("dtype", DTYPES)
def test_several_results_of_strided_and_transposed_arrays(vulkan_backend, dtype):
    both = grilly.elementwise(lambda a, b, c: (grilly.where(a > b, a, b), grilly.where(b == c, c, a)))
    x = vulkan_backend.tensor(numbers((7, 6, 10), dtype))
    a, b, c = x[:, ::2, 1:6], x.transpose(1, 0, 2)[:3, :, 5:].transpose(1, 0, 2), x[:, 3:4, ::2]
    found = both(a, b, c)
    a, b, c = a.numpy(), b.numpy(), c.numpy()
    for one, want in zip(found, (np.where(a > b, a, b), np.where(b == c, c, a)), strict=True):
        assert one.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(one.numpy(), np.broadcast_to(want, a.shape))


def test_numbers_that_are_not_finite_in_several_results(vulkan_backend):
    edges = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-30, -1e-30, 3e38, -3e38, 2.0**-126], np.float32)
    x, y = (part.ravel() for part in np.meshgrid(edges, edges))
    both = grilly.elementwise(lambda x, y: (x * y, grilly.maximum(x, y), x + y < 0, (x - y).astype("float16")))
    with np.errstate(all="ignore"):
        wanted = x * y, np.maximum(x, y), x + y < 0, (x - y).astype(np.float16)
    for one, want in zip(both(vulkan_backend.tensor(x), y), wanted, strict=True):
        np.testing.assert_array_equal(one.numpy(), want)


def test_eight_arrays_and_more_results_than_a_dispatch_has(vulkan_backend):
    @grilly.elementwise
    def sums(*given):
        found = [given[0]]
        for one in given[1:]:
            found.append(found[-1] + one)
        return tuple(found[-6:])

    arrays = [numbers((13, 5), "int32") for _ in range(8)]
    tensors = [vulkan_backend.tensor(one) for one in arrays]
    for one, want in zip(sums(*tensors), np.cumsum(arrays, axis=0)[-6:], strict=True):
        np.testing.assert_array_equal(one.numpy(), want)
    assert dispatches(vulkan_backend, lambda: sums(*tensors)) == 2
    assert dispatches(vulkan_backend, lambda: grilly.elementwise(lambda *given: sum(given))(*tensors)) == 1


@grilly.elementwise
def moved(x, speed, push, rate):
    speed = 0.5 * speed + push
    return x - rate * speed, speed, (x - rate * speed).astype(grilly.float16)


def test_results_into_tensors(vulkan_backend):
    given = [numbers((6, 10)) for _ in range(3)]
    x, speed, push = tensors = [vulkan_backend.tensor(one) for one in given]
    wanted = [one.numpy() for one in moved(*tensors, 0.25)]
    view, version = x.reshape(-1), x[2]
    (small,) = moved.into((x, speed, None), *tensors, 0.25)
    for found, want in zip((x, speed, small), wanted, strict=True):
        np.testing.assert_array_equal(found.numpy(), want)
    np.testing.assert_array_equal(view.numpy(), wanted[0].ravel())
    np.testing.assert_array_equal(version.numpy(), wanted[0][2])
    assert dispatches(vulkan_backend, lambda: moved.into((x, speed, None), x, speed, push, 0.25)) == 1
    other = vulkan_backend.empty((6, 10))
    assert grilly.elementwise(lambda x: x + 1).into([other], x) == ()
    np.testing.assert_array_equal(other.numpy(), x.numpy() + 1)


def test_results_into_tensors_of_a_function_that_is_cut(vulkan_backend):
    """Every array is read before any of them is replaced."""
    def function(*given):
        return tuple(sum(given[(n + k) % 10] * (k + 1) for k in range(10)) for n in range(10))

    arrays = [numbers((9,), "int32") for _ in range(10)]
    tensors = [vulkan_backend.tensor(one) for one in arrays]
    grilly.elementwise(function).into(tensors, *tensors)
    for found, want in zip(tensors, function(*arrays), strict=True):
        np.testing.assert_array_equal(found.numpy(), want)


def test_results_into_captured_tensors(vulkan_backend):
    x, speed = (vulkan_backend.tensor(numbers((40,))) for _ in range(2))
    push = numbers((40,))
    graph = vulkan_backend.capture(lambda push: moved.into((x, speed, None), x, speed, push, 0.25)[0], push)
    assert graph.dispatches == 1
    for _ in range(2):
        wanted = [one.numpy() for one in moved(x, speed, vulkan_backend.tensor(push), 0.25)]
        small = graph(push)
        for found, want in zip((x, speed, small), wanted, strict=True):
            np.testing.assert_array_equal(found.numpy(), want)


def test_where_no_result_goes(vulkan_backend):
    x = vulkan_backend.tensor(numbers((8, 6)))
    double = grilly.elementwise(lambda x: x * 2)
    two = grilly.elementwise(lambda x: (x * 2, x * 3))
    for bad in (x.T, x[:, ::2], x[::2], x.broadcast_to((2, 8, 6))):
        with pytest.raises(ValueError, match="C order|go to"):
            double.into([bad], x)
    with pytest.raises(ValueError, match="apart"):
        double.into([x[:4]], x[1:5])
    with pytest.raises(ValueError, match="apart"):
        two.into([x, x], x)
    with pytest.raises(ValueError, match="apart"):
        double.into([vulkan_backend.tensor(np.zeros(3, np.float16))], np.zeros(3, np.float16))
    with pytest.raises(TypeError, match="float32"):
        double.into([vulkan_backend.empty((8, 6), "int32")], x)
    with pytest.raises(TypeError, match="goes into a ndarray; expected a Tensor"):
        double.into([np.zeros((8, 6), np.float32)], x)
    with pytest.raises(ValueError, match="2 places for 1"):
        double.into([x, None], x)
    with pytest.raises(ValueError, match="new"):
        two.into([None, None], x)
    with pytest.raises(grilly.ExpressionError, match="outside of functions"):
        grilly.elementwise(lambda y: double.into([x], y))(x)


def test_many_arrays_and_numbers(by_default):
    @grilly.elementwise
    def total(*given):
        found = given[0]
        for one in given[1:]:
            found = found + one
        return found

    arrays = [np.float32(RNG.integers(0, 50, (3, 4))) for _ in range(11)]
    numbers = [float(n) for n in range(9)]
    np.testing.assert_array_equal(total(*arrays, *numbers), sum(arrays) + sum(numbers))


@pytest.mark.long("each of some dozen pieces is compiled")
def test_a_function_of_10000_operations(vulkan_backend):
    def function(x, step):
        y = x
        for _ in range(2500):
            y = (y * 0.9 + x) - (y + step) * 0.1
        return y

    x = numbers((50,))
    found = grilly.elementwise(function)(vulkan_backend.tensor(x), 0.25).numpy()
    with np.errstate(all="ignore"):
        want = x
        for _ in range(2500):
            want = (want * np.float32(0.9) + x) - (want + np.float32(0.25)) * np.float32(0.1)
    np.testing.assert_array_equal(found, want)


def test_pieces_of_a_function_give_the_same_bits(vulkan_backend):
    """Of integers, tests and floats, where what lies between is stored."""

    def function(x, n):
        y, k = x, n
        for i in range(60):
            k = (k * 5 + i) & 0xFFF
            y = grilly.where((k > 2048) | (y > 100), y * 0.5 - x, y + k.astype(grilly.float32))
        return y, k, k > 99

    x, n = numbers((33,)), RNG.integers(0, 9, 33)
    t, m = vulkan_backend.tensor(x), vulkan_backend.tensor(n)
    for found, want in zip(grilly.elementwise(function)(t, m), function(t, m), strict=True):
        assert found.dtype == want.dtype
        np.testing.assert_array_equal(found.numpy(), want.numpy())


def test_a_captured_call_is_replayed(vulkan_backend):
    graph = vulkan_backend.capture(lambda x: swish(x, 2.0) + swish(x, x) * 2, np.zeros((4, 5), np.float32))
    x = numbers((4, 5))
    t = vulkan_backend.tensor(x)
    want = swish(t, 2.0) + swish(t, t) * 2
    np.testing.assert_array_equal(graph(x).numpy(), want.numpy())
    assert graph.dispatches == 1


def test_a_call_costs_the_host_what_an_operator_costs(vulkan_backend):
    x = vulkan_backend.tensor(numbers((4,)))
    calls = {"operator": lambda: x + x, "function": lambda: swish(x, 1.5)}
    for call in calls.values():
        call()
    # A call may also send what was recorded before it.
    found = {name: min(counted(call).total() for _ in range(5)) for name, call in calls.items()}
    assert found["function"] <= found["operator"] + 6, found


def test_functions_are_copied_and_pickled_as_functions_are():
    assert copy.deepcopy(swish) is copy.copy(swish) is pickle.loads(pickle.dumps(swish)) is swish
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(grilly.elementwise(lambda x: x))


def test_arguments_by_their_names(vulkan_backend):
    @grilly.elementwise
    def function(x, y=None, z=1.0, *, n=1):
        return x * n + z if y is None else x * n + y * z

    x = vulkan_backend.tensor(np.float32([1.0, 2.0]))
    assert function(x, n=2).tolist() == [3.0, 5.0]
    assert function(x, y=x, z=2.0, n=2).tolist() == [4.0, 8.0]
    assert function(y=x, x=x).tolist() == [2.0, 4.0]
    half = grilly.elementwise(functools.partial(lambda x, y: x * y, y=0.5))
    assert half(x).tolist() == [0.5, 1.0]


def test_functions_keep_their_names_and_documentation():
    assert swish.__name__ == "swish" and swish.__doc__ == "x times its sigmoid."
    assert "swish" in repr(swish)
