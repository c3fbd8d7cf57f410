"""Random tensors, the same on every device: ``grilly.random``.

The generator is that of dropout, Philox4x32-10: what is drawn depends on the function, its arguments, ``seed`` and
``offset`` alone. Without a seed a call takes that of ``grilly.manual_seed`` and the next offset, as dropout does, so
that the same calls in the same order give the same numbers. `grilly.reference` has the same functions in NumPy. In a
captured function (``Compute.capture``) each replay draws so; with a number as seed each draws the same, with a Tensor
of one integer among the function's arguments its own.
"""

from __future__ import annotations

import math
from typing import Any

from .array_api.operands import device_at
from .compute.arrays import draws as _draws
from .compute.attention.foreign import named
from .compute.backend import Compute
from .compute.device.device import Device
from .compute.device.numbers import integer, number
from .compute.device.tensor import Tensor
from .compute.random import drawn, manual_seed

__all__ = ["integers", "manual_seed", "normal", "uniform"]

#: Other libraries' keywords.
_KEYWORDS = {
    "size": "shape", "loc": "mean", "scale": "std", **dict.fromkeys(("minval", "a"), "low"),
    **dict.fromkeys(("maxval", "b"), "high"), **dict.fromkeys(("generator", "rng", "key"), "seed"),
    "out": "nothing: the result is a new Tensor",
}  # fmt: skip


def _source(
    name: str, device: Compute | None, seed: int | Tensor | None, offset: int
) -> tuple[Device, int | Tensor, int]:
    opened = device_at(device)
    if seed is None:
        return opened, *drawn(opened)
    return opened, seed, integer(name, "offset", offset)


@named(_KEYWORDS)
def normal(
    shape: int | tuple[int, ...], *, mean: float = 0.0, std: float = 1.0, dtype: Any = "float32",
    seed: int | Tensor | None = None, offset: int = 0, device: Compute | None = None,
) -> Tensor:  # fmt: skip
    """Normal numbers, by Box and Muller from pairs of 24 random bits: none is beyond 5.8 standard deviations.

    They are within 8 float32 roundings of `grilly.reference.random_normal`, then rounded to ``dtype``.

    Parameters
    ----------
    shape : int or tuple of int
    mean, std : float
    dtype : dtype
        float32, float16 or bfloat16.
    seed : int or Tensor, optional
        From 0 to 2**64 - 1; or a Tensor of one integer, which the device reads. A Tensor among the arguments of a
        captured function gives each replay numbers of its own.
    offset : int
        From 0 to 2**32 - 1; another one gives other numbers of the same seed. Without a seed it is not looked at.
    device : Compute, optional
        The default one unless given.

    Raises
    ------
    TypeError
        For another dtype, and a shape or seed that is not of integers, or a Tensor of more than one.
    ValueError
        For a seed or an offset out of range, a mean or deviation that float32 does not hold, and a negative deviation.
    """
    mean, std = number("normal", "mean", mean), number("normal", "std", std)
    if not std >= 0:
        raise ValueError(f"normal: std is {std}; expected no negative number")
    opened, seed, offset = _source("normal", device, seed, offset)
    return _draws.floats(opened, _draws.NORMAL, "normal", shape, mean, std, dtype, seed, offset)


@named(_KEYWORDS)
def uniform(
    shape: int | tuple[int, ...], *, low: float = 0.0, high: float = 1.0, dtype: Any = "float32",
    seed: int | Tensor | None = None, offset: int = 0, device: Compute | None = None,
) -> Tensor:  # fmt: skip
    """Numbers from ``low`` on and below ``high``, each of 2**24 equally likely; rounding may give ``high`` itself.

    Parameters and errors as ``normal``; ValueError also for bounds that are not finite, and a ``high`` below ``low``.
    """
    low, high = number("uniform", "low", low), number("uniform", "high", high)
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ValueError(f"uniform: low is {low} and high is {high}; expected finite numbers, and high not below low")
    opened, seed, offset = _source("uniform", device, seed, offset)
    return _draws.floats(opened, _draws.UNIFORM, "uniform", shape, low, high - low, dtype, seed, offset)


@named({**_KEYWORDS, "endpoint": "high, one more where it is True"})
def integers(
    low: int, high: int, shape: int | tuple[int, ...], *, dtype: Any = "int64", seed: int | Tensor | None = None,
    offset: int = 0, device: Compute | None = None,
) -> Tensor:  # fmt: skip
    """Integers from ``low`` on and below ``high``, each as likely but for 1 in 2**32 of that.

    Parameters as ``normal``; ``dtype`` is one of integers.

    Raises
    ------
    TypeError
        For another dtype.
    ValueError
        For bounds that the dtype does not hold, none or more than 2**32 - 1 numbers between them, and as ``normal``.
    """
    opened, seed, offset = _source("integers", device, seed, offset)
    low, high = integer("integers", "low", low), integer("integers", "high", high)
    return _draws.integers(opened, "integers", low, high, shape, dtype, seed, offset)
