"""The folder of per-user files, and how a file is replaced. Imports nothing of grilly: the build tool loads it too."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Where grilly keeps per-user files: ``GRILLY_CACHE_DIR``, or the platform's own cache folder."""
    if chosen := os.environ.get("GRILLY_CACHE_DIR"):
        return Path(chosen)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "grilly"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "grilly"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grilly"


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
    except OSError:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise
