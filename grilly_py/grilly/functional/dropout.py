"""Dropout on arrays of any shape."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex, overload

from ..compute import dropout as _dropout
from ..compute.backend import device_of
from ..compute.device.arrays import Array, FloatArray, FloatT, NDArray
from ..compute.device.tensor import Tensor
from .keywords import no_keyword


@overload
def dropout(
    input: NDArray[FloatT], p: float = ..., training: bool = ..., *, seed: SupportsIndex | None = ...,
    offset: SupportsIndex = ...,
) -> NDArray[FloatT]: ...  # fmt: skip
@overload
def dropout(
    input: Tensor, p: float = ..., training: bool = ..., *, seed: SupportsIndex | Tensor | None = ...,
    offset: SupportsIndex = ...,
) -> Tensor: ...  # fmt: skip
@overload
def dropout(
    input: FloatArray, p: float = ..., training: bool = ..., *, seed: SupportsIndex | Tensor | None = ...,
    offset: SupportsIndex = ...,
) -> Array: ...  # fmt: skip
def dropout(
    input: FloatArray, p: float = 0.5, training: bool = True, *, seed: SupportsIndex | Tensor | None = None,
    offset: SupportsIndex = 0, **unknown: NoReturn,
) -> Array:  # fmt: skip
    """Elements dropped at random: each becomes 0 with probability p, or is divided by ``1 - p``.

    The mask follows from the seed alone: element i, counted in C order, is kept where word ``i % 4`` of
    Philox4x32-10 with the counter ``(i // 4, 0, 0, offset)`` is below ``(1 - p) * 2**32``, on every device. So it is
    never stored: the gradient is ``dropout(grad_output, p, seed=seed, offset=offset)``, with the same mask.

    Parameters
    ----------
    input : numpy.ndarray or grilly.Tensor
        Any shape; float32, float16 or bfloat16.
    p : float
        From 0 to 1.
    training : bool
        False gives the input back.
    seed : int or grilly.Tensor, optional
        From 0 to 2**64 - 1; or a Tensor of one integer, which the device reads when the mask is made. By default the
        next mask of the sequence of ``grilly.manual_seed``, also in each replay of a captured function
        (``Compute.capture``). There a number stays what it was, so every replay has the same mask; a Tensor among the
        function's arguments gives each replay the mask of its own seed.
    offset : int
        From 0 to 2**32 - 1: another mask of the same seed.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of the input's shape and dtype; a Tensor when the input or the seed was one, and then without waiting. The
        input itself where nothing is dropped.

    Raises
    ------
    TypeError
        For another dtype, or a seed or offset that is no integer.
    ValueError
        For a p, seed or offset outside its range.
    """
    if unknown:
        raise no_keyword("dropout", unknown)
    return _dropout.dropout(device_of("dropout", input, seed), input, p, training, seed=seed, offset=offset)
