"""The record of one matrix product: its operands, their layouts, and what is done before and after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...registry.shared import names_of
from ..device.tensor import Tensor
from .finish import Finish

#: Activations that products can end with, by the kernels' number (shaders/include/activations.glsl).
ACTIVATIONS = {name.removeprefix("activation_"): number for name, number in names_of("activations").items()}


class LinearCall(NamedTuple):
    """A call of a linear layer or a convolution, as its plan is noted in captured work (fusion.py).

    Attributes
    ----------
    plan : callable
        ``plan(static, layouts, facts, registry)``.
    static : tuple
        Of a linear layer it ends with the activation or None, whether it is gated, and ``(epsilon, offset)`` of the
        norm or ``()``.
    residual, norm : int or None
        The places of the residual and of the norm's weight among the arrays, of which x is the first; None of a
        convolution, which has none.
    finishes : bool
        Whether an expression may stand behind it. The plan then takes a ``Behind`` at the end of ``static``, and two
        more arrays.
    """

    plan: Callable
    static: tuple
    residual: int | None = None
    norm: int | None = None
    finishes: bool = False


class Prologue(NamedTuple):
    """An RMS norm of a's rows before the product: ``a / sqrt(mean(a * a) + epsilon) * (weight + added)``.

    Attributes
    ----------
    weight : Tensor or None
        ``(K,)``, contiguous; None for no norm.
    offset : int
        What divides the weight's offset (``Layout.offset``).
    epsilon, added : float
    """

    weight: Tensor | None = None
    offset: int = 0
    epsilon: float = 0.0
    added: float = 0.0


class Epilogue(NamedTuple):
    """What follows the product before it is rounded: ``activation(x) + residual``, x with its bias added.

    Attributes
    ----------
    activation : str
        A name of ACTIVATIONS.
    residual : Tensor or None
        Of c's shape, the last axis contiguous.
    offset : int
        What divides the residual's offset (``Layout.offset``).
    gated : bool
        x has twice the columns of c: ``activation(x[..., :N]) * x[..., N:] + residual``.
    finish : Finish
        What is made of that, rounded to c's dtype, in the same dispatch.
    """

    activation: str = "none"
    residual: Tensor | None = None
    offset: int = 0
    gated: bool = False
    finish: Finish = Finish()


class Operands(NamedTuple):
    """The arrays of a product, or of a part of it; shapes as in ``Matmul``."""

    a: Tensor
    b: Tensor
    c: Tensor
    bias: Tensor | None
    residual: Tensor | None


class Matmul(NamedTuple):
    """One batched product: ``c = epilogue(scale * prologue(a) b + bias)``.

    Attributes
    ----------
    operation : str
        The registry's: "linear", "attention-scores" or "attention-output". Prologue and epilogue are of "linear" only.
    a : Tensor
        ``(B, H, M, K)``. Of "linear" a and b may have any strides, of the others the last axis is contiguous.
    b : Tensor
        ``(B, H / g, N, K)`` or, where ``b_is_nk`` is False, ``(B, H / g, K, N)``. With a gated epilogue 2 N for N.
    c : Tensor
        ``(B, H, M, N)``, the last axis contiguous; where ``transposed_c``, the last but one.
    b_is_nk : bool
    offsets : (int, int)
        What divides the offsets of a and b (``Layout.offset``).
    model : str
        The registry's model.
    bias : Tensor or None
        ``(N,)``, contiguous.
    scale : float
    shift : int
        Of the model "gpt": row i uses the first ``i + shift + 1`` elements of K.
    high : bool
        Whether float32 may be split into 16-bit parts, for matrix units; of "linear" only.
    split_b : Tensor or None
        The split of b's first batch and head (split.py), if it was made before.
    transposed_c : bool
        Whether c and the residual are transposed, and the bias is ``(M,)``; of kernels with ``TRANSPOSED_C`` only.
    prologue : Prologue
    epilogue : Epilogue
    """

    operation: str
    a: Tensor
    b: Tensor
    c: Tensor
    b_is_nk: bool = True
    offsets: tuple[int, int] = (0, 0)
    model: str = "generic"
    bias: Tensor | None = None
    scale: float = 1.0
    shift: int = 0
    high: bool = False
    split_b: Tensor | None = None
    transposed_c: bool = False
    prologue: Prologue = Prologue()
    epilogue: Epilogue = Epilogue()

    @property
    def operands(self) -> Operands:
        """What a kernel reads and writes for every tile."""
        return Operands(self.a, self.b, self.c, self.bias, self.epilogue.residual)

    @property
    def rows(self) -> int:
        """M."""
        return self.a.shape[2]

    @property
    def depth(self) -> int:
        """K."""
        return self.a.shape[3]

    @property
    def all_rows(self) -> int:
        """Rows of all batches and heads."""
        batch, heads, rows, _ = self.a.shape
        return batch * heads * rows

    @property
    def columns_per_output(self) -> int:
        """Columns of b for each of c: two where the epilogue is gated."""
        return 1 + self.epilogue.gated

    @property
    def cols(self) -> int:
        """Columns of b."""
        return self.columns_per_output * self.c.shape[3]

    @property
    def may_cut_columns(self) -> bool:
        """Whether some columns may be a product of their own."""
        return self.b_is_nk and not self.epilogue.gated and self.prologue.weight is None and not self.transposed_c
