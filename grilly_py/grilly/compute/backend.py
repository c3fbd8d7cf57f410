"""Compute: one open device, its tensors, and the operations on them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import operator
import os
import threading
from collections.abc import Callable, Iterator

import numpy as np

from ..errors import ClosedError
from ..registry import Registry, identify
from ..runtime import open_runtime
from ..runtime.interface import DeviceInfo, MemoryUse, Timing
from ..runtime.lifetime import hold_over_fork, in_child
from . import stream
from .checks import extents
from .dtypes import dtype_of, is_storable, plain
from .kept import Kept
from .selfcheck import prove
from .tensor import LentStorage, Storage, Tensor

#: What a backend keeps at most: plans of attention calls; small arrays of each kind of table on the device; words of
#: options there, of at most ``extras.KEPT_BYTES`` each.
MOST_PLANS, MOST_TABLES, MOST_WORDS = 1024, 64, 64


class Profile:
    """What ``with backend.profile() as p`` gathers.

    Attributes
    ----------
    timings : list of Timing
        In order: ``label`` (the shader variant, or how many of which), ``seconds`` of device time, ``start``.
    """

    PLURAL = {"dispatch": "dispatches", "row": "rows"}

    def __init__(self, by: str):
        self.by = by
        self.timings: list[Timing] = []

    @property
    def seconds(self) -> float:
        """Device time of all together, in seconds."""
        return sum(timing.seconds for timing in self.timings)

    def __repr__(self) -> str:
        lines = [f"  {timing.seconds * 1e6:10.1f} us  {timing.label}" for timing in self.timings]
        return "\n".join([f"Profile: {len(self.timings)} {self.PLURAL[self.by]}, {self.seconds * 1e6:.1f} us", *lines])


class Compute:
    """A device opened for computing. Use it as a context manager, or call ``close()``.

    Parameters
    ----------
    device : int, str or None
        Position in ``grilly.devices()``, a part of the device's name, or None for ``GRILLY_DEVICE`` if that is set and
        the most capable device otherwise.
    runtime : str
        "vulkan", "kompute", or "auto" for the first of these that opens.
    memory_limit : int, optional
        Bytes of device memory that tensors may take together. Attention on NumPy arrays that would need more is
        streamed in blocks that do not. ``GRILLY_MEMORY_LIMIT`` when None, and nine tenths of the device's memory
        without that. Tensors that a program makes itself are not refused.
    progress : callable or bool, optional
        Called about once a second during a streamed call, and at its end, with a ``grilly.compute.stream.Progress``;
        True writes it to standard error.

    Raises
    ------
    ValueError
        For an unknown device or runtime name, or a memory limit that is no positive number.
    NoDeviceError
        When no device can be opened; the message lists the causes and what to install.
    """

    def __init__(
        self,
        device: int | str | None = None,
        runtime: str = "auto",
        *,
        memory_limit: int | None = None,
        progress: Callable[[stream.Progress], None] | bool | None = None,
    ):
        self._closed = False
        #: Bytes that tensors may take together before calls on NumPy arrays are streamed; None for the device's memory.
        self.memory_limit: int | None = _memory_limit(memory_limit)
        #: What is called with the progress of streamed calls, or None.
        self.progress = stream.show if progress is True else progress or None
        self.runtime = open_runtime(device, runtime)
        info = self.runtime.device
        #: What the device is and offers, as a DeviceInfo with its architecture recognised.
        self.device: DeviceInfo = dataclasses.replace(info, architecture=identify(info))
        self.registry = Registry(self.device, self.runtime.features, prove=functools.partial(prove, self))
        #: Prepared attention calls.
        self.plans = Kept(MOST_PLANS)
        #: Frequencies of rope, and the starts of T5's buckets, on the device.
        self.rope_words, self.t5_starts = Kept(MOST_TABLES), Kept(MOST_TABLES)
        #: Whether calls have classes of tiles (tiles.py) however small they are: self-checks must meet them.
        self.always_classes = False
        #: Words of extras.py that calls may use again, by their bytes.
        self.extra_words = Kept(MOST_WORDS)
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
            float32, float16, bfloat16 (of ml_dtypes), bool or int32, of any shape and strides. The order of its axes in
            memory is kept, so a transposed array is copied as it lies.

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
        return self._place(array, lend=False)

    def borrow(self, array) -> Tensor:
        """As ``tensor``, but the device may still be reading an array of ``grilly.empty`` when this returns.

        For operations: the array must not change before their ``runtime.flush()`` or ``Tensor.numpy()``, either of
        which waits for that. Where host and device share memory, the device uses the array in place.
        """
        return self._place(array, lend=True)

    def _place(self, array, lend: bool) -> Tensor:
        self.check_open()
        if isinstance(array, Tensor):
            return array if array.backend is self else self.tensor(array.numpy())
        array = np.asarray(array)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        if not is_storable(array.dtype):
            hint = "; cast it with .astype(numpy.float32)" if array.dtype.kind in "fiu" else ""
            raise TypeError(f"tensor: dtype {array.dtype} cannot live on the device{hint}")
        order, laid = None, array
        if not array.flags.c_contiguous:
            # Outermost first; repeated axes (stride 0) count as outermost, so that the others keep their neighbours.
            order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]) or -math.inf)
            laid = array.transpose(order)
        lent = self.runtime.lend(laid) if lend and array.base is not None and array.size else None
        if lent is not None and lent[1] % array.itemsize == 0:
            storage = LentStorage(self, lent[0], array)
            tensor = Tensor(storage, laid.shape, array.dtype, offset=lent[1] // array.itemsize)
        else:
            storage = Storage(self, array.nbytes, idle=True)
            self.runtime.write(storage.buffer, plain(laid), borrow=lend)
            tensor = Tensor(storage, laid.shape, array.dtype)
        return tensor if order is None else tensor.transpose([order.index(axis) for axis in range(array.ndim)])

    def empty(self, shape, dtype=np.float32) -> Tensor:
        """A tensor whose contents are undefined.

        Parameters
        ----------
        shape : int or tuple of int
        dtype : dtype_like
            As in ``tensor``.

        Raises
        ------
        TypeError
            For another dtype, or a shape that is not of integers.
        ValueError
            For a negative extent.
        OutOfDeviceMemoryError
            When the device has no room.
        """
        self.check_open()
        shape = extents("empty", shape)
        dtype = dtype_of(dtype)
        if not is_storable(dtype):
            raise TypeError(f"empty: dtype {dtype} cannot live on the device")
        return Tensor(Storage(self, math.prod(shape) * dtype.itemsize), shape, dtype)

    def host_empty(self, shape, dtype=np.float32) -> np.ndarray:
        """An undefined NumPy array over memory that this device reads and writes directly.

        It is an ordinary ``numpy.ndarray``; operations of this backend move it, or a contiguous part of it, without a
        copy by the host. ``Tensor.numpy(out=...)`` fills one the same way. The memory is given back when the last array
        over it goes, and outlives the backend. Memory that a device addresses is locked in place: make such arrays for
        data that is moved often, and use them again. A process forked while one is alive must not touch it.

        Parameters
        ----------
        shape : int or tuple of int
        dtype : dtype_like
            Any NumPy dtype but those of Python objects.

        Raises
        ------
        TypeError
            For a dtype that holds Python objects.
        OutOfDeviceMemoryError
            When the device can address no more memory of the host.
        """
        self.check_open()
        shape = extents("empty", shape)
        dtype = dtype_of(dtype)
        if dtype.hasobject:
            raise TypeError(f"empty: dtype {dtype} holds Python objects, which a device cannot read")
        nbytes = math.prod(shape) * dtype.itemsize
        return self.runtime.host_array(nbytes).view(dtype).reshape(shape) if nbytes else np.empty(shape, dtype)

    def host_asarray(self, array, dtype=None) -> np.ndarray:
        """The array over memory of ``host_empty``: itself if it is there already, C-contiguous and of the dtype, else a
        copy. Parameters and errors as in ``host_empty``."""
        self.check_open()
        array = np.asarray(array, dtype)
        if self.runtime.holds(array):
            return array
        held = self.host_empty(array.shape, array.dtype)
        np.copyto(held, array)
        return held

    # -- order and measurement -------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Wait until all work given to this backend so far has run."""
        self.check_open()
        self.runtime.synchronize()

    @contextlib.contextmanager
    def profile(self, by: str = "dispatch") -> Iterator[Profile]:
        """Measure the device time of what is done inside the ``with`` block.

        Parameters
        ----------
        by : str
            "dispatch": each alone on the device, so that its time has a start and an end of the kernel in it. Or "row":
            up to 64 dispatches that are held back and follow each other without pause, each when the one before it has
            ended.

        Raises
        ------
        ValueError
            If ``by`` is neither.
        UnsupportedError
            If the device or the runtime has no timestamps.
        """
        self.check_open()
        if by not in Profile.PLURAL:
            raise ValueError(f"profile: by must be 'dispatch' or 'row', got {by!r}")
        profile = Profile(by)
        self.runtime.profile(by)
        try:
            yield profile
        finally:
            profile.timings = self.runtime.profile(None)

    def memory(self, reset_peak: bool = False) -> MemoryUse:
        """Device memory in use by tensors, its peak, and what is reserved from the driver, in bytes."""
        self.check_open()
        return self.runtime.memory(reset_peak)

    def close(self) -> None:
        """Wait for the device and release everything. Tensors of this backend cannot be used after it."""
        if not self._closed:
            self._closed = True
            for kept in (self.plans, self.rope_words, self.t5_starts, self.extra_words):
                kept.clear()
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


def _memory_limit(given: int | None) -> int | None:
    """The limit in bytes, or None for none. Raises ValueError."""
    name = "memory_limit" if given is not None else "GRILLY_MEMORY_LIMIT"
    value = given if given is not None else os.environ.get("GRILLY_MEMORY_LIMIT") or None
    if value is None:
        return None
    try:
        limit = int(value) if isinstance(value, str) else operator.index(value)
    except (TypeError, ValueError):
        limit = 0
    if limit < 1:
        raise ValueError(f"Compute: {name} is {value!r}; expected a number of bytes, such as {2 << 30}")
    return limit


_default: Compute | None = None
_default_lock = threading.Lock()
hold_over_fork(_default_lock)


@in_child
def _forget_default() -> None:
    """The parent's backend is of no use in a forked child, which opens one of its own."""
    global _default
    _default = None


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


def empty(shape, dtype=np.float32) -> np.ndarray:
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


def asarray(array, dtype=None) -> np.ndarray:
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


def use(backend: Compute | None) -> Compute | None:
    """Make ``backend`` the default for functions and modules; None forgets the present one. Returns the former."""
    global _default
    if backend is not None and not isinstance(backend, Compute):
        raise TypeError(f"use: expected a grilly.Compute, got {type(backend).__name__}")
    with _default_lock:
        former, _default = _default, backend
    return former
