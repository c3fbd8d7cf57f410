"""Nodes of which all inputs are on the host: shapes, and what is made of them. ONNX's own NumPy functions do them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.reference

from ..errors import UnsupportedError


def _gather_elements(attributes: dict[str, Any], x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    axis = int(attributes.get("axis", 0)) % x.ndim
    x = x[tuple(slice(None) if a == axis else slice(0, extent) for a, extent in enumerate(indices.shape))]
    return np.take_along_axis(x, np.where(indices < 0, indices + x.shape[axis], indices), axis)


#: Where ONNX's function is not to be had: its GatherElements fails for more than 32 elements (numpy.choose).
_OWN: dict[str, Callable[..., np.ndarray]] = {"GatherElements": _gather_elements}


class Fold:
    """A node's function for NumPy arrays, made at the first use."""

    def __init__(self, node: onnx.NodeProto, opsets: Sequence[onnx.OperatorSetIdProto]):
        self._node = node
        self._opsets = opsets
        self._run: onnx.reference.ReferenceEvaluator | None = None

    def __call__(self, inputs: Sequence[np.ndarray | None]) -> tuple[Any, ...]:
        """The outputs that have names, and None for the others. Raises UnsupportedError for a version it lacks."""
        node = self._node
        if node.op_type in _OWN:
            attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
            return (_OWN[node.op_type](attributes, *inputs),)
        if self._run is None:
            named = {name: None for name in node.input if name}
            graph = onnx.helper.make_graph(
                [node], "fold",
                [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in named],
                [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in node.output if name],
            )  # fmt: skip
            try:
                self._run = onnx.reference.ReferenceEvaluator(
                    onnx.helper.make_model(graph, opset_imports=list(self._opsets))
                )
            except (RuntimeError, NotImplementedError) as error:
                raise UnsupportedError(f"{node.op_type} of constants: {error}") from error
        with np.errstate(all="ignore"):
            found = iter(self._run.run(None, dict(zip(node.input, inputs, strict=True))))
        return tuple(np.asarray(next(found)) if name else None for name in node.output)
