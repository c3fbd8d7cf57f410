"""The plan of norms and softmaxes over rows, and of their gradients: shaders/norms/norm-rows.comp."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import NamedTuple

from ...errors import UnsupportedError
from ...registry import Choice, Registry, Request
from ...registry.shared import value
from ..arrays.axes import fewest_axes
from ..arrays.map import gathered, in_order
from ..device.device import DeviceFacts
from ..device.plan import At, Layout, Live, Plan, Planner, fits_binding
from ..device.tensor import Tensor, reshaped
from ..expressions.elements import width_of
from ..expressions.expression import Expression, Filling, Hole, halves

_OUTER_AXES = 3
_ALIGNED = 16  # elements: where memory of a plan's own begins
#: Floating-point operations for each element, about.
_WORK = 30.0
#: Walks over a row that is not held.
_WALKS = 2
#: What expressions beside a norm have at most (shaders/norms/holes.glsl): arrays, and words.
OPERANDS, WORDS = 3, 4
_TOLD = tuple(range(WORDS))


class NormTerms(NamedTuple):
    """A norm, a softmax or a gradient, and which axes make the rows.

    Attributes
    ----------
    operation : str
        A name of the shaders' table "norms".
    kept : int
        Leading axes that count the rows; the others are a row's elements. -1 where ``axis`` is.
    axis : int
        The one axis along which a row's elements lie; -1 where ``kept`` is.
    groups : int
        Of a group norm: groups of the second axis, the channels, each a row of a sample; every channel has a weight.
        0 of other operations.
    epsilon, added : float
        Numbers that are added to the variance, and to each weight.
    terms : bool
        Whether a result has the terms of the weight's gradient, still to be summed over the rows.
    """

    operation: str
    kept: int
    axis: int = -1
    groups: int = 0
    epsilon: float = 0.0
    added: float = 0.0
    terms: bool = False


class Rows(NamedTuple):
    """The arrays of a dispatch. Of all but w and b the last axis has a row's elements, the others count the rows.

    Attributes
    ----------
    x, y : Tensor
        Input and output.
    r : Tensor or None
        What is added to x before, or the output's gradient.
    w, b : Tensor or None
        Weight and bias, one axis, contiguous.
    s : Tensor or None
        Where ``x + r`` is written.
    t : Tensor or None
        Where the terms of the weight's gradient are written, before they are summed over the rows.
    groups : int
        Rows of one sample, along the last axis but one, in a group norm; or 0.
    aligned : bool
        Whether the offsets that a plan does not know are multiples of four elements.
    p : Tensor or None
        One more array that expressions beside the norm read.
    """

    x: Tensor
    r: Tensor | None
    w: Tensor | None
    b: Tensor | None
    y: Tensor
    s: Tensor | None
    t: Tensor | None
    groups: int
    aligned: bool
    p: Tensor | None = None

    def part(self, axis: int, low: int, high: int) -> Rows:
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
        """Weights of a row of a group norm; 0 in other norms."""
        factor = self.w if self.w is not None else self.b
        return 0 if factor is None or not self.groups else factor.size // self.groups

    @property
    def elements_per_weight(self) -> int:
        """Elements of a row that share a weight; 1 but in a group norm."""
        return self.x.shape[-1] // self.each if self.each else 1


class Norm(NamedTuple):
    """A norm or a softmax of a plan, which expressions may stand beside.

    Attributes
    ----------
    terms : NormTerms
    rows : Rows
    choice : Choice
    constants : dict of str to int
        Specialization constants of the variant.
    """

    terms: NormTerms
    rows: Rows
    choice: Choice
    constants: dict[str, int]

    @property
    def named(self) -> dict[str, Tensor]:
        """All arrays but the result, by their names."""
        rows = self.rows
        named = {"x": rows.x, "r": rows.r, "w": rows.w, "b": rows.b, "s": rows.s}
        return {name: array for name, array in named.items() if array is not None}

    @property
    def arrays(self) -> tuple[Tensor, ...]:
        """The same without names."""
        return tuple(self.named.values())

    @property
    def result(self) -> Tensor:
        """What is written."""
        return self.rows.y


def plan(given: tuple, layouts: Sequence[Layout | None], facts: DeviceFacts, registry: Registry) -> Plan:
    """The plan of a norm, a softmax or a gradient.

    Results: the output y; the sum of x and the residual, where there is one; the terms of the weight's gradient, where
    ``terms`` asks for them.

    Parameters
    ----------
    given : tuple
        Begins with the terms; what follows is a part of the key alone.
    layouts : sequence of Layout or None
        x; the residual or, of a gradient, the output's gradient; weight and bias.
    """
    planner = Planner(facts, layouts)
    return planner.plan(*emit_all(planner, registry, given[0], layouts))


def emit_all(
    planner: Planner, registry: Registry, terms: NormTerms, layouts: Sequence[Layout | None]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The dispatches of ``plan``, and its results."""
    x, r, w, b = planner.inputs
    offsets = [None if layout is None else layout.offset for layout in layouts]
    gradient = terms.operation.endswith("_BACKWARD")
    y = planner.empty(x.shape, x.dtype)
    s = planner.empty(x.shape, x.dtype) if r is not None and not gradient else None
    t = planner.empty(x.shape) if terms.terms else None
    if not x.size:
        return y, s, t
    if w is not None:
        w, offsets[2] = in_order(planner, registry, w, offsets[2])
    if b is not None:
        b, offsets[3] = in_order(planner, registry, b, offsets[3])
    given_arrays = [x, r]
    for number, array in enumerate(given_arrays):
        if array is not None and _viewed(terms, array) is None:
            given_arrays[number], offsets[number] = gathered(planner, registry, array, offsets[number]), _ALIGNED
    arrays = [None if array is None else _viewed(terms, array) for array in (*given_arrays, y, s, t)]
    if len(fewest_axes(arrays[0].shape[:-1], [a._strides[:-1] for a in arrays[:3] if a is not None])[0]) > _OUTER_AXES:
        for number, array in enumerate(arrays[:2]):
            if array is not None:
                arrays[number], offsets[number] = gathered(planner, registry, array, offsets[number]), _ALIGNED
    x_rows, r_rows, y_rows, s_rows, t_rows = arrays
    w, b = (None if a is None else a.reshape(a.size) for a in (w, b))
    aligned = all(offset is None or offset % 4 == 0 for offset in offsets)
    _emit(planner, registry, terms, Rows(x_rows, r_rows, w, b, y_rows, s_rows, t_rows, terms.groups, aligned))
    return y, s, t


def emit_rms_norm(
    planner: Planner, registry: Registry, x: Tensor, w: Tensor, epsilon: float, added: float, offsets: Sequence[int]
) -> Tensor:
    """Plan an RMS norm of x, of at most four axes, over its last axis.

    Parameters
    ----------
    w : Tensor
        The weight, contiguous.
    epsilon, added : float
        Numbers that are added to the mean square, and to each weight.
    offsets : sequence of int
        What divides the offsets of x and w (``Layout.offset``).

    Returns
    -------
    Tensor
        Of x's shape, in new memory.
    """
    y = planner.empty(x.shape, x.dtype)
    terms = NormTerms("RMS_NORM", x.ndim - 1, epsilon=epsilon, added=added)
    aligned = all(offset % 4 == 0 for offset in offsets)
    _emit(planner, registry, terms, Rows(x, None, w, None, y, None, None, 0, aligned))
    return y


def _viewed(terms: NormTerms, array: Tensor) -> Tensor | None:
    """The array with the elements of a row on its last axis; None where that is no view."""
    if terms.axis >= 0:
        return array.transpose([*(a for a in range(array.ndim) if a != terms.axis), terms.axis])
    if terms.groups:
        shape = (array.shape[0], terms.groups, math.prod(array.shape[1:]) // terms.groups)
    else:
        shape = (*array.shape[: terms.kept], math.prod(array.shape[terms.kept :]))
    strides = reshaped(array.shape, array._strides, shape)
    return None if strides is None else array._view(shape, strides)


def _emit(planner: Planner, registry: Registry, terms: NormTerms, rows: Rows) -> None:
    """Plan dispatches: the rows are halved until all arrays fit a binding."""
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


class _Strides(NamedTuple):
    """How the rows of x, r and y lie.

    Attributes
    ----------
    extents : list of int
        Of the axes that count rows, merged into as few as all three arrays allow.
    outer : dict of str to sequence of int
        By the array's name its strides along these axes; of the arrays that there are.
    inner : dict of str to int
        By the array's name the stride between a row's elements.
    """

    extents: list[int]
    outer: dict[str, Sequence[int]]
    inner: dict[str, int]

    @classmethod
    def of(cls, rows: Rows) -> _Strides:
        """The strides of these rows."""
        named = (("x", rows.x), ("r", rows.r), ("p", rows.p), ("y", rows.y))
        arrays = {name: a for name, a in named if a is not None}
        extents, outer = fewest_axes(rows.x.shape[:-1], [a._strides[:-1] for a in arrays.values()])
        cols = rows.x.shape[-1]
        inner = {name: a._strides[-1] if cols > 1 else 1 for name, a in arrays.items()}
        return cls(extents, dict(zip(arrays, outer, strict=True)), inner)

    @property
    def are_columns(self) -> bool:
        """Whether neighbours in memory belong to neighbouring rows."""
        several = math.prod(self.extents) > 1
        return several and all(own[-1] == 1 and self.inner[name] != 1 for name, own in self.outer.items())


def _dispatch(planner: Planner, registry: Registry, terms: NormTerms, rows: Rows) -> None:
    """Plan one dispatch on rows whose arrays fit a binding."""
    facts, strides = planner.facts, _Strides.of(rows)
    count, cols = math.prod(strides.extents), rows.x.shape[-1]
    columns, quads = strides.are_columns, _in_quads(rows, strides)
    needs = {"gradient": int(terms.operation.endswith("_BACKWARD")), "columns": int(columns)}
    # Widths in steps, so that the registry sees few different requests.
    needs |= {"align": 4 if quads else 1, "cols": min(-(-cols // 256), 4) * 256}
    choice = registry.resolve(Request("norm-rows", rows.x.dtype.name, problem=needs))
    lanes, held, is_long = _deal(choice, facts, count, cols, columns, quads)
    blocks = -(-cols // (4 * held * lanes))
    if is_long and _WALKS * blocks > facts.loop_trips:
        raise UnsupportedError(
            f"{terms.operation.lower()}: rows of {cols:,} elements; this driver's loops end after "
            f"{int(facts.loop_trips / _WALKS) * 4 * held * lanes:,}"
        )
    constants = {
        "OPERATION": value("norms", terms.operation), "LANES": lanes, "COLUMNS": int(columns), "QUADS": int(quads),
        "HELD": held, "LONG": int(is_long), "ADDS": int(rows.s is not None), "WEIGHT": int(rows.w is not None),
        "BIAS": int(rows.b is not None), "CHANNELS": int(rows.groups > 0), "TERMS": int(rows.t is not None),
        "THREADS": choice.threads, "WHOLE": int(cols == 4 * held * lanes),
        "LATE": choice.tile.get("late", 0), "HALVES": halves(registry),
    }  # fmt: skip
    constants = {name: value for name, value in constants.items() if name in choice.variant.constants}
    operation = None if needs["gradient"] or rows.groups else Norm(terms, rows, choice, constants)
    # What is not written is y once more: the runtime would put an array there that others may read meanwhile, and those
    # who look at the shader alone (validation layers) take it for written.
    s, t = (rows.y if array is None else array for array in (rows.s, rows.t))
    bound = {"x": rows.x, "r": rows.r, "w": rows.w, "b": rows.b, "y": rows.y, "s": s, "t": t}
    groups = _groups(choice, facts, count, lanes)
    planner.dispatch(choice, constants, bound, _push(terms, rows, strides), groups, _WORK * count * cols,
                     operation=operation)  # fmt: skip


def _groups(choice: Choice, facts: DeviceFacts, count: int, lanes: int) -> tuple[int, int, int]:
    """The workgroups of so many rows."""
    needed = -(-count // (choice.threads // lanes))
    stripe = min(choice.tile["stripe"], facts.groups[0])
    return min(needed, stripe), -(-needed // stripe), 1


def most_calls(registry: Registry, norm: Norm) -> int:
    """How many functions expressions beside a norm may call for an element; -1 where nothing may stand there.

    A kernel has them for every element that an invocation holds.
    """
    try:
        choice = registry.resolve(Request("norm-rows-holes", norm.result.dtype.name))
    except UnsupportedError:
        return -1
    return choice.tile["calls"] // (4 * norm.constants["HELD"])


def emit_with_expressions(
    planner: Planner, registry: Registry, norm: Norm, rows: Rows, aligned: Container[str], before: Expression,
    after: Expression,
) -> None:  # fmt: skip
    """Plan one dispatch of a norm between two expressions, whose sums are added up in the order of the norm alone.

    Parameters
    ----------
    norm : Norm
        As it was planned. Its result has elements as wide as those of ``rows.y``.
    rows : Rows
        Of it x, r and p are what the expressions read, of any dtypes of up to 32 bits; s gets what the norm is given.
    aligned : container of str
        Of "x", "r" and "p" those whose offset is a multiple of four elements.
    before : Expression
        What the norm is given, of the elements of x, r and p.
    after : Expression
        What is written, of the norm's result and these elements. Both have the same words.

    Raises
    ------
    UnsupportedError
        Where the kernel does not take the rows, or would add in another order.
    """
    strides = _Strides.of(rows)
    choice, former = registry.resolve(Request("norm-rows-holes", norm.result.dtype.name)), norm.choice
    orders = {(one.threads, "subgroup-basic" in one.variant.requires, one.subgroup_size) for one in (choice, former)}
    if len(orders) > 1:
        raise UnsupportedError("no variant adds in this order")
    constants = {"COLUMNS": 0, "QUADS": 1, **norm.constants, "LATE": 1, "HALVES": halves(registry)}  # texels have fours
    constants |= {"ADDS": int(rows.s is not None), "AFTER": int(not after.moves())}
    quads = constants["QUADS"] == 1
    own = rows._replace(x=rows.y, r=None, p=None)
    if len(strides.extents) > _OUTER_AXES or quads and not _in_quads(own, _Strides.of(own)):
        raise UnsupportedError("rows that the kernel does not take")
    for name, array in (("X", rows.x), ("R", rows.r), ("P", rows.p)):
        constants[f"BITS_{name}"] = 32 if array is None else width_of(array.dtype)
        constants[f"FORM_{name}"] = value("forms", _form(array, quads and name.lower() in aligned))
    constants = {name: constants[name] for name in choice.variant.constants}
    bound = {"x": rows.x, "r": rows.r, "p": rows.p, "w": rows.w, "b": rows.b, "y": rows.y}
    bound["s"] = rows.y if rows.s is None else rows.s
    told = {*before.words, *after.words}
    words = {name: Live(n) if n in told else 0 for n, name in enumerate(("w_groups", "w_each", "w_div", "n_3"))}
    holes = [Hole("before", before, OPERANDS, _TOLD)]
    if constants["AFTER"]:
        holes.append(Hole("after", after, 1 + OPERANDS, _TOLD))
    count = math.prod(strides.extents)
    planner.dispatch(
        choice, constants, bound, _push(norm.terms, rows, strides, "xrpy") | words,
        _groups(choice, planner.facts, count, constants["LANES"]), _WORK * rows.x.size,
        filling=Filling(registry, *holes),
    )  # fmt: skip


def _form(array: Tensor | None, quads: bool) -> str:
    """How an expression's operand lies along a row: a name of the shaders' table "forms"."""
    if array is None:
        return "ABSENT"
    if array._strides[-1] == 0:
        return "BROADCAST"
    outer = [stride for stride, extent in zip(array._strides[:-1], array.shape[:-1], strict=True) if extent > 1]
    return "RUNS" if quads and array._strides[-1] == 1 and not any(n % 4 for n in outer) else "STRIDED"


def _in_quads(rows: Rows, strides: _Strides) -> bool:
    """Whether every row can be read and written in aligned groups of four elements."""
    arrays, factors = (rows.x, rows.r, rows.y), (rows.w, rows.b)
    outer = [step for own in strides.outer.values() for step, e in zip(own, strides.extents, strict=True) if e > 1]
    lengths = [rows.x.shape[-1], *([rows.elements_per_weight] if rows.groups else [])]
    placed = arrays if rows.groups else (*arrays, *factors)
    return (
        rows.aligned and all(step == 1 for step in strides.inner.values())
        and all(number % 4 == 0 for number in (*lengths, *outer))
        and all(array is None or array._offset % 4 == 0 for array in placed)
    )  # fmt: skip


def _push(terms: NormTerms, rows: Rows, strides: _Strides, names: str = "xry") -> dict:
    """The push constants by name."""
    extents = strides.extents
    words: dict = {
        "rows": math.prod(extents), "e_1": extents[-2] if len(extents) > 1 else 1, "e_2": extents[-1],
        "cols": rows.x.shape[-1],
    }  # fmt: skip
    for name in names:
        array = getattr(rows, name)
        own = strides.outer.get(name, ())
        words[f"{name}_offset"] = At(array)
        words |= {
            f"{name}_{axis}": stride % 2**32 for axis, stride in enumerate((*[0] * (_OUTER_AXES - len(own)), *own))
        }
        words[f"{name}_stride"] = strides.inner.get(name, 0)
    return words | {
        "w_offset": At(rows.w), "b_offset": At(rows.b), "w_groups": max(rows.groups, 1),
        "w_div": rows.elements_per_weight, "w_each": rows.each, "epsilon": terms.epsilon, "w_add": terms.added,
    }  # fmt: skip


def _deal(
    choice: Choice, facts: DeviceFacts, count: int, cols: int, columns: bool, quads: bool
) -> tuple[int, int, bool]:
    """Invocations for a row, groups of four elements that each holds, and whether the row is longer than they hold."""
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
