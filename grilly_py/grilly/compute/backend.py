"""Compute: one open device, its tensors, and the operations on them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Iterator

import numpy as np

from ..errors import ClosedError
from ..registry import Registry, identify
from ..runtime import open_runtime
from ..runtime.interface import DeviceInfo, MemoryUse, Timing
from .dtypes import dtype_of, is_storable, plain
from .tensor import Storage, Tensor


class Profile:
    """What ``with backend.profile() as p`` gathers.

    Attributes
    ----------
    timings : list of Timing
        One for each dispatch, in order: ``label`` (the shader variant), ``seconds`` of device time, ``start``.
    """

    def __init__(self):
        self.timings: list[Timing] = []

    @property
    def seconds(self) -> float:
        """Device time of all dispatches together, in seconds."""
        return sum(timing.seconds for timing in self.timings)

    def __repr__(self) -> str:
        lines = [f"  {timing.seconds * 1e6:10.1f} us  {timing.label}" for timing in self.timings]
        return "\n".join([f"Profile: {len(self.timings)} dispatches, {self.seconds * 1e6:.1f} us", *lines])


class Compute:
    """A device opened for computing. Use it as a context manager, or call ``close()``.

    Parameters
    ----------
    device : int, str or None
        Position in ``grilly.devices()``, a part of the device's name, or None for ``GRILLY_DEVICE`` if that is set and
        the most capable device otherwise.
    runtime : str
        "vulkan", "kompute", or "auto" for the first of these that opens.

    Raises
    ------
    ValueError
        For an unknown device or runtime name.
    NoDeviceError
        When no device can be opened; the message lists the causes and what to install.
    """

    def __init__(self, device: int | str | None = None, runtime: str = "auto"):
        self._closed = False
        self.runtime = open_runtime(device, runtime)
        info = self.runtime.device
        #: What the device is and offers, as a DeviceInfo with its architecture recognised.
        self.device: DeviceInfo = dataclasses.replace(info, architecture=identify(info))
        self.registry = Registry(self.device, self.runtime.features)
        self.plans: dict = {}
        from .attention import Attention

        #: The attention operations: ``backend.attention.flash_attention2(...)`` and the rest.
        self.attention = Attention(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else self.device.architecture
        return f"grilly.Compute({self.device.name!r}, runtime={self.runtime.name!r}, {state})"

    def check_open(self) -> None:
        """Raise ClosedError if this backend was closed."""
        if self._closed:
            raise ClosedError("this grilly.Compute() is closed and its tensors are gone; open a new one")

    # -- tensors ---------------------------------------------------------------------------------------------------

    def tensor(self, array) -> Tensor:
        """Copy an array to the device.

        Parameters
        ----------
        array : array_like
            float32, float16, bfloat16, bool or int32, of any shape and strides. The order of its axes in memory is kept, so a
            transposed array is copied as it lies.

        Returns
        -------
        Tensor

        Raises
        ------
        TypeError
            For another dtype; float64 names the cast to write.
        OutOfDeviceMemoryError
            When the device has no room.
        """
        self.check_open()
        if isinstance(array, Tensor):
            return array if array.backend is self else self.tensor(array.numpy())
        array = np.asarray(array)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        if not is_storable(array.dtype):
            hint = "; cast it with .astype(numpy.float32)" if array.dtype.kind in "fiu" else ""
            raise TypeError(f"tensor: dtype {array.dtype} cannot live on the device{hint}")
        storage = Storage(self, array.nbytes)
        # Outermost first; repeated axes (stride 0) count as outermost, so that the others keep their neighbours.
        order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]) or -math.inf)
        laid = array.transpose(order)
        self.runtime.write(storage.buffer, plain(laid))
        tensor = Tensor(storage, laid.shape, array.dtype)
        return tensor.transpose([order.index(axis) for axis in range(array.ndim)])

    def empty(self, shape, dtype=np.float32) -> Tensor:
        """A tensor whose contents are undefined. ``shape`` is an int or a tuple; dtypes as in ``tensor``."""
        self.check_open()
        shape = (int(shape),) if np.isscalar(shape) else tuple(int(extent) for extent in shape)
        dtype = dtype_of(dtype)
        if not is_storable(dtype):
            raise TypeError(f"empty: dtype {dtype} cannot live on the device")
        size = 1
        for extent in shape:
            size *= extent
        return Tensor(Storage(self, size * dtype.itemsize), shape, dtype)

    # -- order and measurement -------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Wait until all work given to this backend so far has run."""
        self.check_open()
        self.runtime.synchronize()

    @contextlib.contextmanager
    def profile(self) -> Iterator[Profile]:
        """Measure the device time of each dispatch inside the ``with`` block.

        Raises UnsupportedError where the device or runtime has no timestamps.
        """
        self.check_open()
        profile = Profile()
        self.runtime.profile(True)
        try:
            yield profile
        finally:
            profile.timings = self.runtime.profile(False)

    def memory(self, reset_peak: bool = False) -> MemoryUse:
        """Device memory in use by tensors, its peak, and what is reserved from the driver, in bytes."""
        self.check_open()
        return self.runtime.memory(reset_peak)

    def close(self) -> None:
        """Wait for the device and release everything. Tensors of this backend cannot be used after it."""
        if not self._closed:
            self._closed = True
            self.plans.clear()
            self.runtime.close()

    def __enter__(self) -> Compute:
        return self

    def __exit__(self, *exception) -> None:
        self.close()


def devices() -> list[DeviceInfo]:
    """The Vulkan devices of this machine, in the driver's order, each with its architecture recognised.

    Raises NoDeviceError, saying what to install, when the loader or every driver is missing.
    """
    from ..runtime.probe import enumerate_devices

    return [dataclasses.replace(info, architecture=identify(info)) for info in enumerate_devices()]


_default: Compute | None = None
_default_lock = threading.Lock()


def default_backend() -> Compute:
    """The backend that functions and modules use for NumPy arrays; opened at first use."""
    global _default
    backend = _default
    if backend is None or backend._closed:
        with _default_lock:
            if _default is None or _default._closed:
                _default = Compute()
            backend = _default
    return backend


def use(backend: Compute | None) -> Compute | None:
    """Make ``backend`` the default for functions and modules; None forgets the present one. Returns the former."""
    global _default
    if backend is not None and not isinstance(backend, Compute):
        raise TypeError(f"use: expected a grilly.Compute, got {type(backend).__name__}")
    with _default_lock:
        former, _default = _default, backend
    return former
