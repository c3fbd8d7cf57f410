"""Windows of signals: rows of numbers that depend on nothing but their length."""

from __future__ import annotations

import numpy as np

from ..table import Call, operator
from .elementwise import dtype_of

#: Sums of cosines: the factors of cos(2 pi n k / N) for k from 0.
_COSINES = {
    "HannWindow": (0.5, -0.5), "HammingWindow": (25 / 46, -21 / 46), "BlackmanWindow": (0.42, -0.5, 0.08),
}  # fmt: skip


@operator(*_COSINES, host=(0,))
def window(call: Call, size: np.ndarray) -> np.ndarray:
    """A window of so many numbers, of which one more would begin the next where it is periodic."""
    count = int(size.item())
    angles = 2 * np.pi * np.arange(count) / max(count if call.get("periodic", 1) else count - 1, 1)
    found = sum(factor * np.cos(k * angles) for k, factor in enumerate(_COSINES[call.name]))
    return np.asarray(found).astype(dtype_of(call, call.get("output_datatype", 1)))
