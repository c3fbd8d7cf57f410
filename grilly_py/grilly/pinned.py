"""NumPy arrays over memory that the device reads and writes directly: ``grilly.pinned``."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .compute.backend import ScalarT, default_backend
from .compute.device.arrays import NDArray, Shape
from .compute.device.tensor import Tensor

__all__ = ["asarray", "empty"]


@overload
def empty(shape: Shape) -> NDArray[np.float32]: ...
@overload
def empty(shape: Shape, dtype: type[ScalarT]) -> NDArray[ScalarT]: ...
@overload
def empty(shape: Shape, dtype: DTypeLike) -> NDArray[Any]: ...
def empty(shape: Shape, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """An undefined NumPy array over memory that the default backend's device reads directly.

    As ``Compute.host_empty``, whose notes apply: the array moves to and from the device without a copy by the host.
    Opens the default backend if there is none yet. Other backends take the array as they take any other.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : dtype_like
        Any NumPy dtype but those of Python objects; float32 by default.

    Returns
    -------
    numpy.ndarray

    Raises
    ------
    TypeError
        For a dtype that holds Python objects.
    OutOfDeviceMemoryError
        When the device can address no more memory of the host.
    """
    return default_backend().host_empty(shape, dtype)


def asarray(array: ArrayLike | Tensor, dtype: DTypeLike | None = None) -> NDArray[Any]:
    """``array`` over memory of ``empty``: itself if it is there already and C-contiguous, else a copy.

    Parameters
    ----------
    array : array_like
    dtype : dtype_like, optional
        Of the result; the array's own when None.

    Returns
    -------
    numpy.ndarray

    Raises
    ------
    TypeError, OutOfDeviceMemoryError
        As ``empty``.
    """
    return default_backend().host_asarray(array, dtype)
