"""Self-check of linear layers with quantized weights on matrix units, beside NumPy's float64."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...quantization.tensor import quantize
from ...registry import Choice
from ..device.device import Device
from ..device.dtypes import dtype_of
from ..device.trial import pin, view_of
from ..matmul.linear import linear

#: With an offset, minima, upper bits, two scales a unit, and 8 bits.
TYPES = ("Q4_0", "Q4_K", "Q5_1", "Q6_K", "Q8_0", "Q2_K", "MXFP4")
#: Rows of x, columns of y, depth.
PROBLEMS = ((3, 24, 1280), (13, 40, 256))
#: Of the largest result: the rounding to x's dtype, and float32 sums.
_BOUNDS = {"float16": 2e-3, "bfloat16": 2e-2}


def check(device: Device, choice: Choice, facts: Mapping[str, int]) -> str | None:
    """Multiply by weights of each type; what is wrong, or None."""
    view, rng = pin(view_of(device), choice), np.random.default_rng(0)
    name = choice.variant.dtype
    for type in TYPES:
        for rows, cols, depth in PROBLEMS:
            weight = quantize(rng.standard_normal((cols, depth), dtype=np.float32), type)
            x = rng.standard_normal((rows, depth), dtype=np.float32).astype(dtype_of(name))
            exact = x.astype(np.float64) @ weight.dequantize(np.float64).T
            found = linear(view, x, weight)
            off = float(np.abs(found.astype(np.float64) - exact).max() / np.abs(exact).max())
            if not off <= _BOUNDS[name]:
                return f"{type} ({rows}, {cols}, {depth}): an error of {off:.1e} of the largest result"
    return None
