"""Fields of 1, 2 or 4 bits that share bytes, as blocks have them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def unpack(packed: Bytes, width: int, run: int) -> Bytes:
    """The numbers in ``(n, bytes)``, ``(n, bytes * 8 / width)``.

    Each ``run`` bytes hold ``8 / width`` rows of ``run`` numbers, the first row in the lowest bits.
    """
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    rows = packed.reshape(len(packed), -1, 1, run) >> shifts & np.uint8(2**width - 1)
    return rows.reshape(len(packed), -1)


def pack(numbers: NDArray[Any], width: int, run: int) -> Bytes:
    """The bytes of which `unpack` makes these numbers, which are below ``2 ** width``."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    rows = numbers.astype(np.uint8).reshape(len(numbers), -1, 8 // width, run) << shifts
    packed: Bytes = np.bitwise_or.reduce(rows, axis=2).reshape(len(numbers), -1)
    return packed


__all__ = ["Bytes", "pack", "unpack"]
