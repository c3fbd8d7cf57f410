"""Attention of so few rows over so many keys that tiles of rows leave most of a device idle: a chunk of a prefill.

The keys of a tile of rows are shared out among workgroups of the families for "attention-shares", and "attention-join"
makes one result of theirs. Where a head's queries do not fill a tile, its rows are those of all query heads that share
a key head: several tokens at once, or one of many heads. decode.py is for fewer rows still, tails.py for the end of a
call of many.
"""

from __future__ import annotations

import dataclasses

from ...errors import UnsupportedError
from ...registry import Choice, Registry, Request
from ...registry.measured import bucket
from ..device.device import DeviceFacts
from ..device.plan import At, Planner, strided
from ..device.tensor import Tensor
from .call import AttentionCall, mask_kind
from .operands import AttentionPlan, aligned, operands, outputs
from .pieces import Piece

FAMILY = "flash-attention3-shares"
FAMILIES = (FAMILY,)
# Fewer keys than this are no share: they take about as long as a workgroup needs to begin and to end.
FEWEST_KEYS = 512
# What a workgroup does before its first key and after its last, in keys.
START_KEYS = 256
# What joining costs for each share, in keys: a row's float32 result is written and read, which at 4.3 TB/s takes as
# long as its products with so many keys at 300 TFLOP/s.
JOIN_KEYS = 140
# Keys from which on one share each, in tall tiles that nearly fill the device, beats smaller tiles; and how nearly.
LONG_KEYS, NEARLY = 4096, 0.8
# Rounds of workgroups that shares make at most.
ROUNDS = 4
# Shares must save so much of the time of whole tiles.
SAVED = 0.1
# Rows of the largest tiles.
ROWS = 128
# Invocations that join the shares of a word where there are more of them: one after another 132 shares took 20 us.
TEAMS = 8
# Up to so many rows of a key head, and below so many floating-point operations, the kernels of decode.py are faster:
# they need no second dispatch. Measured: docs/benchmarks/decode.md.
FEW_ROWS = 16
MUCH = 1e9


def members(queries: int, group: int) -> int:
    """Query heads whose rows are in a tile: all ``group`` of a key head where that makes fewer tiles, else 1."""
    return group if -(-queries * group // ROWS) < group * -(-queries // ROWS) else 1


def crowded(call: AttentionCall) -> bool:
    """Whether few queries are so many rows of a key head that tiles come before the kernels of decode.py."""
    batch, heads, queries, head_dim = call.q.shape
    group = heads // call.k.shape[1]
    work = 2.0 * batch * heads * queries * call.k.shape[2] * (head_dim + call.v.shape[3])
    # A recording for any number of keys has the same number of shares for all of them: decode.py.
    few = queries < ROWS and members(queries, group) > 1 and not call.counted
    return few and queries * group > FEW_ROWS and work >= MUCH


def count(facts: DeviceFacts, tile, tiles: int, keys: int, most: int) -> int:
    """Into how many shares the keys of ``tiles`` tiles of rows are to be cut, at most; 0 where that does not pay.

    A round of workgroups, ``resident`` for each multiprocessor, costs as much as a full one where it is not.
    """
    at_once = max(tile["resident"] * facts.units, 1)

    def cost(shares: int) -> float:
        share = -(-keys // shares)
        return -(-tiles * shares // at_once) * (share + START_KEYS) + JOIN_KEYS * shares * tiles / at_once

    whole = -(-tiles // at_once) * (keys + START_KEYS)
    most = min(most, keys // FEWEST_KEYS, ROUNDS * at_once // tiles)
    best = min(range(1, max(most, 1) + 1), key=cost)
    if best == 1:
        return int(keys >= LONG_KEYS and NEARLY * at_once <= tiles <= at_once)
    return best if cost(best) <= (1 - SAVED) * whole else 0


def is_plain(call: AttentionCall, facts: DeviceFacts) -> bool:
    """Whether the kernels offer what the call asks for, but for the sizes."""
    return call.mask is None and not call.options.bits and call.q.dtype.itemsize == 2 and call.whole(facts)


def results_bytes(rows: int, value_dim: int) -> int:
    """What a share of so many rows hands on: a float32 row and its log-sum-exp of each."""
    return 4 * rows * (value_dim + 1)


def request(call: AttentionCall, o: Tensor, rows: int, tall: bool = False) -> Request:
    """What the registry is asked for: a kernel for so many rows of a key head or of a head; ``tall``, of 256 rows."""
    asked = (
        ("align", aligned(call, o._steps)), ("head_dim", call.q.shape[3]), *bucket({"rows": rows}).items(),
        ("tall", int(tall)), ("value_dim", call.v.shape[3]),
    )  # fmt: skip
    return Request("attention-shares", call.q.dtype.name, facts=asked, prefer=call.kernel)


def plan(call: AttentionCall, facts: DeviceFacts, registry: Registry) -> AttentionPlan | None:
    """The call planned; None where it does not pay or cannot be done.

    Raises UnsupportedError instead of returning None when the call's ``kernel`` names the family.
    """
    forced = call.kernel == FAMILY
    batch, heads, queries, _ = call.q.shape
    keys, value_dim = call.k.shape[2], call.v.shape[3]
    plain = is_plain(call, facts)
    # Where queries are nearly as many as keys, causality makes the tiles' work too unlike for equal shares.
    even = not call.causal or keys >= 2 * queries
    if not forced and (facts.architecture == "llvmpipe" or not plain or not even or keys < 2 * FEWEST_KEYS):
        return None
    planner = Planner(facts, [call.q, call.k, call.v, call.mask, call.bias, None])
    q, k, v, *_ = planner.inputs
    o, sums, results = outputs(planner, call)
    kv_heads = k.shape[1]
    together = members(queries, heads // kv_heads)
    own = queries * together  # rows of a key head, or of a head
    try:
        choice = registry.resolve(request(call, o, own))
    except UnsupportedError:
        if forced:
            raise
        return None
    row_tiles = -(-own // choice.tile["rows"])
    rows = batch * heads * queries
    most = facts.workspace // results_bytes(rows, value_dim)
    shares = count(facts, choice.tile, batch * heads // together * row_tiles, keys, most)
    if forced:
        shares = shares or 2
    elif crowded(call):
        shares = shares or 1  # even where they fill the device, tiles for each head would be mostly empty
    if not shares:
        return None
    groups = (row_tiles * shares, heads // together, batch)
    piece = Piece(q, k, v, o, sums, None, call.shift + call.options.right, False)
    for true, problem in (
        (not plain, "masks and options are not offered, nor arrays beyond a binding, nor other than 16-bit types"),
        (not facts.holds(4 * shares * rows * value_dim), "the shares' results are beyond a binding"),
        (not forced and shares > most, "the shares' results take too much memory"),
        (any(n > most for n, most in zip(groups, facts.groups, strict=True)),
         f"{groups} workgroups are beyond the device's limits"),
        (piece.flops() > facts.work_limit or keys > facts.loop_trips * choice.keys_per_trip,
         "one submission would take too long"),
    ):  # fmt: skip
        if true:
            if forced:
                raise UnsupportedError(f"{FAMILY}: {problem}; leave the kernel to the registry (kernel=None)")
            return None
    share_out(planner, registry, choice, call, piece, shares, together)
    return AttentionPlan(planner.plan(*results), None)


def share_out(
    planner: Planner, registry: Registry, choice: Choice, call: AttentionCall, piece: Piece, shares: int, together: int
) -> None:  # fmt: skip
    """Add the dispatches of a piece of a call, whose keys are cut into shares; ``together`` heads are in a tile."""
    batch, heads, queries, head_dim = piece.q.shape
    value_dim = piece.v.shape[3]
    own, units = queries * together, heads // together
    part = planner.empty((shares * batch, units, own, value_dim))
    part_lse = planner.empty((shares * batch, units, own))
    to_parts = dataclasses.replace(piece, o=part, lse=part_lse)
    arrays, push = operands(choice, to_parts, heads // piece.k.shape[1], call.scale, None, 0)
    constants = {
        "HEAD_DIM": head_dim, "VALUE_DIM": value_dim, "MASK": mask_kind(None), "CAUSAL": int(call.causal), "LSE": 1,
        "MERGE": 0, "MEMBERS": together,
    }  # fmt: skip
    arrays = {name: array for name, array in arrays.items() if name in choice.variant.bindings}
    groups = (-(-own // choice.tile["rows"]) * shares, units, batch)
    kind = (choice.variant.name, head_dim, value_dim, call.causal)
    planner.dispatch(choice, constants, arrays, push, groups, piece.flops(), kind)
    join(planner, registry, piece, (part, part_lse), shares, together)


def join(planner: Planner, registry: Registry, piece: Piece, parts, shares: int, together: int) -> None:
    """Add the dispatch that makes a piece's results of its shares' ``parts``, in whose tiles are ``together`` heads."""
    batch, heads, queries, value_dim = piece.o.shape
    part, part_lse = parts
    choice = registry.resolve(Request("attention-join", piece.o.dtype.name))
    width = value_dim // 4
    push = {
        **strided("o", piece.o), "lse_offset": At(piece.lse), "rows": batch * heads * queries,
        "heads": heads // together, "queries": queries, "members": together, "width": width, "shares": shares,
    }  # fmt: skip
    arrays = {"part": part, "part_lse": part_lse, "o": piece.o, "lse": piece.lse}
    teams = TEAMS if shares > TEAMS else 1
    groups = min(-(-batch * heads * queries * width * teams // choice.threads), planner.facts.groups[0])
    planner.dispatch(choice, {"LSE": int(piece.lse is not None), "TEAMS": teams}, arrays, push, (groups, 1, 1))
