"""The end of a call whose tiles fill a device a few times: its last heads share out their keys, so that the last round
of workgroups, which takes as long as any, is as full as the others.

The kernels are those of shares.py, with tiles of as many rows.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from ...errors import UnsupportedError
from ...registry import Choice, Registry
from ..device.device import DeviceFacts
from ..device.plan import Planner
from ..device.tensor import Tensor
from .call import AttentionCall
from .operands import outputs
from .pieces import Piece
from .shares import JOIN_KEYS, ROWS, START_KEYS, is_plain, request, results_bytes

#: Rounds beyond which the last one no longer matters; shares of a head's keys at most; what must be saved.
MOST_ROUNDS, MOST_SHARES, SAVED = 12, 8, 0.08
#: Keys of a share at least.
FEWEST_KEYS = 256


class Tail(NamedTuple):
    """The heads of a call whose keys are shared out.

    Attributes
    ----------
    choice : Choice
        The kernel.
    heads : int
        How many key heads, the last ones, counted over all samples.
    shares : int
    """

    choice: Choice
    heads: int
    shares: int


def rounds(tiles: int, heads: int, keys: int, at_once: int) -> tuple[float, int, int]:
    """How many rounds of workgroups equal tiles take, the keys of how many key heads are to be shared out, and into how
    many shares; 0 where that does not pay.

    ``heads`` is the number of all key heads. ``at_once`` workgroups run side by side.
    """
    full, left = divmod(tiles, at_once)
    whole = float(full + (left > 0))
    each = tiles // heads
    last = -(-left // each)
    if not 1 <= full <= MOST_ROUNDS or not 0 < last < heads or keys < 2 * FEWEST_KEYS:
        return whole, 0, 0
    busy, more = divmod(tiles - last * each, at_once)  # what the other heads take: rounds, and workgroups of one more
    best = whole * (1 - SAVED), 0, 0
    for shares in range(2, min(keys // FEWEST_KEYS, MOST_SHARES) + 1):
        count = last * each * shares
        takes = (-(-keys // shares) + START_KEYS) / (keys + START_KEYS)
        cost = max(_end(count, takes, at_once, busy, more), busy + (more > 0))
        cost += JOIN_KEYS * count / at_once / (keys + START_KEYS)
        best = min(best, (cost, last, shares))
    return best if best[1] else (whole, 0, 0)


def _end(count: int, takes: float, at_once: int, busy: int, more: int) -> float:
    """When ``count`` workgroups have ended that take a part of a round each: ``more`` of their places become free after
    ``busy`` + 1 rounds, the others after ``busy``."""
    done, first, later, end = 0, 0, 0, 0.0
    while done < count:
        soon, late = busy + (first + 1) * takes, busy + 1 + (later + 1) * takes
        if soon <= late or not more:
            first, done, end = first + 1, done + at_once - more, soon
        else:
            later, done, end = later + 1, done + more, late
    return end


def tail(call: AttentionCall, facts: DeviceFacts, registry: Registry, rows: int) -> Tail | None:
    """The heads of a call that are better shared out, beside a kernel with tiles of ``rows``; None for none."""
    if not divisible(call, facts):
        return None
    batch, heads, queries, head_dim = call.q.shape
    kv_heads, keys, value_dim = call.k.shape[1], call.k.shape[2], call.v.shape[3]
    o, _, _ = outputs(Planner(facts, [call.q]), call)
    try:
        choice = registry.resolve(request(call, o, queries, tall=rows > ROWS))
    except UnsupportedError:
        return None
    alike = choice.tile["rows"] == rows and head_dim >= choice.tile.get("narrowest", head_dim + 1)
    if not alike or not _is_flat(o.shape, o._steps):
        return None
    tiles, at_once = batch * heads * -(-queries // rows), choice.tile["resident"] * facts.units
    _, last, shares = rounds(tiles, batch * kv_heads, keys, at_once)
    handed = results_bytes(shares * last * (heads // kv_heads) * queries, value_dim)
    return Tail(choice, last, shares) if last and handed <= facts.workspace and facts.holds(handed) else None


def divisible(call: AttentionCall, facts: DeviceFacts) -> bool:
    """Whether the keys of a call's last heads may be shared out: its tiles are equal, and it has no options."""
    alone = call.kernel is None and call.packed is None and not call.counted
    # Else there would have to be more pieces, which wait for each other where they write to one array.
    flat = all(_is_flat(layout.shape, layout.steps) for layout in (call.q, call.k, call.v))
    return alone and flat and not call.causal and facts.architecture != "llvmpipe" and is_plain(call, facts)


def cut(piece: Piece, last: int) -> tuple[Piece, Piece]:
    """A piece whose samples are ``flat``, cut into its first key heads and its ``last`` ones."""
    q, k, v, o, lse = (_flat(t) for t in (piece.q, piece.k, piece.v, piece.o, piece.lse))
    return dataclasses.replace(piece, q=q, k=k, v=v, o=o, lse=lse).cut("head", k.shape[1] - last)


def _flat(tensor: Tensor | None) -> Tensor | None:
    """The heads of all samples as those of one."""
    if tensor is None or tensor.shape[0] == 1:
        return tensor
    (batch, heads, *others), steps = tensor.shape, tensor._steps
    shape, flat = (1, batch * heads, *others), (0, steps[0] if heads == 1 else steps[1], *steps[2:])
    return Tensor(tensor._storage, shape, tensor.dtype, flat, tensor._offset)


def _is_flat(shape: tuple[int, ...], steps: tuple[int, ...]) -> bool:
    """Whether the heads of all samples lie at equal steps."""
    return 1 in shape[:2] or steps[0] == shape[1] * steps[1]
