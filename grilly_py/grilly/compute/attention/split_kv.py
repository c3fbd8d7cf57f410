"""Split-KV for tiles of rows: of calls with few tiles, and of the last wave of other calls.

The families for "attention-split-kv" leave a result of each split; a second dispatch, "attention-combine", combines
them. Where a head's queries do not fill a tile, its rows are those of all query heads that share a key head (packed
GQA): several tokens at once, or one of many heads. schedule.py says when it pays; decode.py is for fewer rows still.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from ...errors import UnsupportedError
from ...registry import Choice, Registry, Request
from ...registry.measured import bucket
from ..device.device import DeviceFacts
from ..device.plan import At, Planner, strided
from ..device.tensor import Tensor
from . import schedule
from .call import AttentionCall, mask_kind
from .chunks import Chunk
from .operands import AttentionPlan, aligned, operands, outputs
from .rates import rates_of

FAMILY = "flash-attention3-split-kv"
FAMILIES = (FAMILY,)
# Invocations that combine the splits of a word where there are more of them: one after another 132 took 20 us on an
# H200.
TEAMS = 8


def results_bytes(rows: int, value_dim: int) -> int:
    """Bytes of the partial results of a split of so many rows: a float32 row and its log-sum-exp of each."""
    return 4 * rows * (value_dim + 1)


def _request(call: AttentionCall, o: Tensor, rows: int, tall: bool = False) -> Request:
    """What the registry is asked for: a kernel for so many rows of a key head or of a head; ``tall``, of 256 rows."""
    asked = (
        ("align", aligned(call, o._strides)), ("head_dim", call.q.shape[3]), *bucket({"rows": rows}).items(),
        ("tall", int(tall)), ("value_dim", call.v.shape[3]),
    )  # fmt: skip
    return Request("attention-split-kv", call.q.dtype.name, problem=asked, prefer=call.kernel)


# -- whole calls -------------------------------------------------------------------------------------------------------


def plan(call: AttentionCall, facts: DeviceFacts, registry: Registry) -> AttentionPlan | None:
    """The plan of a call with the keys of all tiles split; None where no kernel serves it or none pays.

    Where the call's ``kernel`` names the family, UnsupportedError takes the place of None.
    """
    forced = call.kernel == FAMILY
    if not forced and not _may_pay(call, facts):
        return None
    batch, heads, queries, _ = call.q.shape
    keys, value_dim = call.k.shape[2], call.v.shape[3]
    planner = Planner(facts, [call.q, call.k, call.v, call.mask, call.bias, None])
    q, k, v, *_ = planner.inputs
    o, sums, results = outputs(planner, call)
    packed = schedule.packed_heads(queries, heads // k.shape[1], rates_of(facts).tiles)
    own = queries * packed  # rows of a key head, or of a head
    try:
        choice = registry.resolve(_request(call, o, own))
    except UnsupportedError:
        if forced:
            raise
        return None
    row_tiles = -(-own // choice.tile["rows"])
    most = facts.workspace // results_bytes(batch * heads * queries, value_dim)
    splits = schedule.tile_splits(facts, choice.tile, batch * heads // packed * row_tiles, keys, most)
    if forced:
        splits = splits or 2
    elif schedule.packs_many(call, facts):
        splits = splits or 1  # even where they fill the device, tiles for each head would be mostly empty
    if not splits:
        return None
    chunk = Chunk(q, k, v, o, sums, None, call.shift + call.options.right, False)
    groups = (row_tiles * splits, heads // packed, batch)
    problem = _problem(call, facts, choice, chunk, groups, splits, splits if forced else most)
    if problem is not None:
        if forced:
            raise UnsupportedError(f"{FAMILY}: {problem}; leave the kernel to the registry (kernel=None)")
        return None
    dispatch(planner, registry, choice, call, chunk, splits, packed)
    return AttentionPlan(planner.plan(*results), None)


def _may_pay(call: AttentionCall, facts: DeviceFacts) -> bool:
    """Whether split tiles could pay, before a kernel is known."""
    rates = rates_of(facts).tiles
    queries, keys = call.q.shape[2], call.k.shape[2]
    # Where queries are nearly as many as keys, causality makes the tiles' work too unlike for equal splits.
    even = not call.causal or keys >= 2 * queries
    return rates.splits and schedule.is_plain(call, facts) and even and keys >= 2 * rates.split.least_keys


def _problem(
    call: AttentionCall, facts: DeviceFacts, choice: Choice, chunk: Chunk, groups: tuple[int, int, int], splits: int,
    most: int,
) -> str | None:  # fmt: skip
    """Why the call cannot have so many splits, with workspace for ``most``; None if it can."""
    batch, heads, queries, value_dim = chunk.o.shape
    keys = chunk.k.shape[2]
    if not schedule.is_plain(call, facts):
        return "masks and options are not offered, nor arrays beyond a binding, nor other than 16-bit types"
    if not facts.holds(4 * splits * batch * heads * queries * value_dim):
        return "the splits' results are beyond a binding"
    if splits > most:
        return "the splits' results take too much memory"
    if any(n > most for n, most in zip(groups, facts.groups, strict=True)):
        return f"{groups} workgroups are beyond the device's limits"
    if chunk.flops() > facts.work_limit or keys > facts.loop_trips * choice.keys_per_trip:
        return "one submission would take too long"
    return None


# -- the last wave of a call -------------------------------------------------------------------------------------------


class LastWave(NamedTuple):
    """The last heads of a call, whose keys are split.

    Attributes
    ----------
    choice : Choice
        The kernel.
    heads : int
        How many key heads, counted over all samples.
    splits : int
    """

    choice: Choice
    heads: int
    splits: int


def last_wave(call: AttentionCall, facts: DeviceFacts, registry: Registry, rows: int) -> LastWave | None:
    """The last heads of a call that are faster split, for a kernel with tiles of ``rows``; None for none."""
    if not schedule.has_equal_tiles(call, facts):
        return None
    rates = rates_of(facts).tiles
    batch, heads, queries, head_dim = call.q.shape
    kv_heads, keys, value_dim = call.k.shape[1], call.k.shape[2], call.v.shape[3]
    o, _, _ = outputs(Planner(facts, [call.q]), call)
    try:
        choice = registry.resolve(_request(call, o, queries, tall=rows > rates.rows))
    except UnsupportedError:
        return None
    alike = choice.tile["rows"] == rows and head_dim >= choice.tile.get("narrowest", head_dim + 1)
    if not alike or not schedule.heads_are_even(o.shape, o._strides):
        return None
    tiles, at_once = batch * heads * -(-queries // rows), choice.tile["resident"] * facts.units
    _, last, splits = schedule.last_wave(tiles, batch * kv_heads, keys, at_once, rates)
    handed = results_bytes(splits * last * (heads // kv_heads) * queries, value_dim)
    return LastWave(choice, last, splits) if last and handed <= facts.workspace and facts.holds(handed) else None


def cut_tail(chunk: Chunk, last: int) -> tuple[Chunk, Chunk]:
    """A chunk whose heads lie evenly (``schedule.heads_are_even``), cut into its first key heads and its ``last``."""
    q, k, v, o, lse = (_flat(t) for t in (chunk.q, chunk.k, chunk.v, chunk.o, chunk.lse))
    return dataclasses.replace(chunk, q=q, k=k, v=v, o=o, lse=lse).cut("head", k.shape[1] - last)


def _flat(tensor: Tensor | None) -> Tensor | None:
    """The heads of all samples as those of one."""
    if tensor is None or tensor.shape[0] == 1:
        return tensor
    (batch, heads, *others), steps = tensor.shape, tensor._strides
    shape, flat = (1, batch * heads, *others), (0, steps[0] if heads == 1 else steps[1], *steps[2:])
    return Tensor(tensor._storage, shape, tensor.dtype, flat, tensor._offset)


# -- dispatches --------------------------------------------------------------------------------------------------------


def dispatch(
    planner: Planner, registry: Registry, choice: Choice, call: AttentionCall, chunk: Chunk, splits: int, packed: int
) -> None:
    """Add the dispatches of a chunk of a call whose keys are split; rows of ``packed`` query heads are in a tile."""
    batch, heads, queries, head_dim = chunk.q.shape
    value_dim = chunk.v.shape[3]
    own, units = queries * packed, heads // packed
    part = planner.empty((splits * batch, units, own, value_dim))
    part_lse = planner.empty((splits * batch, units, own))
    to_parts = dataclasses.replace(chunk, o=part, lse=part_lse)
    arrays, push = operands(choice, to_parts, heads // chunk.k.shape[1], call.scale, None, 0)
    constants = {
        "HEAD_DIM": head_dim, "VALUE_DIM": value_dim, "MASK": mask_kind(None), "CAUSAL": int(call.causal), "LSE": 1,
        "MERGE": 0, "PACKED_HEADS": packed,
    }  # fmt: skip
    arrays = {name: array for name, array in arrays.items() if name in choice.variant.bindings}
    groups = (-(-own // choice.tile["rows"]) * splits, units, batch)
    kind = (choice.variant.name, head_dim, value_dim, call.causal)
    planner.dispatch(choice, constants, arrays, push, groups, chunk.flops(), kind)
    _combine(planner, registry, chunk, (part, part_lse), splits, packed)


def _combine(planner: Planner, registry: Registry, chunk: Chunk, parts, splits: int, packed: int) -> None:
    """Add the dispatch that combines the partial results ``parts`` to a chunk's results."""
    batch, heads, queries, value_dim = chunk.o.shape
    part, part_lse = parts
    choice = registry.resolve(Request("attention-combine", chunk.o.dtype.name))
    width = value_dim // 4
    push = {
        **strided("o", chunk.o), "lse_offset": At(chunk.lse), "rows": batch * heads * queries,
        "heads": heads // packed, "queries": queries, "packed_heads": packed, "width": width, "splits": splits,
    }  # fmt: skip
    arrays = {"part": part, "part_lse": part_lse, "o": chunk.o, "lse": chunk.lse}
    teams = TEAMS if splits > TEAMS else 1
    groups = min(-(-batch * heads * queries * width * teams // choice.threads), planner.facts.groups[0])
    planner.dispatch(choice, {"LSE": int(chunk.lse is not None), "TEAMS": teams}, arrays, push, (groups, 1, 1))
