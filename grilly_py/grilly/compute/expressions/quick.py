"""Expressions as devices compute them themselves: for scores of 16-bit factors, which need no more than these digits.

The library's functions give the same bits on every device, by many instructions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from .nodes import Node, constant, make, replaced

#: Added to an integer of magnitude below _LARGEST, its bits are those of a float that is _SHIFT larger than it. That
#: and a subtraction are quick, where conversions are as slow as exponentials.
_SHIFT_BITS, _SHIFT, _LARGEST = 0x4B400000, 12582912.0, 1 << 22
_RECIPROCALS = 2.0**-126, 2.0**126  # between them a product with the reciprocal does as well as a quotient


def quick(outputs: Sequence[Node], bounds: Mapping[int, tuple[int, int]]) -> list[Node]:
    """The outputs with fewer instructions.

    Quotients, roots and tanh are within 2^-20 of themselves; numbers below 2^-126 may count as 0.

    Parameters
    ----------
    outputs : sequence of Node
    bounds : dict
        For elements of int32, by their numbers: the least and the greatest that they may be.
    """
    ranges: dict[int, tuple[int, int]] = {}

    def inner(node: Node) -> Node:
        found = _range(node, ranges, bounds)
        if found is not None:
            ranges[id(node)] = found
        return _quicker(node, ranges)

    return replaced(outputs, lambda leaf: leaf, inner)


def _quicker(node: Node, ranges: Mapping[int, tuple[int, int]]) -> Node:
    """A node, or what takes its place."""
    if node.name == "float_of_int":
        low, high = ranges.get(id(node.operands[0]), (-_LARGEST - 1, 0))
        if low < -_LARGEST or high >= _LARGEST:
            return node
        moved = make("iadd", node.operands[0], constant(_SHIFT_BITS, "int"))
        return make("fsub", make("float_of_bits", moved), constant(_SHIFT, "float"))
    if node.name != "call":
        return node
    if node.value == "divide":
        return _quotient(*node.operands)
    if node.value == "sqrt":
        return make("native_sqrt", *node.operands)
    return _tanh(*node.operands) if node.value == "tanh" else node


def _quotient(x: Node, y: Node) -> Node:
    if y.name == "constant":
        number = float(np.uint32(y.value).view(np.float32))
        if _RECIPROCALS[0] < abs(number) < _RECIPROCALS[1]:
            return make("fmul", x, constant(1 / number, "float"))
    return make("native_divide", x, y)


def _tanh(x: Node) -> Node:
    """By an exponential, and up to a half, where that loses digits, a minimax fit of tanh(x) / x in x^2."""

    def fused(a: Node, b: Node, c: float) -> Node:
        return make("fma", a, b, constant(c, "float"))

    one = constant(1.0, "float")
    power = make("native_exp2", make("fmul", x, constant(2 * math.log2(math.e), "float")))
    far = fused(make("native_divide", one, make("fadd", power, one)), constant(-2.0, "float"), 1.0)
    square = make("fmul", x, x)
    near = fused(square, fused(square, constant(-0.04478947, "float"), 0.13206715), -0.33328265)
    near = make("fmul", x, fused(square, near, 1.0))
    size = make("and", make("bits", x), constant(0x7FFFFFFF, "uint"))  # NaN is far
    return make("select", make("below", size, constant(0x3F000000, "uint")), near, far)


def _range(
    node: Node, ranges: Mapping[int, tuple[int, int]], bounds: Mapping[int, tuple[int, int]]
) -> tuple[int, int] | None:
    """The least and the greatest that an int may be; None where that is not known to be small."""

    def of(operand: Node) -> tuple[int, int] | None:
        if operand.name == "constant" and operand.type == "int":
            number = operand.value - (operand.value >> 31 << 32)
            return number, number
        return ranges.get(id(operand))

    if node.type != "int":
        return None
    if node.name == "low" and node.operands[0].name == "element" and node.operands[0].value in bounds:
        return bounds[node.operands[0].value]
    if node.name not in ("iadd", "isub", "imul", "select"):
        return None
    a, b = (of(operand) for operand in node.operands[-2:])
    if a is None or b is None:
        return None
    if node.name == "iadd":
        found = a[0] + b[0], a[1] + b[1]
    elif node.name == "isub":
        found = a[0] - b[1], a[1] - b[0]
    elif node.name == "imul":
        products = [one * other for one in a for other in b]
        found = min(products), max(products)
    else:
        found = min(a[0], b[0]), max(a[1], b[1])
    return found if max(map(abs, found)) < 1 << 31 else None


__all__ = ["quick"]
