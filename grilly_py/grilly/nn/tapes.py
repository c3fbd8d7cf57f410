"""What modules keep of a forward() for backward(): a tape of it."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np

from ..compute import Tensor
from ..compute.device.device import Stale, under_way
from ..compute.device.dtypes import is_float
from ..compute.device.tape import Entry
from ..compute.device.tensor import AliasStorage, Outline, Storage
from .parameter import Parameter


class _Inside(threading.local):
    """In which forward() a thread is.

    Attributes
    ----------
    forward : "whole", "parts" or None
        "whole": of a module that keeps all of it, so that the modules inside keep nothing. "parts": of a module with a
        ``backward`` of its own, for which the modules inside keep what theirs need.
    on_device : bool
        Whether results stay Tensors, as there is a tape.
    """

    forward: Literal["whole", "parts"] | None = None
    on_device: bool = False


INSIDE = _Inside()


@contextmanager
def inside(forward: Literal["whole", "parts"] | None, on_device: bool) -> Iterator[None]:
    """Be in such a forward()."""
    before = INSIDE.forward, INSIDE.on_device
    INSIDE.forward, INSIDE.on_device = forward, on_device
    try:
        yield
    finally:
        INSIDE.forward, INSIDE.on_device = before


class KeepsNothing:
    """What a module that is given one keeps nothing with: a cache, through which no gradient goes."""


class KeptForward(NamedTuple):
    """What was kept of a forward().

    Attributes
    ----------
    entries : list of Entry
        The tape.
    inputs : dict
        The arrays whose gradients ``backward`` gives, by their names.
    results : list of Tensor
    parameters : list of (Parameter, Tensor)
        With their values on the device.
    host : bool
        Whether the arguments were NumPy's.
    versions : list of (Storage, int)
        Of the memory that gradients are computed of.
    captures : list of Stale
        In which it ran.
    before : KeptForward or None
        Of a captured one: the last that was not, which outlives the capture.
    """

    entries: list[Entry]
    inputs: dict[Any, Tensor]
    results: list[Tensor]
    parameters: list[tuple[Parameter, Tensor]]
    host: bool
    versions: list[tuple[Storage, int]]
    captures: list[Stale]
    before: KeptForward | None

    @property
    def is_changed(self) -> bool:
        """Whether what gradients are computed of was written to since."""
        return changed(self.versions)


def versions(entries: Iterable[Entry]) -> list[tuple[Storage, int]]:
    """The memory that the gradients of a tape are computed of, and how often it was written to."""
    found: dict[Storage, int] = {}
    for entry in entries:
        for array in (*entry.arrays, *entry.results):
            if isinstance(array, Tensor) and not isinstance(array._storage, Outline):
                storage = array._storage
                while isinstance(storage, AliasStorage):
                    storage = storage.of
                found[storage] = storage.version
    return list(found.items())


def changed(versions: Iterable[tuple[Storage, int]]) -> bool:
    """Whether some of the memory was written to since ``versions``."""
    return any(storage.version != version for storage, version in versions)


def captures(found: Collection[Tensor]) -> list[Stale]:
    """The captures under way, by what is noted of them, on the tensors' devices; without tensors on any."""
    if not found:
        return under_way()
    on_devices = (tensor.backend.opened.captured.stale for tensor in found)
    return [stale for stale in dict.fromkeys(on_devices) if stale is not None]


def is_input(value: Any) -> bool:
    """Whether it is an array that gradients are taken by."""
    return isinstance(value, (Tensor, np.ndarray)) and is_float(value.dtype)
