"""Pieces: how a call is cut into dispatches where one would be beyond a device's limits."""

from __future__ import annotations

import dataclasses
import math

from ..device.device import DeviceFacts
from ..device.plan import fits_binding, span
from ..device.tensor import Tensor


@dataclasses.dataclass
class Piece:
    """One dispatch: views of the operands and what changes with them."""

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    lse: Tensor | None
    mask: Tensor | None
    shift: int
    merge: bool
    bias: Tensor | None = None
    first: tuple[int, int, int, int] = (0, 0, 0, 0)  # batch, head, row and key of the whole call
    paged: bool = False  # k and v begin at page 0 whatever the first key is

    def cut(self, axis: str, at: int) -> tuple[Piece, Piece]:
        """Two pieces that together do this one's work, cut along "batch", "group", "head", "query" or "key"."""
        index = {"batch": 0, "group": 1, "head": 1, "query": 2, "key": 3}[axis]
        pieces = []
        for low, high in ((0, at), (at, None)):
            part = (slice(None),) * index + (slice(low, high),)
            fields: dict = {}
            if axis == "key":
                # Of paged keys only the number changes: the kernel looks for them from `first` on.
                span_ = slice(self.k.shape[2] - low if high is None else high) if self.paged else slice(low, high)
                keys = (slice(None), slice(None), span_)
                fields.update(k=self.k[keys], v=self.v[keys], shift=self.shift - low, merge=self.merge or low > 0)
            else:
                fields.update(q=self.q[part], o=self.o[part], lse=None if self.lse is None else self.lse[part])
                if axis == "query":
                    fields.update(shift=self.shift + low)
                elif axis == "batch":
                    fields.update(k=self.k[part], v=self.v[part])
                elif axis == "group":
                    ratio = self.q.shape[1] // self.k.shape[1]
                    heads = (slice(None), slice(low // ratio, None if high is None else high // ratio))
                    fields.update(k=self.k[heads], v=self.v[heads])
            fields["mask"] = None if self.mask is None else self.mask[part]
            fields["bias"] = None if self.bias is None else self.bias[part]
            fields["first"] = tuple(f + low if axis_ == index else f for axis_, f in enumerate(self.first))
            pieces.append(dataclasses.replace(self, **fields))
        return pieces[0], pieces[1]

    def flops(self) -> float:
        """Floating-point operations of the two products, halved where causal leaves out about half."""
        b, h, queries, dim = self.q.shape
        return 2.0 * b * h * queries * self.k.shape[2] * (dim + self.v.shape[3])


def _place_to_cut(facts: DeviceFacts, piece: Piece, max_keys: float, most_work: float) -> tuple[str, int] | None:
    """Where to cut a piece that one dispatch cannot do, as arguments of ``Piece.cut``; None when it can."""
    batch, heads, queries, _ = piece.q.shape
    kv_heads, keys = piece.k.shape[1], piece.k.shape[2]
    if keys > max_keys:
        # Equal shares, of whole 256s where they are large, so that kernels see full tiles.
        share = math.ceil(keys / math.ceil(keys / max_keys))
        whole = -(-share // 256) * 256
        return "key", whole if whole <= max_keys else min(share, int(max_keys))
    _, most_heads, most_batch = facts.groups
    if batch > most_batch:
        return "batch", most_batch
    if heads > most_heads:
        return ("group", kv_heads // 2 * (heads // kv_heads)) if kv_heads > 1 else ("head", heads // 2)
    large = [t for t in (piece.q, piece.k, piece.v, piece.o, piece.lse, piece.mask, piece.bias) if t is not None]
    large = [t for t in large if not fits_binding(facts, t)]
    if not large and piece.flops() <= most_work:
        return None

    def helps(axis: int) -> bool:
        """Halving the axis shortens what is too large; it does not where another axis is outermost in memory."""
        return not large or any(
            4 * t._steps[axis] * (t.shape[axis] // 2) * t.dtype.itemsize > span(t) for t in large
        )

    if batch > 1 and helps(0):
        return "batch", batch // 2
    if kv_heads > 1 and helps(1):
        return "group", kv_heads // 2 * (heads // kv_heads)
    if heads > kv_heads == 1 and helps(1):
        return "head", heads // 2
    key_side = any(t is piece.k or t is piece.v for t in large)
    if keys > 1 and (key_side or queries == 1):
        return "key", keys // 2
    if queries > 1:
        return "query", queries // 2
    raise AssertionError("one query and one key, 1 KiB each, do not fit a binding")


def split(
    facts: DeviceFacts, piece: Piece, max_keys: float = math.inf, kind: tuple | None = None
) -> list[Piece]:
    """The dispatches that do a piece, in the order in which they must run; ``kind`` as in ``Step``."""
    most_work = facts.most_work(kind)
    todo, done = [piece], []
    while todo:
        piece = todo.pop()
        place = _place_to_cut(facts, piece, max_keys, most_work)
        if place is None:
            done.append(piece)
        else:
            todo.extend(reversed(piece.cut(*place)))
    return done
