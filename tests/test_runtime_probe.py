"""The list of devices and the choice of one. Most of it needs no device."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import children
from grilly.errors import GrillyError, NoDeviceError, UnsupportedError
from grilly.runtime import open_runtime, probe
from grilly.runtime.interface import DeviceInfo

PACKAGE = Path(__file__).parents[1] / "grilly_py"


def device(index, name, kind, **changes):
    info = DeviceInfo(
        index, name, "mesa", 0x10005, 0, kind, "driver", "1", (1, 3, 0), 8, (8, 8), {}, frozenset(), 1 << 30, False
    )
    return replace(info, **changes)


DEVICES = [
    device(0, "llvmpipe (LLVM 15)", "cpu"),
    device(1, "Radeon 890M", "integrated"),
    device(2, "Radeon RX 7900 XTX", "discrete"),
    device(3, "Radeon RX 7900", "discrete"),
]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("GRILLY_DEVICE", raising=False)


@pytest.mark.parametrize(
    ("wanted", "index"),
    [(None, 2), (0, 0), ("1", 1), ("890m", 1), ("LLVMPIPE", 0), ("xtx", 2), ("radeon rx 7900", 3)],
)
def test_select(wanted, index):
    assert probe.select(DEVICES, wanted).index == index


def test_select_takes_the_environment_only_without_a_choice(monkeypatch):
    monkeypatch.setenv("GRILLY_DEVICE", "llvm")
    assert probe.select(DEVICES).index == 0
    assert probe.select(DEVICES, 1).index == 1
    monkeypatch.setenv("GRILLY_DEVICE", "")
    assert probe.select(DEVICES).index == 2
    monkeypatch.setenv("GRILLY_DEVICE", "voodoo")
    with pytest.raises(ValueError, match="GRILLY_DEVICE: no device's name contains 'voodoo'"):
        probe.select(DEVICES)


@pytest.mark.parametrize(("wanted", "message"), [("voodoo", "no device"), ("radeon", "3 devices"), (9, "no device 9"),
                                                 (-1, "no device -1"), (" ", "no device")])  # fmt: skip
def test_select_lists_the_devices_when_none_fits(wanted, message):
    with pytest.raises(ValueError, match=message) as caught:
        probe.select(DEVICES, wanted)
    assert all(info.name in str(caught.value) for info in DEVICES)


@pytest.mark.parametrize("wanted", [1.0, True, b"llvm", ["0"]])
def test_select_refuses_other_types(wanted):
    with pytest.raises(TypeError, match=type(wanted).__name__):
        probe.select(DEVICES, wanted)


def test_select_passes_over_devices_that_cannot_serve():
    old = device(0, "old GPU", "discrete", api_version=(1, 0, 80))
    mute = device(1, "display only", "discrete", properties={"queue_family": -1})
    assert probe.select([old, mute, DEVICES[0]]).name == DEVICES[0].name
    with pytest.raises(UnsupportedError, match="Vulkan 1.0.80, and grilly needs 1.1"):
        probe.select([old, mute, DEVICES[0]], "old")
    with pytest.raises(UnsupportedError, match="no queue"):
        probe.select([old, mute, DEVICES[0]], 1)


def test_no_devices():
    with pytest.raises(NoDeviceError, match="apt-get install libvulkan1 mesa-vulkan-drivers"):
        probe.select([])


def test_an_unknown_runtime():
    with pytest.raises(ValueError, match="unknown runtime 'cuda'"):
        open_runtime(runtime="cuda")


def run(code, **environment):
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=children.environment(**environment),
        capture_output=True,
        text=True,
        timeout=120,
    )
    return result.returncode, result.stdout + result.stderr


def test_no_driver_says_what_to_install():
    missing = "/nonexistent.json"
    code = "import grilly\ntry: grilly.devices()\nexcept grilly.NoDeviceError as e: print('caught', e)"
    status, text = run(code, VK_DRIVER_FILES=missing, VK_ICD_FILENAMES=missing)
    assert status == 0 and "caught" in text and "apt-get install" in text, text


@pytest.mark.parametrize("error", ["OSError('Cannot find Vulkan SDK version')", "ImportError('no vulkan')"])
def test_the_package_imports_without_the_loader(error):
    code = f"""
import sys, importlib.abc
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("vulkan", "kp"):
            raise {error}
sys.meta_path.insert(0, Absent())
import grilly
for call in (grilly.devices, grilly.Compute):
    try:
        call()
    except grilly.NoDeviceError as found:
        print("caught", found)
"""
    status, text = run(code)
    assert status == 0 and text.count("caught") == 2 and "install" in text, text


BEFORE = {  # a Vulkan version, and what comes with it
    (1, 2): ["VK_KHR_shader_float16_int8", "VK_KHR_8bit_storage", "VK_KHR_vulkan_memory_model"],
    (1, 3): ["VK_EXT_subgroup_size_control"],
}


@pytest.mark.parametrize("offered, instance", [((1, 1, 5), 3), ((1, 2, 7), 3), ((1, 3, 9), 3), ((1, 4, 0), 1)])
def test_features_of_later_versions_need_their_extensions(monkeypatch, offered, instance):
    """The call that would open the device is looked at, and refused."""
    try:
        info = probe.select(probe.enumerate_devices())
    except NoDeviceError as error:
        pytest.skip(f"there is no Vulkan device: {error}")
    from grilly.runtime.vulkan import device as opening

    names, (ffi, lib) = [], probe.load()

    class Refusing:
        def __getattr__(self, name):
            return getattr(lib, name)

        def vkCreateDevice(self, physical, given, allocator, made):
            count, listed = given.enabledExtensionCount, given.ppEnabledExtensionNames
            names.extend(ffi.string(listed[n]).decode() for n in range(count))
            return -3

    class Old(opening.Instance):
        def __init__(self):
            super().__init__()
            self.version = (1, instance, 0)

    monkeypatch.setattr(opening, "lib", Refusing())
    monkeypatch.setattr(opening, "Instance", Old)
    features = {"float16-arithmetic", "int8-storage", "subgroup-size-control", "cooperative-matrix"}
    with pytest.raises(GrillyError, match="INITIALIZATION"):
        opening.Device(replace(info, api_version=offered, features=frozenset(features)))
    both = min(offered[:2], (1, instance))
    for version, extensions in BEFORE.items():
        assert set(extensions) & set(names) == (set(extensions) if both < version else set()), version


def test_devices_describe_themselves():
    try:
        found = probe.enumerate_devices()
    except NoDeviceError as error:
        pytest.skip(f"there is no Vulkan device: {error}")
    assert [info.index for info in found] == list(range(len(found)))
    for info in found:
        assert info.kind in ("discrete", "integrated", "virtual", "cpu", "other") and info.vendor == info.vendor.lower()
        assert info.memory_bytes >= info.limits["allocation"] > 0
        assert len(info.limits["groups"]) == len(info.limits["group_size"]) == 3
        assert info.unified <= (info.kind in ("integrated", "cpu"))
        assert ("timestamps" in info.features) == bool(info.properties["timestamp_bits"])
        assert ("cooperative-matrix" in info.features) == bool(info.properties["cooperative_matrix"])
        assert ("workgroup-matrix-float16" in info.features) <= bool(info.properties["workgroup_matrix"])
        assert len(bytes.fromhex(info.properties["cache_uuid"])) == 16
        if info.vendor == "mesa" and info.kind == "cpu":
            known = {"subgroup-basic", "subgroup-shuffle", "float16-storage", "descriptor-offsets", "texel-buffers"}
            assert known <= info.features
