"""The matrix-unit variants that offer more than masks, one by one, on the cells of `features`, against float64 NumPy.

Each axis alone, at a size of several tiles with ragged ends; what hides keys also with NaN behind it; and cells in
which many options meet. With GRILLY_FULL_FEATURES=1 every variant of every axis, and more of the cells (on a processor
each is a kernel to compile).
"""

from __future__ import annotations

import functools
import os

import numpy as np
import pytest

import features
from cases import assert_as_accurate
from features import AXES, CALLED, CELLS, Cell
from kernels import dispatched, pretend
from test_matrix import FAMILY, VARIANTS, dtype_of, pinned

#: With what is done at the ends of rows and samples, and nothing else.
ENDS = [v for v in VARIANTS if set(v.offers) == {"sinks", "lengths"}]
#: The same, and scores that are bent by a rule.
COMPUTED = [v for v in VARIANTS if set(v.offers) == {"sinks", "lengths", "soft-cap", "alibi"}]
#: Functions of users, and some of the options.
WITH_FUNCTIONS = [v for v in VARIANTS if "score-function" in v.offers]
EXTRAS = [v for v in VARIANTS if v.offers and v not in ENDS + COMPUTED + WITH_FUNCTIONS]
CLASSED = [v for v in EXTRAS if "tiles" in v.offers]
FULL = os.environ.get("GRILLY_FULL_FEATURES", "0") not in ("", "0")
#: What is read in different ways is tried in each.
CHOSEN = {"mask": ("bool-full", "bool-dead-rows", "add-inf-rows"), "window": ((19, 15), (25, -1)), "scale": (-0.3,)}
PLAIN = {name: variants[0] for name, variants in AXES.items()} | {"size": (131, 127)}


def _cell(chosen: dict) -> Cell:
    return Cell("float16", tuple(chosen.values()))


def alone() -> list[Cell]:
    """Each variant of each axis; where something hides keys, once more with NaN behind it."""
    found = []
    for axis, variants in AXES.items():
        if axis in ("size", "width", "hidden"):
            continue
        for variant in variants[1:] if FULL else CHOSEN.get(axis, variants[1:2]):
            chosen = PLAIN | {axis: variant}
            if axis == "prefix":
                chosen["causal"] = "on"
            found.append(_cell(chosen))
    for axis in ("mask", "causal", "window", "segments", "lengths", "blocks"):
        found.append(_cell(PLAIN | {axis: AXES[axis][1], "hidden": "nan"}))
    return found


def alone_of(options: set[str]) -> list[Cell]:
    """Those with these options, and with what every kernel has."""
    return [cell for cell in alone() if not set(cell.features) & (set(CALLED) - options)]


def at_ends() -> list[Cell]:
    """Sinks and lengths alone, and all of it together."""
    found = alone_of({"sinks", "lengths"})
    both = PLAIN | {"sinks": "heads", "lengths": "both", "hidden": "nan"}
    return [*found, _cell(both), _cell(both | {"causal": "on"}), _cell(both | {"mask": "bool-dead-rows"})]


def computed() -> list[Cell]:
    """A soft-cap and ALiBi as well, alone and all together."""
    found = alone_of({"sinks", "lengths", "softcap", "alibi"})
    all_ = PLAIN | {"sinks": "heads", "lengths": "both", "softcap": 1.5, "alibi": "heads", "hidden": "nan"}
    return [*found, _cell(all_), _cell(all_ | {"causal": "on", "size": (150, 267)}), _cell(all_ | {"scale": -0.3})]


def beside_functions() -> list[Cell]:
    """What kernels with functions offer, alone and all together; without a function."""
    found = alone_of({"window", "softcap", "bias", "sinks", "lengths"})
    all_ = PLAIN | {"window": (19, 15), "softcap": 1.5, "bias": "full", "sinks": "heads", "hidden": "nan"}
    return [*found, _cell(all_), _cell(all_ | {"lengths": "both", "mask": "bool-dead-rows", "causal": "on"})]


def together() -> list[Cell]:
    """Cells in which at least nine options are on."""
    options = [axis for axis in AXES if axis not in ("size", "width", "heads", "batch", "layout", "scale", "hidden")]
    chosen = [cell for cell in CELLS if cell.dtype == "float16"]
    chosen = [cell for cell in chosen if sum(cell[axis] is not None for axis in options) >= 9]
    return chosen[:: max(len(chosen) // (24 if FULL else 6), 1)]


@functools.cache
def known(cell: Cell):
    call = features.make(cell)
    return call, features.expect(call)


def check(backend, variant, cell: Cell):
    dtype_of(variant)
    view, dim = pinned(backend, variant)
    width = (dim, max(8, dim // 2) if cell["width"] == (16, 64) else dim)
    cell = Cell(variant.dtype, tuple((dict(zip(AXES, cell.variants, strict=True)) | {"width": width}).values()))
    judge_cell(view, cell, FAMILY)


def judge_cell(view, cell: Cell, family: str, change=dict):
    """Hold the view's result of a cell against float64. ``change`` makes of its options those of the call."""
    call, want = known(cell)

    def upload(array):
        if cell["layout"] is None:
            return view.tensor(array)
        return view.tensor(np.ascontiguousarray(array.transpose(0, 2, 1, 3))).transpose(0, 2, 1, 3)

    tensors = [upload(a) for a in (call.q, call.k, call.v)]
    out, lse = view.attention.flash_attention2(*tensors, return_lse=True, kernel=family, **change(call.options))
    assert_as_accurate(out.numpy(), want.exact, want.rounded, f"{cell} output", want.magnitude)
    magnitude = features.lse_magnitude(want, call.q.dtype, True)
    assert_as_accurate(lse.numpy(), want.exact_lse, want.plain_lse, f"{cell} lse", magnitude)


@pytest.mark.parametrize("cell", alone(), ids=str)
@pytest.mark.parametrize("variant", EXTRAS, ids=lambda v: v.label + "." + v.dtype)
def test_alone(backend, variant, cell):
    check(backend, variant, cell)


@pytest.mark.parametrize("cell", at_ends(), ids=str)
@pytest.mark.parametrize("variant", ENDS, ids=lambda v: v.label + "." + v.dtype)
def test_at_ends(backend, variant, cell):
    check(backend, variant, cell)


@pytest.mark.parametrize("cell", computed(), ids=str)
@pytest.mark.parametrize("variant", COMPUTED, ids=lambda v: v.label + "." + v.dtype)
def test_computed(backend, variant, cell):
    causal = variant.limits.get("causal", (0, 1))
    if not causal[0] <= (cell["causal"] == "on") <= causal[1]:
        pytest.skip(f"{variant.label} is for causal {causal[0]}")
    check(backend, variant, cell)


@pytest.mark.parametrize("cell", beside_functions(), ids=str)
@pytest.mark.parametrize("variant", WITH_FUNCTIONS, ids=lambda v: v.label + "." + v.dtype)
def test_beside_functions(backend, variant, cell):
    check(backend, variant, cell)


@pytest.mark.parametrize("cell", together(), ids=str)
@pytest.mark.parametrize("variant", EXTRAS, ids=lambda v: v.label + "." + v.dtype)
def test_together(backend, variant, cell):
    check(backend, variant, cell)


@pytest.mark.parametrize("options", [
    {"mask": "bool-keys", "blocks": (64, 64)}, {"segments": "documents", "causal": "on"}, {"mask": "add-inf-rows"},
    {"blocks": (16, 16), "window": (25, -1), "lengths": "both"},
    # What is found 32 keys at a time, and what is not beside it.
    {"mask": "bool-full"}, {"mask": "bool-dead-rows", "causal": "on"}, {"mask": "bool-full", "segments": "pair"},
    {"mask": "bool-full", "blocks": (64, 32), "heads": (6, 2), "batch": 2}, {"mask": "bool-full", "blocks": (5, 7)},
    {"blocks": (64, 32), "alibi": "heads"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("variant", CLASSED, ids=lambda v: v.label + "." + v.dtype)
def test_classes_of_tiles(backend, variant, options, monkeypatch):
    """With hidden and clear tiles made out beforehand, as large calls have it."""
    pretend(monkeypatch, backend, class_work=0.0, class_read=0.0)
    seen = dispatched(monkeypatch)
    check(backend, variant, _cell(PLAIN | options))
    assert "attention-tiles" in seen


@pytest.mark.parametrize("causal", [None, "on"], ids=["full", "causal"])
@pytest.mark.parametrize("variant", WITH_FUNCTIONS, ids=lambda v: v.label + "." + v.dtype)
def test_classes_of_tiles_of_a_mask(backend, variant, causal, monkeypatch):
    pretend(monkeypatch, backend, class_work=0.0, class_read=0.0)
    seen = dispatched(monkeypatch)
    check(backend, variant, _cell(PLAIN | {"mask": "bool-dead-rows", "causal": causal}))
    assert "attention-tiles" in seen


#: A tile of rows is 128 at most, so the first two and the last one are of one kind each.
ROWS_APART = {"all": (300, 0), "none": (0, 0), "first": (128, 0), "last": (0, 90)}


def judge_rows_apart(view, dim, dtype, where, causal, family, monkeypatch):
    """Hold a call with an additive mask, whose rows two dispatches share, against float64."""
    rng = np.random.default_rng(5)
    queries, keys = 300, 260
    clean = tuple(rng.standard_normal((2, 3, n, dim)).astype(dtype) for n in (queries, keys, keys))
    first, last = ROWS_APART[where]
    # Elsewhere a third of the keys is hidden and the rest clear, in whole tiles; the last key nobody sees.
    mask = np.where(np.arange(keys) < 96, np.finfo(np.float32).min, np.float32(0)) * np.ones((queries, 1), np.float32)
    mixed = (np.arange(queries) < first) | (np.arange(queries) >= queries - last)
    mask[mixed] = rng.standard_normal((int(mixed.sum()), keys)).astype(np.float32)
    mask[mixed, 7::9] = np.finfo(np.float32).min
    mask[mixed & (np.arange(queries) % 50 == 11)] = mask[:, -1] = -np.inf
    q, k, v = (a.copy() for a in clean)
    k[:, :, -1] = v[:, :, -1] = np.nan
    call = features.Call(q, k, v, clean, {"mask": mask, "causal": causal, "scale": None})
    want = features.expect(call)
    seen = dispatched(monkeypatch)
    out, lse = view.attention.flash_attention2(
        *map(view.tensor, (q, k, v)), return_lse=True, kernel=family, **call.options
    )
    assert seen == ["attention-tiles", family, family]
    assert_as_accurate(out.numpy(), want.exact, want.rounded, "output", want.magnitude)
    assert_as_accurate(lse.numpy(), want.exact_lse, want.plain_lse, "lse", features.lse_magnitude(want, dtype, True))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("where", ROWS_APART, ids=str)
@pytest.mark.parametrize("variant", [v for v in CLASSED if "mixed-apart" in v.offers],
                         ids=lambda v: v.label + "." + v.dtype)  # fmt: skip
def test_rows_that_a_mask_mixes(backend, variant, where, causal, monkeypatch):
    """Rows of which an additive mask mixes nearly all tiles are of a dispatch of their own, which knows no classes."""
    dtype = dtype_of(variant)
    pretend(monkeypatch, backend, class_work=0.0, class_read=0.0)
    view, dim = pinned(backend, variant)
    judge_rows_apart(view, dim, dtype, where, causal, FAMILY, monkeypatch)
