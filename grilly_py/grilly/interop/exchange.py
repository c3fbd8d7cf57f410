"""InteropExchange: Tensors as arrays of CUDA or HIP over the same memory, by DLPack, and back."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from ..compute.device import capsules
from ..compute.device.device import Device
from ..compute.device.dtypes import dtype_of, is_storable
from ..compute.device.exchange import Exchange
from ..compute.device.tensor import Storage, Tensor
from ..errors import UnsupportedError
from .driver import Driver
from .ordering import DriverInterop

_OWN, _NONE = (None, 0, 1), -1  # the default stream, and no stream, in DLPack's words


class InteropExchange(Exchange):
    """Tensors of a device in the address space of CUDA or HIP.

    Parameters
    ----------
    device : Device
        Whose runtime can share memory.
    driver : Driver
        On the same GPU.
    current : callable
        The driver's stream that the calling thread gives work to, as a number: grilly's work on shared memory is put in
        order with it. It does not refer to this object.

    Attributes
    ----------
    staged : OrderedDict
        Memory that a caller keeps for its next call.
    """

    def __init__(self, device: Device, driver: Driver, current: Callable[[], int]):
        self.driver = driver
        self.dlpack_device = (driver.dlpack, driver.ordinal)
        self.device = device
        self._sharing = device.runtime.share()
        self.interop = DriverInterop(driver, self._sharing, current)
        self.staged: OrderedDict[tuple, Any] = OrderedDict()
        #: By the addresses that were given out.
        self._storages: weakref.WeakValueDictionary[int, Storage] = weakref.WeakValueDictionary()

    # -- to the other interface
    # -----------------------------------------------------------------------------------------------

    def give(self, tensor: Tensor, stream: int | None) -> Any:
        used = 0 if stream in _OWN else stream
        storage = tensor._storage
        try:
            address, mapped = self.interop.place(storage.buffer, used)
        except UnsupportedError as error:
            raise BufferError(f"__dlpack__: {error}; t.astype(t.dtype, copy=True) lies elsewhere") from error
        storage.shared_at(address)
        itemsize = tensor.dtype.itemsize
        pointer = address + tensor._offset * itemsize
        self._storages[pointer] = storage
        holder = capsules.Holder(pointer, tensor.shape, tensor.strides, itemsize, mapped)
        self.interop.lend(holder, storage.buffer, storage, self.interop.current() if used == _NONE else used)
        return capsules.make(holder, tensor.dtype, self.dlpack_device)

    # -- from the other interface
    # ---------------------------------------------------------------------------------------------

    def over(
        self, base: int, pointer: int, shape: tuple[int, ...], dtype: np.dtype, strides: tuple[int, ...]
    ) -> Tensor | None:
        """A Tensor over memory of grilly's, of which an address was given out as ``base``; None for other memory."""
        storage = self._storages.get(base)
        if storage is None or storage.address is None:
            return None
        offset, rest = divmod(pointer - storage.address, dtype.itemsize)
        return None if rest else Tensor(storage, shape, dtype, strides, offset)

    def copied(
        self, pointer: int, nbytes: int, shape: tuple[int, ...], dtype: np.dtype, strides: tuple[int, ...], stream: int
    ) -> Tensor:
        """A Tensor with the layout of the driver's ``nbytes`` bytes from an address on, copied in stream order."""
        storage = Storage(self.device, nbytes)
        if nbytes:
            storage.shared_at(self.interop.place(storage.buffer, stream, writes=True)[0])
            self.driver.copy(storage.address, pointer, nbytes, stream)
        return Tensor(storage, shape, dtype, strides)

    def take(self, array: Any, copy: bool | None) -> Tensor:
        where = tuple(array.__dlpack_device__())
        if where != self.dlpack_device:
            raise BufferError(
                f"from_dlpack: the array is on the device {where} of DLPack, and the backend's GPU is "
                f"{self.driver.name}'s device {self.dlpack_device}; move it there"
            )
        stream = self.interop.own_stream()
        words, name = capsules.opened(array.__dlpack__(stream=stream))
        dtype = dtype_of(name)
        if not is_storable(dtype):
            raise BufferError(f"from_dlpack: {dtype} cannot live on the device")
        pointer = words.__array_interface__["data"][0]
        strides = tuple(stride // words.itemsize for stride in words.strides)
        found = None if copy or not words.size else self._around(pointer, words.shape, dtype, strides)
        if found is not None:
            self._sharing.meet(stream)
            return found
        if copy is False:
            raise BufferError("from_dlpack: the array's memory is not grilly's, so it needs a copy, and copy is False")
        if any(stride < 0 for stride in strides):
            raise BufferError("from_dlpack: an array with a negative stride; give a copy of it")
        span = 1 + sum((e - 1) * s for e, s in zip(words.shape, strides, strict=True)) if words.size else 0
        made = self.copied(pointer, span * dtype.itemsize, words.shape, dtype, strides, stream)
        self.driver.settle(stream)  # from here on the memory may be another's
        return made if span == made.size else made.contiguous()

    def _around(self, pointer: int, shape: tuple[int, ...], dtype: np.dtype, strides: tuple[int, ...]) -> Tensor | None:
        """As ``over``, with any address within a storage."""
        if min(strides, default=0) < 0:
            return None
        for storage in list(self._storages.values()):
            if storage.address is not None and 0 <= pointer - storage.address < storage.nbytes:
                offset, rest = divmod(pointer - storage.address, dtype.itemsize)
                return None if rest else Tensor(storage, shape, dtype, strides, offset)
        return None


def open_exchange(
    device: Device, interface: type[Driver], current: Callable[[int], Callable[[], int]]
) -> InteropExchange:
    """The exchange of a device with an interface; ``current`` gives, for its number of it, what InteropExchange takes.

    Raises UnsupportedError where runtime, GPU or driver do not allow it.
    """
    driver = interface.open(device.runtime.share())
    return InteropExchange(device, driver, current(driver.ordinal))


__all__ = ["InteropExchange", "open_exchange"]
