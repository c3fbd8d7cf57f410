"""Expressions: functions of one element of each array, traced from Python, and written into holes of shaders."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ...registry import Registry, Request
from ...runtime.linking import Linker
from .body import VERSION, Body
from .elements import loaded, stored, type_of
from .nodes import Node, constant, digest_text, element, in_order, make, word
from .scalars import Scalar


class Expression:
    """A function of elements of arrays, and of words of 32 bits that each call passes.

    It gives the bits of an element, or of one of each of several arrays.

    Attributes
    ----------
    outputs : tuple of Node
    words : tuple of int
        The numbers of the words that the outputs depend on.
    key : bytes
        A digest: equal for equal expressions, also in another process.
    """

    __slots__ = ("outputs", "words", "key")

    def __init__(self, *outputs: Node):
        self.outputs = outputs
        self.words = tuple(sorted({node.value for node in in_order(outputs) if node.name == "word"}))
        self.key = hashlib.sha256(digest_text(outputs)).digest()

    @property
    def output(self) -> Node:
        """The first of the outputs, and the only one of most expressions."""
        return self.outputs[0]

    def moves(self) -> bool:
        """Whether there is one output, an element as it is: a copy."""
        return len(self.outputs) == 1 and self.output.name == "element"


def traced(
    function: Callable[..., Scalar], dtypes: Sequence[np.dtype | None], told: Sequence[tuple[int, np.dtype]],
    computed: np.dtype | None, gives: np.dtype,
) -> Expression:  # fmt: skip
    """Call a function with scalars, and return what it computes as an expression.

    Parameters
    ----------
    function : callable
        Takes scalars.
    dtypes : sequence of numpy.dtype or None
        For each argument the dtype of its array, or None where it is no array. Arrays are numbered in this order.
    told : sequence of (int, numpy.dtype)
        The arguments that are numbers: position and dtype. Each call passes them, in two words each.
    computed : numpy.dtype, optional
        The dtype to which arguments are converted first; by default they keep theirs.
    gives : numpy.dtype
        Of the result.
    """
    arguments: dict[int, Scalar] = {}
    arrays = [(place, dtype) for place, dtype in enumerate(dtypes) if dtype is not None]
    for number, (place, dtype) in enumerate(arrays):
        arguments[place] = Scalar(dtype, loaded(dtype, element(number)))
    for number, (place, dtype) in enumerate(told):
        arguments[place] = Scalar(dtype, _told(2 * number, dtype))
    scalars = [scalar if computed is None else scalar.cast(computed) for _, scalar in sorted(arguments.items())]
    return Expression(stored(gives, function(*scalars).cast(gives).node))


def _told(number: int, dtype: np.dtype) -> Node:
    """A number that a call passes, from the word of this number on."""
    type = type_of(dtype)
    if type == "bool":
        return make("not_equal", word(number, "uint"), constant(0, "uint"))
    if type == "long":
        return make("pair", word(number, "uint"), word(number + 1, "uint"))
    return word(number, type)


#: What is asked for the library's functions. On the first use of a device it is checked how holes are computed there.
_LIBRARY = Request("expressions", "float32", problem=(("holes", VERSION),))


class Hole(NamedTuple):
    """A hole of a shader, and the expression that fills it: with several outputs where the hole returns a structure.

    Attributes
    ----------
    name : str
    expression : Expression
    elements : int
        How many of the hole's parameters are elements, in the order of their numbers. The parameters after these hold
        words, four each.
    told : tuple of int, optional
        The numbers of these words, in their order; by default the expression's.
    """

    name: str
    expression: Expression
    elements: int
    told: tuple[int, ...] | None = None

    def words(self) -> dict[int, tuple[int, int]]:
        """By a word's number: the parameter that holds it, and the component there."""
        told = self.expression.words if self.told is None else self.told
        return {number: (self.elements + place // 4, place % 4) for place, number in enumerate(told)}


class Filling:
    """Expressions for a shader's holes. Equal fillings make equal binaries of one shader."""

    __slots__ = ("_key", "_holes", "_halves", "_library")

    def __init__(self, registry: Registry, *holes: Hole):
        self._holes = holes
        self._halves = halves(registry)
        self._library = registry.resolve(_LIBRARY).spec({}).spirv
        self._key = (self._halves, *((hole.name, hole.expression.key, *hole[2:]) for hole in holes))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filling) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __call__(self, spirv: bytes) -> bytes:
        """The shader with its holes filled."""
        linker = Linker(spirv, self._library)
        body = Body(linker, self._halves)
        for hole in self._holes:
            body.fill(hole.name, hole.expression.outputs, hole.words())
        return linker.result()


def halves(registry: Registry) -> bool:
    """Whether float16 may be converted as the device does it.

    NVIDIA's compiler is known to round packHalf2x16 as it should and to keep small numbers; others may do as they like.
    """
    return "nvidia-compiler" in registry.features
