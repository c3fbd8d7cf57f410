"""SPIR-V without the branches that its specialization constants leave out.

A processor's driver reads a whole binary for every pipeline of it, and finds only later which branches are taken (what
that takes: docs/shader-files.md).

The constants stay what they are, and the driver is told them as ever: what goes is blocks that are not reached with
their values. A function that is called with several known arguments becomes as many. Structured control flow: SPIR-V
specification, section 2.11.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache

from . import modules as m
from . import spirv as op
from .interface import DeviceInfo, ProgramSpec
from .linking import unfilled
from .modules import Block, Function, Module, parsed

_BOUND = 3  # the header's word past all identifiers
Value = int | bool | None


def code_for(device: DeviceInfo, spec: ProgramSpec) -> bytes:
    """The SPIR-V of a program for the device's driver: a processor's gets no more than it needs."""
    spirv = pruned(spec.spirv, spec.constants) if device.kind == "cpu" else spec.spirv
    return unfilled(spirv) if spec.filling is None else spec.filling(spirv)


@lru_cache(maxsize=32)  # binaries with holes are filled again and again
def pruned(spirv: bytes, constants: tuple[tuple[int, int], ...]) -> bytes:
    """The module as far as it is reached with these specialization constants (number and 32 bits of each).

    ``spirv`` is one that ``binary.verify`` accepts. It is given back where a loop in it would not come round.
    """
    module = parsed(spirv)
    known: dict[int, int | bool] = dict(module.known)
    for number, bits in constants:
        if number in module.constants:
            result, kind = module.constants[number]
            known[result] = kind(bits & 0xFFFFFFFF)
    for opcode, result, operands in module.made:
        _fold(known, opcode, result, operands)
    pruning = _Pruning(spirv, module, known)
    try:
        pruning.call(module.entry, ())
    except _EndlessError:
        return spirv
    return pruning.result()


class _EndlessError(Exception):
    """A loop would not come round."""


class _Pruning:
    """The functions of a module that are called, each for the arguments that are known."""

    def __init__(self, spirv: bytes, module: Module, known: dict[int, int | bool]):
        self._spirv, self._module, self._known = spirv, module, known
        self._bound = module.words[_BOUND]
        self._made: dict[tuple[int, tuple[Value, ...]], tuple[int, Value]] = {}
        self._texts: list[bytes] = []
        self._live = {0}  # blocks and functions that have their own identifiers
        self._renamed: list[dict[int, int]] = []  # identifiers of the others

    def call(self, number: int, arguments: tuple[Value, ...]) -> tuple[int, Value]:
        """The identifier of a function for known arguments (of pointers what is there), and what it returns if that is
        known."""
        function = self._module.functions[number]
        if function.renamed and number not in self._module.named:
            arguments = tuple(
                value if value is not None and self._module.settled(function, name, 0) else None
                for name, value in zip(function.parameters, arguments, strict=True)
            )  # fmt: skip
        else:
            arguments = (None,) * len(arguments)
        found = self._made.get((number, arguments))
        if found is None:
            reached = _Reached(self, self._module, function, dict(self._known), arguments)
            own, text = number, reached.text(self._spirv)
            if number in self._live:
                names = {}
                for name in _names(text):
                    names[name] = self._bound
                    self._bound += 1
                own, text = names[number], _rename(text, names)
                self._renamed.append(names)
            else:
                self._live.update(reached.labels, (number,))
            self._texts.append(text)
            found = self._made[number, arguments] = own, reached.returned
        return found

    def result(self) -> bytes:
        """The module."""
        spirv, module = self._spirv, self._module
        pieces = [spirv[: 4 * _BOUND], _words((self._bound,))]
        at = _BOUND + 1
        for start, end, home in module.about:
            pieces.append(spirv[4 * at : 4 * start])
            at = end
            if home in self._live:
                pieces.append(spirv[4 * start : 4 * end])
            if home and module.words[start] & 0xFFFF == op.DECORATE:
                for names in self._renamed:
                    if module.words[start + 1] in names:
                        words = module.words[start:end]
                        words[1] = names[words[1]]
                        pieces.append(_words(words))
        pieces.append(spirv[4 * at : 4 * min(function.start for function in module.functions.values())])
        return b"".join((*pieces, *self._texts))


def _fold(known: dict[int, int | bool], opcode: int, result: int, operands: Sequence[int]) -> None:
    """Note what an instruction makes of known values."""
    values = [known.get(operand) for operand in operands]
    value: Value = None
    if opcode in (m.AND, m.OR):
        enough = opcode == m.OR
        if enough in values:
            value = enough
        elif None not in values:
            value = not enough
    elif opcode == m.SELECT:
        if values[0] is not None:
            value = values[1 if values[0] else 2]
    elif opcode == op.COPY:
        value = values[0]
    elif None not in values:
        value = m.FOLDED[opcode](*values)
    if value is not None:
        known[result] = value


class _Reached:
    """A function as far as it is reached.

    ``labels`` are those of the blocks that are kept; ``returned`` is what it returns, where that is known.
    """

    def __init__(
        self, pruning: _Pruning, module: Module, function: Function, known: dict[int, int | bool],
        arguments: tuple[Value, ...],
    ):  # fmt: skip
        self._pruning, self._module, self._function, self._known = pruning, module, function, known
        self.labels = {function.first.label}
        self._edges: set[tuple[int, int]] = set()
        self._ends: dict[int, tuple[int, ...]] = {}  # what a block ends with instead, its merge instruction included
        self._calls: dict[int, int] = {}  # where a function is called, and which in its place
        returned: set[Value] = set()
        known.update((name, value) for name, value in zip(function.parameters, arguments, strict=True)
                     if value is not None)  # fmt: skip
        for block in function.order:
            if block.label in self.labels:
                self._go_through(block, returned)
        self.returned = returned.pop() if len(returned) == 1 else None
        for label in self.labels:
            merges = function.blocks[label].merges
            if len(merges) == 2 and merges[1] not in self.labels:
                raise _EndlessError

    def _go_through(self, block: Block, returned: set[Value]) -> None:
        known, module = self._known, self._module
        for phi in block.phis:
            self._fold_phi(block, phi)
        for opcode, result, operands, at in block.events:
            if opcode == op.LOAD:
                if operands[0] in known:
                    known[result] = known[operands[0]]
            elif opcode == op.STORE:
                memory, stored = operands[:2]
                if stored in known and module.settled(self._function, memory):
                    known[memory] = known[stored]
            elif opcode == op.CALL:
                arguments = tuple(known.get(operand) for operand in operands[1:])
                self._calls[at], given = self._pruning.call(operands[0], arguments)
                if given is not None:
                    known[result] = given
            elif opcode == op.RETURN_VALUE:
                returned.add(known.get(operands[0]))
            else:
                _fold(known, opcode, result, operands)
        to: Iterable[int] = block.to
        if len(block.merges) == 1:
            value = known.get(module.words[block.last + 1])
            if value is not None:
                to, self._ends[block.label] = _taken(module.words, block, value)
        for label in to:
            self._edges.add((block.label, label))
            self.labels.add(label)

    def _fold_phi(self, block: Block, phi: list[int]) -> None:
        """Note the value of a phi that has one value on all ways to it."""
        values: set[Value] = set()
        for value, before in zip(phi[3::2], phi[4::2], strict=True):
            if self._function.blocks[before].place >= block.place:
                return  # a way back, of which nothing is known yet
            if (before, block.label) in self._edges:
                values.add(self._known.get(value))
        found = values.pop() if len(values) == 1 else None
        if found is not None:
            self._known[phi[2]] = found

    def text(self, spirv: bytes) -> bytes:
        """The function's words."""
        blocks, labels = self._function.blocks, self.labels
        named: set[int] = set()
        for label in labels:
            if len(self._ends.get(label, ())) != 2:  # else it has become a branch
                named.update(blocks[label].merges)
        pieces = [spirv[4 * self._function.start : 4 * self._function.first.start]]
        for label, block in blocks.items():
            if label in labels:
                pieces.append(spirv[4 * block.start : 4 * block.start + 8])
                pieces += [_words(self._left(phi, label)) for phi in block.phis]
                own = self._ends.get(label, ())
                at = block.body
                for opcode, _, _, place in block.events:
                    if opcode == op.CALL:
                        pieces += [spirv[4 * at : 4 * place + 12], _words((self._calls[place],))]
                        at = place + 4
                pieces += [spirv[4 * at : 4 * (block.merge if own else block.end)], _words(own)]
            elif label in named:
                pieces.append(_words((2 << 16 | op.LABEL, label, 1 << 16 | op.UNREACHABLE)))
        pieces.append(_words((1 << 16 | op.FUNCTION_END,)))
        return b"".join(pieces)

    def _left(self, phi: list[int], label: int) -> list[int]:
        """A phi's words without the ways that are not taken."""
        ways = [way for way in zip(phi[3::2], phi[4::2], strict=True) if (way[1], label) in self._edges]
        return [(3 + 2 * len(ways)) << 16 | op.PHI, *phi[1:3], *(word for way in ways for word in way)]


def _taken(words: list[int], block: Block, value: int | bool) -> tuple[tuple[int], tuple[int, ...]]:
    """The block that follows where the condition or selector has this value, and the words that say so."""
    branch = words[block.last : block.end]
    if branch[0] & 0xFFFF == op.IF:
        target = branch[2 if value else 3]
        return (target,), (2 << 16 | op.BRANCH, target)
    target = dict(zip(branch[3::2], branch[4::2], strict=True)).get(value, branch[2])
    # Still a switch: branches within others leave it.
    return (target,), (*words[block.merge : block.last], 3 << 16 | op.SWITCH, branch[1], target)


def _words(words: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)


def _instructions(text: bytes) -> Iterable[tuple[int, list[int]]]:
    words = list(struct.unpack(f"<{len(text) // 4}I", text))
    at = 0
    while at < len(words):
        end = at + (words[at] >> 16)
        yield words[at] & 0xFFFF, words[at:end]
        at = end


def _names(text: bytes) -> Iterable[int]:
    """The identifiers that a function's instructions make."""
    for opcode, words in _instructions(text):
        if opcode == op.LABEL:
            yield words[1]
        elif opcode not in op.NO_RESULT:
            yield words[2]


def _rename(text: bytes, names: dict[int, int]) -> bytes:
    """A function's words with other identifiers."""
    result: list[int] = []
    for opcode, words in _instructions(text):
        renamed = [words[0], *(names.get(word, word) for word in words[1:])]
        literals = op.LITERALS.get(opcode)
        if literals is not None:
            renamed[literals] = words[literals]
        result += renamed
    return _words(result)
