"""Softmax along the last axis, as a step of attention: queries that see nothing get zeros."""

from __future__ import annotations

from ..device.arrays import Array, FloatArray
from ..device.device import Device
from ..norms.softmax import along


def softmax(device: Device, x: FloatArray) -> Array:
    """Softmax along the last axis, as a step of attention: of scores, for which a mask's numbers count.

    Numbers below -3.0e38 are minus infinity, and a row of nothing but minus infinity becomes zeros, where
    ``grilly.functional.softmax`` has NaN. x is of any shape with at least one axis; the result is of its shape and
    dtype. Raises TypeError for dtypes other than float32, float16 and bfloat16, and ValueError for no axes.
    """
    return along(device, "softmax", "ATTENTION_SOFTMAX", x, None, -1, "x")
