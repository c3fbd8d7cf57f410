"""Checks of the arguments of norms and softmaxes."""

from __future__ import annotations

import math

import numpy as np

from ..device.numbers import integer, number

#: PyTorch's eps of RMS norm where none is given: that of float32, in which every dtype is computed.
RMS_EPSILON = 2.0**-23


def extents_of(operation: str, normalized_shape) -> tuple[int, ...]:
    """``normalized_shape``, an int or several, as a tuple. Raises TypeError and ValueError for anything else."""
    if type(normalized_shape) is tuple and all(type(extent) is int for extent in normalized_shape):
        shape = normalized_shape
    elif np.ndim(normalized_shape):
        shape = tuple(integer(operation, "an extent of normalized_shape", extent) for extent in normalized_shape)
    else:
        shape = (integer(operation, "normalized_shape", normalized_shape),)
    if not shape or min(shape) < 0:
        raise ValueError(f"{operation}: normalized_shape is {shape}; expected the last extents of input")
    return shape


def check_epsilon(operation: str, eps, name: str = "eps") -> float:
    """``eps`` as a float. Raises TypeError for what is no number, ValueError for one that is negative or not finite."""
    eps = number(operation, name, eps)
    if not (eps >= 0 and math.isfinite(eps)):
        raise ValueError(f"{operation}: {name} is {eps}; expected a finite number, 0 or more")
    return eps


def check_added(operation: str, weight_offset, name: str = "weight_offset") -> float:
    """``weight_offset`` as a float. Raises TypeError for what is no number, ValueError for one that is not finite."""
    found = number(operation, name, weight_offset)
    if not math.isfinite(found):
        raise ValueError(f"{operation}: {name} is {found}; expected a finite number")
    return found


def check_axis(operation: str, ndim: int, dim, name: str) -> int:
    """``dim`` counted from 0. Raises TypeError for what is no integer, ValueError for an axis that is not there."""
    axis = integer(operation, "dim", dim)
    if not -ndim <= axis < ndim:
        raise ValueError(f"{operation}: dim is {axis} and {name} has {ndim} axes")
    return axis % ndim


def check_last(operation: str, input, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless ``shape`` is that of the input's last axes."""
    if tuple(input.shape[-len(shape) :]) != shape:
        raise ValueError(
            f"{operation}: input has shape {tuple(input.shape)}; its last axes must be normalized_shape, {shape}"
        )


def check_shape(operation: str, name: str, array, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless an array has a shape."""
    if array is not None and tuple(array.shape) != shape:
        raise ValueError(f"{operation}: {name} has shape {tuple(array.shape)}; expected {shape}")


def check_groups(operation: str, input, num_groups) -> int:
    """``num_groups`` as an int. Raises TypeError and ValueError where the input's second axis has no such groups."""
    groups = integer(operation, "num_groups", num_groups)
    if len(input.shape) < 2:
        raise ValueError(f"{operation}: input has shape {tuple(input.shape)}; expected (N, C, ...)")
    if groups < 1 or input.shape[1] % groups:
        raise ValueError(f"{operation}: {input.shape[1]} channels cannot be divided into {groups} groups")
    return groups


def given(**arrays) -> dict:
    """The named arrays without those that are None."""
    return {name: array for name, array in arrays.items() if array is not None}
