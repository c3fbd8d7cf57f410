"""What NumPy and the array API standard say of edges: numbers beside 16 bits, views, orders of bytes."""

from __future__ import annotations

import functools
import time

import ml_dtypes
import numpy as np
import pytest

import grilly
import grilly.functional as F
from grilly import array_api as xp

SIXTEEN = [np.float16, ml_dtypes.bfloat16]


@pytest.mark.parametrize("dtype", SIXTEEN)
@pytest.mark.parametrize("value", [0.1, 2049, 70000.0, -1e39, 1e-9, -0.0, float("inf"), float("nan"), 3.0e38])
def test_a_number_beside_16_bits_is_rounded_to_them(default, dtype, value):
    """As the standard has it: the number becomes an array of the tensor's dtype."""
    x = np.array([0.1, 2049.0, 65504.0, -1.0]).astype(dtype)
    with np.errstate(all="ignore"):
        number = np.asarray(value).astype(dtype)
        for name in ("equal", "less", "greater_equal", "maximum", "add", "multiply", "floor_divide"):
            wanted = getattr(np, name)(x.astype(np.float32), number.astype(np.float32))
            wanted = wanted if wanted.dtype == bool else wanted.astype(dtype)
            found = getattr(grilly, name)(grilly.asarray(x), value).numpy()
            np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32), err_msg=name)
            if np.isfinite(value):  # and zeros of either sign are told apart
                np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted), err_msg=name)


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_nextafter_of_16_bits(default, dtype):
    """Every kind of number beside every other, and random ones."""
    rng = np.random.default_rng(0)
    kinds = np.array([0, 0x8000, 1, 0x8001, 0x3C00, 0x7C00, 0xFC00, 0x7BFF, 0x7F80, 0xFF80, 0x7F7F, 0x7FC0], np.uint16)
    x = np.concatenate([np.repeat(kinds, len(kinds)), rng.integers(0, 2**16, 999, np.uint16)]).view(dtype)
    y = np.concatenate([np.tile(kinds, len(kinds)), rng.integers(0, 2**16, 999, np.uint16)]).view(dtype)
    with np.errstate(all="ignore"):
        wanted = np.where(x == y, y, np.nextafter(x, y))
    found = grilly.nextafter(grilly.asarray(x), grilly.asarray(y)).numpy()
    nan = np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), nan)
    np.testing.assert_array_equal(found.view(np.uint16)[~nan], wanted.view(np.uint16)[~nan])
    assert grilly.nextafter(grilly.asarray(x[:1]), 2.0).dtype == dtype


def test_where_takes_minus_zero_for_false(default):
    for dtype in ("float32", "float16", "bfloat16"):
        condition = grilly.asarray([-0.0, 0.0, float("nan"), 2.0], dtype=dtype)
        assert grilly.where(condition, 1, 2).tolist() == [2, 2, 1, 1]


def test_products_of_16_bits_are_added_in_float32(default):
    large = grilly.asarray([400.0, -400.0, 1.0, 1.0], dtype=grilly.float16)
    found = grilly.vecdot(grilly.full((4,), 200.0, dtype=grilly.float16), large)
    assert found.dtype == np.float16 and found.item() == 400.0
    x, y = (grilly.asarray(row, dtype=grilly.float16) for row in ([0, 200, 200], [0, 400, 400]))
    assert grilly.linalg.cross(x, y).tolist() == [0.0, 0.0, 0.0]


def test_a_downloaded_view_holds_no_element_twice(default):
    found = grilly.arange(6)[::5].broadcast_to((3, 2)).numpy()
    found[0, 0] = 9
    assert found.tolist() == [[9, 5], [0, 5], [0, 5]]


def test_integers_beyond_64_bits(default):
    z = grilly.zeros(2, dtype=grilly.int64)
    for call in (
        lambda: grilly.asarray([1, 2**63], dtype=grilly.int64), lambda: grilly.asarray([1, 2**63]),
        lambda: grilly.asarray(2**70), lambda: z.__setitem__(slice(None), [1, 2**63]),
    ):  # fmt: skip
        with pytest.raises(OverflowError, match="out of bounds for int64"):
            call()
    x = grilly.zeros(2)
    x[0] = 2**70
    assert x.tolist() == [2.0**70, 0.0] and grilly.asarray([1, 2**70], dtype="float32").tolist() == [1.0, 2.0**70]
    assert grilly.asarray([2**63, 0.5]).tolist() == [2.0**63, 0.5]


@pytest.mark.parametrize("code", ["i4", "f4", "f2"])
def test_a_byte_order_that_is_named_changes_nothing(default, code):
    other = np.dtype(code).newbyteorder("S")
    for found in (
        grilly.asarray([1, 2]).astype(other) + 0, grilly.asarray([1, 2], dtype=other),
        grilly.zeros(2, dtype=other) + grilly.asarray([1, 2]).astype(code), default.tensor(np.array([1, 2], other)),
    ):  # fmt: skip
        assert found.dtype == np.dtype(code) and found.dtype.isnative and found.tolist() == [1, 2]
    graph = default.capture(lambda a: a + 1, np.array([5, 6], other))
    assert graph(np.array([1, 2], other)).tolist() == [2, 3]
    if code == "f4":
        np.testing.assert_array_equal(grilly.functional.relu(np.array([-1, 2], other)), [0, 2])


def test_arrays_of_other_libraries(default):
    class Array:
        def __init__(self, array):
            self.array = array

        def __array__(self, dtype=None, copy=None):
            return self.array

    with pytest.raises(TypeError, match="float64 cannot live on the device"):
        grilly.asarray(Array(np.ones(2)))
    assert grilly.asarray(Array(np.ones(2)), dtype="float32").tolist() == [1.0, 1.0]
    assert grilly.asarray(np.float64(1.5)).dtype == np.float32
    tensor, other = grilly.asarray([1.0, 2.0]), Array(np.array([1.0, 2.0], np.float32))
    for call in (lambda: tensor == other, lambda: other != tensor, lambda: tensor + other, lambda: other @ tensor):
        with pytest.raises(TypeError, match="an operand is a Array; grilly.asarray makes a grilly.Tensor of it"):
            call()
    with pytest.raises(TypeError, match="an operand is a Array.*; grilly.asarray makes"):
        grilly.equal(tensor, other)

    class Own(Array):
        def __eq__(self, other):
            return "mine"

        __radd__ = __eq__

    assert (tensor == Own(other.array)) == tensor + Own(other.array) == "mine"


def test_an_ellipsis_for_no_axis_stands_between_arrays(default):
    x, n = grilly.zeros((2, 3, 4)), np.zeros((2, 3, 4), np.float32)
    values = np.float32([[1, 2], [3, 4]])
    x[:, np.array([0, 1]), ..., 0] = grilly.asarray(values)
    n[:, np.array([0, 1]), ..., 0] = values
    np.testing.assert_array_equal(x.numpy(), n)
    n, rows = np.arange(54).reshape(2, 3, 9), np.array([0, 1, 2])
    found = grilly.asarray(n)[:, rows, ..., rows]
    np.testing.assert_array_equal(found.numpy(), n[:, rows, ..., rows])


def test_broadcast_views_are_not_written_to(default):
    b = grilly.asarray([1.0, 2.0])
    wide = grilly.broadcast_to(b, (3, 2))
    for call in (lambda: wide.__iadd__(1.0), lambda: wide.__setitem__((0, 0), 9)):
        with pytest.raises(ValueError, match="broadcast view.*write to a copy"):
            call()
    assert b.tolist() == [1.0, 2.0]
    row = wide[0]  # which has each element once
    row += 1
    assert b.tolist() == [2.0, 3.0]


def test_what_gives_an_array_gives_another_one(default):
    x = grilly.ones(2)
    for made in (+x, grilly.roll(x, (), axis=())):
        made += 1
    assert x.tolist() == [1.0, 1.0]
    weights = np.ones((2, 2), np.float32)
    found = grilly.functional.attention_dropout(weights, dropout_p=0.0, dropout_seed=1)
    found += 1
    assert weights.max() == 1


@pytest.mark.parametrize("k", [2**31 - 1, 2**40, -(2**40)])
def test_triangles_beyond_the_matrix(default, k):
    x = np.ones((3, 3), np.float32)
    for name in ("tril", "triu"):
        np.testing.assert_array_equal(getattr(grilly, name)(grilly.asarray(x), k=k).numpy(), getattr(np, name)(x, k))


def test_an_array_without_axes_is_an_index_that_copies(default):
    x = grilly.zeros((2, 2))
    taken = x[np.array(0)]
    taken += 1
    assert x.tolist() == [[0, 0], [0, 0]] and taken.tolist() == [1, 1]
    x[np.array(-1)] = 5
    assert x.tolist() == [[0, 0], [5, 5]]


def test_one_integer_with_axes_is_an_array_of_indices(default):
    """As in NumPy, and where Python asks for a number it is refused."""
    x = np.arange(12).reshape(3, 4)
    for places in ([1], [[1]], 1):
        t, own = grilly.asarray(places), np.array(places)
        np.testing.assert_array_equal(x[t], x[own])
        np.testing.assert_array_equal(x[:, t], x[:, own])
        np.testing.assert_array_equal(grilly.asarray(x)[t].numpy(), x[own])
        np.testing.assert_array_equal(grilly.asarray(x)[:, t, None].numpy(), x[:, own, None])
    for places in ([1], [[1]]):
        with pytest.raises(TypeError, match=r"one integer, without axes, can be an index.*give t.item\(\)"):
            "abc"[grilly.asarray(places)]
    assert "abc"[grilly.asarray(1)] == "b"


#: Calls of NumPy's functions that move, compare or write elements, on an array (6, 4).
MOVING = {
    "array2string": (), "array_repr": (), "array_str": (), "array_split": (4,), "broadcast_to": ((2, 6, 4),),
    "flip": (0,), "hsplit": (2,), "imag": (), "insert": (1, 7), "moveaxis": (0, 1), "pad": (1,), "real": (),
    "repeat": (2,), "roll": (1,), "rollaxis": (1,), "split": (2,), "squeeze": (), "swapaxes": (0, 1), "take": ([0, 1],),
    "take_along_axis": (np.array([[0]]), 1), "tile": (2,), "vsplit": (3,),
    **({"astype": ("float16",), "unstack": ()} if hasattr(np, "unstack") else {}),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVING)
def test_functions_of_numpy_that_move_elements_give_its_arrays(default, name):
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    wanted, found = (getattr(np, name)(each, *MOVING[name]) for each in (x, grilly.asarray(x)))
    assert type(found) is type(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        assert type(mine) is type(theirs)
        np.testing.assert_array_equal(mine, theirs)


def test_functions_of_numpy_with_tensors_in_lists_and_keywords(default):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    t = grilly.asarray(x)
    np.testing.assert_array_equal(np.block([[t, t], [t, x]]), np.block([[x, x], [x, x]]))
    found = np.take_along_axis(x, indices=grilly.asarray([[0], [2]]), axis=1)
    assert type(found) is np.ndarray and found.tolist() == [[0], [5]]
    held = np.zeros((2, 3), np.float32)
    np.copyto(held, t)
    np.testing.assert_array_equal(held, x)


def test_functions_of_numpy_do_not_write_to_tensors(default):
    t = grilly.zeros((2, 3))
    for call in (
        lambda: np.copyto(t, 1.0), lambda: np.copyto(dst=t, src=1.0), lambda: np.concatenate([t], out=t),
        lambda: np.stack([t[0], t[1]], 0, t), lambda: np.take(t, [0, 1], 0, t),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=r"cannot write to a grilly.Tensor; give t\[...\] = values"):
            call()


def test_functions_of_numpy_that_ask_for_a_shape_do_not_wait(default, monkeypatch):
    t = grilly.zeros((2, 3))
    monkeypatch.setattr(grilly.Tensor, "numpy", None)
    assert np.shape(t) == (2, 3) and np.ndim(t) == 2 and np.size(t) == 6


@pytest.mark.parametrize("values", [[2**63 - 1, -(2**63)], [9 * 10**18, -9 * 10**18, 1, 2], [2**60 + 1, 2**60 + 5]])
def test_var_of_int64_that_are_far_apart(default, values):
    wanted = np.var([float(value - values[0]) for value in values])
    np.testing.assert_allclose(grilly.var(grilly.asarray(np.array(values))).numpy(), wanted, rtol=1e-6)


def test_divmod_and_conj(default):
    x = np.array([7, -8])
    for found, wanted in zip(divmod(x, grilly.asarray([2, 3])), divmod(x, np.array([2, 3])), strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted)
    own = grilly.asarray([1.0, 2.0])
    other = grilly.conj(own)
    other *= 5
    assert own.tolist() == [1, 2]
    with pytest.raises(ValueError, match="normal: std is nan"):
        grilly.random.normal(3, std=float("nan"), seed=0)


def test_shape_and_dtype_are_not_set(default):
    x = default.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    with pytest.raises(AttributeError, match=r"'shape' of a grilly.Tensor cannot be set; take t.reshape\(...\)"):
        x.shape = (3, 2)
    with pytest.raises(AttributeError, match=r"'dtype' of a grilly.Tensor cannot be set; take t.astype\(...\)"):
        x.dtype = np.dtype(np.int32)
    with pytest.raises(AttributeError):
        del x.shape
    assert x.shape == (2, 3) and x.dtype == np.float32


def test_differences_of_none_and_of_more_than_there_are(default):
    x = grilly.asarray([1, 4, 9])
    assert grilly.diff(x, n=0, prepend=x, append=x).tolist() == [1, 4, 9]
    assert grilly.diff(x, n=2).tolist() == [2] and grilly.diff(x, n=10**12).tolist() == []


def test_repeats_in_an_array(default):
    x = grilly.asarray([1, 2])
    assert grilly.repeat(x, np.array([1, 2])).tolist() == [1, 2, 2]
    for odd in (np.array([-1, 1]), np.array([1.0, 2.0]), np.array([1, 2, 3])):
        with pytest.raises(ValueError, match="repeat: repeats"):
            grilly.repeat(x, odd)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: grilly.tensordot(x, x, axes=-1), ValueError, "-1 axes"),
        (lambda x: grilly.tensordot(x, x, axes=3), ValueError, "3 axes"),
        (lambda x: grilly.diff(x, n=-1), ValueError, "n is -1"),
        (lambda x: grilly.diff(x, n=1.5), TypeError, "diff: n is 1.5"),
        (lambda x: grilly.eye(2.0), TypeError, "eye: n_rows is 2.0"),
        (lambda x: grilly.eye(2, k="a"), TypeError, "eye: k is 'a'"),
        (lambda x: grilly.linspace(0, 1, 2.5), TypeError, "linspace: num is 2.5"),
        (lambda x: grilly.vecdot(x, x, axis=None), TypeError, "vecdot: axis is None"),
        (lambda x: grilly.linalg.cross(x, x, axis="a"), TypeError, "cross: axis is 'a'"),
        (lambda x: grilly.linalg.diagonal(x, offset=0.5), TypeError, "diagonal: offset is 0.5"),
        (lambda x: grilly.linalg.matrix_power(x, 2.0), TypeError, "matrix_power: n is 2.0"),
        (lambda x: grilly.linalg.vector_norm(x, ord=[1]), TypeError, r"vector_norm: ord is \[1\]"),
        (lambda x: grilly.permute_dims(x, 1), ValueError, "1 axes for a tensor of 2"),
        (lambda x: grilly.permute_dims(x, None), TypeError, "permute_dims: axes is None"),
        (lambda x: grilly.random.normal(3, std=None), TypeError, "normal: std is None"),
        (lambda x: grilly.random.integers(0, 2.5, 3), TypeError, "integers: high is 2.5"),
        (lambda x: grilly.broadcast_to(x, (2, -1)), ValueError, "does not broadcast"),
        (lambda x: grilly.concat([x, x[0]], axis=1), ValueError, "unlike numbers of axes"),
        (lambda x: grilly.meshgrid(x), ValueError, "one axis each"),
        (lambda x: x.swapaxes(0, 5), ValueError, "axes 0 and 5"),
        (lambda x: x.to_device("cpu"), TypeError, "grilly.Compute"),
        (lambda x: x.numpy(out=[1]), TypeError, "out is a list"),
        (lambda x: x[np.array([0.0])], TypeError, "expected integers"),
        (lambda x: grilly.zeros(2.0), TypeError, "zeros: "),
        (lambda x: grilly.random.normal(3, mean=1e39), ValueError, "beyond float32"),
        (lambda x: grilly.random.uniform(3, low=-3e38, high=3e38), ValueError, "beyond float32"),
    ],
)
def test_errors_that_name_what_is_wrong(default, call, error, words):
    with pytest.raises(error, match=words):
        call(grilly.ones((2, 2)))
    assert grilly.ones(1).to_device(None).tolist() == [1.0]


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (2, 3, 4), (2000,), (50, 3, 40), (3, 700), (1001, 2)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_printed_as_numpy_prints(vulkan_backend, monkeypatch, dtype, shape):
    """All of a few elements; of many the ends of the axes, which alone are fetched."""
    x = (np.random.default_rng(0).standard_normal(shape) * 9).astype(dtype)
    t = vulkan_backend.tensor(x)
    assert str(t) == f"{t}" == str(x) and repr(t).startswith("grilly.Tensor(shape=")
    fetched, own = [], grilly.Tensor.numpy
    monkeypatch.setattr(grilly.Tensor, "numpy", lambda self: fetched.append(self.size) or own(self))
    with np.printoptions(threshold=5, edgeitems=1):
        assert str(t) == str(x)
    assert x.size <= 5 or sum(fetched) <= np.prod([extent if extent <= 2 else 2 for extent in shape])


def test_printed_where_nothing_can_be_read():
    with grilly.Compute() as backend:
        t = backend.tensor(np.ones(3, np.float32))
        shown = []
        backend.capture(lambda x: shown.append(str(x)) or x + 1, t)
        assert shown[0].startswith("grilly.Tensor(shape=(3,)")
        assert str(t) == "[1. 1. 1.]" and str(backend.tensor(np.ones(1, np.float32)).astype("bfloat16")) == "[1]"
    assert str(t).startswith("grilly.Tensor(shape=(3,)")


# -- what is no array, and what is too large --------------------------------------------------------------------------


def test_limits_and_promotion_of_numpys_types():
    assert xp.finfo(np.float32) == xp.finfo(xp.float32) and xp.iinfo(np.int32).max == 2**31 - 1
    assert xp.result_type(np.uint8, np.int16) == np.int16 and xp.result_type(np.float32) == np.float32
    assert xp.result_type(np.zeros(1, ">f4")).isnative and xp.can_cast(np.uint8, np.int16)


def test_arrays_that_a_dtype_does_not_hold(vulkan_backend):
    make = functools.partial(xp.asarray, device=vulkan_backend)

    class Other:
        """An array of another library."""

        def __init__(self, array):
            self.array = array

        def __array__(self, dtype=None, copy=None):
            return self.array

    for wrap in (Other, np.asarray):
        with pytest.raises(OverflowError):
            make(wrap(np.array([np.nan, 300], np.float32)), dtype="int8")
        with pytest.raises(TypeError, match="complex64; expected integers, floats or bool"):
            make(wrap(np.array([1j], np.complex64)), dtype="float32")
    with pytest.raises(OverflowError):
        make(np.array([np.nan, 1e30], ml_dtypes.bfloat16), dtype="int32")
    with pytest.raises(OverflowError):
        xp.zeros(2, dtype="int32", device=vulkan_backend)[:] = np.array([np.nan, 1e30], ml_dtypes.bfloat16)
    with pytest.raises(TypeError):
        make(np.array([None, 1], object), dtype="float32")
    assert make(np.array([2, 1], object), dtype="int8").numpy().tolist() == [2, 1]


def test_ranges_at_the_ends_of_integers(vulkan_backend):
    make = functools.partial(xp.arange, device=vulkan_backend)
    assert make(-(2**63), 2**63 - 1, 2**63).numpy().tolist() == [-(2**63), 0]
    assert make(0, 5, 2**64).numpy().tolist() == [0]
    assert make(2**70, 2**70 + 3, dtype="float32").numpy().tolist() == [2.0**70] * 3
    for many in ((2**63,), (10**13,), (0, 1e300, 1e-300)):
        with pytest.raises(grilly.OutOfDeviceMemoryError, match="arange"):
            make(*many)


@pytest.mark.parametrize("call", [
    lambda v: v[:, None] * v[None], lambda v: xp.repeat(v, 10**10), lambda v: xp.tile(v, (10**10,)),
    lambda v: v[:1].broadcast_to((10**13,)).contiguous(), lambda v: F.gelu(v[:1].broadcast_to((10**13,))),
    lambda v: xp.flip(v[:1].broadcast_to((10**13,))), lambda v: grilly.random.normal(2**35, device=v.backend),
    lambda v: F.conv2d(v[:16].reshape((1, 1, 4, 4)), v[:4].reshape((1, 1, 2, 2)), padding=2**16),
])  # fmt: skip
def test_results_that_no_device_holds_are_refused_at_once(vulkan_backend, call):
    """Their plans would take minutes, and some of their numbers do not fit the words of a dispatch."""
    v = xp.ones(10**6, device=vulkan_backend)
    started = time.perf_counter()
    with pytest.raises(grilly.OutOfDeviceMemoryError):
        call(v)
    assert time.perf_counter() - started < 5


def test_nested_lists_without_elements_are_indices(vulkan_backend):
    x = xp.zeros((3, 2), device=vulkan_backend)
    assert x[[[], []]].shape == (2, 0, 2) and x[[[]]].shape == (1, 0, 2)
