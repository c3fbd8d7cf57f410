"""The plan of every elementwise operation, and of copies, conversions and gathers: shaders/arrays/map.comp."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...errors import UnsupportedError
from ...registry import Choice, Registry, Request
from ..device.caches import Kept
from ..device.device import Device, DeviceFacts
from ..device.plan import ALIGN_MOST, At, Layout, Live, Plan, Planner, fits_binding, span
from ..device.record import Ready, run
from ..device.tensor import Tensor, contiguous_strides, reshaped
from .axes import fewest_axes, longest_axis, two_parts
from .operations import ACTIVATIONS, FUNCTIONS, Spec, code
from .operations import spec as spec_of
from .promotion import FLOATING, integer_range
from .put import Counted, emit_put
from .transpose import axes_of, emit_transposed

#: Plans of elementwise operations.
PLANS: Kept[tuple, Ready] = Kept("plans of maps", 4096)

#: How an operand lies (shaders/arrays/map.comp).
ABSENT, FLAT, STRIDED, NUMBER, RUNS, REPEATED = range(6)
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
    step: int
    extent: int


def words(spec: Spec, value) -> tuple[int, int]:
    """A Python number as kernels get it, rounded to the operation's dtype where that is a floating one.

    Raises
    ------
    OverflowError
        For an integer that the operation's dtype does not hold.
    """
    if spec.kind == FLOATING:
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
    return run(device, PLANS, plan, (spec,), operands, live)[0]


def map_into(
    device: Device, spec: Spec, operands: Sequence[Tensor | None], result: Tensor, live: Sequence[int] = ()
) -> None:
    """Replace the elements of ``result``, for which ``replaceable`` is true."""
    run(device, PLANS, plan, (spec,), (*operands, result), live)


def replaceable(result: Tensor, operands: Sequence[Tensor | None]) -> bool:
    """Whether a kernel that reads the operands may write ``result`` as it goes, in whole words."""
    size = result.dtype.itemsize
    if not result.is_contiguous or result._offset % 4 or size < 4 and result.size % (4 // size):
        return False
    return all(
        operand is None or operand._storage is not result._storage
        or operand._offset == result._offset and operand.shape == result.shape and operand._steps == result._steps
        and operand.dtype.itemsize == size
        for operand in operands
    )  # fmt: skip


def plan(given: tuple[Spec | Gather], layouts: Sequence[Layout | None], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of an operation on up to three operands, None where one is absent or a number, and the result
    where it is given."""
    asked = given[0]
    spec = asked.spec if isinstance(asked, Gather) else asked
    planner = Planner(facts, layouts)
    operands = list(planner.inputs[:3])
    shape = np.broadcast_shapes(*(t.shape for t in operands if t is not None))
    given_result = planner.inputs[3] if len(layouts) > 3 else None
    offsets = [None if layout is None else layout.offset for layout in layouts]
    if given_result is not None:
        views = [None if t is None else t.broadcast_to(given_result.shape) for t in operands]
        if given_result.size:
            emit(planner, registry, asked, given_result, views, offsets)
        return planner.plan()
    views = [None if t is None else t.broadcast_to(shape) for t in operands]
    order = None if isinstance(asked, Gather) or asked.name == "copy" else _order(operands, shape)
    if order is not None:
        views = [None if t is None else t.transpose(order) for t in views]
        shape = tuple(shape[axis] for axis in order)
    result = planner.empty(shape, spec.gives)
    if result.size:
        emit(planner, registry, asked, result, views, offsets)
    if order is not None:
        result = result.transpose([order.index(axis) for axis in range(len(order))])
    return planner.plan(result)


def _order(operands: Sequence[Tensor | None], shape: tuple[int, ...]) -> list[int] | None:
    """The axes in the order in which the first operand of the result's shape has them in memory; None for C order.

    As ``order="K"`` of NumPy: images with their channels last stay so.
    """
    for t in operands:
        if t is not None and t.shape == shape:
            if any(step <= 0 and extent > 1 for extent, step in zip(shape, t._steps, strict=True)):
                continue
            found = sorted(range(len(shape)), key=lambda axis: (shape[axis] > 1, -t._steps[axis] * (shape[axis] > 1)))
            counted = [axis for axis in found if shape[axis] > 1]
            return None if counted == sorted(counted) else found
    return None


def emit(planner: Planner, registry: Registry, asked, result: Tensor, operands: list, offsets: list) -> None:
    """Dispatches for operands of the result's shape, cut where they are too large.

    ``offsets`` are those of the operands' memory, as far as they are known: powers of two that divide them; a fourth is
    the result's.
    """
    choice = _choice(registry, _spec(asked))
    present = [t for t in _reached(asked, operands) if t is not None]
    if _too_large(planner.facts, choice, (result, *present)):
        # A cut is at a multiple of a run, so the fewer axes there are, the more places it may have.
        merged, steps = fewest_axes(result.shape, [t._steps for t in (result, *present)])
        if len(merged) < result.ndim and not isinstance(asked, Gather):
            joined = [Tensor(t._storage, tuple(merged), t.dtype, tuple(own), t._offset)
                      for t, own in zip((result, *present), steps, strict=True)]  # fmt: skip
            rest = iter(joined[1:])
            emit(planner, registry, asked, joined[0], [None if t is None else next(rest) for t in operands], offsets)
            return
        axis = next((axis for axis, extent in enumerate(result.shape) if extent > 1), 0)
        half = _half(planner.facts, axis, (result, *present))
        if half is None:
            _emit_apart(planner, registry, asked, result, operands, offsets)
            return
        for index in two_parts(axis, half):
            emit(planner, registry, asked, result[index], [None if t is None else t[index] for t in operands], offsets)
        return
    operands, offsets = list(operands), list(offsets)
    if not isinstance(asked, Gather):
        if asked.name == "copy" and asked.dtype == asked.gives and operands[0] is not None:
            if emit_transposed(planner, registry, operands[0], offsets[0], result):
                return
        for number, operand in enumerate(operands):
            if operand is None or axes_of(planner.facts, operand, offsets[number]) is None:
                continue
            copied = planner.empty(operand.shape, operand.dtype)
            if emit_transposed(planner, registry, operand, offsets[number], copied):
                operands[number], offsets[number] = copied, ALIGN_MOST
    forms = [_form(t, offset) for t, offset in zip(operands, offsets[:3], strict=True)]
    spec = _spec(asked)
    for number in spec.scalars:
        forms[number] = NUMBER
    gathers = isinstance(asked, Gather)
    if gathers:
        forms[0] = STRIDED
        forms[1] = STRIDED
    strided = [number for number, form in enumerate(forms) if form == STRIDED]
    extents, steps = fewest_axes(result.shape, [operands[number]._steps for number in strided])
    deep = strided == [0] and AXES < len(extents) <= DEEP_AXES
    if len(extents) > AXES and not deep:
        if _moves(asked, operands):
            _emit_put(planner, registry, asked, result, operands)
            return
        for number in strided:
            operands[number] = gathered(planner, registry, operands[number], offsets[number])
            offsets[number] = ALIGN_MOST
        emit(planner, registry, asked, result, operands, offsets)
        return
    own = dict(zip(strided, steps, strict=True))
    each = _elements_of_a_run(result, operands, forms, offsets)
    if not deep:
        _find_runs(asked, operands, forms, offsets, extents, own, each)
    _dispatch(planner, registry, choice, asked, result, operands, forms, extents, own, deep, each)


def _reached(asked, operands: list) -> list:
    """The operands with all that is read of them: of what is gathered from, the axis that is counted, too."""
    if not isinstance(asked, Gather):
        return operands
    return [Counted(asked.step, asked.extent, True).whole(operands[0]), *operands[1:]]


def _too_large(facts: DeviceFacts, choice: Choice, views: Sequence[Tensor]) -> bool:
    most = _RUN // 2 * choice.threads * choice.tile["stripe"] * facts.groups[1]
    return views[0].size > min(_MOST, most) or not all(fits_binding(facts, view) for view in views)


def _half(facts: DeviceFacts, axis: int, views: Sequence[Tensor]) -> int | None:
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


def _moves(asked, operands: list) -> bool:
    """Whether elements are only moved, as their bits."""
    return isinstance(asked, Gather) or asked.name == "copy" and asked.dtype == asked.gives and operands[0] is not None


def _emit_put(planner: Planner, registry: Registry, asked, result: Tensor, operands: list) -> None:
    """The same by the kernel that takes any strides on both sides, for what ``_moves``."""
    if isinstance(asked, Gather):
        emit_put(planner, registry, operands[0], result, operands[1], Counted(asked.step, asked.extent, True))
    else:
        emit_put(planner, registry, operands[0], result)


def _emit_apart(planner: Planner, registry: Registry, asked, result: Tensor, operands: list, offsets: list) -> None:
    """The same in pieces that do not lie end to end in the result: each goes to memory of its own, and to its place."""
    if _moves(asked, operands):
        _emit_put(planner, registry, asked, result, operands)
        return
    facts, choice = planner.facts, _choice(registry, asked)
    todo = [(result, operands)]
    while todo:
        target, own = todo.pop()
        views = [target, *(t for t in own if t is not None)]
        if not _too_large(facts, choice, views):
            part = planner.empty(target.shape, target.dtype)
            emit(planner, registry, asked, part, own, offsets[:3])
            emit_put(planner, registry, part, target)
            continue
        large = [view for view in views if not fits_binding(facts, view)]
        axis = longest_axis(max(large, key=span)) if large else target.shape.index(max(target.shape))
        if axis < 0 or target.shape[axis] < 2:
            raise UnsupportedError(f"{asked.name}: an element does not fit a binding of {facts.storage_range:,} bytes")
        for index in two_parts(axis, -(-target.shape[axis] // 2)):
            todo.append((target[index], [None if t is None else t[index] for t in own]))


def _elements_of_a_run(result: Tensor, operands: list, forms: list[int], offsets: list) -> int:
    """How many elements an invocation makes at a time: 16 bytes of the narrowest, where memory lies so.

    Of a result of four bytes 16 bytes: more would leave gaps between what neighbours store at a time.
    """
    present = [(result, offsets[3] if len(offsets) > 3 else ALIGN_MOST)]
    present += [(t, offset) for t, offset in zip(operands, offsets, strict=False) if t is not None]
    sizes = [t.dtype.itemsize for t, _ in present]
    if max(sizes) == 8 or sizes[0] == 4:
        return _RUN // 2
    flat = present[:1]
    flat += [(t, offset) for t, offset, form in zip(operands, offsets, forms, strict=False) if form == FLAT]
    if any(math.gcd(offset, t._offset) % _RUN for t, offset in flat if t.dtype.itemsize > 1):
        return _RUN // 2
    return _RUN


def _find_runs(
    asked, operands: list, forms: list[int], offsets: list, extents: list[int], steps: dict, each: int
) -> None:
    """Name the operands with strides of which a run of the result reads neighbours, or one element alone."""
    if extents[-1] % each:
        return
    found = {}
    for number, own in steps.items():
        if own[-1] == 0:
            found[number] = REPEATED
        elif own[-1] == 1 and (
            operands[number].dtype.itemsize == 1
            or not any(step % each for step in (*own[:-1], math.gcd(offsets[number], operands[number]._offset)))
        ):
            found[number] = RUNS
    if isinstance(asked, Gather):  # a run of elements has one index, or each its own
        whole = operands[0].dtype.itemsize == 1 or asked.step % each == 0
        if found != {0: RUNS, 1: REPEATED} or not whole:
            return
    for number, form in found.items():
        forms[number] = form


def halves(registry: Registry) -> int:
    """The constant HALVES (shaders/arrays/words.glsl): 1 where float16 may be converted as the device does it.

    NVIDIA's compiler is known to round packHalf2x16 as it should and to keep small numbers; others may do as they like.
    """
    return int("nvidia-compiler" in registry.features)


def _choice(registry: Registry, asked: Spec) -> Choice:
    functions = 2 if asked.name in ACTIVATIONS else int(asked.name in FUNCTIONS)
    return registry.resolve(Request("map", "float32", facts=(("functions", functions),)))


def _spec(asked: Spec | Gather) -> Spec:
    return asked.spec if isinstance(asked, Gather) else asked


def gathered(planner: Planner, registry: Registry, operand: Tensor, offset: int) -> Tensor:
    """The operand's elements in C order, in memory of the plan's."""
    copied = planner.empty(operand.shape, operand.dtype)
    emit(planner, registry, spec_of("copy", operand.dtype), copied, [operand, None, None], [offset, None, None])
    return copied


def shown(
    planner: Planner, registry: Registry, array: Tensor, shape: tuple[int, ...], offset: int
) -> tuple[Tensor, int]:
    """The array in another shape, and its ``Layout.offset``: a view, or where there is none a copy in C order."""
    steps = reshaped(array.shape, array._steps, shape) if array.size else contiguous_strides(shape)
    if steps is not None:
        return array._view(shape, steps), offset
    return gathered(planner, registry, array, offset).reshape(shape), ALIGN_MOST


def _form(operand: Tensor | None, offset: int | None) -> int:
    if operand is None:
        return ABSENT
    aligned = operand.dtype.itemsize == 1 or math.gcd(offset, operand._offset) % 4 == 0
    return FLAT if aligned and operand.is_contiguous else STRIDED


def _dispatch(
    planner: Planner, registry: Registry, choice: Choice, asked, result, operands, forms, extents, steps, deep, each
) -> None:  # fmt: skip
    spec, reached = _spec(asked), _reached(asked, operands)
    axes = len(extents) if steps else 1
    most = DEEP_AXES if deep else AXES
    extents = [1] * (most - len(extents)) + extents
    steps = {number: [0] * (most - len(own)) + own for number, own in steps.items()}
    words: dict = {"count": result.size, "y_offset": At(result)}
    words |= {f"e_{axis}": extent for axis, extent in enumerate(extents[-AXES:])}
    for number, name in enumerate("abc"):
        words[f"{name}_offset"] = At(reached[number])
        own = steps.get(number, [0] * most)[-AXES:]
        words |= {f"{name}_{axis}": step % 2**32 for axis, step in enumerate(own)}
        live = 2 * spec.scalars.index(number) if number in spec.scalars else None
        words |= {f"{name}_low": 0 if live is None else Live(live)}
        words |= {f"{name}_high": 0 if live is None else Live(live + 1)}
    if deep:
        words |= {f"b_{axis}": extent for axis, extent in enumerate(extents[:AXES])}
        words |= {f"c_{axis}": step % 2**32 for axis, step in enumerate(steps[0][:AXES])}
    if isinstance(asked, Gather):
        words |= {"c_0": asked.step % 2**32, "c_1": asked.extent}
    constants = {"OPERATION": spec.number, "KIND": spec.kind, "RESULT": spec.result, "TYPE_Y": code(result.dtype),
                 "AXES": axes, "DEEP": int(deep), "EACH": each, "HALVES": halves(registry)}  # fmt: skip
    for number, name in enumerate("ABC"):
        operand = operands[number]
        constants |= {f"FORM_{name}": forms[number], f"TYPE_{name}": 0 if operand is None else code(operand.dtype)}
    arrays = {"a": reached[0], "b": operands[1], "c": operands[2], "y": result}
    count = -(-result.size // (each * choice.threads))
    stripe = choice.tile["stripe"]
    planner.dispatch(choice, constants, arrays, words, (min(count, stripe), -(-count // stripe), 1), result.size)

