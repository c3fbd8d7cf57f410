"""Texts of unlike lengths one after the other in one row of tokens, so that nothing is computed for padding.

Each text attends to itself alone, by a mask of all tokens to all. That costs attention as many scores as the row has
tokens squared, so rows are short: on a processor, where a token's linear layers take long, this pays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_MOST = 256  # tokens of a row
# Rows are filled up to a multiple of so many tokens, or texts: calls of like sizes are planned and captured as one.
_FEW, _TOKENS, _TEXTS = 8, 32, 32


class Pack(NamedTuple):
    """A row of tokens of several texts.

    Attributes
    ----------
    ids, places : numpy.ndarray
        ``(1, T)`` int64: tokens, and each one's position in its text.
    own : numpy.ndarray
        ``(1, 1, T, T)`` bool: whether a token and another are of one text.
    members : numpy.ndarray
        ``(n, T)`` float32: 1 where a token is of a text, else 0. The last rows may be of no text.
    first : numpy.ndarray
        ``(n,)`` int64: where each text begins; 0 for no text.
    """

    ids: NDArray[np.int64]
    places: NDArray[np.int64]
    own: NDArray[np.bool_]
    members: NDArray[np.float32]
    first: NDArray[np.int64]


def packed(rows: Sequence[Sequence[int]], places: Sequence[Sequence[int]], padding: int) -> Pack:
    """The tokens of texts, and their positions, as one row."""
    lengths = [len(row) for row in rows]
    count, texts = sum(lengths), len(rows) + -len(rows) % _TEXTS
    empty = -count % (_TOKENS if count > 2 * _TOKENS else _FEW)
    text = np.repeat(np.arange(len(rows) + 1), [*lengths, empty])
    members = np.zeros((texts, count + empty), np.float32)
    members[text[:count], np.arange(count)] = 1
    first = np.zeros(texts, np.int64)
    first[1 : len(rows)] = np.cumsum(lengths[:-1])
    return Pack(
        np.array([[token for row in (*rows, [padding] * empty) for token in row]], np.int64),
        np.array([[place for row in (*places, [0] * empty) for place in row]], np.int64),
        (text[:, None] == text)[None, None],
        members,
        first,
    )


def by_tokens(lengths: Sequence[int], batch_size: int, longest: int) -> list[list[int]]:
    """Which texts to put in a row of at most ``longest`` tokens; a longer one is alone."""
    return by_length(lengths, batch_size, min(_MOST, longest // _TOKENS * _TOKENS))


def by_length(lengths: Sequence[int], batch_size: int, most: float = math.inf) -> list[list[int]]:
    """Which texts to run together: those of like lengths, so that there is little padding, and ``most`` tokens."""
    found: list[list[int]] = []
    tokens = 0
    for text in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not found or len(found[-1]) == batch_size or tokens + lengths[text] > most:
            found.append([])
            tokens = 0
        found[-1].append(text)
        tokens += lengths[text]
    return found
