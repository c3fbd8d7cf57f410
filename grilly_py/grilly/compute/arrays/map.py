"""The plan of every elementwise operation, and of copies, conversions and gathers: shaders/arrays/map.comp."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...errors import UnsupportedError
from ...registry import Choice, Registry, Request
from ..device.call import run
from ..device.device import Device, DeviceFacts
from ..device.plan import ALIGN_MOST, At, Elementwise, Layout, Live, Plan, Planner, fits_binding, span
from ..device.tensor import Tensor, contiguous_strides, reshaped
from ..expressions.cutting import Most
from ..expressions.elements import type_of, width_of
from ..expressions.expression import Expression, Filling, Hole
from .axes import fewest_axes, longest_axis, two_parts
from .operations import Spec, code
from .operations import spec as spec_of
from .promotion import integer_range
from .scatter import Counted, emit_scatter
from .transpose import axes_of, emit_transposed

#: How an operand lies (shaders/arrays/places.glsl).
ABSENT, FLAT, STRIDED, RUNS, BROADCAST, ALONE = range(6)
#: What a dispatch has at most (shaders/arrays/map.comp).
OPERANDS, WORDS = 4, 6
MOST = Most(OPERANDS, WORDS, 600)
_LETTERS = "abcd"
_RUN = 8  # elements that an invocation makes at a time, or half of them
_MOST = 2**30  # elements of a dispatch
AXES = 4
DEEP_AXES = 8
_FLOAT = struct.Struct("=f")
_HALF = struct.Struct("=e")
_BITS = struct.Struct("=I")


class Gather(NamedTuple):
    """What a gather is told besides its operands: stride, in elements, and extent of the axis that is counted."""

    spec: Spec
    stride: int
    extent: int


class Work(NamedTuple):
    """What is to be made of operands: an expression of their elements, or what a gather gives.

    Attributes
    ----------
    expression : Expression
    counted : Counted or None
        Of a gather: the axis of the first operand that the second, of indices, counts.
    """

    expression: Expression
    counted: Counted | None = None

    @property
    def moves(self) -> bool:
        """Whether elements are only moved, as their bits."""
        return self.expression.moves()

    def reached(self, operands: Sequence[Tensor]) -> list[Tensor]:
        """The operands with all that is read of them: of what is gathered from, the axis that is counted, too."""
        if self.counted is None:
            return list(operands)
        return [self.counted.whole(operands[0]), *operands[1:]]


def words(spec: Spec, value) -> tuple[int, int]:
    """A Python number as kernels get it, rounded to the operation's dtype where that is a floating one.

    Raises
    ------
    OverflowError
        For an integer that the operation's dtype does not hold.
    """
    if type_of(spec.dtype) == "float":
        try:
            if spec.dtype.char == "e":
                (value,) = _HALF.unpack(_HALF.pack(value))
            (bits,) = _BITS.unpack(_FLOAT.pack(value))
        except (OverflowError, struct.error):  # of floats and of integers
            bits = 0x7F800000 if value > 0 else 0xFF800000
        if spec.dtype.kind == "V" and value == value:
            bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000  # to nearest, ties to even; infinities stay
        return bits, 0
    low, high = integer_range(spec.dtype)
    value = int(value)
    if not low <= value <= high:
        raise OverflowError(f"{spec.name}: {value} is out of bounds for {spec.dtype.name}")
    return value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF


def mapped(device: Device, spec: Spec | Gather, operands: Sequence[Tensor | None], live: Sequence[int] = ()) -> Tensor:
    """The result of an operation, a new tensor in C order; nothing is submitted."""
    return run(device, plan, (spec,), operands, live)[0]


def map_into(
    device: Device, spec: Spec, operands: Sequence[Tensor | None], result: Tensor, live: Sequence[int] = ()
) -> None:
    """Replace the elements of ``result``, for which ``replaceable`` is true."""
    run(device, plan, (spec, True), (*operands, result), live)


def replaceable(result: Tensor, operands: Sequence[Tensor | None]) -> bool:
    """Whether a kernel that reads the operands may write ``result`` as it goes, in whole words."""
    size = result.dtype.itemsize
    if not result.is_contiguous or result._offset % 4 or size < 4 and result.size % (4 // size):
        return False
    return all(
        operand is None or operand._storage is not result._storage
        or operand._offset == result._offset and operand.shape == result.shape and operand._strides == result._strides
        and operand.dtype.itemsize == size
        for operand in operands
    )  # fmt: skip


def plan(
    given: tuple[Spec | Gather] | tuple[Spec, bool], layouts: Sequence[Layout | None], facts: DeviceFacts,
    registry: Registry,
) -> Plan:  # fmt: skip
    """The dispatches of an operation on operands, None where one is absent or a number.

    ``given`` has the operation, and True where the last array is the result.
    """
    asked, *into = given
    spec = asked.spec if isinstance(asked, Gather) else asked
    planner = Planner(facts, layouts)
    operands = list(planner.inputs)
    offsets = [None if layout is None else layout.offset for layout in layouts]
    given_result, result_offset = (operands.pop(), offsets.pop()) if into else (None, ALIGN_MOST)
    shape = np.broadcast_shapes(*(t.shape for t in operands if t is not None))
    if given_result is not None:
        views = [None if t is None else t.broadcast_to(given_result.shape) for t in operands]
        if given_result.size:
            emit(planner, registry, asked, given_result, views, offsets, result_offset)
        return planner.plan()
    views = [None if t is None else t.broadcast_to(shape) for t in operands]
    order = None if isinstance(asked, Gather) or asked.name == "copy" else memory_order(operands, shape)
    if order is not None:
        views = [None if t is None else t.transpose(order) for t in views]
        shape = tuple(shape[axis] for axis in order)
    result = planner.empty(shape, spec.gives)
    if result.size:
        emit(planner, registry, asked, result, views, offsets)
    if order is not None:
        result = result.transpose([order.index(axis) for axis in range(len(order))])
    return planner.plan(result)


def memory_order(operands: Sequence[Tensor | None], shape: tuple[int, ...]) -> list[int] | None:
    """The axes in the order in which the first operand of the result's shape has them in memory; None for C order.

    As ``order="K"`` of NumPy: images with their channels last stay so.
    """
    for t in operands:
        if t is not None and t.shape == shape:
            if any(stride <= 0 and extent > 1 for extent, stride in zip(shape, t._strides, strict=True)):
                continue
            found = sorted(range(len(shape)), key=lambda axis: (shape[axis] > 1, -t._strides[axis] * (shape[axis] > 1)))
            counted = [axis for axis in found if shape[axis] > 1]
            return None if counted == sorted(counted) else found
    return None


def emit(
    planner: Planner, registry: Registry, asked: Spec | Gather, result: Tensor, operands: Sequence[Tensor | None],
    offsets: Sequence[int | None], result_offset: int = ALIGN_MOST,
) -> None:  # fmt: skip
    """Dispatches of an operation on operands of the result's shape, None where one is absent or a number.

    ``offsets`` are those of the operands' memory, as far as they are known: powers of two that divide them.
    """
    if isinstance(asked, Gather):
        spec, counted = asked.spec, Counted(asked.stride, asked.extent, True)
    else:
        spec, counted = asked, None
    dtypes = tuple(None if t is None else t.dtype for t in operands)
    expression = spec.expression(dtypes[:1] if counted else dtypes, result.dtype)
    present = [(t, offset) for t, offset in zip(operands, offsets, strict=True) if t is not None]
    arrays, known = [t for t, _ in present], [offset for _, offset in present]
    emit_work(planner, registry, Work(expression, counted), result, arrays, known, result_offset)


def emit_work(
    planner: Planner, registry: Registry, work: Work, result: Tensor, operands: Sequence[Tensor],
    offsets: Sequence[int], result_offset: int = ALIGN_MOST,
) -> None:  # fmt: skip
    """Dispatches for operands of the result's shape, cut where they are too large; ``offsets`` as of ``emit``."""
    choice = registry.resolve(Request("map", "float32"))
    if too_large(planner.facts, choice, (result, *work.reached(operands))):
        _emit_cut(planner, registry, work, result, operands, offsets, result_offset)
        return
    operands, offsets = list(operands), list(offsets)
    if work.counted is None:
        if work.moves and emit_transposed(planner, registry, operands[0], offsets[0], result):
            return
        transpose_first(planner, registry, operands, offsets)
        forms = [form_of(t, offset) for t, offset in zip(operands, offsets, strict=True)]
    else:
        if len(work.expression.words) > WORDS - 2:  # the last two tell of the axis
            raise UnsupportedError("a gather with as many words behind it")
        others = zip(operands[2:], offsets[2:], strict=True)
        forms = [STRIDED, STRIDED, *(form_of(t, offset) for t, offset in others)]
    strided = [number for number, form in enumerate(forms) if form == STRIDED]
    extents, strides = fewest_axes(result.shape, [operands[number]._strides for number in strided])
    deep = strided == [0] and len(operands) == 1 and AXES < len(extents) <= DEEP_AXES
    if len(extents) > AXES and not deep:
        if work.moves:
            _emit_scatter(planner, registry, work, result, operands)
            return
        if work.counted is not None:
            raise UnsupportedError("an expression behind a gather over more axes than the kernel has")
        for number in strided:
            operands[number] = gathered(planner, registry, operands[number], offsets[number])
            offsets[number] = ALIGN_MOST
        emit_work(planner, registry, work, result, operands, offsets, result_offset)
        return
    own = dict(zip(strided, strides, strict=True))
    each = _elements_of_a_run(result, result_offset, operands, forms, offsets)
    if not deep:
        find_runs(work, operands, forms, offsets, extents, own, each)
    _dispatch(planner, registry, choice, work, result, operands, forms, extents, own, deep, each)


def _emit_cut(
    planner: Planner, registry: Registry, work: Work, result: Tensor, operands: Sequence[Tensor],
    offsets: Sequence[int], result_offset: int,
) -> None:  # fmt: skip
    """The same in two halves of the first axis; with fewer axes, where that joins some; or in chunks that lie apart."""
    views = [result, *work.reached(operands)]
    # A cut is at a multiple of a run, so the fewer axes there are, the more places it may have.
    merged, strides = fewest_axes(result.shape, [t._strides for t in views])
    if len(merged) < result.ndim and work.counted is None:
        joined = [Tensor(t._storage, tuple(merged), t.dtype, tuple(own), t._offset)
                  for t, own in zip(views, strides, strict=True)]  # fmt: skip
        emit_work(planner, registry, work, joined[0], joined[1:], offsets, result_offset)
        return
    axis = next((axis for axis, extent in enumerate(result.shape) if extent > 1), 0)
    half = half_of(planner.facts, axis, views)
    if half is None:
        _emit_apart(planner, registry, work, result, operands, offsets)
        return
    for index in two_parts(axis, half):
        emit_work(planner, registry, work, result[index], [t[index] for t in operands], offsets, result_offset)


def transpose_first(planner: Planner, registry: Registry, operands: list[Tensor], offsets: list[int]) -> None:
    """Copies, by tiles, of the operands that are transposed; these take the operands' places."""
    for number, operand in enumerate(operands):
        if axes_of(planner.facts, operand, offsets[number]) is None:
            continue
        copied = planner.empty(operand.shape, operand.dtype)
        if emit_transposed(planner, registry, operand, offsets[number], copied):
            operands[number], offsets[number] = copied, ALIGN_MOST


def too_large(facts: DeviceFacts, choice: Choice, views: Sequence[Tensor]) -> bool:
    """Whether a result, the first of some views, has more elements than a dispatch, or a view more than a binding."""
    most = _RUN // 2 * choice.threads * choice.tile["stripe"] * facts.groups[1]
    return views[0].size > min(_MOST, most) or not all(fits_binding(facts, view) for view in views)


def half_of(facts: DeviceFacts, axis: int, views: Sequence[Tensor]) -> int | None:
    """Where to cut the first axis of a result, the first of some views: at a multiple of a run, if that is of use."""
    shape = views[0].shape
    if not shape:
        return None
    unit = _RUN // math.gcd(_RUN, math.prod(shape[axis + 1 :]))
    half = -(-shape[axis] // 2 // unit) * unit
    if not 0 < half < shape[axis]:
        return None
    for view in views:
        if fits_binding(facts, view):
            continue
        least = view[(slice(None),) * axis + (slice(0, unit),)]
        if longest_axis(view) != axis or unit > 1 and not fits_binding(facts, least):
            return None
    return half


def _emit_scatter(
    planner: Planner, registry: Registry, work: Work, result: Tensor, operands: Sequence[Tensor]
) -> None:
    """The same by the kernel that takes any strides on both sides, for work that only moves."""
    if work.counted is not None:
        emit_scatter(planner, registry, operands[0], result, operands[1], work.counted)
    else:
        emit_scatter(planner, registry, operands[0], result)


def _emit_apart(
    planner: Planner, registry: Registry, work: Work, result: Tensor, operands: Sequence[Tensor], offsets: Sequence[int]
) -> None:
    """The same in chunks that do not lie end to end in the result: each goes to memory of its own, and to its place."""
    if work.moves:
        _emit_scatter(planner, registry, work, result, operands)
        return
    facts, choice = planner.facts, registry.resolve(Request("map", "float32"))
    todo = [(result, operands)]
    while todo:
        target, own = todo.pop()
        views = [target, *own]
        if not too_large(facts, choice, views):
            part = planner.empty(target.shape, target.dtype)
            emit_work(planner, registry, work, part, own, offsets)
            emit_scatter(planner, registry, part, target)
            continue
        large = [view for view in views if not fits_binding(facts, view)]
        axis = longest_axis(max(large, key=span)) if large else target.shape.index(max(target.shape))
        if axis < 0 or target.shape[axis] < 2:
            raise UnsupportedError(f"an element does not fit a binding of {facts.storage_range:,} bytes")
        for index in two_parts(axis, -(-target.shape[axis] // 2)):
            todo.append((target[index], [t[index] for t in own]))


def _elements_of_a_run(
    result: Tensor, result_offset: int, operands: Sequence[Tensor], forms: Sequence[int], offsets: Sequence[int]
) -> int:
    """How many elements an invocation computes at a time: 8, or 4.

    8 of 16-bit or 8-bit results, where all arrays that are read in order begin at a multiple of 8 elements. 4 of 32-bit
    results: with 8 the stores of neighbouring invocations would leave gaps. 4 where an array has 64-bit elements.
    """
    sizes = [result.dtype.itemsize, *(t.dtype.itemsize for t in operands)]
    if max(sizes) == 8 or sizes[0] == 4:
        return _RUN // 2
    flat = [(result, result_offset)]
    flat += [(t, offset) for t, offset, form in zip(operands, offsets, forms, strict=True) if form == FLAT]
    if any(math.gcd(offset, t._offset) % _RUN for t, offset in flat if t.dtype.itemsize > 1):
        return _RUN // 2
    return _RUN


def find_runs(
    work: Work, operands: Sequence[Tensor], forms: list[int], offsets: Sequence[int], extents: list[int],
    strides: dict[int, list[int]], each: int,
) -> None:  # fmt: skip
    """Name the operands with strides of which a run of the result reads neighbours, or one element alone."""
    if extents[-1] % each:
        return
    found = {}
    for number, own in strides.items():
        if own[-1] == 0:
            found[number] = BROADCAST
        elif own[-1] == 1 and (
            operands[number].dtype.itemsize == 1
            or not any(stride % each for stride in (*own[:-1], math.gcd(offsets[number], operands[number]._offset)))
        ):
            found[number] = RUNS
    if work.counted is not None:  # a run of elements has one index, or each its own
        whole = operands[0].dtype.itemsize == 1 or work.counted.stride % each == 0
        if (found.get(0), found.get(1)) != (RUNS, BROADCAST) or not whole:
            found |= {0: STRIDED, 1: STRIDED}
    for number, form in found.items():
        forms[number] = form


def gathered(planner: Planner, registry: Registry, operand: Tensor, offset: int) -> Tensor:
    """The operand's elements in C order, in memory of the plan's."""
    copied = planner.empty(operand.shape, operand.dtype)
    emit(planner, registry, spec_of("copy", operand.dtype), copied, [operand], [offset])
    return copied


def in_order(planner: Planner, registry: Registry, array: Tensor, offset: int) -> tuple[Tensor, int]:
    """The array and its ``Layout.offset``: as it is if it is contiguous, else a copy in C order."""
    return (array, offset) if array.is_contiguous else (gathered(planner, registry, array, offset), ALIGN_MOST)


def with_rows(planner: Planner, registry: Registry, array: Tensor, offset: int) -> tuple[Tensor, int]:
    """The array and its ``Layout.offset``: as it is if its last axis is contiguous, else a copy in C order."""
    if array.shape[-1] <= 1 or array._strides[-1] == 1 or not array.size:
        return array, offset
    return gathered(planner, registry, array, offset), ALIGN_MOST


def shown(
    planner: Planner, registry: Registry, array: Tensor, shape: tuple[int, ...], offset: int
) -> tuple[Tensor, int]:
    """The array in another shape, and its ``Layout.offset``: a view, or where there is none a copy in C order."""
    strides = reshaped(array.shape, array._strides, shape) if array.size else contiguous_strides(shape)
    if strides is not None:
        return array._view(shape, strides), offset
    return gathered(planner, registry, array, offset).reshape(shape), ALIGN_MOST


def form_of(operand: Tensor, offset: int) -> int:
    """FLAT or STRIDED."""
    aligned = operand.dtype.itemsize == 1 or math.gcd(offset, operand._offset) % 4 == 0
    return FLAT if aligned and operand.is_contiguous else STRIDED


def _dispatch(
    planner: Planner, registry: Registry, choice: Choice, work: Work, result: Tensor, operands: Sequence[Tensor],
    forms: Sequence[int], extents: list[int], strides: dict[int, list[int]], deep: bool, each: int,
) -> None:  # fmt: skip
    reached, told = work.reached(operands), work.expression.words
    axes = len(extents) if strides else 1
    most = DEEP_AXES if deep else AXES
    extents = [1] * (most - len(extents)) + extents
    strides = {number: [0] * (most - len(own)) + own for number, own in strides.items()}
    push: dict = {"count": result.size, "y_offset": At(result)}
    push |= {f"e_{axis}": extent for axis, extent in enumerate(extents[-AXES:])}
    push |= {f"n_{place}": Live(told[place]) if place < len(told) else 0 for place in range(WORDS)}
    constants = {"BITS_Y": width_of(result.dtype), "INDEX": 0, "AXES": axes, "DEEP": int(deep), "EACH": each}
    constants["WHOLE"] = int("whole" in choice.tile and result.size % each == 0)
    for number, name in enumerate(_LETTERS):
        there = number < len(operands)
        push[f"{name}_offset"] = At(reached[number] if there else None)
        own = strides.get(number, [0] * most)[-AXES:]
        push |= {f"{name}_{axis}": stride % 2**32 for axis, stride in enumerate(own)}
        constants[f"FORM_{name.upper()}"] = forms[number] if there else ABSENT
        constants[f"BITS_{name.upper()}"] = width_of(operands[number].dtype) if there else 32
    if deep:
        push |= {f"b_{axis}": extent for axis, extent in enumerate(extents[:AXES])}
        push |= {f"c_{axis}": stride % 2**32 for axis, stride in enumerate(strides[0][:AXES])}
    if work.counted is not None:
        push |= {"n_4": work.counted.stride % 2**32, "n_5": work.counted.extent}
        constants["INDEX"] = 1 + code(operands[1].dtype)
    groups = choice.workgroups(result.size, each * choice.threads)
    hole = Hole("value", work.expression, OPERANDS)
    operation = None if deep else Elementwise(work.expression, tuple(operands), result, work.counted)
    planner.dispatch(choice, constants, {**dict(zip(_LETTERS, reached, strict=False)), "y": result}, push, groups,
                     result.size, filling=Filling(registry, hole), operation=operation)  # fmt: skip
