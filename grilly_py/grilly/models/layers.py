"""The layers that models are made of: each asks `Weights` for its tensors and computes on the device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .. import functional as F
from .. import nn
from ..compute import Tensor
from ..compute.attention.checks import MAX_DIM
from ..functional.matmul import Activation
from ..transforms import checkpoint
from .adapters import Adapters
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
    dropout : float
        In training, of what is computed before the residual is added.

    Attributes
    ----------
    adapters : Adapters or None
        What `grilly.lora` adds to the products; None too while that is merged into the weight.
    """

    adapters: Adapters | None

    def __init__(
        self, weights: Weights, names: str | Sequence[str], inputs: int, outputs: int | Sequence[int],
        bias: bool | Sequence[bool] = True, transposed: bool = False, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.precision, self.dropout = weights.precision, dropout
        self.adapters = None
        names = [names] if isinstance(names, str) else names
        rows = [outputs] if isinstance(outputs, int) else outputs
        full = [f"{name}.weight" for name in names]
        self.weight = weights.joined(full, rows, inputs, transposed=transposed, quantized=True)
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
        dropped = self.training and self.dropout > 0
        last = None if dropped else residual
        if self.adapters is not None and self.adapters.unmerged is None:
            y = self._adapted(x if norm is None else norm(x), last, activation, gated)
        else:
            normed = {} if norm is None else norm.before_linear()
            y = self._product(x, residual=last, activation=activation, gated=gated, **normed)
        if not dropped:
            return y
        y = F.dropout(y, self.dropout)
        return y if residual is None else y + residual

    def _product(self, x: Tensor, **options: Any) -> Tensor:
        bias = None if self.bias is None else self.bias.data
        return F.linear(x, self.weight.data, bias, precision=self.precision, **options)

    def _adapted(self, x: Tensor, residual: Tensor | None, activation: Activation | None, gated: bool) -> Tensor:
        """The result with adapters, which add to what the activation is applied to."""
        assert self.adapters is not None
        if activation is None:
            return self.adapters(x, self._product(x, residual=residual))
        y = self.adapters(x, self._product(x))
        if gated:
            half = y.shape[-1] // 2
            y = FUNCTIONS[activation](y[..., :half]) * y[..., half:]
        else:
            y = FUNCTIONS[activation](y)
        return y if residual is None else y + residual


class Embedding(nn.Module):
    """Rows of a table by number: ``NAME.weight`` is ``(rows, width)``; ``quantized`` as of `Weights.joined`."""

    def __init__(self, weights: Weights, name: str, rows: int, width: int, quantized: bool = True) -> None:
        super().__init__()
        self.precision, self.dtype = weights.precision, weights.dtype
        self.weight = weights.parameter(f"{name}.weight", rows, width, quantized=quantized)

    def forward(self, ids: Tensor) -> Tensor:
        """``(..., width)``."""
        return F.embedding(ids, self.weight.data).astype(self.dtype, copy=False)

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


#: The functions that linear layers may end with.
FUNCTIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu, "gelu_tanh": functools.partial(F.gelu, approximate="tanh"), "silu": F.silu, "relu": F.relu,
    "quick_gelu": F.quick_gelu, "sigmoid": F.sigmoid,
}  # fmt: skip
#: What configurations call the activations of linear layers.
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu", "silu": "silu", "swish": "silu", "relu": "relu",
}  # fmt: skip


class Dropouts(NamedTuple):
    """Shares that a layer drops in training: of attention's weights, of inner states of the MLP, of what is added."""

    attention: float = 0.0
    inner: float = 0.0
    added: float = 0.0


class MLP(nn.Module):
    """Two linear layers with an activation between them: ``names`` are theirs."""

    def __init__(
        self, weights: Weights, names: Sequence[str], width: int, inner: int, activation: str, bias: bool = True,
        transposed: bool = False, dropout: Dropouts = Dropouts(),  # noqa: B008
    ) -> None:  # fmt: skip
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.widen = Linear(weights, names[0], width, inner, bias, transposed, dropout.inner)
        self.narrow = Linear(weights, names[1], inner, width, bias, transposed, dropout.added)

    def forward(self, x: Tensor, residual: Tensor | None = None, norm: RMSNorm | None = None) -> Tensor:
        """Of x's shape, with ``residual`` added; of x normalised by ``norm``."""
        return self.narrow(self.widen(x, activation=self.activation, norm=norm), residual)


class GatedMLP(nn.Module):
    """``down(activation(gate(x)) * up(x))`` (Shazeer 2020, arXiv:2002.05202): names of gate, up and down.

    Or of gate and up, which the files have as one tensor, and down.
    """

    def __init__(
        self, weights: Weights, names: Sequence[str], width: int, inner: int, activation: str, bias: bool = False,
        dropout: Dropouts = Dropouts(),  # noqa: B008
    ) -> None:  # fmt: skip
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        *first, last = names
        rows = [2 * inner // len(first)] * len(first)
        self.widen = Linear(weights, first, width, rows, bias, dropout=dropout.inner)
        self.narrow = Linear(weights, last, inner, width, bias, dropout=dropout.added)

    def forward(self, x: Tensor, residual: Tensor | None = None, norm: RMSNorm | None = None) -> Tensor:
        """Of x's shape, with ``residual`` added; of x normalised by ``norm``."""
        return self.narrow(self.widen(x, activation=self.activation, gated=True, norm=norm), residual)


class Layers(nn.ModuleList):
    """Layers one after the other: each gets what the one before it gave, and what all are given.

    Attributes
    ----------
    checkpointed : bool
        Whether what layers compute inside is computed again for gradients, and not kept.
    """

    checkpointed = False

    def one(self, layer: nn.Module, *arguments: Any, **named: Any) -> Any:
        """What a layer gives."""
        return (checkpoint(layer) if self.checkpointed else layer)(*arguments, **named)

    def through(self, x: Tensor, *arguments: Any, **named: Any) -> Tensor:
        """What the last layer gives."""
        for layer in self:
            x = self.one(layer, x, *arguments, **named)
        return x


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
