"""HIP's side of shared memory, by its public header and a stand-in for its library (`drivers.FakeHip`). No GPU of AMD's
took part. What both drivers do is in test_peers*.py, with the order "hip"."""

import ctypes
import dataclasses
import struct
import threading
from pathlib import Path

import pytest

import drivers
import grilly
from grilly import errors
from grilly.peers import driver
from grilly.peers.hip import Hip
from grilly.runtime import loaded
from grilly.runtime.vulkan import external
from sharing import ARRAY, PCI, A, B, sharing, shown

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
    monkeypatch.setattr("grilly.peers.hip.path_of_loaded", lambda name: None)
    with pytest.raises(errors.UnsupportedError, match="libamdhip64.so is not loaded; PyTorch for ROCm loads it"):
        Hip.open(Told())
    monkeypatch.setattr("grilly.peers.hip.path_of_loaded", lambda name: "libamdhip64.so")
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
