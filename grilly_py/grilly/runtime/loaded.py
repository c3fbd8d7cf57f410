"""Libraries that this process has loaded already, whoever did it."""

from __future__ import annotations

from pathlib import Path

#: HIP's.
HIP = "libamdhip64.so"


def path_of_loaded(name: str) -> str | None:
    """The path of a loaded library whose file name begins so; None where there is none, or no Linux.

    A library that is loaded by this path is the same one, not another copy.
    """
    try:
        lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    for line in lines:
        path = line[line.find("/"):] if "/" in line else ""
        if path.rpartition("/")[2].startswith(name):
            return path
    return None


__all__ = ["HIP", "path_of_loaded"]
