"""Recordings that are kept for calls that repeat, submissions that several calls share, pipelines made in threads."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections import Counter

import numpy as np
import pytest

import faults
from buffers import download, host_array, reverse_spec, scale, spec_of, upload, whole
from grilly import Compute, ShaderError
from grilly import functional as F
from grilly.runtime.vulkan import threads


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
    assert stream._recordings.count == 1
    scale(vulkan, x, y, 1000, 2.0, ((2, 0),))  # other push constants are another dispatch
    vulkan.flush()
    assert stream._recordings.count == 1
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
    assert held._recordings.count == 1
    # Another order of the same calls: their own recordings, until it is known too.
    other = factors[2:] + factors[:2]
    assert [group(other) for _ in range(3)] == [len(other) + 1, 2, 2]
    assert held._recordings.count == 1 + len(other) + 1
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
    assert 1 <= stream._recordings.count <= 4  # staging and buffers take turns


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
    from grilly.runtime.vulkan import descriptors, recording_cache, stream

    monkeypatch.setattr(stream, "RECORDINGS", stream.TOGETHER + 5)
    monkeypatch.setattr(recording_cache, "SEEN", 9)
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
    assert paced._parts.stream._recordings.count
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


# -- pipelines of a captured function, made in threads side by side ---------------------------------------------------


REFUSED = -1000012000  # VK_ERROR_INVALID_SHADER_NV
X = np.random.RandomState(0).standard_normal((5, 24)).astype(np.float32)


def several(x):
    """Four programs of the driver's."""
    return F.softmax(F.layer_norm(F.linear(x, x[:, :24]) @ x, (24,)), dim=-1)


class Slow(faults.Faults):
    """A driver whose compiler takes a while, and that says how many pipelines it made at a time and in which thread."""

    seconds = 0.0
    refuses = False

    def _wrapped(self, name, real):
        call = super()._wrapped(name, real)
        if name != "vkCreateComputePipelines":
            return call
        self.now = self.most = 0
        self.makers = []

        def create(*arguments):
            with self._lock:
                self.now += 1
                self.most = max(self.most, self.now)
                self.makers.append(threading.get_ident())
            try:
                time.sleep(self.seconds)
                return self._fail(name, real, arguments, REFUSED) if self.refuses else call(*arguments)
            finally:
                with self._lock:
                    self.now -= 1

        return create


@pytest.fixture
def driver(monkeypatch, vulkan_backend):
    """Such a driver, on a machine with so many processors that there are threads."""
    monkeypatch.setattr(threads, "usable_processors", lambda: 4)
    with faults.between(kind=Slow) as found:
        yield found
        assert not found.misuse and not found.counts()


def test_they_are_made_at_the_same_time(driver):
    with Compute(runtime="vulkan") as backend:
        wanted = np.asarray(several(backend.tensor(X)).numpy())
        assert driver.most == 1 and set(driver.makers) == {threading.get_ident()}
        made = len(driver.makers)
    driver.makers.clear()
    driver.seconds = 0.1
    with Compute(runtime="vulkan") as backend:
        graph = backend.capture(several, X)
        assert len(driver.makers) == made and driver.most >= min(made, 3)
        assert threading.get_ident() not in driver.makers
        np.testing.assert_array_equal(graph(X).numpy(), wanted)
        driver.makers.clear()
        np.testing.assert_array_equal(several(backend.tensor(X)).numpy(), wanted)
        assert not driver.makers, "what a capture made is of use to other calls"


def test_a_capture_that_ends_early_leaves_pipelines_of_use(driver):
    driver.seconds = 0.05

    def fails(x):
        several(x)
        raise KeyError("on purpose")

    with Compute(runtime="vulkan") as backend:
        with pytest.raises(KeyError):
            backend.capture(fails, X)
        found = several(backend.tensor(X)).numpy()  # waits for what is under way
    driver.seconds = 0.0
    with Compute(runtime="vulkan") as backend:
        np.testing.assert_array_equal(found, several(backend.tensor(X)).numpy())


def test_closing_waits(driver):
    driver.seconds = 0.05
    with Compute(runtime="vulkan") as backend:
        with pytest.raises(KeyError):
            backend.capture(lambda x: (several(x), {}[0]), X)
    assert driver.now == 0


def test_a_refused_shader_fails_the_capture_alone(driver):
    with Compute(runtime="vulkan") as backend:
        in_use = backend.memory().in_use
        driver.refuses = True
        with pytest.raises(ShaderError, match="could not compile it"):
            backend.capture(several, X)
        with pytest.raises(ShaderError, match="could not compile it"):
            several(backend.tensor(X))
        driver.refuses = False
        found = several(backend.tensor(X)).numpy()
        np.testing.assert_array_equal(backend.capture(several, X)(X).numpy(), found)
        assert np.isfinite(found).all() and in_use >= 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_between(driver):
    """The parent goes on; what was not begun by then is made when it is needed."""
    driver.seconds = 0.05
    with Compute(runtime="vulkan") as backend:

        def forks(x):
            found = several(x)
            child = os.fork()
            if not child:
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            return found

        graph = backend.capture(forks, X)
        np.testing.assert_array_equal(graph(X).numpy(), several(backend.tensor(X)).numpy())


def test_a_thread_that_is_slow_to_forget_keeps_no_pipeline(driver, monkeypatch):
    """A job that is done may be in a thread's hand until long after the device is closed."""
    held, begin = [], threads.Threads.begin

    def keeping(self, job):
        held.append(job)
        begin(self, job)

    monkeypatch.setattr(threads.Threads, "begin", keeping)
    with Compute(runtime="vulkan") as backend:
        backend.capture(several, X)
    assert held and not driver.counts()
