"""The seed and offset of dropout and of random arrays where a call gives none."""

from __future__ import annotations

import contextlib
import itertools
import operator
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays.promotion import kind_of
from .device.numbers import integer
from .device.tensor import Tensor

if TYPE_CHECKING:
    from .device.device import Device
    from .device.plan import Layout

# The seed, and the numbers of calls: without a lock, which a signal handler that draws would wait for in vain.
_sequence = 0, itertools.count()
#: Of so many calls of a captured function seeds and offsets lie side by side.
_ROWS = 256


def manual_seed(seed: int) -> None:
    """Start the sequence of dropout masks that calls without a seed of their own draw from.

    Such a call (attention with ``dropout_p`` and no ``dropout_seed``, ``F.dropout``, a layer in training, and
    ``grilly.random``) takes this seed and the number of such calls
    since it was set, as the generator's seed and offset: the same calls in the same order drop the same weights, on any
    device. Without this call the seed is 0, in every process. Calls from several threads share one sequence. Such calls
    of a captured function take their numbers in each replay, so replays drop what the function would, called in their
    place.

    Parameters
    ----------
    seed : int
        From 0 to 2**64 - 1.

    Raises
    ------
    TypeError, ValueError
        If the seed is no integer, or outside that range.
    """
    global _sequence
    seed = operator.index(seed)
    if not 0 <= seed < 2**64:
        raise ValueError(f"manual_seed: seed is {seed}; expected 0 to 2**64 - 1")
    _sequence = seed, itertools.count()


class Sequence:
    """The place where the sequence of seeds and offsets is now, to go through it from there once more."""

    def __init__(self) -> None:
        self._seed, calls = _sequence
        self._next = int(repr(calls)[len("count(") : -1])
        self._captured = {device: (draws, draws.count) for device, draws in _OF_THREAD.draws.items()}

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Draw what was drawn from that place on, and go on from the present one afterwards."""
        global _sequence
        now, _sequence = _sequence, (self._seed, itertools.count(self._next))
        draws, counts = _OF_THREAD.draws, [(draws, draws.count) for draws, _ in self._captured.values()]
        try:
            _OF_THREAD.draws = {device: draws.at(count) for device, (draws, count) in self._captured.items()}
            yield
        finally:
            _sequence, _OF_THREAD.draws = now, draws
            for one, count in counts:
                one.at(count)


class _Rows:
    """Seeds and offsets of some calls, in memory of a graph."""

    def __init__(self, device: Device):
        self._tensor = device.empty((_ROWS, 4), np.uint32)
        self.used = 0

    def row(self, number: int) -> Tensor:
        """Those of a call, uint32 (3,): the seed's lower and upper half, and the offset."""
        return self._tensor[number, :3]

    def begin(self, count: int) -> tuple:
        """The write before a replay with so many calls, as of Runtime.replay: the sequence goes on by these."""
        seed, calls = _sequence
        rows = np.zeros((_ROWS, 4), np.uint32)
        rows[:, 0], rows[:, 1] = seed & 0xFFFFFFFF, seed >> 32
        rows[:count, 2] = [next(calls) % 2**32 for _ in range(count)]
        return self._tensor._storage.buffer, rows, 0, rows.nbytes

    def end(self, count: int) -> None:
        """Nothing is left to be done."""


class CapturedDraws:
    """What the calls of a captured function draw from: each replay brings the next seeds and offsets.

    Attributes
    ----------
    count : int
        The calls.
    """

    def __init__(self, device: Device):
        self._device = device
        self._rows: list[_Rows] = []
        self.count = 0

    def next(self) -> Tensor:
        """What one more call draws from."""
        block, row = divmod(self.count, _ROWS)
        if block == len(self._rows):
            self._rows.append(_Rows(self._device))
        rows = self._rows[block]
        if row == rows.used:
            self._device.captured.grown[rows] = rows.used = row + 1
        self.count += 1
        return rows.row(row)

    def at(self, count: int) -> CapturedDraws:
        """Itself, gone to the place after so many calls."""
        self.count = count
        return self


class _OfThread(threading.local):
    """The draws of the captures under way in a thread, one of a device."""

    def __init__(self) -> None:
        self.draws: dict[Device, CapturedDraws] = {}


_OF_THREAD = _OfThread()


@contextlib.contextmanager
def drawn_in_replays(device: Device) -> Iterator[None]:
    """Inside, captured calls without a seed draw in each replay anew."""
    _OF_THREAD.draws[device] = CapturedDraws(device)
    try:
        yield
    finally:
        del _OF_THREAD.draws[device]


def seed_of(name: str, seed, label: str = "seed") -> tuple[int, Tensor | None]:
    """A seed's number, and 0 and the tensor where it is one of one integer or ``is_drawn``, which the device reads.

    Raises TypeError for what is neither, and ValueError for a number out of range.
    """
    if isinstance(seed, Tensor):
        if not is_drawn(seed) and (kind_of(seed.dtype) not in ("signed", "unsigned") or seed.size != 1):
            raise TypeError(f"{name}: {label} is a tensor of {seed.dtype} and shape {seed.shape}; expected one integer")
        return 0, seed
    seed = integer(name, label, seed)
    if not 0 <= seed < 2**64:
        raise ValueError(f"{name}: {label} is {seed}; expected 0 to 2**64 - 1")
    return seed, None


def is_drawn(seed: Tensor | Layout | None) -> bool:
    """Whether a seed is a tensor as ``drawn`` gives it: the seed's halves, and the offset."""
    return seed is not None and seed.shape == (3,) and seed.dtype == np.uint32


def seed_words(seed: Tensor) -> Tensor:
    """The halves of a seed on the device, uint32 (2,); of one that ``drawn`` gave as it is, with the offset."""
    if is_drawn(seed):
        return seed
    whole = seed.astype(np.int64, copy=False)
    return Tensor(whole._storage, (2,), np.dtype(np.uint32), offset=2 * whole._offset)


def with_seed(device: Device | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of attention; where they have dropout and no seed, with what is drawn.

    An offset that is given stays.
    """
    if not options.get("dropout_p") or options.get("dropout_seed") is not None:
        return dict(options)
    seed, offset = drawn(device)
    if isinstance(seed, Tensor) and "dropout_offset" in options:
        seed = Tensor(seed._storage, (), np.dtype(np.int64), offset=seed._offset // 2)
    return {"dropout_offset": offset, **options, "dropout_seed": seed}


def drawn(device: Device | None) -> tuple[int | Tensor, int]:
    """The seed and the offset for one more call; offsets have 32 bits and begin anew after that.

    In a captured function of the device the seed is a tensor of three words, the offset among them. Without a device
    nothing is captured.
    """
    draws = None if device is None else _OF_THREAD.draws.get(device.home)
    if draws is not None:
        return draws.next(), 0
    seed, calls = _sequence
    return seed, next(calls) % 2**32
