"""Weights: the tensors that a model's layers ask for, compared with the files first, then on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import array_api as xp
from .. import nn
from ..compute import Compute, Tensor
from ..compute.device.arrays import Precision
from ..compute.quantized import DeviceQuantizedTensor, packed_nbytes, placed
from ..errors import ModelError
from .checkpoint import Checkpoint
from .gguf import GGUFCheckpoint
from .offload import Offload, Offloaded
from .quantized import QuantizedCheckpoint
from .source import Source, Stored

Files = Checkpoint | GGUFCheckpoint | QuantizedCheckpoint
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
    checkpoint : Checkpoint, GGUFCheckpoint or QuantizedCheckpoint
    dtype : numpy.dtype
        Of the tensors on the device.
    backend : grilly.Compute, optional
    report : callable, optional
        Called with the bytes of the files that were read for each tensor.
    precision : str
        "highest" or "high": of the products that layers make with the tensors.
    quantized : bool
        Whether matrices of linear layers and tables of embeddings stay quantized where the files have them so.
    offload : Offload, optional
        The layers whose matrices stay in host memory.
    """

    def __init__(
        self, checkpoint: Files, dtype: np.dtype[Any], backend: Compute | None = None,
        report: Callable[[int], None] | None = None, precision: Precision = "highest", quantized: bool = False,
        offload: Offload | None = None,
    ) -> None:  # fmt: skip
        self.checkpoint, self.precision, self.quantized = checkpoint, precision, quantized
        self.dtype, self.backend, self.offload = dtype, backend, offload
        self.prefix = self.body = ""
        self.asked: dict[str, tuple[int, ...]] = {}
        self.allowed: set[str] = set()
        self.kept: set[str] = set()  # what stays quantized
        self.matrices: set[str] = set()  # of linear layers and embeddings
        self._made: list[Stored] = []
        self._copies: dict[str, str] = {}
        self._report = report
        self._beyond: list[tuple[list[str], Tensor]] = []  # what became float16; did it overflow?

    @property
    def nbytes(self) -> int:
        """Bytes on the device of all that was asked for."""
        return sum(self.nbytes_of(name) for name in self.asked)

    def nbytes_of(self, name: str) -> int:
        """Bytes on the device of a tensor that was asked for."""
        shape = self.asked[name]
        if name in self.kept and not isinstance(self.checkpoint, Checkpoint):
            return packed_nbytes(self.checkpoint.type(name), shape)
        return math.prod(shape) * self.dtype.itemsize

    def at(self, *parts: object) -> Weights:
        """The tensors whose names go on with these parts, joined by dots."""
        below = object.__new__(Weights)
        below.__dict__ |= self.__dict__ | {"prefix": self.prefix + "".join(f"{part}." for part in parts)}
        return below

    def optional(self, prefix: str) -> Weights:
        """The tensors below a prefix that files of the bare model lack."""
        below = self.at(prefix) if any(name.startswith(f"{prefix}.") for name in self.checkpoint.entries) else self.at()
        below.body = f"{prefix}."
        return below

    def has(self, name: str) -> bool:
        """Whether the files have a tensor."""
        return self.name(name) in self.checkpoint.entries

    def allow(self, *names: str, copies: str | None = None) -> None:
        """Tensors that files may have although the model does not use them.

        ``copies``: the name in the files (`name`) of the one that they repeat. `check` refuses them where they do not.
        """
        self.allowed.update(self.prefix + name for name in names)
        if copies is not None:
            self._copies |= {self.prefix + name: copies for name in names}

    def allow_below(self, *beginnings: str) -> None:
        """Tensors whose names begin so, as `allow`."""
        full = tuple(self.prefix + beginning for beginning in beginnings)
        self.allowed.update(name for name in self.checkpoint.entries if name.startswith(full))

    def parameter(self, name: str, *shape: int, quantized: bool = False) -> nn.Parameter | None:
        """A tensor of this shape; `quantized` as of `joined`."""
        if not shape:  # a number, which becomes an array of one
            name = self.name(name)
            self.asked[name] = ()
            if self.backend is None:
                return None
            return self._stored(self._sent([name], [1], (1,)), Source((name,), (1,), ((),), False, self.body))
        return self.joined([name], [shape[0]], *shape[1:], quantized=quantized)

    def joined(
        self, names: Sequence[str | None], rows: Sequence[int], *rest: int, transposed: bool = False,
        quantized: bool = False,
    ) -> nn.Parameter | None:  # fmt: skip
        """Tensors of so many rows each, of shape ``rest``, one below the other; zeros where None stands for a name.

        ``transposed``: the one tensor has its two axes the other way round in the file. ``quantized``: the layer takes
        them quantized too.
        """
        shapes = [(count, *rest)[::-1] if transposed else (count, *rest) for count in rows]
        for name, shape in zip(names, shapes, strict=True):
            if name is not None:
                self.asked[self.name(name)] = shape
        full = [None if name is None else self.name(name) for name in names]
        source = Source(tuple(full), tuple(rows), tuple(shapes), transposed, self.body)
        if quantized:
            self.matrices.update(name for name in full if name is not None)
        found: Any
        if quantized and self.quantized and not transposed and (kept := self._kept(full)):
            found = self._placed(kept, (sum(rows), *rest))
        elif self.backend is None:
            found = None
        elif transposed:
            assert len(full) == 1
            found = self._sent(full, [shapes[0][0]], shapes[0], transposed=True)
        else:
            found = self._sent(full, rows, (sum(rows), *rest))
        if found is None:
            return None
        if quantized and self.offload is not None and all(self.offload.has(str(name)) for name in full):
            return Offloaded(found, source, self.offload)
        return self._stored(found, source)

    def _stored(self, data: Any, source: Source) -> Stored:
        self._made.append(Stored(data, source))
        return self._made[-1]

    def give_up(self) -> None:
        """Give back the device's memory, whoever still holds the parameters, such as an error's frames."""
        for parameter in self._made:
            parameter.data = np.empty(0, parameter.dtype)
        self._beyond.clear()
        if self.offload is not None:
            self.offload.clear()

    def _kept(self, names: Sequence[str | None]) -> list[str]:
        """These tensors, if all stay quantized, with columns in one order; else none."""
        files, found = self.checkpoint, [name for name in names if name is not None and name in self.checkpoint.entries]
        if isinstance(files, Checkpoint) or len(found) < len(names) or not all(files.is_kept(name) for name in found):
            return []
        orders = [files.columns(name) for name in found]
        return found if all(np.array_equal(order, orders[0]) for order in orders) else []

    def _placed(self, names: Sequence[str], shape: tuple[int, ...]) -> DeviceQuantizedTensor | None:
        """Tensors that stay quantized, one below the other."""
        assert not isinstance(self.checkpoint, Checkpoint)
        if self.backend is None:
            self.kept.update(names)
            return None
        found = placed(self.backend.opened, *(self.checkpoint.quantized(name) for name in names), shape=shape)
        self._read(names)
        return found

    def _read(self, names: Sequence[str | None]) -> None:
        """Tell that tensors were read."""
        if self._report is not None:
            self._report(sum(self.checkpoint.entries[name].nbytes for name in names if name is not None))

    def name(self, name: str) -> str:
        """The name in the files. The oldest ones call a normalisation's weight and bias gamma and beta."""
        full = self.prefix + name
        if full not in self.checkpoint.entries and "LayerNorm." in full:
            old = full.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            return old if old in self.checkpoint.entries else full
        return full

    def _sent(
        self, names: Sequence[str | None], rows: Sequence[int], shape: tuple[int, ...], transposed: bool = False
    ) -> Tensor:
        """Tensors of the files, side by side on the device, which converts and turns them where it must."""
        assert self.backend is not None
        arrays = [None if name is None else self.checkpoint.floats(name) for name in names]
        kinds = {array.dtype for array in arrays if array is not None}
        kind = kinds.pop() if len(kinds) == 1 else np.dtype(np.float32)
        whole, first = self.backend.empty(shape, kind), 0
        for array, count in zip(arrays, rows, strict=True):
            part = whole[first : first + count]
            if array is None:
                part[...] = 0
            else:
                self.backend.opened.fill(part, array.reshape(part.shape).astype(kind, copy=False))
            first += count
        whole = (whole.T if transposed else whole).astype(self.dtype, copy=False).contiguous()
        if self.dtype.name == "float16" and any(array is not None and array.dtype != self.dtype for array in arrays):
            self._beyond.append(([name for name in names if name is not None], xp.any(xp.isinf(whole))))
        self._read(names)
        return whole

    def finish(self) -> None:
        """Raise ModelError for numbers that the dtype does not hold, which the device found."""
        beyond = [name for names, infinite in self._beyond if infinite for name in names]
        if beyond:
            lines = _some("beyond", [f"{name} in {self.checkpoint.entries[name].file.name}" for name in beyond])
            raise ModelError(
                f"{self.checkpoint.folder}: numbers past 65504, which float16 does not hold; load with "
                "dtype='bfloat16' or 'float32':\n" + "\n".join(lines)
            )

    def check(self) -> list[str]:
        """Compare what was asked for with what the files have, and give the names of tensors that are not used.

        Raises ModelError for tensors that are missing, or of another shape or dtype. It lists them, and beside them
        those that are too many: a name that is not the expected one is among both.
        """
        entries = self.checkpoint.entries
        missing = [name for name in self.asked if name not in entries]
        wrong = [
            f"{name} has shape {list(entries[name].shape)} of {entries[name].kind} in {entries[name].file.name}; "
            f"expected {list(shape)} of a floating dtype"
            for name, shape in self.asked.items()
            if name in entries and (entries[name].shape != shape or entries[name].dtype is None)
        ]
        wrong += [
            f"{name} differs from {of}, which it should repeat in a model whose configuration ties the two"
            for name, of in self._copies.items()
            if name in entries and of in entries and not self.checkpoint.same(name, of)
        ]
        known = self.asked.keys() | self.allowed
        unused = [name for name in entries if name not in known and not name.endswith(BUFFERS)]
        if isinstance(self.checkpoint, QuantizedCheckpoint):
            unused = [name for name in unused if not self.checkpoint.is_idle(name)]
        many = [f"{name} in {entries[name].file.name}" for name in unused]
        if missing or wrong:
            problems = [*_some("missing", missing), *_some("wrong", wrong), *_some("too many", many)]
            raise ModelError(
                f"{self.checkpoint.folder}: the tensors are not those of the configuration:\n" + "\n".join(problems)
            )
        return unused


def _some(what: str, lines: list[str]) -> list[str]:
    """The first lines of a kind, and how many more there are."""
    more = [f"  {what}: and {len(lines) - LISTED} more"] if len(lines) > LISTED else []
    return [f"  {what}: {line}" for line in lines[:LISTED]] + more
