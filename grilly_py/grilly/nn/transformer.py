"""Layers of transformers: attention and a feed-forward network, each added to its input and normalised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ..compute import Tensor
from ..compute.device.arrays import Array, FloatArray, FloatT, HostMask, MaskArray, NDArray, Precision
from .activations import GELU, ReLU, SiLU
from .dropout import Dropout
from .linear import Linear
from .module import Module, shapes
from .multihead import MultiheadAttention
from .norms import LayerNorm

#: Activations by their names, as layers.
_ACTIVATIONS = {"relu": ReLU, "gelu": GELU, "gelu_tanh": lambda: GELU("tanh"), "silu": SiLU}


class _TransformerLayer(Module):
    """What encoder and decoder layers share: parts that are added to what they are given."""

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int, dropout: float, activation: str, norm_first: bool,
        bias: bool, precision: Precision | None, rng: int | np.random.Generator | None,
    ) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        if not isinstance(activation, str) or activation not in _ACTIVATIONS:
            word = _word_of(activation)
            way = f"one of {tuple(_ACTIVATIONS)}" if word is None else f"its name: give {word!r}"
            raise ValueError(f"{name}: activation is {activation!r}; expected {way}")
        rng = np.random.default_rng(rng)
        options: dict[str, Any] = {} if precision is None else {"precision": precision}
        self.norm_first = bool(norm_first)
        self._of_attention = {"bias": bias, "rng": rng, **options}
        self.self_attn = MultiheadAttention(d_model, nhead, **self._of_attention)
        self.linear1 = Linear(d_model, dim_feedforward, bias, rng=rng, **options)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, rng=rng, **options)
        self.activation = _ACTIVATIONS[activation]()

    def _attend(self, x: Tensor, mask: MaskArray | None, causal: bool) -> Tensor:
        return self.self_attn(x, mask=mask, causal=causal, need_weights=False)[0]

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


def _name_of(activation: Module) -> str | None:
    """The name of an activation that is a layer; None where it has none."""
    if type(activation) is GELU:
        return "gelu_tanh" if activation.approximate == "tanh" else "gelu"
    return {ReLU: "relu", SiLU: "silu"}.get(type(activation))  # type: ignore[call-overload, no-any-return]


def _word_of(activation: Any) -> str | None:
    """The name of an activation that is given as a layer, its class or a function, of PyTorch's too."""
    found = _name_of(activation) if isinstance(activation, Module) else None
    found = found or str(getattr(activation, "__name__", type(activation).__name__)).lower()
    return found if found in _ACTIVATIONS else None


class TransformerEncoderLayer(_TransformerLayer):
    """Self-attention and a feed-forward network (Vaswani et al. 2017, section 3.1).

    Loads the state dict of ``torch.nn.TransformerEncoderLayer``. Inputs are ``(B, S, E)`` or ``(S, E)``, as with
    ``batch_first=True`` there, and a boolean mask is True where a query attends. Weights of attention are not dropped.

    Parameters
    ----------
    d_model : int
        Width of the tokens, E.
    nhead : int
        Attention heads; divides ``d_model``.
    dim_feedforward : int
        Width between the two linear layers.
    dropout : float
        Probability with which elements are dropped while ``training``, after attention, the activation and the second
        linear layer.
    activation : str
        "relu", "gelu", "gelu_tanh" or "silu".
    layer_norm_eps : float
        Added to the variance in the normalisations.
    norm_first : bool
        Whether attention and feed-forward network get normalised inputs (GPT-2, ViT) instead of their sums with the
        inputs being normalised (BERT).
    bias : bool
        Whether linear layers, projections and normalisations have biases.
    precision : str, optional
        "highest" or "high" of all products, as in ``grilly.functional.linear``.
    rng : int or numpy.random.Generator, optional
        Where the first weights come from.

    Raises
    ------
    ValueError
        For an unknown activation or precision, or heads that do not divide the width.
    """

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1, activation: str = "relu",
        layer_norm_eps: float = 1e-5, *, norm_first: bool = False, bias: bool = True,
        precision: Precision | None = None, rng: int | np.random.Generator | None = None,
    ) -> None:  # fmt: skip
        super().__init__(d_model, nhead, dim_feedforward, dropout, activation, norm_first, bias, precision, rng)
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)

    _inputs = ("x",)

    @overload
    def forward(self, x: NDArray[FloatT], *, mask: HostMask | None = ..., causal: bool = ...) -> NDArray[FloatT]: ...
    @overload
    def forward(self, x: Tensor, *, mask: MaskArray | None = ..., causal: bool = ...) -> Tensor: ...
    @overload
    def forward(self, x: FloatArray, *, mask: MaskArray | None = ..., causal: bool = ...) -> Array: ...
    def forward(self, x: FloatArray, *, mask: MaskArray | None = None, causal: bool = False) -> Array:
        """Of x's shape and dtype.

        Parameters
        ----------
        x : numpy.ndarray or grilly.Tensor
            ``(B, S, E)`` or ``(S, E)``, of the weights' dtype.
        mask : numpy.ndarray or grilly.Tensor, optional
            Boolean (**True = attend**) or additive, broadcastable to ``(B, H, S, S)``. Padding ``(B, S)`` goes in as
            ``padding[:, None, None]``.
        causal : bool
            Whether a token attends only to itself and those before it.

        Raises
        ------
        ValueError, TypeError
            For shapes or dtypes that do not go together.
        """
        _, (sent,), keep = self._send(x, mask=mask)
        y = self._run(sent, mask, causal)
        return y if keep else y.numpy()

    if TYPE_CHECKING:  # calling a layer is forward: its arguments and results are known to type checkers
        __call__ = forward

        @overload
        def backward(self, grad_output: NDArray[FloatT]) -> NDArray[FloatT]: ...
        @overload
        def backward(self, grad_output: Tensor) -> Tensor: ...
        def backward(self, grad_output: FloatArray) -> Array: ...

    def _run(self, x: Tensor, mask: MaskArray | None, causal: bool) -> Tensor:
        if self.norm_first:
            x = x + self.dropout1(self._attend(self.norm1(x), mask, causal))
            return x + self.dropout2(self._feed_forward(self.norm2(x)))
        x = self.norm1(x + self.dropout1(self._attend(x, mask, causal)))
        return self.norm2(x + self.dropout2(self._feed_forward(x)))


class TransformerDecoderLayer(_TransformerLayer):
    """Self-attention, attention to an encoder's output, and a feed-forward network (Vaswani et al. 2017, section 3.1).

    Loads the state dict of ``torch.nn.TransformerDecoderLayer``; see `TransformerEncoderLayer` for the parameters and
    for what differs from PyTorch.
    """

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1, activation: str = "relu",
        layer_norm_eps: float = 1e-5, *, norm_first: bool = False, bias: bool = True,
        precision: Precision | None = None, rng: int | np.random.Generator | None = None,
    ) -> None:  # fmt: skip
        super().__init__(d_model, nhead, dim_feedforward, dropout, activation, norm_first, bias, precision, rng)
        self.multihead_attn = MultiheadAttention(d_model, nhead, **self._of_attention)
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias)
        self.norm3 = LayerNorm(d_model, layer_norm_eps, bias=bias)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        self.dropout3 = Dropout(dropout)

    _inputs = ("x", "memory")

    @overload
    def forward(
        self, x: NDArray[FloatT], memory: NDArray[FloatT], *, mask: HostMask | None = ...,
        memory_mask: HostMask | None = ..., causal: bool = ...,
    ) -> NDArray[FloatT]: ...  # fmt: skip
    @overload
    def forward(
        self, x: Tensor, memory: FloatArray, *, mask: MaskArray | None = ..., memory_mask: MaskArray | None = ...,
        causal: bool = ...,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def forward(
        self, x: FloatArray, memory: FloatArray, *, mask: MaskArray | None = ..., memory_mask: MaskArray | None = ...,
        causal: bool = ...,
    ) -> Array: ...  # fmt: skip
    def forward(
        self, x: FloatArray, memory: FloatArray, *, mask: MaskArray | None = None,
        memory_mask: MaskArray | None = None, causal: bool = False,
    ) -> Array:  # fmt: skip
        """Of x's shape and dtype.

        Parameters
        ----------
        x : numpy.ndarray or grilly.Tensor
            ``(B, S, E)`` or ``(S, E)``, of the weights' dtype.
        memory : numpy.ndarray or grilly.Tensor
            The encoder's output, ``(B, M, E)`` or ``(M, E)``.
        mask, memory_mask : numpy.ndarray or grilly.Tensor, optional
            Boolean (**True = attend**) or additive, broadcastable to ``(B, H, S, S)`` and ``(B, H, S, M)``.
        causal : bool
            Whether a token attends only to itself and those before it.

        Raises
        ------
        ValueError, TypeError
            For shapes or dtypes that do not go together.
        """
        shapes(type(self).__name__, x=x, memory=memory)
        keep = self._stays(x, memory, mask, memory_mask)
        _, (sent, other), _ = self._send(x, memory, mask=mask if isinstance(mask, Tensor) else memory_mask)
        y = self._run(sent, other, mask, memory_mask, causal)
        return y if keep else y.numpy()

    if TYPE_CHECKING:  # calling a layer is forward: its arguments and results are known to type checkers
        __call__ = forward

        @overload
        def backward(self, grad_output: NDArray[FloatT]) -> tuple[NDArray[FloatT], NDArray[FloatT]]: ...
        @overload
        def backward(self, grad_output: Tensor) -> tuple[Tensor, Tensor]: ...
        def backward(self, grad_output: FloatArray) -> tuple[Array, Array]: ...

    def _look(self, x: Tensor, memory: Tensor, mask: MaskArray | None) -> Tensor:
        return self.multihead_attn(x, memory, mask=mask, need_weights=False)[0]

    def _run(
        self, x: Tensor, memory: Tensor, mask: MaskArray | None, memory_mask: MaskArray | None, causal: bool
    ) -> Tensor:
        if self.norm_first:
            x = x + self.dropout1(self._attend(self.norm1(x), mask, causal))
            x = x + self.dropout2(self._look(self.norm2(x), memory, memory_mask))
            return x + self.dropout3(self._feed_forward(self.norm3(x)))
        x = self.norm1(x + self.dropout1(self._attend(x, mask, causal)))
        x = self.norm2(x + self.dropout2(self._look(x, memory, memory_mask)))
        return self.norm3(x + self.dropout3(self._feed_forward(x)))
