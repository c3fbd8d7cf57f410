"""What ends a runtime besides ``close()``: a fork of the process, and the end of the interpreter.

A driver's threads and locks do not survive a fork, so a child leaves what the parent opened alone for good. At the end
of the interpreter daemon threads may still be calling: each runtime is closed under its own lock, and what is called
after that raises ClosedError.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

from ..errors import ClosedError

CLOSED = "this grilly.Compute() is closed; open a new one"
FORKED = (
    "this grilly.Compute() was opened before the process was forked, and belongs to the parent; open a new one here"
)
ENDED = "the interpreter is ending, and every grilly.Compute() was closed"
PAUSE = 1.0
PATIENCE = 10.0  # seconds for which the end of the interpreter waits for a call of another thread


class Mortal(Protocol):
    """What a runtime lets this module do to it."""

    def before_fork(self) -> None:
        """Take the lock and leave nothing for the driver's threads to do."""

    def after_fork(self, child: bool) -> None:
        """Let go of the lock, if held; in the child, with a lock of its own, forget the device without touching it."""

    def end(self, patience: float) -> None:
        """Close, after at most ``patience`` seconds of waiting for other threads; leave the device open after that."""


_open: weakref.WeakSet[Mortal] = weakref.WeakSet()
_forking: list[Mortal] = []
_ended = False
#: What to add to the error for a device that a forked child cannot open; empty elsewhere.
fork_hint = ""


def track(runtime: Mortal) -> None:
    """Have ``runtime`` ended with the interpreter, and forgotten by forked children."""
    _open.add(runtime)


def hold_over_fork(lock) -> None:
    """Have ``lock`` taken before a fork, so that no other thread is in the middle of what it guards.

    Locks that are taken first of all are given here last: a fork takes them in the opposite order.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


def in_child(action: Callable[[], object]) -> None:
    """Have ``action`` called in each child that is forked from now on, such as a lock's ``_at_fork_reinit``."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=action)


def check_alive() -> None:
    """Raise ClosedError once the interpreter has begun to end."""
    if _ended:
        raise closed(ENDED)


def closed(why: str) -> ClosedError:
    """The exception for a call of what is closed, for one of the reasons above."""
    if _ended and threading.current_thread().daemon:
        time.sleep(PAUSE)  # such a thread ends with the interpreter, any moment now, and its exception would be noise
    return ClosedError(ENDED if _ended else why)


def _before_fork() -> None:
    _forking.clear()
    for runtime in list(_open):
        _forking.append(runtime)
        runtime.before_fork()  # an interrupt ends its waiting for the lock and all that follows, but not the fork


def _after_fork(child: bool) -> None:
    global fork_hint
    if child and _open:
        fork_hint = (
            "This process was forked from one that has a device open, and some drivers, NVIDIA's among them, cannot be "
            "used in such a child. Start it with multiprocessing's \"spawn\" method, or fork before the first use."
        )
        _leave_drivers_alone()
    held = list(_open if child else _forking)
    _forking.clear()
    if child:
        _open.clear()
    for runtime in held:
        runtime.after_fork(child)


def _leave_drivers_alone() -> None:
    """Have this process, a forked child, end without what drivers wanted done at the end of the parent.

    Mesa's handler, for one, waits for the driver's threads, which a child does not have, and hangs or crashes. Handlers
    run from the last to the first, so one that ends the process keeps the older ones from running. Python has done its
    own part by then, and C's files are written out.
    """
    with contextlib.suppress(AttributeError, OSError):  # a C library without these functions
        library = ctypes.CDLL(None)
        library.on_exit(library._exit, None)
        library.__cxa_atexit(library.fflush, None, None)


def _end() -> None:
    global _ended
    _ended = True
    for runtime in list(_open):
        with contextlib.suppress(Exception):
            runtime.end(PATIENCE)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=lambda: _after_fork(False),
        after_in_child=lambda: _after_fork(True),
    )
#: Held while a device is opened. A module that another thread is importing could never be imported in the child.
opening = threading.RLock()
hold_over_fork(opening)
atexit.register(_end)

__all__ = [
    "CLOSED", "ENDED", "FORKED", "check_alive", "closed", "hold_over_fork", "in_child", "opening", "track",
]  # fmt: skip
