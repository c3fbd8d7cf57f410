"""What a model's outputs are judged by."""

from __future__ import annotations

from typing import Literal, SupportsIndex, TypeAlias, overload

from ..compute import losses as _losses
from ..compute.backend import device_of
from ..compute.device.arrays import Array, FloatArray, FloatT, HostIntegers, IntegersLike, NDArray
from ..compute.device.tensor import Tensor
from .keywords import keywords_of, named

#: What is made of the rows' losses.
Reduction: TypeAlias = Literal["mean", "sum", "none"]


@overload
def cross_entropy(
    input: NDArray[FloatT], target: HostIntegers | int, weight: NDArray[FloatT] | None = ..., *,
    ignore_index: SupportsIndex = ..., reduction: Reduction = ..., label_smoothing: float = ...,
) -> NDArray[FloatT]: ...  # fmt: skip
@overload
def cross_entropy(
    input: Tensor, target: IntegersLike | int, weight: FloatArray | None = ..., *, ignore_index: SupportsIndex = ...,
    reduction: Reduction = ..., label_smoothing: float = ...,
) -> Tensor: ...  # fmt: skip
@overload
def cross_entropy(
    input: FloatArray, target: IntegersLike | int, weight: FloatArray | None = ..., *,
    ignore_index: SupportsIndex = ..., reduction: Reduction = ..., label_smoothing: float = ...,
) -> Array: ...  # fmt: skip
@named(keywords_of("cross_entropy"))
def cross_entropy(
    input: FloatArray, target: IntegersLike | int, weight: FloatArray | None = None, *,
    ignore_index: SupportsIndex = -100, reduction: Reduction = "mean", label_smoothing: float = 0.0,
) -> Array:  # fmt: skip
    """Cross entropy of logits and class indices.

    With p the softmax of a row's C logits, w the weights, t the target and s the smoothing, a row's loss is
    ``-(1 - s) w[t] log p[t] - s / C * sum_c w[c] log p[c]``. The logits are read once; sums are float32, compensated.

    Parameters
    ----------
    input : numpy.ndarray or grilly.Tensor
        Logits, ``(C,)``, ``(N, C)`` or ``(N, C, d1, ...)``; float32, float16 or bfloat16.
    target : numpy.ndarray or grilly.Tensor
        Class indices, ``()``, ``(N,)`` or ``(N, d1, ...)``, any integer type. Those in NumPy are checked before any
        work; a Tensor's are not, because that would wait: one that is no class makes the loss NaN. Probabilities in
        the place of indices are not taken.
    weight : numpy.ndarray or grilly.Tensor, optional
        Of the classes, ``(C,)``, of input's dtype.
    ignore_index : int
        The target of rows that do not count.
    reduction : str
        "mean": the sum of the losses divided by the sum of ``w[t]``, as PyTorch has it; NaN where no row counts.
        "sum"; or "none": a loss for each row, 0 where it does not count.
    label_smoothing : float
        s, from 0 to 1.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        ``()``, or of target's shape for "none"; of input's dtype.

    Raises
    ------
    TypeError
        For dtypes other than float32, float16 and bfloat16, or differing ones, and a target that is no integer.
    ValueError
        For shapes that do not go together, another reduction, and a smoothing outside its range.
    IndexError
        For a target in NumPy that is no class; the message names it.
    """
    return _losses.cross_entropy(
        device_of("cross_entropy", input, target, weight), input, target, weight,
        ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing,
    )  # fmt: skip


@overload
def cross_entropy_backward(
    grad_output: NDArray[FloatT], input: NDArray[FloatT], target: HostIntegers | int,
    weight: NDArray[FloatT] | None = ..., *, ignore_index: SupportsIndex = ..., reduction: Reduction = ...,
    label_smoothing: float = ...,
) -> NDArray[FloatT]: ...  # fmt: skip
@overload
def cross_entropy_backward(
    grad_output: FloatArray, input: Tensor, target: IntegersLike | int, weight: FloatArray | None = ..., *,
    ignore_index: SupportsIndex = ..., reduction: Reduction = ..., label_smoothing: float = ...,
) -> Tensor: ...  # fmt: skip
@overload
def cross_entropy_backward(
    grad_output: FloatArray, input: FloatArray, target: IntegersLike | int, weight: FloatArray | None = ..., *,
    ignore_index: SupportsIndex = ..., reduction: Reduction = ..., label_smoothing: float = ...,
) -> Array: ...  # fmt: skip
def cross_entropy_backward(
    grad_output: FloatArray, input: FloatArray, target: IntegersLike | int, weight: FloatArray | None = None, *,
    ignore_index: SupportsIndex = -100, reduction: Reduction = "mean", label_smoothing: float = 0.0,
) -> Array:  # fmt: skip
    """The gradient of ``cross_entropy`` by its input: of ``sum(grad_output * loss)``.

    The logits are read twice, once for the sums of the softmax.

    Parameters
    ----------
    grad_output : numpy.ndarray or grilly.Tensor
        Of the loss's shape: ``()``, or target's for "none"; of input's dtype.
    input, target, weight, ignore_index, reduction, label_smoothing
        As given to ``cross_entropy``.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        Of input's shape and dtype.

    Raises
    ------
    TypeError, ValueError, IndexError
        As ``cross_entropy``, and for a grad_output of another shape or dtype.
    """
    return _losses.cross_entropy_backward(
        device_of("cross_entropy_backward", grad_output, input, target, weight), grad_output, input, target, weight,
        ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing,
    )  # fmt: skip
