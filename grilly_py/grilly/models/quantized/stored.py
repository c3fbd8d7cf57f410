"""What methods find in files: matrices, each of several tensors, all of which are checked before they are read."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelError
from ...quantization import QuantizedTensor
from ...quantization.packing import Words
from ..checkpoint import DTYPES, FLOATS, Checkpoint, Entry

#: The format's names of floats that scales may be of.
SCALES = ("F16", "BF16", "F32")
#: The kind of packing.GROUPED of unsigned numbers with scales of a dtype; there is none for those of float32.
UNSIGNED = {(4, "F16"): "UINT4", (8, "F16"): "UINT8", (4, "BF16"): "UINT4_BF16", (8, "BF16"): "UINT8_BF16"}


@dataclass(frozen=True)
class Stored:
    """A quantized matrix, by the name that it would have as floats.

    Attributes
    ----------
    file : Path
    kind : str
        The method, for messages.
    shape : tuple of int
    nbytes : int
        In the files.
    dtype : str
        The dtype that is computed in where none is asked for.
    type : str
        As kernels call it; "" where they do not read it.
    tensor : callable
        Gives the quantized tensor.
    columns : array of int32 or None
        The order of its columns on a device.
    """

    file: Path
    kind: str
    shape: tuple[int, ...]
    nbytes: int
    dtype: str
    type: str
    tensor: Callable[[], QuantizedTensor]
    columns: NDArray[np.int32] | None = None


class Tensors:
    """The tensors of a folder, of which those that belong to quantized matrices are taken away.

    Parameters
    ----------
    checkpoint : Checkpoint
    where : str
        The object in config.json that the folder is read by, for messages.
    """

    def __init__(self, checkpoint: Checkpoint, where: str) -> None:
        self.checkpoint, self.where = checkpoint, where
        self.taken: set[str] = set()

    def before(self, ending: str) -> list[str]:
        """What stands before an ending of names, in the files' order."""
        return [name.removesuffix(ending) for name in self.checkpoint.entries if name.endswith(ending)]

    def has(self, name: str) -> bool:
        """Whether the files have a tensor."""
        return name in self.checkpoint.entries

    def take(self, name: str, kinds: Collection[str], *shapes: tuple[int | None, ...]) -> Entry:
        """A tensor, which must be of one of these dtypes, and have one of these shapes; None stands for any extent.

        Raises ModelError with the file and the name.
        """
        expected = " or ".join(str(["any" if one is None else one for one in shape]) for shape in shapes)
        expected = f"{expected} of {' or '.join(kinds)}"
        found = self.checkpoint.entries.get(name)
        if found is None:
            raise ModelError(f"{self.where}: the tensor {name} is missing; expected one of {expected}")
        if found.kind not in kinds or 0 in found.shape or not any(_fits(shape, found.shape) for shape in shapes):
            raise self.error(name, expected)
        self.taken.add(name)
        return found

    def error(self, name: str, expected: str) -> ModelError:
        """The error for a tensor that is not as the method has it."""
        found = self.checkpoint.entries[name]
        return ModelError(f"{found.file}: {name} has shape {list(found.shape)} of {found.kind}; expected {expected}")

    def wrong(self, name: str, said: str) -> ModelError:
        """The error for the numbers of a tensor."""
        return ModelError(f"{self.checkpoint.entries[name].file}: {name} {said}")

    def drop(self, *names: str) -> None:
        """Tensors that say nothing of the weights, such as scales of activations, where they are there."""
        self.taken.update(name for name in names if self.has(name))

    def array(self, name: str) -> NDArray[Any]:
        """A tensor as it lies in the file."""
        return self.checkpoint.array(name)

    def scales(self, name: str) -> NDArray[Any]:
        """A tensor of `SCALES`: bfloat16 as float32. Raises ModelError for numbers that are infinite or none."""
        found = self.array(name)
        if self.checkpoint.entries[name].kind == "BF16":
            found = (found.astype(np.uint32) << np.uint32(16)).view(np.float32)
        if not np.isfinite(found).all():
            raise self.wrong(name, "has numbers that are infinite or none; expected scales")
        return found

    def words(self, name: str) -> Words:
        """A tensor of int32 as uint32."""
        return self.array(name).view(np.uint32)

    def nbytes(self, *names: str) -> int:
        """Bytes of those of these tensors that are there."""
        return sum(self.checkpoint.entries[name].nbytes for name in names if self.has(name))


def _fits(shape: tuple[int | None, ...], found: tuple[int, ...]) -> bool:
    return len(shape) == len(found) and all(one in (None, two) for one, two in zip(shape, found, strict=True))


def dtype_of_scales(entry: Entry) -> str:
    """The dtype of what is computed with scales."""
    return FLOATS[entry.kind]


def unpacked(words: Words, bits: int) -> NDArray[np.uint8]:
    """Numbers along the last axis, the first in the lowest bits of a word."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    found = words[..., None] >> shifts & np.uint32(2**bits - 1)
    return found.astype(np.uint8).reshape(*words.shape[:-1], -1)


def words_of_bytes(array: NDArray[Any]) -> Words:
    """Rows of bytes as words, with zeros where they do not fill the last one."""
    raw = np.ascontiguousarray(array).view(np.uint8)
    if raw.shape[1] % 4:
        raw = np.pad(raw, ((0, 0), (0, -raw.shape[1] % 4)))
    found: Words = raw.view("<u4")
    return found


__all__ = ["DTYPES", "SCALES", "UNSIGNED", "Stored", "Tensors", "dtype_of_scales", "unpacked", "words_of_bytes"]
