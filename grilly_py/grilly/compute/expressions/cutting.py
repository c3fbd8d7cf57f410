"""Expressions cut into subexpressions, and these put together, so that a kernel and a driver's compiler take each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..arrays.promotion import BOOL, FLOAT32, INT32, INT64
from .elements import loaded, stored
from .expression import Expression
from .nodes import Node, element, in_order, replaced, with_operands

#: The dtype of the array that carries a number of one of the machine's types to the next subexpression.
_HOLDERS = {"float": FLOAT32, "int": INT32, "uint": np.dtype(np.uint32), "long": INT64, "bool": BOOL}
#: A call of a library function counts for so many nodes.
_CALL = 25
#: Of these the calls that read a 16-bit float, or round to one.
_OF_HALVES = frozenset(("float_of_half", "half_of_float", "bfloat16_of_float"))
_LEAF = 4  # an operand of so few nodes is not worth a subexpression


class Most(NamedTuple):
    """What the expressions of one dispatch have at most.

    Attributes
    ----------
    arrays, words : int
    nodes : int
        A call of a library function counts for several. A driver's compiler takes longer with more.
    results : int
        Of a kernel that makes several subexpressions.
    halves : int
        A call that reads a 16-bit float, or rounds to one, counts for so many nodes.
    """

    arrays: int
    words: int
    nodes: int
    results: int = 1
    halves: int = _CALL

    def takes(self, outputs: Sequence[Node], arrays: int, words: int) -> bool:
        """Whether one dispatch may compute these outputs from so many arrays and words."""
        return self.length_of(outputs) <= self.nodes and arrays <= self.arrays and words <= self.words

    def length_of(self, outputs: Sequence[Node]) -> int:
        """How many nodes outputs have; a call of a library function counts for several."""
        return sum(self._length_of(node) for node in in_order(outputs))

    def _length_of(self, node: Node) -> int:
        if node.name != "call":
            return 1
        return self.halves if node.value in _OF_HALVES else _CALL


def has_calls(outputs: Sequence[Node]) -> bool:
    """Whether a library function is called, beside those that read a 16-bit float or round to one."""
    return any(node.name == "call" and node.value not in _OF_HALVES for node in in_order(outputs))


class Subexpression(NamedTuple):
    """A part of a function: an expression of elements of some arrays.

    Attributes
    ----------
    expression : Expression
    arrays : tuple of int
        The arrays that it reads, by number: first the function's arguments, then results of earlier subexpressions.
    gives : numpy.dtype
        Of its result.
    """

    expression: Expression
    arrays: tuple[int, ...]
    gives: np.dtype


def subexpression(output: Node, gives: np.dtype) -> Subexpression:
    """One subexpression, of the bits of an element."""
    arrays, (own,) = _compact([output])
    return Subexpression(Expression(own), arrays, gives)


def _compact(outputs: Sequence[Node]) -> tuple[tuple[int, ...], list[Node]]:
    """The arrays that outputs are of elements of, and the outputs with these numbered from 0 on."""
    arrays = sorted({node.value for node in in_order(outputs) if node.name == "element"})
    return tuple(arrays), _numbered(outputs, {array: number for number, array in enumerate(arrays)})


def cut(outputs: Sequence[tuple[Node, np.dtype]], arrays: int, most: Most) -> tuple[list[Subexpression], list[int]]:
    """Cut outputs into subexpressions.

    Returns these in the order in which they run, and for each output the number of the one that makes it.

    Parameters
    ----------
    outputs : sequence of (Node, numpy.dtype)
        The bits of each result's element, and its dtype.
    arrays : int
        How many the function is given.
    most : Most
    """
    cutter = _Cutter(outputs, arrays, most)
    found = []
    for output, gives in outputs:
        cutter.reach(output)
        found.append(cutter.add(cutter.made[id(output)], gives))
    return cutter.subexpressions, found


class Together(NamedTuple):
    """Subexpressions that one dispatch makes, none of which is an array of another.

    Attributes
    ----------
    numbers : tuple of int
        Of the subexpressions.
    expression : Expression
        An output for each.
    arrays : tuple of int
        As of a subexpression.
    """

    numbers: tuple[int, ...]
    expression: Expression
    arrays: tuple[int, ...]


def together(subexpressions: Sequence[Subexpression], arrays: int, most: Most) -> list[Together]:
    """The dispatches that make subexpressions, in their order; ``arrays`` and ``most`` as of ``cut``."""
    groups: list[list[int]] = []
    place: dict[int, int] = {}  # by a subexpression its group
    for number, one in enumerate(subexpressions):
        first = max((place[array - arrays] + 1 for array in one.arrays if array >= arrays), default=0)
        fitting = (
            at for at in range(first, len(groups))
            if _fits_together([subexpressions[each] for each in (*groups[at], number)], most)
        )  # fmt: skip
        at = next(fitting, len(groups))
        if at == len(groups):
            groups.append([])
        groups[at].append(number)
        place[number] = at
    return [_together(group, subexpressions) for group in groups]


def _fits_together(some: Sequence[Subexpression], most: Most) -> bool:
    outputs = _outputs(some)
    nodes = list(in_order(outputs))
    arrays = {node.value for node in nodes if node.name == "element"}
    words = {node.value for node in nodes if node.name == "word"}
    return len(some) <= most.results and most.takes(outputs, len(arrays), len(words))


def _outputs(some: Sequence[Subexpression]) -> list[Node]:
    """The outputs of subexpressions, of elements by the numbers of the function's arrays."""
    return [_numbered(one.expression.outputs, one.arrays)[0] for one in some]


def _numbered(outputs: Sequence[Node], numbers: Mapping[int, int] | Sequence[int]) -> list[Node]:
    """The outputs, of elements by other numbers."""
    return replaced(outputs, lambda leaf: element(numbers[leaf.value]) if leaf.name == "element" else leaf)


def _together(group: Sequence[int], subexpressions: Sequence[Subexpression]) -> Together:
    if len(group) == 1:
        only = subexpressions[group[0]]
        return Together(tuple(group), only.expression, only.arrays)
    arrays, outputs = _compact(_outputs([subexpressions[number] for number in group]))
    return Together(tuple(group), Expression(*outputs), arrays)


class _Reach(NamedTuple):
    """The nodes, arrays and words that a node needs within its subexpression: sets, as the bits of integers."""

    nodes: int
    arrays: int
    words: int

    def __or__(self, other: _Reach) -> _Reach:
        return _Reach(self.nodes | other.nodes, self.arrays | other.arrays, self.words | other.words)


class _Cutter:
    """Visits nodes, each after its operands. Of a node that needs too much, an operand becomes a subexpression."""

    def __init__(self, outputs: Sequence[tuple[Node, np.dtype]], arrays: int, most: Most):
        self._arrays, self._most = arrays, most
        self._numbers = {id(node): number for number, node in enumerate(in_order([output for output, _ in outputs]))}
        self._calls = 0  # the nodes that are one
        self._reaches: dict[int, _Reach] = {}
        self.made: dict[int, Node] = {}
        self.subexpressions: list[Subexpression] = []

    def add(self, output: Node, gives: np.dtype) -> int:
        """Append a subexpression, and return its number."""
        self.subexpressions.append(subexpression(output, gives))
        return len(self.subexpressions) - 1

    def reach(self, output: Node) -> None:
        """Visit the nodes that an output needs."""
        for node in in_order([output]):
            if id(node) in self.made:
                continue
            bit = 1 << self._numbers[id(node)]
            if not node.operands:
                self.made[id(node)] = node
                self._reaches[id(node)] = _Reach(
                    bit, 1 << node.value if node.name == "element" else 0, 1 << node.value if node.name == "word" else 0
                )
                continue
            if node.name == "call":
                self._calls |= bit
            reach = self._reach(node, bit)
            while not self._fits(reach):
                largest = self._largest(node)
                if largest is None:
                    break
                self._hold(largest)
                reach = self._reach(node, bit)
            self.made[id(node)] = with_operands(node, [self.made[id(operand)] for operand in node.operands])
            self._reaches[id(node)] = reach

    def _reach(self, node: Node, bit: int) -> _Reach:
        reach = _Reach(bit, 0, 0)
        for operand in node.operands:
            reach |= self._reaches[id(operand)]
        return reach

    def _weight(self, reach: _Reach) -> int:
        return reach.nodes.bit_count() + (_CALL - 1) * (reach.nodes & self._calls).bit_count()

    def _fits(self, reach: _Reach) -> bool:
        most = self._most
        return (
            self._weight(reach) <= most.nodes and reach.arrays.bit_count() <= most.arrays
            and reach.words.bit_count() <= most.words
        )  # fmt: skip

    def _largest(self, node: Node) -> Node | None:
        """The operand that is to become a subexpression; None where all are too small for one."""
        most = self._most

        def size(operand: Node) -> float:
            reach = self._reaches[id(operand)]
            if self._weight(reach) <= _LEAF and reach.arrays.bit_count() + reach.words.bit_count() <= 1:
                return -1.0
            return max(self._weight(reach) / most.nodes, reach.arrays.bit_count() / most.arrays,
                       reach.words.bit_count() / most.words)  # fmt: skip

        found = max(node.operands, key=size)
        return None if size(found) < 0 else found

    def _hold(self, operand: Node) -> None:
        """Make a subexpression of an operand. Nodes that follow read its result as an array's element."""
        holder = _HOLDERS[operand.type]
        number = self._arrays + self.add(stored(holder, self.made[id(operand)]), holder)
        self.made[id(operand)] = loaded(holder, element(number))
        bit = 1 << len(self._numbers) + number  # of a node more, which is no call
        self._reaches[id(operand)] = _Reach(bit, 1 << number, 0)


__all__ = ["Most", "Subexpression", "Together", "cut", "has_calls", "subexpression", "together"]
