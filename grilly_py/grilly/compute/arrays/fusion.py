"""Fusion of captured work: elementwise operations that read each other's results become one dispatch, a chain.

A captured function has run when this begins, so the readers of every result are known. A result is not stored where all
its readers are in one chain and the program keeps no tensor of it. Each result is still rounded to its dtype, so a
replay has the bits of the calls; only the payload of a NaN may differ. A chain moves fewer bytes than
its operations: all have the extents of its result, and each operand is read once.

A chain may begin with a gather, of an embedding say, whose kernel is the same.

Where a reduction alone reads the result of a chain, the chain becomes a part of it, and the additions stay in their
order: the bits are those of the calls here as well. So it does where elements are written by an index, or added up by
one. What stands behind these reads more than they write, and is no part of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import UnsupportedError
from ...runtime.interface import Capture, Program
from ..device.caches import DeviceCache
from ..device.device import Device, Noted
from ..device.plan import ALIGN_MOST, Elementwise, Layout, Planner, Reduce, Step
from ..device.tensor import Tensor, reshaped
from ..expressions.expression import Expression
from ..expressions.nodes import Node, constant, element, replaced, word
from .accumulate import Accumulation, emit_accumulated
from .map import MOST, Work, emit_work
from .map_reduce import emit_kernel, kernel_of
from .promotion import FLOAT32
from .scatter import MOST_BEFORE, Before, Counted, Scatter, emit_scattered

#: Programs of chains. A driver compiles each and keeps it as long as the device is open, so there are no more of them
#: than this; further chains stay single operations.
PROGRAMS: DeviceCache[tuple, Program] = DeviceCache("programs of chains", 256)

#: Operations of a chain, at most.
STEPS = 16

#: Of operations that may take a chain before them the bindings of their arrays and of the result.
_BINDINGS: dict[type, tuple[int, ...]] = {Reduce: (0, 1), Scatter: (0, 1, 2), Accumulation: (2, 1, 3)}

#: The number of the result of a kernel with holes among the elements of what stands behind, until it has its own.
RESULT = 1000


class Array(NamedTuple):
    """Memory that an operation reads or writes, and its layout: offset and strides in elements."""

    binding: tuple[Any, int, int]
    layout: Layout

    @property
    def memory(self) -> Any:
        """What is bound."""
        return self.binding[0]

    def is_whole(self, other: Array) -> bool:
        """Whether the other array has the same elements in the same order, one after the other."""
        own, their = self.layout, other.layout
        count = math.prod(own.shape)
        stride = (int(count > 1),)
        return (
            self.binding == other.binding and own.offset == their.offset and own.dtype == their.dtype
            and count == math.prod(their.shape) and reshaped(own.shape, own.strides, (count,)) == stride
            and reshaped(their.shape, their.strides, (count,)) == stride
        )  # fmt: skip


class ElementwiseCommand(NamedTuple):
    """An elementwise operation as it was captured: its expression, the words it was given, and its arrays.

    ``counted``: of a gather, the axis of the first array that the second, of indices, counts.
    """

    expression: Expression
    words: tuple[int, ...]
    arrays: tuple[Array, ...]
    result: Array
    seconds: float
    counted: Counted | None = None

    @property
    def count(self) -> int:
        """Elements of the result."""
        return math.prod(self.result.layout.shape)


class _Reader(NamedTuple):
    """A reduction, or what writes or adds up by an index, as it was captured.

    The last of the arrays is the result. ``memory`` is what a reduction has for parts of rows.
    """

    operation: Reduce | Scatter | Accumulation
    arrays: tuple[Array, ...]
    memory: tuple[tuple[Any, int, int], ...]
    seconds: float

    @classmethod
    def of(cls, noted: Noted, command: tuple) -> _Reader:
        """The operation of which this was noted."""
        operation, bindings = noted.operation, _BINDINGS[type(noted.operation)]
        tensors = zip(bindings, (*operation.arrays, operation.result), noted.offsets, strict=True)
        arrays = tuple(
            Array(command[1][place], Layout(tensor.shape, tensor._strides, tensor.dtype, offset))
            for place, tensor, offset in tensors
        )
        return cls(operation, arrays, tuple(command[1][len(arrays) :]), command[4])


def fuse(device: Device, captured: Capture) -> None:
    """Replace chains of elementwise operations, and what alone reads them, among captured work by one dispatch each."""
    commands = captured.commands
    operations = elementwise(captured, gathers=True)
    readers = {
        number: _Reader.of(one, commands[number])
        for number, one in captured.operations.items() if type(one.operation) in _BINDINGS
    }  # fmt: skip
    if len(operations) + len(readers) < 2:
        return
    work = CapturedWork(captured, operations)
    found: dict[int, list[tuple[tuple, None]]] = {}
    for last in sorted(operations, reverse=True):
        if last not in found:
            fused = _fused(device, work, readers, last, found)
            if not fused and work.gathers:
                fused = _fused(device, work, readers, last, work.gathers | found.keys())
            found |= fused
    replace(captured, found)


def _fused(
    device: Device, work: CapturedWork, readers: Mapping[int, _Reader], last: int, taken: Container[int]
) -> dict[int, list[tuple[tuple, None]]]:
    """The chain that ends with an operation, as what ``replace`` takes: one dispatch, or its readers' with it."""
    chain = work.chain(last, taken)
    own, members = _Chain(work.operations, sorted(chain)), {member: [] for member in chain}
    numbers = work.only_readers(last, chain)
    results = {id(readers[number].arrays[-1].memory) for number in numbers if number in readers}
    if numbers <= readers.keys() and len(results) == 1:  # several read the terms of one sum
        if own.counted is not None:
            return {}  # their kernels do not gather
        made = {number: _with_chain(device, own, readers[number]) for number in numbers}
        if None not in made.values():
            return members | {number: [(command, None)] for number, command in made.items()}
    command = _command(device, own) if len(chain) > 1 else None
    return {} if command is None else members | {last: [(command, None)]}


def replace(captured: Capture, found: Mapping[int, Sequence[tuple[tuple, Noted | None]]]) -> None:
    """Put others in the place of the commands of these numbers, each with the operation that it is."""
    commands, operations = captured.commands, captured.operations
    captured.commands, captured.operations, captured.calls = [], {}, {}
    for number, command in enumerate(commands):
        for one, operation in found.get(number, [(command, operations.get(number))]):
            if operation is not None:
                captured.operations[len(captured.commands)] = operation
            captured.commands.append(one)


def elementwise(captured: Capture, gathers: bool = False) -> dict[int, ElementwiseCommand]:
    """The elementwise operations of captured work, by the numbers of their commands, with gathers or without."""
    noted = captured.operations.items()
    return {
        number: _read(one, captured.commands[number]) for number, one in noted
        if isinstance(one.operation, Elementwise) and (gathers or one.operation.counted is None)
    }  # fmt: skip


def _read(noted: Noted, command: tuple) -> ElementwiseCommand:
    operation: Elementwise = noted.operation
    bindings = command[1]

    def array(place: int, tensor: Tensor, offset: int) -> Array:
        return Array(bindings[place], Layout(tensor.shape, tensor._strides, tensor.dtype, offset))

    arrays = tuple(
        array(place, tensor, offset)
        for place, (tensor, offset) in enumerate(zip(operation.arrays, noted.offsets, strict=False))
    )  # fmt: skip
    last = max(place for place, binding in enumerate(bindings) if binding is not None)
    result = array(last, operation.result, noted.offsets[-1])
    counted = operation.counted
    return ElementwiseCommand(operation.expression, tuple(noted.words), arrays, result, command[4], counted)


class CapturedWork:
    """Captured work: its elementwise operations, by their numbers, and which commands read and write which memory."""

    def __init__(self, captured: Capture, operations: dict[int, ElementwiseCommand]):
        self.operations = operations
        self.readers: dict[Any, set[int]] = defaultdict(set)
        self.writers: dict[Any, set[int]] = defaultdict(set)
        for number, command in enumerate(captured.commands):
            for memory, _, reads, writes in uses(command):
                if reads:
                    self.readers[memory].add(number)
                if writes:
                    self.writers[memory].add(number)
        self.private = {number for number, each in operations.items() if captured.private(each.result.memory)}
        self.gathers = {
            number for number, each in operations.items()
            if isinstance(each, ElementwiseCommand) and each.counted is not None
        }  # fmt: skip

    def chain(self, last: int, taken: Container[int]) -> set[int]:
        """The operations that become one dispatch with ``last``, which is run last; none of those ``taken``."""
        chain, grown = {last}, True
        while grown and len(chain) < STEPS:
            fitting = (
                number for number in sorted(self.makers(chain), reverse=True)
                if number not in taken and self.addable(number, chain, last)
                and _Chain(self.operations, sorted(chain | {number})).fits
            )  # fmt: skip
            added = next(fitting, None)
            grown = added is not None
            if added is not None:
                chain.add(added)
        return chain

    def only_readers(self, last: int, chain: set[int]) -> set[int]:
        """The commands that read a chain's result, if the chain may run in their places; else none."""
        memory = self.operations[last].result.memory
        readers = self.readers[memory]
        if last not in self.private or self.writers[memory] != {last} or not readers or min(readers) < last:
            return set()
        is_changed = any(
            member < writer < max(readers) and writer not in chain
            for member in chain
            for array in self.operations[member].arrays
            for writer in self.writers[array.memory]
        )
        return set() if is_changed else readers

    def makers(self, chain: set[int]) -> set[int]:
        """The operations outside a chain whose results it reads, but as a gather does."""
        return {
            number
            for member in chain - self.gathers
            for array in self.operations[member].arrays
            for number in self.writers[array.memory]
            if number in self.operations and number not in chain and number < member
        }

    def addable(self, number: int, chain: set[int], last: int) -> bool:
        """Whether an operation whose result the chain alone reads can become a part of it."""
        readers = self.readers[self.operations[number].result.memory]
        return number in self.private and readers <= chain and self.movable(number, chain, last)

    def movable(self, number: int, chain: set[int], last: int) -> bool:
        """Whether an operation whose result the chain reads, and others behind it may, can run in its place."""
        made = self.operations[number]
        memory = made.result.memory
        if made.count != self.operations[last].count or self.writers[memory] != {number}:
            return False
        for reader in self.readers[memory]:
            if reader in chain & self.gathers or reader not in chain and reader < last:
                return False
            arrays = self.operations[reader].arrays if reader in chain else ()
            if not all(made.result.is_whole(array) for array in arrays if array.memory is memory):
                return False
        return not any(  # what it reads must not change until the chain runs
            number < writer < last and writer not in chain
            for array in made.arrays
            for writer in self.writers[array.memory]
        )


def uses(command: tuple) -> Iterator[tuple[Any, tuple[int, int], bool, bool]]:
    """The memory that a command uses, from the first byte to behind the last, and whether it reads and writes there."""
    if command[0] is None:
        _, source, start, target, begin, nbytes = command
        yield source, (start, start + nbytes), True, False
        yield target, (begin, begin + nbytes), False, True
    else:
        for letters, binding in zip(command[0].spec.access, command[1], strict=True):
            if binding is not None:
                memory, start, nbytes = binding
                yield memory, (start, start + nbytes), "r" in letters, "w" in letters


class Together:
    """The expressions of several operations as one, made operation by operation.

    Parameters
    ----------
    view : callable
        Gives an operation's array the layout in which all arrays are read.

    Attributes
    ----------
    arrays : list of Array
        Whose elements the expressions have.
    words : list of int
    """

    def __init__(self, view: Callable[[Array], Array]):
        self._view = view
        self._made: dict[int, Node] = {}  # by the memory of a result
        self.arrays: list[Array] = []
        self.words: list[int] = []

    def output(self, member: ElementwiseCommand) -> Node:
        """The bits of an operation's result, computed from elements of ``arrays`` and from ``words``."""
        (output,) = replaced([member.expression.output], lambda leaf: self._leaf(leaf, member))
        return output

    def note(self, result: Array, output: Node) -> None:
        """Note the node that operations that follow use in place of an operation's result."""
        self._made[id(result.memory)] = output

    def makes(self, array: Array) -> bool:
        """Whether the array is a result of an operation that was noted."""
        return id(array.memory) in self._made

    def _leaf(self, leaf: Node, member: ElementwiseCommand) -> Node:
        """The node in place of an element or a word of an operation."""
        if leaf.name == "word":
            value = member.words[leaf.value]
            if value == 0:  # many have it, and words are few
                return constant(0, leaf.type)
            if value not in self.words:
                self.words.append(value)
            return word(self.words.index(value), leaf.type)
        array = member.arrays[leaf.value]
        if self.makes(array):
            return self._made[id(array.memory)]
        array = self._view(array)
        if array not in self.arrays:
            self.arrays.append(array)
        return element(self.arrays.index(array))


class _Chain:
    """Operations, in their order, as one. ``fits`` says whether one kernel can do them.

    Attributes
    ----------
    output : Node
        The bits of the last result, computed from elements of ``arrays`` and from ``words``.
    arrays : list of Array
        With the shape of ``result``.
    words : list of int
    result : Array
    seconds : float
    counted : Counted or None
        Of the gather among them, whose arrays are the first.
    """

    def __init__(self, operations: dict[int, ElementwiseCommand], numbers: Sequence[int]):
        members = [operations[number] for number in numbers]
        last = members[-1].result
        self.seconds = sum(member.seconds for member in members)
        shape = refined([member.result.layout.shape for member in members])
        gathers = [member for member in members if member.counted is not None]
        self.counted = gathers[0].counted if gathers else None
        self.fits = False
        if shape is None or len(gathers) > 1:
            return
        together = Together(lambda array: shaped(array, shape))
        data: list[Array] = []
        for member in sorted(members, key=lambda member: member.counted is None):
            self.output = together.output(member)
            together.note(member.result, self.output)
            if member.counted is not None:
                data = together.arrays[:1]
                # Others that read the memory of what is gathered from have an element of their own.
                together.arrays[:] = [data[0]._replace(binding=(None, 0, 0)), shaped(member.arrays[1], shape)]
        self.arrays, self.words = [*data, *together.arrays[len(data) :]], together.words
        self.result = shaped(last, shape)
        self.fits = (
            MOST.takes([self.output], len(self.arrays), len(self.words))
            and all(array.memory is not last.memory or last.is_whole(array) for array in self.arrays)
        )  # fmt: skip


def after_result(output: Node) -> Node:
    """What stands behind a kernel's result as its hole has it: the result is the first of its elements."""

    def shifted(leaf: Node) -> Node:
        return leaf if leaf.name == "word" else element(0 if leaf.value == RESULT else leaf.value + 1)

    return replaced([output], shifted)[0]


def shaped(array: Array, shape: tuple[int, ...]) -> Array:
    """The array with its axes split to a shape of more axes."""
    layout = array.layout
    strides = reshaped(layout.shape, layout.strides, shape)
    assert strides is not None, "an axis can always be several"
    return array._replace(layout=layout._replace(shape=shape, strides=strides))


def refined(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape with fewest axes to which the axes of all these shapes, of one size, can be split; None for none."""
    bounds = sorted({math.prod(shape[axis:]) for shape in shapes for axis in range(len(shape) + 1)})
    if any(above % below for below, above in zip(bounds, bounds[1:], strict=False)):
        return None
    return tuple(above // below for below, above in zip(bounds, bounds[1:], strict=False))[::-1] or (1,)


def _command(device: Device, chain: _Chain) -> tuple | None:
    """The dispatch of a chain; None where the kernel needs several, and where there are too many programs already."""
    arrays = [*chain.arrays, chain.result]
    planner, offsets = planner_of(device, arrays)
    *operands, result = planner.inputs
    work = Work(Expression(chain.output), chain.counted)
    try:
        emit_work(planner, device.registry, work, result, operands, offsets[:-1], offsets[-1])
    except UnsupportedError:
        return None
    return bound(device, planner, arrays, chain.words, chain.seconds)


def planner_of(device: Device, arrays: Sequence[Array]) -> tuple[Planner, list[int]]:
    """A planner of one dispatch on captured arrays, and the powers of two that divide their offsets."""
    offsets = [math.gcd(ALIGN_MOST, array.layout.offset) for array in arrays]
    layouts = [array.layout._replace(offset=offset) for array, offset in zip(arrays, offsets, strict=True)]
    return Planner(device.facts, layouts), offsets


def bound(
    device: Device, planner: Planner, arrays: Sequence[Array], words: Sequence[int], seconds: float
) -> tuple | None:
    """The one dispatch of a plan as a command; None where there are others, and where there are too many programs.

    ``arrays`` are those of ``planner_of``, and ``words`` what the plan's ``Live`` words are.
    """
    plan = planner.plan()
    if len(plan.steps) != 1 or plan.slots:
        return None
    (step,) = plan.steps
    program = _program(device, step)
    if program is None:
        return None
    push = bytearray(step.push)
    for at, number, base, unit in step.moved:
        push[at : at + 4] = (base + arrays[number].layout.offset // unit).to_bytes(4, "little")
    for at, number, base in step.live:
        push[at : at + 4] = (base + words[number] & 0xFFFFFFFF).to_bytes(4, "little")
    bindings = tuple(None if place is None else arrays[place[0]].binding for place in step.bindings)
    return program, bindings, bytes(push), step.groups, seconds


def _with_chain(device: Device, chain: _Chain, reader: _Reader) -> tuple | None:
    """The dispatch of an operation with the chain that makes what it reads; None where its kernel cannot do it."""
    layout = reader.arrays[0].layout
    axes = [axis for axis, extent in enumerate(layout.shape) if extent > 1]
    axes.sort(key=lambda axis: -layout.strides[axis])
    flat = layout._replace(
        shape=tuple(layout.shape[axis] for axis in axes), strides=tuple(layout.strides[axis] for axis in axes)
    )
    if not chain.result.is_whole(reader.arrays[0]._replace(layout=flat)):
        return None
    shape = refined([chain.result.layout.shape, flat.shape])
    if shape is None:
        return None
    places = _places(axes, flat.shape, shape)
    order = [place for axis in range(len(layout.shape)) for place in places.get(axis, ())]
    order += [place for place in range(len(shape)) if place not in order]  # of one element alone
    if not isinstance(reader.operation, Reduce):
        return _by_index(device, chain, reader, shape, order)
    kept = sum(len(places.get(axis, ())) for axis in range(reader.operation.kept))
    return _reduced(device, chain, reader, shape, order, kept)


def _reduced(
    device: Device, chain: _Chain, reader: _Reader, shape: tuple[int, ...], order: Sequence[int], kept: int
) -> tuple | None:
    """A reduction with a chain, whose arrays have a view of this shape; the axes' order is that of the reduction."""
    operation, (x, result) = reader.operation, reader.arrays
    count = math.prod(result.layout.shape)
    result = result._replace(layout=result.layout._replace(shape=(count,), strides=(1,)))
    memory = [Array(binding, Layout((1,), (1,), FLOAT32)) for binding in reader.memory if binding is not None]
    arrays = [*(shaped(array, shape) for array in chain.arrays), result, *memory]
    planner, _ = planner_of(device, arrays)
    many = len(chain.arrays)
    read = [view.transpose(order) for view in planner.inputs[:many]]
    kernel = kernel_of(operation, x.layout.dtype, chain.output)
    if not emit_kernel(planner, device.registry, kernel, read, kept, planner.inputs[many], operation.walk,
                       planner.inputs[many + 1 :]):  # fmt: skip
        return None
    return bound(device, planner, arrays, chain.words, chain.seconds + reader.seconds)


def _by_index(
    device: Device, chain: _Chain, reader: _Reader, shape: tuple[int, ...], order: Sequence[int]
) -> tuple | None:
    """What writes, or adds up, by an index, with a chain as in ``_reduced``."""
    operation, (x, index, result) = reader.operation, reader.arrays
    many, own = len(chain.arrays), tuple(shape[place] for place in order)
    fits = 0 < many and MOST_BEFORE.takes([chain.output], many, len(chain.words))
    # What is written meanwhile, and an index that the chain makes too.
    if not fits or x.memory is index.memory or any(array.memory is result.memory for array in chain.arrays):
        return None
    if isinstance(operation, Scatter):
        result = shaped(result, own)
    arrays = [*(shaped(array, shape) for array in chain.arrays), shaped(index, own), result]
    planner, _ = planner_of(device, arrays)
    *views, places, target = planner.inputs
    before = Before(Expression(chain.output), [view.transpose(order) for view in views])
    if isinstance(operation, Scatter):
        is_one = emit_scattered(planner, device.registry, before, target, places, operation.counted)
    else:
        strides = reshaped(operation.arrays[0].shape, operation.places, own)
        is_one = emit_accumulated(planner, device.registry, operation, before, places, target, strides)
    return bound(device, planner, arrays, chain.words, chain.seconds + reader.seconds) if is_one else None


def _places(axes: Sequence[int], extents: Sequence[int], shape: Sequence[int]) -> dict[int, list[int]]:
    """For each axis the places of its parts in a shape to which axes of these extents were split."""
    found: dict[int, list[int]] = {}
    place = 0
    for axis, extent in zip(axes, extents, strict=True):
        own = found[axis] = []
        while extent > 1:
            own.append(place)
            extent //= shape[place]
            place += 1
    return found


def _program(device: Device, step: Step) -> Program | None:
    """The program of a chain, unless there are too many."""
    assert step.filling is not None
    kept, key = device.caches[PROGRAMS], (step.filling, step.constants)
    program = kept.get(key)
    if program is None and len(kept) < kept.limit:
        program = kept.keep(key, device.runtime.program(step.choice.spec(dict(step.constants), step.filling)))
    return program


__all__ = ["fuse"]
