"""Nodes of which all inputs are on the host: shapes, and what is made of them. ONNX's own NumPy functions do them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.reference

from ..errors import UnsupportedError
from .table import all_within, integral, within


def _gather_elements(attributes: dict[str, Any], x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    axis = within(int(attributes.get("axis", 0)), x.ndim)
    x = x[tuple(slice(None) if a == axis else slice(0, extent) for a, extent in enumerate(indices.shape))]
    return np.take_along_axis(x, np.where(indices < 0, indices + x.shape[axis], indices), axis)


def _power(attributes: dict[str, Any], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.power(x, integral(x.dtype, y)).astype(x.dtype, copy=False)


#: Where ONNX's function is not to be had: its GatherElements fails for more than 32 elements (numpy.choose), and its
#: Pow rounds integers to a floating exponent's dtype.
_OWN: dict[str, Callable[..., np.ndarray]] = {"GatherElements": _gather_elements, "Pow": _power}


def _check_pad(attributes: dict[str, Any], x: np.ndarray, *rest: np.ndarray | None) -> None:
    if len(rest) > 2 and rest[2] is not None:
        all_within(rest[2].reshape(-1).tolist(), x.ndim)


def _check_axis(attributes: dict[str, Any], x: np.ndarray, *rest: np.ndarray | None) -> None:
    within(int(attributes.get("axis", -2)), x.ndim)


#: Where ONNX's function takes axes that are out of range, or one twice.
_CHECKS: dict[str, Callable[..., None]] = {"Pad": _check_pad, "TensorScatter": _check_axis}


class Fold:
    """A node's function for NumPy arrays, made at the first use."""

    def __init__(self, node: onnx.NodeProto, opsets: Sequence[onnx.OperatorSetIdProto]):
        self._node = node
        self._opsets = opsets
        self._run: onnx.reference.ReferenceEvaluator | None = None

    def __call__(self, inputs: Sequence[np.ndarray | None]) -> tuple[Any, ...]:
        """The outputs that have names, and None for the others.

        Raises UnsupportedError for a version it lacks, and ValueError for what the operator cannot take.
        """
        node = self._node
        if node.op_type in _OWN or node.op_type in _CHECKS:
            attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
            if node.op_type in _OWN:
                with np.errstate(all="ignore"):
                    return (np.asarray(_OWN[node.op_type](attributes, *inputs)),)  # NumPy's of no axes are no arrays
            _CHECKS[node.op_type](attributes, *inputs)
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
        try:
            with np.errstate(all="ignore"):
                found = iter(self._run.run(None, dict(zip(node.input, inputs, strict=True))))
        except MemoryError:
            raise
        except Exception as error:  # ONNX's functions refuse by whatever their NumPy happens to raise
            raise ValueError(str(error) or type(error).__name__) from error
        return tuple(np.asarray(next(found)) if name else None for name in node.output)
