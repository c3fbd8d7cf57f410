"""Download: the elements of a tensor on their way to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .dtypes import plain

if TYPE_CHECKING:
    from ...runtime.interface import Download as Pending
    from ...runtime.interface import Runtime


class Download:
    """The elements that a tensor had when ``Tensor.download`` was called, on their way to the host.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    """

    __slots__ = ("shape", "dtype", "_runtime", "_pending", "_array")

    def __init__(
        self, runtime: Runtime, pending: Pending | None, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self.shape, self.dtype = shape, dtype
        self._runtime, self._pending = runtime, pending
        self._array: NDArray[Any] | None = None

    def numpy(self) -> NDArray[Any]:
        """The elements; waits until they have come. Each call gives the same array.

        Raises
        ------
        ClosedError
            Where the backend was closed before they were asked for.
        """
        if self._array is None:
            array: NDArray[Any] = np.empty(self.shape, self.dtype)
            if self._pending is not None:
                self._runtime.collect(self._pending, plain(array))
                self._pending = None
            self._array = array
        return self._array

    def __repr__(self) -> str:
        return f"grilly.Download({self.dtype.name} {self.shape})"


__all__ = ["Download"]
