"""Sharing memory with CUDA where a call of CUDA's fails, or an interrupt comes between."""

import contextlib
import ctypes
from pathlib import Path

import numpy as np
import pytest

import drivers
import grilly
from grilly import errors
from grilly.compute.device import capsules
from grilly.peers.cuda import Cuda
from grilly.peers.exchange import PeerExchange
from sharing import ARRAY, A, B, Foreign, drop, mappable_or_skip, sharing, shown
from toolbox import tool


@pytest.fixture
def timed():
    with sharing() as made:
        yield made


#: What a failure of is tried once: the call is made once.
_ONCE = ("cuImport", "cuExternalMemory", "cuStreamCreate", "hipImport", "hipExternal", "hipStreamCreate")
FAILING = [
    ("timelines", name) for name in (
        "cuImportExternalMemory", "cuExternalMemoryGetMappedBuffer", "cuWaitExternalSemaphoresAsync",
        "cuSignalExternalSemaphoresAsync", "cuMemcpyDtoDAsync_v2", "cuStreamSynchronize", "cuStreamCreate",
    )
] + [
    ("hip", name) for name in (
        "hipImportExternalMemory", "hipExternalMemoryGetMappedBuffer", "hipMemcpyDtoDAsync", "hipStreamSynchronize",
        "hipStreamCreateWithFlags", "hipSetDevice", "hipGetDevice",
    )
]  # fmt: skip


def test_another_gpu_is_refused(vulkan_backend):
    fake = drivers.FakeCuda(vulkan_backend.device, [b"a" * 16, b"b" * 16])
    wanted, first, second = (bytes([byte] * 16).hex() for byte in b"cab")
    with pytest.raises(errors.UnsupportedError, match=f"{wanted}.*{first}, .*{second}"):
        Cuda(fake, b"c" * 16)
    assert Cuda(fake, b"b" * 16).ordinal == 1

    class Old:
        def __getattr__(self, name):
            if name == "cuImportExternalMemory":
                raise AttributeError(name)
            return getattr(fake, name)

    with pytest.raises(errors.UnsupportedError, match="no cuImportExternalMemory"):
        Cuda(Old(), b"b" * 16)


def test_two_peers_are_refused(timed):
    with pytest.raises(errors.GrillyError, match="another peer"):
        PeerExchange(timed.backend.opened, timed.exchange.driver, timed.current)


@pytest.mark.parametrize(("order", "function"), FAILING)
def test_a_call_of_the_drivers_that_fails_takes_nothing_with_it(order, function):
    with sharing(order) as timed:
        _fails_once(timed, function)


def _fails_once(timed, function):
    before = timed.bytes()

    def work():
        tensor = timed.backend.tensor(ARRAY)
        shown(tensor.__dlpack__(stream=B))
        other = grilly.from_dlpack(Foreign(ARRAY.copy(), timed.exchange.dlpack_device), device=timed.backend)
        result = tensor + other
        values = result.numpy()
        drop()
        return values

    once = function.startswith(_ONCE)
    codes = ((1, errors.GrillyError), (drivers.OUT_OF_MEMORY, errors.OutOfDeviceMemoryError))
    for code, error in codes[: 1 if once else 2]:
        timed.fake.failing[function] = code
        with pytest.raises(error, match=f"{function}: .*: made on purpose"):
            work()
        assert not timed.fake.failing
        drop()
        assert np.array_equal(work(), 2 * ARRAY)
        assert timed.bytes() == before


@pytest.mark.parametrize("function", ["cuImportExternalSemaphore", "cuDevicePrimaryCtxRetain"])
def test_sharing_that_cannot_begin_can_begin_later(function):
    mappable_or_skip()
    with drivers.exporting(True) as noted, grilly.Compute(runtime="vulkan") as backend:
        device = backend.opened
        uuid = bytes.fromhex(device.info.properties["device_uuid"])
        fake = drivers.FakeCuda(device.info, [uuid])
        fake.by_descriptor = noted
        fake.failing[function] = 1
        with pytest.raises(errors.GrillyError, match=function):
            PeerExchange(device, Cuda(fake, uuid), lambda: A)
        assert np.array_equal((backend.tensor(ARRAY) + 1).numpy(), ARRAY + 1)
        device.exchange = PeerExchange(device, Cuda(fake, uuid), lambda: A)
        tensor = backend.tensor(ARRAY)
        array = shown(tensor.__dlpack__(stream=A))
        fake.stream(A).settle()
        assert np.array_equal(array, ARRAY)
        del array
        drop()
        device.exchange = None
    fake.close()


@pytest.mark.parametrize("order", ["timelines", "waiting"])
def test_interrupts(order):
    """An interrupt at any point of a shared call: the next call is right, and no memory is lost."""
    points = tool("interrupts").Points(str(Path(grilly.__file__).parent))

    def stop():
        raise KeyboardInterrupt

    with sharing(order) as shared:
        tensor = shared.backend.tensor(ARRAY)
        array = shown(tensor.__dlpack__(stream=A))
        foreign = Foreign(np.ones((6, 10), np.float32))
        before = shared.bytes()

        def work():
            other = grilly.from_dlpack(foreign, device=shared.backend)
            result = (tensor + other) * 2.0
            return result.__dlpack__(stream=A)

        def looked(capsule):
            words = capsules.opened(capsule)[0]
            flat = (ctypes.c_float * 60).from_address(words.__array_interface__["data"][0])
            shared.fake.stream(A).settle()
            return np.array(flat)

        for _ in range(3):
            assert np.array_equal(looked(work()), 2 * ARRAY.reshape(-1) + 2)
        count = points.count(work)
        wrong = []
        for at in range(1, count + 1, max(1, count // 60)):
            with contextlib.suppress(KeyboardInterrupt):
                points.run(work, at, stop)
            if not np.array_equal(looked(work()), 2 * ARRAY.reshape(-1) + 2):
                wrong.append((at, "values"))
            if shared.bytes() != before:
                wrong.append((at, f"{shared.bytes() - before} bytes"))
        assert not wrong
        assert count > 200 and np.array_equal(array, ARRAY)
        del array
        drop()
