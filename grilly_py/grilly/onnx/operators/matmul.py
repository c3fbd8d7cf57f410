"""Products of matrices, and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import array_api as xp
from ... import functional as F
from ...compute import Tensor
from ..table import Call, is_floating, operator, wide
from .shapes import padded


@operator("MatMul")
def matmul(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """The product of matrices, or of stacks of them."""
    return xp.matmul(x, y)


@operator("Gemm")
def gemm(call: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """``alpha A B + beta C``, A and B turned where attributes say so."""
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    a = a.T if call.get("transA", 0) else a
    b = b.T if call.get("transB", 0) else b
    if is_floating(a) and alpha == 1 and (c is None or beta == 1 and c.shape == (b.shape[1],)):
        return F.linear(a, b.T, c)
    found = xp.matmul(wide(a), wide(b))
    if alpha != 1:
        found = xp.multiply(found, alpha)
    if c is not None:
        found = xp.add(found, wide(c) if beta == 1 else xp.multiply(wide(c), beta))
    return found.astype(a.dtype, copy=False)


def padding(call: Call, extents: Sequence[int], kernel: Sequence[int]) -> tuple[list[int], list[int]]:
    """Zeros before and after each axis of an image.

    Raises UnsupportedError for a word that ONNX does not have.
    """
    count = len(extents)
    strides, dilations = call.get("strides", [1] * count), call.get("dilations", [1] * count)
    how = call.get("auto_pad", "NOTSET")
    if how == "NOTSET":
        pads = list(call.get("pads", [0] * (2 * count)))
        return pads[:count], pads[count:]
    if how == "VALID":
        return [0] * count, [0] * count
    if how not in ("SAME_UPPER", "SAME_LOWER"):
        raise call.refuse(f"auto_pad is {how!r}")
    missing = [
        max((-(-extent // stride) - 1) * stride + dilation * (size - 1) + 1 - extent, 0)
        for extent, stride, dilation, size in zip(extents, strides, dilations, kernel, strict=True)
    ]
    less, more = [each // 2 for each in missing], [each - each // 2 for each in missing]
    return (less, more) if how == "SAME_UPPER" else (more, less)


@operator("Conv")
def convolution(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolution along one, two or three axes."""
    count = x.ndim - 2
    if count not in (1, 2, 3):
        raise call.refuse(f"x has {count} axes beside samples and channels; expected one to three")
    before, after = padding(call, x.shape[2:], weight.shape[2:])
    if before != after:
        x = padded(call, x, [0, 0, *before], [0, 0, *after], 0.0)
        before = [0] * count
    strides, dilations = call.get("strides", [1] * count), call.get("dilations", [1] * count)
    if count == 3:
        return _of_volumes(call, x, weight, bias, strides, before, dilations)
    options = dict(
        stride=tuple(strides), padding=tuple(before), dilation=tuple(dilations), groups=int(call.get("group", 1))
    )
    return (F.conv1d if count == 1 else F.conv2d)(x, weight, bias, **options)


def _of_volumes(
    call: Call, x: Tensor, weight: Tensor, bias: Tensor | None, strides: Sequence[int], pads: Sequence[int],
    dilations: Sequence[int],
) -> Tensor:  # fmt: skip
    """Convolution along three axes: of images whose channels are those of all layers that a window reaches."""
    x = padded(call, x, [0, 0, pads[0], 0, 0], [0, 0, pads[0], 0, 0], 0.0)
    batch, channels, depth, *sizes = x.shape
    outputs, own, reach, *kernel = weight.shape
    layers = (depth - dilations[0] * (reach - 1) - 1) // strides[0] + 1
    if layers < 1:
        raise call.refuse(f"x has {depth} layers with its pads; the kernel needs {dilations[0] * (reach - 1) + 1}")
    seen = [
        x[:, :, place * dilations[0] : place * dilations[0] + (layers - 1) * strides[0] + 1 : strides[0]]
        for place in range(reach)
    ]
    images = xp.permute_dims(xp.stack(seen, axis=2), (0, 3, 1, 2, 4, 5))
    images = images.reshape((batch * layers, channels * reach, *sizes))
    found = F.conv2d(
        images, weight.reshape((outputs, own * reach, *kernel)), bias, tuple(strides[1:]), tuple(pads[1:]),
        tuple(dilations[1:]), int(call.get("group", 1)),
    )  # fmt: skip
    return xp.permute_dims(found.reshape((batch, layers, *found.shape[1:])), (0, 2, 1, 3, 4))


@operator("CausalConvWithState")
def causal_convolution(
    call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None, past: Tensor | None = None
) -> Any:
    """Each channel's convolution with what came before, and what the next call will need of it."""
    batch, channels, _ = x.shape
    reach = weight.shape[2] - 1
    if past is None:
        past = xp.zeros((batch, channels, reach), dtype=x.dtype, device=call.backend)
    whole = xp.concat([past, x], axis=2) if reach else x
    found = F.conv1d(wide(whole), wide(weight), None if bias is None else wide(bias), groups=channels)
    how = call.get("activation", "none")
    if how in ("silu", "swish"):
        found = F.silu(found)
    elif how != "none":
        raise call.refuse(f"activation is {how!r}")
    return found.astype(x.dtype, copy=False), whole[:, :, whole.shape[2] - reach :]
