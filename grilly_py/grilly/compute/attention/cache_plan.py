"""Plans of a cache beside attention: new rows written to it, and lengths of the device among the parameters."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from ...registry import Registry, Request
from ..device.device import DeviceFacts
from ..device.plan import At, Live, Plan, Planner, fits_binding, strided
from ..device.tensor import Tensor


def parameters_plan(given: tuple, layouts, facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatch that writes lengths and a table of pages among the parameters of options.

    The first input has the lengths; the last one instead, where the dispatch adds the new keys to them.
    """
    batch, columns, pages, queries, fresh, capacity, samples_at, pages_at = given
    planner = Planner(facts, layouts)
    lengths, table, parameters, count = planner.inputs
    choice = registry.resolve(Request("cache-parameters", "float32"))
    row, column = (0, 0) if table is None else table._strides
    stride = 0 if lengths is None else lengths._strides[0]
    push = {
        "lengths_offset": At(lengths), "lengths_stride": stride, "table_offset": At(table),
        "table_row": row, "table_column": column, "batch": batch, "columns": columns, "pages": pages,
        "queries": queries, "fresh": fresh, "capacity": capacity, "samples_place": samples_at, "pages_place": pages_at,
    }  # fmt: skip
    arrays = {"lengths": lengths, "table": table, "parameters": parameters, "count": count}
    groups = (-(-batch * columns // choice.threads), 1, 1)
    constants = {"PAGED": int(table is not None), "COUNTS": int(count is not None)}
    planner.dispatch(choice, constants, arrays, push, groups)
    return planner.plan()


class Rows(NamedTuple):
    """The static arguments of ``append_plan``.

    Attributes
    ----------
    rotary : int
        How elements are paired (shaders/cache/rotary.glsl), 0 where nothing is rotated.
    advance : bool
        Whether queries of a sample are rotated each by its own position; else all by the first one's.
    lay : tuple of int, or None
        Where samples' lengths and the table of pages begin among the parameters; None where all samples are alike.
    columns : int
        Of the table of pages; 0 where there is none.
    bits, room : int
        Of a quantized cache, which is one array for kernels: of a level, and keys that a sample has room for. 0 for a
        cache of floats.
    """

    rotary: int
    advance: bool
    lay: tuple[int, int] | None
    columns: int
    bits: int = 0
    room: int = 0


def append_plan(given: Rows, layouts, facts: DeviceFacts, registry: Registry) -> Plan:
    """The plan that writes new keys and values to a cache and rotates keys and queries: if possible one dispatch.

    Inputs: k, v and q (B, S, H, D), words, cosines, sines, both caches, and an array for the rotated queries; each may
    be absent. ``Live`` word 0: the keys before the new ones where samples are alike.
    """
    planner = Planner(facts, layouts)
    k, v, q, parameters, cos, sin, k_cache, v_cache, rotated = planner.inputs
    tables = (cos, sin)
    if given.bits:
        _quantize(planner, registry, given)
        return planner.plan()
    if _alike(given, facts, planner.inputs):
        _together(planner, registry, given)
        return planner.plan()
    count = 0 if k is None else k.shape[1]
    if k is not None and k.size:
        _append(planner, registry, given, k, k_cache, parameters, tables, True, count)
    if v is not None and v.size:
        _append(planner, registry, given, v, v_cache, parameters, (None, None), True, count)
    if q is not None and q.size:
        _append(planner, registry, given, q, rotated, parameters, tables, False, count)
    return planner.plan()


def _alike(given: Rows, facts: DeviceFacts, inputs) -> bool:
    """Whether one dispatch of cache-step serves all new rows."""
    k, v, q, _, cos, sin, k_cache, v_cache, rotated = inputs
    if k is None or not k.size or v.shape != k.shape or q is not None and q.shape[1::2] != k.shape[1::2]:
        return False
    if cos is not None and cos._strides != sin._strides:
        return False
    arrays = (k, v, q, rotated) + (() if given.columns else (k_cache, v_cache))
    heads = 2 * k.shape[2] + (0 if q is None else q.shape[2])
    return k.shape[0] * heads <= facts.groups[2] and k.shape[1] <= facts.groups[1] and all(
        array is None or fits_binding(facts, array) for array in arrays
    )  # fmt: skip


def _together(planner: Planner, registry: Registry, given: Rows) -> None:
    """All new rows in one dispatch."""
    k, v, q, parameters, cos, sin, k_cache, v_cache, rotated = planner.inputs
    batch, count, key_heads, width = k.shape
    choice = registry.resolve(Request("cache-step", k.dtype.name))
    pairs = 0 if cos is None else cos.shape[1]
    heads = 0 if q is None else q.shape[2]
    constants = {
        "ROTARY": given.rotary, "LENGTHS": int(given.lay is not None), "ADVANCE": int(given.advance), "WIDTH": width,
        "PAIRS": pairs, "KEY_HEADS": key_heads, "HEADS": heads, "PAGE_KEYS": k_cache.shape[1] if given.columns else 0,
    }  # fmt: skip
    samples_at, pages_at = given.lay or (0, 0)
    push: dict = {
        "cos_offset": At(cos), "sin_offset": At(sin), "table_row": 0 if cos is None else cos._strides[0],
        "samples": samples_at, "pages": pages_at, "pages_batch": given.columns,
        "start": Live(0) if given.lay is None else 0, "rows": count,
    }  # fmt: skip
    arrays = {"k": k, "v": v, "q": q, "k_cache": k_cache, "v_cache": v_cache, "rotated": rotated}
    for name, array in arrays.items():
        push |= strided(name, array, ("batch", "row", "head"))
    arrays |= {"parameters": parameters, "cosines": cos, "sines": sin}
    tile = choice.tile
    groups = (-(-(width - pairs) // tile["items"]), -(-count // tile["rows"]), batch * (2 * key_heads + heads))
    planner.dispatch(choice, constants, arrays, push, groups)


def _append(
    planner: Planner, registry: Registry, given: Rows, rows: Tensor, target: Tensor, parameters: Tensor | None,
    tables: tuple[Tensor | None, Tensor | None], into_cache: bool, count_all: int,
) -> None:  # fmt: skip
    """Rows of one array in dispatches of their own."""
    cos, sin = tables
    facts, lay = planner.facts, given.lay
    paged, advance = into_cache and bool(given.columns), into_cache or given.advance
    batch, count, heads, width = rows.shape
    choice = registry.resolve(Request("cache-append", rows.dtype.name))
    rotary = 0 if cos is None else given.rotary
    constants = {"ROTARY": rotary, "LENGTHS": int(lay is not None), "PAGED": int(paged), "CACHE": int(into_cache)}
    pairs = 0 if cos is None else cos.shape[1]
    samples_at, pages_at = lay or (0, 0)
    cos_row, sin_row = (0 if table is None else table._strides[0] for table in (cos, sin))
    tile, (_, most_y, most_z) = choice.tile, facts.groups
    fits = fits_binding(facts, rows) and (paged or fits_binding(facts, target))
    many = max(min(most_z // heads, batch), 1) if fits else 1
    most_rows = most_y * tile["rows"]
    for first, row in itertools.product(range(0, batch, many), range(0, count, most_rows)):
        x = rows[first : first + many, row : row + most_rows]
        y = target if paged else target[first : first + x.shape[0]]
        if not into_cache:
            y = y[:, row : row + most_rows]
        moved = row if advance else 0
        page, y_row, y_head, _ = y._strides
        push = {
            "x_offset": At(x), "x_batch": x._strides[0], "x_head": x._strides[2], "x_row": x._strides[1],
            "y_offset": At(y),
            "y_batch": 0 if paged else page, "y_head": y_head, "y_row": y_row, "y_page": page if paged else 0,
            "page_keys": y.shape[1] if paged else 1,
            "samples": samples_at + 4 * first, "pages": pages_at + given.columns * first,
            "pages_batch": given.columns,
            "cos_offset": At(cos), "cos_row": cos_row, "sin_offset": At(sin), "sin_row": sin_row,
            "start": Live(0, moved) if lay is None else 0, "fresh": count_all - moved, "advance": int(advance),
            "rows": x.shape[1], "pairs": pairs, "width": width, "heads": heads,
        }  # fmt: skip
        arrays = {"x": x, "parameters": parameters, "cosines": cos, "sines": sin, "y": y}
        groups = (-(-(width - pairs) // tile["items"]), -(-x.shape[1] // tile["rows"]), heads * x.shape[0])
        planner.dispatch(choice, constants, arrays, push, groups)


def _quantize(planner: Planner, registry: Registry, given: Rows) -> None:
    """All new rows to a quantized cache, in one dispatch unless they exceed the device's limits."""
    k, v, q, parameters, cos, sin, k_cache, v_cache, rotated = planner.inputs
    facts = planner.facts
    batch, count, key_heads, width = k.shape
    value_width, heads = v.shape[3], 0 if q is None else q.shape[2]
    if not batch * count * key_heads:
        return
    choice = registry.resolve(Request("cache-quantize", k.dtype.name))
    constants = {
        "ROTARY": given.rotary, "LENGTHS": int(given.lay is not None), "ADVANCE": int(given.advance), "WIDTH": width,
        "VALUE_WIDTH": value_width, "PAIRS": 0 if cos is None else cos.shape[1], "KEY_HEADS": key_heads,
        "HEADS": heads, "BITS": given.bits,
    }  # fmt: skip
    numbers = (key_heads * width, key_heads * value_width, heads * width)
    across = sum(-(-each // choice.tile["items"]) for each in numbers)
    fits = all(array is None or fits_binding(facts, array) for array in (k, v, q, rotated))
    many, most_rows = min(facts.groups[2], batch) if fits else 1, facts.groups[1]
    for first, row in itertools.product(range(0, batch, many), range(0, count, most_rows)):
        samples, rows = slice(first, first + many), slice(row, row + most_rows)
        x = {"k": k[samples, rows], "v": v[samples, rows]}
        x |= {"q": None, "rotated": None} if q is None else {"q": q[samples, rows], "rotated": rotated[samples, rows]}
        push: dict = {
            "k_cache_offset": At(k_cache), "v_cache_offset": At(v_cache), "first_sample": first, "capacity": given.room,
            "samples_all": batch,
            "cos_offset": At(cos), "cos_row": 0 if cos is None else cos._strides[0],
            "sin_offset": At(sin), "sin_row": 0 if sin is None else sin._strides[0],
            "samples": 0 if given.lay is None else given.lay[0],
            "start": Live(0) if given.lay is None else 0, "fresh": count, "first_row": row,
        }  # fmt: skip
        for name, array in x.items():
            push |= strided(name, array, ("batch", "row", "head"))
        arrays = {**x, "parameters": parameters, "cosines": cos, "sines": sin, "k_cache": k_cache, "v_cache": v_cache}
        planner.dispatch(choice, constants, arrays, push, (across, *x["k"].shape[1::-1]))
