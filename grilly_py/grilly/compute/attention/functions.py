"""Score functions and mask functions of users, as kernels have them: what fills the holes of attention/functions.glsl.

A score function gives what a scaled score becomes, a mask function whether a query sees a key, of the batch, the head,
the query and the key. They read tensors by indices (compute/expressions/reads.py).
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...errors import ExpressionError
from ...registry import Registry
from ..arrays.promotion import BOOL, FLOAT32, INT32
from ..device.tensor import Tensor
from ..expressions.elements import by_device, loaded, stored
from ..expressions.expression import Expression, Filling, Hole
from ..expressions.functions import Outside, Traced, place_of, trace
from ..expressions.nodes import Node, element, replaced, word
from ..expressions.quick import quick
from ..expressions.reads import TENSORS, WORDS, element_at
from ..expressions.scalars import Scalar

#: What the functions are given, in this order. A mask function is given no score.
ARGUMENTS = {"score_mod": ("score", "batch", "head", "query", "key"), "mask_mod": ("batch", "head", "query", "key")}
#: Queries and keys of calls whose functions may take any index for smaller.
LONGEST = 1 << 21


class Functions(NamedTuple):
    """The functions of a call as a part of its plan's key: equal ones make equal kernels.

    Attributes
    ----------
    score, mask : FunctionExpression or None
    mapped : bool
        Whether the map of blocks has the classes of the mask function's blocks.
    positions : bool
        Whether a query's number is its position among the keys, which may be negative.
    derived : bool
        Whether ``score`` also gives its derivative, for the kernels of gradients (function_gradients.py).
    read : FunctionExpression or None
        The derivative by an element that the score function reads, and the element's place.
    """

    score: FunctionExpression | None = None
    mask: FunctionExpression | None = None
    mapped: bool = False
    positions: bool = False
    derived: bool = False
    read: FunctionExpression | None = None

    def filling(self, registry: Registry, quickly: bool = False) -> Filling | None:
        """What fills a kernel's holes; None where there are no functions.

        ``quickly``: for 16-bit factors, and indices below LONGEST (``FunctionExpression.quickly``).
        """
        holes = []
        for hole, name, own in (
            ("score", "score_mod", self.score), ("mask", "mask_mod", self.mask), ("read", "score_mod", self.read)
        ):  # fmt: skip
            if own is not None:
                expression = own.quickly(name, self.positions) if quickly else own.expression
                holes.append(Hole(hole, expression, len(ARGUMENTS[name]), tuple(range(WORDS))))
        return Filling(registry, *holes) if holes else None


class FunctionExpression:
    """What a function computes."""

    __slots__ = ("expression", "_behind", "_quick")

    def __init__(self, expression: Expression):
        self.expression = expression
        self._behind: dict[int, FunctionExpression] = {}
        self._quick: dict[bool, Expression] = {}

    def behind(self, words: int) -> FunctionExpression:
        """The same, with the words of its tensors behind so many others."""
        if not words:
            return self
        found = self._behind.get(words)
        if found is None:
            (output,) = replaced([self.expression.output], lambda leaf: _moved(leaf, words))
            found = self._behind[words] = FunctionExpression(Expression(output))
        return found

    def quickly(self, name: str, positions: bool = False) -> Expression:
        """The same of ``name``, of ARGUMENTS, with fewer instructions (``expressions.quick``).

        ``positions``: queries may be negative.
        """
        if positions not in self._quick:
            bounds = {
                number: (-LONGEST if positions and argument == "query" else 0, LONGEST - 1)
                for number, argument in enumerate(ARGUMENTS[name]) if argument != "score"
            }  # fmt: skip
            self._quick[positions] = Expression(*quick([self.expression.output], bounds))
        return self._quick[positions]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FunctionExpression) and self.expression.key == other.expression.key

    def __hash__(self) -> int:
        return hash(self.expression.key)


class BlockMask:
    """Which blocks of scores a mask function hides, sees in part and sees as a whole.

    ``grilly.block_mask`` makes it, and attention takes it as ``mask_mod``.

    Attributes
    ----------
    mask_mod : callable
    shape : tuple of int
        Batches and heads (1 where the function is the same for all), queries and keys.
    block_size : tuple of int
        Queries and keys of a block.
    classes : grilly.Tensor
        ``(B or 1, H or 1, ceil(N_q / bq), ceil(N_kv / bk))`` uint8: 0 where a block is hidden, 2 where all of it is
        seen, else 1.
    """

    __slots__ = ("mask_mod", "shape", "block_size", "classes")

    def __init__(
        self, mask_mod: Callable[..., Any], shape: tuple[int, int, int, int], block_size: tuple[int, int],
        classes: Tensor,
    ):  # fmt: skip
        self.mask_mod, self.shape, self.block_size, self.classes = mask_mod, shape, block_size, classes

    def __call__(self, batch: Any, head: Any, query: Any, key: Any) -> Any:
        """What the mask function gives."""
        return self.mask_mod(batch, head, query, key)

    def __repr__(self) -> str:
        return f"grilly.BlockMask(shape={self.shape}, block_size={self.block_size})"

    @property
    def sparsity(self) -> float:
        """The share of blocks that are hidden, from 0 to 1. Waits for the device."""
        classes = self.classes.numpy()
        return float((classes == 0).mean()) if classes.size else 0.0


def _moved(leaf: Node, words: int) -> Node:
    return word(leaf.value + words, leaf.type) if leaf.name == "word" else leaf


def count_words(operation: str, tensors: Sequence[Tensor]) -> int:
    """The words that say where tensors are. Raises ValueError for more tensors or words than there may be."""
    words = sum(1 + tensor.ndim for tensor in tensors)
    if len(tensors) > TENSORS or words > WORDS:
        raise ValueError(
            f"{operation}: score_mod and mask_mod read {len(tensors)} tensors of {words - len(tensors)} axes together; "
            f"expected at most {TENSORS} tensors, of at most {WORDS} axes and tensors"
        )
    return words


class TracedFunction(NamedTuple):
    """A function, and the tensors that it reads."""

    own: FunctionExpression
    tensors: tuple[Tensor, ...]


class FixedFunction:
    """A function as it was traced, which a later change of its variables does not change.

    Only gradients of gradients call the function again.

    Attributes
    ----------
    function : callable
    traced : TracedFunction
    derived : object
        What ``function_gradients.derived`` gives of a score function; else None.
    """

    __slots__ = ("function", "traced", "derived")

    def __init__(self, function: Callable[..., Any], traced: TracedFunction, derived: Any = None):
        self.function, self.traced, self.derived = function, traced, derived

    def __call__(self, *arguments: Any) -> Any:
        """What the function gives now."""
        return self.function(*arguments)


class Memory:
    """What was made of functions that are alive, until a variable changes that they read from outside."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Callable[..., Any], tuple[Outside, Any]] = weakref.WeakKeyDictionary()

    def of(self, function: Callable[..., Any], make: Callable[[], Any]) -> Any:
        """What ``make`` gives of a function, now or earlier."""
        if not inspect.isfunction(function):
            return make()
        known = self._known.get(function)
        if known is None or known[0].changed():
            known = self._known[function] = (Outside(function), make())
        return known[1]


_TRACED = {name: Memory() for name in ARGUMENTS}


def traced(operation: str, name: str, function: Callable[..., Any]) -> TracedFunction:
    """A function of users as an expression, ``name`` one of ARGUMENTS.

    Raises
    ------
    TypeError
        For what is no function of so many arguments.
    ExpressionError
        For one that is no expression, or gives a bool for a score or anything else for a mask.
    """
    function = getattr(function, "mask_mod", function)  # of a block mask
    if isinstance(function, FixedFunction):
        return function.traced
    found: TracedFunction = _TRACED[name].of(function, lambda: _traced(operation, name, function))
    return found


def scalars_of(name: str) -> list[Scalar]:
    """What a function is given: the score as float32, the others as int32."""
    arguments = ARGUMENTS[name]
    dtypes = [FLOAT32 if argument == "score" else INT32 for argument in arguments]
    return [Scalar(dtype, loaded(dtype, element(number))) for number, dtype in enumerate(dtypes)]


def check_function(operation: str, name: str, function: Any) -> None:
    """Raise TypeError for what is no function of the arguments that it will be given."""
    arguments = ARGUMENTS[name]
    if not callable(function) or isinstance(function, type):
        raise TypeError(
            f"{operation}: {name} is a {type(function).__name__}; expected a function of ({', '.join(arguments)})"
        )
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise TypeError(
            f"{operation}: {name} is called with ({', '.join(arguments)}), and {place_of(function)} does not take "
            f"them: {error}"
        ) from None
    except ValueError:  # a function that tells no signature
        pass


def trace_function(operation: str, name: str, function: Callable[..., Any]) -> Traced:
    """What a function computes of the scalars that it is given, checked. Raises as ``traced`` does."""
    check_function(operation, name, function)
    found = trace(function, [], {}, scalars_of(name), element_at)
    if found.several:
        raise ExpressionError(f"{place_of(function)} returns several values; {name} gives one")
    dtype = found.outputs[0].dtype
    if name == "score_mod" and dtype == BOOL:
        raise ExpressionError(
            f"{place_of(function)} returns a bool; {operation}'s score_mod gives a score; give what hides keys as "
            "mask_mod, or return grilly.where(condition, score, -math.inf)"
        )
    if name == "mask_mod" and dtype != BOOL:
        raise ExpressionError(
            f"{place_of(function)} returns {dtype.name}; {operation}'s mask_mod gives a bool: whether the query sees "
            "the key, as in query >= key"
        )
    return found


def _traced(operation: str, name: str, function: Callable[..., Any]) -> TracedFunction:
    found = trace_function(operation, name, function)
    gives = FLOAT32 if name == "score_mod" else BOOL
    (output,) = replaced([stored(gives, found.outputs[0].cast(gives).node)], lambda leaf: leaf, by_device)
    return TracedFunction(FunctionExpression(Expression(output)), found.tensors)


__all__ = [
    "ARGUMENTS", "LONGEST", "BlockMask", "FixedFunction", "FunctionExpression", "Functions", "Memory", "TracedFunction",
    "count_words", "scalars_of", "trace_function", "traced",
]  # fmt: skip
