"""Products and attention in 16 bits, all else in the arguments' dtypes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from numpy.typing import DTypeLike

from .arrays import matmul as products
from .attention import forward, varlen
from .convolution import forward as convolution
from .device.autocast import CASTING
from .device.dtypes import FLOATS_TEXT, dtype_of, is_float
from .matmul import linear

_PLANS = frozenset((products.plan, linear.plan, convolution.plan, forward.planned, varlen.CALLS))


@contextlib.contextmanager
def autocast(dtype: DTypeLike | None = "bfloat16") -> Iterator[None]:
    """Compute products of matrices, linear layers, convolutions and attention in another dtype.

    In a ``with`` block, or in a function that it decorates, these operations cast their floating arguments to the dtype
    and give results of it; sums stay float32. All other operations compute in the dtypes of their arguments. Weights
    stay as they are, so that gradients of float32 weights are float32. It holds for this thread.

    Parameters
    ----------
    dtype : dtype or None
        bfloat16, float16 or float32. None: as the arguments are, as in a block that leaves another one.

    Raises
    ------
    TypeError
        For another dtype.
    """
    found = None if dtype is None else dtype_of(dtype)
    if found is not None and not is_float(found):
        raise TypeError(f"autocast: dtype {found}; expected {FLOATS_TEXT}, or None")
    before = CASTING.dtype, CASTING.plans
    CASTING.dtype, CASTING.plans = found, _PLANS
    try:
        yield
    finally:
        CASTING.dtype, CASTING.plans = before


__all__ = ["autocast"]
