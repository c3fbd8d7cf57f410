"""Large transfers in chunks, and the threads that copy them."""

from __future__ import annotations

import contextlib
import gc
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import drivers
from buffers import download, host_array, scale, upload
from grilly.runtime import open_runtime
from grilly.runtime.vulkan import threads
from grilly.runtime.vulkan.copier import Copier, Copy, chunks
from threads import together

MIB = 1 << 20


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_chunks_make_up_the_array(data):
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    array = array.transpose(data.draw(st.permutations(range(array.ndim))))
    if data.draw(st.booleans()):
        array = array[..., ::2]
    most = data.draw(st.integers(4, 400))
    found = list(chunks(array, most))
    assert all(0 < chunk.nbytes <= most for chunk in found)
    assert np.array_equal(np.concatenate([chunk.reshape(-1) for chunk in found]), array.reshape(-1))


@pytest.mark.parametrize("nbytes", [4, MIB, MIB + 4, 5 * MIB + 12, 37 * MIB])
def test_large_arrays_in_chunks(across_a_bus, nbytes):
    runtime = across_a_bus
    array = np.random.default_rng(0).integers(0, 1 << 32, nbytes // 4, dtype=np.uint32)
    buffer = upload(runtime, array)
    assert np.array_equal(download(runtime, buffer, np.uint32)[: array.size], array)
    back = array[: array.size // 2 + 1][::-1]
    runtime.write(buffer, back, offset=0)
    assert np.array_equal(download(runtime, buffer, np.uint32)[: back.size], back)
    assert runtime._parts.staging.in_use == 0


def test_large_strided_and_half_precision(across_a_bus):
    runtime = across_a_bus
    base = np.random.default_rng(0).standard_normal((3, 700, 1501), dtype=np.float32).astype(np.float16)
    for view in (base[:, ::2, 1:], base.transpose(1, 2, 0), base[:, :, ::-1], np.broadcast_to(base[0], (2, 700, 1501))):
        buffer = upload(runtime, view)
        out = np.empty(view.shape, view.dtype)
        runtime.read(buffer, out)
        assert np.array_equal(out, view)
        runtime.free(buffer)


def test_bfloat16_in_chunks(across_a_bus):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    array = np.random.default_rng(0).standard_normal((1000, 3001)).astype(bfloat16)
    buffer, out = upload(across_a_bus, array.T), np.empty((3001, 1000), bfloat16)
    across_a_bus.read(buffer, out)
    assert np.array_equal(out.view(np.uint16), array.T.view(np.uint16))


def test_a_large_array_may_change_after_write(across_a_bus):
    array = np.ones(9 * MIB // 4, np.float32)
    buffers = []
    for i in range(4):
        array[:] = i
        buffers.append(upload(across_a_bus, array))
    array[:] = -1
    assert [float(np.unique(download(across_a_bus, b)).item()) for b in buffers] == [0, 1, 2, 3]


def test_large_transfers_keep_their_place_among_dispatches(across_a_bus):
    runtime, count = across_a_bus, 6 * MIB // 4 + 1
    x, y = upload(runtime, np.ones(count, np.float32)), upload(runtime, np.zeros(count, np.float32))
    for i in range(4):
        runtime.write(x, np.full(count, i, np.float32))
        scale(runtime, x, y, count, 1.0, ((2, 0),))
        assert (download(runtime, y) == sum(range(i + 1))).all()


def test_a_copy_that_fails_gives_its_staging_back(across_a_bus, monkeypatch):
    runtime, array = across_a_bus, np.ones(40 * MIB, np.uint8)
    buffer = upload(runtime, array)
    calls = []
    begin = runtime._transfers.copier.begin

    def interrupted(copy):
        calls.append(None)
        if len(calls) == 4:
            raise KeyboardInterrupt
        begin(copy)

    for call in (lambda: runtime.write(buffer, array), lambda: runtime.read(buffer, np.empty_like(array))):
        calls.clear()
        with monkeypatch.context() as patched:
            patched.setattr(runtime._transfers.copier, "begin", interrupted)
            with pytest.raises(KeyboardInterrupt):
                call()
        # The chunk whose copy was refused is the only one that may be lost.
        assert runtime._parts.staging.in_use <= 4 * MIB
    runtime.write(buffer, array)
    assert (download(runtime, buffer, np.uint8) == 1).all()


def test_copies_given_up():
    """One that no thread has taken is never made; one that a thread has taken is waited for."""
    source, target = np.ones(4 * MIB, np.uint8), np.zeros(4 * MIB, np.uint8)
    early = Copy(target, source)
    early.give_up()
    copier = Copier(2)
    copier.begin(early)  # as where the interrupt came after this, and giving up before a thread woke
    behind = Copy(np.zeros(3), np.ones(3))
    copier.begin(behind)
    behind.wait()
    assert not early.done and not target.any()

    taken = Copy(target, source)
    copier.begin(taken)
    while not taken._claim:
        pass
    taken.give_up()
    taken.give_up()
    assert taken.done and target.all()

    refused = Copy(np.zeros(3, "M8[s]"), np.zeros(3))
    copier.begin(refused)
    with pytest.raises(TypeError):
        refused.wait()
    copier.close()
    copier.close()


@pytest.mark.parametrize("close", [True, False], ids=["closed", "let go"])
def test_copying_threads_end(close):
    """With close(), or with the last reference; none of them holds an array meanwhile."""
    copier = Copier(3)
    copies = [Copy(np.zeros(9), np.ones(9)) for _ in range(6)]
    for copy in copies:
        copier.begin(copy)
    for copy in copies:
        copy.wait()
    assert all(copy._arrays is None for copy in copies)
    queue = copier._queue

    def until(count):
        end = time.monotonic() + 30
        while True:
            frames = [frame for frame in sys._current_frames().values() if frame.f_code is threads._work.__code__]
            if sum(frame.f_locals["queue"] is queue for frame in frames) == count:
                return
            assert time.monotonic() < end
            time.sleep(0.001)

    until(3)
    if close:
        copier.close()
    del copier
    until(0)


def test_threads_with_large_arrays(across_a_bus):
    failures = []

    def work(seed):
        try:
            array = np.random.default_rng(seed).integers(0, 255, 5 * MIB + seed, dtype=np.uint8)
            for _ in range(4):
                buffer = upload(across_a_bus, array)
                if not np.array_equal(download(across_a_bus, buffer, np.uint8)[: array.size], array):
                    failures.append(seed)
                across_a_bus.free(buffer)
        except Exception as error:  # reported by the test's own thread
            failures.append(error)

    together(4, work)
    assert not failures


def test_host_arrays_and_their_parts_are_recognised(vulkan):
    array = host_array(vulkan, (4, 6, 8))
    for inside in (array, array[1:], array[2, 3], array.reshape(-1), array.view(np.uint8), array[1:].reshape(3, 48)[1]):
        assert vulkan.holds(inside)
    other = open_runtime(runtime="vulkan")
    for outside in (array[:, 1:], array.T, array.copy(), np.zeros(3), array + 0):
        assert not vulkan.holds(outside)
    assert not other.holds(array)
    other.close()


def test_host_arrays_travel_without_staging(across_a_bus):
    runtime, count = across_a_bus, 3 * MIB
    array, out = host_array(runtime, count), host_array(runtime, count)
    array[:] = np.arange(count)
    buffer = runtime.allocate(array.nbytes)
    runtime.write(buffer, array)
    array[:] = -1  # the call has returned: the buffer holds what was there then
    runtime.read(buffer, out)
    assert np.array_equal(out, np.arange(count, dtype=np.float32))
    assert runtime._parts.staging.reserved == 0
    array[:] = np.arange(count)
    runtime.write(buffer, array[count // 2 :], offset=8)
    part = host_array(runtime, 1000)
    runtime.read(buffer, part[10:20], offset=4)
    assert np.array_equal(part[10:20], [1, *range(count // 2, count // 2 + 9)])
    assert runtime._parts.staging.reserved == 0


def test_borrowed_writes_are_waited_for_by_the_next_flush_or_read(across_a_bus):
    runtime, count = across_a_bus, 3 * MIB // 4
    array, small = host_array(runtime, count), host_array(runtime, 10)
    x, y = runtime.allocate(array.nbytes), upload(runtime, np.zeros(count, np.float32))
    out = np.empty(count, np.float32)
    for i in range(4):
        array[:] = i + 1
        small[:] = 0.5
        runtime.write(x, array, borrow=True)
        runtime.write(x, small, offset=400, borrow=True)
        scale(runtime, x, y, count, 1.0, ((2, 0),))
        runtime.flush() if i % 2 else runtime.read(y, out)
        assert not runtime._lent.buffers
        array[:] = small[:] = np.nan
    runtime.read(y, out)
    want = np.full(count, 10, np.float32)
    want[100:110] = 2
    assert np.array_equal(out, want)


def test_host_arrays_outlive_their_runtime():
    runtime = open_runtime(runtime="vulkan")
    parts = runtime._parts
    array = host_array(runtime, 5000)
    array[:] = 7
    row = array[10:20]
    runtime.close()
    del array
    gc.collect()
    assert (row == 7).all() and not parts._ended
    row += 1
    assert (row == 8).all()
    del row
    gc.collect()
    assert parts._ended  # the device went with the last array
    empty = open_runtime(runtime="vulkan")
    parts = empty._parts
    empty.close()
    assert parts._ended


def test_the_peak_of_two_pools_is_what_they_had_together(vulkan_backend):
    """Devices that share memory have a pool for what is used once: its peak is not the other's."""
    with drivers.exporting(timelines=False), contextlib.closing(open_runtime(runtime="vulkan")) as runtime:
        assert len(runtime._parts.pools) == 2
        size = 1 << 20
        start = runtime.memory(reset_peak=True).in_use
        passed = runtime.allocate(size, idle=True, passing=True)
        assert runtime._parts.passing.in_use == size
        del passed
        kept = [runtime.allocate(size) for _ in range(2)]
        assert runtime.memory().peak == start + 2 * size
        passed = runtime.allocate(size, idle=True, passing=True)
        assert runtime.memory().peak == runtime.memory().in_use == start + 3 * size
        del passed, kept
        assert runtime.memory(reset_peak=True).peak == runtime.memory().in_use == start
