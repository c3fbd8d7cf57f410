"""What ONNX's own description of an operator asks of a node."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx.defs

from ..errors import ModelError
from .names import label


def versions(opsets: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """The version of each domain, as in ONNX Runtime: the last where it is named twice; "ai.onnx" is another name of
    "", which goes before it.
    """
    found = {each.domain: each.version for each in opsets}
    if "ai.onnx" in found:
        found.setdefault("", found.pop("ai.onnx"))
    return found


def require_complete(nodes: Iterable[onnx.NodeProto], opsets: Iterable[onnx.OperatorSetIdProto]) -> None:
    """Raise ModelError for a node without an attribute, or without inputs, that its operator must have."""
    known = versions(opsets)
    for node in nodes:
        domain = "" if node.domain == "ai.onnx" else node.domain
        try:
            schema = onnx.defs.get_schema(node.op_type, known[domain], domain)
        except (KeyError, onnx.defs.SchemaError):
            continue  # not known to this package: its operator says what it lacks
        given = {each.name for each in node.attribute}
        lacks = sorted(name for name, each in schema.attributes.items() if each.required and name not in given)
        if lacks:
            named = ", ".join(lacks)
            raise ModelError(f"{label(node)}: the node lacks {named}, which {node.op_type} must have as "
                             f"{'an attribute' if len(lacks) == 1 else 'attributes'}")  # fmt: skip
        if len(node.input) < schema.min_input:
            raise ModelError(f"{label(node)}: the node has {len(node.input)} inputs; {node.op_type} takes at least "
                             f"{schema.min_input}")  # fmt: skip
