"""The cells of `features` are what they claim, and both references agree on each."""

from __future__ import annotations

import numpy as np
import pytest

import features
from cases import assert_as_accurate
from features import AXES, CALLED, CELLS, Cell
from grilly import reference

# -- the cells --------------------------------------------------------------------------------------------------------


def test_the_cells_are_the_same_every_time():
    assert features.cells() == CELLS
    assert len({str(cell) for cell in CELLS}) == len(CELLS) <= 270
    cell = next(cell for cell in CELLS if len(cell.features) > 10)
    for a, b in zip(features.make(cell).clean, features.make(cell).clean, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_two_variants_meet(dtype):
    """Counted from the axes alone: the product of the numbers of variants, for each two axes."""
    names = list(AXES)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            met = {(cell[a], cell[b]) for cell in CELLS if cell.dtype == dtype}
            assert len(met) == len(AXES[a]) * len(AXES[b]), f"{a} and {b}"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_variant_is_alone_once(dtype):
    alone = [cell for cell in CELLS if cell.dtype == dtype and len(cell.features) <= 1]
    assert len(alone) == 1 + sum(len(variants) - 1 for variants in AXES.values())


def test_every_option_occurs():
    given = set().union(*(features.make(cell).options for cell in CELLS if cell.dtype == "float32"))
    wanted = set(reference.Options.__dataclass_fields__) | {"mask", "causal", "scale"}
    assert given == wanted


@pytest.mark.parametrize("axis", [*CALLED, "mask", "causal", "scale"])
def test_an_option_changes_the_result(axis):
    """Each variant alone, or with ``causal`` for a prefix: else a kernel that ignores it would pass."""
    for variant in AXES[axis][1:]:
        chosen = {name: variants[0] for name, variants in AXES.items()} | {axis: variant}
        if axis == "prefix":
            chosen["causal"] = "on"
        call = features.make(Cell("float32", tuple(chosen.values())))
        names = {
            "mask": ["mask"], "bias": ["attn_bias"], "alibi": ["alibi_slopes"],
            "t5": ["t5_table"], "window": ["window_size"], "prefix": ["prefix_len"], "segments": ["segment_ids"],
            "lengths": ["seqlens_q", "seqlens_k"], "blocks": ["block_map"], "dropout": ["dropout_p"],
        }.get(axis, [axis])  # fmt: skip
        rest = {name: value for name, value in call.options.items() if name not in names}
        with_it = reference.naive_attention(*call.clean, **call.options)[0]
        assert np.abs(with_it - reference.naive_attention(*call.clean, **rest)[0]).max() > 0.01, variant


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.dtype == "float32"], ids=str)
def test_the_two_references_agree(cell):
    """Also on arrays that hold NaN and infinities where nothing looks."""
    call = features.make(cell)
    want = features.expect(call)
    assert np.isfinite(want.exact).all() and (want.exact != 0).any()
    arrays = (call.q, call.k, call.v)
    got, lse = reference.flash_attention(
        *arrays, dtype=np.float64, return_lse=True, block_q=29, block_k=31, **call.options
    )
    np.testing.assert_allclose(got, want.exact, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(lse, want.exact_lse, rtol=1e-9, atol=1e-11)
    assert_as_accurate(want.plain, want.exact, want.rounded, "float32")
