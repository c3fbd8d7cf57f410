"""Convolutions of one and two axes as layers."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from .. import functional as F
from ..compute import Tensor
from ..compute.convolution.checks import numbers, paddings
from ..compute.device.arguments import check_precision
from ..compute.device.arrays import Precision
from ..compute.device.numbers import integer
from ..functional.convolution import Padding, Sizes
from .linear import uniform
from .parameter import Parameter
from .unary import Unary


class _Convolution(Unary):
    """What both have: weights, and the function of their number of axes."""

    _axes = 0

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1, padding: Padding = 0,
        dilation: Sizes = 1, groups: int = 1, bias: bool = True, padding_mode: Literal["zeros"] = "zeros", *,
        precision: Precision = "highest", rng: int | np.random.Generator | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        name, axes = type(self).__name__, self._axes
        for what, size in (("in_channels", in_channels), ("out_channels", out_channels), ("groups", groups)):
            if integer(name, what, size) < 1:
                raise ValueError(f"{name}: {what} is {size}; expected 1 or more")
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"{name}: {in_channels} and {out_channels} channels are not divided by {groups} groups")
        if padding_mode != "zeros":
            raise ValueError(f"{name}: padding_mode is {padding_mode!r}; only 'zeros' is there")
        check_precision(name, precision)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = numbers(name, "kernel_size", kernel_size, axes, 1)
        self.stride = numbers(name, "stride", stride, axes, 1)
        paddings(name, padding, self.stride, (1,) * axes)
        self.padding: Padding = padding if isinstance(padding, str) else numbers(name, "padding", padding, axes, 0)
        self.dilation = numbers(name, "dilation", dilation, axes, 1)
        self.groups = groups
        self.precision: Precision = precision
        rng = np.random.default_rng(rng)
        inner = in_channels // groups
        bound = 1 / math.sqrt(inner * math.prod(self.kernel_size))
        self.weight = Parameter(uniform(rng, bound, out_channels, inner, *self.kernel_size))
        self.bias = Parameter(uniform(rng, bound, out_channels)) if bias else None

    def _run(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.on(x.backend)
        call = F.conv1d if self._axes == 1 else F.conv2d
        return call(
            x, self.weight.on(x.backend), bias, self.stride, self.padding, self.dilation, self.groups,
            precision=self.precision,
        )  # fmt: skip

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        usual = {"padding": (0,) * self._axes, "dilation": (1,) * self._axes, "groups": 1}
        for name, value in usual.items():
            if getattr(self, name) != value:
                text += f", {name}={getattr(self, name)!r}"
        return text + ("" if self.bias is not None else ", bias=False")


class Conv1d(_Convolution):
    """Convolution along the last axis of ``(N, C, L)``, as ``F.conv1d``.

    Parameters
    ----------
    in_channels, out_channels : int
        C and O, at least 1.
    kernel_size, stride, padding, dilation, groups, precision
        As for ``F.conv1d``; padding also "same" and "valid".
    bias : bool
        Whether there is one.
    padding_mode : str
        "zeros".
    rng : int or numpy.random.Generator, optional
        Where the first weights come from: evenly spread in plus or minus ``1 / sqrt(C / groups * k)``, as in PyTorch.

    Attributes
    ----------
    weight : Parameter
        ``(O, C / groups, k)``.
    bias : Parameter or None
        ``(O,)``.

    Raises
    ------
    ValueError
        For numbers outside their ranges, groups that do not divide the channels, and another padding_mode.
    """

    _axes = 1


class Conv2d(_Convolution):
    """Convolution along the last two axes of ``(N, C, H, W)``, as ``F.conv2d``.

    Parameters
    ----------
    in_channels, out_channels : int
        C and O, at least 1.
    kernel_size, stride, padding, dilation, groups, precision
        As for ``F.conv2d``; padding also "same" and "valid".
    bias : bool
        Whether there is one.
    padding_mode : str
        "zeros".
    rng : int or numpy.random.Generator, optional
        Where the first weights come from: evenly spread in plus or minus ``1 / sqrt(C / groups * kh * kw)``, as in
        PyTorch.

    Attributes
    ----------
    weight : Parameter
        ``(O, C / groups, kh, kw)``.
    bias : Parameter or None
        ``(O,)``.

    Raises
    ------
    ValueError
        For numbers outside their ranges, groups that do not divide the channels, and another padding_mode.
    """

    _axes = 2
