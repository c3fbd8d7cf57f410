"""LayerNorm, RMSNorm and GroupNorm on the device."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import functional as F
from ..compute import Tensor
from ..compute.device.arrays import Shape
from ..compute.device.numbers import integer
from ..compute.norms.checks import check_added, check_epsilon, extents_of
from .parameter import Parameter
from .unary import Unary


class _Norm(Unary):
    """What the three share: weight and bias."""

    weight: Parameter | None
    bias: Parameter | None
    eps: float | None

    def __init__(self, shape: tuple[int, ...], affine: bool, bias: bool) -> None:
        super().__init__()
        self.weight = Parameter(np.ones(shape, np.float32)) if affine else None
        self.bias = Parameter(np.zeros(shape, np.float32)) if affine and bias else None

    def _own(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Weight and bias where x is."""
        weight, bias = (None if own is None else own.on(x.backend) for own in (self.weight, self.bias))
        return weight, bias


class LayerNorm(_Norm):
    """Layer norm over the last axes: ``grilly.functional.layer_norm`` with a weight and a bias of its own.

    Parameters
    ----------
    normalized_shape : int or sequence of int
        Extents of the last axes, each at least 1.
    eps : float
        Added to the variance; at least 0.
    elementwise_affine : bool
        Whether there are a weight and a bias.
    bias : bool
        Whether there is a bias beside the weight.

    Attributes
    ----------
    weight, bias : Parameter or None
        ``normalized_shape``; ones and zeros at first.

    Raises
    ------
    ValueError
        For an extent below 1, or an eps that is negative or not finite.
    TypeError
        For what is no integer, or no number.
    """

    def __init__(
        self, normalized_shape: Shape, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True
    ) -> None:
        extents = _extents("LayerNorm", normalized_shape)
        super().__init__(extents, elementwise_affine, bias)
        self.normalized_shape = extents
        self.eps = check_epsilon("LayerNorm", eps)

    def _run(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, *self._own(x), self.eps)

    @property
    def elementwise_affine(self) -> bool:
        """Whether there is a weight."""
        return self.weight is not None

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class RMSNorm(_Norm):
    """RMS norm over the last axes: ``grilly.functional.rms_norm`` with a weight of its own.

    Parameters
    ----------
    normalized_shape : int or sequence of int
        Extents of the last axes, each at least 1.
    eps : float, optional
        Added to the mean of squares; at least 0. None is 2**-23.
    elementwise_affine : bool
        Whether there is a weight.
    weight_offset : float
        Added to the weight: 1 for Gemma, whose weights are kept less 1 (and begin as zeros there).

    Attributes
    ----------
    weight : Parameter or None
        ``normalized_shape``; at first ``1 - weight_offset``.

    Raises
    ------
    ValueError
        For an extent below 1, an eps that is negative or not finite, or a weight_offset that is not finite.
    TypeError
        For what is no integer, or no number.
    """

    def __init__(
        self, normalized_shape: Shape, eps: float | None = None, elementwise_affine: bool = True, *,
        weight_offset: float = 0.0,
    ) -> None:  # fmt: skip
        extents = _extents("RMSNorm", normalized_shape)
        super().__init__(extents, elementwise_affine, False)
        self.normalized_shape = extents
        self.eps = None if eps is None else check_epsilon("RMSNorm", eps)
        self.weight_offset = check_added("RMSNorm", weight_offset)
        if self.weight is not None:
            self.weight.data = np.full(extents, 1 - self.weight_offset, np.float32)

    def _run(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self._own(x)[0], self.eps, self.weight_offset)

    @property
    def elementwise_affine(self) -> bool:
        """Whether there is a weight."""
        return self.weight is not None

    def extra_repr(self) -> str:
        added = f", weight_offset={self.weight_offset}" if self.weight_offset else ""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}{added}"


class GroupNorm(_Norm):
    """Group norm of ``(N, C, ...)``: ``grilly.functional.group_norm`` with a weight and a bias of its own.

    Parameters
    ----------
    num_groups : int
        Divides num_channels.
    num_channels : int
        C, at least 1.
    eps : float
        Added to the variance; at least 0.
    affine : bool
        Whether there are a weight and a bias.

    Attributes
    ----------
    weight, bias : Parameter or None
        ``(num_channels,)``; ones and zeros at first.

    Raises
    ------
    ValueError
        For numbers below 1 or channels that cannot be divided so, and an eps that is negative or not finite.
    TypeError
        For what is no integer, or no number.
    """

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True) -> None:
        for name, count in (("num_groups", num_groups), ("num_channels", num_channels)):
            integer("GroupNorm", name, count)
        if num_groups < 1 or num_channels < 1 or num_channels % num_groups:
            raise ValueError(f"GroupNorm: {num_channels} channels cannot be divided into {num_groups} groups")
        super().__init__((num_channels,), affine, True)
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = check_epsilon("GroupNorm", eps)

    def _run(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise ValueError(f"GroupNorm: input has shape {x.shape}; expected (N, {self.num_channels}, ...)")
        return F.group_norm(x, self.num_groups, *self._own(x), self.eps)

    @property
    def affine(self) -> bool:
        """Whether there are a weight and a bias."""
        return self.weight is not None

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


def _extents(name: str, normalized_shape: Any) -> tuple[int, ...]:
    shape = extents_of(name, normalized_shape)
    if min(shape) < 1:
        raise ValueError(f"{name}: normalized_shape is {shape}; expected extents of at least 1")
    return shape
