"""The identifiers of a SPIR-V module: which words they are, a canonical numbering, and a form that compresses well.

Needs nothing but Python: the build tools load this file by its path. Source: SPIR-V specification, section 3.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator

HEADER = 5  # words before the first instruction
_BOUND, _SCHEMA = 3, 4  # words of the header: all identifiers are below the first, the second is 0
NAME, EXT_INST, DECORATE, COPY, PHI, LABEL = 5, 12, 71, 83, 245, 248
FUNCTION, PARAMETER, FUNCTION_END, CALL, VARIABLE, LOAD, STORE = 54, 55, 56, 57, 59, 61, 62
LOOP_MERGE, SELECTION_MERGE, BRANCH, IF, SWITCH, RETURN_VALUE, UNREACHABLE = 246, 247, 249, 250, 251, 254, 255
_EXTENSION, _ENTRY_POINT, _SPEC_OP = 10, 15, 52
_MATRIX_LOAD, _MATRIX_STORE, _TENSOR_LOAD, _TENSOR_STORE = 4457, 4458, 5367, 5368

#: Words of instructions in functions that are no identifiers: a slice of the instruction's words.
LITERALS = {
    EXT_INST: slice(4, 5), FUNCTION: slice(3, 4), VARIABLE: slice(3, 4), LOAD: slice(4, None), STORE: slice(3, None),
    63: slice(3, None), 68: slice(4, 5), 79: slice(5, None), 81: slice(4, None), 82: slice(5, None), 95: slice(5, 6),
    98: slice(5, 6), 99: slice(4, 5), 342: slice(4, 5), LOOP_MERGE: slice(3, None), SELECTION_MERGE: slice(2, 3),
    IF: slice(4, None), SWITCH: slice(3, None, 2), **dict.fromkeys(range(349, 365), slice(4, 5)),
}  # fmt: skip
#: Instructions of which it is known which words are identifiers: those above, and others that have nothing else.
KNOWN = frozenset((
    *LITERALS, 1, PARAMETER, FUNCTION_END, CALL, 65, 66, 77, 78, 80, COPY, 84, *range(109, 206), *range(224, 228),
    *range(227, 243), PHI, LABEL, BRANCH, 252, 253, RETURN_VALUE, UNREACHABLE, *range(333, 342), *range(343, 349),
))  # fmt: skip
#: Of these, instructions that make nothing.
NO_RESULT = frozenset((
    STORE, 63, 99, FUNCTION_END, 224, 225, 226, 228, LOOP_MERGE, SELECTION_MERGE, BRANCH, IF, SWITCH, 252, 253,
    RETURN_VALUE, UNREACHABLE,
))  # fmt: skip

# What build tools know besides: cooperative matrices and tensors in functions, and all that lies before functions.
_MATRICES = {
    _MATRIX_LOAD: slice(6, None), _MATRIX_STORE: slice(5, None), 4459: slice(6, None), _TENSOR_LOAD: slice(6, 8),
    _TENSOR_STORE: slice(4, 6),
}  # fmt: skip
_NO_LITERALS = slice(0, 0)
_BEFORE = {
    3: slice(1, None), NAME: slice(2, None), _EXTENSION: slice(1, None), 11: slice(2, None), 14: slice(1, None),
    16: slice(2, None), 17: slice(1, None), 21: slice(2, None), 22: slice(2, None), 23: slice(3, None),
    25: slice(3, None), 32: slice(2, 3), 43: slice(3, None), 50: slice(3, None), _SPEC_OP: slice(3, 4),
    VARIABLE: slice(3, 4), DECORATE: slice(2, None), 72: slice(2, None), 331: slice(2, 3),
    **dict.fromkeys((1, 19, 20, 27, 28, 29, 30, 33, 41, 42, 44, 46, 48, 49, 51, 4456, 5370, 5371), _NO_LITERALS),
}  # fmt: skip
_IN_FUNCTIONS = {
    **dict.fromkeys((*KNOWN, 100, 4460, 5372, 5373, 5374, 5375, 5377), _NO_LITERALS), **LITERALS, **_MATRICES,
}  # fmt: skip
_MAKES_NOTHING = NO_RESULT | {_MATRIX_STORE, _TENSOR_STORE}
_TYPES = frozenset((11, *range(19, 39), 4456, 5370, 5371))  # their result is the first word; of values the second
_VALUES = frozenset((1, *range(41, 53), VARIABLE))
_SCOPES = 0x18  # bits of a memory access, each with a scope
_MEMORY = {LOAD: 4, STORE: 3, _MATRIX_LOAD: 6, _MATRIX_STORE: 5}
_ALL = 1 << 32


def numbered(binary: bytes) -> bytes:
    """The module with its identifiers numbered from 1 in the order in which they are made.

    Modules that are compiled from one source then agree in most of their words.

    Raises
    ------
    ValueError
        It has an instruction of which it is not known which words are identifiers.
    """
    words = _words(binary)
    numbers: dict[int, int] = {}
    for at, _, inside in _instructions(words):
        if result := _result(words[at] & 0xFFFF, inside):
            numbers[words[at + result]] = len(numbers) + 1
    for at, end, inside in _instructions(words):
        for place in _places(words, at, end, inside):
            if words[place] not in numbers:
                raise ValueError(f"instruction {words[at] & 0xFFFF} has {words[place]}, which no instruction makes")
            words[place] = numbers[words[place]]
    words[_BOUND] = len(numbers) + 1
    return _bytes(words)


def relative(binary: bytes) -> bytes:
    """A form of a numbered module that compresses well: in functions, identifiers count back from the newest one.

    Those of types, constants and variables outside of functions are complements. It has a word for each word;
    `absolute` has the way back.
    """
    words = _words(binary)
    outside = next((words[at + 2] for at, _, inside in _instructions(words) if inside), 0)
    newest, target, ring = outside, 0, _ALL - outside
    for at, end, inside in _instructions(words):
        opcode = words[at] & 0xFFFF
        if inside:
            result = _result(opcode, True)
            made = words[at + result] if result else 0
            for place in _places(words, at, end, True):
                word = words[place]
                words[place] = _ALL - 1 - word if word < outside else (newest - word) % ring
            newest = made + 1 if result else newest
        elif opcode == DECORATE:
            words[at + 1], target = (words[at + 1] - target) % _ALL, words[at + 1]
    words[_SCHEMA] = outside
    return _bytes(words)


def absolute(data: bytes) -> bytes:
    """The module of which `relative` made ``data``. Needs NumPy: a program waits for it.

    Raises ValueError or KeyError where it is damaged, if that can be seen.
    """
    import numpy as np

    words = np.frombuffer(data, "<u4").astype(np.int64)
    outside, words[_SCHEMA] = words[_SCHEMA], 0
    starts = np.array([at for at, _, _ in _instructions(words.tolist())], np.int64)
    opcodes = words[starts] & 0xFFFF
    targets = starts[opcodes == DECORATE] + 1
    words[targets] = np.cumsum(words[targets]) % _ALL
    first = int(np.argmax(opcodes == FUNCTION)) if FUNCTION in opcodes else len(starts)
    starts, opcodes = starts[first:], opcodes[first:]
    lengths = words[starts] >> 16
    identifiers = np.zeros(len(words), bool)
    identifiers[starts[0] if len(starts) else len(words) :] = True
    identifiers[starts] = False
    for opcode in set(opcodes.tolist()):
        literals, chosen = _IN_FUNCTIONS[opcode], opcodes == opcode
        for place in range(*literals.indices(int(lengths[chosen].max()))):
            identifiers[starts[chosen & (lengths > place)] + place] = False
        if opcode in _MEMORY:
            place = _MEMORY[opcode]
            chosen &= lengths > place
            scopes = words[starts[chosen] + place] & _SCOPES
            ends = starts[chosen] + lengths[chosen]
            identifiers[ends[scopes > 0] - 1] = True
            identifiers[ends[scopes == _SCOPES] - 2] = True
    made = np.isin(opcodes, list(_MAKES_NOTHING), invert=True)
    newest = np.repeat(outside + np.cumsum(made) - made, lengths)[identifiers[starts[0] :]] if len(starts) else 0
    found, ring = words[identifiers], _ALL - outside
    words[identifiers] = np.where(found >= ring, _ALL - 1 - found, (newest - found - outside) % ring + outside)
    return words.astype("<u4").tobytes()


def _words(binary: bytes) -> array:
    words = array("I", binary)
    if sys.byteorder == "big":
        words.byteswap()
    return words


def _bytes(words: array) -> bytes:
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def _instructions(words: array | list[int]) -> Iterator[tuple[int, int, bool]]:
    """Where each instruction begins and ends, and whether functions have begun. Raises ValueError."""
    at, inside = HEADER, False
    while at < len(words):
        word = words[at]
        end = at + (word >> 16)
        inside = inside or word & 0xFFFF == FUNCTION
        if not at < end <= len(words):
            raise ValueError(f"the module is cut or damaged at word {at}")
        yield at, end, inside
        at = end


def _result(opcode: int, inside: bool) -> int:
    """Which word of the instruction is the identifier that it makes; 0: none."""
    if inside:
        return 0 if opcode in _MAKES_NOTHING else 1 if opcode == LABEL else 2
    return 1 if opcode in _TYPES else 2 if opcode in _VALUES else 0


def _places(words: array, at: int, end: int, inside: bool) -> Iterator[int]:
    """The places of the words of an instruction that are identifiers."""
    opcode = words[at] & 0xFFFF
    if opcode == _ENTRY_POINT:
        name = next(place for place in range(at + 3, end) if not words[place] >> 24)  # its last word
        return iter((at + 2, *range(name + 1, end)))
    literals = (_IN_FUNCTIONS if inside else _BEFORE).get(opcode)
    if literals is None:
        raise ValueError(f"which words of instruction {opcode} are identifiers is not known")
    if literals is _NO_LITERALS:
        return iter(range(at + 1, end))
    last = end
    if (memory := at + _MEMORY.get(opcode, end)) < end:  # of a memory access scopes come last, and are identifiers
        last -= (words[memory] & _SCOPES).bit_count()
    skipped = {at + place for place in range(*literals.indices(last - at))}
    if opcode == _SPEC_OP:  # its operands lie a word later than those of the instruction that it names
        after = LITERALS.get(words[at + 3], _NO_LITERALS)
        skipped.update(at + 1 + place for place in range(*after.indices(end - at - 1)))
    return (place for place in range(at + 1, end) if place not in skipped)
