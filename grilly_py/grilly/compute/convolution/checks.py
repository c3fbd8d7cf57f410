"""Checks of the arguments of convolutions, and the sizes that follow from them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..device.arguments import check_float, check_precision
from ..device.numbers import integer


class Window(NamedTuple):
    """The windows of a convolution: each attribute is (height, width).

    Attributes
    ----------
    kernel, stride, dilation : tuple of int
    padding : tuple of int
        Zeros before the first element.
    out : tuple of int
        Extents of the output.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    out: tuple[int, int]

    @property
    def places(self) -> int:
        """Elements of the kernel: height times width."""
        return self.kernel[0] * self.kernel[1]

    @property
    def outputs(self) -> int:
        """Windows of one sample: height times width of the output."""
        return self.out[0] * self.out[1]


class Asked(NamedTuple):
    """A checked convolution: its windows, its groups, and whether float32 may be split into 16-bit parts."""

    window: Window
    groups: int
    high: bool


def plain(value):
    """A list or an array of NumPy's as a tuple, which can be a key of a cache; anything else as it is."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return tuple(value) if isinstance(value, list) else value


def numbers(name: str, what: str, value, axes: int, least: int) -> tuple[int, ...]:
    """One number for each axis, from one for all or a sequence.

    Raises TypeError, and ValueError below ``least`` and from 2**31 on, which kernels do not count to.
    """
    value = plain(value)
    if isinstance(value, tuple):
        if len(value) != axes:
            raise ValueError(f"{name}: {what} is {value!r}; expected a number or {axes} of them")
        found = tuple(integer(name, what, one) for one in value)
    else:
        found = (integer(name, what, value),) * axes
    if min(found) < least:
        raise ValueError(f"{name}: {what} is {value!r}; expected {least} or more")
    if max(found) >= 2**31:
        raise ValueError(f"{name}: {what} is {value!r}; expected less than 2**31")
    return found


def paddings(name: str, padding, stride: tuple[int, ...], reach: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Zeros before and after each axis. ``reach``: elements from the first to the last of the dilated kernel."""
    if padding == "valid":
        return ((0, 0),) * len(stride)
    if padding == "same":
        if max(stride) > 1:
            raise ValueError(f"{name}: padding 'same' with stride {stride}; expected stride 1")
        return tuple(((r - 1) // 2, r - 1 - (r - 1) // 2) for r in reach)
    if isinstance(padding, str):
        raise ValueError(f"{name}: padding is {padding!r}; expected numbers, 'same' or 'valid'")
    return tuple((p, p) for p in numbers(name, "padding", padding, len(stride), 0))


def checked(name: str, axes: int, x, weight, bias, stride, padding, dilation, groups, precision, **others) -> Asked:
    """The arguments of a convolution, checked. Raises TypeError and ValueError where they do not go together.

    Parameters
    ----------
    axes : int
        1 or 2. One axis is the width; the height is then 1.
    others
        Further arrays of the same dtype.
    """
    arrays = {"input": x, "weight": weight, **({} if bias is None else {"bias": bias}), **others}
    check_float(name, **arrays)
    high = check_precision(name, precision)
    shape, kernel = tuple(x.shape), tuple(weight.shape)
    text = "L" if axes == 1 else "H, W"
    if len(shape) not in (axes + 1, axes + 2):
        raise ValueError(f"{name}: input has shape {shape}; expected (N, C, {text}) or (C, {text})")
    if len(kernel) != axes + 2 or 0 in kernel[1:]:
        places = "k" if axes == 1 else "kh, kw"
        raise ValueError(f"{name}: weight has shape {kernel}; expected (O, C / groups, {places})")
    groups = numbers(name, "groups", groups, 1, 1)[0]
    if shape[-axes - 1] != kernel[1] * groups:
        raise ValueError(f"{name}: input has {shape[-axes - 1]} channels (shape {shape}) and weight {kernel[1]} "
                         f"(shape {kernel}) in {groups} groups; expected {kernel[1] * groups}")  # fmt: skip
    if kernel[0] % groups:
        raise ValueError(f"{name}: weight has {kernel[0]} outputs, which {groups} groups do not divide")
    if bias is not None and tuple(bias.shape) != kernel[:1]:
        raise ValueError(f"{name}: bias has shape {tuple(bias.shape)}; expected ({kernel[0]},)")
    stride = numbers(name, "stride", stride, axes, 1)
    dilation = numbers(name, "dilation", dilation, axes, 1)
    reach = tuple(d * (k - 1) + 1 for d, k in zip(dilation, kernel[2:], strict=True))
    pads = paddings(name, padding, stride, reach)
    extents = shape[-axes:]
    out = tuple((e + sum(p) - r) // s + 1 for e, p, r, s in zip(extents, pads, reach, stride, strict=True))
    if min(out) < 1:
        raise ValueError(f"{name}: input of {extents} with padding {pads} is smaller than the kernel's reach {reach}")
    before = tuple(p[0] for p in pads)
    both = [(1,) * (2 - axes) + own for own in (kernel[2:], stride, dilation, out)]
    window = Window(both[0], both[1], (0,) * (2 - axes) + before, both[2], both[3])
    return Asked(window, groups, high)
