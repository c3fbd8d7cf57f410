"""Shaders as a wheel carries them: manifest.json.gz, and archives of compressed blocks.

The folder is written by tools/shaderbuild/pack.py, which says how the archives are laid out.
"""

from __future__ import annotations

import errno
import hashlib
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ShaderError
from ..runtime.files import parse_json, read_file
from ..runtime.spirv import absolute
from .names import HASH_DIGITS, MANIFEST, MANIFEST_SCHEMA
from .shared import differing

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

#: What to do about an installed package that is damaged.
REINSTALL = "reinstall it: pip install --force-reinstall grilly-vulkan"

#: Bytes that unpacking may take; the blocks' dictionaries have 4 MiB.
_MEMORY = 32 << 20


def _pair(value) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(number) is int and number >= 0 for number in value)


def _table(value) -> bool:
    return isinstance(value, dict) and all(type(number) in (int, float) for number in value.values())


_PLACES = {
    "key": lambda value: isinstance(value, str),
    "sha256": lambda value: isinstance(value, str),
    "archive": lambda value: isinstance(value, str) and Path(value).name == value,
    "block": _pair,
    "place": _pair,
}


class Packed:
    """The folder of a wheel.

    Parameters
    ----------
    folder : Path or Traversable
        Holds ``manifest.json.gz`` and the archives; it may lie in a zip file.
    remedy : str
        For messages: what to do when something is missing or damaged.
    """

    def __init__(self, folder: Path | Traversable, remedy: str = REINSTALL):
        self.folder = folder
        self.place = str(folder / MANIFEST)
        self.remedy = remedy
        self._entries: dict[str, dict] = {}

    def entries(self) -> list[dict]:
        """The entries of the manifest. Raises ShaderError when it is missing, damaged or of another version."""
        try:
            data = parse_json(zlib.decompress(self._read_manifest(), wbits=zlib.MAX_WBITS | 16))  # 16: of gzip
        except FileNotFoundError:
            raise ShaderError(f"{self.place} is missing; {self.remedy}") from None
        except (OSError, ValueError, MemoryError, zlib.error) as error:
            raise ShaderError(f"{self.place} cannot be read as JSON: {error}; {self.remedy}") from error
        schema = data.get("schema") if isinstance(data, dict) else None
        if schema != MANIFEST_SCHEMA:
            raise ShaderError(f"{self.place} has schema {schema!r}, this grilly reads {MANIFEST_SCHEMA}; {self.remedy}")
        entries, families, constants = data.get("variants"), data.get("families"), data.get("constants")
        if not isinstance(entries, list):
            raise ShaderError(f"{self.place} lists no variants; {self.remedy}")
        if not isinstance(families, dict) or not all(isinstance(shared, dict) for shared in families.values()):
            raise ShaderError(f"{self.place} lacks families; {self.remedy}")
        if not isinstance(constants, dict) or not all(map(_table, constants.values())):
            raise ShaderError(f"{self.place} lacks constants; {self.remedy}")
        if wrong := differing(constants):
            raise ShaderError(f"{self.place}: {wrong}; {self.remedy}")
        for number, entry in enumerate(entries, 1):
            if not isinstance(entry, dict):
                raise ShaderError(f"{self.place}: entry {number} is no object; {self.remedy}")
            entry.setdefault("defines", {})
            for key, value in families.get(str(entry.get("family")), {}).items():
                entry.setdefault(key, value)
            for key, right in _PLACES.items():
                if key not in entry or not right(entry[key]):
                    what = f"{key!r} is {entry[key]!r}" if key in entry else f"it lacks {key!r}"
                    raise ShaderError(f"{self.place}: entry {number}: {what}; {self.remedy}")
            names = [entry.get(key) for key in ("family", "variant", "case", "dtype")]
            self._entries[".".join(str(name) for name in names if name)] = entry
        return entries

    def _read_manifest(self) -> bytes:
        path = self.folder / MANIFEST
        try:
            data = read_file(path) if isinstance(path, Path) else path.read_bytes()
        except KeyError:  # what zipfile raises for a name that the archive lacks
            data = None
        if data is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
        return data

    def key(self, name: str) -> str:
        """A hash over all that the variant was made from."""
        return self._entries[name]["key"]

    def binary(self, name: str) -> tuple[bytes, str]:
        """The variant's SPIR-V and its SHA-256. Raises ShaderError where it is missing or damaged."""
        try:
            import lzma
        except ImportError as error:  # Python itself was built without it
            raise ShaderError(f"shaders cannot be unpacked: this Python has no module lzma ({error})") from error
        entry = self._entries[name]
        archive = self.folder / entry["archive"]
        (offset, length), (start, size) = entry["block"], entry["place"]
        try:
            if isinstance(archive, Path) and not archive.is_file():  # a pipe would be waited for
                raise FileNotFoundError(errno.ENOENT, "No such file", str(archive))
            with archive.open("rb") as file:
                file.seek(offset)
                block = file.read(length)
        except (OSError, KeyError) as error:
            cause = getattr(error, "strerror", None) or error
            raise ShaderError(f"{archive} cannot be read: {cause}; {self.remedy}") from error
        try:
            # No further than the binary's end; what lies before it must be unpacked.
            unpacked = lzma.LZMADecompressor(memlimit=_MEMORY).decompress(block, start + size)
        except (lzma.LZMAError, EOFError) as error:
            raise ShaderError(f"{archive} is damaged: {name} cannot be unpacked: {error}; {self.remedy}") from error
        try:
            spirv = absolute(unpacked[start:])
        except (ValueError, KeyError) as error:
            raise ShaderError(f"{archive} is damaged: {name} is no shader: {error!r}; {self.remedy}") from error
        digest = hashlib.sha256(spirv).hexdigest()
        begins = digest[:HASH_DIGITS]
        if begins != entry["sha256"]:
            raise ShaderError(
                f"{archive} is damaged: the SHA-256 of {name} begins with {begins}, {MANIFEST} says {entry['sha256']}; "
                f"{self.remedy}"
            )
        return spirv, digest
