"""A lock between processes: one of them at a time holds a file's."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
    import msvcrt

#: Seconds between two attempts. A holder writes one small file.
_PAUSE = 0.01
_BUSY = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)


def _try(descriptor: int) -> bool:
    """Take the lock if it is free. Raises OSError where the file system has none."""
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            os.lseek(descriptor, 0, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        return True
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise


def _release(descriptor: int) -> None:
    if fcntl is None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
    os.close(descriptor)  # which gives flock's lock back; so does the end of the process


@contextlib.contextmanager
def file_lock(path: Path, seconds: float = 10.0) -> Iterator[None]:
    """Hold the lock of ``path``, an empty file that is made and stays.

    On a file system without locks nothing is held: there, changes that two processes make at once may be lost.

    Raises
    ------
    TimeoutError
        When another process held it all these seconds.
    OSError
        When the file cannot be made, or is no regular file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, flags, 0o600)
    held = False
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        end = time.monotonic() + seconds
        try:
            while not (held := _try(descriptor)):
                if time.monotonic() > end:
                    raise TimeoutError(errno.ETIMEDOUT, f"was locked by another process for {seconds:g} s", str(path))
                time.sleep(_PAUSE)
        except TimeoutError:
            raise
        except OSError:
            pass  # no locks on this file system
        yield
    finally:
        if held:
            _release(descriptor)
        else:
            os.close(descriptor)
