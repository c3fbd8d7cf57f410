"""Arrays in files of ONNX: beside the model or in it, dense or sparse."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx.checker
import onnx.external_data_helper
import onnx.helper
import onnx.numpy_helper

from ..errors import ModelError, UnsupportedError
from .names import graphs

#: Bytes of a dense array that a model holds at most, by protobuf.
_LARGEST = 2**31 - 1


def read_tensor(tensor: onnx.TensorProto, folder: str, said: str) -> np.ndarray:
    """The array of a tensor, which may lie in a file beside the model's. Raises ModelError."""
    try:
        return onnx.numpy_helper.to_array(_with_length(tensor), folder)
    # onnx's ValidationError is no ValueError, and its reading of files raises what Python's does.
    except (OSError, ValueError, TypeError, RuntimeError, onnx.checker.ValidationError) as error:
        if onnx.external_data_helper.uses_external_data(tensor):
            place = next((each.value for each in tensor.external_data if each.key == "location"), "")
            beside = f"in {folder}" if folder else "in the working folder, as the model is given without its path"
            raise ModelError(f"{said} cannot be read from its file {place!r} {beside}: is the file there, and whole? "
                             f"{error}") from error  # fmt: skip
        raise ModelError(f"{said} is damaged: {error}") from error


def _with_length(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """The tensor; where its file has it without a length, which onnx takes for all that follows, with its length."""
    outside = onnx.external_data_helper.uses_external_data(tensor)
    if not outside or any(each.key == "length" for each in tensor.external_data):
        return tensor
    found = onnx.TensorProto()
    found.CopyFrom(tensor)
    size = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    found.external_data.add(key="length", value=str(math.prod(tensor.dims) * size))
    return found


def read_sparse(sparse: onnx.SparseTensorProto, folder: str, said: str) -> np.ndarray:
    """A dense array of a sparse one: values at indices, of all axes or of the flat array, and zeros.

    Raises
    ------
    ModelError
        For other numbers of indices than of values, and indices out of bounds.
    UnsupportedError
        For arrays that are dense too large for a model.
    """
    values, indices = (read_tensor(each, folder, said) for each in (sparse.values, sparse.indices))
    shape = tuple(sparse.dims)
    if math.prod(shape) * values.dtype.itemsize > _LARGEST:
        raise UnsupportedError(f"{said} is sparse; dense its shape {shape} of {values.dtype.name} takes "
                               f"{math.prod(shape) * values.dtype.itemsize:,} bytes, and grilly makes dense at most "
                               f"{_LARGEST:,}")  # fmt: skip
    expected = [(values.size,), (values.size, len(shape))]
    if values.ndim != 1 or indices.dtype.kind not in "iu" or indices.shape not in expected:
        raise ModelError(f"{said} has values of shape {values.shape} and {indices.dtype.name} indices of shape "
                         f"{indices.shape}; expected a row of values and integers of shape {expected[0]} or "
                         f"{expected[1]}")  # fmt: skip
    found = np.zeros(shape, values.dtype)
    if not values.size:
        return found
    bounds = np.array([found.size] if indices.ndim == 1 else shape, np.int64)
    rows = indices.astype(np.int64).reshape(values.size, -1)
    if (rows < 0).any() or (rows >= bounds).any():
        raise ModelError(f"{said} has indices from {rows.min(0).tolist()} to {rows.max(0).tolist()}, for a shape of "
                         f"{shape}; expected some from 0 on and below {bounds.tolist()}")  # fmt: skip
    if indices.ndim == 1:
        found.reshape(-1)[rows[:, 0]] = values
    else:
        found[tuple(rows.T)] = values
    return found


def with_dense(model: onnx.ModelProto, folder: str) -> onnx.ModelProto:
    """The model, or where it has sparse initializers a copy with dense ones. Raises as ``read_sparse``."""
    if not any(graph.sparse_initializer for graph in graphs(model.graph)):
        return model
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for graph in graphs(found.graph):
        for each in graph.sparse_initializer:
            name = each.values.name
            array = read_sparse(each, folder, f"initializer {name!r}")
            graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        del graph.sparse_initializer[:]
    return found
