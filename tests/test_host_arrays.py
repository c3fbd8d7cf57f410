"""Arrays over memory that host and device share, large transfers in chunks by threads, and kept recordings.

``across_a_bus`` makes this machine's device behave as one across a bus does: the host cannot address its memory.
"""

from __future__ import annotations

import gc
import struct
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import children
import grilly
import grilly.functional as F
from grilly import reference
from test_runtime_contract import download, reverse_spec, scale, upload, whole
from threads import together

MIB = 1 << 20


def open_vulkan():
    from conftest import open_or_skip
    from grilly.runtime import open_runtime

    return open_or_skip("vulkan", lambda: open_runtime(runtime="vulkan"))


@pytest.fixture(params=[1, 4], ids=["one-thread", "four-threads"])
def across_a_bus(request, monkeypatch, vulkan_backend):
    """A runtime whose device memory is not mapped, with so many copying threads."""
    from grilly.runtime.vulkan import runtime as module
    from grilly.runtime.vulkan.copier import Copier
    from grilly.runtime.vulkan.memory import Pool

    made = module.device_pool

    def unmapped(device):
        pool = made(device)
        return Pool(device, pool._wishes, pool._heap, mapped=False)

    monkeypatch.setattr(module, "device_pool", unmapped)
    opened = open_vulkan()
    opened._transfers.copier = Copier(request.param)
    yield opened
    opened.close()


@pytest.fixture
def vulkan(vulkan_backend):
    """A vulkan runtime of its own."""
    opened = open_vulkan()
    yield opened
    opened.close()


# -- chunks ----------------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_pieces_make_up_the_array(data):
    from grilly.runtime.vulkan.copier import pieces

    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    array = array.transpose(data.draw(st.permutations(range(array.ndim))))
    if data.draw(st.booleans()):
        array = array[..., ::2]
    most = data.draw(st.integers(4, 400))
    found = list(pieces(array, most))
    assert all(0 < piece.nbytes <= most for piece in found)
    assert np.array_equal(np.concatenate([piece.reshape(-1) for piece in found]), array.reshape(-1))


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
        # The piece whose copy was refused is the only one that may be lost.
        assert runtime._parts.staging.in_use <= 4 * MIB
    runtime.write(buffer, array)
    assert (download(runtime, buffer, np.uint8) == 1).all()


def test_copies_given_up():
    """One that no thread has taken is never made; one that a thread has taken is waited for."""
    from grilly.runtime.vulkan.copier import Copier, Copy

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
    from grilly.runtime.vulkan import copier as module

    copier = module.Copier(3)
    copies = [module.Copy(np.zeros(9), np.ones(9)) for _ in range(6)]
    for copy in copies:
        copier.begin(copy)
    for copy in copies:
        copy.wait()
    assert all(copy._arrays is None for copy in copies)
    queue = copier._queue

    def until(count):
        end = time.monotonic() + 30
        while True:
            frames = [frame for frame in sys._current_frames().values() if frame.f_code is module._work.__code__]
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


# -- arrays in shared memory -----------------------------------------------------------------------------------------


def host_array(runtime, shape, dtype=np.float32):
    return runtime.host_array(int(np.prod(shape)) * np.dtype(dtype).itemsize).view(dtype).reshape(shape)


def test_host_arrays_and_their_parts_are_recognised(vulkan):
    array = host_array(vulkan, (4, 6, 8))
    for inside in (array, array[1:], array[2, 3], array.reshape(-1), array.view(np.uint8), array[1:].reshape(3, 48)[1]):
        assert vulkan.holds(inside)
    other = open_vulkan()
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


def test_host_memory_goes_with_the_last_array(vulkan):
    before = vulkan.memory()
    array = host_array(vulkan, (1000, 1000))
    held = vulkan.memory().host - before.host
    assert 4_000_000 <= held < 4_010_000
    row = array[7:8]
    del array
    gc.collect()
    assert vulkan.memory().host - before.host == held
    row[:] = 3
    del row
    for i in range(500):
        array = host_array(vulkan, 100_000 + i)
        array[:] = i
    del array
    gc.collect()
    after = vulkan.memory()
    assert after.host == before.host and after.in_use == before.in_use


def test_host_arrays_outlive_their_runtime():
    runtime = open_vulkan()
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
    empty = open_vulkan()
    parts = empty._parts
    empty.close()
    assert parts._ended


def test_lent_arrays_are_used_in_place_and_waited_for(vulkan):
    if not vulkan.device.unified:
        pytest.skip(f"{vulkan.device.name} does not address the host's memory as its own")
    count = 200_000
    array = host_array(vulkan, count)
    array[:] = 1
    assert vulkan.lend(np.ones(8, np.float32)) is None
    buffer, place = vulkan.lend(array[64:])
    assert place == 256
    y = upload(vulkan, np.zeros(count, np.float32))
    for i in range(5):
        buffer, place = vulkan.lend(array)
        scale(vulkan, buffer, y, count, 1.0, ((2, 0),))
        vulkan.flush()
        array[:] = i + 2  # after the flush: the dispatch has read what was there before
    assert (download(vulkan, y) == 1 + 2 + 3 + 4 + 5).all()


def test_borrowed_tensors(vulkan_backend):
    backend, rng = vulkan_backend, np.random.default_rng(0)
    q, k, v = (backend.host_asarray(rng.standard_normal((1, 2, 70, 32), dtype=np.float32)) for _ in range(3))
    exact = reference.naive_attention(q, k, v, dtype=np.float64)[0]
    out = backend.attention.flash_attention2(*(backend.borrow(a) for a in (q, k, v)))
    for a in (q, k, v):
        a[:] = np.nan
    assert np.abs(out.numpy() - exact).max() < 1e-6
    host = backend.host_empty((3, 5, 7))
    host[:] = np.arange(105).reshape(3, 5, 7)
    repeated = np.broadcast_to(host[0], (4, 5, 7))
    for view in (host, host[1:], host.transpose(2, 0, 1), host[:, 1:3], host[..., ::2], repeated):
        assert np.array_equal(backend.borrow(view).numpy(), view)
    odd = backend.host_empty(41, np.uint8)[1:].view(np.float32)  # no multiple of the element's size into its memory
    odd[:] = 3
    assert (backend.borrow(odd).numpy() == 3).all()


def test_tensors_of_host_arrays_are_copies(backend):
    array = backend.host_asarray(np.ones((300, 1000), np.float32))
    tensors = []
    for i in range(6):
        array[:] = i
        tensors.append(backend.tensor(array))
    array[:] = -1
    assert [float(np.unique(t.numpy()).item()) for t in tensors] == list(range(6))


def test_results_into_an_array(backend):
    values = np.random.default_rng(0).standard_normal((4, 5, 6), dtype=np.float32)
    tensor = backend.tensor(values)
    for out in (np.empty_like(values), backend.host_empty(values.shape), np.empty((6, 5, 4), np.float32).T):
        assert tensor.numpy(out=out) is out and np.array_equal(out, values)
    out = backend.host_empty((6, 5, 4))
    assert np.array_equal(tensor.transpose(2, 1, 0).numpy(out=out), values.T)
    for wrong in (np.empty((4, 5, 7), np.float32), np.empty(values.shape, np.float16)):
        with pytest.raises(ValueError, match="out is"):
            tensor.numpy(out=wrong)


def test_attention_on_host_arrays(backend):
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 4, 33, 16), dtype=np.float32) for _ in range(3))
    want = backend.attention.flash_attention2(q, k, v)
    held = [backend.host_asarray(a) for a in (q, k, v)]
    got = backend.attention.flash_attention2(*held)
    assert np.array_equal(got, want)
    assert all(np.array_equal(a, b) for a, b in zip(held, (q, k, v), strict=True))
    mixed = backend.attention.flash_attention2(backend.tensor(q), held[1], held[2])
    weights = rng.standard_normal((48, 16), dtype=np.float32)
    weight = backend.host_asarray(weights)
    tensor = F.linear(backend.tensor(q), weight)
    for array in (*held, weight):
        array[:] = np.nan  # the calls have returned: their tensors do not change any more
    assert np.array_equal(mixed.numpy(), want)
    assert np.abs(tensor.numpy() - q @ weights.T).max() < 1e-5


def test_empty_and_asarray(backend):
    former = grilly.use(backend)
    try:
        array = grilly.pinned.empty((3, 4), np.float16)
        assert type(array) is np.ndarray and array.shape == (3, 4) and array.dtype == np.float16
        assert array.flags.c_contiguous and array.flags.writeable
        assert grilly.pinned.empty(5).dtype == np.float32 and grilly.pinned.empty((0, 3)).shape == (0, 3)
        values = np.arange(12.0).reshape(3, 4).T
        held = grilly.pinned.asarray(values, np.float32)
        assert np.array_equal(held, values) and held.dtype == np.float32
        if backend.runtime.name == "vulkan":
            assert grilly.pinned.asarray(held) is held and grilly.pinned.asarray(held.T) is not held
        empty = grilly.pinned.empty
        for bad, error in [(lambda: empty(3, object), TypeError), (lambda: empty((-1, 2)), ValueError)]:
            with pytest.raises(error, match="empty"):
                bad()
    finally:
        grilly.use(former)
    with grilly.Compute(runtime=backend.runtime.name) as closed:
        pass
    with pytest.raises(grilly.ClosedError):
        closed.host_empty(3)


def test_more_host_memory_than_there_is(vulkan_backend):
    with pytest.raises(grilly.OutOfDeviceMemoryError, match="room"):
        vulkan_backend.host_empty(1 << 45, np.uint8)


def test_exit_with_host_arrays_alive():
    code = (
        "import numpy as np, grilly\n"
        "b = grilly.Compute(runtime='vulkan'); a = b.host_empty((64, 64)); a[:] = 1; kept = [a[3:]]\n"
        "c = grilly.Compute(runtime='vulkan'); d = c.host_empty(9); c.close()\n"
        "print('end')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=children.environment())
    assert done.returncode == 0 and done.stdout.strip() == "end" and not done.stderr, done.stderr


# -- kept recordings -------------------------------------------------------------------------------------------------


@pytest.fixture(params=[1, 8], ids=["one-by-one", "together"])
def paced(request, vulkan):
    """A runtime that submits calls one by one, or several that follow each other closely at once, as on GPUs."""
    vulkan._parts.stream.together = request.param
    return vulkan


def test_calls_that_follow_each_other_closely_are_submitted_together(vulkan, monkeypatch):
    from grilly.runtime.vulkan import stream

    monkeypatch.setattr(stream, "CLOSELY_SECONDS", 1e9)
    x, y = upload(vulkan, np.ones(1000, np.float32)), upload(vulkan, np.zeros(1000, np.float32))
    held = vulkan._parts.stream
    held.together = 8
    before = held.serial
    for expected in (1, 2, 2, 3, 3, 3, 3, *[4] * 8, *[5] * 8):
        assert held.serial - before + 1 == expected
        scale(vulkan, x, y, 1000, 1.0, ((2, 0),))
        vulkan.flush()
    scale(vulkan, x, y, 1000, 1.0, ((2, 0),), seconds=2e-3)  # one that takes longer waits for no others
    vulkan.flush()
    assert held.serial - before == 6
    assert (download(vulkan, y) == 24).all()
    before = held.serial  # across a bus the download is one more
    for _ in range(2):  # whoever waited begins anew, with a call alone
        scale(vulkan, x, y, 1000, 1.0, ((2, 0),))
        vulkan.flush()
    assert held.serial - before == 1
    monkeypatch.setattr(stream, "CLOSELY_SECONDS", 0.0)
    for expected in (2, 3, 4):
        scale(vulkan, x, y, 1000, 1.0, ((2, 0),))
        vulkan.flush()
        assert held.serial - before == expected
    assert (download(vulkan, y) == 29).all()


def test_a_repeated_dispatch_is_recorded_once(vulkan):
    x, y = upload(vulkan, np.ones(1000, np.float32)), upload(vulkan, np.zeros(1000, np.float32))
    stream = vulkan._parts.stream
    for _ in range(40):  # more than may be in flight
        scale(vulkan, x, y, 1000, 1.0, ((2, 0),))
        vulkan.flush()
    assert len(stream._recordings) == 1
    scale(vulkan, x, y, 1000, 2.0, ((2, 0),))  # other push constants are another dispatch
    vulkan.flush()
    assert len(stream._recordings) == 1
    assert (download(vulkan, y) == 42).all()


def test_upload_dispatch_and_download_are_one_kept_submission(across_a_bus):
    runtime, count = across_a_bus, 900
    y = upload(runtime, np.zeros(count, np.float32))
    array, stream = host_array(runtime, count), runtime._parts.stream
    out, serials = np.empty(count, np.float32), []
    for i in range(12):
        array[:] = i
        x = runtime.allocate(array.nbytes)
        runtime.write(x, array, borrow=True)
        scale(runtime, x, y, count, 1.0, ((2, 0),))
        runtime.read(y, out)
        assert (out == sum(range(i + 1))).all()
        runtime.free(x)
        serials.append(stream.serial)
    assert serials == list(range(serials[0], serials[0] + 12))
    assert 1 <= len(stream._recordings) <= 4  # staging and buffers take turns


def test_long_submissions(paced):
    """More commands than are held back, with and without more than one submission takes."""
    from grilly.runtime.vulkan import stream

    x, y = upload(paced, np.ones(100, np.float32)), upload(paced, np.zeros(100, np.float32))
    total = 0
    for count in (stream.HELD - 1, stream.HELD, stream.HELD + 1, stream.DISPATCHES, 3 * stream.DISPATCHES + 5):
        for _ in range(3):
            for _ in range(count):
                scale(paced, x, y, 100, 1.0, ((2, 0),))
            total += count
            paced.flush()
    assert (download(paced, y) == total).all()


def test_recordings_come_and_go(paced, monkeypatch):
    from grilly.runtime.vulkan import descriptors, stream

    monkeypatch.setattr(stream, "RECORDINGS", 3)
    monkeypatch.setattr(descriptors, "MOST", 5)
    y = upload(paced, np.zeros(4096, np.float32))
    total = 0
    for turn in range(4):
        for i in range(7):
            x = upload(paced, np.full(4096, i, np.float32))
            for _ in range(3):
                scale(paced, x, y, 4096, 1.0, ((2, 0),))
                paced.flush()
                total += i
            paced.free(x)
        for count in range(1, 20):  # arguments that never come again
            scale(paced, y, y, 0 * count, float(turn * 100 + count), ((2, 0),))
            paced.flush()
    assert (download(paced, y) == total).all()


def test_held_and_recorded_dispatches_keep_their_order(paced):
    """Calls that flush at random: some dispatches go alone, from a recording or not, others paced."""
    count, rng = 50_021, np.random.default_rng(0)
    program = paced.program(reverse_spec())
    buffers = [upload(paced, np.arange(count, dtype=np.uint32)), paced.allocate(4 * count)]
    rounds = 200
    for i in range(rounds):
        bindings = [whole(buffers[i % 2]), None, whole(buffers[1 - i % 2])]
        paced.dispatch(program, bindings, struct.pack("<I", count), (-(-count // 64), 1, 1))
        if rng.integers(2):
            paced.flush()
    assert paced._parts.stream._recordings
    assert np.array_equal(download(paced, buffers[rounds % 2], np.uint32), np.arange(count) + rounds)


def test_repeated_calls_find_their_recording(vulkan_backend):
    """What makes recordings pay: a call like the last one gets the same output buffer from the pool."""
    backend = vulkan_backend
    x = backend.tensor(np.ones((1, 2, 24, 8), np.float32))
    submitted = []
    stream = backend.runtime._parts.stream
    kept = type(stream)._kept

    def counting(*arguments):
        command = kept(stream, *arguments)
        submitted.append(command is not None)
        return command

    stream._kept = counting
    try:
        y = None
        for _ in range(30):
            y = backend.attention.flash_attention2(x, x, x)
        for _ in range(30):
            y = backend.attention.flash_attention2(x, backend.attention.flash_attention2(x, x, x), x)
    finally:
        del stream._kept
    assert sum(submitted) > 0.7 * len(submitted), submitted
    assert np.allclose(y.numpy(), 1)
