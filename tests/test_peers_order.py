"""Work on memory shared with CUDA, and CUDA's own: neither begins before what was given first has run."""

import numpy as np
import pytest

from grilly import errors
from sharing import ARRAY, ORDERS, A, B, sharing, shown


@pytest.fixture
def timed():
    with sharing() as made:
        yield made


def test_grilly_waits_for_the_stream(timed):
    """Work on shared memory does not run before what the stream was given; other work does."""
    tensor, other = timed.backend.tensor(ARRAY), timed.backend.tensor(ARRAY)
    array = shown(tensor.__dlpack__(stream=A))
    timed.backend.synchronize()
    (other + 1).numpy()
    gate = timed.gate()
    timed.fake.stream(A).give(lambda: array.__imul__(2))
    (other * 3).numpy()  # which would wait for ever
    result = tensor + 1
    assert not timed.done()
    gate.set()
    assert np.array_equal(result.numpy(), 2 * ARRAY + 1)


def test_the_stream_waits_for_grilly(timed):
    """What a stream is given after a capsule, or after a call on shared memory, runs after grilly's work."""
    tensor = timed.backend.tensor(ARRAY)
    array = shown(tensor.__dlpack__(stream=A))
    gate = timed.gate(A)
    result = tensor * 2
    tensor[...] = 7.0
    found = shown(result.__dlpack__(stream=B))
    seen = []
    timed.fake.stream(B).give(lambda: seen.append(found.copy()))
    timed.fake.stream(A).give(lambda: seen.append(array.copy()))
    assert not timed.done() and not seen
    gate.set()
    timed.fake.stream(B).settle()
    timed.fake.stream(A).settle()
    assert sorted(float(each[1, 1]) for each in seen) == [7.0, 22.0]


@pytest.mark.parametrize("order", [*ORDERS, "hip"])
def test_in_turn(order):
    with sharing(order, delay=0.002) as shared:
        tensor = shared.backend.tensor(np.zeros(1000, np.float32))
        array = shown(tensor.__dlpack__(stream=A))
        for turn in range(40):
            shared.stream = (A, B)[turn % 2]
            if turn:  # PyTorch's streams wait for each other by events
                shared.fake.stream((B, A)[turn % 2]).settle()
            shared.fake.stream(shared.stream).give(lambda: array.__iadd__(1))
            tensor[...] = tensor * 1.0 + 1.0
        assert (tensor.numpy() == 80).all()


def test_a_timeline_only_goes_up(timed):
    """Two streams, of which the one that is asked first is late."""
    tensor = timed.backend.tensor(ARRAY)
    shown(tensor.__dlpack__(stream=A))
    gate = timed.gate(A)
    first = tensor + 1
    timed.stream = B
    second = tensor + 2
    gate.set()
    assert np.array_equal(first.numpy(), ARRAY + 1) and np.array_equal(second.numpy(), ARRAY + 2)
    values = [
        (arguments[1][0], arguments[3])
        for name, arguments in timed.fake.calls
        if name == "cuSignalExternalSemaphoresAsync"
    ]
    assert [value for value, _ in values] == sorted({value for value, _ in values}) and {s for _, s in values} == {A, B}


def test_a_graph_is_in_order_too(timed):
    given = timed.backend.tensor(ARRAY)
    with_bias = timed.backend.tensor(np.ones(10, np.float32))
    graph = timed.backend.capture(lambda x: (x + with_bias) * 2, given)
    bias = shown(with_bias.__dlpack__(stream=A))
    graph(given)
    gate = timed.gate()
    timed.fake.stream(A).give(lambda: bias.__imul__(5))
    result = graph(given)
    assert not timed.done()
    gate.set()
    assert np.array_equal(result.numpy(), (ARRAY + 5) * 2)

    def exports(x):
        x.__dlpack__(stream=A)
        return x + 1

    with pytest.raises(errors.CaptureError):
        timed.backend.capture(exports, given)


def test_split_weights_are_not_kept(timed):
    """What is made of a weight's contents is not kept where CUDA may write to it."""
    from grilly.compute.products import kept as weights

    weight = timed.backend.tensor(ARRAY)
    weights.keep(timed.backend.opened, weight, timed.backend.tensor(ARRAY))
    assert weights.find(weight) is not None
    shown(weight.__dlpack__(stream=A))
    assert weights.find(weight) is None
    weights.keep(timed.backend.opened, weight, timed.backend.tensor(ARRAY))
    assert weights.find(weight) is None
