"""Graphs in nodes, and the names in them: those that nobody makes are found, those that several own are renamed."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

import onnx

from ..errors import ModelError


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph, and those in its nodes."""
    yield graph
    for node in graph.node:
        for branch in inner(node).values():
            yield from graphs(branch)


def inner(node: onnx.NodeProto) -> dict[str, onnx.GraphProto]:
    """The graphs in a node, by their attributes."""
    return {each.name: each.g for each in node.attribute if each.type == onnx.AttributeProto.GRAPH}


def read(node: onnx.NodeProto) -> set[str]:
    """The names that a node needs, those that its branches take from outside among them."""
    found = set(node.input)
    for graph in inner(node).values():
        own = {each.name for each in (*graph.initializer, *graph.input)}
        for each in graph.node:
            found.update(read(each) - own)
            own.update(each.output)
        found.update(each.name for each in graph.output if each.name not in own)
    return found


def label(node: onnx.NodeProto) -> str:
    """What messages call a node."""
    return f"{node.op_type} {node.name!r}" if node.name else node.op_type


def require_one_owner(graph: onnx.GraphProto) -> None:
    """Raise ModelError for a name that two inputs of a graph have, or that a node makes and something else has too."""
    for each in graphs(graph):
        owners: dict[str, str] = {}
        for value in each.input:
            if value.name in owners:
                raise ModelError(f"two inputs are named {value.name!r}; expected a name of its own for each")
            owners[value.name] = "an input"
        owners.update((held.name, "an initializer") for held in each.initializer if held.name not in owners)
        for node in each.node:
            for name in filter(None, node.output):
                if name in owners:
                    raise ModelError(f"{label(node)}: output {name!r} is {owners[name]} too; expected a name of its "
                                     "own for each")  # fmt: skip
                owners[name] = f"an output of {label(node)}"


def in_order(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model where each node comes after those that it reads; otherwise a copy with nodes in such an order, those of
    functions too.

    Raises
    ------
    ModelError
        Where nodes wait for each other.
    """
    if all(_order(graph, outside) == list(range(len(graph.node))) for graph, outside in _all_scopes(model)):
        return model
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for graph, outside in reversed(_all_scopes(found)):  # graphs in nodes first: what they read is known then
        nodes = [graph.node[place] for place in _order(graph, outside)]
        ordered = onnx.GraphProto(node=nodes)
        del graph.node[:]
        graph.node.extend(ordered.node)
    return found


Body = onnx.GraphProto | onnx.FunctionProto


def _all_scopes(model: onnx.ModelProto) -> list[tuple[Body, frozenset[str]]]:
    return [each for body in (model.graph, *model.functions) for each in _scopes(body, frozenset())]


def _scopes(graph: Body, outside: frozenset[str]) -> Iterator[tuple[Body, frozenset[str]]]:
    """A graph and those in its nodes, each with the names around it."""
    yield graph, outside
    names = outside | (_owned(graph) if isinstance(graph, onnx.GraphProto) else set(graph.input))
    for node in graph.node:
        for branch in inner(node).values():
            yield from _scopes(branch, names)


def _order(graph: Body, outside: frozenset[str]) -> list[int]:
    """Places of nodes, each after those that make what it reads, and otherwise as they are."""
    makers = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    waits: list[set[int]] = []
    readers: list[list[int]] = [[] for _ in graph.node]
    for place, node in enumerate(graph.node):
        # Of a name that is known around the graph a node made later is another owner.
        of = {makers[name] for name in read(node) if name in makers and (makers[name] < place or name not in outside)}
        waits.append(of)
        for maker in of:
            readers[maker].append(place)
    ready = [place for place, of in enumerate(waits) if not of]
    found = []
    while ready:
        place = heapq.heappop(ready)
        found.append(place)
        for reader in readers[place]:
            waits[reader].discard(place)
            if not waits[reader]:
                heapq.heappush(ready, reader)
    if len(found) < len(waits):
        path = [next(place for place, of in enumerate(waits) if of)]
        while path[-1] not in path[:-1]:
            path.append(min(waits[path[-1]]))
        path = path[path.index(path[-1]) :]
        named = ", ".join(_told(graph.node[place]) for place in path[:-1][:5])
        raise ModelError(f"{named}{' and others' * (len(path) > 6)}: each reads what the next one makes, and the last "
                         "what the first one makes; expected nodes without such a circle")  # fmt: skip
    return found


def _told(node: onnx.NodeProto) -> str:
    """A node by its label, and by an output where it has no name."""
    return label(node) if node.name else f"{label(node)} of {next(filter(None, node.output), '')!r}"


def require_defined(graph: onnx.GraphProto, outside: frozenset[str] = frozenset(), where: str = "the model") -> None:
    """Raise ModelError for a name that is read, or given as an output, and made by nobody before."""
    known = {*outside, *(each.name for each in (*graph.initializer, *graph.input))}
    for node in graph.node:
        for name in node.input:
            if name and name not in known:
                raise ModelError(f"{label(node)}: input {name!r} is undefined: no node makes it, and it is no input or "
                                 f"initializer of {where}")  # fmt: skip
        for key, branch in inner(node).items():
            require_defined(branch, frozenset(known), f"{key} of {label(node)}")
        known.update(node.output)
    for each in graph.output:
        if not each.name or each.name not in known:
            raise ModelError(f"output {each.name!r} of {where} is undefined: no node makes it, and it is no input or "
                             "initializer")  # fmt: skip


def _owned(graph: onnx.GraphProto) -> set[str]:
    """The names that a graph gives to something: initializers, inputs and what its nodes make."""
    found = {each.name for each in (*graph.initializer, *graph.input)}
    return found.union(*(node.output for node in graph.node)) - {""}


def unique(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model where each name has one owner; otherwise a copy, in which graphs in nodes have names of their own.

    ONNX lets branches beside each other use the same names. What runs a model knows arrays by name alone: constants,
    dtypes, and which of them the host must have.
    """
    seen: set[str] = set()
    for graph in graphs(model.graph):
        own = _owned(graph)
        if seen & own:
            break
        seen |= own
    else:
        return model
    found = onnx.ModelProto()
    found.CopyFrom(model)
    spoken = {name for graph in graphs(found.graph) for node in graph.node for name in (*node.input, *node.output)}
    spoken |= {name for graph in graphs(found.graph) for name in (*_owned(graph), *(o.name for o in graph.output))}
    _rename(found.graph, {}, set(), spoken, "")
    return found


def _rename(graph: onnx.GraphProto, outside: Mapping[str, str], taken: set[str], spoken: set[str], path: str) -> None:
    """Give new names to what a graph owns under names that are taken, and to all that refer to it.

    ``outside``: what names of graphs around it became; ``spoken``: all names of the model, none of which becomes new.
    """
    fresh: dict[str, str] = {}
    own = _owned(graph)
    for name in sorted(own & taken):
        new, number = f"{path}/{name}", 1
        while new in spoken:
            number += 1
            new = f"{path}/{name}_{number}"
        fresh[name] = new
        spoken.add(new)
    taken |= own
    # A graph sees the names around it until it owns them itself, which outputs of nodes do from their node on.
    now = dict(outside)
    held = [*graph.initializer, *graph.input]
    now.update((each.name, fresh.get(each.name, each.name)) for each in held)
    for node in graph.node:
        node.input[:] = [now.get(name, name) for name in node.input]
        for key, branch in inner(node).items():
            _rename(branch, now, taken, spoken, f"{path}/{node.name or node.op_type}.{key}".lstrip("/"))
        now.update((name, fresh.get(name, name)) for name in node.output)
        node.output[:] = [now[name] for name in node.output]
    for each in (*held, *graph.output, *graph.value_info):
        each.name = now.get(each.name, each.name)
