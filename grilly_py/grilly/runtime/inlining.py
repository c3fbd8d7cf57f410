"""Calls in SPIR-V replaced by what they call. Instructions: SPIR-V specification, section 3."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from . import spirv as op

_NONE = slice(0)
_FUNCTION_WORDS = 5  # of OpFunction
_MATRICES = 6022  # CooperativeMatrixKHR
_CAPABILITY = 17


def has_matrices(words: Sequence[int]) -> bool:
    """Whether a module declares cooperative matrices."""
    at = op.HEADER
    while words[at] & 0xFFFF == _CAPABILITY:
        if words[at + 1] == _MATRICES:
            return True
        at += words[at] >> 16
    return False


class Callee(NamedTuple):
    """A function that may stand in place of its calls: it ends in one place, at its end.

    Attributes
    ----------
    parameters : list of int
        Their identifiers.
    entry : int
        The label of the first block.
    variables, code : list of int
        Its variables, and all other instructions from behind that label to before the return.
    identifiers : list of int
        Places of identifiers in ``code``.
    made : frozenset of int
        Identifiers that belong to the function.
    returned : int
        The identifier of what it returns.
    last : int
        The label of the last block.
    """

    parameters: list[int]
    entry: int
    variables: list[int]
    code: list[int]
    identifiers: list[int]
    made: frozenset[int]
    returned: int
    last: int


def instructions(words: Sequence[int], start: int = 0) -> Iterator[tuple[int, int, int]]:
    """Opcode, beginning and end of each instruction."""
    at, end = start, len(words)
    while at < end:
        after = at + (words[at] >> 16)
        yield words[at] & 0xFFFF, at, after
        at = after


def identifiers(opcode: int, length: int) -> list[int]:
    """The words of an instruction in a function that are identifiers."""
    skipped = range(*op.LITERALS.get(opcode, _NONE).indices(length))
    return [place for place in range(1, length) if place not in skipped]


def callee_of(words: Sequence[int]) -> Callee | None:
    """A function as one that may stand in place of its calls; None where it may not."""
    parameters: list[int] = []
    variables: list[int] = []
    code: list[int] = []
    places: list[int] = []
    made: list[int] = []
    entry = last = returned = 0
    for opcode, at, end in instructions(words, _FUNCTION_WORDS):
        if returned:  # something follows a return
            if opcode != op.FUNCTION_END:
                return None
        elif opcode == op.PARAMETER:
            parameters.append(words[at + 2])
        elif opcode == op.LABEL and not entry:
            entry = last = words[at + 1]
        elif opcode == op.RETURN_VALUE:
            returned = words[at + 1]
        elif opcode not in op.KNOWN:
            return None
        elif opcode == op.VARIABLE:
            if end - at > 4:  # each call would begin with its first value
                return None
            made.append(words[at + 2])
            variables += words[at:end]
        else:
            if opcode == op.LABEL:
                last = words[at + 1]
                made.append(last)
            elif opcode not in op.NO_RESULT:
                made.append(words[at + 2])
            places += [len(code) + place for place in identifiers(opcode, end - at)]
            code += words[at:end]
    if not returned:
        return None
    return Callee(parameters, entry, variables, code, places, frozenset(made), returned, last)


class Inliner:
    """Replaces calls of some functions, in functions of one module.

    Parameters
    ----------
    callees : mapping of int to Callee
        By the identifiers of the functions.
    identifier : callable
        Makes a new identifier.
    decorated : callable
        Called with an identifier and the one it was made of, whose decorations it gets.
    """

    def __init__(
        self, callees: Mapping[int, Callee], identifier: Callable[[], int], decorated: Callable[[int, int], None]
    ) -> None:
        self._callees, self._identifier, self._decorated = callees, identifier, decorated

    def __call__(self, words: Sequence[int]) -> list[int]:
        """A function without these calls, but for those of several blocks in a block that begins a loop."""
        calls, phis, loops = self._found(words)
        if not calls:
            return list(words)
        result: list[int] = []
        variables: list[int] = []
        ends: dict[int, int] = {}  # by labels: the blocks in which their blocks end now
        moved: list[tuple[int, int]] = []  # words that were copied up to a place, and the place of the result
        copied = 0
        for at, label in calls:
            callee = self._callees[words[at + 3]]
            if callee.last != callee.entry and label in loops:
                continue
            moved.append((copied, len(result)))
            result += words[copied:at]
            last = self._put(callee, words[at : at + (words[at] >> 16)], ends.get(label, label), result, variables)
            if callee.last != callee.entry:
                ends[label] = last
            copied = at + (words[at] >> 16)
        moved.append((copied, len(result)))
        result += words[copied:]
        self._mend(words, phis, ends, moved, result)
        if variables:
            first = next(end for opcode, _, end in instructions(result, _FUNCTION_WORDS) if opcode == op.LABEL)
            result[first:first] = variables
        return result

    def _found(self, words: Sequence[int]) -> tuple[list[tuple[int, int]], list[int], set[int]]:
        """Places of calls with the labels of their blocks, places of phis, and labels of blocks that begin loops."""
        calls: list[tuple[int, int]] = []
        phis: list[int] = []
        loops: set[int] = set()
        label = 0
        for opcode, at, _ in instructions(words):
            if opcode == op.LABEL:
                label = words[at + 1]
            elif opcode == op.CALL and words[at + 3] in self._callees:
                calls.append((at, label))
            elif opcode == op.PHI:
                phis.append(at)
            elif opcode == op.LOOP_MERGE:
                loops.add(label)
        return calls, phis, loops

    def _put(
        self, callee: Callee, call: Sequence[int], label: int, result: list[int], variables: list[int]
    ) -> int:  # fmt: skip
        """Write the callee's code in place of a call in a block; returns the label of the block it ends in."""
        known = dict(zip(callee.parameters, call[4:], strict=True))
        known[callee.entry] = label
        for own in callee.made:
            known[own] = made = self._identifier()
            self._decorated(made, own)
        for _, at, _ in instructions(callee.variables):
            variables += [*callee.variables[at : at + 2], known[callee.variables[at + 2]], callee.variables[at + 3]]
        code = list(callee.code)
        for place in callee.identifiers:
            code[place] = known.get(code[place], code[place])
        result += code
        result += [4 << 16 | op.COPY, call[1], call[2], known.get(callee.returned, callee.returned)]
        return known[callee.last]

    @staticmethod
    def _mend(
        words: Sequence[int], phis: list[int], ends: dict[int, int], moved: list[tuple[int, int]], result: list[int]
    ) -> None:
        """Write into phis where the blocks before them end now."""
        if not ends:
            return
        part = 0
        for at in phis:
            while part + 1 < len(moved) and moved[part + 1][0] <= at:
                part += 1
            shift = moved[part][1] - moved[part][0]
            for place in range(at + 4, at + (words[at] >> 16), 2):
                result[shift + place] = ends.get(words[place], words[place])


def functions_of(words: list[int]) -> dict[int, list[int]]:
    """Functions by their identifiers."""
    found: dict[int, list[int]] = {}
    begin = 0
    for opcode, at, end in instructions(words):
        if opcode == op.FUNCTION:
            begin = at
        elif opcode == op.FUNCTION_END:
            found[words[begin + 2]] = words[begin:end]
    return found


def _called(words: Sequence[int]) -> set[int]:
    return {words[at + 3] for opcode, at, _ in instructions(words) if opcode == op.CALL}


def inlined(
    functions: Mapping[int, list[int]], into: Collection[int], identifier: Callable[[], int],
    decorated: Callable[[int, int], None],
) -> dict[int, list[int]]:  # fmt: skip
    """The functions of a module, those of ``into`` in place of their calls where they may be.

    Other arguments are those of Inliner.
    """
    waiting = [number for number in functions if number in into]
    callees: dict[int, Callee] = {}
    inliner = Inliner(callees, identifier, decorated)
    result: dict[int, list[int]] = {}
    while waiting:  # SPIR-V has no recursion: there is one that calls none of the others
        number = next(n for n in waiting if not _called(functions[n]) & set(waiting))
        waiting.remove(number)
        result[number] = inliner(functions[number])
        callee = callee_of(result[number])
        if callee is not None:
            callees[number] = callee
    rest = {number: inliner(words) for number, words in functions.items() if number not in result}
    return {**rest, **result}


__all__ = ["Callee", "Inliner", "callee_of", "functions_of", "has_matrices", "identifiers", "inlined", "instructions"]
