"""Softmax along the last axis, as a step of attention: queries that see nothing get zeros."""

from __future__ import annotations

from ..device.device import Device
from ..device.sixteen_bits import widens
from ..norms.softmax import along


@widens("x")
def softmax(device: Device, x):
    """``Compute.attention.softmax`` on a device; documented there."""
    return along(device, "softmax", "ATTENTION_SOFTMAX", x, None, -1, "x")
