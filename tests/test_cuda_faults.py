"""Sharing memory with CUDA where a call of CUDA's fails, or an interrupt comes between."""

import contextlib
import ctypes
from pathlib import Path

import numpy as np
import pytest

import cudas
import grilly
from grilly import errors
from grilly.cuda import capsules
from grilly.cuda.driver import Driver
from grilly.cuda.exchange import CudaExchange
from sharing import ARRAY, A, B, Foreign, drop, mappable_or_skip, sharing, shown
from toolbox import tool


@pytest.fixture
def timed():
    with sharing() as made:
        yield made


def test_another_gpu_is_refused(vulkan_backend):
    fake = cudas.FakeCuda(vulkan_backend.device, [b"a" * 16, b"b" * 16])
    with pytest.raises(errors.UnsupportedError, match=f"{(b'c' * 16).hex()}.*{(b'a' * 16).hex()}, {(b'b' * 16).hex()}"):
        Driver(fake, b"c" * 16)
    assert Driver(fake, b"b" * 16).ordinal == 1

    class Old:
        def __getattr__(self, name):
            if name == "cuImportExternalMemory":
                raise AttributeError(name)
            return getattr(fake, name)

    with pytest.raises(errors.UnsupportedError, match="no cuImportExternalMemory"):
        Driver(Old(), b"b" * 16)


def test_two_peers_are_refused(timed):
    with pytest.raises(errors.GrillyError, match="another peer"):
        CudaExchange(timed.backend.opened, timed.exchange.driver, timed.current)


@pytest.mark.parametrize(
    "function", ["cuImportExternalMemory", "cuExternalMemoryGetMappedBuffer", "cuWaitExternalSemaphoresAsync",
                 "cuSignalExternalSemaphoresAsync", "cuMemcpyDtoDAsync_v2", "cuStreamSynchronize", "cuStreamCreate"]
)  # fmt: skip
def test_a_call_of_cudas_that_fails_takes_nothing_with_it(timed, function):
    before = timed.bytes()

    def work():
        tensor = timed.backend.tensor(ARRAY)
        shown(tensor.__dlpack__(stream=B))
        other = grilly.from_dlpack(Foreign(ARRAY.copy()), device=timed.backend)
        result = tensor + other
        values = result.numpy()
        drop()
        return values

    once = function.startswith(("cuImport", "cuExternalMemory", "cuStreamCreate"))
    codes = ((1, errors.GrillyError), (cudas.OUT_OF_MEMORY, errors.OutOfDeviceMemoryError))
    for code, error in codes[: 1 if once else 2]:
        timed.fake.failing[function] = code
        with pytest.raises(error, match=f"{function}: CUDA_ERROR_OF_THE_STAND_IN: made on purpose"):
            work()
        assert not timed.fake.failing
        drop()
        assert np.array_equal(work(), 2 * ARRAY)
        assert timed.bytes() == before


@pytest.mark.parametrize("function", ["cuImportExternalSemaphore", "cuDevicePrimaryCtxRetain"])
def test_sharing_that_cannot_begin_can_begin_later(function):
    mappable_or_skip()
    with cudas.exporting(True) as noted, grilly.Compute(runtime="vulkan") as backend:
        device = backend.opened
        uuid = bytes.fromhex(device.info.properties["device_uuid"])
        fake = cudas.FakeCuda(device.info, [uuid])
        fake.by_descriptor = noted
        fake.failing[function] = 1
        with pytest.raises(errors.GrillyError, match=function):
            CudaExchange(device, Driver(fake, uuid), lambda: A)
        assert np.array_equal((backend.tensor(ARRAY) + 1).numpy(), ARRAY + 1)
        device.exchange = CudaExchange(device, Driver(fake, uuid), lambda: A)
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
