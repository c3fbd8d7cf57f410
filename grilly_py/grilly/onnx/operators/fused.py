"""Operators of com.microsoft that ONNX Runtime's optimizer makes of several: activations, products, norms, embeddings.

Their descriptions: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ... import array_api as xp
from ... import functional as F
from ...compute import Tensor
from ..table import Call, operator, wide

DOMAIN = "com.microsoft"


def fused(name: str, host: Sequence[int] = ()) -> Callable[[Any], Any]:
    """Enter an operator of com.microsoft; ``host`` as in Operator."""
    return operator(f"{DOMAIN}.{name}", host=host, known=False)


def biased(x: Tensor, bias: Tensor | None) -> Tensor:
    """x with a bias added, if there is one."""
    return x if bias is None else xp.add(x, bias)


@fused("Gelu")
def gelu(call: Call, x: Tensor) -> Tensor:
    """The Gaussian error linear unit."""
    return F.gelu(x)


@fused("BiasGelu")
def bias_gelu(call: Call, x: Tensor, bias: Tensor) -> Tensor:
    """The Gaussian error linear unit of ``x + bias``."""
    return F.gelu(xp.add(x, bias))


@fused("FastGelu")
def fast_gelu(call: Call, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """The Gaussian error linear unit of ``x + bias``, approximated by a hyperbolic tangent."""
    return F.gelu(biased(x, bias), approximate="tanh")


@fused("QuickGelu")
def quick_gelu(call: Call, x: Tensor) -> Tensor:
    """``x sigmoid(alpha x)``."""
    wider = wide(x)
    return xp.multiply(wider, F.sigmoid(xp.multiply(wider, call.get("alpha", 1.702)))).astype(x.dtype, copy=False)


def _whole(packed: Tensor, bits: int) -> Tensor:
    """The numbers in bytes, along the last axis, the lowest bits first."""
    if bits == 8:
        return packed
    shifted = [xp.bitwise_right_shift(packed, shift) if shift else packed for shift in range(0, 8, bits)]
    found = xp.bitwise_and(xp.stack(shifted, axis=-1), 2**bits - 1)
    return found.reshape((*packed.shape[:-1], 8 // bits * packed.shape[-1]))


@fused("MatMulNBits")
def matmul_bits(
    call: Call, x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor | None = None, order: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The product with a matrix of 2, 4 or 8 bits, transposed. Its rows lie in blocks that each have a scale and a
    zero; ``order`` says of each column to which block it belongs, where that is not the one that it lies in.

    The matrix is unpacked at each run: memory holds it packed, and one unpacked at a time.
    """
    depth, rows, block = (int(call.attributes[name]) for name in ("K", "N", "block_size"))
    bits = int(call.get("bits", 4))
    if bits not in (2, 4, 8):
        raise call.refuse(f"bits is {bits}; grilly has 2, 4 and 8")
    blocks = -(-depth // block)
    weight = _whole(packed.reshape((rows, blocks, block * bits // 8)), bits).astype(x.dtype)
    if zeros is None:
        zeros = xp.full((rows, blocks), 2.0 ** (bits - 1), dtype=x.dtype, device=call.backend)
    elif zeros.dtype.kind == "u":  # rows of whole bytes
        zeros = _whole(zeros.reshape((rows, -1)), bits)[:, :blocks]
    units = [each.reshape((rows, blocks)).astype(x.dtype, copy=False) for each in (zeros, scales)]
    if order is None:
        zeros, scales = (each.reshape((rows, blocks, 1)) for each in units)
    else:
        weight = weight.reshape((rows, blocks * block))[:, :depth]
        zeros, scales = (xp.take(each, order.reshape(-1)[:depth], axis=1) for each in units)
    weight = xp.multiply(xp.subtract(weight, zeros), scales).reshape((rows, -1))
    return F.linear(x, weight[:, :depth], bias)


@fused("FusedMatMul")
def fused_matmul(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """``alpha A B``, with axes moved where attributes say so: the first one behind all but the last one, and then the
    last two swapped.
    """
    a, b = (_transposed(call, x, side) for x, side in ((a, "A"), (b, "B")))
    alpha = call.get("alpha", 1.0)
    if alpha == 1:
        return xp.matmul(a, b)
    return xp.multiply(xp.matmul(wide(a), wide(b)), alpha).astype(a.dtype, copy=False)


def _transposed(call: Call, x: Tensor, side: str) -> Tensor:
    if call.get(f"transBatch{side}", 0) and x.ndim > 2:
        x = xp.permute_dims(x, (*range(1, x.ndim - 1), 0, x.ndim - 1))
    return x.mT if call.get(f"trans{side}", 0) and x.ndim > 1 else x


def _sum(call: Call, x: Tensor, skip: Tensor, bias: Tensor | None) -> Tensor:
    for place in (1, 2):
        if call.wants(place):
            raise call.refuse(f"output {place}, of training, is asked for")
    return biased(xp.add(x, skip), bias)


@fused("SkipLayerNormalization")
def skip_layer_normalization(
    call: Call, x: Tensor, skip: Tensor, scale: Tensor, shift: Tensor | None = None, bias: Tensor | None = None
) -> Any:
    """The layer norm of ``x + skip + bias``, and that sum."""
    both = _sum(call, x, skip, bias)
    return F.layer_norm(both, scale.shape, scale, shift, call.get("epsilon", 1e-12)), None, None, both


@fused("SkipSimplifiedLayerNormalization")
def skip_simplified_layer_normalization(
    call: Call, x: Tensor, skip: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Any:
    """The root mean square norm of ``x + skip + bias``, and that sum."""
    both = _sum(call, x, skip, bias)
    return F.rms_norm(both, scale.shape, scale, call.get("epsilon", 1e-12)), None, None, both


@fused("EmbedLayerNormalization")
def embed_layer_normalization(
    call: Call, ids: Tensor, segments: Tensor | None, words: Tensor, places: Tensor, kinds: Tensor | None,
    scale: Tensor, shift: Tensor, mask: Tensor | None = None, positions: Tensor | None = None,
) -> Any:  # fmt: skip
    """The layer norm of BERT's embeddings; how many tokens are shown of each text; and the sum of the embeddings."""
    batch, length = ids.shape
    x = xp.take(words, ids, axis=0)
    x = xp.add(x, places[:length] if positions is None else xp.take(places, positions, axis=0))
    if segments is not None and kinds is not None:
        x = xp.add(x, xp.take(kinds, segments, axis=0))
    if mask is None:
        shown = xp.zeros((batch,), dtype="int32", device=call.backend)
    else:
        shown = xp.sum(mask.astype("int32", copy=False), axis=1).astype("int32", copy=False)
    return F.layer_norm(x, scale.shape, scale, shift, call.get("epsilon", 1e-12)), shown, x
