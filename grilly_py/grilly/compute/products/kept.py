"""Split weights, kept with the storage that they were made of."""

from __future__ import annotations

import weakref

from ..device.caches import Kept
from ..device.device import Device
from ..device.tensor import LentStorage, Storage, Tensor

#: What is kept takes at most this share of the bytes that tensors may take together.
SHARE = 0.25
#: All storages of split weights of a device, to count their bytes.
_ALL: Kept[str, weakref.WeakSet[Storage]] = Kept("storages of split weights", 1)


def find(weight: Tensor) -> Tensor | None:
    """What ``keep`` was given for this view, where nothing was written to its storage since."""
    storage = weight._storage
    if storage.derived is None:
        return None
    version, parts = storage.derived.get((weight.shape, weight._steps, weight._offset), (None, None))
    return parts if version == storage.version else None


def keep(device: Device, weight: Tensor, parts: Tensor) -> None:
    """Keep the split of a weight for as long as its storage lives, if there is room.

    The bytes count as those of any tensor. Where SHARE would be passed nothing is kept, and calls split anew.
    """
    storage = weight._storage
    if isinstance(storage, LentStorage) or storage.address is not None:  # the host, or CUDA, may write to it
        return
    home = device.home
    cache = home.caches[_ALL]
    every = cache.get("all")
    if every is None:
        every = cache.keep("all", weakref.WeakSet())
    most = home.memory_limit
    if most is not None and sum(s.nbytes for s in every) + parts._storage.nbytes > SHARE * most:
        return
    every.add(parts._storage)
    derived = storage.derived
    if derived is None or any(version != storage.version for version, _ in derived.values()):
        derived = storage.derived = {}
    derived[weight.shape, weight._steps, weight._offset] = storage.version, parts
