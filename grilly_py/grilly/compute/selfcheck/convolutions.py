"""Self-checks of convolutions on matrix units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...registry import Choice
from ..convolution.forward import convolution
from ..device.device import Device
from ..device.dtypes import dtype_of
from ..device.trial import pin, view_of
from .comparing import difference, product_bound


def check(device: Device, choice: Choice, facts: Mapping[str, int]) -> str | None:
    """Convolutions of images whose channels are last, without a bias, and first, with one."""
    dtype, tile = dtype_of(choice.variant.dtype), choice.tile
    tested = pin(view_of(device), choice)
    tested.facts = replace(tested.facts, units=1)  # small problems are left to other kernels by large devices
    for number, channels in enumerate((3 * tile["step"], tile["step"])):
        rng = np.random.default_rng([number, channels])
        outputs = tile["least"] + 6 if number else tile["most"]
        shapes = ((2, 2 * tile["rows"] - 1, 2 * tile["columns"] - 3, channels), (outputs, channels, 3, 3), (outputs,))
        x, weight, bias = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
        first = x.transpose(0, 3, 1, 2)
        given = device.tensor(x).transpose(0, 3, 1, 2) if number == 0 else np.ascontiguousarray(first)
        got = convolution(tested, "conv2d", 2, given, weight, bias if number else None, padding=1)
        got = got if isinstance(got, np.ndarray) else got.numpy()
        around = np.pad(first.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(around, (3, 3), (2, 3))
        given_bias = bias.astype(np.float64) * number
        exact = np.einsum("nchwab,ocab->nhwo", windows, weight.astype(np.float64), optimize=True) + given_bias
        size = np.einsum("nchwab,ocab->nhwo", np.abs(windows), np.abs(weight.astype(np.float64)), optimize=True)
        size += np.abs(given_bias)
        off = difference(got.transpose(0, 2, 3, 1), exact, product_bound(exact, size, choice.variant.dtype),
                         choice.variant.dtype)  # fmt: skip
        if off is not None:
            return f"a convolution of {channels} channels to {outputs}: {off}"
    return None
