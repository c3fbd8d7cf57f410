"""DLPack with libraries that speak it: what they hold becomes a tensor, and a tensor becomes theirs.

JAX, PyTorch and pyarrow each take part where they are installed; the run's summary says which were not.
"""

import importlib.util
import re

import ml_dtypes
import numpy as np
import pytest

import capsule
import grilly

jax = pytest.mark.needs("jax")
torch = pytest.mark.needs("torch")
pyarrow = pytest.mark.needs("pyarrow")

DTYPES = ("float32", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool")
VIEWS = {
    "whole": lambda a: a, "turned": lambda a: a.T, "stepped": lambda a: a[::2, 1:, ::3],
    "no axes": lambda a: a[1, 2, 3], "empty": lambda a: a[:0], "nothing across": lambda a: a[:, :, 5:],
}  # fmt: skip


@pytest.fixture(autouse=True)
def chosen(vulkan_backend):
    former = grilly.use(vulkan_backend)
    if importlib.util.find_spec("jax"):
        import jax

        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_platforms", "cpu")  # also where it has CUDA
    yield vulkan_backend
    grilly.use(former)


@pytest.fixture(params=[pytest.param("jax", marks=jax), pytest.param("torch", marks=torch)])
def other(request):
    """Another library, in the words that these tests have for each."""
    return {"jax": Jax, "torch": Torch}[request.param]()


class Jax:
    passes_copy = False  # it asks for memory and copies where that is not aligned as its own is

    def make(self, array):
        import jax.numpy as jnp

        return jnp.asarray(array)

    def take(self, tensor, **options):
        import jax.numpy as jnp

        found = jnp.from_dlpack(tensor, **options)
        return np.asarray(found), found.dtype.name


class Torch:
    passes_copy = True

    def make(self, array):
        import torch

        sixteen = array.dtype.name == "bfloat16"
        made = torch.from_numpy(array.view(np.int16) if sixteen else array)
        return made.view(torch.bfloat16) if sixteen else made

    def take(self, tensor, **options):
        import torch

        found = torch.from_dlpack(tensor, **options)
        name = str(found.dtype).partition(".")[2]
        if name == "bfloat16":
            return found.view(torch.int16).cpu().numpy().view(ml_dtypes.bfloat16), name
        return found.cpu().numpy(), name


def numbers(dtype: str) -> np.ndarray:
    """(3, 4, 5) numbers, all of which every dtype holds."""
    return (np.arange(60).reshape(3, 4, 5) % 7 - (0 if dtype in ("bool", "uint8", "uint16", "uint32") else 3)).astype(
        ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_both_ways(other, dtype):
    exact = numbers(dtype)
    here = grilly.from_dlpack(other.make(exact))
    assert here.dtype.name == dtype and np.array_equal(here.numpy(), exact)
    there, name = other.take(grilly.asarray(exact))
    assert name == dtype and np.array_equal(there, exact)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_views_both_ways(other, view, dtype):
    exact = VIEWS[view](numbers(dtype))
    theirs = other.make(numbers(dtype))
    here = grilly.from_dlpack(theirs.permute(2, 1, 0) if view == "turned" and hasattr(theirs, "permute")
                              else VIEWS[view](theirs))  # fmt: skip
    assert here.shape == exact.shape and np.array_equal(here.numpy(), exact)
    there, _ = other.take(VIEWS[view](grilly.asarray(numbers(dtype))))
    assert there.shape == exact.shape and np.array_equal(there, exact)


def test_what_is_given_is_a_copy(other, chosen):
    """Neither side sees what the other writes later."""
    tensor = grilly.asarray(np.arange(4, dtype=np.float32))
    there, _ = other.take(tensor)
    tensor[...] = 9.0
    if tensor.__dlpack_device__() == (1, 0):  # on a shared GPU it is the same memory: test_interop.py
        assert there.tolist() == [0, 1, 2, 3]
        with pytest.raises(BufferError, match="copy"):
            tensor.__dlpack__(copy=False)
        if other.passes_copy:
            with pytest.raises((BufferError, ValueError), match="copy"):
                other.take(tensor, copy=False)
    assert other.take(tensor, copy=True)[0].tolist() == [9] * 4


@pytest.mark.parametrize("dtype", ["float64", "uint64", "complex64"])
def test_dtypes_that_no_tensor_has(other, dtype):
    with pytest.raises(TypeError, match=f"dtype {dtype} cannot live on the device"):
        grilly.from_dlpack(other.make(np.ones(3, dtype)))


@jax
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int4"])
def test_dtypes_that_dlpack_does_not_share(dtype):
    import jax.numpy as jnp

    with pytest.raises(BufferError, match=f"of {dtype}: .*taken are arrays in the host's memory, of float32"):
        grilly.from_dlpack(jnp.ones(3, dtype))


@jax
def test_arrays_of_jax_keep_their_dtype(chosen):
    """asarray takes them as it takes NumPy's: no number changes its type."""
    import jax.numpy as jnp

    for dtype in DTYPES:
        theirs = jnp.ones((2, 3), dtype)
        for made in (grilly.asarray(theirs), chosen.tensor(theirs)):
            assert made.dtype.name == dtype and made.shape == (2, 3)
    assert grilly.asarray(jnp.ones(2, "int8"), dtype="float16").dtype.name == "float16"


@jax
def test_operations_say_how_to_give_an_array_of_jax():
    import jax.numpy as jnp

    import grilly.functional as F

    with pytest.raises(TypeError, match=re.escape("give grilly.from_dlpack(input)")):
        F.softmax(jnp.ones((2, 3)), -1)
    for call in (lambda: grilly.asarray(1.0) + jnp.ones(2), lambda: jnp.ones(2) * grilly.asarray([1.0, 2.0])):
        with pytest.raises(TypeError, match="an operand is a ArrayImpl; grilly.from_dlpack makes a grilly.Tensor"):
            call()


@torch
def test_what_torch_does_not_give_is_said():
    import torch

    with pytest.raises(BufferError, match=r"from_dlpack: torch.Tensor of torch.float32: .*tensor.detach\(\)"):
        grilly.from_dlpack(torch.ones(3, requires_grad=True))


@pyarrow
def test_arrays_of_pyarrow():
    import pyarrow as pa

    for dtype in ("float32", "float16", "int8", "uint16", "int64"):
        found = grilly.from_dlpack(pa.array(np.arange(5).astype(dtype))[2:])
        assert found.dtype.name == dtype and found.numpy().tolist() == [2, 3, 4]
    with pytest.raises(Exception, match="no nulls"):
        grilly.from_dlpack(pa.array([1, None], pa.int32()))


# -- without another library -------------------------------------------------------------------------------------------


class Speaker:
    """What has DLPack's two methods and nothing else; an old one does not know of versions."""

    def __init__(self, array, old=False):
        self.array, self.old, self.asked = array, old, []

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **options):
        self.asked.append(options)
        if self.old and set(options) - {"stream"}:
            raise TypeError("unexpected keyword argument")
        return capsule.of_array(self.array)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_has_the_protocol_alone(chosen, dtype, old):
    exact = numbers(dtype)
    for take in (grilly.from_dlpack, grilly.asarray, chosen.tensor):
        found = take(Speaker(exact, old))
        assert found.dtype.name == dtype and np.array_equal(found.numpy(), exact)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 1), (2, 0)])
def test_versions(chosen, dtype, version):
    """Capsules of version 1 only for those who know them, and by NumPy that makes them."""
    tensor = grilly.asarray(numbers(dtype))
    made = tensor.__dlpack__(dl_device=(1, 0), max_version=version)
    new = bool(version) and version[0] >= 1 and capsule.VERSIONED
    assert ('"dltensor_versioned"' in repr(made)) == new

    class Holds:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **options):
            return made

    found = grilly.from_dlpack(Holds())
    assert found.dtype.name == dtype and np.array_equal(found.numpy(), numbers(dtype))


def test_arrays_that_must_not_be_written():
    array = np.arange(6, dtype=np.float32)
    array.flags.writeable = False
    assert grilly.from_dlpack(array).numpy().tolist() == array.tolist()


def test_mistakes(chosen):
    tensor = grilly.asarray(np.ones(3, np.float32))
    for given in (3, [1.0, 2.0], "text"):
        with pytest.raises(TypeError, match=f"from_dlpack: {type(given).__name__} speaks no DLPack; grilly.asarray"):
            grilly.from_dlpack(given)
    with pytest.raises(ValueError, match="host memory needs a copy"):
        grilly.from_dlpack(np.ones(3, np.float32), copy=False)
    with pytest.raises(BufferError, match=r"no memory of the device \(13, 0\).*a copy can be had on the host"):
        tensor.__dlpack__(dl_device=(13, 0))
    with pytest.raises(BufferError, match="copy is False"):
        tensor.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(BufferError, match="stream is 1; memory of the host has none"):
        tensor.__dlpack__(dl_device=(1, 0), stream=1)


def test_words_are_not_taken_for_bfloat16():
    """A capsule that nobody can open says so, and is not read as if it were of 16 bits."""

    class Odd(Speaker):
        def __dlpack__(self, **options):
            raise BufferError("not today")

    with pytest.raises(BufferError, match="from_dlpack: Odd: not today"):
        grilly.from_dlpack(Odd(np.ones(2, np.float32)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory_that_the_host_cannot_read_is_not_read(chosen, dtype):
    """Of another device than CUDA's and ROCm's, say Metal's."""
    metal = 8

    class Elsewhere:
        def __dlpack_device__(self):
            return metal, 0

        def __dlpack__(self, **options):
            words = np.zeros(3, np.uint32 if dtype == "float32" else np.uint16)
            return capsule.elsewhere(words, dtype, (metal, 0))

    with pytest.raises(BufferError, match="from_dlpack"):
        grilly.from_dlpack(Elsewhere())
