"""Numbers of a data file that follow from a case's macros: a string there is arithmetic, as "THREADS / TX * TM"."""

from __future__ import annotations

import ast
import functools
import math
import operator

_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


def by_rule(value, defines: dict):
    """``value`` with the numbers that its strings stand for; ``value`` is a number, or a list or a table of some.

    A string has the macros in ``defines`` by name, numbers, ``+ - * /``, brackets and ``ceil()``. Raises ValueError
    for anything else.
    """
    if isinstance(value, dict):
        return {key: by_rule(one, defines) for key, one in value.items()}
    if isinstance(value, list):
        return [by_rule(one, defines) for one in value]
    if not isinstance(value, str):
        return value
    try:
        found = _number(_parsed(value), defines)
    except SyntaxError:
        raise ValueError(f"{value!r} is no arithmetic") from None
    except ZeroDivisionError:
        raise ValueError(f"{value!r} divides by zero") from None
    return int(found) if found == int(found) else found


_parsed = functools.lru_cache(maxsize=64)(lambda text: ast.parse(text, mode="eval").body)


def _number(node: ast.expr, defines: dict) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in defines:
            raise ValueError(f"there is no macro {node.id}")
        return defines[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_number(node.left, defines), _number(node.right, defines))
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "ceil" and len(node.args) == 1 and not node.keywords:
        return math.ceil(_number(node.args[0], defines))
    raise ValueError(f"{ast.unparse(node)} is no macro, number, sum, product, quotient or ceil()")


def rounded_down(number: float) -> float:
    """In whole thousandths; 1e-9 is for those that a quotient just misses."""
    return math.floor(number * 1000 + 1e-9) / 1000
