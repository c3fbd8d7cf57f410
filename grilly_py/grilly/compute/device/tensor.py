"""Tensor: an array that lives in device memory."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...errors import GrillyError, OutOfDeviceMemoryError, UnsupportedError
from . import capsules
from .download import Download
from .dtypes import dtype_of, plain
from .exchange import exchange_or_none
from .operators import ArrayOperations, Operators
from .printed import printed

if TYPE_CHECKING:
    from ...runtime.interface import Buffer, Runtime


#: One item of an index, and what stands between the brackets.
_Item: TypeAlias = SupportsIndex | slice | EllipsisType | None
_Index: TypeAlias = _Item | tuple[_Item, ...]


#: A view is sparse where the memory that it spans is more than so many times its own.
SPARSE = 4
#: Bytes that the host has read sooner than the device has left out what lies between.
SMALL = 1 << 20


class Home(Protocol):
    """The part of Device that tensors use."""

    runtime: Runtime
    home: Home
    backend: Any
    exchange: Any
    arrays: ArrayOperations

    def check_open(self) -> None:
        """Raise ClosedError if the device was closed."""

    def convert(self, tensor: Tensor, dtype: np.dtype) -> Tensor:
        """A contiguous copy with elements of the dtype."""


class Storage:
    """A device buffer, which goes back when the last tensor over it goes.

    ``version`` counts the calls that wrote to it after it was filled. ``derived`` holds what was made of its contents
    and is kept as long as it: matmul/split_weights.py. ``address`` is where another interface to the GPU finds it,
    which may write to it then; None as long as none was told. ``replayed`` says that replays of a graph write to it,
    which nobody counts. ``outline`` is its Outline, where a tape has asked for one.
    """

    __slots__ = ("device", "buffer", "nbytes", "version", "derived", "address", "replayed", "outline", "__weakref__")

    def __init__(self, device: Home, nbytes: int, idle: bool = False, passing: bool = False):
        self.device = device.home
        self.nbytes = max(-(-nbytes // 4) * 4, 4)  # whole words: shaders read byte masks through them
        self.buffer: Buffer = device.runtime.allocate(self.nbytes, idle, passing)
        self.version = 0
        self.derived: dict[tuple, tuple[int, Tensor]] | None = None
        self.address: int | None = None
        self.replayed = False
        self.outline: Outline | None = None

    def shared_at(self, address: int) -> None:
        """Note that others may write to it from now on."""
        self.address = address
        self.derived = None

    def written_by_replays(self) -> None:
        """Note that replays write to it from now on."""
        self.replayed = True
        self.derived = None


class LentStorage(Storage):
    """The memory behind an array of ``grilly.pinned.empty``, which the device uses in place."""

    __slots__ = ("array",)

    def __init__(self, device: Home, buffer: Buffer, array: np.ndarray):
        self.device = device.home
        self.nbytes = -(-buffer.nbytes // 4) * 4  # within the buffer: the runtime rounds further up
        self.buffer = buffer
        self.array = array  # the memory goes with the last array over it
        self.version = 0
        self.derived = None
        self.address = None
        self.replayed = False
        self.outline = None


class AliasStorage(Storage):
    """Memory of another storage, told apart from it: what is computed of one is not computed of the other."""

    __slots__ = ("of",)

    def __init__(self, of: Storage):
        self.of = of  # the memory goes with the last storage over it
        self.device, self.nbytes, self.buffer = of.device, of.nbytes, of.buffer
        self.version, self.address, self.replayed = of.version, of.address, of.replayed
        self.derived = self.outline = None


class Outline(Storage):
    """What is left of a storage without its memory: the key of its gradient, and what shape and dtype stand over."""

    __slots__ = ()

    def __init__(self, of: Storage):
        self.device, self.nbytes = of.device, of.nbytes

    @classmethod
    def of(cls, storage: Storage) -> Outline:
        """The one outline of a storage; that of an outline is itself."""
        if isinstance(storage, Outline):
            return storage
        if storage.outline is None:
            storage.outline = Outline(storage)
        return storage.outline


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a C-contiguous array."""
    strides, stride = [], 1
    for extent in reversed(shape):
        strides.append(stride)
        stride *= extent
    return tuple(reversed(strides))


def _fixed(name: str, way: str) -> property:
    """A property that cannot be set, of the slot with an underscore; read without a call of Python's."""

    def refuse(tensor: Tensor, value: object) -> None:
        raise AttributeError(f"{name!r} of a grilly.Tensor cannot be set; take t.{way}(...)")

    return property(operator.attrgetter(f"_{name}"), refuse)


class Tensor(Operators):
    """An array in device memory: a shape, a dtype and strides over a buffer, as in NumPy.

    Made by ``backend.tensor(array)`` or by an operation on tensors. ``reshape``, ``transpose`` and slicing give views
    and move no data. Work on tensors runs on the device without waiting; ``numpy()`` waits and copies.
    """

    __slots__ = ("_storage", "_shape", "_dtype", "_strides", "_offset")

    if TYPE_CHECKING:

        @property
        def shape(self) -> tuple[int, ...]:
            """Extent of each axis."""

        @property
        def dtype(self) -> np.dtype[Any]:
            """NumPy dtype of the elements."""

    else:
        shape = _fixed("shape", "reshape")
        dtype = _fixed("dtype", "astype")

    def __init__(
        self, storage: Storage, shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None = None,
        offset: int = 0,
    ):  # fmt: skip
        self._storage = storage
        self._shape = shape
        self._dtype = dtype
        self._strides = contiguous_strides(shape) if strides is None else strides
        self._offset = offset

    @property
    def backend(self) -> Any:
        """The ``grilly.Compute`` that holds this tensor."""
        return self._storage.device.backend

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis, as in NumPy."""
        return tuple(stride * self.dtype.itemsize for stride in self._strides)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.dtype.itemsize

    @property
    def T(self) -> Tensor:
        """The tensor with its axes reversed, a view."""
        return self.transpose()

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without axes")
        return self.shape[0]

    def __repr__(self) -> str:
        where = self._storage.device.backend.device.name
        return f"grilly.Tensor(shape={self.shape}, dtype={self.dtype.name}, device={where!r})"

    def __str__(self) -> str:
        """The elements, as NumPy prints them; waits for those that it shows. Where they cannot be read, ``repr``."""
        try:
            return printed(self)
        except GrillyError:
            return repr(self)

    # -- views -----------------------------------------------------------------------------------------------------

    def _view(self, shape: Sequence[int], strides: Sequence[int], offset: int | None = None) -> Tensor:
        return Tensor(
            self._storage, tuple(shape), self.dtype, tuple(strides), self._offset if offset is None else offset
        )

    def transpose(self, *axes: SupportsIndex | Sequence[SupportsIndex]) -> Tensor:
        """Permute the axes (reverse them when none are given); a view. Raises ValueError for a bad permutation."""
        if len(axes) == 1 and isinstance(axes[0], (tuple, list)):
            axes = tuple(axes[0])
        if not axes:
            axes = tuple(range(self.ndim))[::-1]
        order = [operator.index(axis) + (self.ndim if axis < 0 else 0) for axis in axes]
        in_order = list(range(self.ndim))
        if sorted(order) != in_order:
            raise ValueError(f"transpose: axes {axes} are no permutation of the {self.ndim} axes of shape {self.shape}")
        if order == in_order:
            return self
        return self._view([self.shape[a] for a in order], [self._strides[a] for a in order])

    def swapaxes(self, first: int, second: int) -> Tensor:
        """Exchange two axes; a view. Raises ValueError for an axis that there is not."""
        order = list(range(self.ndim))
        try:
            order[first], order[second] = order[second], order[first]
        except IndexError:
            raise ValueError(f"swapaxes: axes {first} and {second}; the tensor has {self.ndim}") from None
        return self.transpose(order)

    def reshape(self, *shape: SupportsIndex | Sequence[SupportsIndex]) -> Tensor:
        """The same elements, in C order, under another shape; one extent may be -1.

        A view where the strides allow one; otherwise the elements are gathered on the device first. Raises ValueError
        when the sizes differ.
        """
        if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
            shape = tuple(shape[0])
        shape = tuple(map(operator.index, shape))
        if shape == self.shape:
            return self._view(shape, self._strides)
        if shape.count(-1) == 1:
            known = math.prod(extent for extent in shape if extent != -1)
            if known and self.size % known == 0:
                shape = tuple(self.size // known if extent == -1 else extent for extent in shape)
        if any(extent < 0 for extent in shape) or math.prod(shape) != self.size:
            raise ValueError(f"reshape: {self.shape} has {self.size} elements, which do not fill {shape}")
        if self.size == 0:
            return self._view(shape, contiguous_strides(shape))
        strides = reshaped(self.shape, self._strides, shape)
        if strides is None:
            return self.contiguous().reshape(shape)
        return self._view(shape, strides)

    def __getitem__(self, index: Any) -> Tensor:
        """As in NumPy.

        Integers, slices with positive steps, ``None`` and ``...`` give views. Slices with negative steps, and arrays of
        integers, give copies. A boolean array gives the elements where it is true; their number decides the shape, so
        the mask is read by the host, which waits for it.

        Raises IndexError for what is out of bounds (indices on the device are not checked: those out of bounds select
        the element at the end that is nearest) and TypeError for what is no index.
        """
        for item in index if index.__class__ is tuple else (index,):
            kind = item.__class__
            if kind is slice:
                if item.step is None or item.step.__class__ is int and item.step > 0:
                    continue
            elif kind is int or item is None or item is Ellipsis:
                continue
            return self._storage.device.arrays.selected(self, index)
        return self._selected(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Replace what ``self[index]`` selects by a number, or by an array that broadcasts to it, on the device.

        Other tensors over the same memory see it. Where arrays of integers name a place twice, one of the values
        arrives; indices on the device that are out of bounds write nothing.
        """
        self._storage.device.arrays.assigned(self, index, value)

    def _selected(self, index: _Index) -> Tensor:
        """What integers, slices with positive steps, ``None`` and ``...`` select, without a copy.

        Raises TypeError for other indices, and IndexError for what is out of bounds.
        """
        index = index if isinstance(index, tuple) else (index,)
        if index.count(Ellipsis) > 1:
            raise IndexError("an index may hold one '...'")
        taken = sum(1 for item in index if item is not None and item is not Ellipsis)
        if taken > self.ndim:
            raise IndexError(f"{taken} indices for a tensor of {self.ndim} axes")
        if Ellipsis not in index:
            index += (Ellipsis,)
        place = index.index(Ellipsis)
        index = index[:place] + (slice(None),) * (self.ndim - taken) + index[place + 1 :]
        shape, strides, offset, axis = [], [], self._offset, 0
        for item in index:
            if item is None:
                shape.append(1)
                strides.append(0)
                continue
            extent, own = self.shape[axis], self._strides[axis]
            if isinstance(item, slice):
                start, stop, stride = item.indices(extent)
                if stride < 1:
                    raise IndexError("slices of a tensor need a positive step")
                length = max(0, -(-(stop - start) // stride))
                offset += start * own if length else 0
                shape.append(length)
                strides.append(own * stride)
            else:
                try:
                    place = operator.index(item)
                except TypeError:
                    raise TypeError(f"an index is {item!r}; expected integers, slices, None, '...' or arrays") from None
                if not -extent <= place < extent:
                    raise IndexError(f"index {place} is out of bounds for axis {axis} with size {extent}")
                offset += (place % extent) * own
            axis += 1
        return self._view(shape, strides, offset)

    def broadcast_to(self, shape: SupportsIndex | Sequence[SupportsIndex]) -> Tensor:
        """A view repeated to ``shape``, an integer or several, by NumPy's broadcasting rules.

        Raises ValueError where they do not allow it, and TypeError for extents that are no integers.
        """
        if shape.__class__ is not tuple and not np.iterable(shape):
            shape = (shape,)
        shape = tuple(map(operator.index, shape))
        if shape == self.shape:
            return self._view(shape, self._strides)
        missing = len(shape) - self.ndim
        if (
            missing < 0
            or min(shape, default=0) < 0
            or any(e not in (1, s) for e, s in zip(self.shape, shape[missing:], strict=True))
        ):
            raise ValueError(f"broadcast_to: {self.shape} does not broadcast to {shape}")
        own = [stride if e == s else 0 for e, s, stride in zip(self.shape, shape[missing:], self._strides, strict=True)]
        return self._view(shape, [0] * missing + own)

    # -- copies ----------------------------------------------------------------------------------------------------

    @property
    def is_contiguous(self) -> bool:
        """True when the elements lie in C order without gaps."""
        want = contiguous_strides(self.shape)
        if self._strides == want:
            return True
        return self.size == 0 or all(e == 1 or a == b for e, a, b in zip(self.shape, self._strides, want, strict=True))

    def contiguous(self) -> Tensor:
        """This tensor if it is contiguous, else a copy in C order made on the device."""
        if self.is_contiguous:
            return self
        return self._storage.device.convert(self, self.dtype)

    def astype(self, dtype: DTypeLike, copy: bool = True) -> Tensor:
        """The elements as another dtype, converted on the device: a new tensor, as NumPy's.

        Without ``copy`` it is this tensor where that has the dtype.

        Floating numbers lose their fraction on the way to integers; to 16 bits they are rounded to nearest, ties to
        even. Raises TypeError for a dtype that no tensor has.
        """
        dtype = dtype_of(dtype)
        if dtype == self.dtype and not copy:
            return self
        return self._storage.device.convert(self, dtype)

    def numpy(self, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """A NumPy array with the same shape and values; waits for the work that makes them.

        The array's memory has the order of the tensor's, so a transposed view comes back as a transposed array.

        Parameters
        ----------
        out : numpy.ndarray, optional
            Filled and returned instead of a new array; of this shape and dtype. One made by ``grilly.pinned.empty`` is
            filled by the device, without a copy by the host.

        Raises
        ------
        TypeError
            When ``out`` is no array of NumPy's.
        ValueError
            When it has another shape or dtype.
        ClosedError
            After the backend was closed.
        """
        if out is not None:
            if not isinstance(out, np.ndarray):
                raise TypeError(f"numpy: out is a {type(out).__name__}; expected a numpy.ndarray")
            if out.shape != self.shape or out.dtype != self.dtype:
                raise ValueError(
                    f"numpy: out is {out.dtype} {out.shape}; expected {self.dtype} {self.shape}, as the tensor is"
                )
            if not (self.size and self.is_contiguous and out.flags.c_contiguous and out.flags.writeable):
                np.copyto(out, self.numpy())
                return out
        if self.size == 0:
            self._storage.device.check_open()
            return np.empty(self.shape, self.dtype)
        if self.is_contiguous:
            array = np.empty(self.shape, self.dtype) if out is None else out
            self._storage.device.runtime.read(self._storage.buffer, plain(array), self._offset * self.dtype.itemsize)
            return array
        span = 1 + sum((e - 1) * s for e, s in zip(self.shape, self._strides, strict=True))
        dense = self._is_dense()
        if not dense and span > SPARSE * self.size and span * self.dtype.itemsize > SMALL:
            try:
                return self.contiguous().numpy()  # the device leaves out what lies between
            except (OutOfDeviceMemoryError, UnsupportedError):
                pass  # it has no room for that, or no kernel for these elements
        flat = np.empty(span, self.dtype)
        self._storage.device.runtime.read(self._storage.buffer, plain(flat), self._offset * self.dtype.itemsize)
        view = np.ndarray(self.shape, self.dtype, plain(flat), 0, self.strides)
        # Repeated or sparsely used memory would surprise whoever writes to the result.
        return view if dense else view.copy()

    def _is_dense(self) -> bool:
        """Whether the elements lie without gaps and none twice, in whatever order of the axes."""
        want = 1
        for stride, extent in sorted((s, e) for e, s in zip(self.shape, self._strides, strict=True) if e > 1):
            if stride != want:
                return False
            want *= extent
        return True

    def download(self) -> Download:
        """Begin to copy the elements to the host, without waiting; ``download().numpy()`` gives them.

        ``numpy()`` of a tensor waits for all work so far; that of a download for the work that makes the elements, and
        for nothing that comes after: a loop can have its next step under way while it reads the last one's result.
        They are the elements as they are now, also where later work changes them.

        Raises
        ------
        CaptureError
            In a captured function.
        ClosedError
            After the backend was closed.
        """
        device, tensor, size, pending = self._storage.device, self.contiguous(), self.dtype.itemsize, None
        device.check_open()
        if tensor.size:
            pending = device.runtime.download(tensor._storage.buffer, tensor.size * size, tensor._offset * size)
        return Download(device.runtime, pending, tensor.shape, tensor.dtype)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a grilly.Tensor is device memory: it cannot become an array without a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule of the tensor's own memory where ``__dlpack_device__`` is a GPU, else of a copy on the host.

        Parameters
        ----------
        stream : int, optional
            The consumer's stream on the GPU, as the array API standard numbers them. What it is given afterwards comes
            after the work that makes this tensor. None for a copy on the host, which is waited for.
        max_version : tuple of int, optional
            The newest version of DLPack that the consumer knows.
        dl_device : tuple of int, optional
            Where the capsule's memory is to be: ``__dlpack_device__()``, or (1, 0) for a copy on the host.
        copy : bool, optional
            True for memory of its own; with False a copy that is needed is refused.

        Raises
        ------
        BufferError
            For another device, for a copy that is needed where ``copy`` is False, and for a stream of a copy on the
            host.
        """
        exchange = exchange_or_none(self._storage.device)
        if exchange is not None and dl_device in (None, exchange.dlpack_device):
            return exchange.give(self.astype(self.dtype, copy=True) if copy else self, stream)
        if dl_device not in (None, (1, 0)):
            raise BufferError(
                f"__dlpack__: no memory of the device {dl_device}; this tensor's is {self.__dlpack_device__()}, and a "
                "copy can be had on the host, (1, 0)"
            )
        if copy is False:
            raise BufferError("__dlpack__: the host needs a copy of device memory, and copy is False")
        if stream is not None:
            raise BufferError(f"__dlpack__: stream is {stream}; memory of the host has none")
        return capsules.of_host(np.ascontiguousarray(self.numpy()).reshape(self.shape), max_version)

    def __copy__(self) -> Tensor:
        return self._view(self.shape, self._strides)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.astype(self.dtype, copy=True)

    def __reduce__(self) -> Any:
        raise TypeError("a grilly.Tensor is memory of an open device and cannot be pickled; pickle t.numpy()")

    def __dlpack_device__(self) -> tuple[int, int]:
        """Where ``__dlpack__`` has its memory: (2, n), the n-th GPU of CUDA, (10, n), ROCm's, or (1, 0), the host,
        where a copy is.

        It is a GPU once ``grilly.torch`` was imported, where PyTorch's CUDA has the backend's GPU.
        """
        exchange = exchange_or_none(self._storage.device)
        return (1, 0) if exchange is None else exchange.dlpack_device


def reshaped(shape: Sequence[int], strides: Sequence[int], target: Sequence[int]) -> tuple[int, ...] | None:
    """Strides that show ``shape`` with ``strides`` as ``target`` without a copy, or None."""
    # Axes of extent 1 carry no information; runs of axes that lie end to end in memory act as one axis.
    runs: list[list[int]] = []
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if runs and runs[-1][1] == extent * stride:
            runs[-1] = [runs[-1][0] * extent, stride]
        else:
            runs.append([extent, stride])
    result: list[int] = []
    run = 0
    left = runs[0][0] if runs else 1
    for extent in target:
        if extent == 1:
            result.append(0)
            continue
        while left == 1 and run + 1 < len(runs):
            run += 1
            left = runs[run][0]
        if left % extent:
            return None
        left //= extent
        result.append(left * runs[run][1])
    return tuple(result)
