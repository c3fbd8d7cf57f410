"""Small JSON files in the folder of per-user files, which hold what was learnt about one device."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import warnings
from pathlib import Path

from .files import cache_folder, parse_json, read_file, replace_file
from .interface import DeviceInfo
from .lifetime import in_child
from .locks import file_lock

_lock = threading.RLock()
in_child(_lock._at_fork_reinit)


class DeviceFile:
    """A JSON file ``<kind>/<device and driver>.json`` in the cache folder: text keys, each with an object.

    Device and driver are told apart by the device's UUID, the driver's UUID and its version, so that a new driver
    begins with an empty file. A device that reports no UUID has no file: it reads as empty, and writing does nothing.

    Parameters
    ----------
    device : DeviceInfo
        The device that the file is about.
    kind : str
        What is kept, also the folder's name.
    schema : int
        Version of the entries' layout; a file of another version is ignored.
    fields : mapping of str to type
        What each entry must hold; others are ignored.
    """

    def __init__(self, device: DeviceInfo, kind: str, schema: int, fields: dict[str, type | tuple[type, ...]]):
        self._schema, self._fields = schema, fields
        about = device.properties
        self._about = {
            "device": device.name,
            "device_uuid": about.get("device_uuid"),
            "driver": device.driver,
            "driver_uuid": about.get("driver_uuid"),
            "driver_version": device.driver_version,
        }
        identity = json.dumps([device.vendor_id, device.device_id, *self._about.values()])
        name = hashlib.sha256(identity.encode()).hexdigest()[:24] + ".json"
        #: The file; None for a device without identity.
        self.path: Path | None = cache_folder() / kind / name if about.get("device_uuid") else None

    def read(self) -> dict[str, dict]:
        """The entries. A file that is damaged or of another version is ignored, with a RuntimeWarning."""
        entries, fault = self._load()
        if fault is not None:
            warnings.warn(f"{self.path} {fault}; ignored, and replaced when next written", RuntimeWarning, stacklevel=3)
        return entries

    def _load(self) -> tuple[dict[str, dict], str | None]:
        """The sound entries, and what is wrong with the file (None: nothing)."""
        if self.path is None:
            return {}, None
        try:
            stored = read_file(self.path)
            if stored is None:
                return {}, None
            data = parse_json(stored)
        except (OSError, ValueError, MemoryError) as error:
            return {}, f"cannot be read ({error})"
        if not isinstance(data, dict) or data.get("schema") != self._schema:
            found = data.get("schema") if isinstance(data, dict) else None
            return {}, f"has schema {found!r}, this grilly reads {self._schema}"
        entries = data.get("entries")
        if any(data.get(name) != value for name, value in self._about.items()) or not isinstance(entries, dict):
            return {}, "is damaged or of another device"
        good = {key: entry for key, entry in entries.items() if self._fits(entry)}
        return good, None if len(good) == len(entries) else f"has {len(entries) - len(good)} damaged entries"

    def _fits(self, entry) -> bool:
        return isinstance(entry, dict) and all(
            isinstance(entry.get(name), kind) and not isinstance(entry[name], bool)
            for name, kind in self._fields.items()
        )

    def update(self, entries: dict[str, dict]) -> None:
        """Add or replace entries, and keep those that other processes wrote.

        Raises OSError where the folder cannot be written, another process holds the file for ten seconds, or a signal
        handler comes here in the midst of it.
        """
        if self.path is None:
            return
        with self._held():
            merged = {**self._load()[0], **entries}
            data = {"schema": self._schema, **self._about, "entries": merged}
            replace_file(self.path, (json.dumps(data, indent=1, sort_keys=True) + "\n").encode())

    def remove(self) -> bool:
        """Delete the file; False where there was none. Raises OSError where it cannot be deleted."""
        if self.path is None or not os.path.lexists(self.path):
            return False
        try:
            with self._held():
                self.path.unlink()
            return True
        except FileNotFoundError:
            return False

    @contextlib.contextmanager
    def _held(self):
        if _lock._is_owned():  # a signal handler came in the midst of it, and would wait for the file's lock in vain
            raise OSError("it is being written by what a signal interrupted")
        with _lock, file_lock(self.path.with_suffix(".lock")):
            yield
