"""Dispatches are as large as the device's throughput allows, once that was seen."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from cases import Case, make_arrays
from grilly.compute.device import submission_budget
from grilly.runtime.interface import assumed_pace
from kernels import smaller

LIMIT = 2e4


@pytest.fixture
def seconds(monkeypatch):
    """What a dispatch of each number of operations takes, told by the test."""
    told = {}

    def tell(executable, number, inputs, live):
        runtime = executable.device.runtime
        runtime.synchronize()
        executable.run(inputs, only=slice(number, number + 1))
        runtime.synchronize()
        told["timed"] = told.get("timed", 0) + 1
        return told["per operation"] * executable.plan.steps[number].work

    monkeypatch.setattr(submission_budget, "_time", tell)
    monkeypatch.setattr(submission_budget, "LEAST_SECONDS", 0.0)
    return told


def attend(backend, case):
    q, k, v, mask = make_arrays(case)
    return backend.attention.flash_attention2(q, k, v, mask=mask, causal=case.causal)


@pytest.mark.parametrize("causal", [False, True])
def test_chunks_grow_with_what_was_seen(backend, seconds, causal):
    case = Case("budget", batch=2, heads=4, kv_heads=2, queries=70, keys=90, dim=8, causal=causal)
    want = attend(backend, case)
    seconds["per operation"] = 0.25 / (8 * LIMIT)  # eight times as fast as was taken for granted
    with smaller(backend, work_limit=LIMIT, units=1) as dispatches:
        got = attend(backend, case)
        first = len(dispatches)
        assert np.allclose(got, want, rtol=0, atol=3e-6)
        again = attend(backend, case)
        after = len(dispatches) - first
        assert (again == got).all()
        kind, seen = next(iter(backend.opened.throughputs.items()))
        assert seen == pytest.approx(8 * LIMIT / 0.25) and causal in kind
        timed = seconds.pop("timed")
    with smaller(backend, work_limit=LIMIT, units=1, throughputs={"nothing like it": 1.0}) as dispatches:
        seconds["per operation"] = 0.25 / LIMIT
        attend(backend, case)
        slow = len(dispatches) - seconds["timed"]
    assert first == after + timed and 2 <= timed <= 3
    assert 5 * after < slow


def test_a_device_at_rest_or_partly_idle_is_looked_at_again(backend, monkeypatch):
    """Workgroups beyond the first take no longer as long as multiprocessors are idle, and the clock goes up."""
    units, slow, times = 16, [8.0, 4.0, 2.0, 1.0], []

    def tell(executable, number, inputs, live):
        step = executable.plan.steps[number]
        groups = math.prod(step.groups)
        # At its best the device does 64 times LIMIT in a quarter of a second.
        times.append(-(-groups // units) * units * step.work / groups / (4 * 64 * LIMIT) * slow[min(len(times), 3)])
        return times[-1]

    monkeypatch.setattr(submission_budget, "_time", tell)
    monkeypatch.setattr(submission_budget, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(submission_budget, "SPENT", math.inf)
    case = Case("rest", batch=2, heads=32, queries=120, keys=24, dim=8)
    want = attend(backend, case)
    with smaller(backend, work_limit=LIMIT, units=units) as dispatches:
        got = attend(backend, case)
        (seen,) = backend.opened.throughputs.values()
        taken = len(dispatches) - len(times)
    assert np.allclose(got, want, rtol=0, atol=3e-6)
    assert 4 <= len(times) <= 7 and max(times) < 4 * 0.25  # no submission took much longer than it should
    assert 0.5 * 4 * 64 * LIMIT < seen <= 4 * 64 * LIMIT * 1.001
    assert taken <= 4


def test_little_of_a_call_goes_into_timing(backend, monkeypatch):
    times = []

    def tell(executable, number, inputs, live):
        times.append(0.25 * 0.5 ** len(times))  # always faster, always for a long time
        return times[-1]

    monkeypatch.setattr(submission_budget, "_time", tell)
    with smaller(backend, work_limit=LIMIT, units=1):
        attend(backend, Case("little", batch=2, heads=4, queries=70, keys=90, dim=8))
    assert len(times) <= 4  # of two dozen


def test_gradients_too(backend, seconds):
    q, k, v, _ = make_arrays(Case("budget", batch=1, heads=2, queries=50, keys=60, dim=8))
    call = backend.attention
    o, lse = call.flash_attention2(q, k, v, return_lse=True)
    want = call.flash_attention2_backward(o, q, k, v, o, lse)
    seconds["per operation"] = 0.25 / (4 * LIMIT)
    with smaller(backend, work_limit=LIMIT):
        got = call.flash_attention2_backward(o, q, k, v, o, lse)
        assert len(backend.opened.throughputs) == 2  # dq; dk and dv
    for a, b in zip(got, want, strict=True):
        assert np.allclose(a, b, rtol=0, atol=3e-6)


def test_masked_calls_are_not_timed(backend, seconds):
    case = Case("masked", batch=2, heads=2, queries=70, keys=90, dim=8, mask="bool-full")
    with smaller(backend, work_limit=LIMIT) as dispatches:
        attend(backend, case)
        assert backend.opened.throughputs == {}
    assert len(dispatches) > 5


def test_a_dispatch_that_ends_at_once_says_nothing(backend, monkeypatch):
    monkeypatch.setattr(submission_budget, "_time", lambda executable, number, inputs, live: 1e-5)
    with smaller(backend, work_limit=LIMIT):
        attend(backend, Case("short", batch=2, heads=2, queries=70, keys=90, dim=8))
        assert backend.opened.throughputs == {}


def test_what_is_assumed(backend):
    def of(kind):
        return assumed_pace(dataclasses.replace(backend.device, kind=kind))

    assert of("cpu") == float("inf") and of("discrete") > of("integrated") == of("other") > 0
