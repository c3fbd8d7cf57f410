"""Extremes and means over windows."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ... import array_api as xp
from ...compute import Tensor
from ..table import Call, is_floating, operator, wide
from .matmul import padding
from .shapes import padded


class Windows(NamedTuple):
    """Where windows lie over the axes behind samples and channels."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    before: list[int]
    after: list[int]
    extents: tuple[int, ...]
    counts: list[int]

    def places(self) -> Iterator[tuple[tuple[int, ...], list[np.ndarray]]]:
        """Each place of a window, and along each axis where it lies in the array, of all windows."""
        for place in itertools.product(*map(range, self.kernel)):
            yield (
                place,
                [
                    np.arange(count) * stride + at * dilation - before
                    for count, stride, at, dilation, before in zip(
                        self.counts, self.strides, place, self.dilations, self.before, strict=True
                    )
                ],
            )

    def of(self, x: Tensor, place: tuple[int, ...]) -> Tensor:
        """One element of each window of an array that ``around`` made."""
        return x[(slice(None), slice(None), *(
            slice(at * dilation, at * dilation + (count - 1) * stride + 1, stride)
            for at, dilation, count, stride in zip(place, self.dilations, self.counts, self.strides, strict=True)
        ))]  # fmt: skip

    def around(self, call: Call, x: Tensor, value: Any) -> Tensor:
        """x with what windows reach beyond it."""
        reach = [
            (count - 1) * stride + (size - 1) * dilation + 1 - before - extent
            for count, stride, size, dilation, before, extent in zip(
                self.counts, self.strides, self.kernel, self.dilations, self.before, self.extents, strict=True
            )
        ]
        return padded(call, x, [0, 0, *self.before], [0, 0, *(max(each, 0) for each in reach)], value)


def _windows(call: Call, x: Tensor) -> Windows:
    kernel, extents = list(call.attributes["kernel_shape"]), x.shape[2:]
    count = len(kernel)
    strides, dilations = call.get("strides", [1] * count), call.get("dilations", [1] * count)
    before, after = padding(call, extents, kernel)
    counts = []
    for a in range(count):
        room = extents[a] + before[a] + after[a] - (kernel[a] - 1) * dilations[a] - 1
        number = (-(-room // strides[a]) if call.get("ceil_mode", 0) else room // strides[a]) + 1
        if (number - 1) * strides[a] >= extents[a] + before[a]:  # a window must begin before what is put behind
            number -= 1
        counts.append(number)
    return Windows(kernel, list(strides), list(dilations), list(before), list(after), extents, counts)


@operator("MaxPool")
def largest_of_windows(call: Call, x: Tensor) -> Any:
    """The largest element of each window; where asked for also its index in the whole array."""
    windows = _windows(call, x)
    whole = windows.around(call, x, -math.inf if is_floating(x) else int(np.iinfo(x.dtype).min))
    if not call.wants(1):
        return functools.reduce(xp.maximum, (windows.of(whole, place) for place, _ in windows.places()))
    order = "F" if call.get("storage_order", 0) else "C"
    images = np.arange(x.shape[0] * x.shape[1], dtype=np.int64).reshape((*x.shape[:2], *(1,) * (x.ndim - 2)))
    found = index = None
    for place, along in windows.places():
        inside = [np.clip(each, 0, extent - 1) for each, extent in zip(along, windows.extents, strict=True)]
        one = np.ravel_multi_index(np.meshgrid(*inside, indexing="ij"), windows.extents, order=order)
        at = call.tensor(images * math.prod(windows.extents) + one.astype(np.int64, copy=False))
        value = windows.of(whole, place)
        index = at if found is None else xp.where(xp.greater(value, found), at, index)
        found = value if found is None else xp.maximum(found, value)
    return found, index


@operator("AveragePool")
def mean_of_windows(call: Call, x: Tensor) -> Tensor:
    """The mean of each window, of what lies in the array or of the zeros around it too."""
    windows = _windows(call, x)
    whole = windows.around(call, wide(x), 0.0)
    found = functools.reduce(xp.add, (windows.of(whole, place) for place, _ in windows.places()))
    padded_too = call.get("count_include_pad", 0)
    number = np.zeros(windows.counts, np.float32)
    for _, along in windows.places():
        inside = [
            (each >= (-before if padded_too else 0)) & (each < extent + (after if padded_too else 0))
            for each, before, after, extent in zip(along, windows.before, windows.after, windows.extents, strict=True)
        ]
        number += functools.reduce(np.multiply.outer, inside)
    return xp.divide(found, call.tensor(number)).astype(x.dtype, copy=False)


@operator("LpPool")
def norm_of_windows(call: Call, x: Tensor) -> Tensor:
    """The p-norm of each window."""
    windows, p = _windows(call, x), float(call.get("p", 2))
    whole = windows.around(call, xp.pow(xp.abs(wide(x)), p), 0.0)
    found = functools.reduce(xp.add, (windows.of(whole, place) for place, _ in windows.places()))
    return xp.pow(found, 1 / p).astype(x.dtype, copy=False)


@operator("GlobalAveragePool")
def mean_of_images(call: Call, x: Tensor) -> Tensor:
    """The mean over all axes behind samples and channels."""
    return xp.mean(wide(x), axis=tuple(range(2, x.ndim)), keepdims=True).astype(x.dtype, copy=False)


@operator("GlobalMaxPool")
def largest_of_images(call: Call, x: Tensor) -> Tensor:
    """The largest element over all axes behind samples and channels."""
    return xp.max(x, axis=tuple(range(2, x.ndim)), keepdims=True)


@operator("GlobalLpPool")
def norm_of_images(call: Call, x: Tensor) -> Tensor:
    """The p-norm over all axes behind samples and channels."""
    p = float(call.get("p", 2))
    found = xp.sum(xp.pow(xp.abs(wide(x)), p), axis=tuple(range(2, x.ndim)), keepdims=True)
    return xp.pow(found, 1 / p).astype(x.dtype, copy=False)
