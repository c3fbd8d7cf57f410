"""What a backend keeps is bounded, kind by kind; what a call under a memory limit takes is counted, options too."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import grilly
from grilly import functional as F
from grilly import reference
from grilly.compute import rope
from grilly.compute.attention.parameters import PARAMETERS
from grilly.compute.attention.plan import planned
from grilly.compute.device import caches
from grilly.compute.device.caches import Cache
from grilly.compute.unfused import t5_bias
from kernels import plans
from threads import in_time, together


@pytest.fixture
def own(backend):
    """A backend of the test's own, with nothing in use."""
    with grilly.Compute(runtime=backend.runtime.name) as opened:
        yield opened


def attend(backend, *arrays, **options):
    return backend.attention.flash_attention2(*arrays, **options)


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_the_oldest_goes_first():
    kept = Cache(3)
    for n in range(5):
        kept.keep(n, str(n))
    assert kept == {2: "2", 3: "3", 4: "4"}
    assert kept.keep(3, "again") == "3" and kept.get(0) is None
    kept.clear()
    assert not kept


def test_threads_keep_at_once():
    kept = Cache(8)

    def work(seed):
        for n in range(5000):
            assert kept.keep((seed, n % 40), n) is not None
            kept.get((seed, n % 3))

    together(4, work)
    assert len(kept) == 8


def test_a_signal_handler_may_keep_in_the_midst_of_it():
    kept = Cache(1)

    class Key:
        """Its hash is asked for where a signal may come, too."""

        def __init__(self, *others):
            self.others = others

        def __hash__(self):
            for other in self.others:
                assert kept.keep(other, "inner") == "inner"
            return 1

    outer = Key(2, 3)
    kept.keep(0, "former")
    in_time(lambda: kept.keep(outer, "outer"))
    assert list(kept.values()) == ["outer"]


def test_rope_keeps_so_many_bases(own, monkeypatch):
    """Their memory is given back, and attention's plans are left alone."""
    monkeypatch.setattr("grilly.compute.backend._default", own)
    monkeypatch.setattr(caches, "PLANS", 256)
    x = np.ones((4, 8), np.float32)
    q = own.tensor(np.ones((1, 1, 4, 8), np.float32))
    attend(own, q, q, q)
    (plan,) = plans(own, planned)
    for base in range(2, 2 + caches.PLANS):
        F.rope(x, base=base)
    gc.collect()
    own.synchronize()
    before = own.memory(reset_peak=True).in_use
    for base in range(1000, 1300):
        exact = reference.rope(x[None, None].astype(np.float64), base=base)[0, 0]
        assert np.abs(F.rope(x, base=base) - exact).max() < 1e-5
    gc.collect()
    own.synchronize()
    assert len(plans(own, rope.plan)) == caches.PLANS
    assert own.memory().in_use == before
    assert plans(own, planned) == [plan]


def test_t5_keeps_so_many_tables(own, monkeypatch):
    monkeypatch.setattr(caches, "PLANS", 64)
    scores = np.zeros((1, 1, 4, 4), np.float32)
    for distance in range(20, 120 + caches.PLANS):
        own.attention.t5_bias(scores, np.ones((8, 1), np.float32), max_distance=distance)
    assert len(plans(own, t5_bias.plan)) == caches.PLANS
    assert not plans(own, planned)


def test_plans_push_out_the_oldest_plan_only(own):
    own.opened.caches[planned].limit = 8  # a call on Tensors has two keys: as it was given, and as it was checked
    tensors = [own.tensor(np.ones((1, 1, n, 8), np.float32)) for n in range(1, 8)]
    for tensor in tensors:
        attend(own, tensor, tensor, tensor)
    assert len(plans(own, planned)) == 4
    newest = plans(own, planned)[-1]
    attend(own, tensors[-1], tensors[-1], tensors[-1])
    assert plans(own, planned)[-1] is newest


# -- limits ----------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(3)
LONG = RNG.standard_normal((3, 1, 2, 240, 16), dtype=np.float32)
IDS = np.repeat([[0, 1, 2, 3]], 60, axis=1)
OPTIONS = {
    "plain": {},
    "segments": {"segment_ids": IDS},
    "blocks": {"block_map": RNG.random((1, 2, 24, 24)) < 0.5, "block_size": (10, 10)},
    "fine blocks": {"block_map": RNG.random((1, 1, 120, 120)) < 0.5, "block_size": (2, 2)},
    "bias": {"attn_bias": RNG.standard_normal((1, 1, 240, 240)).astype(np.float32)},
    "half bias": {"attn_bias": RNG.standard_normal((2, 240, 240)).astype(np.float16)},
    "mask": {"mask": RNG.random((1, 2, 240, 240)) < 0.7},
    "mask and bias": {"mask": RNG.random((240, 240)) < 0.7, "attn_bias": np.ones((1, 240), np.float32)},
    "t5": {"t5_table": RNG.standard_normal((32, 2)).astype(np.float32), "t5_max_distance": 2000},
    "slopes": {"alibi_slopes": np.array([0.1, 0.2], np.float32), "window_size": (100, 3)},
    "lengths": {"seqlens_q": [230], "seqlens_k": [231], "prefix_len": [5], "causal": True},
    "dropout": {"dropout_p": 0.3, "dropout_seed": 0, "sinks": [0.5, 1.0]},
}


@pytest.mark.parametrize("limit", [10_000, 30_000, 150_000, 1_500_000])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_peak_is_below_the_limit(backend, own, name, limit):
    """Or the call says that it cannot be, before it takes anything."""
    q, k, v = LONG
    whole = attend(backend, q, k, v, **OPTIONS[name])
    own.memory_limit = limit
    for _ in range(2):  # what the first call keeps is counted by the second
        own.memory(reset_peak=True)
        try:
            out = attend(own, q, k, v, **OPTIONS[name])
        except grilly.OutOfDeviceMemoryError as error:
            assert "memory limit" in str(error)
            assert limit < 150_000 and own.memory().peak == own.memory().in_use
            continue
        assert own.memory().peak <= limit
        assert np.abs(out - whole).max() < 1e-4


def test_a_map_of_700_by_900_blocks(own):
    q = np.ones((1, 1, 700, 8), np.float32)
    k = np.ones((1, 1, 900, 8), np.float32)
    own.memory_limit = 300_000
    with pytest.raises(grilly.OutOfDeviceMemoryError, match="options, which are sent whole"):
        attend(own, q, k, k, block_map=np.ones((1, 1, 700, 900), bool), block_size=(1, 1))
    assert own.memory().peak == 0
    own.memory_limit = 1_000_000
    out = attend(own, q, k, k, block_map=np.ones((1, 1, 700, 900), bool), block_size=(1, 1))
    assert np.allclose(out, 1) and own.memory().peak <= 1_000_000


def test_one_query_under_a_limit(own):
    """Its keys are split, and the parts take memory too."""
    q, k, v = (np.ascontiguousarray(a) for a in (LONG[0][:, :, :1], LONG[1], LONG[2]))
    for limit in (10_000, 30_000, 64_000, 70_000):
        own.memory_limit = limit
        own.memory(reset_peak=True)
        out = attend(own, q, k, v)
        assert own.memory().peak <= limit
        assert np.abs(out - reference.naive_attention(q, k, v)[0]).max() < 1e-5


def test_kept_words_give_way(own):
    """Words kept for calls that repeat do not make a call that fits be streamed."""
    q, big = np.ones((1, 1, 40, 8), np.float32), np.ones((1, 1, 100, 8), np.float32)
    own.memory(reset_peak=True)
    attend(own, big, big, big)
    need = own.memory().peak
    for n in range(30):
        attend(own, q, q, q, segment_ids=(np.arange(40)[None] + n, np.arange(40)[None]))
    held = own.memory(reset_peak=True).in_use
    assert held
    own.memory_limit = max(need, held + need // 2)
    streamed = []
    own.progress = streamed.append
    attend(own, big, big, big)
    assert own.memory().peak <= own.memory_limit and not streamed and not plans(own, PARAMETERS)
