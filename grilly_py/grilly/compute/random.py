"""The seed and offset of dropout and of random arrays where a call gives none."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import CaptureError
from .arrays.promotion import kind_of
from .device.arguments import check_backend
from .device.numbers import integer
from .device.tensor import Tensor

if TYPE_CHECKING:
    from .device.device import Device

# The seed, and the numbers of calls: without a lock, which a signal handler that draws would wait for in vain.
_sequence = 0, itertools.count()


def manual_seed(seed: int) -> None:
    """Start the sequence of dropout masks that calls without a seed of their own draw from.

    Such a call (attention with ``dropout_p`` and no ``dropout_seed``, ``F.dropout``, a layer in training, and
    ``grilly.random``) takes this seed and the number of such calls
    since it was set, as the generator's seed and offset: the same calls in the same order drop the same weights, on any
    device. Without this call the seed is 0, in every process. Calls from several threads share one sequence.

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

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Draw what was drawn from that place on, and go on from the present one afterwards."""
        global _sequence
        now, _sequence = _sequence, (self._seed, itertools.count(self._next))
        try:
            yield
        finally:
            _sequence = now


def seed_of(device: Device, name: str, seed) -> tuple[int, Tensor | None]:
    """A seed's number, and 0 and the tensor where it is one of one integer, which the device reads.

    Raises TypeError for what is neither, and ValueError for a number out of range and a tensor of another backend.
    """
    if isinstance(seed, Tensor):
        if kind_of(seed.dtype) not in ("signed", "unsigned") or seed.size != 1:
            raise TypeError(f"{name}: seed is a tensor of {seed.dtype} and shape {seed.shape}; expected one integer")
        check_backend(name, device, seed)
        return 0, seed
    seed = integer(name, "seed", seed)
    if not 0 <= seed < 2**64:
        raise ValueError(f"{name}: seed is {seed}; expected 0 to 2**64 - 1")
    return seed, None


def with_seed(device: Device | None, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of attention; where they have dropout and no seed, with the next of the sequence.

    An offset that is given stays. Raises as ``drawn``.
    """
    if not options.get("dropout_p") or options.get("dropout_seed") is not None:
        return dict(options)
    seed, offset = drawn(device, name, "give dropout_seed")
    return {"dropout_offset": offset, **options, "dropout_seed": seed}


def drawn(device: Device | None, name: str, cure: str) -> tuple[int, int]:
    """The seed and the offset for one more call; offsets have 32 bits and begin anew after that.

    Without a device nothing is captured.

    Raises
    ------
    CaptureError
        In a captured function, whose replays would all have what is drawn once; ``cure`` is what to call there.
    """
    if device is not None and device.runtime.capturing:
        raise CaptureError(f"{name}: what is drawn in a captured function would be the same in every replay; {cure}")
    seed, calls = _sequence
    return seed, next(calls) % 2**32
