"""Random arrays as grilly.random draws them on every device."""

from __future__ import annotations

import numpy as np

from .philox import words_in_order

_STREAM = 0xFFFFFFFF  # the counter's third word, which in dropout is a head's number


def random_uniform(
    shape: int | tuple[int, ...], *, low: float = 0.0, high: float = 1.0, seed: int = 0, offset: int = 0
) -> np.ndarray:
    """Numbers from ``low`` on and below ``high``: the upper 24 bits of one word each, as a fraction. float64."""
    count = int(np.prod(shape))
    words = words_in_order(count, _STREAM, seed, offset)
    return (low + (high - low) * ((words >> np.uint32(8)) / 2.0**24)).reshape(shape)


def random_normal(
    shape: int | tuple[int, ...], *, mean: float = 0.0, std: float = 1.0, seed: int = 0, offset: int = 0
) -> np.ndarray:
    """Normal numbers, float64.

    Two words give two numbers (Box and Muller 1958): their length is ``sqrt(-2 log(u))`` with u the upper 24 bits of
    the first plus one, as a fraction; their angle is the upper 24 bits of the second, as a fraction of a turn. The
    first number is the cosine's, the second the sine's.
    """
    count = int(np.prod(shape))
    words = words_in_order(count + count % 2, _STREAM, seed, offset).reshape(-1, 2) >> np.uint32(8)
    length = np.sqrt(-2.0 * np.log((words[:, 0] + 1.0) / 2.0**24))
    turn = words[:, 1] / 2.0**24
    quarter = np.floor(4 * turn + 0.5)
    angle = (turn - quarter / 4) * (2 * np.pi)
    pairs = np.stack([np.cos(angle), np.sin(angle)], -1)
    turned = [pairs, np.stack([-pairs[:, 1], pairs[:, 0]], -1)]
    pairs = np.where((quarter % 2 == 1)[:, None], turned[1], turned[0])
    pairs = np.where((quarter % 4 >= 2)[:, None], -pairs, pairs) * length[:, None]
    return (mean + std * pairs.reshape(-1)[:count]).reshape(shape)


def random_integers(
    low: int, high: int, shape: int | tuple[int, ...], *, seed: int = 0, offset: int = 0
) -> np.ndarray:
    """Integers from ``low`` on and below ``high``, int64.

    Two words, the upper half first, times the number of integers; the product's lower 64 bits are left out.
    """
    count = int(np.prod(shape))
    words = words_in_order(2 * count, _STREAM, seed, offset).astype(np.uint64).reshape(-1, 2)
    span = np.uint64(high - low)
    found = (words[:, 0] * span + (words[:, 1] * span >> np.uint64(32))) >> np.uint64(32)
    return (found[:count].astype(np.int64) + low).reshape(shape)
