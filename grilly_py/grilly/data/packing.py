"""Samples of tokens, packed into rows of one length."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, SupportsIndex

import numpy as np

from ..compute.device.arrays import NDArray
from ..compute.device.numbers import integer

#: The label of tokens that no loss is taken of: what ``F.cross_entropy`` leaves out.
IGNORED = -100


class Sample(NamedTuple):
    """A text's tokens.

    Attributes
    ----------
    tokens : sequence of int
    learned : sequence of bool or None
        Of which of them a loss is taken; None for all but the first, which nothing comes before.
    """

    tokens: Sequence[int]
    learned: Sequence[bool] | None = None


@dataclass(frozen=True)
class Rows:
    """Packed samples: each array is int32 ``(N, length)``.

    Attributes
    ----------
    input_ids, labels : numpy.ndarray
        Tokens, and for each the one that comes after it in its sample; -100 where no loss is taken.
    position_ids, segment_ids : numpy.ndarray
        Places in the samples, from 0, and the samples' numbers in their row, from 1; 0 for what is left of the row.
    """

    input_ids: NDArray[np.int32]
    labels: NDArray[np.int32]
    position_ids: NDArray[np.int32]
    segment_ids: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def filled(self) -> float:
        """The share of places that have a token of a sample."""
        return float((self.segment_ids > 0).mean()) if len(self) else 0.0


def pack(
    samples: Iterable[Sample | Sequence[int]], length: SupportsIndex, *, padding: SupportsIndex = 0
) -> Rows:
    """Samples side by side in rows, as full as may be: each goes where the least room stays.

    Of samples that no row takes several are made; where they say which tokens are learned, their ends are dropped
    instead, as of a chat the rest would lack what it answers.

    Parameters
    ----------
    samples : iterable of Sample, or of sequences of int
    length : int
        Tokens of a row.
    padding : int
        The token of places that stay empty.

    Returns
    -------
    Rows
        Samples without anything to learn are not in it.

    Raises
    ------
    ValueError
        For a length below 1, and ``learned`` of another length than the tokens.
    TypeError
        For tokens that are no integers.
    """
    length, padding = integer("pack", "length", length), integer("pack", "padding", padding)
    if length < 1:
        raise ValueError(f"pack: length is {length}; expected at least 1")
    spans = [span for sample in samples for span in _spans(sample, length)]
    places = _places([len(inputs) for inputs, _ in spans], length)
    count = 1 + max((row for row, _ in places), default=-1)
    rows = Rows(*(np.full((count, length), fill, np.int32) for fill in (padding, IGNORED, 0, 0)))
    numbers = np.zeros(count, np.int32)
    for (inputs, labels), (row, start) in zip(spans, places, strict=True):
        where = row, slice(start, start + len(inputs))
        numbers[row] += 1
        rows.input_ids[where], rows.labels[where] = inputs, labels
        rows.position_ids[where], rows.segment_ids[where] = np.arange(len(inputs)), numbers[row]
    return rows


def _spans(sample: Sample | Sequence[int], length: int) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """Tokens and labels that a row takes, of one sample."""
    sample = sample if isinstance(sample, Sample) else Sample(sample)
    tokens = np.asarray(sample.tokens)
    if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
        raise TypeError(f"pack: a sample's tokens are {tokens.dtype} {tokens.shape}; expected integers of one axis")
    labels = tokens[1:].astype(np.int32)
    if sample.learned is not None:
        if len(sample.learned) != len(tokens):
            raise ValueError(f"pack: a sample has {len(tokens)} tokens and says of {len(sample.learned)} whether they "
                             "are learned")  # fmt: skip
        labels[~np.asarray(sample.learned, bool)[1:]] = IGNORED
    for start in range(0, len(labels) if sample.learned is None else min(len(labels), 1), length):
        inputs, wanted = tokens[start : start + length][: len(labels) - start], labels[start : start + length]
        if (wanted != IGNORED).any():
            yield inputs.astype(np.int32), wanted


def _places(sizes: Sequence[int], length: int) -> list[tuple[int, int]]:
    """A row and a start for each size: the largest first, each in the row with the least room that takes it."""
    found = [(0, 0)] * len(sizes)
    room: list[tuple[int, int]] = []  # what is left of rows, with the row's number, in order
    count = 0
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        at = bisect.bisect_left(room, (sizes[place], -1))
        left, row = room.pop(at) if at < len(room) else (length, count)
        count = max(count, row + 1)
        found[place] = row, length - left
        if left > sizes[place]:
            bisect.insort(room, (left - sizes[place], row))
    return found


__all__ = ["IGNORED", "Rows", "Sample", "pack"]
