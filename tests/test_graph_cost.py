"""What graphs cost: the host's time for a replay, memory, and where their buffers lie."""

from __future__ import annotations

import functools
import gc

import numpy as np
import pytest

import faults
import grilly
import grilly.functional as F
from graphs import default, equal, layer, random
from grilly.compute.products.linear import linear
from grilly.runtime.vulkan.planned import levels, places
from hostcalls import counted


@pytest.fixture
def backend(vulkan_backend):
    with default(vulkan_backend):
        yield vulkan_backend


# -- cost -------------------------------------------------------------------------------------------------------------


def repeated(backend, count):
    weights = [backend.tensor(np.eye(16, dtype=np.float32)) for _ in range(min(count, 50))]

    def call(x):
        for number in range(count):
            x = F.linear(x, weights[number % len(weights)])
        return x

    return backend.capture(call, random(4, 16))


def test_a_replay_costs_the_host_the_same_whatever_the_size(backend):
    """Python function calls of a replay, finalizers included."""
    counts = {}
    for size in (1, 10, 200):
        graph, x = repeated(backend, size), backend.tensor(random(4, 16))
        for _ in range(20):
            graph(x)
        backend.synchronize()
        seen = []
        for _ in range(6):
            seen.append(counted(functools.partial(graph, x)).total())
            backend.synchronize()
        counts[size] = min(seen)
    assert len(set(counts.values())) == 1 and counts[1] <= 60, counts


def test_memory_is_used_again_inside(backend):
    few, many = repeated(backend, 2), repeated(backend, 100)
    assert few.dispatches == 2 and many.dispatches == 100
    assert many.memory <= few.memory + 512  # a chain has two arrays at a time, whatever its length


def test_memory_does_not_grow(backend):
    graph, x = repeated(backend, 3), random(4, 16)
    tensor = backend.tensor(x)
    for _ in range(50):
        graph(x), graph(tensor)
    backend.synchronize()
    gc.collect()
    before, objects = backend.memory(), len(gc.get_objects())
    for number in range(1500):
        result = graph(x if number % 3 else tensor, copy=number % 5 > 0)
    backend.synchronize()
    wanted = result.numpy()
    del result
    gc.collect()
    assert backend.memory().in_use == before.in_use and backend.memory().reserved == before.reserved
    assert len(gc.get_objects()) < objects + 500
    np.testing.assert_array_equal(graph(x).numpy(), wanted)


def test_graphs_go(vulkan_backend):
    """With everything of theirs, also while they run; what they used stays."""
    with faults.between() as driver, grilly.Compute(runtime="vulkan") as backend:
        weight = backend.tensor(random(16, 16))

        def call(x):
            for _ in range(2):
                x = linear(backend.opened, x, weight)
            return x

        def make():
            return backend.capture(call, random(4, 16))(random(4, 16))

        for _ in range(3):
            make()
        gc.collect()
        backend.synchronize()
        before, pools = backend.memory(), driver.counts()["DescriptorPool"]
        for _ in range(20):
            make()
        assert driver.counts()["DescriptorPool"] < pools + 20
        gc.collect()
        backend.synchronize()
        assert backend.memory().in_use == before.in_use and driver.counts()["DescriptorPool"] == pools
        assert weight._storage.buffer.piece.graphs == ()
        np.testing.assert_array_equal(weight.numpy(), random(16, 16))
    assert driver.counts() == {} and driver.misuse == []


def test_long_work_is_cut(backend, monkeypatch):
    from grilly.runtime.vulkan.capture import VulkanCapture

    plain = VulkanCapture.dispatch
    monkeypatch.setattr(VulkanCapture, "dispatch", lambda self, *a: plain(self, *a[:-1], 0.1))
    weight = backend.tensor(random(8, 8) / 3)

    def call(x):
        for _ in range(7):
            x = F.linear(x, weight)
        return x

    graph = backend.capture(call, random(2, 8))
    assert graph.submissions == 4  # of a quarter of a second at most
    for seed in range(3):
        equal(graph(random(2, 8, seed=seed)), call(backend.tensor(random(2, 8, seed=seed))))


def test_a_replay_is_profiled(backend):
    if "timestamps" not in backend.runtime.features:
        pytest.skip("the device has no timestamps")
    graph, x = repeated(backend, 70), random(4, 16)
    wanted = graph(x).numpy()
    with backend.profile() as profile:
        found = graph(x)
    assert len(profile.timings) == 70
    np.testing.assert_array_equal(found.numpy(), wanted)
    with backend.profile(by="row") as profile:
        found = graph(x)
    assert profile.timings
    np.testing.assert_array_equal(found.numpy(), wanted)


# -- where buffers lie ------------------------------------------------------------------------------------------------


def test_levels():
    a, b, c = "a", "b", "c"
    read, write = False, True
    commands = [
        [(a, 0, 4, read), (b, 0, 4, write)],
        [(a, 0, 4, read), (c, 0, 4, write)],  # beside the first
        [(b, 4, 8, write)],  # other bytes
        [(b, 0, 4, read)],  # behind the first
        [(b, 3, 5, write)],  # behind a reader
        [(c, 0, 4, read)],  # was written before the last barrier
    ]
    assert levels(commands) == [0, 0, 0, 1, 2, 2]
    assert levels([]) == []


def test_sharing_memory_adds_no_barrier(backend, monkeypatch):
    from grilly.runtime.vulkan import graph as module
    from grilly.runtime.vulkan.recording import Recorder

    call, counted, barriers = layer(backend), [], []
    separate = Recorder.separate
    monkeypatch.setattr(module, "levels", lambda commands: counted.append(levels(commands)) or counted[-1])
    call(backend.tensor(random(2, 9, 64)), backend.tensor(np.ones((9, 9), bool)))
    backend.synchronize()
    monkeypatch.setattr(Recorder, "separate", lambda self, command: barriers.append(0) or separate(self, command))
    graph = backend.capture(call, random(2, 9, 64), np.ones((9, 9), bool))
    assert len(barriers) == 1 + counted[0][-1] and counted[0][-1] < graph.dispatches


def test_places():
    """No two that are in use together overlap, none lies beyond the limit, and the peak is near what is in use."""
    rng = np.random.default_rng(0)
    for limit in (1 << 40, 5000):
        for _ in range(30):
            count = int(rng.integers(1, 60))
            first = rng.integers(-1, 30, count)
            wanted = [
                (int(f), float("inf") if rng.random() < 0.1 else int(f + rng.integers(0, 8)), int(s) * 256)
                for f, s in zip(first, rng.integers(1, 9, count), strict=True)
            ]
            found, sizes = places(wanted, limit)
            assert all(start >= 0 and start + want[2] <= sizes[arena]
                       for (arena, start), want in zip(found, wanted, strict=True))  # fmt: skip
            assert all(size <= limit for size in sizes)
            for i in range(count):
                for j in range(i):
                    together = wanted[i][0] <= wanted[j][1] and wanted[j][0] <= wanted[i][1]
                    if together and found[i][0] == found[j][0]:
                        a, b = found[i][1], found[j][1]
                        assert a + wanted[i][2] <= b or b + wanted[j][2] <= a
            busiest = max(sum(s for f, last, s in wanted if f <= level <= last) for level in range(-1, 40))
            if limit > 5000:
                assert len(sizes) == 1 and busiest <= sizes[0] <= 2 * busiest
    assert places([], 10) == ([], [])
    assert places([(0, 0, 512)], 256)[1] == [512]  # the device says whether it has room
