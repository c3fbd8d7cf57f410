"""The tensors of a folder's safetensors files, memory-mapped, with everything that is wrong with the files found first.

The format: 8 bytes with the length of a header, least significant first; the header, a JSON object of each tensor's
name, dtype, shape and place; and the bytes of the tensors (https://github.com/huggingface/safetensors).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..compute.device.dtypes import dtype_of
from ..errors import ModelError

#: The format's names of dtypes. A bfloat16 number is read as its 16 bits, one of 8 bits as these.
DTYPES = {
    "F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "I16": np.dtype("<i2"), "I8": np.dtype("i1"),
    "U8": np.dtype("u1"), "BOOL": np.dtype("?"), "F8_E4M3": np.dtype("u1"),
}  # fmt: skip
#: What the floating ones are called elsewhere.
FLOATS = {"F64": "float32", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
#: A header may be this long, so that a file that is none is not read whole.
LONGEST_HEADER = 100_000_000
#: How the text begins that lies in a file's place where a repository was cloned without Git LFS.
POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies: its file, the format's name of its dtype, its shape, and its first byte in the file."""

    file: Path
    kind: str
    shape: tuple[int, ...]
    start: int

    @property
    def dtype(self) -> str | None:
        """What the dtype is called elsewhere, float32 for float64; None for what are no floats."""
        return FLOATS.get(self.kind)

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * DTYPES[self.kind].itemsize


class Checkpoint:
    """The tensors of a folder, by name. Nothing but headers is read before `array` is called.

    Parameters
    ----------
    folder : Path
        With model.safetensors, or model.safetensors.index.json and the files that it names.
    name : str
        What the files have in the place of "model".

    Attributes
    ----------
    entries : dict of str to Entry

    Raises
    ------
    ModelError
        For files that are missing, truncated or damaged; all that is wrong is listed.
    """

    def __init__(self, folder: Path, name: str = "model") -> None:
        self.folder = folder
        self.entries: dict[str, Entry] = {}
        self._maps: dict[Path, np.memmap[Any, Any]] = {}
        problems: list[str] = []
        index = folder / f"{name}.safetensors.index.json"
        single = folder / f"{name}.safetensors"
        if single.is_file():  # also beside an index, which an earlier save may have left
            self._read(single, problems)
        elif index.is_file():
            self._read_shards(index, problems)
        else:
            found = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".h5", ".msgpack"))
            other = f"; {', '.join(found)} cannot be read: save the model as safetensors" if found else ""
            files = sorted(p for p in folder.iterdir() if p.suffix == ".gguf")
            other += f"; a GGUF file is loaded by its own name: {files[0]}" if files else ""
            problems.append(f"neither {single.name} nor {index.name} is there{other}")
        if problems:
            raise ModelError(f"{folder}: the weights cannot be read:\n" + "\n".join(f"  {p}" for p in problems))

    def _read_shards(self, index: Path, problems: list[str]) -> None:
        try:
            places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            files = sorted(set(places.values()))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            problems.append(f"{index.name}: no weight_map of tensors to files ({error!r})")
            return
        for name in files:
            if not isinstance(name, str) or Path(name).name != name:
                problems.append(f"{index.name}: {name!r} is no file beside it")
            elif not (self.folder / name).is_file():
                lost = sum(file == name for file in places.values())
                problems.append(f"{name} is missing, with {lost} tensors")
            elif self._read(self.folder / name, problems):
                for tensor in sorted(t for t, file in places.items() if file == name and t not in self.entries):
                    problems.append(f"{name} lacks {tensor}, which {index.name} says it has")

    def _read(self, file: Path, problems: list[str]) -> bool:
        """Add a file's tensors, or what is wrong with it. Returns whether it says which it has."""
        size = file.stat().st_size
        with open(file, "rb") as opened:
            if opened.read(len(POINTER)) == POINTER:
                problems.append(f"{file.name} is a pointer of Git LFS, not the file itself; run: git lfs pull")
                return False
            opened.seek(0)
            length = int.from_bytes(opened.read(8), "little")
            if size < 8 or not 2 <= length <= min(size - 8, LONGEST_HEADER):
                problems.append(
                    f"{file.name} is truncated or no safetensors file: of its {size} bytes the header would be {length}"
                )
                return False
            try:
                header = json.loads(opened.read(length))
                header.pop("__metadata__", None)
                listed = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                problems.append(f"{file.name}: its header is no JSON object of tensors ({error!r})")
                return False
        first, end, known = 8 + length, 0, len(problems)
        for name, facts in listed:
            try:
                kind, shape, (start, stop) = facts["dtype"], tuple(facts["shape"]), facts["data_offsets"]
                if not all(type(number) is int for number in (*shape, start, stop)):
                    raise TypeError("a shape and offsets are whole numbers")
                wanted = math.prod(shape) * DTYPES[kind].itemsize
            except (KeyError, TypeError, ValueError):
                dtypes = ", ".join(DTYPES)
                problems.append(f"{file.name}: {name} is {facts}; expected dtype (of {dtypes}), shape, data_offsets")
                continue
            if start != end or stop - start != wanted or min(shape, default=0) < 0:
                problems.append(
                    f"{file.name}: {name} of {kind} {list(shape)} takes {wanted} bytes, and has those from {start} to "
                    f"{stop} after {end}"
                )
            if name in self.entries:
                problems.append(f"{file.name}: {name} is in {self.entries[name].file.name} too")
            self.entries[name] = Entry(file, kind, shape, first + start)
            end = stop
        if first + end > size:
            problems.append(f"{file.name} is truncated: {size} bytes, and its tensors need {first + end}")
        elif first + end < size and len(problems) == known:  # as the package safetensors refuses it
            problems.append(f"{file.name} has {size} bytes, and its tensors end after {first + end}")
        return True

    def same(self, name: str, other: str) -> bool:
        """Whether two tensors have the same dtype, shape and bytes."""
        first, second = self.entries[name], self.entries[other]
        if (first.kind, first.shape) != (second.kind, second.shape):
            return False
        a, b = (self.array(which).reshape(-1) for which in (name, other))
        # In pieces, of which each comparison takes memory.
        return all(np.array_equal(a[i : i + 2**24], b[i : i + 2**24], equal_nan=True) for i in range(0, len(a), 2**24))

    def array(self, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        """A tensor as it lies in its file, a read-only view of the mapped memory."""
        entry = self.entries[name]
        if entry.file not in self._maps:
            self._maps[entry.file] = np.memmap(entry.file, np.uint8, "r")
        raw = self._maps[entry.file][entry.start : entry.start + entry.nbytes]
        # A tensor need not lie at a multiple of its elements' size; NumPy reads it there all the same.
        return np.ndarray(entry.shape, DTYPES[entry.kind], raw.data) if entry.nbytes else np.empty(
            entry.shape, DTYPES[entry.kind]
        )  # fmt: skip

    def is_kept(self, name: str) -> bool:
        """Whether kernels read a tensor as it is: nothing is quantized here."""
        return False

    def floats(self, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        """A tensor of floats in a dtype that the device has: where it can, the mapped memory itself."""
        entry, array = self.entries[name], self.array(name)
        if entry.kind == "BF16":
            return from_bits(array)
        return array.astype(np.float32) if entry.kind == "F64" else array


def from_bits(array: np.ndarray[Any, np.dtype[np.uint16]]) -> np.ndarray[Any, np.dtype[Any]]:
    """Bits of bfloat16 numbers as these; as float32 where ml_dtypes is missing, of which they are the upper halves."""
    try:
        return array.view(dtype_of("bfloat16"))
    except ImportError:
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)


def write_safetensors(file: Path, tensors: Mapping[str, np.ndarray[Any, np.dtype[Any]]]) -> None:
    """Write arrays by name, as one file: all of it is there under its name, or what was there before.

    Raises TypeError for an array of a dtype that the format lacks, and OSError where the file cannot be written.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, array in tensors.items():
        kind = "BF16" if array.dtype.name == "bfloat16" else _KINDS.get(array.dtype.newbyteorder("="))
        if kind is None:
            raise TypeError(f"{file.name}: {name} is of {array.dtype}; expected one of {', '.join(DTYPES)}")
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [start, start + array.nbytes]}
        start += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with replaced(file) as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            kind = np.dtype("<u2") if array.dtype.name == "bfloat16" else array.dtype.newbyteorder("<")
            bits = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
            opened.write(np.ascontiguousarray(bits, kind).tobytes())


_KINDS = {dtype.newbyteorder("="): kind for kind, dtype in DTYPES.items() if kind != "BF16"}


@contextlib.contextmanager
def replaced(file: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which has its name when all is written; until then what was there stays."""
    other = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with open(other, "wb") as opened:
            yield opened
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(other, file)
    finally:
        other.unlink(missing_ok=True)
