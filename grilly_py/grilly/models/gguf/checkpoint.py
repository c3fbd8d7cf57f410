"""The tensors of a GGUF file by transformers' names and with transformers' order of rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ModelError
from ...quantization import TYPES, QuantizedTensor
from ...quantization.packing import PACKINGS
from ..checkpoint import from_bits
from ..config import Config
from .config import family_of, keys_of
from .file import GGUF
from .names import WITH_KEYS

#: Types that the device has itself.
OWN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class Entry:
    """A tensor: its file, its type, its shape, its name in the file."""

    file: Path
    kind: str
    shape: tuple[int, ...]
    stored: str

    @property
    def dtype(self) -> str | None:
        """The dtype that it is computed in where none is asked for; None for types that cannot be read."""
        return OWN.get(self.kind, None if TYPES[self.kind].dequantize is None else "float32")

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return TYPES[self.kind].nbytes_of(self.shape)


class GGUFCheckpoint:
    """The tensors of a file, as `grilly.models.checkpoint.Checkpoint` has those of a folder.

    Parameters
    ----------
    gguf : GGUF

    Attributes
    ----------
    folder : Path
        The file, for messages.
    entries : dict of str to Entry

    Raises
    ------
    ModelError
        For an unknown family, and for tensors of types that grilly does not read: all are listed.
    """

    def __init__(self, gguf: GGUF) -> None:
        self.folder, self._gguf, self._family = gguf.path, gguf, family_of(gguf)
        keys = keys_of(gguf)
        query_heads = keys.integer("attention.head_count")
        self._heads = {"q": query_heads, "k": self._key_heads(keys, query_heads)}
        self.entries: dict[str, Entry] = {}
        unread: dict[str, int] = {}
        for name, stored in gguf.tensors.items():
            if name in WITH_KEYS:
                continue
            known = self._family.renamed(name)
            if known in self.entries:
                raise ModelError(f"{stored.file}: {name} and {self.entries[known].stored} are both {known}")
            self.entries[known] = Entry(stored.file, stored.type, stored.shape, name)
            if self.entries[known].dtype is None:
                unread[stored.type] = unread.get(stored.type, 0) + 1
        if unread:
            types = ", ".join(f"{count} of {type}" for type, count in unread.items())
            readable = ", ".join(name for name, one in TYPES.items() if one.dequantize is not None)
            raise ModelError(f"{gguf.path}: tensors of types that cannot be read: {types}; {readable} can")

    @staticmethod
    def _key_heads(keys: Config, query_heads: int) -> int:
        found: int = keys.integer("attention.head_count_kv", query_heads)
        return found

    def floats(self, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        """A tensor in a dtype that the device has: where it can, the mapped memory itself."""
        stored, tensor = self.entries[name].stored, self._gguf.tensor(self.entries[name].stored)
        array: np.ndarray[Any, np.dtype[Any]]
        if tensor.type in OWN:
            array = np.ndarray(tensor.shape, TYPES[tensor.type].layout, tensor.data.data)
            array = from_bits(array) if tensor.type == "BF16" else array
        else:
            array = tensor.dequantize()
        array = self._ordered(stored, array)
        offset = self._family.offset_of(stored)
        return (array.astype(np.float32) - np.float32(offset)) if offset else array

    def is_kept(self, name: str) -> bool:
        """Whether a tensor is a matrix of a type that kernels read."""
        entry = self.entries[name]
        return entry.kind in PACKINGS and len(entry.shape) == 2 and not self._family.offset_of(entry.stored)

    def type(self, name: str) -> str:
        """A tensor's type."""
        return self.entries[name].kind

    def columns(self, name: str) -> None:
        """None: no columns are in another order."""

    def quantized(self, name: str) -> QuantizedTensor:
        """A tensor that kernels read, as it is: where it can, the mapped memory itself."""
        entry = self.entries[name]
        tensor = self._gguf.tensor(entry.stored)
        return QuantizedTensor(self._ordered(entry.stored, tensor.data), tensor.shape, tensor.type)

    def _ordered(self, stored: str, array: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
        """The rows in transformers' order. Files alternate rows of the two halves of each head."""
        if not self._family.is_permuted(stored):
            return array
        heads = self._heads[stored.split(".")[2].removeprefix("attn_")]
        pairs = array.reshape(heads, -1, 2, *array.shape[1:])
        return np.ascontiguousarray(np.swapaxes(pairs, 1, 2)).reshape(array.shape)

    def same(self, name: str, other: str) -> bool:
        """Whether two tensors have the same shape and numbers."""
        return np.array_equal(self.floats(name), self.floats(other))


__all__ = ["GGUFCheckpoint"]
