"""Linear: ``x W^T + b`` on the device."""

from __future__ import annotations

import math

import numpy as np

from .. import functional as F
from ..compute import Tensor
from ..compute.device.arguments import check_precision
from ..compute.device.arrays import FloatArray, NDArray, Precision
from ..compute.device.numbers import integer
from .module import shapes
from .parameter import Parameter
from .unary import Unary


def uniform(rng: np.random.Generator, bound: float, *shape: int) -> NDArray[np.float32]:
    """float32 values drawn evenly from -bound to bound."""
    return rng.uniform(-bound, bound, shape).astype(np.float32)


class Linear(Unary):
    """``y = x W^T + b``, computed on the device: ``(..., in_features)`` to ``(..., out_features)``.

    Parameters
    ----------
    in_features, out_features : int
        Widths of x and y, at least 1.
    bias : bool
        Whether there is a b.
    precision : str
        "highest" or "high", as in ``grilly.functional.linear``.
    rng : int or numpy.random.Generator, optional
        Where the first weights come from: evenly spread in plus or minus ``1 / sqrt(in_features)``, as in PyTorch.

    Attributes
    ----------
    weight : Parameter
        W, ``(out_features, in_features)``.
    bias : Parameter or None
        b, ``(out_features,)``.

    Raises
    ------
    ValueError
        If a width is below 1, or for another precision.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, precision: Precision = "highest",
        rng: int | np.random.Generator | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        for name, width in (("in_features", in_features), ("out_features", out_features)):
            integer("Linear", name, width)
        if in_features < 1 or out_features < 1:
            raise ValueError(f"Linear: {in_features} inputs and {out_features} outputs; both must be at least 1")
        check_precision("Linear", precision)
        rng = np.random.default_rng(rng)
        self.precision: Precision = precision
        self.in_features = in_features
        self.out_features = out_features
        bound = 1 / math.sqrt(in_features)
        self.weight = Parameter(uniform(rng, bound, out_features, in_features))
        self.bias = Parameter(uniform(rng, bound, out_features)) if bias else None

    def _check(self, input: FloatArray) -> None:
        """Raise ValueError for an input whose last axis has another length."""
        (shape,) = shapes("Linear", input=input)
        if not shape or shape[-1] != self.in_features:
            raise ValueError(f"Linear: input has shape {shape}; its last axis must have {self.in_features} elements")

    def _run(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.on(x.backend)
        return F.linear(x, self.weight.on(x.backend), bias, precision=self.precision)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
