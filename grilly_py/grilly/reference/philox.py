"""The counter-based random numbers behind dropout."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key after each round


def philox(counter: ArrayLike, key: ArrayLike) -> np.ndarray:
    """Philox4x32-10: four random words for each counter and key (Salmon et al. 2011, doi:10.1145/2063384.2063405).

    Parameters
    ----------
    counter : array of int
        ``(..., 4)``, 32 bits each.
    key : array of int
        ``(..., 2)``, 32 bits each; broadcasts with the counter.

    Returns
    -------
    ndarray of uint32
        ``(..., 4)``.
    """
    counter, key = np.asarray(counter, np.uint64), np.asarray(key, np.uint64)
    return _rounds([counter[..., i] for i in range(4)], [key[..., i] for i in range(2)])


def _rounds(c: list[np.ndarray], k: list[np.ndarray]) -> np.ndarray:
    """`philox` of words that are still to be broadcast, each in the low half of a uint64."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(ROUNDS):
        first, second = c[0] * np.uint64(MULTIPLIERS[0]), c[2] * np.uint64(MULTIPLIERS[1])
        c = [(second >> half) ^ c[1] ^ k[0], second & low, (first >> half) ^ c[3] ^ k[1], first & low]
        k = [(word + np.uint64(weyl)) & low for word, weyl in zip(k, WEYL, strict=True)]
    return np.stack(np.broadcast_arrays(*c), axis=-1).astype(np.uint32)


def words_in_order(count: int, stream: int, seed: int, offset: int) -> np.ndarray:
    """So many words of `philox`, four for each counter ``(number's low half, its high half, stream, offset)``.

    The key is the seed's low half and high half; of the offset 32 bits count.
    """
    number = np.arange(-(-count // 4), dtype=np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    rest = [np.full_like(number, word & 0xFFFFFFFF) for word in (stream, offset)]
    counter = np.stack([number & low, number >> half, *rest], axis=-1)
    return philox(counter, [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]).reshape(-1)[:count]


def dropout_mask(shape: tuple[int, int, int, int], p: float, seed: int = 0, offset: int = 0) -> np.ndarray:
    """Which attention weights dropout keeps: the same on every device, kernel and division into tiles.

    The weight of batch b, query head h, row i and key j is kept when its random number of 16 bits is below
    ``(1 - p) * 2**16``, rounded down. The number's upper byte is byte ``j % 4``, the lowest first, of word
    ``j // 4 % 4`` of `philox` with the counter ``(j // 16, i, h + H * b, offset)`` and the key (low half of the seed,
    high half of the seed); its lower byte is that byte of the next word, the first after the last. So each weight is
    kept with exactly this probability, and sixteen of them take one draw; the decisions on keys four or twelve
    apart are correlated by at most 1/256.

    Parameters
    ----------
    shape : tuple of four int
        ``(B, H, Sq, Sk)``.
    p : float
        The probability to drop a weight, at least 0 and below 1.
    seed : int
        64 bits.
    offset : int
        32 bits.

    Returns
    -------
    ndarray of bool
        ``(B, H, Sq, Sk)``, True = kept.

    Raises
    ------
    ValueError
        If p is not in [0, 1).
    """
    return kept(shape[0], shape[1], slice(0, shape[2]), slice(0, shape[3]), p, seed, offset)


def kept(batch: int, heads: int, rows: slice, keys: slice, p: float, seed: int, offset: int) -> np.ndarray:
    """`dropout_mask` of a block of rows and keys only, ``(B, H, rows, keys)``."""
    if not 0 <= p < 1:
        raise ValueError(f"dropout: p is {p}; it must be at least 0 and below 1")
    shape = (batch, heads, rows.stop - rows.start, keys.stop - keys.start)
    if p == 0 or 0 in shape:
        return np.ones(shape, bool)
    first = keys.start // 16
    counter = [
        np.arange(first, -(-keys.stop // 16), dtype=np.uint64),
        np.arange(rows.start, rows.stop, dtype=np.uint64)[:, None],
        np.arange(batch * heads, dtype=np.uint64)[:, None, None],
        np.uint64(offset & 0xFFFFFFFF),
    ]
    key = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32 & 0xFFFFFFFF)]
    words = _rounds(counter, key)
    upper = np.stack([words >> np.uint32(8 * b) & np.uint32(255) for b in range(4)], axis=-1)
    numbers = (upper << np.uint32(8) | np.roll(upper, -1, axis=-2)).reshape(*shape[:3], -1)
    return numbers[..., keys.start - 16 * first : keys.stop - 16 * first] < min(int((1 - p) * 2**16), 2**16 - 1)
