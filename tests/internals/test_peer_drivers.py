"""grilly.cuda, HIP and faults of their drivers: memory shared with stand-ins of CUDA's and HIP's (`drivers`)."""

import contextlib
import ctypes
import dataclasses
import struct
import subprocess
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest

import children
import drivers
import grilly
import grilly.cuda
from grilly import errors
from grilly.compute.device import capsules, exchange
from grilly.interop import driver
from grilly.interop.cuda import Cuda
from grilly.interop.exchange import InteropExchange
from grilly.interop.hip import Hip
from grilly.runtime import loaded
from grilly.runtime.vulkan import external
from sharing import ARRAY, PCI, A, B, Foreign, drop, mappable_or_skip, sharing, shown, stand_in
from toolbox import tool


@pytest.fixture(params=[drivers.FakeCuda, drivers.FakeHip])
def shared(request, monkeypatch):
    """A backend that only grilly.cuda opens for exchange, and the stand-in."""
    mappable_or_skip()
    kind = request.param
    with drivers.exporting(True, False) as noted, grilly.Compute(runtime="vulkan") as backend:
        fake, own = stand_in(backend.opened, noted, 0.0, kind)
        for one in (grilly.cuda.Cuda, grilly.cuda.Hip):
            monkeypatch.setattr(one, "open", classmethod(lambda cls, _: opened(cls, fake, own)))
        monkeypatch.setattr(exchange, "_open", grilly.cuda._open)
        if not backend.runtime._parts.device.external.memories:
            pytest.skip(f"{backend.device.name} exports no memory")
        yield backend, fake
        drop()
        backend.close()
        fake.close()


def opened(interface, fake, device):
    if fake.kind is not interface:
        raise errors.UnsupportedError(f"{interface.name}'s driver library was not found")
    return interface(fake, device)


def test_arrays_go_both_ways(shared):
    backend, fake = shared
    assert grilly.cuda.ordinal(backend) == 1
    foreign = Foreign(ARRAY.copy(), (fake.kind.dlpack, 1))
    tensor = grilly.from_dlpack(foreign, device=backend)
    np.testing.assert_array_equal((tensor * 2).numpy(), 2 * ARRAY)
    assert tensor.__dlpack_device__() == (fake.kind.dlpack, 1)
    array = shown(tensor.__dlpack__(stream=-1), tensor.__dlpack_device__())
    fake.stream(0).settle()
    np.testing.assert_array_equal(array, ARRAY)


def test_which_stream_is_the_current_one(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert grilly.cuda._stream(2) == 0
    torch = types.SimpleNamespace(
        cuda=types.SimpleNamespace(is_initialized=lambda: used), _C=types.SimpleNamespace(_cuda_getCurrentRawStream=str)
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    used = False
    assert grilly.cuda._stream(2) == 0
    used = True
    assert grilly.cuda._stream(2) == "2"


def test_why_nothing_is_shared(vulkan_backend, monkeypatch):
    monkeypatch.setattr(exchange, "_open", grilly.cuda._open)
    monkeypatch.setattr(vulkan_backend.opened.home, "exchange", None)
    if vulkan_backend.device.kind != "cpu":
        pytest.skip("CUDA or HIP may have this device")
    with pytest.raises(errors.UnsupportedError, match="no memory that CUDA or HIP can import"):
        grilly.cuda.ordinal(vulkan_backend)
    monkeypatch.setattr(vulkan_backend.opened.home, "exchange", None)
    monkeypatch.setattr(exchange, "_open", None)
    with pytest.raises(BufferError, match="CUDA's, whose memory is not shared: .*import grilly.cuda, or for PyTorch"):
        grilly.from_dlpack(Foreign(ARRAY), device=vulkan_backend)


def test_pytorchs_comes_first():
    """Whichever of the two modules is imported first: it knows PyTorch's current stream."""
    mark = object()
    before = exchange._open
    try:
        exchange.provide(mark)
        exchange.provide(before, instead=False)
        assert exchange._open is mark
    finally:
        exchange.provide(before)


def test_it_needs_no_pytorch():
    code = "import sys, grilly.cuda; assert 'torch' not in sys.modules and grilly.compute.device.exchange._open"
    subprocess.run([sys.executable, "-c", code], check=True, env=children.environment())


# -- HIP, by its public header and a stand-in for its library (`drivers.FakeHip`) -------------------------------------


#: What a C program says that includes hip_runtime_api.h of ROCm 6.2 (github.com/ROCm/HIP, c5e11fca), on x86-64: sizes,
#: and by field its offset.
HEADER = {
    "hipExternalMemoryHandleDesc": (104, {"type": 0, "handle.fd": 8, "size": 24, "flags": 32}),
    "hipExternalMemoryBufferDesc": (88, {"offset": 0, "size": 8, "flags": 16}),
}
CONSTANTS = {"hipExternalMemoryHandleTypeOpaqueFd": 1, "hipErrorOutOfMemory": 2, "hipErrorNotReady": 600,
             "hipStreamNonBlocking": 1}  # fmt: skip


def test_layouts_are_those_of_the_header():
    size, offsets = HEADER["hipExternalMemoryHandleDesc"]
    words = struct.pack(driver.MEMORY, 11, 0, 22, 0, 33, 44)
    assert len(words) == size
    assert {name: words.index(value) for name, value in zip(offsets, (11, 22, 33, 44), strict=True)} == offsets
    size, offsets = HEADER["hipExternalMemoryBufferDesc"]
    words = struct.pack(driver.PART, 11, 22)
    assert len(words) == size and {"offset": words.index(11), "size": words.index(22)} == {"offset": 0, "size": 8}
    assert not any(words[offsets["flags"] :])
    ours = [driver._OPAQUE_FD, driver._OUT_OF_MEMORY, driver._NOT_READY, driver._NON_BLOCKING]
    assert ours == list(CONSTANTS.values())


def test_what_is_asked_of_hip():
    """Memory by its file descriptor; no semaphores, which HIP imports none of on Linux; and the thread's own device
    is the current one afterwards."""
    with sharing("hip") as shared:
        tensor = shared.backend.tensor(ARRAY)
        shown(tensor.__dlpack__(stream=A))
        shown((tensor + 1).__dlpack__(stream=B))
        (tensor * 2).numpy()
        names = {name for name, _ in shared.fake.calls}
        assert names <= {*Hip.functions.values(), *Hip.own} and "hipImportExternalMemory" in names
        assert shared.fake.count("import memory") == 1
        current = ctypes.c_int(-1)
        shared.fake.hipGetDevice(ctypes.byref(current))
        assert current.value == 0 and shared.exchange.driver.ordinal == 1
        assert not shared.exchange._sharing.timelines


def test_another_gpu_is_refused():
    fake = drivers.FakeHip(None, ["0000:02:00.0", PCI])
    assert Hip(fake, PCI).ordinal == 1
    with pytest.raises(errors.UnsupportedError, match="HIP does not have the GPU at PCI address 0000:44:00.0.*"
                       "it has at PCI address 0000:02:00.0, .*HIP_VISIBLE_DEVICES"):  # fmt: skip
        Hip(fake, "0000:44:00.0")
    with pytest.raises(errors.UnsupportedError, match="HIP's driver has no cuInit|hipInit"):
        Hip(drivers.FakeCuda(None, [b""]), PCI)


class Told:
    pci: str | None = None


def test_without_its_library_or_the_address(monkeypatch):
    monkeypatch.setattr("grilly.interop.hip.path_of_loaded", lambda name: None)
    with pytest.raises(errors.UnsupportedError, match="libamdhip64.so is not loaded; PyTorch for ROCm loads it"):
        Hip.open(Told())
    monkeypatch.setattr("grilly.interop.hip.path_of_loaded", lambda name: "libamdhip64.so")
    with pytest.raises(errors.UnsupportedError, match="VK_EXT_pci_bus_info"):
        Hip.open(Told())


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="/proc is not mounted, or this is no Linux")
def test_a_loaded_library_is_found(vulkan_backend):
    path = loaded.path_of_loaded("libvulkan.so")
    assert path is not None and ctypes.CDLL(path).vkGetInstanceProcAddr
    assert loaded.path_of_loaded("libnobody-has-this.so") is None


def test_memory_is_made_to_be_exported_where_hip_could_import_it(vulkan_backend, monkeypatch):
    amd = dataclasses.replace(vulkan_backend.device, vendor_id=0x1002, features=frozenset())
    assert not external.importable(amd), "no HIP here"
    monkeypatch.setattr(external, "path_of_loaded", lambda name: "/opt/rocm/lib/libamdhip64.so.6")
    assert external.importable(amd)
    assert not external.importable(dataclasses.replace(amd, vendor_id=0x8086))


def test_an_array_of_rocms_without_hip(vulkan_backend):
    class Other:
        def __dlpack_device__(self):
            return 10, 0

    if vulkan_backend.device.kind != "cpu":
        pytest.skip("the GPU may be shared")
    with pytest.raises(BufferError, match="the array is ROCm's, whose memory is not shared"):
        grilly.from_dlpack(Other(), device=vulkan_backend)


def test_threads_keep_their_device():
    """HIP's current device is a thread's: what another thread calls finds its own."""
    with sharing("hip") as shared:
        found = []

        def work():
            tensor = shared.backend.tensor(ARRAY)
            shown(tensor.__dlpack__(stream=A))
            current = ctypes.c_int(-1)
            shared.fake.hipGetDevice(ctypes.byref(current))
            found.append((current.value, (tensor + 1).numpy()[0, 1]))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
        assert found == [(0, 2.0)]


# -- calls of CUDA's that fail, and interrupts ------------------------------------------------------------------------


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


def test_another_gpu_is_refused_on_the_way_in(vulkan_backend):
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
    with pytest.raises(errors.GrillyError, match="another interface"):
        InteropExchange(timed.backend.opened, timed.exchange.driver, timed.current)


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
            InteropExchange(device, Cuda(fake, uuid), lambda: A)
        assert np.array_equal((backend.tensor(ARRAY) + 1).numpy(), ARRAY + 1)
        device.exchange = InteropExchange(device, Cuda(fake, uuid), lambda: A)
        tensor = backend.tensor(ARRAY)
        array = shown(tensor.__dlpack__(stream=A))
        fake.stream(A).settle()
        assert np.array_equal(array, ARRAY)
        del array
        drop()
        device.exchange = None
    fake.close()


@pytest.mark.parametrize("taken", [False, True], ids=["before it", "after it"])
@pytest.mark.parametrize("number", [1, 2])
def test_an_interrupt_where_a_stream_is_to_signal(timed, number, taken):
    """Two streams signal one timeline, which may only go up. The interrupt leaves open whether one of them will."""
    backend, driver, calls = timed.backend, timed.exchange.driver, []
    tensor = backend.tensor(ARRAY)
    array = shown(tensor.__dlpack__(stream=A))
    signal, gates = driver.signal, {A: timed.gate(A), B: timed.gate(B)}

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) != number:
            return signal(*arguments)
        if taken:
            signal(*arguments)
        raise KeyboardInterrupt

    driver.signal = interrupted
    timed.sharing.meet(B)
    with pytest.raises(KeyboardInterrupt):
        tensor + 1
    threading.Timer(0.1, gates.pop(calls[-1][-1]).set).start()
    for gate in gates.values():  # of the quicker stream
        gate.set()
    assert np.array_equal((tensor + 2).numpy(), ARRAY + 2)
    for stream in (A, B):
        timed.fake.stream(stream).settle()
    values = [value for _, value, _ in calls]
    assert len(calls) > 2 and values == sorted(set(values)) and np.array_equal(array, ARRAY)


def test_nobody_waits_for_what_an_interrupt_kept_from_being_submitted(timed):
    tensor = timed.backend.tensor(ARRAY)
    shown(tensor.__dlpack__(stream=A))
    order = timed.backend.runtime._parts.stream.interop
    meet = order.meet

    def interrupted(stream=None):
        order.meet = meet
        raise KeyboardInterrupt

    order.meet = interrupted
    with pytest.raises(KeyboardInterrupt):
        tensor + 1
    waits = timed.fake.count("cuWaitExternalSemaphoresAsync")
    array = shown(tensor.__dlpack__(stream=B))
    timed.fake.stream(B).settle()
    assert np.array_equal(array, ARRAY) and timed.fake.count("cuWaitExternalSemaphoresAsync") == waits


ROOT = Path(grilly.__file__).parent
#: Files where order with the other driver is kept.
ORDERING = tuple(str(ROOT / name) for name in ("interop", "runtime/vulkan/interop.py", "runtime/vulkan/sharing.py"))


@pytest.mark.parametrize("order", ["timelines", "waiting"])
@pytest.mark.parametrize(("files", "most"), [(str(ROOT), 60), (ORDERING, None)], ids=["everywhere", "ordering"])
def test_interrupts(order, files, most):
    """An interrupt in a shared call: streams wait for nothing that does not come, the next call is right, and no memory
    is lost. Tried at about ``most`` of the points in some files, or at all."""
    points = tool("interrupts").Points(files)

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
        for at in range(1, count + 1, max(1, count // (most or count))):
            with contextlib.suppress(KeyboardInterrupt):
                points.run(work, at, stop)
            shared.fake.stream(A).settle()
            capsule = tensor.__dlpack__(stream=B)
            shared.fake.stream(B).settle()
            del capsule
            shared.stream = B if at % 2 else A
            if not np.array_equal(looked(work()), 2 * ARRAY.reshape(-1) + 2):
                wrong.append((at, "values"))
            if shared.bytes() != before:
                wrong.append((at, f"{shared.bytes() - before} bytes"))
        assert not wrong
        assert count > (200 if most else 20) and np.array_equal(array, ARRAY)
        del array
        drop()
