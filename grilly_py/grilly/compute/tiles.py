"""Classes of an attention dispatch's tiles: which of them hide all their pairs, and which need no test of each pair.

A kernel that offers "tiles" passes over tiles that a mask, a map of blocks or segment ids hide as a whole, and leaves
the mask alone where a tile is seen as a whole. One dispatch of shaders/masks/attention-tiles.comp makes the classes,
for each batch and head that differ in them. For kernels that want it, one of shaders/masks/attention-mask-bits.comp
then packs a boolean mask to bits, behind the classes: rows of tiles that are seen in part read 32 keys at a time.

Kernels of the operation "attention-tiled" are faster because nothing else hides keys from them: a boolean mask, which
one dispatch of shaders/masks/attention-mask-lanes.comp makes classes and bits in the order in which the kernel's lanes
hold scores, or a map whose blocks are multiples of tiles, of which the classes say all.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from typing import TYPE_CHECKING

from ..errors import UnsupportedError
from ..registry import Request
from ..registry.names import extras_bits
from .extras import Extras
from .launch import binding, program_of
from .prepared import mask_kind
from .tensor import Storage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..registry import Choice
    from .backend import Compute
    from .flash import Piece
    from .tensor import Tensor

TILES, BLOCKS, SEGMENTS = (extras_bits((name,)) for name in ("tiles", "blocks", "segments"))
# A call of fewer floating-point operations takes about as long as the dispatch that makes the classes.
LEAST_WORK = 2.0**30
# Operations for each byte of mask that is read for the classes. GPUs do some 100 operations in the time in which they
# read a byte, so the classes cost at most about a tenth of a call in which they help nothing. A mask that no two heads
# share is read by the kernel once, and reading it twice would cost more than that.
WORK_PER_BYTE = 1024.0
# Ranks that kernels alike but for what they offer lie apart, at most.
NEAR = 3
# Families of "attention-tiled" are called as the family that users name, and this.
SUFFIX = "-tiles"
# What an invocation reads of a tile before more invocations share it.
EACH = 8
_PUSH = struct.Struct("=24I")
_BITS_PUSH = struct.Struct("=10I")
_LANES_PUSH = struct.Struct("=11I")
_MAP = ("block_map", "block_batch", "block_head", "block_row", "block_q", "block_kv")
_IDS = ("q_segments", "q_segments_batch", "k_segments", "k_segments_batch")


@dataclasses.dataclass(frozen=True)
class Classes:
    """What the classes of one dispatch's tiles are made of.

    Attributes
    ----------
    extras : Extras
    mask : tuple of int
        What the mask is (``prepared.mask_kind``), and its four steps.
    queries, keys : int
        Of the dispatch.
    first : tuple of int
        Batch, head, query and key of the whole call with which the dispatch begins.
    tile : tuple of int
        Queries and keys of a tile.
    shape : tuple of int
        Batches and heads that have classes of their own, tiles of rows, tiles of keys. 1 where all are alike.
    """

    extras: Extras
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

    def header(self) -> dict:
        """The words of the dispatch's header that tell where a tile's class is."""
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
        kind, steps = self.mask
        items = 0
        if kind:
            extents = (self.queries, self.keys)
            rows, keys = (
                1 if step == 0 else min(size, extent)
                for step, size, extent in zip(steps[2:], self.tile, extents, strict=True)
            )
            items += rows * keys // 4 if kind == 1 and 1 in steps[2:] else rows * keys
        if self.extras.bits & BLOCKS:
            block_q, block_kv = (self.extras.word(name) for name in ("block_q", "block_kv"))
            items += -(-self.tile[0] // block_q) * -(-self.tile[1] // block_kv)
        if self.extras.bits & SEGMENTS:
            items += sum(self.tile)
        lanes = 1
        while lanes < most and lanes * EACH < items:
            lanes *= 2
        return lanes

    def record(self, backend: Compute, words: Storage, mask: Tensor | None) -> Storage:
        """Record the dispatch that makes the classes. ``words`` holds those of ``extras``."""
        bits = self.extras.bits & (BLOCKS | SEGMENTS)
        choice = backend.registry.resolve(Request("attention-tiles", "float32"))
        lanes = self.lanes(choice.threads)
        kind, steps = self.mask
        rows, keys = self.tile
        program = program_of(
            backend, choice, {"MASK": kind, "FEATURES": bits, "ROWS": rows, "KEYS": keys, "LANES": lanes}
        )
        classes = Storage(backend, self.nbytes)
        place, offset = (None, 0) if mask is None else binding(backend, mask)
        batches, heads, row_tiles, key_tiles = self.shape
        push = _PUSH.pack(
            offset, *steps, self.queries, self.keys, heads, row_tiles, key_tiles, *self.first,
            *(self.extras.word(name) for name in (*_MAP, *_IDS)),
        )  # fmt: skip
        groups = (-(-key_tiles // (choice.threads // lanes)), row_tiles, batches * heads)
        bindings = [place, (words.buffer, 0, words.nbytes), (classes.buffer, 0, classes.nbytes)]
        backend.runtime.dispatch(program, bindings, push, groups)
        if self.bits:
            self._record_bits(backend, classes, place, (offset, *steps))
        return classes

    def _record_bits(self, backend: Compute, classes: Storage, place: tuple, mask: tuple[int, ...]) -> None:
        choice = backend.registry.resolve(Request("attention-mask-bits", "float32"))
        batches, heads, rows = self.bits
        words = -(-self.keys // 32)
        push = _BITS_PUSH.pack(*mask, rows, self.keys, heads, words, self.words)
        groups = (-(-words // choice.threads), min(rows, backend.device.limits["groups"][1]), batches * heads)
        bindings = [place, (classes.buffer, 0, classes.nbytes)]
        backend.runtime.dispatch(program_of(backend, choice, {}), bindings, push, groups)


@dataclasses.dataclass(frozen=True)
class LaneClasses(Classes):
    """The same of a boolean mask for "attention-tiled", whose bits are words of lanes.

    Attributes
    ----------
    order : int
        The tile's ``mask_order``.
    unit : tuple of int
        Rows and keys that a word of each lane is of, and lanes.
    """

    order: int = 0
    unit: tuple[int, int, int] = (1, 1, 1)

    @property
    def units(self) -> tuple[int, int]:
        """Units of rows (1 where all are alike) and of keys."""
        rows, keys = (n * size // unit for n, size, unit in zip(self.shape[2:], self.tile, self.unit, strict=False))
        return rows if self.mask[1][2] else 1, keys

    @property
    def nbytes(self) -> int:
        """Of the classes and the words of lanes."""
        return 4 * (self.words + math.prod((*self.shape[:2], *self.units, self.unit[2])))

    def header(self) -> dict:
        """The words of the dispatch's header that tell where classes and bits are."""
        batches, heads = self.shape[:2]
        rows, keys = self.units
        words = keys * self.unit[2]
        return super().header() | {
            "mask_bits": self.words,
            "mask_bits_batch": heads * rows * words if batches > 1 else 0,
            "mask_bits_head": rows * words if heads > 1 else 0,
            "mask_bits_row": words if rows > 1 else 0,
        }

    def record(self, backend: Compute, words: Storage, mask: Tensor | None) -> Storage:
        """Record the dispatch that makes classes and bits."""
        choice = _mask_lanes(backend, self.order)
        program = program_of(backend, choice, {"ROWS": self.tile[0], "KEYS": self.tile[1]})
        made = Storage(backend, self.nbytes)
        place, offset = binding(backend, mask)
        batches, heads, row_tiles, key_tiles = self.shape
        push = _LANES_PUSH.pack(offset, *self.mask[1], self.queries, self.keys, heads, *self.units, self.words)
        groups = (key_tiles, row_tiles, batches * heads)
        backend.runtime.dispatch(program, [place, (made.buffer, 0, made.nbytes)], push, groups)
        return made


def _mask_lanes(backend: Compute, order: int) -> Choice:
    return backend.registry.resolve(Request("attention-mask-lanes", "float32", facts=(("mask_order", order),)))


def kernels(
    backend: Compute, request: Request, work: float, mask: Tensor | None, extras: Extras | None, causal: bool
) -> Iterator[Choice]:
    """Kernels for a call, best first: one of "attention-tiled" only if ``plan`` has classes for it, then one for all.

    Raises UnsupportedError where there is none of the second kind.
    """
    asked_for = request.prefer is not None and request.prefer.endswith(SUFFIX)
    choice = None if asked_for else backend.registry.resolve(request)
    least = -math.inf if choice is None else backend.registry.rank(choice.variant)
    tiled = None if causal else _tiled(backend, request, work, mask, extras, least)
    if tiled is not None:
        yield tiled
    if choice is None:
        choice = backend.registry.resolve(request)
    yield choice if mask is None else rather(backend, request, choice, work, mask)


def _tiled(
    backend: Compute, request: Request, work: float, mask, extras: Extras | None, least: float
) -> Choice | None:
    """One of rank ``least`` or more, if a call of this much work could use it."""
    bits, kind = 0 if extras is None else extras.bits, mask_kind(mask)
    if (kind, bits) not in ((1, 0), (0, BLOCKS)) or not (backend.always_classes or work >= LEAST_WORK):
        return None
    family = request.prefer
    if family is not None and not family.endswith(SUFFIX):
        family += SUFFIX
    facts = tuple(fact for fact in request.facts if fact[0] not in ("causal", "extras", "high"))
    wanted, registry = Request("attention-tiled", request.dtype, facts=facts, prefer=family), backend.registry
    # Ranks first: one that would not be used need not be checked.
    if not any(reason is None and registry.rank(variant) >= least for variant, reason in registry.explain(wanted)):
        return None
    try:
        choice = registry.resolve(wanted)
    except UnsupportedError:
        return None
    if registry.rank(choice.variant) < least:
        return None
    if bits and (extras.word("block_q") % choice.tile["rows"] or extras.word("block_kv") % choice.tile["keys"]):
        return None
    return choice


def rather(backend: Compute, request: Request, choice: Choice, work: float, mask: Tensor) -> Choice:
    """A kernel of about the same rank that offers classes of tiles, where a call with a mask would use them."""
    if choice.variant.offered & TILES or work < LEAST_WORK or work < WORK_PER_BYTE * _mask_bytes(mask):
        return choice
    facts = dict(request.facts)
    facts["extras"] = facts.get("extras", 0) | TILES
    try:
        other = backend.registry.resolve(request._replace(facts=tuple(sorted(facts.items()))))
    except UnsupportedError:
        return choice
    rank = backend.registry.rank
    return other if rank(other.variant) >= rank(choice.variant) - NEAR else choice


def plan(backend: Compute, choice: Choice, pieces: list[Piece], extras: Extras | None) -> list[Classes] | None:
    """Classes for each dispatch of a call; None where the chosen kernel has no use for them, or they do not pay."""
    mask, bits = pieces[0].mask, 0 if extras is None else extras.bits & (BLOCKS | SEGMENTS)
    if not choice.variant.offered & TILES or (mask is None and not bits):
        return None
    if not backend.always_classes and sum(p.flops() for p in pieces) < LEAST_WORK:
        return None
    if extras is None:
        extras = Extras(pieces[0].q.shape[1])
        extras.set(left=0, right=0)
    most_rows, most_planes = backend.device.limits["groups"][1:]
    planned = []
    lanes = None
    if choice.tile.get("mask_order") and mask is not None:
        lanes = _mask_lanes(backend, choice.tile["mask_order"]).tile
    for piece in pieces:
        classes = _classes(piece, choice.tile, extras, lanes)
        cut = any(n % size for n, size in zip(piece.first[2:], classes.tile, strict=True))
        if cut and choice.variant.operation == "attention-tiled":
            return None  # its tiles are not those of a map's blocks
        batches, heads, rows, _ = classes.shape
        if classes.nbytes > backend.device.limits["storage_range"] or rows > most_rows or batches * heads > most_planes:
            return None
        read = 0 if piece.mask is None or backend.always_classes else _mask_bytes(piece.mask)
        if piece.flops() < WORK_PER_BYTE * read:
            return None
        planned.append(classes)
    return planned


def _classes(piece: Piece, tile, extras: Extras, lanes=None) -> Classes:
    batch, heads, queries, _ = piece.q.shape
    varies = [False, False, False]  # with batch, head, row
    if piece.mask is not None:
        varies = [step != 0 for step in piece.mask._steps[:3]]
    if extras.bits & BLOCKS:
        varies = [varies[0] or extras.word("block_batch") != 0, varies[1] or extras.word("block_head") != 0, True]
    if extras.bits & SEGMENTS:
        ids = extras.word("q_segments_batch") != 0 or extras.word("k_segments_batch") != 0
        varies = [varies[0] or ids, varies[1], True]
    counts = (batch, heads, -(-queries // tile["rows"]))
    shape = (*(n if own else 1 for n, own in zip(counts, varies, strict=True)), -(-piece.k.shape[2] // tile["keys"]))
    steps = (0, 0, 0, 0) if piece.mask is None else piece.mask._steps
    size, kind = (tile["rows"], tile["keys"]), mask_kind(piece.mask)
    if lanes is not None:
        unit = (lanes["rows"], lanes["keys"], lanes["lanes"])
        given = (extras, (kind, steps), queries, piece.k.shape[2], piece.first, size, shape)
        return LaneClasses(*given, order=tile["mask_order"], unit=unit)
    bits = None
    if kind == 1 and tile.get("mask_bits"):
        bits = tuple(n if step else 1 for n, step in zip((batch, heads, queries), steps, strict=False))
    return Classes(extras, (kind, steps), queries, piece.k.shape[2], piece.first, size, shape, bits)


def _mask_bytes(mask) -> int:
    """Bytes of the mask's own elements, without those that broadcasting repeats."""
    count = mask.dtype.itemsize
    for extent, step in zip(mask.shape, mask._steps, strict=True):
        count *= extent if step else 1
    return count
