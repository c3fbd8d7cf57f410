"""Compiled binaries in the cache folder, by the hash of everything that they are made of."""

from __future__ import annotations

import contextlib
import hashlib
import time
import warnings
import zlib
from collections.abc import Iterable
from pathlib import Path

from . import files

#: Seconds for which a binary is kept that no checkout has asked for anew: work on several branches shares the folder.
KEPT = 30 * 86400


class Cache:
    """The folder ``shaders`` of the cache folder: one compressed file a binary, called by its key.

    A file is the SHA-256 of the binary and the binary (zlib). Files are replaced whole, so that processes may share the
    folder; a folder that cannot be written is no error.
    """

    def __init__(self, folder: Path | None = None):
        self.folder = files.cache_folder() / "shaders" if folder is None else folder

    def path(self, key: str) -> Path:
        """The file of ``key``."""
        return self.folder / key[:2] / key

    def get(self, key: str) -> bytes | None:
        """The binary, or None where there is none. One that is damaged is named in a RuntimeWarning and made anew."""
        path = self.path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        with contextlib.suppress(zlib.error):
            binary = zlib.decompress(data[32:])
            if hashlib.sha256(binary).digest() == data[:32]:
                return binary
        warnings.warn(f"{path} is damaged (SHA-256); the shader is compiled anew", RuntimeWarning, stacklevel=3)
        return None

    def put(self, key: str, binary: bytes) -> None:
        """Keep a binary, if the folder can be written."""
        with contextlib.suppress(OSError):
            files.replace_file(self.path(key), hashlib.sha256(binary).digest() + zlib.compress(binary, 6))

    def prune(self, used: Iterable[str]) -> None:
        """Remove what is older than KEPT and not of these keys."""
        keep, oldest = set(used), time.time() - KEPT
        for path in self.folder.glob("??/*"):
            with contextlib.suppress(OSError):
                if path.name not in keep and path.stat().st_mtime < oldest:
                    path.unlink()
