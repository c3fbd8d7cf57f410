"""Low-rank adapters of linear layers (LoRA, Hu et al. 2021, arXiv:2106.09685)."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
        for name in sorted(adapters, key=self.starts.__getitem__):
            setattr(self, name, adapters[name])

    def named_adapters(self) -> list[tuple[str, Adapter]]:
        """In the order of the outputs that they add to."""
        return [(name, part) for name, part in self.named_children() if isinstance(part, Adapter)]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """``y``, ``(..., outputs)``, and what the adapters make of ``x``."""
        if self.training and self.dropout:
            x = F.dropout(x, self.dropout)
        parts = [part for _, part in self.named_adapters()]
        down, scales = [part.lora_A.on(x.backend) for part in parts], [part.scale for part in parts]
        low = F.linear(x, down[0] if len(down) == 1 else xp.concat(down), precision=self.precision)
        alike = len({*scales}) == 1
        low = low * (scales[0] if alike else np.repeat(scales, [part.rank for part in parts]).astype(low.dtype))
        return y + F.linear(low, self._up(x.backend), precision=self.precision)

    def _up(self, backend: Compute) -> Tensor:
        """The matrices B, each in the rows of its outputs and the columns of its ranks, and zeros elsewhere."""
        parts, rows, row, column = self.named_adapters(), [], 0, 0
        width = sum(part.rank for _, part in parts)
        dtype = parts[0][1].lora_B.dtype

        def zeros(height: int, length: int) -> list[Tensor]:
            shape = (height, length)
            return [xp.zeros(shape, dtype=dtype, device=backend)] if height and length else []

        for name, part in parts:
            rows += zeros(self.starts[name] - row, width)
            b = part.lora_B.on(backend)
            beside = [*zeros(len(b), column), b, *zeros(len(b), width - column - part.rank)]
            rows.append(xp.concat(beside, axis=1) if len(beside) > 1 else b)
            row, column = self.starts[name] + len(b), column + part.rank
        rows += zeros(self.outputs - row, width)
        return xp.concat(rows) if len(rows) > 1 else rows[0]

    def merged_into(self, weight: Tensor) -> Tensor:
        """A weight with what the adapters add, rounded once."""
        wide, parts, row = weight.astype("float32", copy=False), [], 0
        for name, part in self.named_adapters():
            first, last = self.starts[name], self.starts[name] + len(part.lora_B.data)
            parts += [wide[row:first], wide[first:last] + part.delta(weight.backend)]
            row = last
        return xp.concat([part for part in (*parts, wide[row:]) if len(part)]).astype(weight.dtype, copy=False)


def drawn(rng: np.random.Generator, rank: int, inputs: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The first A: evenly spread in plus or minus ``1 / sqrt(inputs)``, as PEFT draws it. B begins as zeros."""
    bound = 1 / math.sqrt(inputs)
    return rng.uniform(-bound, bound, (rank, inputs)).astype(np.float32)


__all__ = ["Adapter", "Adapters", "drawn"]
