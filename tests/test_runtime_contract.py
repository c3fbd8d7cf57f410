"""What runtime/interface.py promises, of each runtime alike."""

import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest

from buffers import SHADERS, download, reverse_spec, scale, scale_spec, upload, whole
from grilly.errors import ClosedError, OutOfDeviceMemoryError, ShaderError, UnsupportedError
from grilly.runtime.interface import Program, ProgramSpec
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
    piece = min(runtime.device.memory_bytes // 4, int(runtime.device.limits["allocation"]))
    if runtime.device.kind == "cpu" and runtime.device.memory_bytes <= 4 << 30:  # more would crowd out others
        with pytest.raises(OutOfDeviceMemoryError):
            for _ in range(6):
                held.append(runtime.allocate(piece))
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
