"""Bounded caches of a device: plan caches by plan function, and others declared by the file that fills them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

#: Plans at most of one plan function, on each device.
PLANS = 2048
K = TypeVar("K")
V = TypeVar("V")


class Cache(dict[K, V]):
    """A dictionary in which ``keep`` lets go of the oldest entry once there are ``limit``.

    Each kind of things has a cache of its own: many of one kind do not push out another. Threads and signal handlers
    may keep and look up at once.
    """

    def __init__(self, limit: int):
        super().__init__()
        self.limit = limit
        self._lock = threading.RLock()

    def keep(self, key: K, value: V) -> V:
        """Store the value unless another thread has stored one under the key; returns the kept value.

        A signal handler inside this method gets its value back, not kept.
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


class DeviceCache(Generic[K, V]):
    """The declaration of a cache: one object of this kind for each, in the file that owns it.

    Parameters
    ----------
    name : str
        For printing.
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
        return f"DeviceCache({self.name!r}, {self.limit})"


def limited(limit: int) -> Callable[[Callable], Callable]:
    """Mark a plan function of which a device keeps so many plans at most: its plans have programs of their own."""

    def mark(plan: Callable) -> Callable:
        plan.limit = limit  # type: ignore[attr-defined]
        return plan

    return mark


class Caches(dict):
    """A device's caches, by declaration, and plan caches, by plan function; each is made when it is first asked for."""

    def __missing__(self, cache: DeviceCache | Callable) -> Cache:
        return self.setdefault(cache, Cache(getattr(cache, "limit", PLANS)))

    def forget(self) -> None:
        """Empty them all."""
        for cache in list(self.values()):
            cache.clear()
