"""The block of encoders that normalise first: Vision Transformer, CLIP, Whisper."""

from __future__ import annotations

from collections.abc import Sequence

from .. import functional as F
from .. import nn
from ..compute import Tensor
from .layers import MLP, LayerNorm, Linear
from .weights import Weights


class Block(nn.Module):
    """Attention of all to all, and two linear layers, each on a normalised input and added to it.

    Parameters
    ----------
    weights : Weights
    names : sequence of str
        Of the first norm; the layers of q, k, v and of the output; the second norm; the two linear layers.
    width, heads, inner : int
    activation : str
    eps : float
    bias : sequence of bool
        Of the layers of q, k and v.
    """

    def __init__(
        self, weights: Weights, names: Sequence[str], width: int, heads: int, inner: int, activation: str, eps: float,
        bias: Sequence[bool] = (True, True, True),
    ) -> None:  # fmt: skip
        super().__init__()
        self.heads = heads
        self.attention_norm = LayerNorm(weights, names[0], width, eps)
        self.qkv = Linear(weights, names[1:4], width, [width] * 3, bias)
        self.output = Linear(weights, names[4], width, width)
        self.norm = LayerNorm(weights, names[5], width, eps)
        self.mlp = MLP(weights, (names[6], names[7]), width, inner, activation)

    def forward(self, x: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """``(B, S, width)``; the mask is ``(B, 1, 1, S)``."""
        width = x.shape[-1]
        qkv = self.qkv(self.attention_norm(x))
        q, k, v = (qkv[..., i * width : (i + 1) * width] for i in range(3))
        attended = F.flash_attention3(
            q, k, v, num_heads=self.heads, mask=mask, causal=causal, precision=self.qkv.precision
        )
        x = self.output(attended, residual=x)
        return self.mlp(self.norm(x), residual=x)


class Patches(nn.Module):
    """Pictures cut into squares, each of which a linear layer makes a token of (a convolution without overlap)."""

    def __init__(
        self, weights: Weights, name: str, channels: int, side: int, patch: int, width: int, bias: bool = True
    ) -> None:
        super().__init__()
        self.channels, self.side, self.patch, self.precision = channels, side, patch, weights.precision
        self.weight = weights.parameter(f"{name}.weight", width, channels, patch, patch)
        self.bias = weights.parameter(f"{name}.bias", width) if bias else None

    @property
    def count(self) -> int:
        """Patches of a picture."""
        return (self.side // self.patch) ** 2

    def forward(self, pixels: Tensor) -> Tensor:
        """``(B, C, H, W)`` to ``(B, patches, width)``."""
        rows, patch = self.side // self.patch, self.patch
        x = pixels[:, :, : rows * patch, : rows * patch]
        x = x.reshape(len(x) * self.channels, rows, patch, rows, patch)
        x = x.reshape(len(pixels), self.channels, rows, patch, rows, patch).transpose(0, 2, 4, 1, 3, 5)
        x = x.reshape(len(pixels), self.count, self.channels * patch * patch)
        bias = None if self.bias is None else self.bias.data
        return F.linear(x, self.weight.data.reshape(len(self.weight.data), -1), bias, precision=self.precision)
