"""How long memory shared with CUDA lives: until its streams have done what they were given, and no longer."""

import gc
import os

import numpy as np
import pytest

from sharing import ARRAY, A, drop, kept, sharing, shown


@pytest.fixture
def timed():
    with sharing() as made:
        yield made


def test_memory_comes_back_after_the_streams_work(timed):
    """Memory that a stream may still read is nobody else's; then it is given back."""
    before = timed.bytes()
    tensor = timed.backend.tensor(ARRAY)
    array = shown(tensor.__dlpack__(stream=A))
    place = (tensor._storage.buffer.piece.block, tensor._storage.buffer.piece.start)
    del tensor
    assert timed.bytes() > before, "CUDA has it"
    gate = timed.gate()
    seen = []
    timed.fake.stream(A).give(lambda: seen.append(array.copy()))
    drop()
    others = [timed.backend.tensor(np.full((6, 10), 9, np.float32)) for _ in range(3)]
    assert place not in [(t._storage.buffer.piece.block, t._storage.buffer.piece.start) for t in others]
    gate.set()
    del others
    assert timed.bytes() == before and not timed.exchange.peer._loans and not timed.exchange.peer.gone
    assert np.array_equal(seen[0], ARRAY)


def test_results_take_turns(timed):
    """Repeated calls whose results are dropped use the same memory again, in order with the streams that read them."""
    tensor = timed.backend.tensor(ARRAY)
    shown(tensor.__dlpack__(stream=A))
    seen, places = [], set()
    for turn in range(30):
        result = tensor * float(turn)
        array = shown(result.__dlpack__(stream=A))
        places.add(array.ctypes.data)
        timed.fake.stream(A).give(lambda array=array: seen.append(array[1, 1]))
        del result, array
        kept.pop()
    timed.fake.stream(A).settle()
    assert seen == [11.0 * turn for turn in range(30)]
    assert len(places) <= 4, "each call took memory of its own"


def test_short_memory_is_taken_back_from_loans(timed):
    pool = timed.backend.runtime._parts.pool
    pool._heap = 4 << 20
    for _ in range(6):
        tensor = timed.backend.empty((700_000,), np.float32)
        shown(tensor.__dlpack__(stream=A))
        del tensor
        drop()


def test_arrays_outlive_the_backend(timed):
    tensor = timed.backend.tensor(ARRAY)
    array = shown(tensor.__dlpack__(stream=A))
    timed.backend.close()
    assert np.array_equal(array, ARRAY)
    assert not timed.fake.freed
    del array, tensor
    drop()
    assert len(timed.fake.freed) == 1 and not timed.fake.memories


def test_a_block_that_is_given_back_is_unmapped(timed):
    tensor = timed.backend.empty((20_000_000,), np.float32)  # a block of its own
    shown(tensor.__dlpack__(stream=A))
    assert len(timed.fake.memories) == 1
    del tensor
    drop()
    timed.backend.synchronize()
    timed.backend.empty((30_000_000,), np.float32)
    assert not timed.fake.memories


@pytest.mark.parametrize("order", ["timelines", "hip"])
def test_file_descriptors_are_not_lost(order):
    def count():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    found = []
    for _ in range(3):
        with sharing(order) as shared:
            shown(shared.backend.tensor(ARRAY).__dlpack__(stream=A))
            drop()
        found.append(count())
    assert found[0] == found[1] == found[2]
