"""The layers that models are made of: each asks `Weights` for its tensors and computes on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import functional as F
from .. import nn
from ..compute import Tensor
from ..compute.arrays.activations import apply
from ..compute.attention.checks import MAX_VALUE_DIM
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
        In training, of the outputs.

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

    def forward(self, x: Tensor) -> Tensor:
        """``(..., inputs)`` to ``(..., sum of outputs)``."""
        bias = None if self.bias is None else self.bias.data
        # The wide product adds the adapters', whose depth is too short to hide what adding reads.
        added = None if self.adapters is None or self.adapters.unmerged is not None else self.adapters(x)
        y = F.linear(x, self.weight.data, bias, residual=added, precision=self.precision)
        return F.dropout(y, self.dropout) if self.training and self.dropout else y


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
        super().__init__(width, eps, elementwise_affine=False)  # nothing is made of a width that files may not have
        self.weight, self.bias = (weights.parameter(f"{name}.{part}", width) for part in ("weight", "bias"))


class RMSNorm(nn.RMSNorm):
    """Division by the root mean square over the last axis, by a weight ``(width,)`` to which ``offset`` is added."""

    def __init__(self, weights: Weights, name: str, width: int, eps: float, offset: float = 0.0) -> None:
        super().__init__(width, eps, elementwise_affine=False, weight_offset=offset)  # as above
        self.weight = weights.parameter(f"{name}.weight", width)


#: What configurations call activations.
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu", "silu": "silu", "swish": "silu", "relu": "relu",
}  # fmt: skip


def activated(activation: Activation, x: Tensor, **factor: Tensor) -> Tensor:
    """The activation of x, times ``factor`` where there is one: a single operation either way."""
    found: Tensor = apply(x.backend.opened, "MLP", activation, input=x, **factor)
    return found


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
        self.widen = Linear(weights, names[0], width, inner, bias, transposed)
        self.dropout = nn.Dropout(dropout.inner)
        self.narrow = Linear(weights, names[1], inner, width, bias, transposed, dropout.added)

    def forward(self, x: Tensor) -> Tensor:
        """Of x's shape."""
        return self.narrow(self.dropout(activated(self.activation, self.widen(x))))


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
        self.widen = Linear(weights, first, width, rows, bias)
        self.dropout = nn.Dropout(dropout.inner)
        self.narrow = Linear(weights, last, inner, width, bias, dropout=dropout.added)

    def forward(self, x: Tensor) -> Tensor:
        """Of x's shape."""
        both = self.widen(x)
        inner = both.shape[-1] // 2
        return self.narrow(self.dropout(activated(self.activation, both[..., :inner], factor=both[..., inner:])))


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
    if dim > MAX_VALUE_DIM:
        raise config.error(name, f"heads of at most {MAX_VALUE_DIM} elements, and these have {dim}")


def heads(x: Tensor, count: int) -> Tensor:
    """``(B, S, count * D)`` as ``(B, S, count, D)``, a view."""
    return x.reshape(*x.shape[:-1], count, -1)


def joined(x: Tensor) -> Tensor:
    """``(B, S, H, D)`` as ``(B, S, H * D)``."""
    return x.reshape(*x.shape[:-2], -1)
