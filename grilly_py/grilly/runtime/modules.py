"""SPIR-V modules taken apart, as far as pruned.py needs it: functions, their blocks, and what is computed of constants.

Instructions: SPIR-V specification, section 3. Places are of words in the module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from . import spirv as op

_MEMBER_NAME, _MEMBER_DECORATE, _SPEC_ID = 6, 72, 1
_ENTRY_POINT, _TYPE_BOOL, _TYPE_INT = 15, 20, 21
_TRUE, _FALSE, _CONSTANT, _SPEC_TRUE, _SPEC_FALSE, _SPEC_CONSTANT, _SPEC_OP = 41, 42, 43, 48, 49, 50, 52
_ENDS = frozenset((op.BRANCH, op.IF, op.SWITCH, 252, 253, op.RETURN_VALUE, op.UNREACHABLE))  # with OpKill and OpReturn
#: What leads from block to block.
_EDGES = _ENDS | {op.PHI, op.LOOP_MERGE, op.SELECTION_MERGE}
OR, AND, SELECT = 166, 167, 169
_FUNCTION_STORAGE = 7


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


#: What instructions make of integers of 32 bits, unsigned here, and of truths; None where that is undefined.
FOLDED: dict[int, Callable[..., int | bool | None]] = {
    128: lambda a, b: (a + b) & 0xFFFFFFFF,  # OpIAdd
    130: lambda a, b: (a - b) & 0xFFFFFFFF,  # OpISub
    132: lambda a, b: (a * b) & 0xFFFFFFFF,  # OpIMul
    134: lambda a, b: a // b if b else None,  # OpUDiv
    137: lambda a, b: a % b if b else None,  # OpUMod
    194: lambda a, b: a >> b if b < 32 else None,  # OpShiftRightLogical
    195: lambda a, b: (_signed(a) >> b) & 0xFFFFFFFF if b < 32 else None,  # OpShiftRightArithmetic
    196: lambda a, b: (a << b) & 0xFFFFFFFF if b < 32 else None,  # OpShiftLeftLogical
    197: lambda a, b: a | b,  # OpBitwiseOr
    198: lambda a, b: a ^ b,  # OpBitwiseXor
    199: lambda a, b: a & b,  # OpBitwiseAnd
    200: lambda a: ~a & 0xFFFFFFFF,  # OpNot
    164: lambda a, b: a == b,  # OpLogicalEqual
    165: lambda a, b: a != b,  # OpLogicalNotEqual
    168: lambda a: not a,  # OpLogicalNot
    170: lambda a, b: a == b,  # OpIEqual
    171: lambda a, b: a != b,  # OpINotEqual
    172: lambda a, b: a > b,  # OpUGreaterThan
    173: lambda a, b: _signed(a) > _signed(b),  # OpSGreaterThan
    174: lambda a, b: a >= b,  # OpUGreaterThanEqual
    175: lambda a, b: _signed(a) >= _signed(b),  # OpSGreaterThanEqual
    176: lambda a, b: a < b,  # OpULessThan
    177: lambda a, b: _signed(a) < _signed(b),  # OpSLessThan
    178: lambda a, b: a <= b,  # OpULessThanEqual
    179: lambda a, b: _signed(a) <= _signed(b),  # OpSLessThanEqual
}
_FOLDS = frozenset((*FOLDED, OR, AND, SELECT, op.COPY))
#: What a block is gone through for, in order.
_EVENTS = _FOLDS | {op.CALL, op.LOAD, op.STORE, op.RETURN_VALUE}


class Block:
    """A basic block.

    Attributes
    ----------
    label : int
    start, body, merge, last, end : int
        Where its label, what follows its phis, its merge instruction (or else its last one) and its last one begin.
    phis : list of list of int
        Their words.
    events : list of (int, int, list of int, int)
        Opcode, result (0: none), operands and place of what is computed of known values or may have them.
    merges : list of int
        The blocks that its merge instruction names, of loops two.
    to : list of int
        The blocks that may follow.
    place : int
        In an order in which each block comes after all that lead to it, but for those that loop back. -1: nowhere.
    """

    __slots__ = ("label", "start", "body", "merge", "last", "end", "phis", "events", "merges", "to", "place")

    def __init__(self, label: int, start: int):
        self.label, self.start, self.body = label, start, start + 2
        self.merge = self.last = self.end = 0
        self.phis: list[list[int]] = []
        self.events: list[tuple[int, int, list[int], int]] = []
        self.merges: list[int] = []
        self.to: list[int] = []
        self.place = -1

    def note(self, opcode: int, words: list[int], at: int, end: int) -> None:
        """Note one of `_EDGES`: a phi, the merge instruction, or the last one, with the blocks that follow."""
        if opcode == op.PHI:
            self.phis.append(words[at:end])
            self.body = end
            return
        if opcode in (op.LOOP_MERGE, op.SELECTION_MERGE):
            self.merge = at
            self.merges = words[at + 1 : at + (3 if opcode == op.LOOP_MERGE else 2)]
            return
        self.last, self.end = at, end
        self.merge = self.merge or at
        if opcode == op.BRANCH:
            self.to = [words[at + 1]]
        elif opcode == op.IF:
            self.to = words[at + 2 : at + 4]
        elif opcode == op.SWITCH:
            self.to = [words[at + 2], *words[at + 4 : end : 2]]


class Function:
    """A function.

    Attributes
    ----------
    start : int
    parameters : list of int
    blocks : dict of int to Block
        By their labels, in the order in which they lie.
    order : list of Block
        Those that may be reached, by ``place``.
    stores : dict of int to int
        How often memory of its own, or a parameter, is stored to as a whole; of that which is used in these ways alone:
        loaded, stored to, handed to a function. Others are not here.
    handed : dict of int to list of (int, int)
        To which functions, as which parameter, such memory is handed.
    renamed : bool
        Whether all its identifiers could be told from other words.
    """

    __slots__ = ("start", "parameters", "blocks", "order", "stores", "handed", "renamed")

    def __init__(self, start: int):
        self.start = start
        self.parameters: list[int] = []
        self.blocks: dict[int, Block] = {}
        self.order: list[Block] = []
        self.stores: dict[int, int] = {}
        self.handed: dict[int, list[tuple[int, int]]] = {}
        self.renamed = True

    @property
    def first(self) -> Block:
        """The block with which it begins."""
        return next(iter(self.blocks.values()))

    def put_in_order(self) -> None:
        """Fill in ``order``, and each block's place in it."""
        done: list[Block] = []
        first = self.first
        seen, path = {first.label}, [(first, iter(first.to))]
        while path:
            block, rest = path[-1]
            label = next((label for label in rest if label not in seen), None)
            if label is None:
                done.append(block)
                path.pop()
            else:
                seen.add(label)
                path.append((self.blocks[label], iter(self.blocks[label].to)))
        self.order = done[::-1]
        for place, block in enumerate(self.order):
            block.place = place

    def note(self, opcode: int, words: list[int]) -> None:
        """Note how an instruction uses memory; those of FOLDED use none."""
        if opcode == op.PARAMETER or opcode == op.VARIABLE and len(words) == 4 and words[3] == _FUNCTION_STORAGE:
            self.stores[words[2]] = 0
            return
        if opcode == op.LOAD:
            return
        used = words[1:]
        if opcode == op.STORE:
            if words[1] in self.stores:
                self.stores[words[1]] += 1
            used = words[2:3]
        elif opcode == op.CALL:
            for place, argument in enumerate(words[4:]):
                if argument in self.stores:
                    self.handed.setdefault(argument, []).append((words[3], place))
            return
        elif opcode == op.RETURN_VALUE:
            return
        for word in used:
            self.stores.pop(word, None)


class Module(NamedTuple):
    """A module.

    Attributes
    ----------
    words : list of int
    functions : mapping of int to Function
    entry : int
    constants : mapping of int to (int, type)
        Number of a specialization constant to its identifier and type, int or bool.
    known : mapping of int to int or bool
        Constants of these types.
    made : list of (int, int, list of int)
        What is made of them: opcode, result, operands.
    about : list of (int, int, int)
        Names and decorations: start, end, and in which block or function what they are of is made; 0: in none.
    named : set of int
        What has a name: holes, which stay as they are (linking.py).
    """

    words: list[int]
    functions: Mapping[int, Function]
    entry: int
    constants: Mapping[int, tuple[int, type]]
    known: Mapping[int, int | bool]
    made: list[tuple[int, int, list[int]]]
    about: list[tuple[int, int, int]]
    named: set[int]

    def keeps(self, function: int, place: int) -> bool:
        """Whether a function leaves the memory as it is that a parameter points to."""
        callee = self.functions[function]
        return self.settled(callee, callee.parameters[place], 0)

    def settled(self, function: Function, memory: int, most: int = 1) -> bool:
        """Whether memory of a function is stored to at no more than so many places, functions it calls included."""
        if function.stores.get(memory, 2) > most:
            return False
        return all(self.keeps(*handed) for handed in function.handed.get(memory, ()))


@lru_cache(maxsize=8)
def parsed(spirv: bytes) -> Module:
    """A module that ``binary.verify`` accepts, taken apart."""
    words = np.frombuffer(spirv, "<u4").tolist()  # an array's numbers are slow one by one
    functions: dict[int, Function] = {}
    numbers: dict[int, int] = {}
    known: dict[int, int | bool] = {}
    made: list[tuple[int, int, list[int]]] = []
    about: list[tuple[int, int]] = []
    integers, named, entry, at = set(), set(), 0, op.HEADER
    while words[at] & 0xFFFF != op.FUNCTION:
        opcode, end = words[at] & 0xFFFF, at + (words[at] >> 16)
        if opcode in (op.NAME, _MEMBER_NAME, op.DECORATE, _MEMBER_DECORATE):
            about.append((at, end))
            if opcode == op.NAME:
                named.add(words[at + 1])
            if opcode == op.DECORATE and words[at + 2] == _SPEC_ID:
                numbers[words[at + 1]] = words[at + 3]
        elif opcode == _ENTRY_POINT:
            entry = words[at + 2]
        elif opcode == _TYPE_INT and words[at + 2] == 32:
            integers.add(words[at + 1])
        elif opcode in (_TRUE, _FALSE, _SPEC_TRUE, _SPEC_FALSE):
            known[words[at + 2]] = opcode in (_TRUE, _SPEC_TRUE)
        elif opcode in (_CONSTANT, _SPEC_CONSTANT) and words[at + 1] in integers:
            known[words[at + 2]] = words[at + 3]
        elif opcode == _SPEC_OP and words[at + 3] in _FOLDS:
            made.append((words[at + 3], words[at + 2], words[at + 4 : end]))
        at = end
    homes = _parse_functions(words, at, {words[start + 1] for start, _ in about}, functions)
    return Module(
        words, functions, entry,
        {number: (result, known[result].__class__) for result, number in numbers.items() if result in known},
        known, made, [(start, end, homes.get(words[start + 1], 0)) for start, end in about], named,
    )  # fmt: skip


def _parse_functions(words: list[int], at: int, named: set[int], functions: dict[int, Function]) -> dict[int, int]:
    """Fill in the functions, and find in which block or function those identifiers are made that have names."""
    homes: dict[int, int] = {}
    home, block = 0, Block(0, 0)
    while at < len(words):
        opcode, end = words[at] & 0xFFFF, at + (words[at] >> 16)
        if opcode == op.FUNCTION:
            home = words[at + 2]
            functions[home] = function = Function(at)
        elif opcode == op.LABEL:
            home = words[at + 1]
            function.blocks[home] = block = Block(home, at)
        elif opcode == op.FUNCTION_END:
            function.put_in_order()
        elif opcode in _EDGES:
            block.note(opcode, words, at, end)
        elif opcode == op.PARAMETER:
            function.parameters.append(words[at + 2])
        if opcode in _EVENTS:
            first = 1 if opcode in (op.STORE, op.RETURN_VALUE) else 3
            block.events.append((opcode, words[at + 2] if first == 3 else 0, words[at + first : end], at))
        if opcode not in op.KNOWN:
            function.renamed = False
        if function.stores and opcode not in FOLDED or opcode == op.PARAMETER or opcode == op.VARIABLE:
            function.note(opcode, words[at:end])
        # Stores have there what they store, which may be a constant.
        if end - at > 2 and words[at + 2] in named and opcode in op.KNOWN and opcode not in op.NO_RESULT:
            homes[words[at + 2]] = home
        at = end
    return homes
