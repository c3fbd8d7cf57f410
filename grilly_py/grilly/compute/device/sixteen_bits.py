"""float16 and bfloat16 arrays on devices without 16-bit storage: computed as float32, and rounded once at the end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .device import Device
from .dtypes import is_sixteen_bits
from .tensor import Tensor

_FLOAT32 = np.dtype(np.float32)


def widened(arrays: Sequence) -> tuple[np.dtype | None, list]:
    """The common 16-bit dtype of the arrays but None, and the arrays as float32; for other dtypes None and the arrays.

    The host converts NumPy arrays, the device Tensors. Differing dtypes are left for the operation to refuse.
    """
    arrays = list(arrays)
    dtypes = {getattr(array, "dtype", None) for array in arrays if array is not None}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    if not isinstance(dtype, np.dtype) or not is_sixteen_bits(dtype):
        return None, arrays
    return dtype, [None if array is None else array.astype(_FLOAT32, copy=False) for array in arrays]


def rounded(device: Device, results: Sequence, dtype: np.dtype, count: int = 1) -> list:
    """The results, the first ``count`` rounded to a dtype, and their work submitted."""
    with np.errstate(over="ignore"):
        found = [one.astype(dtype, copy=False) for one in results[:count]]
    if isinstance(found[0], Tensor):
        device.runtime.flush()
    return [*found, *results[count:]]
