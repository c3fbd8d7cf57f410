"""Low-rank adapters of linear layers (LoRA, Hu et al. 2021, arXiv:2106.09685)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import array_api as xp
from .. import functional as F
from .. import nn
from ..compute import Compute, Tensor
from ..compute.device.arrays import Precision


class Adapter(nn.Module):
    """``scale B A``, added to a weight ``(outputs, inputs)``.

    Parameters
    ----------
    lora_A, lora_B : array or Tensor
        ``(rank, inputs)`` and ``(outputs, rank)``.
    alpha : float
    rslora : bool
        Whether the scale is ``alpha / sqrt(rank)`` (arXiv:2312.03732) and not ``alpha / rank``.
    """

    def __init__(self, lora_A: Any, lora_B: Any, alpha: float, rslora: bool) -> None:
        super().__init__()
        self.lora_A, self.lora_B = nn.Parameter(lora_A), nn.Parameter(lora_B)
        self.alpha, self.rslora = alpha, rslora

    @property
    def rank(self) -> int:
        """Rows of A, columns of B."""
        return self.lora_A.shape[0]

    @property
    def scale(self) -> float:
        """What the product is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def delta(self, backend: Compute) -> Tensor:
        """``scale B A``, in float32."""
        a, b = (part.on(backend).astype("float32", copy=False) for part in (self.lora_A, self.lora_B))
        return F.linear(b, a.T.contiguous()) * self.scale


class Adapters(nn.Module):
    """The adapters of one linear layer, which may stand for several side by side, as of q, k and v.

    Parameters
    ----------
    adapters : mapping of str to Adapter
    starts : mapping of str to int
        The layer's first output that each adds to.
    outputs : int
        Of the layer.
    dropout : float
        Of the adapters' input, in training.
    precision : str
        Of their products.
    """

    def __init__(
        self, adapters: Mapping[str, Adapter], starts: Mapping[str, int], outputs: int, dropout: float,
        precision: Precision,
    ) -> None:  # fmt: skip
        super().__init__()
        self.starts, self.outputs, self.dropout, self.precision = dict(starts), outputs, dropout, precision
        #: The layer's weight without the adapters, while these are merged into it.
        self.unmerged: Tensor | None = None
        self._owned: Tensor | None = None
        for name in sorted(adapters, key=self.starts.__getitem__):
            setattr(self, name, adapters[name])

    @property
    def rank(self) -> int:
        """The highest of the adapters."""
        return max(part.rank for _, part in self.named_adapters())

    def named_adapters(self) -> list[tuple[str, Adapter]]:
        """In the order of the outputs that they add to."""
        return [(name, part) for name, part in self.named_children() if isinstance(part, Adapter)]

    def forward(self, x: Tensor) -> Tensor:
        """What the adapters make of ``x``, ``(..., outputs)``."""
        if self.training and self.dropout:
            x = F.dropout(x, self.dropout)
        low = F.linear(x, self._down(x.backend), precision=self.precision)
        scales = [part.scale for _, part in self.named_adapters()]
        low = low * (scales[0] if len({*scales}) == 1 else np.repeat(scales, self.rank).astype(low.dtype))
        return F.linear(low, self._up(x.backend), precision=self.precision)

    def _down(self, backend: Compute) -> Tensor:
        """The matrices A one under the other, of as many rows each."""
        return _stacked([_padded(part.lora_A.on(backend), self.rank, 0) for _, part in self.named_adapters()])

    def _up(self, backend: Compute) -> Tensor:
        """The matrices B, each in the rows of its outputs and the columns of its ranks, and zeros elsewhere."""
        parts, stacked, row = self.named_adapters(), [], 0
        for name, part in parts:
            b = _padded(part.lora_B.on(backend), self.rank, 1)
            stacked += [_zeros(b, self.starts[name] - row, 0), b]
            row = self.starts[name] + len(b)
        stacked.append(_zeros(b, self.outputs - row, 0))
        whole = _stacked([part for part in stacked if part is not None])
        if len(parts) == 1:
            return whole
        own = xp.where(self._owners(backend)[:, :, None], whole[:, None, :], 0.0)
        return own.reshape(self.outputs, len(parts) * self.rank)

    def _owners(self, backend: Compute) -> Tensor:
        """Which outputs are of which adapter; ``(outputs, adapters)``."""
        if self._owned is None or self._owned.backend is not backend:
            owned = np.zeros((self.outputs, len(self.named_adapters())), bool)
            for column, (name, part) in enumerate(self.named_adapters()):
                owned[self.starts[name] : self.starts[name] + len(part.lora_B.data), column] = True
            self._owned = backend.tensor(owned)
        return self._owned

    def merged_into(self, weight: Tensor) -> Tensor:
        """A weight with what the adapters add, rounded once."""
        wide, parts, row = weight.astype("float32", copy=False), [], 0
        for name, part in self.named_adapters():
            first, last = self.starts[name], self.starts[name] + len(part.lora_B.data)
            parts += [wide[row:first], wide[first:last] + part.delta(weight.backend)]
            row = last
        return xp.concat([part for part in (*parts, wide[row:]) if len(part)]).astype(weight.dtype, copy=False)


def _zeros(like: Tensor, length: int, axis: int) -> Tensor | None:
    """Zeros of so many rows or columns beside an array; None where there are none."""
    shape = (length, like.shape[1]) if axis == 0 else (like.shape[0], length)
    return xp.zeros(shape, dtype=like.dtype, device=like.backend) if length else None


def _padded(array: Tensor, length: int, axis: int) -> Tensor:
    """An array with zeros behind it, so many rows or columns in all."""
    more = _zeros(array, length - array.shape[axis], axis)
    return array if more is None else xp.concat([array, more], axis=axis)


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else xp.concat(parts)


def drawn(rng: np.random.Generator, rank: int, inputs: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The first A: evenly spread in plus or minus ``1 / sqrt(inputs)``, as PEFT draws it. B begins as zeros."""
    bound = 1 / math.sqrt(inputs)
    return rng.uniform(-bound, bound, (rank, inputs)).astype(np.float32)


__all__ = ["Adapter", "Adapters", "drawn"]
