"""Dispatches are as large as the device's pace allows, once that was seen."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cases import Case, make_arrays
from grilly.compute.device import pace
from grilly.runtime.interface import assumed_pace
from test_plan import smaller

LIMIT = 2e4


@pytest.fixture
def seconds(monkeypatch):
    """What a dispatch of each number of operations takes, told by the test."""
    told = {}

    def tell(ready, number, inputs, live):
        runtime = ready.device.runtime
        runtime.synchronize()
        ready.run(inputs, only=slice(number, number + 1))
        runtime.synchronize()
        return told["per operation"] * ready.plan.steps[number].work

    monkeypatch.setattr(pace, "_time", tell)
    monkeypatch.setattr(pace, "LEAST_SECONDS", 0.0)
    return told


def attend(backend, case):
    q, k, v, mask = make_arrays(case)
    return backend.attention.flash_attention2(q, k, v, mask=mask, causal=case.causal)


@pytest.mark.parametrize("causal", [False, True])
def test_pieces_grow_with_what_was_seen(backend, seconds, causal):
    case = Case("pace", batch=2, heads=4, kv_heads=2, queries=70, keys=90, dim=8, causal=causal)
    want = attend(backend, case)
    seconds["per operation"] = 0.25 / (8 * LIMIT)  # eight times as fast as was taken for granted
    with smaller(backend, work_limit=LIMIT) as dispatches:
        got = attend(backend, case)
        first = len(dispatches)
        assert np.allclose(got, want, rtol=0, atol=3e-6)
        again = attend(backend, case)
        after = len(dispatches) - first
        assert (again == got).all()
        kind, seen = next(iter(backend.opened.facts.paces.items()))
        assert seen == pytest.approx(8 * LIMIT / 0.25) and causal in kind
    with smaller(backend, work_limit=LIMIT, paces={"nothing like it": 1.0}) as dispatches:
        seconds["per operation"] = 0.25 / LIMIT
        attend(backend, case)
        slow = len(dispatches) - 2
    assert first == after + 2  # two were timed
    assert 5 * after < slow


def test_gradients_too(backend, seconds):
    q, k, v, _ = make_arrays(Case("pace", batch=1, heads=2, queries=50, keys=60, dim=8))
    call = backend.attention
    o, lse = call.flash_attention2(q, k, v, return_lse=True)
    want = call.flash_attention2_backward(o, q, k, v, o, lse)
    seconds["per operation"] = 0.25 / (4 * LIMIT)
    with smaller(backend, work_limit=LIMIT):
        got = call.flash_attention2_backward(o, q, k, v, o, lse)
        assert len(backend.opened.facts.paces) == 2  # dq; dk and dv
    for a, b in zip(got, want, strict=True):
        assert np.allclose(a, b, rtol=0, atol=3e-6)


def test_masked_calls_are_not_timed(backend, seconds):
    case = Case("masked", batch=2, heads=2, queries=70, keys=90, dim=8, mask="bool-full")
    with smaller(backend, work_limit=LIMIT) as dispatches:
        attend(backend, case)
        assert backend.opened.facts.paces == {}
    assert len(dispatches) > 5


def test_a_dispatch_that_ends_at_once_says_nothing(backend, monkeypatch):
    monkeypatch.setattr(pace, "_time", lambda ready, number, inputs, live: 1e-5)
    with smaller(backend, work_limit=LIMIT):
        attend(backend, Case("short", batch=2, heads=2, queries=70, keys=90, dim=8))
        assert backend.opened.facts.paces == {}


def test_what_is_assumed(backend):
    def of(kind):
        return assumed_pace(dataclasses.replace(backend.device, kind=kind))

    assert of("cpu") == float("inf") and of("discrete") > of("integrated") == of("other") > 0
