"""Windows put back to where they were: transposed convolutions, sums of windows, and the reverse of MaxPool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from ... import array_api as xp
from ...compute import Tensor
from ...compute.convolution.transposed import transposed
from ..table import Call, operator, wide
from .shapes import padded


def _whole(counts: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> list[int]:
    """The extents that so many windows span."""
    return [
        s * (n - 1) + d * (k - 1) + 1 for n, k, s, d in zip(counts, kernel, strides, dilations, strict=True)
    ]  # fmt: skip


def _summed(
    call: Call, windows: Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Tensor:
    """Windows ``(N, C, *kernel, *counts)`` added up where they overlap, float32."""
    counts = windows.shape[2 + len(kernel) :]
    whole = (*windows.shape[:2], *_whole(counts, kernel, strides, dilations))
    found = xp.zeros(whole, dtype="float32", device=call.backend)
    for place in product(*map(range, kernel)):
        at = (slice(None), slice(None), *(
            slice(p * d, p * d + (n - 1) * s + 1, s)
            for p, d, n, s in zip(place, dilations, counts, strides, strict=True)
        ))  # fmt: skip
        found[at] = xp.add(found[at], windows[(slice(None), slice(None), *place)])
    return found


@operator("ConvTranspose")
def transposed_convolution(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Each element adds a kernel to the result: a convolution's gradient by its input."""
    dtype, (batch, inputs, *extents) = x.dtype, x.shape
    count, groups, kernel = len(extents), int(call.get("group", 1)), list(weight.shape[2:])
    strides, dilations = tuple(call.get("strides", [1] * count)), tuple(call.get("dilations", [1] * count))
    more, whole = call.get("output_padding", [0] * count), _whole(extents, kernel, strides, dilations)
    asked, how = call.get("output_shape"), call.get("auto_pad", "NOTSET")
    if asked is None and how in ("SAME_UPPER", "SAME_LOWER"):
        asked = [e * s for e, s in zip(extents, strides, strict=True)]
    if asked is not None:
        # What is cut off in all; where nothing is, zeros come behind.
        less = [w + m - a for w, m, a in zip(whole, more, asked[-count:], strict=True)]
        before = [max(each // 2 if how == "SAME_UPPER" else each - each // 2, 0) for each in less]
        after = [each - other for each, other in zip(less, before, strict=True)]
    else:
        pads = list(call.get("pads", [0] * (2 * count))) if how == "NOTSET" else [0] * (2 * count)
        before, after = pads[:count], pads[count:]
    after = [each - other for each, other in zip(after, more, strict=True)]
    x, weight = wide(x), wide(weight)
    if count <= 2:
        cut = tuple(before) if before == after and min(before) >= 0 else (0,) * count
        found = transposed(call.backend.opened, count, x, weight, strides, cut, dilations, groups)
        before, after = ([each - c for each, c in zip(side, cut, strict=True)] for side in (before, after))
    else:
        table = xp.matrix_transpose(weight.reshape((groups, inputs // groups, -1)))
        found = xp.matmul(table, x.reshape((batch, groups, inputs // groups, math.prod(extents))))
        windows = found.reshape((batch, weight.shape[1] * groups, *kernel, *extents))
        found = _summed(call, windows, kernel, strides, dilations)
    found = padded(call, found, [0, 0, *(-b for b in before)], [0, 0, *(-a for a in after)], 0.0)
    if bias is not None:
        found = xp.add(found, wide(bias).reshape((-1, *(1,) * count)))
    return found.astype(dtype, copy=False)


@operator("Col2Im", host=(1, 2))
def image_of_columns(call: Call, x: Tensor, image: np.ndarray, block: np.ndarray) -> Tensor:
    """Columns ``(N, C k, L)``, each a window, added up as an image."""
    extents, kernel = [int(each) for each in image], [int(each) for each in block]
    count = len(extents)
    strides, dilations = call.get("strides", [1] * count), call.get("dilations", [1] * count)
    pads = call.get("pads", [0] * (2 * count))
    counts = [
        (e + b + a - d * (k - 1) - 1) // s + 1
        for e, b, a, d, k, s in zip(extents, pads[:count], pads[count:], dilations, kernel, strides, strict=True)
    ]
    found = _summed(call, wide(x).reshape((x.shape[0], -1, *kernel, *counts)), kernel, strides, dilations)
    after = [e - f + b for e, f, b in zip(extents, found.shape[2:], pads[:count], strict=True)]
    return padded(call, found, [0, 0, *(-p for p in pads[:count])], [0, 0, *after], 0.0).astype(x.dtype, copy=False)


@operator("MaxUnpool", host=(2,))
def unpooled(call: Call, x: Tensor, indices: Tensor, shape: np.ndarray | None = None) -> Tensor:
    """Elements at the indices that MaxPool gave, in an image of zeros."""
    kernel = call.attributes["kernel_shape"]
    count = len(kernel)
    pads = call.get("pads", [0] * (2 * count))
    whole = _whole(x.shape[2:], kernel, call.get("strides", [1] * count), [1] * count)
    whole = [*x.shape[:2], *(w - b - a for w, b, a in zip(whole, pads[:count], pads[count:], strict=True))]
    found = xp.zeros((math.prod(whole),), dtype=x.dtype, device=call.backend)
    found[(indices.reshape((-1,)),)] = x.reshape((-1,))
    found = found.reshape(tuple(whole))
    if shape is None:
        return found
    return padded(call, found, [0] * len(whole), [int(a) - w for a, w in zip(shape, whole, strict=True)], 0)
