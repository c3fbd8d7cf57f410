"""Gradients of convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from ..convolution import forward
from ..convolution.backward import convolution_backward
from ..device.tape import Entry
from ..device.tensor import Tensor
from .records import gradient_of


@gradient_of(forward.plan)
def _convolution(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    axes, stride, padding, dilation, groups, precision, _ = entry.static
    (x, weight, *_), (gradient, *_) = entry.arrays, gradients  # a second result is the weight's split
    return convolution_backward(
        gradient._storage.device, f"conv{axes}d", axes, gradient, x, weight, stride=stride, padding=padding,
        dilation=dilation, groups=groups, precision=precision, needs=entry.needs[:3],
    )  # fmt: skip
