"""Graphs that a model keeps of what it was called with, so that a like call costs the host one replay."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from .. import nn
from ..compute import Compute, Tensor
from ..compute.device.tape import OPEN
from ..compute.graph import Graph
from ..errors import CaptureError, OutOfDeviceMemoryError, UnsupportedError
from ..nn.changes import latest

Returned = TypeVar("Returned")

#: Calls of a kind before the one that is captured; each time a graph was let go of, twice as many.
BEFORE = 2
#: Kinds of calls that are counted.
COUNTED = 256
#: Bytes that graphs may take where the weights take less, and the share of the device's memory where that is more.
BYTES = 256 * 2**20
SHARE = 1 / 32
_NEVER = 2**62
_version = operator.attrgetter("version")


class Graphs:
    """Graphs of a model's functions, by shapes and dtypes of what these are called with.

    The first two calls of a kind run as they are, the third is captured, and from then on the graph is replayed, each
    time with the same bits. Those of the first calls differ by roundings between operations that are one in a graph.
    Results of graphs are copies. What was used longest ago goes first, by number and by bytes: all graphs take at most
    as much as the weights, or where these take less 256 MiB or a 32nd of the device's memory, and a quarter of the
    backend's ``memory_limit``. A larger one is not kept. Where the device has no room, all are given back.

    Every call asks whether modules, their settings and parameters are those that were captured; else all graphs go.
    In captured functions, in ``backend.profile()``, after ``train()``, where gradients are taken and where the runtime
    captures nothing calls run as they are. Threads may call at once.

    Attributes
    ----------
    kept : int
        Graphs that are kept at most; 0 for none.
    """

    def __init__(self, kept: int = 8) -> None:
        self.kept = kept
        self._lock = threading.Lock()
        self._graphs: dict[tuple[Any, ...], Graph[Any]] = {}
        self._counts: dict[tuple[Any, ...], list[int]] = {}  # calls, and how many go before a capture
        self._change = 0
        self._state: list[Any] = []
        self._weights: list[Any] = []  # storages, and how often each was written to
        self._versions: list[int] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return Graphs, (self.kept,)  # a copy of a model captures anew

    def __len__(self) -> int:
        return len(self._graphs)

    @property
    def memory(self) -> int:
        """Bytes of device memory that the graphs hold."""
        return sum(graph.memory for graph in list(self._graphs.values()))

    def clear(self) -> None:
        """Let go of all graphs, and so of their memory."""
        with self._lock:
            self._graphs.clear()

    def run(self, model: nn.Module, backend: Compute, function: Callable[..., Returned], *arguments: Any) -> Returned:
        """``function(*arguments)``, with arrays as Tensors.

        Parameters
        ----------
        model : Module
            All that the function computes with, besides its arguments.
        backend : grilly.Compute
        function : callable
            Of Tensors and None; it returns Tensors, and reads none.
        *arguments : array, Tensor or None
            In dtypes that Tensors have.
        """
        graph = None
        plain = backend.runtime.capturing or backend.opened.home.profiled or model.training or OPEN.tapes
        if self.kept > 0 and not plain:
            key = (function.__name__, *(None if a is None else (a.shape, a.dtype) for a in arguments))
            graph = self._found(key, model, backend, function, arguments)
        if graph is not None:
            try:
                return graph(*arguments)
            except OutOfDeviceMemoryError:
                self.clear()
        return function(*(backend.tensor(a) if isinstance(a, np.ndarray) else a for a in arguments))

    def _found(
        self, key: tuple[Any, ...], model: nn.Module, backend: Compute, function: Callable[..., Returned],
        arguments: tuple[Any, ...],
    ) -> Graph[Returned] | None:  # fmt: skip
        """The graph of such calls, which is captured if it is time; None where the call is to run as it is."""
        with self._lock:
            self._check(model)
            graph = self._graphs.pop(key, None)
            if graph is not None:
                self._graphs[key] = graph  # the last one to go
                return graph
            counts = self._counts.setdefault(key, [0, BEFORE])
            if len(self._counts) > COUNTED:
                del self._counts[next(iter(self._counts))]
            counts[0] += 1
            if counts[0] <= counts[1]:
                return None
            counts[:] = 0, 2 * counts[1]
            state, versions = self._state, self._versions
        try:
            graph = backend.capture(function, *arguments)
        except OutOfDeviceMemoryError:
            self.clear()
        except (CaptureError, UnsupportedError):
            pass
        with self._lock:
            self._check(model)
            nbytes = sum(storage.nbytes for storage in self._weights)
            limit, most = backend.memory_limit, max(nbytes, BYTES, int(SHARE * backend.device.memory_bytes))
            most = most if limit is None else min(most, limit // 4)
            if graph is None or graph.memory > most:
                counts[1] = _NEVER
                return None
            if state is not self._state or versions is not self._versions:  # it has what has changed meanwhile
                return None
            while self._graphs and (len(self._graphs) >= self.kept or self.memory + graph.memory > most):
                del self._graphs[next(iter(self._graphs))]
            self._graphs[key] = graph
        return graph

    def _check(self, model: nn.Module) -> None:
        """Let go of the graphs if anything that they were captured with has changed."""
        change = latest()  # before the look at the model, so that a change meanwhile is seen by the next call
        if change != self._change:
            state = _state(model)
            if len(state) != len(self._state) or not all(map(operator.is_, state, self._state)):
                self._graphs.clear()
                self._state = state
                self._weights = _weights(model)
                self._versions = [*map(_version, self._weights)]
            self._change = change
        # A graph may have read the split halves of a weight, which others make when it is written to.
        versions = [*map(_version, self._weights)]
        if versions != self._versions:
            self._graphs.clear()
            self._versions = versions


def _state(model: nn.Module) -> list[Any]:
    """All modules in a model, what they have, and the values of parameters."""
    found: list[Any] = []
    for module in model.modules():
        for home in (vars(module), module._parameters, module._modules):
            found += home
            # not what holds this list, or a model would be in a circle, and its memory not its owner's to give back
            found += [value for value in home.values() if not isinstance(value, Graphs)]
    found += [parameter.data for parameter in model.parameters()]
    return found


def _weights(model: nn.Module) -> list[Any]:
    """The memory of the parameters on the device."""
    tensors = [parameter.data for parameter in model.parameters() if isinstance(parameter.data, Tensor)]
    return list({id(tensor._storage): tensor._storage for tensor in tensors}.values())
