"""Sampler: which token comes next, given the logits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .. import array_api as xp
from ..compute import Tensor
from ..compute.device.arrays import NDArray


class Sampler:
    """Chooses tokens; `Generates.generate` documents the numbers.

    Raises
    ------
    ValueError
        For numbers out of their range.
    """

    def __init__(
        self, do_sample: bool, temperature: float, top_k: int | None, top_p: float, repetition_penalty: float,
        seed: int | None,
    ) -> None:  # fmt: skip
        for name, value in (("temperature", temperature), ("repetition_penalty", repetition_penalty)):
            if not 0 < value < math.inf:
                raise ValueError(f"generate: {name} is {value}; expected a finite number above 0")
        if not 0 < top_p <= 1:
            raise ValueError(f"generate: top_p is {top_p}; expected a number above 0, at most 1")
        if top_k is not None and top_k < 0:
            raise ValueError(f"generate: top_k is {top_k}; expected a whole number, or None or 0 for all tokens")
        self.do_sample, self.temperature, self.top_k, self.top_p = do_sample, temperature, top_k or 0, top_p
        self.penalty = repetition_penalty
        self._rng = np.random.default_rng(seed)

    @property
    def looks_back(self) -> bool:
        """Whether the choice depends on the tokens before."""
        return self.penalty != 1

    @property
    def greedy(self) -> bool:
        """Whether the largest logit is all that counts, which the device finds."""
        return not self.do_sample and not self.looks_back

    def plain(self, logits: Tensor) -> Tensor:
        """The place of the largest of each row, ``(B,)``, on the device; the first of equal ones."""
        return xp.argmax(logits, axis=-1)

    def __call__(self, logits: NDArray[np.float32], seen: Sequence[Sequence[int]]) -> NDArray[np.int64]:
        """A token for each row of ``(B, vocab)``, given the tokens before it."""
        return np.array([self._one(row.astype(np.float64), before) for row, before in zip(logits, seen, strict=True)])

    def _one(self, logits: NDArray[np.float64], before: Sequence[int]) -> int:
        if self.looks_back and before:
            found = np.unique(np.array(before))
            logits[found] = np.where(logits[found] < 0, logits[found] * self.penalty, logits[found] / self.penalty)
        if not self.do_sample:
            return int(logits.argmax())
        logits = logits / self.temperature
        order = np.argsort(-logits, kind="stable")
        if self.top_k:
            order = order[: self.top_k]
        shares = np.exp(logits[order] - logits[order[0]])
        sums = np.cumsum(shares / shares.sum())
        if self.top_p < 1:  # all up to the one with which the sum passes top_p
            kept = int(np.searchsorted(sums, self.top_p)) + 1
            order, sums = order[:kept], sums[:kept]
        place = int(np.searchsorted(sums, self._rng.random() * sums[-1], side="right"))
        return int(order[min(place, len(order) - 1)])
