"""Recordings that are kept for calls that repeat, and submissions that several calls share."""

from __future__ import annotations

import struct
from collections import Counter

import numpy as np
import pytest

from buffers import download, host_array, reverse_spec, scale, spec_of, upload, whole


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
    stream.together = 1  # GPUs are given several calls at a time
    for _ in range(40):  # more than may be in flight
        scale(vulkan, x, y, 1000, 1.0, ((2, 0),))
        vulkan.flush()
    assert stream._kept.count == 1
    scale(vulkan, x, y, 1000, 2.0, ((2, 0),))  # other push constants are another dispatch
    vulkan.flush()
    assert stream._kept.count == 1
    assert (download(vulkan, y) == 42).all()


def test_calls_that_are_submitted_together_again_have_one_recording(vulkan, monkeypatch):
    """Of calls that work on each other's results, so that their order shows; then in another order, anew."""
    from grilly.runtime.vulkan import stream

    monkeypatch.setattr(stream, "CLOSELY_SECONDS", 1e9)
    count = 1000
    x, y = upload(vulkan, np.ones(count, np.float32)), upload(vulkan, np.zeros(count, np.float32))
    held = vulkan._parts.stream
    held.together = held._wanted = 8
    expected = np.ones(count), np.zeros(count)

    def group(factors) -> int:
        for i, factor in enumerate(factors):
            source, target = (x, y) if i % 2 == 0 else (y, x)
            scale(vulkan, source, target, count, factor, ((2, 0),))
            vulkan.flush()
            expected[1 - i % 2][:] += factor * expected[i % 2]
        return held._submit.commandBufferCount

    factors = [0.5, -0.25, 0.75, 0.5, -0.5, 0.25, -0.75, 1.0]
    # Calls seen for the first time share a command buffer, and then a recording. The other shows results to the host.
    assert [group(factors) for _ in range(4)] == [2, 2, 2, 2]
    assert held._kept.count == 1
    # Another order of the same calls: their own recordings, until it is known too.
    other = factors[2:] + factors[:2]
    assert [group(other) for _ in range(3)] == [len(other) + 1, 2, 2]
    assert held._kept.count == 1 + len(other) + 1
    assert np.allclose(download(vulkan, x), expected[0]) and np.allclose(download(vulkan, y), expected[1])


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
    assert 1 <= stream._kept.count <= 4  # staging and buffers take turns


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
    from grilly.runtime.vulkan import descriptors, kept, stream

    monkeypatch.setattr(stream, "RECORDINGS", stream.TOGETHER + 5)
    monkeypatch.setattr(kept, "SEEN", 9)
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
    assert paced._parts.stream._kept.count
    assert np.array_equal(download(paced, buffers[rounds % 2], np.uint32), np.arange(count) + rounds)


def test_repeated_calls_find_their_recording(vulkan_backend):
    """What makes recordings pay: a call like the last one gets the same output buffer from the pool."""
    backend = vulkan_backend
    x = backend.tensor(np.ones((1, 2, 24, 8), np.float32))
    stream = backend.runtime._parts.stream
    counted = Counter()

    def counting(name):
        method = getattr(type(stream), name)

        def call(*arguments):
            counted[name] += 1
            return method(stream, *arguments)

        return call

    stream._once, stream._launch = counting("_once"), counting("_launch")
    try:
        y = None
        for _ in range(30):
            y = backend.attention.flash_attention2(x, x, x)
        for _ in range(30):
            y = backend.attention.flash_attention2(x, backend.attention.flash_attention2(x, x, x), x)
    finally:
        del stream._once, stream._launch
    assert 0 < counted["_once"] < 0.3 * counted["_launch"]
    assert np.allclose(y.numpy(), 1)


def test_a_wait_polls_lets_others_through_and_then_sleeps(vulkan, monkeypatch):
    """GPUs' way of waiting, on any device: each of its three parts comes to the same end."""
    from grilly.runtime.vulkan import stream

    held, slept, waited = vulkan._parts.stream, [], []
    lib = stream.lib

    class Counting:
        def __getattr__(self, name):
            return getattr(lib, name)

        def vkGetFenceStatus(self, *args):  # not ready for the first looks
            looks.append(args)
            return 1 if len(looks) < 5 else lib.vkGetFenceStatus(*args)

        def vkWaitForFences(self, *args):
            waited.append(args)
            return lib.vkWaitForFences(*args)

    monkeypatch.setattr(stream, "lib", Counting())
    monkeypatch.setattr(stream.time, "sleep", slept.append)
    x, y = upload(vulkan, np.ones(1000, np.float32)), upload(vulkan, np.zeros(1000, np.float32))
    for spin, rest, sleeps, waits in ((60.0, 0.0, False, False), (0.0, 60.0, True, False), (0.0, 0.0, False, True)):
        looks: list = []
        slept.clear()
        waited.clear()
        monkeypatch.setattr(held, "_spin", spin)
        monkeypatch.setattr(held, "_yield", rest)
        scale(vulkan, x, y, 1000, 1.0, ((2, 0),))
        vulkan.synchronize()
        assert bool(slept) == sleeps and set(slept) <= {0} and bool(waited) == waits
    assert (download(vulkan, y) == 3).all()


@pytest.mark.parametrize("letters, shows", [("r", 0), ("rw", 2)])
def test_a_binding_left_out_shows_what_barriers_know_of(vulkan, letters, shows):
    """Where the shader could write, what it writes: validation layers do not see that it leaves the binding alone."""
    source, target = upload(vulkan, np.arange(64, dtype=np.uint32)), vulkan.allocate(256)
    program = vulkan.program(spec_of("reverse", ("r", letters, "w"), 4))
    vulkan.dispatch(program, [whole(source), None, whole(target)], struct.pack("<I", 64), (1, 1, 1))
    assert sorted(download(vulkan, target, np.uint32)) == list(range(1, 65))
    shown = vulkan._parts.stream._descriptors._buffers
    places = [(shown[i].buffer, shown[i].offset) for i in range(3)]
    assert places[0] != places[2] and places[1] == places[shows]
