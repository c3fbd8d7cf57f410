"""The plan: calls that exceed a device's limits are cut into dispatches, and the result is the same."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cases import Case, make_arrays
from grilly.compute.attention.call import AttentionCall, OptionSummary
from grilly.compute.attention.chunks import Chunk, split
from grilly.compute.attention.operands import FLOAT32
from grilly.compute.attention.plan import plan, planned, reads_narrow_bias
from grilly.compute.attention.rates import RATES, rates_of
from grilly.compute.device import submission_budget
from grilly.compute.device.caches import Caches, DeviceCache
from grilly.compute.device.device import DeviceFacts
from grilly.compute.device.plan import At, Layout, Live, Planner
from grilly.registry import Registry, Request
from grilly.registry.shared import extras_bits
from grilly.runtime.interface import DeviceInfo
from kernels import forget, plans, smaller

CASES = [
    Case("plain", batch=3, heads=4, kv_heads=2, queries=50, keys=61, dim=16),
    Case("odd", batch=2, heads=3, kv_heads=1, queries=50, keys=61, dim=7),
    Case("mask", batch=2, heads=2, queries=50, keys=61, dim=16, mask="bool-full"),
    Case("additive", batch=2, heads=2, queries=50, keys=61, dim=16, mask="add-inf-rows"),
    Case("causal", batch=2, heads=2, queries=61, keys=50, dim=16, causal=True),
    Case("causal-mask", batch=2, heads=2, queries=50, keys=61, dim=16, causal=True, mask="bool-dead-rows"),
]


def run(backend, case, layout="bhsd"):
    q, k, v, mask = make_arrays(case)
    if layout == "bshd":
        q, k, v = (np.ascontiguousarray(a.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for a in (q, k, v))
    out, lse = backend.attention.flash_attention2(q, k, v, mask=mask, causal=case.causal, return_lse=True)
    return np.ascontiguousarray(out), lse


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("storage_range", [4096, 1024, 320])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bindings_smaller_than_the_arrays(backend, case, storage_range, layout):
    if "descriptor-offsets" not in backend.runtime.features:
        pytest.skip(f"the {backend.runtime.name} runtime binds whole buffers only")
    want, want_lse = run(backend, case, layout)
    if storage_range < backend.device.limits["offset_alignment"] + 4 + 4 * 16:
        pytest.skip(f"a row does not fit {storage_range} bytes beside the device's offset alignment")
    with smaller(backend, storage_range=storage_range) as dispatches:
        got, got_lse = run(backend, case, layout)
    assert len(dispatches) > 1
    assert all(b is None or b[2] <= storage_range for d in dispatches for b in d[1])
    assert np.allclose(got, want, rtol=0, atol=3e-6)
    assert np.allclose(got_lse, want_lse, rtol=1e-6, atol=3e-6)


def test_grid_smaller_than_the_call(backend):
    case = Case("grid", batch=5, heads=6, kv_heads=3, queries=40, keys=24, dim=8)
    want, want_lse = run(backend, case)
    with smaller(backend, groups=(65535, 2, 2)) as dispatches:
        got, got_lse = run(backend, case)
    assert len(dispatches) == 9
    assert all(d[3][1] <= 2 and d[3][2] <= 2 for d in dispatches)
    assert (got == want).all() and (got_lse == want_lse).all()


@pytest.mark.parametrize("causal", [False, True])
def test_work_of_one_submission_is_bounded(backend, causal, monkeypatch):
    monkeypatch.setattr(
        submission_budget, "LEAST_SECONDS", np.inf
    )  # on a busy machine dispatches take long, and larger ones follow
    case = Case("work", batch=2, heads=4, kv_heads=2, queries=70, keys=90, dim=8, causal=causal)
    want, _ = run(backend, case)
    with smaller(backend, work_limit=2e4) as dispatches:
        got, _ = run(backend, case)
    assert len(dispatches) > 20
    assert np.allclose(got, want, rtol=0, atol=3e-6)


def test_keys_per_dispatch(backend):
    """Chunks of keys merge to the whole, also where a chunk has nothing for a row."""
    q, k, v, _ = make_arrays(Case("chunks", queries=33, keys=64, dim=32))
    mask = np.zeros((33, 64), bool)
    mask[:, 20:30] = True
    mask[5] = False
    run = backend.attention.flash_attention2
    want, want_lse = run(q, k, v, mask=mask, return_lse=True)
    facts = {"align": 4, "head_dim": 32, "value_dim": 32}
    choice = backend.registry.resolve(Request("attention", "float32", problem=facts))
    with smaller(backend, loop_trips=9 / choice.keys_per_trip) as dispatches:
        o, lse = run(q, k, v, mask=mask, return_lse=True, kernel=choice.variant.family)
    assert len(dispatches) == 8
    assert np.allclose(o, want, rtol=0, atol=3e-6)
    assert np.allclose(lse, want_lse, rtol=1e-6, atol=3e-6)
    assert (o[:, :, 5] == 0).all() and np.isneginf(lse[:, :, 5]).all()


def test_plans_are_reused(backend):
    q, k, v, _ = make_arrays(Case("plans", queries=8, keys=8, dim=8))
    tensors = [backend.tensor(a) for a in (q, k, v)]
    forget(backend)
    first = backend.attention.flash_attention2(*tensors).numpy()
    assert len(plans(backend, planned)) == 1
    again = [backend.tensor(2 * a) for a in (q, k, v)]
    second = backend.attention.flash_attention2(*again).numpy()
    assert len(plans(backend, planned)) == 1
    assert np.abs(second - backend.attention.flash_attention2(2 * q, 2 * k, 2 * v)).max() == 0
    assert np.abs(first - second).max() > 0


# -- as data: no device ----------------------------------------------------------------------------------------------

INFO = DeviceInfo(
    index=0, name="none", vendor="none", vendor_id=0, device_id=0, kind="discrete", driver="none", driver_version="1",
    api_version=(1, 3, 0), subgroup_size=32, subgroup_sizes=(32, 32),
    limits={"storage_range": 1 << 27, "offset_alignment": 16, "push_bytes": 256, "shared_bytes": 49152,
            "invocations": 1024, "groups": (65535, 65535, 65535), "allocation": 1 << 32, "bindings": 16,
            "subgroups": 32},
    features=frozenset({"subgroup-basic", "subgroup-arithmetic", "subgroup-shuffle", "float16-storage",
                        "descriptor-offsets"}),
    memory_bytes=1 << 34, unified=False,
)  # fmt: skip
FACTS = DeviceFacts.of(INFO, "none", INFO.features)


@pytest.fixture(scope="module")
def registry():
    return Registry(INFO, INFO.features)


def layout(*shape, dtype=FLOAT32, offset=16, nbytes=None, strides=None):
    """Of an array in C order."""
    made = []
    step = 1
    for extent in reversed(shape):
        made.insert(0, step)
        step *= extent
    return Layout(shape, tuple(made) if strides is None else strides, np.dtype(dtype), offset, nbytes)


def call(batch=2, heads=4, kv_heads=2, queries=500, keys=70, dim=32, mask=None, bias=None, **terms):
    q = layout(batch, heads, queries, dim)
    k = v = layout(batch, kv_heads, keys, dim)
    asked = {"causal": False, "scale": 0.5, "lse": False, "kernel": None, "high": False, "shift": keys - queries}
    return AttentionCall(q, k, v, mask, bias, **asked | terms)


def test_a_plan_is_one_dispatch_by_name(registry):
    made, parameters, _ = planned(call(causal=True, lse=True), FACTS, registry)
    assert made.inputs == 6 and parameters is None
    (step,) = made.steps
    assert step.choice.variant.operation == "attention"
    bound = dict(zip(step.choice.variant.bindings, step.bindings, strict=True))
    assert {name: place and place[0] for name, place in bound.items()} == {
        "q": 0, "k": 1, "v": 2, "mask": None, "o": 6, "lse": 7, "extra": None, "bias": None, "tiles": None,
    }  # fmt: skip
    push = step.push_constants()
    assert (push["queries"], push["keys"], push["group"]) == (500, 70, 2)
    assert (push["causal_shift"], push["scale"]) == (-430, 0.5)
    assert (push["q_batch"], push["q_head"], push["q_row"], push["k_head"]) == (4 * 500 * 32, 500 * 32, 32, 70 * 32)
    assert push["mask_batch"] == push["mask_key"] == 0
    assert dict(step.constants)["CAUSAL"] == dict(step.constants)["LSE"] == 1
    assert {slot for _, slot, _, _ in step.moved} == {0, 1, 2}, "where the arrays begin is told at each recording"
    assert [r.shape for r in made.results] == [(2, 4, 500, 32), (2, 4, 500)]
    assert made.slots == (4 * 2 * 4 * 500 * 32, 4 * 2 * 4 * 500)


def test_options_are_words_of_the_plan(registry):
    options = OptionSummary(1, 0, 16, parameters=(("heads", 4), ("left", 16), ("right", 0)))
    made, parameters, _ = planned(call(options=options, causal=True), FACTS, registry)
    (step,) = made.steps
    assert dict(step.constants)["FEATURES"] == 1 and step.push_constants()["extra"] == 0
    constant = made.slots[step.bindings[6][0] - made.inputs]
    assert constant[4] == 4 and constant[5] == 16, "heads and left, at the parameters' places"
    made, parameters, _ = planned(call(options=options._replace(contents=True, size=8)), FACTS, registry)
    assert (
        made.steps[0].bindings[6] == (5, 0, 0)
        and parameters.places == (8,)
        and made.steps[0].push_constants()["extra"] == 8
    )


def test_few_queries_split_the_keys(registry):
    made = planned(call(queries=1, keys=9000, shift=8999), FACTS, registry).plan
    (step,) = made.steps
    assert step.choice.variant.operation == "attention-decode" and step.groups[0] > 1
    assert [type(slot) for slot in made.slots] == [int, np.ndarray, int], "the output, the counters, the parts"
    assert not made.slots[1].any()


@pytest.mark.parametrize(("queries", "operation"), [(1, "attention-decode"), (500, "attention")])
def test_the_number_of_keys_may_be_told_later(registry, queries, operation):
    given = call(queries=queries, keys=9216, shift=9216 - queries)._replace(counted=True, causal=True)
    made = planned(given, FACTS, registry)
    (step,) = made.plan.steps
    names = list(step.push_constants())
    assert made.counted and step.choice.variant.operation == operation
    assert step.live == ((4 * names.index("keys"), 0, 0), (4 * names.index("causal_shift"), 0, -queries))
    cut = planned(given._replace(kernel="flash-attention2"), dataclasses.replace(FACTS, loop_trips=1000), registry)
    assert len(cut.plan.steps) > 1 and not cut.counted and not any(step.live for step in cut.plan.steps)


def test_a_mask_gets_classes_where_they_pay(registry):
    mask = layout(2, 4, 500, 70, dtype=bool, strides=(0, 0, 70, 1))
    few = planned(call(mask=mask), FACTS, registry).plan
    assert len(few.steps) == 1
    always = dataclasses.replace(FACTS, class_work=0.0, class_read=0.0)
    choice = registry.resolve(Request("attention", "float32", problem={
        "align": 4, "head_dim": 32, "value_dim": 32, "extras": 2048, "rows": 1, "keys": 1, "causal": 0, "high": 0,
    }))  # fmt: skip
    made = plan(call(mask=mask), always, choice, registry).plan
    assert [s.choice.variant.operation for s in made.steps] == ["attention-tiles", "attention"]
    classes, step = made.steps
    assert classes.bindings[2][0] == step.bindings[8][0], "what the first leaves, the second reads"


def test_dispatches_are_as_large_as_the_pace_allows(registry):
    """The pace is told to the plan; the facts of a device stay as they are."""
    slow = dataclasses.replace(FACTS, work_limit=1e6)
    steps = planned(call(), slow, registry).plan.steps
    (kind,) = {step.kind for step in steps}
    assert len(steps) > 8 and all(step.work <= 1e6 for step in steps)
    assert len(planned(call(), slow, registry, {kind: 1e12}).plan.steps) == 1
    assert planned(call(), slow, registry, {("another",): 1e12}).plan.steps == steps


def test_a_bias_of_16_bits_becomes_float32_where_the_kernel_reads_that(registry):
    halves = {name: layout(2, n, m, 32, dtype=np.float16) for name, n, m in (("q", 4, 500), ("k", 2, 70), ("v", 2, 70))}
    bias, options = layout(2, 4, 500, 70, dtype=np.float16), OptionSummary(extras_bits(("bias",)))
    given = call(bias=bias, options=options)._replace(**halves)
    assert not reads_narrow_bias(given, FACTS, registry), "a kernel without matrix units"
    assert reads_narrow_bias(given._replace(q=layout(2, 4, 0, 32, dtype=np.float16)), FACTS, registry), "no kernel"


def test_rates_are_of_an_architecture():
    assert rates_of(dataclasses.replace(FACTS, architecture="llvmpipe")) is RATES["llvmpipe"] is not RATES["gpu"]
    assert rates_of(dataclasses.replace(FACTS, architecture="unheard-of")) is RATES["gpu"]


def test_arrays_beyond_a_binding_are_windows(registry):
    small = dataclasses.replace(FACTS, storage_range=4096)
    large = [a._replace(nbytes=n, offset=0) for a, n in ((layout(1, 2, 64, 16), 8192), (layout(1, 2, 64, 16), 8192))]
    given = AttentionCall(large[0], large[1], large[1], None, None, False, 1.0, False, None, False, 0)
    made = planned(given, small, registry).plan
    assert len(made.steps) > 1
    assert all(b is None or b[2] <= 4096 for s in made.steps for b in s.bindings)
    assert not any(s.moved for s in made.steps), "offsets of such arrays belong to the plan"
    unable = dataclasses.replace(small, windows=False)
    with pytest.raises(Exception, match="binds whole buffers only"):
        planned(given, unable, registry)


def test_chunks_do_the_whole_work():
    planner = Planner(FACTS, [layout(3, 4, 50, 16), *[layout(3, 2, 61, 16)] * 2])
    q, k, v = planner.inputs
    chunk = Chunk(q, k, v, planner.empty((3, 4, 50, 16)), None, None, 11, False)
    parts = split(dataclasses.replace(FACTS, groups=(65535, 2, 2)), chunk, max_keys=20)
    starts = [p.first[3] for p in parts]
    assert starts == sorted(starts) and len(parts) == 16 and len(set(starts)) == 4
    assert all(p.k.shape[2] <= 20 for p in parts)
    assert all(p.merge == (p.first[3] > 0) for p in parts)
    assert sum(p.flops() for p in parts) == pytest.approx(chunk.flops())
    assert {p.first[:2] for p in parts} == {(0, 0), (0, 2), (2, 0), (2, 2)}


def test_names_that_are_not_the_familys_are_refused(registry):
    choice = registry.resolve(Request("norm-rows", "float32"))
    planner = Planner(FACTS, [layout(4, 8)])
    (x,) = planner.inputs
    push = {**{name: 0 for name, _ in choice.variant.push}, "rows": 4, "cols": 8}
    with pytest.raises(ValueError, match="has no binding 'z'"):
        planner.dispatch(choice, {}, {"z": x}, push, (1, 1, 1))
    with pytest.raises(ValueError, match=r"missing: \['rows'\], unknown: \['lines'\]"):
        planner.dispatch(choice, {}, {}, {"lines": push.pop("rows"), **push}, (1, 1, 1))


def test_words_that_a_call_tells(registry):
    choice = registry.resolve(Request("norm-rows", "float32"))
    planner = Planner(FACTS, [layout(4, 8)])
    (x,) = planner.inputs
    push = {**{name: 0 for name, _ in choice.variant.push}, "x_offset": At(x[2:]), "rows": Live(1, 5),
            "cols": At(x[0, 3:])}  # fmt: skip
    planner.dispatch(choice, {}, {"x": x}, push, (1, 1, 1))
    (step,) = planner.plan().steps
    places = {name: 4 * n for n, (name, _) in enumerate(choice.variant.push)}
    assert step.live == ((places["rows"], 1, 5),)
    assert step.moved == ((places["cols"], 0, 3, 1), (places["x_offset"], 0, 16, 1))


def test_caches_forget_the_oldest():
    kept, caches = DeviceCache("three", 3), Caches()
    for n in range(5):
        caches[kept].keep(n, str(n))
    assert dict(caches[kept]) == {2: "2", 3: "3", 4: "4"} and caches[kept] is kept.of(type("D", (), {"caches": caches}))
