"""GGUF files of version 3, memory-mapped. The whole header is checked before anything of a file is used.

The format: the letters GGUF, a version, how many tensors and keys there are; each key with a type and a value; each
tensor's name, shape, type and place; and, from a multiple of the alignment on, the bytes of the tensors
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ModelError
from ...quantization import TYPES, QuantizedTensor
from ...quantization.types import BY_NUMBER
from ..checkpoint import POINTER

MAGIC, VERSION = b"GGUF", 3
#: Types of values, by their numbers in files, and how they are read; elements of arrays likewise.
NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"), 1: np.dtype("i1"), 2: np.dtype("<u2"), 3: np.dtype("<i2"), 4: np.dtype("<u4"),
    5: np.dtype("<i4"), 6: np.dtype("<f4"), 7: np.dtype("?"), 10: np.dtype("<u8"), 11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}  # fmt: skip
TEXT, ARRAY = 8, 9
#: Bounds that no model is near, so that a damaged file is refused before it takes long or much memory.
LONGEST_HEADER, MOST_KEYS, MOST_TENSORS, MOST_TEXTS, LONGEST_NAME = 2**28, 2**16, 2**17, 2**21, 2**16
#: Axes that a tensor has at most.
AXES = 4
#: Names of the parts of a model in several files.
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)", re.DOTALL)


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies: its file, its type, its shape, and its first byte in the file.

    The shape is in NumPy's order: the file has it the other way round.
    """

    file: Path
    type: str
    shape: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return TYPES[self.type].nbytes_of(self.shape)


class GGUF:
    """A GGUF file, or all parts of one in several files. Of tensors nothing is read before `tensor` is called.

    Parameters
    ----------
    path : str or Path
        Of parts, ``NAME-00001-of-00003.gguf`` and so on, any one; the others lie beside it.

    Attributes
    ----------
    path : Path
    keys : dict of str to object
        The values: int, float, bool, str, list of str, or an array of numbers. Of parts the first one's.
    tensors : dict of str to StoredTensor

    Raises
    ------
    ModelError
        For a file that is missing, none of GGUF, truncated, damaged, of another version or byte order; it names the
        file and the byte where that is found.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.keys: dict[str, Any] = {}
        self.tensors: dict[str, StoredTensor] = {}
        self._maps: dict[Path, np.memmap[Any, Any]] = {}
        files = _parts(self.path)
        for number, file in enumerate(files):
            part = _Part(file)
            self._maps[file] = part.map
            said = part.keys.get("split.no", 0), part.keys.get("split.count", 1) or 1
            if said != (number, len(files)):
                raise ModelError(f"{file}: split.no and split.count are {said}; expected {(number, len(files))}, as "
                                 "names of parts are NAME-00001-of-00003.gguf")  # fmt: skip
            for name, tensor in part.tensors.items():
                if name in self.tensors:
                    raise ModelError(f"{file}: tensor {name!r} is in {self.tensors[name].file.name} too")
                self.tensors[name] = tensor
            self.keys = self.keys or part.keys
        count = self.keys.get("split.tensors.count", len(self.tensors))
        if count != len(self.tensors):
            raise ModelError(f"{self.path}: split.tensors.count is {count}, and the parts have {len(self.tensors)}")

    def tensor(self, name: str) -> QuantizedTensor:
        """A tensor as it lies in its file: a read-only view of the mapped memory. Raises ModelError for no name."""
        if name not in self.tensors:
            raise ModelError(f"{self.path} has no tensor {name!r:.100}")
        stored = self.tensors[name]
        raw = np.asarray(self._maps[stored.file])[stored.start : stored.start + stored.nbytes]
        return QuantizedTensor(raw, stored.shape, stored.type)


def _parts(path: Path) -> list[Path]:
    """The files of a model, of which one is given. Raises ModelError for missing ones."""
    if not path.is_file():
        raise ModelError(f"{path} is no file")
    found = PART.fullmatch(path.name)
    if found is None:
        return [path]
    begin, number, count, end = found[1], int(found[2]), int(found[3]), found[4]
    if not 1 <= number <= count:
        raise ModelError(f"{path}: part {number} of {count}; expected one from 1 to {count}")
    files = []
    for each in range(1, count + 1):
        files.append(path.with_name(f"{begin}-{each:05d}-of-{count:05d}{end}"))
        if not files[-1].is_file():
            raise ModelError(f"{path}: part {each} of {count} is missing: {files[-1].name}")
    return files


class _Part:
    """The header of one file.

    Attributes
    ----------
    map : numpy.memmap
        Its bytes.
    keys, tensors : dict
        As in `GGUF`.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._at, self._texts = file, 0, 0
        with open(file, "rb") as opened:
            begin = opened.read(max(len(POINTER), 24))
        if begin.startswith(POINTER):
            raise ModelError(f"{file} is a pointer of Git LFS, not the file itself; run: git lfs pull")
        if begin[: len(MAGIC)] != MAGIC:
            raise ModelError(f"{file} is no GGUF file: it begins with {begin[:4]!r}; expected {MAGIC!r}")
        if len(begin) < 24:
            raise ModelError(f"{file} is truncated: it has {len(begin)} bytes, and a header takes 24")
        self.map: np.memmap[Any, Any] = np.memmap(file, np.uint8, "r")
        self._view, self._size = self.map.data, len(self.map)
        self._at = len(MAGIC)
        version = self._whole(4, "the version")
        if version != VERSION:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            found = "big-endian" if swapped in (1, 2, VERSION) else f"of version {version}"
            raise ModelError(f"{file}: byte 4: the file is {found}; expected version {VERSION}, little-endian")
        count, keys = (self._count(what, each, most) for what, each, most in (
            ("tensors", 24, MOST_TENSORS), ("keys", 13, MOST_KEYS)))  # fmt: skip
        self.keys = self._read_keys(keys)
        self.tensors: dict[str, StoredTensor] = {}
        self._read_tensors(count)

    def _error(self, place: int, said: str) -> ModelError:
        return ModelError(f"{self._file}: byte {place}: {said}")

    def _take(self, nbytes: int, what: str) -> memoryview:
        """The next bytes. Raises ModelError where the file ends before."""
        first, end = self._at, self._at + nbytes
        if end > self._size:
            raise self._error(first, f"the file is truncated: {what} takes {nbytes} bytes, and {self._size - first} "
                              "are left")  # fmt: skip
        if end > LONGEST_HEADER:
            raise self._error(first, f"{what} ends after {end} bytes; a header has at most {LONGEST_HEADER}")
        self._at = end
        return self._view[first:end]

    def _whole(self, nbytes: int, what: str) -> int:
        return int.from_bytes(self._take(nbytes, what), "little")

    def _count(self, what: str, each: int, most: int) -> int:
        """A count of things that take at least ``each`` bytes. Raises ModelError where the file is shorter."""
        place, count = self._at, self._whole(8, f"the number of {what}")
        if count > min(most, (self._size - place) // each):
            raise self._error(place, f"{count} {what}; the file has room for {(self._size - place) // each}, and a "
                              f"model has at most {most}")  # fmt: skip
        return count

    def _text(self, what: str, longest: int = LONGEST_HEADER) -> str:
        place = self._at
        length = self._whole(8, f"the length of {what}")
        if length > longest:
            raise self._error(place, f"{what} has {length} bytes; expected at most {longest}")
        try:
            return str(self._take(length, what), "utf-8")
        except UnicodeDecodeError as error:
            raise self._error(place, f"{what} is no UTF-8: {error.reason}") from None

    def _name(self, what: str, known: dict[str, Any], longest: int = LONGEST_NAME) -> str:
        place = self._at
        name = self._text(what, longest)
        if not name or name in known:
            raise self._error(place, f"{what} is {name!r:.100}; expected one that is not empty, and is there once")
        return name

    def _read_keys(self, count: int) -> dict[str, Any]:
        keys: dict[str, Any] = {}
        for number in range(count):
            name = self._name(f"the name of key {number}", keys)
            place = self._at
            kind = self._whole(4, f"the type of {name}")
            keys[name] = self._value(name, kind, place)
        return keys

    def _value(self, name: str, kind: int, place: int) -> Any:
        if kind == TEXT:
            return self._text(name)
        if kind == ARRAY:
            return self._array(name)
        if kind not in NUMBERS:
            raise self._error(place, f"{name} is of type {kind}; expected one from 0 to 12")
        dtype, place = NUMBERS[kind], self._at
        raw = self._take(dtype.itemsize, name)
        if kind == 7 and raw[0] > 1:
            raise self._error(place, f"{name} is {raw[0]}; expected 0 or 1, for true or false")
        return np.frombuffer(raw, dtype)[0].item()

    def _array(self, name: str) -> Any:
        place = self._at
        kind = self._whole(4, f"the type of {name}")
        if kind != TEXT and kind not in NUMBERS:
            raise self._error(place, f"{name} is an array of type {kind}; expected numbers or texts")
        place, count = self._at, self._whole(8, f"the length of {name}")
        each = 8 if kind == TEXT else NUMBERS[kind].itemsize
        if count > (self._size - self._at) // each:
            raise self._error(place, f"{name} has {count} elements; the file has room for "
                              f"{(self._size - self._at) // each}")  # fmt: skip
        if kind == TEXT:
            self._texts += count
            if self._texts > MOST_TEXTS:
                raise self._error(place, f"{name} has {count} texts; a model has at most {MOST_TEXTS} in all")
            return self._list(name, count)
        array = np.frombuffer(self._take(count * each, name), NUMBERS[kind])
        if kind == 7 and (array.view(np.uint8) > 1).any():
            raise self._error(place, f"{name} has other numbers than 0 and 1, for true and false")
        return array

    def _list(self, name: str, count: int) -> list[str]:
        """A list of texts; there may be hundreds of thousands."""
        found, at, view, end = [], self._at, self._view, min(self._size, LONGEST_HEADER)
        lengths, whole = struct.Struct("<Q").unpack_from, bytes
        try:
            for _ in range(count):
                (length,) = lengths(view, at)
                start = at + 8
                at = start + length
                if at > end:
                    raise self._error(start - 8, f"a text of {name} has {length} bytes, and {end - start} are left")
                found.append(whole(view[start:at]).decode())
        except struct.error:
            raise self._error(at, f"the file is truncated in {name}") from None
        except UnicodeDecodeError as error:
            raise self._error(start - 8, f"a text of {name} is no UTF-8: {error.reason}") from None
        self._at = at
        return found

    def _read_tensors(self, count: int) -> None:
        alignment = self.keys.get("general.alignment", 32)
        if isinstance(alignment, bool) or not isinstance(alignment, int) or not (
            1 <= alignment <= 2**20 and alignment & (alignment - 1) == 0
        ):
            raise ModelError(f"{self._file}: general.alignment is {alignment!r:.100}; expected a power of 2")
        found, end = [], 0
        for number in range(count):
            name = self._name(f"the name of tensor {number}", self.tensors)
            place = self._at
            shape = self._shape(name)
            kind = self._whole(4, f"the type of {name}")
            if kind not in BY_NUMBER:
                raise self._error(place, f"{name} is of type {kind}, which has no name")
            one, offset = BY_NUMBER[kind], self._whole(8, f"the offset of {name}")
            row = shape[-1] if shape else 1
            if row % one.block:
                raise self._error(place, f"{name} has rows of {row}; expected a multiple of {one.block}, the "
                                  f"block of {one.name}")  # fmt: skip
            if offset != end:
                raise self._error(place, f"{name} begins after {offset} bytes; expected {end}, where the tensor before "
                                  f"it ends, at a multiple of {alignment}")  # fmt: skip
            last = offset + one.nbytes_of(shape)
            if last > self._size:
                raise self._error(place, f"{name} of {one.name} {list(shape)} ends after {last} bytes; the file has "
                                  f"{self._size}")  # fmt: skip
            self.tensors[name] = StoredTensor(self._file, one.name, shape, offset)
            found.append(name)
            end = -(-last // alignment) * alignment
        first = -(-self._at // alignment) * alignment
        if not found:
            return
        if first + last > self._size or first + end < self._size:
            raise self._error(self._size, f"the file ends; its tensors end after {first + last} bytes")
        for name in found:
            stored = self.tensors[name]
            self.tensors[name] = StoredTensor(stored.file, stored.type, stored.shape, first + stored.start)

    def _shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape in NumPy's order."""
        place, axes = self._at, self._whole(4, f"the number of axes of {name}")
        if axes > AXES:
            raise self._error(place, f"{name} has {axes} axes; expected at most {AXES}")
        shape = tuple(self._whole(8, f"the shape of {name}") for _ in range(axes))[::-1]
        if not all(shape) or math.prod(shape) >= 2**63:
            raise self._error(place, f"{name} has shape {list(shape)}; expected extents from 1 on, and fewer than "
                              "2**63 elements")  # fmt: skip
        return shape


__all__ = ["GGUF", "StoredTensor"]
