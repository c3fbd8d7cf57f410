"""Nodes of which all inputs are on the host: shapes, and what is made of them. ONNX's own NumPy functions do them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.reference

from ..errors import UnsupportedError
from .table import all_within, around, cut, integral, sliced, within


def _gather_elements(attributes: dict[str, Any], x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    axis = within(int(attributes.get("axis", 0)), x.ndim)
    x = x[tuple(slice(None) if a == axis else slice(0, extent) for a, extent in enumerate(indices.shape))]
    return np.take_along_axis(x, np.where(indices < 0, indices + x.shape[axis], indices), axis)


def _mean(attributes: dict[str, Any], x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
    named = attributes.get("axes") if axes is None else axes.reshape(-1).tolist()
    if not named and attributes.get("noop_with_empty_axes", 0):
        return x
    over = all_within(named, x.ndim) if named else tuple(range(x.ndim))
    keep = bool(attributes.get("keepdims", 1))
    if x.dtype.kind not in "iu":
        return np.asarray(np.mean(x, over, np.float64, keepdims=keep)).astype(x.dtype)
    total = np.asarray(np.sum(x, over, np.uint64 if x.dtype.kind == "u" else np.int64, keepdims=keep))
    count = total.dtype.type(math.prod(x.shape[axis] for axis in over))
    # Division rounds down, and of a negative sum that is away from zero.
    return ((total + (total < 0) * (count - total.dtype.type(1))) // count).astype(x.dtype)


def _power(attributes: dict[str, Any], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.power(x, integral(x.dtype, y)).astype(x.dtype, copy=False)


def _slice(attributes: dict[str, Any], x: np.ndarray, *given: np.ndarray | None) -> np.ndarray:
    numbers = [None if each is None else each.reshape(-1).tolist() for each in given]
    numbers = numbers or [attributes.get("starts"), attributes.get("ends"), attributes.get("axes")]
    starts, ends, axes, steps = (*numbers, None, None)[:4]
    return x[sliced(x.shape, starts or (), ends or (), axes, steps)]


#: Where ONNX's function is not to be had: its GatherElements fails for more than 32 elements (numpy.choose), its Pow
#: rounds integers to a floating exponent's dtype, its ReduceMean adds them up in their own, and its Slice is NumPy's.
_OWN: dict[str, Callable[..., np.ndarray]] = {
    "GatherElements": _gather_elements, "Pow": _power, "ReduceMean": _mean, "Slice": _slice,
}  # fmt: skip


def _cut_for_pad(attributes: dict[str, Any], *inputs: np.ndarray | None) -> tuple[np.ndarray | None, ...]:
    """ONNX's Pad takes axes that are out of range, and no negative pads, which cut off."""
    x, pads, *rest = inputs
    assert x is not None and pads is not None
    named = rest[1].reshape(-1).tolist() if len(rest) > 1 and rest[1] is not None else range(x.ndim)
    before, after = around(pads.reshape(-1).tolist(), all_within(named, x.ndim), x.ndim)
    return x[cut(x.shape, before, after)], np.maximum(pads, 0), *rest


def _check_axis(attributes: dict[str, Any], *inputs: np.ndarray | None) -> tuple[np.ndarray | None, ...]:
    assert inputs[0] is not None
    within(int(attributes.get("axis", -2)), inputs[0].ndim)
    return inputs


#: What is done before ONNX's function where that takes too much, or too little.
_BEFORE: dict[str, Callable[..., tuple[np.ndarray | None, ...]]] = {"Pad": _cut_for_pad, "TensorScatter": _check_axis}


class Fold:
    """A node's function for NumPy arrays, made at the first use."""

    def __init__(self, node: onnx.NodeProto, opsets: Sequence[onnx.OperatorSetIdProto]):
        # Copies: a part of a model keeps all of it in memory, weights too.
        self._node = onnx.NodeProto()
        self._node.CopyFrom(node)
        self._opsets = [onnx.helper.make_opsetid(each.domain, each.version) for each in opsets]
        self._run: onnx.reference.ReferenceEvaluator | None = None

    def __call__(self, inputs: Sequence[np.ndarray | None]) -> tuple[Any, ...]:
        """The outputs that have names, and None for the others.

        Raises UnsupportedError for a version it lacks, and ValueError for what the operator cannot take.
        """
        node = self._node
        if node.op_type in _OWN or node.op_type in _BEFORE:
            attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
            if node.op_type in _OWN:
                with np.errstate(all="ignore"):
                    return (np.asarray(_OWN[node.op_type](attributes, *inputs)),)  # NumPy's of no axes are no arrays
            if len(inputs) > 1:  # the oldest Pad has its pads as an attribute
                inputs = _BEFORE[node.op_type](attributes, *inputs)
        if self._run is None:
            named = {name: None for name in node.input if name}
            graph = onnx.helper.make_graph(
                [node], "fold",
                [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in named],
                [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in node.output if name],
            )  # fmt: skip
            try:
                self._run = onnx.reference.ReferenceEvaluator(
                    onnx.helper.make_model(graph, opset_imports=self._opsets)
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
