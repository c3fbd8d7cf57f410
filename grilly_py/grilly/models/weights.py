"""Weights: the tensors that a model's layers ask for, compared with the files first, then on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import nn
from ..compute import Compute
from ..compute.device.arrays import NDArray, Precision
from ..errors import ModelError
from .checkpoint import FLOATS, Checkpoint

#: Ends of names that older files have beside the weights, with what follows from the configuration.
BUFFERS = ("position_ids", "rotary_emb.inv_freq", "attn.bias", "attn.masked_bias")
#: At most so many names of a kind in a message.
LISTED = 20


class Weights:
    """The tensors below one prefix of a checkpoint's names, as layers ask for them.

    A model is built twice. The first time without a backend: its layers get None for each tensor, and what they ask for
    is noted, so that `check` can compare it with the files. The second time each tensor goes to the device.

    Parameters
    ----------
    checkpoint : Checkpoint
    dtype : numpy.dtype
        Of the tensors on the device.
    backend : grilly.Compute, optional
    report : callable, optional
        Called with the bytes of the files that were read for each tensor.
    precision : str
        "highest" or "high": of the products that layers make with the tensors.
    """

    def __init__(
        self, checkpoint: Checkpoint, dtype: np.dtype[Any], backend: Compute | None = None,
        report: Callable[[int], None] | None = None, precision: Precision = "highest",
    ) -> None:  # fmt: skip
        self.checkpoint, self.precision = checkpoint, precision
        self.dtype = dtype
        self.backend = backend
        self.prefix = ""
        self.asked: dict[str, tuple[int, ...]] = {}
        self.allowed: set[str] = set()
        self._report = report

    @property
    def nbytes(self) -> int:
        """Bytes on the device of all that was asked for."""
        return sum(math.prod(shape) for shape in self.asked.values()) * self.dtype.itemsize

    def at(self, *parts: object) -> Weights:
        """The tensors whose names go on with these parts, joined by dots."""
        below = object.__new__(Weights)
        below.__dict__ |= self.__dict__ | {"prefix": self.prefix + "".join(f"{part}." for part in parts)}
        return below

    def optional(self, prefix: str) -> Weights:
        """The tensors below a prefix that files of the bare model lack."""
        return self.at(prefix) if any(name.startswith(f"{prefix}.") for name in self.checkpoint.entries) else self

    def has(self, name: str) -> bool:
        """Whether the files have a tensor."""
        return self._name(name) in self.checkpoint.entries

    def allow(self, *names: str) -> None:
        """Tensors that files may have although the model does not use them."""
        self.allowed.update(self.prefix + name for name in names)

    def parameter(self, name: str, *shape: int, transposed: bool = False) -> nn.Parameter | None:
        """A tensor of this shape in the model; ``transposed``: its two axes are the other way round in the file."""
        if not shape:  # a number, which becomes an array of one
            name = self._name(name)
            self.asked[name] = ()
            return None if self.backend is None else nn.Parameter(self.backend.tensor(self._read(name).reshape(1)))
        return self.joined([name], [shape[0]], *shape[1:], transposed=transposed)

    def joined(
        self, names: Sequence[str | None], rows: Sequence[int], *rest: int, transposed: bool = False
    ) -> nn.Parameter | None:
        """Tensors of so many rows each, of shape ``rest``, one below the other; zeros where None stands for a name."""
        shapes = [(count, *rest)[::-1] if transposed else (count, *rest) for count in rows]
        for name, shape in zip(names, shapes, strict=True):
            if name is not None:
                self.asked[self._name(name)] = shape
        if self.backend is None:
            return None
        parts = [
            np.zeros(shape, self.dtype) if name is None else self._read(self._name(name))
            for name, shape in zip(names, shapes, strict=True)
        ]
        parts = [part.T for part in parts] if transposed else parts
        whole = np.ascontiguousarray(parts[0]) if len(parts) == 1 else np.concatenate(parts)
        return nn.Parameter(self.backend.tensor(whole))

    def _name(self, name: str) -> str:
        """The name in the files. The oldest ones call a normalisation's weight and bias gamma and beta."""
        full = self.prefix + name
        if full not in self.checkpoint.entries and "LayerNorm." in full:
            old = full.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            return old if old in self.checkpoint.entries else full
        return full

    def _read(self, name: str) -> NDArray[Any]:
        """A tensor in the dtype that the model is loaded in."""
        entry, array = self.checkpoint.entries[name], self.checkpoint.array(name)
        if entry.kind == "BF16":
            if self.dtype.name == "bfloat16":
                array = array.view(self.dtype)
            else:  # the upper half of a float32
                array = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
        with np.errstate(over="ignore"):
            found = array.astype(self.dtype, copy=False)
        if self.dtype.name == "float16" and entry.kind != "F16" and not np.isfinite(found).all():
            raise ModelError(f"{entry.file.name}: {name} has numbers past 65504, which float16 does not hold; "
                             "load with dtype='bfloat16' or 'float32'")  # fmt: skip
        if self._report is not None:
            self._report(entry.nbytes)
        return found

    def check(self) -> None:
        """Compare what was asked for with what the files have.

        Raises ModelError, which lists tensors that are missing, of another shape or dtype, or too many.
        """
        entries = self.checkpoint.entries
        missing = [name for name in self.asked if name not in entries]
        wrong = [
            f"{name} has shape {list(entries[name].shape)} of {entries[name].kind} in {entries[name].file.name}; "
            f"expected {list(shape)} of a floating dtype"
            for name, shape in self.asked.items()
            if name in entries and (entries[name].shape != shape or entries[name].kind not in FLOATS)
        ]
        known = self.asked.keys() | self.allowed
        many = [name for name in entries if name not in known and not name.endswith(BUFFERS)]
        problems = [*_some("missing", missing), *_some("wrong", wrong), *_some("too many", many)]
        if problems:
            raise ModelError(
                f"{self.checkpoint.folder}: the tensors are not those of the configuration:\n" + "\n".join(problems)
            )


def _some(what: str, lines: list[str]) -> list[str]:
    """The first lines of a kind, and how many more there are."""
    more = [f"  {what}: and {len(lines) - LISTED} more"] if len(lines) > LISTED else []
    return [f"  {what}: {line}" for line in lines[:LISTED]] + more
