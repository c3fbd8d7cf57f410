"""The plan: calls that exceed a device's limits are cut into dispatches, and the result is the same."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest

from cases import Case, make_arrays
from grilly.compute.attention import forward as flash


@contextlib.contextmanager
def smaller(backend, **limits):
    """The backend as if its device had smaller limits; counts the dispatches."""
    device = backend.device
    backend.plans.clear()
    backend.device = dataclasses.replace(device, limits={**device.limits, **limits})
    count = []
    original = backend.runtime.dispatch

    def counted(*arguments, **options):
        count.append(arguments)
        return original(*arguments, **options)

    backend.runtime.dispatch = counted
    try:
        yield count
    finally:
        del backend.runtime.dispatch
        backend.device = device
        backend.plans.clear()


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
    case = Case("grid", batch=5, heads=6, kv_heads=3, queries=20, keys=24, dim=8)
    want, want_lse = run(backend, case)
    with smaller(backend, groups=(65535, 2, 2)) as dispatches:
        got, got_lse = run(backend, case)
    assert len(dispatches) == 9
    assert all(d[3][1] <= 2 and d[3][2] <= 2 for d in dispatches)
    assert (got == want).all() and (got_lse == want_lse).all()


@pytest.mark.parametrize("causal", [False, True])
def test_work_of_one_submission_is_bounded(backend, monkeypatch, causal):
    case = Case("work", batch=2, heads=4, kv_heads=2, queries=70, keys=90, dim=8, causal=causal)
    want, _ = run(backend, case)
    monkeypatch.setattr(flash, "work_limit", lambda device: 2e4)
    with smaller(backend) as dispatches:
        got, _ = run(backend, case)
    assert len(dispatches) > 20
    assert np.allclose(got, want, rtol=0, atol=3e-6)


def test_keys_per_dispatch(backend):
    """Chunks of keys merge to the whole, also where a chunk has nothing for a row."""
    q, k, v, _ = make_arrays(Case("chunks", queries=33, keys=64, dim=32))
    mask = np.zeros((33, 64), bool)
    mask[:, 20:30] = True
    mask[5] = False
    want, want_lse = backend.attention.flash_attention2(q, k, v, mask=mask, return_lse=True)
    tensors = [backend.tensor(a) for a in (q, k, v)]
    device_mask = backend.tensor(mask).broadcast_to((1, 2, 33, 64))
    o, lse = backend.empty(q.shape), backend.empty(q.shape[:3])
    whole = flash.Piece(*tensors, o, lse, device_mask, 0, False)
    pieces = flash.split(backend, whole, max_keys=9)
    assert [p.merge for p in pieces] == [False] + [True] * 7
    from grilly.compute.device.dispatch import program_of
    from grilly.registry import Request

    facts = {"align": 4, "head_dim": 32, "value_dim": 32}
    choice = backend.registry.resolve(Request("attention", "float32", facts=facts))
    for p in pieces:
        constants = {"HEAD_DIM": 32, "VALUE_DIM": 32, "MASK": 1, "CAUSAL": 0, "LSE": 1, "MERGE": int(p.merge)}
        constants |= {name: 0 for name in ("FEATURES",) if name in choice.variant.constants}
        flash._record(backend, program_of(backend, choice, constants), p, 1, 32**-0.5, choice.tile["rows"])
    assert np.allclose(o.numpy(), want, rtol=0, atol=3e-6)
    assert np.allclose(lse.numpy(), want_lse, rtol=1e-6, atol=3e-6)
    assert (o.numpy()[:, :, 5] == 0).all() and np.isneginf(lse.numpy()[:, :, 5]).all()


def test_plans_are_reused(backend):
    q, k, v, _ = make_arrays(Case("plans", queries=8, keys=8, dim=8))
    tensors = [backend.tensor(a) for a in (q, k, v)]
    backend.plans.clear()
    first = backend.attention.flash_attention2(*tensors).numpy()
    assert len(backend.plans) == 1
    again = [backend.tensor(2 * a) for a in (q, k, v)]
    second = backend.attention.flash_attention2(*again).numpy()
    assert len(backend.plans) == 1
    assert np.abs(second - backend.attention.flash_attention2(2 * q, 2 * k, 2 * v)).max() == 0
    assert np.abs(first - second).max() > 0
