"""How calls of attention are planned, cut and dealt to workgroups, and what they bind."""

from __future__ import annotations

import dataclasses
import inspect
import math

import numpy as np
import pytest

import grilly
import grilly.functional as F
import test_matrix
from backends import on
from cases import Case, assert_as_accurate, make_arrays
from grilly import reference
from grilly.compute.attention import backward_chunks, chunks, public, schedule
from grilly.compute.attention import plan as flash
from grilly.compute.attention.call import MAX_KEYS
from grilly.compute.attention.rates import RATES
from grilly.compute.unfused.attention import stored_attention
from grilly.registry import Request
from grilly.registry.shared import extras_bits
from kernels import forget, plans, pretend, retiled
from test_decode import EITHER, FAMILY
from test_decode import need as need_decode
from test_decode_matrix import FACTS, choice, left_out
from test_decode_matrix import FAMILY as MATRIX_FAMILY
from test_flash_attention import FAMILIES, need
from test_kvcache import ATTEND, DIM, draw
from test_kvcache import Problem as Cached
from test_kvcache import attend as kvcache_attend
from test_nonfinite_scores import problem
from test_precision import attend, judge_both, pinned
from test_varlen import GRADIENTS, OPTIONS, Problem, check_gradients

#: A fixture of another file, found by its name here.
FIXTURES = (pinned,)


@pytest.mark.parametrize("axis", ["key", "query", "batch", "head"])
def test_cut_into_dispatches(default, monkeypatch, axis):
    """The parts of a call that one dispatch does not take find their rows and keys."""
    problem = Problem()
    pretend(monkeypatch, default)
    if axis == "key":
        monkeypatch.setattr(flash, "MAX_KEYS", 40)
    else:
        extent = {"query": 2, "batch": 0, "head": 1}[axis]
        at = {"query": 33, "batch": 3, "head": 1}[axis]

        def place(facts, chunk, max_keys, most_work):
            counted = chunk.k if axis == "head" else chunk.q  # heads of keys, with the queries' heads that share them
            return (axis, at) if counted.shape[extent] > at else None

        monkeypatch.setattr(chunks, "_place_to_cut", place)
    problem.check(problem.call(return_lse=True, kernel="flash-attention2", **OPTIONS["all"]), **OPTIONS["all"])


@pytest.mark.parametrize("axis", ["key", "query", "batch", "head", "member"])
def test_gradients_cut_into_dispatches(default, monkeypatch, axis):
    extent, at = {"key": ("k", 37), "query": ("q", 33), "batch": ("q", 3), "head": ("k", 1), "member": ("q", 1)}[axis]
    index = {"key": 2, "query": 2, "batch": 0, "head": 1, "member": 1}[axis]

    def place(facts, chunk, most_walked, most_work):
        if axis == "member" and chunk.views["k"].shape[1] > 1:
            return "head", 1
        return (axis, at) if chunk.views[extent].shape[index] > at else None

    monkeypatch.setattr(backward_chunks, "_place_to_cut", place)
    pretend(monkeypatch, default)
    check_gradients(Problem(rest=1), **GRADIENTS["all"])
    check_gradients(Problem(np.float16, dim=24), causal=True)


def test_keys_cut_into_several_dispatches(backend, monkeypatch):
    """Past MAX_KEYS: a part of paged keys is a part of the table, not of the array."""
    monkeypatch.setattr(flash, "MAX_KEYS", 256)
    pretend(monkeypatch, backend)
    for page in (None, 48):
        problem = Cached(np.float32, [700, 30], page=page, room=720, queries=9, fresh=9)
        problem.check(backend, options={"causal": True}, kernel="flash-attention2")


def test_keys_that_are_cut_are_planned_by_their_number(backend, monkeypatch):
    monkeypatch.setattr(flash, "MAX_KEYS", 64)
    pretend(monkeypatch, backend)
    assert len(grown(backend, 400, [300, 1, 1], kernel="flash-attention2")) == 4, "one for 320, in vain, and one each"


@pytest.mark.parametrize("variant", test_matrix.VARIANTS, ids=lambda v: v.label + "." + v.dtype)
def test_merged_ranges_on_matrix_units(backend, variant):
    """Keys in two dispatches, the second merging with what the first wrote."""
    dtype = test_matrix.dtype_of(variant)
    view, dim = test_matrix.pinned(backend, variant)
    case = Case("merged", queries=75, keys=330, dim=dim)
    *arrays, _ = make_arrays(case, dtype)
    own = flash.split
    flash.split = lambda facts, chunk, *limits: own(facts, chunk, 130)
    forget(view)
    try:
        result = test_matrix.attend(view, arrays, case)
    finally:
        flash.split = own
        forget(view)
    test_matrix.judge(result, case, arrays, None)


def test_merged_ranges(pinned, monkeypatch):
    """Keys in several dispatches, each merging with what the one before wrote."""
    view, dim = pinned
    case = Case("merged", queries=75, keys=330, dim=dim)
    *arrays, _ = make_arrays(case)
    own = flash.split
    monkeypatch.setattr(flash, "split", lambda facts, chunk, *limits: own(facts, chunk, 130))
    forget(view)
    judge_both(attend(view, arrays, case), case, arrays, None)


def grown(backend, room, steps, queries=1, kernel=None, **options):
    """Steps that fill a cache whose samples have one length, each compared with the reference; the plans made."""
    rng = np.random.default_rng(room)
    caches = [backend.tensor(np.full((2, room, 2, DIM), np.nan, np.float32)) for _ in range(2)]
    before, length, held = set(backend.opened.caches[flash.planned]), 0, [np.zeros((2, 0, 2, DIM), np.float32)] * 2
    for count in steps:
        q, k, v = (draw(rng, np.float32, 2, n, h, DIM) for n, h in ((queries, 4), (count, 2), (count, 2)))
        q_, k_, v_ = (backend.tensor(a) for a in (q, k, v))
        out = ATTEND(q_, *caches, k_, v_, cache_seqlens=length, kernel=kernel, **options).numpy()
        held, length = [np.concatenate(pair, 1) for pair in zip(held, (k, v), strict=True)], length + count
        for b in range(2):
            part = q[b], held[0][b], held[1][b]
            exact, plain = (kvcache_attend(part, dtype, options)[0] for dtype in (np.float64, np.float32))
            assert_as_accurate(out[b], exact, plain)
    return set(backend.opened.caches[flash.planned]) - before


def test_steps_of_decoding_share_plans(backend):
    """A plan serves all lengths up to its own, so that a step need not plan; what lies past the length is not read."""
    assert len(grown(backend, 70, [1] * 70)) == 5, "for 16, 32, 48, 64 and 70 keys"
    assert len(grown(backend, 300, [250, 1, 5, 1, 40], causal=True)) == 3, "for 256, 288 and 300"
    assert len(grown(backend, 90, [40, 3, 4, 20, 3], queries=3, causal=True, window_size=(11, 0))) <= 3


def test_plans_of_both_precisions_are_apart(backend):
    q, k, v = (backend.tensor(a) for a in make_arrays(Case("plans", queries=70, keys=90, dim=64))[:3])
    before = len(plans(backend, flash.planned))
    for precision in ("highest", "high", "highest", "high"):
        backend.attention.flash_attention2(q, k, v, scale=0.371, precision=precision)
    assert len(plans(backend, flash.planned)) == before + 2


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_are_wholly_written_and_nothing_else(backend, family):
    """Poisoned outputs, with sentinels around them, through the kernel's own strides."""
    need(backend, family)
    from grilly.compute.attention import operands

    q, k, v, _ = make_arrays(Case("sentinel", heads=3, queries=37, keys=41, dim=24))
    want = backend.attention.flash_attention2(q, k, v, kernel=family)
    made = []
    original = operands.output_like

    def poisoned(planner, q, value_dim):
        batch, heads, rows, _ = q.shape
        big = planner.constant(np.full((batch, heads + 1, rows + 5, value_dim + 4), np.nan, np.float32))
        made.append(big.shape)
        return big[:, :heads, 2 : rows + 2, :value_dim]

    operands.output_like = poisoned
    forget(backend)
    try:
        out = backend.attention.flash_attention2(*(backend.tensor(a) for a in (q, k, v)), kernel=family)
    finally:
        operands.output_like = original
        forget(backend)
    assert (out.numpy() == want).all()
    everything = grilly.Tensor(out._storage, made[-1], out.dtype).numpy()
    everything[:, :3, 2:39, :24] = np.nan
    assert np.isnan(everything).all()


def test_other_forms_of_attention_are_highest_by_default():
    dask = pytest.importorskip("dask.array") and pytest.importorskip("grilly.dask")
    ours = F.flash_attention_varlen, F.flash_attention_with_kvcache, public.flash_attention2
    for call in (*ours, dask.flash_attention):
        assert inspect.signature(call).parameters["precision"].default == "highest"


def test_stored_weights(backend):
    q, k, v, added = problem(64)
    added[0, 0, 1, 69] = np.nan
    exact = reference.naive_attention(q, k, v, attn_bias=added, dtype=np.float64)[0]
    out = stored_attention(backend.opened, q, np.repeat(k, 2, 1), np.repeat(v, 2, 1), attn_bias=added)
    assert np.array_equal(np.isnan(out), np.isnan(exact))
    out = on(backend, F.scaled_dot_product_attention)(q, np.repeat(k, 2, 1), np.repeat(v, 2, 1), added)
    assert np.array_equal(np.isnan(out), np.isnan(exact))


# -- decoding: how keys and rows are dealt to workgroups, and which kernel is chosen ----------------------------------


#: Of other files, found by their names here.
FIXTURES_OF_DECODE = choice, left_out


def test_deal_covers_every_key_and_row():
    """For any subgroup size and shape: the splits hold all keys, the passes all rows, the lanes the whole row."""

    @dataclasses.dataclass
    class Variant:
        dtype: str

    @dataclasses.dataclass
    class Choice:
        variant: Variant
        tile: dict
        threads: int = 128

    tile = {"rows": 8, "columns": 8, "values": 64, "words": 4, "stages": 2, "keys": 256, "resident": 8}
    rates = RATES["gpu"].decode.split
    for dtype, wide in (("float32", 4), ("float16", 8)):
        for size in (8, 16, 32, 64):
            for dim in (wide, 64, 80, 128, 192, 256):
                for rows in (1, 4, 9, 64):
                    for keys in (0, 1, 257, 8192, 300_001):
                        choice = Choice(Variant(dtype), tile)
                        dealt = schedule.split_rows(choice, size, 132, 8, rows, keys, (dim, wide), rates)
                        assert size % dealt.lanes == 0
                        assert dealt.rows * dealt.passes >= rows > dealt.rows * (dealt.passes - 1)
                        step = size // dealt.lanes * dealt.unroll * (128 // size)
                        share = math.ceil(math.ceil(keys / dealt.splits) / step) * step  # as the shader has it
                        assert share * dealt.splits >= keys
                        assert share <= MAX_KEYS + step


def test_a_window_is_split_like_all_keys(backend):
    """The splits share what the window leaves, not the keys before it."""
    need_decode(backend)
    q, k, v, _ = make_arrays(Case("window", heads=2, queries=1, keys=4000, dim=16))
    with retiled(backend, FAMILY, keys=64, resident=1000):
        run = backend.attention.flash_attention2
        tensors = [backend.tensor(a) for a in (q, k, v)]
        run(*tensors, window_size=(700, 0), kernel=FAMILY)
        run(*tensors, kernel=FAMILY)
        few, many = (executable.plan.steps[0].groups[0] for executable in plans(backend, flash.planned))
    assert 1 < few <= 700 / 64 + 1 < many


def test_no_split_counts_twice_or_is_forgotten(backend):
    """Every key has a value of its own, so a split that is missing, or there twice, shows; many teams, many times."""
    need_decode(backend)
    keys, heads = 4096, 24
    q = np.zeros((2, heads, 1, 8), np.float32)
    k = np.zeros((2, heads // 2, keys, 8), np.float32)
    v = np.broadcast_to(np.arange(keys, dtype=np.float32)[:, None], k.shape)  # their sum is exact
    tensors = [backend.tensor(np.ascontiguousarray(a)) for a in (q, k, v)]
    with retiled(backend, FAMILY, keys=64, resident=1000):
        results = [backend.attention.flash_attention2(*tensors, kernel=FAMILY) for _ in range(20)]
        assert max(executable.plan.steps[0].groups[0] for executable in plans(backend, flash.planned)) > 8
        for result in results:  # 20 dispatches of one plan, recorded before the first is waited for
            assert (result.numpy() == (keys - 1) / 2).all()


def test_what_counts_splits_is_left_zero(backend):
    need_decode(backend)
    q, k, v, _ = make_arrays(Case("zero", heads=8, kv_heads=4, queries=1, keys=1500))
    forget(backend)
    for _ in range(3):
        backend.attention.flash_attention2(*(backend.tensor(a) for a in (q, k, v)), kernel=FAMILY)
    (found,) = plans(backend, flash.planned)
    (step,) = found.plan.steps
    (at,) = (n for n, slot in enumerate(found.plan.slots) if isinstance(slot, np.ndarray))
    arrived = grilly.Tensor(found._slots[at], found.plan.slots[at].shape, np.dtype(np.int32))
    assert arrived.size == 4 * step.groups[2] and not arrived.numpy().any()


def test_deal_fills_the_device_evenly():
    """Four workgroups for each of 132 multiprocessors, the measured cases among others: no round leaves much idle."""

    @dataclasses.dataclass
    class Choice:
        tile: dict
        threads: int = 128

    made = Choice({"rows": 8, "trip": 16, "stages": 2, "ahead": 8, "keys": 256, "resident": 4})
    deals = {
        (batch, keys): schedule.split_rows(made, 32, 132, 8 * batch, 4, keys, (128, 128), RATES["gpu"].decode.split)
        for batch, keys in ((16, 8192), (1, 8192), (4, 8192), (1, 65536), (1, 1024), (40, 8192))
    }
    for (batch, keys), dealt in deals.items():
        groups = batch * 8 * dealt.splits
        assert groups <= 528 or groups / (math.ceil(groups / 528) * 528) > 0.8
        assert dealt.splits <= keys / 256
    assert deals[16, 8192].splits == 4 and deals[16, 8192].stages == 2
    assert deals[1, 8192].splits == 32 and deals[1, 8192].stages == 1


@EITHER
def test_plans_are_reused_with_other_offsets(backend, family):
    """A prepared plan serves other windows of the same storage: nothing of the first call's data is kept."""
    need_decode(backend, family=family)
    rng = np.random.default_rng(5)
    k, v = (rng.standard_normal((6, 2, 528, 64), dtype=np.float32) for _ in range(2))
    q = rng.standard_normal((6, 4, 1, 64), dtype=np.float32)
    # Samples begin at multiples of 16, as far as plans tell places apart.
    mask = rng.random((6, 1, 1, 528)) < 0.5
    tq, tk, tv, tm = (backend.tensor(a) for a in (q, k, v, mask))
    forget(backend)
    for i in range(6):
        part = slice(i, i + 1)
        out = backend.attention.flash_attention2(tq[part], tk[part], tv[part], mask=tm[part], kernel=family).numpy()
        want = reference.naive_attention(q[part], k[part], v[part], mask=mask[part], dtype=np.float64)[0]
        assert np.abs(out - want).max() < 1e-6
    (found,) = plans(backend, flash.planned)
    assert found.plan.steps[0].choice.variant.family == family


def test_chosen_where_it_pays(backend, monkeypatch):
    """One query over many keys takes the split kernel, many queries the tiled ones; a named family is obeyed."""
    need_decode(backend)
    # With 8 multiprocessors 500 queries fill the device, whatever it is.
    pretend(monkeypatch, backend, architecture="nvidia-hopper", units=8)

    def kind(queries, keys, kernel=None, heads=2):
        q, k, v, _ = make_arrays(Case("chosen", heads=heads, kv_heads=2, queries=queries, keys=keys))
        forget(backend)
        backend.attention.flash_attention2(*(backend.tensor(a) for a in (q, k, v)), kernel=kernel)
        (found,) = plans(backend, flash.planned)
        return found.plan.steps[0].choice.variant.operation

    assert kind(1, 1024) == "attention-decode"
    assert kind(16, 1024) == "attention-decode"
    assert kind(2, 700, heads=8) == "attention-decode"
    assert kind(1, 64) == "attention"
    assert kind(1, 64, FAMILY) == "attention-decode"
    assert kind(500, 1024) == "attention"
    assert kind(1, 1024, "attention-naive") == "attention"
    pretend(monkeypatch, backend, architecture="llvmpipe")
    few = "attention-decode" if "texel-buffers" in backend.runtime.features else "attention"
    assert kind(1, 1024) == "attention-decode"
    assert kind(1, 20_000) == "attention-decode"
    assert kind(1, 64) == kind(2, 1024) == kind(8, 13) == few
    assert kind(9, 13) == kind(40, 1024) == "attention"


def test_chosen_where_it_can_serve(backend, choice):
    """Left to the registry, a call takes it, with dropout the vector kernel."""
    for extras, family in ((0, MATRIX_FAMILY), (extras_bits(("dropout",)), FAMILY)):
        facts = FACTS | {"masked": 1, "extras": extras}
        assert backend.registry.resolve(Request("attention-decode", "float16", problem=facts)).variant.family == family
