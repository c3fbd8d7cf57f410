"""Kernels of the operation "attention-tiled", which know classes of tiles and bits of a mask only, and these."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cases import Case, make_arrays
from features import Cell
from grilly.compute.attention import tile_classes as tiles
from grilly.compute.attention.call import NOTHING, AttentionCall, OptionSummary
from grilly.compute.attention.parameters import as_parameter
from grilly.compute.device.plan import Layout
from grilly.errors import UnsupportedError
from grilly.registry import Request
from grilly.registry.manifest import default_manifest
from kernels import with_classes
from test_matrix import dtype_of, judge, pinned
from test_matrix_extras import PLAIN, judge_cell
from test_tiles import masked_chunk, recorded

FAMILY = "flash-attention3-tiles"
VARIANTS = [v for v in default_manifest().by_operation["attention-tiled"]]
B, H, S, K = 2, 3, 75, 203


# -- the words of lanes ----------------------------------------------------------------------------------------------


def lane_words(mask, order, rows, keys):
    """What attention-mask-lanes.comp makes of (..., rows, keys), of whole tiles: classes, and words by the formulas."""
    height, width, lanes, matrix = {1: (16, 64, 32, 16), 2: (8, 32, 8, 8)}[order]
    shape = (*mask.shape[:2], mask.shape[2] // height, mask.shape[3] // width, lanes)
    words = np.zeros(shape, np.uint32)
    for lane in range(lanes):
        for n in range(4):
            for e in range(8):
                if order == 1:
                    row, column = lane // 4 + 8 * (e // 4), 2 * (lane % 4) + e % 2 + 8 * (e // 2 % 2)
                    bit = 8 * (n // 2) + 16 * (n % 2) + e
                else:
                    row, column, bit = e, lane, 8 * n + e
                seen = mask[:, :, row::height, n * matrix + column :: width]
                words[..., lane] |= seen.astype(np.uint32) << np.uint32(bit)
    blocks = mask.reshape(*mask.shape[:2], mask.shape[2] // rows, rows, mask.shape[3] // keys, keys)
    return blocks.any((3, 5)).astype(np.uint32), words


@pytest.mark.parametrize("kind", ["aligned", "turned", "unaligned"])
@pytest.mark.parametrize("shape", [(1, 1, S, K), (B, H, S, 204), (B, 1, 1, 64), (1, H, S, 1)], ids=str)
@pytest.mark.parametrize(("order", "tile"), [(1, (32, 64)), (1, (128, 128)), (2, (16, 32))], ids=str)
@pytest.mark.parametrize("shift", [None, 60, -9])
def test_words_of_lanes(backend, shape, kind, order, tile, shift):
    if shift is not None and shape[2] == 1:
        pytest.skip("causality becomes part of masks whose rows differ")
    rng = np.random.default_rng(3)
    keys = K if shape[3] == 1 else shape[3]
    mask = rng.random(shape) < 0.5
    mask[..., : tile[0], : tile[1]] = False
    chunk, extras = masked_chunk(backend, mask, kind, (B, H, S, keys))
    lanes = tiles._mask_lanes(backend.registry, order).tile
    if shift is not None:
        chunk = dataclasses.replace(chunk, shift=shift)
    sizes = {"rows": tile[0], "keys": tile[1], "mask_order": order}
    made = tiles._classes(chunk, sizes, extras.summary(), lanes, causal=shift is not None)
    found = recorded(backend, made, extras, chunk.mask).view(np.uint32)

    seen = np.broadcast_to(mask, (*shape[:3], keys))
    if shift is not None:
        seen = seen & np.tri(S, keys, shift, bool)
    height = lanes["rows"]
    missing = (-(-S // tile[0]) * tile[0] if shape[2] > 1 else tile[0]) - shape[2]
    seen = np.pad(seen, ((0, 0), (0, 0), (0, missing), (0, 0)), "edge")
    seen = np.pad(seen, ((0, 0), (0, 0), (0, 0), (0, -keys % tile[1])))
    classes, words = lane_words(seen, order, *tile)
    if shape[2] == 1:
        words = words[:, :, :1]
    np.testing.assert_array_equal(found[: made.words], classes.ravel())
    np.testing.assert_array_equal(found[made.words :], words.ravel())
    assert made.units == (1 if shape[2] == 1 else seen.shape[2] // height, seen.shape[3] // lanes["keys"])


# -- the kernels -----------------------------------------------------------------------------------------------------


def tiled(backend, variant):
    dtype_of(variant)
    view, dim = pinned(backend, variant)
    return with_classes(view), dim


def attend(view, arrays, scale=None, **options):
    tensors = [view.tensor(a) for a in arrays]
    out, lse = view.attention.flash_attention2(*tensors, return_lse=True, scale=scale, kernel=FAMILY, **options)
    return out.numpy(), lse.numpy()


CELLS = [
    {"mask": "bool-full"}, {"mask": "bool-keys"}, {"mask": "bool-dead-rows"}, {"mask": "bool-head"},
    {"mask": "bool-full", "hidden": "nan"}, {"mask": "bool-keys", "hidden": "inf"},
    {"mask": "bool-full", "heads": (5, 1), "batch": 2, "layout": "heads-inside", "scale": -0.3},
    {"mask": "bool-full", "size": (37, 53)}, {"mask": "bool-full", "size": (1, 67)},
    {"mask": "bool-head", "heads": (4, 2)},
    {"mask": "bool-full", "causal": "on", "hidden": "nan"},
    {"mask": "bool-dead-rows", "causal": "on", "size": (150, 67)},
    {"mask": "bool-full", "causal": "on", "size": (37, 253), "heads": (4, 2), "scale": -0.3},
]  # fmt: skip


@pytest.mark.parametrize("options", CELLS, ids=str)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.label + "." + v.dtype)
def test_masks(backend, variant, options):
    view, dim = tiled(backend, variant)
    cell = Cell(variant.dtype, tuple((PLAIN | options | {"width": (dim, dim)}).values()))
    judge_cell(view, cell, FAMILY)


@pytest.mark.parametrize("hidden", [None, np.nan, np.inf])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.label + "." + v.dtype)
def test_blocks_of_whole_tiles(backend, variant, hidden):
    """Of several tiles each, with rows of blocks that see nothing, and keys that only some blocks of rows see."""
    view, dim = tiled(backend, variant)
    rows, keys = variant.tile["rows"], 2 * variant.tile["keys"]
    case = Case("blocks", heads=2, kv_heads=1, queries=2 * rows + 5, keys=3 * keys + 7, dim=dim)
    q, k, v, _ = make_arrays(case, dtype_of(variant))
    blocks = np.array([[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 0, 1]], bool)[None, None]
    mask = blocks.repeat(rows, 2).repeat(keys, 3)[:, :, : case.queries, : case.keys]
    poisoned = [q, k.copy(), v.copy()]
    if hidden is not None:
        for array in poisoned[1:]:
            array[:, :, 2 * keys : 3 * keys] = hidden  # nobody sees these
    result = attend(view, poisoned, block_map=blocks, block_size=(rows, keys))
    judge(result, case, (q, k, v), mask)
    if hidden is not None:
        # And what the last block of rows sees shows there and nowhere else.
        poisoned[2][:, :, keys + 3] = hidden
        out, _ = attend(view, poisoned, block_map=blocks, block_size=(rows, keys))
        assert not np.isfinite(out[:, :, 2 * rows :].astype(np.float32)).any()
        np.testing.assert_array_equal(out[:, :, : 2 * rows], result[0][:, :, : 2 * rows])


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.label + "." + v.dtype)
def test_scores_that_grow_from_tile_to_tile(backend, variant):
    """Each tile raises the maximum, of rows that see it; hidden keys have the largest scores of all."""
    view, dim = tiled(backend, variant)
    case = Case("growing", heads=1, queries=variant.tile["rows"] + 3, keys=4 * variant.tile["keys"] + 9, dim=dim)
    q, k, v, _ = make_arrays(case, dtype_of(variant))
    k = (k * (1 + np.arange(case.keys)[:, None] // 16)).astype(k.dtype)
    mask = np.random.default_rng(4).random((1, 1, case.queries, case.keys)) < 0.7
    mask[..., -9:] = False
    k[:, :, -9:] *= 4
    judge(attend(view, (q, k, v), mask=mask), case, (q, k, v), mask)


# -- when they are used ----------------------------------------------------------------------------------------------


class Chosen:
    """A registry in which every operation has one kernel, of a rank each."""

    def __init__(self, ranks):
        self.ranks = ranks
        self.asked = []

    def resolve(self, request):
        self.asked.append(request)
        if request.operation == "attention-tiled" and request.prefer not in (None, FAMILY):
            raise UnsupportedError("none")
        variant = self.variant(request.operation)
        return dataclasses.make_dataclass("C", ["variant", "tile"])(variant, {"rows": 128, "keys": 64})

    def variant(self, operation):
        return dataclasses.make_dataclass("V", ["operation", "offered"])(operation, tiles.TILES)

    def explain(self, request):
        return [(self.variant(request.operation), None)]

    def rank(self, variant):
        return self.ranks[variant.operation]


def used(backend, mask=None, options=NOTHING, causal=False, kernel=None, work=2.0**40, ranks=(95, 90)):
    """The operations of the kernels that a call would try, in order. Of those that rank lower none is asked for."""
    registry = Chosen(dict(zip(("attention-tiled", "attention"), ranks, strict=True)))
    facts = (("align", 8), ("causal", int(causal)), ("extras", 0), ("head_dim", 64), ("high", 0), ("value_dim", 64))
    side = int((work / 2 / 64) ** 0.5)
    rows = Layout((1, 1, side, 64), (0, 0, 0, 1), np.dtype(np.float16))
    mask = None if mask is None else Layout((1, 1, side, side), (0, 0, 0, 0), np.dtype(mask))
    call = AttentionCall(rows, rows, rows, mask, None, causal, 1.0, False, kernel, False, 0, options)
    request = Request("attention", "float16", problem=facts, prefer=kernel)
    found = [c.variant.operation for c in tiles.kernels(call, backend.opened.facts, registry, request)]
    if ranks[0] < ranks[1]:
        assert [r.operation for r in registry.asked] == found
    return found


def blocks_of(size):
    words = {"block_q": as_parameter(size[0]), "block_kv": as_parameter(size[1])}
    return OptionSummary(tiles.BLOCKS, parameters=tuple(words.items()))


def test_kernels_for_tiles_are_used_where_they_can_be(backend):
    both, one = ["attention-tiled", "attention"], ["attention"]
    assert used(backend, np.bool_) == both
    assert used(backend, None, blocks_of((256, 64))) == both
    assert used(backend, None, blocks_of((64, 64))) == one
    assert used(backend, None, blocks_of((128, 96))) == one
    assert used(backend, np.float32) == used(backend) == used(backend, np.bool_, causal=True) == one
    assert used(backend, np.bool_, blocks_of((128, 64))) == one
    assert used(backend, np.bool_, work=2.0**20) == one
    assert used(backend, np.bool_, ranks=(5, 90)) == one
    assert used(backend, np.bool_, kernel="flash-attention3") == both
    assert used(backend, np.bool_, kernel="flash-attention3", ranks=(5, 90)) == one
    assert used(backend, np.bool_, kernel="flash-attention2") == one
