"""Captured steps of decoding: caches that grow while a graph is replayed."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
import grilly.functional as F
from backends import has_sixteen_bits
from cases import assert_as_accurate
from graphs import default, equal, random
from grilly import nn
from kernels import chosen_as_on, retiled
from test_kvcache import attend, tables

DIM = 16


@pytest.fixture
def backend(vulkan_backend):
    with default(vulkan_backend):
        yield vulkan_backend


def tokens(count, heads=4, kv_heads=2, batch=2, seed=0, dtype=np.float32):
    """q, k and v of so many tokens."""
    wanted = (heads, kv_heads, kv_heads)
    return [random(batch, count, h, DIM, seed=10 * seed + n, dtype=dtype) for n, h in enumerate(wanted)]


def cache(room, heads=2, batch=2, **options):
    """A cache that holds numbers everywhere: tests give samples lengths that nothing was written up to."""
    made = nn.KVCache(batch, room, heads, DIM, **options)
    for seed, held in enumerate((made.k, made.v)):
        held[:] = made.k.backend.tensor(random(*held.shape, seed=seed, dtype=np.dtype(options.get("dtype", "float32"))))
    return made


# -- the same as the calls --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads, kv_heads", [(2, 2), (6, 2), (4, 1)], ids=["mha", "gqa", "mqa"])
def test_many_steps_have_the_bits_of_the_calls(backend, heads, kv_heads):
    """Replays against the layer's calls, over lengths at which a split is added, and a window."""
    room, options = 900, {"window_size": (700, 0), "sinks": random(heads)}
    # Processors have a kernel without splits for this.
    with chosen_as_on(backend, "generic"), retiled(backend, "flash-decode", resident=64):
        mine, other = cache(room, kv_heads), cache(room, kv_heads)
        step = backend.capture(lambda q, k, v: mine.attend(q, k, v, **options), *tokens(1, heads, kv_heads))
        assert len(mine) == len(other) == 0
        for ahead in (230, 241, 241):  # then 40 steps each, past 256, 512 and 768 keys
            chunk = [backend.tensor(a) for a in tokens(ahead, heads, kv_heads, seed=ahead)]
            equal(mine.attend(*chunk, **options), other.attend(*chunk, **options))
            for seed in range(40):
                one = [backend.tensor(a) for a in tokens(1, heads, kv_heads, seed=seed)]
                equal(step(*one), other.attend(*one, **options))
                assert len(mine) == len(other)
    for a, b in ((mine.k, other.k), (mine.v, other.v)):
        np.testing.assert_array_equal(a.numpy()[:, : len(mine)], b.numpy()[:, : len(mine)])
    q, k, v = tokens(1, heads, kv_heads, seed=5)
    found, n = step(q, k, v).numpy(), len(mine)
    assert n == 833
    for b in range(2):
        part = q[b], *(a.numpy()[b, :n] for a in (mine.k, mine.v))
        exact, plain = (attend(part, dtype, {"causal": True, **options})[0] for dtype in (np.float64, np.float32))
        assert_as_accurate(found[b], exact, plain)


def test_half_precision_and_lengths_on_the_device(backend):
    """Against the function with the same lengths in a Tensor, which is planned alike on every device."""
    if not has_sixteen_bits(backend):
        pytest.skip("the device has no 16-bit storage")
    room = 600
    mine, other = (cache(room, dtype="float16") for _ in range(2))
    rotary = tuple(backend.tensor(t) for t in tables(np.random.default_rng(0), room, 8))
    options = {"rotary": rotary, "rotary_interleaved": False, "causal": True}
    step = backend.capture(lambda q, k, v: mine.attend(q, k, v, **options), *tokens(1, dtype=np.float16))
    for lengths in ([0, 9], [250, 255], [511, 500]):
        mine.lengths[:] = lengths
        for seed in range(4):
            one = [backend.tensor(a) for a in tokens(1, seed=seed, dtype=np.float16)]
            held = backend.tensor(mine.lengths)
            equal(step(*one), F.flash_attention_with_kvcache(one[0], other.k, other.v, *one[1:], held, **options))
        assert list(mine.lengths) == [n + 4 for n in lengths]


def test_prompts_steps_and_calls_share_a_cache(backend):
    """A prompt's graph, a step's and calls outside in turn; prompts of unlike lengths, padded on the right."""
    mine, other = cache(64), cache(64)
    prompt = backend.capture(mine.attend, *tokens(9))
    step = backend.capture(mine.attend, *tokens(1))
    for lengths in ([9, 4], [2, 7]):
        mine.reset()
        other.reset()
        given = [backend.tensor(a) for a in tokens(9, seed=lengths[0])]
        equal(prompt(*given), other.attend(*given))
        for each in (mine, other):
            assert list(each.lengths) == [9, 9]
            each.lengths[:] = lengths
        for seed in range(5):
            one = [backend.tensor(a) for a in tokens(1, seed=seed)]
            wanted = other.attend(*one)
            equal(step(*one) if seed != 3 else mine.attend(*one), wanted)
        mine.truncate(6)
        other.truncate(6)
        one = [backend.tensor(a) for a in tokens(1, seed=8)]
        equal(step(*one), other.attend(*one))
        assert list(mine.lengths) == list(other.lengths) == [7, 7]


def test_samples_change_places(backend):
    """As beams do, between replays."""
    mine, other = cache(20, batch=3), cache(20, batch=3)
    step = backend.capture(mine.attend, *tokens(1, batch=3))
    mine.lengths[:] = other.lengths[:] = [1, 4, 2]
    for seed, index in enumerate(([2, 0, 1], [1, 1, 0], 2)):
        chunk = tokens(2, batch=3, seed=seed)
        equal(mine.attend(*chunk), other.attend(*chunk))
        mine.reorder(index)
        at = np.broadcast_to(index, (3,))
        for held in (other.k, other.v):
            held[:] = backend.tensor(held.numpy()[at])
        other.lengths[:] = other.lengths[at]
        one = [backend.tensor(a) for a in tokens(1, batch=3, seed=9)]
        equal(step(*one), other.attend(*one))
        assert list(mine.lengths) == list(other.lengths)
    for wrong, said in (([0, 1], r"int64 \(2,\)"), ([0.0, 1.0, 2.0], "float64"), ([0, 3, 1], "3; expected 0 to 2")):
        with pytest.raises(ValueError, match=said):
            mine.reorder(wrong)


def test_several_caches_and_several_tokens_in_a_graph(backend):
    """Two layers, of which one takes two tokens, one after the other; positions are those of the replay."""
    layers, others = [cache(30), cache(30)], [cache(30), cache(30)]

    def model(caches, q, k, v):
        where = caches[1].positions(2)
        first = caches[0].attend(q, k, v)
        second = [caches[1].attend(first[:, n : n + 1], k[:, n : n + 1], v[:, n : n + 1]) for n in range(2)]
        return first, *second, where, caches[1].positions(1)

    graph = backend.capture(lambda *given: model(layers, *given), *tokens(2))
    for replay in range(6):
        given = [backend.tensor(a) for a in tokens(2, seed=replay)]
        found = graph(*given)
        equal(found, model(others, *given))
        np.testing.assert_array_equal(found[-2].numpy(), [[2 * replay, 2 * replay + 1]] * 2)
        np.testing.assert_array_equal(found[-1].numpy(), [[2 * replay + 2]] * 2)
        assert [len(each) for each in layers] == [2 * replay + 2] * 2


# -- the function, with lengths as arguments ---------------------------------------------------------------------------


# -- what stays true ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paged", [False, True])
def test_layers_take_one_dispatch_beside_attention_and_share_words(backend, paged):
    cos, sin = (backend.tensor(table) for table in tables(np.random.default_rng(5), 48, DIM // 2))
    layers = [[backend.tensor(random(*((12, 8) if paged else (2, 48)), 2, DIM, seed=n + 2 * layer)) for n in range(2)]
              for layer in range(2)]  # fmt: skip
    table = backend.tensor(np.arange(12, dtype=np.int32).reshape(2, 6)) if paged else None
    given = [backend.tensor(array) for array in tokens(1)]

    def step(q, k, v, lengths, count=2):
        out = []
        for keys, values in layers[:count]:
            out.append(F.flash_attention_with_kvcache(
                q, keys, values, k, v, lengths, table, rotary=(cos, sin), causal=True
            ))  # fmt: skip
        lengths = lengths + 1  # other lengths have words of their own
        keys, values = layers[0]
        return *out, F.flash_attention_with_kvcache(q, keys, values, None, None, lengths, table, causal=True)

    before = [[held.numpy() for held in layer] for layer in layers]
    lengths = [backend.tensor(np.array(each, np.int32)) for each in ([3, 20], [4, 21])]
    graphs = [backend.capture(lambda *a, n=n: step(*a, count=n), *given, lengths[0]) for n in range(3)]
    attention = graphs[2].dispatches - graphs[1].dispatches - 1
    assert attention >= 1
    assert graphs[1].dispatches == graphs[0].dispatches + attention + 2
    for layer, old in zip(layers, before, strict=True):
        for held, array in zip(layer, old, strict=True):
            held[...] = array
    wanted = [step(*given, each) for each in lengths]
    for layer, old in zip(layers, before, strict=True):
        for held, array in zip(layer, old, strict=True):
            held[...] = array
    for each, calls in zip(lengths, wanted, strict=True):
        for found, want in zip(graphs[2](*given, each), calls, strict=True):
            equal(found, want)


def test_what_does_not_fit_is_said_before_anything_runs(backend):
    caches = [cache(8), cache(3)]
    step = backend.capture(lambda q, k, v: [each.attend(q, k, v) for each in caches], *tokens(1))
    for seed in range(3):
        step(*tokens(1, seed=seed))
    arrays = [a for each in caches for a in (each.k, each.v)]
    before = [a.numpy() for a in arrays]
    with pytest.raises(ValueError, match="holds 3 tokens and the graph adds 1; there is room for 3"):
        step(*tokens(1))
    for array, held in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array.numpy(), held)
    assert [len(each) for each in caches] == [3, 3]
    caches[1].truncate(2)
    step(*tokens(1))
    assert [len(each) for each in caches] == [4, 3]
    caches[0].lengths[1] = -1
    caches[1].reset()
    with pytest.raises(ValueError, match="lengths go from -1 to 4; expected 0 to 8"):
        step(*tokens(1))
    with pytest.raises(ValueError, match="lengths go from 0 to 4; expected 0 to 3"):
        caches[1].lengths = [0, 4]
    with pytest.raises(ValueError, match=r"lengths are float64 \(3,\)"):
        caches[1].lengths = np.zeros(3)
    for each in caches:
        each.lengths = 1
    step(*tokens(1))
    assert [list(each.lengths) for each in caches] == [[2, 2]] * 2 and caches[1]


def test_a_replay_that_fails_has_not_happened(backend, monkeypatch):
    mine, other = cache(20), cache(20)
    step = backend.capture(mine.attend, *tokens(1))
    replay = backend.runtime.replay

    def before(*arguments):
        raise grilly.OutOfDeviceMemoryError("no room")

    def behind(*arguments):
        replay(*arguments)
        raise KeyboardInterrupt

    for failing, error in ((None, None), (before, grilly.OutOfDeviceMemoryError), (behind, KeyboardInterrupt)):
        if failing is not None:
            monkeypatch.setattr(backend.runtime, "replay", failing)
            with pytest.raises(error):
                step(*tokens(1, seed=50))
            monkeypatch.undo()
        for seed in range(2):
            one = [backend.tensor(a) for a in tokens(1, seed=seed)]
            equal(step(*one), other.attend(*one))
        assert list(mine.lengths) == list(other.lengths)


def test_what_stands_still_in_a_capture_is_refused(backend):
    mine = cache(9)
    for what in (lambda: mine.lengths, lambda: len(mine), mine.reset, lambda: mine.truncate(1), lambda: mine.reorder(0),
                 lambda: setattr(mine, "lengths", 1)):  # fmt: skip
        with pytest.raises(grilly.CaptureError, match="between replays"):
            backend.capture(lambda q, k, v, what=what: (mine.attend(q, k, v), what()), *tokens(1))
        assert len(mine) == 0
    with pytest.raises(ValueError, match="10 new keys do not fit"):
        backend.capture(mine.attend, *tokens(10))
    mine.attend(*tokens(2))  # a capture that failed counts nothing
    assert len(mine) == 2
    with pytest.raises(ValueError, match="count is 0"):
        mine.positions(0)
    np.testing.assert_array_equal(mine.positions(3).numpy(), [[2, 3, 4]] * 2)
