"""Memory and cost of captured graphs: what replays write, weights that are split once, what the host spends."""

from __future__ import annotations

import functools
import gc
import itertools

import numpy as np
import pytest

import faults
import grilly
import grilly.functional as F
from graphs import default, equal, layer, random
from grilly import nn
from grilly.compute.arrays.convert import fill
from grilly.compute.matmul import split_weights
from grilly.compute.matmul.linear import linear
from grilly.runtime.interface import REENTERED
from grilly.runtime.vulkan.planned import levels, places
from grilly.runtime.vulkan.stream import Stream
from hostcalls import counted
from test_graph_caches import cache, tokens
from test_graph_contents import ONE
from test_graph_memory_of_others import X
from test_graph_weights import weight

#: A fixture of another file, found by its name here.
FIXTURES = (weight,)


def test_memory_of_others_written_by_the_host(backend):
    """A write to a tensor that was there before is part of the work, in its order."""
    from grilly.runtime.vulkan.memory import VulkanBuffer

    held, runtime = backend.tensor(np.zeros(6, np.float32)), backend.runtime
    assert type(held._storage.buffer) is VulkanBuffer

    def call(x):
        before = held.reshape(2, 3).T.contiguous()
        runtime.write(held._storage.buffer, np.arange(6, dtype=np.float32))
        middle = held.reshape(2, 3).T.contiguous()
        fill(held, x)
        return before, middle

    graph = backend.capture(call, random(6))
    assert not held.numpy().any()  # nothing ran
    for seed in range(3):
        last = held.numpy()
        before, middle = graph(random(6, seed=seed))
        np.testing.assert_array_equal(before.numpy(), last.reshape(2, 3).T)
        np.testing.assert_array_equal(middle.numpy(), np.arange(6, dtype=np.float32).reshape(2, 3).T)
        np.testing.assert_array_equal(held.numpy(), random(6, seed=seed))


def test_writes_between_replays_are_seen(backend):
    weight = backend.tensor(random(5, 5))
    graph = backend.capture(lambda x: F.linear(x, weight), random(2, 5))
    for seed in range(5):
        given = random(5, 5, seed=seed)
        backend.runtime.write(weight._storage.buffer, given)  # by the host, while a replay may be in flight
        found = graph(random(2, 5))
        equal(found, F.linear(backend.tensor(random(2, 5)), backend.tensor(given)))
    results = []
    for seed in range(5):
        fill(weight, backend.tensor(random(5, 5, seed=seed)))  # by the device
        results.append(graph(random(2, 5)))
        backend.runtime.write(weight._storage.buffer, np.zeros((5, 5), np.float32))
    for seed, found in enumerate(results):
        equal(found, F.linear(backend.tensor(random(2, 5)), backend.tensor(random(5, 5, seed=seed))))


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("at", ["argument", "tensor"])
def test_a_decoding_loop(backend, paged, at):
    """Captured once; the cache grows, and lengths lie on the device."""
    batch, room, steps = 2, 48, 12
    shape = (6, 16, 2, 16) if paged else (batch, room, 2, 16)
    table = np.array([[3, 1, 5], [0, 4, 2]], np.int32) if paged else None
    angles = np.arange(room)[:, None] / 50.0 ** (np.arange(4) / 4)
    rotary = tuple(backend.tensor(f(angles).astype(np.float32)) for f in (np.cos, np.sin))
    weights = [backend.tensor(random(heads * 16, 32, seed=heads) / 6) for heads in (4, 2, 2)]
    output = backend.tensor(random(32, 64, seed=7) / 8)

    def stepping(caches):
        def step(x, lengths):
            q, k, v = (F.linear(x, w).reshape(batch, 1, -1, 16) for w in weights)
            pages = None if table is None else backend.tensor(table)
            out = F.flash_attention_with_kvcache(q, *caches, k, v, lengths, pages, rotary=rotary, causal=True)
            return F.linear(out.reshape(batch, 1, 64), output)

        return step

    caches, own = ([backend.tensor(np.zeros(shape, np.float32)) for _ in range(2)] for _ in range(2))
    step, lengths = stepping(caches), np.array([0, 5], np.int32)
    held = backend.tensor(lengths)
    if at == "argument":
        graph = backend.capture(step, random(batch, 1, 32), lengths)
    else:
        graph = backend.capture(lambda x: step(x, held), random(batch, 1, 32))
    x = y = random(batch, 1, 32)
    for number in range(steps):
        if at == "argument":
            x = graph(x, lengths + number)
        else:
            backend.runtime.write(held._storage.buffer, lengths + np.int32(number))
            x = graph(x)
        y = stepping(own)(backend.tensor(y) if number == 0 else y, backend.tensor(lengths + np.int32(number)))
        equal(x, y)
    for a, b in zip(caches, own, strict=True):
        equal(a, b)
        assert np.count_nonzero(a.numpy()) >= 2 * steps * 32


def test_a_cache_costs_a_replay_two_calls(backend):
    """Of Python, while nobody has asked for its lengths; the words that kernels read are not copied at each replay."""
    counts = {}
    for number in (1, 5):
        caches = [cache(40) for _ in range(number)]
        step = backend.capture(lambda q, k, v, each=caches: [c.attend(q, k, v) for c in each][0], *tokens(1))
        assert step._recording.copies == 0
        given = [backend.tensor(a) for a in tokens(1)]
        for _ in range(3):
            step(*given)
        found = []
        for _ in range(5):  # the least: a call may also clear up after earlier ones
            backend.synchronize()
            found.append(counted(lambda step=step, given=given: step(*given)).total())
        counts[number] = min(found)
    assert counts[5] - counts[1] == 8, counts


def test_weights_are_not_copied_anew(default):
    layers = [nn.Linear(64, 64, rng=0) for _ in range(3)]
    captured = default.capture(lambda x: layers[2](layers[1](layers[0](x))), np.ones((4, 64), np.float32))
    assert captured._recording.copies == 0


def test_a_replay_counts_as_a_write_before_it_begins(default, monkeypatch):
    x = grilly.asarray(np.ones(2, np.float32))
    graph, replay = default.capture(lambda: x.__imul__(3.0) + 0), default.runtime.replay
    graph()
    before = x._storage.version

    def interrupted(*arguments):
        replay(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(default.runtime, "replay", interrupted)
    with pytest.raises(KeyboardInterrupt):
        graph()
    np.testing.assert_array_equal(x.numpy(), [9, 9])
    assert x._storage.version > before


def test_a_first_replay_that_fails_does_not_count(default, monkeypatch):
    kept = []

    def function(x):
        kept.append(x * 2)
        return kept[0] + 1

    def refuse(*arguments):
        raise grilly.OutOfDeviceMemoryError("no room")

    graph = default.capture(function, ONE)
    with monkeypatch.context() as patch:
        patch.setattr(Stream, "replay", refuse)
        with pytest.raises(grilly.OutOfDeviceMemoryError):
            graph(ONE)
    with pytest.raises(grilly.CaptureError, match="before the graph's first replay"):
        kept[0].numpy()
    np.testing.assert_array_equal(graph(ONE).numpy(), [3, 3])
    np.testing.assert_array_equal(kept[0].numpy(), [2, 2])


def test_nothing_is_kept_of_what_replays_write(vulkan_backend):
    held = []

    def work(x):
        held.append(x * 2)
        return held[0] + 1

    square = np.ones((4, 4), np.float32)
    graph = vulkan_backend.capture(work, square)
    graph(square)
    split_weights.keep(vulkan_backend.opened, held[0], held[0] * 2)
    graph(5 * square)
    assert split_weights.find(held[0]) is None


def test_an_interrupted_end_of_a_capture_leaves_nothing(vulkan_backend):
    left = vulkan_backend.opened.captured
    left.parts, left.parameters = {"stale": 1}, {"stale": 1}
    seen = []
    vulkan_backend.capture(lambda x: seen.append((dict(left.parts), dict(left.parameters))) or x + 1, X)
    assert seen == [({}, {})]


def test_a_replay_in_the_midst_of_another_says_so(vulkan_backend):
    """Of a graph whose cache grows, which takes a lock of its own."""
    cache = nn.KVCache(1, 4000, 1, 16, backend=vulkan_backend)
    one = [np.ones((1, 1, 1, 16), np.float32)] * 3
    graph = vulkan_backend.capture(lambda q, k, v: cache.attend(q, k, v), *one)
    with vulkan_backend.opened.home.growing, pytest.raises(grilly.GrillyError, match=REENTERED[:40]):
        graph(*one)
    graph(*one)
    assert len(cache) == 1


def test_what_a_capture_splits_is_its_own(vulkan_backend, weight):
    """Its memory holds nothing before the first replay, and what a replay left there after it."""

    def call(x):
        made = weight * 2
        split_weights.keep(vulkan_backend.opened, weight, made)
        assert split_weights.find(weight) is made, "for the rest of the capture"
        assert split_weights.find(weight[1:]) is None
        return x + made

    graph = vulkan_backend.capture(call, random(4, 4))
    assert split_weights.find(weight) is None
    for factor in (1, 3):
        weight *= factor
        equal(graph(random(4, 4)), vulkan_backend.tensor(random(4, 4)) + weight * 2)


def test_a_graph_says_that_a_split_weight_was_written_to(vulkan_backend, weight):
    split_weights.keep(vulkan_backend.opened, weight, weight * 2)
    graph = vulkan_backend.capture(lambda x: x + split_weights.find(weight), random(4, 4))
    equal(graph(random(4, 4)), vulkan_backend.tensor(random(4, 4)) + weight * 2)
    weight[0] = 7
    with pytest.raises(grilly.CaptureError, match="split before the capture was written to since; capture again"):
        graph(random(4, 4))


def test_what_replays_write_to_is_not_kept(vulkan_backend, weight):
    """Nobody counts what they write."""
    split_weights.keep(vulkan_backend.opened, weight, weight * 2)

    def call(x):
        weight[...] = weight + x
        return x * 2

    graph = vulkan_backend.capture(call, random(4, 4))
    for changed in (weight, graph(random(4, 4), copy=False)):
        assert split_weights.find(changed) is None
        split_weights.keep(vulkan_backend.opened, changed, changed * 2)
        assert split_weights.find(changed) is None
    copied = graph(random(4, 4))
    split_weights.keep(vulkan_backend.opened, copied, copied * 2)
    assert split_weights.find(copied) is not None, "a copy is as any tensor"
    np.testing.assert_array_equal(copied.numpy(), 2 * random(4, 4))


# -- what graphs cost the host ----------------------------------------------------------------------------------------


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
        assert weight._storage.buffer.suballocation.graphs == ()
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


def test_offsets_begin_anew_behind_the_last(vulkan_backend, monkeypatch):
    """Of calls, and of a replay."""
    x = vulkan_backend.tensor(np.ones(100, np.float32))

    def twice(x):
        return F.dropout(x), F.dropout(x)

    wanted = [F.dropout(x, seed=5, offset=offset).numpy() for offset in (2**32 - 1, 0)]
    for function in (twice, vulkan_backend.capture(twice, x)):
        monkeypatch.setattr("grilly.compute.random._sequence", (5, itertools.count(2**32 - 1)))
        for found, right in zip(function(x), wanted, strict=True):
            np.testing.assert_array_equal(found.numpy(), right)


def test_results_that_fill_one_array_are_one_copy(backend):
    """And of one that they hardly fill, or that has other dtypes, each is its own."""

    def function(x):
        y, z = x + 1, x * 2
        return [y[:500], y[500:], z[:3], z[-3:]]

    graph = backend.capture(function, np.zeros(1000, np.float32))
    assert sorted(len(span.results) for span in graph._spans) == [1, 1, 2]
    found = graph(np.zeros(1000, np.float32))
    assert found[0]._storage is found[1]._storage and found[2]._storage is not found[3]._storage
