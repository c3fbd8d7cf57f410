"""Norms, softmaxes and scans of captured work, with the elementwise operations before and behind them: one dispatch.

What stands before makes the rows, and what stands behind is made of the results; neither is stored between, but for the
rows of a norm where others read them too, as those of a residual stream. As in compute/arrays/fusion.py each result is
still rounded to its dtype, so that a replay has the bits of the calls. Only the sign of a zero of a layer norm may
differ: a compiler may take an element less itself, less a mean of 0, for -0.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

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
    bound,
    elementwise,
    planner_of,
    refined,
    replace,
    shaped,
)
from ..arrays.operations import spec
from ..arrays.scans import Scan, emit_between
from ..device.device import Device, Noted
from ..device.plan import Layout, Planner
from ..device.tensor import Tensor, contiguous_strides, reshaped
from ..expressions.cutting import Most
from ..expressions.expression import Expression
from ..expressions.nodes import Node, element, in_order
from .plan import OPERANDS, WORDS, Norm, Rows, emit_with_expressions, most_calls

#: What both expressions have at most.
_MOST = Most(OPERANDS, WORDS, 300)
#: Full arrays that make the elements of a row that is read twice, at most: more would move more bytes than a store.
_READ_TWICE = 2
_BINDINGS = ("x", "r", "w", "b", "y", "s")  # shaders/norms/norm-rows.toml
_READ = "xrp"  # by expressions


class NormCommand(NamedTuple):
    """A norm as it was captured. All arrays have the shape in which ``result`` is contiguous.

    Attributes
    ----------
    norm : Norm
    expression : Expression
        What is normed, of the elements of ``arrays``.
    words : tuple of int
        None.
    arrays : tuple of Array
        x, and what is added to it.
    result : Array
    seconds : float
    order : tuple of int
        The axes of the norm's rows by those of that shape.
    beside : dict of str to Array
        w, b and s, of those that there are.
    calls : int
        Functions that expressions may call for an element, at most; -1 where nothing may stand beside the norm.
    """

    norm: Norm
    expression: Expression
    words: tuple[int, ...]
    arrays: tuple[Array, ...]
    result: Array
    seconds: float
    order: tuple[int, ...]
    beside: dict[str, Array]
    calls: int

    @property
    def count(self) -> int:
        """Elements of the result."""
        return math.prod(self.result.layout.shape)

    @property
    def turned(self) -> tuple[int, ...] | None:
        """None: x lies as the result does."""
        return None

    def takes(self, fused: _Fused) -> bool:
        """Whether the kernel takes these expressions and the arrays that they read."""
        written, walks = fused.result.layout.dtype, 1 + self.norm.constants["LONG"]  # how many times a row is read
        return (
            walks * _calls(fused.before) + _calls(fused.after) <= self.calls
            and (walks == 1 or fused.full_before() <= _READ_TWICE)
            and written.itemsize == self.result.layout.dtype.itemsize
            and all(array.layout.dtype.itemsize <= 4 for array in fused.arrays)
        )

    def emit(
        self, planner: Planner, device: Device, tensors: dict[str, Tensor], offsets: Mapping[str, int], fused: _Fused
    ) -> None:
        """Plan the dispatch on tensors of these names, whose offsets these powers of two divide."""
        turned = {name: tensor if name in "wb" else tensor.transpose(self.order) for name, tensor in tensors.items()}
        aligned = {name for name, offset in offsets.items() if offset % 4 == 0}
        rows = Rows(**{name: turned.get(name) for name in "xrwbysp"}, t=None, groups=0,
                    aligned=tensors.keys() - {*_READ} <= aligned)  # fmt: skip
        emit_with_expressions(planner, device.registry, self.norm, rows, aligned, Expression(fused.before),
                              Expression(after_result(fused.after)))  # fmt: skip

    @classmethod
    def of(cls, device: Device, noted: Noted, command: tuple) -> NormCommand:
        """The norm of which this was noted."""
        norm: Norm = noted.operation
        y = norm.rows.y
        order = tuple(sorted(range(y.ndim), key=lambda axis: -y._strides[axis] if y.shape[axis] > 1 else -math.inf))
        named = [*norm.named.items(), ("y", y)]
        arrays = {}
        for (name, tensor), offset in zip(named, noted.offsets, strict=True):
            view = tensor if name in "wb" else tensor.transpose(order)
            layout = Layout(view.shape, view._strides, view.dtype, offset)
            arrays[name] = Array(command[1][_BINDINGS.index(name)], layout)
        read = tuple(arrays.pop(name) for name in "xr" if name in arrays)
        expression = Expression(element(0))
        if len(read) == 2:
            expression = spec("add", y.dtype).expression((y.dtype, y.dtype), y.dtype)
        result = arrays.pop("y")
        back = tuple(order.index(axis) for axis in range(y.ndim))
        calls = most_calls(device.registry, norm)
        return cls(norm, expression, (), read, result, command[4], back, arrays, calls)


class ScanCommand(NamedTuple):
    """A scan as it was captured; see ``NormCommand``.

    Attributes
    ----------
    scan : Scan
    arrays : tuple of Array
        What is scanned, its axes in the order in which they lie in memory.
    result : Array
    seconds : float
    turned : tuple of int or None
        The axes of the result by those of what is scanned; None where they are the same.
    """

    scan: Scan
    arrays: tuple[Array, ...]
    result: Array
    seconds: float
    turned: tuple[int, ...] | None

    expression = Expression(element(0))
    words = ()

    @property
    def beside(self) -> dict[str, Array]:
        """Nothing."""
        return {}

    @property
    def count(self) -> int:
        """Elements of the result."""
        return math.prod(self.result.layout.shape)

    def takes(self, fused: _Fused) -> bool:
        """Whether the kernel takes these expressions: all but rows that are stored as well."""
        return fused.stored is None

    def emit(
        self, planner: Planner, device: Device, tensors: dict[str, Tensor], offsets: Mapping[str, int], fused: _Fused
    ) -> None:
        """Plan the dispatch on tensors of these names, whose offsets these powers of two divide."""
        aligned = {name for name, offset in offsets.items() if offset % 8 == 0}
        emit_between(planner, device.registry, self.scan, tensors, aligned, Expression(fused.before),
                     Expression(after_result(fused.after)))  # fmt: skip

    @classmethod
    def of(cls, noted: Noted, command: tuple) -> ScanCommand:
        """The scan of which this was noted."""
        scan: Scan = noted.operation
        (x,), y = scan.arrays, scan.result
        counted = [axis for axis, extent in enumerate(x.shape) if extent > 1]
        order = sorted(counted, key=lambda axis: -x._strides[axis])
        turned = None if order == counted else (*order, *(axis for axis in range(x.ndim) if axis not in order))
        if turned is not None:
            x = x.transpose(turned)
        arrays = [
            Array(binding, Layout(tensor.shape, tensor._strides, tensor.dtype, offset))
            for binding, tensor, offset in zip(command[1][:2], (x, y), noted.offsets, strict=True)
        ]
        return cls(scan, (arrays[0],), arrays[1], command[4], turned)


def fuse_norms(device: Device, captured: Capture) -> None:
    """Replace norms, scans and the elementwise operations beside them among captured work by one dispatch each."""
    norms: dict[int, NormCommand | ScanCommand] = {}
    for number, one in captured.operations.items():
        if isinstance(one.operation, Norm):
            norms[number] = NormCommand.of(device, one, captured.commands[number])
        elif isinstance(one.operation, Scan):
            norms[number] = ScanCommand.of(one, captured.commands[number])
    if not norms:
        return
    operations: dict[int, Any] = {**elementwise(captured), **norms}
    work = CapturedWork(captured, operations)
    found: dict[int, list[tuple[tuple, None]]] = {}
    for number in sorted(norms):
        chain, stored = _chain(work, number, {*found, *norms} - {number})
        command = _command(device, _Fused(operations, sorted(chain), stored)) if len(chain) > 1 else None
        if command is not None:
            found |= {member: [] for member in chain} | {max(chain): [(command, None)]}
    replace(captured, found)


def _chain(work: CapturedWork, norm: int, taken: Container[int]) -> tuple[set[int], int | None]:
    """The operations that become one dispatch with a norm, which is among them; of those ``taken`` none.

    With them the one that makes the rows, if its result is stored as well.
    """
    behind = list(_behind(work, norm, taken))
    fitting = (chain for last in reversed(behind) if (chain := _between(work, norm, last, behind)) is not None)
    chain = _with_makers(work, next(fitting, {norm}), taken)
    (x, *others), last = work.operations[norm].arrays, max(chain)
    makers = work.writers[x.memory] & work.operations.keys() - chain
    if others or len(makers) != 1 or not makers.isdisjoint(taken) or not _fits(work, chain | makers, last, *makers):
        return chain, None
    longer = _with_makers(work, chain | makers, taken, *makers)
    # A chain that the operation would be in otherwise is not torn.
    torn = any(work.addable(number, makers, *makers) for number in work.makers(makers) - longer)
    return (chain, None) if torn else (longer, *makers)


def _with_makers(work: CapturedWork, chain: set[int], taken: Container[int], stored: int | None = None) -> set[int]:
    """A chain with what makes its operands."""
    last, grown = max(chain), True
    while grown and len(chain) < STEPS:
        fitting = (number for number in sorted(work.makers(chain), reverse=True)
                   if number not in taken and _fits(work, chain | {number}, last, stored))  # fmt: skip
        added = next(fitting, None)
        grown = added is not None
        if added is not None:
            chain = chain | {added}
    return chain


def _behind(work: CapturedWork, norm: int, taken: Container[int]) -> Iterator[int]:
    """The first operations that are made of the norm's result, in their order."""
    made, count = {norm}, 0
    for number in sorted(work.operations):
        if number <= norm or number in taken or count == STEPS:
            continue
        if any(work.writers[array.memory] & made for array in work.operations[number].arrays):
            made.add(number)
            count += 1
            yield number


def _between(work: CapturedWork, norm: int, last: int, behind: Sequence[int]) -> set[int] | None:
    """The norm, the last operation, and those between them on its way, if they can be one dispatch."""
    chain, makers = {last}, {last}
    while makers:
        makers = {number for number in work.makers(chain) if number == norm or number in behind}
        chain |= makers
    return chain if norm in chain and len(chain) <= STEPS and _fits(work, chain, last) else None


def _fits(work: CapturedWork, chain: set[int], last: int, stored: int | None = None) -> bool:
    """Whether operations can be one dispatch in the place of the last, which stores the result of one more."""
    if not all(number in (last, stored) or work.addable(number, chain, last) for number in chain):
        return False
    if stored is not None and not work.movable(stored, chain, last):
        return False
    fused = _Fused(work.operations, sorted(chain), stored)
    return fused.fits and not any(
        fused.norm < number <= last and number not in chain
        for name, array in fused.beside.items()
        for number in work.writers[array.memory] | (work.readers[array.memory] if name == "s" else set())
    )


class _Fused:
    """A norm and operations beside it, in their order. ``fits``: whether the kernel can do it.

    Attributes
    ----------
    norm : int
        Its number among the operations.
    before, after : Node
        The bits of what is normed, of elements of ``arrays`` and of words; those of what is written, of these and of
        the norm's result, whose number is ``RESULT``.
    arrays : list of Array
        With the shape of ``result``.
    words : list of int
    result : Array
    beside : dict of str to Array
        The norm's.
    seconds : float
    """

    def __init__(
        self, operations: Mapping[int, ElementwiseCommand | NormCommand | ScanCommand], numbers: Sequence[int],
        stored: int | None = None,
    ):  # fmt: skip
        members = [operations[number] for number in numbers]
        self.command: NormCommand | ScanCommand
        self.norm, self.command = next(
            (number, one) for number, one in zip(numbers, members, strict=True)
            if not isinstance(one, ElementwiseCommand)
        )  # fmt: skip
        self.beside, self.stored = self.command.beside, None if stored is None else operations[stored].result
        self.seconds = sum(member.seconds for member in members)
        own = self.command.result.layout.shape
        last = members[-1].result
        self.result = last._replace(layout=last.layout._replace(shape=own, strides=contiguous_strides(own)))
        if self.command.turned is not None:
            members = self._turned(members, self.command.turned)
        shape = refined([own, *(member.result.layout.shape for member in members)])
        self.fits = len(members) > 0 and shape is not None and self._put_together(members, shape)

    def _turned(self, members: Sequence[Any], turned: Sequence[int]) -> list[Any]:
        """The operations; those that make x have the axes of the result. [] where they cannot be put together."""
        own = next(place for place, member in enumerate(members) if member is self.command)
        made = {id(member.result.memory): place for place, member in enumerate(members[:own])}
        before, todo = set[int](), list(self.command.arrays)
        while todo:
            place = made.get(id(todo.pop().memory))
            if place is not None:
                before.add(place)
                todo += members[place].arrays
        found = []
        for place, member in enumerate(members):
            if place in before or place == own:
                arrays = member.arrays if place == own else (*member.arrays, member.result)
                views = [self._with_axes_of_result(array, turned) for array in arrays]
                if None in views:
                    return []
                result = member.result if place == own else views.pop()
                member = member._replace(arrays=tuple(views), result=result)
            # Behind the scan an element of what is made before it would be another one.
            elif any(made.get(id(array.memory)) in before for array in member.arrays):
                return []
            found.append(member)
        self.command = found[own]
        return found

    def _with_axes_of_result(self, array: Array, turned: Sequence[int]) -> Array | None:
        """An array whose axes are those of x as they lie, with the result's; None where there is no such view."""
        x = self.command.arrays[0].layout.shape
        shape = refined([x, array.layout.shape])
        layout = None if shape is None else shaped(array, shape).layout
        strides = None if layout is None else reshaped(layout.shape, layout.strides, x)
        if layout is None or strides is None:
            return None
        own = tuple(strides[turned.index(axis)] for axis in range(len(x)))
        return array._replace(layout=layout._replace(shape=self.command.result.layout.shape, strides=own))

    def _put_together(self, members: Sequence[Any], shape: tuple[int, ...]) -> bool:
        read = [array for member in members for array in member.arrays]
        if any(self._of_own_shape(array, shape) is None for array in read):
            return False
        if self.stored is not None:
            own = self.command.result.layout
            whole = self.stored._replace(layout=self.stored.layout._replace(shape=own.shape, strides=own.strides))
            if not (whole.is_whole(self.stored) and whole.is_whole(self.command.arrays[0])):
                return False
            self.beside = {**self.beside, "s": whole}
        together = Together(lambda array: self._of_own_shape(array, shape))
        for member in members:
            self.after = together.output(member)
            if member is self.command:
                self.before, self.after = self.after, element(RESULT)
            together.note(member.result, self.after)
        self.arrays, self.words = together.arrays, together.words
        return self._is_small() and self._is_apart(together)

    def _is_small(self) -> bool:
        """Whether expressions and operands are no more than the kernel takes, and than make it faster."""
        return (
            len(self.arrays) > 0
            and _MOST.takes([self.before, self.after], len(self.arrays), len(self.words))
            and self.command.takes(self)
        )

    def _is_apart(self, together: Together) -> bool:
        """Whether what is written is nothing that is read."""
        written = self.result
        return (
            not any(together.makes(array) for name, array in self.beside.items() if name != "s")
            and not any(array.memory is written.memory for array in (*self.arrays, *self.beside.values()))
            and not any(array.memory is self.beside["s"].memory for array in self.arrays if "s" in self.beside)
            and ("s" not in self.beside or self.beside["s"].layout.offset == written.layout.offset)
        )

    def _of_own_shape(self, array: Array, shape: tuple[int, ...]) -> Array | None:
        """The array, which has a view of this shape, with the axes of the norm's result, if there is such a view."""
        layout, own = shaped(array, shape).layout, self.command.result.layout.shape
        strides = reshaped(layout.shape, layout.strides, own)
        return None if strides is None else array._replace(layout=layout._replace(shape=own, strides=strides))

    def full_before(self) -> int:
        """How many arrays of as many elements as the result has are read to make what is normed."""
        return sum(
            node.name == "element" and 0 not in _counted(self.arrays[node.value].layout)
            for node in in_order([self.before])
        )  # fmt: skip


def _calls(output: Node) -> int:
    """How many functions an expression calls."""
    return sum(node.name == "call" for node in in_order([output]))


def _counted(layout: Layout) -> list[int]:
    """The strides along axes of several elements."""
    return [stride for stride, extent in zip(layout.strides, layout.shape, strict=True) if extent > 1]


def _command(device: Device, fused: _Fused) -> tuple | None:
    """The dispatch; None where the kernel cannot do it, and where there are too many programs already."""
    arrays = [*fused.arrays, *fused.beside.values(), fused.result]
    names = [*_READ[: len(fused.arrays)], *fused.beside, "y"]
    planner, offsets = planner_of(device, arrays)
    tensors = dict(zip(names, planner.inputs, strict=True))
    try:
        fused.command.emit(planner, device, tensors, dict(zip(names, offsets, strict=True)), fused)
    except UnsupportedError:
        return None
    return bound(device, planner, arrays, fused.words, fused.seconds)


__all__ = ["NormCommand", "fuse_norms"]
