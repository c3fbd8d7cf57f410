"""Sampler: which token comes next, chosen on the device from the logits; one number for each text comes back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import array_api as xp
from .. import functional as F
from ..compute import Compute, Tensor
from ..compute.device.arrays import NDArray

#: Of how many of the likeliest tokens one is drawn by default, as in transformers.
LIKELIEST = 50
#: How tokens are drawn where neither the call nor the folder says it.
PLAIN: Mapping[str, Any] = {"temperature": 1.0, "top_k": LIKELIEST, "top_p": 1.0}


def for_sampling(said: Sequence[str]) -> str:
    """What is wrong where these are given, and tokens are not sampled."""
    return f"{' and '.join(said)} {'are' if len(said) > 1 else 'is'} for sampling"


class Sampler:
    """Chooses tokens; `Generates.generate` documents the numbers.

    Raises
    ------
    ValueError
        For numbers out of their range, and numbers for sampling where tokens are not sampled.
    """

    def __init__(
        self, do_sample: bool, temperature: float, top_k: int, top_p: float, repetition_penalty: float,
        seed: int | None,
    ) -> None:  # fmt: skip
        for name, value in (("temperature", temperature), ("repetition_penalty", repetition_penalty)):
            if not _number(value) or not 0 < value < math.inf:
                greedy = "; without do_sample the likeliest token is taken" if name == "temperature" else ""
                raise ValueError(f"generate: {name} is {value!r}; expected a finite number above 0{greedy}")
        if not _number(top_p) or not 0 < top_p <= 1:
            raise ValueError(f"generate: top_p is {top_p!r}; expected a number above 0, at most 1")
        if not hasattr(top_k, "__index__") or top_k < 0:
            raise ValueError(f"generate: top_k is {top_k!r}; expected a whole number, or 0 for all tokens")
        self.do_sample, self.temperature, self.top_k, self.top_p = do_sample, temperature, top_k, top_p
        self.penalty = repetition_penalty
        try:
            self._rng = np.random.default_rng(seed)
        except (TypeError, ValueError):
            raise ValueError(f"generate: seed is {seed!r}; expected a whole number, at least 0, or None") from None
        changed = {"temperature": temperature != 1, "top_k": top_k not in (0, LIKELIEST), "top_p": top_p != 1,
                   "seed": seed is not None}  # fmt: skip
        said = [name for name, given in changed.items() if given]
        if said and not do_sample:
            raise ValueError(f"generate: {for_sampling(said)}; give do_sample=True too")

    def draws(self, batch: int) -> NDArray[np.float32] | None:
        """Numbers from 0 to below 1, ``(B, 1)``, by which tokens are drawn; None where none are."""
        if not self.do_sample:
            return None
        return (self._rng.integers(0, 2**24, (batch, 1)) / 2**24).astype(np.float32)

    def seen(self, backend: Compute, texts: list[NDArray[np.int64]], rows: int) -> Tensor | None:
        """Which tokens each text has, bool ``(B, vocab)``; None where that does not matter."""
        if self.penalty == 1:
            return None
        found = np.zeros((len(texts), rows), bool)
        for row, text in zip(found, texts, strict=True):
            row[text] = True
        return backend.tensor(found)

    def __call__(self, logits: Tensor, draws: Tensor | None = None, seen: Tensor | None = None) -> Tensor:
        """A token of each text, ``(B,)``, of logits ``(B, vocab)``."""
        if seen is not None:
            logits = logits.astype("float32", copy=False)
            logits = xp.where(seen, xp.where(logits < 0, logits * self.penalty, logits / self.penalty), logits)
        if draws is None:
            return xp.argmax(logits, axis=-1)  # the first of equal ones
        rows = logits.shape[-1]
        count = min(self.top_k or rows, rows)
        tokens = None
        if count < rows or self.top_p < 1:  # from the likeliest to the least likely
            logits, tokens = xp.topk(logits, count)
        logits = logits.astype("float32", copy=False)
        if self.temperature != 1:
            logits = logits / self.temperature
        sums = xp.cumulative_sum(F.softmax(logits, dim=-1), axis=-1)
        last: Tensor | int = count - 1
        if self.top_p < 1:  # all up to the one with which the sum comes to top_p
            last = xp.sum((sums < self.top_p).astype("int32", copy=False), axis=-1, keepdims=True)
            last = xp.minimum(last, count - 1)
            total = xp.take_along_axis(sums, last, axis=-1)
        else:
            total = sums[:, -1:]
        place = xp.sum((sums <= draws * total).astype("int32", copy=False), axis=-1, keepdims=True)
        place = xp.minimum(place, last)
        return (place if tokens is None else xp.take_along_axis(tokens, place, axis=-1))[:, 0]


def _number(value: object) -> bool:
    """Whether this is one real number, of Python or of NumPy."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
