"""A model of ONNX on a device."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import onnx

from ..compute import Compute, Tensor, default_backend
from ..compute.device.numbers import integer
from ..compute.device.tape import OPEN, noted_on, refuse_wanted
from ..compute.graph import Graph
from ..compute.random import drawn
from ..errors import CaptureError, GrillyError, ModelError, UnsupportedError
from .constants import Settled, Settling, Value
from .feeds import check_indices, checked
from .graphs import Branch, Input, Loaded, Node, load
from .table import Call

#: Captured graphs that a model keeps, for as many shapes of inputs.
KEPT = 8
_RUN = 'model.run({"input": array}) gives all outputs by name'
#: Methods of ONNX Runtime's sessions.
_WORDS = {"get_inputs": "inputs", "get_outputs": "outputs"}


class Model:
    """A model of ONNX, whose arithmetic runs on a device.

    Shapes, and integers that decide them, are computed by the host. What is made of constants alone is computed once,
    and weights go to the device once.

    Parameters
    ----------
    model : str, path, bytes, onnx.ModelProto or Loaded
        A file, what is in one, or a model; external data lies beside the file. Or what `load` has read of one.
    backend : Compute, optional
        The default one where left out.

    Attributes
    ----------
    inputs : tuple of Input
        What ``run`` takes: names, dtypes and shapes.
    optional : tuple of Input
        What it takes too, and has a default for: inputs that are also initializers.
    outputs : tuple of str
        Names of what it gives.
    folded, executed : int
        Nodes that were computed once, or by the host when the graph was last gone through; and nodes that the device
        computed then.
    graph : Graph or None
        The captured work of the last run, or None where it was run node by node.
    uncaptured : str or None
        Why the last run was not captured.

    Raises
    ------
    ModelError
        For what is no model of ONNX: names that nobody makes, attributes that are missing, data that cannot be read.
    UnsupportedError
        For operators that grilly lacks, all of which are named before anything is on the device, for operator sets
        before 7, and for dtypes that no Tensor has.
    """

    def __init__(
        self, model: str | os.PathLike[str] | bytes | onnx.ModelProto | Loaded, backend: Compute | None = None
    ) -> None:
        self._loaded: Loaded = model if isinstance(model, Loaded) else load(model)
        self.backend = default_backend() if backend is None else backend
        self.inputs: tuple[Input, ...] = self._loaded.inputs
        self.optional: tuple[Input, ...] = self._loaded.optional
        self.outputs: tuple[str, ...] = self._loaded.outputs
        self.folded = self.executed = 0
        self._capturing = False
        self._on_device: dict[str, Tensor] = {}
        self._made: dict[tuple[Any, ...], Any] = {}
        self.graph: Graph[Any] | None = None
        self.uncaptured: str | None = None
        self._graphs: dict[tuple[Any, ...], Graph[Any] | str] = {}
        self._seed: Tensor | None = None
        self._draws: Counter[Any] = Counter()
        self._settled: dict[frozenset[str], Settled] = {}
        self._now = Settled([], {}, [], 0)
        self._now = self._choose(frozenset())
        if not self.optional:
            self._loaded = self._loaded._replace(nodes=[], constants={})

    if not TYPE_CHECKING:  # type checkers know what there is

        def __getattr__(self, name):
            way = f"; it has {_WORDS[name]}" if name in _WORDS else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{way}", name=name, obj=self)

        def __call__(self, *args, **kwargs):
            raise TypeError(f"a Model is not called; {_RUN}")

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a grilly.onnx.Model is weights and graphs on an open device, and cannot be copied or pickled; make "
            "another of the file"
        )

    def run(
        self, feeds: Mapping[str, np.ndarray | Tensor], *others: NoReturn, capture: bool = True,
        seed: int | None = None,
    ) -> dict[str, np.ndarray]:  # fmt: skip
        """The outputs by name, as NumPy arrays.

        Parameters
        ----------
        feeds : mapping of str to array
            An array for each input, of its dtype and a shape that goes with its own; and for optional ones where their
            defaults are not wanted.
        capture : bool
            Capture the work as one graph at the first run with these shapes, and replay it from then on. Inputs of
            integers that decide shapes have to have the same values then; others make another graph. Where a shape
            depends on what the device computes nothing can be captured, and ``uncaptured`` says which node it was.
        seed : int, optional
            For operators that draw random numbers: from 0 to 2**64 - 1. The same seed gives the same numbers on every
            device, and each node others. Without one each run draws new numbers, in the sequence that
            ``grilly.manual_seed`` begins. A node with a ``seed`` of its own has the same numbers in every run.

        Raises
        ------
        ValueError
            For inputs that are missing, unknown, or of another shape than the model says, for indices into a table
            that are out of its bounds, and for a seed out of range.
        TypeError
            For inputs that are no arrays, or of another dtype.
        ModelError
            Where a node refuses what it is given; the message names it.
        UnsupportedError
            Where a node asks for what its operator lacks here.
        GradientError
            For an input of which a gradient is wanted: the outputs are NumPy arrays.
        """
        if others:
            raise TypeError(f"Model.run: takes no names of outputs before the feeds; {_RUN}")
        if OPEN.tapes:
            arrays = feeds.values() if isinstance(feeds, Mapping) else ()
            refuse_wanted("onnx.Model.run", "its outputs are NumPy arrays; use layers of grilly.nn", *arrays)
            with noted_on(()):
                return self.run(feeds, capture=capture, seed=seed)
        seeds = self._seeds(seed)
        given = checked(feeds, self.inputs, self.optional)
        self._now = self._choose(frozenset(each.name for each in self.optional if each.name in given))
        check_indices(given, self._now.lookups)
        host = {name: _array(value) for name, value in given.items() if name in self._loaded.host}
        device = {name: self._sent(f"input {name}", value) for name, value in given.items() if name not in host}
        self.graph = self.uncaptured = None
        if capture:
            key = (
                tuple((name, value.shape, value.dtype.name) for name, value in device.items()),
                tuple((name, value.shape, value.tobytes()) for name, value in host.items()),
            )
            found = self._graphs.get(key)
            if found is None:
                found = self._captured(device, host, seeds)
                if len(self._graphs) >= KEPT:
                    del self._graphs[next(iter(self._graphs))]
                self._graphs[key] = found
            if isinstance(found, Graph):
                self.graph = found
                return {name: _own(value) for name, value in found(device, seeds).items()}
            self.uncaptured = found
        return {name: _own(value) for name, value in self._pass({**device, **host}, seeds).items()}

    def _choose(self, given: frozenset[str]) -> Settled:
        """What is left to run where the caller gives these optional inputs."""
        if given not in self._settled:
            made = {name: value for each in self._settled.values() for name, value in each.values.items()}
            most = self.backend.opened.most_memory
            settling = Settling(self._loaded, given, made, self._node, self._sent_constant, most)
            if len(self._settled) >= KEPT:
                del self._settled[next(iter(self._settled))]
            self._settled[given] = settling.settled()
        return self._settled[given]

    def _sent(self, said: str, value: np.ndarray | Tensor) -> Tensor:
        try:
            return self.backend.tensor(value)
        except TypeError as error:
            raise UnsupportedError(f"{said} is {value.dtype.name}, which no Tensor has") from error

    def _sent_constant(self, name: str, value: np.ndarray) -> Tensor:
        return self._sent(f"constant {name}", value)

    def _seeds(self, seed: int | None) -> Tensor | None:
        """The seed of a run for the device, which a graph is given as it is given inputs; None where nothing draws."""
        if seed is not None:
            seed = integer("Model.run", "seed", seed)
            if not 0 <= seed < 2**64:
                raise ValueError(f"Model.run: seed is {seed}; expected 0 to 2**64 - 1")
        if not self._loaded.draws:
            return None
        if seed is None:  # one number of the two of the sequence: another for each run
            seed = int(np.random.SeedSequence(drawn(None)).generate_state(1, np.uint64)[0])
        return self.backend.tensor(np.array([seed], np.uint64).view(np.int64))

    def _source(self, node: Node) -> tuple[int | Tensor, int]:
        """What a node draws from: its own seed or that of the run, with the number of what was drawn from it before."""
        own = node.attributes.get("seed")
        key = "" if own is None else node.outputs
        self._draws[key] += 1
        seed = self._seed if own is None else int(np.float32(own).view(np.uint32))
        return seed, self._draws[key] - 1

    def _captured(
        self, device: dict[str, Tensor], host: dict[str, np.ndarray], seeds: Tensor | None
    ) -> Graph[Any] | str:
        """The graph for such inputs, or why there is none."""
        self._capturing = True
        try:
            return self.backend.capture(lambda given, of: self._pass({**given, **host}, of), device, seeds)
        except CaptureError as error:
            return str(error)
        finally:
            self._capturing = False

    def _pass(self, values: dict[str, Any], seed: Tensor | None) -> dict[str, Any]:
        """All nodes one after the other; the outputs, on the device or the host."""
        values = {**self._now.values, **values, "": None}
        self.folded, self.executed = self._now.computed, 0
        self._seed = seed
        self._draws.clear()
        try:
            self._go(self._now.nodes, values)
        finally:
            self._seed = None
        return {name: _named(values, name) for name in self.outputs}

    def _go(self, nodes: list[Node], values: dict[str, Any]) -> None:
        """The nodes of a graph one after the other, from values to values."""
        for node in nodes:
            try:
                found = self._node(node, [_named(values, name) for name in node.inputs], values)
            except CaptureError as error:
                raise CaptureError(f"{node.label}: {error}") from error
            except UnsupportedError as error:
                raise UnsupportedError(f"{node.label}: {error}") from error
            except GrillyError:
                raise
            except (ValueError, TypeError, IndexError, ArithmeticError) as error:
                raise ModelError(f"{node.label}: {error}") from error
            values.update((name, value) for name, value in zip(node.outputs, found, strict=False) if name)
            for name in node.last:
                values.pop(name, None)

    def _branch(self, branch: Branch, values: dict[str, Any], *given: Value) -> tuple[Any, ...]:
        """The outputs of a graph in a node, which is given its inputs."""
        own = {**values, **dict(zip(branch.inputs, given, strict=True))}
        self._go(branch.nodes, own)
        return tuple(_named(own, name) for name in branch.outputs)

    def _node(self, node: Node, inputs: list[Value], values: dict[str, Any]) -> tuple[Value, ...]:
        """The outputs of a node, by the host where it folds and by the device."""
        on_host = all(value is None or isinstance(value, np.ndarray) for value in inputs)
        if node.fold is not None and (on_host or any(map(_is_of_host, inputs))):
            if self._capturing and not on_host:
                raise CaptureError("the host has what is uint64, and the device computes another input")
            self.folded += 1
            return node.fold([None if value is None else _array(value) for value in inputs])
        found = node.operator.function(self._call(node, values), *self._operands(node, inputs))
        found = found if isinstance(found, tuple) else (found,)
        self.executed += any(isinstance(value, Tensor) for value in found)
        # Operators that do not fold take arrays of the host too; those of no inputs are constants as they stand.
        self.folded += on_host and bool(inputs) and all(isinstance(value, np.ndarray) for value in found)
        return found

    def _operands(self, node: Node, inputs: list[Value]) -> list[Value]:
        """A node's inputs as its operator takes them: arrays of the host, numbers and tensors."""
        takes = node.operator
        operands: list[Value] = []
        for place, (name, value) in enumerate(zip(node.inputs, inputs, strict=True)):
            if value is not None and place in takes.host:
                if self._capturing and isinstance(value, Tensor):
                    raise CaptureError(f"its input {name!r} has to be known to the host, and the device computes it")
                operands.append(_array(value))
            elif value is None or place in takes.either or node.branches or not takes.folds:
                operands.append(value)  # a graph in a node takes it to where it needs it
            elif takes.is_number(value, inputs):
                operands.append(value.item())
            else:
                operands.append(value if isinstance(value, Tensor) else self._uploaded(name, value))
        return operands

    def _call(self, node: Node, values: dict[str, Any]) -> Call:
        """What a node's operator is told."""
        branches = {name: partial(self._branch, branch, values) for name, branch in node.branches.items()}
        wanted = tuple(map(bool, node.outputs))
        source, once = partial(self._source, node), partial(self._once, node)
        return Call(node.name, node.attributes, self._loaded.version, wanted, self.backend, branches, source, once)

    def _uploaded(self, name: str, value: np.ndarray) -> Tensor:
        """The tensor of an array on the host. Those of constants are made once, also where a capture finds them."""
        if self._now.values.get(name) is not value:  # the caller gave it in place of a constant, or a node made it
            return self._sent(name, value)
        if name not in self._on_device:
            with self.backend.runtime.aside():
                self._on_device[name] = self._sent(name, value)
        return self._on_device[name]

    def _once(self, node: Node, given: Sequence[Tensor | None], key: Any, make: Callable[[bool], Any]) -> Any:
        """What ``make`` gives for inputs of a node: where they are constants, which it is told, made once."""
        names = []
        for value in given:
            constant = (
                name for name in node.inputs
                if value is None or value is self._now.values.get(name) or value is self._on_device.get(name)
            )  # fmt: skip
            name = next(constant, None)
            if name is None:
                return make(False)
            names.append("" if value is None else name)
        known = (*names, key)
        if known not in self._made:
            with self.backend.runtime.aside():
                self._made[known] = make(True)
        return self._made[known]


def _is_of_host(value: Value) -> bool:
    """Whether a value cannot be on the device."""
    return isinstance(value, np.ndarray) and value.dtype == np.uint64


def _array(value: np.ndarray | Tensor) -> np.ndarray:
    return value.numpy() if isinstance(value, Tensor) else value


def _own(value: Any) -> Any:
    """An output as an array of the caller's own: arrays on the host may be constants, or what the caller gave."""
    return value.copy() if isinstance(value, np.ndarray) else _array(value)


def _named(values: Mapping[str, Any], name: str) -> Any:
    if name not in values:  # all names are defined: its node's operator gave fewer outputs than the graph names
        raise UnsupportedError(f"{name!r} is an output that grilly's operator does not give")
    return values[name]
