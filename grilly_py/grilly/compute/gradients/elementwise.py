"""Gradients of elementwise operations, conversions and copies."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence

from ..arrays import convert
from ..arrays import map as maps
from ..arrays.elementwise import cast, unary, where
from ..arrays.operations import Spec
from ..device.tape import Entry
from ..device.tensor import Tensor
from ..expressions.elements import type_of
from ..expressions.scalars import Scalar
from .functions import Derivative
from .records import gradient_of, the_other
from .repeated import summed_to

_FLOAT = struct.Struct("<f")


@gradient_of(convert.plan, reads=())
def _converted(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    return (cast(gradients[0], entry.arrays[0].dtype),)


#: Operations with one slope everywhere, by their operands.
_SLOPES = {"copy": (1,), "negative": (-1,), "add": (1, 1), "subtract": (1, -1)}


def _read(static: tuple, needs: tuple[bool, ...]) -> tuple[Sequence[int] | None, bool]:
    """All operands, but for those of what has one slope everywhere; and of some operations one."""
    name, is_scaled = static[0].name, static[0].scalars == (1,)
    if name in _SLOPES or name in ("multiply", "divide") and is_scaled:
        return (), False
    if name == "multiply":
        return the_other(static, needs)
    return ((0,) if name == "where" else None), False


@gradient_of(maps.plan, reads=_read)
def _mapped(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    asked, (gradient,) = entry.static[0], gradients
    if asked.name in _SLOPES or asked.name == "where":
        parts = [_part(asked.name, entry, place, gradient) if needs else None
                 for place, needs in enumerate(entry.needs)]  # fmt: skip
        return [None if part is None else summed_to(part, array.shape)
                for part, array in zip(parts, entry.arrays, strict=True)]  # fmt: skip
    arguments, places = _arguments(asked, entry)
    wanted = [places[number] for number, needs in enumerate(entry.needs) if needs]
    found = _derivative(asked.name)(arguments, (gradient,), wanted)
    own = dict(zip(wanted, found, strict=True))
    return [own.get(places.get(number)) for number in range(len(entry.arrays))]


def _part(name: str, entry: Entry, place: int, gradient: Tensor) -> Tensor:
    """The gradient of one operand, of the result's shape."""
    if name == "where":
        pair = (gradient, 0.0) if place == 1 else (0.0, gradient)
        return where(entry.arrays[0], *pair)
    return gradient if _SLOPES[name][place] == 1 else unary("negative", gradient)


@functools.lru_cache(maxsize=256)
def _derivative(name: str) -> Derivative:
    def function(*operands):
        return Scalar.operations[name](*operands)

    return Derivative(function, name)


def _arguments(asked: Spec, entry: Entry) -> tuple[list, dict[int, int]]:
    """The operands by their places, numbers among them, and the places of the entry's arrays."""
    arrays = [number for number, array in enumerate(entry.arrays) if array is not None]
    found, places = [], {}
    for place in range(len(arrays) + len(asked.scalars)):
        if place in asked.scalars:
            at = 2 * asked.scalars.index(place)
            found.append(_number(asked, *entry.live[at : at + 2]))
        else:
            number = arrays.pop(0)
            places[number] = place
            found.append(entry.arrays[number])
    return found, places


def _number(asked: Spec, low: int, high: int) -> float | int | bool:
    """The number that a call tells in two words."""
    kind = type_of(asked.dtype)
    if kind == "float":
        return _FLOAT.unpack(low.to_bytes(4, "little"))[0]
    if kind == "bool":
        return bool(low)
    whole = low | high << 32
    return whole - (1 << 64) if whole >> 63 else whole
