"""The block of encoders that normalise first: Vision Transformer, CLIP, Whisper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import array_api as xp
from .. import functional as F
from .. import nn
from ..compute import Tensor
from .config import REQUIRED, Config
from .layers import MLP, Dropouts, LayerNorm, Linear
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
    dropout : Dropouts
    """

    def __init__(
        self, weights: Weights, names: Sequence[str], width: int, heads: int, inner: int, activation: str, eps: float,
        bias: Sequence[bool] = (True, True, True), dropout: Dropouts = Dropouts(),  # noqa: B008
    ) -> None:  # fmt: skip
        super().__init__()
        self.heads, self.dropout = heads, dropout.attention
        self.attention_norm = LayerNorm(weights, names[0], width, eps)
        self.qkv = Linear(weights, names[1:4], width, [width] * 3, bias)
        self.output = Linear(weights, names[4], width, width, dropout=dropout.added)
        self.norm = LayerNorm(weights, names[5], width, eps)
        self.mlp = MLP(weights, (names[6], names[7]), width, inner, activation, dropout=dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """``(B, S, width)``; the mask is ``(B, 1, 1, S)``."""
        width = x.shape[-1]
        qkv = self.qkv(self.attention_norm(x))
        q, k, v = (qkv[..., i * width : (i + 1) * width] for i in range(3))
        attended = F.flash_attention3(
            q, k, v, num_heads=self.heads, mask=mask, causal=causal, precision=self.qkv.precision,
            dropout_p=self.dropout if self.training else 0.0,
        )  # fmt: skip
        h = x + self.output(attended)
        return h + self.mlp(self.norm(h))


def sides(config: Config, image: Any = REQUIRED, patch: Any = REQUIRED) -> tuple[int, int]:
    """Of pictures and of their patches, with these defaults. Raises ModelError where a picture has no patch."""
    given = config.fields.get("image_size")
    if isinstance(given, list) and len(given) == 2 and given[0] == given[1]:  # transformers takes both sides too
        config.fields["image_size"] = given[0]
    image, patch = config.integer("image_size", image), config.integer("patch_size", patch)
    if patch > image:
        raise config.error("patch_size", f"at most image_size, {image}")
    return image, patch


class Patches(nn.Module):
    """Pictures as tokens: one for each square, by a convolution without overlap, after one that is the same for all."""

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

    def forward(self, pixels: Tensor, first: Tensor, places: Tensor) -> Tensor:
        """``(B, C, H, W)`` to ``(B, 1 + patches, width)``, with ``places``, of one shape for all pictures, added."""
        assert self.weight is not None
        columns, bias = self.side // self.patch, None if self.bias is None else self.bias.data
        x = F.conv2d(
            pixels, self.weight.data, bias, stride=self.patch, padding=(self.patch, 0), precision=self.precision
        ).transpose(0, 2, 3, 1).reshape(len(pixels), -1, len(self.weight.data))
        # A row of padding lies before the patches: its last place is the first token's, so that nothing has to move.
        x = x[:, columns - 1 : columns + self.count]
        is_first = np.arange(x.shape[1])[:, None] == 0
        return xp.where(x.backend.tensor(is_first), first, x) + places
