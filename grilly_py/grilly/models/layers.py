"""The layers that models are made of: each asks `Weights` for its tensors and computes on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .. import array_api as xp
from .. import functional as F
from .. import nn
from ..compute import Tensor
from .weights import Weights


class Linear(nn.Module):
    """``y = x W^T + b``. Several names give one layer whose outputs stand side by side, as q, k and v may.

    Parameters
    ----------
    weights : Weights
    names : str or sequence of str
        Where the tensors ``NAME.weight`` and ``NAME.bias`` are.
    inputs : int
    outputs : int or sequence of int
    bias : bool
    transposed : bool
        Whether the files have the weight as ``(inputs, outputs)``.
    """

    def __init__(
        self, weights: Weights, names: str | Sequence[str], inputs: int, outputs: int | Sequence[int],
        bias: bool = True, transposed: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        names = [names] if isinstance(names, str) else names
        rows = [outputs] if isinstance(outputs, int) else outputs
        self.weight = weights.joined([f"{name}.weight" for name in names], rows, inputs, transposed=transposed)
        self.bias = weights.joined([f"{name}.bias" for name in names], rows) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """``(..., inputs)`` to ``(..., sum of outputs)``."""
        return F.linear(x, self.weight.data, None if self.bias is None else self.bias.data)


class Embedding(nn.Module):
    """Rows of a table by number: ``NAME.weight`` is ``(rows, width)``."""

    def __init__(self, weights: Weights, name: str, rows: int, width: int) -> None:
        super().__init__()
        self.weight = weights.parameter(f"{name}.weight", rows, width)

    def forward(self, ids: Tensor) -> Tensor:
        """``(..., width)``; a number past the table gives its last row."""
        return xp.take(self.weight.data, ids, axis=0)

    def logits(self, x: Tensor) -> Tensor:
        """The product of ``(..., width)`` with every row."""
        return F.linear(x, self.weight.data)


class LayerNorm(nn.Module):
    """Layer normalisation over the last axis (Ba et al. 2016, arXiv:1607.06450), in float32."""

    def __init__(self, weights: Weights, name: str, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = weights.parameter(f"{name}.weight", width)
        self.bias = weights.parameter(f"{name}.bias", width)

    def forward(self, x: Tensor) -> Tensor:
        """Of x's shape and dtype."""
        wide = x.astype("float32")
        centred = wide - xp.mean(wide, axis=-1, keepdims=True)
        deviation = xp.sqrt(xp.mean(centred * centred, axis=-1, keepdims=True) + self.eps)
        return (centred / deviation * self.weight.data + self.bias.data).astype(x.dtype)


class RMSNorm(nn.Module):
    """Division by the root mean square over the last axis (Zhang and Sennrich 2019, arXiv:1910.07467), in float32.

    ``offset`` is added to the weight: 1 in Gemma.
    """

    def __init__(self, weights: Weights, name: str, width: int, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.eps = eps
        self.offset = offset
        self.weight = weights.parameter(f"{name}.weight", width)

    def forward(self, x: Tensor) -> Tensor:
        """Of x's shape and dtype."""
        wide = x.astype("float32")
        size = xp.sqrt(xp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        weight = self.weight.data.astype("float32") + self.offset if self.offset else self.weight.data
        return (wide / size * weight).astype(x.dtype)


def gelu(x: Tensor) -> Tensor:
    """``x / 2 (1 + erf(x / sqrt(2)))`` (Hendrycks and Gimpel 2016, arXiv:1606.08415), in float32."""
    wide = x.astype("float32")
    return (wide * 0.5 * (1 + xp.erf(wide * math.sqrt(0.5)))).astype(x.dtype)


def gelu_tanh(x: Tensor) -> Tensor:
    """The same, with a hyperbolic tangent in place of the error function, in float32."""
    wide = x.astype("float32")
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide * wide * wide)
    return (wide * 0.5 * (1 + xp.tanh(inner))).astype(x.dtype)


def quick_gelu(x: Tensor) -> Tensor:
    """``x sigmoid(1.702 x)``, in float32."""
    wide = x.astype("float32")
    return (wide / (1 + xp.exp(wide * -1.702))).astype(x.dtype)


def silu(x: Tensor) -> Tensor:
    """``x sigmoid(x)``, in float32."""
    wide = x.astype("float32")
    return (wide / (1 + xp.exp(-wide))).astype(x.dtype)


def relu(x: Tensor) -> Tensor:
    """``max(x, 0)``."""
    return xp.maximum(x, 0)


#: The functions that configurations name.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu, "gelu_new": gelu_tanh, "gelu_pytorch_tanh": gelu_tanh, "gelu_fast": gelu_tanh,
    "quick_gelu": quick_gelu, "silu": silu, "swish": silu, "relu": relu, "tanh": xp.tanh,
}  # fmt: skip


class MLP(nn.Module):
    """Two linear layers with an activation between them: ``NAMES`` are theirs."""

    def __init__(
        self, weights: Weights, names: tuple[str, str], width: int, inner: int, activation: str, bias: bool = True,
        transposed: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.widen = Linear(weights, names[0], width, inner, bias, transposed)
        self.narrow = Linear(weights, names[1], inner, width, bias, transposed)

    def forward(self, x: Tensor) -> Tensor:
        """Of x's shape."""
        return self.narrow(self.activation(self.widen(x)))


class GatedMLP(nn.Module):
    """``down(activation(gate(x)) * up(x))`` (Shazeer 2020, arXiv:2002.05202): names of gate, up and down."""

    def __init__(
        self, weights: Weights, names: tuple[str, str, str], width: int, inner: int, activation: str,
        bias: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.inner = inner
        self.widen = Linear(weights, names[:2], width, (inner, inner), bias)
        self.narrow = Linear(weights, names[2], inner, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Of x's shape."""
        both = self.widen(x)
        return self.narrow(self.activation(both[..., : self.inner]) * both[..., self.inner :])


def heads(x: Tensor, count: int) -> Tensor:
    """``(B, S, count * D)`` as ``(B, S, count, D)``, a view."""
    return x.reshape(*x.shape[:-1], count, -1)


def joined(x: Tensor) -> Tensor:
    """``(B, S, H, D)`` as ``(B, S, H * D)``."""
    return x.reshape(*x.shape[:-2], -1)
