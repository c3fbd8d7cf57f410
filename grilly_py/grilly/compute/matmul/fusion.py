"""Linear layers and convolutions of captured work with the operations beside them, planned anew as one call.

A call of ``F.linear`` may end with an activation, a gate and a residual, and begin with an RMS norm. Where the
operations beside a captured call are exactly these, and nothing else reads what lies between, the call is planned with
them, as ``F.linear`` with these arguments is: replays have its bits. What lies between is not rounded then.

Behind that, and behind a convolution, other elementwise operations may stand as an expression (finish.py). There each
result is rounded to its dtype: replays have the bits of the calls. What takes no fewer dispatches stays as captured.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import UnsupportedError
from ...runtime.interface import Capture
from ..arrays.fusion import (
    RESULT,
    STEPS,
    Array,
    CapturedWork,
    ElementwiseCommand,
    Together,
    after_result,
    elementwise,
    replace,
    shaped,
)
from ..arrays.operations import spec
from ..device.call import executable_of, plan_of
from ..device.device import Device, NotedCall
from ..device.plan import ALIGN_MOST, Layout, Plan
from ..device.tensor import contiguous_strides, reshaped
from ..expressions.expression import Expression
from ..expressions.nodes import Node, element
from ..norms.fusion import NormCommand
from ..norms.plan import Norm
from .call import ACTIVATIONS, LinearCall
from .finish import MOST, Behind

#: The binding of an array that a plan does not read.
_UNBOUND = (None, 0, 0)


class _Linear(NamedTuple):
    """A captured call of a linear layer or a convolution, with operations beside it.

    Attributes
    ----------
    call : LinearCall
    arrays : tuple of Array or None
        Of the call, in their order.
    result : Array
        With the axes of what the call gives in the order in which they lie in memory.
    numbers : frozenset of int
        Of the commands.
    reads : tuple of (int, memory)
        What is read beside, and by which command.
    finish : tuple of Behind
        What stands behind all that, one or none.
    """

    call: LinearCall
    arrays: tuple[Array | None, ...]
    result: Array
    numbers: frozenset[int]
    reads: tuple[tuple[int, Any], ...]
    finish: tuple[Behind, ...] = ()

    @classmethod
    def of(cls, captured: Capture, work: CapturedWork, first: int, noted: NotedCall) -> _Linear | None:
        """The call of which this was noted; None where something else reads more of it than its result."""
        plan: Plan = noted.plan
        bound: dict[int, tuple] = {}
        numbers = frozenset(range(first, first + len(plan.steps)))
        for number, step in zip(sorted(numbers), plan.steps, strict=True):
            pairs = zip(step.bindings, captured.commands[number][1], strict=True)
            bound |= {place[0]: binding for place, binding in pairs if place is not None}
        result, *others = plan.results
        if any(work.readers[bound[one.slot][0]] - numbers for one in others if one.slot in bound):
            return None
        arrays = tuple(
            None if layout is None else Array(bound.get(slot, _UNBOUND), layout)
            for slot, layout in enumerate(noted.layouts)
        )
        reads = tuple((first, array.memory) for array in arrays if array is not None)
        order = sorted(range(len(result.shape)), key=lambda axis: -result.strides[axis])
        shape, strides = (tuple(each[axis] for axis in order) for each in (result.shape, result.strides))
        layout = Layout(shape, strides, result.dtype, result.offset)
        return cls(plan.operation, arrays, Array(bound[result.slot], layout), numbers, reads)

    @property
    def key(self) -> tuple:
        """The key of its plan (``executables.key_of``)."""
        layouts = (None if array is None else array.layout for array in self.arrays)
        return (*self.call.static, *self.finish), *(
            None if one is None else tuple(one._replace(offset=math.gcd(ALIGN_MOST, one.offset))) for one in layouts
        )

    @property
    def epilogue(self) -> tuple[str | None, bool, tuple]:
        """The activation, whether it is gated, and the norm."""
        return self.call.static[-3:]

    def behind(
        self, result: Array, numbers: Sequence[int], residual: Array | None = None, activation: str | None = None,
        gated: bool = False,
    ) -> _Linear:  # fmt: skip
        """The call with operations behind it."""
        arrays, static = list(self.arrays), self.call.static
        if residual is not None:
            arrays[self.call.residual] = residual
        if activation is not None:
            static = (*static[:-3], activation, gated, static[-1])
        more = () if residual is None else ((max(numbers), residual.memory),)
        return _Linear(
            self.call._replace(static=static), tuple(arrays), result, self.numbers | set(numbers), self.reads + more
        )

    def finished(
        self, members: Mapping[int, ElementwiseCommand], result: Array, output: Node, together: Together
    ) -> _Linear:
        """The call with an expression behind it, of the elements and words of ``together``."""
        read = tuple(
            (number, array.memory) for number, member in members.items() for array in member.arrays
            if not together.makes(array)
        )  # fmt: skip
        others: list[Array | None] = [*together.arrays, None, None]
        return self._replace(
            arrays=(*self.arrays, *others[:2]), result=result, numbers=self.numbers | members.keys(),
            reads=self.reads + read, finish=(Behind(Expression(after_result(output)), tuple(together.words)),),
        )  # fmt: skip

    def normed(self, number: int, x: Array, weight: Array, terms: tuple[float, float]) -> _Linear:
        """The call with a norm before it."""
        arrays = [x, *self.arrays[1:]]
        arrays[self.call.norm] = weight
        static = (*self.call.static[:-1], terms)
        reads = (*((at, memory) for at, memory in self.reads if memory is not self.arrays[0].memory),
                 (number, x.memory), (number, weight.memory))  # fmt: skip
        return self._replace(
            call=self.call._replace(static=static), arrays=tuple(arrays), numbers=self.numbers | {number}, reads=reads
        )


class _Captured(NamedTuple):
    """Captured work, as far as it is looked at beside linear layers.

    Attributes
    ----------
    device : Device
    captured : Capture
    work : CapturedWork
        With its elementwise operations.
    found : dict of int to list
        The commands, by their numbers, in whose place there are others by now, and these.
    """

    device: Device
    captured: Capture
    work: CapturedWork
    found: dict[int, list]

    def elementwise(self, number: int) -> ElementwiseCommand | None:
        """The elementwise operation that a command is, unless it is a part of another by now."""
        return None if number in self.found else self.work.operations.get(number)

    def norm(self, number: int) -> NormCommand | None:
        """The norm that it is."""
        noted = self.captured.operations.get(number)
        if noted is None or number in self.found or not isinstance(noted.operation, Norm):
            return None
        return NormCommand.of(self.device, noted, self.captured.commands[number])

    def is_between(self, array: Array, writers: frozenset[int], readers: frozenset[int]) -> bool:
        """Whether these commands alone write and read an array."""
        memory, work = array.memory, self.work
        return self.captured.private(memory) and work.writers[memory] <= writers and work.readers[memory] <= readers


def fuse_linear(device: Device, captured: Capture) -> None:
    """Replace linear layers and the operations beside them among captured work by fewer dispatches."""
    calls = {first: one for first, one in captured.calls.items() if isinstance(one.plan.operation, LinearCall)}
    if not calls:
        return
    work = CapturedWork(captured, elementwise(captured))
    plans: dict[tuple, Plan | None] = {}
    found: dict[int, list] = {}
    around = _Captured(device, captured, work, found)
    for first in sorted(calls):
        linear = _Linear.of(captured, work, first, calls[first])
        if linear is None or found.keys() & linear.numbers:
            continue
        best, fewest, saved = None, None, 0
        for one in _longer(around, linear):
            plan = _planned(device, plans, one)
            if plan is not None and len(one.numbers) - len(plan.steps) > saved and _may_move(work, one):
                best, fewest, saved = one, plan, len(one.numbers) - len(plan.steps)
        if best is not None and fewest is not None:
            found |= {number: [] for number in best.numbers}
            found[max(best.numbers)] = _commands(device, captured, best, fewest)
    replace(captured, found)


def _longer(around: _Captured, linear: _Linear) -> Iterator[_Linear]:
    """The call with more and more operations behind it, and then the same with a norm before it."""
    behind: list[_Linear] = [linear]
    while (one := _with_next(around, behind[-1])) is not None:
        behind.append(one)
    if linear.call.finishes:
        # Of what saves as much the first is taken: what a call may end with is no part of the expression.
        behind += [longer for one in reversed(behind) for longer in _finished(around, one)]
    yield from behind[1:]
    for one in behind:
        normed = _with_norm(around, one)
        if normed is not None:
            yield normed


def _with_next(around: _Captured, linear: _Linear) -> _Linear | None:
    """The call with what is done to its result, if that alone reads it and a call may end with it."""
    made, residual = linear.result, linear.call.residual
    readers = frozenset(around.work.readers[made.memory] - linear.numbers)
    if residual is None or linear.arrays[residual] is not None or not 0 < len(readers) < 3:
        return None
    if not around.is_between(made, linear.numbers, linear.numbers | readers):
        return None
    numbers = sorted(readers)
    members = [one for number in numbers if (one := around.elementwise(number)) is not None]
    if len(members) < len(numbers):
        return None
    is_linear = linear.epilogue[0] is None  # no activation so far
    shape, last = made.layout.shape, members[-1]
    half = (*shape[:-1], shape[-1] // 2)
    if len(members) == 2:
        is_inside = around.is_between(members[0].result, frozenset(numbers[:1]), frozenset(numbers[1:]))
        if is_linear and is_inside and (activation := _gate(made, *members)) is not None:
            return _ended(linear, half, last, numbers, activation=activation, gated=True)
        return None
    if (residual := _residual(made, last)) is not None:
        return _ended(linear, shape, last, numbers, residual=residual)
    if is_linear and (activation := _activation(made, last)) is not None:
        return _ended(linear, shape, last, numbers, activation=activation)
    if is_linear and (activation := _own_gate(made, last)) is not None:
        return _ended(linear, half, last, numbers, activation=activation, gated=True)
    return None


def _ended(
    linear: _Linear, shape: tuple[int, ...], last: ElementwiseCommand, numbers: list[int], **ends: Any
) -> _Linear | None:
    """The call with these operations, whose result is of that shape; None where a call does not write it so."""
    result = last.result._replace(layout=Layout(shape, contiguous_strides(shape), linear.result.layout.dtype))
    return linear.behind(result, numbers, **ends) if result.is_whole(last.result) else None


def _finished(around: _Captured, linear: _Linear) -> Iterator[_Linear]:
    """The call with one, two and more elementwise operations behind it as an expression."""
    work, made = around.work, linear.result
    shape, dtype = made.layout.shape, made.layout.dtype
    together = Together(lambda array: shaped(array, shape))
    together.note(made, element(RESULT))
    inside: dict[Array, frozenset[int]] = {made: linear.numbers}  # with what writes it
    members: dict[int, ElementwiseCommand] = {}
    while len(members) < STEPS:
        known = linear.numbers | members.keys()
        readers = {number for array in inside for number in work.readers[array.memory]} - known
        number = min(readers, default=None)
        member = None if number is None else around.elementwise(number)
        if number is None or member is None or not _takes(inside, member, shape):
            return
        members[number], output = member, together.output(member)
        numbers = linear.numbers | members.keys()
        closed = all(around.is_between(array, writers, numbers) for array, writers in inside.items())
        result = _contiguous(made, member.result)
        gives = result.layout.dtype
        fits = MOST.takes([output], len(together.arrays), len(together.words)) and not any(
            array.memory is result.memory for array in together.arrays
        )
        stored = result.is_whole(member.result) and (gives == dtype or dtype.itemsize == gives.itemsize == 4)
        if closed and fits and stored:
            yield linear.finished(members, result, output, together)
        together.note(member.result, output)
        inside[member.result] = frozenset([number])


def _takes(inside: Container[Array], member: ElementwiseCommand, shape: tuple[int, ...]) -> bool:
    """Whether an operation can be a part of what stands behind a result of that shape; ``inside`` are results of it."""
    if member.count != math.prod(shape):
        return False
    made = {id(array.memory): array for array in inside}
    for array in member.arrays:
        own = made.get(id(array.memory))
        if own is None:
            layout = array.layout
            if layout.dtype.itemsize > 4 or reshaped(layout.shape, layout.strides, shape) is None:
                return False
        elif not own.is_whole(array):
            return False
    return True


def _contiguous(made: Array, result: Array) -> Array:
    """The result of an operation with the axes of what it is made of."""
    shape = made.layout.shape
    return result._replace(layout=result.layout._replace(shape=shape, strides=contiguous_strides(shape)))


@functools.cache
def _outputs(dtype: np.dtype, arrays: int) -> dict[Node, str]:
    """What activations are of one array, times a second one where there are two."""
    names = [name for name in ACTIVATIONS if name != "none"]
    return {spec(name, dtype).expression((dtype,) * arrays, dtype).output: name for name in names}


def _is(name: str, command: ElementwiseCommand, dtype: np.dtype) -> bool:
    """Whether a command is an operation of two arrays of a dtype."""
    return command.expression.output is spec(name, dtype).expression((dtype, dtype), dtype).output


def _activation(made: Array, command: ElementwiseCommand) -> str | None:
    """The activation of an array that a command is."""
    if len(command.arrays) != 1 or not made.is_whole(command.arrays[0]):
        return None
    return _outputs(made.layout.dtype, 1).get(command.expression.output)


def _residual(made: Array, command: ElementwiseCommand) -> Array | None:
    """What a command adds to an array, with its shape."""
    dtype = made.layout.dtype
    if len(command.arrays) != 2 or not _is("add", command, dtype):
        return None
    own, other = sorted(command.arrays, key=lambda array: array.memory is not made.memory)
    strides = reshaped(other.layout.shape, other.layout.strides, made.layout.shape)
    if not made.is_whole(own) or other.memory is made.memory or other.layout.dtype != dtype or strides is None:
        return None
    return other._replace(layout=other.layout._replace(shape=made.layout.shape, strides=strides))


def _own_gate(made: Array, command: ElementwiseCommand) -> str | None:
    """The activation of the first half of an array's columns, which a command multiplies by the second."""
    if len(command.arrays) != 2 or not (_is_half(made, command.arrays[0], 0) and _is_half(made, command.arrays[1], 1)):
        return None
    return _outputs(made.layout.dtype, 2).get(command.expression.output)


def _gate(made: Array, gate: ElementwiseCommand, product: ElementwiseCommand) -> str | None:
    """The same of two commands, the activation and the product."""
    dtype = made.layout.dtype
    if len(gate.arrays) != 1 or len(product.arrays) != 2 or not _is("multiply", product, dtype):
        return None
    own, other = sorted(product.arrays, key=lambda array: array.memory is not gate.result.memory)
    if not (_is_half(made, gate.arrays[0], 0) and _is_half(made, other, 1) and gate.result.is_whole(own)):
        return None
    return _outputs(dtype, 1).get(gate.expression.output)


def _is_half(made: Array, part: Array, number: int) -> bool:
    """Whether an array is the first or the second half of another one's columns."""
    own, layout = made.layout, part.layout
    cols = own.shape[-1] // 2
    rows = math.prod(own.shape[:-1])
    if own.shape[-1] % 2 or part.binding != made.binding or layout.dtype != own.dtype:
        return False
    if math.prod(layout.shape) != rows * cols or layout.offset != own.offset + number * cols:
        return False
    strides = reshaped(layout.shape, layout.strides, (rows, cols))
    return strides is not None and (rows == 1 or strides[0] == 2 * cols) and (cols == 1 or strides[1] == 1)


def _with_norm(around: _Captured, linear: _Linear) -> _Linear | None:
    """The call with the RMS norm that makes its x, if that is for this call alone."""
    x = linear.arrays[0]
    assert x is not None
    writers = frozenset(around.work.writers[x.memory])
    uses = sum(array is not None and array.memory is x.memory for array in linear.arrays)
    if linear.call.norm is None or linear.epilogue[2] or len(writers) != 1 or uses > 1:
        return None
    if not around.is_between(x, writers, linear.numbers):
        return None
    (number,) = writers
    norm = around.norm(number)
    if norm is None:
        return None
    rows, depth = norm.norm.rows, x.layout.shape[-1]
    takes = (
        norm.norm.terms.operation == "RMS_NORM" and norm.beside.keys() == {"w"} and len(norm.arrays) == 1
        and rows.y.shape[-1] == depth and (depth == 1 or rows.y._strides[-1] == 1) and norm.result.is_whole(x)
    )  # fmt: skip
    if not takes:
        return None
    (before,), weight = norm.arrays, norm.beside["w"]
    strides = reshaped(before.layout.shape, before.layout.strides, x.layout.shape)
    if strides is None or weight.layout.shape != (depth,):
        return None
    before = before._replace(layout=before.layout._replace(shape=x.layout.shape, strides=strides))
    return linear.normed(number, before, weight, (norm.norm.terms.epsilon, norm.norm.terms.added))


def _may_move(work: CapturedWork, linear: _Linear) -> bool:
    """Whether all that is read stays the same up to the last of the commands, and none of it is written over."""
    last = max(linear.numbers)
    return all(
        memory is not linear.result.memory
        and not any(number < writer <= last for writer in work.writers[memory] - linear.numbers)
        for number, memory in linear.reads
    )


def _planned(device: Device, plans: dict[tuple, Plan | None], linear: _Linear) -> Plan | None:
    """The plan of a call; None where there is none that captured arrays can have."""
    key = linear.call.plan, *linear.key
    if key not in plans:
        try:
            plan = plan_of(device, linear.call.plan, linear.key)
        except UnsupportedError:
            plan = None
        if plan is not None and any(slot.__class__ is int and slot < 0 for slot in plan.slots):
            plan = None
        plans[key] = plan
    plan = plans[key]
    if plan is None:
        return None
    places = [place for step in plan.steps for place in step.bindings if place is not None]
    known = all(place[0] >= plan.inputs or _is_bound(linear.arrays[place[0]]) for place in places)
    return plan if known and all(place[1:] == (0, 0) for place in places) else None


def _is_bound(array: Array | None) -> bool:
    return array is not None and array.binding is not _UNBOUND


def _commands(device: Device, captured: Capture, linear: _Linear, plan: Plan) -> list:
    """The dispatches of a call as commands, each with the operation that it is."""
    executable = executable_of(device, linear.call.plan, linear.key)
    bound = {number: array.binding for number, array in enumerate(linear.arrays) if array is not None}
    bound[plan.results[0].slot] = linear.result.binding
    offsets = [0 if array is None else array.layout.offset for array in linear.arrays]
    return executable.commands(bound, offsets, captured.room)


__all__ = ["fuse_linear"]
