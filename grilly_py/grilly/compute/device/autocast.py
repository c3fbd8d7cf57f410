"""In which dtype a thread has products and attention computed: ``grilly.autocast``."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from .dtypes import is_float


class _Casting(threading.local):
    """The dtype, None for that of the arguments, and the plan functions of the operations that are cast."""

    dtype: np.dtype | None = None
    plans: Collection[Any] = ()


CASTING = _Casting()


def cast(plan: Any, arrays: Sequence, floats: int) -> Sequence:
    """The arrays of a call of the operation with this plan function, as the thread has them computed.

    Of its first ``floats`` the floating ones become of the dtype.
    """
    dtype = CASTING.dtype
    if dtype is None or plan not in CASTING.plans:
        return arrays
    first = [array.astype(dtype, copy=False) if hasattr(array, "astype") and is_float(array.dtype) else array
             for array in arrays[:floats]]  # fmt: skip
    return (*first, *arrays[floats:])


__all__ = ["CASTING", "cast"]
