"""NumPy's files, read and written: regular ones, devices, pipes, and standard output as "-"."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import stat
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, TextIO

import numpy as np

from . import CommandError
from .output import check_writable, is_stream

#: Names of standard output. Opened as a file it would begin again at its first byte, over what was printed.
STDOUT = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
#: The most bytes of a name in a zip file.
LONGEST_NAME = 0xFFFF


def destination(text: str) -> str:
    """An argument's type: a file, or "-" for standard output, whatever name that is given."""
    if not text:
        raise argparse.ArgumentTypeError("expected a file, or - for standard output; the name is empty")
    return "-" if text in STDOUT else text


def beside(file: str, ending: str) -> str:
    """Where a command writes by default. Raises CommandError for a pipe or device, beside which nothing should lie."""
    if file == "-" or (os.path.exists(file) and is_stream(file)):
        said = "standard input" if file == "-" else file
        raise CommandError(f"--output must say where to write; {said} is no file to write beside")
    return f"{file}{ending}"


def check_destination(path: str) -> None:
    """Raise CommandError for where `write_array` and `write_arrays` could not write. Changes nothing."""
    if path != "-":
        check_writable(path)
    elif sys.stdout.isatty():
        raise CommandError("standard output is a terminal, which shows no arrays; send it to a file or a program")
    elif getattr(sys.stdout, "name", None) == os.devnull:  # what `main` puts in the place of a closed one
        raise CommandError("standard output cannot be written: it is closed")
    elif not hasattr(sys.stdout, "buffer"):
        raise CommandError("standard output takes texts alone here; give a file")


def beside_arrays(path: str) -> TextIO:
    """Where lines go that are said of arrays that go to ``path``: standard error where standard output has these."""
    return sys.stderr if path == "-" else sys.stdout


def is_one_array(path: str) -> bool:
    """Whether a destination is a .npy file, which holds one array without a name."""
    return path.lower().endswith(".npy")


def check_names(path: str, names: Sequence[str]) -> None:
    """Raise CommandError for arrays that `write_arrays` could not write by these names."""
    if is_one_array(path):
        if len(set(names)) != 1:
            raise CommandError(f"{path} would hold one array, and there are {len(set(names))}: "
                               f"{', '.join(map(repr, names))}; give a file that ends with .npz")  # fmt: skip
        return
    for name in names:
        other, member = name.removesuffix(".npy"), f"{name}.npy"
        if other != name and other in names:
            why = f"numpy.load gives {other!r} in its place"
        elif zipfile.ZipInfo(member).filename != member:
            why = f"it would become {zipfile.ZipInfo(member).filename.removesuffix('.npy')!r}"
        elif (size := len(member.encode())) > LONGEST_NAME:
            name, why = f"{name[:40]}...", f"it would take {size} bytes of at most {LONGEST_NAME}"
        else:
            continue
        raise CommandError(f"{path} cannot hold an array of the name {name!r}: {why}; rename the output in the model")


def plain(array: np.ndarray) -> np.ndarray:
    """An array of a dtype that NumPy's files know: of ml_dtypes' numbers the same ones as float32, int8 or uint8."""
    if array.dtype == object:  # of texts, which would be written as Python's objects
        return array.astype(str)
    if array.dtype.isbuiltin != 2:  # 2: a dtype of another package
        return array
    return array.astype(next(np.dtype(k) for k in ("i1", "u1", "f4") if np.can_cast(array.dtype, k) or k == "f4"))


def write_array(path: str, array: np.ndarray) -> None:
    """Write a .npy file. Raises CommandError where it cannot be written."""
    with _opened(path) as file:
        np.lib.format.write_array(_Stream(file), array, allow_pickle=False)  # type: ignore[arg-type]


def write_arrays(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an .npz file as numpy.savez does, which takes no array of the name "file"; or one array as .npy.

    Raises CommandError where it cannot be written.
    """
    if is_one_array(path):
        (array,) = arrays.values()
        return write_array(path, array)
    with _opened(path) as file:
        regular = path != "-" and stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        with zipfile.ZipFile(file if regular else _Stream(file), "w") as zipped:  # type: ignore[arg-type]
            for name, array in arrays.items():
                with zipped.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    if path == "-":  # what is wrong with standard output is said as of all that is printed
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        with open(path, "wb") as file:
            yield file
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from error


class _Stream:
    """Takes bytes one after the other, as pipes and devices do: without seek and tell, which some of those only seem
    to have."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.flush = file.flush

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:  # an unbuffered file may take a part
            rest = rest[self._file.write(rest) :]
        return size


def read_array(path: str) -> np.ndarray:
    """The array of a .npy file. Raises CommandError for what is none."""
    found = _read(path)
    if not isinstance(found, np.ndarray):
        raise CommandError(f"{path} holds several arrays; expected an .npy file")
    return found


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name. Raises CommandError for what is none."""
    found = _read(path)
    if isinstance(found, np.ndarray):
        raise CommandError(f"{path} holds one array without a name; expected an .npz file")
    return found


def _read(path: str) -> Any:
    try:
        file = path if os.path.isfile(path) else io.BytesIO(_bytes(path))
        found = np.load(file, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        with found:  # by the names in the zip file: "a" and "a.npy" may both be there
            return {member.removesuffix(".npy"): found[member] for member in found.zip.namelist()}
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # a damaged file's: zipfile, zlib and NumPy raise a dozen kinds
        said = "it is no file of NumPy's" if "pickle" in str(error) else error
        raise CommandError(f"{path} cannot be read: {said}") from error


def _bytes(path: str) -> bytes:
    """What comes from a pipe, in which NumPy cannot seek."""
    with open(path, "rb") as file:
        return file.read()
