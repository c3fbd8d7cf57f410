"""Parameter: an array that a module trains, with a copy on each device that uses it."""

from __future__ import annotations

import copy
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ..compute import Compute, Tensor
from ..compute.arrays.elementwise import binary, cast
from ..compute.arrays.promotion import FLOAT32
from ..compute.attention import foreign
from ..compute.device.arrays import NDArray
from ..compute.device.device import Stale
from ..compute.device.dtypes import FLOATS_TEXT, is_float
from ..compute.quantized import DeviceQuantizedTensor
from ..errors import CaptureError
from ..quantization import QuantizedTensor
from .changes import changed
from .foreign import OF_PARAMETER

#: Why a graph is no longer what its function would do.
_OTHER_DATA = "a parameter of a module has other data than in the capture (load_state_dict, data = ...)"


def _checked(value: ArrayLike | Tensor, dtype: np.dtype[Any] | None) -> Any:
    """A Tensor, or an array that nobody writes to. Raises TypeError for no floats, and another dtype than the given."""
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
    return value


class Parameter:
    """An array that belongs to a module: kept in NumPy, and copied to a device when a module first runs there.

    Parameters
    ----------
    data : array or grilly.Tensor
        float32, float16 or bfloat16, any shape. An array is copied; a Tensor is kept where it is. Or a quantized tensor
        on a device, which has no gradient.

    Attributes
    ----------
    data : numpy.ndarray or grilly.Tensor
        The values. An array here is read-only, because the device has copies of it: assign a new one to change it, of
        the same dtype.
    grad : numpy.ndarray or None
        float32, of the same shape: the sum of the gradients that ``backward`` calls have found since ``zero_grad``. It
        lies on the device until it is read; ``grad_on`` gives it there.
    requires_grad : bool
        Whether gradients are taken by it; False for a quantized one.

    Raises
    ------
    TypeError
        For another dtype, and a quantized tensor on the host; when ``data`` is assigned, for another than the parameter
        has.
    """

    __slots__ = ("_data", "_copies", "_graphs", "_grad", "_found_in", "_requires_grad")

    if not TYPE_CHECKING:  # type checkers have the signature of __init__

        def __new__(cls, *args, **kwargs):
            foreign.refuse("Parameter", kwargs, OF_PARAMETER)
            return super().__new__(cls)

    def __init__(self, data: ArrayLike | Tensor) -> None:
        self._put(data)
        self.grad = None
        self._requires_grad = True

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are taken by it; False for a quantized one."""
        return self._requires_grad and not isinstance(self._data, QuantizedTensor)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value and isinstance(self._data, QuantizedTensor):
            raise ValueError("requires_grad: a quantized weight has no gradient; its dequantize() has one")
        self._requires_grad = bool(value)

    @property
    def grad(self) -> NDArray[np.float32] | None:
        """The sum of gradients, float32, of the parameter's shape; None where there is none.

        Raises CaptureError for one that was found in a captured function, whose memory replays use again.
        """
        if isinstance(self._grad, Tensor):
            self._check_place(self._grad.backend)
            self._grad = self._grad.numpy()
        return self._grad

    @grad.setter
    def grad(self, value: NDArray[np.float32] | None) -> None:
        self._grad: NDArray[np.float32] | Tensor | None = value
        #: The capture in which it was found.
        self._found_in: Stale | None = None

    def grad_on(self, backend: Compute) -> Tensor | None:
        """``grad`` as a Tensor of a backend, where nothing is waited for if ``backward`` ran there.

        Raises CaptureError for one that was found in a captured function, but in the same.
        """
        if self._grad is None:
            return None
        self._check_place(backend)
        self._grad = found = backend.tensor(self._grad)
        return found

    def _check_place(self, backend: Compute) -> None:
        """Raise CaptureError where the gradient is another capture's, or of none."""
        if self._found_in is not None and self._found_in is not backend.opened.captured.stale:
            raise CaptureError(
                "grad: it was found in a captured function, and a graph uses its memory again; return "
                "parameter.grad_on(backend) from the function, and call zero_grad()"
            )

    def add_grad(self, gradient: ArrayLike | Tensor) -> None:
        """Add an array or Tensor of the parameter's shape to ``grad``; of Tensors the sum stays on the device.

        Raises
        ------
        CaptureError
            In a captured function, where there is a ``grad`` from outside of it, and the other way round.
        ValueError
            For another shape.
        TypeError
            For a quantized parameter.
        """
        if isinstance(self._data, QuantizedTensor):
            raise TypeError("add_grad: a quantized weight has no gradient; its dequantize() has one")
        if not isinstance(gradient, Tensor):
            gradient = np.array(gradient, np.float32)  # the caller's may be another parameter's too
        if tuple(gradient.shape) != self.shape:
            raise ValueError(
                f"add_grad: a gradient of shape {tuple(gradient.shape)}; expected the parameter's, {self.shape}"
            )
        on_device = next((one for one in (self._grad, gradient) if isinstance(one, Tensor)), None)
        if on_device is None:
            self.grad = gradient if self._grad is None else np.asarray(self._grad + gradient)
            return
        own = cast(on_device.backend.tensor(gradient), FLOAT32, copy=gradient is on_device)
        self._add(own)

    def _add(self, gradient: Tensor) -> None:
        """Add a Tensor that nobody writes to."""
        backend = gradient.backend
        here = backend.opened.captured.stale
        if self._grad is not None and self._found_in is not here:
            self._check_place(backend)
            raise CaptureError("backward: a captured function would add to the grad that was there before; call "
                               "zero_grad() in it")  # fmt: skip
        own = cast(gradient, FLOAT32)
        total = own if self._grad is None else binary("add", backend.tensor(self._grad), own)
        self._grad, self._found_in = total, here

    @property
    def data(self) -> Any:
        """The value: a read-only NumPy array, or a Tensor."""
        return self._data

    @data.setter
    def data(self, value: ArrayLike | Tensor) -> None:
        self._put(value, self.dtype)

    def _put(self, value: ArrayLike | Tensor, dtype: np.dtype[Any] | None = None) -> None:
        """Hold other values, of one dtype where that is given."""
        if isinstance(value, QuantizedTensor):
            if not isinstance(value, DeviceQuantizedTensor):
                raise TypeError("Parameter: a quantized tensor on the host; expected backend.tensor(data)")
        else:
            value = _checked(value, dtype)
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
        """NumPy dtype of the elements; float32, of what it makes of them, for a quantized parameter."""
        return np.dtype(np.float32) if isinstance(self._data, QuantizedTensor) else self._data.dtype

    def numpy(self) -> NDArray[Any]:
        """The values as a NumPy array; read-only, except for a copy of a Tensor. Quantized ones become floats."""
        data = self._data.dequantize() if isinstance(self._data, QuantizedTensor) else self._data
        return data.numpy() if isinstance(data, Tensor) else data

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        array = self.numpy()
        return array.astype(array.dtype if dtype is None else dtype, copy=bool(copy))

    def on(self, backend: Compute) -> Any:
        """The values in ``backend``'s device memory, copied there at the first call and kept until ``data`` changes.

        A Tensor, or a quantized tensor. Raises ValueError for a quantized one on another backend.
        """
        if isinstance(self._data, QuantizedTensor):
            if backend.opened.captured.stale is not None:
                self._graphs.add(backend.opened.captured.stale)
            return backend.tensor(self._data)
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

    def __getstate__(self) -> tuple[Any, NDArray[np.float32] | None, bool]:
        # The copies on devices are made again. A pickled Tensor comes back as an array.
        return self.numpy(), self.grad, self._requires_grad

    def __setstate__(self, state: tuple[Any, NDArray[np.float32] | None, bool]) -> None:
        data, self.grad, self._requires_grad = state
        self._put(data)

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        new = memo[id(self)] = object.__new__(type(self))
        new._put(copy.deepcopy(self._data, memo))
        new.grad = None if self.grad is None else self.grad.copy()
        new._requires_grad = self._requires_grad
        return new

    def __repr__(self) -> str:
        return f"Parameter(shape={self.shape}, dtype={self.dtype})"
