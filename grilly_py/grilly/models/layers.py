"""The layers that models are made of: each asks `Weights` for its tensors and computes on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import functional as F
from .. import nn
from ..compute import Tensor
from ..compute.attention.checks import MAX_DIM
from ..functional.products import Activation
from .config import Config
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
    bias : bool or sequence of bool
        Whether there are biases; for each name if some have none.
    transposed : bool
        Whether the files have the weight as ``(inputs, outputs)``.
    """

    def __init__(
        self, weights: Weights, names: str | Sequence[str], inputs: int, outputs: int | Sequence[int],
        bias: bool | Sequence[bool] = True, transposed: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.precision = weights.precision
        names = [names] if isinstance(names, str) else names
        rows = [outputs] if isinstance(outputs, int) else outputs
        self.weight = weights.joined([f"{name}.weight" for name in names], rows, inputs, transposed=transposed)
        has = [bias] * len(rows) if isinstance(bias, bool) else bias
        biases = [f"{name}.bias" if there else None for name, there in zip(names, has, strict=True)]
        self.bias = weights.joined(biases, rows) if any(has) else None

    def forward(
        self, x: Tensor, residual: Tensor | None = None, activation: Activation | None = None, gated: bool = False,
        norm: RMSNorm | None = None,
    ) -> Tensor:  # fmt: skip
        """``(..., inputs)`` to ``activation(y) + residual``, ``(..., sum of outputs)``; half of that if ``gated``.

        With a ``norm`` x is normalised first, which for few rows takes no dispatch of its own.
        """
        bias = None if self.bias is None else self.bias.data
        normed = {} if norm is None else norm.before_linear()
        return F.linear(
            x, self.weight.data, bias, precision=self.precision, activation=activation, gated=gated, residual=residual,
            **normed,
        )  # fmt: skip


class Embedding(nn.Module):
    """Rows of a table by number: ``NAME.weight`` is ``(rows, width)``."""

    def __init__(self, weights: Weights, name: str, rows: int, width: int) -> None:
        super().__init__()
        self.precision = weights.precision
        self.weight = weights.parameter(f"{name}.weight", rows, width)

    def forward(self, ids: Tensor) -> Tensor:
        """``(..., width)``."""
        return F.embedding(ids, self.weight.data)

    def logits(self, x: Tensor) -> Tensor:
        """The products of ``(..., width)`` with every row."""
        return F.linear(x, self.weight.data, precision=self.precision)


class LayerNorm(nn.LayerNorm):
    """Layer normalisation over the last axis: ``NAME.weight`` and ``NAME.bias`` are ``(width,)``."""

    def __init__(self, weights: Weights, name: str, width: int, eps: float) -> None:
        super().__init__(width, eps)
        self.weight, self.bias = (weights.parameter(f"{name}.{part}", width) for part in ("weight", "bias"))


class RMSNorm(nn.RMSNorm):
    """Division by the root mean square over the last axis, by a weight ``(width,)`` to which ``offset`` is added."""

    def __init__(self, weights: Weights, name: str, width: int, eps: float, offset: float = 0.0) -> None:
        super().__init__(width, eps, weight_offset=offset)
        self.weight = weights.parameter(f"{name}.weight", width)

    def before_linear(self) -> dict[str, Any]:
        """What ``F.linear`` is told to do this to its input."""
        assert self.weight is not None
        return {"norm_weight": self.weight.data, "norm_eps": self.eps, "norm_offset": self.weight_offset}

    def added(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of both, normalised and as it is."""
        weight, _ = self._own(x)
        return F.add_rms_norm(x, residual, self.normalized_shape, weight, self.eps, self.weight_offset)


#: What configurations call the activations of linear layers.
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu", "silu": "silu", "swish": "silu", "relu": "relu",
}  # fmt: skip


class MLP(nn.Module):
    """Two linear layers with an activation between them: ``names`` are theirs."""

    def __init__(
        self, weights: Weights, names: Sequence[str], width: int, inner: int, activation: str, bias: bool = True,
        transposed: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.widen = Linear(weights, names[0], width, inner, bias, transposed)
        self.narrow = Linear(weights, names[1], inner, width, bias, transposed)

    def forward(self, x: Tensor, residual: Tensor | None = None, norm: RMSNorm | None = None) -> Tensor:
        """Of x's shape, with ``residual`` added; of x normalised by ``norm``."""
        return self.narrow(self.widen(x, activation=self.activation, norm=norm), residual)


class GatedMLP(nn.Module):
    """``down(activation(gate(x)) * up(x))`` (Shazeer 2020, arXiv:2002.05202): names of gate, up and down.

    Or of gate and up, which the files have as one tensor, and down.
    """

    def __init__(
        self, weights: Weights, names: Sequence[str], width: int, inner: int, activation: str, bias: bool = False
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        *first, last = names
        self.widen = Linear(weights, first, width, [2 * inner // len(first)] * len(first), bias)
        self.narrow = Linear(weights, last, inner, width, bias)

    def forward(self, x: Tensor, residual: Tensor | None = None, norm: RMSNorm | None = None) -> Tensor:
        """Of x's shape, with ``residual`` added; of x normalised by ``norm``."""
        return self.narrow(self.widen(x, activation=self.activation, gated=True, norm=norm), residual)


def check_dim(config: Config, name: str, dim: int) -> None:
    """Raise ModelError for heads of more elements than attention has kernels for; ``name`` is the field to blame."""
    if dim > MAX_DIM:
        raise config.error(name, f"heads of at most {MAX_DIM} elements, and these have {dim}")


def heads(x: Tensor, count: int) -> Tensor:
    """``(B, S, count * D)`` as ``(B, S, count, D)``, a view."""
    return x.reshape(*x.shape[:-1], count, -1)


def joined(x: Tensor) -> Tensor:
    """``(B, S, H, D)`` as ``(B, S, H * D)``."""
    return x.reshape(*x.shape[:-2], -1)
