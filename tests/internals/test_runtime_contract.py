"""What runtime/interface.py promises, of each runtime alike; what is particular to kompute; the choice of a device."""

import hashlib
import logging
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import children
from buffers import SHADERS, download, reverse_spec, scale, scale_spec, upload, whole
from conftest import open_or_skip
from grilly.errors import ClosedError, GrillyError, NoDeviceError, OutOfDeviceMemoryError, ShaderError, UnsupportedError
from grilly.runtime import open_runtime, probe
from grilly.runtime.interface import DeviceInfo, Program, ProgramSpec
from grilly.runtime.kompute import KomputeRuntime
from threads import together


def test_description(runtime):
    device = runtime.device
    assert runtime.name in ("vulkan", "kompute") and device.name and device.driver
    assert runtime.features <= device.features
    assert device.limits["storage_range"] >= 1 << 27 and device.limits["push_bytes"] >= 128
    assert device.subgroup_sizes[0] <= device.subgroup_size <= device.subgroup_sizes[1]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8, np.int64])
@pytest.mark.parametrize("count", [1, 3, 1023, 100_003])
def test_roundtrip(runtime, dtype, count):
    array = (np.arange(count) * 7 % 251).astype(dtype)
    buffer = upload(runtime, array)
    assert buffer.nbytes >= array.nbytes
    out = np.empty_like(array)
    runtime.read(buffer, out)
    np.testing.assert_array_equal(out, array)


def test_write_takes_any_strides(runtime):
    base = np.arange(2 * 30 * 40, dtype=np.float32).reshape(2, 30, 40)
    for view in (base[:, ::3, ::-2], base.transpose(2, 0, 1), np.broadcast_to(base[0, 0], (5, 40)), base[1:, 4:5, 7]):
        buffer = upload(runtime, view)
        out = np.empty(view.shape, np.float32)
        runtime.read(buffer, out)
        np.testing.assert_array_equal(out, view)
        runtime.free(buffer)


def test_downloads_are_of_their_moment(runtime):
    """They come in any order, any number of times, and have nothing of what is recorded after them."""
    x, y = upload(runtime, np.ones(300, np.float32)), upload(runtime, np.zeros(300, np.float32))
    downloads = []
    for number in range(3):
        scale(runtime, x, y, 300, 1.0, ((2, 0),))
        downloads.append(runtime.download(y, 40, offset=8 * number))
        assert downloads[-1].nbytes == 40
    runtime.write(y, np.full(300, 9, np.float32))
    for number in (2, 0, 1, 0):
        out = np.empty((2, 5), np.float32)
        runtime.collect(downloads[number], out)
        np.testing.assert_array_equal(out, number + 1)


def test_the_array_may_change_after_write(runtime):
    array = np.ones(5000, np.float32)
    buffer = upload(runtime, array)
    array[:] = 2
    assert (download(runtime, buffer) == 1).all()


def test_offsets(runtime):
    buffer = upload(runtime, np.arange(1000, dtype=np.float32))
    runtime.write(buffer, np.full((2, 5), -1, np.float32), offset=400)
    out = np.empty(30, np.float32)
    runtime.read(buffer, out, offset=4 * 90)
    np.testing.assert_array_equal(out, np.r_[np.arange(90, 100), np.full(10, -1), np.arange(110, 120)])


def test_a_part_written_after_device_work_keeps_the_rest(runtime):
    x, y = upload(runtime, np.ones(300, np.float32)), upload(runtime, np.zeros(300, np.float32))
    scale(runtime, x, y, 300, 2.0, ((2, 0),))
    runtime.write(y, np.full(10, 9, np.float32), offset=40)
    scale(runtime, x, y, 300, 1.0, ((2, 0),))
    want = np.full(300, 3, np.float32)
    want[10:20] = 10
    np.testing.assert_array_equal(download(runtime, y), want)


def test_constants_left_out_keep_the_shaders_defaults(runtime):
    x = upload(runtime, np.zeros(65, np.float32))
    for constants, want in (((), 300), (((0, 5),), 305), (((2, 1),), 100), (((2, 2), (0, 7)), 207)):
        y = upload(runtime, np.zeros(65, np.float32))
        scale(runtime, x, y, 65, 1.0, constants)
        assert (download(runtime, y) == want).all(), constants


def test_dispatches_run_in_order(runtime):
    count, rounds = 50_021, 60
    program = runtime.program(reverse_spec())
    buffers = [upload(runtime, np.arange(count, dtype=np.uint32)), runtime.allocate(4 * count)]
    for i in range(rounds):
        source, target = buffers[i % 2], buffers[1 - i % 2]
        bindings = [whole(source), None, whole(target)]
        runtime.dispatch(program, bindings, struct.pack("<I", count), (-(-count // 64), 1, 1))
        if i % 16 == 7:
            runtime.flush()
    np.testing.assert_array_equal(download(runtime, buffers[rounds % 2], np.uint32), np.arange(count) + rounds)


def test_writes_between_dispatches_are_seen_in_order(runtime):
    x, y = runtime.allocate(4 * 256), upload(runtime, np.zeros(256, np.float32))
    for i in range(20):
        runtime.write(x, np.full(256, i, np.float32))
        scale(runtime, x, y, 256, 1.0, ((2, 0),))
    assert (download(runtime, y) == sum(range(20))).all()


def test_no_workgroups_is_no_work(runtime):
    x, y = upload(runtime, np.ones(64, np.float32)), upload(runtime, np.ones(64, np.float32))
    program = runtime.program(scale_spec())
    for groups in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        runtime.dispatch(program, [whole(x), whole(y)], struct.pack("<If", 64, 1.0), groups)
    assert (download(runtime, y) == 1).all()


def test_many_buffers_and_reuse(runtime):
    before = runtime.memory().in_use
    rng = np.random.default_rng(0)
    for _ in range(3):
        held = [(rng.integers(0, 1 << 30, int(n)).astype(np.uint32)) for n in rng.integers(1, 3000, 200)]
        buffers = [upload(runtime, array) for array in held]
        assert runtime.memory().in_use - before >= sum(array.nbytes for array in held)
        for i in rng.permutation(200)[:100]:
            runtime.free(buffers[i])
            held[i] = held[i][::-1]
            buffers[i] = upload(runtime, held[i])
        for array, buffer in zip(held, buffers, strict=True):
            out = np.empty_like(array)
            runtime.read(buffer, out)
            np.testing.assert_array_equal(out, array)
            runtime.free(buffer)
    assert runtime.memory().in_use == before


def test_a_freed_buffer_serves_the_work_recorded_before(runtime):
    x, y = upload(runtime, np.full(5000, 3, np.float32)), upload(runtime, np.zeros(5000, np.float32))
    scale(runtime, x, y, 5000, 2.0, ((2, 0),))
    runtime.free(x)
    other = upload(runtime, np.full(5000, -1e9, np.float32))  # probably where x was
    assert (download(runtime, y) == 6).all()
    assert (download(runtime, other) == np.float32(-1e9)).all()


def test_memory_figures(runtime):
    start = runtime.memory(reset_peak=True)
    assert start.peak == start.in_use
    buffer = runtime.allocate(1 << 20)
    held = runtime.memory()
    assert held.in_use == start.in_use + (1 << 20) and held.peak == held.in_use <= held.reserved
    runtime.free(buffer)
    after = runtime.memory()
    assert after.in_use == start.in_use and after.peak == held.peak
    assert runtime.memory(reset_peak=True).peak == held.peak or runtime.memory().peak == start.in_use
    assert runtime.memory().peak == start.in_use


def test_more_than_the_device_has(runtime):
    before = runtime.memory()
    with pytest.raises(OutOfDeviceMemoryError, match="room"):
        runtime.allocate(runtime.device.memory_bytes + 1)
    held = []
    chunk = min(runtime.device.memory_bytes // 4, int(runtime.device.limits["allocation"]))
    if runtime.device.kind == "cpu" and runtime.device.memory_bytes <= 4 << 30:  # more would crowd out others
        with pytest.raises(OutOfDeviceMemoryError):
            for _ in range(6):
                held.append(runtime.allocate(chunk))
        for buffer in held:
            runtime.free(buffer)
    assert runtime.memory().in_use == before.in_use
    assert (download(runtime, upload(runtime, np.ones(9, np.float32))) == 1).all()


def test_equal_specs_share_a_program(runtime):
    first = runtime.program(scale_spec(((0, 1),)))
    assert isinstance(first, Program) and first.spec.name == "scale"
    assert runtime.program(scale_spec(((0, 1),))) is first
    assert runtime.program(scale_spec(((0, 2),))) is not first


def _spoil(kind):
    spirv = (SHADERS / "scale.spv").read_bytes()
    if kind == "empty":
        return b""
    if kind == "not SPIR-V":
        return b"\x7fELF" + spirv[4:]
    if kind == "cut short":
        return spirv[: len(spirv) // 2 // 4 * 4 + 4]
    if kind == "odd length":
        return spirv + b"x"
    words = np.frombuffer(spirv, np.uint32).copy()
    words[5] = 0  # the first instruction's length
    return words.tobytes()


@pytest.mark.parametrize("kind", ["empty", "not SPIR-V", "cut short", "odd length", "an instruction of no length"])
def test_a_damaged_binary_is_refused(runtime, kind):
    spirv = _spoil(kind)
    spec = ProgramSpec(kind, hashlib.sha256(spirv).hexdigest(), spirv, ("r", "rw"), 8)
    with pytest.raises(ShaderError, match=kind):
        runtime.program(spec)


def test_a_binary_that_is_not_its_digest_is_refused(runtime):
    with pytest.raises(ShaderError, match="scale"):
        runtime.program(replace(scale_spec(), digest="0" * 64))


def test_threads(runtime):
    errors = []

    def work(seed):
        try:
            rng = np.random.default_rng(seed)
            for _ in range(15):
                count = int(rng.integers(1, 4000))
                a, b = rng.integers(0, 1000, (2, count)).astype(np.float32)
                x, y = upload(runtime, a), upload(runtime, b)
                scale(runtime, x, y, count, 3.0, ((2, 0),))
                np.testing.assert_array_equal(download(runtime, y), 3 * a + b)
                runtime.free(x)
                runtime.free(y)
        except Exception as error:  # reported by the test's own thread
            errors.append(error)

    together(6, work)
    assert not errors, errors[0]
    assert runtime.memory().in_use == 0


def test_closed(runtime):
    buffer = upload(runtime, np.ones(4, np.float32))
    program = runtime.program(scale_spec())
    runtime.close()
    runtime.close()
    for call in (
        lambda: runtime.allocate(4),
        lambda: runtime.write(buffer, np.ones(4, np.float32)),
        lambda: runtime.read(buffer, np.empty(4, np.float32)),
        lambda: runtime.program(scale_spec()),
        lambda: runtime.dispatch(program, [whole(buffer)] * 2, bytes(8), (1, 1, 1)),
        runtime.flush,
        runtime.synchronize,
        runtime.memory,
        lambda: runtime.profile("dispatch"),
    ):
        with pytest.raises(ClosedError):
            call()
    runtime.free(buffer)  # a tensor may outlive its backend


def test_profile(runtime):
    x, y = upload(runtime, np.ones(1 << 16, np.float32)), upload(runtime, np.zeros(1 << 16, np.float32))
    if "timestamps" not in runtime.features:
        with pytest.raises(UnsupportedError, match="timestamps"):
            runtime.profile("dispatch")
        return
    runtime.profile("dispatch")
    for _ in range(5):
        scale(runtime, x, y, 1 << 16, 1.0)
    timings = runtime.profile(None)
    assert [timing.label for timing in timings] == ["scale"] * 5
    assert all(0 <= timing.seconds < 5 for timing in timings)
    assert [timing.start for timing in timings] == sorted(timing.start for timing in timings)


def test_descriptor_offsets(runtime):
    alignment = runtime.device.limits["offset_alignment"]
    step = max(alignment, 4 * 64)
    x = upload(runtime, np.arange(2 * step // 4, dtype=np.float32))
    y = upload(runtime, np.zeros(64, np.float32))
    program = runtime.program(scale_spec(((2, 0),)))
    call = (program, [(x, step, step), whole(y)], struct.pack("<If", 64, 1.0), (1, 1, 1))
    if "descriptor-offsets" not in runtime.features:
        with pytest.raises(UnsupportedError, match="offset"):
            runtime.dispatch(*call)
        return
    runtime.dispatch(*call)
    np.testing.assert_array_equal(download(runtime, y), np.arange(step // 4, step // 4 + 64))


def test_two_runtimes_at_once(runtime):
    from grilly.runtime import open_runtime

    other = open_runtime(runtime=runtime.name)
    try:
        x = upload(other, np.full(8, 5, np.float32))
        y = upload(runtime, np.full(8, 6, np.float32))
        assert (download(other, x) == 5).all() and (download(runtime, y) == 6).all()
    finally:
        other.close()
    assert (download(runtime, y) == 6).all()


# -- the kompute runtime: what it refuses, and how it gets round what kp lacks ----------------------------------------


@pytest.fixture
def kompute():
    opened = open_or_skip("kompute", lambda: open_runtime(runtime="kompute"))
    yield opened
    opened.close()


def test_features_need_nothing_that_kp_leaves_off(kompute):
    assert all(name.startswith("subgroup-") for name in kompute.features)
    assert "subgroup-size-control" not in kompute.features


def test_a_repeated_call_finds_its_pipeline(kompute):
    for _ in range(10):
        x, y = upload(kompute, np.ones(500, np.float32)), upload(kompute, np.zeros(500, np.float32))
        scale(kompute, x, y, 500, 1.0)
        kompute.free(y)
        kompute.free(x)
        kompute.flush()
    assert len(kompute._algorithms) <= 2
    assert len(kompute._recordings) <= 12


def test_the_pool_and_the_pipelines_are_bounded(kompute):
    for i in range(300):
        x, y = upload(kompute, np.ones(64 * (i + 1), np.float32)), upload(kompute, np.zeros(64 * (i + 1), np.float32))
        scale(kompute, x, y, 64, 1.0)
        kompute.free(x)
        kompute.free(y)
    assert len(kompute._algorithms) <= 256
    big = [kompute.allocate(64 << 20) for _ in range(6)]
    for buffer in big:
        kompute.free(buffer)
    figures = kompute.memory()
    assert figures.in_use == 0 and figures.reserved <= 256 << 20
    y = upload(kompute, np.zeros(64, np.float32))
    scale(kompute, upload(kompute, np.ones(64, np.float32)), y, 64, 2.0, ((2, 0),))
    assert (download(kompute, y) == 2).all()


def test_whole_buffers_past_the_binding_limit_are_refused(kompute):
    limit = kompute.device.limits["storage_range"]
    if kompute.device.limits["allocation"] <= limit:
        pytest.skip("this device can bind all that it can allocate")
    x, y = kompute.allocate(limit + 256), upload(kompute, np.zeros(64, np.float32))
    with pytest.raises(UnsupportedError, match="binding 0: kompute binds whole buffers"):
        kompute.dispatch(kompute.program(scale_spec()), [(x, 0, 64), whole(y)], struct.pack("<If", 1, 1.0), (1, 1, 1))


def test_bad_calls_are_refused(kompute):
    x, y = upload(kompute, np.ones(64, np.float32)), upload(kompute, np.ones(64, np.float32))
    program, push = kompute.program(scale_spec()), struct.pack("<If", 64, 1.0)
    bindings = [whole(x), whole(y)]
    for call, error, message in (
        (lambda: kompute.dispatch(program, bindings[:1], push, (1, 1, 1)), ValueError, "expected 2 bindings"),
        (lambda: kompute.dispatch(program, bindings, push * 2, (1, 1, 1)), ValueError, "16 bytes of push"),
        (lambda: kompute.dispatch(program, bindings, push, (70_000, 1, 1)), UnsupportedError, "70000"),
        (lambda: kompute.dispatch(program, [(x, 0, 512), whole(y)], push, (1, 1, 1)), ValueError, "binding 0"),
        (lambda: kompute.write(x, np.ones(65, np.float32)), ValueError, "write: bytes 0 to 260"),
        (lambda: kompute.read(x, np.ones(4, np.float32), offset=250), ValueError, "read: bytes 250"),
        (lambda: kompute.allocate(0), ValueError, "at least 1 byte"),
    ):
        if "70000" in message and kompute.device.limits["groups"][0] >= 70_000:
            continue
        with pytest.raises(error, match=message):
            call()
    kompute.free(x)
    with pytest.raises(ValueError, match="freed"):
        kompute.dispatch(program, bindings, push, (1, 1, 1))


def test_a_subgroup_size_cannot_be_asked_for(kompute):
    kompute.program(replace(reverse_spec(), subgroup_size=kompute.device.subgroup_size))
    with pytest.raises(UnsupportedError, match="subgroups of 7"):
        kompute.program(replace(reverse_spec(), subgroup_size=7))


def test_opening_leaves_the_applications_logging_alone(kompute):
    code = (
        "import logging\nfrom grilly.runtime import open_runtime\n"
        "open_runtime(runtime='kompute').close()\nassert not logging.root.handlers, logging.root.handlers"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env=environment)
    assert logging.root is logging.getLogger()


def test_without_kp_the_error_tells_how_to_build_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "kp", None)
    with pytest.raises(NoDeviceError, match="KOMPUTE_OPT_USE_BUILT_IN_FMT=OFF"):
        KomputeRuntime(None)


# -- the list of devices and the choice of one ------------------------------------------------------------------------


PACKAGE = Path(__file__).parents[2] / "grilly_py"


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
        opening.VulkanDevice(replace(info, api_version=offered, features=frozenset(features)))
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
