"""What a model file says, read once: nodes, constants, inputs and outputs, and which inputs the host must have."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.checker
import onnx.inliner
import onnx.shape_inference

from ..errors import ModelError, UnsupportedError
from .folding import Fold
from .names import graphs, in_order, inner, label, read, require_defined, require_one_owner, unique
from .operators import OPERATORS
from .operators.drawing import DRAWING
from .schemas import require_complete, versions
from .table import Operator
from .tensors import read_sparse, read_tensor, with_dense

#: The first operator set in which elementwise operators broadcast as NumPy's.
OLDEST = 7
_TYPES = onnx.TensorProto
_FLOATING = (_TYPES.FLOAT, _TYPES.FLOAT16, _TYPES.BFLOAT16, _TYPES.DOUBLE)


class Input(NamedTuple):
    """An input of a model.

    Attributes
    ----------
    name : str
    dtype : numpy.dtype
    shape : tuple
        Extents; names or None where they are free.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...] | None


class Branch(NamedTuple):
    """A graph in a node, which also sees the names outside of it; its constants are the model's."""

    nodes: list[Node]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Node(NamedTuple):
    """A node, ready to run: ``last`` are the names that nobody needs after it; ``fold`` computes it on the host."""

    label: str
    operator: Operator
    name: str
    attributes: dict[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    last: tuple[str, ...]
    fold: Fold | None
    branches: dict[str, Branch]


class Loaded(NamedTuple):
    """A graph as it runs.

    ``optional`` are the inputs that a constant stands for where they are not given, ``host`` the inputs that decide
    shapes, ``held`` the names that the host must have, ``sent`` those that operators read on the device which nothing
    folds; ``draws``: whether a node draws random numbers of the run.
    """

    nodes: list[Node]
    inputs: tuple[Input, ...]
    optional: tuple[Input, ...]
    outputs: tuple[str, ...]
    constants: dict[str, np.ndarray]
    host: frozenset[str]
    held: frozenset[str]
    sent: frozenset[str]
    version: int
    draws: bool


def load(model: str | os.PathLike[str] | bytes | onnx.ModelProto) -> Loaded:
    """Read a model. Nothing is on the device yet.

    Raises
    ------
    ModelError
        For what is no model of ONNX: names that nobody makes, attributes that are missing, data that cannot be read.
    UnsupportedError
        For operators, versions and types of inputs that grilly lacks; all operators are named at once.
    """
    proto, folder = _opened(model)
    require_one_owner(proto.graph)
    proto = in_order(proto)
    if proto.functions:
        proto = _inlined(proto)
    version = _version(proto)
    _require_operators(proto)
    proto = with_dense(proto, folder)
    require_complete((node for graph in graphs(proto.graph) for node in graph.node), proto.opset_import)
    require_defined(proto.graph)
    proto = unique(proto)
    constants = {
        each.name: read_tensor(each, folder, f"initializer {each.name!r}")
        for graph in graphs(proto.graph) for each in graph.initializer
    }  # fmt: skip
    inputs = tuple(_input(each) for each in proto.graph.input if each.name not in constants)
    optional = tuple(_input(each) for each in proto.graph.input if each.name in constants)
    outputs = tuple(map(_output, proto.graph.output))
    nodes = _nodes(proto.graph, proto.opset_import, outputs, folder)
    needed = _needed(proto, nodes)
    host = frozenset(each.name for each in (*inputs, *optional) if each.name in needed or each.dtype == np.uint64)
    held = needed.union(_held(nodes))
    sent = frozenset(name for node in every(nodes) if not node.operator.known for name in node.inputs) - held
    draws = any(node.name in DRAWING and "seed" not in node.attributes for node in every(nodes))
    return Loaded(nodes, inputs, optional, outputs, constants, host, held, sent, version, draws)


def _opened(model: str | os.PathLike[str] | bytes | onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    """The model, and the folder in which its external data lies. Raises ModelError for what is none."""
    folder = ""
    if isinstance(model, bytes):
        proto = _parsed("the bytes", lambda: onnx.load_from_string(model))
    elif isinstance(model, onnx.ModelProto):
        proto = model
    else:
        folder = str(Path(model).parent)
        proto = _parsed(str(model), lambda: onnx.load(os.fspath(model), load_external_data=False))
    if not proto.graph.output:
        raise ModelError("the model has no outputs: is this an ONNX file?")
    return proto, folder


def _version(proto: onnx.ModelProto) -> int:
    """The model's operator set. Raises UnsupportedError for one that is too old."""
    version: int | None = versions(proto.opset_import).get("")
    if version is None or version < OLDEST:
        raise UnsupportedError(f"the model is of operator set {version}; grilly has sets from {OLDEST} on. "
                               "Convert it with onnx.version_converter")  # fmt: skip
    return version


def _require_operators(proto: onnx.ModelProto) -> None:
    """Raise UnsupportedError with all operators that grilly lacks."""
    missing = lacking(proto)
    if missing:
        named = ", ".join(f"{name} ({count})" for name, count in sorted(missing.items()))
        raise UnsupportedError(f"the model has operators that grilly lacks: {named}")


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the nodes of its functions in place of their calls."""
    try:
        found = onnx.inliner.inline_local_functions(model)
        if found.functions and lacking(found):  # functions of other operator sets than the model's
            found = onnx.inliner.inline_local_functions(model, convert_version=True)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(f"the model's functions cannot be put in place of their calls: {error}") from error
    return found


def lacking(model: onnx.ModelProto) -> Counter[str]:
    """The operators of a model that grilly lacks, and how many nodes have each."""
    nodes = (node for graph in graphs(model.graph) for node in graph.node)
    return Counter(name for name in map(_name, nodes) if name not in OPERATORS)


def _name(node: onnx.NodeProto) -> str:
    """The operator's name, with its domain before it where it is not ONNX's own."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def _parsed(said: str, read: Any) -> onnx.ModelProto:
    try:
        found = read()
    except OSError as error:
        raise ModelError(f"{said} cannot be read: {error.strerror}") from error
    except Exception as error:  # protobuf's DecodeError, of a package that is onnx's own business
        raise ModelError(f"{said} is no ONNX model: {error}") from error
    assert isinstance(found, onnx.ModelProto)
    return found


def _input(value: onnx.ValueInfoProto) -> Input:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise UnsupportedError(f"input {value.name} is a {kind}; grilly takes tensors")
    tensor = value.type.tensor_type
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(  # some exporters write -1 for a free extent
            (each.dim_value if each.dim_value >= 0 else None) if each.HasField("dim_value") else each.dim_param or None
            for each in tensor.shape.dim
        )
    return Input(value.name, np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)), shape)


def _output(value: onnx.ValueInfoProto) -> str:
    """An output's name. Raises UnsupportedError for one that is no tensor."""
    kind = value.type.WhichOneof("value")
    if kind not in (None, "tensor_type"):
        raise UnsupportedError(f"output {value.name} is a {kind}; grilly gives tensors")
    return value.name


def _nodes(graph: onnx.GraphProto, opsets: Any, outputs: Iterable[str], folder: str) -> list[Node]:
    last: dict[str, int] = {}
    for place, node in enumerate(graph.node):
        last.update(dict.fromkeys((*read(node), *node.output), place))
    last = {name: place for name, place in last.items() if name and name not in set(outputs)}
    ends: dict[int, list[str]] = {}
    for name, place in last.items():
        ends.setdefault(place, []).append(name)
    found = []
    for place, node in enumerate(graph.node):
        inside = inner(node)
        branches = {}
        for name, branch in inside.items():
            results = tuple(each.name for each in branch.output)
            takes = tuple(each.name for each in branch.input)
            branches[name] = Branch(_nodes(branch, opsets, results, folder), takes, results)
        entry = OPERATORS[_name(node)]
        folds = entry.folds and entry.known and not branches
        found.append(Node(
            label(node), entry, _name(node),
            {each.name: _attribute(each, folder, label(node)) for each in node.attribute if each.name not in inside},
            tuple(node.input), tuple(node.output), tuple(ends.get(place, ())),
            Fold(node, opsets) if folds else None, branches,
        ))  # fmt: skip
    return found


def _attribute(attribute: onnx.AttributeProto, folder: str, node: str) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    said = f"{node}: attribute {attribute.name!r}"
    if isinstance(value, onnx.SparseTensorProto):
        return read_sparse(value, folder, said)
    return read_tensor(value, folder, said) if isinstance(value, onnx.TensorProto) else value


def _needed(proto: onnx.ModelProto, nodes: list[Node]) -> frozenset[str]:
    """The names of integers that decide shapes: what operators read on the host, and what that is made of.

    Floating numbers end the search: what is made of them is on the device, and is read where it is needed.
    """
    needed: set[str] = set()
    _add_needed(nodes, _floating(proto), needed)
    return frozenset(needed)


def _add_needed(nodes: list[Node], floating: frozenset[str], needed: set[str]) -> None:
    """Add the names that the host must have for names that it needs already, and for operators' inputs of the host."""

    def also(pairs: Iterable[tuple[str, str]]) -> None:
        """Where the first of two names is needed, so is the second."""
        needed.update(other for one, other in pairs if one in needed and other not in floating)

    for node in reversed(nodes):
        for branch in node.branches.values():
            # A loop's graph gives first whether it goes on, and what it gives becomes what it is given.
            loops = node.name == "Loop"
            if loops:
                needed.update(name for name in branch.outputs[:1] if name not in floating)
            results = branch.outputs[loops:]
            also(zip(node.outputs, results, strict=False))
            _add_needed(branch.nodes, floating, needed)
            also(zip(branch.inputs[2 * loops :], results, strict=False))
            _add_needed(branch.nodes, floating, needed)
            also(zip(branch.inputs, node.inputs, strict=False))
        if any(name in needed for name in node.outputs) and node.name not in ("Shape", "Size") and not node.branches:
            needed.update(name for name in node.inputs if name and name not in floating)
        places = node.operator.host
        needed.update(name for place, name in enumerate(node.inputs) if place in places and name not in floating)


def _held(nodes: list[Node]) -> Iterator[str]:
    """The names that operators read on the host, of any dtype."""
    for node in every(nodes):
        yield from (name for place, name in enumerate(node.inputs) if place in node.operator.host)


def every(nodes: list[Node]) -> Iterator[Node]:
    """Nodes, and those of the graphs in them."""
    for node in nodes:
        yield node
        for branch in node.branches.values():
            yield from every(branch.nodes)


def _floating(proto: onnx.ModelProto) -> frozenset[str]:
    """Names of floating arrays, as far as onnx can tell."""
    small = onnx.ModelProto()
    small.CopyFrom(proto)
    del small.graph.initializer[:]
    known: Mapping[str, int] = {each.name: each.data_type for g in graphs(proto.graph) for each in g.initializer}
    listed = {each.name for each in small.graph.input}
    small.graph.input.extend(
        onnx.helper.make_tensor_value_info(each.name, each.data_type, list(each.dims))
        for each in proto.graph.initializer if each.name not in listed
    )  # fmt: skip
    values = onnx.shape_inference.infer_shapes(small).graph
    found = {name for name, kind in known.items() if kind in _FLOATING}
    for graph in graphs(values):
        for each in (*graph.input, *graph.value_info, *graph.output):
            if each.type.tensor_type.elem_type in _FLOATING:
                found.add(each.name)
    return frozenset(found)
