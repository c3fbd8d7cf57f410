"""Exchange: hands a device's tensors to another interface to the same GPU, and takes arrays from there.

`grilly.interop` has the one for CUDA and HIP. It stands above this file, which knows no more than that there may be
one.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable
from typing import Any

from ...errors import UnsupportedError
from ...runtime.lifetime import hold_over_fork


class Exchange(abc.ABC):
    """Memory of one device that another interface uses too.

    Attributes
    ----------
    dlpack_device : tuple of int
        The device there: its type and number, as DLPack has them.
    """

    dlpack_device: tuple[int, int]

    @abc.abstractmethod
    def give(self, tensor: Any, stream: int | None) -> Any:
        """A DLPack capsule over the memory of a Tensor.

        Work that the stream is given afterwards comes after the work that makes the Tensor; None is the device's
        default stream, and -1 none. While the capsule's memory is in use, grilly's work on it and the other interface's
        are in order.
        """

    @abc.abstractmethod
    def take(self, array: Any, copy: bool | None) -> Any:
        """A Tensor of an array of that interface: over the same memory where it is grilly's, else a copy on the device.

        ``copy`` True always copies; with False a copy that is needed raises BufferError.
        """


_lock = threading.RLock()  # a signal handler may come here in the midst of it
hold_over_fork(_lock)
_open: Callable[[Any], Exchange] | None = None


def provide(opener: Callable[[Any], Exchange], instead: bool = True) -> None:
    """Have devices opened for exchange by ``opener(device)``, which raises UnsupportedError where it cannot.

    ``instead``: of another opener that there is already.
    """
    global _open
    if instead or _open is None:
        _open = opener


def exchange_of(device: Any) -> Exchange:
    """The device's Exchange, opened at the first call. Raises UnsupportedError, with the reason, where it has none."""
    home = device.home
    if home.exchange is None:
        opener = _open
        if opener is None:
            raise UnsupportedError(
                "no other interface to the GPU is in use; import grilly.cuda, or for PyTorch's tensors grilly.torch"
            )
        with _lock:
            if home.exchange is None:
                try:
                    home.exchange = opener(home)
                except UnsupportedError as error:
                    home.exchange = error
    if isinstance(home.exchange, UnsupportedError):
        raise UnsupportedError(str(home.exchange))
    return home.exchange


def exchange_or_none(device: Any) -> Exchange | None:
    """The device's Exchange, or None."""
    try:
        return exchange_of(device)
    except UnsupportedError:
        return None


__all__ = ["Exchange", "exchange_of", "exchange_or_none", "provide"]
