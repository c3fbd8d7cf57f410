"""Plans of what a cache needs beside attention: new rows put into it, and words of lengths that lie on the device."""

from __future__ import annotations

import itertools

from ...registry import Registry, Request
from ..device.device import DeviceFacts
from ..device.plan import At, Live, Plan, Planner, fits_binding


def words_plan(given: tuple, layouts, facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatch that writes lengths and a table of pages among the words of options.

    The lengths are in the first input, or in the last, where they are to grow by the new keys.
    """
    batch, columns, pages, queries, fresh, capacity, samples_at, pages_at = given
    planner = Planner(facts, layouts)
    lengths, table, words, count = planner.inputs
    choice = registry.resolve(Request("cache-words", "float32"))
    row, column = (0, 0) if table is None else table._steps
    step = 0 if lengths is None else lengths._steps[0]
    push = {
        "lengths_offset": At(lengths), "lengths_step": step, "table_offset": At(table),
        "table_row": row, "table_column": column, "batch": batch, "columns": columns, "pages": pages,
        "queries": queries, "fresh": fresh, "capacity": capacity, "samples_place": samples_at, "pages_place": pages_at,
    }  # fmt: skip
    arrays = {"lengths": lengths, "table": table, "words": words, "count": count}
    groups = (-(-batch * columns // choice.threads), 1, 1)
    constants = {"PAGED": int(table is not None), "COUNTS": int(count is not None)}
    planner.dispatch(choice, constants, arrays, push, groups)
    return planner.plan()


def append_plan(given: tuple, layouts, facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches that copy rows to a cache. ``Live`` word 0: the keys before them where samples are alike."""
    rotary, into_cache, paged, advance, count_all, lay, columns = given
    planner = Planner(facts, layouts)
    rows, words, cos, sin, target = planner.inputs
    batch, count, heads, width = rows.shape
    choice = registry.resolve(Request("cache-append", rows.dtype.name))
    constants = {"ROTARY": rotary, "LENGTHS": int(lay is not None), "PAGED": int(paged), "CACHE": int(into_cache)}
    pairs = 0 if cos is None else cos.shape[1]
    samples_at, pages_at = lay or (0, 0)
    cos_row, sin_row = (0 if table is None else table._steps[0] for table in (cos, sin))
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
        page, y_row, y_head, _ = y._steps
        push = {
            "x_offset": At(x), "x_batch": x._steps[0], "x_head": x._steps[2], "x_row": x._steps[1], "y_offset": At(y),
            "y_batch": 0 if paged else page, "y_head": y_head, "y_row": y_row, "y_page": page if paged else 0,
            "page_keys": y.shape[1] if paged else 1,
            "samples": samples_at + 4 * first, "pages": pages_at + columns * first, "pages_batch": columns,
            "cos_offset": At(cos), "cos_row": cos_row, "sin_offset": At(sin), "sin_row": sin_row,
            "start": Live(0, moved) if lay is None else 0, "fresh": count_all - moved, "advance": int(advance),
            "rows": x.shape[1], "pairs": pairs, "width": width, "heads": heads,
        }  # fmt: skip
        arrays = {"x": x, "words": words, "cosines": cos, "sines": sin, "y": y}
        groups = (-(-(width - pairs) // tile["items"]), -(-x.shape[1] // tile["rows"]), heads * x.shape[0])
        planner.dispatch(choice, constants, arrays, push, groups)
    return planner.plan()
