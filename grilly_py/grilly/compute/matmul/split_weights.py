"""Split weights, kept with the storage that they were made of.

What a captured function splits belongs to its graph, which splits it in each replay. What was split before is used by
the graph as it is, and the graph says so when the weight was written to since.
"""

from __future__ import annotations

import threading
import weakref

from ...runtime.lifetime import in_child
from ..device.caches import DeviceCache
from ..device.device import Device
from ..device.tensor import LentStorage, Storage, Tensor

#: What is kept takes at most this share of the bytes that tensors may take together (``Device.most_memory``).
SHARE = 0.25
#: All storages of split weights of a device, to count their bytes.
_ALL: DeviceCache[str, weakref.WeakSet[Storage]] = DeviceCache("storages of split weights", 1)
_lock = threading.RLock()  # of all that keep() looks through and adds to
in_child(_lock._at_fork_reinit)


def find(weight: Tensor) -> Tensor | None:
    """What ``keep`` was given for this view, where nothing was written to its storage since."""
    storage = weight._storage
    place, device = (weight.shape, weight._strides, weight._offset), storage.device
    captured = device.captured if device.runtime.capturing else None
    if captured is not None:
        version, parts = captured.parts.get((storage, *place), (None, None))
        if version == storage.version:
            return parts
    if storage.derived is None:
        return None
    version, parts = storage.derived.get(place, (None, None))
    if version != storage.version:
        return None
    if captured is not None:
        captured.kept[storage] = version
    return parts


def keep(device: Device, weight: Tensor, parts: Tensor) -> None:
    """Keep the split of a weight for as long as its storage lives, if there is room.

    The bytes count as those of any tensor. Where SHARE would be passed nothing is kept, and calls split anew.
    """
    storage = weight._storage
    place = weight.shape, weight._strides, weight._offset
    if device.runtime.capturing:
        device.captured.parts[(storage, *place)] = storage.version, parts
        return
    # The host, CUDA or a graph may write to it.
    if isinstance(storage, LentStorage) or storage.address is not None or storage.replayed or storage.buffer.replayed:
        return
    if _lock._is_owned():  # type: ignore[attr-defined]
        return  # a signal handler came in the midst of what follows
    with _lock:
        home = device.home
        cache = home.caches[_ALL]
        every = cache.get("all")
        if every is None:
            every = cache.keep("all", weakref.WeakSet())
        if sum(s.nbytes for s in every) + parts._storage.nbytes > SHARE * home.most_memory:
            return
        every.add(parts._storage)
        derived = storage.derived
        if derived is None or any(version != storage.version for version, _ in derived.values()):
            derived = storage.derived = {}
        derived[place] = storage.version, parts
