"""Whose line of code a warning is about."""

from __future__ import annotations

import sys

#: PyTorch's frames lie between grilly's where a call is an operator of it.
_PASSED = ("grilly", "torch")


def callers_level() -> int:
    """The ``stacklevel`` with which `warnings.warn`, called in the same function as this, names the user's line.

    Python shows a warning once for each line: one of grilly's own would be shown once for all.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _PASSED:
        frame, level = frame.f_back, level + 1
    return level
