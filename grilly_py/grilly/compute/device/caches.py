"""What a device keeps from call to call: bounded caches, each declared by the file that fills it."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Cache(dict[K, V]):
    """A dictionary in which ``keep`` lets go of the oldest entry once there are ``limit``.

    Things that are kept for different reasons have one each, so that many of one do not push out the others. Threads
    may keep and look up at once, and so may signal handlers.
    """

    def __init__(self, limit: int):
        super().__init__()
        self.limit = limit
        self._lock = threading.RLock()

    def keep(self, key: K, value: V) -> V:
        """Store the value; returns the one that is kept under the key, which another thread may have stored before.

        In a signal handler that interrupts this very method the value is returned and not kept.
        """
        if self._lock._is_owned():  # type: ignore[attr-defined]
            return value  # a signal handler came in the midst of what follows, under which nothing may change
        with self._lock:
            if key in self:
                return self[key]
            # The oldest, not the least used: keeping the order of use would slow every hit.
            while len(self) >= self.limit:
                del self[next(iter(self))]
            self[key] = value
            return value

    def clear(self) -> None:
        """Let go of all."""
        with self._lock:
            super().clear()


class Kept(Generic[K, V]):
    """The declaration of a cache: one object of this kind for each, in the file that owns it.

    Parameters
    ----------
    name : str
        For people.
    limit : int
        Entries at most, on each device.
    """

    def __init__(self, name: str, limit: int):
        self.name = name
        self.limit = limit

    def of(self, device) -> Cache[K, V]:
        """The cache of a device. Calls that are to be quick write ``device.caches[KEPT]``, which is the same."""
        return device.caches[self]

    def __repr__(self) -> str:
        return f"Kept({self.name!r}, {self.limit})"


class Caches(dict):
    """A device's caches, by declaration; each is made when it is first asked for."""

    def __missing__(self, kept: Kept) -> Cache:
        return self.setdefault(kept, Cache(kept.limit))

    def forget(self) -> None:
        """Empty them all."""
        for cache in list(self.values()):
            cache.clear()
