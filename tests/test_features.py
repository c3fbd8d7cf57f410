"""Cells of `features` with every kernel strategy, against float64 NumPy; and that the cells are what they claim.

With GRILLY_FULL_FEATURES=1 every cell is run with every strategy and both runtimes: hours on a processor, as the time
goes into compiling a kernel for each combination of features. Otherwise the short run, `features.SHORT`, is:

- each variant of each axis (options, masks, sizes, heads, layout; the width aside) alone, on each strategy, at one
  width and element type a strategy; once more with bfloat16 on what the registry chooses, and on that with kompute;
- combined cells in which every two variants of two axes (the width aside) meet: all on attention-naive; all on
  flash-attention2 and flash-attention3 together, whose kernels are one source; all on flash-attention-texels and
  flash-attention-llvmpipe together, in their four forms. They are chosen so that they need 14 kernels.

A cell that a strategy does not take is skipped as refused, and the refusal must say which feature is missing. What the
registry chooses by itself may refuse nothing.
"""

from __future__ import annotations

import functools
import os

import numpy as np
import pytest

import features
import grilly
from cases import BFLOAT16, assert_as_accurate
from conftest import open_or_skip
from features import AXES, CALLED, CELLS, GROUPS, KINDS, SHORT, Cell
from grilly import reference
from kernels import option_words, pretend, request_of, view_of

FULL = os.environ.get("GRILLY_FULL_FEATURES", "0") not in ("", "0")
PROCESSORS = ["flash-attention-llvmpipe", "flash-attention-texels"]
STRATEGIES = [None, "attention-naive", "flash-attention2", "flash-attention3", *PROCESSORS]
#: Why a kernel that is asked for by name may refuse, besides an option that it does not offer.
LACKS = (
    "the device lacks",
    "it needs",
    "it is for",
    "are not multiples of",
    "head_dim is",
    "value_dim is",
    "it failed",
)

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


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group[0])
def test_every_two_variants_meet_in_the_short_run(group):
    """On the strategies of a group together; and no cell of theirs has a variant that its axis does not list."""
    cells = [cell for part, cell in SHORT if part.strategy in group]
    names = [axis for axis in AXES if axis != "width"]
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            met = {(cell[a], cell[b]) for cell in cells}
            assert met == {(x, y) for x in AXES[a] for y in AXES[b]}, f"{a} and {b}"


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_every_variant_is_alone_on_each_strategy_in_the_short_run(strategy):
    names = [axis for axis in AXES if axis != "width"]
    wanted = {(axis, variant) for axis in names for variant in AXES[axis][1:]}
    for runtime in ("vulkan", "kompute") if strategy is None else ("vulkan",):
        cells = [cell for part, cell in SHORT if (part.strategy, part.runtime) == (strategy, runtime)]
        changed = [[axis for axis in cell.features if axis != "width"] for cell in cells]
        alone = {(axes[0], cell[axes[0]]) for axes, cell in zip(changed, cells, strict=True) if len(axes) == 1}
        assert alone == wanted
        assert [] in changed


def test_the_short_run_needs_few_kernels():
    """Nor does a kernel's kind leave out a variant, or have it twice."""
    for axis, kinds in KINDS.items():
        assert sorted(map(str, sum(kinds.values(), ()))) == sorted(map(str, AXES[axis]))
    assert len(features.short_combined()) <= 15
    alone = sum(len(variants) - 1 for axis, variants in AXES.items() if axis != "width")
    combined = len(SHORT) - (alone + 1) * sum(part.alone for part in features.PARTS)
    assert combined <= 4.2 * (alone + 1), "pairs grow faster than variants: a variant more costs few calls"


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


# -- the kernels ------------------------------------------------------------------------------------------------------


@functools.cache
def known(cell: Cell):
    """A cell's call and what it should give; shared by the strategies."""
    call = features.make(cell)
    return call, features.expect(call)


def upload(backend, cell: Cell, array):
    """A tensor, with the heads inside the rows where the cell says so."""
    if cell["layout"] is None:
        return backend.tensor(array)
    return backend.tensor(np.ascontiguousarray(array.transpose(0, 2, 1, 3))).transpose(0, 2, 1, 3)


def assert_names_what_is_missing(cell: Cell, strategy: str, message: str) -> None:
    """Each kernel of the family is listed with an option of the cell's that it lacks, or something of the device's."""
    own = [option_words(CALLED[axis]) for axis in cell.features if axis in CALLED]
    reasons = [line for line in message.splitlines() if strategy in line and line != message.splitlines()[0]]
    assert reasons, f"no kernel of {strategy} is named: {message}"
    for line in reasons:
        assert any(words in line for words in (*own, *LACKS)), f"names no missing feature: {line}"


def on_matrix_units(backend, attend) -> bool:
    """Whether a call is given to a kernel that rounds its weights to 16 bits."""
    view = view_of(backend)
    request = request_of(view, lambda: attend(view))
    return request is not None and backend.registry.resolve(request).variant.unproven


def cells_of(runtime: str):
    """(strategy, cell) of each run with a runtime."""
    if FULL:
        chosen = [(strategy, cell) for strategy in STRATEGIES for cell in CELLS]
    else:
        chosen = [(part.strategy, cell) for part, cell in SHORT if part.runtime == runtime]
    return [pytest.param(strategy, cell, id=f"{strategy or 'any'}-{cell}") for strategy, cell in chosen]


@pytest.mark.parametrize("strategy, cell", cells_of("vulkan"))
def test_cell(vulkan_backend, strategy, cell):
    check(vulkan_backend, strategy, cell)


@pytest.fixture(scope="module")
def kompute_backend():
    with open_or_skip("kompute", lambda: grilly.Compute(runtime="kompute")) as opened:
        yield opened


@pytest.mark.parametrize("strategy, cell", cells_of("kompute"))
def test_cell_with_kompute(kompute_backend, strategy, cell):
    check(kompute_backend, strategy, cell)


def check(backend, strategy, cell):
    """A cell's call against the reference; skips where the strategy refuses it and says why."""
    if cell.dtype == "bfloat16" and BFLOAT16 is None:
        pytest.skip("ml_dtypes is not installed")
    call, want = known(cell)
    tensors = [upload(backend, cell, array) for array in (call.q, call.k, call.v)]

    def attend(view):
        return view.attention.flash_attention2(*tensors, return_lse=True, kernel=strategy, **call.options)

    try:
        out, lse = attend(backend)
    except grilly.UnsupportedError as error:
        if strategy is None:
            raise
        assert_names_what_is_missing(cell, strategy, str(error))
        pytest.skip(f"refused: {error}")
    matrix = cell.dtype != "float32" and on_matrix_units(backend, attend)
    plain = want.rounded if matrix else want.plain
    # Of few numbers plain's largest error is a matter of luck, and may be less than half of what is usual; of few rows
    # still more, as an error of a row's scores is in all its numbers.
    rows = out.size // out.shape[-1]
    magnitude = want.magnitude * (4 if rows < 4 else 2 if out.size < 512 else 1)
    assert_as_accurate(out.numpy(), want.exact, plain, f"{cell} output", magnitude)
    magnitude = features.lse_magnitude(want, call.q.dtype, matrix)
    assert_as_accurate(lse.numpy(), want.exact_lse, want.plain_lse, f"{cell} lse", magnitude)


@pytest.mark.parametrize("kernel", PROCESSORS)
@pytest.mark.parametrize(
    "axes",
    [
        {"causal": "on", "window": (19, 15), "alibi": "heads", "dropout": 0.5},
        {"segments": "pair", "sinks": "heads", "blocks": (5, 7), "lengths": "keys", "bias": "full"},
    ],
    ids=lambda axes: "-".join(axes),
)
def test_llvmpipe_kernels_on_calls_cut_at_odd_keys(vulkan_backend, monkeypatch, axes, kernel):
    """Every dispatch counts its keys from its own first one; the second and later ones have no sink."""
    if vulkan_backend.device.architecture != "llvmpipe":
        pytest.skip("the device is not llvmpipe")
    pretend(monkeypatch, vulkan_backend, loop_trips=37)
    plain = {axis: variants[0] for axis, variants in AXES.items()} | {"width": (8, 8), "size": (64, 128)}
    cell = Cell("float32", tuple((plain | axes).values()))
    call, want = known(cell)
    out, lse = vulkan_backend.attention.flash_attention2(
        call.q, call.k, call.v, return_lse=True, kernel=kernel, **call.options
    )
    # Four parts are merged, each rounding once more.
    assert_as_accurate(out, want.exact, want.plain, f"{cell} output", 4 * want.magnitude)
    assert_as_accurate(lse, want.exact_lse, want.plain_lse, f"{cell} lse", 4 * want.lse_magnitude)
