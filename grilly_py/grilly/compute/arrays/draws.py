"""Random arrays, the same on every device: shaders/arrays/random.comp."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from ...registry import Registry, Request
from ..device.arguments import check_backend
from ..device.call import run
from ..device.device import Device, DeviceFacts
from ..device.dtypes import dtype_of
from ..device.numbers import extents
from ..device.plan import At, Layout, Live, Plan, Planner, fits_binding
from ..device.tensor import Tensor
from ..random import is_drawn, seed_of
from .operations import code
from .promotion import integer_range, kind_of

#: What is drawn, as the kernel numbers it.
UNIFORM, NORMAL, INTEGERS = range(3)
_CHUNK = 2**28  # elements of a dispatch at most


def floats(device: Device, draw: int, name: str, shape, first: float, second: float, dtype, seed, offset) -> Tensor:
    """``first + second * number`` of uniform or normal numbers; ``seed`` a number, or a tensor of one integer.

    Raises TypeError for other than floating dtypes, and ValueError for numbers beyond float32.
    """
    dtype = dtype_of(dtype)
    if kind_of(dtype) != "floating":
        raise TypeError(f"{name}: dtype {dtype.name}; expected a floating one")
    try:
        words = struct.unpack("=2I", struct.pack("=2f", first, second))
    except OverflowError:
        raise ValueError(f"{name}: numbers of {first} and {second} times what is drawn are beyond float32") from None
    return _drawn(device, draw, name, shape, dtype, (words[0], 0, words[1]), seed, offset)


def integers(device: Device, name: str, low: int, high: int, shape, dtype, seed, offset) -> Tensor:
    """Integers from ``low`` on and below ``high``. Raises ValueError for bounds that the dtype has not, or none."""
    dtype = dtype_of(dtype)
    if kind_of(dtype) not in ("signed", "unsigned"):
        raise TypeError(f"{name}: dtype {dtype.name}; expected one of integers")
    least, most = integer_range(dtype)
    if not (least <= low < high <= most + 1 and high - low < 2**32):
        raise ValueError(
            f"{name}: from {low} to {high}; expected numbers of {dtype.name}, one at least and fewer than 2**32"
        )
    numbers = (low & 0xFFFFFFFF, low >> 32 & 0xFFFFFFFF, high - low)
    return _drawn(device, INTEGERS, name, shape, dtype, numbers, seed, offset)


def _drawn(
    device: Device, draw: int, name: str, shape, dtype: np.dtype, numbers: tuple, seed: int | Tensor, offset: int
) -> Tensor:  # fmt: skip
    device.check_open()
    check_backend(name, device, seed)
    number, tensor = seed_of(name, seed)
    if not 0 <= offset < 2**32:
        raise ValueError(f"{name}: offset is {offset}; expected 0 to 2**32 - 1")
    live = (number & 0xFFFFFFFF, number >> 32, offset, *numbers)
    (found,) = run(device, plan, (draw, extents(name, shape), dtype), (tensor,), live)
    device.runtime.flush()
    return found


def plan(
    given: tuple[int, tuple[int, ...], np.dtype], layouts: Sequence[Layout | None], facts: DeviceFacts,
    registry: Registry,
) -> Plan:  # fmt: skip
    """The dispatches of a random array. ``Live`` words: the seed's halves, the offset, and the two numbers."""
    draw, shape, dtype = given
    planner = Planner(facts, layouts)
    (seed,) = planner.inputs
    result = planner.empty(shape, dtype)
    if not result.size:
        return planner.plan(result)
    choice = registry.resolve(Request("random", "float32"))
    flat, chunk = result.reshape(result.size), _CHUNK
    while not fits_binding(facts, flat[:chunk]):
        chunk //= 2
    for begin in range(0, result.size, chunk):
        part = flat[begin : begin + chunk]
        push = {
            "count": part.size, "first": begin // 4, "y_offset": At(part), "seed_low": Live(0), "seed_high": Live(1),
            "offset": Live(2), "a_low": Live(3), "a_high": Live(4), "b_low": Live(5), "seed_offset": At(seed),
        }  # fmt: skip
        groups = choice.workgroups(part.size, 4 * choice.threads)
        constants = {"DRAW": draw, "TYPE_Y": code(dtype), "SEED": 0 if seed is None else code(seed.dtype),
                     "DRAWN": int(is_drawn(seed))}  # fmt: skip
        planner.dispatch(choice, constants, {"y": part, "seed": seed}, push, groups, 100.0 * part.size)
    return planner.plan(result)
