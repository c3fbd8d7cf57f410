"""Rows of a table by integer ids."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex, overload

import numpy as np

from ..compute import embedding as _embedding
from ..compute.backend import device_of
from ..compute.device.arrays import Array, FloatArray, FloatT, HostIntegers, IntegersLike, NDArray
from ..compute.device.tensor import Tensor
from ..quantization import QuantizedTensor
from .keywords import no_keyword


@overload
def embedding(
    input: HostIntegers, weight: NDArray[FloatT], padding_idx: SupportsIndex | None = ...
) -> NDArray[FloatT]: ...
@overload
def embedding(
    input: HostIntegers, weight: QuantizedTensor, padding_idx: SupportsIndex | None = ...
) -> NDArray[np.float32] | Tensor: ...
@overload
def embedding(
    input: Tensor, weight: FloatArray | QuantizedTensor, padding_idx: SupportsIndex | None = ...
) -> Tensor: ...
@overload
def embedding(input: IntegersLike, weight: Tensor, padding_idx: SupportsIndex | None = ...) -> Tensor: ...
def embedding(
    input: IntegersLike, weight: FloatArray | QuantizedTensor, padding_idx: SupportsIndex | None = None,
    **unknown: NoReturn,
) -> Array:  # fmt: skip
    """Rows of ``weight`` by ids: ``y[..., :] = weight[input[...]]``.

    Parameters
    ----------
    input : numpy.ndarray or grilly.Tensor
        Ids, any shape, any integer type. Those in NumPy arrays and lists are checked before any work; those in a Tensor
        are not, because that would wait: below 0 they count from the end, and one out of bounds takes the row at the
        end that is nearest.
    weight : numpy.ndarray, grilly.Tensor or grilly.QuantizedTensor
        ``(num_embeddings, embedding_dim)``, float32, float16 or bfloat16, or quantized.
    padding_idx : int, optional
        A row whose gradient is zero (`embedding_backward`); it changes nothing here.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        ``(*input.shape, embedding_dim)``, of weight's dtype, float32 of a quantized one.

    Raises
    ------
    TypeError
        For ids that are no integers, and another dtype of weight.
    ValueError
        For a weight that has not two axes, and a padding_idx that is no row.
    IndexError
        For an id in NumPy that is no row; the message names it.
    """
    if unknown:
        raise no_keyword("embedding", unknown)
    return _embedding.embedding(device_of("embedding", input, weight), input, weight, padding_idx)


@overload
def embedding_backward(
    grad_output: NDArray[FloatT], input: HostIntegers, num_embeddings: SupportsIndex,
    padding_idx: SupportsIndex | None = ...,
) -> NDArray[FloatT]: ...  # fmt: skip
@overload
def embedding_backward(
    grad_output: Tensor, input: IntegersLike, num_embeddings: SupportsIndex, padding_idx: SupportsIndex | None = ...
) -> Tensor: ...
@overload
def embedding_backward(
    grad_output: FloatArray, input: Tensor, num_embeddings: SupportsIndex, padding_idx: SupportsIndex | None = ...
) -> Tensor: ...
def embedding_backward(
    grad_output: FloatArray, input: IntegersLike, num_embeddings: SupportsIndex,
    padding_idx: SupportsIndex | None = None,
) -> Array:  # fmt: skip
    """The gradient of ``embedding`` by its weight: row r is the sum of grad_output where the id is r.

    Sums are float32, in the order of the ids, without atomic operations: the same bits each time. Nothing is sorted.
    Workgroups have shares of the rows, and each reads all ids for every 512 columns: beside one pass over grad_output
    and the result that is ``16 * multiprocessors`` times the bytes of the ids, from the cache, or less for few rows.

    Parameters
    ----------
    grad_output : numpy.ndarray or grilly.Tensor
        ``(*input.shape, embedding_dim)``, float32, float16 or bfloat16.
    input : numpy.ndarray or grilly.Tensor
        As given to ``embedding``.
    num_embeddings : int
        Rows of the weight.
    padding_idx : int, optional
        A row whose gradient is zero; below 0 it counts from the end.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        ``(num_embeddings, embedding_dim)``, of grad_output's dtype.

    Raises
    ------
    TypeError, ValueError, IndexError
        As ``embedding``, and for a grad_output of another shape.
    """
    device = device_of("embedding_backward", grad_output, input)
    return _embedding.embedding_backward(device, grad_output, input, num_embeddings, padding_idx)
