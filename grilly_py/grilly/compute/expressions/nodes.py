"""Nodes: the instructions of an expression, before they are SPIR-V.

A node has a type of the machine: "float" (float32), "int" and "uint" (32 bits), "long" (an int64 as two words), "bool".
An array's element is "long" whatever its dtype: two words hold the bits of any. Equal nodes are one object, so that a
value that occurs twice is computed once. Operations on constants are computed when a node is made.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Iterator, Sequence

import numpy as np

from ..device.numbers import number

#: Instructions by their names: opcode of SPIR-V, and the type that comes out (None: that of the first operand).
INSTRUCTIONS: dict[str, tuple[int, str | None]] = {
    "fadd": (129, "float"), "fsub": (131, "float"), "fmul": (133, "float"), "native_divide": (136, "float"),
    "native_sqrt": (31, "float"), "native_exp2": (29, "float"), "fma": (50, "float"),  # of GLSL.std.450
    "iadd": (128, None), "isub": (130, None), "imul": (132, None),
    "shift_left": (196, None), "shift_right": (194, None), "shift_right_signed": (195, None),
    "or": (197, None), "xor": (198, None), "and": (199, None), "not": (200, None),
    "logical_equal": (164, "bool"), "logical_not_equal": (165, "bool"), "logical_or": (166, "bool"),
    "logical_and": (167, "bool"), "logical_not": (168, "bool"),
    "select": (169, None), "equal": (170, "bool"), "not_equal": (171, "bool"),
    "above": (172, "bool"), "below": (176, "bool"), "greater": (173, "bool"), "less": (177, "bool"),
    "bits": (124, "uint"), "float_of_bits": (124, "float"),
    "float_of_int": (111, "float"),
    "low": (81, "uint"), "high": (81, "uint"), "pair": (80, "long"),
}  # fmt: skip
#: Types of the results of library functions (shaders/arrays/expressions.comp), where it is not "float".
FUNCTIONS: dict[str, str] = {
    **dict.fromkeys(("less", "equal", "long_less"), "bool"),
    **dict.fromkeys(
        ("long_add", "long_subtract", "long_multiply", "long_floor_divide", "long_remainder", "long_pow",
         "long_left_shift", "long_right_shift", "long_of_float"), "long",
    ),
    **dict.fromkeys(("half_of_float", "bfloat16_of_float"), "uint"),
}  # fmt: skip
_MASK = 0xFFFFFFFF


class Node:
    """An instruction.

    Attributes
    ----------
    name : str
        Of INSTRUCTIONS; "call" of a library function, which ``value`` names; "read" of a word of memory, at an index in
        words; "constant", with the 32 bits or the truth in ``value``; "element", the bits of an array's element, and
        "word", 32 bits that each call passes, with their
        number in ``value``.
    type : str
    operands : tuple of Node
    value : int, bool, str or None
    """

    __slots__ = ("name", "type", "operands", "value", "__weakref__")

    def __init__(self, name: str, type: str, operands: tuple[Node, ...], value):
        self.name, self.type, self.operands, self.value = name, type, operands, value


_nodes: weakref.WeakValueDictionary[tuple, Node] = weakref.WeakValueDictionary()


def _node(name: str, type: str, operands: tuple[Node, ...] = (), value=None) -> Node:
    # A node keeps its operands, so their addresses are theirs as long as it is in the table.
    key = (name, type, tuple(map(id, operands)), value, value.__class__)
    found = _nodes.get(key)
    if found is None:
        found = _nodes.setdefault(key, Node(name, type, operands, value))
    return found


def element(number: int) -> Node:
    """The bits of an element of the array of this number."""
    return _node("element", "long", (), number)


def word(number: int, type: str) -> Node:
    """A word that each call passes, as a float, an int or a uint."""
    bits = _node("word", "uint", (), number)
    return make("float_of_bits", bits) if type == "float" else retyped(bits, type)


def constant(value: float | int | bool, type: str) -> Node:
    """A constant. Floats are rounded to float32; integers keep their lower bits."""
    if type == "bool":
        return _node("constant", "bool", (), bool(value))
    if type == "float":
        with np.errstate(over="ignore"):
            rounded = np.float32(number("expression", "a constant", value))
        return _node("constant", "float", (), int(rounded.view(np.uint32)))
    if type == "long":
        return _node("pair", "long", (constant(value & _MASK, "uint"), constant(value >> 32 & _MASK, "uint")))
    return _node("constant", type, (), value & _MASK)


def retyped(node: Node, type: str) -> Node:
    """An int as a uint, or the other way round: the same bits, and the same instruction."""
    if node.type == type:
        return node
    return _node(node.name, type, node.operands, node.value)


def call(name: str, *operands: Node) -> Node:
    """The result of a library function."""
    return _node("call", FUNCTIONS.get(name, "float"), operands, name)


def read(index: Node) -> Node:
    """A word of the memory that the shader lets its holes read, at an index in words."""
    return _node("read", "uint", (index,))


def make(name: str, *operands: Node) -> Node:
    """The result of an instruction; a constant where all operands are constants."""
    type = INSTRUCTIONS[name][1] or (operands[1] if name == "select" else operands[0]).type
    return _simpler(name, type, operands) or _node(name, type, operands)


def _simpler(name: str, type: str, operands: tuple[Node, ...]) -> Node | None:
    """An equal node that is simpler, if one is known."""
    first = operands[0]
    if name in ("low", "high") and first.name == "pair":
        return first.operands[name == "high"]
    if name in ("bits", "float_of_bits"):
        if first.name in ("bits", "float_of_bits"):
            return retyped(first.operands[0], type)
        if first.name == "constant":
            return _node("constant", type, (), first.value)
    if name == "select":
        if first.name == "constant":
            return operands[1 if first.value else 2]
        if operands[1] is operands[2]:
            return operands[1]
    if name == "not_equal" and first.name == "select" and operands[1] is constant(0, operands[1].type):
        # bool as an element, and back
        if first.operands[1:] == (constant(1, first.type), constant(0, first.type)):
            return first.operands[0]
    if name == "logical_not" and first.name == "logical_not":
        return first.operands[0]
    fold = _FOLDS.get(name)
    if fold is None or any(operand.name != "constant" for operand in operands):
        return None
    return constant(fold(*(_value(operand) for operand in operands)), type)


def _value(node: Node) -> int | bool | np.float32:
    if node.type == "float":
        return np.uint32(node.value).view(np.float32)
    if node.type == "int" and node.value >> 31:
        return node.value - (1 << 32)
    return node.value


def _float(function):
    def folded(*values: np.float32) -> np.float32:
        with np.errstate(all="ignore"):
            return function(*values)

    return folded


_FOLDS = {
    "fadd": _float(lambda a, b: a + b), "fsub": _float(lambda a, b: a - b), "fmul": _float(lambda a, b: a * b),
    "iadd": lambda a, b: a + b, "isub": lambda a, b: a - b, "imul": lambda a, b: a * b,
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "not": lambda a: ~a,
    "logical_and": lambda a, b: a and b, "logical_or": lambda a, b: a or b, "logical_not": lambda a: not a,
    "equal": lambda a, b: a == b, "not_equal": lambda a, b: a != b, "less": lambda a, b: a < b,
    "greater": lambda a, b: a > b,
}  # fmt: skip


def in_order(outputs: Sequence[Node]) -> Iterator[Node]:
    """Every node that the outputs need, once, each after its operands."""
    seen: set[int] = set()
    waiting = [(node, False) for node in reversed(outputs)]
    while waiting:
        node, is_ready = waiting.pop()
        if is_ready:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            waiting.append((node, True))
            waiting += [(operand, False) for operand in reversed(node.operands)]


def digest_text(outputs: Sequence[Node]) -> bytes:
    """A text of outputs: equal for equal outputs only, and the same in every process."""
    numbers: dict[int, int] = {}
    parts = []
    for node in in_order(outputs):
        numbers[id(node)] = len(numbers)
        operands = " ".join(str(numbers[id(operand)]) for operand in node.operands)
        parts.append(f"{node.name} {node.type} {node.value} {operands}".encode())
    parts.append(struct.pack(f"<{len(outputs)}I", *(numbers[id(node)] for node in outputs)))
    return b"\n".join(parts)


def with_operands(node: Node, operands: Sequence[Node]) -> Node:
    """The node with other operands."""
    if node.name == "call":
        return call(node.value, *operands)
    if node.name == "read":
        return read(*operands)
    return retyped(make(node.name, *operands), node.type)


def replaced(outputs: Sequence[Node], leaves, inner=lambda node: node) -> list[Node]:
    """The outputs with other leaves: ``leaves(node)`` gives what takes the place of an element or a word.

    ``inner(node)`` gives what takes the place of an instruction, whose operands are replaced already.
    """
    made: dict[int, Node] = {}
    for node in in_order(outputs):
        if node.name in ("element", "word"):
            made[id(node)] = leaves(node)
        elif node.name == "constant":
            made[id(node)] = node
        else:
            made[id(node)] = inner(with_operands(node, [made[id(operand)] for operand in node.operands]))
    return [made[id(node)] for node in outputs]
