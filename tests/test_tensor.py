"""Tensors behave like the NumPy arrays they stand for."""

from __future__ import annotations

import operator
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grilly
from conftest import open_or_skip
from kernels import of_one_storage

ARRAY = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
SMALL = np.linspace(0.5, 3, 18, dtype=np.float32).reshape(3, 6)


def test_round_trip_of_every_dtype(backend):
    for dtype in (np.float32, np.float16, np.bool_, np.int32):
        array = (np.random.default_rng(0).standard_normal((5, 7)) * 3).astype(dtype)
        tensor = backend.tensor(array)
        assert tensor.dtype == array.dtype and tensor.shape == array.shape and tensor.nbytes == array.nbytes
        assert (tensor.numpy() == array).all()
        assert "5, 7" in repr(tensor) and backend.device.name in repr(tensor)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_views_are_numpys(vulkan_backend, data):
    """A random chain of views gives what NumPy gives, without a copy."""
    array, tensor = ARRAY, vulkan_backend.tensor(ARRAY)
    whole = tensor
    for _ in range(data.draw(st.integers(1, 5))):
        kind = data.draw(st.sampled_from(["transpose", "slice", "int", "none", "merge", "broadcast"]))
        if kind == "transpose":
            axes = data.draw(st.permutations(range(array.ndim)))
            array, tensor = array.transpose(axes), tensor.transpose(*axes) if axes else tensor.transpose()
        elif kind == "slice" and array.ndim:
            axis = data.draw(st.integers(0, array.ndim - 1))
            stop = data.draw(st.one_of(st.none(), st.integers(-6, 6)))
            part = slice(data.draw(st.integers(-6, 6)), stop, data.draw(st.integers(1, 3)))
            index = (slice(None),) * axis + (part,)
            array, tensor = array[index], tensor[index]
        elif kind == "int" and array.ndim > 1 and array.shape[0]:
            place = data.draw(st.integers(-array.shape[0], array.shape[0] - 1))
            array, tensor = array[place], tensor[place]
        elif kind == "none":
            array, tensor = array[..., None], tensor[..., None]
        elif kind == "merge" and array.flags.c_contiguous:
            array, tensor = array.reshape(-1), tensor.reshape(-1)
        elif kind == "broadcast":
            array, tensor = np.broadcast_to(array, (2, *array.shape)), tensor.broadcast_to((2, *tensor.shape))
        if array.size > 2000 or array.ndim > 7:
            break
    assert of_one_storage(tensor, whole)
    assert tensor.shape == array.shape
    assert (tensor.numpy() == array).all()
    assert len(tensor) == len(array) if array.ndim else True


def test_reshape_copies_only_where_it_must(backend):
    tensor = backend.tensor(ARRAY)
    assert of_one_storage(tensor, tensor.reshape(6, 20))
    assert (tensor.reshape(2, -1).numpy() == ARRAY.reshape(2, -1)).all()
    turned = tensor.transpose(0, 2, 1, 3)
    assert of_one_storage(tensor, turned.reshape(2, 4, 3, 5, 1))
    gathered = turned.reshape(2, 4, 15)
    assert not of_one_storage(tensor, gathered)
    assert (gathered.numpy() == ARRAY.transpose(0, 2, 1, 3).reshape(2, 4, 15)).all()


def test_bad_views(backend):
    tensor = backend.tensor(ARRAY)
    for call, error in [
        (lambda: tensor.reshape(7, 7), ValueError),
        (lambda: tensor.reshape(-1, -1), ValueError),
        (lambda: tensor.transpose(0, 0, 1, 2), ValueError),
        (lambda: tensor.transpose(0, 1), ValueError),
        (lambda: tensor[5], IndexError),
        (lambda: tensor[0, 0, 0, 0, 0], IndexError),
        (lambda: tensor[..., ...], IndexError),
        (lambda: tensor["a"], TypeError),
        (lambda: tensor.broadcast_to((3, 3, 4, 5)), ValueError),
        (lambda: len(backend.tensor(np.float32(1))), TypeError),
    ]:
        with pytest.raises(error):
            call()


def test_protocols(backend):
    tensor = backend.tensor(ARRAY)
    assert (np.asarray(tensor) == ARRAY).all()
    assert np.asarray(tensor, dtype=np.float64).dtype == np.float64
    assert np.array_equal(tensor, ARRAY) and np.allclose(tensor, ARRAY) and np.shape(tensor) == ARRAY.shape
    if tensor.__dlpack_device__() == (1, 0):  # CUDA's where it shares the memory: test_interop.py
        assert (np.from_dlpack(tensor) == ARRAY).all()
    with pytest.raises(ValueError, match="copy"):
        tensor.__array__(copy=False)


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64, np.bool_, float])
def test_numbers_of_numpys_before_a_tensor(vulkan_backend, kind):
    array = np.array([0.0, 1.0, 2.0], np.float32)
    tensor, number = vulkan_backend.tensor(array), kind(1)
    for call in (
        lambda x: number == x, lambda x: number != x, lambda x: number < x, lambda x: number >= x,
        lambda x: number * x, lambda x: number - x,
    ):  # fmt: skip
        np.testing.assert_array_equal(call(tensor).numpy(), call(array).astype(call(tensor).dtype))


def test_items_and_formats_are_numpys(vulkan_backend):
    tensor = vulkan_backend.tensor(ARRAY)
    last = tuple(extent - 1 for extent in ARRAY.shape)
    for index in ((3,), (-1,), last, (last,)):
        assert tensor.item(*index) == ARRAY.item(*index)
    assert tensor.T.item(1) == ARRAY.T.item(1) and tensor[(0,) * (ARRAY.ndim - 1)].item(1) == ARRAY.reshape(-1)[1]
    for index in ((ARRAY.size,), (-ARRAY.size - 1,), (*last[:-1], 99)):
        with pytest.raises(IndexError, match="out of bounds"):
            tensor.item(*index)
    for index in ((), (0, 0) * ARRAY.ndim):
        with pytest.raises(ValueError, match="item: "):
            tensor.item(*index)
    number = vulkan_backend.tensor(np.float32(1.25))
    assert f"{number:.1f}|{number:>6}" == f"{np.array(1.25, np.float32):.1f}|{np.array(1.25, np.float32):>6}"
    assert f"{number}" == str(number) and f"{tensor}" == str(tensor)
    with pytest.raises(TypeError, match="unsupported format string"):
        format(tensor, ".1f")


def test_downloads(backend):
    tensor = backend.tensor(ARRAY)
    found, turned, none = tensor.download(), tensor.T.download(), tensor[:0].download()
    tensor[...] = 0
    assert (found.numpy() == ARRAY).all() and (turned.numpy() == ARRAY.T).all()
    assert found.numpy() is found.numpy() and found.shape == ARRAY.shape and found.dtype == ARRAY.dtype
    assert none.numpy().shape == (0, *ARRAY.shape[1:])
    assert "Download(float32" in repr(found)


def test_a_download_of_a_backend_that_is_closed():
    with open_or_skip("vulkan", lambda: grilly.Compute(runtime="vulkan")) as backend:
        found, kept = (backend.tensor(ARRAY).download() for _ in range(2))
        kept.numpy()
    assert (kept.numpy() == ARRAY).all()
    with pytest.raises(grilly.ClosedError):
        found.numpy()


def test_float_conversions(backend):
    if "float16-storage" not in backend.runtime.features:
        pytest.skip(f"float16-storage is not offered by {backend.device.name} through {backend.runtime.name}")
    values = np.random.default_rng(3).standard_normal((3, 5, 7)).astype(np.float32)
    half = backend.tensor(values).astype(np.float16)
    assert half.dtype == np.float16 and (half.numpy() == values.astype(np.float16)).all()
    assert (half.transpose(2, 0, 1).astype(np.float32).numpy() == values.astype(np.float16).transpose(2, 0, 1)).all()


def test_written_arrays_may_change_at_once(backend):
    """The tensor holds what the array held at the call, whatever happens to the array afterwards."""
    array = np.ones((64, 64), np.float32)
    tensors = []
    for i in range(50):
        array[:] = i
        tensors.append(backend.tensor(array))
    array[:] = -1
    assert [float(t.numpy()[5, 5]) for t in tensors] == list(range(50))


def test_read_only_and_foreign_byte_order(backend):
    array = np.arange(6, dtype=">f4").reshape(2, 3)
    array.flags.writeable = False
    assert (backend.tensor(array).numpy() == array).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32])
def test_dtypes_that_were_pickled(backend, dtype):
    """NumPy gives such a dtype other flags than its own, though they are equal."""
    for value in (3, [3, 4, 5]):
        given = pickle.loads(pickle.dumps(np.array(value, dtype)))
        given = given.astype(pickle.loads(pickle.dumps(given.dtype)))
        assert given.dtype.isbuiltin == 0
        found = backend.tensor(given)
        np.testing.assert_array_equal(found.numpy(), given)
        assert type(found.reshape(-1)[0].item()) is type(given.reshape(-1)[0].item())
        out = np.zeros_like(given)
        np.testing.assert_array_equal(found.numpy(out), given)
        np.testing.assert_array_equal(found.download().numpy(), given)


def test_default_backend_and_use(backend):
    import grilly.functional as F

    x = np.ones((1, 1, 3, 4), np.float32)
    former = grilly.use(backend)
    try:
        assert np.allclose(F.flash_attention2(x, x, x), 1)
        assert grilly.use(backend) is backend
    finally:
        grilly.use(former)


def test_numpys_arithmetic_is_refused_with_a_way(backend):
    """Nothing is downloaded unseen."""
    t = backend.tensor(SMALL)
    for call, words in (
        (lambda: np.exp(t), r"numpy.exp: .* give grilly.exp\(...\)"), (lambda: np.mean(t), "grilly.mean"),
        (lambda: np.sum(t, axis=0), "grilly.sum"), (lambda: np.dot(t, SMALL.T), "grilly.matmul"),
        (lambda: np.arctan2(SMALL, t), "grilly.atan2"), (lambda: np.absolute(t), "grilly.abs"),
        (lambda: np.linalg.matrix_power(t, 2), "grilly.linalg.matrix_power"),
        (lambda: np.einsum("ij->i", t), r"unseen; give t.numpy\(\)$"), (lambda: np.add.reduce(t), "grilly.sum"),
        (lambda: np.any(t), r"numpy\.any: .* grilly\.any"), (lambda: np.unique(t), "grilly.unique_values"),
        (lambda: np.linalg.norm(t), "grilly.linalg.vector_norm"), (lambda: np.maximum.reduce(t), "grilly.max"),
        (lambda: np.fft.fft(t), r"unseen; give t.numpy\(\)$"), (lambda: np.histogram(t), "unseen"),
        (lambda: np.nanmedian(t), "unseen"), (lambda: np.sinc(t), "unseen"), (lambda: np.bincount(t), "unseen"),
        (lambda: SMALL.copy().__iadd__(t), "grilly.add"), (lambda: np.add(SMALL, t, out=SMALL.copy()), "grilly.add"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=words):
            call()


def test_operators_beside_numpy(backend):
    """On both sides, with arrays and scalars: the tensor's own, on the device."""
    t, whole = backend.tensor(SMALL), backend.tensor(np.arange(1, 7, dtype=np.int32))
    for other in (SMALL + 2, np.float32(3)):
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "ge", "eq", "ne"):
            operate = getattr(operator, name)
            for one, two, left, right in ((t, other, SMALL, other), (other, t, other, SMALL)):
                with np.errstate(all="ignore"):
                    found, wanted = operate(one, two), operate(left, right)
                assert isinstance(found, grilly.Tensor), name
                np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5)
    bits = np.array([3, 1, 2, 3, 1, 2], np.int32)
    for name in ("and_", "or_", "xor", "lshift", "rshift"):
        found = getattr(operator, name)(bits, whole)
        assert isinstance(found, grilly.Tensor)
        np.testing.assert_array_equal(found.numpy(), getattr(operator, name)(bits, whole.numpy()))
    product = SMALL.T @ t
    assert isinstance(product, grilly.Tensor)
    np.testing.assert_allclose(product.numpy(), SMALL.T @ SMALL, rtol=1e-5)
