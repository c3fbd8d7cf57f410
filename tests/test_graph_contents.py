"""What replays find where others write too, and that what replays write counts as written."""

import numpy as np
import pytest

import grilly
from grilly import nn

ONE = np.ones(2, np.float32)
pytestmark = pytest.mark.usefixtures("default")


def test_what_the_host_wrote_is_there_again(default):
    kept = []

    def function(x):
        kept.append(grilly.asarray(np.array([1, 2], np.float32)))
        return kept[0] + x

    graph = default.capture(function, ONE)
    np.testing.assert_array_equal(graph(ONE).numpy(), [2, 3])
    kept[0] *= 10
    np.testing.assert_array_equal(graph(ONE).numpy(), [2, 3])
    other = default.capture(lambda: kept[0].__imul__(2) + 0)  # its replays write there
    for _ in range(2):
        other()
        np.testing.assert_array_equal(graph(ONE).numpy(), [2, 3])


@pytest.mark.parametrize("make", [
    lambda: grilly.arange(2, dtype="float32"), lambda: grilly.linspace(0, 1, 2),
    lambda: grilly.zeros(2) + np.array([0, 1], np.float32),
])  # fmt: skip
def test_a_result_that_is_written_to(default, make):
    def function(x):
        own = make()
        return own, own + x

    graph = default.capture(function, ONE)
    first = graph(ONE, copy=False)[0]
    first += 100
    found = [each.numpy() for each in graph(ONE)]
    np.testing.assert_array_equal(found, [[0, 1], [1, 2]])


def test_backward_sees_that_a_replay_wrote(default):
    x = grilly.asarray(np.ones((1, 2), np.float32))
    layer, one = nn.Linear(2, 1, rng=0).train(), np.ones((1, 1), np.float32)
    graph = default.capture(lambda: x.__imul__(3.0) + 0)
    layer(x)
    graph()
    with pytest.raises(RuntimeError, match="changed in place"):
        layer.backward(one)
    graph = default.capture(lambda x: x * 1, np.ones((1, 2), np.float32))
    layer(graph(np.ones((1, 2), np.float32), copy=False))
    graph(np.full((1, 2), 9, np.float32))
    with pytest.raises(RuntimeError, match="changed in place"):
        layer.backward(one)
    layer.zero_grad()
    layer(graph(np.full((1, 2), 9, np.float32)))  # a result of its own
    graph(np.ones((1, 2), np.float32))
    layer.backward(one)
    np.testing.assert_array_equal(layer.weight.grad, [[9, 9]])


def test_a_parameter_on_another_backend_sees_it_too(vulkan_backend):
    with grilly.Compute(runtime="vulkan") as other:
        weight = vulkan_backend.tensor(np.ones((1, 2), np.float32))
        layer = nn.Linear(2, 1, bias=False)
        layer.weight = nn.Parameter(weight)
        x = other.tensor(np.ones((1, 2), np.float32))
        graph = vulkan_backend.capture(lambda: weight.__imul__(2.0) + 0)
        layer(x)
        graph()
        np.testing.assert_array_equal(layer(x).numpy(), [[4]])


def test_masked_arrays_are_refused(default):
    masked = np.ma.array([1, 2], mask=[0, 1], dtype=np.float32)
    with pytest.raises(TypeError, match="capture: argument 0: a masked array hides elements"):
        default.capture(lambda x: x * 2, masked)
    graph = default.capture(lambda x: x * 2, ONE)
    with pytest.raises(TypeError, match="graph: argument 0: a masked array hides elements"):
        graph(masked)


def test_results_that_are_parts_of_one_array(default):
    """They are parts of one array again, apart from the next replay's; also of odd bytes and of none."""
    x, small = np.arange(4000, dtype=np.float32), np.arange(77, dtype=np.int8)

    def function(x, small):
        y, z = x + 1, small + np.int8(1)
        parts = [y[:1000], y[1000:2001].reshape(7, 143), y[2001:4000][::-1], y[4000:]]
        return {"parts": parts, "odd": (z[1:40], z[40:])}

    graph = default.capture(function, x, small)
    for k in range(2):
        found, want = graph(x * k, small), function(x * k, small)
        for one, other in zip(found["parts"] + [*found["odd"]], want["parts"] + [*want["odd"]], strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one.numpy(), other)
    first = graph(x, small)["parts"]
    second = graph(x * 2, small)["parts"]
    np.testing.assert_array_equal(first[0].numpy(), x[:1000] + 1)
    first[0][...] = 5
    np.testing.assert_array_equal(first[1].numpy().ravel(), x[1000:2001] + 1)
    np.testing.assert_array_equal(second[0].numpy(), x[:1000] * 2 + 1)
    assert first[3].shape == (0,)
    scattered = default.capture(lambda x: (lambda y: (y[:2], y[-2:]))(x + 1), x)
    assert [one.numpy().tolist() for one in scattered(x)] == [[1, 2], [3999, 4000]]
