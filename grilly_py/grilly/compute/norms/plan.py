"""The plan of everything that is done to rows: shaders/norms/norm-rows.comp."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ...errors import UnsupportedError
from ...registry import Choice, Registry, Request
from ...registry.shared import value
from ..arrays.axes import fewest_axes
from ..arrays.map import gathered, halves
from ..device.caches import Kept
from ..device.device import DeviceFacts
from ..device.plan import At, Layout, Plan, Planner, fits_binding
from ..device.record import Ready
from ..device.tensor import Tensor, reshaped

#: Plans of normalisations, softmaxes and their gradients.
PLANS: Kept[tuple, Ready] = Kept("plans of norms", 1024)

_OUTER_AXES = 3
_ALIGNED = 16  # elements: where memory of a plan's own begins
#: Floating-point operations for each element, about.
_WORK = 30.0
#: Walks over a row that is not held.
_WALKS = 2


class Terms(NamedTuple):
    """What is asked of rows.

    Attributes
    ----------
    operation : str
        A name of the shaders' table "norms".
    kept : int
        Leading axes that count the rows; the others are a row's elements. -1 where ``axis`` is.
    axis : int
        The one axis along which a row's elements lie; -1 where ``kept`` is.
    groups : int
        Rows into which the second axis is divided, whose elements have a weight for each place on that axis; or 0.
    epsilon, added : float
        What is added to the variance, and to each weight.
    terms : bool
        Whether to give what the weight's gradient is the sum of.
    """

    operation: str
    kept: int
    axis: int = -1
    groups: int = 0
    epsilon: float = 0.0
    added: float = 0.0
    terms: bool = False


class _Rows(NamedTuple):
    """Arrays with axes that count rows, and a last one for their elements."""

    x: Tensor
    r: Tensor | None
    w: Tensor | None
    b: Tensor | None
    y: Tensor
    s: Tensor | None
    t: Tensor | None
    groups: int
    aligned: bool

    def part(self, axis: int, low: int, high: int) -> _Rows:
        """Rows from ``low`` to ``high`` along an axis."""
        index = (slice(None),) * axis + (slice(low, high),)
        cut = [None if a is None else a[index] for a in (self.x, self.r, self.y, self.s, self.t)]
        w, b, groups = self.w, self.b, self.groups
        if groups and axis == self.x.ndim - 2:
            each = slice(low * self.each, high * self.each)
            w, b = (None if a is None else a[each] for a in (w, b))
            groups = high - low
        return self._replace(x=cut[0], r=cut[1], w=w, b=b, y=cut[2], s=cut[3], t=cut[4], groups=groups)

    @property
    def each(self) -> int:
        """Weights of a row of a group."""
        factor = self.w if self.w is not None else self.b
        return 0 if factor is None or not self.groups else factor.size // self.groups


def plan(given: tuple[Terms], layouts: Sequence[Layout | None], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches on an array, what is added to it or the output's gradient, a weight and a bias.

    The last two are contiguous. Results: the output; with something added the sum; or what ``terms`` asks for.
    """
    (terms,) = given
    planner = Planner(facts, layouts)
    x, r, w, b = planner.inputs
    offsets = [None if layout is None else layout.offset for layout in layouts]
    gradient = terms.operation.endswith("_BACKWARD")
    y = planner.empty(x.shape, x.dtype)
    s = planner.empty(x.shape, x.dtype) if r is not None and not gradient else None
    t = planner.empty(x.shape) if terms.terms else None
    given_arrays = [x, r]
    for number, array in enumerate(given_arrays):
        if array is not None and _viewed(terms, array) is None:
            given_arrays[number], offsets[number] = gathered(planner, registry, array, offsets[number]), _ALIGNED
    arrays = [None if array is None else _viewed(terms, array) for array in (*given_arrays, y, s, t)]
    if len(fewest_axes(arrays[0].shape[:-1], [a._steps[:-1] for a in arrays[:3] if a is not None])[0]) > _OUTER_AXES:
        for number, array in enumerate(arrays[:2]):
            if array is not None:
                arrays[number], offsets[number] = gathered(planner, registry, array, offsets[number]), _ALIGNED
    x_rows, r_rows, y_rows, s_rows, t_rows = arrays
    w, b = (None if a is None else a.reshape(a.size) for a in (w, b))
    aligned = all(offset is None or offset % 4 == 0 for offset in offsets)
    _emit(planner, registry, terms, _Rows(x_rows, r_rows, w, b, y_rows, s_rows, t_rows, terms.groups, aligned))
    return planner.plan(y, s, t)


def emit_rms_norm(
    planner: Planner, registry: Registry, x: Tensor, w: Tensor, epsilon: float, added: float, offsets: Sequence[int]
) -> Tensor:
    """Dispatches of RMS norm over the last axis of at most four, of x's shape in memory of the plan's.

    ``offsets`` divide those of x and w (``Layout.offset``).
    """
    y = planner.empty(x.shape, x.dtype)
    terms = Terms("RMS_NORM", x.ndim - 1, epsilon=epsilon, added=added)
    aligned = all(offset % 4 == 0 for offset in offsets)
    _emit(planner, registry, terms, _Rows(x, None, w, None, y, None, None, 0, aligned))
    return y


def _viewed(terms: Terms, array: Tensor) -> Tensor | None:
    """The array with an axis of a row's elements last, or None where its strides have none."""
    if terms.axis >= 0:
        return array.transpose([*(a for a in range(array.ndim) if a != terms.axis), terms.axis])
    if terms.groups:
        shape = (array.shape[0], terms.groups, math.prod(array.shape[1:]) // terms.groups)
    else:
        shape = (*array.shape[: terms.kept], math.prod(array.shape[terms.kept :]))
    steps = reshaped(array.shape, array._steps, shape)
    return None if steps is None else array._view(shape, steps)


def _emit(planner: Planner, registry: Registry, terms: Terms, rows: _Rows) -> None:
    """Dispatches, cut where the arrays are too large for a binding."""
    facts = planner.facts
    large = [a for a in (rows.x, rows.r, rows.y, rows.s, rows.t) if a is not None and not fits_binding(facts, a)]
    if not large:
        _dispatch(planner, registry, terms, rows)
        return
    axis = next((axis for axis, extent in enumerate(rows.x.shape[:-1]) if extent > 1), None)
    if axis is None:
        raise UnsupportedError(
            f"{terms.operation.lower()}: one row of {rows.x.shape[-1]:,} elements does not fit one binding of "
            f"{facts.storage_range:,} bytes"
        )
    half = -(-rows.x.shape[axis] // 2)
    for low, high in ((0, half), (half, rows.x.shape[axis])):
        _emit(planner, registry, terms, rows.part(axis, low, high))


def _dispatch(planner: Planner, registry: Registry, terms: Terms, rows: _Rows) -> None:
    facts = planner.facts
    x, r, w, b, y, s, t, groups, aligned = rows
    arrays = [array for array in (x, r, y) if array is not None]
    outer, steps = fewest_axes(x.shape[:-1], [array._steps[:-1] for array in arrays])
    count, cols = math.prod(outer), x.shape[-1]
    lengths = [array._steps[-1] if cols > 1 else 1 for array in arrays]
    div = cols // rows.each if rows.each else 1
    quads = (
        aligned and cols % 4 == 0 and div % (4 if groups else 1) == 0 and all(length == 1 for length in lengths)
        and all(array._offset % 4 == 0 for array in arrays)
        and (groups > 0 or all(array is None or array._offset % 4 == 0 for array in (w, b)))
        and all(step % 4 == 0 for own in steps for step, extent in zip(own, outer, strict=True) if extent > 1)
    )  # fmt: skip
    columns = count > 1 and all(own[-1] == 1 and length != 1 for own, length in zip(steps, lengths, strict=True))
    needs = {"gradient": int(terms.operation.endswith("_BACKWARD")), "sums": int(s is not None and columns)}
    # Widths in steps, so that the registry sees few different requests.
    needs |= {"align": 4 if quads else 1, "cols": min(-(-cols // 256), 4) * 256}
    choice = registry.resolve(Request("norm-rows", x.dtype.name, facts=needs))
    lanes, held, is_long = _deal(choice, facts, count, cols, columns, quads)
    blocks = -(-cols // (4 * held * lanes))
    if is_long and _WALKS * blocks > facts.loop_trips:
        raise UnsupportedError(
            f"{terms.operation.lower()}: rows of {cols:,} elements; this driver's loops end after "
            f"{int(facts.loop_trips / _WALKS) * 4 * held * lanes:,}"
        )
    words: dict = {"rows": count, "e_1": outer[-2] if len(outer) > 1 else 1, "e_2": outer[-1], "cols": cols}
    for name, array in (("x", x), ("r", r), ("y", y)):
        own = steps[next(n for n, a in enumerate(arrays) if a is array)] if array is not None else []
        own = [0] * (_OUTER_AXES - len(own)) + list(own)
        words[f"{name}_offset"] = At(array)
        words |= {f"{name}_{axis}": step % 2**32 for axis, step in enumerate(own)}
        words[f"{name}_step"] = 0 if array is None else array._steps[-1] if cols > 1 else 1
    words |= {
        "w_offset": At(w), "b_offset": At(b), "w_groups": max(groups, 1), "w_div": div,
        "w_each": rows.each,
        "epsilon": terms.epsilon, "w_add": terms.added,
    }  # fmt: skip
    constants = {
        "OPERATION": value("norms", terms.operation), "LANES": lanes, "COLUMNS": int(columns), "QUADS": int(quads),
        "HELD": held, "LONG": int(is_long), "ADDS": int(s is not None), "WEIGHT": int(w is not None),
        "BIAS": int(b is not None), "CHANNELS": int(groups > 0), "TERMS": int(t is not None),
        "THREADS": choice.threads, "WHOLE": int(cols == 4 * held * lanes),
        "LATE": choice.tile.get("late", 0), "HALVES": halves(registry),
    }  # fmt: skip
    constants = {name: value for name, value in constants.items() if name in choice.variant.constants}
    # What is not written is y once more: the runtime would put an array there that others may read meanwhile, and those
    # who look at the shader alone (validation layers) take it for written.
    bound = {"x": x, "r": r, "w": w, "b": b, "y": y, "s": y if s is None else s, "t": y if t is None else t}
    needed = -(-count // (choice.threads // lanes))
    stripe = min(choice.tile["stripe"], facts.groups[0])
    planner.dispatch(
        choice, constants, bound, words, (min(needed, stripe), -(-needed // stripe), 1), _WORK * count * cols
    )


def _deal(
    choice: Choice, facts: DeviceFacts, count: int, cols: int, columns: bool, quads: bool
) -> tuple[int, int, bool]:
    """Invocations of a row, fours of elements that each holds, and whether the row is longer than that."""
    tile, threads = choice.tile, choice.threads
    fours = -(-cols // 4)
    if columns:
        # Neighbours have neighbouring rows: fewer of them where the rows could not be held otherwise.
        lanes, most = max(threads // tile["rows"], 1), max(threads // min(tile["rows"], 8), 1)
        while lanes < most and fours > tile["held"] * lanes:
            lanes *= 2
    else:
        # Enough loads under way in each invocation, but for rows too few to give every invocation of the device some.
        lanes, most, wanted = 1, tile["lanes"], tile.get("wanted", 4) if quads else 2
        while lanes < most and fours > lanes * (1 if count * lanes < facts.units * threads else wanted):
            lanes *= 2
    held = min(-(-fours // lanes), tile["held"])
    return lanes, held, fours > held * lanes
