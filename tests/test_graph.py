"""Capture and replay: ``Compute.capture`` and ``Graph``."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import grilly
import grilly.functional as F
from conftest import open_or_skip
from graphs import default, equal, layer, random


@pytest.fixture
def backend(vulkan_backend):
    with default(vulkan_backend):
        yield vulkan_backend


# -- results ----------------------------------------------------------------------------------------------------------


BFLOAT16 = pytest.param("bfloat16", marks=pytest.mark.needs("ml_dtypes"))


@pytest.mark.parametrize("dtype", ["float32", "float16", BFLOAT16])
@pytest.mark.parametrize("warm", [False, True])
def test_the_same_bits_as_calls(backend, dtype, warm):
    call = layer(backend, dtype)
    x, mask = backend.tensor(random(2, 9, 64)).astype(dtype), random(9, 9, seed=1) > -1
    if warm:
        call(x, backend.tensor(mask))
    graph = backend.capture(call, x, mask)
    assert graph.dispatches >= 8 and graph.submissions == 1 and graph.memory > 0
    for seed in range(4):
        x = backend.tensor(random(2, 9, 64, seed=seed)).astype(dtype)
        mask = random(9, 9, seed=10 + seed) > -1
        wanted = call(x, backend.tensor(mask))
        equal(graph(x, mask), wanted)
        equal(graph(x.numpy(), backend.tensor(mask)), wanted)
        equal(graph(x, mask, copy=False), wanted)


def test_arguments_of_any_layout(backend):
    graph = backend.capture(lambda x, flag: F.linear(x, x), random(6, 5), True)
    x = random(5, 6, seed=3)
    wanted = F.linear(backend.tensor(np.ascontiguousarray(x.T)), backend.tensor(np.ascontiguousarray(x.T)))
    equal(graph(x.T, True), wanted)
    equal(graph(backend.tensor(x).T, True), wanted)
    equal(graph(backend.tensor(random(12, 5))[3:9], True), F.linear(*[backend.tensor(random(12, 5)[3:9])] * 2))
    held = backend.host_empty((6, 5))
    held[...] = x.T
    first = graph(held, True)
    held[...] = 0  # which the caller may
    equal(first, wanted)


def test_a_lot_of_an_argument(backend):
    """Above a chunk of a transfer, while the replay before is still to run."""
    graph = backend.capture(lambda x: x.astype("float16"), np.zeros((1500, 1024), np.float32))
    arrays = [random(1500, 1024, seed=n) for n in range(3)]
    for result, array in zip([graph(a) for a in arrays], arrays, strict=True):
        np.testing.assert_array_equal(result.numpy(), array.astype(np.float16))


def test_results_are_new_unless_asked_for(backend):
    graph = backend.capture(lambda x: (F.softmax(x), x), random(3, 4))
    first, again = graph(random(3, 4, seed=1)), graph(random(3, 4, seed=2))
    equal(first, [F.softmax(backend.tensor(random(3, 4, seed=1))), backend.tensor(random(3, 4, seed=1))])
    own, _ = graph(random(3, 4, seed=3), copy=False)
    equal(own, F.softmax(backend.tensor(random(3, 4, seed=3))))
    graph(random(3, 4, seed=4))
    equal(own, F.softmax(backend.tensor(random(3, 4, seed=4))))
    equal(again[0], F.softmax(backend.tensor(random(3, 4, seed=2))))
    kept = own.numpy()
    del graph, first, again
    gc.collect()
    others = [backend.tensor(np.full((64, 4), n, np.float32)) for n in range(50)]  # of what the graph had
    np.testing.assert_array_equal(own.numpy(), kept)
    del others


def test_structures(backend):
    from typing import NamedTuple

    class Pair(NamedTuple):
        a: object
        b: object

    weight = backend.tensor(random(4, 4))

    def call(given, scale):
        y = F.linear(given["x"][0], weight)
        return {"y": y, "pair": Pair(y.T, [None, scale]), "weight": weight, "view": y[1:, ::2]}

    x = random(3, 4, seed=1)
    graph = backend.capture(call, {"x": (x, [])}, 0.5)
    found = graph({"x": (random(3, 4, seed=2), [])}, 0.5)
    wanted = F.linear(backend.tensor(random(3, 4, seed=2)), weight).numpy()
    np.testing.assert_array_equal(found["y"].numpy(), wanted)
    np.testing.assert_array_equal(found["pair"].a.numpy(), wanted.T)
    np.testing.assert_array_equal(found["view"].numpy(), wanted[1:, ::2])
    assert type(found["pair"]) is Pair and found["pair"].b == [None, 0.5]
    assert found["weight"] is weight  # which is not the graph's


def test_nothing_to_do(backend):
    assert backend.capture(lambda: None)() is None
    graph = backend.capture(lambda x: x, random(3))
    np.testing.assert_array_equal(graph(random(3, seed=1)).numpy(), random(3, seed=1))
    empty = backend.capture(lambda x, w: F.linear(x, w), np.zeros((0, 4), np.float32), random(3, 4))
    assert empty(np.zeros((0, 4), np.float32), random(3, 4)).numpy().shape == (0, 3)


def test_what_the_host_wrote_is_there_in_each_replay(backend):
    """Words of options, and memory that the host clears and the device adds to."""
    q, k, v = random(1, 2, 33, 16), random(1, 2, 70, 16, seed=1), random(1, 2, 70, 16, seed=2)
    starts = np.array([0, 10, 33], np.int32)
    packed = random(40, 2, 16, seed=3)  # seven rows belong to no sample: they are zeros, by the host
    segments = (np.arange(33, dtype=np.int32)[None] // 12, np.arange(70, dtype=np.int32)[None] // 30)

    def call(q, k, v, packed):
        out, lse = F.flash_attention2(q, k, v, segment_ids=segments, alibi_slopes=random(2), return_lse=True)
        grads = F.flash_attention2_backward(out, q, k, v, out, lse, segment_ids=segments, alibi_slopes=random(2))
        own = F.flash_attention_varlen(packed, packed, packed, starts, starts, 23, 23, causal=True)
        bias = backend.tensor(random(16, seed=9))
        return (out, *grads, own, F.linear(own, backend.tensor(random(16, 16, seed=8)), bias))

    graph = backend.capture(call, q, k, v, packed)
    for scale in (1, -2, 0.5):
        given = [backend.tensor(np.float32(scale) * a) for a in (q, k, v, packed)]
        equal(graph(*given), call(*given))


def test_what_a_module_sends_in_a_capture_serves_others(backend):
    layer = grilly.nn.Linear(8, 4)
    x = random(3, 8)
    graph = backend.capture(layer, x)
    equal(layer(backend.tensor(x)), graph(x))
    failing = grilly.nn.Linear(8, 4)

    def fail(x):
        failing(x)
        raise KeyError("x")

    with pytest.raises(KeyError):
        backend.capture(fail, x)
    wanted = x @ failing.weight.numpy().T + failing.bias.numpy()
    np.testing.assert_allclose(failing(backend.tensor(x)).numpy(), wanted, atol=1e-5)


def test_tensors_that_a_closure_keeps(backend):
    kept = []

    def call(x):
        kept.append(F.softmax(x))
        return F.softmax(F.softmax(kept[-1]))

    graph = backend.capture(call, random(4, 6))
    for seed in range(3):
        graph(random(4, 6, seed=seed))
        equal(kept[0], F.softmax(backend.tensor(random(4, 6, seed=seed))))


def test_tensors_that_a_closure_keeps_before_the_first_replay(backend):
    """There is nothing in them yet; another capture may use them, for replays that come later."""
    kept = []

    def call(x):
        kept.append(x * 2)
        return x + 1

    graph, x = backend.capture(call, random(3)), backend.tensor(random(3))
    later = backend.capture(lambda x: kept[0] + x, x)

    def write():
        kept[0][1] = 7.0

    for use in (kept[0].numpy, kept[0].download, lambda: kept[0][1:] + 1, lambda: backend.synchronize() or write()):
        with pytest.raises(grilly.CaptureError, match="holds nothing before the graph's first replay"):
            use()
    graph(x)
    write()
    equal(kept[0][1:2], backend.tensor(np.full(1, 7, np.float32)))
    graph(x)
    equal((kept[0], later(x)), (x * 2, x * 2 + x))
    never = backend.capture(call, random(3))
    del never
    gc.collect()
    with pytest.raises(grilly.CaptureError, match="first replay"):
        kept[-1].numpy()


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, said",
    [
        ((np.zeros((2, 4), np.float32), None, 3), r"argument 0 is float32 \(2, 4\); expected float32 \(2, 3\)"),
        ((np.zeros((2, 3), np.float16), None, 3), r"argument 0 is float16 \(2, 3\); expected float32 \(2, 3\)"),
        ((np.zeros((2, 3)), None, 3), "argument 0 is float64"),
        (([[0.0] * 3] * 2, None, 3), "arguments lie otherwise|argument 0 is a list"),
        ((np.zeros((2, 3), np.float32), None, 4), "argument 2 is 4; expected 3"),
        ((np.zeros((2, 3), np.float32), None, 3.0), "argument 2 is 3.0; expected 3"),
        ((np.zeros((2, 3), np.float32), np.zeros(3), 3), "argument 1 is array"),
        ((np.zeros((2, 3), np.float32), None), "2 arguments are given; expected 3"),
        ((), "0 arguments are given; expected 3"),
    ],
)
def test_arguments_that_differ(backend, arguments, said):
    graph = backend.capture(lambda x, none, number: F.softmax(x), random(2, 3), None, 3)
    with pytest.raises(ValueError, match=said):
        graph(*arguments)
    equal(graph(random(2, 3), None, 3), F.softmax(backend.tensor(random(2, 3))))


def test_values_are_the_same_when_they_are_nan(backend):
    graph = backend.capture(lambda x, factor: x * factor, random(2, 3), float("nan"))
    assert np.isnan(graph(random(2, 3), float("nan")).numpy()).all()
    with pytest.raises(ValueError, match="argument 1 is 1.0; expected nan"):
        graph(random(2, 3), 1.0)


class Foreign:
    """An array of another library."""

    def __array__(self, *args, **options):
        raise AssertionError("nobody asks for its elements")


def test_arrays_of_other_libraries_are_refused(backend):
    """As values they would stay what they were in the capture."""
    with pytest.raises(TypeError, match=r"capture: argument 0\['x'\] is a Foreign; .* numpy.asarray"):
        backend.capture(lambda x: x, {"x": Foreign()})


def test_structures_that_differ(backend):
    graph = backend.capture(lambda given: F.softmax(given["x"]), {"x": random(2, 3)})
    for odd in ({"y": random(2, 3)}, random(2, 3), [random(2, 3)], {"x": (random(2, 3),)}, {}):
        with pytest.raises(ValueError, match="graph: "):
            graph(odd)


def reading(backend, x):
    F.softmax(x).numpy()


def arrays_alone(backend, x):
    F.softmax(random(2, 3))


def waiting(backend, x):
    backend.synchronize()


def timing(backend, x):
    with backend.profile():
        pass


def nesting(backend, x):
    backend.capture(lambda y: y, random(3))


def writing(backend, x):
    x[...] = backend.tensor(random(2, 3))


@pytest.mark.parametrize("what", [reading, arrays_alone, waiting, timing, nesting, writing])
def test_what_cannot_be_captured(backend, what):
    x = backend.tensor(random(2, 3))
    before = backend.memory().in_use
    with pytest.raises(grilly.CaptureError):
        backend.capture(lambda y: what(backend, y), x)
    gc.collect()
    backend.synchronize()
    assert not backend.runtime.capturing and backend.memory().in_use == before
    equal(F.softmax(x), F.softmax(x))


def assigned(x, mask, values):
    x[mask] = values


@pytest.mark.parametrize(
    "read, said",
    [
        (lambda x, mask: x[mask], r"a boolean index: .*use grilly.where\(mask, values, x\)"),
        (lambda x, mask: assigned(x * 2, mask, x[0]), r"a boolean index: .*use grilly.where\(mask, values, x\)"),
        (lambda x, mask: 1 if mask[0, 0] else 2, r"bool\(\) .*; grilly.where chooses on the device"),
        (lambda x, mask: x[0, 0].item(), r"item\(\) reads a tensor: a captured function runs nothing yet"),
        (lambda x, mask: float(x[0, 0]), r"item\(\) reads a tensor: "),
        (lambda x, mask: x.tolist(), r"tolist\(\) reads a tensor: "),
        (lambda x, mask: 1.0 in x, "in reads a tensor: "),
        (lambda x, mask: [1, 2][mask.astype("int32")[0, 0]], "a number as an index reads a tensor: "),
        (lambda x, mask: grilly.nonzero(x), "nonzero reads a tensor: "),
    ],
    ids=range(9),
)
def test_what_reads_in_a_capture_is_named(backend, read, said):
    with pytest.raises(grilly.CaptureError, match=said):
        backend.capture(read, random(2, 3), random(2, 3) > 0)


def test_a_graph_in_a_capture(backend):
    graph = backend.capture(F.softmax, random(2, 3))
    with pytest.raises(grilly.CaptureError):
        backend.capture(lambda x: graph(x), random(2, 3))


def test_a_function_that_catches_the_error_goes_on(backend):
    def call(x):
        with pytest.raises(grilly.CaptureError):
            x.numpy()
        return F.softmax(x)

    equal(backend.capture(call, random(2, 3))(random(2, 3)), F.softmax(backend.tensor(random(2, 3))))


def test_tensors_of_a_failed_capture_say_so(backend):
    kept = []

    def call(x):
        kept.append(F.softmax(x))
        raise KeyError("x")

    with pytest.raises(KeyError):
        backend.capture(call, random(2, 3))
    for use in (kept[0].numpy, lambda: F.softmax(kept[0]), lambda: F.softmax(kept[0]).numpy()):
        with pytest.raises(grilly.CaptureError, match="failed"):
            use()
    x = backend.tensor(random(2, 3))
    equal(F.softmax(x), F.softmax(x))
    with pytest.raises(grilly.CaptureError):
        backend.capture(lambda x: F.softmax(kept[0]), random(2, 3))


def test_dtypes_and_other_backends(backend):
    with pytest.raises(TypeError, match="argument 0 is float64"):
        backend.capture(lambda x: x, np.zeros(3))
    graph = backend.capture(F.softmax, random(2, 3))
    with grilly.Compute(runtime="vulkan") as other:
        with pytest.raises(ValueError, match="argument 0 belongs to another backend"):
            graph(other.tensor(random(2, 3)))
        with pytest.raises(ValueError, match="argument 0 belongs to another backend"):
            backend.capture(F.softmax, other.tensor(random(2, 3)))
        gone = other.capture(lambda x: x.astype("float16"), random(2, 3))
    with pytest.raises(grilly.ClosedError):
        gone(random(2, 3))


def test_kompute_says_that_it_cannot():
    with open_or_skip("kompute", lambda: grilly.Compute(runtime="kompute")) as backend:
        with pytest.raises(grilly.UnsupportedError, match="runtime='vulkan'"):
            backend.capture(lambda x: x, random(3))
        backend.tensor(random(3)).numpy()


# -- threads ----------------------------------------------------------------------------------------------------------


def test_replays_of_two_threads(backend):
    """Each gets the results of its own arguments."""
    weight = backend.tensor(random(16, 16))
    graph = backend.capture(lambda x: F.linear(F.linear(x, weight), weight), random(4, 16))
    wrong = []

    def work(seed):
        x = random(4, 16, seed=seed)
        wanted = F.linear(F.linear(backend.tensor(x), weight), weight).numpy()
        for number in range(60):
            found = graph(x if number % 2 else backend.tensor(x))
            if not np.array_equal(found.numpy(), wanted):
                wrong.append((seed, number))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_other_threads_go_on_during_a_capture(backend):
    weight = backend.tensor(random(8, 8))
    inside, done, found = threading.Event(), threading.Event(), []

    def other():
        inside.wait(60)
        x = backend.tensor(random(3, 8, seed=5))
        found.append(F.linear(x, weight).numpy())
        found.append(backend.capture(F.softmax, random(2, 3))(random(2, 3)).numpy())
        done.set()

    def call(x):
        y = F.linear(x, weight)
        inside.set()
        assert done.wait(60)
        return F.linear(y, weight)

    thread = threading.Thread(target=other)
    thread.start()
    graph = backend.capture(call, random(3, 8))
    thread.join()
    np.testing.assert_array_equal(found[0], F.linear(backend.tensor(random(3, 8, seed=5)), weight).numpy())
    np.testing.assert_array_equal(found[1], F.softmax(backend.tensor(random(2, 3))).numpy())
    assert graph.dispatches == 2
    equal(graph(random(3, 8)), F.linear(F.linear(backend.tensor(random(3, 8)), weight), weight))


class Holder:
    """What a library might return."""

    def __init__(self, tensor):
        self._found = {"y": tensor}


class Slotted:
    __slots__ = ("y",)

    def __init__(self, tensor):
        self.y = tensor


@pytest.mark.parametrize("kind", [Holder, Slotted])
def test_tensors_in_other_objects_are_not_lost(vulkan_backend, kind):
    """A replay could not give them memory of their own."""
    x = vulkan_backend.tensor(np.ones(3, np.float32))
    with pytest.raises(grilly.CaptureError, match=f"returns a {kind.__name__}, and the next replay would write over"):
        vulkan_backend.capture(lambda x: (x, kind(x + 1)), x)
    before = kind(x)
    assert vulkan_backend.capture(lambda x: (x + 1, before), x)(x)[1] is before
    assert (vulkan_backend.capture(lambda x: x + 1, x)(x).numpy() == 2).all()
