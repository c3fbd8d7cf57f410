"""The number of the last change of any module: captured calls compare it to know whether they are still valid."""

from __future__ import annotations

import itertools

_numbers = itertools.count(1)
_latest = 0


def changed() -> None:
    """Count a change of a module's parts, settings or values."""
    global _latest
    _latest = next(_numbers)  # no number comes twice, so that a thread's change cannot hide another's


def latest() -> int:
    """The number of the last change; no two changes have the same."""
    return _latest
