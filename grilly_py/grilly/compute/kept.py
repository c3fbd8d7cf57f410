"""What a backend keeps for the next call, so many of each kind."""

from __future__ import annotations

import threading


class Kept(dict):
    """A dictionary in which ``keep`` lets go of the oldest once there are ``most``.

    Kinds that are kept for different reasons have one each, so that many of one do not push out the others. Threads
    may keep and look up at once.
    """

    def __init__(self, most: int):
        super().__init__()
        self.most = most
        self._lock = threading.Lock()

    def keep(self, key, value):
        """Store the value; returns the one that is kept under the key, which another thread may have stored before."""
        with self._lock:
            if key in self:
                return self[key]
            # The oldest, not the least used: keeping the order of use would slow every hit.
            while len(self) >= self.most:
                del self[next(iter(self))]
            self[key] = value
            return value

    def clear(self) -> None:
        """Let go of all."""
        with self._lock:
            super().clear()
