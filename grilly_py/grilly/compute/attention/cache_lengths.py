"""How many keys the samples of a cache hold: counted by the host, and on the device for the replays of graphs."""

from __future__ import annotations

import numpy as np

from ...errors import CaptureError
from ..device.device import Device
from ..device.tensor import Tensor

#: What no array's bytes are: the next replay looks at the array anew.
_UNKNOWN = b"?"


class Lengths:
    """Keys that each sample holds, of at most ``room``.

    A replay reads and advances them on the device. The host counts along, so nothing is read back. Changes of the host
    between replays go to the device with the next one. A replay costs the host two integers. After the first use of
    ``shown`` each replay also compares the array: users may write to it.
    """

    __slots__ = ("_device", "room", "_array", "_behind", "_seen", "_most", "_tensor", "_current")

    def __init__(self, device: Device, batch: int, room: int):
        self._device = device.home
        self.room = room
        self._array = np.zeros(batch, np.int32)
        self._behind = 0  # what every sample holds beyond the array
        self._seen: bytes | None = None  # the array as of ``_most``, where others have it
        self._most = 0
        self._tensor: Tensor | None = None
        self._current = False  # whether the device has what the host counts

    def outside(self, what: str) -> None:
        """Raise CaptureError in a captured function, in which the host's count stands still."""
        if self._device.runtime.capturing:
            raise CaptureError(
                f"{what}: a captured function runs once, and a replay would find what it found; lengths that grow are "
                "on the device, where calls with the cache read them. Do it between replays"
            )

    def now(self) -> np.ndarray:
        """The host's count, int32 (B,), to be read at once."""
        if self._behind:
            self._array += self._behind
            self._behind = 0
        return self._array

    def shown(self) -> np.ndarray:
        """The host's count, int32 (B,), for users. They may keep it and write to it: it stays the count."""
        array = self.now()
        if self._seen is None:
            self._seen = _UNKNOWN
        return array

    def grow(self, count: int) -> None:
        """Count keys that were added outside a graph."""
        array = self.now()
        array += count
        self._changed(self._most + count)

    def cut(self, length: int) -> None:
        """Forget what is past so many keys."""
        array = self.now()
        np.minimum(array, length, out=array)
        self._changed(min(self._most, length))

    def checked(self, owner: str, lengths, most: int | None = None) -> np.ndarray:
        """Check lengths, int ``()`` or (B,), from 0 to ``most``, by default the room. Raises ValueError.

        ``owner`` begins the message.
        """
        given, batch, most = np.asarray(lengths), len(self._array), self.room if most is None else most
        if given.dtype.kind not in "iu" or given.shape not in ((), (batch,)):
            raise ValueError(f"{owner}: lengths are {given.dtype} {given.shape}; expected integers ({batch},)")
        if given.size and not 0 <= int(given.min()) <= int(given.max()) <= most:
            raise ValueError(f"{owner}: lengths go from {given.min()} to {given.max()}; expected 0 to {most}")
        return given

    def put(self, lengths: np.ndarray) -> None:
        """Other lengths, int ``()`` or (B,), which were `checked`."""
        self.now()[...] = lengths
        self._changed(int(lengths.max(initial=0)))

    def _changed(self, most: int) -> None:
        self._current, self._most = False, most
        if self._seen is not None:
            self._seen = _UNKNOWN

    def tensor(self) -> Tensor:
        """The device's, int32 (B,), for captured work."""
        if self._tensor is None:
            with self._device.runtime.aside():
                self._tensor = self._device.tensor(self.now())
        return self._tensor

    # -- replays ---------------------------------------------------------------------------------------------------

    def noted(self, count: int) -> None:
        """Note that the captured work advances the device's lengths by so many keys."""
        grown = self._device.captured.grown
        grown[self] = grown.get(self, 0) + count

    def begin(self, count: int) -> tuple | None:
        """The write before a replay of so many new keys, as of Runtime.replay; None for none.

        Raises ValueError when the keys do not fit, and changes nothing then. From here to ``end`` the device's lengths
        count as lost: after a failed replay the next one sends the host's.
        """
        if self._seen is not None and self._seen != (found := self._array.tobytes()):
            least, self._most = int(self._array.min(initial=0)), int(self._array.max(initial=0))
            if least < 0:
                raise ValueError(f"cache: lengths go from {least} to {self._most}; expected 0 to {self.room}")
            self._seen, self._current = found, False
        if self._most + count > self.room:
            raise ValueError(
                f"cache: a sample holds {self._most} tokens and the graph adds {count}; there is room for {self.room}"
            )
        if self._current or not self._array.size:
            self._current = False
            return None
        return self.tensor()._storage.buffer, self.now(), 0, self._array.nbytes

    def end(self, count: int) -> None:
        """Count the keys of a replay that is submitted."""
        if self._seen is None:
            self._behind += count
        else:
            self._array += count
            self._seen = self._array.tobytes()
        self._most += count
        self._current = True


__all__ = ["Lengths"]
