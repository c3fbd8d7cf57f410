"""Linking of SPIR-V: holes of a module get bodies, and functions of a library are copied into it.

A hole is a function ``hole_NAME`` of a shader, which the build does not inline. Python writes its body, so that no
compiler is needed at run time. It may call functions of the shader, ``function_NAME``. Functions of a library, of such
names too, come from a module of their own, with all that they use. Instructions: SPIR-V specification, section 3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from . import spirv as op
from .inlining import functions_of, has_matrices, identifiers, inlined, instructions

_BOUND = 3  # the header's word past all identifiers
_IMPORT, _STRUCTURE, _TYPE_FUNCTION, _CONSTANT = 11, 30, 33, 43
#: Instructions before the first function that may be copied, by opcode: the words that are identifiers of operands, and
#: the word that is the identifier of the result.
_GLOBALS = {
    1: (slice(1, 2), 2), 19: (slice(0), 1), 20: (slice(0), 1), 21: (slice(0), 1), 22: (slice(0), 1),
    23: (slice(2, 3), 1), 28: (slice(2, 4), 1), _STRUCTURE: (slice(2, None), 1), 32: (slice(3, 4), 1),
    _TYPE_FUNCTION: (slice(2, None), 1), 41: (slice(1, 2), 2), 42: (slice(1, 2), 2), _CONSTANT: (slice(1, 2), 2),
    44: (slice(1, None), 2), 46: (slice(1, 2), 2),
}  # fmt: skip
_TYPES_BEGIN = 19  # the first opcode of types; of what stands before types only these have higher ones
_ANNOTATIONS = frozenset((71, 72, 73, 74, 75, 332, 5632, 5633))
_MODULE_PROCESSED, _EXECUTION_MODE_ID = 330, 331

Words = tuple[int, ...]


class _Module:
    """A module taken apart into instructions.

    Attributes
    ----------
    words : list of int
    types, functions : int
        Where types and constants begin, and where functions do.
    globals : dict of int to tuple of int
        The instructions of types, constants and imports, by their identifiers.
    known : dict of tuple to int
        Identifiers of types, constants and imports, by the ``_key`` of their instructions.
    named : dict of str to int
        Functions that have names.
    places : dict of int to (int, int)
        Where functions begin and end, by their identifiers.
    decorations : dict of int to list of tuple
        Decorations, by the identifiers that they are of.
    """

    def __init__(self, spirv: bytes):
        words = self.words = np.frombuffer(spirv, "<u4").tolist()
        self.globals: dict[int, Words] = {}
        self.named: dict[str, int] = {}
        self.places: dict[int, tuple[int, int]] = {}
        self.decorations: dict[int, list[Words]] = {}
        self._functions: dict[int, tuple[list[int], list[int]]] = {}
        self.types = 0
        at, end = op.HEADER, len(words)
        while at < end and words[at] & 0xFFFF != op.FUNCTION:
            after = at + (words[at] >> 16)
            self._declared(words[at] & 0xFFFF, tuple(words[at:after]), at)
            at = after
        self.functions = at
        # A type with a decoration is not equal to one without.
        self.known = {_key(made): own for own, made in self.globals.items() if own not in self.decorations}
        while at < end:
            start, own = at, words[at + 2]
            while words[at] & 0xFFFF != op.FUNCTION_END:
                at += words[at] >> 16
            at += 1
            self.places[own] = start, at

    def function(self, number: int) -> tuple[list[int], list[int]]:
        """The words of a function, and which of them are identifiers."""
        found = self._functions.get(number)
        if found is None:
            at, end = self.places[number]
            words, places = self.words[at:end], list[int]()
            for opcode, start, after in instructions(words):
                places += [start + place for place in identifiers(opcode, after - start)]
            found = self._functions[number] = words, places
        return found

    def _declared(self, opcode: int, instruction: Words, at: int) -> None:
        if opcode == op.NAME:
            name = struct.pack(f"<{len(instruction) - 2}I", *instruction[2:]).split(b"\0")[0].decode()
            self.named[name] = instruction[1]
        elif opcode in _ANNOTATIONS:
            self.decorations.setdefault(instruction[1], []).append(instruction)
        elif opcode == _IMPORT:
            self.globals[instruction[1]] = instruction
        elif opcode in (_MODULE_PROCESSED, _EXECUTION_MODE_ID):
            pass
        elif opcode >= _TYPES_BEGIN or opcode == 1:
            self.types = self.types or at
            if opcode in _GLOBALS:
                self.globals[instruction[_GLOBALS[opcode][1]]] = instruction


_parsed = lru_cache(maxsize=32)(_Module)


class Linker:
    """A module to which functions are added.

    Parameters
    ----------
    module : bytes
        SPIR-V with holes.
    library : bytes
        SPIR-V whose functions may be called.
    """

    def __init__(self, module: bytes, library: bytes):
        self._module, self._library = _parsed(module), _parsed(library)
        self._bound = self._module.words[_BOUND]
        self._known = dict(self._module.known)
        self._new: list[int] = []  # types and constants
        self._imports: list[int] = []
        self._decorations: list[int] = []
        self._copied: dict[int, int] = {}  # this module's identifiers, by the library's
        self._bodies: dict[int, list[int]] = {}  # by the functions they replace
        self._functions: list[int] = []

    def identifier(self) -> int:
        """A new identifier."""
        self._bound += 1
        return self._bound - 1

    def declare(self, opcode: int, *operands: int) -> int:
        """The identifier of a type or a constant, which is made if the module has no such one."""
        place = _GLOBALS[opcode][1]
        words = (len(operands) + 2 << 16 | opcode, *operands[: place - 1], 0, *operands[place - 1 :])
        return self._declared(words, place, self._new)

    def _declared(self, words: Words, place: int, into: list[int]) -> int:
        key = _key(words)
        own = self._known.get(key)
        if own is None:
            own = self._known[key] = self.identifier()
            into += [*words[:place], own, *words[place + 1 :]]
        return own

    def extended(self) -> int:
        """The identifier of the extended instructions GLSL.std.450."""
        name = struct.unpack("<4I", b"GLSL.std.450".ljust(16, b"\0"))
        return self._declared((6 << 16 | _IMPORT, 0, *name), 1, self._imports)

    def decorate(self, identifier: int, *decoration: int) -> None:
        """Decorate an identifier."""
        self._decorations += [len(decoration) + 2 << 16 | op.DECORATE, identifier, *decoration]

    def hole(self, name: str) -> list[int]:
        """The identifiers of a hole's parameters. Raises KeyError where the module has none of this name."""
        words = self._module.words
        at = self._module.places[self._module.named[f"hole_{name}"]][0] + 5
        found = []
        while words[at] & 0xFFFF == op.PARAMETER:
            found.append(words[at + 2])
            at += 3
        return found

    def own(self, name: str) -> int:
        """The identifier of the shader's function ``function_NAME``, which may be inlined from now on."""
        function = self._module.named[f"function_{name}"]
        if function not in self._bodies:
            at, end = self._module.places[function]
            self._bodies[function] = [*self._module.words[at : at + 3], 0, *self._module.words[at + 4 : end]]
        return function

    def structure(self, name: str) -> tuple[int, int]:
        """The type that a hole returns, and how many members it has: 0 of what is no structure."""
        type = self._module.words[self._module.places[self._module.named[f"hole_{name}"]][0] + 1]
        made = self._module.globals[type]
        return type, len(made) - 2 if made[0] & 0xFFFF == _STRUCTURE else 0

    def fill(self, name: str, body: Sequence[int]) -> None:
        """Give a hole its body: the instructions after the label of its first block."""
        function = self._module.named[f"hole_{name}"]
        words = self._module.words
        at, _ = self._module.places[function]
        first = at + 5
        while words[first] & 0xFFFF == op.PARAMETER:
            first += 3
        # The third word, the function control, becomes None: drivers may inline it.
        head = [*words[at : at + 3], 0, *words[at + 4 : first], 2 << 16 | op.LABEL, self.identifier()]
        self._bodies[function] = [*head, *body, 1 << 16 | op.FUNCTION_END]

    def function(self, name: str) -> int:
        """A function of the library, which is copied with all that it uses. Raises KeyError for an unknown one."""
        return self._function(self._library.named[f"function_{name}"])

    def _function(self, number: int) -> int:
        """A copy of the library's function of this identifier."""
        if number in self._copied:
            return self._copied[number]
        own = self._copied[number] = self.identifier()
        words, identifiers = self._library.function(number)
        result = list(words)
        for place in identifiers:
            result[place] = self._renamed(result[place])
        result[3] = 0  # function control None: drivers may inline it
        self._functions += result
        return own

    def _renamed(self, number: int) -> int:
        """The identifier here for one of the library. What that names is copied first."""
        own = self._copied.get(number)
        if own is not None:
            return own
        library = self._library
        if number in library.places:
            return self._function(number)
        declared = library.globals.get(number)
        if declared is None:
            own = self._copied[number] = self.identifier()
            for decoration in library.decorations.get(number, ()):
                self.decorate(own, *decoration[2:])
            return own
        opcode = declared[0] & 0xFFFF
        if opcode == _IMPORT:
            own = self._declared(declared, 1, self._imports)
        else:
            identifiers, place = _GLOBALS[opcode]
            words = list(declared)
            for at in range(*identifiers.indices(len(words))):
                if at != place:
                    words[at] = self._renamed(words[at])
            own = self._declared(tuple(words), place, self._new)
        self._copied[number] = own
        return own

    def result(self) -> bytes:
        """The module."""
        module = self._module
        words = module.words
        parts: list[Iterable[int]] = [words[:_BOUND], (self._bound, words[_BOUND + 1])]
        at = op.HEADER
        if self._imports:  # they follow capabilities and extensions
            while words[at] & 0xFFFF in (17, 10):
                at += words[at] >> 16
            parts += [words[op.HEADER : at], self._imports]
        parts += [words[at : module.types], self._decorations, words[module.types : module.functions], self._new]
        functions = {own: self._bodies.get(own) or words[start:end] for own, (start, end) in module.places.items()}
        functions |= functions_of(self._functions)
        if has_matrices(words):  # NVIDIA's compiler (580.159) dies of calls in the largest of these kernels
            functions = self._inlined(functions)
        # Inlining makes identifiers, and decorates them.
        parts[1] = self._bound, words[_BOUND + 1]
        parts += functions.values()
        return np.array([word for part in parts for word in part], "<u4").tobytes()


    def _inlined(self, functions: dict[int, list[int]]) -> dict[int, list[int]]:
        """The functions with holes, and what these call, in place of the calls (inlining.py)."""
        tails: dict[int, list[Words]] = {}
        for _, at, end in instructions(self._decorations):
            tails.setdefault(self._decorations[at + 1], []).append(tuple(self._decorations[at + 2 : end]))
        for like, made in self._module.decorations.items():
            tails[like] = [*tails.get(like, ()), *(words[2:] for words in made)]

        def decorated(own: int, like: int) -> None:
            for tail in tails.get(like, ()):
                self.decorate(own, *tail)
            if like in tails:
                tails[own] = tails[like]

        named = set(self._module.named.values())
        return inlined(functions, {*named, *self._copied.values()}, self.identifier, decorated)


def unfilled(spirv: bytes) -> bytes:
    """The module with its holes as the shader has them, and without calls of them where drivers die of such calls."""
    has_holes = b"hole_" in spirv and has_matrices(np.frombuffer(spirv, "<u4"))
    return Linker(spirv, spirv).result() if has_holes else spirv


def _key(words: Sequence[int]) -> Words:
    """What equal types and constants share: the words of the instruction but for its own identifier."""
    opcode = words[0] & 0xFFFF
    place = 1 if opcode == _IMPORT else _GLOBALS[opcode][1]
    return (*words[:place], *words[place + 1 :])
