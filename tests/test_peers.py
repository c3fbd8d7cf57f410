"""Memory shared with CUDA or HIP, with drivers made of Python (`drivers`) over a second Vulkan device: what capsules
show and what comes in by them. HIP's own: test_hip.py; order: test_peers_order.py; lifetime: test_peers_lifetime.py;
errors and interrupts: test_peers_faults.py; PyTorch: test_peers_torch.py."""

import ctypes

import numpy as np
import pytest

import drivers
import grilly
from grilly import errors
from grilly.compute.device import capsules
from grilly.runtime.vulkan.external import descriptor_of_memory, importable
from sharing import ARRAY, ORDERS, A, Foreign, sharing, shown


@pytest.fixture(params=[*ORDERS, "hip"])
def shared(request):
    with sharing(request.param) as made:
        yield made


@pytest.fixture
def timed():
    with sharing() as made:
        yield made


@pytest.mark.parametrize("dedicated", [False, True])
def test_exported_memory_is_that_of_another_device(dedicated):
    with sharing(dedicated=dedicated) as shared:
        tensor = shared.backend.tensor(ARRAY)
        piece = tensor._storage.buffer.piece
        given = descriptor_of_memory(shared.backend.runtime._parts.device, piece.block.memory.value)
        other = drivers.Import(shared.backend.device, given.number, piece.block.allocated)
        given.taken()
        try:
            found = np.ctypeslib.as_array((ctypes.c_float * 60).from_address(other.address + piece.start))
            shared.backend.synchronize()
            assert np.array_equal(found, ARRAY.reshape(-1))
            found[:] = 3
            assert (tensor.numpy() == 3).all()
            del found
        finally:
            other.close()


def test_devices_without_an_importer_export_nothing(vulkan_backend):
    """No memory is made to be exported where nothing could import it."""
    external = vulkan_backend.runtime._parts.device.external
    if importable(vulkan_backend.device):
        pytest.skip("CUDA or HIP can import this device's memory")
    assert not external.memories and not external.extensions
    with pytest.raises(errors.UnsupportedError, match="no memory that CUDA or HIP can import"):
        vulkan_backend.runtime.share()


def test_a_capsule_shows_the_tensor(shared):
    tensor = shared.backend.tensor(ARRAY)
    device = (shared.fake.kind.dlpack, 1)
    assert tensor.__dlpack_device__() == device
    array = shown(tensor.__dlpack__(stream=A))
    shared.fake.stream(A).settle()
    assert np.array_equal(array, ARRAY)
    array[:] = -ARRAY
    assert np.array_equal(tensor.numpy(), -ARRAY)
    assert np.array_equal((tensor + 1).numpy(), 1 - ARRAY)
    tensor[2:4] = 9.0
    part = capsules.opened(tensor.T[3:7, ::2].__dlpack__(stream=A))[0]
    assert part.shape == (4, 3) and part.strides == (4, 80)
    assert part.__array_interface__["data"][0] == array.ctypes.data + 12
    shared.fake.stream(A).settle()
    assert (array[2:4] == 9).all() and array[4, 0] == -40
    assert shared.fake.count("import memory") == 1, "a block is imported once"


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int64", "uint8", "bool"])
def test_types_of_elements(timed, name):
    array = np.array([0, 1, 2, 1]).astype(grilly.compute.device.dtypes.dtype_of(name))
    made = timed.backend.tensor(array)
    words, found = capsules.opened(made.__dlpack__(stream=-1))
    assert found == name and words.itemsize == array.itemsize and words.shape == (4,)
    back = grilly.from_dlpack(Foreign(array), device=timed.backend)
    assert back.dtype == array.dtype and np.array_equal(back.numpy(), array)


def test_where_capsules_are(timed):
    tensor = timed.backend.tensor(ARRAY)
    host = tensor.__dlpack__(dl_device=(1, 0))
    assert np.array_equal(np.from_dlpack(capsules._Host(host)), ARRAY)
    assert timed.fake.count("import memory") == 0
    own, copy = (capsules.opened(tensor.__dlpack__(stream=-1, copy=c))[0] for c in (None, True))
    assert own.__array_interface__["data"] != copy.__array_interface__["data"]
    for options, words in (
        ({"dl_device": (13, 0)}, "no memory of the device"), ({"dl_device": (2, 0)}, "no memory of the device"),
        ({"dl_device": (1, 0), "copy": False}, "needs a copy"), ({"dl_device": (1, 0), "stream": 4}, "stream is 4"),
    ):  # fmt: skip
        with pytest.raises(BufferError, match=words):
            tensor.__dlpack__(**options)


def test_a_devices_array_goes_in(shared):
    """By a copy on the device, or as it is where the memory is grilly's."""
    backend, fake = shared.backend, shared.fake
    device = shared.exchange.dlpack_device
    given = Foreign(ARRAY.copy(), device)
    tensor = grilly.from_dlpack(given, device=backend)
    assert np.array_equal(tensor.numpy(), ARRAY) and fake.count("copy") == 1
    assert given.streams == [shared.exchange.peer.own_stream()], "the producer was told the stream of the copy"
    wide = np.arange(200, dtype=np.float32).reshape(10, 20)
    assert np.array_equal(grilly.from_dlpack(Foreign(wide[1::3, 2:9], device), device=backend).numpy(), wide[1::3, 2:9])
    with pytest.raises(BufferError, match="copy is False"):
        grilly.from_dlpack(Foreign(ARRAY, device), device=backend, copy=False)
    for other in ((device[0], 0), (12 - device[0], 1)):
        with pytest.raises(BufferError, match="on the device .* and the backend's GPU is (CUDA|HIP)'s device"):
            grilly.from_dlpack(Foreign(ARRAY, other), device=backend)
    copies = fake.count("copy")
    mine = shown(tensor.__dlpack__(stream=A))
    for part in (mine, mine[2:5, ::3], mine.T):
        again = grilly.from_dlpack(Foreign(part, device), device=backend, copy=False)
        assert again._storage is tensor._storage and np.array_equal(again.numpy(), part)
    own = grilly.from_dlpack(Foreign(mine, device), device=backend, copy=True)
    assert own._storage is not tensor._storage and fake.count("copy") == copies + 1
