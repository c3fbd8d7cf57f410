"""Derivatives of users' score functions, as the kernels of gradients have them.

A score function's derivative by the score goes beside the score into one hole. The derivative by an element that the
function reads goes into another, with the place of the element. Of how that place depends on batch, head, query and
key follows what is summed on the way: an index by head alone leaves a number for each head.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from ..arrays.promotion import FLOAT32, kind_of
from ..device.tensor import Tensor
from ..expressions.derivatives import gradients
from ..expressions.elements import by_device
from ..expressions.expression import Expression
from ..expressions.functions import trace
from ..expressions.nodes import Node, in_order, make, replaced, retyped
from ..expressions.reads import element_at, place_of
from ..expressions.scalars import TRACING, Scalar, alike, number
from .functions import BlockMask, FixedFunction, FunctionExpression, Memory, scalars_of, traced
from .options import Options

#: Elements of ARGUMENTS["score_mod"] by their numbers.
_SCORE, _QUERY, _KEY = 0, 3, 4
#: Beside these numbers, what a place depends on: query - key.
_DISTANCE = -1


class Read(NamedTuple):
    """An element that a score function reads, of a floating dtype.

    Attributes
    ----------
    tensor : int
        Its number among the function's.
    own : FunctionExpression
        Gives the derivative of the score by it, float32, and its place in the tensor.
    axes : frozenset of int
        Those of 0 batch, 1 head, 2 query and 3 key on which the place depends.
    diagonal : bool
        Whether the place depends on query and key by their difference alone.
    """

    tensor: int
    own: FunctionExpression
    axes: frozenset[int]
    diagonal: bool


class Derived(NamedTuple):
    """A score function with its derivatives.

    Attributes
    ----------
    own : FunctionExpression
        Gives the score and its derivative by the given score, two float32.
    reads : tuple of Read
        Those on whose elements the score depends.
    """

    own: FunctionExpression
    reads: tuple[Read, ...]


_DERIVED = Memory()


def derived(function: Callable[..., Any]) -> Derived:
    """The derivatives of a score function that was traced before.

    Raises
    ------
    GradientError
        For an operation that has none.
    """
    found: Derived = function.derived if isinstance(function, FixedFunction) else _DERIVED.of(
        function, lambda: _derived(function)
    )  # fmt: skip
    return found


def fixed(operation: str, options: Options) -> Options:
    """Options whose functions are those of now, with the derivative of the score function.

    Raises GradientError for an operation in it that has none.
    """
    score, mask = options.score_mod, options.mask_mod
    if score is not None:
        score = FixedFunction(score, traced(operation, "score_mod", score), derived(score))
    if mask is not None:
        own = FixedFunction(mask, traced(operation, "mask_mod", mask))
        mask = BlockMask(own, mask.shape, mask.block_size, mask.classes) if isinstance(mask, BlockMask) else own
    return dataclasses.replace(options, score_mod=score, mask_mod=mask)


def _derived(function: Callable[..., Any]) -> Derived:
    score, *others = scalars_of("score_mod")
    elements: list[Scalar] = [score]  # and those that the function reads
    places: list[tuple[int, Node]] = []
    made: list[Scalar] = []

    def reads(tensor: Tensor, index: Any) -> Scalar:
        found = element_at(tensor, index)
        if kind_of(tensor.dtype) == "floating" and all(one.node is not found.node for one in elements):
            elements.append(found)
            places.append((TRACING.place_of(tensor), place_of(tensor, index)[1]))
        return found

    def value(*scalars: Scalar) -> Scalar:
        made.append(alike(function(*scalars))[0].cast(FLOAT32))
        return made[0]

    @functools.wraps(function)
    def all_of(*scalars: Scalar) -> tuple[Scalar, ...]:
        found = gradients(value, scalars, [number(1.0, FLOAT32)], elements)
        return made[0], *(part if isinstance(part, float) else part.cast(FLOAT32) for part in found)

    outputs = trace(all_of, [], {}, [score, *others], reads).outputs
    nodes = [one.node for one in outputs] + [place for _, place in places]
    own, by_score, *rest = replaced(nodes, lambda leaf: leaf, by_device)
    count = len(places)
    found = [
        _read(tensor, by_element, place)
        for (tensor, _), by_element, place in zip(places, rest[:count], rest[count:], strict=True)
        if not (by_element.name == "constant" and not by_element.value)
    ]
    return Derived(FunctionExpression(Expression(_two(own, make("bits", by_score)))), tuple(found))


def _two(number: Node, word: Node) -> Node:
    return make("pair", make("bits", number), word)


def _read(tensor: int, derivative: Node, place: Node) -> Read:
    axes, diagonal = _axes(place)
    return Read(tensor, FunctionExpression(Expression(_two(derivative, retyped(place, "uint")))), axes, diagonal)


def _axes(place: Node) -> tuple[frozenset[int], bool]:
    """``axes`` and ``diagonal`` of a Read."""
    depends = _depends(place)
    if _SCORE in depends:
        return frozenset(range(4)), False
    diagonal = depends & {_DISTANCE, _QUERY, _KEY} == {_DISTANCE}
    if _DISTANCE in depends:
        depends = depends | {_QUERY, _KEY}
    return frozenset(one - 1 for one in depends if one > _SCORE), diagonal


class _Linear(NamedTuple):
    """A node: ``query * of_query + key * of_key``, plus something that depends on ``others``."""

    of_query: int = 0
    of_key: int = 0
    others: frozenset[int] = frozenset()

    def depends(self) -> frozenset[int]:
        if self.of_query and self.of_query == -self.of_key:
            return self.others | {_DISTANCE}
        numbers = ((_QUERY, self.of_query), (_KEY, self.of_key))
        return self.others | {one for one, factor in numbers if factor}


def _depends(output: Node) -> frozenset[int]:
    """The elements that a node depends on, by their numbers; _DISTANCE for query and key where they are in ``query -
    key`` alone."""
    found: dict[int, _Linear] = {}
    for node in in_order([output]):
        found[id(node)] = _linear(node, [found[id(operand)] for operand in node.operands])
    return found[id(output)].depends()


def _linear(node: Node, operands: list[_Linear]) -> _Linear:
    if node.name == "element":
        return _Linear(others=frozenset((node.value,)))
    if node.name == "low" and node.operands[0].name == "element":
        of = node.operands[0].value
        return _Linear(int(of == _QUERY), int(of == _KEY), operands[0].others - {_QUERY, _KEY})
    if node.name in ("iadd", "isub"):
        one, other = operands
        sign, others = 1 if node.name == "iadd" else -1, one.others | other.others
        return _Linear(one.of_query + sign * other.of_query, one.of_key + sign * other.of_key, others)
    return _Linear(others=frozenset().union(*(operand.depends() for operand in operands)))


__all__ = ["Derived", "Read", "derived", "fixed"]
