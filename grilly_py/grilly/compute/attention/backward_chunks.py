"""Chunks of the kernels of gradients: cut into dispatches within a device's limits."""

from __future__ import annotations

import dataclasses

from ..device.device import DeviceFacts
from ..device.plan import fits_binding, span
from ..device.tensor import Tensor
from .chunks import AXES, cut_up, equal_share, half, half_of_heads

# Which axis of which operand a cut along "query", "key", "batch" or "head" (of the queries) shortens.
_OF_QUERIES = ("q", "g", "stats", "mask", "bias", "dq")
_OF_KEYS = ("k", "v", "dk", "dv")


@dataclasses.dataclass
class Chunk:
    """One dispatch of the kernel for dq (``results`` holds dq) or for dk and dv: views of the operands."""

    views: dict[str, Tensor]
    shift: int
    accumulate: bool = False
    more: bool = False  # chunks with later keys of the same queries follow
    first: tuple[int, int, int, int] = (0, 0, 0, 0)  # batch, query head, query and key of the whole call
    shares: int = 1  # workgroups that share the query heads of a key head; dk and dv have so many heads for each

    @property
    def results(self) -> list[Tensor]:
        """What it writes."""
        return [self.views[name] for name in ("dq", "dk", "dv") if name in self.views]

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.views["q"].shape[1] // self.views["k"].shape[1]

    def cut(self, axis: str, at: int) -> tuple[Chunk, Chunk]:
        """Two chunks that together do this one's work, in this order: before and from ``at`` on (``AXES``)."""
        adds = axis == "key" if "dq" in self.views else axis in ("query", "member")
        chunks = []
        for low, high in ((0, at), (at, None)):
            views = {}
            for name, view in self.views.items():
                of_queries = name in _OF_QUERIES
                place, ratio = 2, 1
                if axis == "batch":
                    place = 0
                elif axis in ("head", "member"):
                    place, ratio = 1, self.group if axis == "head" and of_queries else 1
                    if axis == "member" and not of_queries:
                        ratio = 0
                elif name in ("mask", "bias"):
                    place = 2 if axis == "query" else 3
                elif of_queries != (axis == "query"):
                    ratio = 0
                part = slice(low * ratio, None if high is None else high * ratio)
                views[name] = view[(slice(None),) * place + (part,)] if ratio else view
            shift = self.shift + (low if axis == "query" else -low if axis == "key" else 0)
            step = low * self.group if axis == "head" else low
            first = tuple(f + step if n == AXES[axis] else f for n, f in enumerate(self.first))
            more = self.more or (adds and axis == "key" and low == 0)
            chunks.append(Chunk(views, shift, self.accumulate or (adds and low > 0), more, first, self.shares))
        return chunks[0], chunks[1]

    def flops(self) -> float:
        """Floating-point operations of the products."""
        batch, heads, queries, dim = self.views["q"].shape
        keys, value_dim = self.views["v"].shape[2:]
        products = 2 * dim + value_dim if "dq" in self.views else 2 * dim + 2 * value_dim
        return 2.0 * batch * heads * queries * keys * products


def _result_fits(facts: DeviceFacts, view: Tensor) -> bool:
    """Whether ``bind_results`` can bind the view."""
    limit = facts.storage_range
    slack = facts.alignment * view.shape[3] * view.dtype.itemsize
    return view._storage.nbytes <= limit or span(view) + slack + 4 <= limit


def bind_results(facts: DeviceFacts, results: list[Tensor]) -> tuple[list[tuple[int, int, int]], int]:
    """Windows of the results over the same rows, and the number of their first row."""
    row = results[0]._offset // results[0].shape[3]
    if all(view._storage.nbytes <= facts.storage_range for view in results):
        return [(view._storage.number, 0, 0) for view in results], row
    # A row number that is a multiple of the alignment begins at an aligned byte, whatever the width of a row.
    base = row - row % facts.alignment
    found = []
    for view in results:
        start = base * view.shape[3] * view.dtype.itemsize
        end = view._offset * view.dtype.itemsize + span(view)
        length = min(-(-(end - start) // 4) * 4, view._storage.nbytes - start)
        found.append((view._storage.number, start, length))
    return found, row - base


def _place_to_cut(facts: DeviceFacts, chunk: Chunk, most_walked: int, most_work: float) -> tuple[str, int] | None:
    """Arguments of ``Chunk.cut`` for a chunk beyond the limits of one dispatch; None for others."""
    batch, heads, queries, _ = chunk.views["q"].shape
    kv_heads, keys = chunk.views["k"].shape[1:3]
    for_queries = "dq" in chunk.views
    if for_queries and keys > most_walked:
        return "key", equal_share(keys, most_walked, 64)
    if not for_queries and chunk.group * queries > most_walked:
        if chunk.group <= most_walked:
            return "query", equal_share(queries, most_walked // chunk.group, 64)
        return half_of_heads(heads, kv_heads)
    _, most_heads, most_batch = facts.groups
    if batch > most_batch:
        return "batch", most_batch
    if (heads if for_queries else kv_heads) > most_heads:
        return half_of_heads(heads, kv_heads)
    large = {
        name: view for name, view in chunk.views.items()
        if not (_result_fits if name in ("dq", "dk", "dv") else fits_binding)(facts, view)
    }  # fmt: skip
    if not large and chunk.flops() <= most_work:
        return None
    keys_first = any(name in _OF_KEYS for name in large) if large else not for_queries
    return half(list(large.values()), (batch, heads, queries, keys), kv_heads, keys_first)


def split(facts: DeviceFacts, chunk: Chunk, most_walked: int, most_work: float) -> list[Chunk]:
    """The dispatches of a chunk in their order, each of at most so many floating-point operations."""
    return cut_up(chunk, lambda part: _place_to_cut(facts, part, most_walked, most_work))
