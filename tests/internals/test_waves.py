"""Attention whose last heads split their keys, against float64 NumPy; and plans that do so, as data."""

from __future__ import annotations

import numpy as np
import pytest

from cases import Case, assert_as_accurate, expected, lse_magnitude, make_arrays, output_magnitude
from grilly.compute.attention import schedule, split_kv
from grilly.compute.attention.rates import RATES
from test_split_kv import choice, left_out, of  # noqa: F401

CASES = [
    Case("heads", heads=5, queries=70, keys=301, dim=16),
    Case("samples", batch=3, heads=4, kv_heads=2, queries=37, keys=301, dim=16),
    Case("one-head-a-sample", batch=4, heads=1, queries=37, keys=301, dim=16),
    Case("one-key-head-a-sample", batch=3, heads=4, kv_heads=1, queries=37, keys=301, dim=16, value_dim=8),
]


@pytest.fixture(params=[1, 2])
def some(request, monkeypatch, choice):  # noqa: F811
    """So many key heads of the calls here split their keys, however few there are."""

    def last_wave(call, *_):
        return (
            split_kv.LastWave(choice, request.param, 3) if call.kernel is None and call.q.dtype == np.float16 else None
        )

    monkeypatch.setattr(split_kv, "last_wave", last_wave)
    return request.param


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64(backend, some, case):
    q, k, v, _ = make_arrays(case, np.float16)
    exact, exact_lse, plain, plain_lse = expected(case, q, k, v, None)
    tensors = [backend.tensor(a) for a in (q, k, v)]
    out, lse = backend.attention.flash_attention2(*tensors, return_lse=True)
    assert_as_accurate(out.numpy(), exact, plain, f"{case.name} output", output_magnitude(case, q, k, v, None))
    assert_as_accurate(lse.numpy(), exact_lse, plain_lse, f"{case.name} lse", lse_magnitude(case, q, k, plain_lse))
    np.testing.assert_array_equal(backend.attention.flash_attention2(*tensors).numpy(), out.numpy())


# -- as data: no device ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "rows", "heads", "splits"),
    [
        ((1, 24, 24, 4608, 4608, 128), 256, 2, 3),  # 3.3 waves of 132 workgroups
        ((1, 24, 24, 4608, 4608, 64), 128, 2, 3),
        ((4, 12, 12, 2300, 2300, 64), 128, 4, 3),  # 3.3 waves of 264
        ((2, 12, 4, 3000, 3000, 128), 256, 1, 4),
    ],
    ids=str,
)
def test_the_last_heads_fill_the_last_wave(shape, rows, heads, splits):
    batch, all_heads, kv_heads, queries = shape[:4]
    first, last, join = of(*shape)
    group, tiles = all_heads // kv_heads, -(-queries // rows)
    assert first.choice.tile["rows"] == last.choice.tile["rows"] == rows
    assert first.groups == (tiles, batch * all_heads - heads * group, 1)
    assert last.groups == (tiles * splits, heads * group, 1)
    assert join.push_constants()["splits"] == splits and join.push_constants()["heads"] == heads * group
    assert dict(last.constants)["PACKED_HEADS"] == 1


def test_where_it_does_not_pay():
    assert len(of(2, 16, 16, 4096, 4096, 64)) == 1, "the last wave is nearly full"
    assert len(of(1, 24, 24, 4608, 4608, 128, causal=True)) == 1, "tiles are unequal"
    assert len(of(1, 264, 264, 4000, 4000, 64)) == 1, "one wave of many"
    assert len(of(40, 20, 20, 300, 300, 64)) == 1, "few keys"
    assert len(of(1, 24, 24, 4608, 4608, 32)) == 1, "of narrower heads a multiprocessor holds more"
    (step,) = of(1, 24, 24, 4608, 4608, 128, dtype=np.float32)
    assert step.choice.variant.operation == "attention"


def test_waves():
    def of(tiles, heads):
        return schedule.last_wave(tiles, heads, 4096, 132, RATES["gpu"].tiles)

    assert of(132, 12) == (1.0, 0, 0)
    assert of(131, 1) == (1.0, 0, 0), "less than a wave"
    assert of(144, 1) == (2.0, 0, 0), "the only head"
    cost, heads, splits = of(144, 12)
    assert heads == 1 and 1 < cost < 1.3 and splits > 4
    # The first eleven heads end after one wave, in which the rest of the places is free as well.
    assert schedule._end(12, 0.25, 132, 0, 120) == 0.25 and schedule._end(24, 0.25, 132, 0, 120) == 0.5
    assert schedule._end(48, 0.5, 132, 0, 120) == 1.5
