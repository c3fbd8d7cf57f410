"""Attention whose keys are split among workgroups, against float64 NumPy; and plans that do so, as data."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import grilly
import leftout
from cases import Case, assert_as_accurate, expected, lse_magnitude, make_arrays, output_magnitude
from grilly.compute.attention import schedule, split_kv
from grilly.compute.attention.call import AttentionCall
from grilly.compute.attention.options import Options, prepare
from grilly.compute.attention.plan import planned
from grilly.compute.attention.rates import RATES
from grilly.compute.device import trial
from grilly.compute.device.device import DeviceFacts
from grilly.registry import Registry, Request
from kernels import pretend
from test_plan import INFO, layout

FAMILY = split_kv.FAMILY
FACTS = {"align": 8, "head_dim": 16, "value_dim": 16}


def left_out(registry, item):
    """All but the few that need no such kernel."""
    if "choice" in item.fixturenames:
        return leftout.unserved(registry, Request("attention-split-kv", "float16", problem=FACTS, prefer=FAMILY))
    return None


@pytest.fixture
def choice(backend):
    """The variant for narrow heads; skips, saying what the device lacks, where there is none."""
    try:
        return backend.registry.resolve(Request("attention-split-kv", "float16", problem=FACTS, prefer=FAMILY))
    except grilly.UnsupportedError as error:
        pytest.skip(str(error).splitlines()[0])


CASES = [
    Case("plain", heads=4, kv_heads=2, queries=37, keys=301, dim=16),
    Case("causal", batch=2, heads=4, kv_heads=2, queries=37, keys=301, dim=16, causal=True),
    Case("chunk", heads=2, kv_heads=1, queries=128, keys=1024, dim=16, causal=True),
    Case("square", heads=2, queries=131, keys=131, dim=16, causal=True),
    Case("rows-that-see-nothing", heads=2, queries=77, keys=41, dim=16, causal=True),
    Case("fewer-keys-than-shares", heads=2, queries=5, keys=3, dim=16),
    Case("one-key", heads=2, queries=5, keys=1, dim=16),
    Case("narrow", heads=3, kv_heads=1, queries=70, keys=211, dim=8, value_dim=16, causal=True),
    Case("one-token-of-many-heads", batch=2, heads=71, kv_heads=1, queries=1, keys=301, dim=16),
    Case("tokens-at-once", batch=2, heads=10, kv_heads=2, queries=5, keys=301, dim=16, causal=True),
    Case("more-tokens-than-keys", heads=4, kv_heads=1, queries=9, keys=6, dim=16, causal=True),
    Case("scale-negative", heads=2, queries=33, keys=200, dim=16, scale=-0.4),
]


def run(backend, case, q, k, v, **options):
    tensors = [backend.tensor(a) for a in (q, k, v)]
    return backend.attention.flash_attention2(*tensors, scale=case.scale, causal=case.causal, kernel=FAMILY, **options)


@pytest.mark.parametrize("units", [1, 40])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64(backend, choice, monkeypatch, case, units):
    """In two splits, and in as many as a large device would have."""
    pretend(monkeypatch, backend, units=units)
    for name, rates in RATES.items():
        tiles = rates.tiles._replace(split=rates.tiles.split._replace(least_keys=16))
        monkeypatch.setitem(RATES, name, rates._replace(tiles=tiles))
    q, k, v, _ = make_arrays(case, np.float16)
    exact, exact_lse, plain, plain_lse = expected(case, q, k, v, None)
    out, lse = run(backend, case, q, k, v, return_lse=True)
    assert_as_accurate(out.numpy(), exact, plain, f"{case.name} output", output_magnitude(case, q, k, v, None))
    assert_as_accurate(lse.numpy(), exact_lse, plain_lse, f"{case.name} lse", lse_magnitude(case, q, k, plain_lse))


def test_heads_inside(backend, choice):
    """The result's axes lie as q's do."""
    case = Case("layout", heads=4, kv_heads=2, queries=37, keys=301, dim=16, causal=True)
    q, k, v, _ = make_arrays(case, np.float16)
    want = run(backend, case, q, k, v).numpy()
    laid = [backend.tensor(np.ascontiguousarray(a.swapaxes(1, 2))).transpose((0, 2, 1, 3)) for a in (q, k, v)]
    got = backend.attention.flash_attention2(*laid, causal=True, kernel=FAMILY)
    np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_a_row_does_not_see_does_not_reach_it(backend, choice, poison):
    case = Case("poison", heads=4, kv_heads=2, queries=37, keys=301, dim=16, causal=True)
    q, k, v, _ = make_arrays(case, np.float16)
    want = run(backend, case, q, k, v).numpy()
    k[:, :, 290:], v[:, :, 290:] = poison, poison
    got = run(backend, case, q, k, v).numpy()
    np.testing.assert_allclose(got[:, :, :26], want[:, :, :26], rtol=0, atol=2e-3)
    assert not np.isfinite(got[:, :, 26:]).any()


def test_repeats_are_equal_to_the_bit(backend, choice):
    case = Case("repeat", heads=4, kv_heads=2, queries=70, keys=500, dim=16, causal=True)
    q, k, v, _ = make_arrays(case, np.float16)
    first = run(backend, case, q, k, v).numpy()
    for _ in range(5):
        np.testing.assert_array_equal(run(backend, case, q, k, v).numpy(), first)


@pytest.mark.parametrize("left", [None, -1])
@pytest.mark.parametrize("right", [0, 1, 40, 400])
def test_windows_that_end_behind_the_row(backend, choice, left, right):
    """Without a left bound a window is no option of the kernels: only causality's place is another."""
    case = Case("window", heads=4, kv_heads=2, queries=37, keys=301, dim=16)
    q, k, v, _ = make_arrays(case, np.float16)
    seen = np.arange(301) <= np.arange(37)[:, None] + 301 - 37 + right
    want, lse = backend.attention.flash_attention2(q, k, v, mask=seen, return_lse=True)
    got, got_lse = run(backend, case, q, k, v, window_size=(left, right), return_lse=True)
    np.testing.assert_allclose(got.numpy().astype(np.float32), want.astype(np.float32), rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(got_lse.numpy(), lse, rtol=0, atol=2e-3)


def test_masks_are_refused_by_name(backend, choice):
    q, k, v, mask = make_arrays(Case("mask", heads=2, queries=9, keys=100, dim=16, mask="bool-keys"), np.float16)
    with pytest.raises(grilly.UnsupportedError, match="masks and options are not offered"):
        backend.attention.flash_attention2(q, k, v, mask=mask, kernel=FAMILY)


# -- as data: no device ----------------------------------------------------------------------------------------------

#: As an NVIDIA GPU of 132 multiprocessors reports itself.
LARGE = dataclasses.replace(
    INFO, vendor="nvidia", vendor_id=0x10DE, architecture="nvidia-hopper", properties={"sm_count": 132},
    features=INFO.features | {"subgroup-vote", "subgroup-shuffle", "float16-arithmetic", "cooperative-matrix",
                              "matrix-float16-16x16x16", "matrix-bfloat16-16x16x16", "nvidia-compiler"},
)  # fmt: skip


def of(batch, heads, kv_heads, queries, keys, dim, causal=False, dtype=np.float16, window=None, registry=None, **facts):
    """The plan of a call on such a GPU."""
    q, k = layout(batch, heads, queries, dim, dtype=dtype), layout(batch, kv_heads, keys, dim, dtype=dtype)
    known = dataclasses.replace(DeviceFacts.of(LARGE, "none", LARGE.features), **{"storage_range": 1 << 31} | facts)
    options = {}
    if window is not None:
        checked = prepare("test", Options(window_size=window), (batch, heads, queries, keys), causal)
        causal, options = checked.causal, {"options": checked.summary()}
    terms = (None, None, causal, dim**-0.5, False, None, False, keys - queries)
    call = AttentionCall(q, k, k, *terms, **options)
    return planned(call, known, registry or Registry(LARGE, LARGE.features)).plan.steps


def operations(*args, **options):
    return [step.choice.variant.operation for step in of(*args, **options)]


def test_a_chunk_of_a_prefill_is_shared_out():
    """Where tiles of rows are fewer than the device takes at once, and keys are many."""
    for queries in (64, 128, 256, 512):
        steps = of(1, 32, 8, queries, 8192, 128, causal=True)
        assert [s.choice.variant.operation for s in steps] == ["attention-split-kv", "attention-combine"]
        heads, rows = (32, queries) if queries >= 128 else (8, 4 * queries)
        count = steps[0].groups[0] // -(-rows // 128)
        assert 0.7 * 132 <= heads * steps[0].groups[0] <= 4 * 132
        assert steps[1].push_constants()["splits"] == count
    assert operations(1, 32, 8, 2048, 8192, 128, causal=True) == ["attention"], "tiles fill the device"
    assert operations(1, 8, 8, 1024, 1024, 128, causal=True) == ["attention"], "as many queries as keys"
    assert operations(1, 32, 8, 128, 700, 128) == ["attention"], "few keys"
    assert operations(1, 32, 8, 512, 8192, 128, dtype=np.float32)[0] == "attention"


@pytest.mark.parametrize("left", [None, -1])
@pytest.mark.parametrize("queries", [16, 128, 512])
def test_the_last_row_of_a_window_sees_beyond_its_own_place(queries, left):
    steps = of(1, 32, 8, queries, 8192, 128, window=(left, 64))
    assert steps[0].choice.variant.operation == "attention-split-kv"
    assert steps[0].push_constants()["causal_shift"] == 8192 - queries + 64
    assert of(1, 32, 8, queries, 8192, 128, window=(left, 0))[0].push_constants()["causal_shift"] == 8192 - queries


def test_what_shares_hand_on_is_workspace():
    """Fewer splits where there is less of it, and where there is none tiles that see all keys."""
    rows = 32 * 128
    for most in (4, 2, 1):
        steps = of(1, 32, 8, 128, 8192, 128, causal=True, workspace=most * split_kv.results_bytes(rows, 128))
        assert [s.choice.variant.operation for s in steps][1:] == ["attention-combine"] * (most > 1)
        assert most == 1 or steps[1].push_constants()["splits"] <= most
    assert len(of(1, 32, 8, 128, 8192, 128, causal=True, workspace=0)) == 1
    assert len(of(1, 24, 24, 4608, 4608, 128)) == 3
    assert len(of(1, 24, 24, 4608, 4608, 128, workspace=1 << 20)) == 1, "a shared last round hands on 17 MB"


def test_shares_that_no_array_holds_are_left():
    for largest in (1 << 31, 1 << 25, 1 << 20):
        steps = of(1, 32, 8, 128, 8192, 128, causal=True, largest=largest)
        assert len(steps) == 1 + (largest > 1 << 20)
        assert len(steps) == 1 or 4 * steps[1].push_constants()["splits"] * 32 * 128 * 128 <= largest


@pytest.mark.parametrize("shape", [(1, 24, 24, 4608, 4608, 128), (4, 12, 12, 2300, 2300, 64)], ids=str)
def test_what_such_a_call_would_run_first_is_its_tiles(shape):
    """Not the splits that it was asked about first, and which do its end."""
    registry = trial._Pin(Registry(LARGE, LARGE.features))
    registry.asked = {}
    steps = of(*shape, registry=registry)
    found = trial._first(registry.asked, type("Plan", (), {"steps": steps}))
    assert found.operation == "attention" and len(steps) == 3
    assert registry.registry.resolve(found).variant is steps[0].choice.variant


def test_a_view_pinned_to_decoding_has_no_shares():
    plain = Registry(LARGE, LARGE.features)
    facts = {"align": 8, "head_dim": 128, "value_dim": 128, "masked": 1, "rows": 32, "extras": 0, "options": 0}
    registry = trial._Pin(plain)
    registry.pinned = plain.resolve(Request("attention-decode", "float16", problem=facts))
    assert of(8, 32, 8, 8, 8192, 128, causal=True)[0].choice.variant.operation == "attention-split-kv"
    (step,) = of(8, 32, 8, 8, 8192, 128, causal=True, registry=registry)
    assert step.choice is registry.pinned


def test_few_queries_of_all_heads_of_a_key_head_are_one_workgroups():
    """A pass over the keys for up to 16 rows, or more of few keys, whose splits fill the device."""
    for batch, heads, queries, rows in ((8, 32, 4, 16), (8, 16, 8, 16), (1, 32, 5, 20), (1, 40, 5, 25)):
        (step,) = of(batch, heads, 8, queries, 8192, 128, causal=True)
        assert step.choice.variant.label.startswith("flash-decode-matrix.quads-bands")
        assert dict(step.constants)["ROWS"] == rows and dict(step.constants)["CAUSAL"] == 1
        assert step.groups[1:] == (8, batch) and 0.8 * 132 <= step.groups[0] * 8 * batch <= 4 * 132
    (step,) = of(16, 32, 8, 1, 8192, 128)
    assert step.choice.variant.label == "flash-decode-matrix.quads.d128"
    assert operations(64, 32, 8, 128, 8192, 128, causal=True) == ["attention"], "tiles fill the device"
    assert operations(2, 24, 8, 3000, 3000, 128, causal=True) == ["attention"], "nor are those few"


@pytest.mark.parametrize(
    ("shape", "label", "tiles"),
    [
        ((8, 32, 8, 5, 8192, 128), "matrix-few.d128", 1),
        ((64, 32, 1, 1, 8192, 128), "matrix-few.d128", 1),
        ((1, 32, 8, 16, 8192, 128), "matrix-short.d128", 1),
        ((8, 64, 8, 8, 4096, 64), "matrix-short.d64", 1),
        ((8, 71, 1, 1, 8192, 64), "matrix.d64", 1),
        ((1, 32, 8, 40, 8192, 128), "matrix.d128", 2),
        ((64, 32, 8, 32, 8192, 128), "matrix.d128", 1),
    ],
    ids=str,
)
def test_rows_of_all_heads_of_a_key_head_are_in_one_tile(shape, label, tiles):
    """Where they are many: keys and values are read once for all of them, in splits that fill the device."""
    batch, heads, kv_heads, queries = shape[:4]
    tile, combine = of(*shape, causal=queries > 1)
    assert tile.choice.variant.label == f"{FAMILY}.{label}"
    assert dict(tile.constants)["PACKED_HEADS"] == heads // kv_heads and tile.groups[1:] == (kv_heads, batch)
    count = combine.push_constants()["splits"]
    assert tile.groups[0] == tiles * count and tile.push_constants()["queries"] == queries
    assert tile.groups[0] * kv_heads * batch >= 0.8 * 132
    assert (
        combine.push_constants()["packed_heads"] == heads // kv_heads and combine.push_constants()["heads"] == kv_heads
    )
    assert dict(combine.constants)["TEAMS"] == (split_kv.TEAMS if count > split_kv.TEAMS else 1)


def test_heads_are_put_together_where_that_makes_fewer_tiles():
    wanted = {(5, 4): 4, (1, 71): 71, (5, 1): 1, (128, 4): 1, (300, 4): 4}
    assert {given: schedule.packed_heads(*given, RATES["gpu"].tiles) for given in wanted} == wanted


def test_counts_of_shares():
    facts = dataclasses.replace(DeviceFacts.of(LARGE, "none", LARGE.features), units=100)
    wanted = {(50, 8192): 2, (100, 8192): 1, (100, 2048): 0, (10, 8192): 10, (1000, 8192): 0}
    assert {given: schedule.tile_splits(facts, {"resident": 1}, *given, 999) for given in wanted} == wanted
    assert schedule.tile_splits(facts, {"resident": 2}, 100, 8192, 999) == 2
    assert schedule.bands(type("Choice", (), {"tile": {"fragment": 16}}), 20) == 2
