"""Compute: one open device, its tensors, and the operations on them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import operator
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ..errors import GrillyError
from ..quantization import QuantizedTensor
from ..registry import Registry, identify
from ..runtime import open_runtime
from ..runtime.interface import REENTERED, DeviceInfo, MemoryUse, Runtime, Timing
from ..runtime.lifetime import hold_over_fork, in_child
from .arrays import operations_of_tensors as operations
from .arrays.convert import convert
from .attention.progress import Progress, show
from .device.arrays import NDArray, Shape
from .device.device import Device
from .device.dtypes import dtype_of
from .device.numbers import extents
from .device.tensor import Tensor
from .graph import Graph, Returned, capture
from .methods import Attention
from .quantized import DeviceQuantizedTensor, placed
from .selfcheck import prove

ScalarT = TypeVar("ScalarT", bound=np.generic)


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
        Called about once a second during a streamed call, and at its end, with a
        ``grilly.compute.attention.progress.Progress``; True writes it to standard error.

    Raises
    ------
    ValueError
        For an unknown device or runtime name, or a memory limit that is no positive number.
    TypeError
        For a device or a progress of another type.
    NoDeviceError
        When no device can be opened; the message lists the causes and what to install.
    """

    def __init__(
        self,
        device: int | str | None = None,
        runtime: str = "auto",
        *,
        memory_limit: int | None = None,
        progress: Callable[[Progress], None] | bool | None = None,
    ):
        limit, called = memory_limit_of(memory_limit), _progress(progress)
        #: The device as operations take it: runtime, registry, caches.
        self.opened = Device(open_runtime(device, runtime), convert, prove, operations)
        self.opened.backend = self
        self.opened.memory_limit = limit
        self.opened.progress = called
        #: The attention operations: ``backend.attention.flash_attention2(...)`` and the rest.
        self.attention = Attention(self.opened)

    @classmethod
    def over(cls, device: Device) -> Compute:
        """A facade over a view of an open device (device/trial.py). It is not to be closed."""
        backend = object.__new__(cls)
        backend.opened = device
        backend.attention = Attention(device)
        return backend

    @property
    def device(self) -> DeviceInfo:
        """What the device is and offers, with its architecture recognised."""
        return self.opened.info

    @property
    def runtime(self) -> Runtime:
        """The runtime that has the device open."""
        return self.opened.runtime

    @property
    def registry(self) -> Registry:
        """What chooses shaders."""
        return self.opened.registry

    @property
    def memory_limit(self) -> int | None:
        """Bytes that tensors may take together before calls on arrays are streamed; None for the device's memory."""
        return self.opened.memory_limit

    @memory_limit.setter
    def memory_limit(self, limit: int | None) -> None:
        self.opened.memory_limit = None if limit is None else memory_limit_of(limit)

    @property
    def progress(self) -> Callable[[Progress], None] | None:
        """What is called with the progress of streamed calls, or None."""
        return self.opened.progress

    @progress.setter
    def progress(self, progress: Callable[[Progress], None] | bool | None) -> None:
        self.opened.progress = _progress(progress)

    @property
    def _closed(self) -> bool:
        return self.opened.closed

    def __repr__(self) -> str:
        state = "closed" if self._closed else self.device.architecture
        return f"grilly.Compute({self.device.name!r}, runtime={self.runtime.name!r}, {state})"

    def check_open(self) -> None:
        """Raise ClosedError if this backend was closed."""
        self.opened.check_open()

    # -- tensors ---------------------------------------------------------------------------------------------------

    @overload
    def tensor(self, array: QuantizedTensor) -> QuantizedTensor: ...
    @overload
    def tensor(self, array: ArrayLike | Tensor) -> Tensor: ...
    def tensor(self, array: ArrayLike | Tensor | QuantizedTensor) -> Tensor | QuantizedTensor:
        """Copy an array to the device.

        Parameters
        ----------
        array : array_like
            float32, float16, bfloat16 (of ml_dtypes), bool, int64, or an integer of up to 32 bits, of any shape and
            strides. The order of its axes in memory is kept, so a transposed array is copied as it lies. Also what
            offers ``__dlpack__`` alone and lies in the host's memory. Or a `grilly.QuantizedTensor`, which stays
            quantized: its bytes are brought into the order that kernels read, at most 12 % more of them.

        Returns
        -------
        Tensor or QuantizedTensor

        Raises
        ------
        TypeError
            For another dtype; float64 names the cast to write. For a quantized type that kernels do not read.
        ValueError
            For a quantized tensor without numbers, and one on another backend.
        OutOfDeviceMemoryError
            When the device has no room.
        """
        if isinstance(array, QuantizedTensor):
            return self._quantized(array)
        return self.opened.tensor(array)

    def _quantized(self, tensor: QuantizedTensor) -> QuantizedTensor:
        if not isinstance(tensor, DeviceQuantizedTensor):
            return placed(self.opened, tensor)
        if tensor.device is not self.opened.home:
            raise ValueError("tensor: the quantized tensor is on another backend; give the one on the host")
        return tensor

    def borrow(self, array: ArrayLike | Tensor) -> Tensor:
        """As ``tensor``, but the device may still be reading an array of ``grilly.pinned.empty`` when this returns.

        The array must not change before ``runtime.flush()`` or ``Tensor.numpy()``, either of which waits for that.
        Where host and device share memory, the device uses the array in place.
        """
        return self.opened.borrow(array, passing=False)

    def empty(self, shape: Shape, dtype: DTypeLike = np.float32) -> Tensor:
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
        return self.opened.empty(shape, dtype)

    @overload
    def host_empty(self, shape: Shape) -> NDArray[np.float32]: ...
    @overload
    def host_empty(self, shape: Shape, dtype: type[ScalarT]) -> NDArray[ScalarT]: ...
    @overload
    def host_empty(self, shape: Shape, dtype: DTypeLike) -> NDArray[Any]: ...
    def host_empty(self, shape: Shape, dtype: DTypeLike = np.float32) -> NDArray[Any]:
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

    def host_asarray(self, array: ArrayLike | Tensor, dtype: DTypeLike | None = None) -> NDArray[Any]:
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

    def capture(self, function: Callable[..., Returned], *arguments: Any) -> Graph[Returned]:
        """Record what a function does on the device, to be done again without the function.

        The function is called once, with Tensors in place of the arrays. Its work is not run but noted down; the memory
        of what it makes on the way is planned, and command buffers are recorded. ``graph(*arguments)`` then copies
        arguments in, submits these, and gives new Tensors with the results: the same bits as the calls one by one, but
        for activations, gates and residuals behind linear layers, and norms before them, which round less often.

        - Only work on the device is recorded. What the function computes with Python or NumPy, the branches it takes,
          seeds that are numbers, and NumPy arrays that it does not take as arguments stay as they were.
        - Tensors that it does not take as arguments, such as weights and caches, are used where they are: the graph
          keeps them, replays see what is written to them between, and what replays write to them stays. (Weights that
          ``precision="high"`` had split before are not to be written to: a replay says so.)
        - Positions and lengths that change from replay to replay must be int32 arrays or Tensors among the arguments,
          or Tensors that it finds.
        - Tensors that it makes and keeps elsewhere hold what the last replay put there. Before one they are refused.

        Parameters
        ----------
        function : callable
            It takes the arguments and returns a Tensor, or tuples, lists and dicts of them. Anything else among them is
            given back as it was in the capture.
        *arguments
            Examples of what will be given: Tensors, NumPy arrays, and tuples, lists and dicts of them, of which shapes
            and dtypes count; other arguments must be equal in every replay. The function gets Tensors in C order. What
            is in them is not looked at, such as ids that are no row of a table. Layers, caches and backends may be
            among the arguments, and are used where they are.

        Returns
        -------
        Graph

        Raises
        ------
        CaptureError
            When the function reads a result (``Tensor.numpy``, a call on NumPy arrays alone), waits, profiles, captures
            or replays a graph, writes to an argument, say a cache, or returns an object of another kind than tuples,
            lists and dicts that holds what it computed, or an iterator.
        TypeError
            For arrays of a dtype that cannot live on the device, and of other libraries, and for other objects that
            hold arrays.
        ValueError
            For a Tensor of another backend.
        UnsupportedError
            With the kompute runtime.
        OutOfDeviceMemoryError
            When the device has no room. Whatever is raised, by the function too, the backend stays as it was.
        """
        return capture(self.opened, function, arguments)

    @contextlib.contextmanager
    def profile(self, by: Literal["dispatch", "row"] = "dispatch") -> Iterator[Profile]:
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
        GrillyError
            Inside another ``profile`` of this backend: one would take the other's times.
        """
        self.check_open()
        if self.opened.home.profiled:
            raise GrillyError("profile: this grilly.Compute() is measured already; leave the other with block first")
        if by not in Profile.PLURAL:
            raise ValueError(f"profile: by must be 'dispatch' or 'row', got {by!r}")
        profile = Profile(by)
        self.runtime.profile(by)
        self.opened.home.profiled = True
        try:
            yield profile
        finally:
            self.opened.home.profiled = False
            profile.timings = self.runtime.profile(None)

    def memory(self, reset_peak: bool = False) -> MemoryUse:
        """Device memory in use by tensors, its peak, and what is reserved from the driver, in bytes."""
        self.check_open()
        return self.runtime.memory(reset_peak)

    def close(self) -> None:
        """Wait for the device and release everything. Tensors of this backend cannot be used after it."""
        self.opened.close()

    def __copy__(self) -> Compute:
        return self  # the device itself: copies of what lies on it lie there too

    def __deepcopy__(self, memo: dict[int, Any]) -> Compute:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a grilly.Compute is an open device and cannot be pickled; make one where it is loaded")

    def __enter__(self) -> Compute:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def devices() -> list[DeviceInfo]:
    """The Vulkan devices of this machine, in the driver's order, each with its architecture recognised.

    Raises NoDeviceError, saying what to install, when the loader or every driver is missing.
    """
    from ..runtime.probe import enumerate_devices

    return [dataclasses.replace(info, architecture=identify(info)) for info in enumerate_devices()]


def memory_limit_of(given: int | None) -> int | None:
    """The limit in bytes, or None for none: that of the environment where none is given. Raises ValueError."""
    name = "memory_limit" if given is not None else "GRILLY_MEMORY_LIMIT"
    value = given if given is not None else os.environ.get("GRILLY_MEMORY_LIMIT") or None
    if value is None:
        return None
    try:
        limit = int(value) if given is None and isinstance(value, str) else operator.index(value)
        limit = 0 if isinstance(value, bool) else limit
    except (TypeError, ValueError):
        limit = 0
    if limit < 1:
        raise ValueError(f"Compute: {name} is {value!r}; expected a number of bytes, such as {2 << 30}")
    return limit


def _progress(given: Callable[[Progress], None] | bool | None) -> Callable[[Progress], None] | None:
    """What is to be called with the progress. Raises TypeError for what is no function, True, False or None."""
    if given is None or isinstance(given, bool):
        return show if given else None
    if not callable(given):
        raise TypeError(f"Compute: progress is {given!r}; expected a function, True, False or None")
    return given


_default: Compute | None = None
_default_lock = threading.RLock()
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
        if _default_lock._is_owned():  # type: ignore[attr-defined]
            raise GrillyError(REENTERED)
        with _default_lock:
            if _default is None or _default._closed:
                _default = Compute()
            backend = _default
    return backend


def backend_of(operation: str, *arrays: object) -> Compute:
    """The backend of the tensors among ``arrays``, or the default one. Raises ValueError when they differ."""
    return device_of(operation, *arrays).backend


def device_of(operation: str, *arrays: object) -> Device:
    """The device of the tensors among ``arrays``, or the default one. Raises ValueError when they differ."""
    found = None
    for array in arrays:
        if isinstance(array, (Tensor, DeviceQuantizedTensor)):
            device = array._storage.device if isinstance(array, Tensor) else array.device
            if found is None:
                found = device
            elif device is not found:
                raise ValueError(f"{operation}: the tensors belong to different backends; move one with .tensor(...)")
    if found is None:
        return default_backend().opened
    if found.closed:
        found.check_open()
    return found


def use(backend: Compute | None) -> Compute | None:
    """Make ``backend`` the default for functions and modules; None forgets the present one. Returns the former."""
    global _default
    if backend is not None and not isinstance(backend, Compute):
        raise TypeError(f"use: expected a grilly.Compute, got {type(backend).__name__}")
    with _default_lock:
        former, _default = _default, backend
    return former
