"""Parameter: an array that a module trains, with a copy on each device that uses it."""

from __future__ import annotations

import copy
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ..compute import Compute, Tensor
from ..compute.attention import foreign
from ..compute.device.arrays import NDArray
from ..compute.device.device import Stale
from ..compute.device.dtypes import FLOATS_TEXT, is_float
from ..errors import CaptureError
from .changes import changed
from .foreign import OF_PARAMETER

#: Why a graph is no longer what its function would do.
_OTHER_DATA = "a parameter of a module has other data than in the capture (load_state_dict, data = ...)"


class Parameter:
    """An array that belongs to a module: kept in NumPy, and copied to a device when a module first runs there.

    Parameters
    ----------
    data : array or grilly.Tensor
        float32, float16 or bfloat16, any shape. An array is copied; a Tensor is kept where it is.

    Attributes
    ----------
    data : numpy.ndarray or grilly.Tensor
        The values. An array here is read-only, because the device has copies of it: assign a new one to change it, of
        the same dtype.
    grad : numpy.ndarray or None
        float32, of the same shape: the sum of the gradients that ``backward`` calls have found since ``zero_grad``.

    Raises
    ------
    TypeError
        For another dtype; when ``data`` is assigned, for another than the parameter has.
    """

    __slots__ = ("_data", "_copies", "_graphs", "grad")

    if not TYPE_CHECKING:  # type checkers have the signature of __init__

        def __new__(cls, *args, **kwargs):
            foreign.refuse("Parameter", kwargs, OF_PARAMETER)
            return super().__new__(cls)

    def __init__(self, data: ArrayLike | Tensor) -> None:
        self._put(data)
        self.grad: NDArray[np.float32] | None = None

    def add_grad(self, gradient: ArrayLike | Tensor) -> None:
        """Add an array or Tensor of the parameter's shape to ``grad``.

        Raises
        ------
        CaptureError
            In a captured function.
        ValueError
            For another shape.
        """
        if isinstance(gradient, Tensor) and gradient.backend.opened.runtime.capturing:
            raise CaptureError(
                "backward: gradients of parameters are NumPy arrays, which a captured function cannot make; there call "
                "what grilly.functional has for gradients, such as F.linear_backward"
            )
        gradient = np.array(gradient, np.float32)  # the caller's may be another parameter's too
        if gradient.shape != self.shape:
            raise ValueError(f"add_grad: a gradient of shape {gradient.shape}; expected the parameter's, {self.shape}")
        self.grad = gradient if self.grad is None else np.asarray(self.grad + gradient)

    @property
    def data(self) -> Any:
        """The value: a read-only NumPy array, or a Tensor."""
        return self._data

    @data.setter
    def data(self, value: ArrayLike | Tensor) -> None:
        self._put(value, self.dtype)

    def _put(self, value: ArrayLike | Tensor, dtype: np.dtype[Any] | None = None) -> None:
        """Hold other values, of one dtype where that is given."""
        if not isinstance(value, Tensor):
            value = np.array(value)
            value.flags.writeable = False
        if not is_float(value.dtype):
            raise TypeError(f"Parameter: dtype {value.dtype}; expected {FLOATS_TEXT}: use .astype(numpy.float32)")
        # A step of training that computes in float32 would otherwise widen a parameter of 16 bits unseen.
        if dtype is not None and value.dtype.name != dtype.name:
            raise TypeError(
                f"Parameter: data of dtype {value.dtype} for a parameter of {dtype}; cast it with .astype(p.dtype), or "
                "the module with to(dtype=...)"
            )
        self._data = value
        self._copies: dict[int, tuple[Tensor, int]] = {}  # and the version of the value's memory
        self._left()
        changed()

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent of each axis."""
        return tuple(self._data.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of the elements."""
        return self._data.dtype

    def numpy(self) -> NDArray[Any]:
        """The values as a NumPy array; read-only, except for a copy of a Tensor."""
        return self._data.numpy() if isinstance(self._data, Tensor) else self._data

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        array = self.numpy()
        return array.astype(array.dtype if dtype is None else dtype, copy=bool(copy))

    def on(self, backend: Compute) -> Tensor:
        """The values in ``backend``'s device memory, copied there at the first call and kept until ``data`` changes."""
        tensor, version = self._copies.get(id(backend), (None, 0))
        now = self._data._storage.version if isinstance(self._data, Tensor) else 0
        if tensor is None or tensor.backend is not backend or version != now:
            before, tensor = tensor, backend.tensor(self._data)
            if backend.opened.captured.filled is not None:  # it stays for other calls, and nobody writes to it
                backend.opened.captured.filled.discard(tensor._storage)
            if before is not None and before is not tensor:
                self._left()
            self._copies = {key: held for key, held in self._copies.items() if not held[0].backend._closed}
            self._copies[id(backend)] = tensor, now
        stale = backend.opened.captured.stale
        if stale is not None:
            self._graphs.add(stale)
        return tensor

    def _left(self, why: str = _OTHER_DATA) -> None:
        """Tell graphs that read what was here that it is no longer the parameter's, or the parameter no module's."""
        for stale in getattr(self, "_graphs", ()):
            stale.why = why
        self._graphs: weakref.WeakSet[Stale] = weakref.WeakSet()

    def __getstate__(self) -> tuple[Any, NDArray[np.float32] | None]:
        # The copies on devices are made again. A pickled Tensor comes back as an array.
        return self.numpy(), self.grad

    def __setstate__(self, state: tuple[Any, NDArray[np.float32] | None]) -> None:
        data, self.grad = state
        self._put(data)

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        new = memo[id(self)] = Parameter(copy.deepcopy(self._data, memo))
        new.grad = None if self.grad is None else self.grad.copy()
        return new

    def __repr__(self) -> str:
        return f"Parameter(shape={self.shape}, dtype={self.dtype})"
