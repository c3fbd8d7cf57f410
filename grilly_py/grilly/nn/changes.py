"""A count of what was changed in modules, for those who keep what they made of one."""

from __future__ import annotations

import itertools

_numbers = itertools.count(1)
_latest = 0


def changed() -> None:
    """Say that a module, of whichever model, has other parts, settings or values now."""
    global _latest
    _latest = next(_numbers)  # no number comes twice, so that a thread's change cannot hide another's


def latest() -> int:
    """A number that is another one after each change."""
    return _latest
