"""Weights of layers that stay in host memory, and are sent to the device whenever they are read."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import nn
from ..compute import Compute, Tensor
from ..compute.device.arrays import NDArray
from ..compute.device.tape import OPEN
from ..compute.quantized import DeviceQuantizedTensor, rows_of
from ..errors import UnsupportedError
from .source import Source, Stored

#: Matrices of one kind that the device has at a time: one is sent while another one is read.
SLOTS = 2
#: The part of the memory that is left for caches and for what calls compute.
SPARE = 1 / 8


def layer_of(name: str) -> str | None:
    """What names of tensors of one layer begin with; None outside of layers."""
    found = re.match(r"(.*?\.)?\d+(?=\.)", name)
    return None if found is None else found[0]


@dataclass
class Offload:
    """The layers whose matrices stay in host memory.

    Attributes
    ----------
    layers : frozenset of str
        What their tensors' names begin with.
    count : int
        Layers of the model in all.
    nbytes : int
        What is sent to the device for each call.
    on_device : int
        Bytes that those of the matrices take which the device has at a time.
    seconds : float
        What sending takes for each call, at the rate that was measured after loading.
    """

    layers: frozenset[str]
    count: int
    nbytes: int
    on_device: int
    seconds: float = 0.0
    _slots: dict[Any, list[tuple[object, Any]]] = field(default_factory=dict, repr=False)

    def has(self, name: str) -> bool:
        """Whether a tensor belongs to one of the layers."""
        return layer_of(name) in self.layers

    def brought(self, one: Offloaded) -> Any:
        """The value of a parameter on the device, until `SLOTS` others of its kind were read."""
        slots = self._slots.setdefault(one.kind, [])
        for place, (owner, value) in enumerate(slots):
            if owner is one.token:
                slots.append(slots.pop(place))
                return value
        value = slots.pop(0)[1] if len(slots) >= SLOTS else one.emptied()
        one.fill(value)
        slots.append((one.token, value))
        return value

    def clear(self) -> None:
        """Give the memory on the device back."""
        self._slots.clear()

    def measure(self, model: nn.Module, backend: Compute) -> None:
        """Find out what sending takes, by the first matrices."""
        found = [one for one in model.parameters() if isinstance(one, Offloaded)][: 4 * SLOTS]
        for one in found:  # memory is made, and kernels of copies
            self.brought(one)
        backend.synchronize()
        start, sent = time.perf_counter(), 0
        for one in found:
            one.fill(self.brought(one))
            sent += one.nbytes
        backend.synchronize()
        self.seconds = (time.perf_counter() - start) * self.nbytes / max(sent, 1)


class Offloaded(Stored):
    """A matrix in host memory. Its ``data`` lies on the device until others of its kind were read."""

    __slots__ = ("_home", "_backend", "_arrays", "_types", "_shape", "_dtype", "kind", "token")

    def __init__(self, data: Any, source: Source, home: Offload) -> None:
        self._home = home
        super().__init__(data, source)

    @property
    def _data(self) -> Any:
        if self._backend.runtime.capturing or OPEN.tapes:
            what = "a captured function" if self._backend.runtime.capturing else "what gradients are taken of"
            raise UnsupportedError(f"layers of this model stay in host memory (offload), which {what} cannot read")
        return self._home.brought(self)

    @_data.setter
    def _data(self, value: Any) -> None:
        if not isinstance(value, (Tensor, DeviceQuantizedTensor)):
            raise TypeError("data: an array for a matrix in host memory (offload); expected a Tensor")
        self._backend, self._shape, self.token = value.backend, tuple(value.shape), object()
        if isinstance(value, Tensor):
            self._dtype, self._types = value.dtype, None
        else:
            self._dtype, self._types = np.dtype(np.float32), value.types
        self._arrays: list[NDArray[Any] | None] = [None if one is None else one.numpy() for one in _parts(value)]
        self.kind = self._types, tuple(None if one is None else (one.shape, one.dtype) for one in self._arrays)

    def emptied(self) -> Any:
        """Memory on the device for a value like this one."""
        arrays = [None if one is None else self._backend.empty(one.shape, one.dtype) for one in self._arrays]
        if self._types is None:
            return arrays[0]
        *own, columns, places = arrays
        return DeviceQuantizedTensor(self._shape, tuple(rows_of(self._types, own)), columns, places)

    def fill(self, value: Any) -> None:
        """Send the numbers to memory of `emptied`."""
        for target, array in zip(_parts(value), self._arrays, strict=True):
            if target is not None and array is not None:
                self._backend.opened.fill(target, array)

    @property
    def nbytes(self) -> int:
        """Bytes in host memory."""
        return sum(array.nbytes for array in self._arrays if array is not None)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent of each axis."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """As of any parameter."""
        return self._dtype

    @property
    def requires_grad(self) -> bool:
        """False: it takes no gradient."""
        return False

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value:
            raise ValueError("requires_grad: a matrix in host memory (offload) has no gradient")

    def __reduce__(self) -> Any:  # a pickled one comes back as an array, as others do
        return Stored, (self.numpy(), self.source)

    def __deepcopy__(self, memo: dict[int, Any]) -> Offloaded:
        new = memo[id(self)] = Offloaded(self._data, self.source, self._home)
        return new


def _parts(value: Any) -> list[Tensor | None]:
    """The arrays of a parameter's value."""
    return [value] if isinstance(value, Tensor) else [*value.arrays, value.columns, value.places]


def planned(sizes: Mapping[str, int], total: int, offload: int | str, room: int) -> Offload | None:
    """Which layers stay in host memory: the last ones, so many, or with "auto" as many as must; None for none.

    Parameters
    ----------
    sizes : mapping of str to int
        Bytes of the matrices of each layer, in their order.
    total : int
        Bytes of all weights.
    offload : int or str
    room : int
        Bytes that the device has for weights.
    """
    names = list(sizes)
    most = min(offload, len(names)) if isinstance(offload, int) else len(names)
    for count in range(0 if offload == "auto" else most, most + 1):
        kept = names[len(names) - count :]
        nbytes = sum(sizes[name] for name in kept)
        on_device = min(SLOTS, count) * max((sizes[name] for name in kept), default=0)
        if offload != "auto" or count == most or total - nbytes + on_device <= room:
            return Offload(frozenset(kept), len(names), nbytes, on_device) if count else None
    return None


__all__ = ["SPARE", "Offload", "Offloaded", "layer_of", "planned"]
