"""Memory that another interface to the same GPU uses too: what a runtime offers for it, and what it asks of the other.

The other interface, CUDA for one, is the *interop*. It has streams of work of its own. Order between them and the
runtime's work is kept at the submissions that use shared memory: each comes after what the other interface's stream had
been given before it, and what the stream is given later comes after the submission.
"""

from __future__ import annotations

import abc
import os
import weakref
from collections import deque
from typing import Any, NamedTuple


class Descriptor:
    """A file descriptor, in the first place of ``box``, that is closed when this goes, unless somebody has taken it.

    The box is there before the driver fills it in, so that an interrupt loses nothing.
    """

    __slots__ = ("box",)

    def __init__(self, box: Any):
        self.box = box  # -1 before and after

    @property
    def number(self) -> int:
        """The descriptor."""
        return self.box[0]

    def taken(self) -> None:
        """Note that it is another's now."""
        self.box[0] = -1

    def __del__(self):
        number, self.box[0] = self.box[0], -1
        if number >= 0:
            os.close(number)


class Allocation(NamedTuple):
    """Memory of the driver's in which shared buffers lie, to be imported once."""

    descriptor: Descriptor
    nbytes: int
    buffer_nbytes: int
    dedicated: bool


class Place(NamedTuple):
    """Where a buffer lies: the allocation, by an object of the runtime's, and the byte in it.

    ``foreign`` is what ``Sharing.keep`` has put there, ``serial`` the last submission that uses the buffer, 0 where
    that has finished.
    """

    block: object
    start: int
    foreign: object
    serial: int


class Loan(weakref.ref):
    """A buffer that is lent to the other interface for as long as the object lives that this refers to; made with a
    callback that appends it to ``Interop.gone``. ``stream`` is the other interface's, which may use the buffer until
    then; ``kept`` is what else lasts as long."""

    __slots__ = ("buffer", "stream", "kept")

    buffer: Any  # the runtime's; this file stands below interface.py
    stream: int
    kept: object


class Interop(abc.ABC):
    """The other interface, called by the runtime, some of it under its lock.

    Attributes
    ----------
    gone : deque of Loan
        Loans that ended. Work that the other interface was given before may still use their buffers.
    timelines : bool
        Whether it can import timeline semaphores.
    """

    gone: deque[Loan]
    timelines: bool

    @abc.abstractmethod
    def current(self) -> int:
        """The stream that the calling thread gives work to."""

    @abc.abstractmethod
    def signal(self, streams: set[int]) -> int:
        """Have the other interface's timeline reach a new value, which this returns, after all that the streams have to
        do."""

    @abc.abstractmethod
    def wait(self, streams: set[int], serial: int) -> None:
        """Have what the streams are given from now on wait for the runtime's timeline to reach ``serial``."""

    @abc.abstractmethod
    def idle(self, streams: set[int], seconds: float) -> bool:
        """Whether the streams have nothing to do; each may be waited for, for so many seconds."""

    @abc.abstractmethod
    def settle(self, streams: set[int]) -> None:
        """Let the host wait until the streams have nothing to do."""

    @abc.abstractmethod
    def ended(self, loan: Loan) -> None:
        """Forget a loan: its buffer is not used any more."""


class Sharing(abc.ABC):
    """What a runtime offers to one other interface. All methods may be called from any thread.

    Attributes
    ----------
    uuid : bytes
        Of the GPU: 16 bytes, in CUDA the same.
    pci : str or None
        The GPU's address as ``domain:bus:device.function`` in hexadecimal; None where the driver does not tell.
    timelines : bool
        Whether order is kept by timeline semaphores that are exported. Where not, the host waits in their place.
    """

    uuid: bytes
    pci: str | None
    timelines: bool

    @abc.abstractmethod
    def connect(self, interop: Interop) -> tuple[Descriptor, Descriptor] | None:
        """Keep order with this peer from now on.

        Returns file descriptors of the runtime's timeline (its submissions) and of the other interface's; None where
        there are none, or the other interface takes none. Raises GrillyError where another peer has joined.
        """

    @abc.abstractmethod
    def part(self) -> None:
        """Undo ``join``; nothing was lent yet."""

    @abc.abstractmethod
    def export(self, block: object) -> Allocation:
        """The allocation of a ``Place``, for the other interface to import."""

    @abc.abstractmethod
    def keep(self, block: object, foreign: object) -> None:
        """Hold what the other interface made of an allocation until the runtime gives the allocation back."""

    @abc.abstractmethod
    def lend(self, buffer: Any, writer: int | None = None) -> Place:
        """Where the other interface finds a buffer, whose work so far is submitted. From now on order is kept where it
        is used.

        With a ``writer``, a stream, also the submission that comes next is put in order with it, whatever it uses.

        Raises UnsupportedError for a buffer of memory that cannot be shared, and CaptureError in a captured function.
        """

    @abc.abstractmethod
    def meet(self, stream: int) -> None:
        """Have the submission that comes next wait for what the stream was given before it is submitted."""


__all__ = ["Allocation", "Descriptor", "Loan", "Interop", "Place", "Sharing"]
