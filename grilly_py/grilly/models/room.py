"""What is said where the device has no room: how much what takes, and what takes less."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..compute import Compute
from ..errors import OutOfDeviceMemoryError


def mib(nbytes: int) -> str:
    """Bytes for people."""
    return f"{nbytes / 2**20:.0f} MiB" if nbytes >= 2**20 else f"{nbytes:,} bytes"


@contextmanager
def room(backend: Compute, what: str, nbytes: int, remedy: str) -> Iterator[None]:
    """Inside, ``nbytes`` are taken for ``what``.

    Raises OutOfDeviceMemoryError with both, what is in use already, and the remedy: where the device refuses, and where
    the backend's ``memory_limit`` does not allow it, before anything is taken; what was not known before, afterwards.
    """
    used, limit = backend.memory().in_use, backend.memory_limit
    said = f"{what}, with {mib(used)} in use; {remedy}"

    def check(use: int) -> None:
        if limit is not None and use > limit:
            raise OutOfDeviceMemoryError(f"{said} (memory_limit is {limit:,} bytes, and {use:,} would be in use)")

    check(used + nbytes)
    try:
        yield
    except OutOfDeviceMemoryError as error:
        raise OutOfDeviceMemoryError(f"{said} ({error})") from error
    check(backend.memory().in_use)
