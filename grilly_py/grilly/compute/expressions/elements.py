"""Bits of elements as numbers of the machine's types, and back; conversions between dtypes."""

from __future__ import annotations

import functools

import numpy as np

from ..arrays.promotion import kind_of
from .nodes import Node, call, constant, make, retyped

_SIXTEEN = ("float16", "bfloat16")


@functools.lru_cache(maxsize=64)
def type_of(dtype: np.dtype) -> str:
    """The machine's type in which numbers of a dtype are computed."""
    kind = kind_of(dtype)
    if kind == "floating":
        return "float"
    if kind == "bool":
        return "bool"
    return {"int64": "long", "uint32": "uint"}.get(dtype.name, "int")


@functools.lru_cache(maxsize=64)
def width_of(dtype: np.dtype) -> int:
    """Bits of an element."""
    return 8 * dtype.itemsize


def _uint(value: int) -> Node:
    return constant(value, "uint")


def loaded(dtype: np.dtype, bits: Node) -> Node:
    """The number that an element with these bits holds."""
    if dtype.name == "int64":
        return bits
    low = make("low", bits)
    if dtype.name == "float32":
        return make("float_of_bits", low)
    if dtype.name == "float16":
        return call("float_of_half", low)
    if dtype.name == "bfloat16":
        return make("float_of_bits", make("shift_left", low, _uint(16)))
    if dtype.name == "bool":
        return make("not_equal", low, _uint(0))
    return wrapped(dtype, retyped(low, type_of(dtype))) if kind_of(dtype) == "signed" else retyped(low, type_of(dtype))


def stored(dtype: np.dtype, number: Node) -> Node:
    """The bits of an element that holds this number."""
    if dtype.name == "int64":
        return number
    if dtype.name == "float32":
        low = make("bits", number)
    elif dtype.name == "float16":
        low = call("half_of_float", number)
    elif dtype.name == "bfloat16":
        low = call("bfloat16_of_float", number)
    elif dtype.name == "bool":
        low = make("select", number, _uint(1), _uint(0))
    else:
        low = retyped(number, "uint")
        if width_of(dtype) < 32:
            low = make("and", low, _uint((1 << width_of(dtype)) - 1))
    return make("pair", low, _uint(0))


def wrapped(dtype: np.dtype, number: Node) -> Node:
    """A number of 32 bits as an integer dtype holds it: the lower bits, with their sign."""
    bits = width_of(dtype)
    if bits >= 32:
        return number
    if kind_of(dtype) == "unsigned":
        return make("and", number, constant((1 << bits) - 1, number.type))
    places = constant(32 - bits, number.type)
    return make("shift_right_signed", make("shift_left", number, places), places)


def rounded(dtype: np.dtype, number: Node) -> Node:
    """A float rounded to a floating dtype."""
    return loaded(dtype, stored(dtype, number)) if dtype.name in _SIXTEEN else number


def long_of(dtype: np.dtype, number: Node) -> Node:
    """A number of a dtype as an int64; of floats the integer part, or the nearest int64."""
    type = type_of(dtype)
    if type == "long":
        return number
    if type == "float":
        return call("long_of_float", number)
    if type == "bool":
        return make("pair", make("select", number, _uint(1), _uint(0)), _uint(0))
    low = retyped(number, "uint")
    high = _uint(0) if type == "uint" else retyped(make("shift_right_signed", low, _uint(31)), "uint")
    return make("pair", low, high)


def converted(source: np.dtype, to: np.dtype, number: Node) -> Node:
    """A number of one dtype converted to another; not rounded to 16 bits, as these are computed in float32."""
    if source == to:
        return number
    before, after = type_of(source), type_of(to)
    if after == "bool":
        return truth(before, number)
    if after == "float":
        return number if before == "float" else _float(source, number)
    if after == "long":
        return long_of(source, number)
    if before == "bool":
        return make("select", number, constant(1, after), constant(0, after))
    if before in ("float", "long"):
        number = make("low", long_of(source, number))
    return wrapped(to, retyped(number, after))


def _float(source: np.dtype, number: Node) -> Node:
    if type_of(source) == "bool":
        return make("select", number, constant(1.0, "float"), constant(0.0, "float"))
    if width_of(source) < 32:  # exact on every device
        return make("float_of_int", number)
    return call("float_of_long", long_of(source, number))


def by_device(node: Node) -> Node:
    """A conversion of an int32 to float32 as the device makes it; other nodes as they are.

    Vulkan asks for the nearest float32. Integers of up to 24 bits, as indices of arrays are, become themselves on every
    device.
    """
    if node.name == "call" and node.value == "float_of_long" and node.operands[0].name == "pair":
        low, high = node.operands[0].operands
        if high is retyped(make("shift_right_signed", low, _uint(31)), "uint"):
            return make("float_of_int", retyped(low, "int"))
    return node


def truth(type: str, number: Node) -> Node:
    """Whether a number is not zero; NaN is not."""
    if type == "bool":
        return number
    if type == "float":
        return make("not_equal", make("and", make("bits", number), _uint(0x7FFFFFFF)), _uint(0))
    if type == "long":
        return make("not_equal", make("or", make("low", number), make("high", number)), _uint(0))
    return make("not_equal", number, constant(0, type))
