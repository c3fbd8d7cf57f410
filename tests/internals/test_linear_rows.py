"""Linear layers of few rows, divided depths, and split weights that are kept: every kernel and tile_schedule, one by
one."""

from __future__ import annotations

import dataclasses
import math
import threading
import weakref

import numpy as np
import pytest

import grilly
import grilly.functional as F
from grilly.compute.device.caches import Caches
from grilly.compute.device.device import HEAP_SHARE
from grilly.compute.device.trial import pin, view_of
from grilly.compute.matmul import split_weights
from grilly.compute.matmul.linear import linear
from grilly.compute.matmul.tile_schedule import tile_schedule
from grilly.registry import Request, default_manifest
from kernels import chosen_as_on

ROUNDINGS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}
#: Rows, columns and depth: whole trips and what is left of them, columns and rows past the last.
SHAPES = [(1, 1, 8), (2, 33, 2056), (9, 130, 76)]
#: Numbers in place of a data file's.
TILES = {
    "linear-rows": [
        {}, {"columns": 1, "words": 2, "rows": 1}, {"columns": 4, "words": 16, "fill": 1}, {"deep": 4, "fill": 1000},
    ],
    "linear-rows-matrix": [{}, {"splits": 1}, {"fill": 1}, {"fill": 64, "splits": 8}, {"deep": 2, "fill": 64}],
    "linear-llvmpipe": [{}, {"cols": 8, "fill": 1000}, {"held": 1, "trip": 2}],
    "linear-texels": [{}],
    "linear-rows-transposed": [{}, {"fill": 1}, {"fill": 64, "splits": 8, "least": 16}],
    "linear-matrix-small": [{}, {"fill": 1}, {"fill": 64, "splits": 8, "least": 16}],
}  # fmt: skip
VARIANTS = [v for v in default_manifest().by_operation["linear"] if v.family in TILES]


def request_for(variant):
    facts = {fact: high for fact, (_, high) in variant.limits.items()} | {"align": variant.align}
    return Request("linear", variant.dtype, problem=facts)


def least(variant):
    """What a depth must be a multiple of."""
    return math.lcm(variant.limits.get("depth_align", (1, 1))[0], variant.align)


def numpy_type(name):
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else name)


def pinned(backend, variant, **tile):
    """A device that runs the variant with these numbers of its tile; skips where it cannot."""
    lacks = backend.registry._lacks(variant, request_for(variant))
    if lacks:
        pytest.skip(f"{variant.name}: {lacks}")
    choice = backend.registry.choice(variant)
    choice.tile = {**choice.tile, **tile}
    return pin(view_of(backend.opened), choice)


def draw(rng, dtype, *shape):
    return rng.standard_normal(shape, dtype=np.float32).astype(dtype)


def check(out, x, weight, bias, variant):
    """Against float64: half a rounding of the result (one for bfloat16's), and float32's of the sum in any order."""
    wide = [None if a is None else a.astype(np.float64) for a in (x, weight, bias)]
    exact, magnitude = wide[0] @ wide[1].T, np.abs(wide[0]) @ np.abs(wide[1]).T
    if bias is not None:
        exact, magnitude = exact + wide[2], magnitude + np.abs(wide[2])
    # Matrix units may cut bits below their running sum; split operands have 2**-20 (linear's documentation).
    sums = 2.0**-18 if variant.unproven else 2.0**-21
    bound = sums * magnitude + (ROUNDINGS[variant.dtype] * np.abs(exact) if variant.dtype != "float32" else 0)
    assert out.shape == exact.shape and out.dtype == x.dtype
    error = np.abs(out.astype(np.float64) - exact)
    assert (error <= bound).all(), f"{variant.name}: {error.max():.3g}"


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_every_deal(vulkan_backend, variant):
    dtype = numpy_type(variant.dtype)
    for tile in TILES[variant.family]:
        if "fill" in tile and "fill" not in variant.tile:  # nobody divides its depth
            continue
        view = pinned(vulkan_backend, variant, **tile)
        for rows, cols, depth in SHAPES:
            cols = -(-cols // variant.align) * variant.align
            depth = -(-depth // least(variant)) * least(variant)
            rng = np.random.default_rng([rows, cols, depth])
            x, weight, bias = draw(rng, dtype, rows, depth), draw(rng, dtype, cols, depth), draw(rng, dtype, cols)
            sent = [view.tensor(a) for a in (x, weight, bias)]
            first = linear(view, *sent, precision="high").numpy()
            check(first, x, weight, bias, variant)
            check(linear(view, *sent[:2], precision="high").numpy(), x, weight, None, variant)
            for _ in range(3):
                again = linear(view, *sent, precision="high").numpy()
                assert again.tobytes() == first.tobytes(), "not the same bits again"


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_strided(vulkan_backend, variant):
    """Rows, columns and samples of larger arrays, and an offset."""
    dtype = numpy_type(variant.dtype)
    view = pinned(vulkan_backend, variant)
    rng = np.random.default_rng(0)
    x, weight, bias = draw(rng, dtype, 3, 6, 64), draw(rng, dtype, 40, 64), draw(rng, dtype, 48)
    sent = [view.tensor(a) for a in (x, weight, bias)]
    own = (slice(1, 3), slice(None, None, 2), slice(16, 48)), (slice(8, 32), slice(32, 64)), slice(8, 32)
    out = linear(view, *(t[part] for t, part in zip(sent, own, strict=True)), precision="high").numpy()
    x, weight, bias = (a[part] for a, part in zip((x, weight, bias), own, strict=True))
    check(out.reshape(6, 24), x.reshape(6, 32), weight, bias, variant)


VECTORS = [v for v in VARIANTS if v.family in ("linear-rows", "linear-llvmpipe") and v.dtype != "bfloat16"]


@pytest.mark.parametrize("variant", VECTORS, ids=lambda v: v.name)
def test_infinities_stay_in_their_places(vulkan_backend, variant):
    """What lies past a row's last words is read for the lanes that have none, and must not count."""
    view = pinned(vulkan_backend, variant)
    x, weight = np.ones((2, 48), variant.dtype), np.ones((8, 48), variant.dtype)
    x[1, 47], weight[3, 44] = np.inf, 2.0
    out = linear(view, view.tensor(x), view.tensor(weight)).numpy()
    assert np.isposinf(out[1]).all() and (out[0] == [48, 48, 48, 49, 48, 48, 48, 48]).all()


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v.family == "linear-texels"], ids=lambda v: v.name)
def test_neighbours_of_a_row_stay_out(vulkan_backend, variant):
    """Of a row of 20, also one that begins in the middle of a texel, the last trip of eight has four."""
    dtype, view = numpy_type(variant.dtype), pinned(vulkan_backend, variant)
    for first in (0, 4):
        own = (slice(None), slice(first, first + 20))
        x, weight = np.full((9, 32), np.nan, dtype), np.full((36, 32), np.inf, dtype)
        x[own], weight[own] = 1, np.arange(36)[:, None] % 4
        out = linear(view, view.tensor(x)[own], view.tensor(weight)[own]).numpy()
        assert (out == 20 * (np.arange(36) % 4)).all()


def test_few_rows_go_to_the_kernel_for_them(vulkan_backend):
    """By the depth's alignment, whatever that of the columns is."""
    facts = {"align": 1, "rows": 1, "cols": 50257, "outputs": 50257, "high": 0, "transposed": 0}
    backend = vulkan_backend
    with chosen_as_on(backend, "nvidia-hopper"):
        for name, needed in (("float32", 4), ("float16", 8), ("bfloat16", 8)):
            for align, few in ((needed, True), (needed // 2, False)):
                request = Request("linear", name, problem={**facts, "depth_align": align})
                assert (backend.registry.resolve(request).variant.family == "linear-rows") == few


def test_deals_fill_the_device_and_cover_the_product(backend):
    """For any device and product: all columns and all of the depth belong to somebody, and constants fit the file's."""
    base = backend.opened.facts
    for variant in VARIANTS:
        if variant.family == "linear-texels":  # blocks of one size
            continue
        choice = backend.registry.choice(variant)
        choice.subgroup_size = size = variant.subgroup_sizes[0] if variant.subgroup_sizes else None
        for units in (1, 12, 132):
            facts = dataclasses.replace(base, units=units)
            for rows, cols, depth in [(1, 1, 8), (1, 4096, 4096), (4, 32000, 4096), (16, 1024, 14336), (64, 4096, 11)]:
                itemsize = 4 if variant.dtype == "float32" else 2
                tiling = tile_schedule(choice, facts, rows, cols, depth, itemsize)
                constants = tiling.constants
                assert constants.keys() <= variant.constants.keys()
                assert tiling.splits == constants.get("SPLITS", 1)
                if variant.family == "linear-rows":
                    subgroups = variant.threads // size
                    assert subgroups % constants["DEEP"] == 0
                    assert tiling.cols == constants["COLUMNS"] * subgroups // constants["DEEP"]
                    assert constants["COLUMNS"] * constants["UNROLL"] <= max(choice.tile["words"], constants["COLUMNS"])
                    assert tiling.rows == constants["ROWS"] <= choice.tile["rows"]
                    assert tiling.rows >= min(rows, choice.tile["rows"])
                if variant.family == "linear-llvmpipe":
                    trip = size * constants["WORDS"] * choice.tile["bytes"]
                    assert trip * (constants["TRIPS"] - 1) < depth * itemsize <= trip * constants["TRIPS"]
                    assert constants["RAGGED"] == (depth * itemsize < trip * constants["TRIPS"])
                    assert constants["TRIPS"] > 1 or constants["WORDS"] * tiling.rows <= choice.tile["held"]
                    assert constants["COLUMNS"] % 8 == 0 and constants["COLUMNS"] <= tiling.cols <= choice.tile["cols"]
                if variant.family == "linear-rows-transposed":
                    assert min(rows, choice.tile["rows"]) <= tiling.rows == constants["ROWS"] <= choice.tile["rows"]
                if variant.family == "linear-rows-matrix":
                    assert variant.threads // size % constants["DEEP"] == 0
                if tiling.splits > 1:
                    assert depth // tiling.splits >= 1 and tiling.splits <= choice.tile["splits"]


# -- split weights ---------------------------------------------------------------------------------------------------


def split_variant(backend):
    for variant in default_manifest().by_operation["linear"]:
        if variant.tile.get("split") and backend.registry._lacks(variant, request_for(variant)) is None:
            return variant
    pytest.skip("the device has no matrix units that split float32")


def dispatches(view, monkeypatch, call) -> int:
    counted = []
    own = view.runtime.dispatch
    monkeypatch.setattr(view.runtime, "dispatch", lambda *a, **k: (counted.append(a), own(*a, **k)))
    call()
    monkeypatch.undo()
    return len(counted)


def test_weights_are_split_once(vulkan_backend, monkeypatch):
    view = pinned(vulkan_backend, split_variant(vulkan_backend))
    rng = np.random.default_rng(1)
    x, other, weight, bias = (draw(rng, np.float32, *s) for s in ((20, 64), (9, 64), (40, 64), (40,)))
    x, other, weight, bias = (view.tensor(a) for a in (x, other, weight, bias))
    wanted = linear(view, x, weight, bias, precision="high").numpy()
    counts = [dispatches(view, monkeypatch, lambda: linear(view, x, weight, bias, precision="high")) for _ in range(3)]
    assert counts == [2, 2, 2], "x is split and multiplied"
    assert dispatches(view, monkeypatch, lambda: linear(view, other, weight, precision="high")) == 2
    assert (linear(view, x, weight, bias, precision="high").numpy() == wanted).all()
    part = linear(view, x, weight[8:24], precision="high").numpy()
    assert (part == linear(view, x, view.tensor(weight.numpy()[8:24]), precision="high").numpy()).all()


def test_weights_that_were_written_to_are_split_anew(vulkan_backend):
    """A KV cache is what a call may write to."""
    view = pinned(vulkan_backend, split_variant(vulkan_backend))
    rng = np.random.default_rng(2)
    x = view.tensor(draw(rng, np.float32, 20, 64))
    caches = [vulkan_backend.tensor(draw(rng, np.float32, 1, 48, 1, 64)) for _ in range(2)]
    step = [vulkan_backend.tensor(draw(rng, np.float32, 1, 1, 1, 64)) for _ in range(3)]
    weight = caches[0].reshape(48, 64)
    for length in (3, 4):
        got = linear(view, x, weight, precision="high").numpy()
        fresh = linear(view, x, view.tensor(weight.numpy()), precision="high").numpy()
        assert (got == fresh).all()
        F.flash_attention_with_kvcache(step[0], *caches, *step[1:], cache_seqlens=length, causal=True)
        assert split_weights.find(weight) is None


@pytest.mark.parametrize("of", ["limit", "memory"])
def test_what_is_kept_ends_with_the_weight_and_at_a_limit(vulkan_backend, monkeypatch, of):
    """By the books of memory; the parts are stand-ins, so any device will do."""
    opened = vulkan_backend.opened
    begin = vulkan_backend.memory().in_use
    weight, second = (vulkan_backend.tensor(np.zeros((64, 64), np.float32)) for _ in range(2))
    parts = [vulkan_backend.tensor(np.zeros((1, 1, 64, 96), np.float32)) for _ in range(2)]
    most = int(1.5 * parts[0].nbytes / split_weights.SHARE)
    if of == "limit":
        monkeypatch.setattr(opened, "memory_limit", most)
    else:
        monkeypatch.setattr(opened, "memory_limit", None)
        monkeypatch.setattr(opened, "info", dataclasses.replace(opened.info, memory_bytes=int(most / HEAP_SHARE)))
    split_weights.keep(opened, weight, parts[0])
    split_weights.keep(opened, second, parts[1])
    assert split_weights.find(weight) is parts[0] and split_weights.find(second) is None
    assert split_weights.find(weight[:8]) is None
    weight._storage.version += 1
    assert split_weights.find(weight) is None
    del parts, weight, second
    assert vulkan_backend.memory().in_use == begin


@pytest.mark.parametrize("who", ["a thread", "a signal handler"])
def test_more_may_be_kept_while_it_is_counted(vulkan_backend, monkeypatch, who):
    opened = vulkan_backend.opened
    monkeypatch.setattr(opened, "caches", Caches())
    monkeypatch.setattr(opened, "memory_limit", 1 << 30)
    weight, second, parts = (vulkan_backend.tensor(np.zeros((4, 4), np.float32)) for _ in range(3))

    class Counted:
        @property
        def nbytes(self):
            if who == "a thread":
                other.start()
                other.join(0.1)
            else:
                also()
            return 0

    def also():
        split_weights.keep(opened, second, parts)

    other, counted, every = threading.Thread(target=also), Counted(), weakref.WeakSet()
    every.add(counted)
    opened.caches[split_weights._ALL].keep("all", every)
    split_weights.keep(opened, weight, parts)
    del counted
    assert split_weights.find(weight) is parts
    if who == "a thread":
        other.join()
        assert split_weights.find(second) is parts


def test_a_write_counts_before_it_begins_and_when_it_has_ended(vulkan_backend, monkeypatch):
    """An interrupt may leave what was written, and another thread may keep what was there before."""
    x = vulkan_backend.tensor(np.ones((8, 8), np.float32))
    storage, runtime, during = x._storage, vulkan_backend.runtime, []
    dispatch = runtime.dispatch

    def interrupted(*arguments):
        dispatch(*arguments)
        during.append(storage.version)
        if len(during) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(runtime, "dispatch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        x += 1
    assert x.numpy().max() == 2 and storage.version == during[0] == 1
    x += 1
    assert during[1] > during[0] and storage.version > during[1]


def test_only_calls_that_write_count_as_writes(vulkan_backend):
    rng = np.random.default_rng(3)
    x, weight = (vulkan_backend.tensor(draw(rng, np.float32, 8, 8)) for _ in range(2))
    for _ in range(3):
        F.linear(x, weight)
        F.softmax(x)
    assert x._storage.version == weight._storage.version == 0
    assert isinstance(F.linear(x, weight), grilly.Tensor)
