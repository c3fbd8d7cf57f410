"""Chunks: a call cut into dispatches within a device's limits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from ..device.device import DeviceFacts
from ..device.plan import fits_binding, span
from ..device.tensor import Tensor

#: Axes along which a chunk is cut, and which of a call's (B, H, Sq, Sk) they are: "head" counts key heads, each with
#: its query heads, "member" the query heads of the only key head.
AXES = {"batch": 0, "head": 1, "member": 1, "query": 2, "key": 3}


class Cuttable(Protocol):
    """A chunk: what can be cut in two."""

    def cut(self: P, axis: str, at: int) -> tuple[P, P]:
        """Two chunks that together do this one's work, in this order: before and from ``at`` on."""


P = TypeVar("P", bound=Cuttable)


@dataclasses.dataclass
class Chunk:
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

    def cut(self, axis: str, at: int) -> tuple[Chunk, Chunk]:
        """Two chunks that together do this one's work, in this order: before and from ``at`` on (``AXES``)."""
        index = AXES[axis]
        ratio = self.q.shape[1] // self.k.shape[1] if axis == "head" else 1
        chunks = []
        for low, high in ((0, at), (at, None)):
            own = slice(low, high)  # of k and v, where they are cut too
            low, high = low * ratio, None if high is None else high * ratio
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
                elif axis in ("batch", "head"):
                    place = (*part[:-1], own)
                    fields.update(k=self.k[place], v=self.v[place])
            fields["mask"] = None if self.mask is None else self.mask[part]
            fields["bias"] = None if self.bias is None else self.bias[part]
            fields["first"] = tuple(f + low if axis_ == index else f for axis_, f in enumerate(self.first))
            chunks.append(dataclasses.replace(self, **fields))
        return chunks[0], chunks[1]

    def flops(self) -> float:
        """Floating-point operations of the two products with all keys, whatever hides some."""
        b, h, queries, dim = self.q.shape
        return 2.0 * b * h * queries * self.k.shape[2] * (dim + self.v.shape[3])


def _place_to_cut(facts: DeviceFacts, chunk: Chunk, max_keys: float, most_work: float) -> tuple[str, int] | None:
    """Arguments of ``Chunk.cut`` for a chunk beyond the limits of one dispatch; None for others."""
    batch, heads, queries, _ = chunk.q.shape
    kv_heads, keys = chunk.k.shape[1], chunk.k.shape[2]
    if keys > max_keys:
        return "key", equal_share(keys, int(max_keys), 256)
    _, most_heads, most_batch = facts.groups
    if batch > most_batch:
        return "batch", most_batch
    if heads > most_heads:
        return half_of_heads(heads, kv_heads)
    large = [t for t in (chunk.q, chunk.k, chunk.v, chunk.o, chunk.lse, chunk.mask, chunk.bias) if t is not None]
    large = [t for t in large if not fits_binding(facts, t)]
    if not large and chunk.flops() <= most_work:
        return None
    keys_first = any(t is chunk.k or t is chunk.v for t in large)
    return half(large, (batch, heads, queries, keys), kv_heads, keys_first)


def split(facts: DeviceFacts, chunk: Chunk, max_keys: float = math.inf, most_work: float | None = None) -> list[Chunk]:
    """The dispatches of a chunk in their order.

    ``most_work``: floating-point operations of one dispatch at most, by default ``facts.work_limit``.
    """
    most = facts.work_limit if most_work is None else most_work
    return cut_up(chunk, lambda part: _place_to_cut(facts, part, max_keys, most))


# -- what chunks of attention and of its gradients share ---------------------------------------------------------------


def equal_share(count: int, most: int, whole: int) -> int:
    """An equal share of ``count``, of at most ``most``; a multiple of ``whole`` where it is large: full tiles."""
    share = math.ceil(count / math.ceil(count / most))
    rounded = -(-share // whole) * whole
    return rounded if rounded <= most else share


def half_of_heads(heads: int, kv_heads: int) -> tuple[str, int]:
    """Where to halve heads: between key heads ("head"), or the query heads of the only one ("member")."""
    return ("head", kv_heads // 2) if kv_heads > 1 else ("member", heads // 2)


def half(large: Sequence[Tensor], full: tuple[int, int, int, int], kv_heads: int, keys_first: bool) -> tuple[str, int]:
    """The axis to halve, and where: so that ``large`` views fit a binding; without any, to halve the work.

    ``full`` is (B, H, Sq, Sk); ``keys_first`` says that keys are to be fewer rather than queries.
    """
    batch, heads, queries, keys = full

    def helps(axis: int) -> bool:
        """Whether halving the axis shortens the large views. It does not where another axis is outermost in memory."""
        return not large or any(4 * t._strides[axis] * (t.shape[axis] // 2) * t.dtype.itemsize > span(t) for t in large)

    if batch > 1 and helps(0):
        return "batch", batch // 2
    if heads > 1 and helps(1):
        return half_of_heads(heads, kv_heads)
    if keys > 1 and (keys_first or queries == 1):
        return "key", keys // 2
    if queries > 1:
        return "query", queries // 2
    raise AssertionError("one query and one key, 1 KiB each, do not fit a binding")


def cut_up(chunk: P, place: Callable[[P], tuple[str, int] | None]) -> list[P]:
    """The parts of a chunk in their order, cut until ``place`` gives None for each."""
    todo, done = [chunk], []
    while todo:
        chunk = todo.pop()
        at = place(chunk)
        if at is None:
            done.append(chunk)
        else:
            todo.extend(reversed(chunk.cut(*at)))
    return done
