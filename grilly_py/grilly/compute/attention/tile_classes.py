"""Classes of an attention dispatch's tiles: which of them hide all their pairs, and which need no test of each pair.

A kernel that offers "tiles" passes over tiles that a mask, a map of blocks or segment ids hide as a whole, and leaves
the mask alone where a tile is seen as a whole. One dispatch of shaders/masks/attention-tiles.comp makes the classes,
for each batch and head that differ in them. For kernels that want it, one of shaders/masks/attention-mask-bits.comp
then packs a boolean mask to bits, behind the classes: rows of tiles that are seen in part read 32 keys at a time. For
kernels that offer "mixed-apart" two dispatches share the rows of a call with an additive mask: ``features``.

Kernels of the operation "attention-tiled" are faster because nothing else hides keys from them: a boolean mask, which
one dispatch of shaders/masks/attention-mask-lanes.comp makes classes and bits in the order in which the kernel's lanes
hold scores, or a map whose blocks are multiples of tiles, of which the classes say all. What causality hides beside a
mask that differs from row to row becomes part of the bits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from ...errors import UnsupportedError
from ...registry import Choice, Registry, Request
from ...registry.shared import extras_bits
from ..device.device import DeviceFacts
from ..device.plan import Layout, Planner, strided
from ..device.tensor import Tensor
from . import added
from .call import ADDED_MASK, BOOLEAN_MASK, NO_MASK, AttentionCall, OptionSummary, mask_kind
from .chunks import Chunk

TILES, BLOCKS, SEGMENTS, APART = (extras_bits((name,)) for name in ("tiles", "blocks", "segments", "mixed-apart"))
# Ranks that kernels alike but for what they offer lie apart, at most.
NEAR = 3
# Families of "attention-tiled" are called as the family that users name, and this.
SUFFIX = "-tiles"
# What an invocation reads of a tile before more invocations share it.
EACH = 8
_MAP = ("block_map", "block_batch", "block_head", "block_row", "block_q", "block_kv")
_IDS = ("q_segments", "q_segments_batch", "k_segments", "k_segments_batch")
_MASK_AXES = ("batch", "head", "row", "key")


@dataclasses.dataclass(frozen=True)
class TileClasses:
    """The classes of one dispatch's tiles: their inputs.

    Attributes
    ----------
    options : OptionSummary
    mask : tuple of int
        What the mask is (``call.mask_kind``), and its four strides.
    queries, keys : int
        Of the dispatch.
    first : tuple of int
        Batch, head, query and key of the whole call at which the dispatch begins.
    tile : tuple of int
        Queries and keys of a tile.
    shape : tuple of int
        Batches and heads that have classes of their own, tiles of rows, tiles of keys. 1 where all are alike.
    """

    options: OptionSummary
    mask: tuple[int, tuple[int, ...]]
    queries: int
    keys: int
    first: tuple[int, int, int, int]
    tile: tuple[int, int]
    shape: tuple[int, int, int, int]
    #: Batches, heads and rows in which a boolean mask that is wanted as bits differs (1 where it is broadcast).
    bits: tuple[int, int, int] | None = None

    @property
    def words(self) -> int:
        """Of the classes."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Of the classes and the bits of the mask."""
        return 4 * (self.words + (math.prod(self.bits) * -(-self.keys // 32) if self.bits else 0))

    def parameters(self) -> dict:
        """The parameters of the dispatch that tell where a tile's class is."""
        batches, heads, rows, keys = self.shape
        found = {
            "tile_batch": heads * rows * keys if batches > 1 else 0,
            "tile_head": rows * keys if heads > 1 else 0,
            "tile_row": keys if rows > 1 else 0,
        }
        if self.bits:
            batches, heads, rows = self.bits
            keys = -(-self.keys // 32)
            found |= {
                "mask_bits": self.words,
                "mask_bits_batch": heads * rows * keys if batches > 1 else 0,
                "mask_bits_head": rows * keys if heads > 1 else 0,
                "mask_bits_row": keys if rows > 1 else 0,
            }
        return found

    def lanes(self, most: int) -> int:
        """Invocations that share a tile: a power of two up to ``most``."""
        kind, strides = self.mask
        items = 0
        if kind:
            extents = (self.queries, self.keys)
            rows, keys = (
                1 if stride == 0 else min(size, extent)
                for stride, size, extent in zip(strides[2:], self.tile, extents, strict=True)
            )
            items += rows * keys // 4 if kind == BOOLEAN_MASK and 1 in strides[2:] else rows * keys
        bits = _told(self.options)
        if bits & BLOCKS:
            block_q, block_kv = (self.options.parameter(name) for name in ("block_q", "block_kv"))
            items += -(-self.tile[0] // block_q) * -(-self.tile[1] // block_kv)
        if bits & SEGMENTS:
            items += sum(self.tile)
        lanes = 1
        while lanes < most and lanes * EACH < items:
            lanes *= 2
        return lanes

    def dispatch(self, planner: Planner, registry: Registry, parameters: Tensor, mask: Tensor | None) -> Tensor:
        """Add the dispatches that make the classes. ``parameters`` holds those of the options."""
        bits = _told(self.options)
        asked = (("classes", int(self.options.functions.mapped)),)
        choice = registry.resolve(Request("attention-tiles", "float32", problem=asked))
        lanes = self.lanes(choice.threads)
        rows, keys = self.tile
        batches, heads, row_tiles, key_tiles = self.shape
        classes = planner.empty((self.nbytes // 4,))
        push = {
            **strided("mask", mask, _MASK_AXES), "queries": self.queries, "keys": self.keys, "heads": heads,
            "row_tiles": row_tiles, "key_tiles": key_tiles,
            **dict(zip(("first_batch", "first_head", "first_row", "first_key"), self.first, strict=True)),
            **{name: self.options.parameter(name) for name in (*_MAP, *_IDS)},
        }  # fmt: skip
        constants = {"MASK": self.mask[0], "FEATURES": bits, "ROWS": rows, "KEYS": keys, "LANES": lanes}
        groups = (-(-key_tiles // (choice.threads // lanes)), row_tiles, batches * heads)
        planner.dispatch(choice, constants, {"mask": mask, "extra": parameters, "classes": classes}, push, groups)
        if self.bits:
            self._dispatch_bits(planner, registry, classes, mask)
        return classes

    def _dispatch_bits(self, planner: Planner, registry: Registry, classes: Tensor, mask: Tensor) -> None:
        choice = registry.resolve(Request("attention-mask-bits", "float32"))
        batches, heads, rows = self.bits
        words = -(-self.keys // 32)
        push = {
            **strided("mask", mask, _MASK_AXES), "rows": rows, "keys": self.keys, "heads": heads, "words": words,
            "start": self.words,
        }  # fmt: skip
        groups = (-(-words // choice.threads), min(rows, planner.facts.groups[1]), batches * heads)
        planner.dispatch(choice, {}, {"mask": mask, "bits": classes}, push, groups)


@dataclasses.dataclass(frozen=True)
class LaneTileClasses(TileClasses):
    """Classes and bits of a boolean mask for "attention-tiled"; the bits are words of lanes.

    Attributes
    ----------
    order : int
        The tile's ``mask_order``.
    unit : tuple of int
        Rows and keys that a word of each lane is of, and lanes.
    shift : int, optional
        Query i sees keys up to ``i + shift`` as well as by the mask; without it causality hides none.
    """

    order: int = 0
    unit: tuple[int, int, int] = (1, 1, 1)
    shift: int | None = None

    @property
    def units(self) -> tuple[int, int]:
        """Units of rows (1 where all are alike) and of keys."""
        rows, keys = (n * size // unit for n, size, unit in zip(self.shape[2:], self.tile, self.unit, strict=False))
        return rows if self.mask[1][2] else 1, keys

    @property
    def nbytes(self) -> int:
        """Of the classes and the words of lanes."""
        return 4 * (self.words + math.prod((*self.shape[:2], *self.units, self.unit[2])))

    def parameters(self) -> dict:
        """The parameters of the dispatch that tell where classes and bits are."""
        batches, heads = self.shape[:2]
        rows, keys = self.units
        words = keys * self.unit[2]
        return super().parameters() | {
            "mask_bits": self.words,
            "mask_bits_batch": heads * rows * words if batches > 1 else 0,
            "mask_bits_head": rows * words if heads > 1 else 0,
            "mask_bits_row": words if rows > 1 else 0,
        }

    def dispatch(self, planner: Planner, registry: Registry, parameters: Tensor, mask: Tensor | None) -> Tensor:
        """Add the dispatch that makes classes and bits."""
        choice = _mask_lanes(registry, self.order)
        made = planner.empty((self.nbytes // 4,))
        batches, heads, row_tiles, key_tiles = self.shape
        unit_rows, unit_keys = self.units
        push = {
            **strided("mask", mask, _MASK_AXES), "rows": self.queries, "keys": self.keys, "heads": heads,
            "unit_rows": unit_rows, "unit_keys": unit_keys, "start": self.words, "causal_shift": self.shift or 0,
        }  # fmt: skip
        groups = (key_tiles, row_tiles, batches * heads)
        constants = {"ROWS": self.tile[0], "KEYS": self.tile[1], "CAUSAL": int(self.shift is not None)}
        planner.dispatch(choice, constants, {"mask": mask, "words": made}, push, groups)
        return made


def _told(options: OptionSummary) -> int:
    """What beside a mask tells classes: bits of BLOCKS and SEGMENTS."""
    return options.bits & (BLOCKS | SEGMENTS) | (BLOCKS if options.functions.mapped else 0)


def _mask_lanes(registry: Registry, order: int) -> Choice:
    return registry.resolve(Request("attention-mask-lanes", "float32", problem=(("mask_order", order),)))


def kernels(call: AttentionCall, facts: DeviceFacts, registry: Registry, request: Request) -> Iterator[Choice]:
    """Kernels for a call, best first: one of "attention-tiled" only if ``plan`` has classes for it, then one for all.

    Raises UnsupportedError where there is none of the second kind.
    """
    batch, heads, queries, dim = call.q.shape
    work = 2.0 * batch * heads * queries * dim * call.k.shape[2]
    asked_for = request.prefer is not None and request.prefer.endswith(SUFFIX)
    choice = None if asked_for else registry.resolve(request)
    least = -math.inf if choice is None else registry.rank(choice.variant)
    tiled = _tiled(call, facts, registry, request, work, least)
    if tiled is not None:
        yield tiled
    if choice is None:
        choice = registry.resolve(request)
    if call.mask is not None:
        choice = added.rather(call, registry, request, choice, NEAR)
        choice = rather(call.mask, facts, registry, request, choice, work)
    yield choice


def _tiled(
    call: AttentionCall, facts: DeviceFacts, registry: Registry, request: Request, work: float, least: float
) -> Choice | None:
    """A kernel of "attention-tiled" of rank ``least`` or more, if the call has work enough for it; else None."""
    kind = mask_kind(call.mask)
    bits = call.options.bits
    if (kind, bits) not in ((BOOLEAN_MASK, 0), (NO_MASK, BLOCKS)) or work < facts.class_work:
        return None
    # What causality hides differs from row to row: a mask of keys alone would become as many bits as one of pairs.
    if call.causal and (call.mask is None or not call.mask.strides[2] or call.counted):
        return None
    family = request.prefer
    if family is not None and not family.endswith(SUFFIX):
        family += SUFFIX
    asked = tuple(fact for fact in request.problem if fact[0] not in ("causal", "extras", "options", "high"))
    wanted = Request("attention-tiled", request.dtype, problem=asked, prefer=family)
    # Ranks first: one that would not be used need not be checked.
    if not any(reason is None and registry.rank(variant) >= least for variant, reason in registry.explain(wanted)):
        return None
    try:
        choice = registry.resolve(wanted)
    except UnsupportedError:
        return None
    if registry.rank(choice.variant) < least:
        return None
    block_q, block_kv = call.options.parameter("block_q"), call.options.parameter("block_kv")
    if bits and (block_q % choice.tile["rows"] or block_kv % choice.tile["keys"]):
        return None
    return choice


def rather(
    mask: Layout, facts: DeviceFacts, registry: Registry, request: Request, choice: Choice, work: float
) -> Choice:
    """A kernel of about the same rank with classes of tiles, where the call's mask needs them; else the choice."""
    if choice.variant.offered & TILES or work < facts.class_work or work < facts.class_read * _mask_bytes(mask):
        return choice
    asked = dict(request.problem)
    asked["extras"] = asked.get("extras", 0) | TILES
    asked["options"] = asked["extras"].bit_count()
    try:
        other = registry.resolve(request._replace(problem=tuple(sorted(asked.items()))))
    except UnsupportedError:
        return choice
    return other if registry.rank(other.variant) >= registry.rank(choice.variant) - NEAR else choice


def plan(
    facts: DeviceFacts, registry: Registry, choice: Choice, chunks: list[Chunk], options: OptionSummary, causal: bool
) -> list[TileClasses] | None:
    """Classes for each dispatch of a call; None for kernels without them, and where they do not pay."""
    mask, bits = chunks[0].mask, _told(options)
    if not choice.variant.offered & TILES or (mask is None and not bits):
        return None
    if sum(p.flops() for p in chunks) < facts.class_work:
        return None
    most_rows, most_planes = facts.groups[1:]
    planned = []
    lanes = None
    if choice.tile.get("mask_order") and mask is not None:
        lanes = _mask_lanes(registry, choice.tile["mask_order"]).tile
    for chunk in chunks:
        classes = _classes(chunk, choice.tile, options, lanes, causal)
        cut = any(n % size for n, size in zip(chunk.first[2:], classes.tile, strict=True))
        if cut and choice.variant.operation == "attention-tiled":
            return None  # its tiles are not those of a map's blocks
        batches, heads, rows, _ = classes.shape
        if classes.nbytes > facts.storage_range or rows > most_rows or batches * heads > most_planes:
            return None
        read = 0 if chunk.mask is None else _mask_bytes(Layout(chunk.mask.shape, chunk.mask._strides, chunk.mask.dtype))
        if chunk.flops() < facts.class_read * read:
            return None
        planned.append(classes)
    return planned


def features(choice: Choice, call: AttentionCall, bits: int) -> list[int]:
    """FEATURES of each of the dispatches that share a chunk's rows, of a kernel that uses its classes.

    Two where an additive mask may mix nearly all tiles of some rows: those have a dispatch without classes.
    """
    if choice.variant.offered & APART and mask_kind(call.mask) == ADDED_MASK:
        return [bits | TILES | APART, bits | APART]
    return [bits | TILES]


def _classes(chunk: Chunk, tile, options: OptionSummary, lanes=None, causal: bool = False) -> TileClasses:
    batch, heads, queries, _ = chunk.q.shape
    varies = [False, False, False]  # with batch, head, row
    if chunk.mask is not None:
        varies = [stride != 0 for stride in chunk.mask._strides[:3]]
    bits = _told(options)
    if bits & BLOCKS:
        varies = [
            varies[0] or options.parameter("block_batch") != 0,
            varies[1] or options.parameter("block_head") != 0,
            True,
        ]
    if bits & SEGMENTS:
        ids = options.parameter("q_segments_batch") != 0 or options.parameter("k_segments_batch") != 0
        varies = [varies[0] or ids, varies[1], True]
    counts = (batch, heads, -(-queries // tile["rows"]))
    shape = (*(n if own else 1 for n, own in zip(counts, varies, strict=True)), -(-chunk.k.shape[2] // tile["keys"]))
    strides = (0, 0, 0, 0) if chunk.mask is None else chunk.mask._strides
    size, kind = (tile["rows"], tile["keys"]), mask_kind(chunk.mask)
    if lanes is not None:
        unit = (lanes["rows"], lanes["keys"], lanes["lanes"])
        given = (options, (kind, strides), queries, chunk.k.shape[2], chunk.first, size, shape)
        return LaneTileClasses(*given, order=tile["mask_order"], unit=unit, shift=chunk.shift if causal else None)
    packed = None
    if kind == BOOLEAN_MASK and tile.get("mask_bits"):
        packed = tuple(n if stride else 1 for n, stride in zip((batch, heads, queries), strides, strict=False))
    return TileClasses(options, (kind, strides), queries, chunk.k.shape[2], chunk.first, size, shape, packed)


def _mask_bytes(mask: Layout) -> int:
    """Bytes of the mask's own elements, without those that broadcasting repeats."""
    count = mask.dtype.itemsize
    for extent, stride in zip(mask.shape, mask.strides, strict=True):
        count *= extent if stride else 1
    return count
