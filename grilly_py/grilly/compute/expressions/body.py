"""Nodes written as SPIR-V: the body of a hole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...runtime import spirv as op
from ...runtime.linking import Linker
from .nodes import INSTRUCTIONS, Node, in_order

#: Of how holes are written: where it is another number, devices are checked anew (selfcheck/expressions.py).
VERSION = 4
_NO_CONTRACTION = 42
_EXTRACT, _CONSTRUCT, _VECTOR, _TRUE, _FALSE, _CONSTANT, _COMPOSITE = 81, 80, 23, 41, 42, 43, 44
_UNPACK_HALF, _PACK_HALF = 62, 58  # of GLSL.std.450
_XOR = 198
#: Nodes whose bits come from memory.
_LOADED = frozenset(("element", "word", "read"))
_EXTENDED = frozenset(("native_sqrt", "native_exp2", "fma"))  # of GLSL.std.450
_FLOATS = frozenset(("fadd", "fsub", "fmul"))


class Body:
    """Writes expressions into the holes of a module.

    Parameters
    ----------
    linker : Linker
    halves : bool
        Whether the device's own conversions from and to float16 are right (shaders/arrays/words.glsl, HALVES).
    """

    def __init__(self, linker: Linker, halves: bool):
        self._linker, self._halves, self._zero = linker, halves, 0
        declare = linker.declare
        self._uint, self._float, self._bool = declare(21, 32, 0), declare(22, 32), declare(20)
        self._types = {
            "float": self._float, "int": self._uint, "uint": self._uint, "bool": self._bool,
            "long": declare(23, self._uint, 2),
        }  # fmt: skip

    def fill(self, hole: str, outputs: Sequence[Node], words: Mapping[int, tuple[int, int]]) -> None:
        """Write the outputs as what the hole returns: one, or the first members of a structure, whose others are 0.

        The first parameters of the hole are elements of arrays, by their numbers. ``words`` has for each word's number
        the parameter and the component that hold it.
        """
        parameters = self._linker.hole(hole)
        code: list[int] = []
        found: dict[int, int] = {}
        self._zero = 0
        for node in in_order(outputs):
            if node.name == "element":
                own = parameters[node.value]
            elif node.name == "word":
                parameter, component = words[node.value]
                own = self._emit(code, _EXTRACT, self._uint, parameters[parameter], component)
            elif node.name == "constant":
                own = self._constant(node)
            else:
                own = self._instruction(code, node, [found[id(operand)] for operand in node.operands])
            found[id(node)] = own
        returned = [found[id(output)] for output in outputs]
        structure, members = self._linker.structure(hole)
        if members:
            zero = self._linker.declare(_CONSTANT, self._uint, 0)
            none = self._linker.declare(_COMPOSITE, self._types["long"], zero, zero)
            returned += [none] * (members - len(returned))
            returned = [self._emit(code, _CONSTRUCT, structure, *returned)]
        self._linker.fill(hole, [*code, 2 << 16 | op.RETURN_VALUE, *returned])

    def _emit(self, code: list[int], opcode: int, type: int, *operands: int) -> int:
        own = self._linker.identifier()
        code += [len(operands) + 3 << 16 | opcode, type, own, *operands]
        return own

    def _unknown_zero(self, code: list[int]) -> int:
        """A 0 of which compilers know nothing.

        NVIDIA's makes x of unpackHalf2x16(packHalf2x16(x)), but between them stands a rounding to float16.
        """
        if not self._zero:
            self._zero = self._emit(code, op.CALL, self._uint, self._linker.own("zero"))
        return self._zero

    def _hidden_zero(self, code: list[int], node: Node, own: int) -> int:
        """The operand of a sum or product; a zero as one of which compilers know nothing.

        Mesa's gallivm makes 0 of x * 0, where x may be infinite or NaN, and x of x + 0, where x may be -0.
        """
        if node.name != "constant" or node.value & 0x7FFFFFFF:
            return own
        bits = self._unknown_zero(code)
        if node.value:
            bits = self._emit(code, _XOR, self._uint, bits, self._linker.declare(_CONSTANT, self._uint, node.value))
        return self._emit(code, INSTRUCTIONS["float_of_bits"][0], self._float, bits)

    def _constant(self, node: Node) -> int:
        if node.type == "bool":
            return self._linker.declare(_TRUE if node.value else _FALSE, self._bool)
        return self._linker.declare(_CONSTANT, self._types[node.type], node.value)

    def _instruction(self, code: list[int], node: Node, operands: list[int]) -> int:
        type = self._types[node.type]
        if node.name == "call":
            if self._halves and node.value == "float_of_half":
                if node.operands[0].operands and node.operands[0].operands[0].name not in _LOADED:
                    operands = [self._emit(code, _XOR, self._uint, operands[0], self._unknown_zero(code))]
                pair = self._linker.declare(_VECTOR, self._float, 2)
                both = self._emit(code, op.EXT_INST, pair, self._linker.extended(), _UNPACK_HALF, *operands)
                return self._emit(code, _EXTRACT, self._float, both, 0)
            if self._halves and node.value == "half_of_float":
                pair = self._linker.declare(_VECTOR, self._float, 2)
                zero = self._linker.declare(_CONSTANT, self._float, 0)
                both = self._emit(code, _CONSTRUCT, pair, operands[0], zero)
                return self._emit(code, op.EXT_INST, type, self._linker.extended(), _PACK_HALF, both)
            return self._emit(code, op.CALL, type, self._linker.function(node.value), *operands)
        if node.name == "read":
            return self._emit(code, op.CALL, type, self._linker.own("word"), *operands)
        if node.name in ("low", "high"):
            return self._emit(code, _EXTRACT, type, operands[0], int(node.name == "high"))
        if node.name == "select" and node.type == "long":  # SPIR-V 1.3 selects vectors by vectors
            pair = self._linker.declare(_VECTOR, self._bool, 2)
            operands = [self._emit(code, _CONSTRUCT, pair, operands[0], operands[0]), *operands[1:]]
        opcode = INSTRUCTIONS[node.name][0]
        if node.name in _FLOATS:
            operands = [self._hidden_zero(code, *both) for both in zip(node.operands, operands, strict=True)]
        if node.name in _EXTENDED:
            return self._emit(code, op.EXT_INST, type, self._linker.extended(), opcode, *operands)
        own = self._emit(code, opcode, type, *operands)
        if node.name in _FLOATS:  # the same bits, whatever stands beside it
            self._linker.decorate(own, _NO_CONTRACTION)
        return own
