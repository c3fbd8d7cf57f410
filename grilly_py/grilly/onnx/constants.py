"""What is made of constants alone: computed once, before anything is captured, and laid out as it is read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..compute import Tensor
from ..compute.device.dtypes import is_storable
from ..errors import ClosedError, GrillyError
from .feeds import lookups
from .graphs import Loaded, Node, every
from .operators.drawing import DRAWING

Value = Tensor | np.ndarray | list[Any] | None

#: Results that are larger than what they are made of are kept while a model's constants take no more than this share
#: of the memory that tensors may take.
SHARE = 0.5
#: Integers of so many elements are the device's to compute with, unless the host must have the result.
LARGE = 1 << 20
#: Operators whose second factor is read fastest with its last axis but one contiguous.
_PRODUCTS = frozenset({"Gemm", "MatMul", "com.microsoft.FusedMatMul"})


class Settled(NamedTuple):
    """A model for a choice of optional inputs.

    Attributes
    ----------
    nodes : list of Node
        What is left to run.
    values : dict
        The constants that these nodes read, and those that are outputs.
    lookups : list
        Which of them are tables that inputs are indices into, as `feeds.lookups` finds them.
    computed : int
        Nodes that have inputs and are not among them.
    """

    nodes: list[Node]
    values: dict[str, Value]
    lookups: list[tuple[str, str, int, int]]
    computed: int


class Settling:
    """Computes what is made of a model's constants.

    Parameters
    ----------
    loaded : Loaded
    given : set of str
        Initializers in whose place the caller gives arrays.
    made : mapping
        What other choices have of the same names.
    compute : callable
        Runs a node with inputs, and returns its outputs.
    send : callable
        Takes a name and an array, and returns a Tensor.
    most : int
        Bytes that tensors may take together.
    """

    def __init__(
        self, loaded: Loaded, given: frozenset[str], made: Mapping[str, Value],
        compute: Callable[[Node, list[Value], dict[str, Any]], tuple[Value, ...]],
        send: Callable[[str, np.ndarray], Tensor], most: int,
    ):  # fmt: skip
        self._loaded, self._compute, self._send = loaded, compute, send
        self._limit = int(SHARE * most)
        self._given = {name: loaded.constants[name] for name in given}
        known = {"", *(name for name in loaded.constants if name not in given)}
        constant = list(_constant(loaded.nodes, known))
        self._apart = set(map(id, constant))
        needed = {*_read(loaded.nodes, self._apart), *loaded.outputs}
        self._nodes: list[Node] = []
        for node in reversed(constant):
            if any(name in needed and name not in made for name in node.outputs):
                self._nodes.append(node)
                needed.update(_read([node]))
        self._nodes.reverse()
        # How many places read each name; what nobody reads any more goes.
        self._readers = Counter((*_read(loaded.nodes, self._apart), *loaded.outputs, *_read(self._nodes)))
        self._values: dict[str, Value] = {"": None}
        for name in needed & known:
            if name in made:
                self._values[name] = made[name]
            elif name in loaded.constants:
                self._values[name] = loaded.constants[name]
        self._held = sum(map(_nbytes, self._values.values()))

    def settled(self) -> Settled:
        """The nodes that are left, and the constants that they read."""
        for node in self._nodes:
            found = self._result(node)
            if found is None:
                self._apart.discard(id(node))  # it runs with the others, and says what is wrong
                continue
            self._values.update((name, value) for name, value in found.items() if self._readers[name])
            self._held += sum(_nbytes(value) for name, value in found.items() if self._readers[name])
            for name, value in self._freed(node):
                self._held -= _nbytes(value)
                del self._values[name]
            self._readers.subtract(_read([node]))
        nodes = _without(self._loaded.nodes, self._apart)
        computed = sum(bool(node.inputs) and id(node) in self._apart for node in every(self._loaded.nodes))
        values = self._placed(nodes)
        return Settled(nodes, values, lookups(nodes, {**self._given, **values}), computed)

    def _freed(self, node: Node) -> list[tuple[str, Value]]:
        """What only this node still reads."""
        reads = Counter(_read([node]))
        return [(name, self._values[name]) for name, count in reads.items()
                if name in self._values and name and self._readers[name] <= count]  # fmt: skip

    def _result(self, node: Node) -> dict[str, Value] | None:
        """A node's outputs by name; None where it fails, and where they would take too much memory."""
        if not all(name in self._values for name in _read([node], own=False)):
            return None  # what makes it is not computed
        try:
            found = self._compute(node, self._operands(node), self._values)
        except ClosedError:
            raise
        except (GrillyError, ValueError, TypeError, IndexError, ArithmeticError):
            return None
        named = {name: value for name, value in zip(node.outputs, found, strict=False) if name}
        grown = sum(map(_nbytes, named.values())) - sum(_nbytes(value) for _, value in self._freed(node))
        return None if grown > 0 and self._held + grown > self._limit else named

    def _operands(self, node: Node) -> list[Value]:
        """A node's inputs, on the side that computes it."""
        values = [self._values[name] for name in node.inputs]
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        if not all(is_storable(array.dtype) for array in arrays):
            return [value.numpy() if isinstance(value, Tensor) else value for value in values]
        held = any(name in self._loaded.held for name in node.outputs)
        large = not held and sum(array.size for array in arrays) >= LARGE
        for place, (name, value) in enumerate(zip(node.inputs, values, strict=True)):
            own = place in node.operator.host or place in node.operator.either or node.branches
            if isinstance(value, np.ndarray) and not own and (large or self._is_sent(name, value)):
                values[place] = self._values[name] = self._send(name, value)
        return values

    def _is_sent(self, name: str, array: np.ndarray) -> bool:
        """Whether a constant goes to the device at once: not single numbers and integers, which shapes may need."""
        if array.size <= 1 or name in self._loaded.held:
            return False
        if array.dtype.kind not in "iub":
            return True
        return is_storable(array.dtype) and (array.size >= LARGE or name in self._loaded.sent)

    def _placed(self, nodes: list[Node]) -> dict[str, Value]:
        """The values that are read, on the side that reads them and in an order that suits it."""
        transposed = _transposed(nodes, self._loaded.outputs)
        read = {name for node in every(nodes) for name in node.inputs}
        shared: dict[int, int] = defaultdict(int)
        for value in self._values.values():
            if isinstance(value, Tensor):
                shared[id(value._storage)] += _nbytes(value)
        found: dict[str, Value] = {}
        while self._values:
            name, value = self._values.popitem()  # so that what is copied goes
            swap = name in transposed and isinstance(value, (np.ndarray, Tensor)) and value.ndim > 1
            is_array = isinstance(value, np.ndarray)
            if is_array and name not in read and not is_storable(value.dtype):
                swap = False  # an output alone, which no Tensor could be
            elif is_array and self._is_sent(name, value):
                value = _swapped(self._send(name, np.ascontiguousarray(_swapped(value, swap))), swap)
            elif isinstance(value, Tensor) and (value.size <= 1 or name in self._loaded.held):
                value = value.numpy()
            elif isinstance(value, Tensor) and shared[id(value._storage)] <= value._storage.nbytes:
                value = _swapped(_with_layout(_swapped(value, swap)), swap)
            found[name] = value
        return found


def _swapped(value: Any, swap: bool) -> Any:
    return value.swapaxes(-1, -2) if swap else value


def _with_layout(value: Tensor) -> Tensor:
    """A constant in the order of its axes, without what lies between its elements; what repeats stays a view."""
    if _repeats(value):
        return value
    alone = value.nbytes + 4 > value._storage.nbytes
    return value.contiguous() if alone else value.astype(value.dtype)


def _repeats(value: Tensor) -> bool:
    return any(step == 0 and extent > 1 for step, extent in zip(value.strides, value.shape, strict=True))


def _nbytes(value: Value) -> int:
    """Bytes that a value takes; none where it repeats other memory."""
    if isinstance(value, list):
        return sum(map(_nbytes, value))
    if isinstance(value, Tensor):
        return 0 if _repeats(value) else value.nbytes
    return 0 if value is None else value.nbytes


def _constant(nodes: Iterable[Node], known: set[str]) -> Iterator[Node]:
    """Nodes that are made of known names alone, those of graphs in nodes too; their outputs become known."""
    for node in nodes:
        if _is_constant(node, known):
            known.update(node.outputs)
            yield node
        else:
            for branch in node.branches.values():
                yield from _constant(branch.nodes, known)


def _is_constant(node: Node, known: set[str]) -> bool:
    if node.name in DRAWING or not known.issuperset(node.inputs):
        return False
    for branch in node.branches.values():
        inside = known.union(branch.inputs)
        for each in branch.nodes:
            if not _is_constant(each, inside):
                return False
            inside.update(each.outputs)
        if not inside.issuperset(branch.outputs):
            return False
    return True


def _read(nodes: Iterable[Node], apart: Iterable[int] = (), own: bool = True) -> Iterator[str]:
    """The names that nodes read, and those of graphs in them, but for the nodes that are set apart.

    Without ``own`` those that the graphs in them make are left out.
    """
    for node in nodes:
        if id(node) in apart:
            continue
        yield from node.inputs
        for branch in node.branches.values():
            inside = (*_read(branch.nodes, apart, own), *branch.outputs)
            made = () if own else {*branch.inputs, *(name for each in branch.nodes for name in each.outputs)}
            yield from (name for name in inside if name not in made)


def _without(nodes: list[Node], apart: set[int]) -> list[Node]:
    """The nodes that are not set apart, in graphs in nodes too."""
    return [
        node._replace(branches={
            name: branch._replace(nodes=_without(branch.nodes, apart)) for name, branch in node.branches.items()
        })
        for node in nodes if id(node) not in apart
    ]  # fmt: skip


def _transposed(nodes: list[Node], outputs: Iterable[str]) -> set[str]:
    """The names that are read as second factors of products alone."""
    places: dict[str, set[bool]] = defaultdict(set)
    for name in outputs:
        places[name].add(False)
    for node in every(nodes):
        for place, name in enumerate(node.inputs):
            places[name].add(place == 1 and node.name in _PRODUCTS and not node.attributes.get("transB", 0))
        for branch in node.branches.values():
            for name in branch.outputs:
                places[name].add(False)
    return {name for name, found in places.items() if found == {True}}
