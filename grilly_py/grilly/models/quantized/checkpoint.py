"""The tensors of a folder whose matrices are quantized, by the names that they would have as floats."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelError
from ...quantization import QuantizedTensor
from ..checkpoint import Checkpoint, Entry
from ..config import Config, place_of
from . import awq, bitsandbytes, compressed, floats8, gptq, mxfp4
from .stored import Stored, Tensors

#: Methods by their names in ``quant_method``.
METHODS: dict[str, Callable[[Tensors, Config], dict[str, Stored]]] = {
    "awq": awq.find, "gptq": gptq.find, "compressed-tensors": compressed.find, "bitsandbytes": bitsandbytes.find,
    "fp8": floats8.find, "mxfp4": mxfp4.find,
}  # fmt: skip


class QuantizedCheckpoint:
    """The tensors of a folder, as `grilly.models.checkpoint.Checkpoint` has them.

    Parameters
    ----------
    checkpoint : Checkpoint
    config : Config
        The object ``quantization_config``.

    Attributes
    ----------
    folder : Path
    entries : dict of str to Entry or Stored

    Raises
    ------
    ModelError
        For a method that is not there, options that are not read, and tensors that are missing or of another dtype or
        shape: it names the file and the key.
    """

    def __init__(self, checkpoint: Checkpoint, config: Config) -> None:
        self.folder, self._plain = checkpoint.folder, checkpoint
        old = "bitsandbytes" if {"load_in_4bit", "load_in_8bit"} & config.fields.keys() else None
        method = config.text("quant_method", METHODS, old)
        if method is None:
            raise config.error("quant_method", "one of " + ", ".join(METHODS))
        tensors = Tensors(checkpoint, config.where)
        stored = METHODS[method](tensors, config)
        config.finish()
        if not stored:
            raise ModelError(f"{config.where}: quant_method is {method!r}, and the files have no tensor of it")
        self.entries: dict[str, Entry | Stored] = {
            name: entry for name, entry in checkpoint.entries.items() if name not in tensors.taken
        }
        for name, one in stored.items():
            if name in self.entries:
                raise ModelError(f"{one.file}: {name} is there as floats and as {one.kind}")
            self.entries[name] = one

    def is_idle(self, name: str) -> bool:
        """Whether a tensor is a bias of zeros of a quantized layer, which some programs give to layers without one."""
        stem, _, part = name.rpartition(".")
        if part != "bias" or not isinstance(self.entries.get(f"{stem}.weight"), Stored):
            return False
        entry = self.entries[name]
        return not isinstance(entry, Stored) and entry.dtype is not None and not self._plain.array(name).any()

    def floats(self, name: str) -> NDArray[Any]:
        """A tensor in a dtype that the device has."""
        entry = self.entries[name]
        if not isinstance(entry, Stored):
            return self._plain.floats(name)
        return entry.tensor().dequantize().reshape(entry.shape)

    def is_quantized(self, name: str) -> bool:
        """Whether the files have a tensor quantized."""
        return isinstance(self.entries[name], Stored)

    def nbytes(self, name: str) -> int:
        """A tensor's bytes in the files."""
        return self.entries[name].nbytes

    def is_kept(self, name: str) -> bool:
        """Whether kernels read a tensor as it is."""
        entry = self.entries[name]
        return isinstance(entry, Stored) and entry.type != ""

    def type(self, name: str) -> str:
        """How kernels call the type of one that they read."""
        entry = self.entries[name]
        assert isinstance(entry, Stored)
        return entry.type

    def columns(self, name: str) -> NDArray[np.int32] | None:
        """The order of its columns on the device."""
        entry = self.entries[name]
        return entry.columns if isinstance(entry, Stored) else None

    def quantized(self, name: str) -> QuantizedTensor:
        """A tensor that kernels read."""
        entry = self.entries[name]
        assert isinstance(entry, Stored)
        return entry.tensor()

    def same(self, name: str, other: str) -> bool:
        """Whether two tensors have the same shape and numbers."""
        return np.array_equal(self.floats(name), self.floats(other))


def checkpoint_of(
    folder: Path, fields: dict[str, Any], ignore: Iterable[str] = ()
) -> Checkpoint | QuantizedCheckpoint:
    """The tensors of a folder; ``quantization_config`` is taken out of the fields of its config.json."""
    given = fields.pop("quantization_config", None)
    checkpoint = Checkpoint(folder)
    if given is None:
        return checkpoint
    where = f"{place_of(folder)}: quantization_config"
    if not isinstance(given, dict):
        raise ModelError(f"{where} is {given!r:.100}; expected an object with fields")
    return QuantizedCheckpoint(checkpoint, Config(where, given, ignore))


__all__ = ["METHODS", "QuantizedCheckpoint", "checkpoint_of"]
