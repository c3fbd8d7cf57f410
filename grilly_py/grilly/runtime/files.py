"""The folder of per-user files, and how files are read and replaced. Imports nothing of grilly: build tools load it."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import tempfile
from pathlib import Path

#: Bytes of a file that ``read_file`` reads at most.
MOST_BYTES = 64 << 20


def cache_folder() -> Path:
    """Where grilly keeps per-user files: ``GRILLY_CACHE_DIR``, or the platform's own cache folder.

    A user without a home folder has one under the folder for temporary files, which only that user can write. Where
    there is none such either, nothing can be written to the path: nothing is kept.
    """
    if chosen := os.environ.get("GRILLY_CACHE_DIR"):
        return Path(chosen)
    try:
        if sys.platform == "win32":
            return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "grilly"
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "grilly"
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grilly"
    except RuntimeError:  # no HOME, and the system does not know the user
        return _temporary_folder()


def _temporary_folder() -> Path:
    nowhere = Path(os.devnull) / "grilly"
    try:
        user = os.getuid() if hasattr(os, "getuid") else 0
        folder = Path(tempfile.gettempdir()) / f"grilly-{user}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        about = folder.lstat()
    except OSError:
        return nowhere
    # Anyone can make a folder of this name before us; drivers trust what lies in it.
    closed = sys.platform == "win32" or about.st_uid == user and not about.st_mode & 0o022
    return folder if closed and stat.S_ISDIR(about.st_mode) else nowhere


def read_file(path: Path, most_bytes: int = MOST_BYTES) -> bytes | None:
    """The bytes of a regular file; None where there is no file.

    Never waits: a pipe or a device in the file's place is not read.

    Raises
    ------
    OSError
        When the file cannot be read, is no regular file, or has more than ``most_bytes``.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise OSError("it is no regular file")
        if about.st_size > most_bytes:
            raise OSError(f"it has {about.st_size:,} bytes, and {most_bytes:,} are read at most")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(most_bytes + 1)
    finally:
        os.close(descriptor)
    if len(data) > most_bytes:
        raise OSError(f"it has more than {most_bytes:,} bytes")
    return data


def parse_json(data: bytes):
    """The JSON value in the bytes. Raises ValueError, also where it is nested too deep."""
    try:
        return json.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that readers see the former contents or all of ``data``. Raises OSError, leaving nothing behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            temporary = file.name
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise
