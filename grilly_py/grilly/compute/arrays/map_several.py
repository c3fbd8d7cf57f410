"""The plan of elementwise work with several results, or of many arrays: shaders/arrays/map-several.comp."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import UnsupportedError
from ...registry import Choice, Registry, Request
from ..device.plan import ALIGN_MOST, At, Elementwise, Live, Planner, fits_binding, span
from ..device.tensor import Tensor
from ..expressions.elements import width_of
from ..expressions.expression import Expression, Filling, Hole
from .axes import fewest_axes, longest_axis, two_parts
from .map import (
    ABSENT,
    ALONE,
    AXES,
    STRIDED,
    Work,
    find_runs,
    form_of,
    gathered,
    half_of,
    too_large,
    transpose_first,
)  # fmt: skip
from .scatter import emit_scatter

#: What a dispatch has at most (shaders/arrays/map-several.comp).
OPERANDS, WORDS, RESULTS = 8, 8, 4
_OPERANDS, _RESULTS = "abcdefgh", "wxyz"
_EACH = 4  # elements of a run, of which an invocation makes one or some


def emit_several(
    planner: Planner, registry: Registry, expression: Expression, results: Sequence[Tensor],
    operands: Sequence[Tensor], offsets: Sequence[int],
) -> None:  # fmt: skip
    """Dispatches for operands of the results' one shape, cut where they are too large.

    Parameters
    ----------
    expression : Expression
        Of elements of the operands; an output for each of the results.
    results : sequence of Tensor
        Contiguous. One that shares memory with operands lies exactly as these, so that it replaces them.
    offsets : sequence of int
        Of the operands, as of ``map.emit``.
    """
    choice = registry.resolve(Request("map-several", "float32"))
    if too_large(planner.facts, choice, (*results, *operands)):
        _emit_cut(planner, registry, expression, results, operands, offsets)
        return
    operands, offsets = list(operands), list(offsets)
    transpose_first(planner, registry, operands, offsets)
    forms = [_form(t, offset) for t, offset in zip(operands, offsets, strict=True)]
    extents, strides = _strides(results[0].shape, operands, forms)
    while len(extents) > AXES or len({tuple(own) for own in strides.values()}) > 2:
        number = max(strides)
        operands[number], offsets[number] = gathered(planner, registry, operands[number], offsets[number]), ALIGN_MOST
        forms[number] = form_of(operands[number], ALIGN_MOST)
        extents, strides = _strides(results[0].shape, operands, forms)
    find_runs(Work(expression), operands, forms, offsets, extents, strides, _EACH)
    _dispatch(planner, registry, choice, expression, results, operands, forms, extents, strides)


def _form(operand: Tensor, offset: int) -> int:
    steps = zip(operand.shape, operand._strides, strict=True)
    return ALONE if all(stride == 0 or extent == 1 for extent, stride in steps) else form_of(operand, offset)


def _strides(
    shape: tuple[int, ...], operands: Sequence[Tensor], forms: Sequence[int]
) -> tuple[list[int], dict[int, list[int]]]:
    """Extents of the axes, and strides over them of the operands that do not lie as the results do."""
    strided = [number for number, form in enumerate(forms) if form == STRIDED]
    extents, strides = fewest_axes(shape, [operands[number]._strides for number in strided])
    return extents, dict(zip(strided, strides, strict=False))


def _emit_cut(
    planner: Planner, registry: Registry, expression: Expression, results: Sequence[Tensor],
    operands: Sequence[Tensor], offsets: Sequence[int],
) -> None:  # fmt: skip
    """The same in two halves of the first axis; or of another, in memory of their own, that go to their places then."""
    views = [*results, *operands]
    merged, strides = fewest_axes(results[0].shape, [t._strides for t in views])
    views = [
        Tensor(t._storage, tuple(merged), t.dtype, tuple(own), t._offset)
        for t, own in zip(views, strides, strict=True)
    ]  # fmt: skip
    shape, many = views[0].shape, len(results)
    axis = next((axis for axis, extent in enumerate(shape) if extent > 1), 0)
    half = half_of(planner.facts, axis, views)
    apart = half is None
    if half is None:
        large = [view for view in views if not fits_binding(planner.facts, view)]
        axis = longest_axis(max(large, key=span)) if large else shape.index(max(shape))
        if axis < 0 or shape[axis] < 2:
            raise UnsupportedError(f"an element does not fit a binding of {planner.facts.storage_range:,} bytes")
        half = -(-shape[axis] // 2)
    for index in two_parts(axis, half):
        parts = [view[index] for view in views]
        made = [planner.empty(t.shape, t.dtype) for t in parts[:many]] if apart else parts[:many]
        emit_several(planner, registry, expression, made, parts[many:], offsets)
        if apart:
            for part, target in zip(made, parts[:many], strict=True):
                emit_scatter(planner, registry, part, target)


def _dispatch(
    planner: Planner, registry: Registry, choice: Choice, expression: Expression, results: Sequence[Tensor],
    operands: Sequence[Tensor], forms: Sequence[int], extents: list[int], strides: dict[int, list[int]],
) -> None:  # fmt: skip
    told = expression.words
    axes = len(extents) if strides else 1
    extents = [1] * (AXES - len(extents)) + extents
    own = {number: tuple([0] * (AXES - len(each)) + each) for number, each in strides.items()}
    kinds = [*dict.fromkeys(own.values()), (0,) * AXES, (0,) * AXES][:2]
    push: dict = {"count": results[0].size}
    push |= {f"e_{axis}": extent for axis, extent in enumerate(extents) if axis}
    push |= {f"n_{place}": Live(told[place]) if place < len(told) else 0 for place in range(WORDS)}
    for name, kind in zip("st", kinds, strict=True):
        push |= {f"{name}_{axis}": stride % 2**32 for axis, stride in enumerate(kind)}
    repeats = 1 if strides else choice.tile["repeats"]
    constants = {"RESULTS": len(results), "AXES": axes, "REPEATS": repeats}
    constants["WHOLE"] = int("whole" in choice.tile and results[0].size % (repeats * _EACH) == 0)
    constants["SECOND"] = sum(1 << number for number, each in own.items() if each != kinds[0])
    arrays: dict = {}
    for names, given in ((_OPERANDS, operands), (_RESULTS, results)):
        for number, name in enumerate(names):
            there = given[number] if number < len(given) else None
            arrays[name] = there
            push[f"{name}_offset"] = At(there)
            constants[f"BITS_{name.upper()}"] = 32 if there is None else width_of(there.dtype)
    for number, name in enumerate(_OPERANDS):
        constants[f"FORM_{name.upper()}"] = forms[number] if number < len(operands) else ABSENT
    groups = choice.workgroups(results[0].size, repeats * _EACH * choice.threads)
    hole = Hole("values", expression, OPERANDS)
    operation = Elementwise(expression, tuple(operands), results[0]) if len(results) == 1 else None
    planner.dispatch(choice, constants, arrays, push, groups, results[0].size * len(results),
                     filling=Filling(registry, hole), operation=operation)  # fmt: skip


__all__ = ["OPERANDS", "RESULTS", "WORDS", "emit_several"]
