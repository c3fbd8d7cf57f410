"""Graphs in nodes, and the names in them: those that nobody makes are found, those that several own are renamed."""

from __future__ import annotations

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


def require_defined(graph: onnx.GraphProto, outside: frozenset[str] = frozenset(), where: str = "the model") -> None:
    """Raise ModelError for a name that is read, or given as an output, and made by nobody before."""
    known = {*outside, *(each.name for each in (*graph.initializer, *graph.input))}
    for node in graph.node:
        for name in node.input:
            if name and name not in known:
                later = next((label(each) for each in graph.node if name in each.output), None)
                if later is None:
                    why = f"no node makes it, and it is no input or initializer of {where}"
                else:
                    why = f"{later}, which makes it, comes later; sort the nodes by what they read"
                raise ModelError(f"{label(node)}: input {name!r} is undefined: {why}")
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
